//! A session: the state of one conversation with a model, and the steps that advance it.
//!
//! The session owns what graphs do not hold: embedding rows, rotary tables, masks, and where cache rows
//! go. All buffers are made when it is; a step in one graph on the host allocates nothing.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use npuc::bundle::EMBEDDING_TABLE;
use npuc::exec::buffer_bytes;
use npuc::ir::{Graph, ValueId};
use npuc::model::llama::EMBEDDING;
use npuc::model::rope::frequencies;
use npuc::model::{CacheProtocol, Port, StateKind, StepShape};
use npuc::tensor::Tensor;
use npuc::{Code, Diagnostic, Error, Result, Shape};
use rayon::ThreadPool;

use crate::device::host::{HostStep, Observer, thread_pool};
use crate::device::litert::LiteRt;
use crate::device::null::{Null, NullStep};
use crate::device::qnn::{Context as QnnContext, Qnn};
use crate::device::{Device, chain};
use crate::memory;
use crate::modules::Opened;
use crate::program::{self, Program};
use crate::toolchain::Installed;

pub(crate) mod ports;

pub(crate) use ports::Layout;
use ports::{Context, StateSize, fill_angles, fill_embeds, fill_history, fill_mask, fill_write_mask, place_rows};

/// A model with its caches.
pub struct Session {
    protocol: CacheProtocol,
    /// What masks hold where a position is hidden.
    hidden_mask: f32,
    /// The graphs, the one with most tokens first, the one of a single token last.
    steps: Vec<Step>,
    /// The caches and the rows that convolutions keep, in the port order that all graphs share.
    states: Vec<Vec<f32>>,
    kinds: Vec<StateKind>,
    size: StateSize,
    /// Rows that convolutions keep; 0 in models without any.
    history: usize,
    /// Whether padding before the first token leaves no trace in what convolutions keep.
    padding_stays_zero: bool,
    /// Valid rows of the caches.
    position: usize,
    /// The tokens in these rows.
    tokens: Vec<u32>,
    /// The step and row whose logits are the latest.
    latest: Option<(usize, usize)>,
    embedding: Tensor,
    frequencies: Vec<f32>,
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

/// A graph, its step inputs and what its outputs are.
struct Step {
    shape: StepShape,
    device: Device,
    /// Ports before the states, in port order, and their buffers.
    ports: Vec<Port>,
    inputs: Vec<Vec<f32>>,
    logits: usize,
    /// For each state its output port, in the order of the states.
    state_outputs: Vec<usize>,
    kept: Vec<Kept>,
}

/// A value that can be read after a step.
struct Kept {
    name: String,
    id: ValueId,
    shape: Shape,
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
        let pool = thread_pool(threads)?;
        let layout = Layout { config: &program.config, protocol: program.protocol };
        refuse_too_large(program, &layout)?;
        let mut steps = Vec::new();
        for program::Step { shape, segments } in &program.steps {
            let (device, kept) = match &segments[..] {
                [program::Segment { graph, emitted: None, encodings }] => {
                    let kept = kept_values(graph, keep)?;
                    let ids: Vec<ValueId> = kept.iter().map(|kept| kept.id).collect();
                    let encodings = encodings.as_deref();
                    let host = HostStep::with_encodings(graph, &program.weights, encodings, &ids, pool.clone())?;
                    (Device::Host(host), kept)
                }
                _ if !keep.is_empty() => return Err(no_values()),
                segments => {
                    let host = |segment: &program::Segment| {
                        let encodings = segment.encodings.as_deref();
                        chain::Segment::host(&segment.graph, &program.weights, encodings, pool.clone())
                    };
                    let segments = segments.iter().map(host).collect::<Result<_>>()?;
                    (Device::Chain(layout.chain(*shape, segments)?), Vec::new())
                }
            };
            steps.push(Step::new(*shape, device, kept, &layout)?);
        }
        Session::over(program, &layout, steps)
    }

    /// A session on the host over some of the program's steps, every segment of which shows its values to an observer
    /// of its own: `observer` gives it by the places of step and segment.
    ///
    /// Errors: as [`Session::new`].
    pub(crate) fn observed(
        program: &Program,
        steps: &[&program::Step],
        pool: &Arc<ThreadPool>,
        mut observer: impl FnMut(usize, usize) -> Observer,
    ) -> Result<Session> {
        let layout = Layout { config: &program.config, protocol: program.protocol };
        refuse_too_large(program, &layout)?;
        let mut observed = Vec::new();
        for (place, program::Step { shape, segments }) in steps.iter().enumerate() {
            let mut links = Vec::new();
            for (part, segment) in segments.iter().enumerate() {
                let (weights, pool) = (&program.weights, Arc::clone(pool));
                let host = chain::Segment::host(&segment.graph, weights, segment.encodings.as_deref(), pool)?;
                links.push(host.observed(observer(place, part)));
            }
            observed.push(Step::new(*shape, Device::Chain(layout.chain(*shape, links)?), Vec::new(), &layout)?);
        }
        Session::over(program, &layout, observed)
    }

    /// A session whose emitted segments are computed by the LiteRT interpreter, all others by the host. A request to the
    /// interpreter may take as long as `limit`.
    ///
    /// Errors: as [`Session::new`]; a program without emitted segments; what the interpreter refuses.
    pub fn on_litert(program: &Program, tool: &Installed, threads: usize, limit: Duration) -> Result<Session> {
        if program.steps.iter().all(|step| step.segments.iter().all(|segment| segment.emitted.is_none())) {
            return Err(Diagnostic::error(Code::BadArgument, "the model has no TFLite files")
                .help("build it for a target of MediaTek's, or name the checkpoint")
                .into());
        }
        let pool = thread_pool(threads)?;
        let layout = Layout { config: &program.config, protocol: program.protocol };
        let litert = Rc::new(RefCell::new(LiteRt::start(tool, limit)?));
        let mut steps = Vec::new();
        for program::Step { shape, segments } in &program.steps {
            let load = |segment: &program::Segment| match &segment.emitted {
                Some(path) => {
                    let model = litert.borrow_mut().load(path, threads)?;
                    Ok(chain::Segment::LiteRt(model, Rc::clone(&litert)))
                }
                None => chain::Segment::host(&segment.graph, &program.weights, None, pool.clone()),
            };
            let segments = segments.iter().map(load).collect::<Result<_>>()?;
            steps.push(Step::new(*shape, Device::Chain(layout.chain(*shape, segments)?), Vec::new(), &layout)?);
        }
        Session::over(program, &layout, steps)
    }

    /// A session in Qualcomm's emulation. `contexts` are those of the program's parts, in order, prepared in that worker; graphs
    /// are found there by their descriptions' names.
    ///
    /// Errors: as [`Session::new`]; a context that lacks a graph.
    pub fn on_qnn(program: &Program, contexts: Vec<QnnContext>, qnn: Qnn) -> Result<Session> {
        let layout = Layout { config: &program.config, protocol: program.protocol };
        refuse_too_large(program, &layout)?;
        let qnn = Rc::new(RefCell::new(qnn));
        let contexts: Vec<Rc<QnnContext>> = contexts.into_iter().map(Rc::new).collect();
        let mut steps = Vec::new();
        for program::Step { shape, segments } in &program.steps {
            let held = |(part, segment): (usize, &program::Segment)| {
                let name = segment.emitted.as_deref().and_then(Path::file_stem).unwrap_or_default();
                let found = contexts.get(part).and_then(|context| {
                    let graph = context.graphs.iter().position(|graph| *graph.name == *name)?;
                    Some(chain::Segment::Qnn(Rc::clone(context), graph, Rc::clone(&qnn)))
                });
                let fault = Diagnostic::error(Code::BadBundle, "no context has a graph of the step");
                found.ok_or_else(|| fault.subject(&segment.graph.name).into())
            };
            let segments = segments.iter().enumerate().map(held).collect::<Result<_>>()?;
            steps.push(Step::new(*shape, Device::Chain(layout.chain(*shape, segments)?), Vec::new(), &layout)?);
        }
        Session::over(program, &layout, steps)
    }

    /// A session whose every segment is a compiled module.
    ///
    /// Errors: as [`Session::new`]; a segment without a module.
    pub fn on_modules(program: &Program, mut modules: Opened) -> Result<Session> {
        let layout = Layout { config: &program.config, protocol: program.protocol };
        refuse_too_large(program, &layout)?;
        let mut steps = Vec::new();
        for program::Step { shape, segments } in &program.steps {
            let held = |segment| Ok(chain::Segment::Module(Box::new(modules.take(segment)?)));
            let segments = segments.iter().map(held).collect::<Result<_>>()?;
            steps.push(Step::new(*shape, Device::Chain(layout.chain(*shape, segments)?), Vec::new(), &layout)?);
        }
        Session::over(program, &layout, steps)
    }

    /// A session that computes nothing, on the null device.
    ///
    /// Errors: as [`Session::new`].
    pub fn on_null(program: &Program, null: &Null) -> Result<Session> {
        let layout = Layout { config: &program.config, protocol: program.protocol };
        refuse_too_large(program, &layout)?;
        let count = Arc::new(AtomicU64::new(0));
        let step = |&program::Step { shape, .. }: &program::Step| {
            let sized =
                |ports: Vec<Port>| ports.into_iter().map(|port| (port.to_string(), layout.elements(port, shape)));
            let (inputs, outputs) = (sized(layout.inputs(shape)).collect(), sized(layout.outputs()).collect());
            let device = Device::Null(NullStep::new(null, shape.tokens, &count, inputs, outputs));
            Step::new(shape, device, Vec::new(), &layout)
        };
        Session::over(program, &layout, program.steps.iter().map(step).collect::<Result<_>>()?)
    }

    fn over(program: &Program, layout: &Layout<'_>, steps: Vec<Step>) -> Result<Session> {
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
        let states: Vec<Port> = layout.states(Port::Past).collect();
        let kinds = (0..config.layers()).flat_map(|layer| StateKind::of(config.kind(layer)).iter().copied());
        Ok(Session {
            protocol: program.protocol,
            hidden_mask: program.hidden_mask,
            states: states.into_iter().map(|port| vec![0.0; layout.elements(port, shape)]).collect(),
            kinds: kinds.collect(),
            steps,
            size: StateSize { capacity: shape.capacity, head_dim: config.head_dim(), hidden: config.hidden() },
            history: config.history(),
            padding_stays_zero: config.padding_stays_zero(),
            position: 0,
            tokens: Vec::with_capacity(shape.capacity),
            latest: None,
            embedding,
            frequencies: frequencies(config.rope(), config.head_dim()),
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
        self.states.iter_mut().for_each(|state| state.fill(0.0));
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
        let inputs = named.zip(step.inputs.iter().cloned().chain(states)).collect();
        let outputs = step.device.outputs().into_iter().enumerate();
        let outputs = outputs.map(|(port, (name, _))| (name, step.device.output(port).to_vec())).collect();
        Ok(Recorded { inputs, outputs })
    }

    fn check(&self, ids: &[u32]) -> Result<()> {
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
        &step.device.output(step.logits)[row * self.vocab..][..self.vocab]
    }

    fn step(&mut self, chunk: Chunk, ids: &[u32]) -> Result<()> {
        let first = self.first_row(chunk);
        let step = &mut self.steps[chunk.step];
        let hidden_mask = self.hidden_mask;
        let context =
            Context { first, valid: chunk.valid, position: self.position, protocol: self.protocol, hidden_mask };
        for (port, buffer) in step.ports.iter().zip(&mut step.inputs) {
            match port {
                Port::Embeds => fill_embeds(buffer, ids, first, &self.embedding),
                Port::RopeCos => fill_angles(buffer, &self.frequencies, context, f32::cos),
                Port::RopeSin => fill_angles(buffer, &self.frequencies, context, f32::sin),
                Port::Mask => fill_mask(buffer, step.shape, context),
                Port::WriteMask => fill_write_mask(buffer, step.shape, context),
                Port::History => fill_history(buffer, self.history, step.shape, context),
                Port::Past(..)
                | Port::New(..)
                | Port::Next(..)
                | Port::Hidden
                | Port::Logits
                | Port::LogitsPart(_)
                | Port::Cross(_) => {
                    unreachable!("Step::new keeps only the ports before the states")
                }
            }
        }
        step.device.run(&[&step.inputs, &self.states])?;
        for ((state, &kind), &output) in self.states.iter_mut().zip(&self.kinds).zip(&step.state_outputs) {
            let rows = step.device.output(output);
            match self.protocol {
                CacheProtocol::Append => place_rows(state, rows, kind, self.size, step.shape.tokens, context),
                CacheProtocol::Shift | CacheProtocol::OneHot => state.copy_from_slice(rows),
            }
        }
        self.position += chunk.valid;
        self.tokens.extend_from_slice(ids);
        self.latest = Some((chunk.step, first + chunk.valid - 1));
        Ok(())
    }
}

impl Step {
    fn new(shape: StepShape, device: Device, kept: Vec<Kept>, layout: &Layout<'_>) -> Result<Step> {
        let fault = |what: &str| Diagnostic::error(Code::BadBundle, what).subject(shape.to_string());
        let (inputs, outputs) = (layout.inputs(shape), layout.outputs());
        let described = |port: &Port| (port.to_string(), layout.elements(*port, shape));
        let expected: Vec<(String, usize)> = inputs.iter().map(described).collect();
        let have: Vec<(String, usize)> = device.inputs();
        if have != expected {
            let list = |ports: &[(String, usize)]| {
                let ports: Vec<String> = ports.iter().map(|(name, len)| format!("{name} ({len})")).collect();
                ports.join(", ")
            };
            let fault = fault("the graph has other input ports than its model and protocol call for");
            return Err(fault.need(list(&expected)).have(list(&have)).into());
        }
        let have: BTreeMap<String, (usize, usize)> =
            device.outputs().into_iter().enumerate().map(|(i, (name, len))| (name, (i, len))).collect();
        let find = |port: &Port| match have.get(&port.to_string()) {
            Some(&(index, len)) if len == layout.elements(*port, shape) => Ok(index),
            Some(_) | None => {
                let fault = fault("the graph lacks an output port that its model and protocol call for");
                Err(Error::from(fault.need(format!("{port} of {} elements", layout.elements(*port, shape)))))
            }
        };
        let outputs = outputs.iter().map(find).collect::<Result<Vec<usize>>>()?;
        let [logits, state_outputs @ ..] = outputs.as_slice() else {
            return Err(fault("the graph has no logits").into());
        };
        let state_outputs = state_outputs.to_vec();
        let logits = *logits;
        let ports: Vec<Port> = inputs.into_iter().filter(|port| !matches!(port, Port::Past(..))).collect();
        let inputs = ports.iter().map(|&port| vec![0.0; layout.elements(port, shape)]).collect();
        Ok(Step { shape, device, ports, inputs, logits, state_outputs, kept })
    }
}

/// Refuses a session whose buffers the system has no memory for.
fn refuse_too_large(program: &Program, layout: &Layout<'_>) -> Result<()> {
    let step = |step: &program::Step| {
        let buffers = step.segments.iter().map(|segment| buffer_bytes(&segment.graph));
        buffers.fold(layout.input_bytes(step.shape), u64::saturating_add)
    };
    let caches = program.steps.first().map_or(0, |step| layout.cache_bytes(step.shape));
    let need = program.steps.iter().map(step).fold(caches, u64::saturating_add);
    let free = memory::available_bytes();
    if free.is_none_or(|free| need <= free) && memory::can_reserve(need) {
        return Ok(());
    }
    let have = free.map_or("less, by a limit on this process".into(), |free| format!("{free} bytes available"));
    Err(Diagnostic::error(Code::OutOfMemory, "the caches and intermediate values do not fit the memory")
        .need(format!("{need} bytes besides the weights"))
        .have(have)
        .help("use a smaller capacity or fewer tokens per step in --shapes")
        .into())
}

fn no_values() -> Error {
    Diagnostic::error(Code::BadArgument, "only the host keeps values, and only of a model in one graph (--dump)").into()
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

/// The values to keep: all whose path, port or `%index` is one of `names`. A value is kept under the name
/// it was asked for by, with its index where the name has several.
fn kept_values(graph: &Graph, names: &[String]) -> Result<Vec<Kept>> {
    let mut kept = Vec::new();
    for name in names.iter().collect::<BTreeSet<_>>() {
        let by_index = name.strip_prefix('%').and_then(|index| index.parse().ok());
        let outputs = graph.outputs.iter().filter(|output| output.name == *name).map(|output| output.value);
        let values = graph.ids().filter(|&id| graph.value(id).name == *name || by_index == Some(id.0));
        let found: BTreeSet<ValueId> = values.chain(outputs).collect();
        if found.is_empty() {
            return Err(Diagnostic::error(Code::BadArgument, "no value of the graph has this name")
                .subject(name)
                .need("an input, weight, output, path in the model (layers.0.mlp.down_proj) or %index")
                .help("list them with `npuc build … --dump-after simplify`")
                .into());
        }
        let several = found.len() > 1;
        kept.extend(found.into_iter().map(|id| {
            let name = if several { format!("{name} {id}") } else { name.clone() };
            Kept { name, id, shape: graph.value(id).ty.shape.clone() }
        }));
    }
    Ok(kept)
}
