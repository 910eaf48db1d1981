//! Attention against its formula in f64, over caches that are full, empty and in between.

use super::*;
use crate::testing::{assert_close, random};

#[derive(Clone, Copy)]
struct Case {
    heads: usize,
    kv_heads: usize,
    tokens: usize,
    capacity: usize,
    dim: usize,
}

/// What a row sees.
type Visible = fn(token: usize, column: usize, case: Case) -> bool;

fn causal(used: usize) -> impl Fn(usize, usize, Case) -> bool {
    move |token, column, case| if column < case.capacity { column < used } else { column - case.capacity <= token }
}

struct Data {
    q: Vec<f32>,
    past_k: Vec<f32>,
    past_v: Vec<f32>,
    new_k: Vec<f32>,
    new_v: Vec<f32>,
    mask: Vec<f32>,
}

/// Random operands; what no row sees is NaN, so that reading it spoils the result.
fn data(case: Case, visible: impl Fn(usize, usize, Case) -> bool) -> Data {
    let columns = case.capacity + case.tokens;
    let noise = random(case.tokens * columns, 6);
    let mask = (0..case.tokens * columns)
        .map(|at| match visible(at / columns, at % columns, case) {
            true => noise[at],
            false if at % 2 == 0 => f32::NEG_INFINITY,
            false => HIDDEN * 1.5,
        })
        .collect();
    let seen = |column: usize| (0..case.tokens).any(|token| visible(token, column, case));
    let rows = |count: usize, first: usize, seed: usize| {
        let mut rows = random(case.kv_heads * count * case.dim, seed);
        for (row, values) in rows.chunks_mut(case.dim).enumerate() {
            if !seen(first + row % count) {
                values.fill(f32::NAN);
            }
        }
        rows
    };
    Data {
        q: random(case.heads * case.tokens * case.dim, 1).iter().map(|v| v * 4.0).collect(),
        past_k: rows(case.capacity, 0, 2),
        past_v: rows(case.capacity, 0, 3),
        new_k: rows(case.tokens, case.capacity, 4),
        new_v: rows(case.tokens, case.capacity, 5),
        mask,
    }
}

impl Data {
    fn args(&self, case: Case) -> Attention<'_> {
        let Case { heads, kv_heads, tokens, capacity, dim } = case;
        let Data { q, past_k, past_v, new_k, new_v, mask } = self;
        Attention { q, past_k, past_v, new_k, new_v, mask, heads, kv_heads, tokens, capacity, dim, scale: 0.3 }
    }
}

fn reference(a: &Attention<'_>) -> Vec<f64> {
    let (columns, dim) = (a.capacity + a.tokens, a.dim);
    let mut out = Vec::new();
    for (head, token) in (0..a.heads).flat_map(|h| (0..a.tokens).map(move |t| (h, t))) {
        let kv = head / (a.heads / a.kv_heads);
        let row = |past: &[f32], new: &[f32], column: usize| -> Vec<f64> {
            let row = if column < a.capacity {
                &past[(kv * a.capacity + column) * dim..][..dim]
            } else {
                &new[(kv * a.tokens + column - a.capacity) * dim..][..dim]
            };
            row.iter().map(|v| f64::from(*v)).collect()
        };
        let q = &a.q[(head * a.tokens + token) * dim..][..dim];
        let mask = &a.mask[token * columns..][..columns];
        let seen: Vec<usize> = (0..columns).filter(|c| mask[*c] > HIDDEN).collect();
        let weights: Vec<f64> = seen
            .iter()
            .map(|c| {
                let product: f64 = q.iter().zip(row(a.past_k, a.new_k, *c)).map(|(q, k)| f64::from(*q) * k).sum();
                (product * f64::from(a.scale) + f64::from(mask[*c])).exp()
            })
            .collect();
        let sum: f64 = weights.iter().sum();
        let mut result = vec![0.0; dim];
        for (c, w) in seen.iter().zip(&weights) {
            row(a.past_v, a.new_v, *c).iter().zip(&mut result).for_each(|(v, r)| *r += w / sum * v);
        }
        out.extend(result);
    }
    out
}

fn check(case: Case, visible: impl Fn(usize, usize, Case) -> bool) {
    let data = data(case, visible);
    let args = data.args(case);
    let want = reference(&args);
    for level in Level::all() {
        let mut out = vec![f32::NAN; want.len()];
        attention_at(level, &args, &mut out);
        assert_close(&out, &want, 3e-6);
    }
}

const TOKENS: [usize; 12] = [1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 33];

#[test]
fn causal_attention_over_any_fill_follows_the_formula() {
    for (i, tokens) in TOKENS.into_iter().enumerate() {
        let (heads, kv_heads) = [(9, 3), (4, 4), (8, 1), (10, 5)][i % 4];
        for (j, used) in [0, 1, 5, 31, 40].into_iter().enumerate() {
            let dim = [64, 16, 24, 7, 1, 12][(i + j) % 6];
            check(Case { heads, kv_heads, tokens, capacity: 40, dim }, causal(used));
        }
    }
}

#[test]
fn any_pattern_of_columns_follows_the_formula() {
    let patterns: [Visible; 5] = [
        |_, _, _| true,
        |token, column, _| (token * 7 + column * 5) % 3 == 0,
        |_, column, case| column + 9 >= case.capacity,
        |token, column, _| column == token * 2 || column % 16 == 3,
        |token, column, case| column == case.capacity + token,
    ];
    for visible in patterns {
        for tokens in [1, 3, 7, 16, 20] {
            check(Case { heads: 6, kv_heads: 2, tokens, capacity: 50, dim: 32 }, visible);
        }
    }
}

#[test]
fn there_may_be_no_past() {
    for tokens in TOKENS {
        check(Case { heads: 4, kv_heads: 2, tokens, capacity: 0, dim: 16 }, causal(0));
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let case = Case { heads: 2, kv_heads: 1, tokens: 6, capacity: 8, dim: 4 };
    for tokens in [1, 6] {
        let case = Case { tokens, ..case };
        let mut data = data(case, causal(8));
        data.q.iter_mut().for_each(|v| *v *= 1e4);
        let mut out = vec![f32::NAN; 2 * tokens * 4];
        attention(&data.args(case), &mut out);
        assert!(out.iter().all(|v| v.abs() <= 1.0), "{out:?}");
    }
}

#[test]
fn a_row_that_sees_nothing_becomes_zeros() {
    for tokens in [2, 6] {
        let case = Case { heads: 2, kv_heads: 1, tokens, capacity: 8, dim: 4 };
        let data = data(case, |token, column, _| token == 1 && column < 3);
        let want = reference(&data.args(case)).iter().map(|v| if v.is_nan() { 0.0 } else { *v }).collect::<Vec<_>>();
        for level in Level::all() {
            let mut out = vec![f32::NAN; want.len()];
            attention_at(level, &data.args(case), &mut out);
            assert_close(&out, &want, 1e-6);
            assert_eq!(out[..4], [0.0; 4]);
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for (tokens, kv_heads) in [(1, 3), (1, 9), (4, 9), (40, 3)] {
        let case = Case { heads: 9, kv_heads, tokens, capacity: 300, dim: 64 };
        let data = data(case, causal(290));
        let results = [1, 2, 5].map(|threads| {
            let mut out = vec![f32::NAN; 9 * tokens * 64];
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| attention(&data.args(case), &mut out));
            out
        });
        assert!(results.iter().all(|r| *r == results[0]));
    }
}

#[test]
#[should_panic(expected = "length of mask")]
fn a_short_mask_is_refused() {
    let case = Case { heads: 2, kv_heads: 1, tokens: 2, capacity: 8, dim: 4 };
    let data = data(case, causal(8));
    attention(&Attention { mask: &data.mask[1..], ..data.args(case) }, &mut [0.0; 16]);
}
