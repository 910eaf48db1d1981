//! Figures over a text: perplexity, and how far a model's distributions are from a reference's.
//!
//! Distributions are softmaxes in f64 over the f32 scores. One window's scores of the reference are in memory, no more.

use npuc::{Code, Diagnostic, Result};
use serde::Serialize;

use super::figures::{Fidelity, Sums};
use super::reference::{greedy_agreement, greedy_ids};
use super::windows::Windows;
use crate::session::Session;

/// Parts of a window whose cosines are told apart.
const BINS: usize = 8;
/// Windows whose first half is a prompt for greedy decoding, and the ids decoded after it.
const GREEDY_WINDOWS: usize = 3;
const GREEDY_IDS: usize = 24;

/// The figures over a text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TextFigures {
    /// Ids of a window.
    pub context: usize,
    /// Windows measured.
    pub windows: usize,
    /// Ids of the text that no window has.
    pub left_out_ids: usize,
    /// The model's perplexity.
    pub perplexity: Perplexity,
    /// The reference's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_perplexity: Option<Perplexity>,
    /// The model's perplexity over the reference's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perplexity_ratio: Option<f64>,
    /// How far the model's distributions are from the reference's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kl: Option<Kl>,
    /// The mean cosine by position in the window.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cosine_by_position: Vec<CosineBin>,
}

/// exp of the mean negative log-likelihood of the scored ids.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Perplexity {
    /// The perplexity.
    pub value: f64,
    /// Its standard error: the value times that of the mean.
    pub standard_error: f64,
    /// The ids scored.
    pub ids: usize,
}

/// Kullback-Leibler divergences of the positions, in nats: sum over the ids of p ln(p / q), where p is the reference's
/// distribution and q the model's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Kl {
    /// Their mean.
    pub mean: f64,
    /// Their median.
    pub median: f64,
    /// What 99 % of them do not exceed.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

/// The mean cosine of some positions of the windows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CosineBin {
    /// The first position in the window.
    pub first: usize,
    /// The last.
    pub last: usize,
    /// The mean cosine of their score vectors.
    pub cosine: f64,
}

/// The perplexity of a model over a text.
///
/// Errors: windows that do not fit the context, ids outside the vocabulary, scores that are not numbers.
pub fn perplexity(model: &mut Session, windows: &Windows) -> Result<TextFigures> {
    check_context(model, windows)?;
    let mut nlls = Vec::new();
    for ids in windows.iter() {
        scored(model, windows, &ids, |position, scores| nlls.push(nll(scores, ids[position + 1])))?;
    }
    let perplexity = Perplexity::of(&nlls);
    finite(perplexity, "the model")?;
    Ok(TextFigures {
        context: windows.context(),
        windows: windows.iter().len(),
        left_out_ids: windows.left_out(),
        perplexity,
        reference_perplexity: None,
        perplexity_ratio: None,
        kl: None,
        cosine_by_position: Vec::new(),
    })
}

/// Compares a model with a reference over a text.
///
/// Errors: another vocabulary, windows that do not fit one of the contexts, ids outside the vocabulary, a reference whose
/// scores are not numbers. Scores of the model that are not numbers become figures that are not and break every gate.
pub fn compare_text(model: &mut Session, reference: &mut Session, windows: &Windows) -> Result<Fidelity> {
    if model.vocab() != reference.vocab() {
        return Err(Diagnostic::error(Code::BadReference, "the reference has another vocabulary than the model")
            .need(format!("{} ids", model.vocab()))
            .have(format!("{} ids", reference.vocab()))
            .into());
    }
    check_context(model, windows)?;
    check_context(reference, windows)?;
    let greedy_count = GREEDY_IDS.min(windows.context() / 2);
    let mut rows = Rows::new(windows, model.vocab());
    let mut greedy = (0, 0);
    for (place, ids) in windows.iter().enumerate() {
        rows.expected.clear();
        scored(reference, windows, &ids, |position, scores| rows.expect(scores, ids[position + 1]))?;
        scored(model, windows, &ids, |position, scores| rows.add(position, scores, ids[position + 1]))?;
        if place < GREEDY_WINDOWS {
            let prompt = &ids[..windows.context() / 2];
            go_back(reference, prompt)?;
            let expected = greedy_ids(reference, greedy_count)?;
            go_back(model, prompt)?;
            greedy = (greedy.0 + greedy_agreement(model, &expected)?, greedy.1 + 1);
        }
    }
    let (perplexity, reference) = (Perplexity::of(&rows.nlls), Perplexity::of(&rows.expected_nlls));
    finite(reference, "the reference")?;
    let (agreed, prompts) = greedy;
    let figures = Fidelity { greedy_ids: prompts * greedy_count, ..rows.sums.figures() };
    let text = TextFigures {
        context: windows.context(),
        windows: windows.iter().len(),
        left_out_ids: windows.left_out(),
        perplexity,
        reference_perplexity: Some(reference),
        perplexity_ratio: Some(perplexity.value / reference.value),
        kl: Some(Kl::of(rows.kls)),
        cosine_by_position: bins(windows, &rows.cosines),
    };
    Ok(Fidelity { text: Some(text), ..figures.with_greedy(agreed, prompts) })
}

/// What a comparison gathers over all windows.
struct Rows {
    vocab: usize,
    /// The reference's scores of the window at hand, `[scored, vocab]`.
    expected: Vec<f32>,
    first: usize,
    sums: Sums,
    nlls: Vec<f64>,
    expected_nlls: Vec<f64>,
    kls: Vec<f64>,
    /// For each scored position the sum of its cosines over the windows.
    cosines: Vec<f64>,
}

impl Rows {
    fn new(windows: &Windows, vocab: usize) -> Rows {
        Rows {
            vocab,
            expected: Vec::with_capacity(windows.scored().len() * vocab),
            first: windows.scored().start,
            sums: Sums::default(),
            nlls: Vec::new(),
            expected_nlls: Vec::new(),
            kls: Vec::new(),
            cosines: vec![0.0; windows.scored().len()],
        }
    }

    fn expect(&mut self, scores: &[f32], next: u32) {
        self.expected_nlls.push(nll(scores, next));
        self.expected.extend_from_slice(scores);
    }

    fn add(&mut self, position: usize, scores: &[f32], next: u32) {
        let place = position - self.first;
        let expected = &self.expected[place * self.vocab..][..self.vocab];
        self.nlls.push(nll(scores, next));
        self.kls.push(kl(expected, scores));
        self.cosines[place] += self.sums.add(scores, expected);
    }
}

/// Feeds a window to an emptied session; `each` is given the scored positions and their scores.
fn scored(session: &mut Session, windows: &Windows, ids: &[u32], mut each: impl FnMut(usize, &[f32])) -> Result<()> {
    session.reset();
    let mut position = 0;
    session.feed(ids, |scores| {
        if windows.scored().contains(&position) {
            each(position, scores);
        }
        position += 1;
    })
}

/// Takes a session back to where it has seen just the prompt.
fn go_back(session: &mut Session, prompt: &[u32]) -> Result<()> {
    let kept = session.rewind_to(prompt);
    session.feed(&prompt[kept..], |_| {})
}

fn check_context(session: &Session, windows: &Windows) -> Result<()> {
    if windows.context() <= session.capacity() {
        return Ok(());
    }
    Err(Diagnostic::error(Code::ContextExceeded, "a window does not fit the context")
        .subject("--context")
        .need(format!("at most {}", session.capacity()))
        .have(windows.context())
        .help("lower --context, or build with a larger capacity (--shapes)")
        .into())
}

fn finite(perplexity: Perplexity, whose: &str) -> Result<()> {
    if !perplexity.value.is_nan() {
        return Ok(());
    }
    Err(Diagnostic::error(Code::Unfaithful, format!("{whose} gives scores that are not numbers")).into())
}

/// ln of the sum of the exponentials of the scores.
fn log_sum_exp(scores: &[f32]) -> f64 {
    let largest = f64::from(scores.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + scores.iter().map(|&score| (f64::from(score) - largest).exp()).sum::<f64>().ln()
}

/// The negative log-likelihood of an id, in nats.
fn nll(scores: &[f32], id: u32) -> f64 {
    log_sum_exp(scores) - f64::from(scores[id as usize])
}

/// The divergence of a position, see [`Kl`]. An id that the reference rules out adds nothing.
pub(crate) fn kl(reference: &[f32], model: &[f32]) -> f64 {
    let (of_reference, of_model) = (log_sum_exp(reference), log_sum_exp(model));
    let term = |(&p, &q): (&f32, &f32)| {
        let ln_p = f64::from(p) - of_reference;
        let share = ln_p.exp();
        if share == 0.0 { 0.0 } else { share * (ln_p - (f64::from(q) - of_model)) }
    };
    reference.iter().zip(model).map(term).sum()
}

impl Perplexity {
    /// Of the negative log-likelihoods; the variance is that of a sample as llama-perplexity takes it.
    fn of(nlls: &[f64]) -> Perplexity {
        let count = nlls.len() as f64;
        let mean = nlls.iter().sum::<f64>() / count;
        let variance = nlls.iter().map(|nll| (nll - mean).powi(2)).sum::<f64>() / count;
        let value = mean.exp();
        let error = if nlls.len() > 1 { (variance / (count - 1.0)).sqrt() } else { 0.0 };
        Perplexity { value, standard_error: value * error, ids: nlls.len() }
    }
}

impl Kl {
    fn of(mut kls: Vec<f64>) -> Kl {
        let mean = kls.iter().sum::<f64>() / kls.len() as f64;
        // NaN sorts behind everything and so shows in the largest.
        kls.sort_unstable_by(
            |a, b| if a.is_nan() || b.is_nan() { a.is_nan().cmp(&b.is_nan()) } else { a.total_cmp(b) },
        );
        let max = kls.last().copied().unwrap_or(f64::NAN);
        Kl { mean, median: quantile(&kls, 0.5), p99: quantile(&kls, 0.99), max }
    }
}

/// The quantile of sorted numbers, between two of them on the straight line.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    if below == above { below } else { below + (above - below) * place.fract() }
}

fn bins(windows: &Windows, cosines: &[f64]) -> Vec<CosineBin> {
    let count = BINS.min(cosines.len());
    let edge = |bin: usize| bin * cosines.len() / count;
    let bin = |bin: usize| {
        let part = &cosines[edge(bin)..edge(bin + 1)];
        let first = windows.scored().start + edge(bin);
        let samples = (part.len() * windows.iter().len()) as f64;
        CosineBin { first, last: first + part.len() - 1, cosine: part.iter().sum::<f64>() / samples }
    };
    (0..count).map(bin).collect()
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
