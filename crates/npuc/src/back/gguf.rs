//! Writes a quantised model as a GGUF file, version 3: what the source's metadata says stays, weights are streamed.
//!
//! Layout as in the GGUF specification (ggml-org/ggml, docs/gguf.md). The size is known before anything is written.

use std::collections::BTreeMap;
use std::path::Path;

use npuc_kernels::quantize::Search;

use crate::bundle::staging::stream_file;
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::front::config::LlamaArchitecture;
use crate::front::gguf::{self, type_id};
use crate::front::{Checkpoint, GgufVocab, ModelConfig, Source, weights};
use crate::model::rope;
use crate::quant::plan::{Plan, Planned};
use crate::quant::stream::{self, Fault, Scales};
use crate::tensor::{DType, Shape, SourceFile, Tensor, byte_len};

mod metadata;

/// Where tensors begin: at multiples of this many bytes.
const ALIGNMENT: u64 = 32;
/// The tensor with the rotary factors of Llama 3.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// A GGUF file that was laid out: its header, and what follows.
#[derive(Debug)]
pub struct Layout {
    header: Vec<u8>,
    tensors: Vec<Entry>,
    total_bytes: u64,
}

/// A tensor of the file.
#[derive(Debug)]
struct Entry {
    name: String,
    /// The canonical name, for messages.
    canonical: String,
    to: DType,
    shape: Shape,
    tensor: Tensor,
    /// The heads whose rotary halves lie interleaved in the file.
    heads: Option<usize>,
}

impl Entry {
    /// The weight with its rows in the file's order: a copy of this one weight where they have to be moved.
    fn in_order(&self) -> Result<Tensor> {
        let Some(heads) = self.heads else { return Ok(self.tensor.clone()) };
        self.tensor.to_interleaved_heads(heads).ok_or_else(|| {
            let fault = Diagnostic::error(Code::WrongShape, "rows do not divide into heads of even width");
            fault.subject(&self.canonical).need(format!("{heads} heads")).have(&self.shape).into()
        })
    }
}

impl Layout {
    /// Lays out the file of a planned model. `quantised` are weights that have their format already, by canonical name;
    /// `vocab` is the tokenizer of a source that is no GGUF file, if it has one.
    ///
    /// Errors: a plan with formats that GGUF does not have, a source that changed meanwhile.
    pub fn new(
        checkpoint: &Checkpoint,
        plan: &Plan,
        quantised: &BTreeMap<String, Tensor>,
        vocab: Option<&GgufVocab>,
    ) -> Result<Layout> {
        refuse_whisper(&plan.config)?;
        let config = &plan.config;
        let file_type = metadata::file_type(plan);
        let (count, mut header) = match checkpoint.source {
            Source::Gguf => metadata::kept(&checkpoint.path, file_type)?,
            Source::HuggingFace | Source::CTranslate2 => metadata::of_model(checkpoint, config, vocab, file_type),
        };
        let mut tensors: Vec<Entry> = rope_factors(checkpoint, config)?.into_iter().collect();
        for planned in &plan.weights {
            tensors.push(entry(checkpoint, planned, config, quantised)?);
        }
        let mut listing = Vec::new();
        let mut offset = 0u64;
        for entry in &tensors {
            let bytes = byte_len(entry.to, &entry.shape).zip(type_id(entry.to));
            let (bytes, id) = bytes.ok_or_else(|| no_such_format(&entry.canonical, entry.to))?;
            metadata::text(&mut listing, &entry.name);
            listing.extend((entry.shape.len() as u32).to_le_bytes());
            entry.shape.iter().rev().for_each(|extent| listing.extend((*extent as u64).to_le_bytes()));
            listing.extend(id.to_le_bytes());
            listing.extend(offset.to_le_bytes());
            offset = (offset + bytes as u64).next_multiple_of(ALIGNMENT);
        }
        let mut whole = b"GGUF".to_vec();
        whole.extend(3u32.to_le_bytes());
        whole.extend((tensors.len() as u64).to_le_bytes());
        whole.extend((count as u64).to_le_bytes());
        whole.append(&mut header);
        whole.append(&mut listing);
        whole.resize(whole.len().next_multiple_of(ALIGNMENT as usize), 0);
        let total_bytes = whole.len() as u64 + offset;
        Ok(Layout { header: whole, tensors, total_bytes })
    }

    /// What of a folder's checkpoint the file cannot say.
    pub fn warnings(checkpoint: &Checkpoint) -> Vec<Diagnostic> {
        match checkpoint.source {
            Source::Gguf => Vec::new(),
            Source::HuggingFace | Source::CTranslate2 => metadata::lost_ids(checkpoint).into_iter().collect(),
        }
    }

    /// The bytes of the file.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Writes the file, whole or not at all; `progress` is told the bytes that are there and those there will be.
    ///
    /// Errors: those of [`stream::write`], a place that cannot be written.
    pub fn write(&self, path: &Path, search: Search, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        stream_file(path, self.total_bytes, |out| {
            out.write_all(&self.header).map_err(Fault::Output)?;
            let mut done = self.header.len() as u64;
            for entry in &self.tensors {
                stream::write(
                    &entry.canonical,
                    &entry.in_order().map_err(Fault::Weight)?,
                    entry.to,
                    search,
                    Scales::F16,
                    out,
                )?;
                entry.tensor.release(0..entry.tensor.byte_len());
                let bytes = byte_len(entry.to, &entry.shape).unwrap_or(0) as u64;
                let padding = bytes.next_multiple_of(ALIGNMENT) - bytes;
                out.write_all(&[0; ALIGNMENT as usize][..padding as usize]).map_err(Fault::Output)?;
                done += bytes + padding;
                progress(done, self.total_bytes);
            }
            Ok(())
        })
    }
}

/// Refuses a plan with formats that GGUF does not have, before any work is done.
///
/// Errors: [`Code::UnsupportedFormat`] for each weight.
pub fn check_formats(plan: &Plan) -> Result<()> {
    refuse_whisper(&plan.config)?;
    let odd = plan.weights.iter().filter(|weight| type_id(weight.to).is_none());
    Error::check(odd.map(|weight| no_such_format(&weight.name, weight.to)).collect())
}

/// GGUF has no layout of Whisper: what whisper.cpp reads is another container.
fn refuse_whisper(config: &ModelConfig) -> Result<()> {
    match config {
        ModelConfig::Llama(_) | ModelConfig::Lfm2(_) => Ok(()),
        ModelConfig::Whisper(_) => {
            let fault = Diagnostic::error(Code::UnsupportedArchitecture, "GGUF files have no form for this model");
            Err(fault
                .have(config.family())
                .help("write a bundle instead: npuc build MODEL --recipe RECIPE -o DIR")
                .into())
        }
    }
}

fn no_such_format(name: &str, dtype: DType) -> Diagnostic {
    let fault = Diagnostic::error(Code::UnsupportedFormat, "GGUF files have no such format");
    fault.subject(name).have(dtype).help("write a bundle instead: name a folder with -o")
}

/// A weight as it lies in the file. Gains, biases and filters are f32, because llama.cpp takes no other.
fn entry(
    checkpoint: &Checkpoint,
    planned: &Planned,
    config: &ModelConfig,
    quantised: &BTreeMap<String, Tensor>,
) -> Result<Entry> {
    let found = quantised.get(&planned.name).or_else(|| checkpoint.tensors.get(&planned.source));
    let tensor = found.cloned().ok_or_else(|| {
        Diagnostic::error(Code::MissingTensor, "a weight of the plan is not there").subject(&planned.name)
    })?;
    let interleaves = match config {
        ModelConfig::Llama(config) => {
            matches!(config.architecture, LlamaArchitecture::Llama | LlamaArchitecture::Mistral)
        }
        ModelConfig::Lfm2(_) | ModelConfig::Whisper(_) => false,
    };
    let heads = match &planned.name {
        name if interleaves && name.contains(".self_attn.q_proj.") => Some(config.heads()),
        name if interleaves && name.contains(".self_attn.k_proj.") => Some(config.kv_heads()),
        _ => None,
    };
    let to = if planned.role.is_matrix() { planned.to } else { DType::F32 };
    let name = weights::stored_name(config, Source::Gguf, &planned.name);
    Ok(Entry { name, canonical: planned.name.clone(), to, shape: planned.shape.clone(), tensor, heads })
}

/// The rotary factors `[head_dim / 2]` of a model that has them.
fn rope_factors(checkpoint: &Checkpoint, config: &ModelConfig) -> Result<Option<Entry>> {
    let tensor = match checkpoint.source {
        Source::Gguf => {
            let file = SourceFile::open(&checkpoint.path)?;
            let header = gguf::parse(file.bytes()).map_err(|e| e.in_file(&checkpoint.path))?;
            let stored = header.tensors.into_iter().find(|tensor| tensor.name == ROPE_FACTORS);
            stored.and_then(|stored| Tensor::in_file(stored.dtype, stored.shape, file, stored.range))
        }
        Source::HuggingFace | Source::CTranslate2 => {
            config.rope().and_then(|rope| rope::factors(rope, config.head_dim())).and_then(|factors| {
                let bytes: Vec<u8> = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
                Tensor::in_memory(DType::F32, [factors.len()].into(), bytes.into())
            })
        }
    };
    Ok(tensor.map(|tensor| Entry {
        name: ROPE_FACTORS.into(),
        canonical: ROPE_FACTORS.into(),
        to: tensor.dtype,
        shape: tensor.shape.clone(),
        tensor,
        heads: None,
    }))
}
