//! Building for Qualcomm's chips: mended graphs as descriptions, and context binaries that the vendor's libraries make of them.

use std::fmt::Write;
use std::path::PathBuf;

use npuc::back::BackEnd;
use npuc::back::qnn::{Activations, Exported, export, forecast_bytes};
use npuc::bundle::write::{Contents, Made, Written};
use npuc::bundle::{CalibrationRecord, ContextRecord};
use npuc::front::Checkpoint;
use npuc::mend::{Applied, Mended, Proof};
use npuc::model::{Chunks, StepShape};
use npuc::quant::Scheme;
use npuc::quant::recipe::{Activation, Recipe};
use npuc::target::Target;
use npuc::{Code, Diagnostic, Error, Result};
use npuc_run::calibrate::HEADROOM;
use npuc_run::contexts;
use npuc_run::integer::Arithmetic;
use npuc_run::program::chip_contents;
use serde::Serialize;

use super::chip::{Asked, Milliseconds, asked, calibrated, calibration, fitted, proved, refuse_host_flags};
use super::write_and_make;
use crate::args::BuildArgs;
use crate::mended;
use crate::output::{Output, bytes};
use crate::recipe::Prepared;
use crate::session::start_qnn;

#[derive(Serialize)]
struct Report {
    bundle: String,
    target: String,
    precision: String,
    shapes: Vec<String>,
    mended: Vec<Applied>,
    proofs: Vec<Proof>,
    contexts: Vec<ContextReport>,
    #[serde(flatten)]
    written: Written,
    /// What ranges were taken from.
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<CalibrationRecord>,
    #[serde(flatten)]
    times: Times,
    /// The most memory of the process with the vendor's libraries, where the system tells.
    worker_peak_bytes: Option<u64>,
    /// The most memory of npuc itself, mapped files included, where the system tells.
    peak_rss_bytes: Option<u64>,
    warnings: Vec<Diagnostic>,
}

#[derive(Serialize)]
struct ContextReport {
    #[serde(flatten)]
    record: ContextRecord,
    layers: usize,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    operations: Vec<usize>,
    prepare_ms: Vec<u64>,
}

/// How long the steps of a build took.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Times {
    quantise_ms: Milliseconds,
    fit_ms: Milliseconds,
    proof_ms: Milliseconds,
    calibrate_ms: Milliseconds,
    write_ms: Milliseconds,
}

/// Builds a checkpoint for one of Qualcomm's chips.
pub(super) fn build(args: &BuildArgs, target: &Target, output: Output) -> Result<()> {
    refuse_host_flags(args)?;
    refuse_other_flags(args)?;
    super::refuse_idle_recipe_flags(args)?;
    let soc = contexts::soc_model(target)?;
    let recipe = recipe(args, target)?;
    // A missing or too old library is told before any work.
    drop(start_qnn(None)?);
    let mut times = Times::default();
    let asked = times
        .quantise_ms
        .measure(|| asked(args, target, recipe, output, |_, shapes| Ok((shapes, contexts_of(args)?))))?;
    let Asked { request: asked, checkpoint, prepared, quantised } = asked;
    let text = super::text(&checkpoint, output)?;

    let mended = times.fit_ms.measure(|| fitted(args, &checkpoint, &asked))?;
    let notes = prepared.plan.notes.clone();
    let (proofs, warnings) = times.proof_ms.measure(|| proved(&checkpoint, &mended, notes, output))?;
    let Mended { request, applied, fit } = mended;

    let scheme = scheme(&prepared);
    let (ranges, calibration) = times.calibrate_ms.measure(|| match scheme {
        None => Ok((Vec::new(), None)),
        Some(_) => {
            let text = calibration(args, &checkpoint, Some(&prepared))?;
            calibrated(&checkpoint, &request, &fit.parts, text, output)
        }
    })?;
    let activations = scheme.map_or(Activations::Half, |scheme| Activations::Whole(scheme, &ranges));
    let exported = export(&checkpoint, &request, &fit.parts, activations)?;
    let forecast = forecast_bytes(&exported.graphs, &checkpoint.tensors);
    let Exported { graphs, weights } = exported;
    let contents = Contents {
        recipe: Some(prepared.recipe_record()),
        calibration: calibration.clone(),
        ..chip_contents(&request, BackEnd::Qnn, graphs, weights, text)
    };
    let (written, made) = times.write_ms.measure(|| write(args, &checkpoint, contents, soc, &forecast, output))?;
    quantised.finish()?;
    let worker_peak_bytes = made.iter().filter_map(|made| made.context.peak_bytes).max();
    let layers = fit.parts.iter().map(|part| part.layers.len()).cycle();
    let report = Report {
        bundle: args.output.display().to_string(),
        target: target.name.clone(),
        precision: request.question.precision.name.clone(),
        shapes: request.shapes.iter().map(StepShape::to_string).collect(),
        mended: applied,
        proofs,
        contexts: made.into_iter().zip(layers).map(|(made, layers)| context_report(made, layers)).collect(),
        written,
        calibration,
        times,
        worker_peak_bytes,
        peak_rss_bytes: npuc_run::memory::peak_rss_bytes(),
        warnings,
    };
    output.warnings(&report.warnings);
    output.result(&report, &render(&report))
}

/// Writes the bundle with its contexts, under a bar and then a note of what the libraries do.
fn write(
    args: &BuildArgs,
    checkpoint: &Checkpoint,
    contents: Contents<'_>,
    soc: u32,
    forecast_bytes: &[u64],
    output: Output,
) -> Result<(Written, Vec<contexts::Made>)> {
    let mut made = Vec::new();
    let written = write_and_make(&args.output, checkpoint, contents, output, |folder, manifest| {
        let spinner = output.spinner("preparing contexts");
        let mut say = |text: &str| spinner.set_message(text.to_owned());
        let mut start = || start_qnn(Some(&log_path(args)));
        let making = contexts::Making { soc, forecast_bytes, twins: args.twins, start: &mut start, say: &mut say };
        made = contexts::make(folder, manifest, making)?;
        Ok(Made { contexts: made.iter().map(|made| made.record.clone()).collect(), ..Made::default() })
    })?;
    Ok((written, made))
}

/// Where what the libraries say is kept: beside the bundle, which does not exist yet.
fn log_path(args: &BuildArgs) -> PathBuf {
    let mut name = args.output.file_name().unwrap_or_default().to_owned();
    name.push(".qnn.log");
    args.output.with_file_name(name)
}

/// The recipe of the flags. What is stored in no format that the chip takes gets the nearest one, and a note.
///
/// Errors: recipes that npuc does not know; activations that were never held against the chip's libraries.
fn recipe(args: &BuildArgs, target: &Target) -> Result<Recipe> {
    let recipe = Recipe::find(args.recipe.as_deref().unwrap_or("stored"))?;
    if recipe.activation == Activation::U8 {
        let message = "npuc does not describe graphs of these activations for Qualcomm's libraries";
        let fault = Diagnostic::error(Code::UnsupportedFormat, message).subject(&target.name);
        return Err(fault.need("act = \"u16\", \"s16\" or \"f16\"").have(recipe.activation.name()).into());
    }
    Ok(recipe)
}

/// How many contexts, and with which layers; `auto` is the fewest that the limits allow.
fn contexts_of(args: &BuildArgs) -> Result<Option<Chunks>> {
    match args.contexts.as_deref() {
        None | Some("auto") => Ok(None),
        Some(text) => text.parse().map(Some),
    }
}

/// The whole numbers of a recipe; `None` for half precision.
fn scheme(prepared: &Prepared) -> Option<Scheme> {
    match prepared.arithmetic()? {
        Arithmetic::Qualcomm(scheme) | Arithmetic::QualcommSplit(scheme) => Some(scheme),
        Arithmetic::Tflite(_) => None,
    }
}

/// Flags of other chips are a misunderstanding, not a wish.
fn refuse_other_flags(args: &BuildArgs) -> Result<()> {
    let chip = &args.chip;
    let other = [
        ("--precision", chip.precision.is_some(), "use --recipe, e.g. w4a16-lpbq-g32, f16-bw4-g32, w8a16 or f16"),
        ("--chunks", chip.chunks.is_some(), "use --contexts"),
        ("--outer-buffers", chip.outer_buffers, "leave the flag out"),
        (
            "--calibration",
            args.how.calibration.is_some() && args.recipe.is_none(),
            "add a recipe, or leave the flag out: half precision needs no calibration",
        ),
    ];
    let faults = other.into_iter().filter(|(_, given, _)| *given).map(|(flag, _, help)| {
        Diagnostic::error(Code::BadArgument, format!("{flag} is not for Qualcomm's chips")).help(help)
    });
    Error::check(faults.collect())
}

fn context_report(made: contexts::Made, layers: usize) -> ContextReport {
    let graphs = &made.context.graphs;
    ContextReport {
        layers,
        inputs: graphs.iter().map(|graph| graph.inputs.len()).collect(),
        outputs: graphs.iter().map(|graph| graph.outputs.len()).collect(),
        operations: graphs.iter().map(|graph| graph.nodes).collect(),
        prepare_ms: graphs.iter().map(|graph| graph.compose_ms + graph.finalize_ms).collect(),
        record: made.record,
    }
}

fn render(report: &Report) -> String {
    let mut text = mended::render(&report.mended, &report.proofs);
    let line = |text: &mut String, name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<14}{value}");
    };
    line(&mut text, "target", format!("{}, {} at {}", report.target, report.precision, report.shapes.join(", ")));
    for context in &report.contexts {
        let record = &context.record;
        let share = |forecast: u64| 100.0 * (record.bytes as f64 / forecast.max(1) as f64 - 1.0);
        let share = record.forecast_bytes.map_or(String::new(), |of| format!(", {:+.1} % of the forecast", share(of)));
        let size = format!("{} ({} bytes{share})", bytes(record.bytes), record.bytes);
        line(&mut text, "context", format!("{}, {} layers: {size}", record.file, context.layers));
        for (place, graph) in record.graphs.iter().enumerate() {
            let (inputs, outputs) = (context.inputs[place], context.outputs[place]);
            let (nodes, ms) = (context.operations[place], context.prepare_ms[place]);
            let ports = format!("{inputs} inputs, {outputs} outputs, {nodes} operations");
            line(&mut text, "", format!("{graph}: {ports}, prepared in {:.1} s", ms as f64 / 1e3));
        }
    }
    if let Some(context) = report.contexts.first() {
        let ContextRecord { build_id, core_api, backend_api, .. } = &context.record;
        line(&mut text, "libraries", format!("{build_id}, interface {core_api}, HTP {backend_api}"));
    }
    let Written { bundle_bytes, files, .. } = report.written;
    line(&mut text, "bundle", format!("{} ({} in {files} files)", report.bundle, bytes(bundle_bytes)));
    if let Some(CalibrationRecord { source, sequences: _, tokens, sha256: _ }) = &report.calibration {
        line(&mut text, "calibration", format!("{tokens} tokens of {source}, ranges widened by {HEADROOM}"));
    }
    let Times { quantise_ms, fit_ms, proof_ms, calibrate_ms, write_ms } = report.times;
    let seconds = |time: Milliseconds| time.0 / 1e3;
    line(
        &mut text,
        "time",
        format!(
            "weights {:.1} s, check and mends {:.1} s, proofs {:.1} s, calibration {:.1} s, writing and contexts {:.1} s",
            seconds(quantise_ms),
            seconds(fit_ms),
            seconds(proof_ms),
            seconds(calibrate_ms),
            seconds(write_ms)
        ),
    );
    let told = [(report.worker_peak_bytes, "in the process with the libraries"), (report.peak_rss_bytes, "here")];
    let told: Vec<String> =
        told.iter().filter_map(|(peak, place)| Some(format!("{} {place}", bytes((*peak)?)))).collect();
    if !told.is_empty() {
        line(&mut text, "memory", format!("at most {}, mapped files included", told.join(", ")));
    }
    text
}
