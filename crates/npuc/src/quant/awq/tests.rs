//! Tests of scales: never worse than none, worth it where a few inputs are large. That scores stay, `fold` tests.

use npuc_kernels::format::Group;

use super::super::hessian::tests::inputs;
use super::*;
use crate::diag::Code;
use crate::front::config::{LlamaArchitecture, LlamaConfig, Rope, RopeScaling};

/// 4 query heads over 2 key/value heads of width 16.
fn config() -> ModelConfig {
    ModelConfig::Llama(LlamaConfig {
        architecture: LlamaArchitecture::Llama,
        hidden: 96,
        ffn: 128,
        layers: 1,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        vocab: 10,
        max_positions: 8,
        rms_eps: 1e-5,
        rope: Rope { theta: 1e4, scaling: RopeScaling::None },
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: false,
        tied: true,
    })
}

/// Inputs of which every 19th is `factor` times as large as the others.
fn outlying(tokens: usize, width: usize, factor: f32) -> Hessian {
    let mut rows = inputs(tokens, width, 30);
    rows.iter_mut().enumerate().for_each(|(i, x)| *x *= if i % width % 19 == 3 { factor } else { 1.0 });
    let mut hessian = Hessian::new(width);
    hessian.add(&rows);
    hessian
}

/// The loss by itself: decoded weights over the scales against the weights.
fn loss(readers: &[Reader<'_>], scales: &[f32], hessian: &Hessian, search: Search) -> f64 {
    let width = hessian.width();
    let of = |reader: &Reader<'_>| {
        let importance: Vec<f32> = hessian.importance().iter().zip(scales).map(|(h, s)| h / (s * s)).collect();
        let decoded = reader.weights.chunks(width).flat_map(|row| {
            let scaled: Vec<f32> = row.iter().zip(scales).map(|(w, s)| w * s).collect();
            let mut stored = vec![0; reader.dtype.row_bytes(width).unwrap()];
            quantize_row(reader.dtype, &scaled, Some(&importance), search, &mut stored);
            let mut out = vec![0.0; width];
            dequantize_row(reader.dtype, &stored, &mut out);
            out.iter_mut().zip(scales).for_each(|(o, s)| *o /= s);
            out
        });
        gptq::loss(reader.weights, &decoded.collect::<Vec<f32>>(), hessian)
    };
    readers.iter().map(of).sum()
}

#[test]
fn scales_are_never_worse_than_none() {
    let config = config();
    for (site, width, formats) in [
        (Site::AttentionInput(0), 96, [DType::Int4, DType::Q4_0, DType::Lpbq4(Group::G32)]),
        (Site::Values(0), 64, [DType::Int4, DType::Bw4(Group::G64), DType::Int8]),
        (Site::FeedForwardInput(0), 96, [DType::Int4, DType::Int8, DType::Q8_0]),
        (Site::FeedForwardProduct(0), 128, [DType::Int4, DType::Q4_1, DType::BF16]),
    ] {
        assert_eq!(site.spread(&config, &vec![1.0; site.width(&config)]).len(), width);
        for hessian in
            [outlying(100, width, 1.0), outlying(100, width, 30.0), outlying(1, width, 5.0), Hessian::new(width)]
        {
            for dtype in formats {
                let (a, b) = (inputs(9, width, 40), inputs(CHOOSING_ROWS + 5, width, 9));
                let reader = |weights| Reader { name: "w", weights, dtype };
                let readers = [reader(&a), reader(&b)];
                for search in [Search::Plain, Search::Error] {
                    let what = format!("{site:?} {dtype} {search:?}");
                    let found = scaling(&config, site, &readers, &hessian, search).unwrap();
                    let scales = site.spread(&config, &found.scales);
                    let (have, without) = (
                        loss(&readers, &scales, &hessian, search),
                        loss(&readers, &vec![1.0; width], &hessian, search),
                    );
                    assert!((have - found.loss).abs() <= 1e-5 * have, "{what}: {have} {}", found.loss);
                    assert!((without - found.unscaled_loss).abs() <= 1e-5 * without, "{what}");
                    assert!(found.loss <= found.unscaled_loss, "{what}");
                    assert!(found.alpha > 0.0 || found.scales.iter().all(|&s| s == 1.0), "{what}");
                    let mean = found.scales.iter().map(|s| s.ln()).sum::<f32>() / found.scales.len() as f32;
                    assert!(mean.abs() < 1e-4, "{what}: the geometric mean is {}", mean.exp());
                }
            }
        }
    }
}

/// Where few inputs are far larger than the others, their columns are made larger, and much is gained.
#[test]
fn large_inputs_are_protected() {
    let config = config();
    let hessian = outlying(200, 96, 30.0);
    let weights = inputs(40, 96, 70);
    let readers = [Reader { name: "w", weights: &weights, dtype: DType::Int4 }];
    let found = scaling(&config, Site::AttentionInput(0), &readers, &hessian, Search::Plain).unwrap();
    assert!(found.loss < 0.5 * found.unscaled_loss, "{} of {}", found.loss, found.unscaled_loss);
    assert!(found.scales[3] > 2.0 * found.scales[4] && found.scales[22] > 2.0 * found.scales[21]);
}

/// Scales that would push a number out of the format's range are not taken.
#[test]
fn scaled_numbers_stay_within_the_format() {
    let hessian = outlying(200, 96, 1000.0);
    let mut weights = inputs(40, 96, 70);
    weights[3] = 65000.0;
    let reader = Reader { name: "w", weights: &weights, dtype: DType::F16 };
    assert_eq!(rounding_loss(&reader, &[2.0; 96], &hessian, Search::Plain, 99), f64::INFINITY);
    let found = scaling(&config(), Site::AttentionInput(0), &[reader], &hessian, Search::Plain).unwrap();
    assert!(found.loss.is_finite() && found.scales[3] * 65000.0 <= 65504.0, "{}", found.scales[3]);
}

/// Heads that read the same values share their scales.
#[test]
fn values_have_the_scales_of_all_their_readers() {
    let config = config();
    let mut hessian = Hessian::new(64);
    // Only the second query head, which reads the first key/value head, sees a number.
    let mut row = vec![0.0; 64];
    row[16 + 5] = 2.0;
    hessian.add(&row);
    let sizes = sizes(&config, Site::Values(0), &hessian);
    assert_eq!(sizes.len(), 32);
    let largest = (0..32).max_by(|&a, &b| sizes[a].total_cmp(&sizes[b]));
    assert_eq!(largest, Some(5));
    let scales: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let spread = Site::Values(0).spread(&config, &scales);
    assert_eq!([spread[0], spread[16], spread[31], spread[32], spread[63]], [0.0, 0.0, 15.0, 16.0, 31.0]);
}

#[test]
fn what_cannot_be_rounded_is_refused() {
    let readers = [Reader { name: "w", weights: &[f32::INFINITY; 96], dtype: DType::Int4 }];
    let error = scaling(&config(), Site::AttentionInput(0), &readers, &Hessian::new(96), Search::Plain).unwrap_err();
    assert_eq!(error.diagnostics()[0].code, Code::NonFiniteWeights);
}
