//! Rows of f32 to every format, by magnitude and by search, and back: elements a second on one core.

#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use npuc_kernels::DType;
use npuc_kernels::dequant::dequantize_row;
use npuc_kernels::format::Group;
use npuc_kernels::quantize::{Search, quantize_row};

/// Columns of a common row.
const COLS: usize = 2048;
/// Formats of which one group stands for all.
const DTYPES: [DType; 10] = [
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q8_0,
    DType::Int8,
    DType::Int4,
    DType::Lpbq4(Group::G32),
    DType::Bw4(Group::G32),
    DType::Bw4(Group::G128),
];

/// Values that are roughly normal, the same each time.
fn row() -> Vec<f32> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..COLS).map(|_| (0..6).map(|_| uniform()).sum::<f32>() * 0.03).collect()
}

fn formats(c: &mut Criterion) {
    let row = row();
    let mut group = c.benchmark_group("quantize");
    group.sample_size(10).measurement_time(Duration::from_millis(500)).warm_up_time(Duration::from_millis(200));
    group.throughput(Throughput::Elements(COLS as u64));
    for dtype in DTYPES {
        let mut stored = vec![0; dtype.row_bytes(COLS).expect("blocks divide the row")];
        for (name, search) in [("plain", Search::Plain), ("error", Search::Error)] {
            if search == Search::Error && !dtype.is_block() {
                continue;
            }
            group.bench_function(BenchmarkId::new(name, dtype), |b| {
                b.iter(|| quantize_row(dtype, black_box(&row), None, search, &mut stored));
            });
        }
        let mut values = vec![0.0; COLS];
        group.bench_function(BenchmarkId::new("back", dtype), |b| {
            b.iter(|| dequantize_row(dtype, black_box(&stored), &mut values));
        });
    }
    group.finish();
}

criterion_group!(benches, formats);
criterion_main!(benches);
