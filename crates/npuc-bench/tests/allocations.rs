//! Between two tokens nothing is allocated; every allocation of the process counts, so this test is alone in its file.
#![allow(clippy::unwrap_used)]

use std::alloc::System;
use std::collections::BTreeSet;

use npuc_bench::clock::SystemClock;
use npuc_bench::measure::{Buffers, measure};
use npuc_bench::workload::Job;
use npuc_run::session::Session;
use npuc_run::text::{Sampler, Sampling, SamplingConfig};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

mod runs;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn a_long_answer_allocates_as_often_as_a_short_one() {
    for temperature in [0.0, 0.8] {
        let null = runs::null(None);
        let clock = SystemClock::start(Some(null.time.clone()));
        let mut session = Session::on_null(&runs::program(), &null).unwrap();
        let jobs = [runs::job(0, 9, 4), runs::job(0, 9, 200)];
        let mut buffers = Buffers::new(&jobs);
        let config = SamplingConfig { temperature, ..SamplingConfig::default() };
        let mut sampler = Sampler::new(Sampling::new(config).unwrap());
        let mut allocations = |job: &Job| {
            sampler.restart(1);
            let region = Region::new(ALLOCATOR);
            measure(&mut session, job, &BTreeSet::new(), &mut sampler, &clock, &mut buffers, &mut |_| Ok(()));
            let change = region.change();
            change.allocations + change.reallocations
        };
        // The sampler makes its buffers with the first token of all.
        allocations(&jobs[1]);
        let (short, long) = (allocations(&jobs[0]), allocations(&jobs[1]));
        assert_eq!(long, short, "temperature {temperature}: allocations for 200 tokens and for 4");
    }
}
