//! The smallest checkpoints that open, to be broken in one way each.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::ct2_writer::{Ct2Writer, F32, I8, I16};
use super::gguf_writer::{GgufWriter, Meta};

/// A tensor of a small checkpoint.
#[derive(Clone, Debug)]
pub struct Weight {
    pub name: String,
    pub dtype: Dtype,
    pub dims: Vec<usize>,
    pub data: Vec<u8>,
}

impl Weight {
    /// An f32 tensor with small values that differ from each other and from those of other names.
    pub fn new(name: &str, dims: &[usize]) -> Weight {
        let count: usize = dims.iter().product();
        let seed = name.bytes().map(usize::from).sum::<usize>();
        let values = (0..count).map(|i| ((seed + 7 * i) % 61) as f32 / 64.0 - 0.5);
        Weight::of(name, dims, &values.collect::<Vec<f32>>())
    }

    /// An f32 tensor of these values.
    pub fn of(name: &str, dims: &[usize], values: &[f32]) -> Weight {
        let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Weight { name: name.into(), dtype: Dtype::F32, dims: dims.to_vec(), data }
    }
}

/// A Hugging Face folder in the making: hidden 8, ffn 12, 1 layer, 2 heads, 1 key/value head, vocabulary 16.
pub struct HfFolder {
    pub config: Value,
    pub weights: Vec<Weight>,
}

impl Default for HfFolder {
    fn default() -> HfFolder {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 12,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 16,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true,
            "bos_token_id": 1, "eos_token_id": 2,
        });
        let layer = "model.layers.0";
        let weights = vec![
            Weight::new("model.embed_tokens.weight", &[16, 8]),
            Weight::new(&format!("{layer}.input_layernorm.weight"), &[8]),
            Weight::new(&format!("{layer}.self_attn.q_proj.weight"), &[8, 8]),
            Weight::new(&format!("{layer}.self_attn.k_proj.weight"), &[4, 8]),
            Weight::new(&format!("{layer}.self_attn.v_proj.weight"), &[4, 8]),
            Weight::new(&format!("{layer}.self_attn.o_proj.weight"), &[8, 8]),
            Weight::new(&format!("{layer}.post_attention_layernorm.weight"), &[8]),
            Weight::new(&format!("{layer}.mlp.gate_proj.weight"), &[12, 8]),
            Weight::new(&format!("{layer}.mlp.up_proj.weight"), &[12, 8]),
            Weight::new(&format!("{layer}.mlp.down_proj.weight"), &[8, 12]),
            Weight::new("model.norm.weight", &[8]),
        ];
        HfFolder { config, weights }
    }
}

impl HfFolder {
    /// Sets a key of `config.json`.
    pub fn set(mut self, key: &str, value: Value) -> HfFolder {
        self.config[key] = value;
        self
    }

    /// Removes a key of `config.json`.
    pub fn unset(mut self, key: &str) -> HfFolder {
        self.config.as_object_mut().expect("an object").remove(key);
        self
    }

    /// The weight whose name ends so.
    pub fn weight(&mut self, end: &str) -> &mut Weight {
        self.weights.iter_mut().find(|w| w.name.ends_with(end)).expect("a weight of that name")
    }

    /// Writes the folder.
    pub fn write(&self) -> TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join("config.json"), self.config.to_string()).expect("writable");
        fs::write(folder.path().join("model.safetensors"), safetensors_bytes(&self.weights)).expect("writable");
        folder
    }
}

/// A safetensors file of these weights, by the format's own library.
pub fn safetensors_bytes(weights: &[Weight]) -> Vec<u8> {
    let views = weights.iter().map(|weight| {
        let view = TensorView::new(weight.dtype, weight.dims.clone(), &weight.data).expect("sized");
        (weight.name.clone(), view)
    });
    serialize(views, None).expect("serializable")
}

/// A safetensors file with this header text and that many bytes of data.
pub fn raw_safetensors(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.resize(out.len() + data_bytes, 0);
    out
}

/// The GGUF form of the default [`HfFolder`].
pub fn small_gguf() -> GgufWriter {
    let mut writer = GgufWriter::default();
    writer.set("general.architecture", "llama");
    for (key, value) in [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", 8),
        ("feed_forward_length", 12),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ] {
        writer.set(&format!("llama.{key}"), Meta::U32(value));
    }
    writer.set("llama.attention.layer_norm_rms_epsilon", Meta::F32(1e-5));
    let names = [
        "token_embd",
        "blk.0.attn_norm",
        "blk.0.attn_q",
        "blk.0.attn_k",
        "blk.0.attn_v",
        "blk.0.attn_output",
        "blk.0.ffn_norm",
        "blk.0.ffn_gate",
        "blk.0.ffn_up",
        "blk.0.ffn_down",
        "output_norm",
    ];
    for (name, weight) in names.iter().zip(&HfFolder::default().weights) {
        writer.tensor(&format!("{name}.weight"), 0, &weight.dims, weight.data.clone());
    }
    writer
}

/// A small Whisper model in CTranslate2's container: hidden 8, 2 heads, ffn 12, 1 layer each, 3 bands, 4 and 5 positions,
/// vocabulary 16. Biases of keys are zeros.
pub fn small_ct2() -> Ct2Writer {
    let mut writer = Ct2Writer::default();
    for (name, value) in [("activation", 3), ("pre_norm", 1), ("scale_embeddings", 0)] {
        writer.add(&format!("decoder/{name}"), I8, &[], vec![value]);
    }
    let weight = |writer: &mut Ct2Writer, name: &str, dims: &[usize]| {
        writer.add(name, F32, dims, Weight::new(name, dims).data);
    };
    let norm = |writer: &mut Ct2Writer, name: &str| {
        weight(writer, &format!("{name}/gamma"), &[8]);
        weight(writer, &format!("{name}/beta"), &[8]);
    };
    weight(&mut writer, "decoder/embeddings/weight", &[16, 8]);
    for (side, positions) in [("decoder", 5), ("encoder", 4)] {
        writer.add(&format!("{side}/num_heads"), I16, &[], vec![2, 0]);
        weight(&mut writer, &format!("{side}/position_encodings/encodings"), &[positions, 8]);
        norm(&mut writer, &format!("{side}/layer_norm"));
        let attention = [("self_attention", 2), ("attention", 3)];
        for (module, linears) in &attention[..1 + usize::from(side == "decoder")] {
            norm(&mut writer, &format!("{side}/layer_0/{module}/layer_norm"));
            for linear in 0..*linears {
                let name = format!("{side}/layer_0/{module}/linear_{linear}");
                // Queries, keys and values are in one, or keys and values.
                let (parts, keys) = match (*module, linear) {
                    ("self_attention", 0) => (3, Some(1)),
                    ("attention", 1) => (2, Some(0)),
                    _ => (1, None),
                };
                weight(&mut writer, &format!("{name}/weight"), &[8 * parts, 8]);
                weight(&mut writer, &format!("{name}/bias"), &[8 * parts]);
                if let Some(keys) = keys {
                    writer.find(&format!("{name}/bias")).data[32 * keys..32 * (keys + 1)].fill(0);
                }
            }
        }
        norm(&mut writer, &format!("{side}/layer_0/ffn/layer_norm"));
        for (linear, dims) in [("linear_0", [12, 8]), ("linear_1", [8, 12])] {
            weight(&mut writer, &format!("{side}/layer_0/ffn/{linear}/weight"), &dims);
            weight(&mut writer, &format!("{side}/layer_0/ffn/{linear}/bias"), &dims[..1]);
        }
    }
    for (conv, inputs) in [("conv1", 3), ("conv2", 8)] {
        weight(&mut writer, &format!("encoder/{conv}/weight"), &[8, inputs, 3]);
        weight(&mut writer, &format!("encoder/{conv}/bias"), &[8]);
    }
    writer.aliases.push(("decoder/projection/weight".into(), "decoder/embeddings/weight".into()));
    writer
}

/// Writes one file into a folder of its own.
pub fn write_file(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = write_beside(folder.path(), name, bytes);
    (folder, path)
}

/// Writes one file into `folder`.
pub fn write_beside(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).expect("writable");
    path
}
