//! `cargo +nightly fuzz run gguf`: no header makes the reader panic, and every range it gives is in the file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(gguf) = npuc::front::gguf::parse(bytes) {
        assert!(gguf.tensors.into_iter().all(|tensor| bytes.get(tensor.range).is_some()));
    }
});
