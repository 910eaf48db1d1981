//! Building for MediaTek's chips: mended graphs as TFLite files, with all that their runtime and compiler need.

use std::fmt::Write;

use npuc::back::tflite::ncc::Plan;
use npuc::back::tflite::{Export, Storage, export};
use npuc::bundle::CalibrationRecord;
use npuc::bundle::write::{Contents, Written};
use npuc::fit::Request;
use npuc::front::Checkpoint;
use npuc::ir::Graph;
use npuc::mend::{Applied, Mended, Proof};
use npuc::model::{Chunks, StepShape};
use npuc::place::Bill;
use npuc::quant::plan::Destination;
use npuc::quant::recipe::Recipe;
use npuc::quant::{Ranges, WeightFormat};
use npuc::target::{Granularity, Number, Precision, Question, Target};
use npuc::{Code, Diagnostic, Result};
use npuc_run::calibrate::HEADROOM;
use npuc_run::program::{default_shapes_for, exported_contents};
use npuc_run::quantise::Quantised;
use npuc_run::toolchain::ncc::{self, Compiled};
use npuc_run::vendor_log::Weight;
use serde::Serialize;

use super::chip::{Milliseconds, calibrated, calibration, fitted, proved, refuse_host_flags};
use super::open;
use crate::args::{BuildArgs, shapes, threads};
use crate::mended;
use crate::output::{Output, bytes};
use crate::recipe::{Prepared, prepare};

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
    /// What the ranges of an integer precision were taken from.
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<CalibrationRecord>,
    #[serde(flatten)]
    times: Times,
    /// The files that ncc-tflite made; absent where it is not on the PATH.
    compiled: Option<Vec<String>>,
    warnings: Vec<Diagnostic>,
}

/// How long the steps of a build took.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Times {
    fit_ms: Milliseconds,
    proof_ms: Milliseconds,
    calibrate_ms: Milliseconds,
    write_ms: Milliseconds,
}

/// Builds a checkpoint for a chip of MediaTek's.
pub(super) fn build(args: &BuildArgs, target: &Target, output: Output) -> Result<()> {
    refuse_host_flags(args)?;
    super::refuse_idle_recipe_flags(args)?;
    let Asked { request: asked, form, checkpoint, quantised } = asked(args, target, output)?;
    let text = super::text(&checkpoint, output)?;

    let mut times = Times::default();
    let mended = times.fit_ms.measure(|| fitted(args, &checkpoint, &asked))?;
    let notes = quantised.iter().flat_map(|(prepared, _)| prepared.plan.notes.clone()).collect();
    let (proofs, mut warnings) = times.proof_ms.measure(|| proved(&checkpoint, &mended, notes, output))?;
    let Mended { request, applied, fit } = mended;

    let (ranges, calibration) = times.calibrate_ms.measure(|| match form {
        Form::Float(_) => Ok((Vec::new(), None)),
        Form::Integer(_) => {
            let text = calibration(args, &checkpoint, quantised.as_ref().map(|(prepared, _)| prepared))?;
            calibrated(&checkpoint, &request, &fit.parts, text, output)
        }
    })?;
    let storage = form.of_parts(fit.parts.len(), &ranges);
    let model = model_name(args);
    let export_of = Export { model: &model, request: &request, parts: &fit.parts, storage: &storage };
    let mut exported = export(&checkpoint, &export_of)?;
    warnings.append(&mut exported.warnings);
    let plan = exported.compiler.take();
    let on_npu = || exported.graphs.iter().filter_map(|graph| Some((&graph.graph, &graph.file.as_ref()?.0)));
    let (graphs, files): (Vec<Graph>, Vec<String>) =
        on_npu().map(|(graph, path)| (graph.clone(), path.clone())).unzip();
    let contents = Contents {
        recipe: quantised.as_ref().map(|(prepared, _)| prepared.recipe_record()),
        calibration: calibration.clone(),
        ..exported_contents(&request, exported, text)
    };
    let written = times.write_ms.measure(|| super::write(&args.output, &checkpoint, contents, output))?;
    quantised.map_or(Ok(()), |(_, quantised)| quantised.finish())?;
    let compiled = plan.as_ref().map_or(Ok(None), |plan| compile(args, plan, &graphs, output))?;
    warnings.extend(compiled.iter().flatten().filter_map(doubt));
    let name = |compiled: &Compiled| compiled.dla.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let compiled = compiled.map(|compiled| compiled.iter().map(name).collect());
    let report = Report {
        bundle: args.output.display().to_string(),
        target: target.name.clone(),
        precision: request.question.precision.name.clone(),
        shapes: request.shapes.iter().map(StepShape::to_string).collect(),
        chunks: fit.parts.iter().map(|part| part.layers.len()).collect(),
        bills: fit.bills,
        files,
        mended: applied,
        proofs,
        written,
        calibration,
        times,
        compiled,
        warnings,
    };
    output.warnings(&report.warnings);
    output.result(&report, &render(&report))
}

/// What the flags ask for.
struct Asked {
    request: Request,
    form: Form,
    /// With its weights in the formats of the recipe, if there is one.
    checkpoint: Checkpoint,
    quantised: Option<(Prepared, Quantised)>,
}

/// What the flags ask for, with the weights quantised if they say so.
fn asked(args: &BuildArgs, target: &Target, output: Output) -> Result<Asked> {
    let chip = &args.chip;
    let chunks = chip.chunks.as_deref().map(str::parse::<Chunks>).transpose()?;
    let given = shapes(args.shapes.as_ref())?;
    let recipe = args.recipe.as_deref().map(Recipe::find).transpose()?;
    let precision = match &recipe {
        None => Precision::parse(chip.precision.as_deref().unwrap_or("FP"), target.float)?,
        Some(recipe) => precision_of(recipe, chip.precision.as_deref(), target)?,
    };
    let question = Question { outer_buffers: chip.outer_buffers, ..Question::new(target, precision, &chip.flag)? };
    let form = if recipe.is_some() { recipe_form(&question.precision)? } else { form(&question.precision)? };
    if let (Form::Float(_), Some(_), None) = (form, &args.how.calibration, &recipe) {
        let fault = Diagnostic::error(Code::BadArgument, "--calibration does nothing in a float precision");
        return Err(fault.help("add --precision 8W16A or a recipe, or leave the flag out").into());
    }
    let mut checkpoint = open(args)?;
    let shapes = given.unwrap_or_else(|| default_shapes_for(target, &checkpoint.config));
    let request = chip.place.apply(Request { chunks, ..Request::new(target.clone(), question, shapes) })?;
    let quantised = match recipe {
        None => None,
        Some(recipe) => {
            let destination = Destination::Target(target.clone());
            let prepared = prepare(&checkpoint, recipe, &args.how, &destination, false, threads(None), output)?;
            let quantised = prepared.quantised(&checkpoint, &args.output, output)?;
            checkpoint = quantised.checkpoint.clone();
            Some((prepared, quantised))
        }
    };
    Ok(Asked { request, form, checkpoint, quantised })
}

/// The precision of a recipe, with the name that MediaTek's tools have for it where there is one.
fn precision_of(recipe: &Recipe, given: Option<&str>, target: &Target) -> Result<Precision> {
    if let Some(given) = given {
        let fault = Diagnostic::error(Code::BadArgument, "a recipe says the precision");
        return Err(fault.subject("--precision").have(given).help("leave out one of --recipe and --precision").into());
    }
    let name = match recipe.name.as_str() {
        "w8a16" => "8W16A",
        "w4a16" => "4W16A",
        "w8a8" => "8W8A",
        other => other,
    };
    let activation = recipe.activation.number(target.float);
    Ok(Precision { name: name.into(), activation, ..Precision::stored(target.float) })
}

/// How the files of a recipe's precision are stored: the weights have their formats, or are floats.
fn recipe_form(precision: &Precision) -> Result<Form> {
    match precision.activation {
        Number::F16 => Ok(Form::Float(Storage::F16)),
        Number::F32 => Ok(Form::Float(Storage::F32)),
        Number::Int16 => Ok(Form::Integer(WeightFormat::Int16)),
        Number::Bf16 | Number::Int8 | Number::Int4 | Number::Block(_) => {
            let fault =
                Diagnostic::error(Code::UnsupportedFormat, "npuc does not write TFLite files of these activations");
            Err(fault.need("f16, f32 or int16").have(precision.activation.name()).into())
        }
    }
}

/// Runs MediaTek's compiler on the files of the bundle, where it is on the PATH.
///
/// Errors: what it refuses; the TFLite files stay.
fn compile(args: &BuildArgs, plan: &Plan, graphs: &[Graph], output: Output) -> Result<Option<Vec<Compiled>>> {
    let Some(program) = ncc::find() else { return Ok(None) };
    let mut say = |text: &str| output.note(text);
    ncc::compile(&program, &plan.lines, graphs, &args.output, ncc::TIME_LIMIT, &mut say).map(Some)
}

/// A file that was made though the compiler's log says that something is refused.
fn doubt(compiled: &Compiled) -> Option<Diagnostic> {
    let refusal = compiled.findings.iter().find(|finding| finding.weight == Weight::Refusal)?;
    let fault =
        Diagnostic::warning(Code::VendorRefusal, "ncc-tflite made a file, and its log has the words of a refusal");
    Some(
        fault.file(&compiled.log).have(&refusal.message).help("read `npuc explain` on the log before the file is used"),
    )
}

/// What the files of a precision hold.
#[derive(Clone, Copy)]
enum Form {
    Float(Storage<'static>),
    Integer(WeightFormat),
}

impl Form {
    /// How each of `parts` parts is stored.
    fn of_parts(self, parts: usize, ranges: &[Ranges]) -> Vec<Storage<'_>> {
        match self {
            Form::Float(storage) => vec![storage; parts],
            Form::Integer(weights) => ranges.iter().map(|ranges| Storage::Integer { weights, ranges }).collect(),
        }
    }
}

/// How the matrices of a precision are stored.
fn form(precision: &Precision) -> Result<Form> {
    let channel = precision.weight.is_some_and(|format| format.granularity == Granularity::Channel);
    match (precision.weight.map(|format| format.number), precision.activation) {
        (Some(Number::F16), Number::F16) => Ok(Form::Float(Storage::F16)),
        (Some(Number::F32), Number::F32) => Ok(Form::Float(Storage::F32)),
        (Some(Number::Int16), Number::Int16) if channel => Ok(Form::Integer(WeightFormat::Int16)),
        (Some(Number::Int8), Number::Int16) if channel => Ok(Form::Integer(WeightFormat::Int8)),
        (Some(Number::Int4), Number::Int16) if channel => Ok(Form::Integer(WeightFormat::Int4)),
        _ => Err(Diagnostic::error(Code::UnsupportedFormat, "npuc does not write TFLite files of this precision")
            .need("FP, FP16, FP32, 16W16A, 8W16A or 4W16A")
            .have(&precision.name)
            .into()),
    }
}

/// The model's name in the names of files: that of its folder or file.
fn model_name(args: &BuildArgs) -> String {
    let path = std::path::absolute(&args.model).unwrap_or_else(|_| args.model.clone());
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
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
    if let Some(CalibrationRecord { source, sequences: _, tokens, sha256: _ }) = &report.calibration {
        line(&mut text, "calibration", format!("{tokens} tokens of {source}, ranges widened by {HEADROOM}"));
    }
    let compiler = match &report.compiled {
        Some(files) => format!("ncc-tflite made {}", files.join(", ")),
        None => {
            "ncc-tflite is not on the PATH: whether it takes these files is not known; `sh compile.sh` runs it".into()
        }
    };
    line(&mut text, "compiler", compiler);
    let Times { fit_ms, proof_ms, calibrate_ms, write_ms } = report.times;
    let [fit_ms, proof_ms, calibrate_ms, write_ms] = [fit_ms, proof_ms, calibrate_ms, write_ms].map(|time| time.0);
    let calibration =
        if report.calibration.is_none() { String::new() } else { format!(", calibration {calibrate_ms:.0} ms") };
    let times =
        format!("check and mends {fit_ms:.0} ms, proofs {proof_ms:.0} ms{calibration}, writing {write_ms:.0} ms");
    line(&mut text, "time", times);
    text
}
