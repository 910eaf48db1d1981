//! Rotary tables: the cosines and sines that step graphs take as inputs.
//!
//! Angles are computed in f32 like the reference implementation's, so that long contexts agree with it.

use crate::front::config::{Rope, RopeScaling};

/// The angle per position of each pair, `[head_dim / 2]`, with the configuration's scaling applied.
///
/// Source of the formulas: the rotary embedding paper for `theta^(-2i/d)`, the Llama 3.1 model code for
/// the wave-length dependent scaling.
pub fn frequencies(rope: &Rope, head_dim: usize) -> Vec<f32> {
    let plain = (0..head_dim / 2).map(|i| 1.0 / rope.theta.powf((2 * i) as f32 / head_dim as f32));
    match &rope.scaling {
        RopeScaling::None => plain.collect(),
        RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
        RopeScaling::Factors { factors } => plain.zip(factors).map(|(f, factor)| f / factor).collect(),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            let original = *original_max_positions as f32;
            let scale = |f: f32| {
                let wave = 2.0 * std::f32::consts::PI / f;
                if wave > original / low_freq_factor {
                    f / factor
                } else if wave < original / high_freq_factor {
                    f
                } else {
                    let smooth = (original / wave - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * f / factor + smooth * f
                }
            };
            plain.map(scale).collect()
        }
    }
}

/// What each plain frequency is divided by, `[head_dim / 2]`, as GGUF's `rope_freqs.weight` holds it; `None` where a file
/// says the scaling in its metadata.
pub fn factors(rope: &Rope, head_dim: usize) -> Option<Vec<f32>> {
    match &rope.scaling {
        RopeScaling::None | RopeScaling::Linear { .. } => None,
        RopeScaling::Factors { factors } => Some(factors.clone()),
        RopeScaling::Llama3 { .. } => {
            let plain = Rope { scaling: RopeScaling::None, ..rope.clone() };
            let plain = frequencies(&plain, head_dim).into_iter();
            Some(plain.zip(frequencies(rope, head_dim)).map(|(plain, scaled)| plain / scaled).collect())
        }
    }
}

/// The angle of a pair for a token at `position`, in radians.
pub fn angle(position: usize, frequency: f32) -> f32 {
    position as f32 * frequency
}
