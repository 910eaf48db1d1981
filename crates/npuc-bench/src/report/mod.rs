//! The report: figures of runs, each with its definition, as text, Markdown, CSV, JSON and one HTML file.

use npuc::{Code, Diagnostic, Error, Result};
use serde::Serialize;

use crate::audit::{Drift, Finding, audit};
use crate::record::Class;
use crate::results::{Results, State};
use crate::slo::Slo;
use crate::stats::{DRAWS, QUANTILE_METHOD, SEED};

mod compare;
mod energy;
mod figures;
mod html;
mod plots;
mod svg;
mod tables;

pub use compare::Comparison;
pub use energy::Energy;
pub use figures::{Figures, Overhead, PromptRow, SloFigures};
pub use html::html;
pub use tables::{Table, csv, markdown, tables, text};

/// What a report is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Thresholds; without them, those of the files' headers.
    pub slo: Option<Slo>,
    /// Whether runs that are incomplete or have several segments are taken too.
    pub allow_incomplete: bool,
}

/// The figures of one or more runs.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How quantiles are made.
    pub quantiles: &'static str,
    /// What each figure is.
    pub definitions: Vec<Definition>,
    /// The runs in the order of the files.
    pub runs: Vec<RunReport>,
    /// The first run against each other one.
    pub comparisons: Vec<Comparison>,
}

/// What a figure is.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Definition {
    /// Its name.
    pub name: &'static str,
    /// Its meaning and formula.
    pub meaning: &'static str,
}

/// The figures of one run.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// `A`, `B`, …
    pub name: String,
    /// The file.
    pub file: String,
    /// What computed.
    pub class: Class,
    /// The same in the file's words.
    pub measured_on: String,
    /// What stands beside every figure of the run.
    pub label: String,
    /// `complete`, or how it is not.
    pub state: String,
    /// Whether the figures are of a run that is not whole.
    pub is_marked: bool,
    /// What the file says of itself.
    pub facts: Vec<(String, String)>,
    /// Figures over all requests.
    pub all: Figures,
    /// Figures by dataset.
    pub datasets: Vec<(String, Figures)>,
    /// TTFT by length of the prompt.
    pub by_prompt: Vec<PromptRow>,
    /// The part of requests whose TTFT is at most so many ms: `[ms, part]`, at every request.
    pub ttft_curve: Vec<[f64; 2]>,
    /// The same for the time per output token of a request.
    pub tpot_curve: Vec<[f64; 2]>,
    /// What meets the thresholds, if there are any.
    pub slo: Option<SloFigures>,
    /// Energy, where it is known.
    pub energy: Option<Energy>,
    /// Why it is not.
    pub no_energy: Option<String>,
    /// What the runner itself takes, where the back end is null.
    pub overhead: Option<Overhead>,
    /// How the time per token changes.
    pub drift: Option<Drift>,
}

const DEFINITIONS: &[Definition] = &[
    Definition {
        name: "ttft_ms",
        meaning: "from the start of the prompt's first step to the first token: prompt steps, sampling; one request after the other, so \
                  there is no queue",
    },
    Definition {
        name: "tpot_ms, per request",
        meaning: "(last token − first token) / (tokens − 1), of requests with two tokens or more; each request counts once",
    },
    Definition {
        name: "tpot_ms, per interval",
        meaning: "from one token to the next, all intervals of all requests in one sample; long answers count more",
    },
    Definition {
        name: "itl_ms",
        meaning: "from one arrival to the next where something arrived; the same as tpot_ms per interval where tokens come one by one",
    },
    Definition { name: "e2el_ms", meaning: "from the start to the last token" },
    Definition {
        name: "output_tokens_per_s",
        meaning: "all tokens of answers / the sum of e2el; pauses between requests do not count",
    },
    Definition {
        name: "decode_tokens_per_s",
        meaning: "tokens after the first / the sum of (last token − first token)",
    },
    Definition { name: "prefill_tokens_per_s", meaning: "all tokens of prompts / the sum of ttft" },
    Definition {
        name: "attainment",
        meaning: "the part of requests at or below a threshold; a request of one token meets every threshold of tpot_ms",
    },
    Definition { name: "goodput", meaning: "requests that meet all thresholds / the sum of e2el" },
    Definition {
        name: "95 % interval",
        meaning: "percentile bootstrap by request: 2000 draws with replacement, seed 7; of two runs of the same requests, the same ones are \
                  drawn from both",
    },
];
const _: () = assert!(DRAWS == 2000 && SEED == 7, "the definition says so");

/// The report of runs.
///
/// Errors: a run whose audit finds faults; without [`Options::allow_incomplete`] one that is not whole; a run without any
/// complete request.
pub fn report(runs: &[Results], options: Options) -> Result<Report> {
    let mut faults = Vec::new();
    for run in runs {
        faults.extend(refusals(run, options.allow_incomplete));
    }
    Error::check(faults)?;
    let comparisons = match runs {
        [first, others @ ..] => {
            let compared = others.iter().enumerate();
            compared.flat_map(|(place, other)| compare::compare((first, &name(0)), (other, &name(place + 1)))).collect()
        }
        [] => Vec::new(),
    };
    Ok(Report {
        quantiles: QUANTILE_METHOD,
        definitions: DEFINITIONS.to_vec(),
        runs: runs.iter().enumerate().map(|(place, run)| run_report(name(place), run, options.slo)).collect(),
        comparisons,
    })
}

/// `A`, `B`, …, `Z`, `run 27`, …
fn name(place: usize) -> String {
    u8::try_from(place)
        .ok()
        .filter(|&place| place < 26)
        .map_or_else(|| format!("run {}", place + 1), |place| char::from(b'A' + place).to_string())
}

/// Why no statistics are made of a run.
fn refusals(run: &Results, allow_incomplete: bool) -> Vec<Diagnostic> {
    let torn = run.torn.as_ref().filter(|_| allow_incomplete).map(|torn| torn.line);
    let audit = audit(run, None);
    let unsound = audit.faults_but_incomplete().filter(|finding| torn.is_none() || finding.line != torn);
    let fault = |finding: &Finding| {
        let fault = Diagnostic::error(Code::UnsoundRun, finding.message.clone()).file(&run.path);
        let fault = fault.subject(finding.check.name());
        match finding.line {
            Some(line) => fault.line(line),
            None => fault,
        }
    };
    let mut faults: Vec<Diagnostic> = unsound.map(fault).collect();
    let state = run.state();
    let is_whole = match state {
        State::Complete => true,
        State::Segmented { .. } | State::Incomplete { .. } => false,
    };
    if !is_whole && !allow_incomplete {
        let fault = Diagnostic::error(Code::IncompleteRun, "statistics are of whole runs").file(&run.path);
        let fault = fault.need("a complete run in one segment").have(state);
        faults.push(
            fault.help("go on with `npuc bench … --resume`").help("take it as it is, marked, with --allow-incomplete"),
        );
    }
    if faults.is_empty() && run.complete().next().is_none() {
        faults.push(Diagnostic::error(Code::IncompleteRun, "the run has no complete request").file(&run.path));
    }
    faults
}

fn run_report(name: String, run: &Results, slo: Option<Slo>) -> RunReport {
    let complete: Vec<_> = run.complete().collect();
    let slo = slo.or_else(|| run.headers.first().and_then(|(_, header)| header.plan.slo));
    let mut datasets: Vec<&str> = Vec::new();
    for dataset in complete.iter().filter_map(|request| request.dataset.as_deref()) {
        if !datasets.contains(&dataset) {
            datasets.push(dataset);
        }
    }
    let of = |dataset: &str| {
        let requests: Vec<_> = complete.iter().copied().filter(|r| r.dataset.as_deref() == Some(dataset)).collect();
        (dataset.to_string(), figures::figures(&requests))
    };
    let ttft: Vec<f64> = complete.iter().filter_map(|request| Some(figures::ms(request.ttft_ns()?))).collect();
    let tpot: Vec<f64> = complete.iter().filter_map(|request| Some(request.tpot_ns()? / 1e6)).collect();
    let (energy, no_energy) = match energy::energy(run, &complete) {
        Ok(energy) => (Some(energy), None),
        Err(why) => (None, Some(why)),
    };
    RunReport {
        name,
        file: run.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        class: run.class,
        measured_on: run.measured_on.clone(),
        label: run.label(),
        state: run.state_text(),
        is_marked: run.state() != State::Complete,
        facts: facts(run),
        all: figures::figures(&complete),
        datasets: datasets.into_iter().map(of).collect(),
        by_prompt: figures::by_prompt(run, &complete),
        ttft_curve: figures::curve(ttft),
        tpot_curve: figures::curve(tpot),
        slo: slo.map(|slo| figures::slo(slo, &complete)),
        energy,
        no_energy,
        overhead: figures::overhead(run, &complete),
        drift: audit(run, None).drift,
    }
}

/// What a file says of itself, for people.
fn facts(run: &Results) -> Vec<(String, String)> {
    let mut facts = vec![("form".to_string(), run.form.name().to_string())];
    let Some((_, header)) = run.headers.first() else { return facts };
    let (plan, host) = (&header.plan, &header.host);
    let mut add = |name: &str, value: String| facts.push((name.to_string(), value));
    let tools: Vec<&str> =
        std::iter::once(plan.tool.as_str()).chain(plan.libraries.iter().map(String::as_str)).collect();
    add("tools", tools.join(", "));
    add("model", format!("{} (SHA-256 {}…)", plan.model.name, plan.model.sha256.chars().take(16).collect::<String>()));
    let steps: Vec<String> = plan.model.step_tokens.iter().map(usize::to_string).collect();
    add("steps", format!("{} tokens, capacity {}", steps.join(", "), plan.model.capacity));
    let workload = &plan.workload;
    let hash: String = workload.sha256.chars().take(16).collect();
    let (name, planned, requests) = (&workload.name, workload.planned, workload.requests);
    add("workload", format!("{name} (SHA-256 {hash}…), {planned} of {requests} requests planned"));
    if run.headers.len() > 1 {
        add("attempts", run.attempts_text());
    }
    let sampling = if plan.temperature == 0.0 {
        "greedy".to_string()
    } else {
        format!("temperature {}, seed {}", plan.temperature, plan.seed)
    };
    add("sampling", sampling);
    add("runner", format!("{} threads, warm-up {}, cool-down {} ms", plan.threads, plan.warmup, plan.cooldown_ms));
    let cpu = host.cpu.clone().unwrap_or_else(|| "processor not told".into());
    add("machine", format!("{cpu}, {} cores, {} {} {}", host.cpus, host.os, host.kernel, host.arch));
    add("clock", format!("{}, resolution {} ns", header.clock.source, header.clock.resolution_ns));
    let absent: Vec<&str> = header.absent.iter().map(|quantity| quantity.name()).collect();
    add(
        "sensors",
        format!(
            "{} read every {} ms; not given by the system: {}",
            header.sensors.len(),
            plan.sample_ms,
            if absent.is_empty() { "none".into() } else { absent.join(", ") }
        ),
    );
    facts
}
