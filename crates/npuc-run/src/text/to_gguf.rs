//! The tokenizer of a Hugging Face folder as GGUF metadata: byte-level byte-pair ones, as llama.cpp's converter writes them.

use std::collections::BTreeMap;

use npuc::diag::Result;
use npuc::front::{GgufVocab, TokenizerSource};
use serde_json::Value;

use super::bad_tokenizer;
use super::bpe_json::check_model;
use super::pretokenizer::PreTokenizer;

/// Kinds of tokens in `tokenizer.ggml.token_type`.
mod kind {
    pub(super) const NORMAL: i32 = 1;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
    pub(super) const UNUSED: i32 = 5;
}

/// The tokenizer of a checkpoint as GGUF metadata, with as many tokens as the model has rows of embeddings.
///
/// Errors: `bad-tokenizer` for a tokenizer that is not byte-level byte-pair encoding, splits text in a way that has no
/// name in GGUF, or has more tokens than the model.
pub fn gguf_vocab(source: &TokenizerSource, rows: usize) -> Result<GgufVocab> {
    let (json, config, template) = match source {
        TokenizerSource::Gguf(vocab) => return Ok(vocab.clone()),
        TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config, chat_template } => {
            (tokenizer_json, tokenizer_config.as_ref(), chat_template.clone())
        }
    };
    let json: Value = serde_json::from_slice(json).map_err(|e| bad_tokenizer(format!("the file is malformed: {e}")))?;
    check_model(&json["model"])?;
    let pre = PreTokenizer::of_json(&json).filter(|_| json["model"]["byte_fallback"].as_bool() != Some(true));
    let pre = pre.ok_or_else(|| {
        bad_tokenizer("GGUF has no name for the way the tokenizer splits text")
            .subject("pre_tokenizer")
            .help("leave the tokenizer out with --no-tokenizer, or begin with a GGUF file of the model")
    })?;
    let (tokens, types) = tokens(&json, rows)?;
    let merges = json["model"]["merges"].as_array().into_iter().flatten().filter_map(merge).collect();
    let flag = |key: &str| config.and_then(|config| config.get(key)?.as_bool());
    Ok(GgufVocab {
        model: "gpt2".into(),
        pre: Some(pre.into()),
        tokens,
        scores: Vec::new(),
        types,
        merges,
        special: BTreeMap::new(),
        add_bos: flag("add_bos_token").or_else(|| Some(begins_with_bos(&json["post_processor"]))),
        add_eos: flag("add_eos_token"),
        add_space_prefix: Some(false),
        chat_template: template,
    })
}

/// The text and type of every id; ids without a token are told as unused.
fn tokens(json: &Value, rows: usize) -> Result<(Vec<String>, Vec<i32>)> {
    let mut tokens: Vec<String> = (0..rows).map(|id| format!("[PAD{id}]")).collect();
    let mut types = vec![kind::UNUSED; rows];
    let mut put = |text: &str, id: Option<u64>, of: i32| {
        let place = id.and_then(|id| usize::try_from(id).ok()).filter(|&id| id < rows).ok_or_else(|| {
            bad_tokenizer(format!("the token {text:?} has no row in the model"))
                .subject("model.vocab")
                .need(format!("ids below {rows}"))
                .have(id.map_or("none".into(), |id| id.to_string()))
        })?;
        (tokens[place], types[place]) = (text.to_owned(), of);
        Ok::<(), npuc::Error>(())
    };
    for (text, id) in json["model"]["vocab"].as_object().into_iter().flatten() {
        put(text, id.as_u64(), kind::NORMAL)?;
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        let of = if added["special"].as_bool() == Some(true) { kind::CONTROL } else { kind::USER_DEFINED };
        put(added["content"].as_str().unwrap_or_default(), added["id"].as_u64(), of)?;
    }
    Ok((tokens, types))
}

/// A merge as one text.
fn merge(merge: &Value) -> Option<String> {
    match (merge.as_str(), merge.as_array().map(Vec::as_slice)) {
        (Some(text), _) => (!text.starts_with("#version")).then(|| text.to_owned()),
        (None, Some([left, right])) => Some(format!("{} {}", left.as_str()?, right.as_str()?)),
        (None, _) => None,
    }
}

/// Whether the template of single texts begins with a special token.
fn begins_with_bos(processor: &Value) -> bool {
    let templates = std::iter::once(processor).chain(processor["processors"].as_array().into_iter().flatten());
    templates
        .into_iter()
        .any(|processor| processor["single"].get(0).is_some_and(|first| first.get("SpecialToken").is_some()))
}
