//! Decoding does not allocate per token; every allocation of the process counts, on whatever thread.
#![allow(clippy::unwrap_used)]

use std::alloc::System;

use npuc_run::program::Program;
use npuc_run::session::Session;
use npuc_run::text::{Sampler, Sampling, SamplingConfig};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

mod data;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn decoding_does_not_allocate_per_token() {
    for model in ["llama-gqa3-q4_1.gguf", "llama-k-quants.gguf", "qwen3-bf16", "qwen2-q8_0.gguf"] {
        let program = Program::open(&data::checkpoints().join(model), Some(data::shapes("8t64c,1t64c"))).unwrap();
        let mut session = Session::new(&program, 2, &[]).unwrap();
        let config = SamplingConfig { temperature: 0.8, top_k: 20, ..SamplingConfig::default() };
        let mut sampler = Sampler::new(Sampling::new(config).unwrap());
        session.feed(&[1, 2, 3, 4, 5], |_| {}).unwrap();
        let mut step = || {
            let id = sampler.sample(session.logits().unwrap()).unwrap();
            session.decode(id).unwrap();
        };
        (0..8).for_each(|_| step());
        let region = Region::new(ALLOCATOR);
        (0..48).for_each(|_| step());
        let change = region.change();
        // A thread that gets its first work late makes its scratch buffers then; nothing else may allocate.
        assert!(change.allocations + change.reallocations <= 8, "{model}: {change:?} over 48 tokens");
    }
}
