//! Writes GGUF files, and turns Hugging Face folders into them the way llama.cpp's converter does.

use std::collections::BTreeMap;

use npuc::DType;
use npuc::front::config::{LayerKind, LlamaArchitecture, RopeScaling};
use npuc::front::{Checkpoint, ModelConfig};

/// A metadata value of one of the types that models use.
#[derive(Clone, Debug)]
pub enum Meta {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(String),
    Strs(Vec<String>),
    F32s(Vec<f32>),
    I32s(Vec<i32>),
    /// The bytes of a value of any type id, for bad input.
    Raw(u32, Vec<u8>),
}

impl From<&str> for Meta {
    fn from(text: &str) -> Meta {
        Meta::Str(text.into())
    }
}

/// A tensor: name, type id, extents outermost first, data.
#[derive(Clone, Debug)]
pub struct Written {
    pub name: String,
    pub type_id: u32,
    pub dims: Vec<usize>,
    pub data: Vec<u8>,
    /// An offset to write instead of the right one.
    pub offset: Option<u64>,
}

/// What a GGUF file is made of.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    pub version: u32,
    pub metadata: Vec<(String, Meta)>,
    pub tensors: Vec<Written>,
    pub alignment: usize,
}

impl Default for GgufWriter {
    fn default() -> GgufWriter {
        GgufWriter { version: 3, metadata: Vec::new(), tensors: Vec::new(), alignment: 32 }
    }
}

impl GgufWriter {
    /// Adds or replaces a key.
    pub fn set(&mut self, key: &str, value: impl Into<Meta>) {
        self.metadata.retain(|(k, _)| k != key);
        self.metadata.push((key.into(), value.into()));
    }

    /// Adds a tensor.
    pub fn tensor(&mut self, name: &str, type_id: u32, dims: &[usize], data: Vec<u8>) {
        self.tensors.push(Written { name: name.into(), type_id, dims: dims.to_vec(), data, offset: None });
    }

    /// The tensor of that name.
    pub fn find(&mut self, name: &str) -> &mut Written {
        self.tensors.iter_mut().find(|t| t.name == name).expect("the tensor was added")
    }

    /// The bytes of the file up to the padding before the data.
    pub fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            string(&mut out, key);
            meta(&mut out, value);
        }
        let mut offset = 0usize;
        for tensor in &self.tensors {
            string(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            for dim in tensor.dims.iter().rev() {
                out.extend((*dim as u64).to_le_bytes());
            }
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(offset as u64).to_le_bytes());
            offset += tensor.data.len().next_multiple_of(self.alignment);
        }
        out
    }

    /// The whole file. The data of the last tensor is not padded.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&tensor.data);
        }
        out
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn meta(out: &mut Vec<u8>, value: &Meta) {
    let mut kind = |id: u32| out.extend(id.to_le_bytes());
    match value {
        Meta::U32(_) => kind(4),
        Meta::I32(_) => kind(5),
        Meta::F32(_) => kind(6),
        Meta::Bool(_) => kind(7),
        Meta::Str(_) => kind(8),
        Meta::Strs(_) | Meta::F32s(_) | Meta::I32s(_) => kind(9),
        Meta::Raw(id, _) => kind(*id),
    }
    let array = |out: &mut Vec<u8>, id: u32, count: usize| {
        out.extend(id.to_le_bytes());
        out.extend((count as u64).to_le_bytes());
    };
    match value {
        Meta::U32(v) => out.extend(v.to_le_bytes()),
        Meta::I32(v) => out.extend(v.to_le_bytes()),
        Meta::F32(v) => out.extend(v.to_le_bytes()),
        Meta::Bool(v) => out.push((*v).into()),
        Meta::Str(v) => string(out, v),
        Meta::Strs(v) => {
            array(out, 8, v.len());
            v.iter().for_each(|text| string(out, text));
        }
        Meta::F32s(v) => {
            array(out, 6, v.len());
            v.iter().for_each(|x| out.extend(x.to_le_bytes()));
        }
        Meta::I32s(v) => {
            array(out, 5, v.len());
            v.iter().for_each(|x| out.extend(x.to_le_bytes()));
        }
        Meta::Raw(_, bytes) => out.extend(bytes),
    }
}

/// The GGUF type id of a format.
pub fn type_id(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q5_0 => 6,
        DType::Q5_1 => 7,
        DType::Q8_0 => 8,
        DType::Q2K => 10,
        DType::Q3K => 11,
        DType::Q4K => 12,
        DType::Q5K => 13,
        DType::Q6K => 14,
        DType::BF16 => 30,
        DType::Int8 | DType::Int4 | DType::Lpbq4(_) | DType::Bw4(_) => panic!("GGUF has no {dtype}"),
    }
}

/// A checkpoint as the GGUF file that llama.cpp's converter makes of it, formats kept.
/// `quantize` may give a tensor (canonical name, format, extents, data) another format.
pub fn gguf_form(
    checkpoint: &Checkpoint,
    quantize: impl Fn(&str, DType, &[usize], &[u8]) -> Option<(DType, Vec<u8>)>,
) -> GgufWriter {
    let config = &checkpoint.config;
    let mut writer = GgufWriter::default();
    describe(&mut writer, config);
    let ids = [("bos", checkpoint.special.bos), ("eos", checkpoint.special.eos.first().copied())];
    for (name, id) in ids.into_iter().filter_map(|(name, id)| Some((name, id?))) {
        writer.set(&format!("tokenizer.ggml.{name}_token_id"), Meta::U32(id));
    }
    if let RopeScaling::Llama3 { .. } = config.rope().expect("a rotary embedding").scaling {
        let factors = llama3_factors(config);
        let data = factors.iter().flat_map(|f| f.to_le_bytes()).collect();
        writer.tensor("rope_freqs.weight", 0, &[factors.len()], data);
    }
    for (name, tensor) in &checkpoint.tensors {
        let mut data = tensor.bytes().into_owned();
        if architecture(config) == "llama" {
            if name.contains("q_proj") {
                data = interleave(&data, config.heads(), tensor.shape[0]);
            } else if name.contains("k_proj") {
                data = interleave(&data, config.kv_heads(), tensor.shape[0]);
            }
        }
        let (dtype, data) = quantize(name, tensor.dtype, &tensor.shape, &data).unwrap_or((tensor.dtype, data));
        writer.tensor(&gguf_name(name), type_id(dtype), &tensor.shape, data);
    }
    writer
}

/// The metadata of a model.
pub fn describe(writer: &mut GgufWriter, config: &ModelConfig) {
    let arch = architecture(config);
    writer.set("general.architecture", arch);
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
    for (key, value) in counts {
        writer.set(&format!("{arch}.{key}"), Meta::U32(value as u32));
    }
    match config {
        ModelConfig::Llama(config) => {
            writer.set(&format!("{arch}.attention.head_count_kv"), Meta::U32(config.kv_heads as u32));
        }
        ModelConfig::Lfm2(config) => {
            // As the converter has it: no key/value heads where there is a convolution.
            let heads = |kind: &LayerKind| if *kind == LayerKind::Attention { config.kv_heads as i32 } else { 0 };
            let counts = config.kinds.iter().map(heads).collect();
            writer.set(&format!("{arch}.attention.head_count_kv"), Meta::I32s(counts));
            writer.set(&format!("{arch}.shortconv.l_cache"), Meta::U32(config.window as u32));
        }
        ModelConfig::Whisper(_) => panic!("GGUF has no form of Whisper"),
    }
    writer.set(&format!("{arch}.rope.freq_base"), Meta::F32(config.rope().expect("a rotary embedding").theta));
    writer.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), Meta::F32(config.rms_eps()));
    if let RopeScaling::Linear { factor } = config.rope().expect("a rotary embedding").scaling {
        writer.set(&format!("{arch}.rope.scaling.type"), "linear");
        writer.set(&format!("{arch}.rope.scaling.factor"), Meta::F32(factor));
    }
}

/// The name that GGUF gives the architecture.
fn architecture(config: &ModelConfig) -> &'static str {
    match config {
        ModelConfig::Llama(config) => match config.architecture {
            LlamaArchitecture::Llama | LlamaArchitecture::Mistral => "llama",
            LlamaArchitecture::Qwen2 => "qwen2",
            LlamaArchitecture::Qwen3 => "qwen3",
        },
        ModelConfig::Lfm2(_) => "lfm2",
        ModelConfig::Whisper(_) => panic!("GGUF has no form of Whisper"),
    }
}

/// The rows of each head from (half, i) order to (i, half): `reshape(heads, 2, n / 2).swapaxes(1, 2)`.
pub fn interleave(data: &[u8], heads: usize, rows: usize) -> Vec<u8> {
    let row_bytes = data.len() / rows;
    let dim = rows / heads;
    let row = |r: usize| &data[r * row_bytes..(r + 1) * row_bytes];
    (0..rows)
        .flat_map(|r| {
            let (head, i) = (r / dim, r % dim);
            row(head * dim + (i % 2) * (dim / 2) + i / 2).iter().copied()
        })
        .collect()
}

/// Llama 3's rotary factors as the converter stores them (formula: `rope_type` llama3 of transformers).
fn llama3_factors(config: &ModelConfig) -> Vec<f32> {
    let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } =
        config.rope().expect("a rotary embedding").scaling
    else {
        return Vec::new();
    };
    let original = original_max_positions as f32;
    (0..config.head_dim() / 2)
        .map(|i| {
            let frequency =
                config.rope().expect("a rotary embedding").theta.powf(-((2 * i) as f32) / config.head_dim() as f32);
            let wave = 2.0 * std::f32::consts::PI / frequency;
            if wave < original / high_freq_factor {
                1.0
            } else if wave > original / low_freq_factor {
                factor
            } else {
                let smooth = (original / wave - low_freq_factor) / (high_freq_factor - low_freq_factor);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        })
        .collect()
}

fn gguf_name(canonical: &str) -> String {
    let names = BTreeMap::from([
        ("embed_tokens", "token_embd"),
        ("norm", "output_norm"),
        ("lm_head", "output"),
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("embedding_norm", "token_embd_norm"),
        ("operator_norm", "attn_norm"),
        ("self_attn.out_proj", "attn_output"),
        ("self_attn.q_layernorm", "attn_q_norm"),
        ("self_attn.k_layernorm", "attn_k_norm"),
        ("conv.in_proj", "shortconv.in_proj"),
        ("conv.conv", "shortconv.conv"),
        ("conv.out_proj", "shortconv.out_proj"),
        ("ffn_norm", "ffn_norm"),
        ("feed_forward.w1", "ffn_gate"),
        ("feed_forward.w3", "ffn_up"),
        ("feed_forward.w2", "ffn_down"),
    ]);
    let (module, kind) = canonical.rsplit_once('.').expect("a canonical name ends in .weight or .bias");
    match module.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, module)) => format!("blk.{layer}.{}.{kind}", names[module]),
        None => format!("{}.{kind}", names[module]),
    }
}
