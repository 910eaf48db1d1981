//! What each token id writes: the decoder of a `tokenizer.json`, resolved once into bytes per id.
//!
//! A decoder that works token by token makes decoding a concatenation of bytes, so text can be streamed without
//! decoding anything twice. Decoders that look at neighbouring tokens are refused.

use std::collections::HashMap;

use npuc::diag::{Code, Diagnostic, Result};
use serde_json::Value;

use super::bad_tokenizer;

/// The largest vocabulary that is accepted; the largest known ones have about 262,000 entries.
pub(super) const MAX_VOCAB: usize = 1 << 22;

/// How token texts become bytes.
#[derive(Debug, Default, PartialEq)]
struct Decoding {
    /// Token texts are written in the byte-level alphabet.
    byte_level: bool,
    /// `<0xNN>` stands for one byte.
    byte_fallback: bool,
    /// Replacements inside a token, in order.
    replace: Vec<(String, String)>,
    /// The tokens have been joined: what follows works on the whole text.
    fused: bool,
    /// How many leading spaces of the whole text are dropped.
    strip_left: usize,
}

/// The bytes that each token id writes.
#[derive(Debug)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// End of each id's bytes in `bytes`.
    ends: Vec<u32>,
    kinds: Vec<Kind>,
    /// How many leading spaces of a whole text are dropped.
    pub(super) strip_left: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Absent,
    Text,
    Special,
}

impl Pieces {
    /// The table for `vocab` (text to id, ids below [`MAX_VOCAB`]) under the `decoder` of a `tokenizer.json`.
    /// `added` maps the ids of added tokens to whether they are special.
    pub(super) fn new(decoder: &Value, vocab: &HashMap<String, u32>, added: &HashMap<u32, bool>) -> Result<Pieces> {
        let decoding = Decoding::parse(decoder)?;
        let size = vocab.values().max().map_or(0, |&id| id as usize + 1);
        if size == 0 || size > MAX_VOCAB {
            return Err(bad_tokenizer("the vocabulary's size is out of range")
                .need(format_args!("1 to {MAX_VOCAB} ids"))
                .have(size)
                .into());
        }
        let mut texts: Vec<Option<&str>> = vec![None; size];
        for (text, &id) in vocab {
            if let Some(other) = texts[id as usize].replace(text) {
                let mut both = [other, text.as_str()];
                both.sort_unstable();
                return Err(bad_tokenizer(format!("two tokens have the id {id}"))
                    .have(format_args!("{both:?}"))
                    .into());
            }
        }
        let alphabet = byte_alphabet();
        let mut pieces = Pieces {
            bytes: Vec::new(),
            ends: Vec::with_capacity(size),
            kinds: Vec::with_capacity(size),
            strip_left: decoding.strip_left,
        };
        for (id, text) in (0u32..).zip(texts) {
            let special = added.get(&id).copied();
            pieces.kinds.push(match (text, special) {
                (None, _) => Kind::Absent,
                (Some(_), Some(true)) => Kind::Special,
                (Some(_), Some(false) | None) => Kind::Text,
            });
            if let Some(text) = text {
                decoding.write(text, special.is_some(), &alphabet, &mut pieces.bytes);
            }
            let end = u32::try_from(pieces.bytes.len())
                .map_err(|_| bad_tokenizer("the token texts are longer than 4 GiB together"))?;
            pieces.ends.push(end);
        }
        Ok(pieces)
    }

    /// One more than the largest id.
    pub(super) fn size(&self) -> usize {
        self.kinds.len()
    }

    /// The bytes that `id` writes and whether it is a special token.
    pub(super) fn get(&self, id: u32) -> Result<(&[u8], bool)> {
        let index = id as usize;
        match self.kinds.get(index) {
            Some(kind @ (Kind::Text | Kind::Special)) => {
                let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
                Ok((&self.bytes[start..self.ends[index] as usize], *kind == Kind::Special))
            }
            Some(Kind::Absent) | None => {
                Err(Diagnostic::error(Code::BadTokenId, format!("the tokenizer has no token with the id {id}"))
                    .need(format_args!("an id of the vocabulary, 0 to {}", self.size() - 1))
                    .have(id)
                    .help("check that the tokenizer belongs to this model")
                    .into())
            }
        }
    }

    /// Whether `id` is a special token.
    pub(super) fn is_special(&self, id: u32) -> bool {
        self.kinds.get(id as usize) == Some(&Kind::Special)
    }
}

impl Decoding {
    fn parse(decoder: &Value) -> Result<Decoding> {
        let mut decoding = Decoding::default();
        match decoder["type"].as_str() {
            Some("Sequence") => {
                let steps = decoder["decoders"].as_array().ok_or_else(|| unsupported(decoder))?;
                for step in steps {
                    decoding.add(step)?;
                }
            }
            _ => decoding.add(decoder)?,
        }
        let sentencepiece = decoding.byte_fallback || decoding.strip_left > 0 || !decoding.replace.is_empty();
        if decoding.byte_level == sentencepiece {
            return Err(unsupported(decoder).into());
        }
        Ok(decoding)
    }

    fn add(&mut self, step: &Value) -> Result<()> {
        match step["type"].as_str() {
            Some("ByteLevel") => self.byte_level = true,
            Some("ByteFallback") if !self.fused => self.byte_fallback = true,
            Some("Fuse") => self.fused = true,
            Some("Replace") if !self.fused && !self.byte_fallback => {
                let pattern = step["pattern"]["String"].as_str().filter(|pattern| !pattern.is_empty());
                let (Some(pattern), Some(content)) = (pattern, step["content"].as_str()) else {
                    return Err(unsupported(step).into());
                };
                self.replace.push((pattern.to_owned(), content.to_owned()));
            }
            Some("Strip") if self.fused => {
                let start = step["start"].as_u64().filter(|&start| start <= 16);
                let (Some(start), Some(" "), Some(0)) = (start, step["content"].as_str(), step["stop"].as_u64()) else {
                    return Err(unsupported(step).into());
                };
                self.strip_left = start as usize;
            }
            _ => return Err(unsupported(step).into()),
        }
        Ok(())
    }

    fn write(&self, text: &str, added: bool, alphabet: &HashMap<char, u8>, out: &mut Vec<u8>) {
        if self.byte_level {
            // Added tokens are stored as they read, and so is any text outside the alphabet.
            let bytes: Option<Vec<u8>> =
                if added { None } else { text.chars().map(|c| alphabet.get(&c).copied()).collect() };
            out.extend_from_slice(bytes.as_deref().unwrap_or(text.as_bytes()));
            return;
        }
        if let Some(byte) = byte_token(text).filter(|_| self.byte_fallback) {
            out.push(byte);
            return;
        }
        let mut text = text.to_owned();
        for (pattern, content) in &self.replace {
            text = text.replace(pattern, content);
        }
        out.extend_from_slice(text.as_bytes());
    }
}

fn unsupported(decoder: &Value) -> Diagnostic {
    bad_tokenizer("the tokenizer's decoder is of a kind npuc does not read")
        .subject("decoder")
        .need("ByteLevel, or a Sequence of Replace, ByteFallback, Fuse and a left Strip of spaces, in this order")
        .have(decoder)
}

/// The byte that a text of the form `<0xNN>` stands for.
pub(super) fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let hex = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    hex.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The byte-level alphabet of GPT-2: printable Latin-1 characters stand for themselves, the other bytes take the
/// characters from U+0100 on, in order.
pub(super) fn byte_alphabet() -> HashMap<char, u8> {
    let mut others = '\u{100}'..;
    (0..=255u8)
        .map(|byte| {
            let c = char::from(byte);
            let c = if matches!(c, '!'..='~' | '¡'..='¬' | '®'..='ÿ') { Some(c) } else { others.next() };
            (c.unwrap_or(char::REPLACEMENT_CHARACTER), byte)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sequence(steps: &[Value]) -> Value {
        json!({"type": "Sequence", "decoders": steps})
    }

    fn fuse() -> Value {
        json!({"type": "Fuse"})
    }

    #[test]
    fn decoders_that_are_refused() {
        let cases = [
            json!(null),
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
            json!({"type": "Sequence"}),
            json!({"type": "Sequence", "decoders": []}),
            json!({"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "ByteFallback"}]}),
            json!({"type": "Replace", "pattern": {"Regex": "x"}, "content": ""}),
            json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}),
            sequence(&[fuse(), json!({"type": "Strip", "content": " ", "start": 1, "stop": 1})]),
            sequence(&[fuse(), json!({"type": "ByteFallback"})]),
            sequence(&[fuse(), json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "})]),
        ];
        for case in cases {
            let error = Decoding::parse(&case).expect_err(&case.to_string());
            assert_eq!(error.diagnostics()[0].code, Code::BadTokenizer, "{case}");
        }
    }

    #[test]
    fn the_alphabet_is_a_bijection() {
        let alphabet = byte_alphabet();
        assert_eq!(alphabet.len(), 256);
        for (c, byte) in [('!', b'!'), ('Ġ', b' '), ('Ċ', b'\n'), ('Ā', 0), ('ÿ', 255), ('Ń', 0xad)] {
            assert_eq!(alphabet.get(&c), Some(&byte), "{c}");
        }
    }

    #[test]
    fn byte_tokens() {
        for (text, byte) in
            [("<0x0A>", Some(10)), ("<0xff>", Some(255)), ("<0x+A>", None), ("<0x0>", None), ("0A", None)]
        {
            assert_eq!(byte_token(text), byte, "{text}");
        }
    }
}
