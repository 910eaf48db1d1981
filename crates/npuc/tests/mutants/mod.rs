//! Seeded mutants of good inputs, for the bounded fuzz runs of all crates.

use std::time::{Duration, Instant};

/// Mutants of each seed file, at most; slow machines stop at `LIMIT`.
const MUTANTS: usize = 20_000;
const LIMIT: Duration = Duration::from_secs(2);

/// xorshift64*, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Numbers that break careless arithmetic.
const EDGES: [u64; 10] = [0, 1, 2, 7, 31, 32, 1 << 31, 1 << 32, 1 << 63, u64::MAX];

/// One to four changes: a flipped bit, an edge number, a cut, a doubled or dropped piece.
fn mutate(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        let piece = at..(at + 1 + random.below(24)).min(bytes.len());
        match random.below(6) {
            0 | 1 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            2 => {
                let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
                let width = [4, 8][random.below(2)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&edge[..width]);
            }
            3 => bytes.truncate(at),
            4 => {
                let copy = bytes[piece.clone()].to_vec();
                bytes.splice(piece.start..piece.start, copy);
            }
            _ => drop(bytes.drain(piece)),
        }
    }
    bytes
}

/// Parses mutants of `seed`, which itself is good.
pub(crate) fn run(name: &str, seed: &[u8], parse: impl Fn(&[u8]) -> bool) {
    assert!(parse(seed), "{name}: the seed must parse");
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let start = Instant::now();
    let (mut good, mut bad) = (0, 0);
    while good + bad < MUTANTS && start.elapsed() < LIMIT {
        if parse(&mutate(seed, &mut random)) { good += 1 } else { bad += 1 }
    }
    // A run that only ever fails or only ever succeeds tests nothing.
    assert!(good > 0 && bad > 0, "{name}: {good} good and {bad} bad mutants");
}
