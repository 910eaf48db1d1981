//! Checkpoints with random weights of a model's real size, for models whose weights cannot be shared.
//!
//! The same configuration, seed and format give the same bytes. Weights are spread so that a computation with
//! them keeps its numbers in range and tells tokens apart.

use std::io::{self, Write};
use std::path::Path;

use half::{bf16, f16};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde_json::{Map, json};

use crate::bundle::staging::Staging;
use crate::diag::{Code, Diagnostic, Result};
use crate::front::{ModelConfig, Source, config_hf, weights};
use crate::model::{self, Role, WeightSpec};
use crate::tensor::{DType, byte_len};

/// A number format that a checkpoint can be made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 8 bits of exponent, 7 of mantissa.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
}

impl Format {
    /// Every format.
    pub const ALL: [Format; 3] = [Format::Bf16, Format::F16, Format::F32];

    /// The format of that name, e.g. `bf16`.
    ///
    /// Errors: [`Code::BadArgument`] with the names that there are.
    pub fn parse(name: &str) -> Result<Format> {
        Format::ALL.into_iter().find(|format| format.dtype().name() == name).ok_or_else(|| {
            Diagnostic::error(Code::BadArgument, "checkpoints cannot be made in this format")
                .need(Format::ALL.map(|format| format.dtype().name()).join(", "))
                .have(name)
                .into()
        })
    }

    /// The number format of the tensors.
    pub const fn dtype(self) -> DType {
        match self {
            Format::Bf16 => DType::BF16,
            Format::F16 => DType::F16,
            Format::F32 => DType::F32,
        }
    }
}

/// The spread of the scores that a synthetic model gives.
const LOGIT_SPREAD: f32 = 1.4;
/// Elements that are made at once.
const BATCH: usize = 1 << 16;

/// Writes `config.json` (as it is) and `model.safetensors` to the folder `dir`, whole or not at all; gives the
/// bytes of the weights. `config_text` is the content of `config_file`, which messages name.
///
/// Matrices are uniform with the variance `1 / fan-in`, gains lie within 0.1 of 1, biases within 0.1 of 0.
///
/// Errors: a configuration that npuc does not build, a folder that is there and is not empty, a failed write.
pub fn write(dir: &Path, config_text: &[u8], config_file: &Path, format: Format, seed: u64) -> Result<u64> {
    let config = config_hf::parse(config_text, config_file)?.model;
    let specs = model::weight_specs(&config);
    let (header, data_bytes) = header(&config, &specs, format, config_file)?;
    let staging = Staging::create(dir, data_bytes)?;
    staging.stream("config.json", |out| out.write_all(config_text))?;
    staging.stream("model.safetensors", |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        specs.iter().enumerate().try_for_each(|(number, spec)| write_weight(out, spec, number, format, seed))
    })?;
    staging.finish()?;
    Ok(data_bytes)
}

/// The header of the safetensors file, padded to whole 8 bytes, and the bytes of the data.
fn header(config: &ModelConfig, specs: &[WeightSpec], format: Format, config_file: &Path) -> Result<(Vec<u8>, u64)> {
    let too_large = |spec: &WeightSpec| {
        Diagnostic::error(Code::BadConfig, "the weights are too large to be stored")
            .file(config_file)
            .subject(&spec.name)
    };
    let mut entries = Map::new();
    let mut end = 0u64;
    for spec in specs {
        let bytes = byte_len(format.dtype(), &spec.shape).and_then(|bytes| u64::try_from(bytes).ok());
        let start = end;
        end = bytes.and_then(|bytes| start.checked_add(bytes)).ok_or_else(|| too_large(spec))?;
        let shape = weights::stored_shape(Source::HuggingFace, spec);
        let entry =
            json!({"dtype": format.dtype().name().to_uppercase(), "shape": shape.0, "data_offsets": [start, end]});
        entries.insert(weights::hf_name(config, &spec.name), entry);
    }
    let mut header = serde_json::Value::from(entries).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok((header, end))
}

fn write_weight(out: &mut dyn Write, spec: &WeightSpec, number: usize, format: Format, seed: u64) -> io::Result<()> {
    let cols = spec.shape.last().copied().unwrap_or(1) as f32;
    // A uniform number in -1..1 has the variance 1/3.
    let (centre, reach) = match spec.role {
        Role::Norm => (1.0, 0.1),
        Role::Bias | Role::Position => (0.0, 0.1),
        Role::Attention | Role::FeedForward | Role::Convolution | Role::Filter | Role::Stem => {
            (0.0, (3.0 / cols).sqrt())
        }
        Role::Embedding | Role::Head => (0.0, LOGIT_SPREAD * (3.0 / cols).sqrt()),
    };
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(number as u64);
    let mut left = spec.shape.elements().unwrap_or(0);
    let mut bytes = Vec::with_capacity(4 * BATCH);
    while left > 0 {
        bytes.clear();
        for _ in 0..left.min(BATCH) {
            // 24 bits, as many as an f32 holds.
            let unit = (random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0;
            let value = centre + reach * unit;
            match format {
                Format::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
                Format::Bf16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
                Format::F32 => bytes.extend(value.to_le_bytes()),
            }
        }
        out.write_all(&bytes)?;
        left -= left.min(BATCH);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::exec::to_f32;
    use crate::front;

    const CONFIG: &str = r#"{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 160, "max_position_embeddings": 64, "tie_word_embeddings": TIED}"#;

    #[test]
    fn checkpoints_open_and_repeat() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, tied: &str, format, seed| {
            let path = dir.path().join(name);
            let text = CONFIG.replace("TIED", tied);
            write(&path, text.as_bytes(), Path::new("config.json"), format, seed).unwrap();
            (front::open(&path).unwrap(), std::fs::read(path.join("model.safetensors")).unwrap())
        };
        for (i, format) in Format::ALL.into_iter().enumerate() {
            for tied in ["true", "false"] {
                let (checkpoint, bytes) = make(&format!("a{i}{tied}"), tied, format, 7);
                assert!(bytes == make(&format!("b{i}{tied}"), tied, format, 7).1);
                assert!(bytes != make(&format!("c{i}{tied}"), tied, format, 8).1);
                assert!(checkpoint.warnings.is_empty());
                assert_eq!(checkpoint.tensors.contains_key("lm_head.weight"), tied == "false");
                for (name, reach) in [
                    ("layers.0.mlp.up_proj.weight", (3.0f32 / 64.0).sqrt()),
                    ("layers.1.mlp.down_proj.weight", (3.0f32 / 96.0).sqrt()),
                    ("layers.1.self_attn.q_proj.bias", 0.1),
                ] {
                    let values = to_f32(&checkpoint.tensors[name]);
                    let spread = (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt();
                    assert!((0.7..1.3).contains(&(spread * 3f32.sqrt() / reach)), "{name}: {spread}");
                    assert!(values.iter().all(|x| x.abs() <= reach * 1.01));
                }
                let gains = to_f32(&checkpoint.tensors["norm.weight"]);
                assert!(gains.iter().all(|x| (0.89..=1.11).contains(x)) && gains.iter().any(|x| *x != 1.0));
            }
        }
    }

    #[test]
    fn what_cannot_be_made_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let text = CONFIG.replace("TIED", "true").replace("Qwen2For", "GptFor");
        let error = write(&out, text.as_bytes(), Path::new("config.json"), Format::F32, 0).unwrap_err();
        assert_eq!(error.diagnostics()[0].code, Code::UnsupportedArchitecture);
        assert!(!out.exists());
        assert_eq!(Format::parse("q8_0").unwrap_err().diagnostics()[0].need.as_deref(), Some("bf16, f16, f32"));
        assert!(Format::ALL.into_iter().all(|format| Format::parse(format.dtype().name()) == Ok(format)));
    }
}
