//! A step as a chain of segments: the parts of a model one after the other, each on the device that computes it.
//!
//! Segments may have the ports of [`npuc::back::tflite::contract`]; the chain as a whole has those of a plain step.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use npuc::back::ROTARY;
use npuc::back::qnn::output_port;
use npuc::ir::Graph;
use npuc::model::Port;
use npuc::quant::Encodings;
use npuc::{Code, Diagnostic, Result, Tensor};
use npuc_kernels::lines::Lines;
use rayon::ThreadPool;

use super::host::{HostStep, Observer};
use super::litert::{LiteRt, Model};
use super::module::Module;
use super::qnn::{Context, Qnn};

/// What computes a segment.
pub enum Segment {
    /// npuc's own executor.
    Host(Box<HostStep>),
    /// A TFLite file in the LiteRT interpreter.
    LiteRt(Model, Rc<RefCell<LiteRt>>),
    /// A graph of a context in Qualcomm's emulation, by its place there.
    Qnn(Rc<Context>, usize, Rc<RefCell<Qnn>>),
    /// A module that IREE or Torq compiled.
    Module(Box<Module>),
}

impl Segment {
    /// A segment on the host, in the whole numbers of `encodings` if there are any.
    pub fn host(
        graph: &Graph,
        weights: &BTreeMap<String, Tensor>,
        encodings: Option<&Encodings>,
        pool: Arc<ThreadPool>,
    ) -> Result<Segment> {
        Ok(Segment::Host(Box::new(HostStep::with_encodings(graph, weights, encodings, &[], pool)?)))
    }

    /// The same, showing the values of a segment on the host to `observer`.
    pub fn observed(self, observer: Observer) -> Segment {
        match self {
            Segment::Host(step) => Segment::Host(Box::new(step.observed(observer))),
            other @ (Segment::LiteRt(..) | Segment::Qnn(..) | Segment::Module(_)) => other,
        }
    }

    /// Names and element counts of the input ports, in order.
    fn inputs(&self) -> Vec<(String, usize)> {
        match self {
            Segment::Host(step) => step.executor().inputs().map(|(name, len)| (name.to_owned(), len)).collect(),
            Segment::LiteRt(model, _) => model.inputs.iter().map(|port| (port.name.clone(), port.elements())).collect(),
            Segment::Qnn(context, graph, _) => {
                context.graphs[*graph].inputs.iter().map(|port| (port.name.clone(), port.elements())).collect()
            }
            Segment::Module(module) => {
                module.spec().inputs.iter().map(|port| (port.name.clone(), port.elements())).collect()
            }
        }
    }

    /// Names and element counts of the output ports, in order.
    fn outputs(&self) -> Vec<(String, usize)> {
        match self {
            Segment::Host(step) => step.executor().outputs().map(|(name, len)| (name.to_owned(), len)).collect(),
            Segment::LiteRt(model, _) => {
                model.outputs.iter().map(|port| (port.name.clone(), port.elements())).collect()
            }
            Segment::Qnn(context, graph, _) => {
                let ports = context.graphs[*graph].outputs.iter();
                ports.map(|port| (output_port(&port.name).to_owned(), port.elements())).collect()
            }
            Segment::Module(module) => {
                module.spec().outputs.iter().map(|port| (port.name.clone(), port.elements())).collect()
            }
        }
    }
}

/// Where the elements of a port come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feed {
    /// An input port of the whole step, by its place.
    Given(usize),
    /// A buffer of the chain.
    Slot(usize),
}

/// A segment and where its ports lead.
struct Link {
    segment: Segment,
    inputs: Vec<Feed>,
    /// The buffer of each output.
    outputs: Vec<usize>,
}

/// A step computed segment by segment.
pub struct Chain {
    inputs: Vec<(Port, usize)>,
    outputs: Vec<(Port, usize)>,
    links: Vec<Link>,
    slots: Vec<Vec<f32>>,
    /// The buffer of each output of the whole step.
    results: Vec<usize>,
    tokens: usize,
    /// The buffer with cosines and sines as MediaTek's runtime lays them out, `[1, 2, t, head_dim]`.
    rotary: Option<usize>,
    /// The parts of the head in order, each with its buffer, where the head is cut.
    head: Vec<usize>,
}

impl Chain {
    /// A step of `tokens` tokens with the given input and output ports, computed by `segments` in that order.
    ///
    /// Errors: a segment with a port that nothing before it fills, or of another size; an output that no segment gives.
    pub fn new(
        tokens: usize,
        inputs: Vec<(Port, usize)>,
        outputs: Vec<(Port, usize)>,
        segments: Vec<Segment>,
    ) -> Result<Chain> {
        let mut chain = Chain {
            inputs,
            outputs,
            links: Vec::with_capacity(segments.len()),
            slots: Vec::new(),
            results: Vec::new(),
            tokens,
            rotary: None,
            head: Vec::new(),
        };
        // The latest buffer of each name.
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        for segment in segments {
            let mut inputs = Vec::new();
            for (name, len) in segment.inputs() {
                inputs.push(chain.feed(&name, len, &mut known)?);
            }
            let mut outputs = Vec::new();
            for (name, len) in segment.outputs() {
                let slot = chain.slot(len);
                if let Ok(Port::LogitsPart(_)) = name.parse() {
                    chain.head.push(slot);
                }
                known.insert(name, slot);
                outputs.push(slot);
            }
            chain.links.push(Link { segment, inputs, outputs });
        }
        for (port, len) in chain.outputs.clone() {
            let found = if port == Port::Logits && !chain.head.is_empty() {
                Some(chain.joined_head(len)?)
            } else {
                known.get(&port.to_string()).copied()
            };
            let slot = found.filter(|&slot| chain.slots[slot].len() == len);
            chain.results.push(slot.ok_or_else(|| {
                Diagnostic::error(Code::BadBundle, "no part of the step gives an output that the model calls for")
                    .subject(port.to_string())
                    .need(format!("{len} elements"))
            })?);
        }
        Ok(chain)
    }

    fn slot(&mut self, len: usize) -> usize {
        self.slots.push(vec![0.0; len]);
        self.slots.len() - 1
    }

    /// Where a port of a segment is filled from: an earlier segment, the caller, or the rotary tables.
    fn feed(&mut self, name: &str, len: usize, known: &mut BTreeMap<String, usize>) -> Result<Feed> {
        let fault = |have: String| {
            let fault = Diagnostic::error(Code::BadBundle, "a part of the step has a port that nothing fills");
            Err(fault.subject(name).need(format!("{len} elements")).have(have).into())
        };
        let rows = |port| self.inputs.iter().find(|(p, _)| *p == port).map_or(0, |(_, len)| *len);
        if name == ROTARY && !known.contains_key(name) {
            let slot = self.slot(4 * rows(Port::RopeCos));
            self.rotary = Some(slot);
            known.insert(name.to_owned(), slot);
        }
        let feed = match known.get(name) {
            Some(&slot) => Some((Feed::Slot(slot), self.slots[slot].len())),
            None => {
                let given = name.parse().ok().and_then(|port: Port| self.inputs.iter().position(|(p, _)| *p == port));
                given.map(|place| (Feed::Given(place), self.inputs[place].1))
            }
        };
        match feed {
            Some((feed, have)) if have == len => Ok(feed),
            Some((_, have)) => fault(format!("{have} elements")),
            None => fault("no such port".into()),
        }
    }

    /// The buffer for the scores of all ids, `len` elements.
    fn joined_head(&mut self, len: usize) -> Result<usize> {
        let have: usize = self.head.iter().map(|&part| self.slots[part].len()).sum();
        if have < len {
            return Err(Diagnostic::error(
                Code::BadBundle,
                "the parts of the head have fewer rows than the vocabulary",
            )
            .need(format!("{len} elements"))
            .have(format!("{have} elements"))
            .into());
        }
        Ok(self.slot(len))
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
        &self.slots[self.results[port]]
    }

    /// The values of segments on the host of which numbers were cut off, with how many.
    pub(crate) fn saturated(&self) -> Vec<(String, u64)> {
        let of = |link: &Link| match &link.segment {
            Segment::Host(step) => step.saturated(),
            Segment::LiteRt(..) | Segment::Qnn(..) | Segment::Module(_) => Vec::new(),
        };
        self.links.iter().flat_map(of).collect()
    }

    /// Lets segments on the host give memory of weights back after each use.
    pub(crate) fn spare_memory(&mut self) {
        for link in &mut self.links {
            match &mut link.segment {
                Segment::Host(step) => step.spare_memory(),
                Segment::LiteRt(..) | Segment::Qnn(..) | Segment::Module(_) => {}
            }
        }
    }

    /// Computes one step, segment by segment.
    ///
    /// Errors: the interpreter failed.
    pub fn run(&mut self, inputs: &[&[Lines]]) -> Result<()> {
        let given: Vec<&[f32]> = inputs.iter().flat_map(|group| group.iter().map(|buffer| &**buffer)).collect();
        if let Some(slot) = self.rotary {
            let table = |port| {
                let place = self.inputs.iter().position(|(p, _)| *p == port);
                place.map_or(&[][..], |place| given[place])
            };
            let tables = [table(Port::RopeCos), table(Port::RopeSin)];
            fill_rotary(&mut self.slots[slot], tables, self.tokens);
        }
        for Link { segment, inputs, outputs } in &mut self.links {
            let slots = &mut self.slots;
            match segment {
                Segment::Host(step) => {
                    step.run(&[&flat(inputs, &given, slots)]);
                    for (port, &slot) in outputs.iter().enumerate() {
                        slots[slot].copy_from_slice(step.executor().output(port));
                    }
                }
                Segment::LiteRt(model, litert) => {
                    let results = litert.borrow_mut().run(model, &flat(inputs, &given, slots))?;
                    outputs.iter().zip(results).for_each(|(&slot, result)| slots[slot] = result);
                }
                Segment::Module(module) => {
                    module.run(&flat(inputs, &given, slots))?;
                    for (port, &slot) in outputs.iter().enumerate() {
                        slots[slot].copy_from_slice(module.output(port));
                    }
                }
                Segment::Qnn(context, graph, qnn) => {
                    let results = qnn.borrow_mut().run(context, *graph, &flat(inputs, &given, slots))?;
                    outputs.iter().zip(results).for_each(|(&slot, result)| slots[slot] = result);
                }
            }
        }
        self.join_head();
        Ok(())
    }

    /// The rows of the head's parts side by side; what they have beyond the vocabulary is dropped.
    fn join_head(&mut self) {
        let logits = self.outputs.iter().position(|(port, _)| *port == Port::Logits);
        let (Some(place), false) = (logits, self.head.is_empty()) else { return };
        let mut joined = std::mem::take(&mut self.slots[self.results[place]]);
        let vocab = joined.len() / self.tokens;
        for (token, row) in joined.chunks_exact_mut(vocab).enumerate() {
            let mut start = 0;
            for &part in &self.head {
                let scores = &self.slots[part];
                let rows = scores.len() / self.tokens;
                let count = rows.min(vocab - start);
                row[start..start + count].copy_from_slice(&scores[token * rows..][..count]);
                start += count;
            }
        }
        self.slots[self.results[place]] = joined;
    }
}

/// The elements that enter each port.
fn flat<'a>(feeds: &[Feed], given: &[&'a [f32]], slots: &'a [Vec<f32>]) -> Vec<&'a [f32]> {
    let elements = |feed: &Feed| match *feed {
        Feed::Given(place) => given[place],
        Feed::Slot(slot) => slots[slot].as_slice(),
    };
    feeds.iter().map(elements).collect()
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
