//! `cargo +nightly fuzz run vendor_log`: no log makes the decoder panic, and every line that it gives is in the log.
#![no_main]

use libfuzzer_sys::fuzz_target;
use npuc_run::vendor_log::{decode, diagnostic};

fuzz_target!(|bytes: &[u8]| {
    let log = String::from_utf8_lossy(bytes);
    let findings = decode(&log);
    for said in findings.iter().flat_map(|finding| &finding.said) {
        assert!((1..=log.lines().count()).contains(&said.line));
    }
    let _ = diagnostic(&findings, &[], "a.log".as_ref());
});
