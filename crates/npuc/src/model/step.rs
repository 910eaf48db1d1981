//! The contract between a step graph and whoever runs it: shapes, ports and the cache protocols.
//!
//! A step takes `tokens` token embeddings and a cache of `capacity` rows. Gathers, sines and comparisons
//! stay outside the graph: embedding rows, rotary tables and masks are ports.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::diag::{Code, Diagnostic, Error, Result};
use crate::front::config::LayerKind;

/// How many tokens a step takes and how many rows its cache has, written `128t1024c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepShape {
    /// Tokens computed at once, at least 1.
    pub tokens: usize,
    /// Rows of the cache, at least `tokens`.
    pub capacity: usize,
}

impl StepShape {
    /// Refuses a shape whose cache is longer than the model was made for.
    pub fn check(self, max_positions: usize) -> Result<()> {
        if self.capacity <= max_positions {
            return Ok(());
        }
        Err(Diagnostic::error(Code::BadShape, format!("the context of `{self}` is longer than the model's"))
            .need(format!("a capacity of at most {max_positions} (max_position_embeddings)"))
            .have(self.capacity)
            .help(format!("use `{}t{max_positions}c`", self.tokens.min(max_positions)))
            .into())
    }
}

impl fmt::Display for StepShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}t{}c", self.tokens, self.capacity)
    }
}

impl FromStr for StepShape {
    type Err = Error;

    fn from_str(text: &str) -> Result<StepShape> {
        let parts = text.strip_suffix('c').and_then(|t| t.split_once('t'));
        let numbers = parts.and_then(|(t, c)| Some((whole_number(t)?, whole_number(c)?)));
        match numbers {
            Some((tokens, capacity)) if tokens >= 1 && capacity >= tokens => Ok(StepShape { tokens, capacity }),
            Some(_) => Err(Diagnostic::error(Code::BadShape, format!("`{text}` is not a possible step"))
                .need("at least 1 token and a capacity of at least as many rows")
                .have(text)
                .into()),
            None => Err(Diagnostic::error(Code::BadShape, format!("`{text}` is not a step shape"))
                .need("<tokens>t<capacity>c with numbers of at most 9 digits, e.g. 128t1024c")
                .have(text)
                .into()),
        }
    }
}

fn whole_number(text: &str) -> Option<usize> {
    let digits = !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

impl Serialize for StepShape {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StepShape {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<StepShape, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| serde::de::Error::custom(format!("`{text}` is not a step shape")))
    }
}

/// How a cache travels between steps. Attention always sees `[past rows; new rows]` under a mask
/// `[tokens, capacity + tokens]`; the protocols differ in how the rows of a step enter the next past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheProtocol {
    /// Only the new rows leave; the runner writes them behind the valid ones. Padding follows the tokens.
    Append,
    /// The whole cache leaves, right-aligned: the oldest `tokens` rows are dropped and the new ones
    /// appended, so every row of a step enters. Padding therefore comes first, in the first step only.
    Shift,
    /// The whole cache leaves, with the new rows written where the port `write_mask` has a 1.
    OneHot,
}

impl CacheProtocol {
    /// Every protocol.
    pub const ALL: [CacheProtocol; 3] = [CacheProtocol::Append, CacheProtocol::Shift, CacheProtocol::OneHot];
}

/// What a state holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateKind {
    /// Keys after the rotary embedding, `[kv_heads, rows, head_dim]`.
    Key,
    /// Values, `[kv_heads, rows, head_dim]`.
    Value,
    /// The gated rows that a short convolution reads, `[history, hidden]` with the latest last; zeros before the first token.
    Conv,
}

impl StateKind {
    /// The states of a layer of that kind, in the order of their ports.
    pub const fn of(layer: LayerKind) -> &'static [StateKind] {
        match layer {
            LayerKind::Attention => &[StateKind::Key, StateKind::Value],
            LayerKind::Convolution => &[StateKind::Conv],
            LayerKind::Encoder => &[],
        }
    }

    const fn letter(self) -> &'static str {
        match self {
            StateKind::Key => "k",
            StateKind::Value => "v",
            StateKind::Conv => "c",
        }
    }
}

/// A port of a step graph. Its text form is the port's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Port {
    /// In: rows of the embedding table, `[tokens, hidden]`, with the rows of the positions added where the model has such a table.
    Embeds,
    /// In (encoders of sound): the log-mel spectrogram, `[bands, frames]`.
    Mel,
    /// Out of an encoder, and in to the decoder that listens to it: keys or values of a layer of the decoder,
    /// `[heads, positions, head_dim]`.
    Heard(StateKind, usize),
    /// In: cosines of the rotary angles, `[tokens, head_dim / 2]`.
    RopeCos,
    /// In: sines of the rotary angles, `[tokens, head_dim / 2]`.
    RopeSin,
    /// In: added to the scores, `[tokens, capacity + tokens]`: 0 where visible, hidden constant elsewhere.
    Mask,
    /// In (`OneHot`): 1 where a new row enters the cache, `[1, capacity, tokens]`.
    WriteMask,
    /// In (`OneHot`, several tokens, layers with convolutions): which of the past rows and the step's rows a convolution keeps,
    /// one 1 in each row of `[history, history + tokens]`.
    History,
    /// In: the state of a layer before the step, `capacity` rows; of a convolution `history` rows.
    Past(StateKind, usize),
    /// In and out, between parts of a model: the residual stream, `[tokens, hidden]`.
    Hidden,
    /// Out: one score per token id, `[tokens, vocab]`.
    Logits,
    /// Out: the scores of a run of ids, `[tokens, rows]`, where the head is cut; those of all parts in order are
    /// the scores of all ids, and what follows them is padding.
    LogitsPart(usize),
    /// Out (`Append`): the `tokens` rows that the step adds.
    New(StateKind, usize),
    /// Out (`Shift`, `OneHot`): the state after the step, as many rows as before.
    Next(StateKind, usize),
    /// In and out, between segments of a placed step: the value of that number in the whole graph.
    Cross(usize),
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Port::Embeds => f.write_str("embeds"),
            Port::Mel => f.write_str("mel"),
            Port::Heard(kind, layer) => write!(f, "heard_{}.{layer}", kind.letter()),
            Port::RopeCos => f.write_str("rope_cos"),
            Port::RopeSin => f.write_str("rope_sin"),
            Port::Mask => f.write_str("mask"),
            Port::WriteMask => f.write_str("write_mask"),
            Port::History => f.write_str("history"),
            Port::Hidden => f.write_str("hidden"),
            Port::Logits => f.write_str("logits"),
            Port::LogitsPart(part) => write!(f, "logits.{part}"),
            Port::Past(kind, layer) => write!(f, "past_{}.{layer}", kind.letter()),
            Port::New(kind, layer) => write!(f, "new_{}.{layer}", kind.letter()),
            Port::Next(kind, layer) => write!(f, "next_{}.{layer}", kind.letter()),
            Port::Cross(value) => write!(f, "cross.{value}"),
        }
    }
}

impl FromStr for Port {
    type Err = Error;

    fn from_str(name: &str) -> Result<Port> {
        let fixed = [
            Port::Embeds,
            Port::Mel,
            Port::RopeCos,
            Port::RopeSin,
            Port::Mask,
            Port::WriteMask,
            Port::History,
            Port::Hidden,
            Port::Logits,
        ];
        if let Some(port) = fixed.into_iter().find(|p| p.to_string() == name) {
            return Ok(port);
        }
        let cross = name.strip_prefix("cross.").and_then(whole_number).map(Port::Cross);
        if let Some(port) = cross.filter(|port| port.to_string() == name) {
            return Ok(port);
        }
        let state = name.split_once('.').and_then(|(stem, layer)| Some((stem, whole_number(layer)?)));
        if let Some(("logits", part)) = state
            && Port::LogitsPart(part).to_string() == name
        {
            return Ok(Port::LogitsPart(part));
        }
        for kind in [StateKind::Key, StateKind::Value, StateKind::Conv] {
            for make in [Port::Past, Port::New, Port::Next, Port::Heard] {
                if let Some((_, layer)) = state
                    && make(kind, layer).to_string() == name
                {
                    return Ok(make(kind, layer));
                }
            }
        }
        Err(Diagnostic::error(Code::BadBundle, format!("`{name}` is not a port of a step graph"))
            .need(
                "embeds, mel, rope_cos, rope_sin, mask, write_mask, history, hidden, logits, logits.<part>, \
                 {past,new,next,heard}_{k,v,c}.<layer>, or cross.<value>",
            )
            .have(name)
            .into())
    }
}
