//! Graphs written by hand, replayed through Qualcomm's libraries in a worker of the program, against formulas in f64.
//! The libraries are fetched with pip on first use.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs)]
// Tables of cases are as long as they have to be, and a test stops at a format that it has no case for.
#![allow(clippy::too_many_lines, clippy::wildcard_enum_match_arm)]

use npuc::DType;
use npuc::back::qnn::description::{DataType, Param, Role};
use npuc::exec::to_f32;
use npuc::tensor::Tensor;

#[path = "qnn/contexts.rs"]
mod contexts;
#[path = "qnn/net.rs"]
mod net;
#[path = "qnn/ops.rs"]
mod ops;

use net::{Net, matrix, noise, prepare, sqnr_db, u16_around_0, worker};

/// A projection of `rows` rows as a convolution of one pixel.
fn projection(name: &str, weight: Tensor, rows: u32, dtype: DataType, largest: f32) -> Net {
    let [outputs, inputs] = [weight.shape[0] as u32, weight.shape[1] as u32];
    let float = dtype == DataType::F16;
    let encoding = |largest| if float { None } else { u16_around_0(largest) };
    let mut net = Net::new(name);
    let x = net.tensor("x", Role::Input, dtype, &[1, 1, rows, inputs], encoding(1.0));
    let filter_dtype = if weight.dtype == DType::F16 { DataType::F16 } else { DataType::S8 };
    let filter = net.tensor("w", Role::Filter("w".into()), filter_dtype, &[1, 1, inputs, outputs], None);
    let y = net.tensor("y", Role::Output, dtype, &[1, 1, rows, outputs], encoding(largest));
    let stride = net.numbers("stride", DataType::U32, &[2], &[1, 1]);
    let pad = net.numbers("pad", DataType::U32, &[2, 2], &[0; 4]);
    let params = [("stride", Param::Tensor(stride)), ("pad_amount", Param::Tensor(pad))];
    net.node("Conv2d", &params, &[x, filter], &[y]);
    net.weights.insert("w".into(), weight);
    net
}

/// What the projection computes, over the numbers that `x` becomes.
fn projected(weight: &Tensor, x: &[f32], round: impl Fn(f32) -> f32) -> Vec<f64> {
    let [outputs, inputs] = [weight.shape[0], weight.shape[1]];
    let w = to_f32(weight);
    let x: Vec<f32> = x.iter().map(|x| round(*x)).collect();
    let row = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
    let mut y = Vec::with_capacity(x.len() / inputs * outputs);
    for x in x.chunks(inputs) {
        y.extend(w.chunks(inputs).map(|w| row(x, w)));
    }
    y
}

#[test]
fn projections_in_every_format() {
    let mut worker = worker();
    for soc in [57, 69] {
        for (weight, dtype, least_db) in [
            (DType::Int8, DataType::U16, 78.0),
            (DType::Int4, DataType::U16, 60.0),
            (format("lpbq4-g32"), DataType::U16, 78.0),
            (DType::F16, DataType::F16, 65.0),
            (DType::Int8, DataType::F16, 65.0),
            (DType::Int4, DataType::F16, 65.0),
            (format("bw4-g32"), DataType::F16, 55.0),
        ] {
            let (inputs, outputs, rows) = (128, 96, 32);
            let weight = matrix(weight, outputs, inputs, 7);
            let x = noise(rows * inputs, 3);
            let expected = projected(&weight, &x, if dtype == DataType::F16 { in_f16 } else { in_u16 });
            let largest = expected.iter().fold(0.0, |largest: f64, y| largest.max(y.abs())) as f32;
            let net = projection("g", weight.clone(), rows as u32, dtype, largest);
            let context = prepare(&mut worker, &net, soc).unwrap_or_else(|e| panic!("{}: {e}", weight.dtype));
            let y = worker.run(&context, 0, &[&x]).unwrap();
            let db = sqnr_db(&y[0], &expected);
            eprintln!("soc {soc} {} {dtype:?}: {db:.1} dB", weight.dtype);
            assert!(db >= least_db, "soc {soc}, {} with {dtype:?}: {db:.1} dB", weight.dtype);
        }
    }
}

fn format(name: &str) -> DType {
    DType::from_name(name).unwrap()
}

fn in_u16(x: f32) -> f32 {
    (x * 32768.0).round().clamp(-32768.0, 32767.0) / 32768.0
}

fn in_f16(x: f32) -> f32 {
    half::f16::from_f32(x).to_f32()
}
