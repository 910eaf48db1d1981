//! A model one layer at a time over calibration sequences: what enters its projections, and the residual stream after it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use npuc::build::weight_types;
use npuc::exec::Executor;
use npuc::front::ModelConfig;
use npuc::ir::{Def, Graph, Op, ValueId};
use npuc::model::rope::frequencies;
use npuc::model::{self, CacheProtocol, Head, Part, Port, StepShape};
use npuc::pass;
use npuc::target;
use npuc::{Code, Diagnostic, Result, Tensor};
use rayon::ThreadPool;

use crate::session::ports::{Context, fill_angles, fill_embeds, fill_mask};

/// The residual stream of all sequences between two layers.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    /// Tokens of the longest sequence.
    tokens: usize,
    /// For each sequence its rows `[tokens, hidden]`, without padding.
    rows: Vec<Vec<f32>>,
    hidden: usize,
}

impl Stream {
    /// The embedded tokens of the sequences.
    ///
    /// Errors: no sequence with a token, ids outside the vocabulary, sequences longer than the model's context.
    pub(crate) fn embed(config: &ModelConfig, table: &Tensor, sequences: &[Vec<u32>]) -> Result<Stream> {
        let (hidden, vocab) = (config.hidden(), config.vocab());
        let tokens = sequences.iter().map(Vec::len).max().unwrap_or(0);
        if tokens == 0 {
            return Err(Diagnostic::error(Code::BadArgument, "there is no text to calibrate with").into());
        }
        if let Some(id) = sequences.iter().flatten().find(|&&id| id as usize >= vocab) {
            let fault = Diagnostic::error(Code::BadTokenId, "a token id is outside the vocabulary");
            return Err(fault.need(format!("ids below {vocab}")).have(id).into());
        }
        let embed = |ids: &Vec<u32>| {
            let mut rows = vec![0.0; ids.len() * hidden];
            fill_embeds(&mut rows, ids, 0, table);
            rows
        };
        Ok(Stream { tokens, rows: sequences.iter().filter(|ids| !ids.is_empty()).map(embed).collect(), hidden })
    }

    /// The tokens in `range` of every sequence, in sequences of at most `tokens`.
    pub(crate) fn cut(&self, range: &Range<usize>, tokens: usize) -> Stream {
        let within = |rows: &Vec<f32>| {
            let end = rows.len().min(range.end * self.hidden);
            rows[end.min(range.start * self.hidden)..end].to_vec()
        };
        let parts = self.rows.iter().map(within);
        let cut = |rows: Vec<f32>| rows.chunks(tokens * self.hidden).map(<[f32]>::to_vec).collect::<Vec<_>>();
        Stream { tokens, rows: parts.flat_map(cut).collect(), hidden: self.hidden }
    }

    /// The number of sequences.
    pub(crate) fn sequences(&self) -> usize {
        self.rows.len()
    }
}

/// A part of a model that is ready to run over sequences.
pub(crate) struct Stage {
    graph: Graph,
    executor: Executor,
    /// The ports' buffers, in order; the first one is the residual stream.
    inputs: Vec<Vec<f32>>,
    pool: Arc<ThreadPool>,
    shape: StepShape,
}

/// A part of the model: one layer, or the head.
pub(crate) fn part(config: &ModelConfig, layer: Option<usize>) -> Part {
    match layer {
        Some(layer) => Part { layers: layer..layer + 1, head: Head::Absent },
        None => Part { layers: model::layers(config)..model::layers(config), head: Head::Whole },
    }
}

impl Stage {
    /// Prepares a part over its weights, for sequences as long as those of `stream`.
    ///
    /// Errors: sequences longer than the model's context, weights that are absent.
    pub(crate) fn new(
        config: &ModelConfig,
        weights: &BTreeMap<String, Tensor>,
        part: &Part,
        stream: &Stream,
        pool: &Arc<ThreadPool>,
    ) -> Result<Stage> {
        let shape = StepShape { tokens: stream.tokens, capacity: stream.tokens };
        let graph = model::build_part(config, &weight_types(weights), shape, CacheProtocol::Append, part)?;
        let graph = pass::run(graph, &target::host().passes(&[]), |_, _, _| {})?;
        let executor = Executor::new(&graph, weights, &[])?;
        let inputs = executor.inputs().map(|(_, len)| vec![0.0; len]).collect();
        let mut stage = Stage { graph, executor, inputs, pool: Arc::clone(pool), shape };
        stage.fill(config)?;
        Ok(stage)
    }

    /// Fills the ports that are the same for every sequence: padding comes last and sees only itself and what is before.
    fn fill(&mut self, config: &ModelConfig) -> Result<()> {
        let frequencies = config.rope().map(|rope| frequencies(rope, config.head_dim())).unwrap_or_default();
        let context = Context {
            first: 0,
            valid: self.shape.tokens,
            position: 0,
            protocol: CacheProtocol::Append,
            hidden_mask: target::host().hidden_mask as f32,
        };
        let names: Vec<String> = self.executor.inputs().map(|(name, _)| name.to_owned()).collect();
        for (name, buffer) in names.iter().zip(&mut self.inputs) {
            match name.parse::<Port>()? {
                Port::RopeCos => fill_angles(buffer, &frequencies, context, f32::cos),
                Port::RopeSin => fill_angles(buffer, &frequencies, context, f32::sin),
                Port::Mask => fill_mask(buffer, self.shape, context),
                Port::Embeds | Port::Hidden | Port::Past(..) => {}
                Port::WriteMask
                | Port::Mel
                | Port::Heard(..)
                | Port::History
                | Port::New(..)
                | Port::Next(..)
                | Port::Logits
                | Port::LogitsPart(_)
                | Port::Cross(_) => {
                    let fault =
                        Diagnostic::error(Code::IrInvalid, "a part of the model has a port that it should not have");
                    return Err(fault.subject(name).into());
                }
            }
        }
        Ok(())
    }

    /// The value that each projection reads, with the names of the weights it is multiplied with, in order of execution.
    pub(crate) fn projections(&self) -> Vec<(ValueId, Vec<String>)> {
        let mut found: Vec<(ValueId, Vec<String>)> = Vec::new();
        for value in &self.graph.values {
            let Def::Op { op: Op::Linear {}, args } = &value.def else { continue };
            let (Some(&x), Some(&weight)) = (args.first(), args.get(1)) else { continue };
            let (x, name) = (self.observed(x), self.graph.value(weight).name.clone());
            match found.iter_mut().find(|(id, _)| *id == x) {
                Some((_, names)) => names.push(name),
                None => found.push((x, vec![name])),
            }
        }
        found
    }

    /// The value that holds the elements of `value` and is told when it is computed: a reshape is not.
    fn observed(&self, value: ValueId) -> ValueId {
        match &self.graph.value(value).def {
            Def::Op { op: Op::Reshape { .. }, args } => args.first().map_or(value, |&arg| self.observed(arg)),
            Def::Op { .. } | Def::Input | Def::Weight => value,
        }
    }

    /// Runs every sequence; `see` is told the elements of every value and how many of the rows are no padding.
    pub(crate) fn observe(&mut self, stream: &Stream, mut see: impl FnMut(ValueId, &[f32], usize) + Send) {
        for rows in &stream.rows {
            self.one(rows, stream.hidden, &mut see);
        }
    }

    /// Runs every sequence, and puts what leaves the part in place of what entered it.
    ///
    /// Errors: a residual stream that is not finite.
    pub(crate) fn advance(&mut self, stream: &mut Stream) -> Result<()> {
        let output = self.executor.outputs().position(|(name, _)| name == Port::Hidden.to_string());
        let Some(output) = output else { return Ok(()) };
        for rows in &mut stream.rows {
            self.one(rows, stream.hidden, &mut |_, _, _| {});
            let len = rows.len();
            rows.copy_from_slice(&self.executor.output(output)[..len]);
        }
        let odd = stream.rows.iter().flatten().filter(|x| !x.is_finite()).count();
        if odd > 0 {
            let fault =
                Diagnostic::error(Code::BadRange, "the residual stream is not finite").subject(&self.graph.name);
            return Err(fault.have(format!("{odd} values that are NaN or infinite")).into());
        }
        Ok(())
    }

    /// Runs one sequence through the head and gives its scores `[tokens, vocab]`, without padding; none if the part has no
    /// whole head.
    pub(crate) fn scores(&mut self, stream: &Stream, sequence: usize) -> &[f32] {
        let rows = &stream.rows[sequence];
        self.one(rows, stream.hidden, &mut |_, _, _| {});
        let (tokens, capacity) = (rows.len() / stream.hidden, self.shape.tokens);
        let output = self.executor.outputs().position(|(name, _)| name == Port::Logits.to_string());
        output.map_or(&[], |output| {
            let scores = self.executor.output(output);
            &scores[..scores.len() / capacity * tokens]
        })
    }

    fn one(&mut self, rows: &[f32], hidden: usize, see: &mut (impl FnMut(ValueId, &[f32], usize) + Send)) {
        self.inputs[0].fill(0.0);
        self.inputs[0][..rows.len()].copy_from_slice(rows);
        let (executor, inputs) = (&mut self.executor, &self.inputs);
        let valid = rows.len() / hidden;
        self.pool.install(|| executor.run_observed(&[inputs], &mut |id, elements| see(id, elements, valid)));
    }

    /// The elements that a value has for each token.
    pub(crate) fn cols(&self, value: ValueId) -> usize {
        self.graph.value(value).ty.shape.elements().unwrap_or(0) / self.shape.tokens
    }
}
