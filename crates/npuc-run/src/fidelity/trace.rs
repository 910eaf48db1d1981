//! Two forms of a model side by side: every value that both compute, compared step by step.
//!
//! Both run on the host over the same ids. Only steps of as many tokens in both are used, and never with padding.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use npuc::ir::{Def, Op};
use npuc::{Code, Diagnostic, Result};
use serde::Serialize;

use super::pairs::{At, Pairing, pair, value};
use crate::device::host::{Observer, thread_pool};
use crate::program::{Program, Step};
use crate::session::Session;

/// How far the elements of a value are from the reference's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distance {
    /// Sum of the squares of the reference's elements.
    pub signal: f64,
    /// Sum of the squares of the differences.
    pub noise: f64,
    /// The largest difference.
    pub max_abs: f64,
    /// Which element has it.
    pub max_at: usize,
    /// Elements that are NaN or infinite in one form and not the same in the other. They are in neither sum.
    pub non_finite: usize,
}

impl Distance {
    /// Compares elements of equal number.
    pub fn of(reference: &[f32], model: &[f32]) -> Distance {
        let mut distance = Distance::default();
        for (at, (&r, &m)) in reference.iter().zip(model).enumerate() {
            if r.is_finite() && m.is_finite() {
                let (r, m) = (f64::from(r), f64::from(m));
                let off = (r - m).abs();
                distance.signal += r * r;
                distance.noise += off * off;
                if off > distance.max_abs {
                    (distance.max_abs, distance.max_at) = (off, at);
                }
            } else if r != m && !(r.is_nan() && m.is_nan()) {
                distance.non_finite += 1;
            }
        }
        distance
    }

    /// Takes in what another step says of the same value; `max_at` is of the step that has the largest difference.
    pub fn join(&mut self, other: &Distance) {
        self.signal += other.signal;
        self.noise += other.noise;
        self.non_finite += other.non_finite;
        if other.max_abs > self.max_abs {
            (self.max_abs, self.max_at) = (other.max_abs, other.max_at);
        }
    }

    /// Ratio of signal to noise in dB, 10 log10(signal / noise): infinite for equal elements, minus infinity where an
    /// element is not finite in one form alone.
    pub fn sqnr_db(&self) -> f64 {
        if self.non_finite > 0 {
            f64::NEG_INFINITY
        } else if self.noise == 0.0 {
            f64::INFINITY
        } else {
            10.0 * (self.signal / self.noise).log10()
        }
    }
}

/// A value that both forms compute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Where {
    /// Its path in the model.
    pub path: String,
    /// The model's operation.
    pub op: &'static str,
    /// Its extents in the model.
    pub shape: Vec<usize>,
    /// Its `%index` in the reference's graph.
    pub reference: u32,
    /// Its `%index` in the model's graph.
    pub model: u32,
    /// The graph of the step that it is in, in the reference.
    pub reference_graph: String,
    /// The same in the model.
    pub model_graph: String,
}

/// How far a value is from the reference's in one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The value.
    pub at: Where,
    /// How far it is.
    pub distance: Distance,
}

/// Computed values without a partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Unpaired {
    /// In the reference's graph.
    pub reference: usize,
    /// In the model's graph.
    pub model: usize,
}

/// What the observers of one step share.
#[derive(Default)]
struct Seen {
    /// For each pair the reference's elements.
    elements: Vec<Vec<f32>>,
    /// For each pair how far the model's are from them.
    distances: Vec<Distance>,
}

/// A step that both forms have.
struct Common {
    tokens: usize,
    pairs: Vec<Where>,
    unpaired: Unpaired,
    seen: Arc<Mutex<Seen>>,
}

/// Two forms of a model with the same history.
pub struct Tracer {
    reference: Session,
    model: Session,
    steps: Vec<Common>,
}

impl Tracer {
    /// Prepares both forms for the host on `threads` threads.
    ///
    /// Errors: another vocabulary, graphs that the host cannot compute.
    pub fn new(reference: &Program, model: &Program, threads: usize) -> Result<Tracer> {
        let pool = thread_pool(threads)?;
        let mut steps: Vec<(&Step, &Step)> = Vec::new();
        for ours in &model.steps {
            let same = |theirs: &&Step| theirs.shape.tokens == ours.shape.tokens;
            steps.extend(reference.steps.iter().find(same).map(|theirs| (theirs, ours)));
        }
        let alike = reference.hidden_mask == model.hidden_mask && reference.protocol == model.protocol;
        let same_state = |r: &Step, m: &Step| alike && r.shape == m.shape;
        let pairings: Vec<Pairing> = steps.iter().map(|(r, m)| pair(r, m, same_state(r, m))).collect();
        let common: Vec<Common> = steps.iter().zip(&pairings).map(|((r, m), pairs)| Common::new(r, m, pairs)).collect();
        let (theirs, ours): (Vec<&Step>, Vec<&Step>) = steps.iter().copied().unzip();
        let places = |of: &Step, segment: usize| vec![None; of.segments[segment].graph.values.len()];
        let map = |place: usize, segment: usize, of: &Step, at: fn(&(At, At)) -> At| {
            let mut map = places(of, segment);
            let here = pairings[place].pairs.iter().map(at).enumerate().filter(|(_, at)| at.segment == segment);
            here.for_each(|(pair, at)| map[at.id.index()] = Some(pair));
            map
        };
        let reference = Session::observed(reference, &theirs, &pool, |step, segment| {
            keeping(map(step, segment, theirs[step], |pair| pair.0), Arc::clone(&common[step].seen))
        })?;
        let model = Session::observed(model, &ours, &pool, |step, segment| {
            comparing(map(step, segment, ours[step], |pair| pair.1), Arc::clone(&common[step].seen))
        })?;
        if reference.vocab() != model.vocab() {
            return Err(Diagnostic::error(Code::BadReference, "the models to compare have different vocabularies")
                .need(format!("{} ids", reference.vocab()))
                .have(format!("{} ids", model.vocab()))
                .into());
        }
        Ok(Tracer { reference, model, steps: common })
    }

    /// The tokens of the largest step of both forms that takes no more than `most`.
    pub fn largest_step(&self, most: usize) -> usize {
        self.steps.iter().map(|step| step.tokens).filter(|&tokens| tokens <= most).max().unwrap_or(1)
    }

    /// Tokens that both forms can take.
    pub fn capacity(&self) -> usize {
        self.reference.capacity().min(self.model.capacity())
    }

    /// Values without a partner in the step that takes `tokens`.
    pub fn unpaired(&self, tokens: usize) -> Option<Unpaired> {
        self.steps.iter().find(|step| step.tokens == tokens).map(|step| step.unpaired)
    }

    /// Feeds both forms the ids of exactly one step; gives how far every paired value is, in the order of the model.
    ///
    /// Errors: no step of both forms takes as many ids; ids outside the vocabulary, more than the context holds.
    pub fn step(&mut self, ids: &[u32]) -> Result<Vec<Difference>> {
        let Some(step) = self.steps.iter().find(|step| step.tokens == ids.len()) else {
            return Err(Diagnostic::error(Code::BadArgument, "no step of both models takes as many tokens")
                .need(self.steps.iter().map(|step| step.tokens.to_string()).collect::<Vec<_>>().join(", "))
                .have(ids.len())
                .into());
        };
        self.reference.feed(ids, |_| {})?;
        self.model.feed(ids, |_| {})?;
        let seen = lock(&step.seen);
        let pairs = step.pairs.iter().zip(&seen.distances);
        Ok(pairs.map(|(at, distance)| Difference { at: at.clone(), distance: *distance }).collect())
    }
}

impl Common {
    fn new(reference: &Step, model: &Step, pairing: &Pairing) -> Common {
        let describe = |&(theirs, ours): &(At, At)| {
            let found = value(model, ours);
            Where {
                path: found.name.clone(),
                op: match &found.def {
                    Def::Op { op, .. } => Op::name(op),
                    Def::Input | Def::Weight => unreachable!("only computed values are paired"),
                },
                shape: found.ty.shape.to_vec(),
                reference: theirs.id.0,
                model: ours.id.0,
                reference_graph: reference.segments[theirs.segment].graph.name.clone(),
                model_graph: model.segments[ours.segment].graph.name.clone(),
            }
        };
        let count = pairing.pairs.len();
        Common {
            tokens: model.shape.tokens,
            pairs: pairing.pairs.iter().map(describe).collect(),
            unpaired: Unpaired { reference: pairing.unpaired.0, model: pairing.unpaired.1 },
            seen: Arc::new(Mutex::new(Seen {
                elements: vec![Vec::new(); count],
                distances: vec![Distance::default(); count],
            })),
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the elements of the reference; `pairs` has for each value its pair.
fn keeping(pairs: Vec<Option<usize>>, seen: Arc<Mutex<Seen>>) -> Observer {
    Box::new(move |id, elements| {
        if let Some(pair) = pairs[id.index()] {
            let kept = &mut lock(&seen).elements[pair];
            kept.clear();
            kept.extend_from_slice(elements);
        }
    })
}

/// Compares the elements of the model with what was kept.
fn comparing(pairs: Vec<Option<usize>>, seen: Arc<Mutex<Seen>>) -> Observer {
    Box::new(move |id, elements| {
        if let Some(pair) = pairs[id.index()] {
            let mut seen = lock(&seen);
            seen.distances[pair] = Distance::of(&seen.elements[pair], elements);
        }
    })
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
