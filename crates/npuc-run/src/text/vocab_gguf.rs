//! Makes a `tokenizer.json` from the `tokenizer.*` metadata of a GGUF file.
//!
//! Both kinds become byte-pair encoding: `gpt2` has its merges in the file, `llama` (SentencePiece) has scores, from
//! which merges follow that give what SentencePiece's greedy merging gives.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use npuc::diag::Result;
use npuc::front::{GgufVocab, TokenizerSource};
use serde_json::{Map, Value, json};

use super::bad_tokenizer;
use super::bpe_json::check_merge_tokens;
use super::pieces::{MAX_VOCAB, byte_token};
use super::pretokenizer::PreTokenizer;

/// What SentencePiece writes for a space.
const SPACE_MARK: &str = "▁";

/// The metadata key of the merges.
const MERGES: &str = "tokenizer.ggml.merges";

/// The kinds of tokens, from `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// The content of a `tokenizer.json` for a checkpoint's tokenizer: the file itself, or one made from GGUF metadata.
///
/// # Errors
/// `bad-tokenizer` if the metadata is malformed or names a kind of tokenizer that npuc does not read.
pub fn tokenizer_json(source: &TokenizerSource) -> Result<Cow<'_, [u8]>> {
    match source {
        TokenizerSource::HuggingFace { tokenizer_json, .. } => Ok(Cow::Borrowed(tokenizer_json)),
        TokenizerSource::Gguf(vocab) => {
            let json = match vocab.model.as_str() {
                "gpt2" => gpt2(vocab)?,
                "llama" => llama(vocab)?,
                other => {
                    return Err(bad_tokenizer("the tokenizer is of a kind npuc does not read")
                        .subject("tokenizer.ggml.model")
                        .need("gpt2 or llama")
                        .have(format_args!("{other:?}"))
                        .into());
                }
            };
            Ok(Cow::Owned(json.to_string().into_bytes()))
        }
    }
}

fn gpt2(vocab: &GgufVocab) -> Result<Value> {
    let tokens = Tokens::new(vocab)?;
    let pre = PreTokenizer::named(vocab.pre.as_deref())?;
    if vocab.merges.is_empty() {
        return Err(bad_tokenizer("the tokenizer has no merges")
            .subject(MERGES)
            .need("the merges of a gpt2 tokenizer")
            .have("none")
            .into());
    }
    let mut seen = HashSet::with_capacity(vocab.merges.len());
    let mut merges = Vec::with_capacity(vocab.merges.len());
    for (rank, merge) in vocab.merges.iter().enumerate() {
        let Some((left, right)) = merge.split_once(' ').filter(|(l, r)| !l.is_empty() && !r.is_empty()) else {
            return Err(bad_tokenizer("a merge is not a pair of tokens")
                .subject(format!("{MERGES}[{rank}]"))
                .need("two tokens with a space between them")
                .have(format_args!("{merge:?}"))
                .into());
        };
        check_merge_tokens(|text| tokens.ids.contains_key(text), (MERGES, rank), left, right, right)?;
        if !seen.insert((left, right)) {
            return Err(bad_tokenizer("a merge is listed twice")
                .subject(format!("{MERGES}[{rank}]"))
                .have(format_args!("{merge:?}"))
                .into());
        }
        merges.push(json!([left, right]));
    }
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": pre.ignore_merges,
        "vocab": tokens.vocab_json(), "merges": merges,
    });
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": tokens.added_json(),
        "normalizer": pre.normalizer_json(),
        "pre_tokenizer": pre.pre_tokenizer_json(),
        "post_processor": post_processor(vocab, &tokens, pre.add_bos)?,
        "decoder": byte_level,
        "model": model,
    }))
}

fn llama(vocab: &GgufVocab) -> Result<Value> {
    let tokens = Tokens::new(vocab)?;
    let merges = merges_from_scores(vocab, &tokens)?;
    let unknown = tokens.special(vocab, "unknown")?.map(|(text, _)| text);
    let bytes: HashSet<u8> = tokens.ids.keys().filter_map(|text| byte_token(text)).collect();
    if bytes.len() < 256 && unknown.is_none() {
        return Err(bad_tokenizer("the vocabulary cannot write every text")
            .subject("tokenizer.ggml.tokens")
            .need("the 256 byte tokens <0x00> to <0xFF>, or an unknown token")
            .have(format_args!("{} byte tokens, no unknown token", bytes.len()))
            .into());
    }
    let prefix = vocab.add_space_prefix.unwrap_or(true);
    let to_mark = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK});
    let to_space = json!({"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "});
    let prepend = prefix.then(|| json!({"type": "Prepend", "prepend": SPACE_MARK}));
    let strip = prefix.then(|| json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    let normalizers: Vec<Value> = prepend.into_iter().chain([to_mark]).collect();
    let decoders: Vec<Value> =
        [to_space, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})].into_iter().chain(strip).collect();
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
        "vocab": tokens.vocab_json(), "merges": merges,
    });
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": tokens.added_json(),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "post_processor": post_processor(vocab, &tokens, true)?,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }))
}

/// Every way to split a text token into two text tokens, the best-scored token first.
///
/// SentencePiece merges the neighbours whose union has the best score, the leftmost of equals. Ranks can say the same
/// only if no two tokens that merges make share a score.
fn merges_from_scores(vocab: &GgufVocab, tokens: &Tokens) -> Result<Vec<Value>> {
    let subject = "tokenizer.ggml.scores";
    if vocab.scores.len() != tokens.texts.len() {
        return Err(bad_tokenizer("the tokenizer does not have one score a token")
            .subject(subject)
            .need(format_args!("{} scores", tokens.texts.len()))
            .have(vocab.scores.len())
            .into());
    }
    let is_text = |id: u32| matches!(tokens.types[id as usize], TokenType::Normal | TokenType::Unused);
    let part = |text: &str| tokens.ids.get(text).copied().filter(|&id| is_text(id));
    let mut made: Vec<(f32, u32, Vec<usize>)> = Vec::new();
    for (id, text) in (0u32..).zip(&tokens.texts).filter(|&(id, _)| is_text(id)) {
        let cuts: Vec<usize> = text
            .char_indices()
            .map(|(at, _)| at)
            .filter(|&at| at > 0 && part(&text[..at]).is_some() && part(&text[at..]).is_some())
            .collect();
        if !cuts.is_empty() {
            made.push((vocab.scores[id as usize], id, cuts));
        }
    }
    if let Some((score, id, _)) = made.iter().find(|(score, ..)| !score.is_finite()) {
        return Err(bad_tokenizer(format!("the token {:?} has no usable score", tokens.texts[*id as usize]))
            .subject(format!("{subject}[{id}]"))
            .need("a finite number")
            .have(score)
            .into());
    }
    made.sort_by(|a, b| b.0.total_cmp(&a.0));
    if let Some(pair) = made.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let texts = [&tokens.texts[pair[0].1 as usize], &tokens.texts[pair[1].1 as usize]];
        return Err(bad_tokenizer("two tokens share a score, so that the order of merges is not known")
            .subject(subject)
            .need("one score for each token that merges make")
            .have(format_args!("{texts:?}, both {}", pair[0].0))
            .help("use the checkpoint's Hugging Face folder, whose tokenizer.json lists the merges")
            .into());
    }
    let split = |(_, id, cuts): &(f32, u32, Vec<usize>)| -> Vec<Value> {
        let text = &tokens.texts[*id as usize];
        cuts.iter().rev().map(|&at| json!([text[..at], text[at..]])).collect()
    };
    Ok(made.iter().flat_map(split).collect())
}

/// Puts the BOS id before a text and the EOS id after it where the metadata, or else `add_bos`, says so.
fn post_processor(vocab: &GgufVocab, tokens: &Tokens, add_bos: bool) -> Result<Value> {
    let mut single = vec![json!({"Sequence": {"id": "A", "type_id": 0}})];
    let mut specials = Map::new();
    let ends = [
        ("bos", "add_bos_token", vocab.add_bos.unwrap_or(add_bos)),
        ("eos", "add_eos_token", vocab.add_eos == Some(true)),
    ];
    for (name, key, _) in ends.into_iter().filter(|&(.., wanted)| wanted) {
        let (text, id) = tokens.special(vocab, name)?.ok_or_else(|| {
            bad_tokenizer(format!(
                "the tokenizer adds the {} token to a text but does not name it",
                name.to_uppercase()
            ))
            .subject(format!("tokenizer.ggml.{name}_token_id"))
            .need(format_args!("an id, because of tokenizer.ggml.{key} or its default for this tokenizer"))
            .have("no such key")
        })?;
        let at = if name == "bos" { 0 } else { single.len() };
        single.insert(at, json!({"SpecialToken": {"id": text, "type_id": 0}}));
        specials.insert(text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]}));
    }
    if specials.is_empty() {
        return Ok(Value::Null);
    }
    let pair = json!([{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]);
    Ok(json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": specials}))
}

/// The vocabulary, checked: texts by id, ids by text, a type for each.
struct Tokens {
    texts: Vec<String>,
    ids: HashMap<String, u32>,
    types: Vec<TokenType>,
}

impl Tokens {
    fn new(vocab: &GgufVocab) -> Result<Tokens> {
        let count = vocab.tokens.len();
        if count == 0 || count > MAX_VOCAB {
            return Err(bad_tokenizer("the vocabulary's size is out of range")
                .subject("tokenizer.ggml.tokens")
                .need(format_args!("1 to {MAX_VOCAB} tokens"))
                .have(count)
                .into());
        }
        let types = token_types(vocab)?;
        let mut texts = Vec::with_capacity(count);
        let mut ids = HashMap::with_capacity(count);
        for (id, text) in (0u32..).zip(&vocab.tokens) {
            // A token without text cannot be written in a tokenizer.json; text never encodes to it.
            let text = if text.is_empty() { format!("[EMPTY_{id}]") } else { text.clone() };
            if let Some(first) = ids.insert(text.clone(), id) {
                return Err(bad_tokenizer(format!("the token {text:?} is listed twice"))
                    .subject("tokenizer.ggml.tokens")
                    .need("each token once")
                    .have(format_args!("ids {first} and {id}"))
                    .into());
            }
            texts.push(text);
        }
        Ok(Tokens { texts, ids, types })
    }

    /// The text and id of the special token `name` of the metadata.
    fn special(&self, vocab: &GgufVocab, name: &str) -> Result<Option<(&str, u32)>> {
        let Some(&id) = vocab.special.get(name) else { return Ok(None) };
        let text = self.texts.get(id as usize).ok_or_else(|| {
            bad_tokenizer(format!("the {name} token is not in the vocabulary"))
                .subject(format!("tokenizer.ggml.{name}_token_id"))
                .need(format_args!("0 to {}", self.texts.len() - 1))
                .have(id)
        })?;
        Ok(Some((text, id)))
    }

    fn vocab_json(&self) -> BTreeMap<&str, u32> {
        self.ids.iter().map(|(text, &id)| (text.as_str(), id)).collect()
    }

    /// Control and unknown tokens as special ones, user-defined tokens as plain added ones.
    fn added_json(&self) -> Vec<Value> {
        let entry = |id: usize, special: bool| {
            json!({
                "id": id, "content": self.texts[id], "special": special,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            })
        };
        let added = self.types.iter().enumerate().filter_map(|(id, kind)| match kind {
            TokenType::Control | TokenType::Unknown => Some(entry(id, true)),
            TokenType::UserDefined => Some(entry(id, false)),
            TokenType::Normal | TokenType::Unused | TokenType::Byte => None,
        });
        added.collect()
    }
}

fn token_types(vocab: &GgufVocab) -> Result<Vec<TokenType>> {
    let subject = "tokenizer.ggml.token_type";
    if vocab.types.is_empty() {
        return Ok(vec![TokenType::Normal; vocab.tokens.len()]);
    }
    if vocab.types.len() != vocab.tokens.len() {
        return Err(bad_tokenizer("the tokenizer does not have one type a token")
            .subject(subject)
            .need(format_args!("{} types", vocab.tokens.len()))
            .have(vocab.types.len())
            .into());
    }
    let parse = |(id, &kind): (usize, &i32)| match kind {
        1 => Ok(TokenType::Normal),
        2 => Ok(TokenType::Unknown),
        3 => Ok(TokenType::Control),
        4 => Ok(TokenType::UserDefined),
        5 => Ok(TokenType::Unused),
        6 => Ok(TokenType::Byte),
        other => Err(bad_tokenizer("a token has an unknown type")
            .subject(format!("{subject}[{id}]"))
            .need("1 to 6")
            .have(other)
            .into()),
    };
    vocab.types.iter().enumerate().map(parse).collect()
}
