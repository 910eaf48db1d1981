//! Stored rows from elements or from numbers of a grid, and ggml's reference quantisers.
//!
//! The pieces are always inlined into what is compiled for each [`Level`].

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::*;

/// Elements that are turned into numbers at once: the longest group, so that pieces are whole blocks.
const PIECE: usize = 512;

/// What a row is made of.
pub(super) enum Source<'a> {
    /// Elements, each to become the nearest number.
    Elements(&'a [f32]),
    /// The numbers themselves.
    Numbers(&'a [i8]),
}

impl Source<'_> {
    /// The numbers of elements `start..start + out.len()`, which share a step.
    #[inline(always)]
    fn numbers<L: Lanes>(&self, dtype: DType, stored: Step, start: usize, out: &mut [i8]) {
        let row = match self {
            Source::Numbers(q) => return out.copy_from_slice(&q[start..][..out.len()]),
            Source::Elements(row) => &row[start..][..out.len()],
        };
        let rounding = Rounding::new(dtype, stored);
        let ((x, x_rest), (q, q_rest)) = (row.as_chunks::<FOUR>(), out.as_chunks_mut::<FOUR>());
        for (q, x) in q.iter_mut().zip(x) {
            *q = nearest::<L>(rounding, x);
        }
        let mut rest = [0.0; FOUR];
        rest[..x_rest.len()].copy_from_slice(x_rest);
        q_rest.copy_from_slice(&nearest::<L>(rounding, &rest)[..q_rest.len()]);
    }
}

/// Elements that become bytes at once.
const FOUR: usize = 4 * LANES;

#[inline(always)]
fn nearest<L: Lanes>(rounding: Rounding<L>, x: &[f32; FOUR]) -> [i8; FOUR] {
    let mut q = vectors::<L>(x);
    for q in &mut q {
        *q = rounding.nearest(*q);
    }
    L::whole(q)
}

#[inline(always)]
fn vectors<L: Lanes>(x: &[f32; FOUR]) -> [L; 4] {
    let (x, _) = x.as_chunks::<LANES>();
    [L::load(&x[0]), L::load(&x[1]), L::load(&x[2]), L::load(&x[3])]
}

laned! {
    /// Writes the stored row.
    pub(super) fn row(grid: &Grid, source: Source<'_>, out: &mut [u8]) = write_row
}

#[inline(always)]
fn write_row<L: Lanes>(grid: &Grid, source: Source<'_>, out: &mut [u8]) {
    let (header, body) = out.split_at_mut(grid.dtype.row_header_bytes());
    header.copy_from_slice(&grid.row_scale.to_le_bytes()[..header.len()]);
    let mut numbers = [0i8; PIECE];
    let run = grid.run();
    if let DType::Int8 | DType::Int4 = grid.dtype {
        let bytes = if grid.dtype == DType::Int8 { PIECE } else { PIECE / 2 };
        for (piece, out) in body.chunks_mut(bytes).enumerate() {
            let q = &mut numbers[..PIECE.min(grid.cols - piece * PIECE)];
            source.numbers::<L>(grid.dtype, grid.steps[0], piece * PIECE, q);
            block::<L>(grid, 0, q, out);
        }
        return;
    }
    for (at, out) in body.chunks_exact_mut(grid.dtype.block_bytes()).enumerate() {
        source.numbers::<L>(grid.dtype, grid.steps[at], at * run, &mut numbers[..run]);
        block::<L>(grid, at, &numbers[..run], out);
    }
}

/// Writes the numbers of step `at` and what is stored before them.
#[inline(always)]
fn block<L: Lanes>(grid: &Grid, at: usize, q: &[i8], out: &mut [u8]) {
    let step = grid.steps[at];
    match grid.dtype {
        DType::Int8 => out.iter_mut().zip(q).for_each(|(o, q)| *o = *q as u8),
        DType::Int4 => neighbours(q, out),
        DType::Lpbq4(_) => {
            // The step is a whole multiple of the row's scale, rounded once: the quotient is near that whole number.
            out[0] = rounded(step.scale / grid.row_scale) as u8;
            neighbours(q, &mut out[1..]);
        }
        DType::Bw4(_) => {
            fields::<L>(&[step.scale, step.min], out);
            neighbours(q, &mut out[4..]);
        }
        DType::Q4_0 => {
            fields::<L>(&[step.scale], out);
            halves(q, 8, &mut out[2..]);
        }
        DType::Q4_1 => {
            fields::<L>(&[step.scale, step.min], out);
            halves(q, 0, &mut out[4..]);
        }
        DType::Q8_0 => {
            fields::<L>(&[step.scale], out);
            out[2..].iter_mut().zip(q).for_each(|(o, q)| *o = *q as u8);
        }
        DType::F32 | DType::F16 | DType::BF16 => unreachable!("{} has no grid", grid.dtype),
        DType::Q5_0 | DType::Q5_1 | DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => {
            unreachable!("{} is not written", grid.dtype)
        }
    }
}

/// Writes f16 fields.
#[inline(always)]
fn fields<L: Lanes>(values: &[f32], out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut::<2>().0) {
        *out = to_half::<L>(*value).to_le_bytes();
    }
}

/// Two neighbours a byte, the first in the low half.
#[inline(always)]
fn neighbours(q: &[i8], out: &mut [u8]) {
    for (pair, out) in q.as_chunks::<2>().0.iter().zip(out) {
        *out = pair[0] as u8 & 15 | (pair[1] as u8) << 4;
    }
}

/// Elements j and j + 16 of 32 share byte j.
#[inline(always)]
fn halves(q: &[i8], zero: i8, out: &mut [u8]) {
    let (low, high) = q.split_at(16);
    for ((low, high), out) in low.iter().zip(high).zip(out) {
        *out = (low.wrapping_add(zero)) as u8 | (high.wrapping_add(zero) as u8) << 4;
    }
}

/// Writes a row of a plain float format, each element the nearest; `false` for other formats.
pub(super) fn floats(level: Level, dtype: DType, row: &[f32], out: &mut [u8]) -> bool {
    match dtype {
        DType::F32 => out.copy_from_slice(bytemuck::cast_slice(row)),
        DType::F16 => {
            let largest = f16::MAX.to_f32_const();
            for (row, out) in row.chunks(64).zip(out.chunks_mut(128)) {
                let (mut limited, mut stored) = ([0.0f32; 64], [f16::ZERO; 64]);
                limited.iter_mut().zip(row).for_each(|(l, x)| *l = x.clamp(-largest, largest));
                stored.convert_from_f32_slice(&limited);
                out.as_chunks_mut::<2>().0.iter_mut().zip(stored).for_each(|(o, s)| *o = s.to_le_bytes());
            }
        }
        DType::BF16 => brain_floats(level, row, out),
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => return false,
        DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => return false,
        DType::Int8 | DType::Int4 | DType::Lpbq4(_) | DType::Bw4(_) => return false,
    }
    true
}

leveled! {
    /// The upper half of each float, to nearest, ties to even.
    fn brain_floats(row: &[f32], out: &mut [u8]) {
        let largest = bf16::MAX.to_f32_const();
        for (out, x) in out.as_chunks_mut::<2>().0.iter_mut().zip(row) {
            let bits = x.clamp(-largest, largest).to_bits();
            let even = bits >> 16 & 1;
            *out = (((bits + 0x7FFF + even) >> 16) as u16).to_le_bytes();
        }
    }
}

laned! {
    /// Writes a row as ggml's reference quantiser does; `false` for formats that have none here.
    pub(super) fn reference(dtype: DType, row: &[f32], out: &mut [u8]) -> bool = write_reference
}

#[inline(always)]
fn write_reference<L: Lanes>(dtype: DType, row: &[f32], out: &mut [u8]) -> bool {
    let blocks = row.as_chunks::<FOUR>().0.iter();
    match dtype {
        DType::Q4_0 => {
            for (x, out) in blocks.zip(out.as_chunks_mut::<18>().0) {
                q4_0::<L>(x, out);
            }
        }
        DType::Q4_1 => {
            for (x, out) in blocks.zip(out.as_chunks_mut::<20>().0) {
                q4_1::<L>(x, out);
            }
        }
        DType::Q8_0 => {
            for (x, out) in blocks.zip(out.as_chunks_mut::<34>().0) {
                q8_0::<L>(x, out);
            }
        }
        DType::F32 | DType::F16 | DType::BF16 | DType::Q5_0 | DType::Q5_1 => return false,
        DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => return false,
        DType::Int8 | DType::Int4 | DType::Lpbq4(_) | DType::Bw4(_) => return false,
    }
    true
}

#[inline(always)]
fn q4_0<L: Lanes>(x: &[f32; FOUR], out: &mut [u8; 18]) {
    let d = fit::saturated::<L>(fit::q4_0_scale::<L>(x));
    fields::<L>(&[d], out);
    let id = L::splat(inverse(d));
    let mut q = vectors::<L>(x);
    for q in &mut q {
        *q = (*q * id + L::splat(8.5)).at_least(L::splat(0.0)).at_most(L::splat(15.0));
    }
    halves(&L::whole(q), 0, &mut out[2..]);
}

#[inline(always)]
fn q4_1<L: Lanes>(x: &[f32; FOUR], out: &mut [u8; 20]) {
    let (min, max) = fit::signed_extremes::<L>(x);
    let d = fit::saturated::<L>((max - min) / 15.0);
    fields::<L>(&[d, min], out);
    let id = L::splat(inverse(d));
    let mut q = vectors::<L>(x);
    for q in &mut q {
        *q = ((*q - L::splat(min)) * id + L::splat(0.5)).at_least(L::splat(0.0)).at_most(L::splat(15.0));
    }
    halves(&L::whole(q), 0, &mut out[4..]);
}

/// Rounds halves away from zero as C's `roundf`: the largest float below 0.5 is added, then the fraction dropped.
#[inline(always)]
fn q8_0<L: Lanes>(x: &[f32; FOUR], out: &mut [u8; 34]) {
    const BELOW_HALF: f32 = 0.5f32.next_down();
    let d = fit::saturated::<L>(fit::magnitude::<L>(x) / 127.0);
    fields::<L>(&[d], out);
    let id = L::splat(inverse(d));
    let mut q = vectors::<L>(x);
    for q in &mut q {
        let t = (*q * id).at_least(L::splat(-127.0)).at_most(L::splat(127.0));
        *q = t + L::splat(BELOW_HALF).with_sign_of(t);
    }
    out[2..].copy_from_slice(bytemuck::bytes_of(&L::whole(q)));
}
