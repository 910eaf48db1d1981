//! References: scores and greedy ids that something else computed, and how close a session comes to them.
//!
//! The file is safetensors with `input_ids` `[batch, tokens]`, and `logits`
//! `[batch, tokens, vocab]` or `greedy_ids` `[batch, new]` or both.

use std::path::Path;

use npuc::tensor::SourceFile;
use npuc::{Code, Diagnostic, Result};
use safetensors::{Dtype, SafeTensors};

use super::figures::{Fidelity, Sums, best_id};
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

impl Reference {
    /// Reads a reference.
    ///
    /// Errors: a file that is not safetensors, tensors of another type or shape, ids out of range.
    pub fn read(path: &Path) -> Result<Reference> {
        let file = SourceFile::open(path)?;
        let fault = |message: String| Diagnostic::error(Code::BadReference, message).file(path);
        let tensors = SafeTensors::deserialize(file.bytes())
            .map_err(|e| fault(format!("the reference is not a safetensors file: {e}")))?;
        let prompts = int_rows(&tensors, "input_ids").map_err(|e| fault(e).subject("input_ids"))?;
        let prompts = prompts.ok_or_else(|| {
            fault("the reference has no prompts".into()).need("input_ids [batch, tokens], i64").have("no such tensor")
        })?;
        if prompts.iter().any(Vec::is_empty) || prompts.is_empty() {
            return Err(fault("the reference has an empty prompt".into()).subject("input_ids").into());
        }
        let Answers { logits, greedy, vocab } = answers(&tensors, path, &prompts)?;
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
            greedy.push(greedy_ids(session, new)?);
        }
        Ok(Reference { prompts, logits: Some(logits), greedy: Some(greedy), vocab: Some(session.vocab()) })
    }
}

/// What a model answers to rows of ids: scores, greedy ids or both.
pub(super) struct Answers {
    pub(super) logits: Option<Vec<Vec<f32>>>,
    pub(super) greedy: Option<Vec<Vec<u32>>>,
    pub(super) vocab: Option<usize>,
}

/// The answers to `ids` in the file `path`, of which the scores are as many as the ids.
pub(super) fn answers(tensors: &SafeTensors<'_>, path: &Path, ids: &[Vec<u32>]) -> Result<Answers> {
    let fault = |message: String| Diagnostic::error(Code::BadReference, message).file(path);
    let greedy = int_rows(tensors, "greedy_ids").map_err(|e| fault(e).subject("greedy_ids"))?;
    let scores = float_rows(tensors, ids.len(), ids.first().map_or(0, Vec::len));
    let (logits, vocab) = scores.map_err(|e| fault(e).subject("logits"))?.unzip();
    if logits.is_none() && greedy.is_none() {
        let fault = fault("the reference has nothing to compare with".into());
        return Err(fault.need("logits or greedy_ids").have("neither").into());
    }
    Ok(Answers { logits, greedy, vocab })
}

pub(super) fn int_rows(tensors: &SafeTensors<'_>, name: &str) -> Result<Option<Vec<Vec<u32>>>, String> {
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
    let prompts = reference.greedy.as_ref().map_or(0, Vec::len);
    Ok(Fidelity { greedy_ids: compared, ..sums.figures() }.with_greedy(agreed, prompts))
}

/// The `count` ids that greedy decoding appends to what the session has seen.
///
/// Errors: scores that are not numbers; what the session's device refuses.
pub(super) fn greedy_ids(session: &mut Session, count: usize) -> Result<Vec<u32>> {
    let mut ids = Vec::with_capacity(count);
    while ids.len() < count {
        let best = session.logits().and_then(best_id).ok_or_else(|| {
            Diagnostic::error(Code::Unfaithful, "the model to compare with gives scores that are not numbers")
        })?;
        ids.push(best);
        if ids.len() < count {
            session.decode(best)?;
        }
    }
    Ok(ids)
}

/// How many of the expected ids a session appends before the first other one.
pub(super) fn greedy_agreement(session: &mut Session, expected: &[u32]) -> Result<usize> {
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
