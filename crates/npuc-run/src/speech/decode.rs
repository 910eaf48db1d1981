//! One window: tokens from a recogniser until the text ends, again at higher temperatures if they are bad
//! (openai/whisper, `decoding.py` and `decode_with_fallback` of `transcribe.py`).
//!
//! One sequence is followed at a time, the best token or a sampled one; the reference's beams and `best_of` are left
//! out.

use std::io::Write;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use npuc::{Code, Diagnostic, Result};

use super::Recogniser;
use super::rules::Rules;
use super::tokens::SpeechTokens;
use super::transcribe::Options;
use crate::text::{Sampler, Sampling, SamplingConfig};

/// The least tokens that a recogniser must take: half of them for the text before, and as many to sample.
const MIN_CAPACITY: usize = 16;

/// What was heard in a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The sampled ids without the end of text, timestamps among them.
    pub ids: Vec<u32>,
    /// Their text without white space at its ends.
    pub text: String,
    /// The temperature they were sampled at.
    pub temperature: f32,
    /// The sum of the natural logarithms of their probabilities, that of the end of text included.
    pub sum_logprob: f64,
    /// [`sum_logprob`](Decoded::sum_logprob) by the number of ids and 1.
    pub avg_logprob: f64,
    /// The probability after the start token that nobody speaks.
    pub no_speech_prob: f64,
    /// Bytes of the text by its bytes in zlib's form; above 2.4 it mostly repeats itself.
    pub compression_ratio: f64,
}

/// Decodes window after window with the same options.
pub struct Decoder<'a> {
    tokens: &'a SpeechTokens<'a>,
    rules: Rules<'a>,
    options: &'a Options,
    /// Start, language, task.
    opening: Vec<u32>,
    /// The most ids of a window.
    most: usize,
    /// The scores of a step, `[vocab]`.
    scores: Vec<f32>,
    /// Attempts so far; each has a seed of its own.
    attempts: u64,
    /// What feeding tokens has taken.
    pub(super) busy: Duration,
    /// Tokens sampled so far.
    pub(super) sampled: usize,
}

impl<'a> Decoder<'a> {
    /// A decoder whose transcripts begin with `opening` (see [`SpeechTokens::opening`]).
    pub fn new(tokens: &'a SpeechTokens<'a>, options: &'a Options, mut opening: Vec<u32>) -> Decoder<'a> {
        let rules = if options.without_timestamps {
            Rules::without_timestamps(tokens)
        } else {
            Rules::with_timestamps(tokens, options.max_initial_timestamp_s)
        };
        opening.extend(rules.opening());
        let (scores, busy) = (Vec::new(), Duration::ZERO);
        Decoder { tokens, rules, options, opening, most: usize::MAX, scores, attempts: 0, busy, sampled: 0 }
    }

    /// The same for at most `most` ids of each window.
    pub fn at_most(self, most: usize) -> Decoder<'a> {
        Decoder { most, ..self }
    }

    /// What is fed before the first id that is sampled, without text before.
    pub fn opening(&self) -> &[u32] {
        &self.opening
    }

    /// Decodes the window that the recogniser listens to, at one temperature after the other until the result is good
    /// enough; the last one is taken in any case. Of `previous`, the text before, the end is given to the model.
    ///
    /// # Errors
    /// `unfaithful` for scores that are not numbers, `bad-tokenizer` if there are fewer than tokens, `bad-argument` for
    /// a temperature out of range or none, `context-exceeded` for a recogniser that takes too few tokens, and those of
    /// the recogniser.
    pub fn decode(&mut self, recogniser: &mut dyn Recogniser, previous: &[u32]) -> Result<Decoded> {
        let mut decoded = None;
        for temperature in &self.options.temperatures {
            let attempt = self.decode_at(recogniser, previous, *temperature)?;
            let good = self.is_good(&attempt);
            decoded = Some(attempt);
            if good {
                break;
            }
        }
        decoded.ok_or_else(no_temperature)
    }

    /// Whether no other temperature has to be tried. What is probably silence is good, however improbable its text.
    fn is_good(&self, attempt: &Decoded) -> bool {
        let Options { compression_ratio_threshold, logprob_threshold, no_speech_threshold, .. } = self.options;
        let repetitive = compression_ratio_threshold.is_some_and(|most| attempt.compression_ratio > most);
        let improbable = logprob_threshold.is_some_and(|least| attempt.avg_logprob < least);
        let silent = no_speech_threshold.is_some_and(|most| attempt.no_speech_prob > most);
        (!repetitive && !improbable) || (silent && improbable)
    }

    /// Decodes at one temperature; 0 takes the best token always.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    pub fn decode_at(
        &mut self,
        recogniser: &mut dyn Recogniser,
        previous: &[u32],
        temperature: f32,
    ) -> Result<Decoded> {
        let mut sampler = self.sampler(temperature)?;
        let capacity = capacity(recogniser)?;
        let (prompt, start_at) = self.prompt(previous, capacity);
        let no_speech_prob = self.begin(recogniser, &prompt, start_at)?;
        let (mut ids, mut sum_logprob) = (Vec::new(), 0.0);
        let mut fed = prompt.len();
        loop {
            self.read_scores(recogniser.scores())?;
            self.rules.apply(&mut self.scores, &ids);
            let id = sampler.sample(&self.scores)?;
            self.sampled += 1;
            sum_logprob += logprob(&self.scores, id);
            if id == self.tokens.end {
                break;
            }
            ids.push(id);
            if ids.len() == self.most {
                break;
            }
            if ids.len() == capacity / 2 || fed == capacity {
                if recogniser.is_cut() {
                    return Err(too_short(capacity));
                }
                break;
            }
            let began = Instant::now();
            recogniser.feed(id)?;
            self.busy += began.elapsed();
            fed += 1;
        }
        let text = self.tokens.decode(&ids)?.trim().to_owned();
        let avg_logprob = sum_logprob / (ids.len() + 1) as f64;
        let compression_ratio = compression_ratio(&text);
        Ok(Decoded { ids, text, temperature, sum_logprob, avg_logprob, no_speech_prob, compression_ratio })
    }

    fn sampler(&mut self, temperature: f32) -> Result<Sampler> {
        let seed = self.options.seed.wrapping_add(self.attempts);
        self.attempts += 1;
        let config = SamplingConfig { temperature, seed, ..SamplingConfig::default() };
        Ok(Sampler::new(Sampling::new(config)?))
    }

    /// What is fed before the first token is sampled, and where in it the start token is.
    fn prompt(&self, previous: &[u32], capacity: usize) -> (Vec<u32>, usize) {
        let most = capacity / 2 - 1;
        let tail = &previous[previous.len().saturating_sub(most)..];
        let mut prompt = Vec::with_capacity(capacity);
        if !tail.is_empty() {
            prompt.push(self.tokens.previous);
            prompt.extend_from_slice(tail);
        }
        let start_at = prompt.len();
        prompt.extend_from_slice(&self.opening);
        (prompt, start_at)
    }

    /// Feeds the prompt; the probability after the start token that nobody speaks.
    fn begin(&mut self, recogniser: &mut dyn Recogniser, prompt: &[u32], start_at: usize) -> Result<f64> {
        let (mut at, mut no_speech) = (0, None);
        let tokens = self.tokens;
        let began = Instant::now();
        recogniser.restart(prompt, &mut |scores| {
            if at == start_at {
                no_speech = Some(check_scores(scores, tokens).map(|()| logprob(scores, tokens.no_speech).exp()));
            }
            at += 1;
        })?;
        self.busy += began.elapsed();
        no_speech.unwrap_or_else(|| {
            let fault = Diagnostic::error(Code::Unfaithful, "the recogniser gave no scores after the start token");
            Err(fault.need(format_args!("{} times scores", prompt.len())).have(at).into())
        })
    }

    fn read_scores(&mut self, scores: &[f32]) -> Result<()> {
        check_scores(scores, self.tokens)?;
        self.scores.clear();
        self.scores.extend_from_slice(scores);
        Ok(())
    }
}

/// How many tokens a recogniser takes.
fn capacity(recogniser: &dyn Recogniser) -> Result<usize> {
    let capacity = recogniser.capacity();
    if capacity < MIN_CAPACITY {
        let fault = Diagnostic::error(Code::ContextExceeded, "the model takes too few tokens to transcribe with");
        return Err(fault.need(format_args!("at least {MIN_CAPACITY}")).have(capacity).into());
    }
    Ok(capacity)
}

/// What is said in a window is more than a decoder with a short cache can write down.
fn too_short(capacity: usize) -> npuc::Error {
    Diagnostic::error(Code::ContextExceeded, "what is said in 30 s does not fit the decoder's cache")
        .need("as many rows as the model has positions, 448 for published models")
        .have(format!("{capacity}, half of which are for text"))
        .help("leave out --shapes, or build with a larger capacity, e.g. --shapes 16t448c,1t448c")
        .into()
}

/// Holds scores against the tokenizer, and looks for what is not a number.
///
/// # Errors
/// `bad-tokenizer` if there are fewer scores than tokens, `unfaithful` for NaN and infinity.
pub(super) fn check_scores(scores: &[f32], tokens: &SpeechTokens<'_>) -> Result<()> {
    let need = tokens.timestamps.end as usize;
    if scores.len() < need {
        return Err(Diagnostic::error(Code::BadTokenizer, "the tokenizer has tokens that the model does not score")
            .need(format_args!("{need} scores, up to the timestamp of 30 s"))
            .have(scores.len())
            .help("use the tokenizer.json of the model's own folder")
            .into());
    }
    match scores.iter().position(|score| score.is_nan() || *score == f32::INFINITY) {
        None => Ok(()),
        Some(at) => Err(Diagnostic::error(Code::Unfaithful, "a score is not a number")
            .subject(format!("score of token {at}"))
            .need("finite scores")
            .have(scores[at])
            .help("look at the weights with `npuc inspect`; if they are all numbers, an operation overflowed")
            .into()),
    }
}

/// The natural logarithm of the probability of `id`.
pub(super) fn logprob(scores: &[f32], id: u32) -> f64 {
    let best = f64::from(scores.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = scores.iter().map(|score| (f64::from(*score) - best).exp()).sum();
    scores.get(id as usize).map_or(f64::NEG_INFINITY, |score| f64::from(*score) - best - sum.ln())
}

/// Bytes of a text by its bytes in zlib's form at level 6. Implementations of zlib differ by a few bytes.
fn compression_ratio(text: &str) -> f64 {
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::new(6));
    // Writing to memory does not fail.
    let packed = zlib.write_all(text.as_bytes()).and_then(|()| zlib.finish());
    packed.map_or(0.0, |packed| text.len() as f64 / packed.len().max(1) as f64)
}

/// What to say of options without temperatures.
pub(super) fn no_temperature() -> npuc::Error {
    Diagnostic::error(Code::BadArgument, "there is no temperature to decode at").need("at least one, e.g. 0").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compression_is_near_that_of_python() {
        // Lengths of `zlib.compress(text.encode())` in Python 3.11.7 with zlib 1.2.13.
        let kennedy = "And so my fellow Americans, ask not what your country can do for you, ask what you can do for \
                       your country.";
        let cases = [
            (String::new(), 8.0),
            ("ab".to_owned(), 10.0),
            ("ab".repeat(60), 13.0),
            (kennedy.to_owned(), 79.0),
            ("Thank you. ".repeat(20), 22.0),
            ("Zoë und Jürgen gehen über die Straße, während es regnet.".to_owned(), 68.0),
        ];
        for (text, packed_bytes) in cases {
            let expected = text.len() as f64 / packed_bytes;
            let ratio = compression_ratio(&text);
            assert!((ratio - expected).abs() <= 0.05 * expected, "{text:?}: {ratio}, {expected} in Python");
        }
    }

    #[test]
    fn logarithms_of_probabilities() {
        let inf = f32::NEG_INFINITY;
        let cases: [(&[f32], u32, f64); 6] = [
            (&[0.0, 0.0], 1, -std::f64::consts::LN_2),
            (&[5.0, inf], 0, 0.0),
            (&[5.0, inf], 1, f64::NEG_INFINITY),
            (&[f32::MAX, f32::MIN], 0, 0.0),
            (&[1e30, 1e30, 1e30, 1e30], 2, -2.0 * std::f64::consts::LN_2),
            (&[0.0], 7, f64::NEG_INFINITY),
        ];
        for (scores, id, expected) in cases {
            let got = logprob(scores, id);
            assert!(got == expected || (got - expected).abs() < 1e-12, "{scores:?} {id}: {got}");
        }
    }
}
