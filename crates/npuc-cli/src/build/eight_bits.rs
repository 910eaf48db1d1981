//! Whisper with activations in 8 bits: measured before anything is built, and refused where the text suffers.

use std::path::Path;

use npuc::back::BackEnd;
use npuc::front::Checkpoint;
use npuc::quant::recipe::{Activation, Recipe};
use npuc::target::{Number, Precision, Target};
use npuc::{Code, Diagnostic, Error, Result};
use npuc_run::fidelity::{Gate, SpeechFidelity, Texts, WholeNumbers, whisper_in_whole_numbers};
use npuc_run::integer::Arithmetic;
use npuc_run::sound::Sound;

use crate::args::{BuildArgs, threads};
use crate::output::{Output, count};
use crate::recipe::{RANGE_WINDOWS, method_of, quality, scheme};

/// What asks for 8 bits, and what to ask for instead.
struct Asked {
    recipe: Recipe,
    flag: String,
    instead: &'static str,
}

/// Refuses a form of Whisper in 8-bit activations whose figures on the calibration sound are below the default gate for whole
/// numbers. Nothing is measured where others are asked for, and nothing is written.
///
/// Errors: [`Code::Unfaithful`] with the figures; [`Code::BadArgument`] without sound to measure on.
pub(super) fn refuse_unfaithful(args: &BuildArgs, both: &Checkpoint, target: &Target, output: Output) -> Result<()> {
    let Some(asked) = asked(args, target)? else { return Ok(()) };
    let Some(path) = &args.how.calibration else { return Err(not_measured(args, &asked)) };
    let figures = measured(args, both, &asked.recipe, path, output)?;
    let gate = Gate::default_for(&figures.fidelity, true);
    if gate.check(&figures.fidelity).is_ok() {
        output.note(&format!("{} over {}: {}", asked.flag, path.display(), told(&figures)));
        return Ok(());
    }
    let message = "Whisper does not write in 8-bit activations what it writes in float";
    Err(Diagnostic::error(Code::Unfaithful, message)
        .file(&args.model)
        .subject(asked.flag)
        .need(format!("{gate} over {}", path.display()))
        .have(told(&figures))
        .help(asked.instead)
        .into())
}

/// What the flags ask for, where that is 8 bits.
///
/// Errors: recipes and precisions that npuc does not know.
fn asked(args: &BuildArgs, target: &Target) -> Result<Option<Asked>> {
    if let Some(name) = &args.recipe {
        let recipe = Recipe::find(name)?;
        let (flag, instead) = (format!("--recipe {name}"), "build with --recipe w8a16, whose activations have 16 bits");
        return Ok((recipe.activation == Activation::U8).then_some(Asked { recipe, flag, instead }));
    }
    let (Some(name), Some(BackEnd::Tflite)) = (&args.chip.precision, target.back_end) else { return Ok(None) };
    let precision = Precision::parse(name, target.float)?;
    if precision.activation != Number::Int8 {
        return Ok(None);
    }
    // Weights of 16 bits are as good as those that are stored.
    let base = match precision.weight.map(|format| format.number) {
        Some(Number::Int8) => "w8a8",
        Some(Number::Int4) => "w4a16",
        Some(Number::Int16 | Number::F32 | Number::F16 | Number::Bf16 | Number::Block(_)) | None => "stored",
    };
    let recipe = Recipe::parse(&precision.name, &format!("base = \"{base}\"\nact = \"u8\""))?;
    let instead = "build with --precision 8W16A (or --recipe w8a16), whose activations have 16 bits";
    Ok(Some(Asked { recipe, flag: format!("--precision {name}"), instead }))
}

/// What to say where there is nothing to measure on.
fn not_measured(args: &BuildArgs, asked: &Asked) -> Error {
    let message = "Whisper is built in 8-bit activations only where it is measured to write what it writes in float";
    let fault = Diagnostic::error(Code::BadArgument, message).file(&args.model).subject(&asked.flag);
    fault
        .need("--calibration speech.wav: with it the figures are told, and nothing is built that is not faithful")
        .have("no sound")
        .help(asked.instead)
        .into()
}

/// The figures of the whole numbers against float, over the sound that their ranges are taken from.
fn measured(
    args: &BuildArgs,
    both: &Checkpoint,
    recipe: &Recipe,
    path: &Path,
    output: Output,
) -> Result<SpeechFidelity> {
    let (quality, method) = (quality(both, &args.how)?, method_of(&args.how)?);
    let fault = || Diagnostic::error(Code::BadRecipe, "the recipe's activations are floats").subject(&recipe.name);
    let arithmetic = Arithmetic::Qualcomm(scheme(recipe, method).ok_or_else(fault)?);
    let spinner = output.spinner("measuring 8-bit activations");
    let sound = Sound::of_file(path, both, RANGE_WINDOWS, threads(None))?;
    let work = tempfile::tempdir().map_err(|e| {
        Diagnostic::error(Code::Unwritable, format!("cannot make a folder for rounded weights: {e}"))
            .help("set TMPDIR to a folder with free space")
    })?;
    let form = WholeNumbers { recipe, arithmetic, quality };
    let figures = whisper_in_whole_numbers(both, &form, &sound, work.path(), threads(None));
    drop(spinner);
    figures
}

/// The figures in one line.
fn told(figures: &SpeechFidelity) -> String {
    let fidelity = &figures.fidelity;
    let of = |name: &str, figure: Option<String>| figure.map(|figure| format!("{name} {figure}"));
    let heard = figures.heard.as_ref().map(|heard| format!("{:.4} at {}", heard.cosine_min, heard.cosine_min_port));
    let least = fidelity.cosine_min.map(|least| format!("{least:.4}"));
    let top1 = fidelity.top1.map(|share| format!("{:.1} %", 100.0 * share));
    let figures = [of("cosine", least), of("top-1", top1), of("cosine of what is heard", heard), words(figures)];
    figures.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The word errors, with the beginnings of both texts.
fn words(figures: &SpeechFidelity) -> Option<String> {
    let Texts { model, reference, words, word_error_rate } = figures.texts.as_ref()?;
    let begun = |text: &str| {
        let begun: String = text.chars().take(40).collect();
        if begun.len() < text.len() { format!("\"{begun}…\"") } else { format!("\"{begun}\"") }
    };
    let rate = 100.0 * (*word_error_rate)?;
    let of = count(*words, "word");
    Some(format!("word errors {rate:.1} % of {of} ({} instead of {})", begun(model), begun(reference)))
}
