//! `cargo +nightly fuzz run ct2`: no container makes the reader panic, and every range it gives is in the file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(container) = npuc::front::ct2::parse(bytes) {
        assert!(container.aliases.iter().all(|(_, tensor)| *tensor < container.tensors.len()));
        assert!(container.tensors.into_iter().all(|tensor| bytes.get(tensor.range).is_some()));
    }
});
