//! The Llama family: token embedding, layers of rotary attention and SwiGLU, a head.
//!
//! The members differ only in what [`LlamaConfig`] says: biases, per-head norms, tied head, rotary scaling.

use std::collections::BTreeMap;

use super::blocks::{AttentionBlock, StepBuilder};
use super::step::{CacheProtocol, Port, StepShape};
use super::{Head, Part, Role, WeightSpec};
use crate::front::config::LlamaConfig;
use crate::ir::{Graph, Op, Type, ValueId};

/// The name of the embedding table.
pub const EMBEDDING: &str = "embed_tokens.weight";
/// The name of the head, absent when it is tied to the embedding table.
pub const HEAD: &str = "lm_head.weight";

/// Every weight of the family, in the order of the computation.
pub fn weight_specs(config: &LlamaConfig) -> Vec<WeightSpec> {
    let (hidden, ffn, dim) = (config.hidden, config.ffn, config.head_dim);
    let (q_rows, kv_rows) = (config.heads * dim, config.kv_heads * dim);
    let mut specs = vec![spec(EMBEDDING.into(), &[config.vocab, hidden], Role::Embedding)];
    for layer in 0..config.layers {
        let mut add = |name: &str, dims: &[usize], role| specs.push(spec(format!("layers.{layer}.{name}"), dims, role));
        let mut linear = |name: &str, rows, cols, role, bias| {
            add(&format!("{name}.weight"), &[rows, cols], role);
            if bias {
                add(&format!("{name}.bias"), &[rows], Role::Bias);
            }
        };
        linear("self_attn.q_proj", q_rows, hidden, Role::Attention, config.qkv_bias);
        linear("self_attn.k_proj", kv_rows, hidden, Role::Attention, config.qkv_bias);
        linear("self_attn.v_proj", kv_rows, hidden, Role::Attention, config.qkv_bias);
        linear("self_attn.o_proj", hidden, q_rows, Role::Attention, config.o_bias);
        linear("mlp.gate_proj", ffn, hidden, Role::FeedForward, config.mlp_bias);
        linear("mlp.up_proj", ffn, hidden, Role::FeedForward, config.mlp_bias);
        linear("mlp.down_proj", hidden, ffn, Role::FeedForward, config.mlp_bias);
        if config.qk_norm {
            add("self_attn.q_norm.weight", &[dim], Role::Norm);
            add("self_attn.k_norm.weight", &[dim], Role::Norm);
        }
        add("input_layernorm.weight", &[hidden], Role::Norm);
        add("post_attention_layernorm.weight", &[hidden], Role::Norm);
    }
    specs.push(spec("norm.weight".into(), &[hidden], Role::Norm));
    if !config.tied {
        specs.push(spec(HEAD.into(), &[config.vocab, hidden], Role::Head));
    }
    specs
}

fn spec(name: String, dims: &[usize], role: Role) -> WeightSpec {
    WeightSpec { name, shape: crate::tensor::Shape(dims.to_vec()), role }
}

/// The graph of one step of `part`, whose layers the model has; see [`Port`] for what enters and leaves.
pub fn build_part(
    config: &LlamaConfig,
    weights: &BTreeMap<String, Type>,
    shape: StepShape,
    protocol: CacheProtocol,
    part: &Part,
) -> Graph {
    let StepShape { tokens, capacity } = shape;
    let mut step = StepBuilder::new(weights, shape, protocol);
    let entry = if part.layers.start == 0 { Port::Embeds } else { Port::Hidden };
    let mut x = step.input(entry, &[tokens, config.hidden]);
    if !part.layers.is_empty() {
        let attention = AttentionBlock {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            qk_norm_eps: config.qk_norm.then_some(config.rms_eps),
            rope_cos: step.input(Port::RopeCos, &[tokens, config.head_dim / 2]),
            rope_sin: step.input(Port::RopeSin, &[tokens, config.head_dim / 2]),
            mask: step.input(Port::Mask, &[tokens, capacity + tokens]),
        };
        step.write_mask();
        for number in part.layers.clone() {
            x = layer(&mut step, config, number, x, &attention);
        }
    }
    match &part.head {
        Head::Absent => step.output(Port::Hidden, x),
        Head::Whole => {
            let x = step.rms_norm("norm", x, config.rms_eps);
            let head = step.weight(head_weight(config));
            let logits = step.op("lm_head", Op::Linear {}, &[x, head]);
            step.output(Port::Logits, logits);
        }
        Head::Rows(rows) => {
            let x = step.rms_norm("norm", x, config.rms_eps);
            let mut start = 0;
            for (number, &count) in rows.iter().enumerate() {
                let head = step.weight_rows(head_weight(config), start..start + count);
                let logits = step.op(&format!("lm_head.{number}"), Op::Linear {}, &[x, head]);
                step.output(Port::LogitsPart(number), logits);
                start += count;
            }
        }
    }
    step.finish()
}

/// The matrix of the head.
fn head_weight(config: &LlamaConfig) -> &'static str {
    if config.tied { EMBEDDING } else { HEAD }
}

/// One layer: attention and SwiGLU, each after a norm and added to the residual stream.
fn layer(
    step: &mut StepBuilder<'_>,
    config: &LlamaConfig,
    layer: usize,
    x: ValueId,
    attention: &AttentionBlock,
) -> ValueId {
    let at = |name: &str| format!("layers.{layer}.{name}");
    let normed = step.rms_norm(&at("input_layernorm"), x, config.rms_eps);
    let attended = step.attention(&at("self_attn"), layer, normed, attention);
    let x = step.op(&at("self_attn"), Op::Add {}, &[x, attended]);
    let normed = step.rms_norm(&at("post_attention_layernorm"), x, config.rms_eps);
    let fed = step.swiglu(&at("mlp"), normed);
    step.op(&at("mlp"), Op::Add {}, &[x, fed])
}
