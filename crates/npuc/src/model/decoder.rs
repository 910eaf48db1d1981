//! What the graphs of all families have in common: what enters, the layers in order, the head.

use std::collections::BTreeMap;

use super::blocks::{AttentionBlock, StepBuilder};
use super::llama::{EMBEDDING, HEAD};
use super::step::{CacheProtocol, Port, StepShape};
use super::{Head, Part, final_norm, lfm2, llama};
use crate::front::config::{LayerKind, ModelConfig};
use crate::ir::{Graph, Op, Type, ValueId};

/// The graph of one step of `part`, whose layers the model has; see [`Port`] for what enters and leaves. Ports that no
/// layer of the part reads are not there.
pub(super) fn build_part(
    config: &ModelConfig,
    weights: &BTreeMap<String, Type>,
    shape: StepShape,
    protocol: CacheProtocol,
    part: &Part,
) -> Graph {
    let mut step = StepBuilder::new(weights, shape, protocol);
    let entry = if part.layers.start == 0 { Port::Embeds } else { Port::Hidden };
    let mut x = step.input(entry, &[shape.tokens, config.hidden()]);
    let has = |kind| part.layers.clone().any(|layer| config.kind(layer) == kind);
    let attention = has(LayerKind::Attention).then(|| attention(&mut step, config));
    if has(LayerKind::Convolution) {
        step.history(config.history());
    }
    for number in part.layers.clone() {
        x = match (config, &attention) {
            (ModelConfig::Llama(config), Some(attention)) => llama::layer(&mut step, config, number, x, attention),
            (ModelConfig::Llama(_), None) => unreachable!("every layer of Llama has attention"),
            (ModelConfig::Lfm2(config), attention) => lfm2::layer(&mut step, config, number, x, attention.as_ref()),
        };
    }
    leave(&mut step, config, &part.head, x);
    step.finish()
}

/// The ports of attention: rotary tables, mask, and where new rows enter the caches.
fn attention(step: &mut StepBuilder<'_>, config: &ModelConfig) -> AttentionBlock {
    let StepShape { tokens, capacity } = step.shape;
    let qk_norm = match config {
        ModelConfig::Llama(config) => config.qk_norm,
        ModelConfig::Lfm2(_) => true,
    };
    let block = AttentionBlock {
        heads: config.heads(),
        kv_heads: config.kv_heads(),
        head_dim: config.head_dim(),
        qk_norm_eps: qk_norm.then_some(config.rms_eps()),
        rope_cos: step.input(Port::RopeCos, &[tokens, config.head_dim() / 2]),
        rope_sin: step.input(Port::RopeSin, &[tokens, config.head_dim() / 2]),
        mask: step.input(Port::Mask, &[tokens, capacity + tokens]),
    };
    step.write_mask();
    block
}

/// The residual stream leaves, or what the last norm and the head make of it.
fn leave(step: &mut StepBuilder<'_>, config: &ModelConfig, head: &Head, x: ValueId) {
    let norm = final_norm(config);
    let matrix = if config.tied() { EMBEDDING } else { HEAD };
    match head {
        Head::Absent => step.output(Port::Hidden, x),
        Head::Whole => {
            let x = step.rms_norm(norm, x, config.rms_eps());
            let head = step.weight(matrix);
            let logits = step.op("lm_head", Op::Linear {}, &[x, head]);
            step.output(Port::Logits, logits);
        }
        Head::Rows(rows) => {
            let x = step.rms_norm(norm, x, config.rms_eps());
            let mut start = 0;
            for (number, &count) in rows.iter().enumerate() {
                let head = step.weight_rows(matrix, start..start + count);
                let logits = step.op(&format!("lm_head.{number}"), Op::Linear {}, &[x, head]);
                step.output(Port::LogitsPart(number), logits);
                start += count;
            }
        }
    }
}
