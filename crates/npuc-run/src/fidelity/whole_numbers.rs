//! What activations in whole numbers cost a Whisper, measured on this machine before anything is built of it.

use std::path::Path;

use npuc::front::Checkpoint;
use npuc::front::config::Stack;
use npuc::quant::fold::Folds;
use npuc::quant::plan::{Destination, Plan};
use npuc::quant::recipe::Recipe;
use npuc::{Code, Diagnostic, Result, target};

use super::speech::{SpeechFidelity, compare_speech};
use crate::calibrate::Material;
use crate::integer::{self, Arithmetic};
use crate::program::{Program, default_shapes};
use crate::quantise::{Job, Quality, quantise};
use crate::session::Steps;
use crate::sound::Sound;
use crate::speech::{Kind, SpeechTokens, Whisper};

/// The most tokens of a step; no more are written about a window at once.
const STEP_TOKENS: usize = 16;

/// A form of a model in whole numbers.
#[derive(Clone, Copy, Debug)]
pub struct WholeNumbers<'a> {
    /// The formats of the weights.
    pub recipe: &'a Recipe,
    /// Whose whole numbers activations are.
    pub arithmetic: Arithmetic,
    /// How weights are rounded: [`Quality::Fast`] or [`Quality::Search`], for there is no text.
    pub quality: Quality,
}

/// Compares a Whisper in whole numbers with the checkpoint of both models in float, over the windows of `sound`, which its
/// ranges are taken from too: the figures of [`compare_speech`], all on this machine. Rounded weights lie in the folder
/// `work` meanwhile.
///
/// Errors: a checkpoint of another model or without a tokenizer; a recipe that it cannot have; ranges that have no whole
/// numbers; a folder that cannot be written.
pub fn whisper_in_whole_numbers(
    both: &Checkpoint,
    form: &WholeNumbers<'_>,
    sound: &Sound,
    work: &Path,
    threads: usize,
) -> Result<SpeechFidelity> {
    let half = |stack| both.stack(stack).ok_or_else(|| not_whisper(both));
    let [encoder, mut decoder] = [half(Stack::Encoder)?, half(Stack::Decoder)?].map(in_float);
    let tokenizer = match &mut decoder {
        Ok(decoder) => std::mem::replace(&mut decoder.text, Ok(None))?,
        Err(_) => None,
    };
    let mut reference = on_host(&encoder?, &decoder?, threads)?;
    let whole = |stack, name: &str| in_whole_numbers(&half(stack)?, form, sound, &work.join(name), threads);
    let mut model = on_host(&whole(Stack::Encoder, "encoder")?, &whole(Stack::Decoder, "decoder")?, threads)?;
    let tokenizer = tokenizer.map(|text| text.tokenizer).ok_or_else(|| {
        let fault = Diagnostic::error(Code::NoTokenizer, "the model has no tokenizer, so it cannot write about sound");
        fault.file(&both.path).help("put the model's tokenizer.json into its folder")
    })?;
    let tokens = SpeechTokens::new(&tokenizer, Kind::of_vocab_size(model.config().vocab))?;
    let windows: Vec<Vec<f32>> = sound.spectrograms().map(<[f32]>::to_vec).collect();
    let figures = compare_speech(&mut model, &mut reference, &tokens, &windows)?;
    Ok(SpeechFidelity { fidelity: figures.fidelity.with_saturation(model.saturated()), ..figures })
}

/// One of the models as the checkpoint has it.
fn in_float(half: Checkpoint) -> Result<Program> {
    let shapes = shapes(&half);
    Program::from_checkpoint(half, Some(shapes))
}

/// One of the models with its weights rounded and its activations in whole numbers.
fn in_whole_numbers(
    half: &Checkpoint,
    form: &WholeNumbers<'_>,
    sound: &Sound,
    work: &Path,
    threads: usize,
) -> Result<Program> {
    let folds = Folds::none(&half.config);
    let plan = Plan::new(half, &folds, form.recipe, &Destination::Target(target::host()), false)?;
    let job = Job { plan: &plan, folds: &folds, scale: false, quality: form.quality, corpus: None, threads };
    let quantised = quantise(half, &job, work, &mut |_| {})?;
    let sound = sound.for_model(&half.config);
    let ranges = integer::ranges(&quantised.checkpoint, form.arithmetic, Material::Sound(&sound), threads)?;
    integer::program(&quantised.checkpoint, shapes(half), &ranges, form.arithmetic)
}

/// The steps of one of the models, without those of long prompts.
fn shapes(half: &Checkpoint) -> Vec<npuc::model::StepShape> {
    let mut shapes = default_shapes(&half.config);
    if half.config.reads_tokens() {
        shapes.retain(|shape| shape.tokens <= STEP_TOKENS);
    }
    shapes
}

fn on_host(encoder: &Program, decoder: &Program, threads: usize) -> Result<Whisper> {
    let steps = |program| Steps::on_host(program, threads, &[]);
    Whisper::new((encoder, steps(encoder)?), (decoder, steps(decoder)?))
}

fn not_whisper(checkpoint: &Checkpoint) -> npuc::Error {
    let fault = Diagnostic::error(Code::UnsupportedArchitecture, "only Whisper is measured over sound");
    fault.file(&checkpoint.path).have(checkpoint.config.family()).into()
}
