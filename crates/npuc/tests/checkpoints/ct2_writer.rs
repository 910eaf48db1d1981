//! Writes CTranslate2's containers, and turns Whisper checkpoints into them the way CTranslate2's converter does.

use npuc::DType;
use npuc::front::config::StackSizes;
use npuc::front::{Checkpoint, ModelConfig};

/// A tensor: name, extents, type id, data.
#[derive(Clone, Debug)]
pub struct Variable {
    pub name: Vec<u8>,
    pub dims: Vec<u32>,
    pub type_id: u8,
    pub data: Vec<u8>,
    /// A size to write instead of the right one.
    pub size: Option<u32>,
}

/// What a container is made of.
#[derive(Clone, Debug)]
pub struct Ct2Writer {
    pub version: u32,
    pub spec: String,
    pub revision: u32,
    pub variables: Vec<Variable>,
    pub aliases: Vec<(String, String)>,
    /// Counts of tensors and of aliases to write instead of the right ones.
    pub counts: [Option<u32>; 2],
}

/// The ids of the types.
pub const F32: u8 = 0;
pub const I8: u8 = 1;
pub const I16: u8 = 2;
pub const F16: u8 = 4;
pub const BF16: u8 = 5;

impl Default for Ct2Writer {
    fn default() -> Ct2Writer {
        let (variables, aliases) = (Vec::new(), Vec::new());
        Ct2Writer { version: 6, spec: "WhisperSpec".into(), revision: 3, variables, aliases, counts: [None; 2] }
    }
}

impl Ct2Writer {
    /// Adds a tensor.
    pub fn add(&mut self, name: &str, type_id: u8, dims: &[usize], data: Vec<u8>) {
        let dims = dims.iter().map(|&dim| dim as u32).collect();
        self.variables.push(Variable { name: name.into(), dims, type_id, data, size: None });
    }

    /// The tensor of that name.
    pub fn find(&mut self, name: &str) -> &mut Variable {
        self.variables.iter_mut().find(|v| v.name == name.as_bytes()).expect("the tensor was added")
    }

    /// Removes the tensor of that name.
    pub fn remove(&mut self, name: &str) {
        let before = self.variables.len();
        self.variables.retain(|v| v.name != name.as_bytes());
        assert_eq!(self.variables.len() + 1, before, "{name}");
    }

    /// The whole file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.version.to_le_bytes().to_vec();
        string(&mut out, self.spec.as_bytes());
        out.extend(self.revision.to_le_bytes());
        out.extend(self.counts[0].unwrap_or(self.variables.len() as u32).to_le_bytes());
        for variable in &self.variables {
            string(&mut out, &variable.name);
            out.push(variable.dims.len() as u8);
            variable.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.push(variable.type_id);
            out.extend(variable.size.unwrap_or(variable.data.len() as u32).to_le_bytes());
            out.extend(&variable.data);
        }
        out.extend(self.counts[1].unwrap_or(self.aliases.len() as u32).to_le_bytes());
        for (alias, of) in &self.aliases {
            string(&mut out, alias.as_bytes());
            string(&mut out, of.as_bytes());
        }
        out
    }
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u16 + 1).to_le_bytes());
    out.extend(text);
    out.push(0);
}

/// What the container calls norms and projections of a layer, and what the checkpoint does: projections in one after the other.
const NORMS: [(&str, &str); 3] = [
    ("self_attention/layer_norm", "self_attn_layer_norm"),
    ("attention/layer_norm", "encoder_attn_layer_norm"),
    ("ffn/layer_norm", "final_layer_norm"),
];
const LINEARS: [(&str, &[&str]); 7] = [
    ("self_attention/linear_0", &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    ("self_attention/linear_1", &["self_attn.out_proj"]),
    ("attention/linear_0", &["encoder_attn.q_proj"]),
    ("attention/linear_1", &["encoder_attn.k_proj", "encoder_attn.v_proj"]),
    ("attention/linear_2", &["encoder_attn.out_proj"]),
    ("ffn/linear_0", &["fc1"]),
    ("ffn/linear_1", &["fc2"]),
];

/// The container of a Whisper checkpoint, without its tokenizer.
pub fn ct2_form(checkpoint: &Checkpoint) -> Ct2Writer {
    let ModelConfig::Whisper(config) = &checkpoint.config else { panic!("only Whisper has such a form") };
    let mut form = Form { checkpoint, writer: Ct2Writer::default() };
    for (setting, value) in
        [("activation", 3u8), ("alibi", 0), ("pre_norm", 1), ("scale_embeddings", 0), ("start_from_zero_embedding", 0)]
    {
        form.writer.add(&format!("decoder/{setting}"), I8, &[], vec![value]);
    }
    form.writer.add("decoder/alignment_layer", I16, &[], (-1i16).to_le_bytes().to_vec());
    form.one("decoder/embeddings/weight", "embed_tokens.weight", &[config.vocab, config.hidden]);
    for (side, prefix, sizes) in [("decoder", "", config.decoder), ("encoder", "encoder.", config.encoder)] {
        let StackSizes { layers, heads, .. } = sizes;
        form.writer.add(&format!("{side}/num_heads"), I16, &[], (heads as u16).to_le_bytes().to_vec());
        let positions = if side == "encoder" { config.source_positions } else { config.target_positions };
        let table = format!("{prefix}embed_positions.weight");
        form.one(&format!("{side}/position_encodings/encodings"), &table, &[positions, config.hidden]);
        form.norm(&format!("{side}/layer_norm"), &format!("{prefix}layer_norm"));
        for layer in 0..layers {
            form.layer(&format!("{side}/layer_{layer}"), &format!("{prefix}layers.{layer}"));
        }
    }
    for (conv, inputs) in [("conv1", config.mels), ("conv2", config.hidden)] {
        form.one(&format!("encoder/{conv}/weight"), &format!("encoder.{conv}.weight"), &[config.hidden, inputs, 3]);
        form.one(&format!("encoder/{conv}/bias"), &format!("encoder.{conv}.bias"), &[config.hidden]);
    }
    assert!(config.tied, "the form has no head of its own");
    form.writer.aliases.push(("decoder/projection/weight".into(), "decoder/embeddings/weight".into()));
    form.writer
}

struct Form<'a> {
    checkpoint: &'a Checkpoint,
    writer: Ct2Writer,
}

impl Form<'_> {
    /// Writes one weight under other extents.
    fn one(&mut self, name: &str, canonical: &str, dims: &[usize]) {
        let tensor = &self.checkpoint.tensors[canonical];
        self.writer.add(name, type_id(tensor.dtype), dims, tensor.bytes().into_owned());
    }

    fn norm(&mut self, name: &str, canonical: &str) {
        for (kind, of) in [("gamma", "weight"), ("beta", "bias")] {
            let canonical = format!("{canonical}.{of}");
            let dims = self.checkpoint.tensors[&canonical].shape.to_vec();
            self.one(&format!("{name}/{kind}"), &canonical, &dims);
        }
    }

    fn layer(&mut self, name: &str, canonical: &str) {
        let tensors = &self.checkpoint.tensors;
        for (norm, module) in NORMS {
            if tensors.contains_key(&format!("{canonical}.{module}.weight")) {
                self.norm(&format!("{name}/{norm}"), &format!("{canonical}.{module}"));
            }
        }
        for (linear, modules) in LINEARS {
            let Some(first) = tensors.get(&format!("{canonical}.{}.weight", modules[0])) else { continue };
            let (rows, cols, dtype) = (first.shape[0], first.shape[1], first.dtype);
            let (mut weight, mut bias) = (Vec::new(), Vec::new());
            for module in modules {
                weight.extend_from_slice(&tensors[&format!("{canonical}.{module}.weight")].bytes());
                match tensors.get(&format!("{canonical}.{module}.bias")) {
                    Some(tensor) => bias.extend_from_slice(&tensor.bytes()),
                    // What the converter writes for keys.
                    None => bias.resize(bias.len() + rows * dtype.row_bytes(1).expect("a plain type"), 0),
                }
            }
            let rows = rows * modules.len();
            self.writer.add(&format!("{name}/{linear}/weight"), type_id(dtype), &[rows, cols], weight);
            self.writer.add(&format!("{name}/{linear}/bias"), type_id(dtype), &[rows], bias);
        }
    }
}

/// The id of a format that containers have.
fn type_id(dtype: DType) -> u8 {
    [(DType::F32, F32), (DType::F16, F16), (DType::BF16, BF16)]
        .into_iter()
        .find_map(|(of, id)| (of == dtype).then_some(id))
        .expect("a format of containers")
}
