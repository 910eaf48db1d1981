//! Opens a folder as Hugging Face's `save_pretrained` writes it.
//!
//! `model.safetensors` is preferred to `model.safetensors.index.json` where both are there, as transformers does.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use safetensors::Dtype;
use serde::Deserialize;
use serde_json::Value;

use super::safetensors::{Pairs, StoredTensor, parse};
use super::weights::{self, Listed};
use super::{Checkpoint, Source, SpecialTokens, TokenizerSource, config_hf, name_list, outside_vocabulary};
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::tensor::{DType, SourceFile, Tensor};

/// The whole model in one file.
pub(super) const SINGLE: &str = "model.safetensors";
/// The index of a model in several files.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// The tokenizer.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Opens the folder, which holds `config.json`.
pub(super) fn open(folder: &Path) -> Result<Checkpoint> {
    let config_file = folder.join("config.json");
    let config_text = read(&config_file)?
        .ok_or_else(|| Diagnostic::error(Code::Unreadable, "the file is absent").file(&config_file))?;
    let parsed = config_hf::parse(&config_text, &config_file)?;
    let mut special = SpecialTokens { bos: parsed.bos, ..SpecialTokens::default() };
    special.end_with(parsed.eos);

    let mut warnings = Vec::new();
    let listed = list(folder, &mut warnings)?;
    let settled = weights::settle(parsed.model, Source::HuggingFace, listed).map_err(|e| e.in_file(folder))?;
    let config = settled.config;
    warnings.extend(settled.warnings);

    let generation_file = folder.join("generation_config.json");
    if let Some(text) = read(&generation_file)? {
        let (bos, eos) = config_hf::parse_generation(&text, &generation_file)?;
        special.bos = special.bos.or(bos);
        special.end_with(eos);
    }
    let tokenizer = tokenizer(folder, &mut special, &mut warnings)?;
    warnings.extend(outside_vocabulary(&special, config.vocab()));
    for warning in &mut warnings {
        warning.file.get_or_insert_with(|| folder.to_path_buf());
    }
    Ok(Checkpoint {
        path: folder.to_path_buf(),
        source: Source::HuggingFace,
        config,
        tensors: settled.tensors,
        special,
        tokenizer,
        warnings,
    })
}

/// The content of a small file; `None` if it is absent.
fn read(file: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(file) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Diagnostic::error(Code::Unreadable, format!("cannot read the file: {e}")).file(file).into()),
    }
}

/// Every tensor of the checkpoint, from one file or from the shards that the index names.
fn list(folder: &Path, warnings: &mut Vec<Diagnostic>) -> Result<Vec<Listed>> {
    let single = folder.join(SINGLE);
    if single.exists() {
        let (file, tensors) = shard(&single)?;
        return tensors.into_iter().map(|tensor| listed(tensor, &file)).collect();
    }
    let index_file = folder.join(INDEX);
    let Some(text) = read(&index_file)? else {
        return Err(Diagnostic::error(Code::UnknownFormat, "the folder has no weights that npuc reads")
            .file(folder)
            .need(format!("{SINGLE} or {INDEX}"))
            .have(name_list(&super::open::file_names(folder)?))
            .help("save the model again with `save_pretrained(..., safe_serialization=True)`")
            .into());
    };
    let names = index(&text).map_err(|e| e.in_file(&index_file))?;
    shards(folder, &names, warnings)
}

/// The names of the tensors by the shard that the index puts them in.
fn index(text: &[u8]) -> Result<BTreeMap<String, Vec<String>>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: Pairs<String>,
    }
    let Index { weight_map: Pairs(pairs) } = serde_json::from_slice(text)
        .map_err(|e| Diagnostic::error(Code::BadHeader, format!("the index is malformed: {e}")).line(e.line()))?;
    let mut faults = Vec::new();
    let mut by_shard: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut seen = HashSet::new();
    for (name, shard) in pairs {
        if Path::new(&shard).file_name() != Some(shard.as_ref()) {
            let fault = Diagnostic::error(Code::BadHeader, "the index names a shard outside the folder");
            faults.push(fault.subject(&name).need("the name of a file").have(&shard));
        }
        if !seen.insert(name.clone()) {
            faults.push(Diagnostic::error(Code::DuplicateName, "the index names a tensor twice").subject(&name));
        }
        by_shard.entry(shard).or_default().push(name);
    }
    Error::check(faults)?;
    Ok(by_shard)
}

/// The tensors that the index names, each from its shard.
fn shards(
    folder: &Path,
    by_shard: &BTreeMap<String, Vec<String>>,
    warnings: &mut Vec<Diagnostic>,
) -> Result<Vec<Listed>> {
    let absent: Vec<&String> = by_shard.keys().filter(|shard| !folder.join(shard).exists()).collect();
    let present = by_shard.len() - absent.len();
    Error::check(
        absent
            .into_iter()
            .map(|shard| {
                Diagnostic::error(Code::MissingShard, "a shard that the index names is absent")
                    .file(folder.join(INDEX))
                    .subject(shard)
                    .need(format!("{} shards beside the index", by_shard.len()))
                    .have(format!("{present} of them"))
                    .help("copy or download the missing file into the folder")
            })
            .collect(),
    )?;
    let (mut all, mut faults, mut unlisted) = (Vec::new(), Vec::new(), Vec::new());
    for (shard_name, names) in by_shard {
        let path = folder.join(shard_name);
        let (file, tensors) = shard(&path)?;
        let mut tensors: BTreeMap<String, StoredTensor> = tensors.into_iter().map(|t| (t.name.clone(), t)).collect();
        let mut missing = Vec::new();
        for name in names {
            match tensors.remove(name) {
                Some(tensor) => all.push(listed(tensor, &file)?),
                None => missing.push(name),
            }
        }
        if !missing.is_empty() {
            let fault = Diagnostic::error(Code::MissingTensor, "the shard lacks tensors that the index puts there");
            faults.push(fault.file(&path).subject(name_list(&missing)).help("copy or download the shard again"));
        }
        unlisted.extend(tensors.into_keys());
    }
    Error::check(faults)?;
    if !unlisted.is_empty() {
        let warning = "the shards hold tensors that the index does not put there; they are not used";
        warnings.push(Diagnostic::warning(Code::UnusedTensors, warning).subject(name_list(&unlisted)));
    }
    Ok(all)
}

/// Maps one safetensors file and reads its header.
fn shard(path: &Path) -> Result<(Arc<SourceFile>, Vec<StoredTensor>)> {
    let file = SourceFile::open(path)?;
    let tensors = parse(file.bytes()).map_err(|e| e.in_file(path))?;
    Ok((file, tensors))
}

fn listed(stored: StoredTensor, file: &Arc<SourceFile>) -> Result<Listed> {
    let readable = [(Dtype::F32, DType::F32), (Dtype::F16, DType::F16), (Dtype::BF16, DType::BF16)];
    let Some((_, dtype)) = readable.into_iter().find(|(dtype, _)| *dtype == stored.dtype) else {
        return Ok(Listed { stored: stored.name, tensor: Err(format!("{:?}", stored.dtype)) });
    };
    match Tensor::in_file(dtype, stored.shape, file.clone(), stored.range) {
        Some(tensor) => Ok(Listed { stored: stored.name, tensor: Ok(tensor) }),
        None => Err(Diagnostic::error(Code::BadOffsets, "the data of a tensor leaves the file")
            .file(&file.path)
            .subject(stored.name)
            .into()),
    }
}

/// The tokenizer's files, and the special ids that they name. `None` if there is no `tokenizer.json`.
pub(super) fn tokenizer(
    folder: &Path,
    special: &mut SpecialTokens,
    warnings: &mut Vec<Diagnostic>,
) -> Result<Option<TokenizerSource>> {
    let json_file = folder.join(TOKENIZER);
    let Some(tokenizer_json) = read(&json_file)? else {
        return Ok(None);
    };
    let config_file = folder.join("tokenizer_config.json");
    let tokenizer_config = match read(&config_file)? {
        Some(text) => Some(serde_json::from_slice::<Value>(&text).map_err(|e| malformed(&config_file, &e))?),
        None => None,
    };
    if let Some(config) = &tokenizer_config {
        let added = added_tokens(&tokenizer_json, &json_file)?;
        let mut id = |key: &str| {
            let text = token_text(config.get(key)?)?;
            let id = added.get(text).copied();
            if id.is_none() {
                warnings.push(
                    Diagnostic::warning(Code::BadTokenizer, "a special token is none of the tokenizer's added tokens")
                        .file(&config_file)
                        .subject(key)
                        .need("a token in added_tokens of tokenizer.json")
                        .have(format!("{text:?}")),
                );
            }
            id
        };
        special.end_with(id("eos_token"));
        special.bos = special.bos.or_else(|| id("bos_token"));
    }
    let chat_template = chat_template(folder, tokenizer_config.as_ref(), &config_file, warnings)?;
    Ok(Some(TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config, chat_template }))
}

fn malformed(file: &Path, e: &serde_json::Error) -> Diagnostic {
    Diagnostic::error(Code::BadTokenizer, format!("the file is malformed: {e}")).file(file).line(e.line())
}

/// The ids of the tokens that were added to the vocabulary, by text.
pub(super) fn added_tokens(tokenizer_json: &[u8], file: &Path) -> Result<BTreeMap<String, u32>> {
    #[derive(Deserialize)]
    struct Tokenizer {
        #[serde(default)]
        added_tokens: Vec<Added>,
    }
    #[derive(Deserialize)]
    struct Added {
        id: u32,
        content: String,
    }
    let tokenizer: Tokenizer = serde_json::from_slice(tokenizer_json).map_err(|e| malformed(file, &e))?;
    Ok(tokenizer.added_tokens.into_iter().map(|token| (token.content, token.id)).collect())
}

/// The text of a special token: a string, or an object with `content`.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// `chat_template.jinja`, or else the template in `tokenizer_config.json`: a text, or a list of named ones of
/// which `default` is taken.
fn chat_template(
    folder: &Path,
    config: Option<&Value>,
    config_file: &Path,
    warnings: &mut Vec<Diagnostic>,
) -> Result<Option<String>> {
    let file = folder.join("chat_template.jinja");
    if let Some(bytes) = read(&file)? {
        let text = String::from_utf8(bytes)
            .map_err(|e| Diagnostic::error(Code::BadTemplate, format!("the template is not UTF-8: {e}")).file(&file))?;
        return Ok(Some(text));
    }
    let fault =
        |message: &str| Diagnostic::warning(Code::BadTemplate, message).file(config_file).subject("chat_template");
    match config.and_then(|config| config.get("chat_template")) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(list)) => {
            let named = |name: &str| list.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some(name));
            let text = named("default").and_then(|entry| entry.get("template")).and_then(Value::as_str);
            if text.is_none() {
                let names: Vec<&str> =
                    list.iter().filter_map(|entry| entry.get("name").and_then(Value::as_str)).collect();
                let fault = fault("none of the chat templates is the default, so none is used");
                warnings.push(fault.need("one named `default`").have(name_list(&names)));
            }
            Ok(text.map(str::to_owned))
        }
        Some(other @ (Value::Bool(_) | Value::Number(_) | Value::Object(_))) => {
            let fault = fault("the chat template is malformed and not used");
            warnings.push(fault.need("a text or a list of named templates").have(other));
            Ok(None)
        }
    }
}
