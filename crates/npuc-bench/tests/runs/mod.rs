//! Runs for the tests: measured on the null device, or written by hand.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use npuc::Result;
use npuc_bench::chain::{Journal, sha256};
use npuc_bench::clock::SystemClock;
use npuc_bench::record::{
    Class, ClockRecord, Commit, End, Header, Host, Kind, ModelRecord, NullRecord, Plan, PrefillStep, Record, SCHEMA,
    Status, WorkloadRecord,
};
use npuc_bench::resume::{create, resume};
use npuc_bench::runner::{Run, Stop, run};
use npuc_bench::workload::Job;
use npuc_run::device::null::{Null, VirtualTime};
use npuc_run::generate::Finish;
use npuc_run::program::Program;
use npuc_run::session::Session;
use npuc_run::text::{Sampling, SamplingConfig};
use serde_json::json;

/// Ids of the test model.
pub(crate) const VOCAB: u32 = 320;
/// The id that ends its answers.
pub(crate) const EOS: u32 = 319;

/// A small model with a prefill step of 8 tokens.
pub(crate) fn program() -> Program {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/checkpoints/qwen2-bf16");
    Program::open(&path, Some(["8t256c", "1t256c"].map(|shape| shape.parse().unwrap()).to_vec())).unwrap()
}

/// A null device of 3 ms for several tokens and 1 ms for one.
pub(crate) fn null(fail_after: Option<u64>) -> Null {
    Null { prefill_ns: 3_000_000, decode_ns: 1_000_000, fail_after, time: VirtualTime::default() }
}

/// A request; its ids follow from its place.
pub(crate) fn job(place: usize, prompt: usize, max_new_tokens: usize) -> Job {
    let extra = serde_json::from_str(&json!({"origin": {"line": place}}).to_string()).unwrap();
    Job {
        line: place + 1,
        id: format!("r{place}"),
        dataset: ["gsm8k", "humaneval"][place % 2].into(),
        prompt: (0..prompt).map(|i| (i * 131 + place * 7) as u32 % 300).collect(),
        max_new_tokens,
        ignore_eos: true,
        extra,
    }
}

pub(crate) fn jobs(count: usize) -> Vec<Job> {
    (0..count).map(|place| job(place, 3 + place * 5 % 29, 2 + place * 3 % 7)).collect()
}

/// The plan of runs of these jobs.
pub(crate) fn plan(jobs: &[Job]) -> Plan {
    Plan {
        tool: "npuc test".into(),
        libraries: Vec::new(),
        back_end: "null".into(),
        measured_on: "null".into(),
        class: Class::Null,
        threads: 1,
        model: ModelRecord {
            name: "model".into(),
            sha256: sha256(b"model"),
            hash_of: "the file".into(),
            vocab: VOCAB as usize,
            capacity: 256,
            step_tokens: vec![8, 1],
            eos: vec![EOS],
        },
        workload: WorkloadRecord {
            name: "w.jsonl".into(),
            sha256: sha256(b"workload"),
            requests: jobs.len(),
            planned: jobs.len(),
        },
        warmup: 0,
        cooldown_ms: 0.0,
        temperature: 0.0,
        seed: 0,
        date: None,
        sample_ms: 500.0,
        slo: None,
        null: Some(NullRecord { prefill_ns: 3_000_000, decode_ns: 1_000_000 }),
    }
}

/// Measures on the null device, into a new file or one to go on with.
pub(crate) fn measure(path: &Path, jobs: &[Job], fail_after: Option<u64>, sysfs: &Path) -> Result<Stop> {
    let null = null(fail_after);
    let clock = SystemClock::start(Some(null.time.clone()));
    let program = program();
    let mut session = Session::on_null(&program, &null).unwrap();
    let plan = plan(jobs);
    let opened = if path.exists() { resume(path, &plan)? } else { create(path)? };
    let sampling = Sampling::new(SamplingConfig::default()).unwrap();
    let eos = BTreeSet::from([EOS]);
    let setup = Run { plan: &plan, jobs, eos: &eos, sampling, clock: &clock, sensors: sysfs, max_time_ns: None };
    run(&setup, &mut session, opened, &mut |_| {})
}

/// A folder and a whole run of `count` requests in it.
pub(crate) fn whole(count: usize) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.jsonl");
    assert!(matches!(measure(&path, &jobs(count), None, Path::new("/nowhere")).unwrap(), Stop::Complete));
    (folder, path)
}

/// The times of a request that is written by hand, in ns: its start, then the time of every token.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    pub(crate) prompt: usize,
    pub(crate) start: u64,
    pub(crate) tokens: Vec<u64>,
}

/// Writes a whole run of these requests with hashes that are right.
pub(crate) fn written(path: &Path, class: Class, times: &[Times]) {
    let jobs: Vec<Job> = times.iter().enumerate().map(|(i, t)| job(i, t.prompt, t.tokens.len())).collect();
    let back_end = if class == Class::Emulation { "qnn" } else { class.name() }.into();
    let plan = Plan { class, back_end, measured_on: class.name().into(), null: None, ..plan(&jobs) };
    let mut opened = create(path).unwrap();
    let journal = &mut opened.journal;
    journal.append(&header(journal, plan)).unwrap();
    for (index, (job, times)) in jobs.iter().zip(times).enumerate() {
        journal.append(&record(journal, index, job, times)).unwrap();
    }
    let end =
        End { kind: Kind::End, prev: journal.last().into(), complete: times.len(), segments: 1, hash: String::new() };
    journal.append(&end).unwrap();
}

fn header(journal: &Journal, plan: Plan) -> Header {
    let host =
        Host { os: "Test".into(), kernel: "1".into(), arch: "none".into(), cpu: None, cpus: 1, memory_bytes: None };
    Header {
        kind: Kind::Header,
        prev: journal.last().into(),
        schema: SCHEMA,
        segment: 0,
        plan,
        host,
        boot_id: None,
        clock: ClockRecord { source: "made up".into(), resolution_ns: 1 },
        start_unix_us: 0,
        sensors: Vec::new(),
        absent: Vec::new(),
        dropped: None,
        hash: String::new(),
    }
}

fn record(journal: &Journal, index: usize, job: &Job, times: &Times) -> Record {
    let commit = |(i, &ns): (usize, &u64)| Commit { token_index: i, token_id: i as u32 % 300, commit_ns: ns };
    let end_ns = *times.tokens.last().unwrap() + 1;
    Record {
        kind: Kind::Request,
        prev: journal.last().into(),
        segment: 0,
        index,
        id: job.id.clone(),
        dataset: job.dataset.clone(),
        status: Status::Complete,
        finish: Some(Finish::MaxNew),
        error: None,
        prompt_tokens: job.prompt.len(),
        prompt_sha256: sha256(&job.prompt.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()),
        max_new_tokens: job.max_new_tokens,
        ignore_eos: true,
        completion_tokens: times.tokens.len(),
        output_tokens: times.tokens.len(),
        start_ns: times.start,
        end_ns,
        start_unix_us: times.start / 1000,
        end_unix_us: end_ns / 1000,
        prefill: vec![PrefillStep { tokens: times.prompt, valid: times.prompt, end_ns: times.tokens[0] }],
        token_trace: times.tokens.iter().enumerate().map(commit).collect(),
        samples: Vec::new(),
        extra: job.extra.clone(),
        hash: String::new(),
    }
}

/// The lines of a file, with their ends.
pub(crate) fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().split_inclusive('\n').map(str::to_string).collect()
}

/// A line with other fields and a hash that is right, behind a line with the hash `prev`: what someone can write who knows the format.
pub(crate) fn resealed(line: &str, prev: &str, change: impl Fn(&mut serde_json::Value)) -> (String, String) {
    let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
    change(&mut value);
    value["prev"] = json!(prev);
    value.as_object_mut().unwrap().remove("hash");
    let text = value.to_string();
    let body = text.strip_suffix('}').unwrap();
    let hash = sha256(body.as_bytes());
    (format!("{body},\"hash\":\"{hash}\"}}\n"), hash)
}
