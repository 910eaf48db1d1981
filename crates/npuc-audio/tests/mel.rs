//! Log-mel windows against numbers that numpy computed (tests/data/make_mel_fixture.py), and how windows lie over long
//! audio.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use npuc_audio::mel::{Bands, Extractor, HOP_SAMPLES, WINDOW_FRAMES, WINDOW_SAMPLES, Window};
use npuc_audio::resample::to_16k;
use npuc_audio::{Audio, Mono16k};

fn audio(samples: Vec<f32>) -> Mono16k {
    to_16k(Audio::new(samples, 16_000).unwrap())
}

/// The signals of make_mel_fixture.py, in whole numbers.
fn signal(kind: &str, count: usize) -> Mono16k {
    let mut x = 1u32;
    let mut next = |i: i32| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (noise, block) = ((x >> 16) as i32 - 32_768, i / 8_000);
        let value = match kind {
            "quiet" => noise >> 13,
            "end" => 32_767 * i32::from(i + 1 == count as i32),
            "speech" if block % 4 == 3 => 0,
            "speech" => {
                let period = 23 + 17 * (block % 7);
                let triangle = (2 * (i % period) - period).abs() * 16_384 / period - 8_192;
                (noise >> (2 + block * 5 % 9)) + (triangle >> (block % 3))
            }
            other => panic!("no signal `{other}`"),
        };
        value as f32 / 32_768.0
    };
    audio((0..count as i32).map(&mut next).collect())
}

fn computed(kind: &str, count: usize, form: &str, start: usize, bands: Bands) -> Window {
    let (audio, extractor) = (signal(kind, count), Extractor::new(bands));
    match form {
        "clip" => extractor.clip(&audio, start),
        "whole" => extractor.spectrogram(&audio).window(start).unwrap(),
        other => panic!("no form `{other}`"),
    }
}

#[test]
fn windows_are_what_numpy_computes() {
    let mut windows = HashMap::new();
    let (mut largest, mut numbers) = (0.0f32, 0);
    for line in include_str!("data/mel.txt").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| fields[i].parse::<usize>().unwrap();
        let (bands, frame) = (Bands::from_count(number(4)).unwrap(), number(5));
        let case = fields[..5].join(" ");
        let window =
            windows.entry(case.clone()).or_insert_with(|| computed(fields[0], number(1), fields[2], number(3), bands));
        assert_eq!(window.mel.len(), bands.count() * WINDOW_FRAMES);
        assert_eq!(fields.len(), 6 + bands.count(), "{case}");
        for (band, expected) in fields[6..].iter().map(|field| field.parse::<f32>().unwrap()).enumerate() {
            let difference = (window.mel[band * WINDOW_FRAMES + frame] - expected).abs();
            assert!(difference < 1e-5, "{case}, frame {frame}, band {band}: {difference:.1e} from {expected}");
            (largest, numbers) = (largest.max(difference), numbers + 1);
        }
    }
    assert!(numbers > 5_000 && windows.len() == 22, "{numbers} numbers of {} windows", windows.len());
    println!("largest difference to numpy: {largest:.1e} over {numbers} numbers");
}

#[test]
fn silence_is_the_same_everywhere() {
    // (log10(1e-10) + 4) / 4.
    for bands in Bands::ALL {
        for count in [0, 1, 159, 160, 480_000, 480_001] {
            let audio = audio(vec![0.0; count]);
            for start in [0, 1, count, count + 1, usize::MAX] {
                let window = Extractor::new(bands).clip(&audio, start);
                assert!(window.mel.iter().all(|v| *v == -1.5), "{count} samples from {start}");
                assert_eq!(window.content_frames, count.saturating_sub(start).min(WINDOW_SAMPLES) / HOP_SAMPLES);
            }
            let whole = Extractor::new(bands).spectrogram(&audio);
            let content = whole.windows().flat_map(|window| {
                let frames = window.content_frames;
                window.mel.chunks_exact(WINDOW_FRAMES).flat_map(|row| row[..frames].to_vec()).collect::<Vec<_>>()
            });
            assert!(content.into_iter().all(|v| v == -1.5), "{count} samples");
        }
    }
}

#[test]
fn windows_cover_long_audio_once() {
    let check = |count: usize, expected: &[(usize, usize)]| {
        let spectrogram = Extractor::new(Bands::Mel80).spectrogram(&signal("quiet", count));
        let windows: Vec<_> =
            spectrogram.windows().map(|window| (window.start_sample, window.content_frames)).collect();
        assert_eq!(windows, expected, "{count} samples");
        assert_eq!(spectrogram.frames(), count / 160);
        assert_eq!(spectrogram.window(spectrogram.frames()), None);
        assert_eq!(spectrogram.window(usize::MAX), None);
    };
    check(0, &[]);
    check(159, &[]);
    check(160, &[(0, 1)]);
    check(480_000, &[(0, 3000)]);
    check(480_159, &[(0, 3000)]);
    check(480_160, &[(0, 3000), (480_000, 1)]);
    check(1_120_003, &[(0, 3000), (480_000, 3000), (960_000, 1000)]);
}

#[test]
fn a_seek_moves_the_frames_of_the_whole() {
    let spectrogram = Extractor::new(Bands::Mel128).spectrogram(&signal("speech", 700_000));
    let rows = |first| spectrogram.window(first).unwrap();
    let (zero, far) = (rows(0), rows(1_234));
    assert_eq!((far.start_sample, far.content_frames), (1_234 * 160, 3_000));
    for band in 0..128 {
        let (zero, far) = (&zero.mel[band * WINDOW_FRAMES..], &far.mel[band * WINDOW_FRAMES..]);
        assert_eq!(zero[1_234..WINDOW_FRAMES], far[..WINDOW_FRAMES - 1_234], "band {band}");
    }
}

#[test]
fn a_clip_sees_nothing_outside_of_it() {
    let long = signal("speech", 1_120_003);
    for start in [0, 1, 123_457, 700_000, 1_120_000] {
        let alone = audio(long.samples()[start..long.samples().len().min(start + WINDOW_SAMPLES)].to_vec());
        let extractor = Extractor::new(Bands::Mel80);
        assert_eq!(extractor.clip(&long, start).mel, extractor.clip(&alone, 0).mel, "{start}");
    }
}

#[test]
fn the_loudest_audio_that_is_taken_has_finite_mels() {
    let loud = audio((0..48_000).map(|i| if i % 16 < 8 { 256.0 } else { -256.0 }).collect());
    assert!(Extractor::new(Bands::Mel80).clip(&loud, 0).mel.iter().all(|v| v.is_finite()));
}

#[test]
fn threads_change_no_bit() {
    let speech = signal("speech", 100_000);
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| Extractor::new(Bands::Mel80).clip(&speech, 0))
    };
    assert_eq!(on(1), on(3));
}
