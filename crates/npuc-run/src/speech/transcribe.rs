//! A whole recording: windows one after the other, each from where the text of the last one ended (openai/whisper,
//! `transcribe.py`).
//!
//! Left out are the reference's beams and `best_of`, word timestamps and what depends on them, clips, and carrying the
//! initial prompt from window to window.

use std::time::{Duration, Instant};

use npuc::Result;
use npuc_audio::mel::{HOP_SAMPLES, Spectrogram, Window};
use serde::Serialize;

use super::Recogniser;
use super::decode::{Decoded, Decoder, check_scores, logprob, no_temperature};
use super::languages::Language;
use super::tokens::{Kind, SpeechTokens, TIMESTAMP_S, Task};
use crate::text::{Sampling, SamplingConfig};

/// The time from one frame to the next.
const FRAME_S: f64 = HOP_SAMPLES as f64 / npuc_audio::Mono16k::RATE_HZ as f64;

/// Frames from one timestamp to the next: the encoder makes one position of two.
const FRAMES_PER_TIMESTAMP: usize = 2;

/// Text that was sampled above this temperature is not given to the model with the next window (openai/whisper,
/// `transcribe.py`).
const TRUSTED_TEMPERATURE: f32 = 0.5;

/// How to transcribe. The defaults are those of the reference's `transcribe()`.
///
/// Its `best_of`, `beam_size`, `patience` and `length_penalty` are left out: one sequence is followed, which is what
/// the reference does by default.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The language that is spoken. By default, what the first 30 s sound like.
    pub language: Option<Language>,
    /// By default [`Task::Transcribe`].
    pub task: Task,
    /// The temperatures that are tried until a window's text is good; 0 takes the best token always. By default 0, 0.2,
    /// 0.4, 0.6, 0.8, 1.
    pub temperatures: Vec<f32>,
    /// Text that zlib makes smaller by more than this repeats itself and is tried again. By default 2.4.
    pub compression_ratio_threshold: Option<f64>,
    /// Text with a lower average of logarithms of probabilities is tried again. By default -1.
    pub logprob_threshold: Option<f64>,
    /// A window is skipped as silent if the probability of that is higher than this and its text no more probable than
    /// [`logprob_threshold`](Options::logprob_threshold). By default 0.6.
    pub no_speech_threshold: Option<f64>,
    /// Whether the text of the windows before is given to the model. By default true.
    pub condition_on_previous_text: bool,
    /// Text that the first windows are heard as a continuation of: names, spellings. By default none.
    pub initial_prompt: Option<String>,
    /// Whether the model gives text alone; windows then lie side by side, and words between two are cut. By default
    /// false.
    pub without_timestamps: bool,
    /// The latest that the first segment of a window begins, in seconds; `None` for any time. By default 1.
    pub max_initial_timestamp_s: Option<f64>,
    /// Where the random numbers of temperatures above 0 begin. By default 0; the reference has no fixed one.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            language: None,
            task: Task::Transcribe,
            temperatures: Options::temperatures_from(0.0),
            compression_ratio_threshold: Some(2.4),
            logprob_threshold: Some(-1.0),
            no_speech_threshold: Some(0.6),
            condition_on_previous_text: true,
            initial_prompt: None,
            without_timestamps: false,
            max_initial_timestamp_s: Some(1.0),
            seed: 0,
        }
    }
}

impl Options {
    /// The temperatures from `first` up to 1 in steps of 0.2, as the reference's command line makes them; above 1,
    /// `first` alone.
    pub fn temperatures_from(first: f32) -> Vec<f32> {
        let steps = (1u8..).map(|step| (f64::from(first) + 0.2 * f64::from(step)) as f32);
        std::iter::once(first).chain(steps.take_while(|temperature| *temperature <= 1.0 + 1e-6).take(5)).collect()
    }

    /// Looks for values that cannot be, and for what this model does not do.
    ///
    /// # Errors
    /// `bad-argument` as [`SpeechTokens::check`], and for a temperature out of range or none.
    pub fn check(&self, tokens: &SpeechTokens<'_>) -> Result<()> {
        tokens.check(self.language, self.task)?;
        if self.temperatures.is_empty() {
            return Err(no_temperature());
        }
        for temperature in &self.temperatures {
            Sampling::new(SamplingConfig { temperature: *temperature, ..SamplingConfig::default() })?;
        }
        Ok(())
    }
}

/// A piece of text with its time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Segment {
    /// When it begins, from the beginning of the audio.
    pub start_s: f64,
    /// When it ends, at the latest where the audio does (a model may say later, and the reference repeats it).
    pub end_s: f64,
    /// The text, mostly with a space before it.
    pub text: String,
    /// The ids, timestamps among them.
    pub ids: Vec<u32>,
    /// The frame, of 10 ms, at which the window began that it was heard in.
    pub window_frame: usize,
    /// The temperature that its window was decoded at.
    pub temperature: f32,
    /// The average of the logarithms of the probabilities of its window's ids.
    pub avg_logprob: f64,
    /// Bytes of its window's text by its bytes in zlib's form.
    pub compression_ratio: f64,
    /// The probability that nobody speaks in its window.
    pub no_speech_prob: f64,
}

/// A language that was heard.
pub(crate) struct Detected {
    pub(crate) language: Language,
    /// Among the languages that the model knows.
    probability: f64,
}

/// What the work took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timing {
    /// Windows that were encoded.
    pub windows: usize,
    /// Tokens that were sampled, over all attempts.
    pub sampled_tokens: usize,
    /// The time of encoding windows.
    pub encode_ms: f64,
    /// The time of feeding tokens.
    pub decode_ms: f64,
    /// All of it.
    pub total_ms: f64,
}

/// The text of a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transcript {
    /// The text of all segments.
    pub text: String,
    /// The language that was given or detected; none if there was nothing to hear it in.
    pub language: Option<Language>,
    /// The probability, among the languages that the model knows, of one that was detected.
    pub language_probability: Option<f64>,
    /// The segments by time. Those without text or length are left out, which the reference keeps without their text.
    pub segments: Vec<Segment>,
    /// What the work took.
    pub timing: Timing,
}

/// Transcribes `sound`. `on_segment` gets every segment as soon as its window is decoded. Sound of less than a frame
/// gives an empty transcript without asking the recogniser.
///
/// # Errors
/// Those of [`Options::check`], [`SpeechTokens::prompt`] and [`Decoder::decode`], before any sound is looked at where
/// they do not depend on it.
pub fn transcribe(
    recogniser: &mut dyn Recogniser,
    tokens: &SpeechTokens<'_>,
    sound: &Spectrogram,
    options: &Options,
    on_segment: &mut dyn FnMut(&Segment),
) -> Result<Transcript> {
    options.check(tokens)?;
    let prompt = options.initial_prompt.as_deref().map_or(Ok(Vec::new()), |text| tokens.prompt(text))?;
    let began = Instant::now();
    let mut ear = Ear { recogniser, first_frame: None, busy: Duration::ZERO, windows: 0 };
    let given = match tokens.kind {
        Kind::EnglishOnly => Some(Language::ENGLISH),
        Kind::Multilingual => options.language,
    };
    let detected = match (given, sound.window(0)) {
        (None, Some(first)) => Some(detect(&mut ear, tokens, &first)?),
        (None, None) | (Some(_), _) => None,
    };
    let language = given.or(detected.as_ref().map(|detected| detected.language));
    let mut told = Told { tokens, options, ids: prompt.clone(), prompt_from: 0, segments: Vec::new() };
    let (mut sampled, mut decode) = (0, Duration::ZERO);
    if let Some(language) = language {
        let mut decoder = Decoder::new(tokens, options, tokens.opening(language, options.task)?);
        windows(&mut ear, &mut decoder, sound, &mut told, on_segment)?;
        (sampled, decode) = (decoder.sampled, decoder.busy);
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Transcript {
        text: tokens.decode(&told.ids[prompt.len()..])?,
        language,
        language_probability: detected.map(|detected| detected.probability),
        segments: told.segments,
        timing: Timing {
            windows: ear.windows,
            sampled_tokens: sampled,
            encode_ms: ms(ear.busy),
            decode_ms: ms(decode),
            total_ms: ms(began.elapsed()),
        },
    })
}

/// A recogniser with the window that it listens to.
struct Ear<'r> {
    recogniser: &'r mut dyn Recogniser,
    /// The first frame of the window.
    first_frame: Option<usize>,
    busy: Duration,
    windows: usize,
}

impl Ear<'_> {
    /// Encodes a window, unless it is the one that was encoded last.
    fn listen(&mut self, first_frame: usize, window: &Window) -> Result<()> {
        if self.first_frame != Some(first_frame) {
            let began = Instant::now();
            self.recogniser.listen(&window.mel)?;
            self.busy += began.elapsed();
            self.windows += 1;
            self.first_frame = Some(first_frame);
        }
        Ok(())
    }
}

/// The language of the first window. Behind the end of shorter sound the reference hears silence here, and zeros when
/// it decodes; npuc hears zeros both times, and so encodes the window once.
fn detect(ear: &mut Ear<'_>, tokens: &SpeechTokens<'_>, first: &Window) -> Result<Detected> {
    ear.listen(0, first)?;
    language_heard(ear.recogniser, tokens)
}

/// The language of the window that the recogniser listens to, the first of equally probable ones.
///
/// # Errors
/// `unfaithful` for scores that are not numbers, `bad-tokenizer` if there are fewer than tokens, and those of the recogniser.
pub(crate) fn language_heard(recogniser: &mut dyn Recogniser, tokens: &SpeechTokens<'_>) -> Result<Detected> {
    recogniser.restart(&[tokens.start], &mut |_| {})?;
    let scores = recogniser.scores();
    check_scores(scores, tokens)?;
    let known: Vec<f32> = tokens.languages.iter().map(|(_, id)| scores[*id as usize]).collect();
    let first_of_best = |best: usize, i: usize| if known[i] > known[best] { i } else { best };
    let best = (0..known.len()).fold(0, first_of_best);
    Ok(Detected { language: tokens.languages[best].0, probability: logprob(&known, best as u32).exp() })
}

/// Decodes every window. Each begins behind the last one: what follows advances by at least a frame.
fn windows(
    ear: &mut Ear<'_>,
    decoder: &mut Decoder<'_>,
    sound: &Spectrogram,
    told: &mut Told<'_>,
    on_segment: &mut dyn FnMut(&Segment),
) -> Result<()> {
    let end_s = sound.frames() as f64 * FRAME_S;
    let mut seek = 0;
    while let Some(window) = sound.window(seek) {
        ear.listen(seek, &window)?;
        let decoded = decoder.decode(ear.recogniser, told.previous())?;
        if told.is_silent(&decoded) {
            seek += window.content_frames;
            continue;
        }
        let (pieces, advance) = pieces(&decoded.ids, told.tokens, window.content_frames);
        let known = told.segments.len();
        told.take(&decoded, &pieces, seek, end_s)?;
        told.segments[known..].iter().for_each(&mut *on_segment);
        seek += if advance == 0 { window.content_frames } else { advance };
    }
    Ok(())
}

/// What has been heard so far.
struct Told<'a> {
    tokens: &'a SpeechTokens<'a>,
    options: &'a Options,
    /// The initial prompt and the ids of all segments.
    ids: Vec<u32>,
    /// Where the ids begin that are given to the model with the next window.
    prompt_from: usize,
    segments: Vec<Segment>,
}

impl Told<'_> {
    fn previous(&self) -> &[u32] {
        &self.ids[self.prompt_from..]
    }

    /// Whether a window is skipped: probably nobody speaks, and its text is not probable either.
    fn is_silent(&self, decoded: &Decoded) -> bool {
        let Options { no_speech_threshold, logprob_threshold, .. } = self.options;
        let silent = no_speech_threshold.is_some_and(|most| decoded.no_speech_prob > most);
        silent && !logprob_threshold.is_some_and(|least| decoded.avg_logprob > least)
    }

    /// Keeps the pieces of a window that begins at the frame `seek`, of audio that ends at `end_s`.
    fn take(&mut self, decoded: &Decoded, pieces: &[Piece<'_>], seek: usize, end_s: f64) -> Result<()> {
        let offset_s = seek as f64 * FRAME_S;
        for piece in pieces {
            let text = self.tokens.decode(piece.ids)?;
            let (start_s, piece_end_s) = (offset_s + piece.start_s, offset_s + piece.end_s);
            if start_s == piece_end_s || text.trim().is_empty() {
                continue;
            }
            self.ids.extend_from_slice(piece.ids);
            self.segments.push(Segment {
                start_s: start_s.min(end_s),
                end_s: piece_end_s.min(end_s),
                text,
                ids: piece.ids.to_vec(),
                window_frame: seek,
                temperature: decoded.temperature,
                avg_logprob: decoded.avg_logprob,
                compression_ratio: decoded.compression_ratio,
                no_speech_prob: decoded.no_speech_prob,
            });
        }
        if !self.options.condition_on_previous_text || decoded.temperature > TRUSTED_TEMPERATURE {
            self.prompt_from = self.ids.len();
        }
        Ok(())
    }
}

/// Ids of a window that belong together; times are from the window's beginning.
#[derive(Debug, PartialEq)]
struct Piece<'a> {
    ids: &'a [u32],
    start_s: f64,
    end_s: f64,
}

/// A window's ids cut between timestamps that follow each other, and how many of its `content` frames are done with.
///
/// What is behind the last such cut is not finished, and heard again, unless a single timestamp ends the text: then
/// nobody speaks behind it. Without cuts all is one piece up to its last timestamp.
fn pieces<'a>(ids: &'a [u32], tokens: &SpeechTokens<'_>, content: usize) -> (Vec<Piece<'a>>, usize) {
    let steps = |id: u32| tokens.timestamp(id).unwrap_or(0);
    let is_time = |id: &u32| tokens.timestamp(*id).is_some();
    let ends_alone = matches!(ids, [.., text, time] if !is_time(text) && is_time(time));
    let pair = |at: &usize| is_time(&ids[at - 1]) && is_time(&ids[*at]);
    let mut cuts: Vec<usize> = (1..ids.len()).filter(pair).collect();
    let Some(&last_cut) = cuts.last() else {
        let latest = ids.iter().rev().find_map(|id| tokens.timestamp(*id)).filter(|steps| *steps > 0);
        let end_s = latest.map_or(content as f64 * FRAME_S, |steps| f64::from(steps) * TIMESTAMP_S);
        return (vec![Piece { ids, start_s: 0.0, end_s }], content);
    };
    if ends_alone {
        cuts.push(ids.len());
    }
    let mut from = 0;
    let between = cuts.into_iter().map(|to| {
        let piece = &ids[from..to];
        from = to;
        let at_s = |id: Option<&u32>| f64::from(id.map_or(0, |id| steps(*id))) * TIMESTAMP_S;
        Piece { ids: piece, start_s: at_s(piece.first()), end_s: at_s(piece.last()) }
    });
    let between = between.collect();
    let advance = if ends_alone { content } else { steps(ids[last_cut - 1]) as usize * FRAMES_PER_TIMESTAMP };
    (between, advance)
}
