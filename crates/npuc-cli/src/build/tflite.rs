//! Building for MediaTek's chips: mended graphs as TFLite files, with all that their runtime and compiler need.

use std::fmt::Write;
use std::time::Instant;

use npuc::back::BackEnd;
use npuc::back::tflite::ncc::Plan;
use npuc::back::tflite::{Export, Exported, Storage, export};
use npuc::bundle::write::{Contents, Written};
use npuc::diag::Severity;
use npuc::fit::Request;
use npuc::front::{Checkpoint, ModelConfig, non_finite};
use npuc::ir::Graph;
use npuc::mend::{Applied, Mended, Proof, mend, prove};
use npuc::model::{Chunks, StepShape};
use npuc::place::Bill;
use npuc::target::{Number, Precision, Question, Target};
use npuc::{Code, Diagnostic, Error, Result, fit};
use npuc_run::text::{BundleText, bundle_text};
use npuc_run::toolchain::ncc::{self, Compiled};
use serde::Serialize;

use super::{ms, open};
use crate::args::{BuildArgs, shapes};
use crate::mended;
use crate::output::{Output, bytes};

/// The context of a build unless the model's own is shorter, and the tokens of its prompt step.
const DEFAULT_CAPACITY: usize = 1024;
const DEFAULT_PROMPT_TOKENS: usize = 128;

#[derive(Serialize)]
struct Report {
    bundle: String,
    target: String,
    precision: String,
    shapes: Vec<String>,
    chunks: Vec<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bills: Vec<(StepShape, Bill)>,
    files: Vec<String>,
    mended: Vec<Applied>,
    proofs: Vec<Proof>,
    #[serde(flatten)]
    written: Written,
    fit_ms: f64,
    proof_ms: f64,
    write_ms: f64,
    /// The files that ncc-tflite made; absent where it is not on the PATH.
    compiled: Option<Vec<String>>,
    warnings: Vec<Diagnostic>,
}

/// Builds a checkpoint for a chip of MediaTek's.
pub(super) fn build(args: &BuildArgs, target: &Target, output: Output) -> Result<()> {
    refuse_host_flags(args)?;
    let chip = &args.chip;
    let precision = Precision::parse(chip.precision.as_deref().unwrap_or("FP"), target.float)?;
    let question = Question::new(target, precision, &chip.flag)?;
    let storage = storage(&question.precision)?;
    let chunks = chip.chunks.as_deref().map(str::parse::<Chunks>).transpose()?;
    let given = shapes(args.shapes.as_ref())?;
    let checkpoint = open(args)?;
    let shapes = given.unwrap_or_else(|| default_shapes(&checkpoint.config));
    let text = bundle_text(&checkpoint).inspect_err(|_| {
        output.note("note: --no-tokenizer builds without the tokenizer; the bundle then takes token ids only");
    })?;
    let asked = chip.place.apply(Request { chunks, ..Request::new(target.clone(), question, shapes) })?;

    let start = Instant::now();
    let Mended { request, applied, fit } = fitted(args, &checkpoint, &asked)?;
    let fit_ms = ms(start);
    let start = Instant::now();
    let spinner = output.spinner("proving the mends");
    let proofs = prove(&checkpoint.config, Some(&checkpoint.tensors), &request, &applied)?;
    drop(spinner);
    let proof_ms = ms(start);
    let mut warnings = checkpoint.warnings.clone();
    warnings.extend(fit.misfits.iter().map(npuc::target::Misfit::diagnostic));
    let spinner = output.spinner("checking weights");
    warnings.extend(non_finite(&checkpoint));
    drop(spinner);

    let start = Instant::now();
    let mut exported =
        export(&checkpoint, &Export { model: &model_name(args), request: &request, parts: &fit.parts, storage })?;
    warnings.extend(exported.warnings.iter().cloned());
    let names = exported.graphs.iter().filter_map(|graph| Some(graph.file.as_ref()?.0.clone())).collect();
    let plan = exported.compiler.take();
    let on_npu = exported.graphs.iter().filter(|graph| graph.file.is_some());
    let graphs: Vec<Graph> = on_npu.map(|graph| graph.graph.clone()).collect();
    let written = write(args, &checkpoint, &request, exported, text, output)?;
    let write_ms = ms(start);
    let compiled = plan.as_ref().map_or(Ok(None), |plan| compile(args, plan, &graphs, output))?;
    let report = Report {
        bundle: args.output.display().to_string(),
        target: target.name.clone(),
        precision: request.question.precision.name.clone(),
        shapes: request.shapes.iter().map(StepShape::to_string).collect(),
        chunks: fit.parts.iter().map(|part| part.layers.len()).collect(),
        bills: fit.bills,
        files: names,
        mended: applied,
        proofs,
        written,
        fit_ms,
        proof_ms,
        write_ms,
        compiled,
        warnings,
    };
    output.warnings(&report.warnings);
    output.result(&report, &render(&report))
}

/// The request as it fits, mended unless the user does not want that.
fn fitted(args: &BuildArgs, checkpoint: &Checkpoint, asked: &Request) -> Result<Mended> {
    let weights = Some(&checkpoint.tensors);
    let mended = if args.chip.no_fix {
        let fit = fit::fit(&checkpoint.config, weights, asked)?;
        Mended { request: asked.clone(), applied: Vec::new(), fit }
    } else {
        mend(&checkpoint.config, weights, asked, args.chip.fix.into())?
    };
    let errors = mended.fit.misfits.iter().filter(|misfit| misfit.severity == Severity::Error);
    Error::check(errors.map(npuc::target::Misfit::diagnostic).collect())?;
    Ok(mended)
}

fn write(
    args: &BuildArgs,
    checkpoint: &Checkpoint,
    request: &Request,
    exported: Exported<'_>,
    text: BundleText,
    output: Output,
) -> Result<Written> {
    let contents = Contents {
        target: request.target.clone(),
        back_end: BackEnd::Tflite,
        precision: request.question.precision.name.clone(),
        mends: request.mends.clone(),
        graphs: exported.graphs,
        weights: exported.weights,
        files: exported.files,
        tokenizer_json: text.tokenizer_json,
        chat_template: text.chat_template,
        text: text.record,
    };
    super::write(args, checkpoint, contents, output)
}

/// Runs MediaTek's compiler on the files of the bundle, where it is on the PATH.
///
/// Errors: what it refuses; the TFLite files stay.
fn compile(args: &BuildArgs, plan: &Plan, graphs: &[Graph], output: Output) -> Result<Option<Vec<String>>> {
    let Some(program) = ncc::find() else { return Ok(None) };
    let mut say = |text: &str| output.note(text);
    let compiled = ncc::compile(&program, &plan.lines, graphs, &args.output, ncc::TIME_LIMIT, &mut say)?;
    let name = |compiled: &Compiled| compiled.dla.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Some(compiled.iter().map(name).collect()))
}

/// How the matrices of a precision are stored.
fn storage(precision: &Precision) -> Result<Storage> {
    match precision.weight.map(|format| format.number) {
        Some(Number::F16) => Ok(Storage::F16),
        Some(Number::F32) => Ok(Storage::F32),
        _ => Err(Diagnostic::error(Code::UnsupportedFormat, "npuc does not write TFLite files of this precision")
            .need("FP, FP16 or FP32")
            .have(&precision.name)
            .into()),
    }
}

/// A prompt step and a step of one token.
fn default_shapes(config: &ModelConfig) -> Vec<StepShape> {
    let ModelConfig::Llama(config) = config;
    let capacity = config.max_positions.min(DEFAULT_CAPACITY);
    let tokens = [DEFAULT_PROMPT_TOKENS.min(capacity), 1];
    tokens.into_iter().map(|tokens| StepShape { tokens, capacity }).collect()
}

/// The model's name in the names of files: that of its folder or file.
fn model_name(args: &BuildArgs) -> String {
    let path = std::path::absolute(&args.model).unwrap_or_else(|_| args.model.clone());
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Flags that would change nothing are a misunderstanding, not a wish.
fn refuse_host_flags(args: &BuildArgs) -> Result<()> {
    let idle = [("--passes", args.passes.is_some()), ("--dump-after", args.dump_after.is_some())];
    let faults = idle.into_iter().filter(|(_, idle)| *idle).map(|(flag, _)| {
        let fault = Diagnostic::error(Code::BadArgument, format!("{flag} is for builds for this machine"));
        fault.help("the bundle holds every graph as IR text in graphs/")
    });
    Error::check(faults.collect())
}

fn render(report: &Report) -> String {
    let mut text = mended::render(&report.mended, &report.proofs);
    let line = |text: &mut String, name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<14}{value}");
    };
    let chunks: Vec<String> = report.chunks.iter().map(usize::to_string).collect();
    line(&mut text, "target", format!("{}, {} at {}", report.target, report.precision, report.shapes.join(", ")));
    line(&mut text, "chunks", format!("{} (layers {})", report.chunks.len(), chunks.join(", ")));
    text.push_str(&mended::bills(&report.bills));
    report.files.iter().for_each(|file| line(&mut text, "", file.clone()));
    let Written { bundle_bytes, files, .. } = report.written;
    line(&mut text, "bundle", format!("{} ({} in {files} files)", report.bundle, bytes(bundle_bytes)));
    let compiler = match &report.compiled {
        Some(files) => format!("ncc-tflite made {}", files.join(", ")),
        None => {
            "ncc-tflite is not on the PATH: whether it takes these files is not known; `sh compile.sh` runs it".into()
        }
    };
    line(&mut text, "compiler", compiler);
    let (fit, proof, write) = (report.fit_ms, report.proof_ms, report.write_ms);
    line(&mut text, "time", format!("check and mends {fit:.0} ms, proofs {proof:.0} ms, writing {write:.0} ms"));
    text
}
