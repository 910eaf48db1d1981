//! `npuc audit`: what is wrong with measured latencies.

use npuc::{Code, Diagnostic, Result};
use npuc_bench::audit::{Audit, Grade, audit};
use npuc_bench::record::Class;
use npuc_bench::results::Results;
use npuc_bench::workload::{Model, Workload};
use npuc_run::program::Program;
use serde::Serialize;

use crate::args::AuditArgs;
use crate::bench::read_results;
use crate::corpus::text_model;
use crate::output::{Output, count};

#[derive(Serialize)]
struct Report<'a> {
    results: String,
    form: &'static str,
    class: Class,
    measured_on: &'a str,
    is_clean: bool,
    #[serde(flatten)]
    audit: &'a Audit,
}

/// Runs the command; gives the exit status.
pub(crate) fn command(args: &AuditArgs, output: Output) -> Result<u8> {
    let results = read_results(&args.results, &args.map.map)?;
    let workload = workload(args, &results)?;
    let audit = audit(&results, workload.as_ref());
    let report = Report {
        results: args.results.display().to_string(),
        form: results.form.name(),
        class: results.class,
        measured_on: &results.measured_on,
        is_clean: audit.is_clean(),
        audit: &audit,
    };
    output.result(&report, &told(&report))?;
    Ok(if audit.is_clean() { 0 } else { Code::UnsoundRun.class().exit_status() })
}

/// The workload of the flags, held against the model that the results name.
fn workload(args: &AuditArgs, results: &Results) -> Result<Option<Workload>> {
    let Some(path) = &args.workload else { return Ok(None) };
    let plan = results.headers.first().map(|(_, header)| &header.plan);
    let program = args.model.as_ref().map(|model| Program::open(model, None)).transpose()?;
    let text = match (&program, &args.model) {
        (Some(program), Some(model)) => text_model(program, model),
        _ => Err(Diagnostic::error(Code::NoTokenizer, "the workload has requests of text")
            .help("name the model whose tokenizer reads them (--model)")
            .into()),
    };
    let model = Model {
        vocab: plan.map_or(usize::MAX, |plan| plan.model.vocab),
        capacity: plan.map_or(usize::MAX, |plan| plan.model.capacity),
        text,
        date: crate::run::date(plan.and_then(|plan| plan.date.as_deref()))?,
    };
    Workload::read(path, &model).map(Some)
}

fn told(report: &Report<'_>) -> String {
    let Report { results, form, measured_on, audit, .. } = report;
    let mut text = format!("{results}: {form}, measured on {measured_on}, {}\n", audit.state);
    for finding in &audit.findings {
        let grade = match finding.grade {
            Grade::Fault => "fault",
            Grade::Note => "note",
        };
        let line = finding.line.map_or(String::new(), |line| format!(":{line}"));
        let message = finding.message.replace(|c: char| c.is_control(), "?");
        text.push_str(&format!("{results}{line}: {grade}[{}]: {message}\n", finding.check.name()));
    }
    for unchecked in &audit.unchecked {
        text.push_str(&format!("not checked: {}: {}\n", unchecked.check.name(), unchecked.why));
    }
    if let Some(drift) = &audit.drift {
        let percent = |part: f64| format!("{:+.1} %", part * 100.0);
        let over_position = drift.over_position.map_or_else(|| "not known".into(), percent);
        let over_run = percent(drift.over_run);
        text.push_str(&format!("interval between tokens: over the run {over_run}, over positions {over_position}\n"));
    }
    let faults = audit.findings.iter().filter(|finding| finding.grade == Grade::Fault).count();
    let notes = count(audit.findings.len() - faults, "note");
    text.push_str(&match faults {
        0 => format!("clean, with {notes}\n"),
        faults => format!("NOT CLEAN: {}, {notes}\n", count(faults, "fault")),
    });
    text
}
