//! Ranges by every method against counting and trying, and encodings of small graphs by hand.

use std::collections::BTreeMap;

use super::super::{MASK_MARGIN, Method, Ranges, Recorder, Steps, keys, moves};
use super::*;
use crate::build::weight_types;
use crate::exec::Executor;
use crate::front;
use crate::ir::{Def, GraphBuilder, Op, ValueId};
use crate::model::{self, CacheProtocol, Port};
use crate::pass::{self, Pass};
use crate::tensor::DType;

const U16: Scheme =
    Scheme { activation: Activation::U16, cache: Cache::U8, method: Method::MinMax, float_residual: false };

/// What is seen of a graph of one input.
fn seen(parts: &[&[f32]]) -> Ranges {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", [1, 1]);
    g.output("x", x);
    let graph = g.finish();
    let mut all = Ranges::default();
    for part in parts {
        let mut recorder = Recorder::new(&graph);
        recorder.see(x, part);
        all.join(&recorder.ranges().unwrap());
    }
    all
}

/// Numbers of a bell, wide in the second half, the same for the same seed.
fn bell(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..count).map(|_| (0..12).map(|_| next()).sum()).collect()
}

/// The square error of really rounding the numbers to a range.
fn error_of(numbers: &[f32], (low, high): (f32, f32), steps: u32) -> f64 {
    let scale = (high - low) / steps as f32;
    let rounded = |x: f32| ((x.clamp(low, high) - low) / scale).round() * scale + low;
    numbers.iter().map(|&x| f64::from(x - rounded(x)).powi(2)).sum()
}

#[test]
fn ranges_by_every_method() {
    let steps = |symmetric| Steps { count: 255, symmetric };
    let numbers: Vec<f32> = bell(20_000, 1).iter().map(|x| x + 1.0).collect();
    let mut sorted = numbers.clone();
    sorted.sort_by(f32::total_cmp);
    let (least, most) = (sorted[0], sorted[sorted.len() - 1]);
    let ranges = seen(&[&numbers]);
    let range = |method, symmetric| ranges.range("x", method, steps(symmetric)).unwrap().unwrap();
    assert_eq!(range(Method::MinMax, false), (least, most));
    assert_eq!(range(Method::MinMax, true), (-most, most));
    assert_eq!(range(Method::Percentile(1.0), false), (least, most));
    for share in [0.999, 0.99, 0.9] {
        let (low, high) = range(Method::Percentile(share), false);
        let at = |share: f64| sorted[(share * sorted.len() as f64) as usize];
        // Bins are a quarter of an octave: a quantile is within a bin of the true one.
        for (have, need) in [(low, at((1.0 - share) / 2.0)), (high, at(1.0 - (1.0 - share) / 2.0))] {
            assert!((have / need - 1.0).abs() < 0.1, "{share}: {have} {need}");
        }
        let (low, high) = range(Method::Percentile(share), true);
        let mut magnitudes: Vec<f32> = numbers.iter().map(|x| x.abs()).collect();
        magnitudes.sort_by(f32::total_cmp);
        let need = magnitudes[(share * magnitudes.len() as f64) as usize];
        assert!(low == -high && (high / need - 1.0).abs() < 0.1, "{share}: {high} {need}");
    }
    for share in [0.0, -1.0, 1.1, f64::NAN] {
        assert!(ranges.range("x", Method::Percentile(share), steps(false)).is_err(), "{share}");
    }
    assert_eq!(ranges.range("y", Method::Mse, steps(false)), Ok(None));
    let wide = ranges.with_headroom(2.0).unwrap().range("x", Method::MinMax, steps(false)).unwrap().unwrap();
    assert_eq!(wide, (2.0 * least, 2.0 * most));
}

/// The chosen range is about as good as the best of a hundred that are really tried, at every number of steps.
#[test]
fn the_least_error_is_found() {
    let mut far = bell(20_000, 5);
    far[7] = 300.0;
    let mut one_sided: Vec<f32> = bell(20_000, 6).iter().map(|x| x.abs().powi(4)).collect();
    one_sided[3] = 900.0;
    for (name, numbers) in [("bell", bell(20_000, 4)), ("far", far), ("one-sided", one_sided)] {
        let ranges = seen(&[&numbers]);
        for count in [15, 255, 65535] {
            for symmetric in [false, true] {
                let steps = Steps { count, symmetric };
                let chosen = ranges.range("x", Method::Mse, steps).unwrap().unwrap();
                let all = ranges.range("x", Method::MinMax, steps).unwrap().unwrap();
                let tried = (1..=100).map(|part| {
                    let factor = part as f32 / 100.0;
                    error_of(&numbers, (all.0 * factor, all.1 * factor), count)
                });
                let (best, have) = (tried.fold(f64::INFINITY, f64::min), error_of(&numbers, chosen, count));
                assert!(have <= 1.5 * best, "{name} {count} {symmetric}: {have:e} {best:e}, {chosen:?} of {all:?}");
            }
        }
    }
}

/// Parts in any order add up to the same, to the last bit of what is stored, and little is stored.
#[test]
fn what_is_seen_adds_up() {
    let numbers: Vec<f32> = bell(3000, 2).iter().map(|x| x * 64.0).collect();
    let [a, b, c] = [&numbers[..1000], &numbers[1000..1001], &numbers[1001..]];
    let orders = [seen(&[&numbers]), seen(&[a, b, c]), seen(&[c, a, b])];
    let range = |ranges: &Ranges, method| ranges.range("x", method, Steps { count: 255, symmetric: false });
    for method in [Method::MinMax, Method::Percentile(0.99), Method::Mse] {
        assert!(orders.iter().all(|ranges| range(ranges, method) == range(&orders[0], method)), "{method:?}");
    }
    let extremes = [0.0, -0.0, f32::MIN_POSITIVE, 1e-40, f32::MAX, f32::MIN, 1.0, -1.0];
    let stored = serde_json::to_string(&seen(&[&extremes, &numbers])).unwrap();
    assert!(stored.len() < 2000, "{} bytes", stored.len());
    let back: Ranges = serde_json::from_str(&stored).unwrap();
    for method in [Method::MinMax, Method::Percentile(0.99), Method::Mse] {
        assert_eq!(range(&back, method), range(&seen(&[&extremes, &numbers]), method), "{method:?}");
    }
}

/// A single number, its negative, and tiny and large ones have steps; zero is a number of every encoding.
#[test]
fn zero_is_exact_in_every_encoding() {
    for (numbers, low, high) in [
        (vec![3.0f32], 0.0f32, 3.0f32),
        (vec![-3.0; 4], -3.0, 0.0),
        (vec![-0.3, 7.7], -0.3, 7.7),
        (vec![1e-6, 2e-6], 0.0, 2e-6),
        (vec![-31_000.0, 12.0], -31_000.0, 12.0),
    ] {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", [1, 1]);
        g.output("x", x);
        let graph = g.finish();
        for method in [Method::MinMax, Method::Percentile(1.0), Method::Mse] {
            for activation in [Activation::U16, Activation::S16, Activation::U8] {
                let scheme = Scheme { activation, method, ..U16 };
                let encoding = qualcomm(&graph, &seen(&[&numbers]), &BTreeMap::new(), &scheme).unwrap().get(x).unwrap();
                let zero = encoding.quantise(0.0);
                assert_eq!((encoding.real(zero), zero), (0.0, -encoding.offset), "{numbers:?} {scheme:?}");
                for end in [low, high] {
                    let off = (encoding.real(encoding.quantise(end)) - end).abs();
                    assert!(off <= 0.501 * encoding.scale, "{numbers:?} {scheme:?}: {end} is off by {off}");
                }
            }
        }
    }
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", [1, 1]);
    g.output("x", x);
    let graph = g.finish();
    for (numbers, expected) in [
        (&[0.0f32, 0.0][..], "nothing but zeros was seen of a value"),
        (&[1e-30], "the range of a value is no range for whole numbers"),
        (&[], "the range of a value is not known"),
    ] {
        let ranges = if numbers.is_empty() { Ranges::default() } else { seen(&[numbers]) };
        let error = qualcomm(&graph, &ranges, &BTreeMap::new(), &U16).unwrap_err();
        assert_eq!((error.diagnostics()[0].code, &*error.diagnostics()[0].message), (Code::BadRange, expected));
    }
}

/// What is hidden is far enough below what is visible after saturation, 0 in the mask is exact, and what is visible keeps
/// its range; for scores of every kind in two layers.
#[test]
fn a_mask_hides_at_every_range() {
    let layers = [(-1.0f32, 1.0f32), (-0.01, 0.02), (-300.0, 2.0), (0.0, 40.0), (-7.0, 0.0)];
    for activation in [Activation::U16, Activation::S16, Activation::U8] {
        for first in layers {
            for second in layers {
                let mut g = GraphBuilder::new("g");
                let mask = g.input("mask", [2, 4]);
                let (mut sums, mut ranges) = (Vec::new(), Recorder::new(&g_of(&["a", "b"])));
                for (place, (name, (low, high))) in [("a", first), ("b", second)].into_iter().enumerate() {
                    let scores = g.input(name, [3, 2, 4]);
                    let sum = g.op(name, Op::Add {}, &[scores, mask]);
                    let weights = g.op(name, Op::Softmax {}, &[sum]);
                    g.output(name, weights);
                    sums.push((scores, sum));
                    ranges.see(ValueId(place as u32), &[low, high]);
                }
                let graph = g.finish();
                let scheme = Scheme { activation, ..U16 };
                let encodings = qualcomm(&graph, &ranges.ranges().unwrap(), &BTreeMap::new(), &scheme).unwrap();
                let of_mask = encodings.get(mask).unwrap();
                assert_eq!(of_mask.real(of_mask.quantise(0.0)), 0.0);
                let hidden = of_mask.real(of_mask.quantise(-1e9));
                for (scores, sum) in sums {
                    let [scores, sum] = [scores, sum].map(|value| encodings.get(value).unwrap());
                    let (worst, best) = (scores.real(scores.low.max(-32767)), scores.real(scores.high));
                    let after = sum.real(sum.quantise(best + hidden));
                    let visible = sum.real(sum.quantise(worst));
                    let what = format!("{activation:?} {first:?} {second:?}: {after} {visible}");
                    assert!(visible - after >= MASK_MARGIN - 0.51 * sum.scale - 1e-4, "{what}");
                    for x in [worst, best] {
                        assert!((sum.real(sum.quantise(x)) - x).abs() <= 0.51 * sum.scale, "{what} {x}");
                    }
                }
                for output in &graph.outputs {
                    let unit = match activation {
                        Activation::U16 | Activation::F16 | Activation::F32 => 65536.0,
                        Activation::S16 => 32768.0,
                        Activation::U8 => 256.0,
                    };
                    let encoding = encodings.get(output.value).unwrap();
                    assert_eq!((encoding.scale, encoding.offset), (1.0 / unit, 0));
                }
            }
        }
    }
}

fn g_of(names: &[&str]) -> Graph {
    let mut g = GraphBuilder::new("g");
    for name in names {
        let x = g.input(*name, [1, 1]);
        g.output(*name, x);
    }
    g.finish()
}

/// A cache, its new rows and both in one have one encoding in the caches' numbers; rotary tables are fixed.
#[test]
fn caches_and_tables_have_their_own_numbers() {
    let mut g = GraphBuilder::new("g");
    let (x, cos) = (g.input("x", [1, 2, 4]), g.input("rope_cos", [2, 2]));
    let past = g.input("past_k.0", [1, 6, 4]);
    let new = g.op("k", Op::Rope {}, &[x, cos, cos]);
    let both = g.op("attn", Op::Concat { axis: 1 }, &[past, new]);
    let scores = g.op("attn", Op::MatMul { transpose_b: true }, &[x, both]);
    g.output("new_k.0", new);
    g.output("scores", scores);
    let graph = g.finish();
    let mut recorder = Recorder::new(&graph);
    for (value, numbers) in [(x, [-1.0, 1.0]), (past, [-2.0, 3.0]), (new, [-5.0, 1.0]), (scores, [-9.0, 9.0])] {
        recorder.see(value, &numbers);
    }
    let ranges = recorder.ranges().unwrap();
    for (activation, cache, high) in [
        (Activation::U16, Cache::U8, Some(255)),
        (Activation::U16, Cache::U16, Some(65535)),
        (Activation::F16, Cache::U8, Some(255)),
        (Activation::U16, Cache::F16, Some(65535)),
        (Activation::F16, Cache::F16, None),
        (Activation::U8, Cache::U8, Some(255)),
        (Activation::U8, Cache::U16, Some(65535)),
        (Activation::U8, Cache::F16, Some(255)),
    ] {
        let scheme = Scheme { activation, cache, ..U16 };
        let encodings = qualcomm(&graph, &ranges, &BTreeMap::new(), &scheme).unwrap();
        let known: Vec<Encoding> = [past, new, both].into_iter().filter_map(|value| encodings.get(value)).collect();
        assert!(known.iter().all(|encoding| Some(encoding.high) == high && *encoding == known[0]), "{scheme:?}");
        assert_eq!(known.is_empty(), high.is_none(), "{scheme:?}");
        if let Some(largest) = high {
            // 16 bits have their zero in the middle.
            let top = if largest == 65535 { 5.0 } else { 3.0 };
            let (low, high) = (known[0].real(known[0].low), known[0].real(known[0].high));
            assert!((low + 5.0).abs() < 0.02 && (high - top).abs() < 0.02, "{scheme:?}: {low} {high}");
            assert!(largest == 255 || known[0].offset == -32768, "{scheme:?}");
        }
        let table = encodings.get(cos).map(|encoding| (encoding.real(encoding.low), encoding.real(encoding.high)));
        match activation {
            Activation::U16 => assert!(table.is_some_and(|(l, h)| (l + 1.0).abs() < 4e-5 && (h - 1.0).abs() < 4e-5)),
            Activation::U8 => assert!(table.is_some_and(|(l, h)| (l + 1.0).abs() < 8e-3 && (h - 1.0).abs() < 8e-3)),
            Activation::S16 | Activation::F16 | Activation::F32 => assert_eq!(table, None),
        }
    }
}

/// Whisper's encoder in miniature: a row of zeros beside the spectrogram, layer normalisation of a sum with a table, its own keys,
/// which are in the middle of 16 bits, and the keys of what is heard, which are a cache.
#[test]
fn what_is_heard_is_a_cache() {
    let mut g = GraphBuilder::new("g");
    let (mel, heard_v) = (g.input("mel", [2, 4]), g.input("heard_v.0", [1, 2, 4]));
    let zero = g.op("stem", Op::Slice { axis: 0, start: 0, len: 1 }, &[mel]);
    let zero = g.op("stem", Op::Affine { scale: 0.0, offset: 0.0 }, &[zero]);
    let padded = g.op("stem", Op::Concat { axis: 0 }, &[zero, mel]);
    let (table, gain) = (g.weight("t", DType::F32, [3, 4]), g.weight("g", DType::F32, [4]));
    let sum = g.op("positions", Op::Add {}, &[padded, table]);
    let normed = g.op("norm", Op::LayerNorm { eps: 1e-5 }, &[sum, gain, gain]);
    let keys = g.op("k", Op::Gelu {}, &[normed]);
    let scores = g.op("attn", Op::MatMul { transpose_b: true }, &[normed, keys]);
    let heard = g.op("heard", Op::Gelu {}, &[normed]);
    let moved = g.op("heard", Op::Reshape { shape: vec![1, 3, 4] }, &[heard]);
    g.output("heard_k.0", moved);
    g.output("scores", scores);
    g.output("out", heard_v);
    let graph = g.finish();
    let tensor = |dims: &[usize]| {
        let numbers = (0..dims.iter().product()).flat_map(|i: usize| (i as f32 - 1.0).to_le_bytes());
        crate::Tensor::in_memory(DType::F32, dims.into(), numbers.collect::<Vec<u8>>().into()).unwrap()
    };
    let weights: BTreeMap<String, crate::Tensor> =
        [("t".to_owned(), tensor(&[3, 4])), ("g".to_owned(), tensor(&[4]))].into();
    let mut executor = Executor::new(&graph, &weights, &[]).unwrap();
    let mut recorder = Recorder::new(&graph);
    executor.run_observed(&[&[bell(8, 1), bell(8, 2)]], &mut |value, elements| recorder.see(value, elements));
    let ranges = recorder.ranges().unwrap();
    for (cache, highest) in [(Cache::U8, [255; 3]), (Cache::U16, [65535; 3]), (Cache::F16, [0, 65535, 0])] {
        let scheme = Scheme { cache, float_residual: true, ..U16 };
        let encodings = qualcomm(&graph, &ranges, &weights, &scheme).unwrap();
        let of = |value| encodings.get(value);
        assert_eq!([heard_v, heard, moved].map(|value| of(value).map_or(0, |of| of.high)), highest);
        assert_eq!([sum, normed, keys].map(|value| encodings.float(value)), [true, true, false], "{cache:?}");
        assert_eq!((of(keys).unwrap().offset, of(zero)), (-32768, of(mel)), "{cache:?}");
        assert_eq!((of(table), of(gain)), (None, None), "{cache:?}");
    }
}

/// The values that hold a cache's numbers, found on their own: from past rows down through joins and cuts, and from new rows up to
/// what computes them.
fn in_caches(graph: &Graph) -> Vec<bool> {
    let is = |name: &str, wanted: fn(&Port) -> bool| name.parse().is_ok_and(|port| wanted(&port));
    let mut held: Vec<bool> = Vec::new();
    for value in &graph.values {
        held.push(match &value.def {
            Def::Input => is(&value.name, |port| matches!(port, Port::Past(..))),
            Def::Weight => false,
            Def::Op { op, args } => moves(op) && args.iter().any(|arg| held[arg.index()]),
        });
    }
    for output in graph.outputs.iter().filter(|output| is(&output.name, |port| matches!(port, Port::New(..)))) {
        let mut next = Some(output.value);
        while let Some(id) = next {
            held[id.index()] = true;
            next = match &graph.value(id).def {
                Def::Op { op, args } if moves(op) => Some(args[0]),
                Def::Op { .. } | Def::Input | Def::Weight => None,
            };
        }
    }
    held
}

/// Attention head by head has keys and encodings of each head, the same in all step shapes; the numbers of caches reach the matrices
/// of every head and nothing else.
#[test]
fn heads_have_their_own_encodings() {
    for name in ["qwen3-bf16", "llama-gqa3-q4_1.gguf", "llama-biases-f32"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/checkpoints").join(name);
        let checkpoint = front::open(&path).unwrap();
        let config = &checkpoint.config;
        let of_shape = |shape: &str| {
            let (shape, types) = (shape.parse().unwrap(), weight_types(&checkpoint.tensors));
            let graph = model::build_step(&checkpoint.config, &types, shape, CacheProtocol::Append).unwrap();
            let passes = [Pass::SplitAttention, Pass::DecomposeSilu, Pass::Simplify];
            pass::run(graph, &passes, |_, _, _| {}).unwrap()
        };
        let graphs = ["8t32c", "1t32c"].map(of_shape);
        let mut ranges = Ranges::default();
        for graph in &graphs {
            let mut executor = Executor::new(graph, &checkpoint.tensors, &[]).unwrap();
            let inputs: Vec<Vec<f32>> =
                executor.inputs().map(|(name, len)| bell(len, name.len() as u64 + len as u64)).collect();
            let mut recorder = Recorder::new(graph);
            executor.run_observed(&[&inputs], &mut |value, elements| recorder.see(value, elements));
            ranges.join(&recorder.ranges().unwrap());
        }
        let products = ranges.keys().filter(|key| key.contains("/matmul.")).count();
        assert_eq!(products, config.layers() * config.heads() * 2, "{name}");
        for cache in [Cache::U8, Cache::U16, Cache::F16] {
            let scheme = Scheme { cache, ..U16 };
            let of = |graph: &Graph| qualcomm(graph, &ranges, &checkpoint.tensors, &scheme).unwrap();
            let encodings = graphs.each_ref().map(of);
            let by_key = |place: usize| -> BTreeMap<String, Option<Encoding>> {
                let keys = keys(&graphs[place]);
                graphs[place].ids().zip(keys).filter_map(|(id, key)| Some((key?, encodings[place].get(id)))).collect()
            };
            assert_eq!(by_key(0), by_key(1), "{name} {cache:?}");
            graphs.iter().zip(&encodings).for_each(|(graph, encodings)| check_heads(graph, encodings, cache));
        }
    }
}

fn check_heads(graph: &Graph, encodings: &Encodings, cache: Cache) {
    for ((id, value), held) in graph.ids().zip(&graph.values).zip(in_caches(graph)) {
        let Some(encoding) = encodings.get(id) else { continue };
        let computed = matches!(&value.def, Def::Op { op, .. } if !moves(op));
        assert_eq!(encodings.float(id), held && cache == Cache::F16 && !computed, "{id} of {}\n{graph}", value.name);
        let high = if held && cache == Cache::U8 { 255 } else { 65535 };
        assert_eq!(encoding.high, high, "{id} of {} {cache:?}\n{graph}", value.name);
        match &value.def {
            Def::Op { op: Op::Softmax {}, .. } => assert_eq!((encoding.scale, encoding.offset), (1.0 / 65536.0, 0)),
            Def::Op { op: Op::Add {}, args } if encodings.masked(id) => {
                let scores = encodings.get(args[0]).unwrap();
                let (low, high) = (scores.real(scores.low) - MASK_MARGIN, scores.real(scores.high));
                let (lowest, highest) = (encoding.real(encoding.low), encoding.real(encoding.high));
                assert!(lowest <= low && (highest - high).abs() <= 2.0 * encoding.scale, "{id}: {low} {lowest}");
            }
            Def::Op { op: Op::Slice { axis: 0, .. } | Op::Concat { .. }, args } => {
                let same = args.iter().all(|arg| encodings.get(*arg).is_none_or(|other| other == encoding));
                assert!(same, "{id} of {}", value.name);
            }
            Def::Input | Def::Weight | Def::Op { .. } => {}
        }
    }
}
