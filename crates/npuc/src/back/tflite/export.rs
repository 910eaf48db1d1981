//! A model as the files that MediaTek's GenAI runtime is fed from: a TFLite file per chunk and shape, the embedding
//! table, and the runtime's YAML.
//!
//! The runtime loads `.dla` files, which `ncc-tflite` makes of the TFLite files; the YAML names them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write};

use super::{PASSES, PortScale, Storage, TfliteFile, contract, emit, ncc};
use crate::back::chunk::{self, Chunk};
use crate::back::{BackEnd, Emitted, EmittedFile};
use crate::build::weight_types;
use crate::bundle::write::{ExtraContent, ExtraFile};
use crate::diag::{Code, Diagnostic, Result};
use crate::fit::Request;
use crate::front::config::{Rope, RopeScaling};
use crate::front::{Checkpoint, ModelConfig, SpecialTokens};
use crate::ir::{Def, Graph, Type, Value};
use crate::model::{Part, Port, StepShape, llama};
use crate::pass::Pass;
use crate::place::{self, Side};
use crate::quant::{self, Encodings, WeightFormat};
use crate::target::{self, Mend, Target};
use crate::tensor::{DType, Tensor};

/// The name of the embedding table's file: f32, row-major `[vocab, hidden]`, no header.
pub const EMBEDDING_FILE: &str = "embedding_fp32.bin";
/// The same in int16, with the scale of the first chunk's port `embeds`.
pub const EMBEDDING_FILE_INT16: &str = "embedding_int16.bin";

impl Chunk {
    /// The file's name without its ending, e.g. `Llama-3.2-1B_FP_4layer_128t1024c_0`.
    pub fn stem(&self, model: &str, precision: &str) -> String {
        format!("{model}_{precision}_{}layer_{}_{}", self.part.layers.len(), self.shape, self.number)
    }
}

/// The graph of every shape and part, shapes first, lowered to what TFLite has.
///
/// Errors: shapes and parts that the model cannot take.
pub fn chunks(
    config: &ModelConfig,
    weights: &BTreeMap<String, Type>,
    request: &Request,
    parts: &[Part],
) -> Result<Vec<Chunk>> {
    chunk::chunks(config, weights, request, parts, &passes(&request.target, &request.mends), contract)
}

/// The target's own passes, and those that leave only what TFLite has.
fn passes(target: &Target, mends: &[Mend]) -> Vec<Pass> {
    let own = target.passes(mends);
    let ends = |pass: &Pass| *pass == Pass::Simplify || pass.follows_decomposition();
    let (last, first): (Vec<Pass>, Vec<Pass>) = own.into_iter().partition(ends);
    let missing = PASSES.iter().copied().filter(|pass| !ends(pass) && !first.contains(pass));
    first.iter().copied().chain(missing).chain(last).collect()
}

/// What to export.
#[derive(Clone, Debug)]
pub struct Export<'a> {
    /// The model's name in file names.
    pub model: &'a str,
    /// The chip, precision, shapes and mends. MediaTek's chips take one or two shapes of the same capacity: the prompt's
    /// and the one of a single token.
    pub request: &'a Request,
    /// The parts of the model.
    pub parts: &'a [Part],
    /// How each part is stored, all in one precision.
    pub storage: &'a [Storage<'a>],
}

/// What was exported.
#[derive(Debug)]
pub struct Exported<'a> {
    /// The graphs, shapes in the order that was asked for.
    pub graphs: Vec<Emitted>,
    /// The weights that only the host reads.
    pub weights: Vec<(&'a str, &'a Tensor)>,
    /// The embedding table, what the runtime is told, and the compiler's command lines as a script.
    pub files: Vec<ExtraFile>,
    /// The same command lines; absent for a target whose file names no `--arch`.
    pub compiler: Option<ncc::Plan>,
    /// What the user has to know.
    pub warnings: Vec<Diagnostic>,
}

/// Emits a model. Weights are read when the files are written.
///
/// Errors: shapes that the runtime cannot have; a name that no file can have; what [`chunks`], [`target::check()`] and
/// [`emit`] refuse; parts in different precisions or whose scales differ where they meet; operations on the CPU between
/// parts in whole numbers.
pub fn export<'a>(checkpoint: &'a Checkpoint, export: &Export<'_>) -> Result<Exported<'a>> {
    let Export { model, request, parts, storage } = *export;
    check_request(export)?;
    let types = weight_types(&checkpoint.tensors);
    let mut pieces: Vec<Piece> = Vec::new();
    for chunk in chunks(&checkpoint.config, &types, request, parts)? {
        pieces.extend(cut(chunk, model, request)?);
    }
    let on_cpu = check_sides(&pieces, storage)?;
    let npu = pieces.iter().filter(|piece| piece.stem.is_some()).flat_map(|piece| weight_names(&piece.graph));
    let npu: BTreeSet<String> = npu.map(str::to_owned).collect();
    let mut host_weights: BTreeSet<String> = BTreeSet::new();
    let mut graphs: Vec<Emitted> = Vec::new();
    let mut stems: BTreeMap<StepShape, Vec<String>> = BTreeMap::new();
    for Piece { shape, part, graph, stem } in pieces {
        let storage = storage[part];
        let Some(stem) = stem else {
            let graph = for_the_host(graph, &npu, storage);
            let own = weight_names(&graph).filter(|name| *name != llama::EMBEDDING && !npu.contains(*name));
            host_weights.extend(own.map(str::to_owned));
            graphs.push(Emitted { shape, graph, file: None, encodings: None });
            continue;
        };
        let checked = target::check(graph, &request.target, &request.question)?;
        let file = emit(&checked, &checkpoint.tensors, storage)?;
        let (graph, encodings) = hosted(checked.graph(), &file, storage, checkpoint, &mut host_weights)?;
        graphs.push(Emitted {
            shape,
            graph,
            file: Some((format!("{stem}.tflite"), EmittedFile::Tflite(file))),
            encodings,
        });
        stems.entry(shape).or_default().push(stem);
    }
    check_boundaries(&graphs)?;
    let scale = first_scale(&graphs);
    if scale.is_some() {
        // The runner embeds with the table as the checkpoint has it.
        host_weights.extend(Some(llama::EMBEDDING.to_owned()).filter(|_| checkpoint.config.reads_tokens()));
    }
    let (mut files, mut warnings) = (Vec::new(), Vec::new());
    host_weights.extend(checkpoint.config.positions_table().map(str::to_owned));
    if checkpoint.config.reads_tokens() {
        files.push(embedding(checkpoint, scale)?);
    }
    let (yaml, told) = runtime(checkpoint, export, on_cpu, (&stems, &graphs))?;
    files.extend(yaml);
    warnings.extend(told);
    let compiler = compiler(request, &stems)?;
    if let Some(plan) = &compiler {
        warnings.extend(plan.warnings.iter().cloned());
        let script = ExtraContent::Bytes(plan.script().into_bytes());
        files.push(ExtraFile { path: ncc::SCRIPT_FILE.into(), content: script });
    }
    let weights = checkpoint.tensors.iter().filter(|(name, _)| host_weights.contains(*name));
    let weights = weights.map(|(name, tensor)| (name.as_str(), tensor)).collect();
    Ok(Exported { graphs, weights, files, compiler, warnings })
}

/// The YAML for MediaTek's runtime, and what that cannot do.
fn runtime(
    checkpoint: &Checkpoint,
    export: &Export<'_>,
    on_cpu: bool,
    (stems, graphs): (&BTreeMap<StepShape, Vec<String>>, &[Emitted]),
) -> Result<(Option<ExtraFile>, Vec<Diagnostic>)> {
    let request = export.request;
    if on_cpu {
        return Ok((None, vec![no_runtime()]));
    }
    if request.target.back_end != Some(BackEnd::Tflite) {
        return Ok((None, Vec::new()));
    }
    let Some(rope) = checkpoint.config.rope() else {
        return Ok((None, vec![no_pipeline(&checkpoint.config)]));
    };
    let (prompt, generation) = runtime_shapes(&request.shapes)?;
    let yaml = Yaml { prompt, generation, stems, embeds: first_scale(graphs), logits: logits_scale(graphs) };
    let text = runtime_yaml(checkpoint, rope, &yaml).into_bytes();
    let file = ExtraFile { path: format!("{}.yaml", export.model), content: ExtraContent::Bytes(text) };
    Ok((Some(file), rope_warning(rope).into_iter().chain(head_warning(request)).collect()))
}

/// What no target of MediaTek's can have, before any work.
fn check_request(export: &Export<'_>) -> Result<()> {
    let Export { model, request, parts, storage } = *export;
    if model.is_empty() || model.contains(['/', '\\']) {
        let fault = Diagnostic::error(Code::BadArgument, "the model's name cannot be part of a file name");
        return Err(fault.need("a name without `/` and `\\`").have(model).into());
    }
    let names: BTreeSet<&str> = storage.iter().map(|storage| storage.precision()).collect();
    if names.len() != 1 || storage.len() != parts.len() {
        return Err(Diagnostic::error(Code::BadArgument, "the parts are not stored in one way")
            .need(format!("one precision for {} parts", parts.len()))
            .have(storage.iter().map(|storage| storage.precision()).collect::<Vec<_>>().join(","))
            .into());
    }
    if request.target.back_end == Some(BackEnd::Tflite) && request.shapes.iter().any(|shape| shape.tokens == 1) {
        runtime_shapes(&request.shapes)?;
    }
    Ok(())
}

/// The calls of MediaTek's compiler, in the order of the graphs; none for a target whose file names no `--arch`.
fn compiler(request: &Request, stems: &BTreeMap<StepShape, Vec<String>>) -> Result<Option<ncc::Plan>> {
    if !request.target.flags.iter().any(|flag| flag.flag.0.starts_with("--arch=")) {
        return Ok(None);
    }
    let of_shape = |shape: &StepShape| {
        let stems = stems.get(shape).into_iter().flatten();
        stems.map(|stem| ncc::File::of(stem, *shape)).collect::<Vec<_>>()
    };
    let files: Vec<ncc::File> = request.shapes.iter().flat_map(of_shape).collect();
    ncc::plan(&request.target, &request.question, &files).map(Some)
}

/// The table of embeddings as the runtime reads it, for the port `embeds` of that scale.
fn embedding(checkpoint: &Checkpoint, scale: Option<f32>) -> Result<ExtraFile> {
    let tensor = checkpoint.tensors.get(llama::EMBEDDING).ok_or_else(|| {
        Diagnostic::error(Code::MissingTensor, "the model has no embedding table").subject(llama::EMBEDDING)
    })?;
    let Some(scale) = scale else {
        let content = ExtraContent::Table(llama::EMBEDDING.into(), tensor.clone());
        return Ok(ExtraFile { path: EMBEDDING_FILE.into(), content });
    };
    quant::saturated(llama::EMBEDDING, tensor, scale)?;
    Ok(ExtraFile { path: EMBEDDING_FILE_INT16.into(), content: ExtraContent::Int16Table(tensor.clone(), scale) })
}

/// The scale with which the first file takes embeddings; `None` in f32.
fn first_scale(graphs: &[Emitted]) -> Option<f32> {
    let file = graphs.iter().find_map(Emitted::tflite)?;
    file.inputs().first()?.scale
}

/// The scale with which the last file gives scores; `None` in f32.
fn logits_scale(graphs: &[Emitted]) -> Option<f32> {
    let file = graphs.last()?.tflite()?;
    file.outputs().first()?.scale
}

/// The residual stream leaves one part with the scale with which it enters the next.
fn check_boundaries(graphs: &[Emitted]) -> Result<()> {
    let name = Port::Hidden.to_string();
    let scale = |ports: &[PortScale]| ports.iter().find(|port| port.name == name).map(|port| port.scale);
    for pair in graphs.windows(2) {
        let [before, after] = pair else { continue };
        let (Some(first), Some(second)) = (before.tflite(), after.tflite()) else { continue };
        let (out, into) = (scale(first.outputs()), scale(second.inputs()));
        if before.shape == after.shape && out.is_some() && into.is_some() && out != into {
            let fault = Diagnostic::error(Code::BadRange, "two neighbouring parts have other scales where they meet");
            let fault = fault.subject(&after.graph.name).need("one range of `hidden` on both sides");
            return Err(fault.have(format!("{out:?} and {into:?}")).into());
        }
    }
    Ok(())
}

fn cpu_between_integers() -> crate::Error {
    Diagnostic::error(Code::Misfit, "npuc cannot put operations on the CPU between files in whole numbers yet")
        .subject("--place")
        .need("all operations on the NPU, or a float precision")
        .help("use a float precision, or a chip that takes every operation")
        .into()
}

/// Whether operations are on the CPU.
///
/// Errors: nothing on the NPU; files in whole numbers around operations on the CPU.
fn check_sides(pieces: &[Piece], storage: &[Storage<'_>]) -> Result<bool> {
    if pieces.iter().all(|piece| piece.stem.is_none()) {
        let fault = Diagnostic::error(Code::BadArgument, "the rules of placement leave nothing for the NPU");
        return Err(fault.subject("--place").help("build for the target `host` instead").into());
    }
    let on_cpu = pieces.iter().any(|piece| piece.stem.is_none());
    if on_cpu && storage.iter().any(|storage| matches!(storage, Storage::Integer { .. })) {
        return Err(cpu_between_integers());
    }
    Ok(on_cpu)
}

/// A graph of one chunk that one side computes.
struct Piece {
    shape: StepShape,
    /// The place of its part among the parts.
    part: usize,
    graph: Graph,
    /// The name of the file without its ending; absent on the CPU.
    stem: Option<String>,
}

/// The chunk cut where operations go to the CPU.
fn cut(chunk: Chunk, model: &str, request: &Request) -> Result<Vec<Piece>> {
    let stem = chunk.stem(model, &request.question.precision.name);
    let placement = request.assign(&chunk.graph);
    let (shape, part) = (chunk.shape, chunk.number);
    if placement.count(Side::Cpu) == 0 {
        return Ok(vec![Piece { shape, part, graph: chunk.graph, stem: Some(stem) }]);
    }
    let piece = |(place, segment): (usize, place::Segment)| {
        let stem = (segment.side == Side::Npu).then(|| format!("{stem}_s{place}"));
        Piece { shape, part, graph: segment.graph, stem }
    };
    Ok(place::segments(&chunk.graph, &placement)?.into_iter().enumerate().map(piece).collect())
}

fn weight_names(graph: &Graph) -> impl Iterator<Item = &str> {
    graph.values.iter().filter(|value| value.def == Def::Weight).map(|value| value.name.as_str())
}

/// The graph over weights as the bundle has them: those that files of the NPU or the embedding table hold already as
/// these do, the others as the checkpoint does.
fn for_the_host(graph: Graph, npu: &BTreeSet<String>, storage: Storage<'_>) -> Graph {
    let held = stored_as(&graph, storage);
    let mut graph = graph;
    for (value, held) in graph.values.iter_mut().zip(held.values) {
        if npu.contains(&value.name) {
            value.ty = held.ty;
        } else if value.def == Def::Weight && value.name == llama::EMBEDDING {
            value.ty.dtype = DType::F32;
        }
    }
    graph
}

/// MediaTek's GenAI runtime drives decoders with rotary tables.
fn no_pipeline(config: &ModelConfig) -> Diagnostic {
    let message = "MediaTek's GenAI runtime has no YAML for this model";
    Diagnostic::warning(Code::Misfit, message).have(config.family()).help("npuc's own runner drives the files")
}

/// What MediaTek's runtime cannot do.
fn no_runtime() -> Diagnostic {
    Diagnostic::warning(Code::Misfit, "MediaTek's runtime does not compute the operations that are placed on the CPU")
        .subject("--place")
        .help("npuc's own runner computes them between the files; no YAML is written for the runtime")
}

/// The graph over its weights in the formats that the file stores them in.
fn stored_as(graph: &Graph, storage: Storage<'_>) -> Graph {
    let mut graph = graph.clone();
    for Value { ty, def, .. } in &mut graph.values {
        match (def, storage) {
            (Def::Weight, Storage::F16) if ty.shape.len() > 1 => ty.dtype = DType::F16,
            (Def::Weight, Storage::F16 | Storage::F32) => ty.dtype = DType::F32,
            // The files know best, see `held_as`.
            (Def::Weight, Storage::Integer { .. }) | (Def::Input | Def::Op { .. }, _) => {}
        }
    }
    graph
}

/// An emitted graph as the host computes it over the weights in its file, and what whole numbers mean. The names of weights that
/// it does not read there are added to `host_weights`.
fn hosted(
    graph: &Graph,
    file: &TfliteFile,
    storage: Storage<'_>,
    checkpoint: &Checkpoint,
    host_weights: &mut BTreeSet<String>,
) -> Result<(Graph, Option<Encodings>)> {
    match storage {
        Storage::F32 | Storage::F16 => Ok((stored_as(graph, storage), None)),
        Storage::Integer { weights, ranges } => {
            let scales = quant::scales(graph, ranges, &checkpoint.tensors)?;
            let (held, others) = held_as(graph, file);
            host_weights.extend(others);
            // What was int16 is f32 on the host, and rounded again.
            let rounded = (weights == WeightFormat::Int16).then_some(weights);
            Ok((held, Some(quant::tflite(graph, &scales, weights).with_matrices(rounded))))
        }
    }
}

/// The graph over its weights as the host reads those of a file in whole numbers, and the names of the weights that it does
/// not read from there: biases, which are in steps there, and operands of plain arithmetic.
fn held_as(graph: &Graph, file: &TfliteFile) -> (Graph, Vec<String>) {
    let mut graph = graph.clone();
    let mut others = Vec::new();
    for Value { name, ty, .. } in graph.values.iter_mut().filter(|value| value.def == Def::Weight) {
        match file.weights().iter().find(|weight| weight.name == *name) {
            Some(weight) => ty.dtype = weight.held_as(),
            None => others.push(name.clone()),
        }
    }
    (graph, others)
}

/// The shape of prompts and that of single tokens, which may be the same.
///
/// Errors: [`Code::BadShape`] for shapes that MediaTek's runtime cannot have.
pub fn runtime_shapes(shapes: &[StepShape]) -> Result<(StepShape, StepShape)> {
    let found = match shapes {
        [only] if only.tokens == 1 => Some((*only, *only)),
        [a, b] if a.capacity == b.capacity && a.tokens.min(b.tokens) == 1 && a != b => Some((*a.max(b), *a.min(b))),
        [..] => None,
    };
    found.ok_or_else(|| {
        let have: Vec<String> = shapes.iter().map(StepShape::to_string).collect();
        Diagnostic::error(Code::BadShape, "MediaTek's runtime cannot have these step shapes")
            .need("a prompt shape and one of a single token with the same capacity, e.g. 128t1024c,1t1024c")
            .have(have.join(","))
            .into()
    })
}

/// The runtime's contract knows one output of scores.
fn head_warning(request: &Request) -> Option<Diagnostic> {
    let parts = request.mends.iter().find_map(|mend| match mend {
        Mend::SplitHead(rows) => Some(rows.len()),
        Mend::Pass(_) | Mend::Flag(_) | Mend::Place(_) => None,
    })?;
    Some(
        Diagnostic::warning(Code::Misfit, "whether MediaTek's runtime joins the scores of a head in parts is not known")
            .subject("logits.0")
            .need("one output of scores, as its contract has it")
            .have(format!("{parts} outputs"))
            .help("npuc's own runner joins them and drops padding; --fix=flags keeps the head whole where a flag lifts the limit"),
    )
}

/// The runtime computes the rotary table from its base alone.
fn rope_warning(rope: &Rope) -> Option<Diagnostic> {
    let scaling = match rope.scaling {
        RopeScaling::None => return None,
        RopeScaling::Linear { .. } => "linear",
        RopeScaling::Llama3 { .. } => "llama3",
        RopeScaling::Factors { .. } => "factors",
    };
    Some(
        Diagnostic::warning(Code::UnsupportedRope, "the runtime's YAML cannot state the model's rotary scaling")
            .subject("rotEmbBase")
            .need("a rotary table without scaling")
            .have(scaling)
            .help("give the runtime a rotary table of your own; npuc's own runner does so"),
    )
}

/// What the runtime's YAML says besides the model's sizes.
struct Yaml<'a> {
    prompt: StepShape,
    generation: StepShape,
    /// The names of the files of each shape, without their endings.
    stems: &'a BTreeMap<StepShape, Vec<String>>,
    /// The scales of `embeds` and of the logits, in int16.
    embeds: Option<f32>,
    logits: Option<f32>,
}

/// The YAML that the runtime reads.
fn runtime_yaml(checkpoint: &Checkpoint, rope: &Rope, yaml: &Yaml<'_>) -> String {
    let &Yaml { prompt, generation, stems, embeds, logits } = yaml;
    let config = &checkpoint.config;
    let mut text = String::from("modelOptions:\n");
    // Writing to a string cannot fail.
    let line = |text: &mut String, key: &str, value: &dyn Display| _ = writeln!(text, "  {key}: {value}");
    line(&mut text, "promptTokenBatchSize", &prompt.tokens);
    line(&mut text, "genTokenBatchSize", &generation.tokens);
    line(&mut text, "cacheSize", &generation.capacity);
    line(&mut text, "hiddenSize", &config.hidden());
    line(&mut text, "numHead", &config.heads());
    line(&mut text, "numLayer", &config.layers());
    line(&mut text, "headDim", &config.head_dim());
    line(&mut text, "maxTokenLength", &config.max_positions());
    line(&mut text, "rotEmbBase", &format!("{:?}", rope.theta));
    for key in ["modelInputType", "modelOutputType", "cacheType", "maskType", "rotEmbType"] {
        line(&mut text, key, if embeds.is_some() { &"INT16" } else { &"FP32" });
    }
    line(&mut text, "embOutputQuantScale", &embeds.unwrap_or(0.0));
    line(&mut text, "modelOutputQuantScale", &logits.unwrap_or(1.0));
    text.push_str("runtimeOptions:\n");
    special_tokens(&mut text, &checkpoint.special);
    text.push_str("  # The runtime reads tokenizers in forms of its own; name the files here.\n  tokenizerPath: []\n");
    line(&mut text, "tokenEmbPath", if embeds.is_some() { &EMBEDDING_FILE_INT16 } else { &EMBEDDING_FILE });
    for (key, shape) in [("dlaPromptPaths", prompt), ("dlaGenPaths", generation)] {
        line(&mut text, key, &"");
        stems[&shape].iter().for_each(|stem| _ = writeln!(text, "    - {}", quoted(&format!("{stem}.dla"))));
    }
    text.push_str("  sharedWeightsPaths: []\n");
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn special_tokens(text: &mut String, special: &SpecialTokens) {
    text.push_str("  specialTokens:\n");
    if let Some(bos) = special.bos {
        _ = writeln!(text, "    bosId: {bos}");
    }
    if let Some(eos) = special.first_eos {
        let stop: Vec<String> = special.eos.iter().map(u32::to_string).collect();
        _ = writeln!(text, "    eosId: {eos}\n    stopToken: [{}]", stop.join(", "));
    }
}

/// A double-quoted YAML scalar; JSON's strings are among them.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
