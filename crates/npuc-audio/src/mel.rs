//! Log-mel spectrograms as Whisper's feature extractor computes them (openai/whisper, `audio.py` and `transcribe.py`).
//!
//! The reference has two ways, which differ in the loudest value that everything is measured from and in what follows
//! the end: [`Extractor::clip`] is `log_mel_spectrogram(pad_or_trim(audio[start..]))`, and [`Extractor::spectrogram`]
//! is what `transcribe` seeks in. Spectra are computed in f64, because what is 80 dB below the loudest still counts.

use std::sync::Arc;

use rayon::prelude::*;
use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};

use crate::audio::Mono16k;
use crate::filters::{Filter, slaney};

/// Samples of a spectrum, 25 ms.
pub const FFT_SAMPLES: usize = 400;

/// Samples from one frame to the next, 10 ms.
pub const HOP_SAMPLES: usize = 160;

/// Samples of a window, 30 s.
pub const WINDOW_SAMPLES: usize = 480_000;

/// Frames of a window.
pub const WINDOW_FRAMES: usize = WINDOW_SAMPLES / HOP_SAMPLES;

/// What a power is at least before its logarithm is taken.
const FLOOR: f64 = 1e-10;

/// Frames that share one set of scratch buffers.
const BLOCK_FRAMES: usize = 50;

/// How many bands a model hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bands {
    /// 80, tiny to medium and the first two large models.
    Mel80,
    /// 128, large-v3 and its turbo form.
    Mel128,
}

impl Bands {
    /// Every number of bands.
    pub const ALL: [Bands; 2] = [Bands::Mel80, Bands::Mel128];

    /// The number, `num_mel_bins` of a configuration.
    pub const fn count(self) -> usize {
        match self {
            Bands::Mel80 => 80,
            Bands::Mel128 => 128,
        }
    }

    /// The bands of that number, if a model has so many.
    pub fn from_count(count: usize) -> Option<Bands> {
        Bands::ALL.into_iter().find(|bands| bands.count() == count)
    }
}

/// 30 s as the encoder takes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// The sample of the audio that frame 0 is about.
    pub start_sample: usize,
    /// The frames before the audio's end, [`WINDOW_FRAMES`] at most. A decoding loop that found no timestamp goes on
    /// behind them.
    pub content_frames: usize,
    /// `[bands, WINDOW_FRAMES]`.
    pub mel: Vec<f32>,
}

/// The transform, the Hann window and the filters of a number of bands.
#[derive(Clone)]
pub struct Extractor {
    bands: Bands,
    transform: Arc<dyn RealToComplex<f64>>,
    hann: Vec<f64>,
    filters: Vec<Filter>,
}

impl Extractor {
    /// What computes mels of `bands` bands.
    pub fn new(bands: Bands) -> Extractor {
        let turn = |i: usize| 2.0 * std::f64::consts::PI * i as f64 / FFT_SAMPLES as f64;
        Extractor {
            bands,
            transform: RealFftPlanner::new().plan_fft_forward(FFT_SAMPLES),
            hann: (0..FFT_SAMPLES).map(|i| 0.5 - 0.5 * turn(i).cos()).collect(),
            filters: slaney(bands.count(), FFT_SAMPLES, f64::from(Mono16k::RATE_HZ)),
        }
    }

    /// The bands.
    pub fn bands(&self) -> Bands {
        self.bands
    }

    /// The 30 s from `start_sample` on, by themselves: followed by silence where the audio ends, reflected at both
    /// ends, and measured from their own loudest value. A start at or behind the end gives silence, -1.5 everywhere.
    pub fn clip(&self, audio: &Mono16k, start_sample: usize) -> Window {
        let rest = audio.samples().get(start_sample..).unwrap_or(&[]);
        let samples = &rest[..rest.len().min(WINDOW_SAMPLES)];
        let mut frames = self.log_mels(Padded { samples, len: WINDOW_SAMPLES }, WINDOW_FRAMES);
        scale(&mut frames);
        let mel = columns(&frames, self.bands.count());
        Window { start_sample, content_frames: samples.len() / HOP_SAMPLES, mel }
    }

    /// All of the audio at once, to seek in: 30 s of silence follow its end before its spectra are taken, and all is
    /// measured from the loudest value of the whole. It takes 4 bytes a band and frame, 115 MB an hour with 80 bands.
    pub fn spectrogram(&self, audio: &Mono16k) -> Spectrogram {
        let samples = audio.samples();
        let content = samples.len() / HOP_SAMPLES;
        // Frames behind the content that reach back into it count for the loudest value; all others are silent.
        let heard = (samples.len() + FFT_SAMPLES / 2).div_ceil(HOP_SAMPLES);
        let mut frames = self.log_mels(Padded { samples, len: samples.len() + WINDOW_SAMPLES }, heard);
        scale(&mut frames);
        frames.truncate(content * self.bands.count());
        Spectrogram { bands: self.bands, frames }
    }

    /// `log10` of the mel powers of the first `count` frames, at least [`FLOOR`]: `[count, bands]`.
    fn log_mels(&self, signal: Padded<'_>, count: usize) -> Vec<f32> {
        let bands = self.bands.count();
        let mut out = vec![0.0f32; count * bands];
        let blocks = out.par_chunks_mut(BLOCK_FRAMES * bands).enumerate();
        blocks.for_each_init(
            || Scratch::new(self.transform.as_ref()),
            |scratch, (block, rows)| {
                for (i, row) in rows.chunks_exact_mut(bands).enumerate() {
                    self.log_mel(signal, block * BLOCK_FRAMES + i, scratch, row);
                }
            },
        );
        out
    }

    fn log_mel(&self, signal: Padded<'_>, frame: usize, scratch: &mut Scratch, row: &mut [f32]) {
        signal.copy(frame * HOP_SAMPLES, &mut scratch.samples);
        for (sample, weight) in scratch.samples.iter_mut().zip(&self.hann) {
            *sample *= weight;
        }
        let Scratch { samples, spectrum, powers, work } = scratch;
        let done = self.transform.process_with_scratch(samples, spectrum, work);
        // It only refuses buffers of other lengths than it asked for, and imaginary parts that a forward transform does
        // not take.
        assert!(done.is_ok(), "the transform refused its own buffers");
        for (power, bin) in powers.iter_mut().zip(spectrum.iter()) {
            *power = bin.norm_sqr();
        }
        for (out, filter) in row.iter_mut().zip(&self.filters) {
            let powers = &powers[filter.first_bin..];
            let sum: f64 = filter.weights.iter().zip(powers).map(|(weight, power)| weight * power).sum();
            *out = sum.max(FLOOR).log10() as f32;
        }
    }
}

/// The log-mel frames of a whole recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Spectrogram {
    bands: Bands,
    /// `[frames, bands]`.
    frames: Vec<f32>,
}

impl Spectrogram {
    /// The number of whole frames of the audio: its samples by [`HOP_SAMPLES`], rounded down.
    pub fn frames(&self) -> usize {
        self.frames.len() / self.bands.count()
    }

    /// The window that starts at `first_frame`; none where the audio has ended. Behind the last frame it holds zeros,
    /// as the reference's does, which is not the value of silence.
    pub fn window(&self, first_frame: usize) -> Option<Window> {
        let bands = self.bands.count();
        let content_frames = self.frames().saturating_sub(first_frame).min(WINDOW_FRAMES);
        if content_frames == 0 {
            return None;
        }
        let mut rows = vec![0.0; WINDOW_FRAMES * bands];
        let content = &self.frames[first_frame * bands..][..content_frames * bands];
        rows[..content.len()].copy_from_slice(content);
        Some(Window { start_sample: first_frame * HOP_SAMPLES, content_frames, mel: columns(&rows, bands) })
    }

    /// Windows side by side over the whole audio; none if it is shorter than a frame.
    pub fn windows(&self) -> impl Iterator<Item = Window> + '_ {
        (0..self.frames()).step_by(WINDOW_FRAMES).filter_map(|first_frame| self.window(first_frame))
    }
}

/// Samples followed by zeros up to `len`, of which there are more than half a spectrum.
#[derive(Clone, Copy)]
struct Padded<'a> {
    samples: &'a [f32],
    len: usize,
}

impl Padded<'_> {
    /// The samples around `centre`, reflected at both ends without repeating the first or last.
    fn copy(self, centre: usize, out: &mut [f64]) {
        let half = out.len() / 2;
        let inside = centre.checked_sub(half).and_then(|from| self.samples.get(from..from + out.len()));
        if let Some(inside) = inside {
            for (out, sample) in out.iter_mut().zip(inside) {
                *out = f64::from(*sample);
            }
            return;
        }
        for (i, out) in out.iter_mut().enumerate() {
            let at = (centre + i).abs_diff(half);
            let at = if at < self.len { at } else { 2 * (self.len - 1) - at };
            *out = self.samples.get(at).map_or(0.0, |sample| f64::from(*sample));
        }
    }
}

/// The buffers of one frame, used again for the next.
struct Scratch {
    samples: Vec<f64>,
    spectrum: Vec<Complex<f64>>,
    powers: Vec<f64>,
    work: Vec<Complex<f64>>,
}

impl Scratch {
    fn new(transform: &dyn RealToComplex<f64>) -> Scratch {
        Scratch {
            samples: transform.make_input_vec(),
            spectrum: transform.make_output_vec(),
            powers: vec![0.0; FFT_SAMPLES / 2 + 1],
            work: transform.make_scratch_vec(),
        }
    }
}

/// Raises what is more than 8 below the largest value, and brings the rest near ±1: `(x + 4) / 4`.
fn scale(logs: &mut [f32]) {
    let largest = logs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for log in logs {
        *log = (log.max(largest - 8.0) + 4.0) / 4.0;
    }
}

/// `[frames, bands]` as `[bands, frames]`.
fn columns(rows: &[f32], bands: usize) -> Vec<f32> {
    (0..bands).flat_map(|band| rows.iter().skip(band).step_by(bands).copied()).collect()
}
