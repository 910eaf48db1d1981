//! A step as MediaTek's runtime would drive it: the TFLite files of a model's parts one after the other, with the
//! ports of [`npuc::back::tflite::contract`], in the LiteRT interpreter.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use npuc::back::tflite::{self, HIDDEN_MASK, Storage};
use npuc::build::weight_types;
use npuc::ir::{Def, Graph};
use npuc::model::{CacheProtocol, Part, Port, StepShape};
use npuc::target::{self, host};
use npuc::{Code, Diagnostic, Result};

use super::litert::{LiteRt, Model, PortInfo};
use crate::program::Program;
use crate::toolchain::Installed;

/// One step of a whole model, computed by its parts.
pub struct ChunkedStep {
    inputs: Vec<(Port, usize)>,
    outputs: Vec<(Port, usize)>,
    results: Vec<Vec<f32>>,
    parts: Vec<Model>,
    litert: Rc<RefCell<LiteRt>>,
    tokens: usize,
    /// The mask with the runtime's hidden constant.
    mask: Vec<f32>,
    /// Cosines and sines as the runtime lays them out.
    rotary: Vec<f32>,
}

/// Emits the parts of every graph of the program into `folder` and loads them into one interpreter. A request
/// may take as long as `limit`.
///
/// Errors: a program whose caches do not shift; parts that the model does not have; what cannot be emitted or
/// written; what the interpreter refuses.
pub fn chunked_steps(
    program: &Program,
    parts: &[Part],
    storage: Storage,
    folder: &Path,
    tool: &Installed,
    threads: usize,
    limit: Duration,
) -> Result<Vec<ChunkedStep>> {
    if program.protocol != CacheProtocol::Shift {
        return Err(Diagnostic::error(Code::BadBundle, "the caches of the program do not travel as the files' do")
            .need("the protocol `shift`")
            .have(format!("{:?}", program.protocol).to_lowercase())
            .into());
    }
    let litert = Rc::new(RefCell::new(LiteRt::start(tool, limit)?));
    let types = weight_types(&program.weights);
    let mut steps = Vec::with_capacity(program.graphs.len());
    for (shape, graph) in &program.graphs {
        let mut models = Vec::with_capacity(parts.len());
        for chunk in tflite::chunks(&program.config, &types, &[*shape], parts)? {
            let path = folder.join(format!("{}.tflite", chunk.stem("model")));
            let checked = target::check(chunk.graph, &host())?;
            write(&path, &tflite::emit(&checked, &program.weights, storage)?)?;
            models.push(litert.borrow_mut().load(&path, threads)?);
        }
        steps.push(ChunkedStep::new(graph, *shape, models, Rc::clone(&litert))?);
    }
    Ok(steps)
}

fn write(path: &Path, file: &tflite::TfliteFile) -> Result<()> {
    let put = || {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
        file.write_to(&mut out).and_then(|()| out.flush())
    };
    put().map_err(|e| {
        let fault = Diagnostic::error(Code::Unwritable, format!("cannot write the file: {e}")).file(path);
        fault.need(format!("{} bytes", file.len_bytes())).into()
    })
}

impl ChunkedStep {
    /// The step that `graph`, the whole model under its own ports, describes.
    fn new(graph: &Graph, shape: StepShape, parts: Vec<Model>, litert: Rc<RefCell<LiteRt>>) -> Result<ChunkedStep> {
        let elements = |id: npuc::ir::ValueId| graph.value(id).ty.shape.elements().unwrap_or(0);
        let input = |id: npuc::ir::ValueId| Ok((graph.value(id).name.parse()?, elements(id)));
        let inputs: Vec<(Port, usize)> =
            graph.ids().filter(|&id| graph.value(id).def == Def::Input).map(input).collect::<Result<_>>()?;
        let output = |output: &npuc::ir::Output| Ok((output.name.parse()?, elements(output.value)));
        let outputs: Vec<(Port, usize)> = graph.outputs.iter().map(output).collect::<Result<_>>()?;
        let size = |port| inputs.iter().find(|(p, _)| *p == port).map_or(0, |(_, len)| *len);
        let step = ChunkedStep {
            results: outputs.iter().map(|(_, len)| vec![0.0; *len]).collect(),
            mask: vec![0.0; size(Port::Mask)],
            tokens: shape.tokens,
            rotary: vec![0.0; 4 * size(Port::RopeCos)],
            inputs,
            outputs,
            parts,
            litert,
        };
        step.check(shape)?;
        Ok(step)
    }

    /// Every port of the parts has the size of what will be given for it.
    fn check(&self, shape: StepShape) -> Result<()> {
        let fault = |port: &PortInfo, need: String| {
            let fault = Diagnostic::error(Code::ToolFailed, "a TFLite file has other ports than the step");
            let fault = fault.subject(format!("{shape} {}", port.name)).need(need);
            fault.have(format!("{} elements", port.elements())).into()
        };
        let len = |ports: &[(Port, usize)], port| ports.iter().find(|(p, _)| *p == port).map(|(_, len)| *len);
        let mut hidden = None;
        for part in &self.parts {
            for port in &part.inputs {
                let need = match port.name.as_str() {
                    "rotary" => Some(self.rotary.len()),
                    name if name.parse::<Port>()? == Port::Hidden => hidden,
                    name => len(&self.inputs, name.parse()?),
                };
                if need != Some(port.elements()) {
                    return Err(fault(port, need.map_or("no such port".into(), |len| format!("{len} elements"))));
                }
            }
            for port in &part.outputs {
                let known: Port = port.name.parse()?;
                if known == Port::Hidden {
                    hidden = Some(port.elements());
                } else if len(&self.outputs, known) != Some(port.elements()) {
                    return Err(fault(port, "a port of the step".into()));
                }
            }
        }
        Ok(())
    }

    /// Names and element counts of the whole step's input ports.
    pub fn inputs(&self) -> impl Iterator<Item = (String, usize)> {
        self.inputs.iter().map(|(port, len)| (port.to_string(), *len))
    }

    /// Names and element counts of the whole step's output ports.
    pub fn outputs(&self) -> impl Iterator<Item = (String, usize)> {
        self.outputs.iter().map(|(port, len)| (port.to_string(), *len))
    }

    /// The elements of an output port after a step.
    pub fn output(&self, port: usize) -> &[f32] {
        &self.results[port]
    }

    /// Computes one step, part by part.
    ///
    /// Errors: the interpreter failed.
    pub fn run(&mut self, inputs: &[&[Vec<f32>]]) -> Result<()> {
        let buffers = inputs.iter().flat_map(|group| group.iter());
        let given: BTreeMap<Port, &Vec<f32>> = self.inputs.iter().map(|(port, _)| *port).zip(buffers).collect();
        let buffer = |port: Port| given.get(&port).map_or(&[][..], |buffer| buffer.as_slice());
        for (to, from) in self.mask.iter_mut().zip(buffer(Port::Mask)) {
            *to = if *from == 0.0 { 0.0 } else { HIDDEN_MASK };
        }
        fill_rotary(&mut self.rotary, [buffer(Port::RopeCos), buffer(Port::RopeSin)], self.tokens);
        let mut hidden: Vec<f32> = Vec::new();
        for part in &self.parts {
            let mut values: Vec<&[f32]> = Vec::with_capacity(part.inputs.len());
            for port in &part.inputs {
                values.push(match port.name.as_str() {
                    "rotary" => &self.rotary,
                    name if name.parse::<Port>()? == Port::Hidden => &hidden,
                    name if name.parse::<Port>()? == Port::Mask => &self.mask,
                    name => buffer(name.parse()?),
                });
            }
            let results = self.litert.borrow_mut().run(part, &values)?;
            for (port, result) in part.outputs.iter().zip(results) {
                let port: Port = port.name.parse()?;
                match self.outputs.iter().position(|(known, _)| *known == port) {
                    Some(place) => self.results[place] = result,
                    None => hidden = result,
                }
            }
        }
        Ok(())
    }
}

/// `[1, 2, t, head_dim]` from the tables `[t, head_dim / 2]`: the row of each for both halves.
fn fill_rotary(rotary: &mut [f32], tables: [&[f32]; 2], tokens: usize) {
    let half = tables[0].len() / tokens;
    let rows = tables.into_iter().flat_map(|table| table.chunks_exact(half));
    for (to, from) in rotary.chunks_exact_mut(2 * half).zip(rows) {
        to[..half].copy_from_slice(from);
        to[half..].copy_from_slice(from);
    }
}
