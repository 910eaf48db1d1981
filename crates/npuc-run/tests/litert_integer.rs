//! Every operation in int16 in the LiteRT interpreter against the host executor, which computes in f32 over the same
//! rounded inputs and weights: what is left is the rounding of results. `cargo xtask litert` installs the interpreter and
//! sets `NPUC_LITERT`; without that nothing is run here, and the tests say so.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeMap;

use npuc::back::tflite::Storage;
use npuc::exec::Executor;
use npuc::ir::{Def, Graph, GraphBuilder, Op, ValueId};
use npuc::quant::{self, INT16_MAX, Recorder, WeightFormat};
use npuc::tensor::{DType, Shape, Tensor};
use npuc_run::device::litert::LiteRt;
use npuc_run::device::port::PortFormat;

mod data;
mod integer;

use integer::{litert, load, rounded, tensor};

/// Numbers between -1 and 1 that look random.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A graph of one operation or a few, inputs by factors of [`numbers`] and an offset, weights, and how many steps of the
/// result's scale the results may be off, in all and for each step of rounding inside.
#[derive(Clone)]
struct Case {
    name: &'static str,
    inputs: &'static [(&'static [usize], f32, f32)],
    weights: &'static [(&'static [usize], f32)],
    build: fn(&mut GraphBuilder, &[ValueId], &[ValueId]) -> ValueId,
    format: WeightFormat,
    steps: f32,
}

fn one(op: Op) -> impl Fn(&mut GraphBuilder, &[ValueId]) -> ValueId {
    move |g, args| g.op("p", op.clone(), args)
}

/// Rounding once gives half a step. The interpreter's fixed-point multiplication rounds twice, which is a little more;
/// what is larger is said beside the case.
const ONCE: f32 = 0.51;
/// Rounding to a quarter or less of a step before the last rounding.
const TWICE: f32 = 0.75;
/// Sums in 64 bits are multiplied by a factor of 16 bits, which is half a step off at the largest results.
const SHORT_FACTOR: f32 = 1.0;

const fn case(
    name: &'static str,
    inputs: &'static [(&'static [usize], f32, f32)],
    build: fn(&mut GraphBuilder, &[ValueId], &[ValueId]) -> ValueId,
    steps: f32,
) -> Case {
    Case { name, inputs, weights: &[], build, format: WeightFormat::Int8, steps }
}

const fn projection(
    name: &'static str,
    inputs: &'static [(&'static [usize], f32, f32)],
    weights: &'static [(&'static [usize], f32)],
    format: WeightFormat,
) -> Case {
    let steps = match format {
        WeightFormat::Int16 => SHORT_FACTOR,
        WeightFormat::Int8 | WeightFormat::Int4 => ONCE,
    };
    Case { name, inputs, weights, build: |g, x, w| one(Op::Linear {})(g, &[x, w].concat()), format, steps }
}

const A: (&[usize], f32, f32) = (&[3, 2, 8], 5.0, 0.0);
const B: (&[usize], f32, f32) = (&[2, 8], 0.3, 0.0);

/// A table of positions beside a computed value. It has one scale, and is rounded to int16 before the sum is.
fn tables() -> Vec<Case> {
    let table = |name, weights| Case {
        weights,
        build: |g: &mut GraphBuilder, x: &[ValueId], w: &[ValueId]| one(Op::Add {})(g, &[x, w].concat()),
        ..case(name, &[(&[6, 8], 5.0, 0.0)], |_, x, _| x[0], TWICE)
    };
    vec![table("a table", &[(&[6, 8], 0.7)]), table("a table of smaller numbers", &[(&[6, 8], 0.01)])]
}

fn arithmetic() -> Vec<Case> {
    vec![
        case("add", &[A, (&[3, 2, 8], 0.7, 0.0)], |g, x, _| one(Op::Add {})(g, x), ONCE),
        case("add, broadcast", &[A, B], |g, x, _| one(Op::Add {})(g, x), ONCE),
        case("sub", &[A, (&[3, 2, 8], 90.0, 0.0)], |g, x, _| one(Op::Sub {})(g, x), ONCE),
        case("sub, broadcast", &[A, B], |g, x, _| one(Op::Sub {})(g, x), ONCE),
        case("mul", &[A, (&[3, 2, 8], 0.7, 0.0)], |g, x, _| one(Op::Mul {})(g, x), ONCE),
        case("mul, broadcast", &[A, B], |g, x, _| one(Op::Mul {})(g, x), ONCE),
        case("div", &[A, (&[3, 2, 8], 0.5, 1.5)], |g, x, _| one(Op::Div {})(g, x), ONCE),
        case("div, broadcast", &[A, (&[3, 2, 1], 0.5, 1.5)], |g, x, _| one(Op::Div {})(g, x), ONCE),
        case("affine, product", &[A], |g, x, _| one(Op::Affine { scale: -0.3, offset: 0.0 })(g, x), ONCE),
        case("affine, sum", &[A], |g, x, _| one(Op::Affine { scale: 1.0, offset: -2.5 })(g, x), ONCE),
        // The product is rounded to a scale of its own first, which is at most the result's here.
        case("affine, both", &[A], |g, x, _| one(Op::Affine { scale: 3.0, offset: 2.0 })(g, x), 2.0 * ONCE),
        case("sum", &[A], |g, x, _| one(Op::Sum { axis: 2 })(g, x), ONCE),
        case("sum of an inner axis", &[A], |g, x, _| one(Op::Sum { axis: 1 })(g, x), ONCE),
        case("mean", &[A], |g, x, _| one(Op::Mean { axis: 2 })(g, x), TWICE),
        case("mean of 1000", &[(&[2, 1000], 1.0, 0.4)], |g, x, _| one(Op::Mean { axis: 1 })(g, x), TWICE),
        // A table of straight pieces, whose ends are rounded.
        case("sigmoid", &[(&[4, 64], 8.0, 0.0)], |g, x, _| one(Op::Sigmoid {})(g, x), 1.0),
        case("sigmoid, wide", &[(&[4, 64], 60.0, 0.0)], |g, x, _| one(Op::Sigmoid {})(g, x), 1.0),
        // A table of straight pieces, as wide as the operand's range, which bend where the function does.
        case("gelu", &[(&[4, 64], 3.0, 0.0)], |g, x, _| one(Op::Gelu {})(g, x), 1.5),
        case("gelu, wide", &[(&[4, 64], 40.0, 0.0)], |g, x, _| one(Op::Gelu {})(g, x), 1.5),
        case("abs", &[A], |g, x, _| one(Op::Abs {})(g, x), ONCE),
        // In f32 between a DEQUANTIZE and a QUANTIZE.
        case("exp", &[(&[4, 64], 2.0, -2.0)], |g, x, _| one(Op::Exp {})(g, x), ONCE),
        case("rsqrt", &[(&[4, 64], 50.0, 50.01)], |g, x, _| one(Op::Rsqrt {})(g, x), ONCE),
    ]
}

/// What only moves numbers has the scale of its operands; two of them share the larger one.
fn moves() -> Vec<Case> {
    vec![
        case("max", &[A], |g, x, _| one(Op::Max { axis: 2 })(g, x), 0.0),
        case("concat", &[A, (&[3, 5, 8], 5.0, 0.0)], |g, x, _| one(Op::Concat { axis: 1 })(g, x), ONCE),
        case("slice", &[A], |g, x, _| one(Op::Slice { axis: 2, start: 3, len: 4 })(g, x), 0.0),
        case("reshape", &[A], |g, x, _| one(Op::Reshape { shape: vec![6, 8] })(g, x), 0.0),
        case("transpose", &[A], |g, x, _| one(Op::Transpose { perm: vec![1, 0, 2] })(g, x), 0.0),
    ]
}

fn products() -> Vec<Case> {
    const X: (&[usize], f32, f32) = (&[5, 64], 3.0, 0.0);
    vec![
        case(
            "matmul",
            &[A, (&[3, 8, 4], 2.0, 0.0)],
            |g, x, _| one(Op::MatMul { transpose_b: false })(g, x),
            SHORT_FACTOR,
        ),
        case(
            "matmul of rows",
            &[A, (&[3, 4, 8], 2.0, 0.0)],
            |g, x, _| one(Op::MatMul { transpose_b: true })(g, x),
            SHORT_FACTOR,
        ),
        // 4096 products of the largest numbers leave 32 bits by far.
        case(
            "matmul, long",
            &[(&[1, 2, 4096], 0.01, 1.0), (&[1, 3, 4096], 0.01, 1.0)],
            |g, x, _| one(Op::MatMul { transpose_b: true })(g, x),
            SHORT_FACTOR,
        ),
        projection("linear", &[X], &[(&[7, 64], 0.2)], WeightFormat::Int8),
        projection("linear with a bias", &[X], &[(&[7, 64], 0.2), (&[7], 3.0)], WeightFormat::Int8),
        projection("linear of rank 3", &[(&[1, 5, 64], 3.0, 0.0)], &[(&[7, 64], 0.2), (&[7], 3.0)], WeightFormat::Int8),
        projection("linear to one channel", &[X], &[(&[1, 64], 0.2), (&[1], 3.0)], WeightFormat::Int8),
        projection("linear, long", &[(&[2, 4096], 0.01, 1.0)], &[(&[3, 4096], 1.0)], WeightFormat::Int8),
        projection("linear in int16", &[X], &[(&[7, 64], 0.2)], WeightFormat::Int16),
        projection("linear in int16 with a bias", &[X], &[(&[7, 64], 0.2), (&[7], 3.0)], WeightFormat::Int16),
        projection("linear in int16, long", &[(&[2, 4096], 0.01, 1.0)], &[(&[3, 4096], 1.0)], WeightFormat::Int16),
        projection("linear in int4", &[X], &[(&[7, 64], 0.2)], WeightFormat::Int4),
        projection("linear in int4 with a bias", &[X], &[(&[7, 64], 0.2), (&[7], 3.0)], WeightFormat::Int4),
        projection("linear in int4, odd", &[(&[5, 63], 3.0, 0.0)], &[(&[7, 63], 0.2), (&[7], 3.0)], WeightFormat::Int4),
        projection("linear in int4, long", &[(&[2, 4096], 0.01, 1.0)], &[(&[3, 4096], 1.0)], WeightFormat::Int4),
    ]
}

/// `x / sqrt(mean(x²) + eps)` in plain operations.
fn norm(g: &mut GraphBuilder, x: ValueId) -> ValueId {
    let squares = g.op("norm", Op::Mul {}, &[x, x]);
    let mean = g.op("norm", Op::Mean { axis: 1 }, &[squares]);
    let mean = g.op("norm", Op::Affine { scale: 1.0, offset: 1e-6 }, &[mean]);
    let factor = g.op("norm", Op::Rsqrt {}, &[mean]);
    g.op("norm", Op::Mul {}, &[x, factor])
}

/// The same with squares below 1: by the largest magnitude and 1 first.
fn norm_by_largest(g: &mut GraphBuilder, x: ValueId) -> ValueId {
    let at = "norm";
    let negative = g.op(at, Op::Affine { scale: -1.0, offset: 0.0 }, &[x]);
    let both = g.op(at, Op::Concat { axis: 1 }, &[x, negative]);
    let largest = g.op(at, Op::Max { axis: 1 }, &[both]);
    let largest = g.op(at, Op::Affine { scale: 1.0, offset: 1.0 }, &[largest]);
    let y = g.op(at, Op::Div {}, &[x, largest]);
    let squares = g.op(at, Op::Mul {}, &[y, y]);
    let mean = g.op(at, Op::Mean { axis: 1 }, &[squares]);
    let mean = g.op(at, Op::Affine { scale: 1.0, offset: 1e-9 }, &[mean]);
    let factor = g.op(at, Op::Rsqrt {}, &[mean]);
    g.op(at, Op::Mul {}, &[y, factor])
}

/// Layer normalisation in plain operations, with a gain and a bias of 1.
fn layer_norm(g: &mut GraphBuilder, x: ValueId) -> ValueId {
    let at = "norm";
    let mean = g.op(at, Op::Mean { axis: 1 }, &[x]);
    let centred = g.op(at, Op::Sub {}, &[x, mean]);
    let squares = g.op(at, Op::Mul {}, &[centred, centred]);
    let mean = g.op(at, Op::Mean { axis: 1 }, &[squares]);
    let mean = g.op(at, Op::Affine { scale: 1.0, offset: 1e-5 }, &[mean]);
    let factor = g.op(at, Op::Rsqrt {}, &[mean]);
    let normed = g.op(at, Op::Mul {}, &[centred, factor]);
    g.op(at, Op::Affine { scale: 1.0, offset: 1.0 }, &[normed])
}

/// Rows of every size beside each other, as the tokens of a model have them, and one number that is far larger: what
/// in int16 would be off by thousands of steps is off by half a one, since a norm is computed in f32.
#[test]
fn norms_of_rows_of_every_size() {
    let Some(mut litert) = litert() else { return };
    for (name, build) in [
        ("plain", norm as fn(&mut GraphBuilder, ValueId) -> ValueId),
        ("by the largest", norm_by_largest),
        ("less the mean", layer_norm),
    ] {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", [5, 64]);
        let y = build(&mut g, x);
        let y = g.op("out", Op::Reshape { shape: vec![1, 5, 64] }, &[y]);
        g.output("y", y);
        let graph = g.finish();
        let mut x = numbers(5 * 64, 3);
        for (row, factor) in x.chunks_mut(64).zip([100.0, 10.0, 1.0, 0.3, 1.0]) {
            row.iter_mut().for_each(|x| *x *= factor);
        }
        x[4 * 64] = 99.0;
        on_steps(&mut x);
        let (off, scale) = compare(&mut litert, &graph, &[x]);
        eprintln!("norm, {name}: off by {off:.3} steps of {scale:e}");
        assert!(off <= ONCE + 0.01, "{name}: {off}");
    }
}

/// Scores that a mask hides or not. The interpreter's table of exponentials ends at e^-10, which is two steps of
/// 1/32768, so that each hidden score weighs as much however low it is; the visible ones lack that.
#[test]
fn a_mask_hides() {
    let Some(mut litert) = litert() else { return };
    for (range, columns, every) in
        [(0.5f32, 12, 4), (20.0, 12, 4), (300.0, 12, 4), (20.0, 1024, 4), (20.0, 1024, 512), (20.0, 1024, 1024)]
    {
        let mut g = GraphBuilder::new("g");
        let scores = g.input("scores", [2, 3, columns]);
        let mask = g.input("mask", [1, 1, 3, columns]);
        let mask = g.op("mask", Op::Reshape { shape: vec![3, columns] }, &[mask]);
        let sum = g.op("p", Op::Add {}, &[scores, mask]);
        let weights = g.op("p", Op::Softmax {}, &[sum]);
        g.output("y", weights);
        let graph = g.finish();
        let mut scores: Vec<f32> = numbers(6 * columns, 5).iter().map(|x| x * range).collect();
        on_steps(&mut scores);
        let mask: Vec<f32> = (0..3 * columns).map(|i| if i % columns % every == 1 { 0.0 } else { -1e9 }).collect();
        let mut executor = Executor::new(&graph, &BTreeMap::new(), &[]).unwrap();
        let given = [scores, mask.clone()];
        let mut recorder = Recorder::new(&graph);
        executor.run_observed(&[&given], &mut |value, elements| recorder.see(value, elements));
        let ranges = recorder.ranges().unwrap();
        let model = load(
            &mut litert,
            &graph,
            &BTreeMap::new(),
            Storage::Integer { weights: WeightFormat::Int8, ranges: &ranges },
        );
        let have = litert.run(&model, &[&given[0], &given[1]]).unwrap().remove(0);
        let (mut hidden, mut off) = (0.0f32, 0.0f32);
        for (i, (have, need)) in have.iter().zip(executor.output(0)).enumerate() {
            match mask[i % mask.len()] {
                0.0 => off = off.max((have - need).abs() * 32768.0),
                _ => hidden = hidden.max(have * 32768.0),
            }
        }
        // Two scores are half a step off each, their difference as much, and its exponential as much relative to 1; the
        // difference is rounded to steps of 10/65536, and the table's numbers to steps of the result.
        let score_step = (range + quant::MASK_MARGIN) / INT16_MAX;
        let bound = 32768.0 * score_step + 2.0 * columns as f32 + 6.0;
        eprintln!(
            "mask, scores within {range}, {columns} columns: hidden {hidden}, visible off by {off:.2} of 1/32768, at most {bound:.1}"
        );
        assert!(hidden <= 2.0 && off <= bound, "{range} {columns}: {hidden} {off}");
    }
}

/// Inputs as the numbers of their ports.
fn on_steps(values: &mut [f32]) -> f32 {
    let largest = values.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let scale = largest / INT16_MAX;
    values.iter_mut().for_each(|x| *x = (*x / scale).round() * scale);
    largest
}

/// How many steps of its scale the result of a graph is off, and that scale. The file has the weights `stored`, the host
/// computes over `held`.
fn compare_over(
    litert: &mut LiteRt,
    graph: &Graph,
    given: &[Vec<f32>],
    stored: &BTreeMap<String, Tensor>,
    held: &BTreeMap<String, Tensor>,
    format: WeightFormat,
) -> (f32, f32) {
    let mut executor = Executor::new(graph, held, &[]).unwrap();
    let mut recorder = Recorder::new(graph);
    executor.run_observed(&[given], &mut |value, elements| recorder.see(value, elements));
    let ranges = recorder.ranges().unwrap();
    let model = load(litert, graph, stored, Storage::Integer { weights: format, ranges: &ranges });
    let inputs: Vec<&[f32]> = given.iter().map(Vec::as_slice).collect();
    let have = litert.run(&model, &inputs).unwrap().remove(0);
    let PortFormat::Int16(npuc::quant::Encoding { scale, .. }) = model.outputs[0].format else {
        panic!("the result is not int16")
    };
    let off = have.iter().zip(executor.output(0)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / scale;
    (off, scale)
}

fn compare(litert: &mut LiteRt, graph: &Graph, given: &[Vec<f32>]) -> (f32, f32) {
    compare_over(litert, graph, given, &BTreeMap::new(), &BTreeMap::new(), WeightFormat::Int8)
}

#[test]
fn every_operation_in_int16() {
    let Some(mut litert) = litert() else { return };
    let mut faults = Vec::new();
    for Case { name, inputs, weights, build, format, steps } in [arithmetic(), tables(), moves(), products()].concat() {
        let mut g = GraphBuilder::new("g");
        let mut given: Vec<Vec<f32>> = Vec::new();
        let mut ports = Vec::new();
        for (i, (shape, factor, offset)) in inputs.iter().enumerate() {
            ports.push(g.input(format!("x{i}"), *shape));
            let mut values = numbers(shape.iter().product(), i as u64 + 1);
            values.iter_mut().for_each(|x| *x = *x * factor + offset);
            on_steps(&mut values);
            given.push(values);
        }
        let (mut stored, mut ids) = (BTreeMap::new(), Vec::new());
        for (i, (shape, factor)) in weights.iter().enumerate() {
            let key = format!("w{i}");
            let values: Vec<f32> = numbers(shape.iter().product(), 77 + i as u64).iter().map(|x| x * factor).collect();
            stored.insert(key.clone(), tensor(Shape::from(*shape), &values));
            ids.push(g.weight(key, DType::F32, *shape));
        }
        let result = build(&mut g, &ports, &ids);
        g.output("y", result);
        let graph = g.finish();
        let projects = graph.values.iter().any(|value| matches!(&value.def, Def::Op { op, .. } if op.is_projection()));
        let held = stored.iter().map(|(key, weight): (&String, &Tensor)| {
            let matrix = projects && weight.shape.len() == 2;
            (key.clone(), if matrix { rounded(key, weight, format) } else { weight.clone() })
        });
        let held = held.collect();
        let (off, scale) = compare_over(&mut litert, &graph, &given, &stored, &held, format);
        eprintln!("{name}: off by {off:.3} steps of {scale:e}");
        // The comparison itself is in f32.
        if off.is_nan() || off > steps + 0.01 {
            faults.push(format!("{name}: {off} steps, at most {steps}"));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}
