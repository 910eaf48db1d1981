//! Small models end to end: where an error costs most the bits go, predictions are near measurements, recipes say the plan.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use npuc::exec::to_f32;
use npuc::front;
use npuc::model::Role;
use npuc::quant::solve::matrices;
use npuc::{DType, Tensor, target};

use super::*;

const DOWN: &str = "layers.0.mlp.down_proj.weight";

/// A model of two layers, or one whose [`DOWN`] has a huge column in each block of 32:
/// in 4 bits what is beside it is lost.
fn checkpoint(huge: bool) -> Checkpoint {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/checkpoints/mistral-bf16");
    let mut checkpoint = front::open(&path).unwrap();
    if huge {
        let tensor = &checkpoint.tensors[DOWN];
        let cols = tensor.shape[1];
        let scaled =
            to_f32(tensor).into_iter().enumerate().map(|(at, x)| if at % cols % 32 == 3 { x * 8.0 } else { x });
        let bytes: Vec<u8> = scaled.flat_map(f32::to_le_bytes).collect();
        let tensor = Tensor::in_memory(DType::F32, tensor.shape.clone(), bytes.into()).unwrap();
        checkpoint.tensors.insert(DOWN.into(), tensor);
    }
    checkpoint
}

fn windows() -> Windows {
    let ids = (0..128).map(|i| i * 7919 % 383).collect();
    Windows::new(ids, 32, None, Some(4)).unwrap()
}

/// The solution for a budget, and the measured divergence.
fn solved(checkpoint: &Checkpoint, formats: &[DType], grouping: Grouping, bits: f64) -> (Solution, f64) {
    let target = target::host();
    let matrices = matrices(checkpoint, &target, Activation::Float, Some(formats)).unwrap();
    let sensitivity = Sensitivity::measure(checkpoint, &matrices, &windows(), bits, 2, &mut |_, _| {}).unwrap();
    let solution = solve(checkpoint, &target, Activation::Float, &matrices, &sensitivity, grouping, bits).unwrap();
    let measured = measure(checkpoint, &solution.plan, &windows(), 2).unwrap();
    (solution, measured.text.unwrap().kl.unwrap().mean)
}

const FORMATS: [DType; 3] = [DType::Q4_0, DType::Q4_1, DType::Q8_0];

/// Layers of two kinds, and a last norm of another name.
#[test]
fn convolutions_are_among_the_choices() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/checkpoints/lfm2-old-bf16");
    let checkpoint = front::open(&path).unwrap();
    let ids = (0..128).map(|i| i * 7919 % 283).collect();
    let windows = Windows::new(ids, 32, None, Some(4)).unwrap();
    let target = target::host();
    let matrices = matrices(&checkpoint, &target, Activation::Float, Some(&FORMATS)).unwrap();
    assert!(matrices.iter().all(|matrix| matrix.role.is_matrix()));
    assert_eq!(matrices.iter().filter(|matrix| matrix.role == Role::Convolution).count(), 6);
    let sensitivity = Sensitivity::measure(&checkpoint, &matrices, &windows, 6.0, 2, &mut |_, _| {}).unwrap();
    let solution =
        solve(&checkpoint, &target, Activation::Float, &matrices, &sensitivity, Grouping::Tensor, 6.0).unwrap();
    let measured = measure(&checkpoint, &solution.plan, &windows, 2).unwrap().text.unwrap().kl.unwrap().mean;
    assert!(solution.plan.bits_per_weight() <= 6.0);
    let ratio = solution.predicted_kl / measured;
    assert!((0.4..2.5).contains(&ratio), "{} {measured}", solution.predicted_kl);
}

#[test]
fn predictions_are_near_measurements() {
    let checkpoint = checkpoint(false);
    let mut last = f64::INFINITY;
    for bits in [4.5, 5.0, 6.0, 7.5] {
        let (solution, measured) = solved(&checkpoint, &FORMATS, Grouping::Tensor, bits);
        assert!(solution.plan.bits_per_weight() <= bits, "{bits}: {}", solution.plan.bits_per_weight());
        assert!(solution.bound_kl <= solution.predicted_kl + 1e-12, "{bits}");
        let ratio = solution.predicted_kl / measured;
        assert!((0.4..2.5).contains(&ratio), "{bits}: {} {measured}", solution.predicted_kl);
        assert!(measured < last, "{bits}: {measured} {last}");
        assert!(solution.budget_binds);
        let read = Recipe::parse("read", &solution.recipe.to_toml()).unwrap();
        let destination = Destination::Target(target::host());
        let again = Plan::new(&checkpoint, &Folds::none(&checkpoint.config), &read, &destination, true).unwrap();
        assert_eq!(again.weights, solution.plan.weights, "{bits}");
        last = measured;
    }
}

/// Everything in the only format is what the probe measured.
#[test]
fn the_probe_is_predicted_as_it_was_measured() {
    let (solution, measured) = solved(&checkpoint(false), &[DType::Q4_0], Grouping::Tensor, 4.5);
    assert!((solution.predicted_kl / measured - 1.0).abs() < 1e-3, "{} {measured}", solution.predicted_kl);
    assert!(!solution.budget_binds);
}

#[test]
fn a_sensitive_layer_gets_more_bits() {
    // Room for less than three of the feed-forward matrices in 8 bits beside all others in 4.
    let elements = 106_496.0;
    let bits = 4.5 + 4.0 * 2.8 * 6144.0 / elements;
    let format_of = |huge: bool| {
        let (solution, _) = solved(&checkpoint(huge), &[DType::Q4_0, DType::Q8_0], Grouping::Tensor, bits);
        assert!(solution.plan.bits_per_weight() <= bits);
        let rank = solution.groups.iter().position(|group| DOWN.starts_with(&group.name)).unwrap();
        (solution.plan.find(DOWN).unwrap().to, rank)
    };
    let (plain, rank) = format_of(false);
    let (sensitive, first) = format_of(true);
    assert_eq!((plain, sensitive), (DType::Q4_0, DType::Q8_0));
    assert!(first < rank, "{first} {rank}");
}

#[test]
fn groups_have_one_format() {
    let checkpoint = checkpoint(false);
    for (grouping, groups) in [(Grouping::Tensor, 16), (Grouping::Layer, 4), (Grouping::Role, 9)] {
        let (solution, _) = solved(&checkpoint, &FORMATS, grouping, 6.0);
        assert_eq!(solution.groups.len(), groups, "{grouping:?}");
        let bytes: u64 = solution.groups.iter().map(|group| group.bytes).sum();
        let matrices = solution.plan.weights.iter().filter(|weight| weight.shape.len() > 1);
        assert_eq!(bytes, matrices.map(|weight| weight.bytes()).sum::<u64>(), "{grouping:?}");
        assert!(solution.plan.bits_per_weight() <= 6.0);
    }
}

#[test]
fn budgets_that_cannot_be() {
    let matrices = matrices(&checkpoint(false), &target::host(), Activation::Float, Some(&FORMATS)).unwrap();
    for (bits, need) in
        [(4.4, "at least 4.5000 bits a weight"), (0.0, "a number above 0"), (f64::NAN, "a number above 0")]
    {
        let error = check_budget(&matrices, Grouping::Tensor, bits).unwrap_err();
        assert_eq!(error.diagnostics()[0].need.as_deref(), Some(need), "{bits}");
    }
    check_budget(&matrices, Grouping::Tensor, 4.5).unwrap();
    check_budget(&matrices, Grouping::Role, 100.0).unwrap();
}
