//! Tiles and packing against their formulas.

use super::*;
use crate::testing::{assert_close, random};

fn check_tile<const R: usize, const W: usize>(depth: usize, row: usize, step: usize, b_row: usize) {
    let a = random(R * row.max(1) + depth * step, 1);
    let b = random(depth * b_row + W, 2);
    let mut want = Vec::new();
    for r in 0..R {
        for l in 0..W {
            want.push((0..depth).map(|k| f64::from(a[r * row + k * step]) * f64::from(b[k * b_row + l])).sum::<f64>());
        }
    }
    for level in Level::all() {
        let left = Left { data: &a, row, step };
        let tile = tile::<R, W>(level, left, Right { data: &b, row: b_row }, depth);
        assert_close(tile.as_flattened(), &want, 2e-6);
    }
}

#[test]
fn tiles_follow_their_formula() {
    for depth in [0, 1, 2, 7, 64, 300] {
        check_tile::<ROWS_WIDE, WIDE>(depth, depth, 1, WIDE);
        check_tile::<ROWS_WIDE, WIDE>(depth, 1, 16, 64);
        check_tile::<ROWS_NARROW, NARROW>(depth, depth, 1, NARROW);
        check_tile::<4, WIDE>(depth, 1, WIDE, 40);
        check_tile::<1, NARROW>(depth, 0, 1, 11);
    }
}

#[test]
fn packing_transposes_and_pads_with_zeros() {
    for (rows, depth) in [(1, 1), (5, 7), (8, 3), (9, 20), (16, 16), (17, 33), (40, 9)] {
        let x = random(rows * depth, 3);
        let mut out = vec![f32::NAN; packed_len(rows, depth)];
        let mut seen = 0;
        for tile in tiles(rows) {
            let out = &mut out[tile.first * depth..];
            pack(&x, depth, depth, tile, out);
            for (at, value) in out[..depth * tile.lanes].iter().enumerate() {
                let (k, lane) = (at / tile.lanes, at % tile.lanes);
                let want = if lane < tile.valid { x[(tile.first + lane) * depth + k] } else { 0.0 };
                assert_eq!(*value, want, "{rows} {depth} {k} {lane}");
            }
            seen += tile.valid;
        }
        assert_eq!(seen, rows);
        assert!(out.iter().all(|v| !v.is_nan()));
    }
}
