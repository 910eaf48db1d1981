//! Every operation that decoders need, by the names of QNN's parameters, against its formula.

use half::f16;
use npuc::back::qnn::description::{DataType, Param, Role, ScaleOffset};
use npuc::quant::Encoding;

use super::net::{Net, noise, prepare, sqnr_db, u16_around_0, worker};

/// What a value is: its type, extents and encoding.
#[derive(Clone, Debug)]
struct Of(DataType, Vec<u32>, Option<ScaleOffset>);

/// A static tensor as a parameter: name, type, extents, numbers.
type Numbers = (&'static str, DataType, &'static [u32], &'static [i64]);

/// A graph of one operation.
#[derive(Clone)]
struct Case {
    op: &'static str,
    scalars: Vec<(&'static str, Param)>,
    numbers: Vec<Numbers>,
    /// Of them the first are ports, the last `constants` constants.
    inputs: Vec<Of>,
    constants: usize,
    outputs: Vec<Of>,
    /// What the inputs, constants among them, become.
    formula: fn(&[Vec<f64>]) -> Vec<Vec<f64>>,
    least_db: f64,
}

/// An operation without parameters and constants.
fn plain(
    op: &'static str,
    inputs: Vec<Of>,
    outputs: Vec<Of>,
    formula: fn(&[Vec<f64>]) -> Vec<Vec<f64>>,
    least_db: f64,
) -> Case {
    Case { op, scalars: Vec::new(), numbers: Vec::new(), inputs, constants: 0, outputs, formula, least_db }
}

/// Numbers around 0, in f16 or in 16 bits.
fn of(float: bool, shape: &[u32], largest: f32) -> Of {
    match float {
        true => Of(DataType::F16, shape.to_vec(), None),
        false => Of(DataType::U16, shape.to_vec(), u16_around_0(largest)),
    }
}

fn u8(shape: &[u32], largest: f32) -> Of {
    Of(DataType::U8, shape.to_vec(), Some(ScaleOffset { scale: largest / 128.0, offset: -128 }))
}

/// What a number becomes where it enters.
fn entered(of: &Of, x: f32) -> f32 {
    let grid = |of: ScaleOffset, high| Encoding { scale: of.scale, offset: of.offset, low: 0, high };
    match (of.0, of.2) {
        (DataType::U16, Some(of)) => grid(of, 65535).real(grid(of, 65535).quantise(x)),
        (DataType::U8, Some(of)) => grid(of, 255).real(grid(of, 255).quantise(x)),
        (DataType::F16, None) => f16::from_f32(x).to_f32(),
        other => panic!("no such value: {other:?}"),
    }
}

fn check(worker: &mut npuc_run::device::qnn::Qnn, case: &Case, soc: u32) {
    let mut net = Net::new("g");
    let (mut given, mut reals) = (Vec::new(), Vec::new());
    let mut inputs = Vec::new();
    for (at, of) in case.inputs.iter().enumerate() {
        let values = noise(of.1.iter().product::<u32>() as usize, 11 + at as u64);
        reals.push(values.iter().map(|x| f64::from(entered(of, *x))).collect::<Vec<f64>>());
        let constant = at + case.constants >= case.inputs.len();
        let role = if constant { Role::Reals(values.clone()) } else { Role::Input };
        inputs.push(net.tensor(&format!("in{at}"), role, of.0, &of.1, of.2));
        given.extend((!constant).then_some(values));
    }
    let mut params = case.scalars.clone();
    for (name, dtype, shape, numbers) in &case.numbers {
        params.push((name, Param::Tensor(net.numbers(name, *dtype, shape, numbers))));
    }
    let output = |(at, of): (usize, &Of)| net.tensor(&format!("out{at}"), Role::Output, of.0, &of.1, of.2);
    let outputs: Vec<usize> = case.outputs.iter().enumerate().map(output).collect();
    net.node(case.op, &params, &inputs, &outputs);
    let context = prepare(worker, &net, soc).unwrap_or_else(|e| panic!("{} on {soc}: {e}", case.op));
    let given: Vec<&[f32]> = given.iter().map(Vec::as_slice).collect();
    let have = worker.run(&context, 0, &given).unwrap_or_else(|e| panic!("{} on {soc}: {e}", case.op));
    for (have, expected) in have.iter().zip((case.formula)(&reals)) {
        let db = sqnr_db(have, &expected);
        eprintln!("{} {:?} on {soc}: {db:.1} dB", case.op, case.outputs[0].0);
        assert!(db >= case.least_db, "{} {:?} on {soc}: {db:.1} dB", case.op, case.inputs[0].0);
    }
    worker.free(context).unwrap();
}

/// `[outer, axis, inner]` of a value along an axis.
fn lines(x: &[f64], len: usize) -> std::slice::Chunks<'_, f64> {
    x.chunks(len)
}

fn rms_norm(of: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let norm = |row: &[f64]| {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        row.iter().zip(&of[1]).map(|(x, gain)| x * gain / (mean + 1e-5).sqrt()).collect::<Vec<f64>>()
    };
    vec![lines(&of[0], 64).flat_map(norm).collect()]
}

fn layer_norm<const LEN: usize>(of: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let norm = |row: &[f64]| {
        let mean = row.iter().sum::<f64>() / LEN as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / LEN as f64;
        let scaled = row.iter().zip(&of[1]).map(|(x, gain)| (x - mean) * gain / (variance + 1e-5).sqrt());
        scaled.zip(&of[2]).map(|(x, bias)| x + bias).collect::<Vec<f64>>()
    };
    vec![lines(&of[0], LEN).flat_map(norm).collect()]
}

/// With the error function's series `2 / √π · e^(-z²) · Σ 2^n z^(2n+1) / (2n+1)!!`, in which nothing cancels.
fn gelu(of: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let erf = |z: f64| {
        let (mut term, mut sum) = (z, z);
        for n in 1..60 {
            term *= 2.0 * z * z / f64::from(2 * n + 1);
            sum += term;
        }
        sum * (-z * z).exp() * std::f64::consts::FRAC_2_SQRT_PI
    };
    vec![of[0].iter().map(|x| 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))).collect()]
}

fn softmax<const LEN: usize>(of: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let row = |row: &[f64]| {
        let e: Vec<f64> = row.iter().map(|x| (8.0 * x).exp()).collect();
        let sum: f64 = e.iter().sum();
        e.iter().map(|e| e / sum).collect::<Vec<f64>>()
    };
    vec![lines(&of[0], LEN).flat_map(row).collect()]
}

/// `[2, ROWS, 64]` times `[2, COLUMNS, 64]` transposed.
fn matmul<const ROWS: usize, const COLUMNS: usize>(of: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut y = Vec::new();
    for (a, b) in of[0].chunks(ROWS * 64).zip(of[1].chunks(COLUMNS * 64)) {
        for row in a.chunks(64) {
            y.extend(b.chunks(64).map(|column| row.iter().zip(column).map(|(a, b)| a * b).sum::<f64>()));
        }
    }
    vec![y]
}

/// `[2, 8, 64]` times `[2, 64, 32]`.
fn matmul_plain(of: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut y = Vec::new();
    for (a, b) in of[0].chunks(8 * 64).zip(of[1].chunks(64 * 32)) {
        for row in a.chunks(64) {
            y.extend((0..32).map(|n| row.iter().enumerate().map(|(k, a)| a * b[k * 32 + n]).sum::<f64>()));
        }
    }
    vec![y]
}

/// Halves of 16, for `[2, 8, 16]` with cosines and sines `[8, 8]`.
fn rope(of: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut y = Vec::new();
    for head in of[0].chunks(8 * 16) {
        for (at, row) in head.chunks(16).enumerate() {
            let turn = |i: usize| (of[1][at * 8 + i], of[2][at * 8 + i]);
            y.extend((0..8).map(|i| row[i] * turn(i).0 - row[i + 8] * turn(i).1));
            y.extend((0..8).map(|i| row[i + 8] * turn(i).0 + row[i] * turn(i).1));
        }
    }
    vec![y]
}

/// `[2, 8, 64]` and `[1, 8, 64]`, which stands for both.
fn broadcast(of: &[Vec<f64>], each: fn(f64, f64) -> f64) -> Vec<Vec<f64>> {
    vec![of[0].iter().enumerate().map(|(i, x)| each(*x, of[1][i % of[1].len()])).collect()]
}

/// `[2, 8, 64]` with the axes 0 and 1 exchanged.
fn exchanged(of: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let row = |s: usize, h: usize| of[0][(h * 8 + s) * 64..][..64].to_vec();
    vec![(0..8).flat_map(|s| (0..2).flat_map(move |h| row(s, h))).collect()]
}

fn cases(float: bool) -> Vec<Case> {
    let x = of(float, &[1, 2, 8, 64], 1.0);
    let of = |shape: &[u32], largest| of(float, shape, largest);
    let case = |op, inputs, outputs, formula| plain(op, inputs, outputs, formula, 65.0);
    vec![
        Case {
            scalars: vec![("epsilon", Param::F32(1e-5))],
            numbers: vec![("axes", DataType::U32, &[1], &[3])],
            constants: 1,
            ..case("RmsNorm", vec![x.clone(), of(&[64], 1.0)], vec![of(&[1, 2, 8, 64], 3.0)], rms_norm)
        },
        Case {
            scalars: vec![("epsilon", Param::F32(1e-5))],
            numbers: vec![("axes", DataType::U32, &[1], &[3])],
            constants: 2,
            ..case(
                "LayerNorm",
                vec![x.clone(), of(&[64], 1.0), of(&[64], 1.0)],
                vec![of(&[1, 2, 8, 64], 4.0)],
                layer_norm::<64>,
            )
        },
        // The library is off by 6e-4 of numbers up to 1, in both.
        Case { least_db: 58.0, ..case("Gelu", vec![x.clone()], vec![x.clone()], gelu) },
        Case {
            scalars: vec![("axis", Param::U32(3)), ("beta", Param::F32(8.0))],
            least_db: 50.0,
            ..case("Softmax", vec![x.clone()], vec![of(&[1, 2, 8, 64], 1.0)], softmax::<64>)
        },
        Case {
            scalars: vec![("transpose_in0", Param::Bool(false)), ("transpose_in1", Param::Bool(true))],
            ..case("MatMul", vec![x.clone(), of(&[1, 2, 32, 64], 1.0)], vec![of(&[1, 2, 8, 32], 12.0)], matmul::<8, 32>)
        },
        case("MatMul", vec![x.clone(), of(&[1, 2, 64, 32], 1.0)], vec![of(&[1, 2, 8, 32], 12.0)], matmul_plain),
        Case {
            scalars: vec![("interleaved", Param::Bool(false)), ("rotary_embedding_dim", Param::U32(16))],
            ..case(
                "RotaryEmbedding",
                vec![of(&[1, 2, 8, 16], 1.0), of(&[1, 8, 8], 1.0), of(&[1, 8, 8], 1.0)],
                vec![of(&[1, 2, 8, 16], 2.0)],
                rope,
            )
        },
        case("ElementWiseAdd", vec![x.clone(), of(&[1, 1, 8, 64], 1.0)], vec![of(&[1, 2, 8, 64], 2.0)], |of| {
            broadcast(of, |a, b| a + b)
        }),
        case("ElementWiseSubtract", vec![x.clone(), x.clone()], vec![of(&[1, 2, 8, 64], 2.0)], |of| {
            broadcast(of, |a, b| a - b)
        }),
        case("ElementWiseMultiply", vec![x.clone(), of(&[64], 1.0)], vec![x.clone()], |of| broadcast(of, |a, b| a * b)),
        Case {
            least_db: 60.0,
            ..case("Sigmoid", vec![x.clone()], vec![unit(float, &[1, 2, 8, 64])], |of| {
                vec![of[0].iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect()]
            })
        },
        Case {
            numbers: vec![("perm", DataType::U32, &[4], &[0, 2, 1, 3])],
            ..case("Transpose", vec![x.clone()], vec![of(&[1, 8, 2, 64], 1.0)], exchanged)
        },
        case("Reshape", vec![x.clone()], vec![of(&[1, 1, 16, 64], 1.0)], |of| of.to_vec()),
        Case {
            scalars: vec![("axis", Param::U32(2))],
            ..case(
                "Concat",
                vec![of(&[1, 1, 3, 64], 1.0), of(&[1, 1, 5, 64], 1.0)],
                vec![of(&[1, 1, 8, 64], 1.0)],
                |of| vec![of.concat()],
            )
        },
        Case {
            numbers: vec![("ranges", DataType::I32, &[4, 3], &[0, 1, 1, 1, 2, 1, 2, 8, 3, 0, 64, 1])],
            ..case("StridedSlice", vec![x.clone()], vec![of(&[1, 1, 2, 64], 1.0)], |of| {
                let head = &of[0][8 * 64..];
                vec![[&head[2 * 64..3 * 64], &head[5 * 64..6 * 64]].concat()]
            })
        },
        Case {
            scalars: vec![("axis", Param::U32(1))],
            numbers: vec![("split_index", DataType::U32, &[1], &[1])],
            ..case("Split", vec![x.clone()], vec![of(&[1, 1, 8, 64], 1.0), of(&[1, 1, 8, 64], 1.0)], |of| {
                of[0].chunks(8 * 64).map(<[f64]>::to_vec).collect()
            })
        },
    ]
}

/// Numbers from 0 to 1.
fn unit(float: bool, shape: &[u32]) -> Of {
    match float {
        true => Of(DataType::F16, shape.to_vec(), None),
        false => Of(DataType::U16, shape.to_vec(), Some(ScaleOffset { scale: 1.0 / 65536.0, offset: 0 })),
    }
}

/// What leads from one type to another.
fn conversions() -> Vec<Case> {
    let shape = [1, 2, 8, 64];
    let case = |op, from, to, least_db| Case {
        op,
        scalars: Vec::new(),
        numbers: Vec::new(),
        inputs: vec![from],
        constants: 0,
        outputs: vec![to],
        formula: <[Vec<f64>]>::to_vec,
        least_db,
    };
    vec![
        case("Convert", of(false, &shape, 1.0), u8(&shape, 1.0), 45.0),
        case("Convert", u8(&shape, 1.0), of(false, &shape, 1.0), 80.0),
        case("Dequantize", of(false, &shape, 1.0), of(true, &shape, 1.0), 65.0),
        case("Quantize", of(true, &shape, 1.0), of(false, &shape, 1.0), 80.0),
    ]
}

#[test]
fn operations_of_decoders() {
    let mut worker = worker();
    for case in [cases(false), cases(true), conversions()].concat() {
        for soc in [57, 69] {
            check(&mut worker, &case, soc);
        }
    }
}

/// What Whisper's encoder has at its own sizes: 1500 positions, and a norm over several extents, which the library computes rightly
/// where it does not for `RmsNorm`.
fn large(float: bool) -> Vec<Case> {
    let of = |shape: &[u32], largest| of(float, shape, largest);
    let case = |op, inputs, outputs, formula| plain(op, inputs, outputs, formula, 70.0);
    let norm = |shape: &[u32], formula| Case {
        scalars: vec![("epsilon", Param::F32(1e-5))],
        numbers: vec![("axes", DataType::U32, &[1], &[3])],
        constants: 2,
        ..case(
            "LayerNorm",
            vec![of(shape, 1.0), of(&shape[3..], 1.0), of(&shape[3..], 1.0)],
            vec![of(shape, 4.0)],
            formula,
        )
    };
    let heads = of(&[1, 2, 1500, 64], 1.0);
    vec![
        norm(&[1, 4, 32, 64], layer_norm::<64>),
        norm(&[1, 1, 1500, 384], layer_norm::<384>),
        norm(&[1, 1, 1, 512], layer_norm::<512>),
        Case {
            scalars: vec![("transpose_in0", Param::Bool(false)), ("transpose_in1", Param::Bool(true))],
            ..case("MatMul", vec![heads.clone(), heads], vec![of(&[1, 2, 1500, 1500], 16.0)], matmul::<1500, 1500>)
        },
        Case {
            scalars: vec![("axis", Param::U32(3)), ("beta", Param::F32(8.0))],
            least_db: 40.0,
            ..case(
                "Softmax",
                vec![of(&[1, 1, 1500, 1500], 1.0)],
                vec![unit(float, &[1, 1, 1500, 1500])],
                softmax::<1500>,
            )
        },
    ]
}

#[test]
fn operations_of_encoders_of_sound() {
    let mut worker = worker();
    for case in [large(false), large(true)].concat() {
        for soc in [57, 69] {
            check(&mut worker, &case, soc);
        }
    }
}
