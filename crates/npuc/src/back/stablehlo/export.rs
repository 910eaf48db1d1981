//! A model as modules: one for every step shape and part, with the file of their parameters and what drives them.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::json;

use super::emit::Style;
use super::{Constant, Dialect, Module, ModulePort, Parameters, emit};
use crate::back::chunk::{self, Chunk};
use crate::back::{Emitted, EmittedFile};
use crate::build::weight_types;
use crate::bundle::EMBEDDING_TABLE;
use crate::bundle::write::{ExtraContent, ExtraFile};
use crate::diag::{Code, Diagnostic, Result};
use crate::fit::Request;
use crate::front::{Checkpoint, ModelConfig};
use crate::ir::{Def, Graph};
use crate::model::{Part, StepShape, llama, rope};
use crate::quant::{Encodings, Real};
use crate::target;
use crate::tensor::Tensor;

/// What was exported.
#[derive(Debug)]
pub struct Exported<'a> {
    /// The graphs, the shape with most tokens first.
    pub graphs: Vec<Emitted>,
    /// The weights that neither the modules' parameters nor the table hold in the form of the graphs.
    pub weights: Vec<(&'a str, &'a Tensor)>,
    /// Parameters, the ports of all modules and what else drives them.
    pub files: Vec<ExtraFile>,
}

/// The modules of a model; the weights are written when the bundle is.
///
/// `changes` are flags of the compiler instead of the target's, see [`target::graph_flags`].
///
/// Errors: shapes that the model cannot take; what [`target::check()`] and [`emit()`] refuse; a packed product that Torq would not
/// fold.
pub fn export<'a>(
    checkpoint: &'a Checkpoint,
    request: &Request,
    parts: &[Part],
    style: Style,
    changes: &[String],
) -> Result<Exported<'a>> {
    let dialect = style.dialect;
    let types = weight_types(&checkpoint.tensors);
    let passes = request.target.passes(&request.mends);
    let chunks = chunk::chunks(&checkpoint.config, &types, request, parts, &passes, |graph| Ok(graph.clone()))?;
    let (mut graphs, mut modules) = (Vec::new(), Vec::new());
    for chunk in chunks {
        let name = module_name(&checkpoint.config, &chunk, parts.len());
        let checked = target::check(chunk.graph, &request.target, &request.question)?;
        let module = emit(&checked, &checkpoint.tensors, &name, style)?;
        let graph = checked.graph().clone();
        let encodings = (dialect == Dialect::Torq).then(|| Encodings::reals(&graph, Real::Bf16));
        let path = format!("{}/{name}.mlir", dialect.folder());
        let flags = target::graph_flags(&request.target, &graph, changes);
        modules.push((chunk.shape, module.clone(), flags));
        graphs.push(Emitted { shape: chunk.shape, graph, file: Some((path, EmittedFile::Module(module))), encodings });
    }
    let parameters = parameters(checkpoint, &modules, dialect)?;
    let held: BTreeSet<String> = parameters
        .entries
        .iter()
        .filter(|entry| entry.constant.is_exact())
        .map(|entry| entry.constant.name.clone())
        .collect();
    let files = vec![
        ExtraFile { path: "io.txt".into(), content: ExtraContent::Bytes(io_text(&modules).into_bytes()) },
        ExtraFile {
            path: DESCRIPTION.into(),
            content: ExtraContent::Bytes(described(checkpoint, request, style, &modules, &parameters)),
        },
        ExtraFile { path: PARAMETERS.into(), content: ExtraContent::Parameters(parameters) },
    ];
    let mut used: BTreeSet<String> = graphs.iter().flat_map(|emitted| used(&emitted.graph)).collect();
    used.extend(checkpoint.config.positions_table().map(str::to_owned));
    let weights = checkpoint.tensors.iter().filter(|(name, _)| used.contains(*name) && !held.contains(*name));
    Ok(Exported { weights: weights.map(|(name, tensor)| (name.as_str(), tensor)).collect(), graphs, files })
}

/// The file of parameters in a bundle.
pub const PARAMETERS: &str = "parameters.safetensors";

/// The file in a bundle that says how its modules are driven; its `style` is a [`Style`].
pub const DESCRIPTION: &str = "export.json";

/// The weights of a graph; of one of which rows are used, the whole.
fn used(graph: &Graph) -> impl Iterator<Item = String> + '_ {
    let weights = graph.values.iter().filter(|value| value.def == Def::Weight);
    weights.map(|value| value.name.split_once('[').map_or(value.name.as_str(), |(whole, _)| whole).to_owned())
}

/// A module with the step that it computes and the flags of its compiler.
type Made = (StepShape, Module, Vec<String>);

/// `encode`, `decode_step`, or `prefill_step_16t`; with the number of the part where there are several.
fn module_name(config: &ModelConfig, chunk: &Chunk, parts: usize) -> String {
    let step = match chunk.shape.tokens {
        _ if !config.reads_tokens() => "encode".to_owned(),
        1 => "decode_step".to_owned(),
        tokens => format!("prefill_step_{tokens}t"),
    };
    if parts == 1 { step } else { format!("{step}_{}", chunk.number) }
}

/// Those of all modules, and the table that tokens are embedded with.
fn parameters(checkpoint: &Checkpoint, modules: &[Made], dialect: Dialect) -> Result<Parameters> {
    let name = llama::EMBEDDING;
    let mut constants: Vec<Constant> = modules.iter().flat_map(|(_, module, _)| module.parameters.clone()).collect();
    let reads = checkpoint.config.reads_tokens();
    if reads && !constants.iter().any(|constant| constant.name == name) {
        let table = checkpoint
            .tensors
            .get(name)
            .ok_or_else(|| Diagnostic::error(Code::MissingTensor, "the table of embeddings is absent").subject(name))?;
        let plain = Constant::plain(name, table).filter(|_| dialect == Dialect::Iree);
        constants.push(plain.unwrap_or_else(|| Constant::as_bf16(EMBEDDING_TABLE, table)));
    }
    Ok(Parameters::new(constants))
}

/// A line a port: module, direction, place, name, type.
fn io_text(modules: &[Made]) -> String {
    let mut text = String::new();
    for (_, module, _) in modules {
        for (direction, ports) in [("in", &module.inputs), ("out", &module.outputs)] {
            for (place, ModulePort { name, shape, element }) in ports.iter().enumerate() {
                let extents: Vec<String> = shape.iter().map(usize::to_string).collect();
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{} {direction} {place} {name} {}x{element}", module.name, extents.join("x"));
            }
        }
    }
    text
}

/// Everything that a program needs to drive the modules without npuc.
fn described(
    checkpoint: &Checkpoint,
    request: &Request,
    style: Style,
    modules: &[Made],
    parameters: &Parameters,
) -> Vec<u8> {
    let config = &checkpoint.config;
    let table = [EMBEDDING_TABLE, llama::EMBEDDING];
    let table = table.into_iter().find_map(|name| parameters.entries.iter().find(|e| e.constant.name == name));
    let module = |(shape, module, flags): &Made| {
        let states = module.aliases.iter().enumerate().filter_map(|(output, input)| {
            input.map(|input| json!({ "output": output, "input": input, "begins_with": 0 }))
        });
        json!({
            "file": format!("{}/{}.mlir", style.dialect.folder(), module.name),
            "function": module.name,
            "shape": shape.to_string(),
            "tokens": shape.tokens,
            "capacity": shape.capacity,
            "inputs": module.inputs,
            "outputs": module.outputs,
            "states": states.collect::<Vec<_>>(),
            "packed_products": module.packed.len(),
            "compiler_flags": flags,
        })
    };
    let frequencies = config.rope().map(|rope| rope::frequencies(rope, config.head_dim()));
    let value = json!({
        "target": request.target.name,
        "style": style,
        "modules": modules.iter().map(module).collect::<Vec<_>>(),
        "parameters": { "file": PARAMETERS, "scope": super::emit::SCOPE },
        "embedding": table.map(|entry| json!({
            "file": PARAMETERS,
            "name": entry.constant.name,
            "offset": entry.offset,
            "shape": entry.constant.shape,
            "element": entry.constant.element,
        })),
        "mask": { "visible": 0, "hidden": request.target.hidden_mask },
        "rope_frequencies": frequencies,
        "vocab": config.vocab(),
        "bos": checkpoint.special.bos,
        "eos": checkpoint.special.eos,
    });
    let mut text = serde_json::to_vec_pretty(&value).expect("a description has only text keys and plain values");
    text.push(b'\n');
    text
}
