//! Rules as text, and which operations they hold for.

use super::*;
use crate::ir::text::parse;
use crate::target::number::Number;

#[test]
fn rules_are_read_and_written() {
    for (text, canonical) in [
        ("op=matmul=cpu", "op=matmul=cpu"),
        ("name=lm_head*=cpu", "name=lm_head*=cpu"),
        ("name=a=b=npu", "name=a=b=npu"),
        ("layers=0..4=npu", "layers=0..4=npu"),
        ("layers=3=cpu", "layers=3..4=cpu"),
        ("bytes>64MiB=cpu", "bytes>64MiB=cpu"),
        ("weights<1024=npu", "weights<1KiB=npu"),
        ("activations>3000KB=cpu", "activations>3MB=cpu"),
        ("workspace<0=cpu", "workspace<0B=cpu"),
        ("workspace>1025B=cpu", "workspace>1025B=cpu"),
        ("bytes>2GB=cpu", "bytes>2GB=cpu"),
        ("bytes>18446744073709551615=cpu", "bytes>18446744073709551615B=cpu"),
    ] {
        let rule: Rule = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(rule.to_string(), canonical);
        assert_eq!(canonical.parse::<Rule>().unwrap(), rule, "{text}");
    }
}

#[test]
fn other_text_is_refused() {
    for (text, message, need, have) in [
        ("", "`` is no placement rule: it names no side", "CONDITION=npu or", ""),
        ("matmul", "`matmul` is no placement rule: it names no side", "CONDITION=npu or", "matmul"),
        ("op=matmul", "`op=matmul` is no placement rule: it names no side", "CONDITION=npu", "op=matmul"),
        ("op=matmul=gpu", "`op=matmul=gpu` is no placement rule: it names no side", "CONDITION=npu", "op=matmul=gpu"),
        ("op=matmul=", "`op=matmul=` is no placement rule: it names no side", "CONDITION=npu", "op=matmul="),
        (
            "op=gather=npu",
            "`op=gather=npu` is no placement rule: the runner looks up embedding rows itself, and graphs take them as a port",
            "op=gather=cpu",
            "op=gather=npu",
        ),
        ("op=tanh=cpu", "`op=tanh=cpu` is no placement rule: it names no operation", "rms_norm, layer_norm, ", "tanh"),
        ("name==cpu", "`name==cpu` is no placement rule: its pattern is empty", "a path", "name==cpu"),
        ("layers=4..4=cpu", "`layers=4..4=cpu` is no placement rule: it names no layers", "N or N..M", "4..4"),
        ("layers=1..=cpu", "`layers=1..=cpu` is no placement rule: it names no layers", "N or N..M", "1.."),
        ("layers=-1=cpu", "`layers=-1=cpu` is no placement rule: it names no layers", "N or N..M", "-1"),
        ("bytes>=64=cpu", "`bytes>=64=cpu` is no placement rule: its size is none", "a whole number", "=64"),
        ("bytes>64mib=cpu", "`bytes>64mib=cpu` is no placement rule: its size is none", "a whole number", "64mib"),
        ("bytes>1.5GiB=cpu", "`bytes>1.5GiB=cpu` is no placement rule: its size is none", "a whole number", "1.5GiB"),
        ("bytes>MiB=cpu", "`bytes>MiB=cpu` is no placement rule: its size is none", "a whole number", "MiB"),
        (
            "bytes>17179869184GiB=cpu",
            "`bytes>17179869184GiB=cpu` is no placement rule: its size is none",
            "a whole number",
            "17179869184GiB",
        ),
        ("size>1=cpu", "`size>1=cpu` is no placement rule: npuc does not know its condition", "op=NAME, ", "size>1"),
    ] {
        let error = text.parse::<Rule>().unwrap_err();
        let [fault] = error.diagnostics() else { panic!("{text}") };
        assert_eq!((fault.code, fault.message.as_str()), (Code::BadArgument, message));
        assert!(fault.need.as_ref().unwrap().starts_with(need), "{fault}");
        assert_eq!(fault.have.as_deref(), Some(have), "{text}");
    }
}

#[test]
fn patterns() {
    for (pattern, text, expected) in [
        ("lm_head", "lm_head", true),
        ("lm_head", "lm_head2", false),
        ("lm_head*", "lm_head", true),
        ("*", "", true),
        ("?", "", false),
        ("?", "ä", true),
        ("layers.*.mlp*", "layers.10.mlp.down_proj", true),
        ("*.q_proj", "layers.0.self_attn.q_proj", true),
        ("*.q_proj", "layers.0.self_attn.q_proj.q", false),
        ("*a*b", "aab_ab", true),
        ("*a*b", "aab_a", false),
        ("layers.?.mlp", "layers.10.mlp", false),
        ("**x", "yx", true),
    ] {
        assert_eq!(matches(pattern, text), expected, "{pattern} on {text}");
    }
}

/// A projection with a bias, a product of the input with itself and a norm.
const GRAPH: &str = r#"graph "g" {
  %0 = input "x" : f32[2, 32]
  %1 = weight "w" : q8_0[3, 32]
  %2 = weight "b" : f32[3]
  %3 = weight "g" : bf16[32]
  %4 = mul(%0, %0) : f32[2, 32] @ "layers.0.mlp"
  %5 = rms_norm(%4, %3) {eps = 1e-5} : f32[2, 32] @ "layers.12.norm"
  %6 = linear(%5, %1, %2) : f32[2, 3] @ "lm_head"
  output "y" = %6
}"#;

#[test]
fn rules_hold_for_operations() {
    let graph = parse(GRAPH).unwrap();
    for (text, expected) in [
        ("op=mul=cpu", vec![4]),
        ("op=softmax=cpu", vec![]),
        ("name=*=cpu", vec![4, 5, 6]),
        ("name=lm_*=cpu", vec![6]),
        ("layers=0..12=cpu", vec![4]),
        ("layers=12=cpu", vec![5]),
        ("workspace>255=cpu", vec![4, 5]),
        ("workspace<256=cpu", vec![6]),
    ] {
        let rule: Rule = text.parse().unwrap();
        let held = graph.ids().filter(|&id| rule.holds(&graph, id, &Precision::stored(Number::F32)));
        assert_eq!(held.map(|id| id.0).collect::<Vec<_>>(), expected, "{text}");
    }
}

#[test]
fn bytes_of_operations() {
    let graph = parse(GRAPH).unwrap();
    let stored = Precision::stored(Number::F32);
    let small = Precision::parse("8W16A", Number::F16).unwrap();
    for (precision, id, weights, activations, workspace) in [
        // Both operands are the same value.
        (&stored, 4, 0, 2 * 256, 256),
        (&stored, 5, 128, 2 * 256, 256),
        // 3 blocks of 34 bytes and 3 biases.
        (&stored, 6, 3 * 34 + 12, 256 + 24, 24),
        (&small, 5, 4 * 32, 2 * 128, 128),
        // A byte a weight and an f32 scale a channel.
        (&small, 6, 3 * 32 + 3 * 4 + 12, 128 + 12, 12),
        (&stored, 0, 0, 0, 0),
    ] {
        let of = |measure: Measure| measure.of(&graph, ValueId(id), precision);
        assert_eq!(
            [Measure::Weights, Measure::Activations, Measure::Workspace].map(of),
            [weights, activations, workspace]
        );
        assert_eq!(of(Measure::Bytes), weights + activations);
    }
}
