//! Calibration: the ranges that the values of a model's parts have on text, for files in whole numbers.
//!
//! The text is the user's or, without one, what the model itself writes from a fixed seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use npuc::back::tflite::{Chunk, chunks};
use npuc::build::weight_types;
use npuc::fit::Request;
use npuc::front::{Checkpoint, ModelConfig};
use npuc::ir::Graph;
use npuc::model::{Part, StepShape, llama};
use npuc::quant::{self, Ranges};
use npuc::{Code, Diagnostic, Result, Tensor};
use rayon::ThreadPool;

use crate::device::chain::Segment;
use crate::device::host::{HostStep, thread_pool};
use crate::program::{self, Program, Step, hidden_mask};
use crate::session::Session;
use crate::text::{Sampler, Sampling, SamplingConfig};

/// Tokens of a sequence, and how many sequences the model writes where there is no text.
pub const SEQUENCE_TOKENS: usize = 128;
const SEQUENCES: u64 = 4;
/// Tokens of the larger step.
const STEP_TOKENS: usize = 16;
/// How much wider than what was seen the ranges are, because other text reaches further: what lies beyond a range is cut
/// off, which costs more than the third of a bit that this takes from every step.
pub const HEADROOM: f32 = 1.25;

/// The ranges of every part of a model over sequences of tokens.
///
/// Errors: parts and shapes that the model cannot take, ids outside the vocabulary, sequences longer than the model's
/// context, values that are not finite.
pub fn calibrate(
    checkpoint: &Checkpoint,
    request: &Request,
    parts: &[Part],
    sequences: &[Vec<u32>],
    threads: usize,
) -> Result<Vec<Ranges>> {
    let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
    if longest == 0 {
        return Err(Diagnostic::error(Code::BadArgument, "there is no text to calibrate with").into());
    }
    let capacity = longest.next_multiple_of(STEP_TOKENS);
    let shape = |tokens| StepShape { tokens, capacity };
    let asked = Request { shapes: vec![shape(STEP_TOKENS), shape(1)], ..request.clone() };
    let chunks = chunks(&checkpoint.config, &weight_types(&checkpoint.tensors), &asked, parts)?;
    let program = program_of(checkpoint, &asked, &chunks);
    let pool = thread_pool(threads)?;
    let mut session = Session::recording(&program, &pool)?;
    for sequence in sequences {
        session.reset();
        session.feed(sequence, |_| {})?;
    }
    let mut ranges: Vec<Ranges> = vec![Ranges::default(); parts.len()];
    for step in session.into_recorders() {
        for (part, recorder) in ranges.iter_mut().zip(step) {
            part.join(&recorder.ranges()?);
        }
    }
    let mut ranges: Vec<Ranges> = ranges.iter().map(|part| part.with_headroom(HEADROOM)).collect::<Result<_>>()?;
    if let (Some(first), Some(table)) = (ranges.first_mut(), checkpoint.tensors.get(llama::EMBEDDING)) {
        first.widen("embeds", quant::largest(table));
    }
    share_boundaries(&chunks[..parts.len()], &mut ranges)?;
    Ok(ranges)
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
    for chunk in chunks {
        let segment = program::Segment { graph: chunk.graph.clone(), emitted: None };
        match steps.last_mut().filter(|step| step.shape == chunk.shape) {
            Some(step) => step.segments.push(segment),
            None => steps.push(Step { shape: chunk.shape, segments: vec![segment] }),
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

/// A segment on the host that records its values.
pub(crate) fn recording(graph: &Graph, weights: &BTreeMap<String, Tensor>, pool: Arc<ThreadPool>) -> Result<Segment> {
    Ok(Segment::Host(Box::new(HostStep::new(graph, weights, &[], pool)?.recording(graph))))
}

/// Sequences that the model writes by itself from its first token on, each from a seed of its own.
///
/// Errors: a model that gives scores that are not numbers.
pub fn own_text(checkpoint: &Checkpoint, threads: usize) -> Result<Vec<Vec<u32>>> {
    let ModelConfig::Llama(config) = &checkpoint.config;
    let capacity = SEQUENCE_TOKENS.min(config.max_positions);
    let program = Program::from_checkpoint(checkpoint.clone(), Some(vec![StepShape { tokens: 1, capacity }]))?;
    let mut session = Session::new(&program, threads, &[])?;
    let special = &checkpoint.special;
    let first = special.bos.or(special.first_eos).unwrap_or(0);
    if first as usize >= config.vocab {
        return Err(Diagnostic::error(Code::BadConfig, "the model cannot begin a text with its first token")
            .subject("bos_token_id")
            .need(format!("an id below {}", config.vocab))
            .have(first)
            .help("mend the id, or give a text with --calibration")
            .into());
    }
    let mut sequences = Vec::new();
    for seed in 0..SEQUENCES {
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

/// A text's tokens as sequences of at most [`SEQUENCE_TOKENS`], no more than `most_tokens` in all.
pub fn sequences_of(ids: &[u32], most_tokens: usize) -> Vec<Vec<u32>> {
    ids[..ids.len().min(most_tokens)].chunks(SEQUENCE_TOKENS).map(<[u32]>::to_vec).collect()
}
