//! A model cut into parts computes what the whole computes, bit for bit: prefill and decode, with caches fed back.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use npuc::build::weight_types;
use npuc::exec::{Executor, to_f32};
use npuc::front::{self, ModelConfig};
use npuc::ir::Def;
use npuc::model::{self, CacheProtocol, Head, Part, Port, StateKind, StepShape, rope};
use npuc::{Code, Tensor};

const CAPACITY: usize = 12;

/// One model, cut or whole: an executor per part, and the caches.
struct Parts {
    shape: StepShape,
    parts: Vec<Executor>,
}

type Caches = BTreeMap<Port, Vec<f32>>;

fn executors(config: &ModelConfig, weights: &BTreeMap<String, Tensor>, shape: StepShape, parts: &[Part]) -> Parts {
    let types = weight_types(weights);
    let part = |part: &Part| {
        let graph = model::build_part(config, &types, shape, CacheProtocol::Shift, part).unwrap();
        Executor::new(&graph, weights, &[]).unwrap()
    };
    Parts { shape, parts: parts.iter().map(part).collect() }
}

impl Parts {
    /// One step over `tokens` tokens from `position` on, all valid; the logits.
    fn step(&mut self, config: &ModelConfig, embeds: &[f32], position: usize, caches: &mut Caches) -> Vec<f32> {
        let StepShape { tokens, capacity } = self.shape;
        let frequencies = rope::frequencies(config.rope().unwrap(), config.head_dim());
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for row in 0..tokens {
            let (mut c, mut s) = (vec![0.0; frequencies.len()], vec![0.0; frequencies.len()]);
            for ((c, s), &frequency) in c.iter_mut().zip(&mut s).zip(&frequencies) {
                (*s, *c) = rope::angle(position + row, frequency).sin_cos();
            }
            cos.extend(c);
            sin.extend(s);
        }
        let visible = |row: usize, col: usize| col + position >= capacity && col <= capacity + row;
        let width = capacity + tokens;
        let mask = (0..tokens * width).map(|i| if visible(i / width, i % width) { 0.0 } else { -1e9 }).collect();
        let mut given: BTreeMap<Port, Vec<f32>> =
            [(Port::Embeds, embeds.to_vec()), (Port::RopeCos, cos), (Port::RopeSin, sin), (Port::Mask, mask)].into();
        for part in &mut self.parts {
            let inputs: Vec<Vec<f32>> = part
                .inputs()
                .map(|(name, len)| {
                    let port: Port = name.parse().unwrap();
                    given.get(&port).or(caches.get(&port)).cloned().unwrap_or_else(|| vec![0.0; len])
                })
                .collect();
            part.run(&[&inputs]);
            for (i, name) in part.outputs().enumerate() {
                let port: Port = name.0.parse().unwrap();
                if let Port::Next(kind, layer) = port {
                    caches.insert(Port::Past(kind, layer), part.output(i).to_vec());
                } else {
                    given.insert(port, part.output(i).to_vec());
                }
            }
        }
        given.remove(&Port::Logits).unwrap()
    }
}

/// Prefill of 8 tokens, then three single ones; the logits of all steps and the last caches.
fn run(config: &ModelConfig, weights: &BTreeMap<String, Tensor>, parts: &[Part]) -> (Vec<Vec<f32>>, Caches) {
    let table = to_f32(&weights["embed_tokens.weight"]);
    let hidden = weights["embed_tokens.weight"].shape[1];
    let vocab = weights["embed_tokens.weight"].shape[0];
    let row = |i: usize| table[(i * 7919 + 13) % vocab * hidden..][..hidden].to_vec();
    let mut caches = Caches::new();
    let mut prefill = executors(config, weights, StepShape { tokens: 8, capacity: CAPACITY }, parts);
    let mut decode = executors(config, weights, StepShape { tokens: 1, capacity: CAPACITY }, parts);
    let prompt: Vec<f32> = (0..8).flat_map(row).collect();
    let mut logits = vec![prefill.step(config, &prompt, 0, &mut caches)];
    logits.extend((8..11).map(|i| decode.step(config, &row(i), i, &mut caches)));
    (logits, caches)
}

/// Parts that end at the given layers; the head is with the last, or alone if it ends where one did before.
fn cut(ends: &[usize], layers: usize) -> Vec<Part> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let ends = ends.iter().copied().chain([layers]);
    let mut parts: Vec<Part> =
        starts.zip(ends).map(|(start, end)| Part { layers: start..end, head: Head::Absent }).collect();
    parts.last_mut().unwrap().head = Head::Whole;
    parts
}

#[test]
fn parts_equal_the_whole() {
    for name in [
        "qwen3-bf16",
        "qwen2-q8_0.gguf",
        "mistral-bf16",
        "llama-gqa3-q4_1.gguf",
        "llama-biases-f32",
        "lfm2-old-bf16",
        "lfm2-biases-f32",
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/checkpoints");
        let checkpoint = front::open(&folder.join(name)).unwrap();
        let weights: BTreeMap<String, Tensor> =
            checkpoint.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.materialized())).collect();
        let layers = model::layers(&checkpoint.config);
        let (logits, caches) = run(&checkpoint.config, &weights, &[Part::whole(layers)]);
        let config = &checkpoint.config;
        let states = |layer| StateKind::of(config.kind(layer)).iter().map(move |&kind| Port::Past(kind, layer));
        assert!(caches.keys().copied().eq((0..layers).flat_map(states).collect::<BTreeSet<Port>>()), "{name}");
        let all: Vec<usize> = (1..layers).collect();
        for ends in [vec![1], all.clone(), vec![layers], [all, vec![layers]].concat()] {
            let parts = cut(&ends, layers);
            let cut = run(&checkpoint.config, &weights, &parts);
            assert!(cut.0 == logits && cut.1 == caches, "{name} cut at {ends:?}");
        }
        let beyond = Part { layers: 0..layers + 1, head: Head::Whole };
        let types = weight_types(&weights);
        let shape = StepShape { tokens: 1, capacity: CAPACITY };
        let refused = model::build_part(&checkpoint.config, &types, shape, CacheProtocol::Shift, &beyond);
        assert_eq!(refused.unwrap_err().diagnostics()[0].code, Code::BadShape);
    }
}

/// A part has the ports that its layers read, and no others.
#[test]
fn parts_declare_what_they_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/checkpoints");
    let checkpoint = front::open(&folder.join("lfm2-old-bf16")).unwrap();
    let types = weight_types(&checkpoint.tensors);
    let attention = ["rope_cos", "rope_sin", "mask"];
    for (layers, shape, protocol, ports) in [
        (0..1, "4t8c", CacheProtocol::Append, "embeds past_c.0"),
        (1..2, "4t8c", CacheProtocol::Append, "hidden A past_k.1 past_v.1"),
        (2..4, "4t8c", CacheProtocol::Shift, "hidden A past_c.2 past_k.3 past_v.3"),
        (2..3, "4t8c", CacheProtocol::OneHot, "hidden history past_c.2"),
        (2..3, "1t8c", CacheProtocol::OneHot, "hidden past_c.2"),
        (3..4, "4t8c", CacheProtocol::OneHot, "hidden A write_mask past_k.3 past_v.3"),
        (0..2, "4t8c", CacheProtocol::OneHot, "embeds A write_mask history past_c.0 past_k.1 past_v.1"),
        (0..2, "1t8c", CacheProtocol::OneHot, "embeds A write_mask past_c.0 past_k.1 past_v.1"),
    ] {
        let part = Part { layers, head: Head::Absent };
        let graph = model::build_part(&checkpoint.config, &types, shape.parse().unwrap(), protocol, &part).unwrap();
        let inputs = graph.values.iter().filter(|value| value.def == Def::Input).map(|value| value.name.as_str());
        let have: Vec<&str> = inputs.collect();
        assert_eq!(have.join(" "), ports.replace('A', &attention.join(" ")), "{part:?} {shape} {protocol:?}");
    }
}
