//! All linear layers of a 135M-parameter Llama (hidden 576, 30 layers) for one decode step and one prefill
//! chunk, and single layers in every format. Threads: `RAYON_NUM_THREADS`, or else all.

#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use npuc_kernels::DType;
use npuc_kernels::linear::{Matrix, linear};

const LAYERS: usize = 30;
const HIDDEN: usize = 576;
const FFN: usize = 1536;
/// Rows and columns of q, k, v, o, gate, up and down.
const LAYER: [(usize, usize); 7] =
    [(HIDDEN, HIDDEN), (192, HIDDEN), (192, HIDDEN), (HIDDEN, HIDDEN), (FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN)];
const HEAD: (usize, usize) = (49152, HIDDEN);

struct Weight {
    bytes: Vec<u8>,
    rows: usize,
    cols: usize,
}

/// Bytes that are finite in every format.
fn weight(dtype: DType, (rows, cols): (usize, usize)) -> Weight {
    let len = dtype.row_bytes(cols).expect("blocks divide the columns") * rows;
    Weight { bytes: (0..len).map(|i| (i * 7 % 60) as u8).collect(), rows, cols }
}

fn run(dtype: DType, weights: &[Weight], x: &[f32], tokens: usize, out: &mut [f32]) {
    for w in weights {
        let matrix = Matrix { dtype, bytes: &w.bytes, rows: w.rows, cols: w.cols };
        linear(&x[..tokens * w.cols], tokens, matrix, None, &mut out[..tokens * w.rows]);
    }
    black_box(out);
}

fn model(c: &mut Criterion) {
    let mut group = c.benchmark_group("model");
    group.sample_size(10).measurement_time(Duration::from_secs(4));
    let mut x = vec![0.5f32; 128 * FFN];
    x.iter_mut().enumerate().for_each(|(i, v)| *v = (i % 17) as f32 * 0.1 - 0.8);
    let mut out = vec![0.0f32; 128 * FFN.max(HEAD.0 / 32)];
    for dtype in [DType::Q4_1, DType::Q4_0, DType::Q8_0, DType::F16] {
        let mut weights: Vec<Weight> = (0..LAYERS).flat_map(|_| LAYER).map(|shape| weight(dtype, shape)).collect();
        weights.push(weight(dtype, HEAD));
        group.bench_function(BenchmarkId::new("decode", dtype), |b| b.iter(|| run(dtype, &weights, &x, 1, &mut out)));
        weights.pop();
        if dtype == DType::Q4_1 {
            group.bench_function(BenchmarkId::new("prefill128", dtype), |b| {
                b.iter(|| run(dtype, &weights, &x, 128, &mut out));
            });
        }
    }
    group.finish();
}

fn formats(c: &mut Criterion) {
    let mut group = c.benchmark_group("layer1536x768");
    group.sample_size(20).measurement_time(Duration::from_secs(1)).warm_up_time(Duration::from_millis(300));
    let x = vec![0.25f32; 128 * 768];
    let mut out = vec![0.0f32; 128 * FFN];
    for dtype in DType::ALL {
        let weights = [weight(dtype, (FFN, 768))];
        for tokens in [1, 4, 8, 128] {
            group.throughput(Throughput::Elements((2 * FFN * 768 * tokens) as u64));
            let id = BenchmarkId::new(dtype.name(), tokens);
            group.bench_function(id, |b| b.iter(|| run(dtype, &weights, &x, tokens, &mut out)));
        }
    }
    group.finish();
}

criterion_group!(benches, model, formats);
criterion_main!(benches);
