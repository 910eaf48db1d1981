//! What a quantisation needs of the memory, told before it begins; an upper bound, which the tests hold against the system.

use npuc::model::{self, Role};
use npuc::quant::fold::Folds;
use npuc::quant::plan::{Plan, Planned};
use npuc::quant::stream;
use npuc::tensor::byte_len;
use npuc::{Code, Diagnostic, Result};

use super::{Quality, is_rounded, stage_of};
use crate::calibrate::STEP_TOKENS;
use crate::corpus::Corpus;

/// The program itself, the headers of files and the buffers of writers.
const BASE_BYTES: u64 = 64 << 20;
/// Copies of a weight in f32 that rounding it by GPTQ needs: itself, what is left to round, and what was rounded.
const WEIGHT_COPIES: u64 = 4;
/// Copies of the largest Hessian: itself, its factor, and one that is being made.
const HESSIAN_COPIES: u64 = 3;

/// Copies in f32 of a weight that something is folded into, while that is done.
const FOLD_COPIES: u64 = 3;

/// The most memory that quantising as planned takes, in bytes: what is not a mapped file.
pub fn need_bytes(plan: &Plan, folds: &Folds, quality: Quality, corpus: Option<&Corpus>, threads: usize) -> u64 {
    let cols = plan.weights.iter().filter_map(|weight| weight.shape.last().copied()).max().unwrap_or(0);
    // Rows of queries and keys change their order on the way to or from a GGUF file.
    let attention = plan.weights.iter().filter(|weight| weight.role == Role::Attention);
    let moved = attention.filter_map(|weight| byte_len(weight.from, &weight.shape)).max().unwrap_or(0) as u64;
    let rounding = BASE_BYTES + 2 * stream::need_bytes(cols, threads) + moved + folding_bytes(plan, folds);
    let rounding = rounding + corpus.map_or(0, |corpus| ranges_bytes(plan, corpus));
    let Some(corpus) = corpus.filter(|_| quality == Quality::Best) else { return rounding };
    let config = &plan.config;
    let longest = corpus.sequences.iter().map(Vec::len).max().unwrap_or(0) as u64;
    let f32s = |count: u64| count.saturating_mul(4);
    let (hidden, ffn, heads) =
        (config.hidden() as u64, config.ffn() as u64, (config.heads() * config.head_dim()) as u64);
    let stream = f32s(corpus.tokens() as u64 * hidden);
    let hessians = f32s(2 * hidden * hidden + heads * heads + ffn * ffn);
    let largest = f32s(hidden.max(ffn).max(heads).pow(2));
    // The activations of a layer, with scores of a few heads at a time and the mask over twice the sequence.
    let activations = f32s(longest * (6 * hidden + 4 * ffn + 6 * heads) + 8 * longest * longest);
    let in_layers = plan.weights.iter().filter(|weight| weight.name.starts_with("layers."));
    let weight = in_layers.filter_map(|weight| weight.shape.elements()).max().unwrap_or(0) as u64;
    let head = plan.find(npuc::model::llama::HEAD).and_then(|head| head.shape.elements()).unwrap_or(0) as u64;
    let copies = (WEIGHT_COPIES * f32s(weight)).max(f32s(head) * 2);
    let is_head_rounded = plan.weights.iter().any(|weight| weight.role == Role::Head && is_rounded(weight));
    let logits = if is_head_rounded { f32s(longest * config.vocab() as u64) } else { 0 };
    rounding + stream + hessians + HESSIAN_COPIES * largest + activations + logits + copies
}

/// Taking ranges of activations over the text: caches, the scores of a step, and a histogram of each value of two graphs.
fn ranges_bytes(plan: &Plan, corpus: &Corpus) -> u64 {
    /// Values of a layer's graph, and bytes of what is kept of each.
    const LAYER_VALUES: u64 = 64;
    const SEEN_BYTES: u64 = 6 << 10;
    let config = &plan.config;
    let step_tokens = STEP_TOKENS as u64;
    let (layers, width) = (config.layers() as u64, (config.kv_heads() * config.head_dim()) as u64);
    let longest = corpus.sequences.iter().map(Vec::len).max().unwrap_or(0) as u64 + step_tokens;
    let caches = 2 * 4 * layers * width * longest;
    let scores = 2 * 4 * step_tokens * config.vocab() as u64;
    caches + scores + 2 * layers * LAYER_VALUES * SEEN_BYTES
}

/// The weights of a stage that something is folded into are in memory together, as f32.
fn folding_bytes(plan: &Plan, folds: &Folds) -> u64 {
    let folded = |weight: &&Planned| folds.get(&weight.name).is_some_and(|fold| !fold.is_kept());
    let layers = model::layers(&plan.config);
    let (mut stages, mut largest) = (vec![0; layers + 2], 0);
    for weight in plan.weights.iter().filter(folded) {
        let bytes = 4 * weight.shape.elements().unwrap_or(0) as u64;
        stages[stage_of(weight, layers)] += bytes;
        largest = largest.max(bytes);
    }
    stages.into_iter().max().unwrap_or(0) + FOLD_COPIES * largest
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
