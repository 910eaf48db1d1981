//! Every rule of type inference, with the message when it is broken.

use super::*;
use crate::ir::text::parse;
use crate::ir::{Def, Graph};

/// Infers the operation that `call` writes, over operands of the types `args`; the result as text.
fn inferred(args: &str, call: &str) -> String {
    let mut text = String::from("graph \"\" {\n");
    let args: Vec<&str> = args.split_terminator("; ").collect();
    for (i, ty) in args.iter().enumerate() {
        text += &format!("%{i} = weight \"{i}\" : {ty}\n");
    }
    let operands: Vec<String> = (0..args.len()).map(|i| format!("%{i}")).collect();
    let call = call.replacen("()", &format!("({})", operands.join(", ")), 1);
    text += &format!("%{} = {call} : f32[1]\n}}", args.len());
    let graph: Graph = parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let types: Vec<&Type> = graph.values[..args.len()].iter().map(|v| &v.ty).collect();
    let Def::Op { op, .. } = &graph.values[args.len()].def else { panic!("{text}") };
    infer(op, &types).map_or_else(|why| why, |ty| ty.to_string())
}

fn check(args: &str, call: &str, expected: &str) {
    assert_eq!(inferred(args, call), expected, "{call} of {args}");
}

#[test]
fn every_operation_has_its_result() {
    for (args, call, expected) in [
        ("f32[3, 8]; f32[8]", "rms_norm() {eps = 1e-5}", "f32[3, 8]"),
        ("f32[8]; bf16[8]", "rms_norm() {eps = 1e-5}", "f32[8]"),
        ("f32[3, 64]; q4_1[7, 64]", "linear()", "f32[3, 7]"),
        ("f32[2, 3, 64]; q8_0[7, 64]; f16[7]", "linear()", "f32[2, 3, 7]"),
        ("f32[256]; q4_k[5, 256]", "linear()", "f32[5]"),
        ("f32[1, 2, 3, 64]; q8_0[7, 64]; f16[7]", "pointwise_conv()", "f32[1, 2, 3, 7]"),
        ("f32[6, 8]; bf16[8, 3]", "short_conv()", "f32[4, 8]"),
        ("f32[3, 8]; f32[8, 3]; f16[8]", "short_conv()", "f32[1, 8]"),
        ("f32[9, 4, 6]; f32[4, 3]; f32[4, 3]", "rope()", "f32[9, 4, 6]"),
        (
            "f32[6, 4, 5]; f32[2, 7, 5]; f32[2, 7, 5]; f32[2, 4, 5]; f32[2, 4, 5]; f32[4, 11]",
            "attention() {scale = 0.5}",
            "f32[6, 4, 5]",
        ),
        ("f32[2, 3, 4]; f32[2, 4, 5]", "matmul() {transpose_b = false}", "f32[2, 3, 5]"),
        ("f32[3, 4]; f32[5, 4]", "matmul() {transpose_b = true}", "f32[3, 5]"),
        ("f32[2, 3]", "softmax()", "f32[2, 3]"),
        ("f32[2, 3]", "silu()", "f32[2, 3]"),
        ("f32[2, 3]", "sigmoid()", "f32[2, 3]"),
        ("f32[2, 3]", "exp()", "f32[2, 3]"),
        ("f32[2, 3]", "abs()", "f32[2, 3]"),
        ("f32[2, 3]", "rsqrt()", "f32[2, 3]"),
        ("f32[2, 3]", "affine() {scale = 2.0, offset = -0.0}", "f32[2, 3]"),
        ("f32[2, 1, 4]; f32[3, 1]", "add()", "f32[2, 3, 4]"),
        ("f32[2, 3]; f16[3]", "sub()", "f32[2, 3]"),
        ("bf16[2, 3]; f32[2, 1]", "mul()", "f32[2, 3]"),
        ("f32[1]; f32[1]", "div()", "f32[1]"),
        ("f32[2, 3, 4]", "sum() {axis = 1}", "f32[2, 1, 4]"),
        ("f32[2, 3, 4]", "mean() {axis = 2}", "f32[2, 3, 1]"),
        ("f32[2, 3, 4]", "max() {axis = 0}", "f32[1, 3, 4]"),
        ("f32[2, 3]; f32[4, 3]; f32[1, 3]", "concat() {axis = 0}", "f32[7, 3]"),
        ("f32[2, 9]", "slice() {axis = 1, start = 4, len = 5}", "f32[2, 5]"),
        ("f32[2, 6]", "reshape() {shape = [1, 3, 2, 2]}", "f32[1, 3, 2, 2]"),
        ("f32[2, 3, 4]", "transpose() {perm = [2, 0, 1]}", "f32[4, 2, 3]"),
        ("bf16[2, 3]", "transpose() {perm = [1, 0]}", "f32[3, 2]"),
    ] {
        check(args, call, expected);
    }
}

/// Operand types, a call and the message.
const MISFITS: &[(&str, &str, &str)] = &[
    ("f32[3, 8]; f32[7]", "rms_norm() {eps = 1.0}", "`rms_norm` needs a gain of x's last extent: [8] and [7]"),
    ("f32[3, 8]; f32[1, 8]", "rms_norm() {eps = 1.0}", "`rms_norm` needs a gain of x's last extent: [8] and [1, 8]"),
    (
        "f32[3, 576]; f32[7, 512]",
        "linear()",
        "`linear` needs x's last extent to equal the weight's second: 576 and 512",
    ),
    ("f32[3, 8]; f32[8]", "linear()", "`linear` needs a weight [out, in], and it has [8]"),
    ("f32[3, 8]; f32[7, 8]; f32[8]", "linear()", "`linear` needs a bias of the weight's first extent: [7] and [8]"),
    (
        "f32[2, 6, 8]; f32[8, 3]",
        "short_conv()",
        "`short_conv` needs x [l-1+t, d] and a weight [d, l]: [2, 6, 8] and [8, 3]",
    ),
    ("f32[6, 8]; f32[7, 3]", "short_conv()", "`short_conv` needs x's last extent to equal the weight's first: 8 and 7"),
    (
        "f32[2, 8]; f32[8, 3]",
        "short_conv()",
        "`short_conv` needs at least as many rows as the weight's second extent: 2 and 3",
    ),
    ("f32[6, 8]; f32[8, 3]; f32[3]", "short_conv()", "`short_conv` needs a bias of x's last extent: [8] and [3]"),
    ("f32[6, 32]; q8_0[8, 32]", "short_conv()", "operand 1 of `short_conv` must be f32, f16 or bf16, and it is q8_0"),
    (
        "f32[2, 1, 3, 8]; f32[7, 8]",
        "pointwise_conv()",
        "`pointwise_conv` needs x [1, height, width, in], and it has [2, 1, 3, 8]",
    ),
    ("f32[3, 8]; f32[7, 8]", "pointwise_conv()", "`pointwise_conv` needs x [1, height, width, in], and it has [3, 8]"),
    (
        "f32[1, 1, 3, 8]; f32[7, 1, 1, 8]",
        "pointwise_conv()",
        "`pointwise_conv` needs a weight [out, in], and it has [7, 1, 1, 8]",
    ),
    ("f32[4]; f32[4, 2]; f32[4, 2]", "rope()", "`rope` needs x [.., tokens, dim], and it has [4]"),
    ("f32[4, 5]; f32[4, 2]; f32[4, 2]", "rope()", "`rope` needs x's last extent to be even, and it is 5"),
    ("f32[4, 6]; f32[4, 3]; f32[3, 3]", "rope()", "`rope` needs sin [tokens, dim/2]: [4, 3] and [3, 3]"),
    (
        "f32[3, 4]; f32[4, 5]",
        "matmul() {transpose_b = true}",
        "`matmul` needs a's last extent to equal b's last: 4 and 5",
    ),
    (
        "f32[3, 4]; f32[5, 4]",
        "matmul() {transpose_b = false}",
        "`matmul` needs a's last extent to equal b's second to last: 4 and 5",
    ),
    ("f32[2, 3, 4]; f32[4, 5]", "matmul() {transpose_b = false}", "`matmul` needs equal leading extents: [2] and []"),
    (
        "f32[4]; f32[4, 5]",
        "matmul() {transpose_b = false}",
        "`matmul` needs operands of rank 2 or more: [4] and [4, 5]",
    ),
    ("f32[2, 3]; f32[2]", "add()", "`add` needs shapes that broadcast: [2, 3] and [2]"),
    ("f32[2, 3]", "sum() {axis = 2}", "`sum` needs an axis below the rank 2, and it is 2"),
    ("f32[2, 3]; f32[2, 4]", "concat() {axis = 0}", "`concat` needs operands that agree off axis 0: [2, 3] and [2, 4]"),
    ("f32[2, 3]; f32[2]", "concat() {axis = 0}", "`concat` needs operands that agree off axis 0: [2, 3] and [2]"),
    ("f32[2, 3]; f32[2, 3]", "concat() {axis = 9}", "`concat` needs an axis below the rank 2, and it is 9"),
    (
        "f32[2, 9]",
        "slice() {axis = 1, start = 5, len = 5}",
        "`slice` needs start + len within axis 1 of [2, 9]: 5 + 5 and 9",
    ),
    ("f32[2, 9]", "slice() {axis = 1, start = 5, len = 0}", "`slice` needs a len of 1 or more, and it is 0"),
    (
        "f32[2, 9]",
        "slice() {axis = 1, start = 18446744073709551615, len = 2}",
        "`slice` needs start + len within axis 1 of [2, 9]: 18446744073709551615 + 2 and 9",
    ),
    ("f32[2, 6]", "reshape() {shape = [5, 2]}", "`reshape` needs a shape of as many elements: [2, 6] and [5, 2]"),
    (
        "f32[1]",
        "reshape() {shape = [9223372036854775808, 2]}",
        "`reshape` needs a shape of as many elements: [1] and [9223372036854775808, 2]",
    ),
    ("f32[2, 3]", "transpose() {perm = [0]}", "`transpose` needs perm to hold each axis of [2, 3] once, and it is [0]"),
    (
        "f32[2, 3]",
        "transpose() {perm = [0, 0]}",
        "`transpose` needs perm to hold each axis of [2, 3] once, and it is [0, 0]",
    ),
    (
        "f32[2, 3]",
        "transpose() {perm = [2, 0]}",
        "`transpose` needs perm to hold each axis of [2, 3] once, and it is [2, 0]",
    ),
];

#[test]
fn operands_that_do_not_fit_are_told() {
    for (args, call, expected) in MISFITS {
        check(args, call, expected);
    }
}

#[test]
fn attention_names_the_operand() {
    let good = ["f32[6, 4, 5]", "f32[2, 7, 5]", "f32[2, 7, 5]", "f32[2, 4, 5]", "f32[2, 4, 5]", "f32[4, 11]"];
    for (operand, ty, expected) in [
        (0, "f32[5, 4, 5]", "the heads to be a multiple of the key/value heads: 5 and 2"),
        (0, "f32[6, 4]", "q [heads, t, d], and it has [6, 4]"),
        (1, "f32[2, 7]", "past_k [kv, c, d], and it has [2, 7]"),
        (1, "f32[2, 7, 6]", "past_k [kv, c, d]: [2, 7, 5] and [2, 7, 6]"),
        (2, "f32[2, 8, 5]", "past_v [kv, c, d]: [2, 7, 5] and [2, 8, 5]"),
        (3, "f32[2, 5, 5]", "new_k [kv, t, d]: [2, 4, 5] and [2, 5, 5]"),
        (4, "f32[1, 4, 5]", "new_v [kv, t, d]: [2, 4, 5] and [1, 4, 5]"),
        (5, "f32[4, 7]", "mask [t, c+t]: [4, 11] and [4, 7]"),
    ] {
        let mut args = good;
        args[operand] = ty;
        check(&args.join("; "), "attention() {scale = 1.0}", &format!("`attention` needs {expected}"));
    }
}

#[test]
fn impossible_types_formats_and_arities_are_told() {
    let huge = "f32[4611686018427387904]";
    for (args, call, expected) in [
        ("f32[1]; f32[1]", "exp()", "`exp` takes 1 operand, and it has 2"),
        ("f32[1]", "add()", "`add` takes 2 operands, and it has 1"),
        ("f32[1]", "linear()", "`linear` takes 2 to 3 operands, and it has 1"),
        ("f32[1]", "concat() {axis = 0}", "`concat` takes 2 or more operands, and it has 1"),
        ("f32[]", "exp()", "operand 0 of `exp` is impossible: f32[] has rank 0, and ranks go from 1 to 4"),
        (
            "f32[1, 1, 1, 1, 1]",
            "exp()",
            "operand 0 of `exp` is impossible: f32[1, 1, 1, 1, 1] has rank 5, and ranks go from 1 to 4",
        ),
        ("f32[2, 0]", "exp()", "operand 0 of `exp` is impossible: f32[2, 0] has an extent of zero"),
        (huge, "exp()", &format!("operand 0 of `exp` is impossible: {huge} is too large to address")),
        (
            "f32[1, 64]; q4_k[2, 64]",
            "linear()",
            "operand 1 of `linear` is impossible: rows of q4_k hold whole blocks of 256 elements, and q4_k[2, 64] has rows of 64",
        ),
        ("q8_0[1, 64]; f32[2, 64]", "linear()", "operand 0 of `linear` must be f32, and it is q8_0"),
        (
            "f32[1, 64]; f32[32, 64]; q8_0[32]",
            "linear()",
            "operand 2 of `linear` must be f32, f16 or bf16, and it is q8_0",
        ),
        ("f32[32]; q8_0[32]", "mul()", "operand 1 of `mul` must be f32, f16 or bf16, and it is q8_0"),
        ("f16[2]", "exp()", "operand 0 of `exp` must be f32, and it is f16"),
        (
            "f32[2]",
            "reshape() {shape = [2, 1, 1, 1, 1]}",
            "the result of `reshape` is impossible: f32[2, 1, 1, 1, 1] has rank 5, and ranks go from 1 to 4",
        ),
        (
            "f32[1073741824, 1]; f32[1, 2147483648]",
            "add()",
            "the result of `add` is impossible: f32[1073741824, 2147483648] is too large to address",
        ),
        (
            "f32[1, 9223372036854775807]; f32[1, 9223372036854775807]; f32[1, 9223372036854775807]",
            "concat() {axis = 1}",
            "operand 0 of `concat` is impossible: f32[1, 9223372036854775807] is too large to address",
        ),
    ] {
        check(args, call, expected);
    }
}
