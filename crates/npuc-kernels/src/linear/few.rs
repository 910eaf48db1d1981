//! A few tokens at once: every stored row is read once and multiplied with all of them.

use crate::dequant::dequantize;
use crate::level::Level;
use crate::linear::{Matrix, over_rows};
use crate::scratch::{Scratch, SharedOut};

/// The largest number of tokens that the row kernels take.
pub(super) const TOKENS: usize = 4;

/// The result `[T, rows]` while tasks write their rows of it.
pub(super) struct Sink<'a> {
    out: SharedOut<'a>,
    rows: usize,
    bias: Option<&'a [f32]>,
    threads: Threads,
}

/// Who computes the rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Threads {
    /// The calling thread.
    One,
    /// The current rayon pool, if there is work enough.
    Pool,
}

impl Sink<'_> {
    /// Calls `work` with ranges of rows, which start at multiples of `multiple`.
    pub(super) fn over_rows(&self, work_per_row: usize, multiple: usize, work: impl Fn(usize, usize) + Sync) {
        match self.threads {
            Threads::One => work(0, self.rows),
            Threads::Pool => over_rows(self.rows, work_per_row, usize::MAX, multiple, work),
        }
    }

    /// Stores the products of one weight row with each token; a row is stored once.
    pub(super) fn store(&self, row: usize, dots: impl Iterator<Item = f32>) {
        let bias = self.bias.map_or(0.0, |b| b[row]);
        for (token, dot) in dots.enumerate() {
            // SAFETY: each row belongs to one range of `over_rows`, so no two threads share an element, and
            // this part ends before the next one is made.
            unsafe { self.out.part(token * self.rows + row, 1)[0] = dot + bias };
        }
    }
}

pub(super) fn linear(
    level: Level,
    x: &[f32],
    tokens: usize,
    weight: Matrix<'_>,
    bias: Option<&[f32]>,
    out: &mut [f32],
    threads: Threads,
) {
    let sink = Sink { out: SharedOut::new(out), rows: weight.rows, bias, threads };
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(proof) => super::avx2::linear(proof, x, tokens, weight, &sink),
        #[cfg(not(target_arch = "x86_64"))]
        Level::Avx2(_) => portable(x, tokens, weight, &sink),
        Level::Portable => portable(x, tokens, weight, &sink),
    }
}

fn portable(x: &[f32], tokens: usize, weight: Matrix<'_>, sink: &Sink<'_>) {
    sink.over_rows(x.len(), 1, |first, count| {
        let mut values = Scratch::take(weight.cols);
        for row in first..first + count {
            dequantize(Level::Portable, weight.dtype, weight.row(row), &mut values);
            sink.store(row, (0..tokens).map(|t| dot(&values, &x[t * weight.cols..][..weight.cols])));
        }
    });
}

/// The scalar product, in 16 interleaved sums.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [0.0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for l in 0..LANES {
            lanes[l] += a[l] * b[l];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}
