//! From the tensors that a file lists to the weights that the model uses: names, head, shapes, leftovers.
//!
//! What is stored decides, not what the configuration says about it: a tied head is one that is not stored.

use std::collections::BTreeMap;
use std::fmt;

use super::config::{LlamaArchitecture, ModelConfig, WhisperConfig};
use super::{Source, name_list, names_ct2};
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::model::llama::{EMBEDDING, HEAD};
use crate::model::{Role, WeightSpec, weight_specs};
use crate::tensor::{Shape, Tensor};

/// A tensor as a checkpoint lists it.
pub(super) struct Listed {
    /// The name in the file.
    pub(super) stored: String,
    /// The tensor, or the name of its element type if npuc does not read it.
    pub(super) tensor: Result<Tensor, String>,
}

/// The weights of a checkpoint by canonical name, and the configuration that what is stored settles.
pub(super) struct Settled {
    pub(super) config: ModelConfig,
    pub(super) tensors: BTreeMap<String, Tensor>,
    pub(super) warnings: Vec<Diagnostic>,
}

/// Finds every weight that the model uses among those listed and decides whether the head is tied.
///
/// # Errors
/// Two tensors for one weight, absent weights, wrong shapes, types that npuc does not read, and a head that
/// is neither stored nor tied; all at once.
pub(super) fn settle(config: ModelConfig, source: Source, listed: Vec<Listed>) -> Result<Settled> {
    let mut faults = Vec::new();
    let mut unused = Vec::new();
    let mut by_name: BTreeMap<String, Listed> = BTreeMap::new();
    for tensor in listed {
        let Some(name) = canonical(&config, source, &tensor.stored) else {
            unused.push(tensor.stored);
            continue;
        };
        if let Some(other) = by_name.insert(name, tensor) {
            faults.push(
                Diagnostic::error(Code::DuplicateName, "two tensors are the same weight of the model")
                    .subject(other.stored),
            );
        }
    }
    let mut warnings = Vec::new();
    let tied = match source {
        Source::Gguf => !by_name.contains_key(HEAD),
        // Its names have settled it: a tied head is another name of the embedding table.
        Source::CTranslate2 => config.tied(),
        Source::HuggingFace => match settle_head(&config, &mut by_name) {
            Ok((tied, warning)) => {
                warnings.extend(warning);
                tied
            }
            Err(fault) => {
                // The head is accounted for by this fault, so its absence is not told again.
                faults.push(*fault);
                true
            }
        },
    };
    let config = config.with_tied(tied);
    let (tensors, more) = select(&config, source, &mut by_name);
    faults.extend(more);
    Error::check(faults)?;
    unused.extend(by_name.into_values().map(|tensor| tensor.stored));
    warnings.extend(unused_warning(&unused));
    Ok(Settled { config, tensors, warnings })
}

/// Whether the head is tied, by what is stored first and `tie_word_embeddings` second.
fn settle_head(
    config: &ModelConfig,
    by_name: &mut BTreeMap<String, Listed>,
) -> Result<(bool, Option<Diagnostic>), Box<Diagnostic>> {
    let said_tied = config.tied();
    let (head, embedding) = (hf_name(config, HEAD), hf_name(config, EMBEDDING));
    let warning = |message: &str| Some(Diagnostic::warning(Code::TiedHead, message).subject(&head));
    match (said_tied, by_name.get(EMBEDDING), by_name.get(HEAD)) {
        (true, Some(_), None) => Ok((true, None)),
        (false, Some(_), Some(_)) => Ok((false, None)),
        (true, Some(table), Some(stored)) if same(table, stored) => {
            by_name.remove(HEAD);
            Ok((
                true,
                warning("the head is tied and stored all the same; it equals the embedding table, which is used"),
            ))
        }
        (true, Some(_), Some(_)) => {
            Ok((false, warning("the configuration ties the head, but another one is stored; the stored head is used")))
        }
        (said_tied, None, Some(_)) => {
            // Where this is a fault, the embedding table is accounted for and not told as missing as well.
            if let Some(stored) = by_name.remove(HEAD) {
                by_name.insert(EMBEDDING.into(), stored);
            }
            if said_tied {
                Ok((true, warning("only the head of a tied pair is stored; it is used as the embedding table too")))
            } else {
                Err(half_of_a_pair("the embedding table is not stored and not tied to the head", &embedding, &head))
            }
        }
        (false, Some(_), None) => Err(half_of_a_pair("the head is not tied and not stored", &head, &embedding)),
        // What is absent is told with the other weights.
        (said_tied, None, None) => Ok((said_tied, None)),
    }
}

/// The fault of one stored half of a pair that is said to be untied.
fn half_of_a_pair(message: &str, absent: &str, present: &str) -> Box<Diagnostic> {
    Box::new(
        Diagnostic::error(Code::TiedHead, message)
            .subject("tie_word_embeddings")
            .need(format!("{absent}, because tie_word_embeddings is false"))
            .have(format!("{present} only"))
            .help("if the model's head is its embedding table, set \"tie_word_embeddings\": true in config.json")
            .help(format!("otherwise export the model again with {absent}")),
    )
}

/// Whether two stored tensors are equal; reads both.
fn same(a: &Listed, b: &Listed) -> bool {
    match (&a.tensor, &b.tensor) {
        (Ok(a), Ok(b)) => a.dtype == b.dtype && a.shape == b.shape && a.bytes() == b.bytes(),
        (Err(_), _) | (_, Err(_)) => false,
    }
}

/// Takes the weights of the model out of `by_name` and checks them. Equal faults are told once.
fn select(
    config: &ModelConfig,
    source: Source,
    by_name: &mut BTreeMap<String, Listed>,
) -> (BTreeMap<String, Tensor>, Vec<Diagnostic>) {
    let mut tensors = BTreeMap::new();
    let mut groups: Vec<(Misfit, Vec<String>)> = Vec::new();
    for spec in weight_specs(config) {
        let listed = by_name.remove(&spec.name);
        let stored =
            listed.as_ref().map_or_else(|| stored_name(config, source, &spec.name), |listed| listed.stored.clone());
        match check(&spec, source, listed).and_then(|tensor| in_order(config, source, &spec.name, tensor)) {
            Ok(tensor) => {
                tensors.insert(spec.name, tensor);
            }
            Err(misfit) => match groups.iter_mut().find(|(known, _)| *known == misfit) {
                Some((_, names)) => names.push(stored),
                None => groups.push((misfit, vec![stored])),
            },
        }
    }
    let faults = groups.into_iter().map(|(misfit, names)| {
        let fault = Diagnostic::error(misfit.code, misfit.message).subject(name_list(&names)).need(misfit.need);
        misfit.have.into_iter().fold(fault, Diagnostic::have)
    });
    (tensors, faults.collect())
}

/// Why a stored tensor is not what the model needs; the same for many tensors.
#[derive(PartialEq)]
struct Misfit {
    code: Code,
    message: &'static str,
    need: String,
    have: Option<String>,
}

/// The tensor if it is what `spec` needs.
fn check(spec: &WeightSpec, source: Source, listed: Option<Listed>) -> Result<Tensor, Misfit> {
    let misfit = |code, message, need: &dyn fmt::Display, have| Misfit { code, message, need: need.to_string(), have };
    let Some(listed) = listed else {
        let message = "tensors that the model needs are absent";
        return Err(misfit(Code::MissingTensor, message, &format_args!("shape {}", stored_shape(source, spec)), None));
    };
    let plain = "F32, F16 or BF16";
    let tensor = listed.tensor.map_err(|dtype| {
        let message = "tensors are stored in a format that npuc does not read";
        misfit(Code::UnknownTensorType, message, &plain, Some(dtype))
    })?;
    let shape = stored_shape(source, spec);
    if tensor.shape != shape {
        let message = "tensors have another shape than the configuration says";
        return Err(misfit(Code::WrongShape, message, &shape, Some(tensor.shape.to_string())));
    }
    if !spec.role.is_matrix() && tensor.dtype.is_block() {
        let message = "norms, biases or filters are stored in a block format";
        return Err(misfit(Code::UnknownTensorType, message, &plain, Some(tensor.dtype.to_string())));
    }
    Ok(if shape == spec.shape { tensor } else { tensor.with_shape(spec.shape.clone()) })
}

/// The shape that the form of file gives a weight: outside GGUF filters have an axis more, of one channel a group, and so have
/// convolutions that npuc has as matrices.
pub(crate) fn stored_shape(source: Source, spec: &WeightSpec) -> Shape {
    match (source, spec.role, &*spec.shape) {
        (Source::HuggingFace | Source::CTranslate2, Role::Filter, &[channels, taps]) => [channels, 1, taps].into(),
        (Source::HuggingFace | Source::CTranslate2, Role::Stem, &[channels, columns]) => {
            [channels, columns / WhisperConfig::TAPS, WhisperConfig::TAPS].into()
        }
        (Source::HuggingFace | Source::CTranslate2 | Source::Gguf, _, _) => spec.shape.clone(),
    }
}

/// Undoes the interleaving of the query and key rows that GGUF files of the architecture `llama` have.
fn in_order(config: &ModelConfig, source: Source, name: &str, tensor: Tensor) -> Result<Tensor, Misfit> {
    let config = match (config, source) {
        (ModelConfig::Llama(config), Source::Gguf) if config.architecture == LlamaArchitecture::Llama => config,
        (ModelConfig::Llama(_) | ModelConfig::Lfm2(_) | ModelConfig::Whisper(_), _) => return Ok(tensor),
    };
    let heads = if name.contains(".self_attn.q_proj.") {
        config.heads
    } else if name.contains(".self_attn.k_proj.") {
        config.kv_heads
    } else {
        return Ok(tensor);
    };
    let shape = tensor.shape.to_string();
    tensor.with_interleaved_heads(heads).ok_or_else(|| Misfit {
        code: Code::WrongShape,
        message: "rows do not divide into heads of even width",
        need: format!("{heads} heads"),
        have: Some(shape),
    })
}

fn unused_warning(unused: &[String]) -> Option<Diagnostic> {
    let message = match unused.len() {
        0 => return None,
        1 => "the checkpoint has 1 tensor that the model does not use".to_owned(),
        n => format!("the checkpoint has {n} tensors that the model does not use"),
    };
    Some(Diagnostic::warning(Code::UnusedTensors, message).subject(name_list(unused)))
}

/// The tensors of GGUF files and the modules of Hugging Face models, outside and inside layers.
struct Names {
    outer: &'static Table,
    layer: &'static Table,
}

type Table = [(&'static str, &'static str)];

const LLAMA: Names = Names {
    outer: &[("token_embd", "embed_tokens"), ("output_norm", "norm"), ("output", "lm_head")],
    layer: &[
        ("attn_norm", "input_layernorm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ],
};

/// llama.cpp calls the last norm after the table, as the model does.
const LFM2: Names = Names {
    outer: &[("token_embd", "embed_tokens"), ("token_embd_norm", "embedding_norm"), ("output", "lm_head")],
    layer: &[
        ("attn_norm", "operator_norm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_q_norm", "self_attn.q_layernorm"),
        ("attn_k_norm", "self_attn.k_layernorm"),
        ("attn_output", "self_attn.out_proj"),
        ("shortconv.in_proj", "conv.in_proj"),
        ("shortconv.conv", "conv.conv"),
        ("shortconv.out_proj", "conv.out_proj"),
        ("ffn_norm", "ffn_norm"),
        ("ffn_gate", "feed_forward.w1"),
        ("ffn_up", "feed_forward.w3"),
        ("ffn_down", "feed_forward.w2"),
    ],
};

const fn names(config: &ModelConfig) -> Names {
    match config {
        ModelConfig::Llama(_) => LLAMA,
        ModelConfig::Lfm2(_) => LFM2,
        // No GGUF file has such a model.
        ModelConfig::Whisper(_) => Names { outer: &[], layer: &[] },
    }
}

impl Names {
    /// A name without its layer, the layer if it has one, and the table that the rest is looked up in.
    fn split_layer<'n>(&self, name: &'n str, prefix: &str) -> (Option<&'n str>, &'n str, &'static Table) {
        match name.strip_prefix(prefix).and_then(|rest| rest.split_once('.')) {
            Some((number, rest)) => (Some(number), rest, self.layer),
            None => (None, name, self.outer),
        }
    }
}

/// The canonical name of a stored tensor; `None` if the form of file has no such weight.
fn canonical(config: &ModelConfig, source: Source, stored: &str) -> Option<String> {
    match source {
        Source::HuggingFace => Some(canonical_of_hf(config, stored)),
        Source::CTranslate2 => names_ct2::canonical(stored, config.hidden()),
        Source::Gguf => {
            let (prefix, rest, table) = names(config).split_layer(stored, "blk.");
            let (module, kind) = rest.rsplit_once('.')?;
            let (_, name) = table.iter().find(|(gguf, _)| *gguf == module)?;
            Some(match prefix {
                Some(layer) => format!("layers.{layer}.{name}.{kind}"),
                None => format!("{name}.{kind}"),
            })
        }
    }
}

/// The name that the form of file gives a canonical name.
pub(crate) fn stored_name(config: &ModelConfig, source: Source, canonical: &str) -> String {
    match source {
        Source::HuggingFace => hf_name(config, canonical),
        Source::CTranslate2 => names_ct2::stored(canonical, config.hidden()),
        Source::Gguf => {
            let (prefix, rest, table) = names(config).split_layer(canonical, "layers.");
            let (module, kind) = rest.rsplit_once('.').unwrap_or((rest, "weight"));
            let gguf = table.iter().find(|(_, name)| *name == module).map_or(module, |(gguf, _)| gguf);
            match prefix {
                Some(layer) => format!("blk.{layer}.{gguf}.{kind}"),
                None => format!("{gguf}.{kind}"),
            }
        }
    }
}

/// The canonical name of a tensor of a Hugging Face checkpoint. Of Whisper's decoder it is that without `decoder.`, so that its
/// weights have the names that other decoders' have.
fn canonical_of_hf(config: &ModelConfig, stored: &str) -> String {
    let name = stored.strip_prefix("model.").unwrap_or(stored);
    match config {
        ModelConfig::Llama(_) | ModelConfig::Lfm2(_) => name.to_owned(),
        ModelConfig::Whisper(_) if name == WHISPER_HEAD => HEAD.to_owned(),
        ModelConfig::Whisper(_) => name.strip_prefix("decoder.").unwrap_or(name).to_owned(),
    }
}

/// What Whisper's checkpoints call the head.
const WHISPER_HEAD: &str = "proj_out.weight";

/// The name that transformers gives a canonical name.
pub(crate) fn hf_name(config: &ModelConfig, canonical: &str) -> String {
    match config {
        ModelConfig::Llama(_) | ModelConfig::Lfm2(_) if canonical == HEAD => canonical.to_owned(),
        ModelConfig::Llama(_) | ModelConfig::Lfm2(_) => format!("model.{canonical}"),
        ModelConfig::Whisper(_) if canonical == HEAD => WHISPER_HEAD.to_owned(),
        ModelConfig::Whisper(_) if canonical.starts_with("encoder.") => format!("model.{canonical}"),
        ModelConfig::Whisper(_) => format!("model.decoder.{canonical}"),
    }
}
