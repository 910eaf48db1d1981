//! What a quantisation needs of the memory, told before it begins; an upper bound, which the tests hold against the system.

use npuc::front::ModelConfig;
use npuc::quant::plan::Plan;
use npuc::quant::stream;
use npuc::{Code, Diagnostic, Result};

use super::Quality;
use crate::corpus::Corpus;

/// The program itself, the headers of files and the buffers of writers.
const BASE_BYTES: u64 = 64 << 20;
/// Copies of a weight in f32 that rounding it by GPTQ needs: itself, what is left to round, and what was rounded.
const WEIGHT_COPIES: u64 = 4;
/// Copies of the largest Hessian: itself, its factor, and one that is being made.
const HESSIAN_COPIES: u64 = 3;

/// The most memory that quantising as planned takes, in bytes: what is not a mapped file.
pub fn need_bytes(plan: &Plan, quality: Quality, corpus: Option<&Corpus>, threads: usize) -> u64 {
    let cols = plan.weights.iter().filter_map(|weight| weight.shape.last().copied()).max().unwrap_or(0);
    let rounding = BASE_BYTES + 2 * stream::need_bytes(cols, threads);
    let Some(corpus) = corpus.filter(|_| quality == Quality::Best) else { return rounding };
    let ModelConfig::Llama(config) = &plan.config;
    let longest = corpus.sequences.iter().map(Vec::len).max().unwrap_or(0) as u64;
    let f32s = |count: u64| count.saturating_mul(4);
    let (hidden, ffn, heads) = (config.hidden as u64, config.ffn as u64, (config.heads * config.head_dim) as u64);
    let stream = f32s(corpus.tokens() as u64 * hidden);
    let hessians = f32s(2 * hidden * hidden + heads * heads + ffn * ffn);
    let largest = f32s(hidden.max(ffn).max(heads).pow(2));
    // The activations of a layer, with scores of a few heads at a time and the mask over twice the sequence.
    let activations = f32s(longest * (6 * hidden + 4 * ffn + 6 * heads) + 8 * longest * longest);
    let in_layers = plan.weights.iter().filter(|weight| weight.name.starts_with("layers."));
    let weight = in_layers.filter_map(|weight| weight.shape.elements()).max().unwrap_or(0) as u64;
    let head = plan.find(npuc::model::llama::HEAD).and_then(|head| head.shape.elements()).unwrap_or(0) as u64;
    let copies = (WEIGHT_COPIES * f32s(weight)).max(f32s(head) * 2);
    rounding + stream + hessians + HESSIAN_COPIES * largest + activations + copies
}

/// Refuses work that needs more memory than it may have.
///
/// Errors: [`Code::OutOfMemory`].
pub fn refuse_more_than(limit_bytes: u64, need_bytes: u64) -> Result<()> {
    if need_bytes <= limit_bytes {
        return Ok(());
    }
    Err(Diagnostic::error(Code::OutOfMemory, "the work needs more memory than --max-rss allows")
        .need(format!("{need_bytes} bytes"))
        .have(format!("{limit_bytes} bytes"))
        .help("raise the limit, take fewer or shorter samples, or use --quality fast")
        .into())
}
