//! The metadata of a GGUF file: that of the source, byte for byte, or what a converter says of a Hugging Face folder.

use std::path::Path;

use crate::diag::{Code, Diagnostic, Result};
use crate::front::config::{LayerKind, LlamaArchitecture, ModelConfig, RopeScaling};
use crate::front::{Checkpoint, GgufVocab, gguf};
use crate::quant::plan::Plan;
use crate::tensor::{DType, SourceFile};

/// The keys that a change of formats changes.
const FORMAT_KEYS: [&str; 2] = ["general.file_type", "general.quantization_version"];
/// The keys of ids that end an answer, `tokenizer.ggml.<name>_token_id`.
const ENDING: [&str; 3] = ["eos", "eot", "eom"];
/// The version of ggml's block formats.
const BLOCKS_VERSION: u32 = 2;

/// The number of a file type (source: `enum llama_ftype`) by the format of most projections; 1024 marks a guess, as it
/// does there.
pub(super) fn file_type(plan: &Plan) -> u32 {
    let projections = plan.weights.iter().filter(|weight| weight.role.is_projection());
    let most = |dtype: DType| projections.clone().filter(|weight| weight.to == dtype).count();
    let known = [
        (DType::F32, 0),
        (DType::F16, 1),
        (DType::Q4_0, 2),
        (DType::Q4_1, 3),
        (DType::Q8_0, 7),
        (DType::Q5_0, 8),
        (DType::Q5_1, 9),
        (DType::BF16, 32),
    ];
    known
        .into_iter()
        .max_by_key(|(dtype, _)| most(*dtype))
        .filter(|(dtype, _)| most(*dtype) > 0)
        .map_or(1024, |(_, id)| id)
}

/// Count and bytes of the source file's own metadata, but for the keys about formats.
pub(super) fn kept(path: &Path, file_type: u32) -> Result<(usize, Vec<u8>)> {
    let file = SourceFile::open(path)?;
    let header = gguf::parse(file.bytes()).map_err(|e| e.in_file(path))?;
    let mut keys = Keys::default();
    // The alignment is this writer's own.
    let changed = |key: &str| FORMAT_KEYS.contains(&key) || key == "general.alignment";
    for (_, range) in header.entries.iter().filter(|(key, _)| !changed(key)) {
        keys.count += 1;
        keys.bytes.extend_from_slice(&file.bytes()[range.clone()]);
    }
    keys.formats(file_type);
    Ok((keys.count, keys.bytes))
}

/// Count and bytes of the metadata of a model that comes from a folder.
pub(super) fn of_model(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    vocab: Option<&GgufVocab>,
    file_type: u32,
) -> (usize, Vec<u8>) {
    let arch = match config {
        ModelConfig::Llama(config) => match config.architecture {
            LlamaArchitecture::Llama | LlamaArchitecture::Mistral => "llama",
            LlamaArchitecture::Qwen2 => "qwen2",
            LlamaArchitecture::Qwen3 => "qwen3",
        },
        ModelConfig::Lfm2(_) => "lfm2",
        ModelConfig::Whisper(_) => unreachable!("`Layout::new` refuses it"),
    };
    let mut keys = Keys::default();
    keys.string("general.architecture", arch);
    let name = checkpoint.path.file_name().map(|name| name.to_string_lossy().into_owned());
    keys.string("general.name", &name.unwrap_or_default());
    let counts = [
        ("block_count", config.layers()),
        ("context_length", config.max_positions()),
        ("embedding_length", config.hidden()),
        ("feed_forward_length", config.ffn()),
        ("attention.head_count", config.heads()),
        ("attention.key_length", config.head_dim()),
        ("attention.value_length", config.head_dim()),
        ("rope.dimension_count", config.head_dim()),
        ("vocab_size", config.vocab()),
    ];
    counts.iter().for_each(|(key, count)| keys.u32(&format!("{arch}.{key}"), *count as u32));
    match config {
        ModelConfig::Llama(config) => keys.u32(&format!("{arch}.attention.head_count_kv"), config.kv_heads as u32),
        ModelConfig::Lfm2(config) => {
            // Layers with convolutions are those that have no such heads.
            let heads = |kind: &LayerKind| match kind {
                LayerKind::Attention => config.kv_heads as i32,
                LayerKind::Convolution | LayerKind::Encoder => 0,
            };
            let counts: Vec<i32> = config.kinds.iter().map(heads).collect();
            keys.array(&format!("{arch}.attention.head_count_kv"), kind::I32, &counts, |bytes, count| {
                bytes.extend(count.to_le_bytes());
            });
            keys.u32(&format!("{arch}.shortconv.l_cache"), config.window as u32);
        }
        ModelConfig::Whisper(_) => {}
    }
    if let Some(rope) = config.rope() {
        keys.f32(&format!("{arch}.rope.freq_base"), rope.theta);
    }
    keys.f32(&format!("{arch}.attention.layer_norm_rms_epsilon"), config.rms_eps());
    if let Some(&RopeScaling::Linear { factor }) = config.rope().map(|rope| &rope.scaling) {
        keys.string(&format!("{arch}.rope.scaling.type"), "linear");
        keys.f32(&format!("{arch}.rope.scaling.factor"), factor);
    }
    match vocab {
        Some(vocab) => keys.vocab(vocab),
        None => keys.string("tokenizer.ggml.model", "no_vocab"),
    }
    let special = &checkpoint.special;
    let ending = ENDING.into_iter().zip(ending_ids(checkpoint));
    for (name, id) in special.bos.map(|id| ("bos", id)).into_iter().chain(ending) {
        keys.u32(&format!("tokenizer.ggml.{name}_token_id"), id);
    }
    keys.formats(file_type);
    (keys.count, keys.bytes)
}

/// The ids that end an answer, the one that is named first before the others.
fn ending_ids(checkpoint: &Checkpoint) -> impl Iterator<Item = u32> {
    let special = &checkpoint.special;
    let others = special.eos.iter().copied().filter(|id| Some(*id) != special.first_eos);
    special.first_eos.into_iter().chain(others)
}

/// Tells of ids that end an answer and have no key in a GGUF file.
pub(super) fn lost_ids(checkpoint: &Checkpoint) -> Option<Diagnostic> {
    let lost: Vec<String> = ending_ids(checkpoint).skip(ENDING.len()).map(|id| id.to_string()).collect();
    let warning =
        || Diagnostic::warning(Code::BadTokenId, "a GGUF file has no key for some of the ids that end an answer");
    (!lost.is_empty()).then(|| {
        warning().need(format!("{} ids at most", ENDING.len())).have(format!("{} are left out", lost.join(", ")))
    })
}

/// Keys and values, one after the other.
#[derive(Default)]
struct Keys {
    count: usize,
    bytes: Vec<u8>,
}

/// The ids of value types (source: `enum gguf_type`).
mod kind {
    pub(super) const U32: u32 = 4;
    pub(super) const I32: u32 = 5;
    pub(super) const F32: u32 = 6;
    pub(super) const BOOL: u32 = 7;
    pub(super) const STRING: u32 = 8;
    pub(super) const ARRAY: u32 = 9;
}

/// A text with its length.
pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl Keys {
    fn key(&mut self, name: &str, kind: u32) {
        self.count += 1;
        text(&mut self.bytes, name);
        self.bytes.extend(kind.to_le_bytes());
    }

    fn u32(&mut self, name: &str, value: u32) {
        self.key(name, kind::U32);
        self.bytes.extend(value.to_le_bytes());
    }

    fn f32(&mut self, name: &str, value: f32) {
        self.key(name, kind::F32);
        self.bytes.extend(value.to_le_bytes());
    }

    fn string(&mut self, name: &str, value: &str) {
        self.key(name, kind::STRING);
        text(&mut self.bytes, value);
    }

    fn array<T>(&mut self, name: &str, of: u32, values: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
        if values.is_empty() {
            return;
        }
        self.key(name, kind::ARRAY);
        self.bytes.extend(of.to_le_bytes());
        self.bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| put(&mut self.bytes, value));
    }

    fn formats(&mut self, file_type: u32) {
        self.u32(FORMAT_KEYS[0], file_type);
        self.u32(FORMAT_KEYS[1], BLOCKS_VERSION);
    }

    fn vocab(&mut self, vocab: &GgufVocab) {
        self.string("tokenizer.ggml.model", &vocab.model);
        vocab.pre.iter().for_each(|pre| self.string("tokenizer.ggml.pre", pre));
        self.array("tokenizer.ggml.tokens", kind::STRING, &vocab.tokens, |out, token| text(out, token));
        self.array("tokenizer.ggml.scores", kind::F32, &vocab.scores, |out, score| out.extend(score.to_le_bytes()));
        self.array("tokenizer.ggml.token_type", kind::I32, &vocab.types, |out, kind| out.extend(kind.to_le_bytes()));
        self.array("tokenizer.ggml.merges", kind::STRING, &vocab.merges, |out, merge| text(out, merge));
        let flags = [
            ("add_bos_token", vocab.add_bos),
            ("add_eos_token", vocab.add_eos),
            ("add_space_prefix", vocab.add_space_prefix),
        ];
        for (name, flag) in flags.into_iter().filter_map(|(name, flag)| Some((name, flag?))) {
            self.key(&format!("tokenizer.ggml.{name}"), kind::BOOL);
            self.bytes.push(flag.into());
        }
        vocab.chat_template.iter().for_each(|template| self.string("tokenizer.chat_template", template));
    }
}
