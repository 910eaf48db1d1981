//! What recipes say of weights, and what is wrong with those that say nothing.

use super::*;
use crate::front::config_hf;

const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 160, "max_position_embeddings": 64, "tie_word_embeddings": false}"#;

fn config() -> ModelConfig {
    config_hf::parse(CONFIG.as_bytes(), Path::new("config.json")).unwrap().model
}

/// The formats of some weights of the model.
fn formats(recipe: &Recipe) -> String {
    let specs = crate::model::weight_specs(&config());
    let names = [
        "embed_tokens.weight",
        "layers.0.self_attn.q_proj.weight",
        "layers.1.mlp.down_proj.weight",
        "layers.1.input_layernorm.weight",
        "lm_head.weight",
    ];
    let format = |name: &str| {
        let spec = specs.iter().find(|spec| spec.name == name).unwrap();
        recipe.format(spec).map_or("stored", DType::name)
    };
    names.map(format).join(" ")
}

#[test]
fn the_last_line_that_holds_gives_the_format() {
    let cases = [
        ("", "stored stored stored stored stored"),
        ("linear = \"int8\"", "stored int8 int8 stored stored"),
        ("base = \"q4_0\"", "q4_0 q4_0 q4_0 stored q4_0"),
        ("base = \"w4a16-lpbq-g32\"\nlm_head = \"int8\"", "stored lpbq4-g32 lpbq4-g32 stored int8"),
        ("base = \"q4_0\"\n\"layers.0.*\" = \"int8\"", "q4_0 int8 q4_0 stored q4_0"),
        ("base = \"q4_0\"\n\"layers.0.*\" = \"int8\"\nlinear = \"q8_0\"", "q4_0 q8_0 q8_0 stored q4_0"),
        ("base = \"q4_0\"\nattention = \"q8_0\"\nembedding = \"stored\"", "stored q8_0 q4_0 stored q4_0"),
        ("\"*.down_proj.weight\" = \"bw4-g16\"\nfeed-forward = \"f16\"", "stored stored f16 stored stored"),
        ("\"*\" = \"int4\"", "int4 int4 int4 stored int4"),
    ];
    for (text, expected) in cases {
        let recipe = Recipe::parse("mine", text).unwrap();
        assert_eq!(formats(&recipe), expected, "{text}");
        let again = Recipe::parse("mine", &recipe.to_toml()).unwrap();
        assert_eq!(formats(&again), expected, "{text} by way of TOML");
        assert_eq!((again.activation, again.kv), (recipe.activation, recipe.kv));
        recipe.check_names(&config()).unwrap();
    }
}

#[test]
fn activations_and_caches() {
    let cases = [
        ("", "float act"),
        ("base = \"w4a16-lpbq-g32\"", "int16 act"),
        ("base = \"w8a16\"\nact = \"u16\"\nkv = \"u8\"", "u16 u8"),
        ("base = \"f16-bw4-g32\"", "f16 act"),
        ("act = \"s16\"\nkv = \"f16\"", "s16 f16"),
        ("base = \"w8a8\"", "u8 act"),
        ("base = \"w8a16\"\nact = \"u8\"\nkv = \"u16\"", "u8 u16"),
    ];
    for (text, expected) in cases {
        let recipe = Recipe::parse("mine", text).unwrap();
        assert_eq!(format!("{} {}", recipe.activation.name(), recipe.kv.name()), expected, "{text}");
    }
}

#[test]
fn what_a_recipe_cannot_say_is_told() {
    let cases = [
        ("linear = \"q5_0\"", "unknown weight format"),
        ("linear = \"int3\"", "unknown weight format"),
        ("act = \"u4\"", "unknown activation"),
        ("kv = \"u4\"", "unknown cache format"),
        ("base = \"w3\"", "does not know this recipe"),
        ("linear = 8", "does not parse"),
        ("linear = \"int8\"\nlinear = \"int4\"", "does not parse"),
        ("linear", "does not parse"),
        ("[layers]\na = \"int8\"", "does not parse"),
    ];
    for (text, expected) in cases {
        let error = Recipe::parse("mine", text).unwrap_err();
        let fault = &error.diagnostics()[0];
        assert_eq!(fault.code, Code::BadRecipe, "{text}");
        assert!(fault.message.contains(expected), "{text}: {fault}");
    }
    let two = Recipe::parse("mine", "act = \"u4\"\nkv = \"u4\"").unwrap_err();
    assert_eq!(two.diagnostics().len(), 2);
    let idle = Recipe::parse("mine", "\"layers.7.*\" = \"int8\"").unwrap().check_names(&config()).unwrap_err();
    assert_eq!(idle.diagnostics()[0].subject.as_deref(), Some("\"layers.7.*\""));
    assert_eq!(Recipe::find("no/such.toml").unwrap_err().diagnostics()[0].code, Code::Unreadable);
}

#[test]
fn every_name_is_a_recipe_and_no_other() {
    let all = names();
    assert!(all.len() > 20);
    for name in &all {
        let recipe = Recipe::named(name).unwrap();
        assert_eq!(&recipe.name, name);
        assert_eq!(Recipe::parse(name, &recipe.to_toml()).unwrap(), recipe);
    }
    for name in ["", "q5_0", "w4a16-lpbq", "w4a16-lpbq-g8", "w4a16-lpbq-g1024", "f16-bw4-g8", "Q4_0"] {
        let error = Recipe::named(name).unwrap_err();
        assert_eq!(error.diagnostics()[0].need.as_deref(), Some(all.join(", ").as_str()), "{name}");
    }
}
