//! `npuc quantize`: a model's weights in fewer bits, as a GGUF file or a bundle for this machine.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

use npuc::back::BackEnd;
use npuc::back::gguf::Layout;
use npuc::bundle::CalibrationRecord;
use npuc::bundle::staging::{check_file, check_folder};
use npuc::front::{Checkpoint, GgufVocab, ModelConfig};
use npuc::quant::plan::Destination;
use npuc::quant::recipe::Recipe;
use npuc::{Code, Diagnostic, Result, target};
use npuc_run::quantise::{Loss, Quality, Quantised};
use npuc_run::text::gguf_vocab;
use serde::Serialize;

use crate::args::{QuantizeArgs, shapes, threads};
use crate::build::host;
use crate::output::{Output, bytes};
use crate::recipe::{Prepared, is_whisper, prepare};
use crate::session;

#[derive(Serialize)]
struct Report {
    output: String,
    recipe: String,
    quality: Quality,
    bits_per_weight: f64,
    /// Bytes of the written file or of a bundle's weights, told before they were written.
    forecast_bytes: u64,
    written_bytes: u64,
    /// The most memory that the work was said to need, apart from mapped files.
    need_bytes: u64,
    formats: BTreeMap<String, usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<CalibrationRecord>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    losses: Vec<Loss>,
    quantise_ms: f64,
    write_ms: f64,
    warnings: Vec<Diagnostic>,
}

/// Runs the command.
pub(crate) fn command(args: &QuantizeArgs, output: Output) -> Result<()> {
    let recipe = Recipe::find(&args.recipe)?;
    let mut checkpoint = session::checkpoint((&args.model, args.stack))?;
    if args.no_tokenizer {
        checkpoint.tokenizer = None;
    }
    if is_whisper(&checkpoint.config) && args.stack.is_none() {
        let fault =
            Diagnostic::error(Code::UnsupportedArchitecture, "Whisper's models are quantised where they are built");
        let help = format!("npuc build {} --recipe {} -o DIR", args.model.display(), args.recipe);
        return Err(fault.file(&args.model).help(help).into());
    }
    let is_gguf = args.output.extension().is_some_and(|ending| ending == "gguf");
    refuse_idle_flags(args, &checkpoint.config, is_gguf)?;
    if is_gguf { check_file(&args.output) } else { check_folder(&args.output) }?;
    let vocab = is_gguf.then(|| vocab(&checkpoint)).transpose()?.flatten();
    let destination = match &args.target {
        Some(name) => Destination::Target(target::find(name)?),
        None if is_gguf => Destination::Gguf,
        None => Destination::Target(target::host()),
    };
    refuse_chip_bundle(&destination, &args.output, is_gguf)?;
    let prepared = prepare(&checkpoint, recipe, &args.how, &destination, is_gguf, threads(args.threads), output)?;
    let mut report = report(args, &checkpoint, &prepared);
    if is_gguf {
        report.warnings.extend(Layout::warnings(&checkpoint));
    }
    output.warnings(&report.warnings);
    let start = Instant::now();
    let staged = match prepared.is_direct() && is_gguf {
        true => None,
        false => Some(prepared.quantised(&checkpoint, &args.output, output)?),
    };
    report.quantise_ms = start.elapsed().as_secs_f64() * 1e3;
    let start = Instant::now();
    match staged.as_ref().map(|staged| &staged.checkpoint) {
        Some(quantised) if !is_gguf => {
            let shapes = shapes(args.shapes.as_ref())?;
            let written = host::write_quantised(quantised, &prepared, shapes, &args.output, output)?;
            (report.forecast_bytes, report.written_bytes) = (prepared.plan.bytes(), written.weights_bytes);
        }
        quantised => {
            let none = BTreeMap::new();
            let tensors = quantised.map_or(&none, |quantised| &quantised.tensors);
            let layout = Layout::new(&checkpoint, &prepared.plan, tensors, vocab.as_ref())?;
            report.forecast_bytes = layout.total_bytes();
            write_gguf(&layout, &prepared, &args.output, output)?;
            report.written_bytes = size(&args.output)?;
        }
    }
    report.losses = staged.as_ref().map(|staged| staged.losses.clone()).unwrap_or_default();
    staged.map_or(Ok(()), Quantised::finish)?;
    report.write_ms = start.elapsed().as_secs_f64() * 1e3;
    output.result(&report, &render(&report))
}

/// Flags without an effect, and an output that would take the place of its own source.
fn refuse_idle_flags(args: &QuantizeArgs, config: &ModelConfig, is_gguf: bool) -> Result<()> {
    let fault = |message: &str| Diagnostic::error(Code::BadArgument, message);
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    if args.output.exists() && real(&args.output) == real(&args.model) {
        let fault = fault("the output is the model itself").file(&args.output);
        return Err(fault.help("name another file: the source stays as it is").into());
    }
    let given = shapes(args.shapes.as_ref())?;
    match given {
        Some(_) if is_gguf => {
            let fault = fault("--shapes does nothing for a GGUF file");
            Err(fault.help("name a folder with -o, or leave the flag out").into())
        }
        Some(shapes) => npuc::build::ordered(config, shapes).map(|_| ()),
        None => Ok(()),
    }
}

/// A bundle of this command is for this machine, which imitates the whole numbers of Qualcomm's chips and not MediaTek's.
fn refuse_chip_bundle(destination: &Destination, output: &Path, is_gguf: bool) -> Result<()> {
    match destination {
        Destination::Target(target) if target.back_end == Some(BackEnd::Tflite) && !is_gguf => {
            let fault = Diagnostic::error(Code::BadArgument, "npuc quantize writes no bundles for this chip");
            let help = format!("use npuc build --target {} --recipe …, or leave out --target", target.name);
            Err(fault.file(output).have(&target.name).help(help).into())
        }
        Destination::Target(_) | Destination::Gguf => Ok(()),
    }
}

/// What is known before the work.
fn report(args: &QuantizeArgs, checkpoint: &Checkpoint, prepared: &Prepared) -> Report {
    Report {
        output: args.output.display().to_string(),
        recipe: prepared.recipe.name.clone(),
        quality: prepared.quality,
        bits_per_weight: prepared.plan.bits_per_weight(),
        forecast_bytes: 0,
        written_bytes: 0,
        need_bytes: prepared.need_bytes,
        formats: prepared.formats(),
        calibration: prepared.calibration_record(),
        losses: Vec::new(),
        quantise_ms: 0.0,
        write_ms: 0.0,
        warnings: checkpoint.warnings.iter().chain(&prepared.plan.notes).cloned().collect(),
    }
}

/// The tokenizer as GGUF files say it, if the model has one.
fn vocab(checkpoint: &Checkpoint) -> Result<Option<GgufVocab>> {
    let vocab = checkpoint.tokenizer.as_ref().map(|source| gguf_vocab(source, checkpoint.config.vocab()));
    vocab.transpose().map_err(|e| e.in_file(&checkpoint.path))
}

/// Writes a GGUF file, with a bar.
fn write_gguf(layout: &Layout, prepared: &Prepared, path: &Path, output: Output) -> Result<()> {
    let bar = output.bytes_bar("writing");
    let pool = npuc_run::device::host::thread_pool(prepared.threads())?;
    pool.install(|| {
        layout.write(path, prepared.quality.search(), &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        })
    })?;
    bar.finish_and_clear();
    Ok(())
}

fn size(path: &Path) -> Result<u64> {
    let data = std::fs::metadata(path);
    let unreadable =
        |e: std::io::Error| Diagnostic::error(Code::Unreadable, format!("cannot read the file: {e}")).file(path);
    Ok(data.map_err(unreadable)?.len())
}

fn render(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<14}{value}");
    };
    let formats: Vec<String> = report.formats.iter().map(|(name, count)| format!("{count} {name}")).collect();
    line("recipe", format!("{}, {:.3} bits a weight: {}", report.recipe, report.bits_per_weight, formats.join(", ")));
    if let Some(CalibrationRecord { source, sequences, tokens, sha256 }) = &report.calibration {
        line(
            "calibration",
            format!("{tokens} tokens in {sequences} sequences of {source} (sha256 {}…)", &sha256[..12]),
        );
    }
    if !report.losses.is_empty() {
        let (nearest, chosen) = report.losses.iter().fold((0.0, 0.0), |sum, l| (sum.0 + l.nearest, sum.1 + l.chosen));
        let share = match nearest > 0.0 {
            true => format!(
                "{:.1} % of nearest rounding's, summed over the outputs of projections",
                100.0 * chosen / nearest
            ),
            false => "none: nearest rounding changes no output of a projection on this text".to_owned(),
        };
        line("error", share);
    }
    line("output", format!("{} ({})", report.output, bytes(report.written_bytes)));
    line("memory", format!("at most {} apart from mapped files", bytes(report.need_bytes)));
    line("time", format!("quantising {:.0} ms, writing {:.0} ms", report.quantise_ms, report.write_ms));
    text
}
