//! A sound description, and everything that can be wrong with one.

use super::*;
use crate::back::qnn::description::Param;
use crate::tensor::{DType, Shape};

const INPUTS: u32 = 64;
const OUTPUTS: u32 = 32;

fn stored(dtype: DType, shape: [usize; 2]) -> Stored {
    let bytes = shape[0] * dtype.row_bytes(shape[1]).unwrap();
    Stored::in_memory(dtype, Shape(shape.to_vec()), vec![1; bytes].into()).unwrap()
}

fn format(name: &str) -> DType {
    DType::from_name(name).unwrap()
}

fn tensor(name: &str, role: Role, dtype: DataType, shape: &[u32], encoding: Option<ScaleOffset>) -> Tensor {
    Tensor { name: name.into(), role, dtype, shape: shape.to_vec(), encoding }
}

/// A convolution in that format, its activations of that type, and a sum with its input's neighbour.
fn convolution(weight: DType, activations: DataType) -> (Description, BTreeMap<String, Stored>) {
    let encoding = (activations == DataType::U16).then_some(ScaleOffset { scale: 0.5, offset: -32768 });
    let filter = if weight == DType::F16 { DataType::F16 } else { DataType::S8 };
    let node = |name: &str, op: &str, params: &[(&str, Param)], inputs: &[usize], outputs: &[usize]| Node {
        name: name.into(),
        op: op.into(),
        params: params.iter().map(|(name, param)| ((*name).to_owned(), param.clone())).collect(),
        inputs: inputs.to_vec(),
        outputs: outputs.to_vec(),
    };
    let description = Description {
        name: "g".into(),
        tensors: vec![
            tensor("x", Role::Input, activations, &[1, 1, 8, INPUTS], encoding),
            tensor("w", Role::Filter("w".into()), filter, &[1, 1, INPUTS, OUTPUTS], None),
            tensor("y", Role::Native, activations, &[1, 1, 8, OUTPUTS], encoding),
            tensor("stride", Role::Numbers(vec![1, 1]), DataType::U32, &[2], None),
            tensor("b", Role::Reals(vec![0.5; OUTPUTS as usize]), activations, &[OUTPUTS], encoding),
            tensor("z", Role::Output, activations, &[1, 1, 8, OUTPUTS], encoding),
        ],
        nodes: vec![
            node("conv", "Conv2d", &[("stride", Param::Tensor(3)), ("group", Param::U32(1))], &[0, 1], &[2]),
            node("add", "ElementWiseAdd", &[], &[2, 4], &[5]),
        ],
    };
    let shape = [OUTPUTS as usize, INPUTS as usize];
    (description, BTreeMap::from([("w".to_owned(), stored(weight, shape))]))
}

/// The faults as `code: message: subject`.
fn faults(description: &Description, weights: &BTreeMap<String, Stored>) -> Vec<String> {
    let error = check(description, weights).err();
    let text = |fault: &Diagnostic| {
        format!("{}: {}: {}", fault.code, fault.message, fault.subject.as_deref().unwrap_or_default())
    };
    error.iter().flat_map(|error| error.diagnostics()).map(text).collect()
}

#[test]
fn formats_and_activations() {
    let apart = ["unsupported-format: activations and weights do not go together: g: conv (Conv2d)"];
    for (weight, u16_goes, f16_goes) in [
        ("f16", false, true),
        ("int8", true, true),
        ("int4", true, true),
        ("lpbq4-g16", true, false),
        ("lpbq4-g32", true, false),
        ("bw4-g32", false, true),
        ("q4_0", false, true),
        ("q4_1", false, true),
    ] {
        for (activations, goes) in [(DataType::U16, u16_goes), (DataType::F16, f16_goes)] {
            let (description, weights) = convolution(format(weight), activations);
            let expected = if goes { &[][..] } else { &apart };
            assert_eq!(faults(&description, &weights), expected, "{weight} with {activations:?}");
        }
    }
    // Whole scales of blocks become float ones.
    let (mut description, weights) = convolution(format("lpbq4-g32"), DataType::F16);
    description.tensors[1].role = Role::FloatFilter("w".into());
    assert_eq!(faults(&description, &weights), [""; 0]);
    let (mut description, weights) = convolution(format("lpbq4-g32"), DataType::U16);
    description.tensors[1].role = Role::FloatFilter("w".into());
    assert_eq!(faults(&description, &weights), apart);
    // An odd number of blocks.
    for (width, odd) in [(48, true), (64, false)] {
        let (mut description, _) = convolution(format("lpbq4-g16"), DataType::U16);
        description.tensors[0].shape[3] = width;
        description.tensors[1].shape[2] = width;
        let weights =
            BTreeMap::from([("w".to_owned(), stored(format("lpbq4-g16"), [OUTPUTS as usize, width as usize]))]);
        let told = faults(&description, &weights);
        let expected = ["unsupported-format: blocks with whole scales are read wrongly: g: w"];
        assert_eq!(told, if odd { &expected[..] } else { &[] });
    }
    let (description, weights) = convolution(DType::Q8_0, DataType::F16);
    assert_eq!(faults(&description, &weights), ["unsupported-format: the format of a matrix has no form in QNN: g: w"]);
}

type Change = fn(&mut Description);

const WRONG: [(&str, Change); 33] = [
    ("bad-bundle: a graph has no operations: g: g", |d| {
        d.nodes.clear();
    }),
    ("bad-bundle: a graph has a name that is empty or has a zero byte: : \"\"", |d| d.name.clear()),
    ("bad-bundle: a tensor has a name that is empty or has a zero byte: g: \"a\\0\"", |d| {
        d.tensors[2].name = "a\0".into();
    }),
    ("duplicate-name: two tensors have one name: g: x", |d| d.tensors[2].name = "x".into()),
    ("duplicate-name: two nodes have one name: g: conv", |d| d.nodes[1].name = "conv".into()),
    ("byte-limit: the size of a tensor overflows: g: y", |d| d.tensors[2].shape = vec![u32::MAX; 4]),
    ("byte-limit: a tensor is larger than QNN takes: g: y", |d| d.tensors[2].shape = vec![1 << 16, 1 << 15]),
    ("wrong-shape: a tensor has no elements: g: y", |d| d.tensors[2].shape = vec![1, 0]),
    ("wrong-shape: a tensor has no elements: g: y", |d| d.tensors[2].shape.clear()),
    ("bad-range: numbers of a fixed point have no encoding: g: x", |d| d.tensors[0].encoding = None),
    ("bad-range: numbers that mean themselves have an encoding: g: stride", |d| {
        d.tensors[3].encoding = Some(ScaleOffset { scale: 1.0, offset: 0 });
    }),
    ("bad-range: a filter has an encoding of its own beside that of its weight: g: w", |d| {
        d.tensors[1].encoding = Some(ScaleOffset { scale: 1.0, offset: 0 });
    }),
    ("bad-range: the encoding of a tensor is none: g: x", |d| {
        d.tensors[0].encoding = Some(ScaleOffset { scale: 0.0, offset: 0 });
    }),
    ("bad-range: the encoding of a tensor is none: g: x", |d| {
        d.tensors[0].encoding = Some(ScaleOffset { scale: f32::NAN, offset: 0 });
    }),
    ("bad-range: the encoding of a tensor is none: g: x", |d| {
        d.tensors[0].encoding = Some(ScaleOffset { scale: 1.0, offset: 1 });
    }),
    ("bad-range: the encoding of a tensor is none: g: x", |d| {
        d.tensors[0].encoding = Some(ScaleOffset { scale: 1.0, offset: -65536 });
    }),
    ("missing-tensor: a weight is not there: g: w", |d| d.tensors[1].role = Role::Filter("v".into())),
    ("missing-tensor: a weight is not there: g: b", |d| d.tensors[4].role = Role::Weight("v".into())),
    ("wrong-shape: a constant has another number of elements than its tensor: g: stride", |d| {
        d.tensors[3].role = Role::Numbers(vec![1]);
    }),
    ("wrong-shape: a constant has another number of elements than its tensor: g: b", |d| {
        d.tensors[4].role = Role::Weight("w".into());
    }),
    ("bad-range: a constant is not for U32: g: stride", |d| d.tensors[3].role = Role::Numbers(vec![1, -1])),
    ("bad-range: a constant is not for U16: g: b", |d| {
        d.tensors[4].role = Role::Reals(vec![1e9; OUTPUTS as usize]);
    }),
    ("bad-bundle: a node names a tensor that is not there: g: add", |d| d.nodes[1].inputs[0] = 6),
    ("bad-bundle: a node names a tensor that is not there: g: conv", |d| {
        d.nodes[0].params[0].1 = Param::Tensor(99);
    }),
    ("bad-bundle: the parameter of a node is a tensor that cannot be one: g: conv: x", |d| {
        d.nodes[0].params[0].1 = Param::Tensor(0);
    }),
    ("bad-bundle: the result of a node is a tensor that cannot be one: g: add: b", |d| d.nodes[1].outputs[0] = 4),
    ("bad-bundle: a node has no results: g: add", |d| d.nodes[1].outputs.clear()),
    ("bad-bundle: a node uses a value that is not computed before it: g: add: y", |d| d.nodes.reverse()),
    ("bad-bundle: a value is computed twice: g: y", |d| d.nodes[1].outputs.push(2)),
    ("bad-bundle: no node uses an input: g: extra", |d| {
        d.tensors.push(tensor("extra", Role::Input, DataType::F16, &[1], None));
    }),
    ("bad-bundle: no node computes an output: g: extra", |d| {
        d.tensors.push(tensor("extra", Role::Output, DataType::F16, &[1], None));
    }),
    ("wrong-shape: a filter has another shape than its weight: g: w", |d| {
        d.tensors[1].shape = vec![1, 1, OUTPUTS, INPUTS];
    }),
    ("unsupported-format: a filter is where none is taken: g: conv (FullyConnected)", |d| {
        d.nodes[0].op = "FullyConnected".into();
    }),
];

#[test]
fn what_is_wrong_is_told() {
    for (expected, change) in WRONG {
        let (mut description, weights) = convolution(format("lpbq4-g32"), DataType::U16);
        assert_eq!(faults(&description, &weights), [""; 0]);
        change(&mut description);
        let faults = faults(&description, &weights);
        assert!(faults.iter().any(|fault| fault == expected), "{expected}\n{faults:#?}");
    }
}

#[test]
fn all_faults_are_told_at_once() {
    let (mut description, weights) = convolution(format("int8"), DataType::U16);
    description.tensors[0].encoding = None;
    description.tensors[1].dtype = DataType::U8;
    description.nodes[1].inputs[1] = 1;
    assert_eq!(
        faults(&description, &weights),
        [
            "bad-range: numbers of a fixed point have no encoding: g: x",
            "bad-bundle: a filter has another type than its weight: g: w",
            "unsupported-format: a filter is where none is taken: g: add (ElementWiseAdd)",
        ]
    );
    let flat = BTreeMap::from([("w".to_owned(), stored(DType::Int8, [OUTPUTS as usize * 2, INPUTS as usize / 2]))]);
    let (description, _) = convolution(format("int8"), DataType::U16);
    assert_eq!(faults(&description, &flat), ["wrong-shape: a filter has another shape than its weight: g: w"]);
}
