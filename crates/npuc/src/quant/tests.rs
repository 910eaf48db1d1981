//! Ranges of real graphs in all step shapes, scales by hand, and rounding against its definition.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::back::tflite::chunks;
use crate::build::weight_types;
use crate::diag::Code;
use crate::exec::{Executor, to_f32};
use crate::fit::Request;
use crate::front::{self, Checkpoint};
use crate::ir::{GraphBuilder, ValueId};
use crate::model::{CacheProtocol, Chunks, StepShape, layers};
use crate::target::host;
use crate::tensor::{DType, Shape, Tensor};

fn checkpoint(name: &str) -> Checkpoint {
    front::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/checkpoints").join(name)).unwrap()
}

fn tensor(shape: &[usize], numbers: &[f32]) -> Tensor {
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    Tensor::in_memory(DType::F32, Shape::from(shape), Arc::from(bytes)).unwrap()
}

fn ranges(pairs: &[(&str, f32)]) -> Ranges {
    let mut ranges = Ranges::default();
    pairs.iter().for_each(|(key, magnitude)| ranges.widen(key, *magnitude));
    ranges
}

/// What a graph computes from inputs of a pattern is seen, and what other shapes of the part compute has the same keys.
#[test]
fn all_step_shapes_have_the_same_keys() {
    for name in ["qwen3-bf16", "llama-gqa3-q4_1.gguf", "qwen2-bf16"] {
        let checkpoint = checkpoint(name);
        let types = weight_types(&checkpoint.tensors);
        let shapes: Vec<StepShape> = ["8t32c", "1t32c", "32t32c"].iter().map(|shape| shape.parse().unwrap()).collect();
        let parts = Chunks::Equal(layers(&checkpoint.config)).parts(layers(&checkpoint.config)).unwrap();
        let request = Request::plain(host().with_protocol(CacheProtocol::Shift), shapes);
        let chunks = chunks(&checkpoint.config, &types, &request, &parts).unwrap();
        let mut of_part: Vec<Option<Ranges>> = vec![None; parts.len()];
        for chunk in &chunks {
            let mut executor = Executor::new(&chunk.graph, &checkpoint.tensors, &[]).unwrap();
            let inputs: Vec<Vec<f32>> =
                executor.inputs().map(|(_, len)| (0..len).map(|i| ((i * 37) % 11) as f32 / 10.0).collect()).collect();
            let mut recorder = Recorder::new(&chunk.graph);
            executor.run_observed(&[&inputs], &mut |value, elements| recorder.see(value, elements));
            let seen = recorder.ranges().unwrap();
            let known = of_part[chunk.number].get_or_insert_with(|| seen.clone());
            assert!(seen.keys().eq(known.keys()), "{name} {}", chunk.shape);
            known.join(&seen);
            assert!(seen.keys().all(|key| known.get(key) >= seen.get(key)));
            assert!(seen.get("mask").is_none() && seen.get("rotary").is_none(), "{name}");
        }
        let mut of_part: Vec<Ranges> = of_part.into_iter().flatten().collect();
        for pair in 1..of_part.len() {
            let (first, second) = of_part.split_at_mut(pair);
            let graph = |number: usize| &chunks.iter().find(|chunk| chunk.number == number).unwrap().graph;
            share_boundary((graph(pair - 1), &mut first[pair - 1]), (graph(pair), &mut second[0])).unwrap();
        }
        for chunk in &chunks {
            let scales = scales(&chunk.graph, &of_part[chunk.number], &checkpoint.tensors).unwrap();
            let port = |name: &str| {
                let input = chunk
                    .graph
                    .ids()
                    .find(|&id| chunk.graph.value(id).def == Def::Input && chunk.graph.value(id).name == name);
                scales.scale(input.unwrap()).unwrap()
            };
            assert_eq!(port("rotary"), 1.0 / INT16_MAX);
            for output in &chunk.graph.outputs {
                let scale = scales.scale(output.value).unwrap();
                match output.name.strip_prefix("next") {
                    Some(state) => assert_eq!(scale, port(&format!("past{state}"))),
                    None if output.name == "hidden" => {
                        assert_eq!(Some(scale), of_part[chunk.number + 1].get("hidden").map(|range| range / INT16_MAX));
                    }
                    None => {}
                }
            }
            // The same scales in every shape, since the ranges are.
            let first = &chunks.iter().find(|other| other.number == chunk.number).unwrap().graph;
            let others = super::scales(first, &of_part[chunk.number], &checkpoint.tensors).unwrap();
            let inputs =
                |graph: &Graph| graph.ids().filter(|&id| graph.value(id).def == Def::Input).collect::<Vec<_>>();
            for (a, b) in inputs(&chunk.graph).into_iter().zip(inputs(first)) {
                assert_eq!(scales.scale(a), others.scale(b));
            }
        }
    }
}

/// Scores of a range, a mask, and a second layer with a larger range.
#[test]
fn a_mask_hides_at_every_range() {
    for (first, second) in [(1.0f32, 1.0f32), (0.01, 40.0), (300.0, 2.0)] {
        let mut g = GraphBuilder::new("g");
        let mask = g.input("mask", [1, 1, 2, 4]);
        let mask = g.op("mask", Op::Reshape { shape: vec![2, 4] }, &[mask]);
        let mut sums = Vec::new();
        for name in ["a", "b"] {
            let scores = g.input(name, [3, 2, 4]);
            let sum = g.op(name, Op::Add {}, &[scores, mask]);
            sums.push(sum);
            let weights = g.op(name, Op::Softmax {}, &[sum]);
            let weights = g.op(name, Op::Reshape { shape: vec![6, 4] }, &[weights]);
            g.output(name, weights);
        }
        let graph = g.finish();
        let scales = scales(&graph, &ranges(&[("a", first), ("b", second)]), &BTreeMap::new()).unwrap();
        let hidden = -32768.0 * scales.scale(ValueId(0)).unwrap();
        assert_eq!(scales.scale(ValueId(0)), scales.scale(ValueId(1)));
        for (sum, range) in sums.into_iter().zip([first, second]) {
            let low = -32768.0 * scales.scale(sum).unwrap();
            // The best hidden score against the worst visible one, after saturation.
            let best = (range + hidden).max(low);
            assert!(best <= -range - 11.99, "{first} {second}: {best}");
            assert!(scales.scale(sum).unwrap() * INT16_MAX >= range);
        }
        let outputs: Vec<f32> = graph.outputs.iter().map(|output| scales.scale(output.value).unwrap()).collect();
        assert_eq!(outputs, [UNIT_SCALE; 2]);
    }
}

/// Norms, the sums that they read and exponentials are float; what enters and leaves them has scales.
#[test]
fn norms_and_the_residual_stream_are_float() {
    let mut g = GraphBuilder::new("g");
    let (x, y) = (g.input("x", [2, 4]), g.input("y", [2, 4]));
    let stream = g.op("layer", Op::Add {}, &[x, y]);
    let squares = g.op("norm", Op::Mul {}, &[stream, stream]);
    let mean = g.op("norm", Op::Mean { axis: 1 }, &[squares]);
    let root = g.op("norm", Op::Rsqrt {}, &[mean]);
    let normed = g.op("norm", Op::Mul {}, &[stream, root]);
    let product = g.op("layer", Op::Mul {}, &[normed, y]);
    let exp = g.op("layer", Op::Exp {}, &[product]);
    let sum = g.op("layer", Op::Add {}, &[stream, exp]);
    g.output("z", sum);
    let graph = g.finish();
    // The stream enters the last sum in int16 too.
    let seen = ["x", "y", "layer/add.0", "norm/mul.1", "layer/mul.0", "layer/exp.0", "layer/add.1"];
    let scales = scales(&graph, &ranges(&seen.map(|key| (key, 1.0))), &BTreeMap::new()).unwrap();
    let float: Vec<ValueId> = graph.ids().filter(|&id| scales.float(id)).collect();
    assert_eq!(float, [stream, squares, mean, root, normed, exp]);
    let inner: Vec<ValueId> = graph.ids().filter(|&id| scales.scale(id).is_none()).collect();
    assert_eq!(inner, [squares, mean, root]);
}

#[test]
fn what_has_no_scale_says_why() {
    let mut g = GraphBuilder::new("g");
    let (x, y) = (g.input("x", [1, 2]), g.input("y", [1, 2]));
    let sum = g.op("p", Op::Add {}, &[x, y]);
    let product = g.op("p", Op::Mul {}, &[sum, sum]);
    g.output("z", product);
    let graph = g.finish();
    let all = [("x", 1.0), ("y", 2.0), ("p/add.0", 3.0), ("p/mul.0", 9.0)];
    let with = |key: &str, magnitude: f32| {
        let mut all = all;
        all.iter_mut().filter(|(name, _)| *name == key).for_each(|pair| pair.1 = magnitude);
        scales(&graph, &ranges(&all), &BTreeMap::new())
    };
    assert_eq!(with("x", 1.0).unwrap().scale(ValueId(3)), Some(9.0 / INT16_MAX));
    for (key, magnitude, expected) in [
        ("p/add.0", 0.0, "nothing but zeros was seen of a value"),
        ("y", f32::INFINITY, "the range of a value is no range for int16"),
        ("p/mul.0", 1e-30, "the range of a value is no range for int16"),
    ] {
        let error = with(key, magnitude).unwrap_err();
        let fault = &error.diagnostics()[0];
        assert_eq!((fault.code, fault.message.as_str()), (Code::BadRange, expected));
        assert_eq!(fault.subject.as_deref(), Some(key));
    }
    let error = scales(&graph, &ranges(&all[1..3]), &BTreeMap::new()).unwrap_err();
    let subjects: Vec<_> = error.diagnostics().iter().map(|fault| fault.subject.as_deref().unwrap()).collect();
    assert_eq!(subjects, ["x", "p/mul.0"]);
    let mut recorder = Recorder::new(&graph);
    recorder.see(x, &[1.0, f32::NAN]);
    recorder.see(y, &[-2.0, 1.0]);
    assert_eq!(recorder.clone().ranges().unwrap_err().diagnostics()[0].subject.as_deref(), Some("x"));
    let mut recorder = Recorder::new(&graph);
    recorder.see(y, &[-2.0, 1.0]);
    recorder.see(y, &[0.5, 1.0]);
    let seen = recorder.ranges().unwrap();
    assert_eq!((seen.keys().collect::<Vec<_>>(), seen.get("y")), (vec!["y"], Some(2.0)));
}

/// A few elements far beyond the others' mean make a value one for float arithmetic, with the projection that reads it;
/// evenly large ones do not.
#[test]
fn what_int16_cannot_hold_is_computed_in_float() {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", [1, 4096]);
    let w = g.weight("w", DType::F32, [8, 4096]);
    let y = g.op("product", Op::Mul {}, &[x, x]);
    let z = g.op("down", Op::Linear {}, &[y, w]);
    let out = g.op("out", Op::Mul {}, &[z, z]);
    g.output("out", out);
    let graph = g.finish();
    for (largest, expected) in [(1.0, [false; 3]), (500.0, [false; 3]), (5000.0, [true, true, false])] {
        let mut elements = vec![1.0; 4096];
        elements[7] = largest;
        let mut recorder = Recorder::new(&graph);
        recorder.see(y, &elements);
        recorder.see(z, &[1.0; 8]);
        let float = groups::float(&graph, &recorder.ranges().unwrap());
        assert_eq!([y, z, out].map(|value| float[value.index()]), expected, "{largest}");
    }
}

#[test]
fn ranges_survive_being_stored() {
    let all = ranges(&[("embeds", 0.1), ("layers.0.mlp/mul.0", 1234.5), ("x", f32::MIN_POSITIVE)]);
    let stored = serde_json::to_string(&all).unwrap();
    assert_eq!(serde_json::from_str::<Ranges>(&stored).unwrap(), all);
    assert_eq!(all.with_headroom(2.0).unwrap().get("embeds"), Some(0.2));
    let larger = ranges(&[("embeds", 0.3), ("new", 1.0), ("x", 0.0)]);
    assert_eq!(all.exceeded(&larger), [("embeds", 0.3 / 0.1), ("new", f32::INFINITY)]);
    for factor in [0.99, f32::NAN, f32::INFINITY] {
        assert_eq!(all.with_headroom(factor).unwrap_err().diagnostics()[0].code, Code::BadRange);
    }
}

/// Rows come back within half a step, the largest number exactly, and bytes lie as TFLite wants them.
#[test]
fn weights_are_rounded_by_rows() {
    for (format, row, scale, bytes) in [
        (WeightFormat::Int8, &[1.27f32, -1.0, 0.014, 0.0][..], 0.01f32, &[127u8, 156, 1, 0][..]),
        (WeightFormat::Int16, &[3.2767, -3.2767, 0.00014, 0.0], 0.0001, &[255, 127, 1, 128, 1, 0, 0, 0]),
        (WeightFormat::Int4, &[0.7, -0.1, 0.34, -0.36], 0.1, &[0xf7, 0xc3]),
        // The largest magnitude is negative: -8 is used.
        (WeightFormat::Int4, &[-0.8, 0.7, 0.1, 0.0], 0.1, &[0x78, 0x01]),
        (WeightFormat::Int4, &[-0.4, 0.7, 0.1], 0.1, &[0x7c, 0x01]),
        (WeightFormat::Int8, &[0.0, 0.0], 1.0, &[0, 0]),
        (WeightFormat::Int8, &[1e-30, 0.0], 1.0, &[0, 0]),
    ] {
        let tensor = tensor(&[1, row.len()], row);
        let scales = row_scales("w", &tensor, format).unwrap();
        assert!((scales[0] / scale - 1.0).abs() < 1e-6, "{format:?} {row:?}: {scales:?}");
        let mut out = Vec::new();
        write_rows(&tensor, format, &scales, &mut out).unwrap();
        assert_eq!(
            (&out[..], quantised_bytes(&tensor, format)),
            (bytes, Some(bytes.len() as u64)),
            "{format:?} {row:?}"
        );
    }
    let error = row_scales("w", &tensor(&[1, 2], &[1.0, f32::NAN]), WeightFormat::Int8).unwrap_err();
    assert_eq!(error.diagnostics()[0].code, Code::NonFiniteWeights);
}

/// Batches of rows, odd and even columns, more elements than a batch: each number is the nearest.
#[test]
fn matrices_are_rounded_in_batches() {
    for (rows, cols) in [(1, 1), (3, 5), (7, 3), (5, 1 << 19), (3, (1 << 20) + 1)] {
        let numbers: Vec<f32> = (0..rows * cols).map(|i| ((i * 7919) % 1009) as f32 / 500.0 - 1.0).collect();
        let tensor = tensor(&[rows, cols], &numbers);
        for format in WeightFormat::ALL {
            let scales = row_scales("w", &tensor, format).unwrap();
            let mut out = Vec::new();
            write_rows(&tensor, format, &scales, &mut out).unwrap();
            assert_eq!(Some(out.len() as u64), quantised_bytes(&tensor, format));
            for (i, x) in numbers.iter().enumerate() {
                let q = match format {
                    WeightFormat::Int16 => i16::from_le_bytes([out[2 * i], out[2 * i + 1]]),
                    WeightFormat::Int8 => i16::from(out[i] as i8),
                    WeightFormat::Int4 => i16::from((out[i / 2] >> (4 * (i % 2)) << 4) as i8 >> 4),
                };
                let scale = scales[i / cols];
                assert!((f32::from(q) * scale - x).abs() <= 0.5001 * scale, "{rows} {cols} {format:?} {i}: {q} {x}");
            }
        }
    }
}

#[test]
fn a_table_fits_its_port_or_says_why() {
    let table = tensor(&[2, 2], &[1.0, -1.00001, 0.5, 0.25]);
    let scale = 1.0 / INT16_MAX;
    assert_eq!(saturated("t", &table, scale), Ok(1));
    assert_eq!(saturated("t", &table, 1.1 * scale), Ok(0));
    let error = saturated("t", &table, 0.9 * scale).unwrap_err();
    assert_eq!(error.diagnostics()[0].have.as_deref(), Some("2 numbers that are larger or NaN, up to 1.00001"));
    let mut out = Vec::new();
    write_rows(&table, WeightFormat::Int16, &[scale], &mut out).unwrap();
    let numbers: Vec<i16> = out.chunks(2).map(|b| i16::from_le_bytes([b[0], b[1]])).collect();
    assert_eq!(numbers, [32767, -32767, 16384, 8192]);
    assert_eq!(to_f32(&table)[1], -1.00001);
}
