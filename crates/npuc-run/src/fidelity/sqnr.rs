//! The ratio of signal to noise of every value inside two forms of a model.

use std::collections::BTreeMap;

use npuc::Result;
use serde::Serialize;

use super::trace::{Difference, Distance, Tracer, Unpaired, Where};
use crate::program::Program;

/// The most tokens of the prefill step, and the decode steps after it.
const PREFILL_TOKENS: usize = 128;
const DECODE_STEPS: usize = 4;

/// How far the values of a model are from a reference's, over a prefill step and some decode steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Layers {
    /// Tokens of the prefill step.
    pub prefill_tokens: usize,
    /// Decode steps after it.
    pub decode_steps: usize,
    /// Every value of both, the worst first.
    pub values: Vec<ValueFidelity>,
    /// Values of the prefill step that have no partner.
    pub unpaired: Unpaired,
}

/// How far a value is over all steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValueFidelity {
    /// Its path in the model.
    pub path: String,
    /// The model's operation.
    pub op: &'static str,
    /// Its `%index` in the model's prefill graph.
    pub model: u32,
    /// The graph that is in.
    pub model_graph: String,
    /// The ratio in dB; absent where no element differs or one is not finite, see the next two.
    pub sqnr_db: Option<f64>,
    /// Whether all elements are equal.
    pub equal: bool,
    /// Elements that are NaN or infinite in one form alone.
    pub non_finite: usize,
    /// The largest difference of two elements.
    pub max_abs: f64,
}

/// Compares the values of two forms of a model over the first of the `ids`.
///
/// Errors: as [`Tracer::new`] and [`Tracer::step`].
pub fn layers(reference: &Program, model: &Program, ids: &[u32], threads: usize) -> Result<Layers> {
    let mut tracer = Tracer::new(reference, model, threads)?;
    let ids = &ids[..ids.len().min(tracer.capacity())];
    let prefill = tracer.largest_step(ids.len().saturating_sub(DECODE_STEPS).clamp(1, PREFILL_TOKENS)).min(ids.len());
    let (first, rest) = ids.split_at(prefill);
    let decoded = &rest[..rest.len().min(DECODE_STEPS)];
    let mut found: Vec<(Where, Distance)> = Vec::new();
    let mut places: BTreeMap<(String, &str, usize), usize> = BTreeMap::new();
    for ids in [first].into_iter().chain(decoded.chunks(1)) {
        let mut turns: BTreeMap<(String, &str), usize> = BTreeMap::new();
        for Difference { at, distance } in tracer.step(ids)? {
            // A value of two steps is the one of the same path, operation and turn.
            let turn = turns.entry((at.path.clone(), at.op)).or_default();
            let place = *places.entry((at.path.clone(), at.op, *turn)).or_insert(found.len());
            *turn += 1;
            match found.get_mut(place) {
                Some((_, all)) => all.join(&distance),
                None => found.push((at, distance)),
            }
        }
    }
    let unpaired = tracer.unpaired(prefill).unwrap_or(Unpaired { reference: 0, model: 0 });
    found.sort_by(|(_, a), (_, b)| a.sqnr_db().total_cmp(&b.sqnr_db()));
    Ok(Layers {
        prefill_tokens: prefill,
        decode_steps: decoded.len(),
        values: found.into_iter().map(|(at, distance)| ValueFidelity::new(at, &distance)).collect(),
        unpaired,
    })
}

impl ValueFidelity {
    fn new(at: Where, distance: &Distance) -> ValueFidelity {
        ValueFidelity {
            path: at.path,
            op: at.op,
            model: at.model,
            model_graph: at.model_graph,
            sqnr_db: Some(distance.sqnr_db()).filter(|db| db.is_finite()),
            equal: distance.sqnr_db() == f64::INFINITY,
            non_finite: distance.non_finite,
            max_abs: distance.max_abs,
        }
    }
}
