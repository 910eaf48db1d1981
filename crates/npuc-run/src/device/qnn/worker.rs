//! The worker process: holds the libraries and contexts, and serves requests over its standard input and output until the former ends.
//!
//! The library prints to the standard output too, so that is led to the log before it is loaded.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use npuc::back::qnn::{Description, check};
use npuc::tensor::{SourceFile, byte_len};
use npuc::{Code, DType, Diagnostic, Error, Result, Shape, Tensor};
use rustix::process::{Signal, getpid, kill_process};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Weights;
use super::info::ContextInfo;
use super::library::{Library, System, say};
use super::protocol::{self, ANSWER, Binary, Open, Port, Prepare, Prepared, PreparedGraph, Stored, faults};
use super::replay::{Context, GraphPorts, Notes, Times, folder_of};
use super::spill::Spill;
use super::system;
use crate::device::process::{PLACE, REFUSED, STAGE, read_message, write_message};
use crate::memory::peak_rss_bytes;

/// Serves requests until the standard input ends.
///
/// Errors: [`Code::ToolFailed`] if its pipes fail.
pub fn worker() -> Result<()> {
    let fault = |e: io::Error| Diagnostic::error(Code::ToolFailed, format!("the QNN worker's pipes fail: {e}"));
    let mut worker = Worker {
        folder: None,
        library: None,
        system: None,
        contexts: Vec::new(),
        answers: own_stdout().map_err(fault)?,
    };
    end_with_parent();
    let mut requests = BufReader::new(io::stdin().lock());
    loop {
        let request = match read_message(&mut requests) {
            Ok(request) => request,
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(fault(e).into()),
        };
        let (kind, answer) = match worker.serve(&request) {
            Ok(answer) => (ANSWER, answer),
            Err(error) => (REFUSED, json(&faults(&error))),
        };
        super::library::flush();
        write_message(&mut worker.answers, &[&[kind], &answer[..]].concat()).map_err(fault)?;
    }
}

/// Ends this process soon after the one that started it: a library that prepares a graph looks at no pipe for minutes, and its memory
/// grows meanwhile.
fn end_with_parent() {
    let parent = parent_id();
    std::thread::spawn(move || {
        while parent_id() == parent {
            std::thread::sleep(Duration::from_millis(300));
        }
        // Nothing of the library's is to run on the way out.
        let _ = kill_process(getpid(), Signal::KILL);
    });
}

/// The pipe that was the standard output, which from now on is where the standard error is.
fn own_stdout() -> io::Result<File> {
    let own = io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    Ok(File::from(own))
}

struct Worker {
    /// Where the libraries are.
    folder: Option<PathBuf>,
    library: Option<Rc<Library>>,
    system: Option<System>,
    /// By number; those that were freed are `None`.
    contexts: Vec<Option<Context>>,
    answers: File,
}

impl Notes for File {
    fn stage(&mut self, text: &str) {
        // If nobody reads, the next answer finds out.
        let _ = write_message(self, &[&[STAGE], text.as_bytes()].concat());
    }

    fn place(&mut self, text: &str) {
        let _ = write_message(self, &[&[PLACE], text.as_bytes()].concat());
    }
}

impl Worker {
    fn serve(&mut self, request: &[u8]) -> Result<Vec<u8>> {
        match request.split_first() {
            Some((&protocol::OPEN, rest)) => self.open(&parse(rest)?),
            Some((&protocol::PREPARE, rest)) => self.prepare(&parse(rest)?),
            Some((&protocol::LOAD, rest)) => self.load(&parse(rest)?),
            Some((&protocol::INFO, rest)) => Ok(json(&self.info(&parse::<Binary>(rest)?.binary)?)),
            Some((&protocol::RUN, rest)) => self.run(rest),
            Some((&protocol::FREE, rest)) => self.free(rest),
            Some(_) | None => Err(bad_request("a kind that it does not know")),
        }
    }

    fn open(&mut self, open: &Open) -> Result<Vec<u8>> {
        self.folder = Some(open.libraries.clone());
        if !open.back_end {
            self.system = Some(System::load(&open.libraries)?);
            return Ok(Vec::new());
        }
        let library = Library::load(&open.libraries)?;
        let versions = json(&library.versions);
        self.library = Some(Rc::new(library));
        Ok(versions)
    }

    fn library(&self) -> Result<Rc<Library>> {
        self.library.clone().ok_or_else(|| bad_request("no libraries"))
    }

    fn prepare(&mut self, prepare: &Prepare) -> Result<Vec<u8>> {
        let library = self.library()?;
        let weights = open_weights(&prepare.weights)?;
        let read = |path| Description::parse(&read_text(path)?).map_err(|e| e.in_file(path));
        let descriptions: Vec<Description> =
            prepare.descriptions.iter().map(|path| read(path)).collect::<Result<_>>()?;
        check_all(&descriptions, &weights)?;
        let mut context = Context::new(&library, prepare.soc, prepare.shared)?;
        let mut graphs = Vec::with_capacity(descriptions.len());
        let mut spill = None;
        for description in &descriptions {
            let times = context.add(description, &weights, prepare, &mut self.answers)?;
            graphs.push(prepared(description, &times));
            if let (Some(path), false) = (&prepare.binary, prepare.keep) {
                rest(&mut spill, path);
            }
        }
        let binary_bytes = match &prepare.binary {
            Some(path) => {
                self.answers.stage("writing the context binary");
                Some(context.write(path, || {
                    if !prepare.keep {
                        rest(&mut spill, path)
                    }
                })?)
            }
            None => None,
        };
        let number = prepare.keep.then_some(self.contexts.len() as u32);
        if prepare.keep {
            self.contexts.push(Some(context));
        }
        Ok(json(&Prepared { context: number, graphs, binary_bytes, peak_bytes: peak_rss_bytes() }))
    }

    fn load(&mut self, load: &Binary) -> Result<Vec<u8>> {
        let library = self.library()?;
        let info = self.info(&load.binary)?;
        let (context, ports) = Context::load(&library, &info, &load.binary)?;
        let graph = |GraphPorts { name, inputs, outputs }| PreparedGraph {
            name,
            nodes: 0,
            compose_ms: 0,
            finalize_ms: 0,
            inputs,
            outputs,
            told: None,
        };
        let graphs = ports.into_iter().map(graph).collect();
        self.contexts.push(Some(context));
        let number = Some(self.contexts.len() as u32 - 1);
        Ok(json(&Prepared { context: number, graphs, binary_bytes: Some(info.bytes), peak_bytes: peak_rss_bytes() }))
    }

    fn info(&mut self, binary: &Path) -> Result<ContextInfo> {
        let folder = self.folder.as_deref().ok_or_else(|| bad_request("no libraries"))?;
        let system = match self.system.take() {
            Some(system) => system,
            None => System::load(folder)?,
        };
        system::read(self.system.insert(system), binary)
    }

    fn run(&mut self, request: &[u8]) -> Result<Vec<u8>> {
        let (context, rest) = number(request)?;
        let (graph, input) = number(rest)?;
        self.context(context)?.as_mut().ok_or_else(|| bad_request("a context that was freed"))?.run(graph, input)
    }

    fn free(&mut self, request: &[u8]) -> Result<Vec<u8>> {
        let (context, _) = number(request)?;
        *self.context(context)? = None;
        Ok(Vec::new())
    }

    fn context(&mut self, number: usize) -> Result<&mut Option<Context>> {
        self.contexts.get_mut(number).ok_or_else(|| bad_request("a context that was not made"))
    }
}

/// Lets the memory of graphs that are only to be written rest in a file beside the binary. Where that fails it stays in memory, and the
/// log says why.
fn rest(spill: &mut Option<Spill>, binary: &Path) {
    let moved = match spill {
        Some(spill) => spill.take(),
        None => Spill::in_folder(folder_of(binary)).and_then(|made| spill.insert(made).take()),
    };
    match moved {
        Ok(bytes) => say(&format!("npuc: {bytes} bytes of memory moved to a file")),
        Err(e) => say(&format!("npuc: memory stays, and was to be moved to a file: {e}")),
    }
}

/// Refuses graphs that the library would compute wrongly, with everything that is wrong with them.
fn check_all(descriptions: &[Description], weights: &Weights) -> Result<()> {
    let mut names = BTreeSet::new();
    let twice = descriptions.iter().filter(|description| !names.insert(&description.name));
    let twice = twice.map(|of| Diagnostic::error(Code::DuplicateName, "two graphs have one name").subject(&of.name));
    let mut faults: Vec<Diagnostic> = twice.collect();
    if descriptions.is_empty() {
        faults.push(Diagnostic::error(Code::BadBundle, "a context has no graphs"));
    }
    for error in descriptions.iter().filter_map(|description| check(description, weights).err()) {
        faults.extend_from_slice(error.diagnostics());
    }
    Error::check(faults)
}

/// The graph as the other side gets to know it.
fn prepared(description: &Description, times: &Times) -> PreparedGraph {
    let port = |tensor: &npuc::back::qnn::description::Tensor| Port {
        name: tensor.name.clone(),
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
        encoding: tensor.encoding,
    };
    PreparedGraph {
        name: description.name.clone(),
        nodes: description.nodes.len(),
        compose_ms: times.compose_ms,
        finalize_ms: times.finalize_ms,
        inputs: description.inputs().map(port).collect(),
        outputs: description.outputs().map(port).collect(),
        told: times.told,
    }
}

/// The weights, mapped from their files.
fn open_weights(stored: &[Stored]) -> Result<Weights> {
    let mut files: BTreeMap<&Path, _> = BTreeMap::new();
    let mut weights = Weights::new();
    for weight in stored {
        let fault =
            |message: &str| Diagnostic::error(Code::BadOffsets, message).file(&weight.file).subject(&weight.name);
        if !files.contains_key(&*weight.file) {
            files.insert(&weight.file, SourceFile::open(&weight.file)?);
        }
        let dtype = DType::from_name(&weight.dtype).ok_or_else(|| fault("a weight's format is not known"))?;
        let shape = Shape(weight.shape.clone());
        let range = byte_len(dtype, &shape).and_then(|bytes| {
            let start = usize::try_from(weight.offset).ok()?;
            Some(start..start.checked_add(bytes)?)
        });
        let tensor = range.and_then(|range| Tensor::in_file(dtype, shape, files[&*weight.file].clone(), range));
        let tensor = tensor.ok_or_else(|| fault("a weight does not lie in its file"))?;
        weights.insert(weight.name.clone(), tensor);
    }
    Ok(weights)
}

fn read_text(path: &Path) -> Result<String> {
    let fault = |e: io::Error| Diagnostic::error(Code::Unreadable, format!("cannot read the file: {e}")).file(path);
    Ok(std::fs::read_to_string(path).map_err(fault)?)
}

fn json(answer: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(answer).expect("answers have only text keys and plain values")
}

fn parse<T: DeserializeOwned>(request: &[u8]) -> Result<T> {
    let fault = |e| Diagnostic::error(Code::ToolFailed, format!("the QNN worker cannot read a request: {e}"));
    Ok(serde_json::from_slice(request).map_err(fault)?)
}

/// The number at the start, and the rest.
fn number(request: &[u8]) -> Result<(usize, &[u8])> {
    let (number, rest) = request.split_first_chunk().ok_or_else(|| bad_request("an end too early"))?;
    Ok((u32::from_le_bytes(*number) as usize, rest))
}

fn bad_request(have: &str) -> npuc::Error {
    Diagnostic::error(Code::ToolFailed, "the QNN worker cannot serve a request").have(have).into()
}
