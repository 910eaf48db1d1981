//! A model as a folder that MediaTek's GenAI runtime is fed from: a TFLite file per chunk and shape, the embedding
//! table, and the runtime's YAML.
//!
//! The runtime loads `.dla` files, which `ncc-tflite` makes of the TFLite files; the YAML names them.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::path::Path;

use super::{PASSES, Storage, TfliteFile, contract, emit, write_f32};
use crate::build::weight_types;
use crate::bundle::FileRecord;
use crate::bundle::staging::Staging;
use crate::diag::{Code, Diagnostic, Result};
use crate::front::config::RopeScaling;
use crate::front::{Checkpoint, ModelConfig, SpecialTokens};
use crate::ir::{Graph, Type};
use crate::model::{self, CacheProtocol, Part, StepShape, llama};
use crate::pass;
use crate::target::{self, Target};

/// The name of the embedding table's file: f32, row-major `[vocab, hidden]`, no header.
pub const EMBEDDING_FILE: &str = "embedding_fp32.bin";

/// One graph of an export.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The step's shape.
    pub shape: StepShape,
    /// The part of the model.
    pub part: Part,
    /// The place of the part among the parts.
    pub number: usize,
    /// The graph behind the runtime's ports, see [`contract`].
    pub graph: Graph,
}

impl Chunk {
    /// The file's name without its ending, e.g. `Llama-3.2-1B_FP_4layer_128t1024c_0`.
    pub fn stem(&self, model: &str) -> String {
        format!("{model}_FP_{}layer_{}_{}", self.part.layers.len(), self.shape, self.number)
    }
}

/// The graph of every shape and part, shapes first, lowered to what TFLite has.
///
/// Errors: shapes and parts that the model cannot take.
pub fn chunks(
    config: &ModelConfig,
    weights: &BTreeMap<String, Type>,
    shapes: &[StepShape],
    parts: &[Part],
) -> Result<Vec<Chunk>> {
    let mut chunks = Vec::with_capacity(shapes.len() * parts.len());
    for &shape in shapes {
        for (number, part) in parts.iter().enumerate() {
            let graph = model::build_part(config, weights, shape, CacheProtocol::Shift, part)?;
            let graph = pass::run(contract(&graph)?, PASSES, |_, _, _| {})?;
            chunks.push(Chunk { shape, part: part.clone(), number, graph });
        }
    }
    Ok(chunks)
}

/// What to export.
#[derive(Clone, Debug)]
pub struct Export<'a> {
    /// The model's name in file names.
    pub model: &'a str,
    /// The chip.
    pub target: Target,
    /// One or two shapes of the same capacity: the prompt's and the one of a single token.
    pub shapes: &'a [StepShape],
    /// The parts of the model.
    pub parts: &'a [Part],
    /// How matrices are stored.
    pub storage: Storage,
}

/// What was exported.
#[derive(Clone, Debug)]
pub struct Exported {
    /// Every file with its size and hash.
    pub files: Vec<FileRecord>,
    /// What the user has to know.
    pub warnings: Vec<Diagnostic>,
}

/// Writes the folder `dir`, whole or not at all. Weights are read and written one after the other.
///
/// Errors: shapes that the runtime cannot have; a name that no file can have; what [`chunks`], [`target::check()`] and [`emit`] refuse, before
/// anything is written; a folder that is there and is not empty; a failed write.
pub fn export(dir: &Path, checkpoint: &Checkpoint, export: Export<'_>) -> Result<Exported> {
    let (prompt, generation) = runtime_shapes(export.shapes)?;
    if export.model.is_empty() || export.model.contains(['/', '\\']) {
        let fault = Diagnostic::error(Code::BadArgument, "the model's name cannot be part of a file name");
        return Err(fault.need("a name without `/` and `\\`").have(export.model).into());
    }
    let types = weight_types(&checkpoint.tensors);
    let mut files: Vec<(String, TfliteFile)> = Vec::new();
    let (mut prompt_stems, mut generation_stems) = (Vec::new(), Vec::new());
    for chunk in chunks(&checkpoint.config, &types, export.shapes, export.parts)? {
        let stem = chunk.stem(export.model);
        if chunk.shape == prompt {
            prompt_stems.push(stem.clone());
        }
        if chunk.shape == generation {
            generation_stems.push(stem.clone());
        }
        let checked = target::check(chunk.graph, &export.target)?;
        files.push((format!("{stem}.tflite"), emit(&checked, &checkpoint.tensors, export.storage)?));
    }
    let embedding = checkpoint.tensors.get(llama::EMBEDDING).ok_or_else(|| {
        Diagnostic::error(Code::MissingTensor, "the model has no embedding table").subject(llama::EMBEDDING)
    })?;
    let embedding_bytes = embedding.shape.elements().unwrap_or(0) as u64 * 4;
    let bytes = files.iter().map(|(_, file)| file.len_bytes()).sum::<u64>() + embedding_bytes;
    let staging = Staging::create(dir, bytes)?;
    let mut records = Vec::with_capacity(files.len() + 2);
    for (name, file) in &files {
        records.push(staging.stream(name, |out| file.write_to(out))?);
    }
    records.push(staging.stream(EMBEDDING_FILE, |out| write_f32(embedding, out))?);
    let yaml = runtime_yaml(checkpoint, prompt, generation, [&prompt_stems, &generation_stems]);
    records.push(staging.write(&format!("{}.yaml", export.model), yaml.as_bytes())?);
    staging.finish()?;
    Ok(Exported { files: records, warnings: rope_warning(&checkpoint.config).into_iter().collect() })
}

/// The shape of prompts and that of single tokens, which may be the same.
fn runtime_shapes(shapes: &[StepShape]) -> Result<(StepShape, StepShape)> {
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

/// The runtime computes the rotary table from its base alone.
fn rope_warning(config: &ModelConfig) -> Option<Diagnostic> {
    let ModelConfig::Llama(config) = config;
    let scaling = match config.rope.scaling {
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

/// The YAML that the runtime reads.
fn runtime_yaml(
    checkpoint: &Checkpoint,
    prompt: StepShape,
    generation: StepShape,
    [prompt_stems, generation_stems]: [&[String]; 2],
) -> String {
    let ModelConfig::Llama(config) = &checkpoint.config;
    let mut text = String::from("modelOptions:\n");
    // Writing to a string cannot fail.
    let line = |text: &mut String, key: &str, value: &dyn Display| _ = writeln!(text, "  {key}: {value}");
    line(&mut text, "promptTokenBatchSize", &prompt.tokens);
    line(&mut text, "genTokenBatchSize", &generation.tokens);
    line(&mut text, "cacheSize", &generation.capacity);
    line(&mut text, "hiddenSize", &config.hidden);
    line(&mut text, "numHead", &config.heads);
    line(&mut text, "numLayer", &config.layers);
    line(&mut text, "headDim", &config.head_dim);
    line(&mut text, "maxTokenLength", &config.max_positions);
    line(&mut text, "rotEmbBase", &format!("{:?}", config.rope.theta));
    for key in ["modelInputType", "modelOutputType", "cacheType", "maskType", "rotEmbType"] {
        line(&mut text, key, &"FP32");
    }
    line(&mut text, "embOutputQuantScale", &0);
    line(&mut text, "modelOutputQuantScale", &1);
    text.push_str("runtimeOptions:\n");
    special_tokens(&mut text, &checkpoint.special);
    text.push_str("  # The runtime reads tokenizers in forms of its own; name the files here.\n  tokenizerPath: []\n");
    line(&mut text, "tokenEmbPath", &EMBEDDING_FILE);
    for (key, stems) in [("dlaPromptPaths", prompt_stems), ("dlaGenPaths", generation_stems)] {
        line(&mut text, key, &"");
        stems.iter().for_each(|stem| _ = writeln!(text, "    - {}", quoted(&format!("{stem}.dla"))));
    }
    text.push_str("  sharedWeightsPaths: []\n");
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn special_tokens(text: &mut String, special: &SpecialTokens) {
    text.push_str("  specialTokens:\n");
    if let Some(bos) = special.bos {
        _ = writeln!(text, "    bosId: {bos}");
    }
    if let Some(eos) = special.eos.first() {
        let stop: Vec<String> = special.eos.iter().map(u32::to_string).collect();
        _ = writeln!(text, "    eosId: {eos}\n    stopToken: [{}]", stop.join(", "));
    }
}

/// A double-quoted YAML scalar; JSON's strings are among them.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
