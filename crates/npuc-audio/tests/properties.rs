//! Random files, rates and samples.
#![allow(clippy::unwrap_used)]

use std::io::Cursor;

use hound::{SampleFormat, WavSpec, WavWriter};
use npuc_audio::resample::to_16k;
use npuc_audio::{Audio, MAX_RATE_HZ, MIN_RATE_HZ, wav};
use proptest::collection::vec;
use proptest::prelude::*;

fn rates() -> impl Strategy<Value = u32> {
    prop_oneof![MIN_RATE_HZ..=48_000u32, MIN_RATE_HZ..=MAX_RATE_HZ, Just(44_100), Just(48_000), Just(8_000)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn whole_numbers_come_back(
        frames in vec(any::<[i16; 8]>(), 0..50), channels in 1..=8u16, rate_hz in rates(), bits in prop_oneof![Just(16), Just(24)],
    ) {
        let spec = WavSpec { channels, sample_rate: rate_hz, bits_per_sample: bits, sample_format: SampleFormat::Int };
        let mut out = Cursor::new(Vec::new());
        let mut writer = WavWriter::new(&mut out, spec).unwrap();
        let scale = 1i32 << (bits - 16);
        let mut expected = Vec::new();
        for frame in &frames {
            let frame = &frame[..usize::from(channels)];
            for sample in frame {
                writer.write_sample(i32::from(*sample) * scale).unwrap();
            }
            let sum: i32 = frame.iter().map(|v| i32::from(*v)).sum();
            expected.push((f64::from(sum) / 32_768.0 / f64::from(channels)) as f32);
        }
        writer.finalize().unwrap();
        let audio = wav::parse(out.get_ref()).unwrap();
        prop_assert_eq!(audio.samples(), expected);
        prop_assert_eq!(audio.rate_hz(), rate_hz);
    }

    #[test]
    fn random_chunks_do_not_panic(chunks in vec((0..5usize, any::<u32>(), vec(any::<u8>(), 0..64)), 0..6), honest in any::<bool>()) {
        let mut bytes = b"RIFF\0\0\0\0WAVE".to_vec();
        for (id, len, body) in chunks {
            bytes.extend([b"fmt ", b"data", b"LIST", b"fact", b"\0\xff\n\x1b"][id]);
            bytes.extend(if honest { body.len() as u32 } else { len }.to_le_bytes());
            bytes.extend(body);
        }
        if let Ok(audio) = wav::parse(&bytes) {
            prop_assert!(audio.samples().iter().all(|v| v.is_finite()));
        }
    }

    #[test]
    fn lengths_and_sizes_hold(samples in vec(-1.0..=1.0f32, 0..400), rate_hz in rates()) {
        let count = (samples.len() as u128 * 16_000).div_ceil(u128::from(rate_hz));
        let out = to_16k(Audio::new(samples, rate_hz).unwrap());
        prop_assert_eq!(out.samples().len() as u128, count);
        // The absolute taps of a row sum to less than 4.
        prop_assert!(out.samples().iter().all(|v| v.abs() < 4.0));
    }

    #[test]
    fn sums_pass_as_sums(a in vec(-1.0..=1.0f32, 300), b in vec(-1.0..=1.0f32, 300), rate_hz in rates()) {
        let through = |samples: Vec<f32>| to_16k(Audio::new(samples, rate_hz).unwrap());
        let sum = through(a.iter().zip(&b).map(|(a, b)| a + b).collect());
        let (a, b) = (through(a), through(b));
        for ((a, b), sum) in a.samples().iter().zip(b.samples()).zip(sum.samples()) {
            prop_assert!((a + b - sum).abs() < 1e-5);
        }
    }
}
