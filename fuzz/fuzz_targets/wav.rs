//! `cargo +nightly fuzz run wav`: no file makes the reader panic, and what it reads is finite.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(audio) = npuc_audio::wav::parse(bytes) {
        assert!(audio.samples().len() <= bytes.len());
        assert!(audio.samples().iter().all(|sample| sample.is_finite()));
    }
});
