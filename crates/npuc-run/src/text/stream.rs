//! Text as it is generated: whole characters only, and never a part of a stop text.
//!
//! Both types hand out slices of a buffer they reuse; each piece of text is looked at once.

use npuc::diag::{Code, Diagnostic, Result};

use super::tokenizer::Tokenizer;

/// Turns ids into text one at a time.
///
/// What [`push`](TextStream::push) and [`finish`](TextStream::finish) return, concatenated, is what
/// [`Tokenizer::decode`] returns for the same ids. A character is returned when its last byte has come.
#[derive(Debug)]
pub struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    skip_special: bool,
    /// Leading spaces of the text that are still to be dropped.
    strip_left: usize,
    /// Bytes that may be the beginning of a character.
    pending: Vec<u8>,
    text: String,
}

impl<'t> TextStream<'t> {
    /// A stream of a whole text. `skip_special` leaves out special tokens.
    pub fn new(tokenizer: &'t Tokenizer, skip_special: bool) -> TextStream<'t> {
        TextStream {
            tokenizer,
            skip_special,
            strip_left: tokenizer.pieces().strip_left,
            pending: Vec::new(),
            text: String::new(),
        }
    }

    /// A stream of text that continues other text: SentencePiece's leading space is a real one there and is kept.
    pub fn continuing(tokenizer: &'t Tokenizer, skip_special: bool) -> TextStream<'t> {
        TextStream { strip_left: 0, ..TextStream::new(tokenizer, skip_special) }
    }

    /// Takes the next id and returns the text that is now certain, which may be empty.
    ///
    /// # Errors
    /// `bad-token-id` if the tokenizer has no such token.
    pub fn push(&mut self, id: u32) -> Result<&str> {
        self.text.clear();
        let (bytes, special) = self.tokenizer.pieces().get(id)?;
        if !(special && self.skip_special) {
            self.pending.extend_from_slice(bytes);
            self.take_characters();
        }
        Ok(&self.text)
    }

    /// Ends the text: bytes that never became a character come out as U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        &self.text
    }

    /// Moves whole characters from `pending` to `text`; a sequence that cannot become one is U+FFFD.
    fn take_characters(&mut self) {
        let mut start = 0;
        loop {
            let rest = &self.pending[start..];
            let (valid, broken) = match std::str::from_utf8(rest) {
                Ok(_) => (rest.len(), None),
                Err(e) => (e.valid_up_to(), Some(e.error_len())),
            };
            self.text.push_str(std::str::from_utf8(&rest[..valid]).unwrap_or_default());
            start += valid;
            match broken {
                Some(Some(len)) => {
                    self.text.push(char::REPLACEMENT_CHARACTER);
                    start += len;
                }
                Some(None) | None => break,
            }
        }
        self.pending.drain(..start);
        let spaces = self.text.bytes().take(self.strip_left).take_while(|&b| b == b' ').count();
        let ended = spaces < self.text.len();
        self.text.drain(..spaces);
        self.strip_left = if ended { 0 } else { self.strip_left - spaces };
    }
}

/// Text that is free to be shown, and whether a stop text has ended the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held<'a> {
    /// What comes before any stop text.
    pub text: &'a str,
    /// A stop text has come; everything from its beginning on is cut off.
    pub stopped: bool,
}

/// Cuts an answer exactly before the first stop text.
///
/// Text that may be the beginning of a stop text is held back until it is decided. The first stop text is the one
/// that is complete first (of those that end together, the longest), however the text is cut into pieces.
#[derive(Clone, Debug)]
pub struct StopTexts {
    stops: Vec<String>,
    held: String,
    /// How much of `held` was handed out by the last call.
    shown: usize,
    stopped: bool,
}

impl StopTexts {
    /// Stops at any of `stops`; with none, nothing is held back.
    ///
    /// # Errors
    /// `bad-argument` if a stop text is empty.
    pub fn new(stops: Vec<String>) -> Result<StopTexts> {
        if stops.iter().any(String::is_empty) {
            return Err(Diagnostic::error(Code::BadArgument, "a stop text is empty")
                .need("at least one character")
                .have("\"\"")
                .into());
        }
        Ok(StopTexts { stops, held: String::new(), shown: 0, stopped: false })
    }

    /// Takes more text and returns what is certain to come before any stop text.
    pub fn push(&mut self, text: &str) -> Held<'_> {
        self.forget_shown();
        if !self.stopped {
            self.held.push_str(text);
            let first = self.stops.iter().filter_map(|stop| self.held.find(stop).map(|at| (at + stop.len(), at))).min();
            self.shown = match first {
                Some((_, at)) => {
                    self.held.truncate(at);
                    self.stopped = true;
                    at
                }
                None => self.held.len() - self.undecided(),
            };
        }
        Held { text: &self.held[..self.shown], stopped: self.stopped }
    }

    /// Ends the text and returns what was held back.
    pub fn finish(&mut self) -> Held<'_> {
        self.forget_shown();
        self.shown = self.held.len();
        Held { text: &self.held, stopped: self.stopped }
    }

    fn forget_shown(&mut self) {
        self.held.drain(..self.shown);
        self.shown = 0;
    }

    /// The length in bytes of the longest end of `held` that begins a stop text.
    fn undecided(&self) -> usize {
        let longest = |stop: &String| {
            let lengths = stop.char_indices().map(|(at, _)| at).rev();
            lengths.into_iter().find(|&len| self.held.ends_with(&stop[..len])).unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }
}
