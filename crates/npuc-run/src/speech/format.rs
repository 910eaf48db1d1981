//! Transcripts as files: plain text, subtitles, and JSON with the names of Whisper's own (openai/whisper, `utils.py`).
//!
//! All but JSON can be written segment by segment: what [`Format::begin`] gives, then [`Format::segment`] of each.

use std::fmt::Write;

use npuc::{Code, Diagnostic, Result};
use serde::Serialize;

use super::languages::Language;
use super::transcribe::{Segment, Transcript};

/// The form of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A line a segment; with times, they stand before it in brackets.
    Txt {
        /// Whether times are written.
        times: bool,
    },
    /// SubRip subtitles.
    Srt,
    /// WebVTT subtitles.
    Vtt,
    /// An object with the names that the reference's JSON has, on one line.
    Json,
}

impl Format {
    /// What stands before the first segment.
    pub fn begin(self) -> &'static str {
        match self {
            Format::Vtt => "WEBVTT\n\n",
            Format::Txt { .. } | Format::Srt | Format::Json => "",
        }
    }

    /// A segment; `index` counts from 0. Nothing for [`Format::Json`], which is written as a whole.
    pub fn segment(self, index: usize, segment: &Segment) -> String {
        let text = segment.text.trim();
        let cue = || text.replace("-->", "->");
        let (start_s, end_s) = (segment.start_s, segment.end_s);
        match self {
            Format::Txt { times: false } => format!("{text}\n"),
            Format::Txt { times: true } => {
                format!("[{} --> {}] {text}\n", clock(start_s, Hours::IfAny, '.'), clock(end_s, Hours::IfAny, '.'))
            }
            Format::Srt => {
                let (start, end) = (clock(start_s, Hours::Always, ','), clock(end_s, Hours::Always, ','));
                format!("{}\n{start} --> {end}\n{}\n\n", index + 1, cue())
            }
            Format::Vtt => {
                let (start, end) = (clock(start_s, Hours::IfAny, '.'), clock(end_s, Hours::IfAny, '.'));
                format!("{start} --> {end}\n{}\n\n", cue())
            }
            Format::Json => String::new(),
        }
    }
}

/// The whole file.
///
/// # Errors
/// `unfaithful` if JSON cannot hold the transcript.
pub fn rendered(transcript: &Transcript, format: Format) -> Result<String> {
    match format {
        Format::Txt { .. } | Format::Srt | Format::Vtt => {
            let mut text = format.begin().to_owned();
            for (index, segment) in transcript.segments.iter().enumerate() {
                text.push_str(&format.segment(index, segment));
            }
            Ok(text)
        }
        Format::Json => json(transcript),
    }
}

/// Whether hours stand in a time.
#[derive(Clone, Copy)]
enum Hours {
    Always,
    IfAny,
}

/// A time to the millisecond, e.g. `01:02:03.004`.
fn clock(time_s: f64, hours: Hours, point: char) -> String {
    let ms = (time_s * 1000.0).round_ties_even() as u64;
    let (h, min, s, ms) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
    let mut text = String::new();
    let with_hours = match hours {
        Hours::Always => true,
        Hours::IfAny => h > 0,
    };
    if with_hours {
        // Writing to memory does not fail.
        let _ = write!(text, "{h:02}:");
    }
    let _ = write!(text, "{min:02}:{s:02}{point}{ms:03}");
    text
}

/// The object of the reference.
#[derive(Serialize)]
struct Whole<'a> {
    text: &'a str,
    segments: Vec<Part<'a>>,
    language: Option<Language>,
}

#[derive(Serialize)]
struct Part<'a> {
    id: usize,
    seek: usize,
    start: f64,
    end: f64,
    text: &'a str,
    tokens: &'a [u32],
    temperature: f32,
    avg_logprob: f64,
    compression_ratio: f64,
    no_speech_prob: f64,
}

impl<'a> Part<'a> {
    fn of(id: usize, segment: &'a Segment) -> Part<'a> {
        Part {
            id,
            seek: segment.window_frame,
            start: segment.start_s,
            end: segment.end_s,
            text: &segment.text,
            tokens: &segment.ids,
            temperature: segment.temperature,
            avg_logprob: segment.avg_logprob,
            compression_ratio: segment.compression_ratio,
            no_speech_prob: segment.no_speech_prob,
        }
    }
}

fn json(transcript: &Transcript) -> Result<String> {
    let segments = transcript.segments.iter().enumerate().map(|(id, segment)| Part::of(id, segment)).collect();
    let whole = Whole { text: &transcript.text, segments, language: transcript.language };
    let json = serde_json::to_string(&whole)
        .map_err(|e| Diagnostic::error(Code::Unfaithful, "the transcript cannot be written as JSON").have(e))?;
    Ok(json + "\n")
}
