//! Plans: what is legal, what is replaced and told, what passes through, and what a head of its own costs.

use std::path::PathBuf;
use std::sync::Arc;

use super::*;
use crate::front::{Source, SpecialTokens, config_hf};
use crate::quant::hadamard::Rotation;
use crate::target;
use crate::tensor::Tensor;

/// A model of one layer with 48 or 64 inputs, all weights stored as `dtype`.
fn checkpoint(hidden: usize, tied: bool, dtype: DType) -> Checkpoint {
    model_of([1, hidden, 64], tied, dtype)
}

/// A model of so many layers, inputs and inner rows, all matrices stored as `dtype`.
pub(in crate::quant) fn model_of([layers, hidden, ffn]: [usize; 3], tied: bool, dtype: DType) -> Checkpoint {
    let text = format!(
        r#"{{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": {hidden},
        "intermediate_size": {ffn}, "num_hidden_layers": {layers}, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 128, "max_position_embeddings": 64, "tie_word_embeddings": {tied}}}"#
    );
    described(&text, dtype)
}

/// The model of a `config.json`, all matrices stored as `dtype`.
fn described(text: &str, dtype: DType) -> Checkpoint {
    let config = config_hf::parse(text.as_bytes(), std::path::Path::new("config.json")).unwrap().model;

    let tensors = model::weight_specs(&config).into_iter().map(|spec| {
        let dtype = if spec.shape.len() == 1 { DType::F32 } else { dtype };
        let bytes: Arc<[u8]> = vec![0; byte_len(dtype, &spec.shape).unwrap()].into();
        (spec.name, Tensor::in_memory(dtype, spec.shape, bytes).unwrap())
    });
    Checkpoint {
        path: PathBuf::from("model"),
        source: Source::HuggingFace,
        tensors: tensors.collect(),
        config,
        special: SpecialTokens::default(),
        tokenizer: None,
        warnings: Vec::new(),
    }
}

fn planned(checkpoint: &Checkpoint, recipe: &str, destination: &Destination, strict: bool) -> Result<Plan> {
    Plan::new(
        checkpoint,
        &Folds::none(&checkpoint.config),
        &Recipe::parse("mine", recipe).unwrap(),
        destination,
        strict,
    )
}

/// The formats of the query projection, the down projection, the table and the head, and the notes' codes.
fn said(plan: &Plan) -> String {
    let names = ["layers.0.self_attn.q_proj.weight", "layers.0.mlp.down_proj.weight", llama::EMBEDDING, llama::HEAD];
    let formats = names.map(|name| plan.find(name).map_or("-", |weight| weight.to.name()));
    let mut codes: Vec<&str> = plan.notes.iter().map(|note| note.code.name()).collect();
    codes.dedup();
    format!("{} {}", formats.join(" "), codes.join(",")).trim().to_owned()
}

#[test]
fn formats_by_destination() {
    let host = || Destination::Target(target::host());
    let chip = |name| Destination::Target(target::find(name).unwrap());
    let cases = [
        (64, true, "base = \"q4_0\"", host(), "q4_0 q4_0 q4_0 -"),
        (64, true, "base = \"q4_0\"\nlm_head = \"q8_0\"", host(), "q4_0 q4_0 q4_0 q8_0 tied-head"),
        (64, false, "base = \"q4_0\"\nlm_head = \"q8_0\"", host(), "q4_0 q4_0 q4_0 q8_0"),
        (64, true, "base = \"w8a16\"", host(), "int8 int8 f16 int8 tied-head"),
        (64, true, "base = \"w4a16\"", chip("genio-720"), "int4 int4 f16 int4 tied-head"),
        // 48 inputs are no whole blocks of 32: the next format with at least 4.5 bits that is legal.
        (48, false, "base = \"q4_0\"", Destination::Gguf, "f16 q4_0 f16 f16 group-size"),
        (48, false, "linear = \"lpbq4-g32\"", host(), "lpbq4-g16 lpbq4-g32 f16 f16 group-size"),
        (48, false, "linear = \"bw4-g64\"", host(), "int4 bw4-g64 f16 f16 group-size"),
        // GGUF has no whole numbers a channel.
        (64, false, "linear = \"int8\"", Destination::Gguf, "q8_0 q8_0 f16 f16 unsupported-format"),
        (64, false, "linear = \"lpbq4-g32\"", Destination::Gguf, "q4_1 q4_1 f16 f16 unsupported-format"),
        // The MDLA takes one scale an output.
        (
            64,
            false,
            "act = \"s16\"\n\"*\" = \"int8\"\nlinear = \"lpbq4-g32\"",
            chip("genio-720"),
            "int8 int8 int8 int8 unsupported-format",
        ),
    ];
    for (hidden, tied, recipe, destination, expected) in cases {
        let checkpoint = checkpoint(hidden, tied, DType::F16);
        let plan = planned(&checkpoint, recipe, &destination, false).unwrap();
        assert_eq!(said(&plan), expected, "{recipe} for {destination:?}");
        assert_eq!(plan.config.tied(), plan.find(llama::HEAD).is_none());
        let bytes: u64 = plan.weights.iter().map(|weight| byte_len(weight.to, &weight.shape).unwrap() as u64).sum();
        assert_eq!(plan.bytes(), bytes);
        let replaced = plan.notes.iter().any(|note| note.code != Code::TiedHead);
        assert_eq!(planned(&checkpoint, recipe, &destination, true).is_err(), replaced, "{recipe}, strict");
    }
}

/// No rule of a recipe names the convolutions of Whisper's stem, and every target takes them after all.
#[test]
fn stems_are_what_the_target_takes() {
    let text = r#"{"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "d_model": 64,
        "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_source_positions": 16, "max_target_positions": 16,
        "num_mel_bins": 80, "vocab_size": 128, "decoder_start_token_id": 4, "eos_token_id": 3}"#;
    let cases = [
        ("sm8650", "f16", DType::F32, "f16"),
        ("sm8650", "f16", DType::F16, "f16"),
        ("sm8650", "w8a16", DType::F32, "int8"),
        ("sm8650", "w8a16", DType::F16, "int8"),
        ("sm8650", "w4a16", DType::F32, "int8"),
        ("sm8650", "f16-bw4-g32", DType::F32, "f16"),
        ("sl2610", "bf16", DType::F32, "bf16"),
        ("iree-cpu", "q8_0", DType::F32, "f32"),
        ("iree-cpu", "q8_0", DType::F16, "f16"),
    ];
    for (chip, recipe, stored, expected) in cases {
        let destination = Destination::Target(target::find(chip).unwrap());
        let plan = planned(&described(text, stored), &format!("base = \"{recipe}\""), &destination, false).unwrap();
        let stems = ["encoder.conv1.weight", "encoder.conv2.weight"].map(|name| plan.find(name).unwrap().to.name());
        assert_eq!(stems, [expected; 2], "{recipe} of {stored} for {chip}");
    }
}

/// Where a target lacks what is stored, no level is lost: five bits with an offset do not become four with more scales.
#[test]
fn what_a_target_lacks_keeps_its_levels() {
    for (chip, recipe, expected) in [
        ("sm8650", "q4_1", "q4_1"),
        ("sm8650", "q5_0", "int8"),
        ("sm8650", "q5_1", "int8"),
        ("sm8650", "q8_0", "int8"),
        ("mali-valhall", "q5_1", "q8_0"),
    ] {
        let stored = DType::from_name(recipe).unwrap();
        let destination = Destination::Target(target::find(chip).unwrap());
        let plan = planned(&checkpoint(64, true, stored), "base = \"stored\"", &destination, false).unwrap();
        let weight = plan.find("layers.0.mlp.down_proj.weight").unwrap();
        assert_eq!((weight.from, weight.to.name()), (stored, expected), "{recipe} for {chip}");
    }
}

#[test]
fn what_is_stored_in_a_legal_format_stays() {
    for dtype in [DType::Q4_1, DType::Q4_0, DType::Q8_0, DType::F16] {
        let checkpoint = checkpoint(64, true, dtype);
        for destination in [Destination::Target(target::host()), Destination::Gguf] {
            let plan = planned(&checkpoint, "base = \"stored\"", &destination, true).unwrap();
            assert!(plan.weights.iter().all(|weight| weight.to == weight.from), "{dtype}");
            let plan = planned(&checkpoint, &format!("base = \"{dtype}\""), &destination, true).unwrap();
            assert!(plan.weights.iter().all(|weight| weight.to == weight.from), "{dtype}");
        }
    }
}

#[test]
fn what_is_rotated_cannot_stay_in_blocks_and_says_so() {
    for (dtype, becomes) in [(DType::Q4_0, Some(DType::F16)), (DType::Q8_0, Some(DType::F16)), (DType::F16, None)] {
        let checkpoint = checkpoint(64, true, dtype);
        let (residual, values) = (Arc::new(Rotation::of(64, 0)), Arc::new(Rotation::of(16, 0)));
        let folds = Folds::rotated(&checkpoint.config, &residual, &values);
        let plan = |strict| {
            let recipe = Recipe::named("stored").unwrap();
            Plan::new(&checkpoint, &folds, &recipe, &Destination::Target(target::host()), strict)
        };
        let loose = plan(false).unwrap();
        let matrices = || loose.weights.iter().filter(|weight| weight.shape.len() > 1);
        assert!(matrices().all(|weight| weight.to == becomes.unwrap_or(dtype)), "{dtype}");
        let told = loose.notes.iter().filter(|note| note.code == Code::UnsupportedFormat).count();
        assert_eq!(told, becomes.map_or(0, |_| matrices().count()), "{dtype}");
        assert_eq!(plan(true).is_err(), becomes.is_some(), "{dtype}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let genio = || Destination::Target(target::find("genio-720").unwrap());
    let mali = Destination::Target(target::find("mali-valhall").unwrap());
    let cases = [
        ("base = \"w8a16\"", Destination::Gguf, Code::UnsupportedFormat),
        ("base = \"w8a16\"\nact = \"u16\"", genio(), Code::UnsupportedFormat),
        ("base = \"w8a16\"", mali, Code::UnsupportedFormat),
        ("base = \"w8a8\"", Destination::Gguf, Code::UnsupportedFormat),
        ("base = \"w8a8\"", Destination::Target(target::find("sm8650").unwrap()), Code::UnsupportedFormat),
        ("\"layers.3.*\" = \"int8\"", genio(), Code::BadRecipe),
    ];
    for (recipe, destination, code) in cases {
        let error = planned(&checkpoint(64, false, DType::F16), recipe, &destination, false).unwrap_err();
        assert!(error.diagnostics().iter().all(|fault| fault.code == code), "{recipe}: {error}");
    }
}
