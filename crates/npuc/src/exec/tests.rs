//! The executor against the literal f64 interpreter, which shares no code with it, on random graphs.

use std::collections::BTreeMap;

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::ir::arbitrary::{Case, cases};
use crate::ir::naive;
use crate::ir::text::parse;
#[cfg(target_os = "linux")]
use crate::tensor::SourceFile;

/// The numbers in a format, and the numbers that it then really holds.
fn store(dtype: DType, shape: &Shape, numbers: &[f64]) -> (Tensor, Vec<f64>) {
    let bytes: Vec<u8> = match dtype {
        DType::F32 => numbers.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
        DType::F16 => numbers.iter().flat_map(|&x| f16::from_f64(x).to_le_bytes()).collect(),
        DType::BF16 => numbers.iter().flat_map(|&x| bf16::from_f64(x).to_le_bytes()).collect(),
        DType::Q8_0 => {
            let block = |numbers: &[f64]| {
                let scale = f16::from_f64(1.0 / 127.0);
                let quants = numbers.iter().map(move |&x| (x * 127.0).round() as i8 as u8);
                scale.to_le_bytes().into_iter().chain(quants).collect::<Vec<u8>>()
            };
            numbers.chunks(32).flat_map(block).collect()
        }
        DType::Q4_0
        | DType::Q4_1
        | DType::Q5_0
        | DType::Q5_1
        | DType::Q2K
        | DType::Q3K
        | DType::Q4K
        | DType::Q5K
        | DType::Q6K
        | DType::Int8
        | DType::Int4
        | DType::Lpbq4(_)
        | DType::Bw4(_) => unreachable!("random graphs have no {dtype}"),
    };
    let tensor = Tensor::in_memory(dtype, shape.clone(), bytes.into()).expect("the size of the shape");
    let held = to_f32(&tensor).into_iter().map(f64::from).collect();
    (tensor, held)
}

/// Every value of the case agrees with the interpreter, relative to the largest magnitude.
fn check(case: &Case, threads: usize) -> Vec<Vec<f32>> {
    let graph = &case.graph;
    let mut tensors = BTreeMap::new();
    let mut weights = case.weights.clone();
    for value in graph.values.iter().filter(|value| value.def == Def::Weight) {
        let (tensor, held) = store(value.ty.dtype, &value.ty.shape, &case.weights[&value.name]);
        tensors.insert(value.name.clone(), tensor);
        weights.insert(value.name.clone(), held);
    }
    let all: Vec<ValueId> = graph.ids().collect();
    let mut executor = Executor::new(graph, &tensors, &all).unwrap();
    let mut inputs = case.inputs.clone();
    let buffers: Vec<Vec<f32>> =
        executor.inputs().map(|(name, _)| inputs[name].iter().map(|&x| x as f32).collect()).collect();
    for data in inputs.values_mut() {
        data.iter_mut().for_each(|x| *x = f64::from(*x as f32));
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| executor.run(&[&buffers]));
    let expected = naive::eval(graph, &inputs, &weights);
    for &id in &all {
        let have = executor.kept(id).unwrap();
        let need = &expected[&id];
        let largest = need.iter().fold(1.0, |m: f64, x| m.max(x.abs()));
        for (i, (&have, &need)) in have.iter().zip(need).enumerate() {
            let off = (f64::from(have) - need).abs() / largest;
            assert!(off <= 1e-4, "{id}[{i}] is {have}, and {need} is expected\n{graph}");
        }
    }
    // Without kept values buffers are used again, which must change nothing.
    let mut plain = Executor::new(graph, &tensors, &[]).unwrap();
    let mut observed = BTreeMap::new();
    pool.install(|| plain.run_observed(&[&buffers], &mut |id, x| _ = observed.insert(id, x.to_vec())));
    for id in graph.ids() {
        match &graph.value(id).def {
            Def::Weight | Def::Op { op: Op::Reshape { .. }, .. } => assert!(!observed.contains_key(&id)),
            Def::Input | Def::Op { .. } => assert_eq!(executor.kept(id), observed.get(&id).map(Vec::as_slice)),
        }
    }
    let outputs: Vec<Vec<f32>> = (0..graph.outputs.len()).map(|port| plain.output(port).to_vec()).collect();
    for (output, port) in graph.outputs.iter().zip(&outputs) {
        assert_eq!(executor.kept(output.value).unwrap(), port, "{}\n{graph}", output.name);
    }
    outputs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_value_agrees_with_the_interpreter(case in cases(24)) {
        prop_assert_eq!(check(&case, 1), check(&case, 2));
    }
}

#[test]
fn weights_are_checked_against_the_graph() {
    let graph = parse(
        "graph \"g\" {\n%0 = input \"x\" : f32[1, 2]\n%1 = weight \"w\" : f32[3, 2]\n%2 = weight \"v\" : f32[3, 3]\n\
         %3 = linear(%0, %1) : f32[1, 3]\n%4 = linear(%3, %2) : f32[1, 3]\noutput \"y\" = %4\n}",
    )
    .unwrap();
    let (w, _) = store(DType::F16, &Shape::from([3, 2]), &[0.0; 6]);
    let error = Executor::new(&graph, &BTreeMap::from([("w".to_string(), w)]), &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "error[wrong-shape]: a weight has another type than the graph says\n  --> w\n  = need: f32[3, 2]\n  \
         = have: f16[3, 2]\nerror[missing-tensor]: the graph uses a weight that is not there\n  --> v\n  \
         = need: f32[3, 3]"
    );
}

#[test]
fn inputs_and_weights_can_leave_and_be_matrices() {
    let graph = parse(
        "graph \"g\" {\n%0 = input \"x\" : f32[2, 2]\n%1 = weight \"w\" : f32[2, 2]\n%2 = linear(%0, %1) : f32[2, 2]\n\
         %3 = reshape(%0) {shape = [4]} : f32[4]\n\
         output \"x\" = %3\noutput \"w\" = %1\noutput \"y\" = %2\n}",
    )
    .unwrap();
    let (w, _) = store(DType::F32, &Shape::from([2, 2]), &[1.0, 2.0, 3.0, 4.0]);
    let mut executor = Executor::new(&graph, &BTreeMap::from([("w".to_string(), w)]), &[]).unwrap();
    executor.run(&[&[vec![1.0, 10.0, 100.0, 1000.0]]]);
    assert_eq!(executor.output(0), [1.0, 10.0, 100.0, 1000.0]);
    assert_eq!(executor.output(1), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(executor.output(2), [21.0, 43.0, 2100.0, 4300.0]);
}

/// The memory that this process holds of a mapped file, as the system tells it.
#[cfg(target_os = "linux")]
fn resident_kib(file: &std::path::Path) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines().skip_while(|line| !line.ends_with(file.to_str().unwrap()));
    let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    rss.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn spared_memory_goes_back_and_is_read_again() {
    const SIZE: usize = 2048;
    let graph = parse(&format!(
        "graph \"g\" {{\n%0 = input \"x\" : f32[1, {SIZE}]\n%1 = weight \"w\" : f32[{SIZE}, {SIZE}]\n\
         %2 = linear(%0, %1) : f32[1, {SIZE}]\noutput \"y\" = %2\n}}"
    ))
    .unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let numbers: Vec<f32> = (0..SIZE * SIZE).map(|at| (at % 89) as f32).collect();
    std::fs::write(file.path(), bytemuck::cast_slice(&numbers)).unwrap();
    let shape = Shape::from([SIZE, SIZE]);
    let source = SourceFile::open(file.path()).unwrap();
    let w = Tensor::in_file(DType::F32, shape, source, 0..4 * numbers.len()).unwrap();
    let mut executor = Executor::new(&graph, &BTreeMap::from([("w".to_string(), w)]), &[]).unwrap();
    let x = [vec![1.0; SIZE]];
    executor.run(&[&x]);
    let (y, whole_kib) = (executor.output(0).to_vec(), (4 * numbers.len() / 1024) as u64);
    assert!(resident_kib(file.path()) > whole_kib / 2);
    executor.spare_memory();
    for _ in 0..2 {
        executor.run(&[&x]);
        assert!(resident_kib(file.path()) < whole_kib / 100);
        assert_eq!(executor.output(0), y);
    }
}
