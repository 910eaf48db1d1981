//! The LFM2 family: layers whose tokens meet in a gated short convolution or in rotary attention, SwiGLU, a head.
//!
//! A convolution reads the rows of a few tokens before the step, which are its layer's only state.

use super::blocks::{AttentionBlock, AttentionNames, StepBuilder};
use super::llama::{EMBEDDING, HEAD};
use super::{Role, WeightSpec, spec};
use crate::front::config::{LayerKind, Lfm2Config};
use crate::ir::{Op, ValueId};

/// The last norm, which the model's own code calls after the table before the first layer.
pub const FINAL_NORM: &str = "embedding_norm";

const ATTENTION: AttentionNames = AttentionNames { output: "out_proj", q_norm: "q_layernorm", k_norm: "k_layernorm" };

/// Every weight of the family, in the order of the computation.
pub fn weight_specs(config: &Lfm2Config) -> Vec<WeightSpec> {
    let (hidden, ffn, dim) = (config.hidden, config.ffn, config.head_dim);
    let (q_rows, kv_rows) = (config.heads * dim, config.kv_heads * dim);
    let mut specs = vec![spec(EMBEDDING.into(), &[config.vocab, hidden], Role::Embedding)];
    for (layer, kind) in config.kinds.iter().enumerate() {
        let mut add = |name: &str, dims: &[usize], role| specs.push(spec(format!("layers.{layer}.{name}"), dims, role));
        match kind {
            LayerKind::Attention => {
                add("self_attn.q_proj.weight", &[q_rows, hidden], Role::Attention);
                add("self_attn.k_proj.weight", &[kv_rows, hidden], Role::Attention);
                add("self_attn.v_proj.weight", &[kv_rows, hidden], Role::Attention);
                add("self_attn.out_proj.weight", &[hidden, q_rows], Role::Attention);
                add("self_attn.q_layernorm.weight", &[dim], Role::Norm);
                add("self_attn.k_layernorm.weight", &[dim], Role::Norm);
            }
            LayerKind::Encoder => unreachable!("`ModelConfig::check` refuses such a layer"),
            LayerKind::Convolution => {
                let parts = [
                    ("conv.in_proj", &[3 * hidden, hidden], Role::Convolution),
                    ("conv.conv", &[hidden, config.window], Role::Filter),
                    ("conv.out_proj", &[hidden, hidden], Role::Convolution),
                ];
                for (name, dims, role) in parts {
                    add(&format!("{name}.weight"), dims, role);
                    if config.conv_bias {
                        add(&format!("{name}.bias"), &dims[..1], Role::Bias);
                    }
                }
            }
        }
        add("feed_forward.w1.weight", &[ffn, hidden], Role::FeedForward);
        add("feed_forward.w3.weight", &[ffn, hidden], Role::FeedForward);
        add("feed_forward.w2.weight", &[hidden, ffn], Role::FeedForward);
        add("operator_norm.weight", &[hidden], Role::Norm);
        add("ffn_norm.weight", &[hidden], Role::Norm);
    }
    specs.push(spec(format!("{FINAL_NORM}.weight"), &[hidden], Role::Norm));
    if !config.tied {
        specs.push(spec(HEAD.into(), &[config.vocab, hidden], Role::Head));
    }
    specs
}

/// One layer: attention or a convolution, and SwiGLU, each after a norm and added to the residual stream. `attention` is
/// there if a layer of the graph has attention.
pub(super) fn layer(
    step: &mut StepBuilder<'_>,
    config: &Lfm2Config,
    layer: usize,
    x: ValueId,
    attention: Option<&AttentionBlock>,
) -> ValueId {
    let at = |name: &str| format!("layers.{layer}.{name}");
    let normed = step.rms_norm(&at("operator_norm"), x, config.rms_eps);
    let (path, mixed) = match config.kinds[layer] {
        LayerKind::Attention => {
            let attention = attention.expect("a graph that has such a layer has its ports");
            (at("self_attn"), step.attention(&at("self_attn"), layer, normed, attention, &ATTENTION))
        }
        LayerKind::Encoder => unreachable!("`ModelConfig::check` refuses such a layer"),
        LayerKind::Convolution => {
            (at("conv"), step.gated_conv(&at("conv"), layer, normed, config.hidden, config.window - 1))
        }
    };
    let x = step.op(&path, Op::Add {}, &[x, mixed]);
    let normed = step.rms_norm(&at("ffn_norm"), x, config.rms_eps);
    let fed = step.swiglu(&at("feed_forward"), normed, ["w1", "w3", "w2"]);
    step.op(&at("feed_forward"), Op::Add {}, &[x, fed])
}
