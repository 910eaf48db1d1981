//! Calibration text: a file of the user's or what the model itself writes, as sequences of token ids, with a hash.

use std::path::Path;

use npuc::bundle::CalibrationRecord;
use npuc::front::Checkpoint;
use npuc::quant::stream::check_finite;
use npuc::{Code, Diagnostic, Error, Result};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::calibrate::{Material, own_sequences};
use crate::sound::Sound;
use crate::text::TextModel;

/// The fewest tokens that say anything of a model's activations.
const FEWEST_TOKENS: usize = 32;

/// Sequences of token ids to calibrate with.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// The sequences; none for an encoder of sound.
    pub sequences: Vec<Vec<u32>>,
    /// What Whisper's models are run over.
    pub sound: Option<Sound>,
    /// What they are, for reports.
    pub source: String,
    /// The SHA-256 of the ids, in hexadecimal: what was calibrated with.
    pub sha256: String,
}

/// How much text is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// Sequences at most.
    pub samples: usize,
    /// Tokens of each at most; a sequence is never longer than the model's context.
    pub tokens: usize,
}

impl Corpus {
    /// The text of a file: plain, or one JSON object with `text` a line where the name ends in `.jsonl`. Sequences are
    /// taken evenly over the whole text.
    ///
    /// Errors: a model without a tokenizer; a file that cannot be read, is not UTF-8, has a malformed line, or holds
    /// fewer than 32 tokens.
    pub fn of_file(path: &Path, checkpoint: &Checkpoint, amount: Amount) -> Result<Corpus> {
        let model = TextModel::of_checkpoint(checkpoint)?.ok_or_else(|| {
            let fault = Diagnostic::error(Code::NoTokenizer, "the model has no tokenizer to read the text with");
            fault.file(path).help("leave out --calibration: the model then writes its own text")
        })?;
        let text = read_text(path)?;
        let encode = |text: &str| model.tokenizer.encode(text, true).map_err(|e| e.in_file(path));
        let documents: Vec<Vec<u32>> = match path.extension().is_some_and(|ending| ending == "jsonl") {
            true => {
                lines(&text).map_err(|e| e.in_file(path))?.iter().map(|text| encode(text)).collect::<Result<_>>()?
            }
            false => vec![encode(&text)?],
        };
        let total: usize = documents.iter().map(Vec::len).sum();
        if total < FEWEST_TOKENS {
            let fault = Diagnostic::error(Code::BadArgument, "the text to calibrate with is too short").file(path);
            return Err(fault.need(format!("{FEWEST_TOKENS} tokens at least")).have(format!("{total} tokens")).into());
        }
        let tokens = amount.tokens.min(checkpoint.config.max_positions()).max(1);
        let pieces: Vec<&[u32]> = documents.iter().flat_map(|ids| ids.chunks(tokens)).collect();
        let whole = pieces.iter().copied().filter(|ids| ids.len() == tokens);
        let pieces = if whole.clone().count() >= amount.samples { whole.collect() } else { pieces };
        let taken = amount.samples.min(pieces.len());
        let sequences: Vec<Vec<u32>> = (0..taken).map(|i| pieces[i * pieces.len() / taken].to_vec()).collect();
        Ok(Corpus::new(sequences, path.display().to_string()))
    }

    /// What the model writes by itself from its first token on, from fixed seeds.
    ///
    /// Errors: a model that cannot begin a text, or gives scores that are not numbers; a weight that is to blame is named.
    pub fn of_model(checkpoint: &Checkpoint, amount: Amount, threads: usize) -> Result<Corpus> {
        let written = own_sequences(checkpoint, amount.samples, amount.tokens, threads);
        let sequences = written.map_err(|error| {
            let mut weights = checkpoint.tensors.iter();
            weights.find_map(|(name, tensor)| check_finite(name, tensor).err()).unwrap_or(error)
        })?;
        Ok(Corpus::new(sequences, "the model's own text".into()))
    }

    /// What is said in a WAV file, for one of Whisper's models.
    ///
    /// Errors: as [`Sound::of_file`].
    pub fn of_sound(path: &Path, checkpoint: &Checkpoint, windows: usize, threads: usize) -> Result<Corpus> {
        let sound = Sound::of_file(path, checkpoint, windows, threads)?;
        let (sequences, source, sha256) = (sound.sequences(), path.display().to_string(), sound.sha256());
        Ok(Corpus { sequences, sound: Some(sound), source, sha256 })
    }

    /// What a model is run over.
    pub fn material(&self) -> Material<'_> {
        match &self.sound {
            Some(sound) => Material::Sound(sound),
            None => Material::Text(&self.sequences),
        }
    }

    fn new(sequences: Vec<Vec<u32>>, source: String) -> Corpus {
        let mut hash = Sha256::new();
        for ids in &sequences {
            hash.update((ids.len() as u64).to_le_bytes());
            ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
        }
        let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Corpus { sequences, sound: None, source, sha256 }
    }

    /// The first sequences, whole, up to the one with which there are `tokens` tokens; of sound everything.
    pub fn first_tokens(self, tokens: usize) -> Corpus {
        if self.sound.is_some() {
            return self;
        }
        let mut taken = 0;
        let enough = |ids: &Vec<u32>| {
            let enough = taken >= tokens;
            taken += ids.len();
            !enough
        };
        Corpus::new(self.sequences.into_iter().take_while(enough).collect(), self.source)
    }

    /// What a manifest keeps of it.
    pub fn record(&self) -> CalibrationRecord {
        CalibrationRecord {
            source: self.source.clone(),
            sequences: self.sound.as_ref().map_or(self.sequences.len(), Sound::windows),
            tokens: self.tokens(),
            sha256: self.sha256.clone(),
        }
    }

    /// The tokens of all sequences.
    pub fn tokens(&self) -> usize {
        self.sequences.iter().map(Vec::len).sum()
    }
}

/// The content of a text file.
///
/// Errors: a file that cannot be read or is not UTF-8, with the offset of the first byte that is not.
pub fn read_text(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path)
        .map_err(|e| Diagnostic::error(Code::Unreadable, format!("cannot read the file: {e}")).file(path))?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Diagnostic::error(Code::Unreadable, "the text is not UTF-8")
            .file(path)
            .need("UTF-8")
            .have(format!("byte {:#04x} at offset {at}", e.as_bytes()[at]))
            .help("convert the text, e.g. with iconv -t UTF-8")
            .into()
    })
}

/// The texts of a file of JSON lines.
fn lines(text: &str) -> Result<Vec<String>> {
    #[derive(Deserialize)]
    struct Line {
        text: String,
    }
    let (mut texts, mut faults) = (Vec::new(), Vec::new());
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str::<Line>(line) {
            Ok(line) => texts.push(line.text),
            Err(e) => {
                let fault = Diagnostic::error(Code::BadArgument, format!("a line is malformed: {e}")).line(number + 1);
                faults.push(fault.need("an object with a `text`"));
            }
        }
    }
    Error::check(faults)?;
    Ok(texts)
}
