//! From every stored format to f32, GGUF's bit for bit as the `gguf` Python package does it.
//!
//! Source of the layouts: the GGML block definitions (`block_q4_0` … `block_q6_K`). A block's scales are
//! f16; a product is rounded before a minimum is added, so no fused multiply-add may be used here.

use half::f16;

use crate::format::DType;
use crate::level::{Level, leveled};

/// Writes the `out.len()` elements stored in `bytes` to `out`.
///
/// # Panics
/// When the format's blocks do not divide `out.len()`, or `bytes` is not exactly that many elements long.
pub fn dequantize_row(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(dtype.row_bytes(out.len()), Some(bytes.len()), "{} bytes hold {} elements", dtype, out.len());
    dequantize(Level::detect(), dtype, bytes, out);
}

/// [`dequantize_row`] without the check, at a given level.
pub(crate) fn dequantize(level: Level, dtype: DType, bytes: &[u8], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if let Level::Avx2(proof) = level {
        match dtype {
            DType::F16 => return avx2::f16(proof, bytes, out),
            DType::Q4_0 => return avx2::q4_0(proof, bytes, out),
            DType::Q4_1 => return avx2::q4_1(proof, bytes, out),
            DType::Q8_0 => return avx2::q8_0(proof, bytes, out),
            DType::F32 | DType::BF16 | DType::Q5_0 | DType::Q5_1 => {}
            DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => {}
            DType::Int4 | DType::Lpbq4(_) => {
                let (scale, body) = bytes.split_first_chunk().expect("a row begins with its scale");
                return scaled_at(level, dtype, f32::from_le_bytes(*scale), body, out);
            }
            DType::Bw4(group) => return avx2::bw4(proof, group.elements(), bytes, out),
            DType::Int8 => {}
        }
    }
    vectorised(level, dtype, bytes, out);
}

/// Elements `start..start + out.len()` of a stored row; both must be multiples of the block length.
pub(crate) fn dequantize_part(level: Level, dtype: DType, row: &[u8], start: usize, out: &mut [f32]) {
    let header = dtype.row_header_bytes();
    let at = |element: usize| header + element / dtype.block_len() * dtype.block_bytes();
    let body = &row[at(start)..at(start + out.len())];
    if header == 0 {
        dequantize(level, dtype, body, out);
    } else {
        scaled_at(level, dtype, f32::from_le_bytes([row[0], row[1], row[2], row[3]]), body, out);
    }
}

/// Blocks of a row that begins with its scale.
fn scaled_at(level: Level, dtype: DType, scale: f32, body: &[u8], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if let Level::Avx2(proof) = level {
        if dtype == DType::Int4 {
            return avx2::int4(proof, scale, body, out);
        } else if let DType::Lpbq4(group) = dtype {
            return avx2::lpbq4(proof, group.elements(), scale, body, out);
        }
    }
    scaled(level, dtype, scale, body, out);
}

leveled! {
    fn vectorised(dtype: DType, bytes: &[u8], out: &mut [f32]) {
        match dtype {
            DType::F32 => elements::<4>(bytes, out, f32::from_le_bytes),
            DType::F16 => elements::<2>(bytes, out, f16_to_f32),
            DType::BF16 => elements::<2>(bytes, out, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)),
            DType::Q4_0 => blocks::<18, 32>(bytes, out, q4_0),
            DType::Q4_1 => blocks::<20, 32>(bytes, out, q4_1),
            DType::Q5_0 => blocks::<22, 32>(bytes, out, q5_0),
            DType::Q5_1 => blocks::<24, 32>(bytes, out, q5_1),
            DType::Q8_0 => blocks::<34, 32>(bytes, out, q8_0),
            DType::Q2K => blocks::<84, 256>(bytes, out, q2_k),
            DType::Q3K => blocks::<110, 256>(bytes, out, q3_k),
            DType::Q4K => blocks::<144, 256>(bytes, out, q4_k),
            DType::Q5K => blocks::<176, 256>(bytes, out, q5_k),
            DType::Q6K => blocks::<210, 256>(bytes, out, q6_k),
            DType::Int8 | DType::Int4 | DType::Lpbq4(_) => {
                let (scale, body) = bytes.split_at(dtype.row_header_bytes());
                with_scale(dtype, f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]), body, out);
            }
            DType::Bw4(group) => bw4(group.elements(), bytes, out),
        }
    }
}

leveled! {
    /// [`scaled_at`] in one body for every level.
    fn scaled(dtype: DType, scale: f32, blocks: &[u8], out: &mut [f32]) {
        with_scale(dtype, scale, blocks, out);
    }
}

#[inline(always)]
fn with_scale(dtype: DType, scale: f32, blocks: &[u8], out: &mut [f32]) {
    match dtype {
        DType::Int8 => out.iter_mut().zip(blocks).for_each(|(o, q)| *o = scale * f32::from(*q as i8)),
        DType::Lpbq4(group) => {
            for (out, block) in
                out.chunks_exact_mut(group.elements()).zip(blocks.chunks_exact(1 + group.elements() / 2))
            {
                signed_nibbles(&block[1..], out, scale * f32::from(block[0]), 0.0);
            }
        }
        DType::Int4 => signed_nibbles(blocks, out, scale, 0.0),
        DType::F32 | DType::F16 | DType::BF16 | DType::Bw4(_) => unreachable!("a row of {dtype} has no scale"),
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => unreachable!("nor has one of {dtype}"),
        DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => unreachable!("nor has one of {dtype}"),
    }
}

#[inline(always)]
fn bw4(group: usize, bytes: &[u8], out: &mut [f32]) {
    for (out, block) in out.chunks_exact_mut(group).zip(bytes.chunks_exact(4 + group / 2)) {
        signed_nibbles(&block[4..], out, half(block), half(&block[2..]));
    }
}

/// `(q + offset) * scale`, two numbers a byte, the first in the low half.
#[inline(always)]
fn signed_nibbles(bytes: &[u8], out: &mut [f32], scale: f32, offset: f32) {
    for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        pair[0] = (f32::from((*byte << 4) as i8 >> 4) + offset) * scale;
        pair[1] = (f32::from(*byte as i8 >> 4) + offset) * scale;
    }
}

#[inline(always)]
fn elements<const BYTES: usize>(bytes: &[u8], out: &mut [f32], convert: impl Fn([u8; BYTES]) -> f32) {
    let (stored, _) = bytes.as_chunks::<BYTES>();
    for (o, b) in out.iter_mut().zip(stored) {
        *o = convert(*b);
    }
}

#[inline(always)]
fn blocks<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    convert: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (stored, _) = bytes.as_chunks::<BYTES>();
    let (elements, _) = out.as_chunks_mut::<LEN>();
    for (o, b) in elements.iter_mut().zip(stored) {
        convert(b, o);
    }
}

/// A half to a float without branches on common values: the exponent is rebased by a multiplication,
/// which also normalises subnormal halves exactly.
#[inline(always)]
pub(crate) fn f16_to_f32(bytes: [u8; 2]) -> f32 {
    const REBASE: f32 = f32::from_bits((127 + 112) << 23);
    let bits = u32::from(u16::from_le_bytes(bytes));
    if bits & 0x7C00 == 0x7C00 {
        return f16::from_bits(bits as u16).to_f32_const();
    }
    let magnitude = f32::from_bits((bits & 0x7FFF) << 13) * REBASE;
    f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
}

/// The half at the start of `bytes`.
#[inline(always)]
fn half(bytes: &[u8]) -> f32 {
    f16_to_f32([bytes[0], bytes[1]])
}

#[inline(always)]
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block);
    nibbles(&block[2..], out, |q| d * (q - 8) as f32);
}

#[inline(always)]
fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half(block), half(&block[2..]));
    nibbles(&block[4..], out, |q| d * q as f32 + m);
}

#[inline(always)]
fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half(block);
    five_bits(&block[2..], out, |q| d * (q - 16) as f32);
}

#[inline(always)]
fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half(block), half(&block[2..]));
    five_bits(&block[4..], out, |q| d * q as f32 + m);
}

/// Elements j and j + 16 share byte j.
#[inline(always)]
fn nibbles(bytes: &[u8], out: &mut [f32; 32], value: impl Fn(i32) -> f32) {
    for (half, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        for (o, q) in out.iter_mut().zip(bytes) {
            *o = value(i32::from(*q) >> (4 * half) & 15);
        }
    }
}

/// Four bytes of fifth bits, one an element, then nibbles as in [`nibbles`].
#[inline(always)]
fn five_bits(bytes: &[u8], out: &mut [f32; 32], value: impl Fn(i32) -> f32) {
    let fifth = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for (half, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        for (j, (o, q)) in out.iter_mut().zip(&bytes[4..]).enumerate() {
            *o = value((i32::from(*q) >> (4 * half) & 15) + (fifth >> (16 * half + j) & 1) as i32 * 16);
        }
    }
}

#[inline(always)]
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half(block);
    for j in 0..32 {
        out[j] = d * f32::from(block[2 + j] as i8);
    }
}

/// Bytes: 16 scales (low nibble scale, high nibble minimum), 64 of two-bit values, d, dmin.
#[inline(always)]
fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (half(&block[80..]), half(&block[82..]));
    for (sub, o) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = block[sub];
        let (dl, ml) = (d * f32::from(scale & 15), dmin * f32::from(scale >> 4));
        let qs = &block[16 + sub / 8 * 32 + sub % 2 * 16..][..16];
        let shift = sub % 8 / 2 * 2;
        for j in 0..16 {
            o[j] = dl * (i32::from(qs[j]) >> shift & 3) as f32 - ml;
        }
    }
}

/// Bytes: 32 of high bits, 64 of low two-bit values, 12 of six-bit scales, d. A high bit of 0 subtracts 4.
#[inline(always)]
fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half(&block[108..]);
    let scales = &block[96..108];
    for (sub, o) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let low = scales[sub % 8] >> (sub / 8 * 4) & 15;
        let high = scales[8 + sub % 4] >> (sub / 4 * 2) & 3;
        let dl = d * (i32::from(low | high << 4) - 32) as f32;
        let qs = &block[32 + sub / 8 * 32 + sub % 2 * 16..][..16];
        let mask = &block[sub % 2 * 16..][..16];
        let shift = sub % 8 / 2 * 2;
        for j in 0..16 {
            let high = i32::from(mask[j]) >> (sub / 2) & 1;
            o[j] = dl * ((i32::from(qs[j]) >> shift & 3) + high * 4 - 4) as f32;
        }
    }
}

/// Scale and minimum number `sub` of the eight that 12 bytes hold at six bits each.
#[inline(always)]
fn scale_min(scales: &[u8], sub: usize) -> (f32, f32) {
    let (scale, min) = if sub < 4 {
        (scales[sub] & 63, scales[sub + 4] & 63)
    } else {
        let both = scales[sub + 4];
        (both & 15 | scales[sub - 4] >> 2 & 0x30, both >> 4 | scales[sub] >> 2 & 0x30)
    };
    (f32::from(scale), f32::from(min))
}

/// Bytes: d, dmin, 12 of scales and minima, 128 of nibbles.
#[inline(always)]
fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (half(block), half(&block[2..]));
    for (sub, o) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_min(&block[4..16], sub);
        let (dl, ml) = (d * scale, dmin * min);
        let qs = &block[16 + sub / 2 * 32..][..32];
        let shift = sub % 2 * 4;
        for j in 0..32 {
            o[j] = dl * (i32::from(qs[j]) >> shift & 15) as f32 - ml;
        }
    }
}

/// Bytes: d, dmin, 12 of scales and minima, 32 of high bits, 128 of low nibbles.
#[inline(always)]
fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (half(block), half(&block[2..]));
    let high = &block[16..48];
    for (sub, o) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_min(&block[4..16], sub);
        let (dl, ml) = (d * scale, dmin * min);
        let qs = &block[48 + sub / 2 * 32..][..32];
        let shift = sub % 2 * 4;
        for j in 0..32 {
            let q = (i32::from(qs[j]) >> shift & 15) | (i32::from(high[j]) >> sub & 1) << 4;
            o[j] = dl * q as f32 - ml;
        }
    }
}

/// Bytes: 128 of low nibbles, 64 of high bit pairs, 16 signed scales, d.
#[inline(always)]
fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = half(&block[208..]);
    for (sub, o) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let dl = d * f32::from(block[192 + sub] as i8);
        let (part, within) = (sub / 8, sub % 8);
        let low = &block[part * 64 + within % 4 * 16..][..16];
        let high = &block[128 + part * 32 + within % 2 * 16..][..16];
        let (low_shift, high_shift) = (within / 4 * 4, within / 2 * 2);
        for j in 0..16 {
            let q = (i32::from(low[j]) >> low_shift & 15) | (i32::from(high[j]) >> high_shift & 3) << 4;
            o[j] = dl * (q - 32) as f32;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(test)]
mod tests;
