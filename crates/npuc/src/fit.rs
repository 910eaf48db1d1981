//! Whether a model fits a chip: the graphs of every step shape against the target's rules, the memory of every
//! chunk, and the largest context that fits. Needs a configuration only; weights add what their values show.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::diag::{Code, Diagnostic, Result, Severity};
use crate::front::ModelConfig;
use crate::ir::{Graph, Type, ValueId};
use crate::model::{self, Chunks, Part, StepShape};
use crate::pass;
use crate::target::ledger::{self, ChunkMemory, Usage};
use crate::target::rule::{Hazard, Limit};
use crate::target::{Misfit, Place, Question, Target, misfits};
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
}

/// A chunk and what it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chunk {
    /// Its layers.
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
    /// The chunks, in order.
    pub chunks: Vec<Chunk>,
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
    let Request { target, question, shapes, .. } = request;
    one_capacity(shapes)?;
    let types = weight_types(config, weights, request);
    let whole = Part::whole(model::layers(config));
    let subject = Subject { config, types: &types, request };
    let graphs = subject.lowered(&whole, shapes)?;
    let (parts, measured) = chunked(&subject)?;

    let mut found: Vec<Misfit> = graphs.iter().flat_map(|graph| misfits(graph, target, question)).collect();
    for (graphs, memory) in &measured {
        found.extend(ledger::misfits(memory, graphs, target, question));
    }
    if let Some(weights) = weights {
        found.extend(weight_range(weights, &graphs, request));
    }
    let (chunk_graphs, memories): (Vec<Vec<Graph>>, Vec<ChunkMemory>) = measured.into_iter().unzip();
    Ok(Fit {
        misfits: crate::target::fold(found),
        binding: ledger::binding(&memories, target, &question.precision),
        context: longest_context(&subject, &parts)?,
        chunks: parts.iter().zip(memories).map(|(part, memory)| Chunk { layers: part.layers.len(), memory }).collect(),
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
            .need("at least one shape, e.g. 128t1024c,1t1024c")
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
struct Subject<'a> {
    config: &'a ModelConfig,
    types: &'a BTreeMap<String, Type>,
    request: &'a Request,
}

impl Subject<'_> {
    /// The part's graph of every shape in the operations that the target takes.
    fn lowered(&self, part: &Part, shapes: &[StepShape]) -> Result<Vec<Graph>> {
        let target = &self.request.target;
        let passes = target.passes();
        let graph = |shape: &StepShape| {
            let graph = model::build_part(self.config, self.types, *shape, target.protocol, part)?;
            pass::run(graph, &passes, |_, _, _| {})
        };
        shapes.iter().map(graph).collect()
    }

    fn measure(&self, parts: &[Part], shapes: &[StepShape]) -> Result<Measured> {
        let of_part = |(number, part): (usize, &Part)| {
            let mut graphs = self.lowered(part, shapes)?;
            graphs.iter_mut().for_each(|graph| graph.name = format!("{}.{number}", graph.name));
            let memory = ledger::measure(&graphs, &self.request.question.precision);
            Ok((graphs, memory))
        };
        parts.iter().enumerate().map(of_part).collect()
    }
}

/// The graphs of each chunk and what they need.
type Measured = Vec<(Vec<Graph>, ChunkMemory)>;

/// The chunks, measured.
fn chunked(subject: &Subject<'_>) -> Result<(Vec<Part>, Measured)> {
    let request = subject.request;
    let layers = model::layers(subject.config);
    if let Some(chunks) = &request.chunks {
        let parts = chunks.parts(layers)?;
        let measured = subject.measure(&parts, &request.shapes)?;
        return Ok((parts, measured));
    }
    let mut count = 1;
    loop {
        let parts = Chunks::Layers(as_equal_as_can_be(layers, count)).parts(layers)?;
        let measured = subject.measure(&parts, &request.shapes)?;
        let broken = |(graphs, memory): &(Vec<Graph>, ChunkMemory)| {
            !ledger::misfits(memory, graphs, &request.target, &request.question).is_empty()
        };
        if count == layers || !measured.iter().any(broken) {
            return Ok((parts, measured));
        }
        count += 1;
    }
}

fn as_equal_as_can_be(layers: usize, count: usize) -> Vec<usize> {
    let (each, left) = (layers / count, layers % count);
    (0..count).map(|chunk| each + usize::from(chunk < left)).collect()
}

/// The longest cache under which nothing is broken that the shortest keeps, by bisection.
fn longest_context(subject: &Subject<'_>, parts: &[Part]) -> Result<Option<Context>> {
    let ModelConfig::Llama(llama) = subject.config;
    let request = &Request { target: subject.request.target.clone().without_warnings(), ..subject.request.clone() };
    let subject = &Subject { request, ..*subject };
    let most = llama.max_positions;
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

/// What keeps the model from the target at another capacity.
fn errors(subject: &Subject<'_>, parts: &[Part], capacity: usize) -> Result<Vec<Misfit>> {
    let request = subject.request;
    let shapes: Vec<StepShape> = request.shapes.iter().map(|shape| StepShape { capacity, ..*shape }).collect();
    let graphs = subject.lowered(&Part::whole(model::layers(subject.config)), &shapes)?;
    let mut found: Vec<Misfit> =
        graphs.iter().flat_map(|graph| misfits(graph, &request.target, &request.question)).collect();
    for (graphs, memory) in subject.measure(parts, &shapes)? {
        found.extend(ledger::misfits(&memory, &graphs, &request.target, &request.question));
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
