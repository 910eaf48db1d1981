//! The null device: computes nothing, and every step takes a fixed time by a clock that only this device moves.
//!
//! Who times a session on it sees the fixed time and, on top, all that the runner itself takes. The answers are made up, but
//! the same prompt always has the same one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use npuc::{Code, Diagnostic, Result};
use npuc_kernels::lines::Lines;

/// Time that passed by assertion, in ns: what to add to a real clock. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct VirtualTime(Arc<AtomicU64>);

impl VirtualTime {
    /// How much has passed.
    pub fn ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Lets `ns` pass.
    pub fn pass(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }
}

/// How the null device behaves.
#[derive(Clone, Debug)]
pub struct Null {
    /// Time of a step of several tokens.
    pub prefill_ns: u64,
    /// Time of a step of one token.
    pub decode_ns: u64,
    /// The steps after which every other one fails; `None` for none.
    pub fail_after: Option<u64>,
    /// What the steps move.
    pub time: VirtualTime,
}

/// A step of the null device.
pub struct NullStep {
    inputs: Vec<(String, usize)>,
    outputs: Vec<(String, Vec<f32>)>,
    tokens: usize,
    ns: u64,
    fail_after: Option<u64>,
    time: VirtualTime,
    /// Steps so far, of all graphs of the session.
    steps: Arc<AtomicU64>,
    /// The best token of each row of logits.
    best: Vec<usize>,
}

impl NullStep {
    /// A step of `tokens` tokens with these ports; the first input is the embeddings, the first output the logits.
    pub(crate) fn new(
        null: &Null,
        tokens: usize,
        steps: &Arc<AtomicU64>,
        inputs: Vec<(String, usize)>,
        outputs: Vec<(String, usize)>,
    ) -> NullStep {
        NullStep {
            inputs,
            outputs: outputs.into_iter().map(|(name, len)| (name, vec![0.0; len])).collect(),
            tokens,
            ns: if tokens == 1 { null.decode_ns } else { null.prefill_ns },
            fail_after: null.fail_after,
            time: null.time.clone(),
            steps: Arc::clone(steps),
            best: vec![0; tokens],
        }
    }

    pub(crate) fn inputs(&self) -> Vec<(String, usize)> {
        self.inputs.clone()
    }

    pub(crate) fn outputs(&self) -> Vec<(String, usize)> {
        self.outputs.iter().map(|(name, elements)| (name.clone(), elements.len())).collect()
    }

    pub(crate) fn output(&self, port: usize) -> &[f32] {
        &self.outputs[port].1
    }

    /// Lets the step's time pass. The best token after each one follows from its embedding alone.
    ///
    /// Errors: the device was told to fail.
    pub(crate) fn run(&mut self, inputs: &[&[Lines]]) -> Result<()> {
        let before = self.steps.fetch_add(1, Ordering::Relaxed);
        if self.fail_after.is_some_and(|after| before >= after) {
            return Err(Diagnostic::error(Code::ToolFailed, "the null back end was told to fail here")
                .subject(format!("step {}", before + 1))
                .into());
        }
        self.time.pass(self.ns);
        let embeds = inputs.iter().flat_map(|group| group.iter()).next();
        let (Some(embeds), Some((_, logits))) = (embeds, self.outputs.first_mut()) else { return Ok(()) };
        let (hidden, vocab) = (embeds.len() / self.tokens, logits.len() / self.tokens);
        for ((row, logits), best) in embeds.chunks_exact(hidden).zip(logits.chunks_exact_mut(vocab)).zip(&mut self.best)
        {
            logits[*best] = 0.0;
            *best = (mixed(row) % vocab as u64) as usize;
            logits[*best] = 1.0;
        }
        Ok(())
    }
}

/// A number that follows from the first elements of a row (FNV-1a over their bits).
fn mixed(row: &[f32]) -> u64 {
    let step = |hash: u64, x: &f32| (hash ^ u64::from(x.to_bits())).wrapping_mul(0x0000_0100_0000_01b3);
    row.iter().take(8).fold(0xcbf2_9ce4_8422_2325, step) >> 16
}
