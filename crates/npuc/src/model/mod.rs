//! Models: which weights a family has, and the graphs it is made of. Nothing here knows a storage format or a target.

use std::collections::BTreeMap;

use crate::diag::{Code, Diagnostic, Result};
use crate::front::ModelConfig;
use crate::front::config::{LayerKind, Stack};
use crate::ir::{Graph, Type};
use crate::tensor::Shape;

pub mod blocks;
mod decoder;
pub mod lfm2;
pub mod llama;
pub mod part;
pub mod rope;
pub mod step;
pub mod whisper;

pub use part::{Chunks, Head, Part};
pub use step::{CacheProtocol, Port, StateKind, StepShape};

/// A weight that a model uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    /// The canonical name: the Hugging Face name without its leading `model.`.
    pub name: String,
    /// The shape that the configuration implies; projections are `[out, in]`.
    pub shape: Shape,
    /// What the weight is for.
    pub role: Role,
}

fn spec(name: String, dims: &[usize], role: Role) -> WeightSpec {
    WeightSpec { name, shape: Shape(dims.to_vec()), role }
}

/// What a weight is for; recipes and reports group weights by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The table of token embeddings.
    Embedding,
    /// A gain of a normalisation.
    Norm,
    /// A projection of the attention.
    Attention,
    /// A projection of the feed-forward layer.
    FeedForward,
    /// The projection to the vocabulary.
    Head,
    /// A projection around a short convolution.
    Convolution,
    /// The filter of a short convolution, a row a channel.
    Filter,
    /// A bias of any projection or norm.
    Bias,
    /// A convolution at the entry of an encoder, as the matrix of a projection.
    Stem,
    /// A table of positions.
    Position,
}

impl Role {
    /// The name used in recipes and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Embedding => "embedding",
            Role::Norm => "norm",
            Role::Attention => "attention",
            Role::FeedForward => "feed-forward",
            Role::Head => "lm_head",
            Role::Convolution => "convolution",
            Role::Filter => "filter",
            Role::Bias => "bias",
            Role::Stem => "stem",
            Role::Position => "position",
        }
    }

    /// Whether the weight is a matrix of projections or the table, which may be stored in blocks; all others are plain numbers.
    pub const fn is_matrix(self) -> bool {
        self.is_projection() || matches!(self, Role::Embedding | Role::Head)
    }

    /// Whether the weight is a projection inside a layer.
    pub const fn is_projection(self) -> bool {
        match self {
            Role::Attention | Role::FeedForward | Role::Convolution => true,
            Role::Embedding | Role::Norm | Role::Head | Role::Filter | Role::Bias | Role::Stem | Role::Position => {
                false
            }
        }
    }
}

/// Every weight that the model uses, in the order of the computation.
pub fn weight_specs(config: &ModelConfig) -> Vec<WeightSpec> {
    match config {
        ModelConfig::Llama(config) => llama::weight_specs(config),
        ModelConfig::Lfm2(config) => lfm2::weight_specs(config),
        ModelConfig::Whisper(config) => whisper::weight_specs(config),
    }
}

/// The graph of one step of the model over weights of the given types, by canonical name.
/// Errors: a shape that the model cannot take ([`crate::Code::BadShape`]).
pub fn build_step(
    config: &ModelConfig,
    weights: &BTreeMap<String, Type>,
    shape: StepShape,
    protocol: CacheProtocol,
) -> Result<Graph> {
    build_part(config, weights, shape, protocol, &Part::whole(config.layers()))
}

/// The graph of one step of a part of the model. The part that begins with layer 0 takes `embeds`, the others
/// `hidden`; the one with the head gives `logits` (or `logits.0`, `logits.1`, … for its parts), the others `hidden`.
/// States keep the numbers of their layers.
///
/// Errors: a shape that the model cannot take, layers or rows of the head that it does not have
/// ([`crate::Code::BadShape`]).
pub fn build_part(
    config: &ModelConfig,
    weights: &BTreeMap<String, Type>,
    shape: StepShape,
    protocol: CacheProtocol,
    part: &Part,
) -> Result<Graph> {
    refuse_pair(config)?;
    part.check(config.layers(), config.vocab())?;
    shape.check(config.max_positions())?;
    check_encoder(config, shape)?;
    Ok(decoder::build_part(config, weights, shape, protocol, part))
}

/// A step is one of the encoder or one of the decoder.
fn refuse_pair(config: &ModelConfig) -> Result<()> {
    match config {
        ModelConfig::Whisper(config) if config.stack == Stack::Both => {
            let fault =
                Diagnostic::error(Code::UnsupportedArchitecture, "Whisper is two models, which do this together");
            Err(fault
                .need("its encoder or its decoder")
                .have("both")
                .help("`npuc transcribe` runs it, `npuc check` and `npuc build` take both of its models")
                .into())
        }
        ModelConfig::Whisper(_) | ModelConfig::Llama(_) | ModelConfig::Lfm2(_) => Ok(()),
    }
}

/// An encoder has one shape: all its positions at once.
fn check_encoder(config: &ModelConfig, shape: StepShape) -> Result<()> {
    let all = config.max_positions();
    match config.has(LayerKind::Encoder) && shape != (StepShape { tokens: all, capacity: all }) {
        true => {
            let fault = Diagnostic::error(Code::BadShape, "an encoder takes all of its positions at once");
            Err(fault.need(format!("{all}t{all}c")).have(shape).into())
        }
        false => Ok(()),
    }
}

/// The name of the norm in front of the head, without `.weight`.
pub const fn final_norm(config: &ModelConfig) -> &'static str {
    match config {
        ModelConfig::Llama(_) => llama::FINAL_NORM,
        ModelConfig::Lfm2(_) => lfm2::FINAL_NORM,
        ModelConfig::Whisper(config) => whisper::final_norm_name(config),
    }
}

/// The number of layers.
pub fn layers(config: &ModelConfig) -> usize {
    config.layers()
}
