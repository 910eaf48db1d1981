//! Samples whose numbers are known to be good: finite, not absurdly large, at a rate that speech has.

use npuc::diag::{Code, Diagnostic, Result};

/// The lowest rate: below it there is no speech to hear.
pub const MIN_RATE_HZ: u32 = 4_000;

/// The highest rate. It bounds what the filter of the resampler needs: 103 MB and two seconds for a rate that shares no
/// factor with 16000.
pub const MAX_RATE_HZ: u32 = 192_000;

/// The largest magnitude of a sample, 48 dB above full scale, which is 1. Whole numbers of 16 bits that were stored as
/// floats are above it wherever they are loud; up to it, powers are far from the range of f32.
pub const MAX_MAGNITUDE: f32 = 256.0;

/// One channel of audio at any rate; full scale is ±1.
#[derive(Clone, Debug, PartialEq)]
pub struct Audio {
    samples: Vec<f32>,
    rate_hz: u32,
}

impl Audio {
    /// Audio of these `samples`, `rate_hz` of them a second. No samples are audio too.
    ///
    /// Errors: `bad-header` for a rate of 0 Hz, `unsupported-audio` for one outside
    /// [`MIN_RATE_HZ`]`..=`[`MAX_RATE_HZ`], `bad-samples` for a sample that is NaN, infinite or larger than
    /// [`MAX_MAGNITUDE`].
    pub fn new(samples: Vec<f32>, rate_hz: u32) -> Result<Audio> {
        check_rate(rate_hz)?;
        match samples.iter().position(|sample| !is_good(*sample)) {
            Some(at) => Err(bad_sample(samples[at], at, rate_hz).into()),
            None => Ok(Audio { samples, rate_hz }),
        }
    }

    /// The samples, `[count]`.
    pub fn samples(&self) -> &[f32] {
        &self.samples
    }

    /// Samples a second.
    pub fn rate_hz(&self) -> u32 {
        self.rate_hz
    }

    /// The length in seconds.
    pub fn duration_s(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.rate_hz)
    }

    pub(crate) fn into_samples(self) -> Vec<f32> {
        self.samples
    }
}

/// One channel of audio at 16 kHz, made by [`crate::resample::to_16k`]; full scale is ±1 and every sample is finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Mono16k(Vec<f32>);

impl Mono16k {
    /// Samples a second.
    pub const RATE_HZ: u32 = 16_000;

    pub(crate) fn of(samples: Vec<f32>) -> Mono16k {
        Mono16k(samples)
    }

    /// The samples, `[count]`.
    pub fn samples(&self) -> &[f32] {
        &self.0
    }

    /// The length in seconds.
    pub fn duration_s(&self) -> f64 {
        self.0.len() as f64 / f64::from(Mono16k::RATE_HZ)
    }
}

/// Holds a rate against the limits of [`Audio::new`].
pub(crate) fn check_rate(rate_hz: u32) -> Result<()> {
    let need = format!("{MIN_RATE_HZ} to {MAX_RATE_HZ} Hz");
    if rate_hz == 0 {
        let fault = Diagnostic::error(Code::BadHeader, "the audio has a rate of 0 samples a second");
        return Err(fault.need(need).have("0 Hz").into());
    }
    if !(MIN_RATE_HZ..=MAX_RATE_HZ).contains(&rate_hz) {
        let fault = Diagnostic::error(Code::UnsupportedAudio, "the audio has a rate that npuc does not take");
        return Err(fault.need(need).have(format!("{rate_hz} Hz")).into());
    }
    Ok(())
}

/// Whether a sample is a number and not absurdly large; NaN compares as neither.
pub(crate) fn is_good(sample: f32) -> bool {
    sample.abs() <= MAX_MAGNITUDE
}

/// What is wrong about a sample that is not good.
pub(crate) fn bad_sample(sample: f32, at: usize, rate_hz: u32) -> Diagnostic {
    let message = if sample.is_finite() { "a sample is far above full scale" } else { "a sample is NaN or infinite" };
    let at_s = at as f64 / f64::from(rate_hz);
    Diagnostic::error(Code::BadSamples, message)
        .subject(format!("sample {at} at {at_s:.3} s"))
        .need(format!("finite numbers of at most {MAX_MAGNITUDE}, where 1 is full scale"))
        .have(sample)
        .help("export the file again in 16 bits")
}
