//! Opens a folder with a Whisper model as CTranslate2's converter writes it: `model.bin`, and `tokenizer.json` beside it.
//!
//! Nothing is copied: weights are slices of the mapped file, and a projection that is stored in one with others is its rows.
//! Slices begin at any byte, which nothing that reads a [`Tensor`] minds. The folder's `config.json` says nothing about the
//! model's shape and is not read, nor is `vocabulary.txt`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::config_ct2::{self, Names, PROJECTION};
use super::ct2::{self, Container, Element, StoredTensor};
use super::from_hf;
use super::weights::{self, Listed, Settled};
use super::{
    Checkpoint, ModelConfig, Source, SpecialTokens, TokenizerSource, name_list, names_ct2, outside_vocabulary,
};
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::tensor::{DType, Shape, SourceFile, Tensor, rows_name};

/// The name that CTranslate2 gives its container.
pub(super) const MODEL: &str = "model.bin";
/// The kind of model that is read, and the last revision of its names.
const SPEC: (&str, u32) = ("WhisperSpec", 3);
/// The token that begins and ends a text (source: `bos_token_id` and `eos_token_id` of Whisper's configurations).
const END_OF_TEXT: &str = "<|endoftext|>";

/// Opens the folder, which holds [`MODEL`].
pub(super) fn open(folder: &Path) -> Result<Checkpoint> {
    let path = folder.join(MODEL);
    let file = SourceFile::open(&path)?;
    let Settled { config, tensors, mut warnings } = settled(&file).map_err(|e| e.in_file(&path))?;
    for warning in &mut warnings {
        warning.file.get_or_insert_with(|| path.clone());
    }
    let mut special = SpecialTokens::default();
    let tokenizer = from_hf::tokenizer(folder, &mut special, &mut warnings)?;
    if let Some(source) = &tokenizer {
        end_of_text(folder.join(from_hf::TOKENIZER), source, &mut special, &mut warnings)?;
    }
    warnings.extend(outside_vocabulary(&special, config.vocab()));
    for warning in &mut warnings {
        warning.file.get_or_insert_with(|| folder.to_path_buf());
    }
    Ok(Checkpoint {
        path: folder.to_path_buf(),
        source: Source::CTranslate2,
        config,
        tensors,
        special,
        tokenizer,
        warnings,
    })
}

/// Configuration and weights of the container in `file`.
fn settled(file: &Arc<SourceFile>) -> Result<Settled> {
    let container = ct2::parse(file.bytes())?;
    whisper(&container)?;
    let names = Names::new(&container, file.bytes());
    plain(&names)?;
    let (config, warning) = config_ct2::parse(&names)?;
    let listed = list(&names, config.hidden, config.tied, file)?;
    let mut settled = weights::settle(ModelConfig::Whisper(config), Source::CTranslate2, listed)?;
    settled.warnings.extend(warning);
    Ok(settled)
}

/// Refuses containers of other models.
fn whisper(container: &Container) -> Result<()> {
    let (spec, revision) = SPEC;
    if container.spec == spec && container.revision <= revision {
        return Ok(());
    }
    Err(Diagnostic::error(Code::UnsupportedArchitecture, "the container is of a model that npuc does not build")
        .need(format!("{spec}, up to revision {revision}"))
        .have(format!("{}, revision {}", container.spec, container.revision))
        .into())
}

/// Refuses weights in CTranslate2's own quantised forms, whose scales are tensors beside them.
fn plain(names: &Names<'_>) -> Result<()> {
    let whole = |tensor: &StoredTensor| match tensor.element {
        Element::I8 | Element::I16 | Element::I32 => true,
        Element::F32 | Element::F16 | Element::Bf16 => false,
    };
    let quantised = names.by_name.iter().filter(|(name, tensor)| name.ends_with("/weight") && whole(tensor));
    let quantised: Vec<(&str, &str)> = quantised.map(|(name, tensor)| (*name, tensor.element.name())).collect();
    let Some((_, element)) = quantised.first() else { return Ok(()) };
    let weights: Vec<&str> = quantised.iter().map(|(name, _)| *name).collect();
    Err(Diagnostic::error(
        Code::UnknownTensorType,
        "weights are quantised in a form of CTranslate2 that npuc does not read",
    )
    .subject(name_list(&weights))
    .need("float32, float16 or bfloat16")
    .have(*element)
    .help("convert the model again with `--quantization float16`; npuc quantises by a recipe")
    .into())
}

/// The weights, those that are stored in one each for itself. A tied head is not listed.
///
/// Errors: projections in one that are not as long as their parts, keys with a bias; all at once.
fn list(names: &Names<'_>, hidden: usize, tied: bool, file: &Arc<SourceFile>) -> Result<Vec<Listed>> {
    let (mut listed, mut faults) = (Vec::new(), Vec::new());
    for (&name, &stored) in &names.by_name {
        if config_ct2::is_setting(name) || tied && name == PROJECTION {
            continue;
        }
        let tensor = match stored.element.dtype() {
            Some(dtype) => tensor(name, stored, dtype, file)?,
            None => {
                listed.push(Listed { stored: name.to_owned(), tensor: Err(stored.element.name().to_owned()) });
                continue;
            }
        };
        match names_ct2::parts(name) {
            Some(parts) if parts.len() > 1 => match cut(name, parts, hidden, &tensor) {
                Ok(cut) => listed.extend(cut),
                Err(fault) => faults.push(*fault),
            },
            Some(_) | None => listed.push(Listed { stored: name.to_owned(), tensor: Ok(tensor) }),
        }
    }
    Error::check(faults)?;
    Ok(listed)
}

/// A stored tensor in the file.
fn tensor(name: &str, stored: &StoredTensor, dtype: DType, file: &Arc<SourceFile>) -> Result<Tensor> {
    Tensor::in_file(dtype, stored.shape.clone(), file.clone(), stored.range.clone())
        .ok_or_else(|| Diagnostic::error(Code::BadOffsets, "the data of a tensor leaves the file").subject(name).into())
}

/// The parts of a projection or bias that holds those of several modules, `hidden` rows each. The keys' part of a bias is left
/// out: the model has none, so it must be zeros.
fn cut(name: &str, parts: &[&str], hidden: usize, whole: &Tensor) -> Result<Vec<Listed>, Box<Diagnostic>> {
    let is_bias = name.ends_with("/bias");
    let rows = parts.len() * hidden;
    let shape = Shape(if is_bias { vec![rows] } else { vec![rows, hidden] });
    let wrong = || {
        let fault = Diagnostic::error(Code::WrongShape, "a tensor has another shape than the model's");
        Box::new(fault.subject(name).need(&shape).have(&whole.shape))
    };
    if whole.shape != shape {
        return Err(wrong());
    }
    let mut listed = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let rows = index * hidden..(index + 1) * hidden;
        let (stored, tensor) = (rows_name(name, &rows), whole.rows(rows).ok_or_else(wrong)?);
        if is_bias && names_ct2::KEYS.contains(part) {
            zeros(&stored, &tensor)?;
            continue;
        }
        listed.push(Listed { stored, tensor: Ok(tensor) });
    }
    Ok(listed)
}

/// Refuses a bias of keys that is not zero: Whisper's keys have none.
fn zeros(name: &str, bias: &Tensor) -> Result<(), Box<Diagnostic>> {
    let mut values = vec![0.0; bias.shape.elements().unwrap_or(0)];
    npuc_kernels::dequant::dequantize_row(bias.dtype, &bias.bytes(), &mut values);
    let Some((row, value)) = values.iter().enumerate().find(|(_, value)| **value != 0.0) else { return Ok(()) };
    Err(Box::new(
        Diagnostic::error(
            Code::UnsupportedArchitecture,
            "the projection of the keys has a bias, and Whisper's has none",
        )
        .subject(name)
        .need("zeros")
        .have(format!("{value} in row {row}")),
    ))
}

/// Adds the token that begins and ends a text, where no file of the folder has said another.
fn end_of_text(
    file: PathBuf,
    source: &TokenizerSource,
    special: &mut SpecialTokens,
    warnings: &mut Vec<Diagnostic>,
) -> Result<()> {
    let json = match source {
        TokenizerSource::HuggingFace { tokenizer_json, .. } => tokenizer_json,
        TokenizerSource::Gguf(_) => return Ok(()),
    };
    match from_hf::added_tokens(json, &file)?.get(END_OF_TEXT) {
        Some(&id) => {
            special.bos.get_or_insert(id);
            special.end_with([id]);
        }
        None => warnings.push(
            Diagnostic::warning(Code::BadTokenizer, "a special token is none of the tokenizer's added tokens")
                .file(file)
                .subject(END_OF_TEXT)
                .need("a token in added_tokens of tokenizer.json"),
        ),
    }
    Ok(())
}
