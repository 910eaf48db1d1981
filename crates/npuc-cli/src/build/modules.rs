//! Building for IREE and Torq: mended graphs as StableHLO modules, and what the compilers make of them.

use std::fmt::Write;

use npuc::back::BackEnd;
use npuc::back::stablehlo::{CacheWrites, Dialect, Exported, Products, Side, Storage, Style, export};
use npuc::build::ordered;
use npuc::bundle::staging::refuse_other_content;
use npuc::bundle::write::{Contents, ExtraFile, Made, Written};
use npuc::fit::Request;
use npuc::front::Checkpoint;
use npuc::mend::{Applied, Mended, Proof};
use npuc::model::{Chunks, StepShape};
use npuc::quant::recipe::Recipe;
use npuc::target::Target;
use npuc::{Code, Diagnostic, Error, Result};
use npuc_run::fidelity::write_golden;
use npuc_run::modules::{self, ProvedProduct, prove_products};
use npuc_run::program::{Program, chip_contents};
use npuc_run::text::BundleText;
use npuc_run::toolchain::compile::TIME_LIMIT;
use npuc_run::toolchain::torq_profile::TorqProfile;
use npuc_run::toolchain::{Installed, find};
use serde::Serialize;

use super::chip::{self, Asked, Milliseconds, fitted, proved, refuse_host_flags};
use super::write_and_make;
use crate::args::{BuildArgs, ParametersArg, WeightsArg, threads};
use crate::mended;
use crate::output::{Output, bytes};

#[derive(Serialize)]
struct Report {
    bundle: String,
    target: String,
    precision: String,
    shapes: Vec<String>,
    mended: Vec<Applied>,
    proofs: Vec<Proof>,
    modules: Vec<ModuleReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    compiled: Vec<modules::Made>,
    /// The kinds of products that were computed by themselves in the simulator and on this machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    products: Vec<ProvedProduct>,
    #[serde(flatten)]
    written: Written,
    #[serde(flatten)]
    times: Times,
    /// The most memory of npuc itself, mapped files included, where the system tells.
    peak_rss_bytes: Option<u64>,
    warnings: Vec<Diagnostic>,
}

#[derive(Serialize)]
struct ModuleReport {
    file: String,
    bytes: u64,
    inputs: usize,
    outputs: usize,
    /// Products with packed weights.
    packed: usize,
}

/// How long the steps of a build took.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Times {
    pub(super) quantise_ms: Milliseconds,
    fit_ms: Milliseconds,
    proof_ms: Milliseconds,
    write_ms: Milliseconds,
}

/// How modules are made.
#[derive(Clone)]
pub(super) struct Form {
    pub(super) style: Style,
    /// Flags of the compiler instead of the target's.
    pub(super) flags: Vec<String>,
}

/// Builds a checkpoint for a target of `dialect`.
pub(super) fn build(args: &BuildArgs, target: &Target, dialect: Dialect, output: Output) -> Result<()> {
    refuse_flags(args)?;
    let style = style(args, dialect)?;
    let tool = tool(args, target)?;
    let mut times = Times::default();
    let asked = times.quantise_ms.measure(|| asked(args, target, output))?;
    finish(args, asked, (Form { style, flags: Vec::new() }, tool, Vec::new()), times, output)
}

/// Refuses flags that a build for modules has no use for, and a place that nothing may be written to.
pub(super) fn refuse_flags(args: &BuildArgs) -> Result<()> {
    refuse_host_flags(args)?;
    refuse_other_flags(args)?;
    refuse_other_content(&args.output)?;
    super::refuse_idle_recipe_flags(args)
}

/// The compiler, unless the user does not want one. A missing tool is told before any work.
pub(super) fn tool(args: &BuildArgs, target: &Target) -> Result<Option<Installed>> {
    (!args.no_compile).then(|| without_compiling(find(modules::compiler(target)?))).transpose()
}

/// Writes the bundle of what was asked for, in that form, with `files` in it.
pub(super) fn finish(
    args: &BuildArgs,
    asked: Asked,
    (form, tool, files): (Form, Option<Installed>, Vec<ExtraFile>),
    mut times: Times,
    output: Output,
) -> Result<()> {
    let Asked { request: asked, checkpoint, prepared, quantised } = asked;
    let text = super::text(&checkpoint, output)?;
    let mended = times.fit_ms.measure(|| fitted(args, &checkpoint, &asked))?;
    let notes = prepared.plan.notes.clone();
    let (proofs, warnings) = times.proof_ms.measure(|| proved(&checkpoint, &mended, notes, output))?;
    let Mended { request, applied, fit } = mended;

    let exported = export(&checkpoint, &request, &fit.parts, form.style, &form.flags)?;
    let modules = reported(&exported);
    let mut contents = contents(&request, form.style.dialect, exported, text);
    contents.recipe = Some(prepared.recipe_record());
    contents.files.extend(files);
    let written =
        times.write_ms.measure(|| write(args, &checkpoint, contents, (&request, &form, tool.as_ref()), output));
    let (written, compiled, products) = written?;
    quantised.finish()?;
    let report = Report {
        bundle: args.output.display().to_string(),
        target: request.target.name.clone(),
        precision: request.question.precision.name.clone(),
        shapes: request.shapes.iter().map(StepShape::to_string).collect(),
        mended: applied,
        proofs,
        modules,
        compiled,
        products,
        written,
        times,
        peak_rss_bytes: npuc_run::memory::peak_rss_bytes(),
        warnings,
    };
    output.warnings(&report.warnings);
    output.result(&report, &render(&report))
}

fn reported(exported: &Exported<'_>) -> Vec<ModuleReport> {
    let modules = exported.graphs.iter().filter_map(|emitted| {
        let (file, module) = emitted.module()?;
        let (inputs, outputs) = (module.inputs.len(), module.outputs.len());
        let packed = module.packed.len();
        Some(ModuleReport { file: file.into(), bytes: module.len_bytes(), inputs, outputs, packed })
    });
    modules.collect()
}

fn contents<'a>(request: &Request, dialect: Dialect, exported: Exported<'a>, text: BundleText) -> Contents<'a> {
    let Exported { graphs, weights, files } = exported;
    let back_end = match dialect {
        Dialect::Iree => BackEnd::Iree,
        Dialect::Torq => BackEnd::Torq,
    };
    Contents { files, ..chip_contents(request, back_end, graphs, weights, text) }
}

fn without_compiling(tool: Result<Installed>) -> Result<Installed> {
    let help = |fault: &Diagnostic| fault.clone().help("or write the modules alone with --no-compile");
    tool.or_else(|e| Error::check(e.diagnostics().iter().map(help).collect()).and(Err(e)))
}

/// Writes the bundle with its golden outputs and, unless the user does not want them, compiled modules whose kinds of products are
/// proved where they run here.
fn write(
    args: &BuildArgs,
    checkpoint: &Checkpoint,
    contents: Contents<'_>,
    (request, form, tool): (&Request, &Form, Option<&Installed>),
    output: Output,
) -> Result<(Written, Vec<modules::Made>, Vec<ProvedProduct>)> {
    let (mut compiled, mut products) = (Vec::new(), Vec::new());
    let written = write_and_make(&args.output, checkpoint, contents, output, |folder, manifest| {
        let spinner = output.spinner("computing golden outputs");
        let program = Program::open(folder, None)?;
        let files = write_golden(folder, &program, threads(None))?;
        let mut say = |text: &str| spinner.set_message(text.to_owned());
        if let Some(tool) = tool {
            let mut making = making(args, request, form, tool, &mut say);
            compiled = modules::make(folder, manifest, &program.graphs(), &mut making)?;
            making.profile = false;
            if form.style.dialect == Dialect::Torq {
                products = prove_products(&program.graphs(), request, form.style, &mut making)?;
            }
        }
        let modules = compiled.iter().map(|made| made.record.clone()).collect();
        Ok(Made { modules, files, ..Made::default() })
    })?;
    Ok((written, compiled, products))
}

/// How the compiler is called.
pub(super) fn making<'a>(
    args: &'a BuildArgs,
    request: &'a Request,
    form: &'a Form,
    tool: &'a Installed,
    say: &'a mut dyn FnMut(&str),
) -> modules::Making<'a> {
    let (target, changes, log) = (&request.target, form.flags.as_slice(), args.output.as_path());
    modules::Making { tool, target, changes, profile: args.profile, log, limit: TIME_LIMIT, say }
}

/// What the flags ask for, with the weights quantised if they say so.
pub(super) fn asked(args: &BuildArgs, target: &Target, output: Output) -> Result<Asked> {
    let recipe = match (&args.recipe, args.parameters) {
        (Some(_), Some(ParametersArg::ExternalBf16)) => {
            let fault = Diagnostic::error(Code::BadArgument, "--parameters external-bf16 is a recipe of its own");
            return Err(fault.help("leave out --recipe, or use --parameters external").into());
        }
        (Some(recipe), _) => Recipe::find(recipe)?,
        (None, Some(ParametersArg::ExternalBf16)) => Recipe::find("bf16")?,
        (None, Some(ParametersArg::External | ParametersArg::Inline) | None) => Recipe::find("stored")?,
    };
    chip::asked(args, target, recipe, output, |config, shapes| {
        let shapes = ordered(config, shapes)?;
        refuse_single_row(target, &shapes)?;
        let chunks = args.chip.chunks.as_deref().map(str::parse::<Chunks>).transpose()?;
        Ok((shapes, Some(chunks.unwrap_or(Chunks::Equal(1)))))
    })
}

/// Torq's compiler takes no cache of a single row: with a mask of one element, operations leave the slices.
fn refuse_single_row(target: &Target, shapes: &[StepShape]) -> Result<()> {
    match shapes.iter().find(|shape| target.back_end == Some(BackEnd::Torq) && shape.capacity < 2) {
        None => Ok(()),
        Some(shape) => Err(Diagnostic::error(Code::BadShape, "the cache has too few rows for the chip's compiler")
            .subject("--shapes")
            .need("a capacity of at least 2 rows")
            .have(shape)
            .into()),
    }
}

/// How modules are written. Torq has no runtime for parameters, IREE has.
pub(super) fn style(args: &BuildArgs, dialect: Dialect) -> Result<Style> {
    let side = match args.weights {
        WeightsArg::Left => Side::Left,
        WeightsArg::Right => Side::Right,
    };
    let storage = match (dialect, args.parameters) {
        (Dialect::Iree, None | Some(ParametersArg::External | ParametersArg::ExternalBf16)) => Storage::External,
        (Dialect::Iree | Dialect::Torq, Some(ParametersArg::Inline)) | (Dialect::Torq, None) => Storage::Inline,
        (Dialect::Torq, Some(ParametersArg::External | ParametersArg::ExternalBf16)) => {
            let fault = Diagnostic::error(Code::BadArgument, "modules for Torq hold their weights");
            return Err(fault.subject("--parameters").help("leave the flag out, or use --parameters inline").into());
        }
    };
    let (products, cache_writes) = (Products::default(), CacheWrites::default());
    Ok(Style { dialect, side, storage, products, cache_writes })
}

/// Flags of other chips are a misunderstanding, not a wish.
fn refuse_other_flags(args: &BuildArgs) -> Result<()> {
    let other = [
        ("--precision", args.chip.precision.is_some(), "use --recipe, e.g. bf16, q8_0 or q4_0"),
        ("--contexts", args.contexts.is_some(), "use --chunks"),
        ("--twins", args.twins, "leave the flag out"),
        ("--outer-buffers", args.chip.outer_buffers, "leave the flag out"),
    ];
    let faults = other
        .into_iter()
        .filter(|(_, given, _)| *given)
        .map(|(flag, _, help)| Diagnostic::error(Code::BadArgument, format!("{flag} is for other chips")).help(help));
    Error::check(faults.collect())
}

/// What the compiler of an NPU expects of a step.
pub(super) fn cycles(estimate: &TorqProfile) -> String {
    let slices: Vec<String> =
        estimate.slices.iter().map(|(slice, work)| format!("slice {slice} busy {}", work.busy_cycles)).collect();
    let (cycles, off, moved) = (estimate.cycles, estimate.off_slices(), bytes(estimate.dma_in.bytes));
    format!("{cycles} cycles, {}, {off} events off the slices, {moved} in", slices.join(", "))
}

fn render(report: &Report) -> String {
    let mut text = mended::render(&report.mended, &report.proofs);
    let line = |text: &mut String, name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<14}{value}");
    };
    line(&mut text, "target", format!("{}, {} at {}", report.target, report.precision, report.shapes.join(", ")));
    for ModuleReport { file, bytes: size, inputs, outputs, packed } in &report.modules {
        let ports = format!("{inputs} inputs, {outputs} outputs, {packed} packed products");
        line(&mut text, "module", format!("{file} ({}): {ports}", bytes(*size)));
    }
    for modules::Made { record, wall_ms, peak_rss_bytes, estimate } in &report.compiled {
        let cost = format!("{:.1} s, {}", *wall_ms as f64 / 1e3, bytes(*peak_rss_bytes));
        line(
            &mut text,
            "compiled",
            format!("{} ({}) by {}: {cost}", record.file, bytes(record.bytes), record.compiler),
        );
        if let Some(estimate) = estimate {
            line(&mut text, "  estimate", cycles(estimate));
        }
    }
    let estimates = report.compiled.iter().filter_map(|made| made.estimate.as_ref());
    if estimates.clone().count() > 1 {
        let all: u64 = estimates.map(|estimate| estimate.cycles).sum();
        line(&mut text, "estimate", format!("{all} cycles of all modules, by the compiler's own model"));
    }
    if !report.products.is_empty() {
        let least = report.products.iter().map(|proved| proved.cosine).fold(f64::INFINITY, f64::min);
        let count = report.products.len();
        line(&mut text, "products", format!("{count} kinds computed in the simulator, the least cosine {least:.7}"));
    }
    let Written { bundle_bytes, files, .. } = report.written;
    line(&mut text, "bundle", format!("{} ({} in {files} files)", report.bundle, bytes(bundle_bytes)));
    let Times { quantise_ms, fit_ms, proof_ms, write_ms } = report.times;
    let seconds = |time: Milliseconds| time.0 / 1e3;
    let (weights, fit, proof, write) = (seconds(quantise_ms), seconds(fit_ms), seconds(proof_ms), seconds(write_ms));
    line(
        &mut text,
        "time",
        format!("weights {weights:.1} s, check and mends {fit:.1} s, proofs {proof:.1} s, writing {write:.1} s"),
    );
    text
}
