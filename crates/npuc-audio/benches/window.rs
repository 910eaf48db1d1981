//! Times the way from samples to a window: `cargo bench -p npuc-audio`. It prints the median of 15 runs; nothing is asserted.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use npuc_audio::mel::{Bands, Extractor};
use npuc_audio::resample::to_16k;
use npuc_audio::{Audio, wav};

fn median_ms(name: &str, mut work: impl FnMut()) {
    let time_ms = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64() * 1e3
    };
    let mut times: Vec<f64> = (0..15).map(|_| time_ms(&mut work)).collect();
    times.sort_by(f64::total_cmp);
    println!("{name:40} {:8.2} ms, fastest {:.2} ms", times[7], times[0]);
}

fn noise(count: usize) -> Vec<f32> {
    let mut x = 1u32;
    let mut next = |_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 16) as f32 / 32_768.0 - 1.0
    };
    (0..count).map(&mut next).collect()
}

fn main() {
    let on = |threads: usize| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let audio = to_16k(Audio::new(noise(480_000), 16_000).unwrap());
    for threads in [1, 2] {
        for bands in Bands::ALL {
            let extractor = Extractor::new(bands);
            let name = format!("mel of 30 s, {} bands, {threads} threads", bands.count());
            on(threads).install(|| median_ms(&name, || drop(black_box(extractor.clip(&audio, 0)))));
        }
        for rate_hz in [8_000, 44_100, 48_000, 191_999] {
            let input = Audio::new(noise(rate_hz as usize * 30), rate_hz).unwrap();
            let name = format!("30 s from {rate_hz} Hz, {threads} threads");
            on(threads).install(|| median_ms(&name, || drop(black_box(to_16k(input.clone())))));
        }
    }
    let mut file =
        b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x02\0\x44\xAC\0\0\x10\xB1\x02\0\x04\0\x10\0data\xFF\xFF\xFF\xFF"
            .to_vec();
    file.extend(noise(44_100 * 60).iter().flat_map(|v| ((v * 32_767.0) as i16).to_le_bytes()));
    median_ms("WAV of 30 s, 44.1 kHz, stereo, 16 bits", || drop(black_box(wav::parse(&file).unwrap())));
}
