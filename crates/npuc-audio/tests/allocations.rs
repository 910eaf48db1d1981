//! A spectrum allocates per block of frames at most, not per frame; every allocation of the process counts.
#![allow(clippy::unwrap_used)]

use std::alloc::System;

use npuc_audio::Audio;
use npuc_audio::mel::{Bands, Extractor, WINDOW_FRAMES};
use npuc_audio::resample::to_16k;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn a_window_does_not_allocate_per_frame() {
    let audio = to_16k(Audio::new(vec![0.25; 480_000], 16_000).unwrap());
    let extractor = Extractor::new(Bands::Mel80);
    extractor.clip(&audio, 0);
    let region = Region::new(ALLOCATOR);
    extractor.clip(&audio, 0);
    let change = region.change();
    // Four buffers for each piece that a thread takes, of which there are at most 60.
    assert!(change.allocations + change.reallocations < WINDOW_FRAMES / 10, "{change:?}");
}
