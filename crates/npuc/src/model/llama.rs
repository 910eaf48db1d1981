//! The Llama family: token embedding, layers of rotary attention and SwiGLU, a head.
//!
//! The members differ only in what [`LlamaConfig`] says: biases, per-head norms, tied head, rotary scaling.

use super::blocks::{AttentionBlock, AttentionNames, StepBuilder};
use super::{Role, WeightSpec, spec};
use crate::front::config::LlamaConfig;
use crate::ir::{Op, ValueId};

/// The name of the embedding table, in every family.
pub const EMBEDDING: &str = "embed_tokens.weight";
/// The name of the head in every family, absent when it is tied to the embedding table.
pub const HEAD: &str = "lm_head.weight";

/// The last norm.
pub const FINAL_NORM: &str = "norm";

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
    specs.push(spec(format!("{FINAL_NORM}.weight"), &[hidden], Role::Norm));
    if !config.tied {
        specs.push(spec(HEAD.into(), &[config.vocab, hidden], Role::Head));
    }
    specs
}

/// One layer: attention and SwiGLU, each after a norm and added to the residual stream.
pub(super) fn layer(
    step: &mut StepBuilder<'_>,
    config: &LlamaConfig,
    layer: usize,
    x: ValueId,
    attention: &AttentionBlock,
) -> ValueId {
    let at = |name: &str| format!("layers.{layer}.{name}");
    let normed = step.rms_norm(&at("input_layernorm"), x, config.rms_eps);
    let attended = step.attention(&at("self_attn"), layer, normed, attention, &ATTENTION);
    let x = step.op(&at("self_attn"), Op::Add {}, &[x, attended]);
    let normed = step.rms_norm(&at("post_attention_layernorm"), x, config.rms_eps);
    let fed = step.swiglu(&at("mlp"), normed, ["gate_proj", "up_proj", "down_proj"]);
    step.op(&at("mlp"), Op::Add {}, &[x, fed])
}

const ATTENTION: AttentionNames = AttentionNames { output: "o_proj", q_norm: "q_norm", k_norm: "k_norm" };
