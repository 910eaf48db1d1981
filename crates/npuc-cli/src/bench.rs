//! `npuc bench`: measures the requests of a workload one after the other.

use std::path::Path;

use npuc::{Code, Diagnostic, Error, Result};
use npuc_bench::clock::SystemClock;
use npuc_bench::host::model_hash;
use npuc_bench::record::{ModelRecord, NullRecord, Plan, Record, Status, WorkloadRecord};
use npuc_bench::report::{Figures, Options, Overhead, report};
use npuc_bench::resume::{create, resume};
use npuc_bench::runner::{Run, Stop, incomplete, run};
use npuc_bench::slo::{Slo, duration_ns};
use npuc_bench::workload::{Model, Workload};
use npuc_bench::{foreign, results};
use npuc_run::device::null::{Null, VirtualTime};
use npuc_run::program::Program;
use npuc_run::session::Session;
use npuc_run::text::{Date, Sampling, SamplingConfig, TextModel};
use serde::Serialize;

use crate::args::{BenchArgs, DeviceArgs, NullArgs, On, threads};
use crate::corpus::text_model;
use crate::output::{Output, count};
use crate::session;

#[derive(Serialize)]
struct Outcome {
    results: String,
    state: String,
    complete: usize,
    planned: usize,
    class: &'static str,
    measured_on: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    figures: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overhead: Option<Overhead>,
    /// Why the run stopped before its end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stopped: Vec<Diagnostic>,
}

/// Runs the command; gives the exit status.
pub(crate) fn command(args: &BenchArgs, output: Output) -> Result<u8> {
    let times = Times::parse(args)?;
    let sampling =
        Sampling::new(SamplingConfig { temperature: args.temperature, seed: args.seed, ..SamplingConfig::default() })?;
    let slo: Option<Slo> = args.slo.as_ref().map(|slo| slo.parse()).transpose()?;
    let null = null(&args.null, args.device.on)?;
    let clock = SystemClock::start(null.as_ref().map(|null| null.time.clone()));
    let spinner = output.spinner("opening the model");
    let (program, mut session) = open(&args.model, &args.device, null.as_ref())?;
    drop(spinner);
    output.warnings(&program.warnings);
    let date = crate::run::date(args.date.as_deref())?;
    let mut workload = Workload::read(&args.workload, &model(&program, &session, &args.model, date))?;
    let requests = workload.jobs.len();
    workload.jobs.truncate(limit(args, requests)?);
    let plan = Plan {
        slo,
        null: null.as_ref().map(|null| NullRecord { prefill_ns: null.prefill_ns, decode_ns: null.decode_ns }),
        ..plan(args, &program, &session, &workload, requests, &times)?
    };
    let opened = if args.resume { resume(&args.output, &plan)? } else { create(&args.output)? };
    if let Some(dropped) = &opened.dropped {
        output.note(&format!("note: dropped line {}: {} bytes of a torn line", dropped.line, dropped.bytes));
    }
    let bar = output.steps_bar("measuring");
    bar.set_length(workload.jobs.len() as u64);
    bar.set_position(opened.done.len() as u64);
    let setup = Run {
        plan: &plan,
        jobs: &workload.jobs,
        eos: &program.eos,
        sampling,
        clock: &clock,
        sensors: &args.sysfs,
        max_time_ns: times.max_time_ns,
    };
    let mut on_request = |record: &Record| match record.status {
        Status::Complete => bar.inc(1),
        Status::Failed => {}
    };
    let stop = run(&setup, &mut session, opened, &mut on_request)?;
    bar.finish_and_clear();
    let mut outcome = outcome(args, plan.workload.planned)?;
    let error = match stop {
        Stop::Complete => None,
        Stop::MaxTime => {
            let fault = incomplete(outcome.complete, outcome.planned, "its time was up (--max-time)");
            Some(Error::from(fault.file(&args.output)))
        }
        Stop::Failed(error) => Some(error),
    };
    outcome.stopped = error.as_ref().map(|error| error.diagnostics().to_vec()).unwrap_or_default();
    output.result(&outcome, &told(&outcome))?;
    let Some(error) = error else { return Ok(0) };
    output.note(&error.to_string());
    Ok(error.exit_status())
}

/// The times of the flags.
struct Times {
    cooldown_ms: f64,
    sample_ms: f64,
    max_time_ns: Option<u64>,
}

impl Times {
    fn parse(args: &BenchArgs) -> Result<Times> {
        let sample_ns = time("--sample-every", &args.sample_every)?;
        if sample_ns < 1_000_000 {
            let fault = Diagnostic::error(Code::BadArgument, "sensors are read at most every millisecond");
            return Err(fault.subject("--sample-every").need("1ms or more").have(&args.sample_every).into());
        }
        Ok(Times {
            cooldown_ms: time("--cooldown", &args.cooldown)? as f64 / 1e6,
            sample_ms: sample_ns as f64 / 1e6,
            max_time_ns: args.max_time.as_ref().map(|text| time("--max-time", text)).transpose()?,
        })
    }
}

/// Seconds without a unit, or a duration.
fn time(flag: &str, text: &str) -> Result<u64> {
    let with_unit = if text.ends_with(|c: char| c.is_ascii_digit()) { format!("{text}s") } else { text.to_string() };
    duration_ns(&with_unit).map_err(|_| {
        let fault = Diagnostic::error(Code::BadArgument, "a time is malformed").subject(flag);
        fault.need("seconds, or a number and ns, us, ms, s, min or h, at most 100 days").have(text).into()
    })
}

fn limit(args: &BenchArgs, requests: usize) -> Result<usize> {
    let fault = |message: &str, flag: &str| Diagnostic::error(Code::BadArgument, message).subject(flag);
    let planned = args.limit.unwrap_or(requests);
    if planned == 0 || planned > requests {
        let fault = fault("there are not so many requests to measure", "--limit");
        return Err(fault.need(format!("1 to {requests}, the requests of the workload")).have(planned).into());
    }
    if args.warmup > planned {
        let fault = fault("the warm-up has more requests than are measured", "--warmup");
        return Err(fault.need(format!("at most {planned}")).have(args.warmup).into());
    }
    Ok(planned)
}

/// The null device of the flags, if it is asked for.
pub(crate) fn null(args: &NullArgs, on: On) -> Result<Option<Null>> {
    if on != On::Null {
        if args.null.is_some() {
            let fault = Diagnostic::error(Code::BadArgument, "--null does nothing without --on null");
            return Err(fault.help("add it, or leave the flag out").into());
        }
        return Ok(None);
    }
    let mut null =
        Null { prefill_ns: 10_000_000, decode_ns: 2_000_000, fail_after: None, time: VirtualTime::default() };
    let mut seen = Vec::new();
    for part in args.null.iter().flat_map(|text| text.split(',')) {
        let bad = || {
            let fault = Diagnostic::error(Code::BadArgument, "the latencies are malformed").subject("--null");
            fault.need("prefill=10ms,decode=2ms,fail-after=100, or some of them").have(part)
        };
        let (name, value) = part.split_once('=').ok_or_else(bad)?;
        if seen.contains(&name.trim()) {
            return Err(bad().have(format!("`{}` twice", name.trim())).into());
        }
        seen.push(name.trim());
        match name.trim() {
            "prefill" => null.prefill_ns = duration_ns(value).map_err(|_| bad())?,
            "decode" => null.decode_ns = duration_ns(value).map_err(|_| bad())?,
            "fail-after" => null.fail_after = Some(value.trim().parse().map_err(|_| bad())?),
            _ => return Err(bad().into()),
        }
    }
    Ok(Some(null))
}

/// The program and its session, on the null device if there is one.
pub(crate) fn open(model: &Path, device: &DeviceArgs, null: Option<&Null>) -> Result<(Program, Session)> {
    let Some(null) = null else { return session::open(model, device, None, &[]) };
    session::refuse_speech(model)?;
    let program = session::for_host((model, None), device, None)?;
    let session = Session::on_null(&program, null)?;
    Ok((program, session))
}

/// What requests have to fit.
pub(crate) fn model<'a>(program: &'a Program, session: &Session, path: &Path, date: Date) -> Model<'a> {
    let text: Result<&TextModel> = text_model(program, path);
    Model { vocab: session.vocab(), capacity: session.capacity(), text, date }
}

fn plan(
    args: &BenchArgs,
    program: &Program,
    session: &Session,
    workload: &Workload,
    requests: usize,
    times: &Times,
) -> Result<Plan> {
    let (sha256, hash_of) = model_hash(&args.model)?;
    let name = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let on = args.device.on;
    Ok(Plan {
        tool: format!("npuc {}", env!("CARGO_PKG_VERSION")),
        libraries: libraries(on),
        back_end: on.word().into(),
        measured_on: on.name().into(),
        class: on.class(),
        threads: threads(args.device.threads),
        model: ModelRecord {
            name: name(&args.model),
            sha256,
            hash_of,
            vocab: session.vocab(),
            capacity: session.capacity(),
            step_tokens: program.steps.iter().map(|step| step.shape.tokens).collect(),
            eos: program.eos.iter().copied().collect(),
        },
        workload: WorkloadRecord {
            name: name(&args.workload),
            sha256: workload.sha256.clone(),
            requests,
            planned: workload.jobs.len(),
        },
        warmup: args.warmup,
        cooldown_ms: times.cooldown_ms,
        temperature: args.temperature,
        seed: args.seed,
        date: workload.has_messages.then(|| args.date.clone().unwrap_or_else(today)),
        sample_ms: times.sample_ms,
        slo: None,
        null: None,
    })
}

fn today() -> String {
    chrono::Local::now().format("%Y-%m-%d").to_string()
}

/// The tools and their versions; libraries of the user's own have none that npuc knows.
fn libraries(on: On) -> Vec<String> {
    let own = on == On::Qnn && std::env::var_os(npuc_run::device::qnn::LIBRARIES_VARIABLE).is_some();
    if own {
        return vec![format!("qnn in the folder of {}, version not known", npuc_run::device::qnn::LIBRARIES_VARIABLE)];
    }
    on.tools().iter().map(|tool| tool.version().to_string()).collect()
}

/// What the results say now, read back from the disk.
fn outcome(args: &BenchArgs, planned: usize) -> Result<Outcome> {
    let run = results::read(&args.output)?;
    let complete = run.complete().count();
    let state = run.state_text();
    let figures = match complete {
        0 => None,
        _ => report(&[run], Options { slo: None, allow_incomplete: true })?.runs.pop(),
    };
    let overhead = figures.as_ref().and_then(|run| run.overhead);
    let on = args.device.on;
    Ok(Outcome {
        results: args.output.display().to_string(),
        state,
        complete,
        planned,
        class: on.class().name(),
        measured_on: on.name(),
        figures: figures.map(|run| run.all),
        overhead,
        stopped: Vec::new(),
    })
}

fn told(outcome: &Outcome) -> String {
    let Outcome { results, state, complete, measured_on, figures, overhead, .. } = outcome;
    let mut text = format!("{results}: {state}, {} measured on {measured_on}\n", count(*complete, "request"));
    let Some(figures) = figures else { return text };
    let named = [
        ("TTFT", figures.ttft_ms),
        ("TPOT, per request", figures.tpot_ms),
        ("TPOT, per interval", figures.tpot_interval_ms),
    ];
    for (name, summary) in named {
        if let Some(s) = summary {
            let line =
                format!("{name:<20}P50 {:.3} ms, P99 {:.3} ms, {} values ({measured_on})\n", s.p50, s.p99, s.count);
            text.push_str(&line);
        }
    }
    if let Some(Overhead { us, limit_us }) = overhead {
        let verdict = if us.p50 <= *limit_us { "within" } else { "MORE THAN" };
        let line = format!(
            "{:<20}P50 {:.3} µs, P99 {:.3} µs, {verdict} the {limit_us} µs at P50\n",
            "own time per token", us.p50, us.p99
        );
        text.push_str(&line);
    }
    text.push_str(&format!("next: npuc audit {results}; npuc report {results}\n"));
    text
}

/// Reads results, mapped if there are flags for it.
pub(crate) fn read_results(path: &Path, map: &[String]) -> Result<results::Results> {
    let mapping = if map.is_empty() { None } else { Some(npuc_bench::mapping::Mapping::parse(map)?) };
    foreign::read(path, mapping.as_ref())
}
