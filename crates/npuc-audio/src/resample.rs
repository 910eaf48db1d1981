//! Any rate to 16 kHz by a windowed sinc: every output is one sum over the inputs around it, at its exact place in
//! time.
//!
//! Rates are whole numbers, so only finitely many places between two inputs occur (160 for 44.1 kHz), and each has its
//! own row of the filter (a polyphase filter); nothing is interpolated. The filter is a sinc under a Kaiser window (J.
//! F. Kaiser, 1974).
//! `rubato` was not taken: its resamplers work in chunks with a delay that has to be cut off again, and its sinc resampler
//! interpolates between rows.

use rayon::prelude::*;

use crate::audio::{Audio, Mono16k};

/// Zero crossings of the sinc on either side. More make the band narrower in which the filter falls.
const CROSSINGS: f64 = 64.0;

/// The middle of the falling band over half the lower rate; it ends just below half the rate, so that next to nothing
/// folds back.
const ROLLOFF: f64 = 0.952;

/// Kaiser's β for 96 dB: 0.1102 · (96 − 8.7).
const BETA: f64 = 9.62;

/// Outputs that one task computes.
const BLOCK: usize = 4096;

const LANES: usize = 16;

/// The audio at 16 kHz: `ceil(samples · 16000 / rate)` samples, sample k at the time k / 16000 s. At 16 kHz it is the
/// audio itself.
///
/// What is below 0.9 of half the lower of the two rates passes within 0.001 dB, and what is above half of it is 90 dB
/// lower. Before the start and behind the end is silence. A row of the filter sums to 1, so a constant stays the same
/// constant except near the ends.
pub fn to_16k(audio: Audio) -> Mono16k {
    let rate_hz = audio.rate_hz();
    if rate_hz == Mono16k::RATE_HZ {
        return Mono16k::of(audio.into_samples());
    }
    let common = gcd(rate_hz, Mono16k::RATE_HZ);
    let (up, down) = ((Mono16k::RATE_HZ / common) as usize, (rate_hz / common) as usize);
    let samples = audio.samples();
    let count = (samples.len() as u64 * up as u64).div_ceil(down as u64) as usize;
    let filter = Filter::new(up, down, up.min(count));
    let mut out = vec![0.0; count];
    out.par_chunks_mut(BLOCK).enumerate().for_each(|(block, out)| {
        for (i, out) in out.iter_mut().enumerate() {
            *out = filter.at(samples, block * BLOCK + i);
        }
    });
    Mono16k::of(out)
}

/// One row of taps for each place between two inputs.
struct Filter {
    up: usize,
    down: usize,
    /// Inputs on either side that count.
    reach: usize,
    /// `[rows, 2 · reach]`; row r is for the outputs k with k mod up = r.
    taps: Vec<f32>,
}

impl Filter {
    /// The first `rows` rows of the filter that makes `up` outputs of `down` inputs.
    fn new(up: usize, down: usize, rows: usize) -> Filter {
        let cutoff = ROLLOFF * (up as f64 / down as f64).min(1.0);
        let reach = (CROSSINGS / cutoff).ceil() as usize;
        let mut taps = vec![0.0; rows * 2 * reach];
        taps.par_chunks_mut(2 * reach).enumerate().for_each(|(row, taps)| {
            let behind = (row * down % up) as f64 / up as f64;
            fill(taps, behind, cutoff, reach as f64);
        });
        Filter { up, down, reach, taps }
    }

    /// Output `k`.
    fn at(&self, samples: &[f32], k: usize) -> f32 {
        let before = (k as u64 * self.down as u64 / self.up as u64) as usize;
        let row = &self.taps[k % self.up * 2 * self.reach..][..2 * self.reach];
        // Tap t belongs to input before + 1 + t - reach; the ends of the audio cut taps off.
        let first = (self.reach - 1).saturating_sub(before);
        let start = (before + 1 + first) - self.reach;
        let inside = &samples[start..samples.len().min(before + 1 + self.reach)];
        dot(&row[first..][..inside.len()], inside)
    }
}

/// The taps of an output that is `behind` inputs (0 to 1) after the input with the tap `reach - 1`; they sum to 1.
fn fill(taps: &mut [f32], behind: f64, cutoff: f64, reach: f64) {
    let tap = |t: usize| {
        let distance = behind + reach - 1.0 - t as f64;
        sinc(cutoff * distance) * kaiser(distance / reach)
    };
    let exact: Vec<f64> = (0..taps.len()).map(tap).collect();
    let sum: f64 = exact.iter().sum();
    for (out, tap) in taps.iter_mut().zip(exact) {
        *out = (tap / sum) as f32;
    }
}

fn sinc(x: f64) -> f64 {
    let angle = std::f64::consts::PI * x;
    if x == 0.0 { 1.0 } else { angle.sin() / angle }
}

/// Kaiser's window between -1 and 1, up to a factor. Zero at the ends themselves, of which a row may have one without
/// the other.
fn kaiser(x: f64) -> f64 {
    if x.abs() < 1.0 { bessel_i0(BETA * (1.0 - x * x).sqrt()) } else { 0.0 }
}

/// The modified Bessel function of the first kind and order 0, by its power series (Abramowitz and Stegun, 9.6.12).
fn bessel_i0(x: f64) -> f64 {
    let quarter = x * x / 4.0;
    let (mut term, mut sum, mut k) = (1.0, 1.0, 1.0);
    while term > sum * 1e-16 {
        term *= quarter / (k * k);
        sum += term;
        k += 1.0;
    }
    sum
}

/// The sum of products, in lanes that the compiler vectorises.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [0.0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
