//! What may be sampled next: scores of everything else become minus infinity (openai/whisper, `decoding.py`).
//!
//! With finite scores something is always left: the end of text, or at the beginning the first timestamps.

use super::tokens::{SpeechTokens, TIMESTAMP_S};

/// The rules of one transcription.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    tokens: &'a SpeechTokens<'a>,
    times: Times,
}

/// What is asked of timestamps.
#[derive(Clone, Copy, Debug)]
enum Times {
    /// There are none.
    Without,
    /// They come in pairs around segments, the first of them at most this many steps from the window's beginning.
    Pairs { last_initial: Option<u32> },
}

impl<'a> Rules<'a> {
    /// Rules for text between timestamps, of which the first is at most `max_initial_timestamp_s` (in seconds, if it
    /// says so) behind the beginning of the window.
    pub fn with_timestamps(tokens: &'a SpeechTokens<'a>, max_initial_timestamp_s: Option<f64>) -> Rules<'a> {
        let last_initial = max_initial_timestamp_s.map(|limit_s| (limit_s / TIMESTAMP_S).round_ties_even() as u32);
        Rules { tokens, times: Times::Pairs { last_initial } }
    }

    /// Rules for text alone. Timestamps are suppressed too; the reference trusts the model to give none, and a model
    /// that does could keep its loop in place.
    pub fn without_timestamps(tokens: &'a SpeechTokens<'a>) -> Rules<'a> {
        Rules { tokens, times: Times::Without }
    }

    /// The token between [`SpeechTokens::opening`] and the first sampled one.
    pub(super) fn opening(&self) -> Option<u32> {
        match self.times {
            Times::Without => Some(self.tokens.no_timestamps),
            Times::Pairs { .. } => None,
        }
    }

    /// Suppresses what must not follow the `sampled` tokens of this window. `scores` is `[vocab]`, at least up to the
    /// last timestamp.
    pub fn apply(&self, scores: &mut [f32], sampled: &[u32]) {
        let timestamps = &self.tokens.timestamps;
        // A vocabulary that is padded to a round size has no tokens there.
        suppress(scores, timestamps.end, u32::MAX);
        if sampled.is_empty() {
            suppress_each(scores, &self.tokens.blank);
        }
        suppress_each(scores, &self.tokens.suppressed);
        suppress_each(scores, &[self.tokens.no_timestamps]);
        match self.times {
            Times::Without => suppress(scores, timestamps.start, timestamps.end),
            Times::Pairs { last_initial } => self.pairs(scores, sampled, last_initial),
        }
    }

    fn pairs(&self, scores: &mut [f32], sampled: &[u32], last_initial: Option<u32>) {
        let SpeechTokens { timestamps, end, .. } = self.tokens;
        let is_timestamp = |id: &u32| timestamps.contains(id);
        let last_is = sampled.last().is_some_and(is_timestamp);
        let before_is = sampled.iter().rev().nth(1).is_none_or(is_timestamp);
        match (last_is, before_is) {
            // A pair, or the window's first timestamp: a segment has begun.
            (true, true) => suppress(scores, timestamps.start, timestamps.end),
            // A segment has ended: the next begins, or the text ends.
            (true, false) => suppress(scores, 0, *end),
            (false, _) => {}
        }
        if let Some(&latest) = sampled.iter().rev().find(|id| is_timestamp(id)) {
            // The next segment may begin where the last one ended, but none ends where it began.
            let least = if last_is && !before_is { latest } else { latest + 1 };
            suppress(scores, timestamps.start, least);
        }
        if sampled.is_empty() {
            suppress(scores, 0, timestamps.start);
            if let Some(last) = last_initial {
                suppress(scores, timestamps.start.saturating_add(last).saturating_add(1), timestamps.end);
            }
        }
        if timestamps_win(scores, timestamps.start as usize) {
            suppress(scores, 0, timestamps.start);
        }
    }
}

/// Whether all timestamps together are more probable than the best other token.
fn timestamps_win(scores: &[f32], first: usize) -> bool {
    let (text, times) = scores.split_at(first.min(scores.len()));
    let best = |scores: &[f32]| scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let best_time = f64::from(best(times));
    if best_time == f64::NEG_INFINITY {
        return false;
    }
    let sum: f64 = times.iter().map(|score| (f64::from(*score) - best_time).exp()).sum();
    best_time + sum.ln() > f64::from(best(text))
}

/// Suppresses the ids from `first` up to `end`, as far as there are scores.
fn suppress(scores: &mut [f32], first: u32, end: u32) {
    let len = scores.len();
    let (first, end) = ((first as usize).min(len), (end as usize).min(len));
    scores[first..end.max(first)].fill(f32::NEG_INFINITY);
}

fn suppress_each(scores: &mut [f32], ids: &[u32]) {
    for id in ids {
        if let Some(score) = scores.get_mut(*id as usize) {
            *score = f32::NEG_INFINITY;
        }
    }
}
