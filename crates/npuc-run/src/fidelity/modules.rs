//! A bundle's modules beside the host: every value of a step, from the same inputs.
//!
//! The modules of the bundle give what leaves a step alone, so each is written and compiled anew with all its values leaving. A
//! value can be far off because of what was read: so every operation is also computed on the host from the operands as the
//! device has them, which tells the operations that differ by themselves.

use std::path::Path;

use npuc::back::BackEnd;
use npuc::back::stablehlo::{self, DESCRIPTION, PARAMETERS, SCOPE, Storage, Style, emit_traced};
use npuc::bundle::{Manifest, ModuleRecord};
use npuc::exec::Executor;
use npuc::ir::{Def, Graph, Output, Value, ValueId};
use npuc::quant::{Encodings, Real};
use npuc::{Code, Diagnostic, Result};

use super::trace::{Difference, Distance};
use super::values::{OfStep, Values, computed, host_values, input, place_of};
use crate::device::module::{Module, ModuleSpec, Runner, TIME_LIMIT};
use crate::device::port::PortFormat;
use crate::modules::{ports, runner, scratch, write_module};
use crate::program::{Program, Segment};
use crate::toolchain::compile::{self, Compilation, compile};
use crate::toolchain::{Installed, find};

/// Where the tools' words and files are.
struct Work<'a> {
    folder: &'a Path,
    style: Style,
    real: Real,
    tools: &'a [Installed],
    compiler: &'a Installed,
    log: &'a Path,
}

/// Feeds the ids in groups to the host, then compares the last run of every step shape. `folder` is the bundle, `log` keeps what the tools
/// say.
///
/// Errors: modules for another machine than the `wanted` runners; what the compilers and runtimes refuse.
pub fn compare_modules(
    program: &Program,
    (folder, manifest): (&Path, &Manifest),
    wanted: &[Runner],
    fed: &[&[u32]],
    threads: usize,
    log: &Path,
) -> Result<Vec<OfStep>> {
    let runner = wanted_runner(folder, manifest, wanted)?;
    let tools = runner.find_tools()?;
    let target = npuc::target::find(&manifest.target)?;
    let compiler = find(crate::modules::compiler(&target)?)?;
    let real = if manifest.back_end == BackEnd::Torq { Real::Bf16 } else { Real::F32 };
    let work = Work { folder, style: style(folder)?, real, tools: &tools, compiler: &compiler, log };
    let seen = host_values(program, fed, threads)?;
    let mut records = manifest.modules.iter();
    let mut compared = Vec::new();
    for (step, (of_program, seen)) in program.steps.iter().zip(&seen).enumerate() {
        let mut of_step = OfStep::new(step);
        for ((segment, values), record) in of_program.segments.iter().zip(seen).zip(&mut records) {
            if values.iter().all(Vec::is_empty) {
                continue;
            }
            let (differences, own) = of_module(program, segment, values, (record, runner), &work)?;
            of_step.alone += computed(&segment.graph) - differences.len();
            of_step.differences.extend(differences);
            of_step.own.extend(own);
        }
        if !of_step.differences.is_empty() {
            compared.push(of_step);
        }
    }
    Ok(compared)
}

fn wanted_runner(folder: &Path, manifest: &Manifest, wanted: &[Runner]) -> Result<Runner> {
    let found = manifest.modules.first().and_then(runner).filter(|runner| wanted.contains(runner));
    let fault = || {
        Diagnostic::error(Code::BadArgument, "the bundle has no modules for that device")
            .file(folder)
            .have(format!("a bundle for {}", manifest.target))
            .help(
                "build it for iree-cpu, iree-vulkan, mali-valhall or sl2610 without --no-compile, and name its device",
            )
    };
    Ok(found.ok_or_else(fault)?)
}

/// How the bundle's modules are written.
fn style(folder: &Path) -> Result<Style> {
    let path = folder.join(DESCRIPTION);
    let fault =
        |message: String| Diagnostic::error(Code::BadBundle, message).file(&path).help("build the bundle again");
    let text = std::fs::read(&path).map_err(|e| fault(format!("cannot read the file: {e}")))?;
    let described: serde_json::Value =
        serde_json::from_slice(&text).map_err(|e| fault(format!("the file is no JSON: {e}")))?;
    let style = serde_json::from_value(described["style"].clone());
    Ok(style.map_err(|e| fault(format!("the file does not say how modules are written: {e}")))?)
}

/// The values of one module.
fn of_module(
    program: &Program,
    segment: &Segment,
    values: &Values,
    (record, runner): (&ModuleRecord, Runner),
    work: &Work<'_>,
) -> Result<(Vec<Difference>, Vec<Distance>)> {
    let graph = &segment.graph;
    let (module, ids) = emit_traced(graph, &program.weights, &record.function, work.style)?;
    let files = scratch()?;
    let (mlir, vmfb) = (files.path().join("traced.mlir"), files.path().join("traced.vmfb"));
    write_module(&module, &mlir)?;
    let log = work.log;
    let flags = &record.flags;
    let limit = compile::TIME_LIMIT;
    let compilation = Compilation { tool: work.compiler, flags, mlir: &mlir, vmfb: &vmfb, log, limit };
    compile(&compilation, &mut |_| ())?;
    let results = run(graph, values, (&module, &ids), (runner, &vmfb), work)?;
    let alone = alone(graph, &ids);
    let own = computed_alone(program, &alone, (graph, values), (&ids, &results), work.real)?;
    let differences = ids.iter().zip(&results).map(|(&id, elements)| {
        let distance = Distance::of(&values[id.index()], elements);
        Difference { at: place_of(graph, id), distance }
    });
    let own = own.iter().zip(&results).map(|(expected, elements)| Distance::of(expected, elements));
    Ok((differences.collect(), own.collect()))
}

/// The values as the device computes them from the host's inputs.
fn run(
    graph: &Graph,
    values: &Values,
    (module, ids): (&stablehlo::Module, &[ValueId]),
    (runner, vmfb): (Runner, &Path),
    work: &Work<'_>,
) -> Result<Vec<Vec<f32>>> {
    let format = if work.real == Real::Bf16 { PortFormat::Bf16 } else { PortFormat::F32 };
    let leaving = ids.iter().map(|&value| Output { name: value.to_string(), value });
    let traced = Graph { outputs: graph.outputs.iter().cloned().chain(leaving).collect(), ..graph.clone() };
    let (inputs, outputs) = ports(&traced, format);
    let is_external = work.style.storage == Storage::External && !module.parameters.is_empty();
    let spec = ModuleSpec {
        runner,
        vmfb: vmfb.to_path_buf(),
        function: module.name.clone(),
        parameters: is_external.then(|| (SCOPE.to_owned(), work.folder.join(PARAMETERS))),
        inputs,
        outputs,
        log: work.log.to_path_buf(),
        limit: TIME_LIMIT,
    };
    let given = spec.inputs.iter().map(|port| input(graph, values, &port.name)).collect::<Result<Vec<&[f32]>>>()?;
    let mut device = Module::open(spec, work.tools)?;
    device.run(&given)?;
    let first = graph.outputs.len();
    Ok((0..ids.len()).map(|place| device.output(first + place).to_vec()).collect())
}

/// The graph with every operation by itself: what the device computed enters as a port named like the value, and the results leave in the
/// order of `ids`. Reshapes and joined values that the device does not have are computed where they are read.
fn alone(graph: &Graph, ids: &[ValueId]) -> Graph {
    let mut values: Vec<Value> = Vec::new();
    let (mut read, mut outputs) = (Vec::with_capacity(graph.values.len()), Vec::new());
    for (id, value) in graph.ids().zip(&graph.values) {
        let mut push = |value: Value| {
            values.push(value);
            ValueId(values.len() as u32 - 1)
        };
        let read_as: ValueId = match &value.def {
            Def::Input | Def::Weight => push(value.clone()),
            Def::Op { op, args } => {
                let args = args.iter().map(|arg: &ValueId| read[arg.index()]).collect();
                let result = push(Value { def: Def::Op { op: op.clone(), args }, ..value.clone() });
                if ids.contains(&id) {
                    outputs.push(Output { name: id.to_string(), value: result });
                    push(Value { name: id.to_string(), ty: value.ty.clone(), def: Def::Input })
                } else {
                    result
                }
            }
        };
        read.push(read_as);
    }
    Graph { name: graph.name.clone(), values, outputs }
}

/// The results of [`alone`] from the device's values.
fn computed_alone(
    program: &Program,
    alone: &Graph,
    (graph, values): (&Graph, &Values),
    (ids, results): (&[ValueId], &[Vec<f32>]),
    real: Real,
) -> Result<Vec<Vec<f32>>> {
    let mut executor = match real {
        Real::Bf16 => Executor::with_encodings(alone, &program.weights, &Encodings::reals(alone, real), &[])?,
        Real::F16 | Real::F32 => Executor::new(alone, &program.weights, &[])?,
    };
    let of_device = |name: &str| ids.iter().position(|id| id.to_string() == name).map(|place| results[place].clone());
    let given = executor.inputs().map(|(name, _)| match of_device(name) {
        Some(elements) => Ok(elements),
        None => Ok(input(graph, values, name)?.to_vec()),
    });
    let given = given.collect::<Result<Vec<Vec<f32>>>>()?;
    executor.run(&[&given]);
    Ok((0..ids.len()).map(|port| executor.output(port).to_vec()).collect())
}
