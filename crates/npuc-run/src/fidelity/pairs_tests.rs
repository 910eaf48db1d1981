//! Pairs of two forms of a step, by the text of their graphs.
#![allow(clippy::unwrap_used)]

use npuc::ir::text;

use super::*;
use crate::program::Segment;

/// A step of the segments with these lines.
fn step(segments: &[&str]) -> Step {
    let segment = |lines: &&str| Segment {
        graph: text::parse(&format!("graph \"2t4c\" {{\n{lines}\n}}\n")).unwrap(),
        emitted: None,
        encodings: None,
    };
    Step { shape: "2t4c".parse().unwrap(), segments: segments.iter().map(segment).collect() }
}

/// The pairs as `(reference, model)` indices, and how many values are alone.
fn check(reference: &[&str], model: &[&str], same_state: bool, expected: &[(u32, u32)], alone: (usize, usize)) {
    let pairing = pair(&step(reference), &step(model), same_state);
    let have: Vec<(u32, u32)> = pairing.pairs.iter().map(|(a, b)| (a.id.0, b.id.0)).collect();
    assert_eq!((have.as_slice(), pairing.unpaired), (expected, alone), "{reference:?}\n{model:?}");
}

const NORM: &str = "%0 = input \"embeds\" : f32[2, 8]
%1 = weight \"w\" : f32[8]
%2 = rms_norm(%0, %1) {eps = 1e-5} : f32[2, 8] @ \"norm\"
%3 = silu(%2) : f32[2, 8] @ \"mlp\"";

const PLAIN_NORM: &str = "%0 = input \"embeds\" : f32[2, 8]
%1 = weight \"w\" : f32[8]
%2 = mul(%0, %0) : f32[2, 8] @ \"norm\"
%3 = mean(%2) {axis = 1} : f32[2, 1] @ \"norm\"
%4 = rsqrt(%3) : f32[2, 1] @ \"norm\"
%5 = mul(%0, %4) : f32[2, 8] @ \"norm\"
%6 = mul(%5, %1) : f32[2, 8] @ \"norm\"
%7 = silu(%6) : f32[2, 8] @ \"mlp\"";

#[test]
fn a_decomposed_operation_pairs_by_its_result() {
    check(&[NORM], &[NORM], true, &[(2, 2), (3, 3)], (0, 0));
    check(&[NORM], &[PLAIN_NORM], true, &[(2, 6), (3, 7)], (0, 4));
    check(&[PLAIN_NORM], &[NORM], true, &[(6, 2), (7, 3)], (4, 0));
}

#[test]
fn a_projection_pairs_with_its_convolution_and_not_with_another_shape() {
    let linear = "%0 = input \"embeds\" : f32[2, 8]
%1 = weight \"w\" : f32[4, 8]
%2 = linear(%0, %1) : f32[2, 4] @ \"q\"
%3 = silu(%2) : f32[2, 4] @ \"q\"";
    let conv = "%0 = input \"embeds\" : f32[2, 8]
%1 = weight \"w\" : f32[4, 8]
%2 = reshape(%0) {shape = [1, 1, 2, 8]} : f32[1, 1, 2, 8] @ \"q\"
%3 = pointwise_conv(%2, %1) : f32[1, 1, 2, 4] @ \"q\"
%4 = reshape(%3) {shape = [2, 4]} : f32[2, 4] @ \"q\"
%5 = silu(%4) : f32[2, 4] @ \"q\"";
    let other = "%0 = input \"embeds\" : f32[2, 8]
%1 = weight \"w\" : f32[3, 8]
%2 = linear(%0, %1) : f32[2, 3] @ \"q\"";
    check(&[linear], &[conv], true, &[(2, 3), (3, 5)], (0, 0));
    check(&[linear], &[other], true, &[], (2, 1));
}

#[test]
fn what_a_rewrite_scales_is_not_compared() {
    let plain = "%0 = input \"embeds\" : f32[2, 8]
%1 = weight \"w\" : f32[8, 8]
%2 = silu(%0) : f32[2, 8] @ \"mlp\"
%3 = mul(%2, %0) : f32[2, 8] @ \"mlp\"
%4 = linear(%3, %1) : f32[2, 8] @ \"down\"
%5 = add(%0, %4) : f32[2, 8] @ \"mlp\"";
    let guarded = "%0 = input \"embeds\" : f32[2, 8]
%1 = weight \"w\" : f32[8, 8]
%2 = silu(%0) : f32[2, 8] @ \"mlp\"
%3 = affine(%0) {scale = 0.0625, offset = 0.0} : f32[2, 8] @ \"mlp\"
%4 = mul(%2, %3) : f32[2, 8] @ \"mlp\"
%5 = linear(%4, %1) : f32[2, 8] @ \"down\"
%6 = affine(%5) {scale = 16.0, offset = 0.0} : f32[2, 8] @ \"down\"
%7 = add(%0, %6) : f32[2, 8] @ \"mlp\"";
    check(&[plain], &[guarded], true, &[(2, 2), (4, 6), (5, 7)], (1, 3));
}

#[test]
fn a_projection_pairs_before_what_is_decomposed_after_it() {
    let start = "%0 = input \"embeds\" : f32[2, 8]
%1 = weight \"w\" : f32[8, 8]
%2 = linear(%0, %1) : f32[2, 8] @ \"q\"
";
    let rope = "%3 = rope(%2, %0, %0) : f32[2, 8] @ \"q\"";
    let plain = "%3 = mul(%2, %0) : f32[2, 8] @ \"q\"
%4 = add(%3, %0) : f32[2, 8] @ \"q\"";
    let [fused, decomposed] = [rope, plain].map(|rest| format!("{start}{rest}"));
    check(&[&fused], &[&decomposed], true, &[(2, 2), (3, 4)], (0, 1));
}

#[test]
fn parts_of_a_model_pair_with_the_whole() {
    let second = "%0 = input \"hidden\" : f32[2, 8]
%1 = silu(%0) : f32[2, 8] @ \"mlp\"";
    let first = NORM.rsplit_once('\n').unwrap().0;
    check(&[NORM], &[first, second], true, &[(2, 2), (3, 1)], (0, 0));
}

#[test]
fn of_what_reads_a_mask_or_a_cache_only_the_result_pairs_where_these_are_not_alike() {
    let masked = "%0 = input \"mask\" : f32[2, 6]
%1 = input \"embeds\" : f32[2, 6]
%2 = silu(%1) : f32[2, 6] @ \"q\"
%3 = add(%2, %0) : f32[2, 6] @ \"attn\"
%4 = max(%3) {axis = 1} : f32[2, 1] @ \"attn\"
%5 = sub(%3, %4) : f32[2, 6] @ \"attn\"";
    let cached = "%0 = input \"past_k.0\" : f32[1, 4, 8]
%1 = input \"embeds\" : f32[1, 2, 8]
%2 = concat(%0, %1) {axis = 1} : f32[1, 6, 8] @ \"attn\"
%3 = matmul(%1, %2) {transpose_b = true} : f32[1, 2, 6] @ \"attn\"
%4 = silu(%3) : f32[1, 2, 6] @ \"attn\"";
    check(&[masked], &[masked], true, &[(2, 2), (3, 3), (4, 4), (5, 5)], (0, 0));
    check(&[masked], &[masked], false, &[(2, 2), (5, 5)], (2, 2));
    check(&[cached], &[cached], true, &[(2, 2), (3, 3), (4, 4)], (0, 0));
    check(&[cached], &[cached], false, &[(4, 4)], (2, 2));
}
