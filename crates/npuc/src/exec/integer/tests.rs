//! Whole numbers against their definitions: integer formulas in i128 written out by hand, and random graphs against the
//! float executor within what rounding can do.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::exec::Executor;
use crate::ir::{Graph, GraphBuilder, Op, ValueId};
use crate::quant::{
    self, Activation, Cache, Encoding, Encodings, Method, Ranges, Recorder, Scheme, WeightFormat, qualcomm,
};
use crate::tensor::{DType, Shape, Tensor};

/// Numbers between -1 and 1 that look random.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn tensor(dtype: DType, shape: &[usize], bytes: Vec<u8>) -> Tensor {
    Tensor::in_memory(dtype, Shape::from(shape), Arc::from(bytes)).unwrap()
}

fn ranges_of(graph: &Graph, weights: &BTreeMap<String, Tensor>, inputs: &[Vec<f32>]) -> Ranges {
    let mut executor = Executor::new(graph, weights, &[]).unwrap();
    let mut recorder = Recorder::new(graph);
    executor.run_observed(&[inputs], &mut |value, elements| recorder.see(value, elements));
    recorder.ranges().unwrap()
}

const U16: Scheme =
    Scheme { activation: Activation::U16, cache: Cache::U16, method: Method::MinMax, float_residual: false };

/// Whole numbers of what an executor gives.
fn whole(numbers: &[f32], encoding: Encoding) -> Vec<i64> {
    numbers.iter().map(|&x| i64::from(encoding.quantise(x))).collect()
}

/// The definition of requantisation; totals below 2^53 are exact in f64.
fn requantised(total: i128, factor: f64, encoding: Encoding) -> i64 {
    let q = (total as f64 * factor).round() as i64 - i64::from(encoding.offset);
    q.clamp(i64::from(encoding.low), i64::from(encoding.high))
}

/// Projections over stored int8, int4 and LPBQ rows, with a bias, in u16 with offsets and in s16, equal the integer formula.
#[test]
fn projections_are_those_of_whole_numbers() {
    let (tokens, rows, cols) = (3, 5, 64);
    // Factors of the numbers in each block, and a block's length.
    for (dtype, known) in [
        (DType::Int8, ([15, 15], 64)),
        (DType::Int4, ([1, 1], 64)),
        (DType::Lpbq4(npuc_kernels::format::Group::G32), ([16, 3], 32)),
    ] {
        for activation in [Activation::U16, Activation::S16, Activation::U8] {
            let mut bytes = Vec::new();
            let mut held: Vec<i128> = Vec::new();
            let scales: Vec<f32> = (0..rows).map(|row| 0.001 * (row + 1) as f32).collect();
            for (row, scale) in scales.iter().enumerate() {
                bytes.extend(scale.to_le_bytes());
                let q: Vec<i128> = (0..cols).map(|col| ((row * 31 + col * 7) % 16) as i128 - 8).collect();
                let (factors, block) = known;
                for (q, factor) in q.chunks(block).zip(factors) {
                    if let DType::Lpbq4(_) = dtype {
                        bytes.push(factor as u8);
                    }
                    match dtype == DType::Int8 {
                        true => bytes.extend(q.iter().map(|&q| (q * factor) as u8)),
                        false => bytes.extend(q.chunks(2).map(|p| (p[0] as u8 & 15) | (p[1] as u8) << 4)),
                    }
                    held.extend(q.iter().map(|q| q * factor));
                }
            }
            let bias: Vec<f32> = numbers(rows, 3);
            let bias_bytes = bias.iter().flat_map(|x| x.to_le_bytes()).collect();
            let weights = BTreeMap::from([
                ("w".to_owned(), tensor(dtype, &[rows, cols], bytes)),
                ("b".to_owned(), tensor(DType::F32, &[rows], bias_bytes)),
            ]);
            let mut g = GraphBuilder::new("g");
            let x = g.input("x", [tokens, cols]);
            let (w, b) = (g.weight("w", dtype, [rows, cols]), g.weight("b", DType::F32, [rows]));
            let y = g.op("p", Op::Linear {}, &[x, w, b]);
            g.output("y", y);
            let graph = g.finish();
            let given: Vec<f32> = numbers(tokens * cols, 7).iter().map(|x| 3.0 * x + 1.0).collect();
            let ranges = ranges_of(&graph, &weights, std::slice::from_ref(&given));
            let encodings = qualcomm(&graph, &ranges, &weights, &Scheme { activation, ..U16 }).unwrap();
            let (ex, ey) = (encodings.get(x).unwrap(), encodings.get(y).unwrap());
            assert_eq!(
                (ex.offset == 0, ey.offset == 0),
                (activation == Activation::S16, activation == Activation::S16)
            );
            let mut executor = Executor::with_encodings(&graph, &weights, &encodings, &[]).unwrap();
            executor.run(&[std::slice::from_ref(&given)]);
            let qx = whole(&given, ex);
            let mut want = Vec::new();
            for qx in qx.chunks(cols) {
                for (row, w) in held.chunks(cols).enumerate() {
                    let product = f64::from(ex.scale) * f64::from(scales[row]);
                    let total: i128 = qx.iter().zip(w).map(|(&q, w)| (i128::from(q) + i128::from(ex.offset)) * w).sum();
                    let total = total + (f64::from(bias[row]) / product).round() as i128;
                    want.push(requantised(total, product / f64::from(ey.scale), ey));
                }
            }
            assert_eq!(whole(executor.output(0), ey), want, "{dtype} {activation:?}");
        }
    }
}

/// Products of activations with offsets equal the integer formula, u8 against u16 too.
#[test]
fn products_of_activations_are_those_of_whole_numbers() {
    let (m, k, n) = (4, 20, 6);
    for (activation, cache) in
        [(Activation::U16, Cache::U8), (Activation::U16, Cache::U16), (Activation::U8, Cache::U8)]
    {
        for transpose_b in [false, true] {
            let mut g = GraphBuilder::new("g");
            let a = g.input("a", [2, m, k]);
            let b = g.input("past_k.0", if transpose_b { [2, n, k] } else { [2, k, n] });
            let y = g.op("p", Op::MatMul { transpose_b }, &[a, b]);
            g.output("y", y);
            let graph = g.finish();
            let given = vec![
                numbers(2 * m * k, 1),
                numbers(2 * k * n, 2).iter().map(|x| x * 40.0 + 10.0).collect::<Vec<f32>>(),
            ];
            let ranges = ranges_of(&graph, &BTreeMap::new(), &given);
            let encodings = qualcomm(&graph, &ranges, &BTreeMap::new(), &Scheme { activation, cache, ..U16 }).unwrap();
            let [ea, eb, ey] = [a, b, y].map(|value| encodings.get(value).unwrap());
            assert_eq!(eb.high, if cache == Cache::U8 { 255 } else { 65535 });
            let mut executor = Executor::with_encodings(&graph, &BTreeMap::new(), &encodings, &[]).unwrap();
            executor.run(&[&given]);
            let (qa, qb) = (whole(&given[0], ea), whole(&given[1], eb));
            let mut want = Vec::new();
            for place in 0..2 * m * n {
                let (matrix, row, col) = (place / (m * n), place / n % m, place % n);
                let total: i128 = (0..k)
                    .map(|i| {
                        let b = if transpose_b { (matrix * n + col) * k + i } else { (matrix * k + i) * n + col };
                        let a = i128::from(qa[(matrix * m + row) * k + i]) + i128::from(ea.offset);
                        a * (i128::from(qb[b]) + i128::from(eb.offset))
                    })
                    .sum();
                let factor = f64::from(ea.scale) * f64::from(eb.scale) / f64::from(ey.scale);
                want.push(requantised(total, factor, ey));
            }
            assert_eq!(whole(executor.output(0), ey), want, "{activation:?} {cache:?} {transpose_b}");
        }
    }
}

/// What a narrower range cuts off is counted at the value that loses it, once a run, and the mask is not.
#[test]
fn saturation_is_counted_by_value() {
    let mut g = GraphBuilder::new("g");
    let (x, mask) = (g.input("x", [1, 4]), g.input("mask", [1, 4]));
    let twice = g.op("twice", Op::Affine { scale: 2.0, offset: 0.0 }, &[x]);
    let masked = g.op("masked", Op::Add {}, &[twice, mask]);
    let weights = g.op("softmax", Op::Softmax {}, &[masked]);
    g.output("y", weights);
    let graph = g.finish();
    let ranges = ranges_of(&graph, &BTreeMap::new(), &[vec![1.0, -1.0, 0.5, 0.0], vec![0.0; 4]]);
    let encodings = qualcomm(&graph, &ranges, &BTreeMap::new(), &U16).unwrap();
    let mut executor = Executor::with_encodings(&graph, &BTreeMap::new(), &encodings, &[]).unwrap();
    executor.run(&[&[vec![1.0, -1.0, 0.5, 0.0], vec![0.0, -1e9, 0.0, -1e9]]]);
    assert_eq!(executor.saturated(), []);
    assert_eq!(executor.output(0)[1], 0.0);
    executor.run(&[&[vec![1.0, -1.5, 0.5, f32::NAN], vec![0.0; 4]]]);
    executor.run(&[&[vec![1.5, -1.5, 0.5, 0.0], vec![0.0; 4]]]);
    let of = |value: ValueId| executor.saturated().iter().find(|(id, _)| *id == value).map(|(_, count)| *count);
    assert_eq!((of(x), of(mask), of(masked)), (Some(4), None, None));
}

/// A float value is rounded for those who read it in whole numbers, and for no one else.
#[test]
fn floats_between_whole_numbers_keep_their_precision() {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", [1, 64]);
    let gain = g.weight("gain", DType::F32, [64]);
    let stream = g.op("layer", Op::Add {}, &[x, x]);
    let normed = g.op("norm", Op::RmsNorm { eps: 0.0 }, &[stream, gain]);
    let product = g.op("layer", Op::Mul {}, &[stream, stream]);
    g.output("normed", normed);
    g.output("product", product);
    g.output("hidden", stream);
    let graph = g.finish();
    let weights = BTreeMap::from([(
        "gain".to_owned(),
        tensor(DType::F32, &[64], [1.0f32; 64].iter().flat_map(|x| x.to_le_bytes()).collect()),
    )]);
    let mut given = numbers(64, 5);
    given[0] = 30_000.0;
    let ranges = ranges_of(&graph, &weights, std::slice::from_ref(&given));
    for (activation, float_residual) in [(Activation::U16, true), (Activation::U16, false), (Activation::F32, false)] {
        let scheme = Scheme { activation, float_residual, ..U16 };
        let encodings = qualcomm(&graph, &ranges, &weights, &scheme).unwrap();
        assert_eq!(encodings.float(stream), activation == Activation::F32 || float_residual);
        let mut executor = Executor::with_encodings(&graph, &weights, &encodings, &[stream]).unwrap();
        executor.run(&[std::slice::from_ref(&given)]);
        let entered = match encodings.get(x) {
            Some(encoding) => encoding.real(encoding.quantise(given[5])),
            None => given[5],
        };
        let sum = entered + entered;
        let rounded = |x: f32| encodings.get(stream).map_or(x, |e| e.real(e.quantise(x)));
        let held = match (activation, float_residual) {
            (Activation::F32, _) => sum,
            (_, true) => half::f16::from_f32(sum).to_f32(),
            (_, false) => rounded(sum),
        };
        assert_eq!(executor.kept(stream).unwrap()[5], held, "{scheme:?}");
        assert_eq!(
            executor.output(2)[5],
            if activation == Activation::F32 { sum } else { rounded(held) },
            "{scheme:?}"
        );
    }
}

#[test]
fn what_cannot_run_in_whole_numbers_says_why() {
    let mut g = GraphBuilder::new("g");
    let q = g.input("q", [1, 1, 2]);
    let past = g.input("past", [1, 3, 2]);
    let mask = g.input("mask", [1, 4]);
    let y = g.op("p", Op::Attention { scale: 1.0 }, &[q, past, past, q, q, mask]);
    g.output("y", y);
    let graph = g.finish();
    let inputs = [vec![1.0; 2], vec![0.5; 6], vec![0.0; 4]];
    let ranges = ranges_of(&graph, &BTreeMap::new(), &inputs);
    let misfit = |error: crate::Error| assert_eq!(error.diagnostics()[0].code, crate::Code::Misfit);
    misfit(qualcomm(&graph, &ranges, &BTreeMap::new(), &U16).unwrap_err());
    let with = |encodings: &Encodings| Executor::with_encodings(&graph, &BTreeMap::new(), encodings, &[]);
    let floats = Scheme { activation: Activation::F32, cache: Cache::F16, ..U16 };
    let encodings_in_floats = qualcomm(&graph, &ranges, &BTreeMap::new(), &floats).unwrap();
    assert!(with(&encodings_in_floats).is_ok());
    let scales = quant::scales(&graph, &ranges, &BTreeMap::new()).unwrap();
    misfit(with(&quant::tflite(&graph, &scales, WeightFormat::Int8)).unwrap_err());
    let mut g = GraphBuilder::new("other");
    let x = g.input("x", [1, 1]);
    g.output("y", x);
    let other = g.finish();
    let error = Executor::with_encodings(&other, &BTreeMap::new(), &encodings_in_floats, &[]).unwrap_err();
    assert_eq!(error.diagnostics()[0].message, "the encodings are those of another graph");
}

/// Matrices of any format are rounded by rows as TFLite files hold them, in all three formats.
#[test]
fn matrices_are_rounded_as_files_hold_them() {
    let (tokens, rows, cols) = (2, 3, 33);
    let matrix: Vec<f32> = numbers(rows * cols, 11);
    let weights = BTreeMap::from([(
        "w".to_owned(),
        tensor(DType::F32, &[rows, cols], matrix.iter().flat_map(|x| x.to_le_bytes()).collect()),
    )]);
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", [tokens, cols]);
    let w = g.weight("w", DType::F32, [rows, cols]);
    let y = g.op("p", Op::Linear {}, &[x, w]);
    g.output("y", y);
    let graph = g.finish();
    let given = numbers(tokens * cols, 12);
    let ranges = ranges_of(&graph, &weights, std::slice::from_ref(&given));
    let scales = quant::scales(&graph, &ranges, &weights).unwrap();
    for format in WeightFormat::ALL {
        let encodings = quant::tflite(&graph, &scales, format);
        let mut executor = Executor::with_encodings(&graph, &weights, &encodings, &[]).unwrap();
        executor.run(&[std::slice::from_ref(&given)]);
        let (ex, ey) = (encodings.get(x).unwrap(), encodings.get(y).unwrap());
        let qx = whole(&given, ex);
        let row_scales = quant::row_scales("w", &weights["w"], format).unwrap();
        let mut want = Vec::new();
        for qx in qx.chunks(cols) {
            for (row, scale) in matrix.chunks(cols).zip(&row_scales) {
                let total: i128 = qx.iter().zip(row).map(|(&q, w)| i128::from(q) * (w / scale).round() as i128).sum();
                want.push(requantised(total, f64::from(ex.scale) * f64::from(*scale) / f64::from(ey.scale), ey));
            }
        }
        assert_eq!(whole(executor.output(0), ey), want, "{format:?}");
    }
}
