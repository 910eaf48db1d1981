//! What `quantize` and `build --recipe` share: the flags become formats, text and rounded weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use npuc::back::gguf::check_formats;
use npuc::bundle::{CalibrationRecord, RecipeRecord};
use npuc::front::{Checkpoint, ModelConfig};
use npuc::place::parse_bytes;
use npuc::quant::fold::{Folds, Site};
use npuc::quant::hadamard::Rotation;
use npuc::quant::plan::{Destination, Plan};
use npuc::quant::recipe::{Activation, Kv, Recipe, Residual};
use npuc::quant::{self, Method, Scheme};
use npuc::{Code, Diagnostic, Result};
use npuc_run::corpus::{Amount, Corpus};
use npuc_run::integer::Arithmetic;
use npuc_run::quantise::{Job, Quality, Quantised, need_bytes, quantise, refuse_more_than};

use crate::args::{QualityArg, RecipeArgs};
use crate::output::Output;

/// The tokens that ranges of activations are taken from, at most.
const RANGE_TOKENS: usize = 4096;

/// A quantisation that was thought through and not begun.
pub(crate) struct Prepared {
    pub(crate) recipe: Recipe,
    pub(crate) plan: Plan,
    pub(crate) quality: Quality,
    pub(crate) corpus: Option<Corpus>,
    pub(crate) need_bytes: u64,
    folds: Folds,
    rotated: Option<u64>,
    scale: bool,
    method: Method,
    threads: usize,
}

/// Reads the flags, decides every format and gets the text.
///
/// Errors: recipes that the destination cannot have, flags that contradict each other, text that is none, more memory than
/// there may be.
pub(crate) fn prepare(
    checkpoint: &Checkpoint,
    recipe: Recipe,
    how: &RecipeArgs,
    destination: &Destination,
    is_gguf: bool,
    threads: usize,
    output: Output,
) -> Result<Prepared> {
    let folds = folds(checkpoint, how)?;
    let plan = Plan::new(checkpoint, &folds, &recipe, destination, how.strict)?;
    if is_gguf {
        check_formats(&plan)?;
    }
    let quality = quality(checkpoint, how)?;
    let method = method_of(how)?;
    let needs_ranges = recipe.activation.is_whole();
    if how.ranges.is_some() && !needs_ranges {
        let fault = Diagnostic::error(Code::BadArgument, "--ranges does nothing where activations are floats");
        return Err(fault
            .have(recipe.activation.name())
            .help("take a recipe with act = \"u16\", \"s16\" or \"u8\"")
            .into());
    }
    if let (Some(path), false) = (&how.calibration, quality == Quality::Best || needs_ranges) {
        let fault =
            Diagnostic::error(Code::BadArgument, "--calibration does nothing for this quality and float activations");
        return Err(fault.file(path).help("use --quality best, or leave the flag out").into());
    }
    let corpus = match quality == Quality::Best || needs_ranges {
        true => Some(corpus(checkpoint, how, threads, output)?),
        false => None,
    };
    let need_bytes = need_bytes(&plan, &folds, quality, corpus.as_ref(), threads);
    how.max_rss.as_deref().map_or(Ok(()), |limit| refuse_more_than(parse_bytes(limit)?, need_bytes))?;
    let (rotated, scale) = (how.rotate.then_some(how.seed), how.scale);
    Ok(Prepared { recipe, plan, quality, corpus, need_bytes, folds, rotated, scale, method, threads })
}

impl Prepared {
    /// Whether weights can go from file to file: nearest rounding of what is stored.
    pub(crate) fn is_direct(&self) -> bool {
        self.quality != Quality::Best && self.rotated.is_none()
    }

    /// Rounds the weights stage by stage, with a bar; what is done lies in a folder beside `path`.
    ///
    /// Errors: those of [`quantise`].
    pub(crate) fn quantised(&self, checkpoint: &Checkpoint, path: &Path, output: Output) -> Result<Quantised> {
        let corpus = self.corpus.as_ref();
        let Prepared { plan, folds, scale, quality, threads, .. } = self;
        let job = Job { plan, folds, scale: *scale, quality: *quality, corpus, threads: *threads };
        let bar = output.steps_bar("quantising");
        let quantised = quantise(checkpoint, &job, &work_folder(path), &mut |progress| {
            bar.set_length(progress.total as u64);
            bar.set_position(progress.done as u64);
        })?;
        bar.finish_and_clear();
        Ok(quantised)
    }

    /// How activations are computed on a chip whose whole numbers the host imitates; `None` for floats.
    pub(crate) fn arithmetic(&self) -> Option<Arithmetic> {
        scheme(&self.recipe, self.method).map(Arithmetic::Qualcomm)
    }

    /// What ranges are taken from.
    pub(crate) fn range_corpus(&self) -> Option<Corpus> {
        self.corpus.clone().map(|corpus| corpus.first_tokens(RANGE_TOKENS))
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// What the manifest says of the recipe.
    pub(crate) fn recipe_record(&self) -> RecipeRecord {
        let (name, toml) = (self.recipe.name.clone(), self.recipe.to_toml());
        let quality = self.quality.name().to_owned();
        RecipeRecord { name, toml, quality, rotated: self.rotated, scaled: self.scale }
    }

    /// What the manifest says of the text.
    pub(crate) fn calibration_record(&self) -> Option<CalibrationRecord> {
        self.corpus.as_ref().map(Corpus::record)
    }

    /// How many matrices have each format.
    pub(crate) fn formats(&self) -> BTreeMap<String, usize> {
        let mut formats = BTreeMap::new();
        for weight in self.plan.weights.iter().filter(|weight| weight.role.is_matrix()) {
            *formats.entry(weight.to.name().to_owned()).or_default() += 1;
        }
        formats
    }
}

/// The whole numbers of a recipe's activations; `None` for floats.
pub(crate) fn scheme(recipe: &Recipe, method: Method) -> Option<Scheme> {
    let activation = match recipe.activation {
        Activation::Float | Activation::F32 | Activation::F16 => return None,
        Activation::Int16 | Activation::U16 => quant::Activation::U16,
        Activation::S16 => quant::Activation::S16,
        Activation::U8 => quant::Activation::U8,
    };
    let cache = match (recipe.kv, recipe.activation) {
        (Kv::Same, Activation::U8) | (Kv::U8, _) => quant::Cache::U8,
        (Kv::Same | Kv::U16, _) => quant::Cache::U16,
        (Kv::F16, _) => quant::Cache::F16,
    };
    Some(Scheme { activation, cache, method, float_residual: recipe.residual == Residual::F16 })
}

/// What is folded into the weights. Scales are found later; where they will be is marked by ones.
///
/// Errors: a model whose weights npuc does not fold into.
fn folds(checkpoint: &Checkpoint, how: &RecipeArgs) -> Result<Folds> {
    for (asked, flag) in [(how.rotate, "--rotate"), (how.scale, "--scale")] {
        if asked {
            checkpoint.config.llama_only(&format!("folding into weights ({flag})"), &format!("leave out {flag}"))?;
        }
    }
    let config = &checkpoint.config;
    let mut folds = if how.rotate {
        let rotation = |len| Arc::new(Rotation::of(len, how.seed));
        Folds::rotated(&checkpoint.config, &rotation(config.hidden()), &rotation(config.head_dim()))
    } else {
        Folds::none(&checkpoint.config)
    };
    if how.scale {
        for site in Site::all(&checkpoint.config) {
            folds.scale(site, &vec![1.0; site.width(&checkpoint.config)]);
        }
    }
    Ok(folds)
}

/// How weights are rounded.
pub(crate) fn quality(checkpoint: &Checkpoint, how: &RecipeArgs) -> Result<Quality> {
    let hears = is_whisper(&checkpoint.config);
    let quality = match (how.quality, &how.calibration) {
        (Some(QualityArg::Best), _) if hears => {
            let fault = Diagnostic::error(Code::UnsupportedArchitecture, "GPTQ is not done for Whisper's models");
            return Err(fault.subject("--quality").have("best").help("use --quality search").into());
        }
        (None, Some(_)) if hears => Quality::Search,
        (Some(QualityArg::Best), _) | (None, Some(_)) => Quality::Best,
        (Some(QualityArg::Search), _) | (None, None) => Quality::Search,
        (Some(QualityArg::Fast), _) => Quality::Fast,
    };
    if how.scale && quality != Quality::Best {
        let fault = Diagnostic::error(Code::BadArgument, "scales follow from calibration text");
        return Err(fault.subject("--scale").help("add --quality best").into());
    }
    Ok(quality)
}

/// The text of the flags, or the model's own.
fn corpus(checkpoint: &Checkpoint, how: &RecipeArgs, threads: usize, output: Output) -> Result<Corpus> {
    let amount = Amount { samples: how.samples, tokens: how.tokens };
    if amount.samples == 0 || amount.tokens < 2 {
        let fault = Diagnostic::error(Code::BadArgument, "there is nothing to calibrate with");
        return Err(fault.need("--samples of 1 at least and --tokens of 2 at least").into());
    }
    match &how.calibration {
        path if is_whisper(&checkpoint.config) => sound(checkpoint, path.as_deref(), threads),
        Some(path) => Corpus::of_file(path, checkpoint, amount),
        None => {
            let spinner = output.spinner("the model writes its calibration text");
            let corpus = Corpus::of_model(checkpoint, amount, threads);
            drop(spinner);
            corpus
        }
    }
}

/// Windows of sound that ranges are taken from, at most.
pub(crate) const RANGE_WINDOWS: usize = 8;

/// Whether the model hears instead of reading.
pub(crate) fn is_whisper(config: &ModelConfig) -> bool {
    match config {
        ModelConfig::Whisper(_) => true,
        ModelConfig::Llama(_) | ModelConfig::Lfm2(_) => false,
    }
}

/// The sound of the flags: a model that hears cannot make its own.
pub(crate) fn sound(checkpoint: &Checkpoint, path: Option<&Path>, threads: usize) -> Result<Corpus> {
    let path = path.ok_or_else(|| {
        Diagnostic::error(Code::BadArgument, "ranges of activations are taken from speech, and there is none")
            .subject("--calibration")
            .need("a WAV file in which somebody speaks, half a minute or more")
            .help("add --calibration speech.wav, or take a recipe with activations in float")
    })?;
    Corpus::of_sound(path, checkpoint, RANGE_WINDOWS, threads)
}

/// How ranges are chosen.
///
/// Errors: a method that npuc does not know.
pub(crate) fn method_of(how: &RecipeArgs) -> Result<Method> {
    how.ranges.as_deref().map_or(Ok(Method::MinMax), method)
}

/// How ranges are chosen, from a flag.
fn method(text: &str) -> Result<Method> {
    let share = text.strip_prefix("percentile=").and_then(|share| share.parse::<f64>().ok());
    match (text, share) {
        ("minmax", _) => Ok(Method::MinMax),
        ("mse", _) => Ok(Method::Mse),
        (_, Some(share)) if share > 0.0 && share <= 1.0 => Ok(Method::Percentile(share)),
        (_, _) => Err(Diagnostic::error(Code::BadArgument, "npuc does not know this choice of ranges")
            .subject("--ranges")
            .need("minmax, mse or percentile=P with P above 0 and at most 1")
            .have(text)
            .into()),
    }
}

/// Where unfinished work is kept.
fn work_folder(output: &Path) -> PathBuf {
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    output.with_file_name(format!(".{name}.work-npuc"))
}
