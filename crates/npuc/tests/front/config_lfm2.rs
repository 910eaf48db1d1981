//! LFM2: what `config.json` and GGUF metadata say of it, in the forms of today and of the first checkpoints, and what is refused.

use std::fs;
use std::path::Path;

use npuc::front::config::{LayerKind, Lfm2Config, RopeScaling};
use npuc::front::{ModelConfig, config_hf};
use serde_json::{Value, json};

use super::checkpoints::gguf_writer::{GgufWriter, Meta};
use super::checkpoints::small::write_file;
use super::checkpoints::{open_bad, open_good};

use LayerKind::{Attention, Convolution};

/// A small config.json with these keys set; null is written, `"-"` takes the key out.
fn config_json(keys: Value) -> Value {
    let mut config = json!({"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 16});
    let object = config.as_object_mut().expect("an object");
    for (key, value) in keys.as_object().expect("an object") {
        if value == "-" {
            object.remove(key);
        } else {
            object.insert(key.clone(), value.clone());
        }
    }
    config
}

fn good(keys: Value) -> Lfm2Config {
    let parsed = config_hf::parse(config_json(keys.clone()).to_string().as_bytes(), Path::new("config.json"));
    match parsed.unwrap_or_else(|e| panic!("{keys} must be read, but:\n{e}")).model {
        ModelConfig::Lfm2(config) => config,
        other @ (ModelConfig::Llama(_) | ModelConfig::Whisper(_)) => panic!("{keys} is {other:?}"),
    }
}

fn check(keys: Value, expected: &str) {
    match config_hf::parse(config_json(keys.clone()).to_string().as_bytes(), Path::new("config.json")) {
        Ok(config) => panic!("{keys} must be refused, but gives {config:?}"),
        Err(e) => assert_eq!(e.to_string(), expected.trim_start(), "{keys}"),
    }
}

#[test]
fn defaults_are_those_of_transformers() {
    let config = good(json!({"num_key_value_heads": "-", "num_attention_heads": 16}));
    let expected = Lfm2Config {
        hidden: 32,
        // Two thirds of 48, up to a multiple of 256.
        ffn: 256,
        kinds: vec![Attention; 4],
        heads: 16,
        kv_heads: 8,
        head_dim: 2,
        vocab: 16,
        max_positions: 128_000,
        rms_eps: 1e-5,
        rope: npuc::front::config::Rope { theta: 1e6, scaling: RopeScaling::None },
        window: 3,
        conv_bias: false,
        tied: true,
    };
    assert_eq!(config, expected);
}

#[test]
fn kinds_of_layers() {
    for (keys, kinds) in [
        (json!({"layer_types": ["conv", "conv", "full_attention", "conv"]}), "ccac"),
        (json!({"full_attn_idxs": [2]}), "ccac"),
        (json!({"full_attn_idxs": [3, 0], "layer_types": null}), "acca"),
        (json!({"full_attn_idxs": []}), "cccc"),
        (json!({"layer_types": ["conv", "full_attention", "conv", "conv"], "full_attn_idxs": [1]}), "cacc"),
        (json!({"layer_types": null, "full_attn_idxs": null}), "aaaa"),
    ] {
        let letter = |kind: &LayerKind| if *kind == Attention { 'a' } else { 'c' };
        assert_eq!(good(keys.clone()).kinds.iter().map(letter).collect::<String>(), kinds, "{keys}");
    }
}

#[test]
fn feed_forward_widths() {
    for (keys, ffn) in [
        (json!({"block_auto_adjust_ff_dim": false}), 48),
        (json!({"block_ff_dim": 96, "block_auto_adjust_ff_dim": false}), 96),
        (json!({"block_ff_dim": 6656}), 4608),
        (json!({"block_ff_dim": 12288, "block_ffn_dim_multiplier": null}), 8192),
        (json!({"block_ff_dim": 100, "block_multiple_of": 1}), 66),
        (json!({"block_ff_dim": 100, "block_multiple_of": 1, "block_ffn_dim_multiplier": 1.5}), 99),
        // 0.7 in 32 bits would give 7 times 10 and round down to 69.
        (json!({"block_ff_dim": 150, "block_multiple_of": 1, "block_ffn_dim_multiplier": 0.7}), 70),
        (json!({"block_ff_dim": 120, "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.1}), 96),
    ] {
        assert_eq!(good(keys.clone()).ffn, ffn, "{keys}");
    }
}

#[test]
fn older_keys_go_first() {
    let old = json!({"hidden_size": "-", "block_dim": 32, "conv_dim": 32, "intermediate_size": "-", "block_ff_dim": 384,
        "tie_embedding": false, "tie_word_embeddings": true, "theta": 5e5, "norm_eps": 1e-6, "conv_L_cache": 4, "conv_bias": true});
    let config = good(old);
    assert_eq!((config.hidden, config.ffn, config.tied, config.rope.theta), (32, 256, false, 5e5));
    assert_eq!((config.rms_eps, config.window, config.conv_bias), (1e-6, 4, true));
    assert_eq!(good(json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})).rope.theta, 5e5);
    assert!(!good(json!({"tie_word_embeddings": false})).tied);
}

/// The configuration of the 350M as it was published first.
#[test]
fn the_350m() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/configs/lfm2-350m.json");
    let model = config_hf::parse(&fs::read(&path).unwrap(), &path).unwrap().model;
    assert_eq!((model.hidden(), model.ffn(), model.layers(), model.history()), (1024, 4608, 16, 2));
    let attention: Vec<usize> = (0..16).filter(|&layer| model.kind(layer) == Attention).collect();
    assert_eq!(attention, [2, 5, 8, 10, 12, 14]);
    assert_eq!((model.heads(), model.kv_heads(), model.head_dim(), model.vocab()), (16, 8, 64, 65536));
    assert!(model.tied() && model.padding_stays_zero());
    let matrices = npuc::model::weight_specs(&model);
    assert_eq!(matrices.iter().filter(|spec| spec.role.is_projection()).count(), 92);
    assert_eq!(matrices.iter().map(|spec| spec.shape.elements().unwrap()).sum::<usize>(), 354_483_968);
}

#[test]
fn bad_values() {
    check(
        json!({"layer_types": ["conv", "full_attention"]}),
        "error[bad-config]: there is not one type for each layer\n  --> config.json: layer_types\n  = need: num_hidden_layers = 4 of them\n  = have: 2",
    );
    check(
        json!({"layer_types": ["conv", "conv", "mamba", "conv"]}),
        "error[unsupported-architecture]: a kind of layer is not supported\n  --> config.json: layer_types\n  = need: full_attention or conv\n  = have: \"mamba\"",
    );
    check(
        json!({"layer_types": "conv"}),
        "error[bad-config]: the value is malformed\n  --> config.json: layer_types\n  = need: a list\n  = have: the text \"conv\"",
    );
    check(
        json!({"layer_types": ["conv", "conv", "full_attention", "conv"], "full_attn_idxs": [1]}),
        "error[bad-config]: layer_types and full_attn_idxs name different layers\n  --> config.json: full_attn_idxs\n  \
         = have: layer 1 is conv by layer_types\n  = help: remove the one that is not the model's",
    );
    for (value, shown) in [(json!(4), "4"), (json!(-1), "-1"), (json!("two"), "\"two\""), (json!(1.5), "1.5")] {
        check(
            json!({"full_attn_idxs": [1, value]}),
            &format!(
                "error[bad-config]: a layer with attention is not a layer of the model\n  --> config.json: full_attn_idxs\n  \
                 = need: whole numbers below num_hidden_layers = 4\n  = have: {shown}"
            ),
        );
    }
    for window in [0, 1, 1 << 20] {
        check(
            json!({"conv_L_cache": window}),
            &format!(
                "error[bad-config]: the value is malformed\n  --> config.json: conv_L_cache\n  = need: a whole number from 2 to 1024\n  \
                 = have: {window}"
            ),
        );
    }
    check(
        json!({"conv_dim": 64}),
        "error[unsupported-architecture]: layers of another width than the model are not supported\n  --> config.json: conv_dim\n  \
         = need: hidden_size = 32\n  = have: 64",
    );
    check(
        json!({"block_ffn_dim_multiplier": 1e6}),
        "error[bad-config]: the adjusted width of the feed-forward layers is not possible\n  --> config.json: intermediate_size\n  \
         = need: 1 to 16777216\n  = have: 32000000, from intermediate_size = 48, a factor of 1000000 and multiples of 256",
    );
    check(
        json!({"num_key_value_heads": 3}),
        "error[bad-config]: the heads do not divide into whole groups\n  --> config.json: num_key_value_heads\n  \
         = need: a divisor of num_attention_heads = 4\n  = have: 3",
    );
    check(
        json!({"num_hidden_layers": "-", "vocab_size": 0, "hidden_size": "-"}),
        "error[bad-config]: a key that the model needs is absent\n  --> config.json: hidden_size\n\
         error[bad-config]: a key that the model needs is absent\n  --> config.json: num_hidden_layers\n\
         error[bad-config]: the value is malformed\n  --> config.json: vocab_size\n  = need: a whole number from 1 to 268435456\n  = have: 0",
    );
}

/// A GGUF file of two layers, the second with attention, in which nothing but the embedding table is stored.
fn gguf() -> GgufWriter {
    let mut writer = GgufWriter::default();
    writer.set("general.architecture", "lfm2");
    for (key, value) in [
        ("block_count", 2),
        ("context_length", 64),
        ("embedding_length", 8),
        ("feed_forward_length", 12),
        ("attention.head_count", 2),
        ("shortconv.l_cache", 3),
        ("vocab_size", 16),
    ] {
        writer.set(&format!("lfm2.{key}"), Meta::U32(value));
    }
    writer.set("lfm2.attention.head_count_kv", Meta::I32s(vec![0, 1]));
    writer.set("lfm2.attention.layer_norm_rms_epsilon", Meta::F32(1e-5));
    let vectors =
        ["attn_norm", "ffn_norm"].into_iter().flat_map(|norm| [0, 1].map(|n| (format!("blk.{n}.{norm}"), vec![8])));
    let feeds = [("ffn_gate", [12, 8]), ("ffn_up", [12, 8]), ("ffn_down", [8, 12])];
    let feeds = feeds.into_iter().flat_map(|(name, dims)| [0, 1].map(|n| (format!("blk.{n}.{name}"), dims.to_vec())));
    let mixed = [("attn_q", [8, 8]), ("attn_k", [4, 8]), ("attn_v", [4, 8]), ("attn_output", [8, 8])];
    let mixed = mixed.into_iter().map(|(name, dims)| (format!("blk.1.{name}"), dims.to_vec()));
    let norms = ["attn_q_norm", "attn_k_norm"].map(|name| (format!("blk.1.{name}"), vec![4]));
    let conv = [("in_proj", [24, 8]), ("conv", [8, 3]), ("out_proj", [8, 8])];
    let conv = conv.into_iter().map(|(name, dims)| (format!("blk.0.shortconv.{name}"), dims.to_vec()));
    let outer = [("token_embd".to_owned(), vec![16, 8]), ("token_embd_norm".to_owned(), vec![8])];
    for (name, dims) in outer.into_iter().chain(vectors).chain(feeds).chain(mixed).chain(norms).chain(conv) {
        let count: usize = dims.iter().product();
        let data = (0..count).flat_map(|i| (i as f32).to_le_bytes()).collect();
        writer.tensor(&format!("{name}.weight"), 0, &dims, data);
    }
    writer
}

#[test]
fn gguf_metadata() {
    let (_folder, path) = write_file("m.gguf", &gguf().bytes());
    let checkpoint = open_good(&path);
    let ModelConfig::Lfm2(config) = &checkpoint.config else { panic!("{:?}", checkpoint.config) };
    assert_eq!((&config.kinds, config.kv_heads, config.window), (&vec![Convolution, Attention], 1, 3));
    assert_eq!((config.tied, config.conv_bias, config.ffn, config.head_dim), (true, false, 12, 4));
    assert_eq!(*checkpoint.tensors["layers.0.conv.conv.weight"].shape, [8, 3]);
    assert!(checkpoint.warnings.is_empty(), "{:?}", checkpoint.warnings);
}

#[test]
fn bad_gguf_metadata() {
    type Change = fn(&mut GgufWriter);
    let kv = "lfm2.attention.head_count_kv";
    let cases: [(Change, String); 6] = [
        (
            |w| w.set("lfm2.attention.head_count_kv", Meta::I32s(vec![0, 1, 0])),
            format!("error[bad-config]: there is not one head count for each layer\n  --> DIR/m.gguf: {kv}\n  = need: block_count = 2 of them\n  = have: 3"),
        ),
        (
            |w| w.set("lfm2.attention.head_count_kv", Meta::I32s(vec![2, 1])),
            format!("error[unsupported-architecture]: layers with different head counts are not supported\n  --> DIR/m.gguf: {kv}\n  = need: 2, or 0 where there is a convolution\n  = have: 1"),
        ),
        (
            |w| w.set("lfm2.attention.head_count_kv", Meta::I32s(vec![0, -1])),
            format!("error[bad-config]: the value is malformed\n  --> DIR/m.gguf: {kv}\n  = need: a whole number from 1 to 65536\n  = have: -1"),
        ),
        (
            |w| w.set("lfm2.shortconv.l_cache", Meta::U32(0)),
            "error[bad-config]: the value is malformed\n  --> DIR/m.gguf: lfm2.shortconv.l_cache\n  = need: a whole number from 2 to 1024\n  = have: 0".into(),
        ),
        (
            |w| w.metadata.retain(|(key, _)| key != "lfm2.shortconv.l_cache"),
            "error[bad-config]: a key that the model needs is absent\n  --> DIR/m.gguf: lfm2.shortconv.l_cache".into(),
        ),
        (
            |w| w.set("lfm2.shortconv.l_cache", Meta::U32(4)),
            "error[wrong-shape]: tensors have another shape than the configuration says\n  --> DIR/m.gguf: blk.0.shortconv.conv.weight\n  = need: [8, 4]\n  = have: [8, 3]".into(),
        ),
    ];
    for (change, expected) in cases {
        let mut writer = gguf();
        change(&mut writer);
        let (folder, path) = write_file("m.gguf", &writer.bytes());
        assert_eq!(open_bad(&path, folder.path()), expected);
    }
}
