//! What the graphs of all families have in common: what enters, the layers in order, the head.

use std::collections::BTreeMap;

use super::blocks::{AttentionBlock, StepBuilder};
use super::llama::{EMBEDDING, HEAD};
use super::step::{CacheProtocol, Port, StepShape};
use super::{Head, Part, lfm2, llama, whisper};
use crate::front::config::{LayerKind, ModelConfig, Stack};
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
    let mut x = enter(&mut step, config, part);
    let has = |kind| part.layers.clone().any(|layer| config.kind(layer) == kind);
    let attention = has(LayerKind::Attention).then(|| attention(&mut step, config));
    if has(LayerKind::Convolution) {
        step.history(config.history());
    }
    let heard = match config {
        ModelConfig::Whisper(config) if config.stack != Stack::Encoder => {
            whisper::heard(&mut step, config, part.layers.clone())
        }
        ModelConfig::Whisper(_) | ModelConfig::Llama(_) | ModelConfig::Lfm2(_) => Vec::new(),
    };
    for number in part.layers.clone() {
        let heard = heard.get(number - part.layers.start);
        x = match (config, &attention, heard) {
            (ModelConfig::Llama(config), Some(attention), _) => llama::layer(&mut step, config, number, x, attention),
            (ModelConfig::Lfm2(config), attention, _) => lfm2::layer(&mut step, config, number, x, attention.as_ref()),
            (ModelConfig::Whisper(_), Some(attention), Some(&heard)) => {
                whisper::decoder_layer(&mut step, number, x, attention, heard)
            }
            (ModelConfig::Whisper(config), _, _) => whisper::encoder_layer(&mut step, config, number, x),
            (ModelConfig::Llama(_), None, _) => unreachable!("every layer of Llama has attention"),
        };
    }
    leave(&mut step, config, &part.head, x);
    step.finish()
}

/// What the first layer of the part reads, `[tokens, hidden]`.
fn enter(step: &mut StepBuilder<'_>, config: &ModelConfig, part: &Part) -> ValueId {
    let dims = [step.shape.tokens, config.hidden()];
    match config {
        _ if part.layers.start > 0 => step.input(Port::Hidden, &dims),
        ModelConfig::Whisper(config) if config.stack == Stack::Encoder => whisper::stem(step, config),
        ModelConfig::Whisper(_) | ModelConfig::Llama(_) | ModelConfig::Lfm2(_) => step.input(Port::Embeds, &dims),
    }
}

/// The ports of attention: rotary tables where the model has them, mask, and where new rows enter the caches.
fn attention(step: &mut StepBuilder<'_>, config: &ModelConfig) -> AttentionBlock {
    let StepShape { tokens, capacity } = step.shape;
    let qk_norm = match config {
        ModelConfig::Llama(config) => config.qk_norm,
        ModelConfig::Lfm2(_) => true,
        ModelConfig::Whisper(_) => false,
    };
    let block = AttentionBlock {
        heads: config.heads(),
        kv_heads: config.kv_heads(),
        head_dim: config.head_dim(),
        qk_norm_eps: qk_norm.then_some(config.rms_eps()),
        rope: config
            .rope()
            .map(|_| [Port::RopeCos, Port::RopeSin].map(|port| step.input(port, &[tokens, config.head_dim() / 2]))),
        mask: step.input(Port::Mask, &[tokens, capacity + tokens]),
    };
    step.write_mask();
    block
}

/// The residual stream leaves, or what the last norm and the head make of it.
fn leave(step: &mut StepBuilder<'_>, config: &ModelConfig, head: &Head, x: ValueId) {
    let matrix = if config.tied() { EMBEDDING } else { HEAD };
    match (head, config) {
        (Head::Absent, _) => step.output(Port::Hidden, x),
        (Head::Whole | Head::Rows(_), ModelConfig::Whisper(config)) if config.stack == Stack::Encoder => {
            whisper::leave_encoder(step, config, x);
        }
        (Head::Whole, _) => {
            let x = final_norm(step, config, x);
            let head = step.weight(matrix);
            let logits = step.op("lm_head", Op::Linear {}, &[x, head]);
            step.output(Port::Logits, logits);
        }
        (Head::Rows(rows), _) => {
            let x = final_norm(step, config, x);
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

fn final_norm(step: &mut StepBuilder<'_>, config: &ModelConfig, x: ValueId) -> ValueId {
    match config {
        ModelConfig::Llama(_) | ModelConfig::Lfm2(_) => step.rms_norm(super::final_norm(config), x, config.rms_eps()),
        ModelConfig::Whisper(config) => whisper::final_norm(step, config, x),
    }
}
