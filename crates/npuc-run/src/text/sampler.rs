//! Chooses the next token from logits.
//!
//! The steps and their order are those of Hugging Face transformers: repetition penalty, temperature, top-k, top-p,
//! min-p; each works on what the one before has left. The same seed and logits give the same tokens.

use std::cmp::Ordering;
use std::collections::HashSet;

use npuc::diag::{Code, Diagnostic, Error, Result};
use npuc_kernels::vector::largest;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

/// How many candidates the search for the top-p set sorts first.
const FIRST_SORTED: usize = 256;

/// How to sample, as the user gives it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingConfig {
    /// Divides the logits; 0 takes the best token always.
    pub temperature: f32,
    /// Keeps the k best tokens and those equal to the k-th; 0 keeps all.
    pub top_k: usize,
    /// Keeps the fewest best tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this times as likely as the best; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that were seen; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Where the random numbers start.
    pub seed: u64,
}

impl Default for SamplingConfig {
    /// Greedy: the best token always.
    fn default() -> SamplingConfig {
        SamplingConfig { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, seed: 0 }
    }
}

/// A [`SamplingConfig`] whose values are all in range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling(SamplingConfig);

impl Sampling {
    /// Checks every value of `config`.
    ///
    /// # Errors
    /// `bad-argument` for each value that is out of range.
    pub fn new(config: SamplingConfig) -> Result<Sampling> {
        let SamplingConfig { temperature, top_k: _, top_p, min_p, repetition_penalty, seed: _ } = config;
        let checks = [
            ("temperature", temperature, temperature.is_finite() && temperature >= 0.0, "0 (greedy) or more"),
            ("top-p", top_p, top_p > 0.0 && top_p <= 1.0, "more than 0, at most 1"),
            ("min-p", min_p, (0.0..=1.0).contains(&min_p), "0 to 1"),
            (
                "repetition penalty",
                repetition_penalty,
                repetition_penalty.is_finite() && repetition_penalty > 0.0,
                "more than 0",
            ),
        ];
        let faults = checks.into_iter().filter(|(_, _, good, _)| !good).map(|(name, value, _, need)| {
            Diagnostic::error(Code::BadArgument, format!("the {name} is out of range")).need(need).have(value)
        });
        Error::check(faults.collect())?;
        Ok(Sampling(config))
    }

    /// The checked values.
    pub fn config(&self) -> &SamplingConfig {
        &self.0
    }
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    logit: f32,
    /// Probability relative to the best candidate's, in 0..=1.
    weight: f64,
}

/// Draws tokens. Its buffers grow to the vocabulary's size once and are reused.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    rng: ChaCha8Rng,
    seen: HashSet<u32>,
    candidates: Vec<Candidate>,
    logits: Vec<f32>,
}

impl Sampler {
    /// A sampler at the beginning of `sampling`'s random numbers.
    pub fn new(sampling: Sampling) -> Sampler {
        Sampler {
            sampling,
            rng: ChaCha8Rng::seed_from_u64(sampling.0.seed),
            seen: HashSet::new(),
            candidates: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// Counts `ids` as seen for the repetition penalty: give it the prompt. Tokens that [`sample`](Sampler::sample)
    /// draws are counted by themselves.
    pub fn accept(&mut self, ids: &[u32]) {
        if self.sampling.0.repetition_penalty != 1.0 {
            self.seen.extend(ids);
        }
    }

    /// Draws the next token from `logits`, `[vocab]`. Of equal best logits, greedy takes the lowest id.
    ///
    /// # Errors
    /// `unfaithful` if a logit is NaN or positive infinity, or none is finite: the model computed nonsense.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        let SamplingConfig { temperature, repetition_penalty, .. } = self.sampling.0;
        let id = match (temperature == 0.0, repetition_penalty == 1.0) {
            (true, true) => best(logits)?.0,
            (true, false) => self.penalised(logits)?.0,
            (false, _) => self.draw(logits)?,
        };
        self.accept(&[id]);
        Ok(id)
    }

    /// The probabilities from which [`sample`](Sampler::sample) would draw: `(id, probability)` of every token that is
    /// left, in no particular order.
    ///
    /// # Errors
    /// As [`sample`](Sampler::sample).
    pub fn distribution(&mut self, logits: &[f32]) -> Result<Vec<(u32, f64)>> {
        if self.sampling.0.temperature == 0.0 {
            return Ok(vec![(self.penalised(logits)?.0, 1.0)]);
        }
        let total = self.filter(logits)?;
        Ok(self.candidates.iter().map(|c| (c.id, c.weight / total)).collect())
    }

    fn draw(&mut self, logits: &[f32]) -> Result<u32> {
        let total = self.filter(logits)?;
        // 53 random bits make a double in 0..1.
        let mut left = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * total;
        let mut chosen = None;
        for candidate in self.candidates.iter().filter(|c| c.weight > 0.0) {
            chosen = Some(candidate.id);
            left -= candidate.weight;
            if left < 0.0 {
                break;
            }
        }
        chosen.ok_or_else(|| nonsense("no token has a probability").into())
    }

    /// Copies the logits with the repetition penalty into the scratch buffer; returns the best id and logit.
    fn penalised(&mut self, logits: &[f32]) -> Result<(u32, f32)> {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        let penalty = self.sampling.0.repetition_penalty;
        for &id in &self.seen {
            if let Some(logit) = self.logits.get_mut(id as usize) {
                *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
            }
        }
        best(&self.logits)
    }

    /// Begins again at the random numbers of `seed`, with no token seen; the buffers stay.
    pub fn restart(&mut self, seed: u64) {
        self.sampling.0.seed = seed;
        self.rng = ChaCha8Rng::seed_from_u64(seed);
        self.seen.clear();
    }

    /// Leaves in `candidates` what every step keeps; returns the sum of their weights.
    fn filter(&mut self, logits: &[f32]) -> Result<f64> {
        let (_, best) = self.penalised(logits)?;
        let SamplingConfig { temperature, top_k, top_p, min_p, .. } = self.sampling.0;
        let weight = |logit: f32| ((f64::from(logit) - f64::from(best)) / f64::from(temperature)).exp();
        self.candidates.clear();
        let all = (0u32..).zip(&self.logits).map(|(id, &logit)| Candidate { id, logit, weight: weight(logit) });
        self.candidates.extend(all);
        if top_k > 0 && top_k < self.candidates.len() {
            let (_, &mut kth, _) = self.logits.select_nth_unstable_by(top_k - 1, |a, b| b.total_cmp(a));
            self.candidates.retain(|c| c.logit >= kth);
        }
        if top_p < 1.0 {
            self.keep_top_p(f64::from(top_p));
        }
        self.candidates.retain(|c| c.weight >= f64::from(min_p));
        Ok(self.candidates.iter().map(|c| c.weight).sum())
    }

    /// Keeps the fewest best candidates whose weights reach `top_p` of the sum, sorting only as many as it must.
    fn keep_top_p(&mut self, top_p: f64) {
        let best_first = |a: &Candidate, b: &Candidate| match b.logit.total_cmp(&a.logit) {
            Ordering::Equal => a.id.cmp(&b.id),
            different @ (Ordering::Less | Ordering::Greater) => different,
        };
        let wanted = top_p * self.candidates.iter().map(|c| c.weight).sum::<f64>();
        let (mut sorted, mut reached) = (0, 0.0);
        while sorted < self.candidates.len() && reached < wanted {
            let rest = &mut self.candidates[sorted..];
            let step = rest.len().min(FIRST_SORTED.max(sorted * 3));
            if step < rest.len() {
                rest.select_nth_unstable_by(step, best_first);
            }
            let rest = &mut rest[..step];
            rest.sort_unstable_by(best_first);
            for candidate in rest {
                if reached >= wanted {
                    break;
                }
                reached += candidate.weight;
                sorted += 1;
            }
        }
        self.candidates.truncate(sorted.max(1));
    }
}

/// Logits that are looked at together.
const BLOCK: usize = 1024;

/// The lowest id with the best logit, and that logit.
fn best(logits: &[f32]) -> Result<(u32, f32)> {
    // A vocabulary is read once, at the speed of memory; of its blocks only that with the best is searched.
    let (mut best, mut start, mut has_nan) = (f32::NEG_INFINITY, 0, false);
    for (block, logits) in logits.chunks(BLOCK).enumerate() {
        let (most, nan) = largest(logits);
        has_nan |= nan;
        if most > best {
            (best, start) = (most, block * BLOCK);
        }
    }
    if has_nan || best == f32::INFINITY {
        let bad = logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY).unwrap_or_default();
        let fault = nonsense("a logit is not a number").subject(format!("logit of token {bad}"));
        return Err(fault.have(logits[bad]).into());
    }
    if best == f32::NEG_INFINITY {
        return Err(nonsense("no logit is finite").have(format_args!("{} logits", logits.len())).into());
    }
    let place = logits[start..].iter().position(|&logit| logit == best).unwrap_or_default();
    Ok(((start + place) as u32, best))
}

fn nonsense(message: &str) -> Diagnostic {
    Diagnostic::error(Code::Unfaithful, message)
        .need("finite logits")
        .help("look at the weights with `npuc inspect`; if they are all numbers, an operation overflowed")
}
