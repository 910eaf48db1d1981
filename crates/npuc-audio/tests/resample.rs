//! The resampler against sines, impulses and constants, whose results at another rate are known without it.
#![allow(clippy::unwrap_used)]

use std::f64::consts::TAU;

use npuc_audio::resample::to_16k;
use npuc_audio::{Audio, Mono16k};

const RATES_HZ: [u32; 12] =
    [4_000, 8_000, 11_025, 12_000, 15_999, 22_050, 24_000, 32_000, 44_100, 48_000, 63_999, 96_000];

fn resampled(samples: Vec<f32>, rate_hz: u32) -> Mono16k {
    to_16k(Audio::new(samples, rate_hz).unwrap())
}

fn sine(hz: f64, rate_hz: u32, count: usize) -> Vec<f32> {
    (0..count).map(|i| (TAU * hz * i as f64 / f64::from(rate_hz)).sin() as f32).collect()
}

/// What is far enough from both ends not to see them, for 0.3 s of audio.
fn inside(samples: &[f32]) -> impl Iterator<Item = (usize, f64)> + '_ {
    samples.iter().enumerate().take(4400).skip(400).map(|(k, v)| (k, f64::from(*v)))
}

fn power(samples: &[f32]) -> f64 {
    inside(samples).map(|(_, v)| v * v).sum::<f64>() / inside(samples).count() as f64
}

#[test]
fn sines_keep_frequency_phase_and_amplitude() {
    // 0.001 dB are 0.000115 of the amplitude. A wrong frequency, a delay or an image would show as a difference too.
    let mut largest = 0.0f64;
    for rate_hz in RATES_HZ {
        let band_hz = 0.9 * f64::from(rate_hz.min(16_000)) / 2.0;
        for hz in [0.01, 0.13, 0.5, 0.77, 1.0].map(|part| part * band_hz) {
            let out = resampled(sine(hz, rate_hz, rate_hz as usize * 3 / 10), rate_hz);
            let wanted = |k: usize| (TAU * hz * k as f64 / 16_000.0).sin();
            let error = inside(out.samples()).map(|(k, v)| (v - wanted(k)).abs()).fold(0.0, f64::max);
            assert!(error < 1.1e-4, "{hz:.0} Hz at {rate_hz} Hz: {error:.2e} off");
            largest = largest.max(error);
        }
    }
    println!("largest difference to a sine in the pass band: {largest:.2e}");
}

#[test]
fn what_16_khz_cannot_hold_is_gone() {
    let mut loudest_db = f64::NEG_INFINITY;
    for rate_hz in RATES_HZ.into_iter().filter(|rate_hz| *rate_hz > 16_000) {
        let top_hz = f64::from(rate_hz) / 2.0;
        for part in [0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.95] {
            let hz = 8_000.0 + part * (top_hz - 8_000.0);
            let samples = sine(hz, rate_hz, rate_hz as usize * 3 / 10);
            let out_db = 10.0 * (power(resampled(samples, rate_hz).samples()) / 0.5).log10();
            assert!(out_db < -90.0, "{hz:.0} Hz at {rate_hz} Hz leaves {out_db:.1} dB");
            loudest_db = loudest_db.max(out_db);
        }
    }
    println!("loudest alias: {loudest_db:.1} dB");
}

#[test]
fn an_impulse_is_symmetric_and_has_a_flat_spectrum() {
    for rate_hz in RATES_HZ {
        // The middle of a second, a whole output sample at every rate that divides by 2; else the spectrum alone is
        // looked at.
        let at = rate_hz as usize / 2;
        let mut samples = vec![0.0; rate_hz as usize];
        samples[at] = 1.0;
        let out = resampled(samples, rate_hz);
        if rate_hz.is_multiple_of(2) {
            for j in 1..2_000 {
                let (before, after) = (out.samples()[8_000 - j], out.samples()[8_000 + j]);
                assert!((before - after).abs() < 1e-7, "{rate_hz} Hz, {j} from the middle: {before} and {after}");
            }
        }
        let gain = 16_000.0 / f64::from(rate_hz);
        for hz in [0.0, 300.0, 1_000.0, 1_799.0] {
            let angle = |k: usize| TAU * hz * (k as f64 / 16_000.0 - at as f64 / f64::from(rate_hz));
            let sum: f64 = out.samples().iter().enumerate().map(|(k, v)| f64::from(*v) * angle(k).cos()).sum();
            assert!((sum / gain - 1.0).abs() < 1.1e-4, "{rate_hz} Hz: {} at {hz} Hz", sum / gain);
        }
    }
}

#[test]
fn a_constant_stays_that_constant() {
    for rate_hz in RATES_HZ {
        for value in [1.0f32, -0.3, 200.0, 0.0] {
            let out = resampled(vec![value; rate_hz as usize * 3 / 10], rate_hz);
            for (k, v) in inside(out.samples()) {
                assert!(
                    (v - f64::from(value)).abs() <= 1e-6 * f64::from(value.abs()),
                    "{rate_hz} Hz, {k}: {v}, not {value}"
                );
            }
        }
    }
}

#[test]
fn the_length_is_rounded_up() {
    let check = |count: usize, rate_hz: u32, expected: usize| {
        let out = resampled(vec![0.5; count], rate_hz);
        assert_eq!(out.samples().len(), expected, "{count} samples at {rate_hz} Hz");
    };
    for (count, rate_hz, expected) in [
        (0, 44_100, 0),
        (1, 44_100, 1),
        (2, 44_100, 1),
        (3, 44_100, 2),
        (441, 44_100, 160),
        (442, 44_100, 161),
        (1, 8_000, 2),
        (7, 8_000, 14),
        (1, 4_000, 4),
        (12, 192_000, 1),
        (13, 192_000, 2),
        (1, 191_999, 1),
        (11, 11_025, 16),
        (0, 16_000, 0),
        (5, 16_000, 5),
        (1_000, 16_001, 1_000),
        (1_000, 15_999, 1_001),
        (100_000, 48_000, 33_334),
    ] {
        check(count, rate_hz, expected);
    }
}

#[test]
fn at_16_khz_nothing_changes() {
    let samples = sine(7_999.0, 16_000, 1_000);
    assert_eq!(resampled(samples.clone(), 16_000).samples(), samples);
}

#[test]
fn the_ends_are_followed_by_silence() {
    // Audio with zeros around it gives the same samples where it was.
    for rate_hz in [8_000, 44_100, 48_000] {
        let samples = sine(997.0, rate_hz, rate_hz as usize / 10);
        let silence = vec![0.0; rate_hz as usize];
        let around = resampled([&silence[..], &samples, &silence].concat(), rate_hz);
        let alone = resampled(samples, rate_hz);
        for (k, v) in alone.samples().iter().enumerate() {
            assert!((v - around.samples()[16_000 + k]).abs() < 1e-6, "{rate_hz} Hz, {k}");
        }
    }
}
