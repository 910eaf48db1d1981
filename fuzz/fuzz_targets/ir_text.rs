//! `cargo +nightly fuzz run ir_text`: no text makes the parser panic, and what parses prints back to itself.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(graph) = npuc::ir::text::parse(text) {
        let printed = npuc::ir::text::print(&graph);
        let again = npuc::ir::text::parse(&printed).expect("printed text parses");
        assert_eq!(npuc::ir::text::print(&again), printed);
    }
});
