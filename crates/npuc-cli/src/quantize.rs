//! `npuc quantize`: a model's weights in fewer bits, as a GGUF file or a bundle for this machine.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use indicatif::ProgressBar;
use npuc::back::gguf::Layout;
use npuc::front::{self, Checkpoint, ModelConfig};
use npuc::place::parse_bytes;
use npuc::quant::fold::{Folds, Site};
use npuc::quant::hadamard::Rotation;
use npuc::quant::plan::{Destination, Plan};
use npuc::quant::recipe::Recipe;
use npuc::{Code, Diagnostic, Result, Tensor, target};
use npuc_run::corpus::{Amount, Corpus};
use npuc_run::quantise::{Job, Loss, Quality, Quantised, need_bytes, quantise, refuse_more_than};
use npuc_run::text::gguf_vocab;
use serde::Serialize;

use crate::args::{QualityArg, QuantizeArgs, RecipeArgs, shapes, threads};
use crate::build::host;
use crate::output::{Output, bytes};

#[derive(Serialize)]
struct Report {
    output: String,
    recipe: String,
    quality: Quality,
    bits_per_weight: f64,
    /// Bytes of the written file, told before it was written; they are equal, or the command fails.
    forecast_bytes: u64,
    written_bytes: u64,
    /// The most memory that the work was said to need, apart from mapped files.
    need_bytes: u64,
    formats: BTreeMap<String, usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<Calibration>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    losses: Vec<Loss>,
    quantise_ms: f64,
    write_ms: f64,
    warnings: Vec<Diagnostic>,
}

/// What a quantisation was calibrated with.
#[derive(Clone, Debug, Serialize)]
struct Calibration {
    source: String,
    sequences: usize,
    tokens: usize,
    sha256: String,
}

/// Runs the command.
pub(crate) fn command(args: &QuantizeArgs, output: Output) -> Result<()> {
    let recipe = Recipe::find(&args.recipe)?;
    let mut checkpoint = front::open(&args.model)?;
    if args.no_tokenizer {
        checkpoint.tokenizer = None;
    }
    let is_gguf = args.output.extension().is_some_and(|ending| ending == "gguf");
    let folds = folds(&checkpoint, &args.how);
    let plan = plan(&checkpoint, &folds, &recipe, args, is_gguf)?;
    let threads = threads(args.threads);
    let (quality, corpus) = text(&checkpoint, &args.how, threads, output)?;
    let need = need_bytes(&plan, quality, corpus.as_ref(), threads);
    args.how.max_rss.as_deref().map_or(Ok(()), |limit| refuse_more_than(parse_bytes(limit)?, need))?;

    let mut report = Report {
        output: args.output.display().to_string(),
        recipe: recipe.name.clone(),
        quality,
        bits_per_weight: plan.bits_per_weight(),
        forecast_bytes: 0,
        written_bytes: 0,
        need_bytes: need,
        formats: formats(&plan),
        calibration: corpus.as_ref().map(Calibration::of),
        losses: Vec::new(),
        quantise_ms: 0.0,
        write_ms: 0.0,
        warnings: checkpoint.warnings.iter().chain(&plan.notes).cloned().collect(),
    };
    output.warnings(&report.warnings);
    let start = Instant::now();
    // Nearest rounding into a GGUF file needs no stages: weights go from file to file.
    let direct = quality != Quality::Best && is_gguf && !args.how.rotate;
    let job = Job { plan: &plan, folds: &folds, scale: args.how.scale, quality, corpus: corpus.as_ref(), threads };
    let staged = (!direct).then(|| staged(&checkpoint, &job, &args.output, output)).transpose()?;
    report.quantise_ms = start.elapsed().as_secs_f64() * 1e3;
    let start = Instant::now();
    let quantised = staged.as_ref().map(|staged| &staged.checkpoint);
    match (is_gguf, quantised) {
        (false, Some(quantised)) => {
            let written =
                host::write_quantised(quantised, &recipe, shapes(args.shapes.as_ref())?, &args.output, output)?;
            (report.forecast_bytes, report.written_bytes) = (plan.bytes(), written.weights_bytes);
        }
        (_, quantised) => {
            let none = BTreeMap::new();
            let tensors = quantised.map_or(&none, |quantised| &quantised.tensors);
            report.forecast_bytes = write_gguf(&checkpoint, &plan, tensors, quality, threads, args, output)?;
            report.written_bytes = size(&args.output)?;
        }
    }
    report.losses = staged.as_ref().map(|staged| staged.losses.clone()).unwrap_or_default();
    staged.map_or(Ok(()), Quantised::finish)?;
    report.write_ms = start.elapsed().as_secs_f64() * 1e3;
    output.result(&report, &render(&report))
}

/// What is folded into the weights. Scales are found later; where they will be is marked by ones.
fn folds(checkpoint: &Checkpoint, how: &RecipeArgs) -> Folds {
    let ModelConfig::Llama(config) = &checkpoint.config;
    let mut folds = if how.rotate {
        let rotation = |len| Arc::new(Rotation::of(len, how.seed));
        Folds::rotated(&checkpoint.config, &rotation(config.hidden), &rotation(config.head_dim))
    } else {
        Folds::none(&checkpoint.config)
    };
    if how.scale {
        for site in Site::all(&checkpoint.config) {
            folds.scale(site, &vec![1.0; site.width(&checkpoint.config)]);
        }
    }
    folds
}

/// The format of every weight.
fn plan(checkpoint: &Checkpoint, folds: &Folds, recipe: &Recipe, args: &QuantizeArgs, is_gguf: bool) -> Result<Plan> {
    let destination = match &args.target {
        Some(name) => Destination::Target(target::find(name)?),
        None if is_gguf => Destination::Gguf,
        None => Destination::Target(target::host()),
    };
    Plan::new(checkpoint, folds, recipe, &destination, args.how.strict)
}

/// How weights are rounded, and the text for it.
fn text(
    checkpoint: &Checkpoint,
    how: &RecipeArgs,
    threads: usize,
    output: Output,
) -> Result<(Quality, Option<Corpus>)> {
    let quality = match (how.quality, &how.calibration) {
        (Some(QualityArg::Best), _) | (None, Some(_)) => Quality::Best,
        (Some(QualityArg::Search), None) | (None, None) => Quality::Search,
        (Some(QualityArg::Fast), None) => Quality::Fast,
        (Some(QualityArg::Fast | QualityArg::Search), Some(path)) => {
            let fault = Diagnostic::error(Code::BadArgument, "this quality takes no calibration text").file(path);
            return Err(fault.subject("--quality").help("use --quality best, or leave out --calibration").into());
        }
    };
    if how.scale && quality != Quality::Best {
        let fault = Diagnostic::error(Code::BadArgument, "scales follow from calibration text");
        return Err(fault.subject("--scale").help("add --quality best").into());
    }
    let amount = Amount { samples: how.samples, tokens: how.tokens };
    if amount.samples == 0 || amount.tokens < 2 {
        let fault = Diagnostic::error(Code::BadArgument, "there is nothing to calibrate with");
        return Err(fault.need("--samples of 1 at least and --tokens of 2 at least").into());
    }
    let corpus = match (quality, &how.calibration) {
        (Quality::Fast | Quality::Search, _) => None,
        (Quality::Best, Some(path)) => Some(Corpus::of_file(path, checkpoint, amount)?),
        (Quality::Best, None) => {
            let spinner = output.spinner("the model writes its calibration text");
            let corpus = Corpus::of_model(checkpoint, amount, threads)?;
            drop(spinner);
            Some(corpus)
        }
    };
    Ok((quality, corpus))
}

/// Quantises stage by stage, with a bar; what is done lies in a folder beside the output.
fn staged(checkpoint: &Checkpoint, job: &Job<'_>, path: &Path, output: Output) -> Result<Quantised> {
    let bar: ProgressBar = output.steps_bar("quantising");
    let quantised = quantise(checkpoint, job, &work_folder(path), &mut |progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
    })?;
    bar.finish_and_clear();
    Ok(quantised)
}

/// Where unfinished work is kept.
fn work_folder(output: &Path) -> PathBuf {
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    output.with_file_name(format!(".{name}.work-npuc"))
}

/// Writes a GGUF file and gives the size that was forecast.
fn write_gguf(
    checkpoint: &Checkpoint,
    plan: &Plan,
    quantised: &BTreeMap<String, Tensor>,
    quality: Quality,
    threads: usize,
    args: &QuantizeArgs,
    output: Output,
) -> Result<u64> {
    let vocab = checkpoint
        .tokenizer
        .as_ref()
        .map(|source| gguf_vocab(source, checkpoint.config.vocab()))
        .transpose()
        .map_err(|e| e.in_file(&checkpoint.path))?;
    let layout = Layout::new(checkpoint, plan, quantised, vocab.as_ref())?;
    let bar = output.bytes_bar("writing");
    let pool = npuc_run::device::host::thread_pool(threads)?;
    pool.install(|| {
        layout.write(&args.output, quality.search(), &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        })
    })?;
    bar.finish_and_clear();
    Ok(layout.total_bytes())
}

fn size(path: &Path) -> Result<u64> {
    let data = std::fs::metadata(path);
    let unreadable =
        |e: std::io::Error| Diagnostic::error(Code::Unreadable, format!("cannot read the file: {e}")).file(path);
    Ok(data.map_err(unreadable)?.len())
}

/// How many matrices have each format.
fn formats(plan: &Plan) -> BTreeMap<String, usize> {
    let mut formats = BTreeMap::new();
    for weight in plan.weights.iter().filter(|weight| weight.shape.len() > 1) {
        *formats.entry(weight.to.name().to_owned()).or_default() += 1;
    }
    formats
}

impl Calibration {
    fn of(corpus: &Corpus) -> Calibration {
        Calibration {
            source: corpus.source.clone(),
            sequences: corpus.sequences.len(),
            tokens: corpus.tokens(),
            sha256: corpus.sha256.clone(),
        }
    }
}

fn render(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<14}{value}");
    };
    let formats: Vec<String> = report.formats.iter().map(|(name, count)| format!("{count} {name}")).collect();
    line("recipe", format!("{}, {:.3} bits a weight: {}", report.recipe, report.bits_per_weight, formats.join(", ")));
    if let Some(Calibration { source, sequences, tokens, sha256 }) = &report.calibration {
        line(
            "calibration",
            format!("{tokens} tokens in {sequences} sequences of {source} (sha256 {}…)", &sha256[..12]),
        );
    }
    if !report.losses.is_empty() {
        let (nearest, chosen) = report.losses.iter().fold((0.0, 0.0), |sum, l| (sum.0 + l.nearest, sum.1 + l.chosen));
        line(
            "error",
            format!("{:.1} % of nearest rounding's, summed over the outputs of projections", 100.0 * chosen / nearest),
        );
    }
    line("output", format!("{} ({})", report.output, bytes(report.written_bytes)));
    line("memory", format!("at most {} apart from mapped files", bytes(report.need_bytes)));
    line("time", format!("quantising {:.0} ms, writing {:.0} ms", report.quantise_ms, report.write_ms));
    text
}
