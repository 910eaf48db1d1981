//! Orthogonal transforms that spread a row's numbers evenly: Hadamard matrices with random signs.
//!
//! A Hadamard matrix of order n has entries ±1 and orthogonal rows. It exists here for `n = 2^k · m`, where `m` is 1 or an
//! order of Paley's constructions, and is the Kronecker product of Walsh's matrix of order `2^k` and that of order `m`.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The largest order of Paley's constructions that is used: its part of a transform is a product with a whole matrix.
pub const LARGEST_PALEY: usize = 512;

/// An orthogonal matrix `R` `[n, n]`, never stored whole.
///
/// `R = D · B`, where `D` has random signs on its diagonal and `B` is a Hadamard matrix over `√n`. Where npuc knows no
/// Hadamard matrix of order n, `B` is block-diagonal, and its blocks are Walsh's matrices of the largest power of two that
/// divides n; for an odd n that leaves the signs alone.
#[derive(Clone, Debug)]
pub struct Rotation {
    signs: Vec<f32>,
    /// Numbers of a block of `B`: n where it is one Hadamard matrix.
    block: usize,
    /// The factor of Paley's order `m`, `[m, m]`, entries ±1; `[1]` where there is none.
    paley: Paley,
    /// `1 / √block`.
    scale: f32,
}

/// A matrix of Paley's constructions.
#[derive(Clone, Debug)]
struct Paley {
    order: usize,
    /// `[order, order]`.
    entries: Vec<f32>,
    /// The same with rows and columns exchanged.
    transposed: Vec<f32>,
}

impl Rotation {
    /// The rotation of rows of `n` numbers; the same seed gives the same one.
    pub fn of(n: usize, seed: u64) -> Rotation {
        let power = if n == 0 { 1 } else { 1 << n.trailing_zeros() };
        let (block, paley) = match paley_part(n) {
            Some(paley) => (n, paley),
            None => (power, Paley::new(vec![1.0], 1)),
        };
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let signs = (0..n).map(|_| if random.next_u32() & 1 == 0 { 1.0 } else { -1.0 }).collect();
        Rotation { signs, block, paley, scale: 1.0 / (block as f32).sqrt() }
    }

    /// The numbers of a row.
    pub fn len(&self) -> usize {
        self.signs.len()
    }

    /// Whether a row has no numbers.
    pub fn is_empty(&self) -> bool {
        self.signs.is_empty()
    }

    /// Whether every entry of `R` is `±1/√n`.
    #[cfg(test)]
    fn is_hadamard(&self) -> bool {
        self.block == self.len()
    }

    /// `row ← row · R`.
    ///
    /// # Panics
    /// When the row has another length.
    pub fn apply(&self, row: &mut [f32]) {
        self.turn_signs(row);
        self.spread(row, &self.paley.entries);
    }

    /// `row ← row · Rᵀ`, which undoes [`Rotation::apply`].
    ///
    /// # Panics
    /// When the row has another length.
    pub fn apply_transposed(&self, row: &mut [f32]) {
        // Walsh's matrices are symmetric, Paley's are not.
        self.spread(row, &self.paley.transposed);
        self.turn_signs(row);
    }

    fn turn_signs(&self, row: &mut [f32]) {
        assert_eq!(row.len(), self.signs.len(), "numbers of a row that is rotated");
        row.iter_mut().zip(&self.signs).for_each(|(x, sign)| *x *= sign);
    }

    /// `row ← row · B` with that matrix of Paley's order.
    fn spread(&self, row: &mut [f32], paley: &[f32]) {
        let order = self.paley.order;
        let mut product = vec![0.0; order];
        for block in row.chunks_exact_mut(self.block) {
            if order > 1 {
                for part in block.chunks_exact_mut(order) {
                    product.fill(0.0);
                    for (&x, entries) in part.iter().zip(paley.chunks_exact(order)) {
                        product.iter_mut().zip(entries).for_each(|(sum, entry)| *sum += x * entry);
                    }
                    part.copy_from_slice(&product);
                }
            }
            walsh(block, order);
            block.iter_mut().for_each(|x| *x *= self.scale);
        }
    }
}

/// `x ← W · x` for Walsh's matrix `W` over the first axis of `x` `[2^k, width]`.
fn walsh(x: &mut [f32], width: usize) {
    let mut half = width;
    while half < x.len() {
        for pair in x.chunks_exact_mut(2 * half) {
            let (left, right) = pair.split_at_mut(half);
            for (a, b) in left.iter_mut().zip(right) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

/// The matrix of the smallest order `m` with `n = 2^k · m`; `None` if npuc knows no such order.
fn paley_part(n: usize) -> Option<Paley> {
    if n == 0 {
        return None;
    }
    let odd = n >> n.trailing_zeros();
    if odd == 1 {
        return Some(Paley::new(vec![1.0], 1));
    }
    (0..=n.trailing_zeros()).map(|k| odd << k).take_while(|&order| order <= LARGEST_PALEY).find_map(Paley::of)
}

impl Paley {
    fn new(entries: Vec<f32>, order: usize) -> Paley {
        let transposed = (0..order * order).map(|i| entries[i % order * order + i / order]).collect();
        Paley { order, entries, transposed }
    }

    /// Source of both constructions: R. E. A. C. Paley, On orthogonal matrices, 1933.
    fn of(order: usize) -> Option<Paley> {
        if !order.is_multiple_of(4) {
            return None;
        }
        if is_prime(order - 1) {
            return Some(Paley::new(first(order - 1), order));
        }
        let q = order / 2 - 1;
        (q % 4 == 1 && is_prime(q)).then(|| Paley::new(second(q), order))
    }
}

/// Jacobsthal's matrix with a border of ones above and, with the sign `left`, beside it: `[q + 1, q + 1]`, zeros on the
/// diagonal. Element (i, j) of the inner part is 1 where `i - j` is a square modulo q, -1 where it is not.
fn bordered(q: usize, left: f32) -> Vec<f32> {
    let mut character = vec![-1.0; q];
    (1..q).for_each(|x| character[x * x % q] = 1.0);
    character[0] = 0.0;
    let order = q + 1;
    let entry = |i: usize, j: usize| match (i, j) {
        (0, 0) => 0.0,
        (0, _) => 1.0,
        (_, 0) => left,
        (i, j) => character[(q + i - j) % q],
    };
    (0..order * order).map(|i| entry(i / order, i % order)).collect()
}

/// Order `q + 1` for a prime `q = 3 mod 4`: the bordered matrix is skew, and 1 is added on its diagonal.
fn first(q: usize) -> Vec<f32> {
    let mut entries = bordered(q, -1.0);
    (0..=q).for_each(|i| entries[i * (q + 2)] = 1.0);
    entries
}

/// Order `2 (q + 1)` for a prime `q = 1 mod 4`: the bordered matrix is symmetric; its zeros become `[1 -1; -1 -1]`, other
/// entries `c` become `c [1 1; 1 -1]`.
fn second(q: usize) -> Vec<f32> {
    let conference = bordered(q, 1.0);
    let order = 2 * (q + 1);
    let entry = |i: usize, j: usize| {
        let c = conference[i / 2 * (q + 1) + j / 2];
        match (c == 0.0, i % 2, j % 2) {
            (true, 0, 0) => 1.0,
            (true, _, _) => -1.0,
            (false, 1, 1) => -c,
            (false, _, _) => c,
        }
    };
    (0..order * order).map(|i| entry(i / order, i % order)).collect()
}

fn is_prime(n: usize) -> bool {
    n > 1 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}

#[cfg(test)]
mod tests;
