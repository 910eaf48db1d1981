//! The flags of `npuc transcribe`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use npuc_run::speech::Task;

use super::DeviceArgs;

const TRANSCRIBE: &str = "\
The defaults are those of OpenAI's whisper, with one text followed at a time instead of several (no
beams, no best of). Text that repeats itself or is improbable is tried again, 0.2 hotter each time up
to 1; the thresholds say when.";

/// What is made of speech.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TaskArg {
    /// Text in the language that is spoken
    Transcribe,
    /// Text in English
    Translate,
}

impl From<TaskArg> for Task {
    fn from(task: TaskArg) -> Task {
        match task {
            TaskArg::Transcribe => Task::Transcribe,
            TaskArg::Translate => Task::Translate,
        }
    }
}

/// The form of a transcript.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatArg {
    /// A line a segment
    Txt,
    /// SubRip subtitles
    Srt,
    /// WebVTT subtitles
    Vtt,
    /// The object that OpenAI's whisper writes
    Json,
}

/// A number that something is held against, or nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Threshold(pub(crate) Option<f64>);

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Threshold, String> {
        if text.eq_ignore_ascii_case("none") {
            return Ok(Threshold(None));
        }
        let number = text.parse().ok().filter(|number: &f64| number.is_finite());
        number.map(|number| Threshold(Some(number))).ok_or_else(|| "a number or the word none is needed".to_owned())
    }
}

#[derive(Args)]
#[command(after_help = TRANSCRIBE)]
pub(crate) struct TranscribeArgs {
    /// A Whisper model: a bundle, a Hugging Face folder, or a folder in CTranslate2's form
    pub(crate) model: PathBuf,
    /// A WAV file
    #[arg(value_name = "FILE.wav")]
    pub(crate) audio: PathBuf,
    /// The language that is spoken, by code or name, e.g. de or German; without it, what the first 30 s sound like
    #[arg(long, value_name = "LANGUAGE")]
    pub(crate) language: Option<String>,
    /// What is made of the speech
    #[arg(long, value_enum, default_value_t = TaskArg::Transcribe)]
    pub(crate) task: TaskArg,
    /// Print the times of each segment before its text
    #[arg(long)]
    pub(crate) timestamps: bool,
    /// The form of the transcript
    #[arg(long, value_enum, default_value_t = FormatArg::Txt)]
    pub(crate) format: FormatArg,
    /// Text that the first 30 s are heard as a continuation of: names, spellings
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Randomness that the first attempt begins with; 0 takes the best token every time
    #[arg(long, default_value_t = 0.0, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// Skip 30 s in which nobody speaks with a higher probability than this, unless their text is probable; or none
    #[arg(long, default_value = "0.6", value_name = "P")]
    pub(crate) no_speech_threshold: Threshold,
    /// Try again where zlib makes the text smaller by more than this; or none
    #[arg(long, default_value = "2.4", value_name = "RATIO")]
    pub(crate) compression_ratio_threshold: Threshold,
    /// Try again where the tokens' average logarithm of probability is lower than this; or none
    #[arg(long, default_value = "-1", value_name = "LOGPROB", allow_negative_numbers = true)]
    pub(crate) logprob_threshold: Threshold,
    /// Do not give the model the text before with the next 30 s
    #[arg(long)]
    pub(crate) no_condition: bool,
    /// A text file with what is said, in UTF-8: tell how many words are written wrongly
    #[arg(long, value_name = "FILE")]
    pub(crate) expected: Option<PathBuf>,
    /// Write the transcript into this file instead of printing it
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}
