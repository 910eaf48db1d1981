//! Mel filters as librosa's `filters.mel(sr=16000, n_fft=400)` makes them: triangles on Slaney's scale, each of the
//! same area.
//!
//! Slaney's scale (M. Slaney, Auditory Toolbox, 1998) is linear up to 1 kHz, 200/3 Hz a mel, and logarithmic above, 27
//! mels for a factor of 6.4.

/// Above this frequency the scale is logarithmic.
const KNEE_HZ: f64 = 1000.0;
const LINEAR_HZ_PER_MEL: f64 = 200.0 / 3.0;
const KNEE_MEL: f64 = KNEE_HZ / LINEAR_HZ_PER_MEL;

/// The triangle of one band: weights of neighbouring bins, zero everywhere else.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    pub(crate) first_bin: usize,
    pub(crate) weights: Vec<f64>,
}

/// The filters of `bands` bands from 0 Hz to half the rate, over the `n_fft / 2 + 1` bins of a spectrum.
pub(crate) fn slaney(bands: usize, n_fft: usize, rate_hz: f64) -> Vec<Filter> {
    let top = mel(rate_hz / 2.0);
    let edge_hz = |edge: usize| hz(top * edge as f64 / (bands + 1) as f64);
    let triangle = |band: usize| {
        let (low, mid, high) = (edge_hz(band), edge_hz(band + 1), edge_hz(band + 2));
        let weight = |bin: usize| {
            let bin_hz = bin as f64 * rate_hz / n_fft as f64;
            ((bin_hz - low) / (mid - low)).min((high - bin_hz) / (high - mid)).max(0.0) * 2.0 / (high - low)
        };
        let bins = (0..=n_fft / 2).filter(|bin| weight(*bin) > 0.0);
        let first_bin = bins.clone().next().unwrap_or(0);
        Filter { first_bin, weights: bins.map(weight).collect() }
    };
    (0..bands).map(triangle).collect()
}

fn log_step() -> f64 {
    6.4f64.ln() / 27.0
}

fn mel(hz: f64) -> f64 {
    if hz < KNEE_HZ { hz / LINEAR_HZ_PER_MEL } else { KNEE_MEL + (hz / KNEE_HZ).ln() / log_step() }
}

fn hz(mel: f64) -> f64 {
    if mel < KNEE_MEL { mel * LINEAR_HZ_PER_MEL } else { KNEE_HZ * ((mel - KNEE_MEL) * log_step()).exp() }
}
