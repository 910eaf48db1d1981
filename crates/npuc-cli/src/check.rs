//! `npuc check`: whether a model fits a chip, what does not and why.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use npuc::back::BackEnd;
use npuc::back::tflite::runtime_shapes;
use npuc::bundle::staging::write_file;
use npuc::diag::{Class, Severity};
use npuc::fit::{self, Chunk, Context, Fit, Request, fit};
use npuc::front::{self, ModelConfig, config_hf};
use npuc::mend::{Applied, Mended, Proof, mend, prove};
use npuc::model::{Chunks, StepShape};
use npuc::place::Bill;
use npuc::target::ledger::Usage;
use npuc::target::{self, Misfit, Precision, Question, Target};
use npuc::{Code, Diagnostic, Result, Tensor};
use npuc_run::program::default_shapes_for;
use serde::Serialize;

use crate::args::{CheckArgs, shapes};
use crate::mended;
use crate::output::{Output, bytes, count};
use crate::sarif;

mod pair;

#[derive(Serialize)]
struct Report<'a> {
    model: String,
    target: &'a str,
    precision: &'a str,
    shapes: Vec<String>,
    flags: Vec<String>,
    fits: bool,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    mended: &'a [Applied],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    proofs: &'a [Proof],
    misfits: Vec<&'a Misfit>,
    warnings: Vec<&'a Misfit>,
    weights_bytes: u64,
    state_bytes: u64,
    activation_bytes: u64,
    total_bytes: u64,
    chunks: &'a [Chunk],
    chosen_chunks: bool,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    bills: &'a [(StepShape, Bill)],
    binding: Option<&'a Usage>,
    context: Option<&'a Context>,
    checkpoint_warnings: Vec<Diagnostic>,
}

/// A configuration, alone or with its weights.
struct Model {
    config: ModelConfig,
    weights: Option<BTreeMap<String, Tensor>>,
    warnings: Vec<Diagnostic>,
}

/// A model that was held against the target.
struct Examined {
    request: Request,
    fit: Fit,
    applied: Vec<Applied>,
    proofs: Vec<Proof>,
}

/// Runs the command; gives the exit status.
pub(crate) fn command(args: &CheckArgs, output: Output) -> Result<u8> {
    let target = target::find(&args.target)?;
    let usual = if target.back_end == Some(BackEnd::Host) { "stored" } else { "FP" };
    let precision = Precision::parse(args.precision.as_deref().unwrap_or(usual), target.float)?;
    let question = Question { outer_buffers: args.outer_buffers, ..Question::new(&target, precision, &args.flag)? };
    let asked = args.place.apply(Request::new(target, question, Vec::new()))?;
    let mut model = open(&args.model)?;
    let configs = model.config.models();
    let examined = configs.iter().map(|config| examine(args, config, &asked, &mut model, output));
    let examined = examined.collect::<Result<Vec<Examined>>>()?;
    if let [first, others @ ..] = &configs[..]
        && !others.is_empty()
    {
        let mut idle = fit::idle_rules(first, &examined[0].request)?;
        for (config, examined) in others.iter().zip(&examined[1..]) {
            let also = fit::idle_rules(config, &examined.request)?;
            idle.retain(|rule| also.contains(rule));
        }
        fit::refuse_idle(idle)?;
    }
    if let Some(folder) = &args.ir {
        examined.iter().try_for_each(|examined| write_graphs(&examined.fit, folder))?;
    }
    let fits = examined.iter().all(|examined| examined.fit.fits());
    let status = if fits { 0 } else { Class::No.exit_status() };
    if args.sarif {
        let misfits: Vec<Misfit> = examined.into_iter().flat_map(|examined| examined.fit.misfits).collect();
        let text = serde_json::to_string_pretty(&sarif::log(&misfits)).expect("the log has only text keys");
        output.text(&format!("{text}\n"))?;
        return Ok(status);
    }
    output.warnings(&model.warnings);
    let mut warnings = model.warnings;
    let reports: Vec<Report<'_>> = examined.iter().map(|of| report(args, of, std::mem::take(&mut warnings))).collect();
    match (&reports[..], &examined[..]) {
        ([report], [examined]) => output.result(report, &render(report, &examined.fit, &examined.request.target))?,
        _ => {
            let pair = pair::of(&configs, &reports, &examined)?;
            output.result(&pair, &pair::render(&pair, &examined))?;
        }
    }
    Ok(status)
}

/// Holds a model against the target, mended if the flags say so.
fn examine(
    args: &CheckArgs,
    config: &ModelConfig,
    asked: &Request,
    model: &mut Model,
    output: Output,
) -> Result<Examined> {
    let given = shapes(args.shapes.as_ref())?.filter(|_| config.reads_tokens());
    let shapes = given.unwrap_or_else(|| default_shapes_for(&asked.target, config));
    if asked.target.back_end == Some(BackEnd::Tflite)
        && config.reads_tokens()
        && let Err(refused) = runtime_shapes(&shapes)
    {
        // The chip takes such graphs; only a build needs the shapes of the runtime.
        let faults = refused.diagnostics().iter().cloned();
        model.warnings.extend(faults.map(|fault| Diagnostic { severity: Severity::Warning, ..fault }));
    }
    let chunks = args.chunks.as_deref().map(str::parse::<Chunks>).transpose()?;
    let asked = Request { chunks, shapes, ..asked.clone() };
    let weights = model.weights.as_ref();
    let Mended { request, applied, fit } = match args.fix {
        Some(fix) => mend(config, weights, &asked, fix.into())?,
        None => Mended { fit: fit(config, weights, &asked)?, request: asked, applied: Vec::new() },
    };
    let (proofs, unproved) = match prove(config, weights, &request, &applied) {
        Ok(proofs) => (proofs, None),
        Err(error) if error.diagnostics().iter().all(|fault| fault.code == Code::OutOfMemory) => {
            (Vec::new(), Some(error))
        }
        Err(error) => return Err(error),
    };
    unproved.iter().for_each(|error| output.note(&error.to_string()));
    Ok(Examined { request, fit, applied, proofs })
}

fn open(path: &Path) -> Result<Model> {
    if path.extension().is_some_and(|extension| extension == "json") {
        let text = std::fs::read(path).map_err(|error| {
            Diagnostic::error(Code::Unreadable, format!("cannot read the file: {error}")).file(path)
        })?;
        let config = config_hf::parse(&text, path)?.model;
        return Ok(Model { config, weights: None, warnings: Vec::new() });
    }
    let checkpoint = front::open(path)?;
    Ok(Model { config: checkpoint.config, weights: Some(checkpoint.tensors), warnings: checkpoint.warnings })
}

fn write_graphs(fit: &Fit, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|error| {
        Diagnostic::error(Code::Unwritable, format!("cannot make the folder: {error}")).file(folder)
    })?;
    for graph in fit.graphs.iter().chain(&fit.chunk_graphs) {
        write_file(&folder.join(format!("{}.ir", graph.name)), graph.to_string().as_bytes())?;
    }
    Ok(())
}

fn report<'a>(args: &CheckArgs, examined: &'a Examined, checkpoint_warnings: Vec<Diagnostic>) -> Report<'a> {
    let Examined { request, fit, applied, proofs } = examined;
    let Request { target, question, shapes, chunks, .. } = request;
    let (misfits, warnings) = fit.misfits.iter().partition(|misfit| misfit.severity == Severity::Error);
    let sum = |of: fn(&Chunk) -> u64| fit.chunks.iter().map(of).sum();
    let lifting = question.flags.iter().map(|flag| format!("--{flag}"));
    let flags = target.flags_for(&question.precision).into_iter().map(str::to_owned).chain(lifting).collect();
    let activations = |chunk: &Chunk| chunk.memory.graphs.iter().map(|graph| graph.activation_bytes).sum::<u64>();
    Report {
        model: args.model.display().to_string(),
        target: &target.name,
        precision: &question.precision.name,
        shapes: shapes.iter().map(ToString::to_string).collect(),
        flags,
        fits: fit.fits(),
        mended: applied,
        proofs,
        misfits,
        warnings,
        weights_bytes: sum(|chunk| chunk.memory.weights_bytes),
        state_bytes: sum(|chunk| chunk.memory.state_bytes),
        activation_bytes: sum(activations),
        total_bytes: sum(|chunk| chunk.memory.total_bytes()),
        chunks: &fit.chunks,
        chosen_chunks: chunks.is_none(),
        bills: &fit.bills,
        binding: fit.binding.as_ref(),
        context: fit.context.as_ref(),
        checkpoint_warnings,
    }
}

fn render(report: &Report<'_>, fit: &Fit, target: &Target) -> String {
    let mut text: String = fit.misfits.iter().map(|misfit| format!("{}\n", message(misfit))).collect();
    text.push_str(&mended::render(report.mended, report.proofs));
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<14}{value}");
    };
    line("target", format!("{}, {}", target.name, target.summary));
    line("precision", format!("{} at {}", report.precision, report.shapes.join(", ")));
    if !report.flags.is_empty() {
        line("flags", report.flags.join(" "));
    }
    let how = if report.chosen_chunks { "the fewest that the limits allow" } else { "as given" };
    line("chunks", format!("{} ({how})", fit.parts.len()));
    for (name, value) in chunk_lines(report.chunks) {
        line(&format!("  chunk {name}"), value);
    }
    line(
        "total",
        format!(
            "{} (weights {}, state {}, activations {}, the rest ports)",
            bytes(report.total_bytes),
            bytes(report.weights_bytes),
            bytes(report.state_bytes),
            bytes(report.activation_bytes)
        ),
    );
    for bill in mended::bills(&fit.bills).lines() {
        let (name, value) = bill.split_at(14);
        line(name.trim_end(), value.to_owned());
    }
    if let Some(usage) = report.binding {
        let Usage { rule, limit, used, .. } = usage;
        let chunk = report.chunks.get(usage.chunk).map_or("", |chunk| chunk.name.as_str());
        let share = 100.0 * usage.share();
        line("nearest limit", format!("{rule}: {limit}; chunk {chunk} uses {used}, {share:.0} %"));
    }
    if let Some(Context { capacity, bound_by }) = report.context {
        line("context", format!("up to {capacity} rows, bound by {bound_by}"));
    }
    line("answer", answer(report));
    text
}

/// A line for each chunk; equal segments of a chunk share one.
fn chunk_lines(chunks: &[Chunk]) -> Vec<(String, String)> {
    let mut lines: Vec<(String, String, usize)> = Vec::new();
    for chunk in chunks {
        let (text, is_segment) = (chunk_line(chunk), chunk.name.contains('.'));
        match lines.iter_mut().find(|(_, known, _)| is_segment && *known == text) {
            Some((_, _, count)) => *count += 1,
            None => lines.push((chunk.name.clone(), text, 1)),
        }
    }
    let line = |(name, text, count): (String, String, usize)| match count {
        1 => (name, text),
        more => (name, format!("(and {} like it) {text}", more - 1)),
    };
    lines.into_iter().map(line).collect()
}

fn chunk_line(chunk: &Chunk) -> String {
    let memory = &chunk.memory;
    let graphs = memory.graphs.iter().map(|graph| format!("{} operations and {} ports", graph.operations, graph.ports));
    let graphs: Vec<String> = graphs.collect();
    let layers = if chunk.layers == 1 { "1 layer".to_owned() } else { format!("{} layers", chunk.layers) };
    let activations: u64 = memory.graphs.iter().map(|graph| graph.activation_bytes).sum();
    format!(
        "{layers}: weights {}, state {}, activations {}; {}",
        bytes(memory.weights_bytes),
        bytes(memory.state_bytes),
        bytes(activations),
        graphs.join(" / ")
    )
}

fn answer(report: &Report<'_>) -> String {
    let warnings = count(report.warnings.len(), "warning");
    match report.misfits.len() {
        0 => format!("fits, {warnings}"),
        misfits => format!("does not fit: {}, {warnings}", count(misfits, "misfit")),
    }
}

/// One misfit in the manner of a compiler's message.
fn message(misfit: &Misfit) -> String {
    let severity = match misfit.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let mut text = format!("{severity}[{}]: {}\n", misfit.code, misfit.message);
    if let Some((first, others)) = misfit.places.split_first() {
        let margin = " ".repeat(first.line.to_string().len());
        let more = if others.is_empty() { String::new() } else { format!(" (and {} more)", others.len()) };
        let _ = writeln!(text, "{margin}--> {} ({}.ir:{}){more}", first.path, first.graph, first.line);
        let _ = writeln!(text, "{margin} |");
        let _ = writeln!(text, "{} | {}", first.line, first.text);
        let _ = writeln!(text, "{margin} |");
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "{margin} = {name}: {value}");
        };
        line("unit", &misfit.unit);
        line("limit", &misfit.limit);
        line("actual", &misfit.actual);
        misfit.why.iter().for_each(|why| line("note", why));
        line("source", &format!("{} ({})", misfit.source, misfit.grade.name()));
        misfit.remedies.iter().for_each(|remedy| line("help", &remedy.to_string()));
    }
    text
}
