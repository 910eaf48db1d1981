//! Text to token ids and back, by the checkpoint's own `tokenizer.json` or the one made from GGUF metadata.
//!
//! Encoding is the tokenizers crate's. Decoding is the concatenation of every id's bytes (see `pieces`), so that a
//! whole text and a streamed one are the same by construction.

use std::collections::HashMap;

use npuc::diag::Result;
use npuc::front::TokenizerSource;
use serde_json::Value;

use super::bpe_json::check_model;
use super::pieces::{Pieces, byte_alphabet};
use super::stream::TextStream;
use super::{bad_tokenizer, tokenizer_json};

/// A tokenizer, ready to use.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: Pieces,
    /// Bytes that a byte-level vocabulary cannot write.
    unwritable: Vec<u8>,
}

impl Tokenizer {
    /// The tokenizer of a checkpoint.
    ///
    /// # Errors
    /// `bad-tokenizer` if its data is malformed or of a kind npuc does not read.
    pub fn from_source(source: &TokenizerSource) -> Result<Tokenizer> {
        Tokenizer::from_json(&tokenizer_json(source)?)
    }

    /// The tokenizer that the content of a `tokenizer.json` describes.
    ///
    /// # Errors
    /// `bad-tokenizer` if it is malformed, not byte-pair, or has a decoder that works across tokens.
    pub fn from_json(json: &[u8]) -> Result<Tokenizer> {
        let parsed: Value = serde_json::from_slice(json)
            .map_err(|e| bad_tokenizer("the tokenizer is not valid JSON").line(e.line()).have(e))?;
        check_model(&parsed["model"])?;
        let mut inner = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|e| bad_tokenizer("the tokenizer's data does not fit together").have(e))?;
        // A checkpoint's padding and truncation are settings of its training run.
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|e| bad_tokenizer("the tokenizer's truncation cannot be switched off").have(e))?;
        let added = added_tokens(&parsed["added_tokens"], &inner)?;
        let pieces = Pieces::new(&parsed["decoder"], &inner.get_vocab(true), &added)?;
        let unwritable = unwritable_bytes(&parsed, &inner);
        let tokenizer = Tokenizer { inner, pieces, unwritable };
        for id in tokenizer.encode("", true)? {
            tokenizer.pieces.get(id).map_err(|_| {
                bad_tokenizer(format!("the tokenizer begins or ends texts with the id {id}, which is not a token"))
                    .subject("post_processor")
            })?;
        }
        Ok(tokenizer)
    }

    /// The ids of `text`. Texts of special tokens become their ids. `add_special` puts the ids before and after that
    /// the tokenizer itself calls for (BOS, EOS).
    ///
    /// A rendered chat template holds its own BOS: encode it with `add_special` false.
    ///
    /// # Errors
    /// `bad-tokenizer` if the vocabulary cannot write a character of the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        if let Some((at, byte)) = text.bytes().enumerate().find(|(_, byte)| self.unwritable.contains(byte)) {
            return Err(bad_tokenizer("the text holds a byte for which the vocabulary has no token")
                .need("a text that the vocabulary can write")
                .have(format_args!("byte {byte:#04x} at offset {at} of the text"))
                .help("remove the character from the text")
                .into());
        }
        let encoding = self
            .inner
            .encode_fast(text, add_special)
            .map_err(|e| bad_tokenizer("the tokenizer cannot encode the text").have(e))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The id that the tokenizer puts before every text (BOS), if it does.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn first_id(&self) -> Result<Option<u32>> {
        let (with, without) = (self.encode("a", true)?, self.encode("a", false)?);
        Ok(with.first().filter(|first| without.first() != Some(first)).copied())
    }

    /// The text of `ids`. `skip_special` leaves out special tokens. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// `bad-token-id` if an id is not a token.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let mut stream = TextStream::new(self, skip_special);
        let mut text = String::new();
        for &id in ids {
            text.push_str(stream.push(id)?);
        }
        text.push_str(stream.finish());
        Ok(text)
    }

    /// One more than the largest id. A model's logits may be longer: checkpoints pad the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.pieces.size()
    }

    /// The id of the token whose stored text is `text`.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// The stored text of `id`, e.g. `Ġthe`.
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Whether `id` is a special token (control tokens such as BOS, not text).
    pub fn is_special(&self, id: u32) -> bool {
        self.pieces.is_special(id)
    }

    /// The ids of all special tokens, ascending.
    pub fn special_ids(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).take(self.pieces.size()).filter(|&id| self.is_special(id))
    }

    pub(super) fn pieces(&self) -> &Pieces {
        &self.pieces
    }
}

/// The ids of the added tokens, each with whether it is special, checked against what the library made of them.
fn added_tokens(added: &Value, inner: &tokenizers::Tokenizer) -> Result<HashMap<u32, bool>> {
    let tokens = added.as_array().map_or(&[][..], Vec::as_slice);
    let checked = tokens.iter().map(|token| {
        let (text, id) = (token["content"].as_str().unwrap_or(""), token["id"].as_u64());
        match inner.token_to_id(text) {
            Some(actual) if id == Some(u64::from(actual)) => Ok((actual, token["special"] == true)),
            actual => Err(bad_tokenizer(format!("the added token {text:?} cannot have the id it names"))
                .subject("added_tokens")
                .need(actual.map_or_else(|| "an id".to_owned(), |id| id.to_string()))
                .have(&token["id"])
                .into()),
        }
    });
    checked.collect()
}

/// The bytes of UTF-8 text for which a byte-level vocabulary has neither a token nor an unknown token.
fn unwritable_bytes(parsed: &Value, inner: &tokenizers::Tokenizer) -> Vec<u8> {
    let pre = &parsed["pre_tokenizer"];
    let steps = pre["pretokenizers"].as_array().map_or(std::slice::from_ref(pre), Vec::as_slice);
    if !parsed["model"]["unk_token"].is_null() || !steps.iter().any(|step| step["type"] == "ByteLevel") {
        return Vec::new();
    }
    let missing = |&(c, byte): &(char, u8)| {
        !matches!(byte, 0xc0 | 0xc1 | 0xf5..) && inner.token_to_id(c.encode_utf8(&mut [0; 4])).is_none()
    };
    let mut bytes: Vec<u8> = byte_alphabet().into_iter().filter(missing).map(|(_, byte)| byte).collect();
    bytes.sort_unstable();
    bytes
}
