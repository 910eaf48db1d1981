//! `cargo +nightly fuzz run safetensors`: no header makes the reader panic, and every range it gives is in the file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for tensor in npuc::front::safetensors::parse(bytes).unwrap_or_default() {
        assert!(bytes.get(tensor.range).is_some());
    }
});
