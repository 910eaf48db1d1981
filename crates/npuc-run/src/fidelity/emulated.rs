//! A bundle's graphs in Qualcomm's emulation beside the host: every value of its steps, from the same inputs.
//!
//! The emulation gives what leaves a graph alone, so every value of the description leaves here. Each graph begins with the
//! host's inputs: what is told of it is its own.

use std::path::Path;

use npuc::back::qnn::description::Role;
use npuc::back::qnn::{Description, output_port};
use npuc::bundle::Manifest;
use npuc::ir::{Def, Graph, ValueId};
use npuc::{Code, Diagnostic, Result};

use super::trace::{Difference, Distance};
use super::values::{OfStep, Values, computed, host_values, input, place_of, shown};
use crate::contexts;
use crate::device::qnn::{Prepare, Qnn};
use crate::program::Program;

/// Feeds the ids in groups to the host, then compares the last run of every step shape; what stands alone are reshapes that change
/// nothing in rank 4. `soc` is the chip's number, `folder` the bundle.
///
/// Errors: what the libraries refuse.
pub fn emulated(
    program: &Program,
    (folder, manifest): (&Path, &Manifest),
    soc: u32,
    qnn: &mut Qnn,
    fed: &[&[u32]],
    threads: usize,
) -> Result<Vec<OfStep>> {
    let seen = host_values(program, fed, threads)?;
    let requests = contexts::requests(folder, manifest, soc, false)?;
    let mut compared = Vec::new();
    for (step, (of_program, seen)) in program.steps.iter().zip(&seen).enumerate() {
        let mut of_step = OfStep::new(step);
        for ((segment, values), request) in of_program.segments.iter().zip(seen).zip(&requests) {
            if values.iter().all(Vec::is_empty) {
                continue;
            }
            let request = Prepare { descriptions: segment.emitted.iter().cloned().collect(), ..request.clone() };
            let differences = of_graph(&segment.graph, values, request, qnn)?;
            of_step.alone += computed(&segment.graph) - differences.len();
            of_step.differences.extend(differences);
        }
        if !of_step.differences.is_empty() {
            compared.push(of_step);
        }
    }
    Ok(compared)
}

/// The differences of one graph.
fn of_graph(graph: &Graph, seen: &Values, request: Prepare, qnn: &mut Qnn) -> Result<Vec<Difference>> {
    let unwritable = |e: std::io::Error| {
        Diagnostic::error(Code::Unwritable, format!("cannot write a description: {e}"))
            .help("set TMPDIR to a folder with free space")
    };
    let open = described(&request)?;
    let file = tempfile::NamedTempFile::new().map_err(unwritable)?;
    std::fs::write(file.path(), open.to_text()).map_err(unwritable)?;
    let request = Prepare { descriptions: vec![file.path().to_path_buf()], ..request };
    let context = qnn.prepare(&request, &mut |_| ())?;
    let fault = |message: &str, name: &str| Diagnostic::error(Code::BadBundle, message).subject(name);
    let inputs = &context.graphs[0].inputs;
    let inputs = inputs.iter().map(|port| input(graph, seen, &port.name)).collect::<Result<Vec<&[f32]>>>()?;
    let results = qnn.run(&context, 0, &inputs)?;
    let mut differences: Vec<Difference> = Vec::new();
    for (port, elements) in context.graphs[0].outputs.iter().zip(&results) {
        // A value in a second form, and a step of an operation that takes several, are no values of the graph.
        let Some(id) = value_of(graph, &port.name) else { continue };
        let expected = &seen[shown(graph, id).index()];
        if expected.len() != elements.len() {
            let fault = fault("a value has another size in the emulation", &port.name);
            return Err(fault.need(format!("{} elements", expected.len())).have(elements.len()).into());
        }
        differences.push(Difference { at: place_of(graph, id), distance: Distance::of(expected, elements) });
    }
    qnn.free(context)?;
    differences.sort_by_key(|difference| difference.at.model);
    Ok(differences)
}

/// The description with all of its values as ports that leave.
fn described(request: &Prepare) -> Result<Description> {
    let path = request
        .descriptions
        .first()
        .ok_or_else(|| Diagnostic::error(Code::BadBundle, "a graph of the bundle has no description for QNN"))?;
    let text = std::fs::read_to_string(path)
        .map_err(|e| Diagnostic::error(Code::Unreadable, format!("cannot read the file: {e}")).file(path))?;
    let mut description = Description::parse(&text).map_err(|e| e.in_file(path))?;
    for tensor in description.tensors.iter_mut().filter(|tensor| tensor.role == Role::Native) {
        tensor.role = Role::Output;
    }
    Ok(description)
}

/// The value that a tensor holds in the numbers in which it is computed: `<path>/<operation>.<value>`, or a port.
fn value_of(graph: &Graph, name: &str) -> Option<ValueId> {
    if let Some(output) = graph.outputs.iter().find(|output| output.name == output_port(name)) {
        return Some(output.value);
    }
    let number: u32 = name.rsplit_once('.')?.1.parse().ok()?;
    let value = graph.values.get(number as usize)?;
    let Def::Op { op, .. } = &value.def else { return None };
    (name == format!("{}/{}.{number}", value.name, op.name())).then_some(ValueId(number))
}
