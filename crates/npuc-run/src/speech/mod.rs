//! Sound to text with a Whisper model, as openai/whisper's `transcribe.py` and `decoding.py` do it.
//!
//! Nothing here knows a graph: a model on any device is a [`Recogniser`], which hears 30 s and scores tokens about it.

mod decode;
mod format;
mod languages;
mod model;
mod rules;
mod tokens;
mod transcribe;

use npuc::front::config::WhisperConfig;
use npuc::{Code, Diagnostic, Result};
use npuc_audio::mel::Bands;

use crate::text::Tokenizer;

pub use decode::{Decoded, Decoder};
pub use format::{Format, rendered};
pub use languages::Language;
pub use model::{Encoder, Whisper};
pub use rules::Rules;
pub use tokens::{Kind, SpeechTokens, TIMESTAMP_S, Task};
pub(crate) use transcribe::language_heard;
pub use transcribe::{Options, Segment, Timing, Transcript, transcribe};

/// A Whisper model on any device: 30 s of sound, then tokens about them.
pub trait Recogniser {
    /// Encodes a window, `mel` is `[bands, 3000]`. What is fed afterwards is about it; nothing is fed yet.
    ///
    /// # Errors
    /// Those of the device.
    fn listen(&mut self, mel: &[f32]) -> Result<()>;

    /// Forgets the tokens fed, but not the window, and feeds these; `each` gets the scores `[vocab]` after every one of
    /// them, in order.
    ///
    /// # Errors
    /// Those of the device.
    fn restart(&mut self, prompt: &[u32], each: &mut dyn FnMut(&[f32])) -> Result<()>;

    /// Feeds one token.
    ///
    /// # Errors
    /// Those of the device.
    fn feed(&mut self, id: u32) -> Result<()>;

    /// The scores `[vocab]` after the last token fed.
    fn scores(&self) -> &[f32];

    /// The most tokens that can be fed, 448 for published models.
    fn capacity(&self) -> usize;

    /// Whether that is fewer than the model was made for. What does not fit is then an error, where the reference takes a text of
    /// half the model's context for the end of a window.
    fn is_cut(&self) -> bool {
        false
    }
}

/// An opened model with what its words and its ear are like.
pub struct Speech {
    /// The model on its device.
    pub recogniser: Box<dyn Recogniser>,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Whether it knows other languages than English.
    pub kind: Kind,
    /// The bands of the windows that it hears.
    pub bands: Bands,
}

impl Speech {
    /// A model and its tokenizer.
    ///
    /// Errors: no tokenizer, or one that is not Whisper's; a number of bands that no published model has.
    pub fn new(whisper: Whisper, tokenizer: Option<Tokenizer>) -> Result<Speech> {
        let fault =
            || Diagnostic::error(Code::BadTokenizer, "the model has no tokenizer, so nothing can be written down");
        let tokenizer = tokenizer.ok_or_else(|| fault().help("put the model's tokenizer.json into its folder"))?;
        let (bands, kind) = (bands(whisper.config())?, Kind::of_vocab_size(whisper.config().vocab));
        Ok(Speech { recogniser: Box::new(whisper), tokenizer, kind, bands })
    }
}

/// The bands of the windows that a model hears.
///
/// Errors: a number of bands that no published model has.
pub fn bands(config: &WhisperConfig) -> Result<Bands> {
    Bands::from_count(config.mels).ok_or_else(|| {
        Diagnostic::error(Code::UnsupportedAudio, "no extractor makes spectrograms of so many bands")
            .need("80 or 128")
            .have(config.mels)
            .into()
    })
}

/// The folders of a bundle of Whisper, each a bundle of one of its models.
pub const ENCODER: &str = "encoder";
/// See [`ENCODER`].
pub const DECODER: &str = "decoder";
