//! Whether a model fits a chip: the graphs of every step shape against the target's rules, the memory of every
//! chunk, and the largest context that fits. Needs a configuration only; weights add what their values show.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::Serialize;

use crate::back::{BackEnd, qnn, tflite};
use crate::diag::{Code, Diagnostic, Result, Severity};
use crate::front::ModelConfig;
use crate::ir::{Graph, Type, ValueId};
use crate::model::{self, Chunks, Head, Part, StepShape};
use crate::pass;
use crate::place::{self, Assignment, Bill, Side};
use crate::target::ledger::{self, ChunkMemory, Usage};
use crate::target::rule::{Cost, Grade, Hazard, Limit, Remedy};
use crate::target::{self, Mend, Misfit, Place, Question, Target, misfits};
use crate::tensor::Tensor;

mod fp16;

/// What is asked of a model.
#[derive(Clone, Debug)]
pub struct Request {
    /// The chip.
    pub target: Target,
    /// Precision and flags.
    pub question: Question,
    /// The step shapes, all of one capacity.
    pub shapes: Vec<StepShape>,
    /// How the model is cut; `None` for the fewest chunks that the target's limits on bytes and counts allow.
    pub chunks: Option<Chunks>,
    /// What is changed in the model's graphs so that they fit, in order; flags are in the question.
    pub mends: Vec<Mend>,
    /// Which operations go to the NPU and which to the CPU.
    pub placement: Vec<place::Rule>,
    /// Whether the NPU has to compute every operation.
    pub deny_fallback: bool,
}

impl Request {
    /// No mend, as many chunks as it takes, and the target's own placement.
    pub fn new(target: Target, question: Question, shapes: Vec<StepShape>) -> Request {
        let placement = target.placement();
        Request { target, question, shapes, chunks: None, mends: Vec::new(), placement, deny_fallback: false }
    }

    /// The same, with weights as they are stored and no flag.
    pub fn plain(target: Target, shapes: Vec<StepShape>) -> Request {
        let question = Question::stored(&target);
        Request::new(target, question, shapes)
    }

    /// The side of every operation of a graph.
    pub fn assign(&self, graph: &Graph) -> Assignment {
        place::assign(graph, &self.placement, &self.question.precision)
    }

    /// The part with the head as it is mended.
    pub fn mended(&self, part: &Part) -> Part {
        let split = self.mends.iter().find_map(|mend| match mend {
            Mend::SplitHead(rows) => Some(Head::Rows(rows.clone())),
            Mend::Pass(_) | Mend::Flag(_) | Mend::Place(_) => None,
        });
        let head = split.filter(|_| part.head == Head::Whole).unwrap_or_else(|| part.head.clone());
        Part { head, ..part.clone() }
    }
}

/// What a chunk needs of the NPU, or one of its segments where operations between them go to the CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chunk {
    /// Its place, with that of the segment where there are several.
    pub name: String,
    /// The layers of the chunk.
    pub layers: usize,
    /// Its memory.
    #[serde(flatten)]
    pub memory: ChunkMemory,
}

/// The longest cache that fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Context {
    /// Rows of the cache.
    pub capacity: usize,
    /// What forbids more.
    pub bound_by: String,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Fit {
    /// Everything that does not fit or is worth knowing, errors first.
    pub misfits: Vec<Misfit>,
    /// The parts of the model, in order.
    pub parts: Vec<Part>,
    /// What they need.
    pub chunks: Vec<Chunk>,
    /// What the placement costs in a step of each shape; empty where all is on the NPU.
    pub bills: Vec<(StepShape, Bill)>,
    /// The limit on bytes or counts of which most is used.
    pub binding: Option<Usage>,
    /// The longest cache that breaks no rule that the shortest keeps; `None` if even that does not hold together.
    pub context: Option<Context>,
    /// The graphs that the misfits' lines are about, one for each shape.
    pub graphs: Vec<Graph>,
    /// The same graphs cut into chunks, which misfits of counts and bytes are about.
    pub chunk_graphs: Vec<Graph>,
}

impl Fit {
    /// Whether nothing keeps the model from the target.
    pub fn fits(&self) -> bool {
        self.misfits.iter().all(|misfit| misfit.severity != Severity::Error)
    }
}

/// Holds a model against a target. `weights` are the checkpoint's, where there is one.
///
/// # Errors
/// Shapes that the model cannot take or that differ in capacity, and chunks that are not its layers in sum;
/// misfits are no errors but the answer.
pub fn fit(config: &ModelConfig, weights: Option<&BTreeMap<String, Tensor>>, request: &Request) -> Result<Fit> {
    let subject = Subject::new(config, weights, request);
    let Survey { mut misfits, graphs, parts, measured } = subject.survey()?;
    if !one_of_several(config) {
        refuse_idle(subject.idle_rules(&graphs))?;
    }
    if let Some(weights) = weights {
        misfits.extend(weight_range(weights, &graphs, request));
    }
    let bills = subject.bills(&graphs)?;
    let (chunks, chunk_graphs): (Vec<Chunk>, Vec<Vec<Graph>>) =
        measured.into_iter().map(|Measured { chunk, graphs }| (chunk, graphs)).unzip();
    let memories: Vec<ChunkMemory> = chunks.iter().map(|chunk| chunk.memory.clone()).collect();
    Ok(Fit {
        misfits: crate::target::fold(misfits),
        binding: ledger::binding(&memories, &request.target, &request.question.precision),
        context: longest_context(&subject, &parts)?,
        parts,
        chunks,
        bills,
        graphs,
        chunk_graphs: chunk_graphs.into_iter().flatten().collect(),
    })
}

fn one_capacity(shapes: &[StepShape]) -> Result<()> {
    let mut capacities: Vec<usize> = shapes.iter().map(|shape| shape.capacity).collect();
    capacities.sort_unstable();
    capacities.dedup();
    match capacities[..] {
        [_] => Ok(()),
        _ => Err(Diagnostic::error(Code::BadShape, "the step shapes need one capacity: all steps share the cache")
            .need("shapes of one capacity, e.g. 128t1024c,1t1024c")
            .have(shapes.iter().map(StepShape::to_string).collect::<Vec<_>>().join(","))
            .into()),
    }
}

/// The types of the weights: the checkpoint's, or what the precision makes the float graph have.
fn weight_types(
    config: &ModelConfig,
    weights: Option<&BTreeMap<String, Tensor>>,
    request: &Request,
) -> BTreeMap<String, Type> {
    if let Some(weights) = weights {
        return crate::build::weight_types(weights);
    }
    let dtype = request.question.precision.activation.graph_dtype();
    let specs = model::weight_specs(config).into_iter();
    specs.map(|spec| (spec.name, Type { dtype, shape: spec.shape })).collect()
}

/// A model and what is asked of it.
#[derive(Clone)]
pub(crate) struct Subject<'a> {
    config: &'a ModelConfig,
    types: Rc<BTreeMap<String, Type>>,
    request: &'a Request,
    /// Whether graphs have the ports of the target's runtime, as those have that are built.
    built: bool,
}

/// What a model has that a target does not take, before the longest context is looked for.
pub(crate) struct Survey {
    pub(crate) misfits: Vec<Misfit>,
    /// The whole model's graph for each shape.
    graphs: Vec<Graph>,
    parts: Vec<Part>,
    measured: Vec<Measured>,
}

impl<'a> Subject<'a> {
    pub(crate) fn new(
        config: &'a ModelConfig,
        weights: Option<&BTreeMap<String, Tensor>>,
        request: &'a Request,
    ) -> Subject<'a> {
        Subject::over(config, weight_types(config, weights, request), request)
    }

    /// The same over weights of other types.
    pub(crate) fn over(config: &'a ModelConfig, types: BTreeMap<String, Type>, request: &'a Request) -> Subject<'a> {
        Subject { config, types: Rc::new(types), request, built: true }
    }

    /// The same with the ports of the model's own steps.
    pub(crate) fn plain(self) -> Subject<'a> {
        Subject { built: false, ..self }
    }

    /// Every misfit that the graphs and their sizes show.
    pub(crate) fn survey(&self) -> Result<Survey> {
        let Request { target, question, shapes, .. } = self.request;
        one_capacity(shapes)?;
        let graphs = self.lowered(&Part::whole(model::layers(self.config)), shapes)?;
        let (parts, measured) = chunked(self)?;
        let of_graph = |graph| misfits(graph, target, question, &self.request.assign(graph));
        let mut found: Vec<Misfit> = graphs.iter().flat_map(of_graph).collect();
        if self.request.deny_fallback {
            found.extend(graphs.iter().flat_map(|graph| target::fallbacks(graph, target, &self.request.assign(graph))));
            found.iter_mut().filter(|misfit| misfit.code == Code::UnsupportedOp).for_each(deny);
        }
        for Measured { chunk, graphs } in &measured {
            found.extend(ledger::misfits(&chunk.memory, graphs, target, question));
        }
        found.extend(self.unbuildable(&graphs));
        Ok(Survey { misfits: crate::target::fold(found), graphs, parts, measured })
    }

    /// What a chip would take and npuc does not build.
    fn unbuildable(&self, graphs: &[Graph]) -> Vec<Misfit> {
        let Request { target, question, .. } = self.request;
        let on_cpu = |graph: &&Graph| self.request.assign(graph).count(Side::Cpu) > 0;
        let misfit = |graph: &Graph| {
            let placement = self.request.assign(graph);
            let at = graph.ids().find(|&id| placement.side(id) == Some(Side::Cpu))?;
            Some(Misfit {
                severity: Severity::Error,
                code: Code::Misfit,
                rule: "cpu-between-integers".into(),
                message: "npuc does not build operations on the CPU between these files yet".into(),
                unit: "CPU".into(),
                limit: match target.back_end {
                    Some(BackEnd::Tflite) => "all operations on the NPU, or a float precision".into(),
                    Some(BackEnd::Host | BackEnd::Qnn | BackEnd::Iree | BackEnd::Torq) | None => {
                        "all operations on the NPU".into()
                    }
                },
                actual: question.precision.name.clone(),
                why: None,
                source: "npuc's back end for this target".into(),
                grade: Grade::Tried,
                remedies: match target.back_end {
                    Some(BackEnd::Tflite) => {
                        vec![Remedy::new(Cost::Option, "float files may have them").option("--precision FP")]
                    }
                    Some(BackEnd::Host | BackEnd::Qnn | BackEnd::Iree | BackEnd::Torq) | None => Vec::new(),
                },
                places: vec![Place::value(graph, at)],
            })
        };
        let builds = target.builds_cpu_segments(&question.precision);
        graphs.iter().filter(|graph| !builds && on_cpu(graph)).filter_map(misfit).collect()
    }

    /// The part's graph of every shape in the operations that the target takes.
    pub(crate) fn lowered(&self, part: &Part, shapes: &[StepShape]) -> Result<Vec<Graph>> {
        let target = &self.request.target;
        let passes = target.passes(&self.request.mends);
        let part = &self.request.mended(part);
        let graph = |shape: &StepShape| {
            let graph = model::build_part(self.config, &self.types, *shape, target.protocol, part)?;
            let graph = match target.back_end {
                Some(BackEnd::Tflite) if self.built => tflite::contract(&graph)?,
                Some(BackEnd::Qnn) if self.built => qnn::contract(&graph)?,
                Some(BackEnd::Host | BackEnd::Tflite | BackEnd::Qnn | BackEnd::Iree | BackEnd::Torq) | None => graph,
            };
            pass::run(graph, &passes, |_, _, _| {})
        };
        shapes.iter().map(graph).collect()
    }

    fn measure(&self, parts: &[Part], shapes: &[StepShape]) -> Result<Vec<Measured>> {
        let mut measured = Vec::with_capacity(parts.len());
        for (number, part) in parts.iter().enumerate() {
            let mut graphs = self.lowered(part, shapes)?;
            graphs.iter_mut().for_each(|graph| graph.name = format!("{}.{number}", graph.name));
            let pieces = self.npu_graphs(graphs)?;
            let several = pieces.len() > 1;
            for (place, graphs) in pieces.into_iter().enumerate() {
                let memory = ledger::measure(&graphs, &self.request.target, &self.request.question.precision);
                let name = if several { format!("{number}.{place}") } else { number.to_string() };
                measured.push(Measured { chunk: Chunk { name, layers: part.layers.len(), memory }, graphs });
            }
        }
        Ok(measured)
    }

    /// The graphs of the NPU, one list for each file's worth of weights: the graphs of all shapes where these are cut
    /// alike, otherwise every graph by itself.
    fn npu_graphs(&self, graphs: Vec<Graph>) -> Result<Vec<Vec<Graph>>> {
        let mut by_shape: Vec<Vec<Graph>> = Vec::with_capacity(graphs.len());
        for graph in graphs {
            let placement = self.request.assign(&graph);
            if placement.count(Side::Cpu) == 0 {
                by_shape.push(vec![graph]);
                continue;
            }
            let segments = place::segments(&graph, &placement)?.into_iter();
            by_shape.push(segments.filter(|s| s.side == Side::Npu).map(|segment| segment.graph).collect());
        }
        let count = by_shape.first().map_or(0, Vec::len);
        if by_shape.iter().any(|graphs| graphs.len() != count) {
            return Ok(by_shape.into_iter().flatten().map(|graph| vec![graph]).collect());
        }
        let mut pieces: Vec<Vec<Graph>> = (0..count).map(|_| Vec::new()).collect();
        for graphs in by_shape {
            pieces.iter_mut().zip(graphs).for_each(|(piece, graph)| piece.push(graph));
        }
        Ok(pieces)
    }

    /// The bill of every shape whose graph has operations on the CPU.
    fn bills(&self, graphs: &[Graph]) -> Result<Vec<(StepShape, Bill)>> {
        let mut bills = Vec::new();
        for (graph, &shape) in graphs.iter().zip(&self.request.shapes) {
            let placement = self.request.assign(graph);
            if placement.count(Side::Cpu) > 0 {
                let segments = place::segments(graph, &placement)?;
                bills.push((
                    shape,
                    place::bill(&segments, self.request.target.port_bytes(&self.request.question.precision)),
                ));
            }
        }
        Ok(bills)
    }

    /// The rules of the user's that hold for no operation; those of the target need not hold.
    fn idle_rules(&self, graphs: &[Graph]) -> Vec<place::Rule> {
        let assigned: Vec<Assignment> = graphs.iter().map(|graph| self.request.assign(graph)).collect();
        let own = self.request.target.places.len();
        let idle = self.request.placement.iter().enumerate().skip(own);
        let idle = idle.filter(|(place, _)| assigned.iter().all(|assignment| assignment.idle.contains(place)));
        idle.map(|(_, rule)| rule.clone()).collect()
    }
}

/// The rules of the user's that hold for no operation of the model, see [`refuse_idle`].
///
/// Errors: shapes that the model cannot take.
pub fn idle_rules(config: &ModelConfig, request: &Request) -> Result<Vec<place::Rule>> {
    let subject = Subject::new(config, None, request);
    Ok(subject.idle_rules(&subject.lowered(&Part::whole(model::layers(config)), &request.shapes)?))
}

/// A rule that holds for no operation is a mistake. What is built of several models is asked by all of them together, so
/// [`fit`] leaves that to its caller.
///
/// Errors: [`Code::BadArgument`] for each of the rules.
pub fn refuse_idle(rules: Vec<place::Rule>) -> Result<()> {
    let fault = |rule: place::Rule| {
        Diagnostic::error(Code::BadArgument, "a rule of placement holds for no operation")
            .subject(format!("--place {rule}"))
            .help("`npuc check … --ir DIR` writes the graphs, whose operations and paths rules are about")
    };
    crate::diag::Error::check(rules.into_iter().map(fault).collect())
}

/// Whether the model is one of several that are asked together.
const fn one_of_several(config: &ModelConfig) -> bool {
    match config {
        ModelConfig::Whisper(_) => true,
        ModelConfig::Llama(_) | ModelConfig::Lfm2(_) => false,
    }
}

/// Whether a target computes the whole model on its NPU, as it is or with rewrites and flags.
///
/// Errors: as [`fit`].
pub fn takes_whole(config: &ModelConfig, request: &Request) -> Result<bool> {
    let request = Request { deny_fallback: true, ..request.clone() };
    let mended = crate::mend::settled(config, None, &request, crate::mend::Preference::Rewrites)?;
    let survey = Subject::new(config, None, &mended.0).survey()?;
    Ok(survey.misfits.iter().all(|misfit| misfit.severity != Severity::Error))
}

/// Where the CPU may not help, an operation that only it would compute keeps the model from the target.
fn deny(misfit: &mut Misfit) {
    misfit.severity = Severity::Error;
    misfit.remedies.retain(|remedy| !matches!(remedy.mend, Some(Mend::Place(_))));
}

/// What a chunk or segment needs, and its graphs.
struct Measured {
    chunk: Chunk,
    graphs: Vec<Graph>,
}

/// The parts of a model, measured.
type Cut = (Vec<Part>, Vec<Measured>);

/// The chunks, measured.
fn chunked(subject: &Subject<'_>) -> Result<Cut> {
    let request = subject.request;
    let layers = model::layers(subject.config);
    if let Some(chunks) = &request.chunks {
        let parts = chunks.parts(layers)?;
        let measured = subject.measure(&parts, &request.shapes)?;
        return Ok((parts, measured));
    }
    let cut = |count: usize| -> Result<(bool, Cut)> {
        let parts = Chunks::Layers(as_equal_as_can_be(layers, count)).parts(layers)?;
        let measured = subject.measure(&parts, &request.shapes)?;
        let broken = |Measured { chunk, graphs }: &Measured| {
            !ledger::misfits(&chunk.memory, graphs, &request.target, &request.question).is_empty()
        };
        Ok((!measured.iter().any(broken), (parts, measured)))
    };
    // More chunks are smaller chunks: doubling finds a number that fits, bisection the fewest.
    let (mut low, mut high) = (0, 1);
    let mut best = loop {
        let (fits, cut) = cut(high)?;
        if fits || high == layers {
            break cut;
        }
        (low, high) = (high, (2 * high).min(layers));
    };
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match cut(middle)? {
            (true, cut) => (high, best) = (middle, cut),
            (false, _) => low = middle,
        }
    }
    Ok(best)
}

fn as_equal_as_can_be(layers: usize, count: usize) -> Vec<usize> {
    let (each, left) = (layers / count, layers % count);
    (0..count).map(|chunk| each + usize::from(chunk < left)).collect()
}

/// The longest cache under which nothing is broken that the shortest keeps, by bisection.
fn longest_context(subject: &Subject<'_>, parts: &[Part]) -> Result<Option<Context>> {
    let request = &Request { target: subject.request.target.clone().without_warnings(), ..subject.request.clone() };
    let subject = &Subject { request, ..subject.clone() };
    let most = subject.config.max_positions();
    let shortest = request.shapes.iter().map(|shape| shape.tokens).max().unwrap_or(1);
    let kept = errors(subject, parts, shortest)?;
    let first_new = |capacity: usize| -> Result<Option<Misfit>> {
        let found = errors(subject, parts, capacity)?;
        let is_new = |misfit: &Misfit| kept.iter().all(|old| old.rule != misfit.rule || old.message != misfit.message);
        Ok(found.into_iter().find(is_new))
    };
    let Some(mut breaker) = first_new(most)? else {
        let bound_by = "the model itself (max_position_embeddings)".to_owned();
        return Ok(Some(Context { capacity: most, bound_by }));
    };
    let (mut good, mut bad) = (shortest, most);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        match first_new(middle)? {
            None => good = middle,
            Some(misfit) => (bad, breaker) = (middle, misfit),
        }
    }
    let bound_by = format!("{}: {}", breaker.rule, breaker.limit);
    Ok(Some(Context { capacity: good, bound_by }))
}

/// What keeps the model's parts on the NPU from the target at another capacity.
fn errors(subject: &Subject<'_>, parts: &[Part], capacity: usize) -> Result<Vec<Misfit>> {
    let Request { target, question, shapes, .. } = subject.request;
    let shapes: Vec<StepShape> = shapes.iter().map(|shape| StepShape { capacity, ..*shape }).collect();
    let mut found: Vec<Misfit> = Vec::new();
    for Measured { chunk, graphs } in subject.measure(parts, &shapes)? {
        let on_npu = |graph| misfits(graph, target, question, &Assignment::by(graph, |_| Side::Npu));
        found.extend(graphs.iter().flat_map(on_npu));
        found.extend(ledger::misfits(&chunk.memory, &graphs, target, question));
    }
    found.retain(|misfit| misfit.severity == Severity::Error);
    Ok(found)
}

/// Weights that stay floats and that binary16 cannot hold, where a rule asks for it. Reads all that are stored in
/// f32 or bf16.
fn weight_range(weights: &BTreeMap<String, Tensor>, graphs: &[Graph], request: &Request) -> Vec<Misfit> {
    let asks = |limit: &Limit| matches!(limit, Limit::Fp16Range { hazard: Hazard::Weights });
    let precision = &request.question.precision;
    let mut rules = request.target.rules.iter();
    let Some(rule) = rules.find(|rule| asks(&rule.limit) && rule.when.holds(precision, None)) else {
        return Vec::new();
    };
    let Some(graph) = graphs.first() else { return Vec::new() };
    let integers = precision.weight.is_some_and(|format| !format.number.is_float());
    let quantised = if integers { ledger::matrices(graph) } else { Vec::new() };
    let place = |name: &str| {
        let at = graph.values.iter().position(|value| value.name == name)?;
        Some(Place::value(graph, ValueId(u32::try_from(at).ok()?)))
    };
    let misfit = |(name, counts): (String, fp16::Counts)| {
        let (severity, message) = match counts.over {
            0 => (Severity::Warning, "weights become zero in fp16".to_owned()),
            _ => (rule.severity, "weights leave the range of fp16".to_owned()),
        };
        let fp16::Counts { over, vanishing, largest, of } = counts;
        Some(Misfit {
            severity,
            code: rule.limit.code(),
            rule: rule.name.0.clone(),
            message,
            unit: request.target.main_unit().name.0.clone(),
            limit: rule.limit.to_string(),
            actual: format!("{over} of {of} beyond 65504 (largest {largest:e}), {vanishing} that become zero"),
            why: rule.why.as_ref().map(ToString::to_string),
            source: rule.source.0.clone(),
            grade: rule.grade,
            remedies: rule.remedies.clone(),
            places: vec![place(&name)?],
        })
    };
    let floats = weights.iter().filter(|(name, _)| !quantised.contains(&name.as_str()));
    fp16::outside(&floats.collect::<Vec<_>>()).into_iter().filter_map(misfit).collect()
}

#[cfg(test)]
mod tests;
