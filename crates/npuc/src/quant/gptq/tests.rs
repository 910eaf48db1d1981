//! Tests of rounding against the published algorithm in f64, and against rounding to the nearest.

use std::collections::BTreeMap;

use npuc_kernels::format::Group;

use super::super::hessian::tests::inputs;
use super::super::hessian::{Factor, Hessian, Order};
use super::*;
use crate::tensor::DType;

fn hessian(rows: &[f32], width: usize) -> Hessian {
    let mut hessian = Hessian::new(width);
    hessian.add(rows);
    hessian
}

fn decode(dtype: DType, stored: &[u8], cols: usize) -> Vec<f32> {
    let rows = stored.chunks(dtype.row_bytes(cols).unwrap());
    let decode = |row| {
        let mut out = vec![0.0; cols];
        dequantize_row(dtype, row, &mut out);
        out
    };
    rows.flat_map(decode).collect()
}

/// The upper Cholesky factor of the inverse of a matrix `[n, n]`, the plain way.
fn inverse_factor(matrix: &[f64], n: usize) -> Vec<f64> {
    let mut left = matrix.to_vec();
    let mut inverse: Vec<f64> = (0..n * n).map(|i| if i / n == i % n { 1.0 } else { 0.0 }).collect();
    for k in 0..n {
        let pivot = left[k * n + k];
        (0..n).for_each(|j| {
            left[k * n + j] /= pivot;
            inverse[k * n + j] /= pivot;
        });
        for i in (0..n).filter(|&i| i != k) {
            let factor = left[i * n + k];
            (0..n).for_each(|j| {
                left[i * n + j] -= factor * left[k * n + j];
                inverse[i * n + j] -= factor * inverse[k * n + j];
            });
        }
    }
    let mut upper = vec![0.0; n * n];
    for i in 0..n {
        for j in i..n {
            let done: f64 = (0..i).map(|k| upper[k * n + i] * upper[k * n + j]).sum();
            let rest = inverse[i * n + j] - done;
            upper[i * n + j] = if i == j { rest.sqrt() } else { rest / upper[i * n + i] };
        }
    }
    upper
}

/// GPTQ as published: each error, over the diagonal, times the row of the inverse's factor is taken from later columns.
fn published(row: &[f32], order: &[usize], upper: &[f64], grid: &Grid) -> Vec<f32> {
    let n = row.len();
    let mut rest: Vec<f64> = order.iter().map(|&column| f64::from(row[column])).collect();
    let mut out = vec![0.0; n];
    for (i, &column) in order.iter().enumerate() {
        out[column] = grid.value(column, grid.nearest(column, rest[i] as f32));
        let error = (rest[i] - f64::from(out[column])) / upper[i * n + i];
        (i + 1..n).for_each(|j| rest[j] -= error * upper[i * n + j]);
    }
    out
}

/// Rows as rounded one column after the other, and their numbers.
fn first_choice(weights: &[f32], factor: &Factor, dtype: DType, search: Search) -> (Vec<Row>, Vec<f32>) {
    let cols = factor.order().len();
    let rows = round_rows(weights, factor, dtype, search);
    let values = rows.iter().flat_map(|row| (0..cols).map(|column| row.grid.value(column, row.numbers[column])));
    let values = values.collect();
    (rows, values)
}

/// Numbers that are chosen again have a smaller error, that of the damped inputs.
#[test]
fn a_second_choice_is_better() {
    for (dtype, width, rank, order) in [
        (DType::Int4, 150, 30, Order::Stored),
        (DType::Q4_0, 160, 60, Order::Descending),
        (DType::Bw4(Group::G16), 144, 8, Order::Descending),
    ] {
        let mut hessian = hessian(&inputs(200, width, rank), width);
        let factor = Factor::of(&hessian, 0.01, order).unwrap();
        let weights = inputs(20, width, 70);
        let (mut rows, before) = first_choice(&weights, &factor, dtype, Search::Plain);
        choose_again(&mut rows, &weights, &hessian, &factor);
        let mut stored = vec![0; 20 * dtype.row_bytes(width).unwrap()];
        gptq(&weights, &hessian, &factor, dtype, Search::Plain, &mut stored);
        let after = decode(dtype, &stored, width);
        let values = rows.iter().flat_map(|row| (0..width).map(|column| row.grid.value(column, row.numbers[column])));
        assert!(values.eq(after.iter().copied()), "{dtype}: what is stored is what was chosen");
        // Damping is as good as tokens that have one input each.
        let size = (factor.damping() * hessian.mean_of_diagonal()).sqrt();
        let unit = |i: usize| (0..width).map(move |j| if i == j { size } else { 0.0 });
        hessian.add(&(0..width).flat_map(unit).collect::<Vec<f32>>());
        let (before, after) = (loss(&weights, &before, &hessian), loss(&weights, &after, &hessian));
        assert!(after < 0.99 * before, "{dtype} {order:?}: {after} of {before}");
    }
}

/// The same numbers as the published algorithm, but for a few that lie between two by rounding.
#[test]
fn rounding_is_that_of_the_paper() {
    for (dtype, width, rank, order) in [
        (DType::Int4, 64, 30, Order::Stored),
        (DType::Int4, 64, 30, Order::Descending),
        (DType::Int8, 33, 9, Order::Descending),
        (DType::Q4_0, 160, 60, Order::Stored),
        (DType::Q4_1, 192, 5, Order::Descending),
    ] {
        let rows = inputs(200, width, rank);
        let hessian = hessian(&rows, width);
        let factor = Factor::of(&hessian, 0.01, order).unwrap();
        let mean = f64::from(hessian.mean_of_diagonal());
        let element = |i: usize| {
            let (a, b) = (factor.order()[i / width], factor.order()[i % width]);
            f64::from(hessian.at(a, b)) / mean + if a == b { 0.01 } else { 0.0 }
        };
        let upper = inverse_factor(&(0..width * width).map(element).collect::<Vec<f64>>(), width);
        let weights = inputs(6, width, 50);
        let (_, have) = first_choice(&weights, &factor, dtype, Search::Plain);
        let expected = weights.chunks(width).flat_map(|row| {
            let grid = Grid::fit(dtype, row, None, Search::Plain).unwrap();
            published(row, factor.order(), &upper, &grid)
        });
        let expected: Vec<f32> = expected.collect();
        // A row is the same up to the first number that lies between two; from there on it need not be.
        let same = have.chunks(width).zip(expected.chunks(width)).filter(|(a, b)| a == b).count();
        assert!(same >= 5, "{dtype} {width} {order:?}: {same} of 6 rows are the same");
    }
}

/// Inputs of a kind and a name for it.
fn calibrations(width: usize) -> [(&'static str, Vec<f32>); 5] {
    let mut with_dead = inputs(120, width, 20);
    with_dead.chunks_mut(width).for_each(|row| row[..width / 3].fill(0.0));
    [
        ("correlated", inputs(150, width, 40)),
        ("rank-deficient", inputs(150, width, 3)),
        ("one token", inputs(1, width, 5)),
        ("zeros", vec![0.0; 4 * width]),
        ("dead inputs", with_dead),
    ]
}

/// The formats that npuc writes, by a width for which they are tried: odd where a row may be odd, and more than a block of
/// columns of the factor.
fn formats_by_width() -> BTreeMap<usize, Vec<DType>> {
    let mut formats: BTreeMap<usize, Vec<DType>> = BTreeMap::new();
    for dtype in DType::ALL.into_iter().filter(|&dtype| writable(dtype)) {
        let width = if dtype.block_len() == 1 { 139 } else { 160usize.next_multiple_of(dtype.block_len()) };
        formats.entry(width).or_default().push(dtype);
    }
    formats
}

/// No row of any format loses more than when rounded to the nearest in either way, and the losses are those of the bytes.
#[test]
fn no_row_is_worse_than_rounded_to_the_nearest() {
    for (width, formats) in formats_by_width() {
        let weights = inputs(2, width, 60);
        for (kind, tokens) in calibrations(width) {
            let hessian = hessian(&tokens, width);
            for order in [Order::Stored, Order::Descending] {
                let factor = Factor::of(&hessian, 0.01, order).unwrap();
                for &dtype in &formats {
                    check_rows(&format!("{dtype} {kind} {order:?}"), &weights, dtype, &hessian, &factor);
                }
            }
        }
    }
}

fn check_rows(what: &str, weights: &[f32], dtype: DType, hessian: &Hessian, factor: &Factor) {
    let width = hessian.width();
    let rounded = quantise_matrix("w", weights, dtype, hessian, factor).unwrap();
    let row_bytes = dtype.row_bytes(width).unwrap();
    for (row, (weights, stored)) in weights.chunks(width).zip(rounded.bytes.chunks(row_bytes)).enumerate() {
        let of = |stored: &[u8]| loss(weights, &decode(dtype, stored, width), hessian);
        let kept = of(stored);
        let tolerance = 1e-5 * kept + 1e-12;
        assert!((kept - rounded.losses[row]).abs() <= tolerance, "{what}: {kept} {}", rounded.losses[row]);
        for search in [Search::Plain, Search::Error] {
            let mut stored = vec![0; row_bytes];
            quantize_row(dtype, weights, Some(factor.importance()), search, &mut stored);
            let nearest = of(&stored);
            assert!(kept <= nearest + tolerance, "{what} {search:?}: {kept} > {nearest}");
        }
        assert!(rounded.losses[row] <= rounded.nearest[row], "{what}");
        assert!(dtype.is_block() || rounded.methods[row] == Method::Nearest, "{what}");
    }
}

/// Where inputs go together, most of the error of 4 bits is made up for; chunks of rows are rounded like rows alone.
#[test]
fn errors_are_made_up_for() {
    let (width, rows) = (128, CHUNK_ROWS + 3);
    let hessian = hessian(&inputs(200, width, 40), width);
    let weights = inputs(rows, width, 90);
    for (dtype, most) in [(DType::Int4, 0.5), (DType::Q4_0, 0.5), (DType::Bw4(Group::G32), 0.5)] {
        for order in [Order::Stored, Order::Descending] {
            let factor = Factor::of(&hessian, 0.01, order).unwrap();
            let rounded = quantise_matrix("w", &weights, dtype, &hessian, &factor).unwrap();
            let (kept, nearest): (f64, f64) = (rounded.losses.iter().sum(), rounded.nearest.iter().sum());
            assert!(kept < most * nearest, "{dtype} {order:?}: {kept} of {nearest}");
            assert!(rounded.methods.iter().filter(|&&method| method == Method::Gptq).count() > rows / 2);
            let last = quantise_matrix("w", &weights[(rows - 1) * width..], dtype, &hessian, &factor).unwrap();
            assert!(rounded.bytes.ends_with(&last.bytes), "{dtype} {order:?}");
        }
    }
}

#[test]
fn what_cannot_be_rounded_is_refused() {
    let hessian = hessian(&inputs(4, 64, 2), 64);
    let factor = Factor::of(&hessian, 0.01, Order::Stored).unwrap();
    let of_64 = |x: f32| [&[x][..], &[0.5; 63]].concat();
    for (weights, dtype, code, need) in [
        (of_64(1.0), DType::Q4K, Code::UnsupportedFormat, "f32, f16, bf16, q4_0"),
        (of_64(1.0), DType::Lpbq4(Group::G128), Code::UnsupportedFormat, "rows of a multiple of 128"),
        (of_64(f32::NAN), DType::Int4, Code::NonFiniteWeights, "finite values"),
        (of_64(1e9), DType::Q4_0, Code::BadRange, "numbers within the range of q4_0"),
        (vec![1.0; 63], DType::Int4, Code::WrongShape, "rows of 64 numbers"),
    ] {
        let error = quantise_matrix("w", &weights, dtype, &hessian, &factor).unwrap_err();
        let fault = &error.diagnostics()[0];
        assert_eq!((fault.code, fault.subject.as_deref()), (code, Some("w")));
        assert!(fault.need.as_ref().is_some_and(|text| text.starts_with(need)), "{fault:?}");
    }
}

/// What is gained on the calibration tokens is gained on others of the same kind too, by the first choice and by the second.
#[test]
fn other_tokens_gain_too() {
    let (width, rows, tokens) = (128, 40, 400);
    for rank in [20, 200] {
        let all = inputs(2 * tokens, width, rank);
        let (seen, unseen) = all.split_at(tokens * width);
        let (seen, unseen) = (hessian(seen, width), hessian(unseen, width));
        let weights = inputs(rows, width, 90);
        let factor = Factor::of(&seen, 0.01, Order::Descending).unwrap();
        let rounded = quantise_matrix("w", &weights, DType::Int4, &seen, &factor).unwrap();
        let mut stored = vec![0; rounded.bytes.len()];
        nearest(&weights, DType::Int4, None, width, &mut stored);
        let (_, first) = first_choice(&weights, &factor, DType::Int4, Search::Error);
        let of = |values: &[f32]| loss(&weights, values, &unseen);
        let plain = of(&decode(DType::Int4, &stored, width));
        let (first, second) = (of(&first), of(&decode(DType::Int4, &rounded.bytes, width)));
        assert!(first < 0.6 * plain && second < first, "rank {rank}: {plain}, then {first}, then {second}");
    }
}
