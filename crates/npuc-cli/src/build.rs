//! `npuc build`: a checkpoint becomes a bundle.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Instant;

use npuc::back::BackEnd;
use npuc::back::stablehlo::Dialect;
use npuc::bundle::write::{Contents, Made, Written, write_prepared};
use npuc::bundle::{Manifest, is_bundle};
use npuc::front::config::Stack;
use npuc::front::{self, Checkpoint};
use npuc::quant::plan::{Destination, activation};
use npuc::quant::recipe::Recipe;
use npuc::target::Target;
use npuc::{Diagnostic, Result, target};
use npuc_run::speech;
use npuc_run::text::{BundleText, bundle_text};

use crate::args::{BuildArgs, RecipeArgs, WeightsArg, shapes};
use crate::output::Output;
use crate::recipe::is_whisper;
use crate::session;

mod chip;
mod eight_bits;
pub(crate) mod host;
mod modules;
mod qnn;
mod tflite;
pub(crate) mod tune;

/// Runs the command.
pub(crate) fn command(args: &BuildArgs, output: Output) -> Result<()> {
    let target = target::find(&args.target)?;
    let back_end = target.back_end()?;
    refuse_module_flags(args, back_end)?;
    let both = (!is_bundle(&args.model)).then(|| front::open(&args.model)).transpose()?;
    match both.filter(|checkpoint| is_whisper(&checkpoint.config)) {
        Some(both) => {
            eight_bits::refuse_unfaithful(args, &both, &target, output)?;
            pair(args)?.iter().try_for_each(|args| build(args, &target, back_end, output))
        }
        None => build(args, &target, back_end, output),
    }
}

fn build(args: &BuildArgs, target: &Target, back_end: BackEnd, output: Output) -> Result<()> {
    if let Some(recipe) = &args.recipe {
        // Told before any tool is looked for.
        activation(&Recipe::find(recipe)?, &Destination::Target(target.clone()))?;
    }
    match back_end {
        BackEnd::Host => host::build(args, target, output),
        BackEnd::Qnn => qnn::build(args, target, output),
        BackEnd::Iree => modules::build(args, target, Dialect::Iree, output),
        BackEnd::Torq => modules::build(args, target, Dialect::Torq, output),
        BackEnd::Tflite => tflite::build(args, target, output),
    }
}

/// Whisper is built as two bundles in one folder; the step shapes of the flags are the decoder's.
///
/// Errors: a folder with something else in it.
fn pair(args: &BuildArgs) -> Result<[BuildArgs; 2]> {
    if let Some(given) = shapes(args.shapes.as_ref())? {
        // Before anything is written: a decoder that is refused would leave the encoder of this build beside an older one.
        let decoder = session::checkpoint((&args.model, Some(Stack::Decoder)))?.config;
        given.iter().try_for_each(|shape| shape.check(decoder.max_positions()))?;
        npuc::build::ordered(&decoder, given)?;
    }
    let folders = [speech::ENCODER, speech::DECODER];
    let other = |name: &OsStr| folders.iter().all(|folder| !name.to_string_lossy().contains(folder));
    if let Ok(entries) = std::fs::read_dir(&args.output)
        && let Some(entry) = entries.flatten().find(|entry| other(&entry.file_name()))
    {
        let fault =
            Diagnostic::error(npuc::Code::Unwritable, "the folder holds something else than Whisper's two bundles");
        return Err(fault.file(entry.path()).help("name a new folder").into());
    }
    std::fs::create_dir_all(&args.output).map_err(|e| {
        Diagnostic::error(npuc::Code::Unwritable, format!("cannot make the folder: {e}")).file(&args.output)
    })?;
    let recipe = args.recipe.clone().or_else(|| usual_recipe(args));
    Ok([Stack::Encoder, Stack::Decoder].map(|stack| {
        let (folder, shapes) = match stack {
            Stack::Encoder => (speech::ENCODER, None),
            Stack::Decoder | Stack::Both => (speech::DECODER, args.shapes.clone()),
        };
        let (recipe, output) = (recipe.clone(), args.output.join(folder));
        BuildArgs { stack: Some(stack), recipe, output, shapes, ..args.clone() }
    }))
}

/// What Whisper becomes on a chip where there is speech to take ranges from and nothing else is asked for: weights in 8 bits and
/// activations in 16. With activations in 8 bits it writes nonsense.
fn usual_recipe(args: &BuildArgs) -> Option<String> {
    let is_chip = target::find(&args.target).is_ok_and(|target| match target.back_end {
        Some(BackEnd::Tflite | BackEnd::Qnn) => true,
        Some(BackEnd::Host | BackEnd::Iree | BackEnd::Torq) | None => false,
    });
    (is_chip && args.chip.precision.is_none() && args.how.calibration.is_some()).then(|| "w8a16".to_owned())
}

/// Flags for modules that another back end would ignore.
fn refuse_module_flags(args: &BuildArgs, back_end: BackEnd) -> Result<()> {
    let (modules, torq) = match back_end {
        BackEnd::Host | BackEnd::Tflite | BackEnd::Qnn => (false, false),
        BackEnd::Iree => (true, false),
        BackEnd::Torq => (true, true),
    };
    let idle = [
        ("--parameters", args.parameters.is_some() && !modules),
        ("--weights", args.weights != WeightsArg::Left && (!modules || torq)),
        ("--no-compile", args.no_compile && !modules),
        ("--profile", args.profile && (!torq || args.no_compile)),
    ];
    let faults = idle.into_iter().filter(|(_, idle)| *idle).map(|(flag, _)| {
        let fault =
            Diagnostic::error(npuc::Code::BadArgument, format!("{flag} does nothing in a build for {}", args.target));
        fault.help("leave the flag out; see `npuc build --help` for what it is for")
    });
    npuc::Error::check(faults.collect())
}

/// Flags of a recipe that is not there are a misunderstanding, not a wish. `--calibration` has a use without.
fn refuse_idle_recipe_flags(args: &BuildArgs) -> Result<()> {
    let RecipeArgs { quality, rotate, scale, ranges, strict, max_rss, calibration: _, samples: _, tokens: _, seed: _ } =
        &args.how;
    let idle = [
        ("--quality", quality.is_some()),
        ("--rotate", *rotate),
        ("--scale", *scale),
        ("--ranges", ranges.is_some()),
        ("--strict", *strict),
        ("--max-rss", max_rss.is_some()),
    ];
    let faults = idle.into_iter().filter(|(_, given)| *given && args.recipe.is_none()).map(|(flag, _)| {
        let fault = Diagnostic::error(npuc::Code::BadArgument, format!("{flag} does nothing without a recipe"));
        fault.help("add --recipe, or leave the flag out")
    });
    npuc::Error::check(faults.collect())
}

fn open(args: &BuildArgs) -> Result<Checkpoint> {
    if is_bundle(&args.model) {
        let fault = Diagnostic::error(npuc::Code::BadArgument, "this is a bundle, built already").file(&args.model);
        return Err(fault.need("a Hugging Face folder or a .gguf file").help("run it with `npuc run`").into());
    }
    let mut checkpoint = session::checkpoint((&args.model, args.stack))?;
    if args.no_tokenizer {
        checkpoint.tokenizer = None;
    }
    Ok(checkpoint)
}

/// What bundles hold of text, or how to build without.
fn text(checkpoint: &Checkpoint, output: Output) -> Result<BundleText> {
    bundle_text(checkpoint).inspect_err(|_| {
        output.note("note: --no-tokenizer builds without the tokenizer; the bundle then takes token ids only");
    })
}

/// Writes the bundle under a bar.
fn write(dir: &Path, checkpoint: &Checkpoint, contents: Contents<'_>, output: Output) -> Result<Written> {
    write_and_make(dir, checkpoint, contents, output, |_, _| Ok(Made::default()))
}

/// Writes the bundle under a bar, with what `make` makes out of its files.
fn write_and_make(
    dir: &Path,
    checkpoint: &Checkpoint,
    contents: Contents<'_>,
    output: Output,
    make: impl FnOnce(&Path, &Manifest) -> Result<Made>,
) -> Result<Written> {
    let bar = output.bytes_bar("writing");
    let mut progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    write_prepared(dir, checkpoint, contents, &mut progress, |folder, manifest| {
        bar.finish_and_clear();
        make(folder, manifest)
    })
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
