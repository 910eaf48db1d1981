//! The ids that have a meaning for Whisper, found in its tokenizer by their text (openai/whisper, `tokenizer.py`).
//!
//! Every id below the end of text is text; every id from it on is not, and is left out of transcripts.

use std::collections::BTreeSet;
use std::ops::Range;

use npuc::{Code, Diagnostic, Result};
use serde::{Deserialize, Serialize};

use super::languages::{Language, listed};
use crate::text::Tokenizer;

/// The time from one timestamp to the next, two frames of a window.
pub const TIMESTAMP_S: f64 = 0.02;

/// Timestamps from `<|0.00|>` to `<|30.00|>`.
const TIMESTAMPS: u32 = 1501;

/// The least size of the vocabulary of a model for several languages (openai/whisper, `model.py`).
const MULTILINGUAL_VOCAB: usize = 51_865;

/// Text that is not spoken, suppressed where it is one token by itself or behind a space (openai/whisper,
/// `tokenizer.py`).
const NOT_SPOKEN: &str = "\" # ( ) * + / : ; < = > @ [ \\ ] ^ _ ` { | } ~ 「 」 『 』 \
                          << >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪";

/// Musical signs: their first token is suppressed, since no other text begins with the same two bytes in U+2640 to
/// U+267F.
const MUSIC: &str = "♩ ♪ ♫ ♬ ♭ ♮ ♯";

/// Suppressed at the beginning of a word, where it opens a list or a quotation.
const WORD_STARTS: [&str; 2] = [" -", " '"];

/// What is made of speech.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// Text in the language that is spoken.
    #[default]
    Transcribe,
    /// Text in English.
    Translate,
}

/// Whether a model knows other languages than English.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A `.en` model: it takes neither a language nor a task.
    EnglishOnly,
    /// All others.
    Multilingual,
}

impl Kind {
    /// The kind of a model whose configuration says `vocab_size`.
    pub fn of_vocab_size(vocab_size: usize) -> Kind {
        if vocab_size >= MULTILINGUAL_VOCAB { Kind::Multilingual } else { Kind::EnglishOnly }
    }
}

/// A Whisper tokenizer with its special ids.
#[derive(Debug)]
pub struct SpeechTokens<'t> {
    pub(super) tokenizer: &'t Tokenizer,
    /// The kind of the model.
    pub kind: Kind,
    /// `<|endoftext|>`.
    pub end: u32,
    /// `<|startoftranscript|>`.
    pub start: u32,
    /// `<|startofprev|>`, before the text of the windows before.
    pub previous: u32,
    /// `<|nospeech|>`, in older tokenizers `<|nocaptions|>`.
    pub no_speech: u32,
    /// `<|notimestamps|>`.
    pub no_timestamps: u32,
    /// `<|0.00|>` to `<|30.00|>`.
    pub timestamps: Range<u32>,
    /// The languages that the model knows with their ids; none for [`Kind::EnglishOnly`].
    pub languages: Vec<(Language, u32)>,
    /// What is never sampled, ascending.
    pub suppressed: Vec<u32>,
    /// What is not sampled as the first token: a space, and the end.
    pub blank: Vec<u32>,
    transcribe: u32,
    translate: u32,
}

impl<'t> SpeechTokens<'t> {
    /// Finds the ids in a `tokenizer`. Where it does not list timestamps, they follow `<|notimestamps|>`.
    ///
    /// # Errors
    /// `bad-tokenizer` if a token is absent or where text should be.
    pub fn new(tokenizer: &'t Tokenizer, kind: Kind) -> Result<SpeechTokens<'t>> {
        let id = |text: &str| -> Result<u32> { Ok(tokenizer.token_id(text).ok_or_else(|| absent(text))?) };
        let end = id("<|endoftext|>")?;
        let start = id("<|startoftranscript|>")?;
        let (transcribe, translate) = (id("<|transcribe|>")?, id("<|translate|>")?);
        let (previous, language_model) = (id("<|startofprev|>")?, id("<|startoflm|>")?);
        let no_speech = tokenizer.token_id("<|nospeech|>").map_or_else(|| id("<|nocaptions|>"), Ok)?;
        let no_timestamps = id("<|notimestamps|>")?;
        let first = tokenizer.token_id("<|0.00|>").unwrap_or(no_timestamps + 1);
        let ordered = [start, transcribe, translate, previous, language_model, no_speech, no_timestamps];
        if ordered.into_iter().any(|id| id <= end || id >= first) {
            return Err(misplaced(end, first).into());
        }
        let languages = match kind {
            Kind::EnglishOnly => Vec::new(),
            Kind::Multilingual => {
                let known = |language: Language| {
                    let id = tokenizer.token_id(&format!("<|{}|>", language.code()))?;
                    (end < id && id < first).then_some((language, id))
                };
                Language::all().filter_map(known).collect::<Vec<_>>()
            }
        };
        if kind == Kind::Multilingual && languages.is_empty() {
            return Err(absent("<|en|>").into());
        }
        let mut suppressed = not_spoken(tokenizer)?;
        suppressed.extend([transcribe, translate, start, previous, language_model, no_speech]);
        let mut blank = tokenizer.encode(" ", false)?;
        blank.push(end);
        Ok(SpeechTokens {
            tokenizer,
            kind,
            end,
            start,
            previous,
            no_speech,
            no_timestamps,
            timestamps: first..first + TIMESTAMPS,
            languages,
            suppressed: suppressed.into_iter().collect(),
            blank,
            transcribe,
            translate,
        })
    }

    /// Whether the model can do what is asked.
    ///
    /// # Errors
    /// `bad-argument` for another language than English, or a translation, with an English-only model, and for a
    /// language that the model does not know.
    pub fn check(&self, language: Option<Language>, task: Task) -> Result<()> {
        match self.kind {
            Kind::EnglishOnly => {
                if let Some(language) = language.filter(|language| *language != Language::ENGLISH) {
                    let fault = english_only("the model knows no language but English").subject("language");
                    return Err(fault.need("en (english)").have(listed([language].into_iter())).into());
                }
                match task {
                    Task::Transcribe => Ok(()),
                    Task::Translate => {
                        let fault = english_only("the model was not taught to translate").subject("task");
                        Err(fault.need("transcribe").have("translate").into())
                    }
                }
            }
            Kind::Multilingual => language.map_or(Ok(()), |language| self.language_id(language).map(|_| ())),
        }
    }

    /// The tokens that a transcript begins with: start, and for [`Kind::Multilingual`] language and task.
    ///
    /// # Errors
    /// As [`SpeechTokens::check`].
    pub fn opening(&self, language: Language, task: Task) -> Result<Vec<u32>> {
        self.check(Some(language), task)?;
        let task = match task {
            Task::Transcribe => self.transcribe,
            Task::Translate => self.translate,
        };
        match self.kind {
            Kind::EnglishOnly => Ok(vec![self.start]),
            Kind::Multilingual => Ok(vec![self.start, self.language_id(language)?, task]),
        }
    }

    /// The ids of a prompt that stands for text of windows before: a space, then `text`.
    ///
    /// # Errors
    /// `bad-argument` if the text holds a special token, `bad-tokenizer` if the vocabulary cannot write it.
    pub fn prompt(&self, text: &str) -> Result<Vec<u32>> {
        let ids = self.tokenizer.encode(&format!(" {}", text.trim()), false)?;
        match ids.iter().find(|id| !self.is_text(**id)) {
            None => Ok(ids),
            Some(&id) => {
                let text = self.tokenizer.token_text(id).unwrap_or_default();
                Err(Diagnostic::error(Code::BadArgument, "the prompt holds a special token")
                    .need("plain text")
                    .have(format_args!("{text:?}, id {id}"))
                    .into())
            }
        }
    }

    /// The text of `ids`, of which those that are no text are left out. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// `bad-token-id` if an id below the end of text is not a token.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        let text: Vec<u32> = ids.iter().copied().filter(|id| self.is_text(*id)).collect();
        self.tokenizer.decode(&text, true)
    }

    /// Whether `id` is text.
    pub fn is_text(&self, id: u32) -> bool {
        id < self.end
    }

    /// The place of a timestamp in its window, in steps of [`TIMESTAMP_S`].
    pub fn timestamp(&self, id: u32) -> Option<u32> {
        self.timestamps.contains(&id).then(|| id - self.timestamps.start)
    }

    fn language_id(&self, language: Language) -> Result<u32> {
        let found = self.languages.iter().find(|(known, _)| *known == language);
        found.map(|(_, id)| *id).ok_or_else(|| {
            Diagnostic::error(Code::BadArgument, "the model does not know this language")
                .subject("language")
                .need(format_args!("one of {}", listed(self.languages.iter().map(|(language, _)| *language))))
                .have(listed([language].into_iter()))
                .into()
        })
    }
}

/// The ids of text that is not spoken.
fn not_spoken(tokenizer: &Tokenizer) -> Result<BTreeSet<u32>> {
    let mut ids = BTreeSet::new();
    for text in WORD_STARTS {
        ids.extend(tokenizer.encode(text, false)?.first());
    }
    let sign = |(text, whole): (&'static str, bool)| [(text.to_owned(), whole), (format!(" {text}"), whole)];
    let signs = NOT_SPOKEN.split(' ').map(|text| (text, true)).chain(MUSIC.split(' ').map(|text| (text, false)));
    for (text, whole) in signs.flat_map(sign) {
        let tokens = tokenizer.encode(&text, false)?;
        if !whole || tokens.len() == 1 {
            ids.extend(tokens.first());
        }
    }
    Ok(ids)
}

fn absent(text: &str) -> Diagnostic {
    Diagnostic::error(Code::BadTokenizer, "the tokenizer is not one of Whisper's")
        .need(format_args!("the token {text}"))
        .have("no such token")
        .help("use the tokenizer.json of the model's own folder")
}

fn misplaced(end: u32, first: u32) -> Diagnostic {
    Diagnostic::error(Code::BadTokenizer, "the tokenizer's special tokens are not where Whisper has them")
        .need("all between <|endoftext|> and the first timestamp")
        .have(format_args!("<|endoftext|> at {end}, the first timestamp at {first}"))
        .help("use the tokenizer.json of the model's own folder")
}

fn english_only(message: &str) -> Diagnostic {
    Diagnostic::error(Code::BadArgument, message).help("use a model whose name does not end in .en")
}
