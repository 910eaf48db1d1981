//! `npuc solve`: a format for every matrix, so that the model stays closest to itself within a budget, as a recipe.
//!
//! What is printed as text is a recipe's file too: everything but the recipe is a comment.

use std::fmt::Write;
use std::path::Path;

use npuc::bundle::staging::write_file;
use npuc::front::{self, Checkpoint};
use npuc::quant::recipe::{Activation, Recipe};
use npuc::quant::solve::{Matrix, activation, matrices};
use npuc::target::{self, Target};
use npuc::{Code, DType, Diagnostic, Error, Result};
use npuc_run::corpus::{Amount, Corpus};
use npuc_run::fidelity::{Fidelity, Gate, Windows, check_context};
use npuc_run::program::{Program, shapes_of};
use npuc_run::solve::{Group, Sensitivity, Solution, check_budget, measure, solve};
use serde::Serialize;

use crate::args::{SolveArgs, threads};
use crate::corpus;
use crate::output::{Output, bytes};

/// Groups in the table.
const WORST: usize = 10;
/// How many bits more the prediction is told for.
const MORE_BITS: [f64; 3] = [0.25, 0.5, 1.0];

#[derive(Serialize)]
struct Report {
    recipe: String,
    target: String,
    activation: &'static str,
    budget_bits: f64,
    bits_per_weight: f64,
    bytes: u64,
    /// The mean divergence that the choice was made by, in nats a token.
    predicted_kl: f64,
    /// The least prediction that any choice within the budget could have.
    bound_kl: f64,
    /// The mean divergence of the quantised model.
    measured_kl: Option<f64>,
    /// Of all matrices in their probes, and the sum of those of each part alone: how far divergences add up.
    probe_kl: f64,
    sum_of_parts_kl: f64,
    /// Predictions for larger budgets.
    more_bits: Vec<MoreBits>,
    /// What was measured on.
    text: String,
    /// Whether all conditions of the gate hold; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    faithful: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    broken: Vec<Diagnostic>,
    fidelity: Fidelity,
    groups: Vec<Group>,
    warnings: Vec<Diagnostic>,
}

#[derive(Serialize)]
struct MoreBits {
    budget_bits: f64,
    predicted_kl: f64,
}

/// What is asked, with everything that can be refused before the long work.
struct Asked {
    gate: Option<Gate>,
    target: Target,
    checkpoint: Checkpoint,
    activation: Activation,
    matrices: Vec<Matrix>,
    windows: Windows,
    /// What the windows are of.
    text: String,
}

impl Asked {
    fn new(args: &SolveArgs, output: Output) -> Result<Asked> {
        let gate = args.gate.as_ref().map(|gate| gate.parse()).transpose()?;
        let formats = args.formats.as_ref().map(|formats| formats.iter().map(|name| format(name)).collect());
        let formats: Option<Vec<DType>> = formats.transpose()?;
        args.output.as_deref().map_or(Ok(()), check_output)?;
        check_context(args.context)?;
        let target = target::find(&args.target)?;
        let checkpoint = front::open(&args.model)?;
        output.warnings(&checkpoint.warnings);
        let activation = match &args.act {
            Some(act) => Recipe::parse("--act", &format!("act = {act:?}"))?.activation,
            None => activation(&target)?,
        };
        let matrices = matrices(&checkpoint, &target, activation, formats.as_deref())?;
        check_budget(&matrices, args.by.into(), args.budget_bits)?;
        let (windows, text) = windows(&checkpoint, args, output)?;
        Ok(Asked { gate, target, checkpoint, activation, matrices, windows, text })
    }
}

/// Runs the command; gives the exit status.
pub(crate) fn command(args: &SolveArgs, output: Output) -> Result<u8> {
    let asked = Asked::new(args, output)?;
    let Asked { checkpoint, matrices, windows, .. } = &asked;
    let threads = threads(args.threads);
    let bar = output.steps_bar("measuring");
    let sensitivity =
        Sensitivity::measure(checkpoint, matrices, windows, args.budget_bits, threads, &mut |done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        })?;
    bar.finish_and_clear();
    let choose =
        |bits: f64| solve(checkpoint, &asked.target, asked.activation, matrices, &sensitivity, args.by.into(), bits);
    let solution = choose(args.budget_bits)?;
    output.warnings(&solution.plan.notes);
    let mut more_bits = Vec::new();
    for more in MORE_BITS.iter().take_while(|_| solution.budget_binds) {
        let budget_bits = args.budget_bits + more;
        more_bits.push(MoreBits { budget_bits, predicted_kl: choose(budget_bits)?.predicted_kl });
    }
    let spinner = output.spinner("measuring the quantised model");
    let fidelity = measure(checkpoint, &solution.plan, windows, threads)?;
    drop(spinner);

    let toml = solution.recipe.to_toml();
    args.output.as_ref().map_or(Ok(()), |path| write_file(path, toml.as_bytes()))?;
    let verdict = asked.gate.as_ref().map_or(Ok(()), |gate| gate.check(&fidelity));
    let verdict = verdict.map_err(|error| with_bound(&error, &solution, args.budget_bits, &more_bits));
    let broken = verdict.as_ref().err().map(|e| e.diagnostics().to_vec()).unwrap_or_default();
    let figures = Report {
        recipe: toml,
        target: asked.target.name.clone(),
        activation: asked.activation.name(),
        budget_bits: args.budget_bits,
        bits_per_weight: solution.plan.bits_per_weight(),
        bytes: solution.plan.bytes(),
        predicted_kl: solution.predicted_kl,
        bound_kl: solution.bound_kl,
        measured_kl: fidelity.text.as_ref().and_then(|text| text.kl.as_ref()).map(|kl| kl.mean),
        probe_kl: sensitivity.probe_kl,
        sum_of_parts_kl: sensitivity.sum_of_parts_kl,
        more_bits,
        text: asked.text.clone(),
        faithful: asked.gate.is_some().then_some(broken.is_empty()),
        broken,
        fidelity,
        groups: solution.groups,
        warnings: checkpoint.warnings.iter().chain(&solution.plan.notes).cloned().collect(),
    };
    output.result(&figures, &render(&figures))?;
    let Err(error) = verdict else { return Ok(0) };
    output.note(&error.to_string());
    Ok(error.exit_status())
}

/// What a broken gate leaves to do.
fn with_bound(error: &Error, solution: &Solution, budget_bits: f64, more: &[MoreBits]) -> Error {
    let told = Diagnostic::error(Code::Unfaithful, "the formats within the budget are not close enough");
    let told = told.subject("--budget-bits").have(format!("{budget_bits} bits a weight"));
    let told = match more.first() {
        Some(_) if solution.budget_binds => {
            let prediction = |more: &MoreBits| format!("{} bits: {:.6}", more.budget_bits, more.predicted_kl);
            let list: Vec<String> = more.iter().map(prediction).collect();
            let need = format!("more: the prediction is {:.6} now, with {}", solution.predicted_kl, list.join(", "));
            told.need(need).help("raise the budget, or quantise by the recipe with --quality best")
        }
        Some(_) | None => told.need("other formats: every matrix has its best one already").help("name another target"),
    };
    Error::check(error.diagnostics().iter().cloned().chain([told]).collect()).err().unwrap_or_else(|| error.clone())
}

/// The format of a name.
fn format(name: &str) -> Result<DType> {
    DType::from_name(name.trim()).ok_or_else(|| {
        let known: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
        let fault = Diagnostic::error(Code::BadArgument, "npuc does not know this format").subject("--formats");
        fault.need(format!("one of {}", known.join(", "))).have(name).into()
    })
}

/// Recipes are told from names by their ending.
fn check_output(path: &Path) -> Result<()> {
    if path.extension().is_some_and(|ending| ending == "toml") {
        return Ok(());
    }
    let fault = Diagnostic::error(Code::BadArgument, "a recipe's file ends in .toml").subject("--output");
    Err(fault
        .have(path.display())
        .help("`npuc quantize --recipe` takes a name without it for one of npuc's own")
        .into())
}

/// The windows of the text, and what it is.
fn windows(checkpoint: &Checkpoint, args: &SolveArgs, output: Output) -> Result<(Windows, String)> {
    let shapes = shapes_of(&checkpoint.config, args.context);
    let capacity = shapes.iter().map(|shape| shape.capacity).max().unwrap_or(0);
    if capacity < args.context {
        let fault = Diagnostic::error(Code::ContextExceeded, "a window does not fit the context").subject("--context");
        return Err(fault.need(format!("at most {capacity}")).have(args.context).help("lower --context").into());
    }
    let program = Program::from_checkpoint(checkpoint.clone(), Some(shapes))?;
    let file = args.corpus.text.as_ref().or(args.corpus.ids.as_ref());
    let (ids, source) = match (corpus::given(&args.corpus, &program, &args.model)?, file) {
        (Some(ids), Some(file)) => (ids, file.display().to_string()),
        (Some(_) | None, _) => {
            let spinner = output.spinner("the model writes its text");
            let amount = Amount { samples: args.windows, tokens: args.context };
            let corpus = Corpus::of_model(checkpoint, amount, threads(args.threads))?;
            drop(spinner);
            (corpus.sequences.concat(), corpus.source)
        }
    };
    let text = program.text.as_ref().ok().and_then(Option::as_ref);
    let bos = text.map_or(Ok(None), |text| text.tokenizer.first_id())?;
    let windows = Windows::new(ids, args.context, bos, Some(args.windows));
    let windows = windows.map_err(|e| file.map_or(e.clone(), |file| e.in_file(file)))?;
    let text = format!("{} windows of {} ids of {source}", windows.iter().len(), windows.context());
    Ok((windows, text))
}

fn render(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# {name:<12}{value}");
    };
    let number = |kl: f64| format!("{kl:.6}");
    line("target", format!("{}, {} activations", report.target, report.activation));
    line("bits", format!("{:.4} a weight of {} ({})", report.bits_per_weight, report.budget_bits, bytes(report.bytes)));
    line("text", report.text.clone());
    let measured = report.measured_kl.map_or("not".to_owned(), number);
    line("KL", format!("predicted {}, measured {measured} nats a token", number(report.predicted_kl)));
    line("", format!("no choice within the budget is predicted below {}", number(report.bound_kl)));
    for more in &report.more_bits {
        line("", format!("{} bits are predicted to give {}", more.budget_bits, number(more.predicted_kl)));
    }
    if let Some(faithful) = report.faithful {
        line("gate", if faithful { "holds".into() } else { "broken".into() });
    }
    line(
        "groups",
        format!("{} of {}, worst in their smallest format first", WORST.min(report.groups.len()), report.groups.len()),
    );
    let _ = writeln!(text, "#   {:<28}{:>10}{:>12}  {:<10}{:>10}{:>12}", "", "smallest", "KL", "chosen", "bits", "KL");
    for group in report.groups.iter().take(WORST) {
        let Group { name, format, bits_per_weight, kl, smallest, smallest_kl, .. } = group;
        let _ = writeln!(
            text,
            "#   {name:<28}{smallest:>10}{smallest_kl:>12.6}  {format:<10}{bits_per_weight:>10.4}{kl:>12.6}"
        );
    }
    text + &report.recipe
}
