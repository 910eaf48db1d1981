//! The steps of a program on a device: graphs with the buffers of their ports.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use npuc::exec::buffer_bytes;
use npuc::ir::{Graph, ValueId};
use npuc::model::{Port, StepShape};
use npuc::{Code, Diagnostic, Error, Result, Shape};
use npuc_kernels::lines::Lines;
use rayon::ThreadPool;

use super::ports::Layout;
use crate::device::host::{HostStep, Observer, thread_pool};
use crate::device::litert::LiteRt;
use crate::device::null::{Null, NullStep};
use crate::device::qnn::{Context, Qnn};
use crate::device::{Device, chain};
use crate::memory;
use crate::modules::Opened;
use crate::program::{self, Program, Segment};
use crate::toolchain::Installed;

/// A graph and the buffers of its ports.
pub(crate) struct Step {
    pub(crate) shape: StepShape,
    pub(crate) device: Device,
    /// Ports before what is heard and the states, in port order, and their buffers.
    pub(crate) ports: Vec<Port>,
    pub(crate) inputs: Vec<Lines>,
    /// For each port of [`Layout::outputs`] its place among the device's.
    pub(crate) results: Vec<usize>,
    pub(crate) kept: Vec<Kept>,
}

/// A value that can be read after a step.
pub(crate) struct Kept {
    pub(crate) name: String,
    pub(crate) id: ValueId,
    pub(crate) shape: Shape,
}

/// The steps of a program on a device.
pub struct Steps(pub(crate) Vec<Step>);

impl Steps {
    /// Every step, each made of its segments by `device`.
    fn over(
        program: &Program,
        mut device: impl FnMut(&Layout<'_>, &program::Step) -> Result<(Device, Vec<Kept>)>,
    ) -> Result<Steps> {
        let layout = Layout::of(program);
        refuse_too_large(program, &layout)?;
        let step = |step: &program::Step| {
            let (device, kept) = device(&layout, step)?;
            Step::new(step.shape, device, kept, &layout)
        };
        program.steps.iter().map(step).collect::<Result<_>>().map(Steps)
    }

    /// Every step as a chain of segments, each made by `segment`, which is told its place in the step.
    fn chained(program: &Program, mut segment: impl FnMut(usize, &Segment) -> Result<chain::Segment>) -> Result<Steps> {
        Steps::over(program, |layout, step| {
            let segments = step.segments.iter().enumerate().map(|(place, part)| segment(place, part));
            Ok((Device::Chain(layout.chain(step.shape, segments.collect::<Result<_>>()?)?), Vec::new()))
        })
    }

    /// On the host; values whose path or output name is in `keep` can be read after a step.
    pub fn on_host(program: &Program, threads: usize, keep: &[String]) -> Result<Steps> {
        let pool = thread_pool(threads)?;
        Steps::over(program, |layout, program::Step { shape, segments }| match &segments[..] {
            [Segment { graph, emitted: None, encodings }] => {
                let kept = kept_values(graph, keep)?;
                let ids: Vec<ValueId> = kept.iter().map(|kept| kept.id).collect();
                let host = HostStep::with_encodings(graph, &program.weights, encodings.as_deref(), &ids, pool.clone())?;
                Ok((Device::Host(host), kept))
            }
            _ if !keep.is_empty() => Err(no_values()),
            segments => {
                let host = |segment: &Segment| {
                    let encodings = segment.encodings.as_deref();
                    chain::Segment::host(&segment.graph, &program.weights, encodings, pool.clone())
                };
                let segments = segments.iter().map(host).collect::<Result<_>>()?;
                Ok((Device::Chain(layout.chain(*shape, segments)?), Vec::new()))
            }
        })
    }

    /// On the host over some of the program's steps, every segment of which shows its values to an observer of its own.
    pub(crate) fn observed(
        program: &Program,
        steps: &[&program::Step],
        pool: &Arc<ThreadPool>,
        mut observer: impl FnMut(usize, usize) -> Observer,
    ) -> Result<Steps> {
        let layout = Layout::of(program);
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
        Ok(Steps(observed))
    }

    /// Emitted segments in the LiteRT interpreter, all others on the host.
    pub fn on_litert(program: &Program, tool: &Installed, threads: usize, limit: Duration) -> Result<Steps> {
        if program.steps.iter().all(|step| step.segments.iter().all(|segment| segment.emitted.is_none())) {
            return Err(Diagnostic::error(Code::BadArgument, "the model has no TFLite files")
                .help("build it for a target of MediaTek's, or name the checkpoint")
                .into());
        }
        let pool = thread_pool(threads)?;
        let litert = Rc::new(RefCell::new(LiteRt::start(tool, limit)?));
        Steps::chained(program, |_, segment| match &segment.emitted {
            Some(path) => {
                let model = litert.borrow_mut().load(path, threads)?;
                Ok(chain::Segment::LiteRt(model, Rc::clone(&litert)))
            }
            None => chain::Segment::host(&segment.graph, &program.weights, None, pool.clone()),
        })
    }

    /// In Qualcomm's emulation; `contexts` are those of the program's parts, in order.
    pub fn on_qnn(program: &Program, contexts: Vec<Context>, qnn: Qnn) -> Result<Steps> {
        let qnn = Rc::new(RefCell::new(qnn));
        let contexts: Vec<Rc<Context>> = contexts.into_iter().map(Rc::new).collect();
        Steps::chained(program, |part, segment| {
            let name = segment.emitted.as_deref().and_then(Path::file_stem).unwrap_or_default();
            let found = contexts.get(part).and_then(|context| {
                let graph = context.graphs.iter().position(|graph| *graph.name == *name)?;
                Some(chain::Segment::Qnn(Rc::clone(context), graph, Rc::clone(&qnn)))
            });
            let fault = Diagnostic::error(Code::BadBundle, "no context has a graph of the step");
            found.ok_or_else(|| fault.subject(&segment.graph.name).into())
        })
    }

    /// Every segment as a compiled module.
    pub fn on_modules(program: &Program, mut modules: Opened) -> Result<Steps> {
        Steps::chained(program, |_, segment| Ok(chain::Segment::Module(Box::new(modules.take(segment)?))))
    }

    /// On the null device.
    pub fn on_null(program: &Program, null: &Null) -> Result<Steps> {
        let count = Arc::new(AtomicU64::new(0));
        Steps::over(program, |layout, &program::Step { shape, .. }| {
            let sized =
                |ports: Vec<Port>| ports.into_iter().map(|port| (port.to_string(), layout.elements(port, shape)));
            let (inputs, outputs) = (sized(layout.inputs(shape)).collect(), sized(layout.outputs()).collect());
            Ok((Device::Null(NullStep::new(null, shape.tokens, &count, inputs, outputs)), Vec::new()))
        })
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
        let results = outputs.iter().map(find).collect::<Result<Vec<usize>>>()?;
        let is_own = |port: &Port| !matches!(port, Port::Past(..) | Port::Heard(..));
        let ports: Vec<Port> = inputs.into_iter().filter(is_own).collect();
        let inputs = ports.iter().map(|&port| Lines::zeros(layout.elements(port, shape))).collect();
        Ok(Step { shape, device, ports, inputs, results, kept })
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
