//! `npuc verify`: how close a model is to reference outputs.

use std::fmt::Write;

use npuc::{Diagnostic, Result};
use npuc_run::fidelity::{Fidelity, Gate, Reference, compare};
use serde::Serialize;

use crate::args::VerifyArgs;
use crate::output::Output;
use crate::session;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    fidelity: Fidelity,
    measured_on: &'static str,
    faithful: bool,
    warnings: Vec<Diagnostic>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    broken: Vec<Diagnostic>,
}

/// Runs the command; gives the exit status.
pub(crate) fn command(args: &VerifyArgs, output: Output) -> Result<u8> {
    let gate: Option<Gate> = args.gate.as_ref().map(|gate| gate.parse()).transpose()?;
    let reference = Reference::read(&args.reference)?;
    let (program, mut session) = session::open(&args.model, &args.device, &[])?;
    output.warnings(&program.warnings);
    let fidelity = compare(&mut session, &reference).map_err(|e| e.in_file(&args.reference))?;
    let measured_on = args.device.on.name();
    let verdict = gate.unwrap_or_else(|| Gate::default_for(&fidelity)).check(&fidelity);
    let broken = verdict.as_ref().err().map(|e| e.diagnostics().to_vec()).unwrap_or_default();
    let report =
        Report { fidelity, measured_on, faithful: broken.is_empty(), warnings: program.warnings.clone(), broken };
    output.result(&report, &render(&report.fidelity, measured_on))?;
    let Err(error) = verdict else { return Ok(0) };
    output.note(&error.to_string());
    Ok(error.exit_status())
}

fn render(fidelity: &Fidelity, measured_on: &str) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name:<18}{value}");
        }
    };
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    line("positions", (fidelity.positions > 0).then(|| fidelity.positions.to_string()));
    line("cosine, mean", fidelity.cosine_mean.map(|x| format!("{x:.9}")));
    line("cosine, least", fidelity.cosine_min.map(|x| format!("{x:.9}")));
    line("max |difference|", fidelity.max_abs.map(|x| format!("{x:.3e}")));
    line("top-1 agreement", fidelity.top1.map(percent));
    line("top-10 agreement", fidelity.top10.map(percent));
    line("greedy agreement", fidelity.greedy.map(|x| format!("{} of {} ids", percent(x), fidelity.greedy_ids)));
    line("measured on", Some(measured_on.into()));
    text
}
