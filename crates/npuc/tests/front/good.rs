//! Good checkpoints open with the right configuration, weights, special ids and tokenizer.

use std::collections::BTreeSet;
use std::fs;

use npuc::DType;
use npuc::front::config::{LayerKind, Lfm2Config, LlamaArchitecture, LlamaConfig, Rope, RopeScaling};
use npuc::front::{Checkpoint, ModelConfig, Source};
use npuc::model::weight_specs;

use super::checkpoints::fixture::fixture;
use super::checkpoints::gguf_writer::gguf_form;
use super::checkpoints::open_good;
use super::checkpoints::small::write_file;

fn llama(checkpoint: &Checkpoint) -> &LlamaConfig {
    let ModelConfig::Llama(config) = &checkpoint.config else { panic!("another family") };
    config
}

/// The configuration of the Llama fixtures, whose config.json differ as the arguments say.
fn fixture_config(hidden: usize, heads: usize, theta: f32, scaling: RopeScaling, tied: bool) -> LlamaConfig {
    LlamaConfig {
        architecture: LlamaArchitecture::Llama,
        hidden,
        ffn: 176,
        layers: 3,
        heads,
        kv_heads: 2,
        head_dim: 16,
        vocab: 512,
        max_positions: 131072,
        rms_eps: 1e-5,
        rope: Rope { theta, scaling },
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: false,
        tied,
    }
}

const LLAMA3: RopeScaling =
    RopeScaling::Llama3 { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_positions: 8192 };

fn fixtures() -> [(&'static str, LlamaConfig, DType); 3] {
    [
        ("llama-gqa3-f32", fixture_config(96, 6, 1e5, RopeScaling::None, true), DType::F32),
        ("llama-untied-sharded-f16", fixture_config(64, 4, 5e5, RopeScaling::None, false), DType::F16),
        ("llama3-tied-bf16", fixture_config(64, 4, 5e5, LLAMA3, true), DType::BF16),
    ]
}

#[test]
fn fixtures_open() {
    for (name, config, dtype) in fixtures() {
        let Some(folder) = fixture(name) else { return };
        let checkpoint = open_good(&folder);
        assert_eq!(checkpoint.source, Source::HuggingFace, "{name}");
        assert_eq!(llama(&checkpoint), &config, "{name}");
        assert_eq!(checkpoint.special.bos, Some(0), "{name}");
        assert_eq!(checkpoint.special.eos, BTreeSet::from([1, 2]), "{name}");
        assert!(checkpoint.tokenizer.is_none() && checkpoint.warnings.is_empty(), "{name}: {:?}", checkpoint.warnings);
        let specs = weight_specs(&checkpoint.config);
        assert_eq!(checkpoint.tensors.len(), specs.len(), "{name}");
        for spec in specs {
            let tensor = &checkpoint.tensors[&spec.name];
            assert_eq!((&tensor.shape, tensor.dtype), (&spec.shape, dtype), "{name}: {}", spec.name);
        }
    }
}

/// The weights are the bytes that the format's own library finds.
#[test]
fn fixture_weights_are_those_of_the_safetensors_library() {
    let Some(folder) = fixture("llama-gqa3-f32") else { return };
    let checkpoint = open_good(&folder);
    let file = fs::read(folder.join("model.safetensors")).expect("readable");
    let library = safetensors::SafeTensors::deserialize(&file).expect("a good file");
    for (name, tensor) in &checkpoint.tensors {
        let view = library.tensor(&format!("model.{name}")).expect("listed");
        assert_eq!((view.shape(), view.data()), (&tensor.shape[..], &tensor.bytes()[..]), "{name}");
    }
}

/// The GGUF form of a fixture, with its query and key rows interleaved, gives the same weights back.
#[test]
fn gguf_forms_of_the_fixtures_open_to_the_same_weights() {
    for (name, mut config, _) in fixtures() {
        let Some(folder) = fixture(name) else { return };
        let hf = open_good(&folder);
        let (_folder, path) = write_file("m.gguf", &gguf_form(&hf, |_, _, _, _| None).bytes());
        let gguf = open_good(&path);
        assert_eq!(gguf.source, Source::Gguf, "{name}");
        if config.rope.scaling == LLAMA3 {
            let RopeScaling::Factors { factors } = &llama(&gguf).rope.scaling else {
                panic!("{name}: {:?}", llama(&gguf).rope.scaling)
            };
            assert_eq!((factors.len(), factors[0], factors[7]), (8, 1.0, 32.0), "{name}");
            config.rope.scaling = RopeScaling::Factors { factors: factors.clone() };
        }
        assert_eq!(llama(&gguf), &config, "{name}");
        assert_eq!(gguf.special.bos, Some(0), "{name}");
        assert_eq!(gguf.special.eos, BTreeSet::from([1]), "{name}");
        assert!(gguf.warnings.is_empty(), "{name}: {:?}", gguf.warnings);
        assert_eq!(gguf.tensors.len(), hf.tensors.len(), "{name}");
        for (tensor_name, tensor) in &hf.tensors {
            let other = &gguf.tensors[tensor_name];
            assert_eq!((&tensor.shape, tensor.dtype), (&other.shape, other.dtype), "{name}: {tensor_name}");
            assert!(tensor.bytes() == other.bytes(), "{name}: {tensor_name} differs");
        }
    }
}

/// What the lfm2 fixtures say of themselves.
fn lfm2_config(heads: usize) -> Lfm2Config {
    use LayerKind::{Attention, Convolution};
    Lfm2Config {
        hidden: 64,
        ffn: 192,
        kinds: vec![Convolution, Convolution, Attention, Convolution, Attention, Convolution],
        heads,
        kv_heads: 2,
        head_dim: 64 / heads,
        vocab: 640,
        max_positions: 2048,
        rms_eps: 1e-5,
        rope: Rope { theta: 1e6, scaling: RopeScaling::None },
        window: 3,
        conv_bias: false,
        tied: true,
    }
}

/// The fixtures of LFM2 and their GGUF forms give the same configuration and weights.
#[test]
fn lfm2_opens_from_both_forms() {
    for (name, heads, dtype) in [("lfm2-f32", 4, DType::F32), ("lfm2-bf16", 8, DType::BF16)] {
        let Some(folder) = fixture(name) else { return };
        let hf = open_good(&folder);
        assert!(hf.warnings.is_empty(), "{name}: {:?}", hf.warnings);
        let (_folder, path) = write_file("m.gguf", &gguf_form(&hf, |_, _, _, _| None).bytes());
        let gguf = open_good(&path);
        assert!(gguf.warnings.is_empty(), "{name}: {:?}", gguf.warnings);
        let specs = weight_specs(&hf.config);
        for checkpoint in [&hf, &gguf] {
            assert_eq!(checkpoint.config, ModelConfig::Lfm2(lfm2_config(heads)), "{name} {:?}", checkpoint.source);
            assert_eq!(checkpoint.tensors.len(), specs.len(), "{name}");
            for spec in &specs {
                let (have, stored) = (&checkpoint.tensors[&spec.name], &hf.tensors[&spec.name]);
                assert_eq!((&have.shape, have.dtype), (&spec.shape, dtype), "{name}: {}", spec.name);
                assert!(have.bytes() == stored.bytes(), "{name}: {}", spec.name);
            }
        }
    }
}
