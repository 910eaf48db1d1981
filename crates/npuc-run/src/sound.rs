//! Sound to calibrate Whisper with: the windows of a recording, and what the model itself writes about them.
//!
//! The encoder is run over the windows, the decoder over the tokens; both in float, as the checkpoint has them.

use std::path::Path;
use std::sync::Arc;

use npuc::front::config::Stack;
use npuc::front::{self, Checkpoint, ModelConfig};
use npuc::{Code, Diagnostic, Result};
use npuc_audio::mel::Extractor;
use npuc_audio::{resample, wav};
use sha2::{Digest, Sha256};

use crate::program::Program;
use crate::session::Steps;
use crate::speech::{Encoder, Options, Speech, SpeechTokens, Whisper, transcribe};

/// Windows of sound and what is said in them.
#[derive(Clone, Debug)]
pub struct Sound {
    /// The encoder that the windows are for.
    encoder: Arc<Program>,
    /// Whether the model that is calibrated is the decoder.
    writes: bool,
    windows: Vec<Window>,
}

/// 30 s of sound.
#[derive(Clone, Debug)]
struct Window {
    /// `[bands, frames]`.
    mel: Vec<f32>,
    /// The ids that the decoder is fed about it.
    ids: Vec<u32>,
}

impl Sound {
    /// The first `most` windows in which something is said of a WAV file. `checkpoint` is one of the models of a checkpoint of
    /// both, which is opened again to hear and write with.
    ///
    /// Errors: a file that is no audio, or in which nothing is said; a model without a tokenizer.
    pub fn of_file(path: &Path, checkpoint: &Checkpoint, most: usize, threads: usize) -> Result<Sound> {
        let audio = resample::to_16k(wav::read(path)?);
        if audio.samples().iter().all(|sample| sample.abs() < SILENCE) {
            return Err(nothing_said(path));
        }
        let both = front::open(&checkpoint.path)?;
        let program = |stack| {
            let half = both.stack(stack).ok_or_else(|| not_whisper(&both))?;
            Program::from_checkpoint(half, None)
        };
        let (encoder, mut decoder) = (program(Stack::Encoder)?, program(Stack::Decoder)?);
        let text = std::mem::replace(&mut decoder.text, Ok(None))?;
        let steps = |program| Steps::on_host(program, threads, &[]);
        let whisper = Whisper::new((&encoder, steps(&encoder)?), (&decoder, steps(&decoder)?))?;
        let mut speech = Speech::new(whisper, text.map(|text| text.tokenizer)).map_err(|e| e.in_file(&both.path))?;
        let tokens = SpeechTokens::new(&speech.tokenizer, speech.kind)?;
        let spectrogram = Extractor::new(speech.bands).spectrogram(&audio);
        let options = Options::default();
        let told = transcribe(speech.recogniser.as_mut(), &tokens, &spectrogram, &options, &mut |_| {})?;
        let language = told.language.unwrap_or(crate::speech::Language::ENGLISH);
        let opening = tokens.opening(language, options.task)?;
        let mut windows: Vec<(usize, Window)> = Vec::new();
        for segment in &told.segments {
            match windows.last_mut().filter(|(frame, _)| *frame == segment.window_frame) {
                Some((_, window)) => window.ids.extend(&segment.ids),
                None => {
                    let Some(heard) = spectrogram.window(segment.window_frame) else { continue };
                    let ids = opening.iter().chain(&segment.ids).copied().collect();
                    windows.push((segment.window_frame, Window { mel: heard.mel, ids }));
                }
            }
        }
        if windows.is_empty() {
            return Err(nothing_said(path));
        }
        let windows = windows.into_iter().take(most).map(|(_, window)| window).collect();
        Ok(Sound { encoder: Arc::new(encoder), writes: checkpoint.config.reads_tokens(), windows })
    }

    /// The same for another of Whisper's models.
    pub(crate) fn for_model(&self, config: &ModelConfig) -> Sound {
        Sound { writes: config.reads_tokens(), ..self.clone() }
    }

    /// The number of windows.
    pub fn windows(&self) -> usize {
        self.windows.len()
    }

    /// The ids of every window, for a decoder; nothing for an encoder.
    pub fn sequences(&self) -> Vec<Vec<u32>> {
        self.windows.iter().filter(|_| self.writes).map(|window| window.ids.clone()).collect()
    }

    /// Spectrograms `[bands, frames]`, of every window.
    pub(crate) fn spectrograms(&self) -> impl Iterator<Item = &[f32]> {
        self.windows.iter().map(|window| window.mel.as_slice())
    }

    /// The encoder that the decoder listens to.
    ///
    /// Errors: as [`Encoder::of`].
    pub(crate) fn encoder(&self, threads: usize) -> Result<Encoder> {
        Encoder::of(&self.encoder, Steps::on_host(&self.encoder, threads, &[])?)
    }

    /// The hash of everything that a model is run over, in hexadecimal.
    pub(crate) fn sha256(&self) -> String {
        let mut hash = Sha256::new();
        for Window { mel, ids } in &self.windows {
            mel.iter().for_each(|value| hash.update(value.to_le_bytes()));
            ids.iter().filter(|_| self.writes).for_each(|id| hash.update(id.to_le_bytes()));
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Sound that is never louder is silence, 60 dB below full scale: a model may hear words in it all the same.
const SILENCE: f32 = 1e-3;

fn nothing_said(path: &Path) -> npuc::Error {
    let fault = Diagnostic::error(Code::BadArgument, "nothing is said in the sound to calibrate with");
    fault.file(path).need("a recording of speech, of some seconds at least").into()
}

fn not_whisper(checkpoint: &Checkpoint) -> npuc::Error {
    let fault = Diagnostic::error(Code::UnsupportedArchitecture, "only Whisper is calibrated with sound");
    fault.file(&checkpoint.path).have(checkpoint.config.family()).into()
}
