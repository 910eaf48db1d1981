//! A run: requests one after the other in one session, each on the disk before the next begins.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use npuc::{Diagnostic, Error, Result};
use npuc_run::session::Session;
use npuc_run::text::{Sampler, Sampling};

use crate::chain::sha256;
use crate::clock::{Clock, SystemClock, boot_id, resolution_ns};
use crate::host::host;
use crate::measure::{Buffers, Measurement, measure};
use crate::record::{ClockRecord, End, Header, Kind, Plan, Record, SCHEMA, Status};
use crate::resume::Opened;
use crate::sensors;
use crate::workload::Job;

/// What a run needs besides the session.
pub struct Run<'a> {
    /// What goes into the header.
    pub plan: &'a Plan,
    /// The requests, those of the plan.
    pub jobs: &'a [Job],
    /// Every id that ends an answer.
    pub eos: &'a BTreeSet<u32>,
    /// How tokens are chosen; each request has a seed of its own.
    pub sampling: Sampling,
    /// The clock that was started for this segment.
    pub clock: &'a SystemClock,
    /// Where the system's sensors are: `/sys`.
    pub sensors: &'a Path,
    /// No request begins later than this after the first one.
    pub max_time_ns: Option<u64>,
}

/// Why a run ended.
#[derive(Clone, Debug)]
pub enum Stop {
    /// Every request is complete.
    Complete,
    /// `--max-time` has passed.
    MaxTime,
    /// The back end failed.
    Failed(Error),
}

/// Measures what is left of a run. `on_request` is told of every line of a request.
///
/// Errors: the results cannot be written; a request of the warm-up fails.
pub fn run(
    run: &Run<'_>,
    session: &mut Session,
    mut opened: Opened,
    on_request: &mut dyn FnMut(&Record),
) -> Result<Stop> {
    let left: Vec<usize> = (0..run.jobs.len()).filter(|index| !opened.done.contains(index)).collect();
    if left.is_empty() {
        return end(run, opened);
    }
    let header = header(run, &opened);
    opened.journal.append(&header)?;
    let mut buffers = Buffers::new(run.jobs);
    let mut sampler = Sampler::new(run.sampling);
    for job in &run.jobs[..run.plan.warmup.min(run.jobs.len())] {
        let warm = measure(session, job, run.eos, &mut sampler, run.clock, &mut buffers, &mut |_| Ok(()));
        warm.finish?;
    }
    let interval = Duration::from_secs_f64(run.plan.sample_ms / 1e3);
    let sensors = sensors::Sampler::start(run.sensors, &header.sensors, interval, run.clock);
    let begin_ns = run.clock.now_ns();
    for index in left {
        if run.max_time_ns.is_some_and(|most| run.clock.now_ns().saturating_sub(begin_ns) >= most) {
            return Ok(Stop::MaxTime);
        }
        let job = &run.jobs[index];
        sampler.restart(run.plan.seed.wrapping_add(index as u64));
        let measured = measure(session, job, run.eos, &mut sampler, run.clock, &mut buffers, &mut |_| Ok(()));
        let samples = sensors.take(measured.start_ns, measured.end_ns);
        let failed = measured.finish.as_ref().err().cloned();
        let mut record = record(index, job, measured, header.segment, opened.journal.last());
        record.samples = samples;
        opened.journal.append(&record)?;
        on_request(&record);
        if let Some(error) = failed {
            return Ok(Stop::Failed(error));
        }
        opened.done.insert(index);
        run.clock.pause((run.plan.cooldown_ms * 1e6) as u64);
    }
    opened.segment += 1;
    end(run, opened)
}

fn header(run: &Run<'_>, opened: &Opened) -> Header {
    let (sensors, absent) = sensors::find(run.sensors);
    Header {
        kind: Kind::Header,
        prev: opened.journal.last().to_string(),
        schema: SCHEMA,
        segment: opened.segment,
        plan: run.plan.clone(),
        host: host(),
        boot_id: boot_id(),
        clock: ClockRecord {
            source: match run.plan.null {
                Some(_) => "CLOCK_MONOTONIC and virtual latencies".into(),
                None => "CLOCK_MONOTONIC".into(),
            },
            resolution_ns: resolution_ns(),
        },
        start_unix_us: run.clock.unix_us().saturating_sub(run.clock.now_ns() / 1000),
        sensors,
        absent,
        dropped: opened.dropped.clone(),
        hash: String::new(),
    }
}

fn record(index: usize, job: &Job, measured: Measurement, segment: usize, prev: &str) -> Record {
    let Measurement { finish, start_ns, end_ns, start_unix_us, end_unix_us, completion_tokens, prefill, trace } =
        measured;
    let error = finish.as_ref().err().map(ToString::to_string);
    Record {
        kind: Kind::Request,
        prev: prev.to_string(),
        segment,
        index,
        id: job.id.clone(),
        dataset: job.dataset.clone(),
        status: if error.is_none() { Status::Complete } else { Status::Failed },
        finish: finish.ok(),
        error,
        prompt_tokens: job.prompt.len(),
        prompt_sha256: prompt_sha256(&job.prompt),
        max_new_tokens: job.max_new_tokens,
        ignore_eos: job.ignore_eos,
        completion_tokens,
        output_tokens: trace.len(),
        start_ns,
        end_ns,
        start_unix_us,
        end_unix_us,
        prefill,
        token_trace: trace,
        samples: Vec::new(),
        extra: job.extra.clone(),
        hash: String::new(),
    }
}

/// The hash of a prompt's ids.
pub(crate) fn prompt_sha256(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    sha256(&bytes)
}

/// Writes the last line unless it is there.
fn end(run: &Run<'_>, mut opened: Opened) -> Result<Stop> {
    if !opened.is_ended {
        let line = End {
            kind: Kind::End,
            prev: opened.journal.last().to_string(),
            complete: run.jobs.len(),
            segments: opened.segment,
            hash: String::new(),
        };
        opened.journal.append(&line)?;
    }
    Ok(Stop::Complete)
}

/// The fault of a run that stopped before its end.
pub fn incomplete(complete: usize, planned: usize, why: &str) -> Diagnostic {
    Diagnostic::error(npuc::Code::IncompleteRun, format!("the run is incomplete: {why}"))
        .need(format!("{planned} requests"))
        .have(format!("{complete} complete"))
        .help("go on with --resume")
}
