//! `npuc verify`: how close a model is to reference outputs.

use std::fmt::Write;

use npuc::{Code, Diagnostic, Result};
use npuc_run::fidelity::{Fidelity, Gate, Reference, compare};
use npuc_run::program::Program;
use npuc_run::session::Session;
use serde::Serialize;

use crate::args::{On, VerifyArgs, threads};
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
    let read = args.reference.as_ref().map(|path| Reference::read(path)).transpose()?;
    let (program, mut session) = session::open(&args.model, &args.device, &[])?;
    output.warnings(&program.warnings);
    let fidelity = match (read, &args.reference) {
        (Some(reference), Some(path)) => compare(&mut session, &reference).map_err(|e| e.in_file(path))?,
        _ => {
            let reference = computed(args, &program, session.capacity())?;
            compare(&mut session, &reference)?
        }
    };
    let measured_on = args.device.on.name();
    let verdict = gate.unwrap_or_else(|| Gate::default_for(&fidelity, program.whole_numbers)).check(&fidelity);
    let broken = verdict.as_ref().err().map(|e| e.diagnostics().to_vec()).unwrap_or_default();
    let report =
        Report { fidelity, measured_on, faithful: broken.is_empty(), warnings: program.warnings.clone(), broken };
    output.result(&report, &render(&report.fidelity, measured_on))?;
    let Err(error) = verdict else { return Ok(0) };
    output.note(&error.to_string());
    Ok(error.exit_status())
}

/// What a model is asked where the user gives no reference.
const PROMPTS: [&str; 3] = [
    "The capital of France is",
    "Water boils at a lower temperature on a mountain, because",
    "def add(a, b):\n    return a + b\n\ndef multiply(a, b):",
];
/// Ids of a prompt for a model without a tokenizer.
const PROMPT_IDS: u32 = 12;
/// Greedy ids after each prompt.
const GREEDY_IDS: usize = 24;

/// The scores and greedy ids that this machine computes.
fn computed(args: &VerifyArgs, program: &Program, capacity: usize) -> Result<Reference> {
    if args.against.is_none() && args.device.on == On::Host {
        return Err(Diagnostic::error(Code::BadArgument, "this machine would be compared with itself")
            .need("--reference FILE, --against MODEL, or --on another device")
            .into());
    }
    let other = args.against.as_ref().map(|model| Program::open(model, None)).transpose()?;
    let other = other.as_ref().unwrap_or(program);
    let mut session = Session::new(other, threads(args.device.threads), &[])?;
    let vocab = session.vocab() as u32;
    let mut prompts: Vec<Vec<u32>> = match &program.text {
        Ok(Some(text)) => PROMPTS.iter().map(|prompt| text.tokenizer.encode(prompt, true)).collect::<Result<_>>()?,
        Ok(None) | Err(_) => {
            (1..4).map(|seed| (0..PROMPT_IDS).map(|i| (i * 7919 + seed * 131) % vocab).collect()).collect()
        }
    };
    let most = capacity.min(session.capacity());
    prompts.iter_mut().for_each(|prompt| prompt.truncate(most / 2));
    prompts.retain(|prompt| !prompt.is_empty());
    Reference::of_session(&mut session, prompts, GREEDY_IDS.min(most / 2))
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
