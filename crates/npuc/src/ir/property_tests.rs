//! Properties of text and verifier on random graphs and on random damage to them.

use proptest::prelude::*;
use proptest::sample::Index;

use super::arbitrary::cases;
use super::text::{parse, print};
use super::verify::{annotate, verify};
use super::{Def, Graph, Op, Output, Type, ValueId};
use crate::tensor::DType;

/// The text reads back as itself; whatever faults there are, they can be shown.
fn survives(graph: &Graph) -> bool {
    assert_eq!(print(&parse(&print(graph)).unwrap()), print(graph));
    match verify(graph) {
        Ok(()) => true,
        Err(error) => {
            let text = annotate(graph, &error);
            assert_eq!(text.matches("  # ^ error: ").count(), error.diagnostics().len(), "{text}");
            assert_eq!(print(&parse(&text).unwrap()), print(graph));
            false
        }
    }
}

/// Damages the value at `id` in one of the ways that always make a graph invalid.
fn damage(graph: &mut Graph, id: ValueId, kind: u8, by: u32) {
    let count = graph.values.len();
    let name = graph.values[0].name.clone();
    let value = &mut graph.values[id.index()];
    let extents = &mut value.ty.shape.0;
    match (kind % 8, &mut value.def) {
        (0, Def::Op { args, .. }) => {
            let i = by as usize % args.len();
            args[i] = ValueId(id.0.saturating_add(by % 4));
        }
        (1, Def::Op { args, .. }) => args.clear(),
        (2, Def::Op { .. }) => extents[0] += 1,
        (3, Def::Op { .. }) => value.ty.dtype = DType::ALL[1 + by as usize % (DType::ALL.len() - 1)],
        (4, Def::Op { op, .. }) => *op = Op::Affine { scale: f32::NAN, offset: 0.0 },
        (0..=4, Def::Input | Def::Weight) if id.0 > 0 => value.name = name,
        (5, _) => extents.fill(0),
        (6, _) => extents.resize(5, 1),
        _ if by.is_multiple_of(2) => graph.outputs.clear(),
        _ => graph.outputs.push(Output { name: "extra".into(), value: ValueId(count as u32 + by) }),
    }
}

fn wild_name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z.0-9]{0,8}", "\\PC{0,8}", any::<String>()]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn graphs_are_valid_and_read_back(case in cases(10), names in prop::collection::vec(wild_name(), 1..4), eps in any::<f32>()) {
        prop_assert!(survives(&case.graph));
        let mut graph = case.graph;
        graph.name = names[0].clone();
        for (i, value) in graph.values.iter_mut().enumerate() {
            value.name = names[i % names.len()].clone();
            if let Def::Op { op: Op::RmsNorm { eps: old } | Op::Affine { scale: old, .. }, .. } = &mut value.def {
                *old = eps;
            }
        }
        survives(&graph);
        if !eps.is_nan() {
            prop_assert_eq!(&parse(&print(&graph)).unwrap(), &graph);
        }
    }

    #[test]
    fn damage_is_reported(case in cases(10), at in any::<Index>(), kind in any::<u8>(), by in 0u32..9) {
        let mut graph = case.graph;
        let id = ValueId(at.index(graph.values.len()) as u32);
        damage(&mut graph, id, kind, by);
        prop_assert!(!survives(&graph), "{}", graph);
    }

    #[test]
    fn damaged_text_never_panics(case in cases(6), at in any::<Index>(), len in 0usize..4, new in "[ -~\\n]{0,2}|\\PC{0,2}") {
        let mut text: Vec<char> = print(&case.graph).chars().collect();
        let start = at.index(text.len());
        let end = (start + len).min(text.len());
        text.splice(start..end, new.chars());
        if let Ok(graph) = parse(&text.into_iter().collect::<String>()) {
            survives(&graph);
        }
    }

    #[test]
    fn text_of_any_kind_never_panics(text in "(graph|output|input|weight|%[0-9]|[ \\n\"\\\\{}()\\[\\]=:@#,]|exp|f32|u\\{|1e9|\\PC){0,40}", head in any::<bool>()) {
        let text = if head { format!("graph \"\" {{\n%0 = {text}\n}}") } else { text };
        if let Ok(graph) = parse(&text) {
            survives(&graph);
        }
    }

    #[test]
    fn inference_never_panics(
        case in cases(3),
        shapes in prop::collection::vec(prop::collection::vec(prop_oneof![0usize..6, any::<usize>()], 0..6), 0..7),
        numbers in prop::collection::vec(prop_oneof![0usize..6, any::<usize>()], 3..5),
        dtype in prop::sample::select(&DType::ALL[..]),
    ) {
        let types: Vec<Type> = shapes.iter().map(|s| Type { dtype, shape: crate::tensor::Shape(s.clone()) }).collect();
        let types: Vec<&Type> = types.iter().collect();
        let (axis, start, len) = (numbers[0], numbers[1], numbers[2]);
        let drawn = case.graph.values.iter().filter_map(|value| match &value.def {
            Def::Op { op, .. } => Some(op.clone()),
            Def::Input | Def::Weight => None,
        });
        let wild = [
            Op::Slice { axis, start, len },
            Op::Concat { axis },
            Op::Sum { axis },
            Op::Reshape { shape: numbers.clone() },
            Op::Transpose { perm: numbers.clone() },
            Op::Attention { scale: 1.0 },
            Op::MatMul { transpose_b: true },
            Op::Add {},
        ];
        for op in drawn.chain(wild) {
            let result = super::infer::infer(&op, &types);
            if let Ok(ty) = result {
                prop_assert!(super::infer::check_type(&ty).is_ok());
            }
        }
    }
}
