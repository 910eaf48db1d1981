//! Tests of whole models against targets, without weights unless their values matter.

use std::collections::BTreeSet;

use super::*;
use crate::front::config_hf;
use crate::target::{self, Precision};
use crate::tensor::{DType, Shape};

fn llama_1b() -> ModelConfig {
    let text = include_bytes!("../../../../tests/data/configs/llama-3.2-1b.json");
    config_hf::parse(text, "config.json".as_ref()).unwrap().model
}

fn request(target: &str, precision: &str, shapes: &[&str], chunks: Option<Chunks>, flags: &[&str]) -> Request {
    let target = target::find(target).unwrap();
    let precision = Precision::parse(precision, target.float).unwrap();
    let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let question = Question::new(&target, precision, &flags).unwrap();
    let shapes = shapes.iter().map(|shape| shape.parse().unwrap()).collect();
    Request { chunks, ..Request::new(target, question, shapes) }
}

const SHAPES: [&str; 2] = ["128t1024c", "1t1024c"];

fn codes(fit: &Fit, severity: Severity) -> BTreeSet<&'static str> {
    fit.misfits.iter().filter(|misfit| misfit.severity == severity).map(|misfit| misfit.code.name()).collect()
}

#[test]
fn the_reported_head_is_found_with_both_remedies() {
    let fit = fit(&llama_1b(), None, &request("genio-720", "FP", &SHAPES, None, &[])).unwrap();
    let errors: Vec<&Misfit> = fit.misfits.iter().filter(|misfit| misfit.severity == Severity::Error).collect();
    let [head] = errors[..] else { panic!("{errors:?}") };
    let places: Vec<(&str, &str)> = head.places.iter().map(|p| (p.path.as_str(), p.graph.as_str())).collect();
    assert_eq!(places, [("lm_head", "128t1024c"), ("lm_head", "1t1024c")]);
    assert_eq!(head.actual, "operand 1 [128256, 2048], result [1, 128, 128256]");
    let remedies: Vec<String> = head.remedies.iter().map(ToString::to_string).collect();
    assert_eq!(
        remedies,
        [
            "`--gno=LTS`: lifts the limit, for 128256 is divisible by 16 (vendor: MediaTek staff, on the same refusal)",
            "split the 128256 outputs into 2 parts of 64128 and join the results",
        ]
    );
    for (place, graph) in head.places.iter().zip(&fit.graphs) {
        assert_eq!(graph.to_string().lines().nth(place.line - 1).unwrap().trim(), place.text);
    }
    assert_eq!(codes(&fit, Severity::Warning), BTreeSet::from(["fp16-range"]));
}

#[test]
fn models_against_chips() {
    let given = |text: &str| Some(text.parse::<Chunks>().unwrap());
    let cases: [(Request, &[&str]); 12] = [
        (request("genio-720", "FP", &SHAPES, None, &["gno=LTS"]), &[]),
        (request("genio-720", "8W16A", &SHAPES, None, &["gno=LTS"]), &[]),
        (request("genio-720", "4W16A-g32", &SHAPES, None, &["gno=LTS"]), &["unsupported-format"]),
        // 2.47 GB of weights in one file.
        (request("genio-720", "FP", &SHAPES, given("1"), &["gno=LTS"]), &["byte-limit"]),
        (request("genio-720", "FP", &SHAPES, given("4,4,4,2,2"), &["gno=LTS"]), &[]),
        (request("genio-720", "FP", &["128t65408c"], None, &["gno=LTS"]), &["dimension-limit"]),
        (request("genio-720", "FP", &["128t65407c"], None, &["gno=LTS"]), &[]),
        // The head is larger than the budget, so it goes to the CPU.
        (request("genio-700", "FP", &SHAPES, None, &[]), &["unsupported-op"]),
        (request("sm8650", "4W16A-g32", &SHAPES, None, &[]), &[]),
        (request("sl2610", "4WFP-g256", &SHAPES, None, &[]), &["batch-limit", "unsupported-format", "unsupported-op"]),
        (request("mali-valhall", "FP16", &SHAPES, None, &[]), &["unsupported-format"]),
        (request("host", "stored", &SHAPES, None, &[]), &[]),
    ];
    let config = llama_1b();
    for (request, expected) in cases {
        let fit = fit(&config, None, &request).unwrap();
        let name = format!("{} {} {:?}", request.target.name, request.question.precision.name, request.chunks);
        assert_eq!(codes(&fit, Severity::Error), expected.iter().copied().collect(), "{name}");
        assert_eq!(fit.fits(), expected.is_empty(), "{name}");
    }
}

/// Weights behind the flatbuffer lift the limit on files, and nothing else.
#[test]
fn outer_buffers_have_no_limit_of_files() {
    let chunks = Some("1".parse::<Chunks>().unwrap());
    let mut asked = request("genio-720", "FP", &SHAPES, chunks, &[]);
    let errors = |asked: &Request| codes(&fit(&llama_1b(), None, asked).unwrap(), Severity::Error);
    assert_eq!(errors(&asked), BTreeSet::from(["byte-limit", "dimension-limit"]));
    asked.question.outer_buffers = true;
    assert_eq!(errors(&asked), BTreeSet::from(["dimension-limit"]));
}

/// Sizes of Llama 3.2 1B by hand: a layer has 2048 x (2048 + 512 + 512 + 2048) + 3 x 2048 x 8192 weights and two gains.
#[test]
fn the_ledger_counts_what_is_there() {
    let layer = 2048 * (2048 + 512 + 512 + 2048) + 3 * 2048 * 8192 + 2 * 2048;
    let head = 128_256 * 2048 + 2048;
    let fit = |precision: &str| {
        fit(
            &llama_1b(),
            None,
            &request("genio-720", precision, &SHAPES, Some(Chunks::Layers(vec![4, 4, 4, 2, 2])), &[]),
        )
        .unwrap()
    };
    let floats = fit("FP");
    let weights: Vec<u64> = floats.chunks.iter().map(|chunk| chunk.memory.weights_bytes).collect();
    assert_eq!(weights, [8 * layer, 8 * layer, 8 * layer, 4 * layer, 4 * layer + 2 * head]);
    // Keys and values of 8 heads of width 64 in 1024 rows of f32, which ports of float files are in.
    let state: Vec<u64> =
        floats.chunks.iter().map(|chunk| chunk.memory.state_bytes / (2 * 8 * 64 * 1024 * 4)).collect();
    assert_eq!(state, [4, 4, 4, 2, 2]);
    // In: hidden, rotary table, mask, two caches a layer; out: hidden, two caches a layer.
    let ports: Vec<usize> = floats.chunks.iter().map(|chunk| chunk.memory.graphs[0].ports).collect();
    assert_eq!(ports, [20, 20, 20, 12, 12]);
    for chunk in &floats.chunks {
        let [prefill, decode] = &chunk.memory.graphs[..] else { panic!("two graphs") };
        assert!(prefill.activation_bytes > decode.activation_bytes && decode.activation_bytes > 0);
    }
    // Eight bits a weight and one f32 scale an output; gains in f32.
    let rows = 2048 + 512 + 512 + 2048 + 2 * 8192 + 2048;
    assert_eq!(fit("8W16A").chunks[0].memory.weights_bytes, 4 * (layer - 2 * 2048 + 4 * (rows + 2 * 2048)));
    let binding = floats.binding.unwrap();
    assert_eq!((binding.rule.as_str(), binding.chunk, binding.used), ("file-size", 4, 4 * layer + 2 * head));
}

#[test]
fn the_largest_context_is_the_last_that_fits() {
    let ModelConfig::Llama(mut llama) = llama_1b() else { panic!("another family") };
    llama.layers = 2;
    let cases = [
        ("genio-720", "FP", 65_407, "dimension: every extent at most 65535"),
        ("sl2610", "FP", 131_072, "the model itself (max_position_embeddings)"),
    ];
    for (target, precision, capacity, bound_by) in cases {
        let request = request(target, precision, &SHAPES, Some(Chunks::Equal(2)), &[]);
        let context = fit(&ModelConfig::Llama(llama.clone()), None, &request).unwrap().context.unwrap();
        assert_eq!((context.capacity, context.bound_by.as_str()), (capacity, bound_by), "{target}");
    }
    // A limit of bytes: one row more breaks it.
    llama.layers = 16;
    let config = ModelConfig::Llama(llama);
    let of = |shapes: &[&str]| {
        fit(&config, None, &request("sm8650", "4W16A-g32", shapes, Some(Chunks::Equal(2)), &[])).unwrap()
    };
    let context = of(&SHAPES).context.unwrap();
    let shapes = |capacity: usize| ["128t", "1t"].map(|tokens| format!("{tokens}{capacity}c"));
    for (capacity, fits) in [(context.capacity, true), (context.capacity + 1, false)] {
        let shapes = shapes(capacity);
        assert_eq!(of(&[&shapes[0], &shapes[1]]).fits(), fits, "{capacity}");
    }
    assert!(context.bound_by.starts_with("context-size: "), "{}", context.bound_by);
}

#[test]
fn requests_that_make_no_sense() {
    let config = llama_1b();
    let cases = [
        (request("host", "stored", &[], None, &[]), Code::BadShape),
        (request("host", "stored", &["1t8c", "1t9c"], None, &[]), Code::BadShape),
        (request("host", "stored", &["1t131073c"], None, &[]), Code::BadShape),
        (request("host", "stored", &["1t8c"], Some(Chunks::Equal(17)), &[]), Code::BadShape),
        (request("host", "stored", &["1t8c"], Some(Chunks::Layers(vec![8, 9])), &[]), Code::BadShape),
    ];
    for (request, code) in cases {
        let error = fit(&config, None, &request).unwrap_err();
        assert_eq!(error.diagnostics()[0].code, code, "{request:?}");
    }
}

#[test]
fn weights_beyond_binary16_are_counted() {
    let tensor = |dtype: DType, values: &[f32]| {
        let bytes: Vec<u8> = if dtype == DType::BF16 {
            values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect()
        } else {
            values.iter().flat_map(|x| x.to_le_bytes()).collect()
        };
        Tensor::in_memory(dtype, Shape(vec![values.len()]), bytes.into()).unwrap()
    };
    // 65520 is the first number that rounds to infinity; 2^-25 the largest that rounds to zero.
    let vanishing = 2f32.powi(-25);
    type Case<'a> = (DType, &'a [f32], Option<(usize, usize, f32)>);
    let cases: [Case<'_>; 5] = [
        (DType::F32, &[1.0, -65504.0, 65519.9, 0.0, 2f32.powi(-24)], None),
        (DType::F32, &[65520.0, -1e30, 1.0], Some((2, 0, 1e30))),
        (DType::F32, &[vanishing, -1e-30, 0.0], Some((0, 2, vanishing))),
        (DType::BF16, &[65536.0, 2.0], Some((1, 0, 65536.0))),
        (DType::F32, &[f32::INFINITY, f32::NAN, 70000.0], Some((1, 0, 70000.0))),
    ];
    for (dtype, values, expected) in cases {
        let found = fp16::outside(&[(&"w".to_owned(), &tensor(dtype, values))]);
        let found = found.first().map(|(_, counts)| (counts.over, counts.vanishing, counts.largest));
        assert_eq!(found, expected, "{values:?}");
    }
}

/// A one-layer model in memory whose weights are all `value`.
#[test]
fn a_weight_beyond_binary16_is_a_misfit_under_fp16_alone() {
    let ModelConfig::Llama(mut llama) = llama_1b() else { panic!("another family") };
    (llama.hidden, llama.ffn, llama.layers, llama.heads, llama.kv_heads, llama.head_dim) = (8, 8, 1, 2, 1, 4);
    (llama.vocab, llama.max_positions) = (16, 16);
    let config = ModelConfig::Llama(llama);
    let weights = |value: f32| -> BTreeMap<String, Tensor> {
        let tensor = |shape: &Shape| {
            let bytes: Vec<u8> = (0..shape.elements().unwrap()).flat_map(|_| value.to_le_bytes()).collect();
            Tensor::in_memory(DType::F32, shape.clone(), bytes.into()).unwrap()
        };
        model::weight_specs(&config).into_iter().map(|spec| (spec.name.clone(), tensor(&spec.shape))).collect()
    };
    // With 8-bit weights and float activations only the three gains stay floats: the tied table is the head's matrix.
    let cases = [
        ("genio-720", 1e6, "FP", 11),
        ("genio-720", 1e6, "8W16A", 0),
        ("genio-720", 1.0, "FP", 0),
        ("sm8650", 1e6, "8WFP", 3),
    ];
    for (target, value, precision, places) in cases {
        let request = request(target, precision, &["1t4c"], None, &[]);
        let fit = fit(&config, Some(&weights(value)), &request).unwrap();
        let found: Vec<&Misfit> = fit.misfits.iter().filter(|misfit| misfit.severity == Severity::Error).collect();
        assert_eq!(found.iter().map(|misfit| misfit.places.len()).sum::<usize>(), places, "{value} {precision}");
        assert!(found.iter().all(|misfit| misfit.code == Code::Fp16Range));
    }
}
