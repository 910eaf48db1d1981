//! Whisper on a device: its encoder and its decoder as one thing that hears and writes.
//!
//! The encoder computes the keys and values of the decoder's layers once for a window; the decoder's session keeps them.

use std::collections::BTreeMap;

use npuc::front::ModelConfig;
use npuc::front::config::WhisperConfig;
use npuc::model::{Port, StateKind};
use npuc::{Code, Diagnostic, Result};

use super::Recogniser;
use crate::program::Program;
use crate::session::steps::{Step, Steps};
use crate::session::{Recorded, Session};

/// An encoder on a device.
pub struct Encoder {
    step: Step,
}

impl Encoder {
    /// The encoder of a program, whose only step is in `steps`.
    ///
    /// Errors: a program of another model.
    pub fn of(program: &Program, Steps(steps): Steps) -> Result<Encoder> {
        let [step] = <[Step; 1]>::try_from(steps).map_err(|steps| not_one_step(steps.len()))?;
        match program.config.reads_tokens() {
            false => Ok(Encoder { step }),
            true => Err(other_model(&program.config, "an encoder of sound")),
        }
    }

    /// What is heard in a spectrogram `[bands, frames]`: keys and values `[heads, positions, head_dim]` of each layer of the
    /// decoder, in port order.
    ///
    /// Errors: a spectrogram of another size; a device that fails.
    pub fn encode(&mut self, mel: &[f32]) -> Result<impl ExactSizeIterator<Item = &[f32]>> {
        let port = &mut self.step.inputs[0];
        if mel.len() != port.len() {
            let fault = Diagnostic::error(Code::BadShape, "the spectrogram is not of the encoder's size");
            return Err(fault.need(format!("{} numbers", port.len())).have(mel.len()).into());
        }
        port.copy_from_slice(mel);
        self.step.device.run(&[&self.step.inputs])?;
        Ok(self.step.results.iter().map(|&port| self.step.device.output(port)))
    }

    /// The elements of a spectrogram.
    pub(crate) fn mel_elements(&self) -> usize {
        self.step.inputs[0].len()
    }

    /// Encodes a spectrogram and gives what entered and left the ports, by name: for tests of other runners.
    ///
    /// Errors: as [`Encoder::encode`].
    pub(crate) fn recorded(&mut self, mel: &[f32]) -> Result<Recorded> {
        let left: Vec<Vec<f32>> = self.encode(mel)?.map(<[f32]>::to_vec).collect();
        let outputs = self.step.device.outputs();
        let names = self.step.results.iter().map(|&port| outputs[port].0.clone());
        Ok(Recorded { inputs: vec![(Port::Mel.to_string(), mel.to_vec())], outputs: names.zip(left).collect() })
    }
}

fn not_one_step(count: usize) -> npuc::Error {
    Diagnostic::error(Code::BadBundle, "an encoder has one step").need(1).have(count).into()
}

fn other_model(config: &ModelConfig, need: &str) -> npuc::Error {
    let fault = Diagnostic::error(Code::UnsupportedArchitecture, "the model is not what transcription needs");
    fault.need(need).have(config.family()).help("give a Whisper checkpoint, or a bundle that was built of one").into()
}

/// Both models of Whisper, which belong together.
pub struct Whisper {
    encoder: Encoder,
    decoder: Session,
    config: WhisperConfig,
}

impl Whisper {
    /// An encoder and the decoder that listens to it.
    ///
    /// Errors: programs of other models, or of two that do not fit each other.
    pub fn new(encoder: (&Program, Steps), decoder: (&Program, Steps)) -> Result<Whisper> {
        let config = match (&encoder.0.config, &decoder.0.config) {
            // A recipe may give the decoder a head of its own.
            (ModelConfig::Whisper(hears), ModelConfig::Whisper(writes))
                if (WhisperConfig { tied: writes.tied, ..hears.of(writes.stack) }) == *writes =>
            {
                writes.clone()
            }
            (ModelConfig::Whisper(_), ModelConfig::Whisper(_)) => {
                let fault = Diagnostic::error(Code::BadBundle, "the encoder and the decoder are not of one model");
                return Err(fault.help("build both again from one checkpoint").into());
            }
            (ModelConfig::Llama(_) | ModelConfig::Lfm2(_), _) => {
                return Err(other_model(&encoder.0.config, "Whisper's encoder"));
            }
            (_, other) => return Err(other_model(other, "Whisper's decoder")),
        };
        let (encoder, decoder) = (Encoder::of(encoder.0, encoder.1)?, Session::of(decoder.0, decoder.1)?);
        Ok(Whisper { encoder, decoder, config })
    }

    /// The model's shape.
    pub fn config(&self) -> &WhisperConfig {
        &self.config
    }

    /// The decoder.
    pub fn decoder(&mut self) -> &mut Session {
        &mut self.decoder
    }

    /// What was heard last: keys and values `[heads, positions, head_dim]` of each layer of the decoder, in port order.
    /// Zeros before the first window.
    pub fn heard(&self) -> impl ExactSizeIterator<Item = (Port, &[f32])> {
        self.decoder.heard().iter().enumerate().map(|(place, numbers)| {
            let kind = if place % 2 == 0 { StateKind::Key } else { StateKind::Value };
            (Port::Heard(kind, place / 2), &**numbers)
        })
    }

    /// How many numbers of each value of both models were beyond their encodings so far, as [`Session::saturated`] tells it.
    pub fn saturated(&self) -> BTreeMap<String, u64> {
        let mut all = self.decoder.saturated();
        for (name, count) in self.encoder.step.device.saturated() {
            *all.entry(name).or_default() += count;
        }
        all
    }
}

impl Recogniser for Whisper {
    fn listen(&mut self, mel: &[f32]) -> Result<()> {
        self.decoder.listen(self.encoder.encode(mel)?);
        Ok(())
    }

    fn restart(&mut self, prompt: &[u32], each: &mut dyn FnMut(&[f32])) -> Result<()> {
        self.decoder.reset();
        self.decoder.feed(prompt, each)
    }

    fn feed(&mut self, id: u32) -> Result<()> {
        self.decoder.decode(id)
    }

    fn scores(&self) -> &[f32] {
        self.decoder.logits().unwrap_or_default()
    }

    fn capacity(&self) -> usize {
        self.decoder.capacity()
    }

    fn is_cut(&self) -> bool {
        self.decoder.capacity() < self.config.target_positions
    }
}
