//! What a checkpoint or bundle holds, for people and programs.

use std::collections::BTreeMap;
use std::path::Path;

use npuc::bundle::{Bundle, is_bundle};
use npuc::front::{self, ModelConfig, Source, SpecialTokens, non_finite};
use npuc::ir::Type;
use npuc::model::{Role, StepShape, weight_specs};
use npuc::{DType, Diagnostic, Result, Tensor};
use serde::Serialize;

use crate::program::default_shapes;
use crate::session::Layout;
use crate::text::TextModel;

/// What a model holds and needs.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// `hugging-face`, `gguf` or `bundle`.
    pub form: &'static str,
    /// The model's shape.
    pub config: ModelConfig,
    /// Number of weights, each tensor counted once.
    pub parameters: u64,
    /// Bytes of all weights.
    pub weights_bytes: u64,
    /// Formats by what the weights are for.
    pub formats: Vec<FormatUse>,
    /// Memory by step shape.
    pub memory: Vec<StepMemory>,
    /// The tokenizer, if there is one.
    pub tokenizer: Option<TokenizerInfo>,
    /// Special ids.
    pub special: SpecialTokens,
    /// What is odd.
    pub warnings: Vec<Diagnostic>,
}

/// The weights of one role that are stored in one format.
#[derive(Clone, Debug, Serialize)]
pub struct FormatUse {
    /// What they are for.
    pub role: &'static str,
    /// The format's name.
    pub dtype: &'static str,
    /// How many tensors.
    pub tensors: usize,
    /// How many weights.
    pub parameters: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What a step shape needs on the host.
#[derive(Clone, Debug, Serialize)]
pub struct StepMemory {
    /// The shape.
    pub shape: StepShape,
    /// Bytes of all weights, as stored and shared by all steps.
    pub weights_bytes: u64,
    /// Bytes of the key and value caches in f32, shared by all steps of one capacity.
    pub cache_bytes: u64,
    /// Bytes of the step's inputs and intermediate values in f32.
    pub activation_bytes: u64,
}

/// What kind of tokenizer a model has.
#[derive(Clone, Debug, Serialize)]
pub struct TokenizerInfo {
    /// Number of ids it knows.
    pub vocab: usize,
    /// Whether there is a chat template.
    pub chat_template: bool,
}

/// Inspects a checkpoint or bundle; reads every weight once to find values that are not numbers.
///
/// Errors: those of opening it; shapes that the model cannot take.
pub fn inspect(path: &Path, shapes: Option<Vec<StepShape>>) -> Result<Inspection> {
    let model = if is_bundle(path) { from_bundle(path)? } else { from_checkpoint(path)? };
    let specs: BTreeMap<String, Role> =
        weight_specs(&model.config).into_iter().map(|spec| (spec.name, spec.role)).collect();
    let weights_bytes = model.tensors.values().map(|tensor| tensor.byte_len() as u64).sum();
    let mut memory = Vec::new();
    for config in model.config.models() {
        let given = shapes.as_ref().filter(|_| config.reads_tokens());
        let shapes = given.or(model.shapes.as_ref()).cloned().unwrap_or_else(|| default_shapes(&config));
        for shape in shapes {
            memory.push(step_memory(&config, &model.tensors, shape, weights_bytes)?);
        }
    }
    Ok(Inspection {
        form: model.form,
        parameters: model.tensors.values().map(parameters).sum(),
        weights_bytes,
        formats: formats(&model.tensors, &specs),
        memory,
        tokenizer: model
            .text
            .as_ref()
            .map(|text| TokenizerInfo { vocab: text.tokenizer.vocab_size(), chat_template: text.template.is_some() }),
        special: model.special,
        warnings: model.warnings,
        config: model.config,
    })
}

struct Model {
    form: &'static str,
    config: ModelConfig,
    tensors: BTreeMap<String, Tensor>,
    text: Option<TextModel>,
    special: SpecialTokens,
    shapes: Option<Vec<StepShape>>,
    warnings: Vec<Diagnostic>,
}

fn from_checkpoint(path: &Path) -> Result<Model> {
    let checkpoint = front::open(path)?;
    let mut warnings = checkpoint.warnings.clone();
    warnings.extend(non_finite(&checkpoint));
    let text = match TextModel::of_checkpoint(&checkpoint) {
        Ok(text) => text,
        Err(error) => {
            warnings.extend(error.diagnostics().iter().cloned().map(Diagnostic::into_warning));
            None
        }
    };
    Ok(Model {
        form: match checkpoint.source {
            Source::HuggingFace => "hugging-face",
            Source::Gguf => "gguf",
            Source::CTranslate2 => "ctranslate2",
        },
        special: checkpoint.special,
        config: checkpoint.config,
        tensors: checkpoint.tensors,
        text,
        shapes: None,
        warnings,
    })
}

fn from_bundle(path: &Path) -> Result<Model> {
    let Bundle { manifest, weights, tokenizer_json, chat_template, .. } = Bundle::open(path)?;
    let text = tokenizer_json.map(|json| TextModel::from_bundle(&json, chat_template, &manifest.text)).transpose()?;
    let mut shapes: Vec<StepShape> = manifest.graphs.iter().map(|graph| graph.shape).collect();
    shapes.dedup();
    Ok(Model {
        form: "bundle",
        shapes: Some(shapes),
        config: manifest.model,
        warnings: Vec::new(),
        tensors: weights,
        text,
        special: SpecialTokens { bos: manifest.text.bos, eos: manifest.text.eos, first_eos: None },
    })
}

fn parameters(tensor: &Tensor) -> u64 {
    tensor.shape.iter().map(|&extent| extent as u64).product()
}

fn formats(tensors: &BTreeMap<String, Tensor>, specs: &BTreeMap<String, Role>) -> Vec<FormatUse> {
    let mut uses: BTreeMap<(Role, &'static str), FormatUse> = BTreeMap::new();
    for (name, tensor) in tensors {
        let Some(&role) = specs.get(name) else { continue };
        let dtype = tensor.dtype.name();
        let empty = FormatUse { role: role.name(), dtype, tensors: 0, parameters: 0, bytes: 0 };
        let entry = uses.entry((role, dtype)).or_insert(empty);
        entry.tensors += 1;
        entry.parameters += parameters(tensor);
        entry.bytes += tensor.byte_len() as u64;
    }
    uses.into_values().collect()
}

fn step_memory(
    config: &ModelConfig,
    tensors: &BTreeMap<String, Tensor>,
    shape: StepShape,
    weights_bytes: u64,
) -> Result<StepMemory> {
    // A bundle may hold a weight in rows or in numbers that only its target reads; the memory of a step does not
    // depend on it.
    let mut types = npuc::build::weight_types(tensors);
    for spec in weight_specs(config) {
        types.entry(spec.name).or_insert(Type { dtype: DType::F32, shape: spec.shape });
    }
    let graph = npuc::model::build_step(config, &types, shape, npuc::target::host().protocol)?;
    let layout = Layout { config, protocol: npuc::target::host().protocol };
    let activation_bytes = npuc::exec::buffer_bytes(&graph) + layout.input_bytes(shape);
    Ok(StepMemory { shape, weights_bytes, cache_bytes: layout.cache_bytes(shape), activation_bytes })
}
