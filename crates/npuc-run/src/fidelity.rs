//! Fidelity: how close a session's scores are to a reference that something else computed.
//!
//! The reference is a safetensors file with `input_ids` `[batch, tokens]`, and `logits`
//! `[batch, tokens, vocab]` or `greedy_ids` `[batch, new]` or both.

use std::path::Path;
use std::str::FromStr;

use npuc::tensor::SourceFile;
use npuc::{Code, Diagnostic, Error, Result};
use safetensors::{Dtype, SafeTensors};
use serde::Serialize;

use crate::session::Session;

/// What a session is compared with.
#[derive(Clone, Debug)]
pub struct Reference {
    /// Prompts, one a row of the batch, of equal length.
    pub prompts: Vec<Vec<u32>>,
    /// For each prompt the scores `[tokens, vocab]`.
    pub logits: Option<Vec<Vec<f32>>>,
    /// For each prompt the ids that greedy decoding appends.
    pub greedy: Option<Vec<Vec<u32>>>,
    vocab: Option<usize>,
}

/// The figures of a comparison. Agreements are fractions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fidelity {
    /// Positions compared.
    pub positions: usize,
    /// Mean over the positions of the cosine of the two score vectors.
    pub cosine_mean: Option<f64>,
    /// The smallest of these cosines.
    pub cosine_min: Option<f64>,
    /// The largest difference of two scores.
    pub max_abs: Option<f64>,
    /// Positions whose best id agrees.
    pub top1: Option<f64>,
    /// Mean share of the ten best ids that both have.
    pub top10: Option<f64>,
    /// Greedy ids that agree before the first that does not, over all of them.
    pub greedy: Option<f64>,
    /// The greedy ids compared.
    pub greedy_ids: usize,
}

impl Reference {
    /// Reads a reference.
    ///
    /// Errors: a file that is not safetensors, tensors of another type or shape, ids out of range.
    pub fn read(path: &Path) -> Result<Reference> {
        let file = SourceFile::open(path)?;
        let fault = |message: String| Diagnostic::error(Code::BadReference, message).file(path);
        let tensors = SafeTensors::deserialize(file.bytes())
            .map_err(|e| fault(format!("the reference is not a safetensors file: {e}")))?;
        let ids = |name: &str| int_rows(&tensors, name).map_err(|e| Error::from(fault(e).subject(name)));
        let prompts = ids("input_ids")?.ok_or_else(|| {
            fault("the reference has no prompts".into()).need("input_ids [batch, tokens], i64").have("no such tensor")
        })?;
        if prompts.iter().any(Vec::is_empty) || prompts.is_empty() {
            return Err(fault("the reference has an empty prompt".into()).subject("input_ids").into());
        }
        let greedy = ids("greedy_ids")?;
        let (logits, vocab) = match float_rows(&tensors, prompts.len(), prompts[0].len()) {
            Ok(Some((rows, vocab))) => (Some(rows), Some(vocab)),
            Ok(None) => (None, None),
            Err(message) => return Err(fault(message).subject("logits").into()),
        };
        if logits.is_none() && greedy.is_none() {
            let fault = fault("the reference has nothing to compare with".into());
            return Err(fault.need("logits or greedy_ids").have("neither").into());
        }
        if greedy.as_ref().is_some_and(|greedy| greedy.len() != prompts.len()) {
            let fault = fault("the reference has another number of answers than of prompts".into());
            return Err(fault.subject("greedy_ids").into());
        }
        Ok(Reference { prompts, logits, greedy, vocab })
    }
}

impl Reference {
    /// What a session computes: the scores after every id of the prompts, and `new` greedy ids after each.
    ///
    /// Errors: prompts that do not fit the context; what the session's device refuses.
    pub fn of_session(session: &mut Session, prompts: Vec<Vec<u32>>, new: usize) -> Result<Reference> {
        let (mut logits, mut greedy) = (Vec::new(), Vec::new());
        for prompt in &prompts {
            session.reset();
            let mut rows = Vec::new();
            session.feed(prompt, |scores| rows.extend_from_slice(scores))?;
            logits.push(rows);
            let mut ids = Vec::with_capacity(new);
            while ids.len() < new {
                let best = session.logits().and_then(best_id).ok_or_else(|| {
                    Diagnostic::error(Code::Unfaithful, "the model to compare with gives scores that are not numbers")
                })?;
                ids.push(best);
                if ids.len() < new {
                    session.decode(best)?;
                }
            }
            greedy.push(ids);
        }
        Ok(Reference { prompts, logits: Some(logits), greedy: Some(greedy), vocab: Some(session.vocab()) })
    }
}

fn int_rows(tensors: &SafeTensors<'_>, name: &str) -> Result<Option<Vec<Vec<u32>>>, String> {
    let Ok(tensor) = tensors.tensor(name) else { return Ok(None) };
    let &[_, width] = tensor.shape() else {
        return Err(format!("the tensor needs two axes and has the shape {:?}", tensor.shape()));
    };
    if tensor.dtype() != Dtype::I64 || width == 0 {
        return Err(format!("the tensor needs i64 rows and has {:?}{:?}", tensor.dtype(), tensor.shape()));
    }
    let ids = tensor.data().chunks_exact(8).map(|bytes| {
        let id = i64::from_le_bytes(bytes.try_into().map_err(|_| "an id is cut off".to_string())?);
        u32::try_from(id).map_err(|_| format!("{id} is not a token id"))
    });
    let ids: Vec<u32> = ids.collect::<Result<_, _>>()?;
    Ok(Some(ids.chunks_exact(width).map(<[u32]>::to_vec).collect()))
}

type Scores = (Vec<Vec<f32>>, usize);

fn float_rows(tensors: &SafeTensors<'_>, batch: usize, tokens: usize) -> Result<Option<Scores>, String> {
    let Ok(tensor) = tensors.tensor("logits") else { return Ok(None) };
    let vocab = match tensor.shape() {
        &[b, t, vocab] if b == batch && t == tokens && vocab > 0 && tensor.dtype() == Dtype::F32 => vocab,
        shape => {
            return Err(format!(
                "the tensor needs F32[{batch}, {tokens}, vocab] and has {:?}{shape:?}",
                tensor.dtype()
            ));
        }
    };
    let scores: Vec<f32> =
        tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let odd = scores.iter().filter(|score| !score.is_finite()).count();
    if odd > 0 {
        return Err(format!("{odd} of the {} scores are not finite", scores.len()));
    }
    Ok(Some((scores.chunks_exact(tokens * vocab).map(<[f32]>::to_vec).collect(), vocab)))
}

/// Compares a session with a reference; the session is reset for every prompt.
///
/// Errors: another vocabulary, prompts that do not fit the context.
pub fn compare(session: &mut Session, reference: &Reference) -> Result<Fidelity> {
    if let Some(vocab) = reference.vocab.filter(|&vocab| vocab != session.vocab()) {
        return Err(Diagnostic::error(Code::BadReference, "the reference has another vocabulary than the model")
            .need(format!("{} ids", session.vocab()))
            .have(format!("{vocab} ids"))
            .into());
    }
    let mut sums = Sums::default();
    let (mut agreed, mut compared) = (0, 0);
    for (row, prompt) in reference.prompts.iter().enumerate() {
        session.reset();
        let vocab = session.vocab();
        let mut expected = reference.logits.iter().flat_map(|all| all[row].chunks_exact(vocab));
        session.feed(prompt, |logits| {
            if let Some(expected) = expected.next() {
                sums.add(logits, expected);
            }
        })?;
        if let Some(greedy) = &reference.greedy {
            agreed += greedy_agreement(session, &greedy[row])?;
            compared += greedy[row].len();
        }
    }
    let mean = |sum: f64| (sums.positions > 0).then(|| sum / sums.positions as f64);
    Ok(Fidelity {
        positions: sums.positions,
        cosine_mean: mean(sums.cosine),
        cosine_min: mean(1.0).map(|_| sums.cosine_min),
        max_abs: mean(1.0).map(|_| sums.max_abs),
        top1: mean(sums.top1 as f64),
        top10: mean(sums.top10),
        greedy: (compared > 0).then(|| agreed as f64 / compared as f64),
        greedy_ids: compared,
    })
}

fn greedy_agreement(session: &mut Session, expected: &[u32]) -> Result<usize> {
    for (agreed, &id) in expected.iter().enumerate() {
        let best = session.logits().and_then(best_id);
        if best != Some(id) {
            return Ok(agreed);
        }
        if agreed + 1 < expected.len() {
            session.decode(id)?;
        }
    }
    Ok(expected.len())
}

/// The id of the best score, the lowest of equal ones; `None` if a score is not a number.
pub fn best_id(logits: &[f32]) -> Option<u32> {
    let mut best = 0;
    for (id, &score) in logits.iter().enumerate() {
        if score.is_nan() {
            return None;
        }
        if score > logits[best] {
            best = id;
        }
    }
    u32::try_from(best).ok()
}

struct Sums {
    positions: usize,
    cosine: f64,
    cosine_min: f64,
    max_abs: f64,
    top1: usize,
    top10: f64,
}

impl Default for Sums {
    fn default() -> Sums {
        Sums { positions: 0, cosine: 0.0, cosine_min: f64::INFINITY, max_abs: 0.0, top1: 0, top10: 0.0 }
    }
}

impl Sums {
    fn add(&mut self, have: &[f32], expected: &[f32]) {
        let pairs = || have.iter().zip(expected).map(|(&a, &b)| (f64::from(a), f64::from(b)));
        let dot = |f: fn((f64, f64)) -> f64| pairs().map(f).sum::<f64>();
        let norms = (dot(|(a, _)| a * a) * dot(|(_, b)| b * b)).sqrt();
        let cosine = if norms == 0.0 { 0.0 } else { dot(|(a, b)| a * b) / norms };
        let (ours, theirs) = (top(have, 10), top(expected, 10));
        self.positions += 1;
        self.cosine += cosine;
        self.cosine_min = worst(self.cosine_min, cosine, f64::min);
        self.max_abs = pairs().map(|(a, b)| (a - b).abs()).fold(self.max_abs, |m, d| worst(m, d, f64::max));
        self.top1 += usize::from(ours.first() == theirs.first());
        self.top10 += ours.iter().filter(|id| theirs.contains(id)).count() as f64 / theirs.len() as f64;
    }
}

/// The worse of two figures; NaN is the worst and stays, since it must not look like agreement.
fn worst(a: f64, b: f64, worse: fn(f64, f64) -> f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { worse(a, b) }
}

/// The ids of the `count` best scores, best first, lower ids before higher ones of equal score.
fn top(scores: &[f32], count: usize) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..scores.len()).collect();
    let order = |&a: &usize, &b: &usize| scores[b].total_cmp(&scores[a]).then(a.cmp(&b));
    let count = count.min(ids.len());
    if count < ids.len() {
        ids.select_nth_unstable_by(count, order);
        ids.truncate(count);
    }
    ids.sort_unstable_by(order);
    ids
}

/// One condition of a gate.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    figure: Figure,
    at_least: bool,
    strict: bool,
    limit: f64,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Cosine,
    MaxAbs,
    Top1,
    Top10,
    Greedy,
}

const FIGURES: [(&str, Figure); 5] = [
    ("cosine", Figure::Cosine),
    ("max_abs", Figure::MaxAbs),
    ("top1", Figure::Top1),
    ("top10", Figure::Top10),
    ("greedy", Figure::Greedy),
];

const FLOAT_GATE: &str = "cosine>=0.999,top1>=0.99,greedy>=0.99";
const WHOLE_NUMBERS_GATE: &str = "cosine>=0.98,top1>=0.85";

/// The conditions under which outputs count as faithful, written `cosine>=0.999,max_abs<=2e-3`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate(Vec<Condition>);

impl Gate {
    /// Nothing, or every condition that the figures break. A figure that was not measured breaks its
    /// condition, except in the default gate, which asks for what the reference has.
    pub fn check(&self, fidelity: &Fidelity) -> Result<()> {
        let faults = self.0.iter().filter_map(|condition| condition.fault(fidelity));
        Error::check(faults.collect())
    }

    /// The gate used when none is given: the same best ids, within float noise; in whole numbers, scores that point the same
    /// way and mostly the same best ids, since the first other id among near ties ends a greedy answer's agreement.
    pub fn default_for(fidelity: &Fidelity, whole_numbers: bool) -> Gate {
        let conditions = if whole_numbers { WHOLE_NUMBERS_GATE } else { FLOAT_GATE };
        let all: Gate = conditions.parse().expect("the default gates are well formed");
        Gate(all.0.into_iter().filter(|condition| condition.figure.of(fidelity).is_some()).collect())
    }
}

impl Figure {
    fn of(self, fidelity: &Fidelity) -> Option<f64> {
        match self {
            Figure::Cosine => fidelity.cosine_min,
            Figure::MaxAbs => fidelity.max_abs,
            Figure::Top1 => fidelity.top1,
            Figure::Top10 => fidelity.top10,
            Figure::Greedy => fidelity.greedy,
        }
    }
}

impl Condition {
    fn fault(&self, fidelity: &Fidelity) -> Option<Diagnostic> {
        let figure = self.figure.of(fidelity);
        let holds = figure.is_some_and(|x| match (self.at_least, self.strict) {
            (true, false) => x >= self.limit,
            (true, true) => x > self.limit,
            (false, false) => x <= self.limit,
            (false, true) => x < self.limit,
        });
        let have = figure.map_or("not in the reference".to_string(), |x| format!("{x:.6}"));
        (!holds).then(|| {
            Diagnostic::error(Code::Unfaithful, "the outputs differ from the reference by more than the gate allows")
                .need(&self.text)
                .have(have)
                .help("see the figures above; loosen the gate with --gate only if they are good enough for you")
        })
    }
}

impl FromStr for Gate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Gate> {
        text.split(',').map(|part| part.trim().parse()).collect::<Result<_>>().map(Gate)
    }
}

impl FromStr for Condition {
    type Err = Error;

    fn from_str(text: &str) -> Result<Condition> {
        let split = [">=", "<=", ">", "<"].into_iter().find_map(|op| Some((op, text.split_once(op)?)));
        let parsed = split.and_then(|(op, (name, limit))| {
            let (_, figure) = FIGURES.into_iter().find(|(known, _)| *known == name.trim())?;
            let limit: f64 = limit.trim().parse().ok()?;
            let (at_least, strict) = (op.starts_with('>'), op.len() == 1);
            limit.is_finite().then(|| Condition { figure, at_least, strict, limit, text: text.to_string() })
        });
        parsed.ok_or_else(|| {
            let names: Vec<&str> = FIGURES.iter().map(|(name, _)| *name).collect();
            Diagnostic::error(Code::BadArgument, "a gate's condition is malformed")
                .need(format!("<figure><comparison><number>, the figure one of {}", names.join(", ")))
                .have(text)
                .help("for example: cosine>=0.999,max_abs<=2e-3")
                .into()
        })
    }
}
