//! A recogniser that hears what a script says, and a tokenizer of single bytes whose ids are easily told.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use npuc::Result;
use npuc_audio::mel::{Bands, Extractor, Spectrogram};
use npuc_audio::resample::to_16k;
use npuc_audio::{Audio, Mono16k};
use npuc_run::speech::{Kind, Recogniser, SpeechTokens};
use npuc_run::text::Tokenizer;
use serde_json::{Value, json};

/// The end of text; bytes are below it.
pub(crate) const END: u32 = 256;
pub(crate) const START: u32 = 257;
pub(crate) const ENGLISH: u32 = 258;
pub(crate) const GERMAN: u32 = 259;
pub(crate) const TRANSLATE: u32 = 260;
pub(crate) const TRANSCRIBE: u32 = 261;
pub(crate) const PREVIOUS: u32 = 263;
pub(crate) const NO_SPEECH: u32 = 264;
pub(crate) const NO_TIMES: u32 = 265;
/// The first timestamp.
pub(crate) const TIME: u32 = 266;
pub(crate) const VOCAB: usize = TIME as usize + 1501;

const SPECIALS: [&str; 10] = [
    "endoftext",
    "startoftranscript",
    "en",
    "de",
    "translate",
    "transcribe",
    "startoflm",
    "startofprev",
    "nospeech",
    "notimestamps",
];

/// The 256 characters of byte-level vocabularies in the order of their bytes.
fn alphabet() -> Vec<char> {
    let mut others = '\u{100}'..;
    let plain = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    (0..=255u8).map(|byte| if plain(&byte) { char::from(byte) } else { others.next().unwrap() }).collect()
}

/// A `tokenizer.json` of byte-level BPE.
pub(crate) fn tokenizer_json(vocab: &BTreeMap<String, u32>, merges: &[String], added: &[(u32, String)]) -> Value {
    let names = added.iter().map(|(id, text)| (text.as_str(), *id));
    let added: Vec<Value> = added
        .iter()
        .map(|(id, text)| {
            json!({"id": id, "content": text, "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false})
        })
        .collect();
    // The library gives added tokens ids behind the vocabulary's size, which is less than its last id where it has gaps.
    let vocab: BTreeMap<&str, u32> = vocab.iter().map(|(text, id)| (text.as_str(), *id)).chain(names).collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "vocab": vocab, "merges": merges}})
}

pub(crate) fn byte_tokenizer(leave_out: &str, timestamps_listed: bool) -> Tokenizer {
    let vocab = (0u32..).zip(alphabet()).map(|(id, c)| (c.to_string(), id)).collect();
    let mut added: Vec<(u32, String)> = (END..)
        .zip(SPECIALS)
        .filter(|(_, text)| *text != leave_out)
        .map(|(id, text)| (id, format!("<|{text}|>")))
        .collect();
    if timestamps_listed {
        added.extend((TIME..).zip(0..1501).map(|(id, i)| (id, format!("<|{}.{:02}|>", i / 50, i % 50 * 2))));
    }
    Tokenizer::from_json(tokenizer_json(&vocab, &[], &added).to_string().as_bytes()).unwrap()
}

/// The ids of that kind of model; its tokenizer lists no timestamps.
pub(crate) fn tokens(kind: Kind) -> SpeechTokens<'static> {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    SpeechTokens::new(TOKENIZER.get_or_init(|| byte_tokenizer("", false)), kind).unwrap()
}

/// `len` samples of a soft tone.
pub(crate) fn sound(len: usize) -> Spectrogram {
    let samples = (0..len).map(|i| 0.1 * (i as f32 * 0.05).sin()).collect();
    let audio = to_16k(Audio::new(samples, Mono16k::RATE_HZ).unwrap());
    Extractor::new(Bands::Mel80).spectrogram(&audio)
}

/// Ids from a text in which `<1.50>` is a timestamp.
pub(crate) fn ids(text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.bytes().next() {
        match rest.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
            Some((time, after)) => {
                ids.push(TIME + (time.parse::<f64>().unwrap() * 50.0).round() as u32);
                rest = after;
            }
            None => {
                ids.push(u32::from(c));
                rest = &rest[1..];
            }
        }
    }
    ids
}

/// What is heard once in a window.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) ids: Vec<u32>,
    /// How far the scores of the ids are above those of other text.
    pub(crate) sure: f32,
    pub(crate) no_speech_prob: f64,
}

impl Heard {
    pub(crate) fn surely(text: &str) -> Heard {
        Heard { ids: ids(text), sure: 30.0, no_speech_prob: 0.0 }
    }

    /// Text in which a letter has a probability of a fifth, the logarithm of which is -1.6.
    pub(crate) fn hardly(text: &str) -> Heard {
        Heard { sure: 4.0, ..Heard::surely(text) }
    }

    pub(crate) fn silent(self, no_speech_prob: f64) -> Heard {
        Heard { no_speech_prob, ..self }
    }
}

/// Plays a script: for each window, what is heard at each attempt; the last attempt is repeated.
pub(crate) struct Scripted {
    pub(crate) script: Vec<Vec<Heard>>,
    pub(crate) capacity: usize,
    /// The scores of English and German, asked for by a start token alone before the first attempt.
    pub(crate) languages: Option<[f32; 2]>,
    /// Every prompt that was fed.
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) windows: usize,
    pub(crate) attempts: usize,
    fed: usize,
    step: usize,
    scores: Vec<f32>,
}

impl Scripted {
    pub(crate) fn new(script: Vec<Vec<Heard>>) -> Scripted {
        let (prompts, scores) = (Vec::new(), Vec::new());
        let languages = None;
        Scripted { script, capacity: 448, languages, prompts, windows: 0, attempts: 0, fed: 0, step: 0, scores }
    }

    fn heard(&self) -> Heard {
        let attempts = self.script.get(self.windows - 1).expect("a window more than the script has");
        attempts.get(self.attempts - 1).or(attempts.last()).unwrap().clone()
    }

    /// Scores after `step` ids of what is heard.
    fn score(&mut self) {
        let heard = self.heard();
        self.scores = vec![0.0; VOCAB];
        self.scores[TIME as usize..].fill(-30.0);
        let id = heard.ids.get(self.step).copied().unwrap_or(END);
        self.scores[id as usize] = heard.sure;
    }

    fn score_start(&mut self) {
        let probability = self.heard().no_speech_prob;
        self.scores = vec![0.0; VOCAB];
        self.scores[NO_SPEECH as usize] =
            (probability * (VOCAB - 1) as f64 / (1.0 - probability)).ln().max(-50.0) as f32;
    }
}

impl Recogniser for Scripted {
    fn listen(&mut self, mel: &[f32]) -> Result<()> {
        assert_eq!(mel.len(), 80 * 3000);
        (self.windows, self.attempts) = (self.windows + 1, 0);
        Ok(())
    }

    fn restart(&mut self, prompt: &[u32], each: &mut dyn FnMut(&[f32])) -> Result<()> {
        assert!(prompt.len() <= self.capacity, "{} tokens are too many", prompt.len());
        self.prompts.push(prompt.to_vec());
        if let (Some([english, german]), [START]) = (self.languages.take(), prompt) {
            self.scores = vec![40.0; VOCAB];
            (self.scores[ENGLISH as usize], self.scores[GERMAN as usize]) = (english, german);
            each(&self.scores);
            return Ok(());
        }
        self.attempts += 1;
        (self.fed, self.step) = (prompt.len(), 0);
        for id in prompt {
            self.score_start();
            if *id != START {
                self.scores.fill(0.0);
            }
            each(&self.scores);
        }
        self.score();
        Ok(())
    }

    fn feed(&mut self, id: u32) -> Result<()> {
        assert!(self.fed < self.capacity, "more tokens than the model takes");
        assert!((id as usize) < VOCAB);
        (self.fed, self.step) = (self.fed + 1, self.step + 1);
        self.score();
        Ok(())
    }

    fn scores(&self) -> &[f32] {
        &self.scores
    }

    fn capacity(&self) -> usize {
        self.capacity
    }
}
