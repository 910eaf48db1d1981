//! Llama checkpoints that the tests make: a tiny one to be changed, and large ones of repeated numbers.

use std::fs;
use std::path::Path;

use serde_json::json;

/// A weight that the tests change: a projection of 96 rows of 64.
pub(crate) const UP: &str = "model.layers.1.mlp.up_proj.weight";
/// The columns of its rows.
pub(crate) const COLS: usize = 64;

/// The extents of a model with as many key/value heads as half its heads.
pub(crate) struct Extents {
    pub(crate) hidden: usize,
    pub(crate) ffn: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) vocab: usize,
    pub(crate) context: usize,
    pub(crate) tied: bool,
}

/// The smallest whose rows hold blocks of 32.
const TINY: Extents = Extents { hidden: 64, ffn: 96, layers: 2, heads: 2, vocab: 64, context: 64, tied: false };

impl Extents {
    /// Names and extents of the weights.
    fn weights(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, ffn) = (self.hidden, self.ffn);
        let mut weights = vec![("model.embed_tokens.weight".to_owned(), vec![self.vocab, hidden])];
        for layer in 0..self.layers {
            let of_layer = [
                ("input_layernorm", vec![hidden]),
                ("self_attn.q_proj", vec![hidden, hidden]),
                ("self_attn.k_proj", vec![hidden / 2, hidden]),
                ("self_attn.v_proj", vec![hidden / 2, hidden]),
                ("self_attn.o_proj", vec![hidden, hidden]),
                ("post_attention_layernorm", vec![hidden]),
                ("mlp.gate_proj", vec![ffn, hidden]),
                ("mlp.up_proj", vec![ffn, hidden]),
                ("mlp.down_proj", vec![hidden, ffn]),
            ];
            weights.extend(of_layer.map(|(name, dims)| (format!("model.layers.{layer}.{name}.weight"), dims)));
        }
        weights.push(("model.norm.weight".into(), vec![hidden]));
        if !self.tied {
            weights.push(("lm_head.weight".into(), vec![self.vocab, hidden]));
        }
        weights
    }

    /// Writes a Hugging Face folder: the name, extents and bytes of every weight, all of one format.
    fn write(&self, folder: &Path, dtype: &str, weights: &[(&str, &[usize], Vec<u8>)]) {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": self.hidden,
            "intermediate_size": self.ffn, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads / 2, "vocab_size": self.vocab, "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": self.tied, "bos_token_id": 1,
            "eos_token_id": 2,
        });
        let (mut header, mut start) = (json!({}), 0);
        for (name, dims, bytes) in weights {
            header[name] = json!({ "dtype": dtype, "shape": dims, "data_offsets": [start, start + bytes.len()] });
            start += bytes.len();
        }
        let header = header.to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        weights.iter().for_each(|(.., bytes)| file.extend(bytes));
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
        fs::write(folder.join("model.safetensors"), file).unwrap();
    }

    /// Writes a model in bf16 whose matrices repeat a few thousand numbers, which takes no time.
    pub(crate) fn write_repeated(&self, folder: &Path) {
        let mut numbers = numbers();
        let pattern: Vec<u8> =
            (0..4093).flat_map(|_| ((numbers() * 0.2).to_bits() >> 16).to_le_bytes()[..2].to_vec()).collect();
        let one = (1f32.to_bits() >> 16).to_le_bytes()[..2].to_vec();
        let weights = self.weights();
        let filled = weights.iter().map(|(name, dims)| {
            let bytes = 2 * dims.iter().product::<usize>();
            let source = if dims.len() > 1 { &pattern } else { &one };
            (name.as_str(), dims.as_slice(), source.iter().copied().cycle().take(bytes).collect())
        });
        self.write(folder, "BF16", &filled.collect::<Vec<_>>());
    }
}

/// Numbers between -0.2 and 0.2, the same ones each time.
fn numbers() -> impl FnMut() -> f32 {
    let mut state = 1u32;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / (1u32 << 24) as f32 - 0.5) * 0.4
    }
}

/// A checkpoint in the making: hidden 64, ffn 96, 2 layers, vocabulary 64, own head, f32.
pub(crate) struct Tiny(Vec<(String, Vec<usize>, Vec<f32>)>);

impl Tiny {
    /// Gains of one, and matrices of numbers between -0.2 and 0.2.
    pub(crate) fn new() -> Tiny {
        let mut next = numbers();
        let filled = TINY.weights().into_iter().map(|(name, dims)| {
            let count: usize = dims.iter().product();
            let values = (0..count).map(|_| if dims.len() > 1 { next() } else { 1.0 }).collect();
            (name, dims, values)
        });
        Tiny(filled.collect())
    }

    /// The elements of a weight.
    pub(crate) fn values(&mut self, name: &str) -> &mut [f32] {
        &mut self.0.iter_mut().find(|(known, ..)| known == name).unwrap().2
    }

    /// Every element of every matrix but the embedding table.
    pub(crate) fn matrices(&mut self) -> impl Iterator<Item = &mut f32> {
        let matrices = self.0.iter_mut().filter(|(name, dims, _)| dims.len() > 1 && !name.contains("embed_tokens"));
        matrices.flat_map(|(.., values)| values)
    }

    /// Writes the checkpoint as a Hugging Face folder.
    pub(crate) fn write(&self, folder: &Path) {
        let bytes = |values: &Vec<f32>| values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let weights = self.0.iter().map(|(name, dims, values)| (name.as_str(), dims.as_slice(), bytes(values)));
        TINY.write(folder, "F32", &weights.collect::<Vec<_>>());
    }
}
