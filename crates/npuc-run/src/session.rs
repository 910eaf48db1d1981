//! A session: the state of one conversation with a model, and the steps that advance it.
//!
//! The session owns what graphs do not hold: embedding rows, rotary tables, masks, and where cache rows
//! go. All buffers are made when it is; a step in one graph on the host allocates nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use npuc::bundle::EMBEDDING_TABLE;
use npuc::exec::to_f32;
use npuc::model::llama::EMBEDDING;
use npuc::model::rope::frequencies;
use npuc::model::{CacheProtocol, Port, StateKind};
use npuc::tensor::Tensor;
use npuc::{Code, Diagnostic, Result, Shape};
use npuc_kernels::lines::Lines;
use rayon::ThreadPool;

use crate::device::host::Observer;
use crate::device::null::Null;
use crate::device::qnn::{Context as QnnContext, Qnn};
use crate::modules::Opened;
use crate::program::{self, Program};
use crate::toolchain::Installed;

pub(crate) mod ports;
pub(crate) mod steps;

pub(crate) use ports::Layout;
use ports::{
    Context, StateSize, add_positions, clear_rows, fill_angles, fill_embeds, fill_history, fill_mask, fill_write_mask,
    place_rows,
};
use steps::Step;
pub use steps::Steps;

/// A model with its caches.
pub struct Session {
    protocol: CacheProtocol,
    /// What masks hold where a position is hidden.
    hidden_mask: f32,
    /// The graphs, the one with most tokens first, the one of a single token last.
    steps: Vec<Step>,
    /// The caches and the rows that convolutions keep, in the port order that all graphs share.
    states: Vec<Lines>,
    kinds: Vec<StateKind>,
    size: StateSize,
    /// Rows that convolutions keep; 0 in models without any.
    history: usize,
    /// Whether padding before the first token leaves no trace in what convolutions keep.
    padding_stays_zero: bool,
    /// Valid rows of the caches.
    position: usize,
    /// Rows of the caches that may hold anything; all behind them are zero.
    written: usize,
    /// The tokens in these rows.
    tokens: Vec<u32>,
    /// The step and row whose logits are the latest.
    latest: Option<(usize, usize)>,
    embedding: Tensor,
    /// Learned positions, whose rows are added to those of the tokens, `[positions, hidden]`.
    positions: Option<Vec<f32>>,
    frequencies: Vec<f32>,
    /// Keys and values of what the model listens to, in port order; empty for models that only read.
    heard: Vec<Lines>,
    /// Whether there is anything to listen to yet.
    listens: bool,
    vocab: usize,
}

/// What entered and left a step, by port, in port order.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The elements of every input port.
    pub inputs: Vec<(String, Vec<f32>)>,
    /// The elements of every output port.
    pub outputs: Vec<(String, Vec<f32>)>,
}

/// Part of a prompt in one step: `valid` tokens, the rest padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk {
    step: usize,
    valid: usize,
}

impl Session {
    /// Prepares every graph of the program on `threads` threads. Values whose path or output name is in
    /// `keep` can be read after a step.
    ///
    /// Errors: graphs that do not fit the program's model, weights that are absent.
    pub fn new(program: &Program, threads: usize, keep: &[String]) -> Result<Session> {
        Session::of(program, Steps::on_host(program, threads, keep)?)
    }

    /// A session on the host over some of the program's steps, every segment of which shows its values to an observer
    /// of its own: `observer` gives it by the places of step and segment.
    ///
    /// Errors: as [`Session::new`].
    pub(crate) fn observed(
        program: &Program,
        steps: &[&program::Step],
        pool: &Arc<ThreadPool>,
        observer: impl FnMut(usize, usize) -> Observer,
    ) -> Result<Session> {
        Session::of(program, Steps::observed(program, steps, pool, observer)?)
    }

    /// A session whose emitted segments are computed by the LiteRT interpreter, all others by the host. A request to the
    /// interpreter may take as long as `limit`.
    ///
    /// Errors: as [`Session::new`]; a program without emitted segments; what the interpreter refuses.
    pub fn on_litert(program: &Program, tool: &Installed, threads: usize, limit: Duration) -> Result<Session> {
        Session::of(program, Steps::on_litert(program, tool, threads, limit)?)
    }

    /// A session in Qualcomm's emulation. `contexts` are those of the program's parts, in order, prepared in that worker; graphs
    /// are found there by their descriptions' names.
    ///
    /// Errors: as [`Session::new`]; a context that lacks a graph.
    pub fn on_qnn(program: &Program, contexts: Vec<QnnContext>, qnn: Qnn) -> Result<Session> {
        Session::of(program, Steps::on_qnn(program, contexts, qnn)?)
    }

    /// A session whose every segment is a compiled module.
    ///
    /// Errors: as [`Session::new`]; a segment without a module.
    pub fn on_modules(program: &Program, modules: Opened) -> Result<Session> {
        Session::of(program, Steps::on_modules(program, modules)?)
    }

    /// A session that computes nothing, on the null device.
    ///
    /// Errors: as [`Session::new`].
    pub fn on_null(program: &Program, null: &Null) -> Result<Session> {
        Session::of(program, Steps::on_null(program, null)?)
    }

    /// A session over the steps of a program.
    ///
    /// Errors: steps of different capacities, none that takes one token, tables that are absent.
    pub fn of(program: &Program, Steps(steps): Steps) -> Result<Session> {
        let layout = Layout::of(program);
        let config = layout.config;
        let Some(shape) = steps.last().map(|step| step.shape).filter(|shape| shape.tokens == 1) else {
            return Err(Diagnostic::error(Code::BadBundle, "the program has no graph that takes one token").into());
        };
        if let Some(other) = steps.iter().find(|step| step.shape.capacity != shape.capacity) {
            let fault = Diagnostic::error(Code::BadBundle, "the graphs of the program have different capacities");
            return Err(fault.need(shape.capacity).have(other.shape.capacity).into());
        }
        let table = program.weights.get(EMBEDDING_TABLE).or_else(|| program.weights.get(EMBEDDING));
        let embedding = table.filter(|t| *t.shape == [config.vocab(), config.hidden()]);
        let embedding = embedding.cloned().ok_or_else(|| {
            Diagnostic::error(Code::MissingTensor, "the program lacks its embedding table")
                .subject(EMBEDDING)
                .need(Shape::from([config.vocab(), config.hidden()]))
        })?;
        let positions = config.positions_table().map(|name| positions(program, name)).transpose()?;
        let states: Vec<Port> = layout.states(Port::Past).collect();
        let heard: Vec<Port> = layout.heard().collect();
        let kinds = (0..config.layers()).flat_map(|layer| StateKind::of(config.kind(layer)).iter().copied());
        Ok(Session {
            protocol: program.protocol,
            hidden_mask: program.hidden_mask,
            states: states.into_iter().map(|port| Lines::zeros(layout.elements(port, shape))).collect(),
            kinds: kinds.collect(),
            steps,
            size: StateSize { capacity: shape.capacity, head_dim: config.head_dim(), hidden: config.hidden() },
            history: config.history(),
            padding_stays_zero: config.padding_stays_zero(),
            position: 0,
            written: 0,
            tokens: Vec::with_capacity(shape.capacity),
            latest: None,
            embedding,
            frequencies: config.rope().map(|rope| frequencies(rope, config.head_dim())).unwrap_or_default(),
            positions,
            heard: heard.into_iter().map(|port| Lines::zeros(layout.elements(port, shape))).collect(),
            listens: false,
            vocab: config.vocab(),
        })
    }

    /// Lets the host give memory of weights back after each use, see [`Device::spare_memory`].
    pub(crate) fn spare_memory(&mut self) {
        self.steps.iter_mut().for_each(|step| step.device.spare_memory());
    }

    /// Tokens seen so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Tokens the caches can hold.
    pub fn capacity(&self) -> usize {
        self.size.capacity
    }

    /// Number of token ids.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.position = 0;
        self.tokens.clear();
        self.latest = None;
        let written = std::mem::take(&mut self.written);
        for (state, &kind) in self.states.iter_mut().zip(&self.kinds) {
            clear_rows(state, kind, self.size, written);
        }
    }

    /// Gives the decoder what an encoder heard: keys and values of every layer in port order. Nothing is fed about it yet.
    ///
    /// # Panics
    /// If they are not those of the decoder's ports: a [`Whisper`](crate::speech::Whisper) brings the two together.
    pub(crate) fn listen<'a>(&mut self, heard: impl ExactSizeIterator<Item = &'a [f32]>) {
        assert_eq!(heard.len(), self.heard.len(), "ports of what is heard");
        self.reset();
        self.heard.iter_mut().zip(heard).for_each(|(to, from)| to.copy_from_slice(from));
        self.listens = true;
    }

    /// What it listens to, in port order.
    pub(crate) fn heard(&self) -> &[Lines] {
        &self.heard
    }

    /// Goes back to where the conversation and `prompt` part, and gives how many tokens of the prompt are
    /// there already: at most all but the last, whose scores have to be computed. Rows of a shifted cache and what
    /// convolutions keep cannot be taken back, so such a session starts anew.
    pub fn rewind_to(&mut self, prompt: &[u32]) -> usize {
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let kept = match self.protocol {
            CacheProtocol::Append | CacheProtocol::OneHot => common.min(prompt.len().saturating_sub(1)),
            CacheProtocol::Shift => 0,
        };
        let kept = if self.history > 0 && kept < self.position { 0 } else { kept };
        if kept == 0 {
            self.reset();
        }
        self.position = kept;
        self.tokens.truncate(kept);
        self.latest = None;
        kept
    }

    /// The scores `[vocab]` after the last token fed; `None` before the first.
    pub fn logits(&self) -> Option<&[f32]> {
        self.latest.map(|(step, row)| self.logits_row(step, row))
    }

    /// Name, extents and elements of the kept values after the last step.
    pub fn kept(&self) -> impl Iterator<Item = (&str, &Shape, &[f32])> {
        let step = self.latest.map(|(step, _)| &self.steps[step]);
        step.into_iter().flat_map(move |step| {
            step.kept.iter().filter_map(move |kept| Some((kept.name.as_str(), &kept.shape, step.device.kept(kept.id)?)))
        })
    }

    /// How many numbers of each value were beyond its encoding by more than a step in all steps so far, where any were: by port or
    /// `<path>/<operation>.<value>`. Empty where nothing is computed in whole numbers on the host.
    pub fn saturated(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for (name, count) in self.steps.iter().flat_map(|step| step.device.saturated()) {
            *all.entry(name).or_default() += count;
        }
        all
    }

    /// Feeds tokens; `each` is given the scores `[vocab]` after every one of them, in order.
    ///
    /// Errors, before any computation: an id outside the vocabulary, more tokens than the context holds. During it:
    /// a device that fails; the host does not.
    pub fn feed(&mut self, ids: &[u32], mut each: impl FnMut(&[f32])) -> Result<()> {
        self.advance(ids, |session, chunk| {
            let first = session.first_row(chunk);
            (first..first + chunk.valid).for_each(|row| each(session.logits_row(chunk.step, row)));
        })
    }

    /// Feeds tokens; `after` is told after every step how many tokens it has room for and how many it took.
    ///
    /// Errors: as [`Session::feed`].
    pub fn prefill(&mut self, ids: &[u32], mut after: impl FnMut(usize, usize)) -> Result<()> {
        self.advance(ids, |session, chunk| after(session.steps[chunk.step].shape.tokens, chunk.valid))
    }

    fn advance(&mut self, ids: &[u32], mut after: impl FnMut(&Session, Chunk)) -> Result<()> {
        self.check(ids)?;
        let mut rest = ids;
        let shapes: Vec<usize> = self.steps.iter().map(|step| step.shape.tokens).collect();
        for chunk in chunks(&shapes, ids.len(), self.protocol, self.position == 0 && self.padding_stays_zero) {
            let (now, later) = rest.split_at(chunk.valid);
            self.step(chunk, now)?;
            after(self, chunk);
            rest = later;
        }
        Ok(())
    }

    /// Feeds one token, without any allocation where the host computes a model in one graph; the scores are then in [`Session::logits`].
    ///
    /// Errors: as [`Session::feed`].
    pub fn decode(&mut self, id: u32) -> Result<()> {
        self.check(&[id])?;
        self.step(Chunk { step: self.steps.len() - 1, valid: 1 }, &[id])
    }

    /// Feeds one token and gives what entered and left the step's ports, by name: for tests of other runners.
    ///
    /// Errors: as [`Session::feed`].
    pub fn recorded(&mut self, id: u32) -> Result<Recorded> {
        let states = self.states.clone();
        self.decode(id)?;
        let step = &self.steps[self.steps.len() - 1];
        let named = step.device.inputs().into_iter().map(|(name, _)| name);
        let entered = step.inputs.iter().chain(&self.heard).chain(&states).map(|buffer| buffer.to_vec());
        let inputs = named.zip(entered).collect();
        let outputs = step.device.outputs().into_iter().enumerate();
        let outputs = outputs.map(|(port, (name, _))| (name, step.device.output(port).to_vec())).collect();
        Ok(Recorded { inputs, outputs })
    }

    fn check(&self, ids: &[u32]) -> Result<()> {
        if !self.heard.is_empty() && !self.listens {
            let fault = Diagnostic::error(Code::BadArgument, "the decoder has heard nothing that it could write down");
            return Err(fault.help("`npuc transcribe` gives it sound").into());
        }
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.vocab) {
            return Err(Diagnostic::error(Code::BadTokenId, "a token id is outside the vocabulary")
                .need(format!("ids below {}", self.vocab))
                .have(id)
                .into());
        }
        let need = self.position + ids.len();
        if need <= self.size.capacity {
            return Ok(());
        }
        Err(Diagnostic::error(Code::ContextExceeded, "the tokens do not fit the context")
            .need(format!("{need} rows: {} there and {} new", self.position, ids.len()))
            .have(format!("a capacity of {}", self.size.capacity))
            .help("shorten the prompt or build with a larger capacity (--shapes)")
            .into())
    }

    fn first_row(&self, chunk: Chunk) -> usize {
        match self.protocol {
            CacheProtocol::Append | CacheProtocol::OneHot => 0,
            CacheProtocol::Shift => self.steps[chunk.step].shape.tokens - chunk.valid,
        }
    }

    fn logits_row(&self, step: usize, row: usize) -> &[f32] {
        let step = &self.steps[step];
        &step.device.output(step.results[0])[row * self.vocab..][..self.vocab]
    }

    fn step(&mut self, chunk: Chunk, ids: &[u32]) -> Result<()> {
        let first = self.first_row(chunk);
        let step = &mut self.steps[chunk.step];
        let hidden_mask = self.hidden_mask;
        let context =
            Context { first, valid: chunk.valid, position: self.position, protocol: self.protocol, hidden_mask };
        for (port, buffer) in step.ports.iter().zip(&mut step.inputs) {
            match port {
                Port::Embeds => {
                    fill_embeds(buffer, ids, first, &self.embedding);
                    self.positions.iter().for_each(|table| add_positions(buffer, table, self.size.hidden, context));
                }
                Port::RopeCos => fill_angles(buffer, &self.frequencies, context, f32::cos),
                Port::RopeSin => fill_angles(buffer, &self.frequencies, context, f32::sin),
                Port::Mask => fill_mask(buffer, step.shape, context),
                Port::WriteMask => fill_write_mask(buffer, step.shape, context),
                Port::History => fill_history(buffer, self.history, step.shape, context),
                Port::Past(..)
                | Port::New(..)
                | Port::Next(..)
                | Port::Hidden
                | Port::Mel
                | Port::Heard(..)
                | Port::Logits
                | Port::LogitsPart(_)
                | Port::Cross(_) => {
                    unreachable!("Step::new keeps only the ports before the states")
                }
            }
        }
        step.device.run(&[&step.inputs, &self.heard, &self.states])?;
        let results = step.results[1..].iter().map(|&output| step.device.output(output));
        match self.protocol {
            CacheProtocol::Append => {
                place_rows(&mut self.states, results, &self.kinds, self.size, step.shape.tokens, context)
            }
            CacheProtocol::Shift | CacheProtocol::OneHot => {
                self.states.iter_mut().zip(results).for_each(|(state, rows)| state.copy_from_slice(rows));
            }
        }
        self.position += chunk.valid;
        self.written = match self.protocol {
            CacheProtocol::Append => self.written.max(self.position),
            CacheProtocol::Shift | CacheProtocol::OneHot => self.size.capacity,
        };
        self.tokens.extend_from_slice(ids);
        self.latest = Some((chunk.step, first + chunk.valid - 1));
        Ok(())
    }
}

/// How `count` tokens are cut into steps of the given sizes (largest first, 1 last).
///
/// Full steps of the largest size, then what is left in the smallest step that takes it, padded. A
/// shifted cache takes every row of a step, so there padding may only come before the first token, and where `pads_first`
/// says that it may.
fn chunks(sizes: &[usize], count: usize, protocol: CacheProtocol, pads_first: bool) -> Vec<Chunk> {
    let (Some(&largest), false) = (sizes.first(), count == 0) else { return Vec::new() };
    let full = Chunk { step: 0, valid: largest };
    let rest = count % largest;
    let smallest = |rest: usize| sizes.iter().rposition(|&size| size >= rest).map(|step| Chunk { step, valid: rest });
    let padded = (rest > 0).then(|| smallest(rest)).flatten();
    let whole = std::iter::repeat_n(full, count / largest);
    match protocol {
        CacheProtocol::Append | CacheProtocol::OneHot => whole.chain(padded).collect(),
        CacheProtocol::Shift if pads_first => padded.into_iter().chain(whole).collect(),
        CacheProtocol::Shift => {
            let mut exact = Vec::new();
            let mut rest = count;
            for (step, &size) in sizes.iter().enumerate() {
                exact.extend(std::iter::repeat_n(Chunk { step, valid: size }, rest / size));
                rest %= size;
            }
            exact
        }
    }
}

/// The table of learned positions, `[positions, hidden]`.
fn positions(program: &Program, name: &str) -> Result<Vec<f32>> {
    let shape = Shape::from([program.config.max_positions(), program.config.hidden()]);
    let table = program.weights.get(name).filter(|table| table.shape == shape);
    table.map(to_f32).ok_or_else(|| {
        let fault = Diagnostic::error(Code::MissingTensor, "the program lacks its table of positions");
        fault.subject(name).need(shape).into()
    })
}
