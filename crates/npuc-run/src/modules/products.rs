//! Every kind of product that a build has, computed once by itself where its modules run and on the host: compilers that compute a
//! product wrong do not say so.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use npuc::back::stablehlo::{Style, emit};
use npuc::exec::Executor;
use npuc::fit::Request;
use npuc::ir::{Def, Graph, Op, Output, Type, Value, ValueId};
use npuc::quant::{Encodings, Real};
use npuc::tensor::Shape;
use npuc::{Code, DType, Diagnostic, Result, Tensor, target};
use npuc_kernels::quantize::{Search, positive_bf16_scales, quantize_row};
use serde::Serialize;

use super::{Making, compiled, ports, scratch, write_module};
use crate::device::module::{self, ModuleSpec, Runner, TIME_LIMIT};
use crate::device::port::PortFormat;
use crate::fidelity::cosine;

/// The least cosine between the device's result and the host's.
const LEAST_COSINE: f64 = 0.999;
/// Columns of a projection that are computed, at most: its tiles are of fewer.
const MOST_COLUMNS: usize = 256;

/// The name of the function of a product.
const NAME: &str = "product";

/// A kind of product that was computed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProvedProduct {
    /// Its operation, with the types of its operands.
    pub product: String,
    /// Between the device's result and the host's.
    pub cosine: f64,
}

/// A product by itself: the types of its operands, and which of them are weights.
#[derive(Clone, Debug, PartialEq)]
struct Product {
    op: Op,
    operands: Vec<(Def, Type)>,
    result: Type,
}

/// Computes every kind of product of the graphs in Torq's simulator.
///
/// Errors: [`Code::Unfaithful`] with the product that it computes otherwise than the host; what compiler and simulator refuse.
pub fn prove_products(
    graphs: &[&Graph],
    request: &Request,
    style: Style,
    making: &mut Making<'_>,
) -> Result<Vec<ProvedProduct>> {
    let folder = scratch()?;
    let mlir = folder.path().join("product.mlir");
    let mut seen = BTreeSet::new();
    let mut proved = Vec::new();
    for product in graphs.iter().flat_map(|graph| products(graph)) {
        let name = product.name();
        if !seen.insert(name.clone()) {
            continue;
        }
        (making.say)(&format!("proving {name}"));
        let graph = product.graph();
        let weights = weights(&graph)?;
        let checked = target::check(graph.clone(), &request.target, &request.question)?;
        write_module(&emit(&checked, &weights, NAME, style)?, &mlir)?;
        let cosine = product_cosine(&graph, &weights, &mlir, making)?;
        check(&name, cosine, making.log)?;
        proved.push(ProvedProduct { product: name, cosine });
    }
    Ok(proved)
}

/// Refuses a cosine that is too small, or not a number because the result has elements that are none.
fn check(name: &str, cosine: f64, log: &Path) -> Result<()> {
    if cosine >= LEAST_COSINE {
        return Ok(());
    }
    Err(Diagnostic::error(Code::Unfaithful, "the compiler computes a product wrong without a word")
        .file(log)
        .subject(name)
        .need(format!("a cosine of at least {LEAST_COSINE} to this machine"))
        .have(format!("{cosine:.6}"))
        .help("change the shapes (another capacity, --attention split-head) or the recipe, and report it to the vendor")
        .into())
}

/// The products of a graph in small form.
fn products(graph: &Graph) -> Vec<Product> {
    let product = |value: &Value| {
        let Def::Op { op, args } = &value.def else { return None };
        let operand = |arg: &ValueId| {
            let value = graph.value(*arg);
            let def = if value.def == Def::Weight { Def::Weight } else { Def::Input };
            (def, value.ty.clone())
        };
        let mut operands: Vec<(Def, Type)> = args.iter().map(operand).collect();
        let mut result = value.ty.clone();
        if op.is_projection() {
            operands.truncate(2);
            let rows = operands[1].1.shape.0[0].min(MOST_COLUMNS);
            operands[1].1.shape.0[0] = rows;
            *result.shape.0.last_mut()? = rows;
        }
        let wanted = op.is_projection() || matches!(op, Op::MatMul { .. });
        wanted.then(|| Product { op: op.clone(), operands, result })
    };
    graph.values.iter().filter_map(product).collect()
}

impl Product {
    fn name(&self) -> String {
        let operands: Vec<String> = self.operands.iter().map(|(_, ty)| format!("{}{}", ty.dtype, ty.shape)).collect();
        let turned = if self.op == (Op::MatMul { transpose_b: true }) { ", the second turned" } else { "" };
        format!("{} of {}{turned}", self.op.name(), operands.join(" and "))
    }

    fn graph(&self) -> Graph {
        let operand = |(place, (def, ty)): (usize, &(Def, Type))| {
            let name = if place == 0 { "left" } else { "right" };
            Value { name: name.into(), ty: ty.clone(), def: def.clone() }
        };
        let mut values: Vec<Value> = self.operands.iter().enumerate().map(operand).collect();
        let result = ValueId(values.len() as u32);
        let def = Def::Op { op: self.op.clone(), args: (0..result.0).map(ValueId).collect() };
        values.push(Value { name: "product".into(), ty: self.result.clone(), def });
        Graph { name: NAME.into(), values, outputs: vec![Output { name: "result".into(), value: result }] }
    }
}

/// The cosine between the result of a graph's module in Torq's simulator and the host's, from random inputs. `mlir` is the module's text,
/// whose function is called `product`.
///
/// Errors: what compiler and simulator refuse; a graph that the host cannot compute.
pub fn product_cosine(
    graph: &Graph,
    weights: &BTreeMap<String, Tensor>,
    mlir: &Path,
    making: &mut Making<'_>,
) -> Result<f64> {
    let vmfb = mlir.with_extension("vmfb");
    let flags = target::graph_flags(making.target, graph, making.changes);
    let mut log = making.log.as_os_str().to_owned();
    log.push(".product.log");
    compiled((mlir, &vmfb), &flags, Path::new(&log), making)?;
    let (inputs, outputs) = ports(graph, PortFormat::Bf16);
    let given: Vec<Vec<f32>> = inputs.iter().map(|port| noise(port.elements(), port.name.len() as u64)).collect();
    let spec = ModuleSpec {
        runner: Runner::TorqSim,
        vmfb,
        function: NAME.into(),
        parameters: None,
        inputs,
        outputs,
        log: log.into(),
        limit: TIME_LIMIT,
    };
    let mut device = module::Module::open(spec, std::slice::from_ref(making.tool))?;
    device.run(&given.iter().map(Vec::as_slice).collect::<Vec<&[f32]>>())?;
    let mut host = Executor::with_encodings(graph, weights, &Encodings::reals(graph, Real::Bf16), &[])?;
    host.run(&[&given]);
    Ok(cosine(device.output(0), host.output(0)))
}

/// Random weights in the formats of a graph.
fn weights(graph: &Graph) -> Result<BTreeMap<String, Tensor>> {
    let made = graph.values.iter().filter(|value| value.def == Def::Weight).map(|value| {
        let (rows, cols) = (value.ty.shape.0[0], value.ty.shape.0[1]);
        let dtype = value.ty.dtype;
        let row_bytes = dtype.row_bytes(cols).ok_or_else(|| {
            Diagnostic::error(Code::BadShape, "a row of weights does not hold whole blocks").subject(&value.name)
        })?;
        let mut bytes = vec![0; rows * row_bytes];
        for (row, stored) in bytes.chunks_exact_mut(row_bytes).enumerate() {
            let numbers = noise(cols, row as u64 + 99);
            stored_row(dtype, &numbers, stored);
        }
        let tensor = Tensor::in_memory(dtype, Shape(vec![rows, cols]), bytes.into());
        Ok((value.name.clone(), tensor.expect("as many bytes as its rows take")))
    });
    made.collect()
}

fn stored_row(dtype: DType, numbers: &[f32], stored: &mut [u8]) {
    quantize_row(dtype, numbers, None, Search::Plain, stored);
    positive_bf16_scales(dtype, numbers, stored);
}

/// Numbers between -1 and 1 that look random; the same for the same seed.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let number = |place: u64| {
        // The mixing steps of splitmix64.
        let mut x = (seed << 32 | place).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ x >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count as u64).map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_is_no_number_is_no_proof() {
        for (device, host, is_good) in [
            (&[1.0, 2.0][..], &[1.0, 2.0][..], true),
            (&[1.0, 2.1], &[1.0, 2.0], true),
            (&[2.0, 1.0], &[1.0, 2.0], false),
            (&[0.0, 0.0], &[1.0, 2.0], false),
            (&[f32::NAN, 2.0], &[1.0, 2.0], false),
            (&[f32::INFINITY, 2.0], &[1.0, 2.0], false),
        ] {
            let checked = check("product", cosine(device, host), Path::new("log"));
            assert_eq!(checked.is_ok(), is_good, "{device:?}: {checked:?}");
        }
    }
}
