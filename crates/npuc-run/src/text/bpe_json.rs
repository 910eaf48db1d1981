//! Checks the data of a byte-pair `tokenizer.json` before the tokenizer library sees it.
//!
//! The library trusts its files: a merge longer than every token would make it panic, and an added token with another
//! id than the file says is only logged.

use npuc::diag::Result;
use serde_json::{Map, Value};

use super::bad_tokenizer;
use super::pieces::MAX_VOCAB;

/// Checks `model` of a parsed `tokenizer.json`: byte-pair encoding, ids in range, every merge made of tokens.
pub(super) fn check_model(model: &Value) -> Result<()> {
    // Files from before `type` was written are byte-pair ones if they have merges.
    let kind = model["type"].as_str().or_else(|| model.get("merges").map(|_| "BPE")).unwrap_or("none");
    if kind != "BPE" {
        return Err(bad_tokenizer("the tokenizer is not a byte-pair one")
            .subject("model.type")
            .need("BPE")
            .have(kind)
            .into());
    }
    if model["dropout"].as_f64().is_some_and(|dropout| dropout != 0.0) {
        return Err(bad_tokenizer("the tokenizer drops merges at random")
            .subject("model.dropout")
            .need("null or 0")
            .have(&model["dropout"])
            .into());
    }
    let vocab = model["vocab"]
        .as_object()
        .filter(|vocab| !vocab.is_empty())
        .ok_or_else(|| bad_tokenizer("the tokenizer has no vocabulary").subject("model.vocab"))?;
    for (text, id) in vocab {
        if id.as_u64().is_none_or(|id| id >= MAX_VOCAB as u64) {
            return Err(bad_tokenizer(format!("the token {text:?} has no usable id"))
                .subject("model.vocab")
                .need(format_args!("0 to {}", MAX_VOCAB - 1))
                .have(id)
                .into());
        }
    }
    let merges = model["merges"]
        .as_array()
        .ok_or_else(|| bad_tokenizer("the tokenizer has no list of merges").subject("model.merges"))?;
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or("");
    merges.iter().enumerate().try_for_each(|(rank, merge)| check_merge(vocab, prefix, rank, merge))
}

fn check_merge(vocab: &Map<String, Value>, prefix: &str, rank: usize, merge: &Value) -> Result<()> {
    let pair = match (merge.as_str(), merge.as_array().map(Vec::as_slice)) {
        (Some(text), _) if rank == 0 && text.starts_with("#version") => return Ok(()),
        (Some(text), _) => text.split_once(' ').filter(|(_, right)| !right.contains(' ')),
        (None, Some([Value::String(left), Value::String(right)])) => Some((left.as_str(), right.as_str())),
        (None, _) => None,
    };
    let Some((left, right)) = pair else {
        return Err(bad_tokenizer("a merge is not a pair of tokens")
            .subject(format!("model.merges[{rank}]"))
            .have(merge)
            .into());
    };
    let tail = right.strip_prefix(prefix).ok_or_else(|| {
        bad_tokenizer("the right side of a merge lacks the prefix of continuing tokens")
            .subject(format!("model.merges[{rank}]"))
            .need(format_args!("{prefix:?}"))
            .have(format_args!("{right:?}"))
    })?;
    check_merge_tokens(|text| vocab.contains_key(text), ("model.merges", rank), left, right, tail)
}

/// Checks that both sides of a merge and what they make (`left` and `tail` joined) are tokens. A fault names the
/// merge as entry `rank` of `list`.
pub(super) fn check_merge_tokens(
    known: impl Fn(&str) -> bool,
    (list, rank): (&str, usize),
    left: &str,
    right: &str,
    tail: &str,
) -> Result<()> {
    let joined = format!("{left}{tail}");
    for text in [left, right, &joined] {
        if !known(text) {
            return Err(bad_tokenizer(format!("a merge names {text:?}, which is not a token"))
                .subject(format!("{list}[{rank}]"))
                .have(format_args!("{left:?} + {right:?}"))
                .help("the vocabulary and the merges are of two different tokenizers; use the files of one")
                .into());
        }
    }
    Ok(())
}
