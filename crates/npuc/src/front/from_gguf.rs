//! Opens a GGUF file as a checkpoint.

use std::path::Path;
use std::sync::Arc;

use super::gguf::{Gguf, Value};
use super::weights::{self, Listed};
use super::{Checkpoint, Source, TokenizerSource, config_gguf, gguf, outside_vocabulary, vocab_gguf};
use crate::diag::{Code, Diagnostic, Result};
use crate::tensor::{SourceFile, Tensor};

/// The tensor with Llama 3's rotary factors; part of the configuration, not of the weights.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Opens the GGUF file at `path`.
pub(super) fn open(path: &Path) -> Result<Checkpoint> {
    let file = SourceFile::open(path)?;
    checkpoint(path, &file).map_err(|e| e.in_file(path))
}

fn checkpoint(path: &Path, file: &Arc<SourceFile>) -> Result<Checkpoint> {
    let mut header = gguf::parse(file.bytes())?;
    whole(path, &header)?;
    let mut listed = list(&header, file)?;
    let factors = listed.iter().position(|tensor| tensor.stored == ROPE_FACTORS).map(|i| listed.swap_remove(i));
    let factors = factors.and_then(|listed| listed.tensor.ok());
    let config = config_gguf::parse(&header, factors.as_ref())?;
    let (vocab, special) = vocab_gguf::take(&mut header.metadata)?;
    let settled = weights::settle(config, Source::Gguf, listed)?;
    let config = settled.config;
    let mut warnings = settled.warnings;
    warnings.extend(outside_vocabulary(&special, config.vocab()));
    for warning in &mut warnings {
        warning.file.get_or_insert_with(|| path.to_path_buf());
    }
    Ok(Checkpoint {
        path: path.to_path_buf(),
        source: Source::Gguf,
        config,
        tensors: settled.tensors,
        special,
        tokenizer: vocab.map(TokenizerSource::Gguf),
        warnings,
    })
}

/// Refuses one part of a model that was split into several GGUF files.
fn whole(path: &Path, header: &Gguf) -> Result<()> {
    match header.metadata.get("split.count") {
        Some(Value::Unsigned(0 | 1)) | None => Ok(()),
        Some(count) => {
            let parts = match count {
                Value::Unsigned(n) => format!("{n} parts"),
                Value::Signed(_) | Value::Float(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) => {
                    count.kind().to_owned()
                }
            };
            Err(split_part(path, &format!("`split.count` = {parts}")).into())
        }
    }
}

/// The fault of a file that is one part of a split model, joined by `llama-gguf-split`.
pub(super) fn split_part(path: &Path, have: &str) -> Diagnostic {
    Diagnostic::error(Code::SplitPart, "the file is one part of a model that was split into several GGUF files")
        .file(path)
        .need("the whole model in one file")
        .have(have)
        .help("join the parts with `llama-gguf-split --merge FIRST-PART JOINED.gguf` and give the joined file")
}

fn list(header: &Gguf, file: &Arc<SourceFile>) -> Result<Vec<Listed>> {
    let listed = header.tensors.iter().map(|entry| {
        let tensor = Tensor::in_file(entry.dtype, entry.shape.clone(), file.clone(), entry.range.clone());
        match tensor {
            Some(tensor) => Ok(Listed { stored: entry.name.clone(), tensor: Ok(tensor) }),
            None => Err(Diagnostic::error(Code::BadOffsets, "the data of a tensor leaves the file")
                .subject(&entry.name)
                .into()),
        }
    });
    listed.collect()
}
