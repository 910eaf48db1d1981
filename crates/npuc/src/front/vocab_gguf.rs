//! The `tokenizer.*` metadata of a GGUF file → [`GgufVocab`] and the ids that begin and end text.

use std::collections::{BTreeMap, BTreeSet};

use super::gguf::{Array, Value};
use super::{GgufVocab, SpecialTokens};
use crate::diag::{Code, Diagnostic, Error, Result};

/// Special ids that end an answer, by the middle part of `tokenizer.ggml.<name>_token_id`.
const ENDING: [&str; 3] = ["eos", "eot", "eom"];
/// Texts of control tokens that end an answer even where the metadata names another id: the end-of-turn
/// tokens of common chat formats. llama.cpp ends generation at them too.
const END_OF_TURN: [&str; 7] =
    ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"];
/// The type of control tokens in `tokenizer.ggml.token_type`.
const CONTROL: i32 = 3;

/// Takes the vocabulary out of the metadata. `None` for files without one, which still name special ids.
///
/// # Errors
/// Values of the wrong type and lists whose lengths differ; all at once.
pub(super) fn take(metadata: &mut BTreeMap<String, Value>) -> Result<(Option<GgufVocab>, SpecialTokens)> {
    let mut taker = Taker { metadata, faults: Vec::new() };
    let special = taker.special_ids();
    let model = taker.text("tokenizer.ggml.model").filter(|model| model != "none" && model != "no_vocab");
    let vocab = model.map(|model| GgufVocab {
        model,
        pre: taker.text("tokenizer.ggml.pre"),
        tokens: taker.texts("tokenizer.ggml.tokens"),
        scores: taker.floats("tokenizer.ggml.scores"),
        types: taker.ints("tokenizer.ggml.token_type"),
        merges: taker.texts("tokenizer.ggml.merges"),
        special: special.clone(),
        add_bos: taker.flag("tokenizer.ggml.add_bos_token"),
        add_eos: taker.flag("tokenizer.ggml.add_eos_token"),
        add_space_prefix: taker.flag("tokenizer.ggml.add_space_prefix"),
        chat_template: taker.text("tokenizer.chat_template"),
    });
    let mut faults = taker.faults;
    if let Some(vocab) = &vocab {
        faults.extend(contradictions(vocab));
    }
    Error::check(faults)?;
    let special = special_tokens(&special, vocab.as_ref());
    Ok((vocab, special))
}

fn contradictions(vocab: &GgufVocab) -> Vec<Diagnostic> {
    let mut faults = Vec::new();
    let count = vocab.tokens.len();
    let lists = [("scores", vocab.scores.len()), ("token_type", vocab.types.len())];
    for (key, length) in lists.into_iter().filter(|(_, length)| *length != 0 && *length != count) {
        faults.push(
            Diagnostic::error(Code::BadTokenizer, "the vocabulary's lists have different lengths")
                .subject(format!("tokenizer.ggml.{key}"))
                .need(format!("{count} entries, as many as tokens"))
                .have(format!("{length} entries")),
        );
    }
    if count == 0 {
        let fault = Diagnostic::error(Code::BadTokenizer, "the vocabulary is empty or absent");
        faults.push(fault.subject("tokenizer.ggml.tokens"));
    }
    for (name, id) in vocab.special.iter().filter(|(_, id)| **id as usize >= count && count > 0) {
        faults.push(
            Diagnostic::error(Code::BadTokenizer, "a special id is outside the vocabulary")
                .subject(format!("tokenizer.ggml.{name}_token_id"))
                .need(format!("an id below {count}"))
                .have(id),
        );
    }
    faults
}

fn special_tokens(special: &BTreeMap<String, u32>, vocab: Option<&GgufVocab>) -> SpecialTokens {
    let bos = special.get("bos").copied();
    let mut eos: BTreeSet<u32> = ENDING.iter().filter_map(|name| special.get(*name).copied()).collect();
    if let Some(vocab) = vocab {
        let control = vocab.tokens.iter().zip(&vocab.types).zip(0u32..).filter(|((_, kind), _)| **kind == CONTROL);
        let ending = control.filter(|((text, _), id)| END_OF_TURN.contains(&text.as_str()) && Some(*id) != bos);
        eos.extend(ending.map(|(_, id)| id));
    }
    let first_eos = special.get("eos").copied().or_else(|| eos.first().copied());
    SpecialTokens { bos, eos, first_eos }
}

/// Takes typed values out of the metadata and notes those of another type.
struct Taker<'a> {
    metadata: &'a mut BTreeMap<String, Value>,
    faults: Vec<Diagnostic>,
}

impl Taker<'_> {
    fn malformed<T: Default>(&mut self, key: &str, need: &str, have: &str) -> T {
        let fault = Diagnostic::error(Code::BadTokenizer, "the value is malformed");
        self.faults.push(fault.subject(key).need(need).have(have));
        T::default()
    }

    fn special_ids(&mut self) -> BTreeMap<String, u32> {
        let id = |value: &Value| match value {
            Value::Unsigned(id) => u32::try_from(*id).ok(),
            Value::Signed(id) => u32::try_from(*id).ok(),
            Value::Float(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) => None,
        };
        let mut ids = BTreeMap::new();
        for (key, value) in self.metadata.iter() {
            let Some(name) = key.strip_prefix("tokenizer.ggml.").and_then(|key| key.strip_suffix("_token_id")) else {
                continue;
            };
            match id(value) {
                Some(id) => {
                    ids.insert(name.to_owned(), id);
                }
                None => self.faults.push(
                    Diagnostic::error(Code::BadTokenizer, "the value is malformed")
                        .subject(key)
                        .need("a token id")
                        .have(value.kind()),
                ),
            }
        }
        ids
    }

    fn text(&mut self, key: &str) -> Option<String> {
        match self.metadata.remove(key) {
            None => None,
            Some(Value::String(text)) => Some(text),
            Some(other) => self.malformed(key, "a text", other.kind()),
        }
    }

    fn flag(&mut self, key: &str) -> Option<bool> {
        match self.metadata.remove(key) {
            None => None,
            Some(Value::Bool(flag)) => Some(flag),
            Some(other) => self.malformed(key, "a truth value", other.kind()),
        }
    }

    fn texts(&mut self, key: &str) -> Vec<String> {
        match self.metadata.remove(key) {
            None => Vec::new(),
            Some(Value::Array(Array::String(texts))) => texts,
            Some(other) => self.malformed(key, "an array of texts", other.kind()),
        }
    }

    fn floats(&mut self, key: &str) -> Vec<f32> {
        match self.metadata.remove(key) {
            None => Vec::new(),
            Some(Value::Array(Array::Float(floats))) => floats.into_iter().map(|value| value as f32).collect(),
            Some(other) => self.malformed(key, "an array of floats", other.kind()),
        }
    }

    fn ints(&mut self, key: &str) -> Vec<i32> {
        let ints: Option<Vec<i32>> = match self.metadata.remove(key) {
            None => return Vec::new(),
            Some(Value::Array(Array::Signed(ints))) => ints.into_iter().map(|n| n.try_into().ok()).collect(),
            Some(Value::Array(Array::Unsigned(ints))) => ints.into_iter().map(|n| n.try_into().ok()).collect(),
            Some(_) => None,
        };
        match ints {
            Some(ints) => ints,
            None => self.malformed(key, "an array of whole numbers of 32 bits", "other values"),
        }
    }
}
