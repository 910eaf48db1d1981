//! Calibration: the ranges that the values of a model's parts have on text, for files in whole numbers.
//!
//! The text is the user's or, without one, what the model itself writes from a fixed seed.

use std::sync::{Arc, Mutex, PoisonError};

use npuc::back::{BackEnd, Chunk, qnn, tflite};
use npuc::build::weight_types;
use npuc::fit::Request;
use npuc::front::{Checkpoint, ModelConfig};
use npuc::model::{Part, StepShape, llama};
use npuc::quant::{self, Ranges, Recorder};
use npuc::{Code, Diagnostic, Result};

use crate::device::host::thread_pool;
use crate::program::{self, Program, Step, default_shapes, hidden_mask};
use crate::session::{Session, Steps};
use crate::sound::Sound;
use crate::speech::Encoder;
use crate::text::{Sampler, Sampling, SamplingConfig};

/// Tokens of a sequence, and how many sequences the model writes where there is no text.
/// Tokens of the larger step.
pub(crate) const STEP_TOKENS: usize = 16;
/// How much wider than what was seen the ranges are, because other text reaches further: what lies beyond a range is cut
/// off, which costs more than the third of a bit that this takes from every step.
pub const HEADROOM: f32 = 1.25;

/// What a model is run over.
#[derive(Clone, Copy, Debug)]
pub enum Material<'a> {
    /// Sequences of token ids.
    Text(&'a [Vec<u32>]),
    /// Sound, for Whisper's models.
    Sound(&'a Sound),
}

impl<'a, T: AsRef<[Vec<u32>]> + ?Sized> From<&'a T> for Material<'a> {
    fn from(sequences: &'a T) -> Material<'a> {
        Material::Text(sequences.as_ref())
    }
}

impl Material<'_> {
    /// The steps that a model is run over it in.
    ///
    /// Errors: no tokens.
    pub(crate) fn shapes(self, config: &ModelConfig) -> Result<Vec<StepShape>> {
        match self {
            _ if !config.reads_tokens() => Ok(default_shapes(config)),
            Material::Text(sequences) => shapes(sequences),
            Material::Sound(sound) => shapes(&sound.sequences()),
        }
    }
}

/// The ranges of every part of a model over text or sound.
///
/// Errors: parts and shapes that the model cannot take, ids outside the vocabulary, sequences longer than the model's
/// context, values that are not finite.
pub fn calibrate<'a>(
    checkpoint: &Checkpoint,
    request: &Request,
    parts: &[Part],
    material: impl Into<Material<'a>>,
    threads: usize,
) -> Result<Vec<Ranges>> {
    let material = material.into();
    let asked = Request { shapes: material.shapes(&checkpoint.config)?, ..request.clone() };
    let chunks = chunks(checkpoint, &asked, parts)?;
    let program = program_of(checkpoint, &asked, &chunks);
    let mut ranges: Vec<Ranges> = vec![Ranges::default(); parts.len()];
    for step in seen(&program, material, threads)? {
        for (part, seen) in ranges.iter_mut().zip(step) {
            part.join(&seen);
        }
    }
    let mut ranges: Vec<Ranges> = ranges.iter().map(|part| part.with_headroom(HEADROOM)).collect::<Result<_>>()?;
    if let (Some(first), Some(reach)) = (ranges.first_mut(), embeds_reach(checkpoint)) {
        first.widen("embeds", reach);
    }
    share_boundaries(&chunks[..parts.len()], &mut ranges)?;
    Ok(ranges)
}

/// The largest magnitude that may enter by the port `embeds`: any row of the table, with any position added to it where the model
/// has such a table. `None` for an encoder of sound.
pub(crate) fn embeds_reach(checkpoint: &Checkpoint) -> Option<f32> {
    let largest = |name: &str| checkpoint.tensors.get(name).map(quant::largest);
    let positions = checkpoint.config.positions_table().and_then(largest);
    Some(largest(llama::EMBEDDING)? + positions.unwrap_or(0.0))
}

/// The steps that the sequences are run in.
///
/// Errors: no tokens.
fn shapes(sequences: &[Vec<u32>]) -> Result<Vec<StepShape>> {
    let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
    if longest == 0 {
        return Err(Diagnostic::error(Code::BadArgument, "there is no text to calibrate with").into());
    }
    let capacity = longest.next_multiple_of(STEP_TOKENS);
    Ok([STEP_TOKENS, 1].map(|tokens| StepShape { tokens, capacity }).into())
}

/// The graphs that the target's back end emits, shapes first.
fn chunks(checkpoint: &Checkpoint, request: &Request, parts: &[Part]) -> Result<Vec<Chunk>> {
    let (config, types) = (&checkpoint.config, weight_types(&checkpoint.tensors));
    match request.target.back_end {
        Some(BackEnd::Qnn) => qnn::chunks(config, &types, request, parts),
        Some(BackEnd::Tflite | BackEnd::Host | BackEnd::Iree | BackEnd::Torq) | None => {
            tflite::chunks(config, &types, request, parts)
        }
    }
}

/// One range of the residual stream where it leaves a part and enters the next.
fn share_boundaries(chunks: &[Chunk], ranges: &mut [Ranges]) -> Result<()> {
    for place in 1..chunks.len() {
        let (before, after) = ranges.split_at_mut(place);
        let (Some(first), Some(second)) = (before.last_mut(), after.first_mut()) else { continue };
        quant::share_boundary((&chunks[place - 1].graph, first), (&chunks[place].graph, second))?;
    }
    Ok(())
}

/// The chunks as a program for the host.
fn program_of(checkpoint: &Checkpoint, request: &Request, chunks: &[Chunk]) -> Program {
    let mut steps: Vec<Step> = Vec::new();
    for Chunk { shape, graph, .. } in chunks {
        let segment = program::Segment { graph: graph.clone(), emitted: None, encodings: None };
        match steps.last_mut().filter(|step| step.shape == *shape) {
            Some(step) => step.segments.push(segment),
            None => steps.push(Step { shape: *shape, segments: vec![segment] }),
        }
    }
    Program {
        config: checkpoint.config.clone(),
        protocol: request.target.protocol,
        hidden_mask: hidden_mask(request) as f32,
        whole_numbers: false,
        steps,
        weights: checkpoint.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.materialized())).collect(),
        text: Ok(None),
        eos: checkpoint.special.eos.clone(),
        warnings: Vec::new(),
    }
}

/// What was seen of the values of every segment of every step while a program ran over text or sound.
///
/// Errors: ids outside the vocabulary, sequences longer than the capacity, values that are not finite.
pub(crate) fn seen(program: &Program, material: Material<'_>, threads: usize) -> Result<Vec<Vec<Ranges>>> {
    let recorder = |segment: &program::Segment| Arc::new(Mutex::new(Recorder::new(&segment.graph)));
    let of_step = |step: &Step| step.segments.iter().map(recorder).collect();
    let recorders: Vec<Vec<Arc<Mutex<Recorder>>>> = program.steps.iter().map(of_step).collect();
    let steps: Vec<&Step> = program.steps.iter().collect();
    let steps = Steps::observed(program, &steps, &thread_pool(threads)?, |step, segment| {
        let recorder = Arc::clone(&recorders[step][segment]);
        Box::new(move |id, elements| recorder.lock().unwrap_or_else(PoisonError::into_inner).see(id, elements))
    })?;
    run_over(program, steps, material, threads)?;
    let ranges = |recorder: &Arc<Mutex<Recorder>>| {
        let recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner).clone();
        recorder.ranges()
    };
    recorders.iter().map(|step| step.iter().map(ranges).collect()).collect()
}

/// Runs a program's steps over text or sound.
fn run_over(program: &Program, steps: Steps, material: Material<'_>, threads: usize) -> Result<()> {
    if let (Material::Sound(sound), false) = (material, program.config.reads_tokens()) {
        let mut encoder = Encoder::of(program, steps)?;
        return sound.spectrograms().try_for_each(|mel| encoder.encode(mel).map(|_| ()));
    }
    let mut session = Session::of(program, steps)?;
    session.spare_memory();
    match material {
        Material::Text(sequences) => {
            for sequence in sequences {
                session.reset();
                session.feed(sequence, |_| {})?;
            }
        }
        Material::Sound(sound) => {
            let mut encoder = sound.encoder(threads)?;
            for (mel, ids) in sound.spectrograms().zip(sound.sequences()) {
                session.listen(encoder.encode(mel)?);
                session.feed(&ids, |_| {})?;
            }
        }
    }
    Ok(())
}

/// Sequences of `tokens` ids that the model writes by itself from its first token on, each from a seed of its own.
///
/// Errors: a model that gives scores that are not numbers, or whose first token is outside its vocabulary.
pub fn own_sequences(checkpoint: &Checkpoint, samples: usize, tokens: usize, threads: usize) -> Result<Vec<Vec<u32>>> {
    let config = &checkpoint.config;
    let capacity = tokens.min(config.max_positions());
    let program = Program::from_checkpoint(checkpoint.clone(), Some(vec![StepShape { tokens: 1, capacity }]))?;
    let mut session = Session::new(&program, threads, &[])?;
    session.spare_memory();
    let special = &checkpoint.special;
    let first = special.bos.or(special.first_eos).unwrap_or(0);
    if first as usize >= config.vocab() {
        return Err(Diagnostic::error(Code::BadConfig, "the model cannot begin a text with its first token")
            .subject("bos_token_id")
            .need(format!("an id below {}", config.vocab()))
            .have(first)
            .help("mend the id, or give a text with --calibration")
            .into());
    }
    let mut sequences = Vec::new();
    for seed in 0..samples as u64 {
        let config = SamplingConfig { temperature: 1.0, seed, ..SamplingConfig::default() };
        let mut sampler = Sampler::new(Sampling::new(config)?);
        let mut sequence = vec![first];
        session.reset();
        while sequence.len() < capacity {
            session.decode(sequence[sequence.len() - 1])?;
            let Some(logits) = session.logits() else { break };
            sequence.push(sampler.sample(logits)?);
        }
        sequences.push(sequence);
    }
    Ok(sequences)
}
