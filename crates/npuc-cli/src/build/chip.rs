//! What builds for all chips share: what flags ask for, flags that have no use, mends, text for ranges, ranges.

use std::time::Instant;

use npuc::bundle::CalibrationRecord;
use npuc::diag::Severity;
use npuc::fit::Request;
use npuc::front::{Checkpoint, ModelConfig, non_finite};
use npuc::mend::{Mended, Proof, mend, prove};
use npuc::model::{Chunks, Part, StepShape};
use npuc::pass::Pass;
use npuc::quant::Ranges;
use npuc::quant::plan::Destination;
use npuc::quant::recipe::Recipe;
use npuc::target::{Mend, Precision, Question, Target};
use npuc::{Code, Diagnostic, Error, Result, fit};
use npuc_run::calibrate::calibrate;
use npuc_run::corpus::{Amount, Corpus};
use npuc_run::program::default_shapes_for;
use npuc_run::quantise::Quantised;
use serde::Serialize;

use super::{ms, open};
use crate::args::{Attention, BuildArgs, shapes, threads};
use crate::output::Output;
use crate::recipe::{Prepared, is_whisper, prepare, sound};

/// What of a file ranges are taken from, at most.
const RANGES_OF_FILE: Amount = Amount { samples: 32, tokens: 128 };
/// What the model writes by itself for ranges.
const RANGES_OF_MODEL: Amount = Amount { samples: 4, tokens: 128 };

#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct Milliseconds(pub(super) f64);

impl Milliseconds {
    /// The result of some work, whose time it keeps.
    pub(super) fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.0 = ms(start);
        result
    }
}

/// What the flags of a build ask for, whose weights follow a recipe.
pub(super) struct Asked {
    pub(super) request: Request,
    /// With its weights in the formats of the recipe.
    pub(super) checkpoint: Checkpoint,
    pub(super) prepared: Prepared,
    pub(super) quantised: Quantised,
}

/// What the flags ask for, with the weights quantised if `recipe` says so; `steps` has the last word about step shapes, and cuts the layers.
pub(super) fn asked(
    args: &BuildArgs,
    target: &Target,
    recipe: Recipe,
    output: Output,
    steps: impl FnOnce(&ModelConfig, Vec<StepShape>) -> Result<(Vec<StepShape>, Option<Chunks>)>,
) -> Result<Asked> {
    let given = shapes(args.shapes.as_ref())?;
    let activation = recipe.activation.number(target.float);
    let precision = Precision { name: recipe.name.clone(), activation, ..Precision::stored(target.float) };
    let question = Question::new(target, precision, &args.chip.flag)?;
    let checkpoint = open(args)?;
    let config = &checkpoint.config;
    let (shapes, chunks) = steps(config, given.unwrap_or_else(|| default_shapes_for(target, config)))?;
    let mends = match args.attention {
        Attention::Grouped => Vec::new(),
        Attention::SplitHead => vec![Mend::Pass(Pass::SplitAttention)],
    };
    let request = Request { chunks, mends, ..Request::new(target.clone(), question, shapes) };
    let request = args.chip.place.apply(request)?;
    let destination = Destination::Target(target.clone());
    let prepared = prepare(&checkpoint, recipe, &args.how, &destination, false, threads(None), output)?;
    let quantised = prepared.quantised(&checkpoint, &args.output, output)?;
    let checkpoint = quantised.checkpoint.clone();
    Ok(Asked { request, checkpoint, prepared, quantised })
}

/// The request as it fits, mended unless the user does not want that.
pub(super) fn fitted(args: &BuildArgs, checkpoint: &Checkpoint, asked: &Request) -> Result<Mended> {
    let weights = Some(&checkpoint.tensors);
    let mended = if args.chip.no_fix {
        let fit = fit::fit(&checkpoint.config, weights, asked)?;
        Mended { request: asked.clone(), applied: Vec::new(), fit }
    } else {
        mend(&checkpoint.config, weights, asked, args.chip.fix.into())?
    };
    if !mended.fit.bills.is_empty() && !mended.request.question.precision.activation.is_float() {
        return Err(cpu_between_integers(&mended.request));
    }
    let errors = mended.fit.misfits.iter().filter(|misfit| misfit.severity == Severity::Error);
    Error::check(errors.map(npuc::target::Misfit::diagnostic).collect())?;
    Ok(mended)
}

/// Proves the mends and checks the weights; gives the proofs, and everything that is odd, `notes` about formats among it.
pub(super) fn proved(
    checkpoint: &Checkpoint,
    mended: &Mended,
    notes: Vec<Diagnostic>,
    output: Output,
) -> Result<(Vec<Proof>, Vec<Diagnostic>)> {
    let Mended { request, applied, fit } = mended;
    let spinner = output.spinner("proving the mends and checking weights");
    let proofs = prove(&checkpoint.config, Some(&checkpoint.tensors), request, applied)?;
    let mut warnings = checkpoint.warnings.clone();
    warnings.extend(notes);
    warnings.extend(fit.misfits.iter().map(npuc::target::Misfit::diagnostic));
    warnings.extend(non_finite(checkpoint));
    drop(spinner);
    Ok((proofs, warnings))
}

/// Integer files cannot have operations between them yet; this is known before any work is done.
fn cpu_between_integers(request: &Request) -> Error {
    let rules: Vec<String> = request.placement.iter().map(|rule| format!("--place {rule}")).collect();
    Diagnostic::error(Code::Misfit, "npuc cannot put operations on the CPU between files in whole numbers yet")
        .subject(rules.join(" "))
        .need("all operations on the NPU, or a float precision")
        .have(format!("{} on {}", request.question.precision.name, request.target.name))
        .help("use --precision FP, or a chip that takes every operation")
        .into()
}

/// The text that ranges are taken from: that of the recipe, or as much as ranges need.
pub(super) fn calibration(args: &BuildArgs, checkpoint: &Checkpoint, prepared: Option<&Prepared>) -> Result<Corpus> {
    if let Some(corpus) = prepared.and_then(|prepared| prepared.corpus.clone()) {
        return Ok(corpus);
    }
    match &args.how.calibration {
        path if is_whisper(&checkpoint.config) => sound(checkpoint, path.as_deref(), threads(None)),
        Some(path) => Corpus::of_file(path, checkpoint, RANGES_OF_FILE),
        None => Corpus::of_model(checkpoint, RANGES_OF_MODEL, threads(None)),
    }
}

/// The ranges of every part, and what they were taken from.
pub(super) fn calibrated(
    checkpoint: &Checkpoint,
    request: &Request,
    parts: &[Part],
    text: Corpus,
    output: Output,
) -> Result<(Vec<Ranges>, Option<CalibrationRecord>)> {
    let spinner = output.spinner("calibrating");
    // The whole text, for which weights may have been rounded; ranges take as much of it as they need.
    let record = text.record();
    let text = text.first_tokens(RANGES_OF_FILE.samples * RANGES_OF_FILE.tokens);
    let ranges = calibrate(checkpoint, request, parts, text.material(), threads(None))?;
    drop(spinner);
    Ok((ranges, Some(record)))
}

/// Flags that would change nothing are a misunderstanding, not a wish.
pub(super) fn refuse_host_flags(args: &BuildArgs) -> Result<()> {
    let idle = [("--passes", args.passes.is_some()), ("--dump-after", args.dump_after.is_some())];
    let faults = idle.into_iter().filter(|(_, idle)| *idle).map(|(flag, _)| {
        let fault = Diagnostic::error(Code::BadArgument, format!("{flag} is for builds for this machine"));
        fault.help("the bundle holds every graph as IR text in graphs/")
    });
    Error::check(faults.collect())
}
