//! A QNN worker seen from the process that started it.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use npuc::back::qnn::description::{DataType, ScaleOffset};
use npuc::quant::Encoding;
use npuc::{Code, Diagnostic, Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::info::ContextInfo;
use super::library::Versions;
use super::profile::Told;
use super::protocol::{self, ANSWER, Binary, Fault, Open, Port, Prepare, Prepared};
use super::refusal::explain;
use crate::device::port::{PortFormat, PortInfo};
use crate::device::process::{Answer, Log, Process};

/// How long a request may take unless the caller says otherwise: preparing a graph of 3 G weights took two to three minutes on
/// two cores.
pub const TIME_LIMIT: Duration = Duration::from_secs(3600);

const NAME: &str = "the QNN worker";

/// A running worker, which holds any number of contexts.
#[derive(Debug)]
pub struct Qnn {
    process: Process,
    versions: Option<Versions>,
}

/// How to start a worker.
#[derive(Clone, Debug)]
pub struct Start<'a> {
    /// The program that calls [`super::worker`].
    pub program: &'a Path,
    /// Its arguments.
    pub args: &'a [OsString],
    /// The folder of Qualcomm's libraries.
    pub libraries: &'a Path,
    /// How long a request may take.
    pub limit: Duration,
    /// The file that keeps what worker and libraries say; without one it is gone with the worker.
    pub log: Option<&'a Path>,
}

/// A context in a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Context {
    number: Option<u32>,
    /// Its graphs, in the order of their descriptions.
    pub graphs: Vec<Graph>,
    /// The size of the context binary, if one was written.
    pub binary_bytes: Option<u64>,
    /// The most memory that the worker has had so far, where the system tells.
    pub peak_bytes: Option<u64>,
}

/// A graph of a context.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// Its name.
    pub name: String,
    /// Its operations; 0 for one that was loaded.
    pub nodes: usize,
    /// How long the library took to receive its tensors and nodes.
    pub compose_ms: u64,
    /// How long the library prepared it.
    pub finalize_ms: u64,
    /// The inputs, in order.
    pub inputs: Vec<PortInfo>,
    /// The outputs, in order.
    pub outputs: Vec<PortInfo>,
    /// What the library told of it, if it was asked.
    pub told: Option<Told>,
}

/// Where the loader and the DSP look. The loader finds what the libraries need beside them before anything else; the DSP looks
/// where the user says, for on a device its library is in a folder of its own.
fn search_paths(
    libraries: &Path,
    inherited: impl Fn(&'static str) -> Option<OsString>,
) -> [(&'static str, OsString); 2] {
    let (of_loader, of_dsp) = ("LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH");
    let mut loader = libraries.as_os_str().to_owned();
    if let Some(others) = inherited(of_loader) {
        loader.push(":");
        loader.push(others);
    }
    [(of_loader, loader), (of_dsp, inherited(of_dsp).unwrap_or_else(|| libraries.into()))]
}

/// A port as it travels.
///
/// Errors: [`Code::ToolFailed`] for a port of another kind.
fn port_info(port: Port) -> Result<PortInfo> {
    let format = match (port.dtype, port.encoding) {
        (DataType::F32, None) => PortFormat::F32,
        (DataType::F16, None) => PortFormat::F16,
        (DataType::U16, Some(of)) if of.scale > 0.0 => PortFormat::U16(encoding(of, u16::MAX.into())),
        (DataType::U8, Some(of)) if of.scale > 0.0 => PortFormat::U8(encoding(of, u8::MAX.into())),
        (dtype, encoding) => {
            let fault = Diagnostic::error(Code::ToolFailed, "a port of the graph is of a kind npuc does not fill");
            let fault = fault.subject(port.name).need("f32, f16, or u16 or u8 with a scale above 0");
            return Err(fault.have(format!("{dtype:?} with {encoding:?}")).into());
        }
    };
    let shape = port.shape.iter().map(|&extent| extent as usize).collect();
    Ok(PortInfo { name: port.name, shape, format })
}

fn encoding(of: ScaleOffset, high: i32) -> Encoding {
    Encoding { scale: of.scale, offset: of.offset, low: 0, high }
}

impl Qnn {
    /// Starts a worker and lets it load the libraries.
    ///
    /// Errors: [`Code::ToolFailed`] if it or they do not start; [`Code::MissingTool`] for libraries that are not there or too old.
    pub fn start(start: &Start<'_>) -> Result<Qnn> {
        Qnn::open(start, true)
    }

    /// Starts a worker that only reads context binaries ([`Qnn::info`]), which needs no HTP back end.
    ///
    /// Errors: as [`Qnn::start`].
    pub fn start_reader(start: &Start<'_>) -> Result<Qnn> {
        Qnn::open(start, false)
    }

    fn open(start: &Start<'_>, back_end: bool) -> Result<Qnn> {
        let mut command = Command::new(start.program);
        command.args(start.args).envs(search_paths(start.libraries, std::env::var_os));
        // What the libraries free goes back to the system at once: the peak of a model of 134 M weights fell from 672 to
        // 509 MiB with these settings of the C library.
        command
            .env("MALLOC_ARENA_MAX", "1")
            .env("MALLOC_MMAP_THRESHOLD_", "65536")
            .env("MALLOC_TRIM_THRESHOLD_", "65536");
        let process = Process::spawn(NAME, command, Log::at(start.log)?, start.limit)?;
        let mut qnn = Qnn { process, versions: None };
        let open = Open { libraries: start.libraries.to_path_buf(), back_end };
        let answer = qnn.ask(protocol::OPEN, &open, "loading QNN's libraries", &mut |_| ())?;
        let versions = if back_end { Some(qnn.read(&answer)?) } else { None };
        Ok(Qnn { versions, ..qnn })
    }

    /// The versions of the HTP back end, if it was loaded.
    pub fn versions(&self) -> Option<&Versions> {
        self.versions.as_ref()
    }

    /// The worker's process number.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Prepares a context. `say` is told what is being done.
    ///
    /// # Errors
    /// What the library refuses is [`Code::VendorRefusal`] with graph, node or tensor; a crash, a hang and a failure are
    /// [`Code::ToolFailed`] with the end of the log; what the request names may be unreadable or wrong.
    pub fn prepare(&mut self, prepare: &Prepare, say: &mut dyn FnMut(&str)) -> Result<Context> {
        let answer = self.ask(protocol::PREPARE, prepare, "preparing a context", say)?;
        self.context(&answer)
    }

    /// Loads a context binary for execution on the chip that it was made for. Graphs and ports come in the file's own order.
    ///
    /// Errors: as [`Qnn::prepare`] and [`Qnn::info`]; a binary of graphs that share weights is refused on x86.
    pub fn load(&mut self, binary: &Path) -> Result<Context> {
        let request = Binary { binary: binary.to_path_buf() };
        let answer = self.ask(protocol::LOAD, &request, "loading a context binary", &mut |_| ())?;
        self.context(&answer)
    }

    /// What a context binary holds, which may be anybody's.
    ///
    /// Errors: [`Code::Unreadable`]; [`Code::UnknownFormat`] for a file that is no whole context binary or one of a newer form;
    /// [`Code::ToolFailed`] if the worker ends over it.
    pub fn info(&mut self, binary: &Path) -> Result<ContextInfo> {
        let request = Binary { binary: binary.to_path_buf() };
        let answer = self.ask(protocol::INFO, &request, "reading a context binary", &mut |_| ())?;
        self.read(&answer)
    }

    fn context(&self, answer: &[u8]) -> Result<Context> {
        let Prepared { context, graphs, binary_bytes, peak_bytes } = self.read(answer)?;
        let ports = |ports: Vec<Port>| ports.into_iter().map(port_info).collect::<Result<_>>();
        let graph = |graph: protocol::PreparedGraph| -> Result<Graph> {
            Ok(Graph {
                name: graph.name,
                nodes: graph.nodes,
                compose_ms: graph.compose_ms,
                finalize_ms: graph.finalize_ms,
                inputs: ports(graph.inputs)?,
                outputs: ports(graph.outputs)?,
                told: graph.told,
            })
        };
        let graphs = graphs.into_iter().map(graph).collect::<Result<_>>()?;
        Ok(Context { number: context, graphs, binary_bytes, peak_bytes })
    }

    /// Executes a graph of a context from its inputs, in order; gives its outputs, in order. What enters a port of whole numbers is
    /// rounded to the nearest of them, halves away from zero, and saturates.
    ///
    /// Errors: [`Code::ToolFailed`] if the worker fails or ends, or if the context was not kept.
    ///
    /// # Panics
    /// If the context has no such graph, or an input is absent or has another length than its port.
    pub fn run(&mut self, context: &Context, graph: usize, inputs: &[&[f32]]) -> Result<Vec<Vec<f32>>> {
        let Some(number) = context.number else {
            return Err(Diagnostic::error(Code::ToolFailed, "the context was not kept for execution").into());
        };
        let of = &context.graphs[graph];
        assert_eq!(inputs.len(), of.inputs.len(), "inputs of the graph");
        let index = u32::try_from(graph).expect("a graph's place is a small number");
        let mut request = [&[protocol::RUN], &number.to_le_bytes()[..], &index.to_le_bytes()].concat();
        for (port, values) in of.inputs.iter().zip(inputs) {
            assert_eq!(values.len(), port.elements(), "elements of the port `{}`", port.name);
            port.put(values, &mut request);
        }
        let doing = format!("executing the graph {}", of.name);
        let answer = self.send(request, &doing, &mut |_| ())?;
        let mut rest = &answer[..];
        let mut outputs = Vec::with_capacity(of.outputs.len());
        for port in &of.outputs {
            let (now, later) = rest.split_at_checked(port.len_bytes()).ok_or_else(|| self.process.bad_answer())?;
            outputs.push(port.take(now));
            rest = later;
        }
        if rest.is_empty() { Ok(outputs) } else { Err(self.process.bad_answer()) }
    }

    /// Frees a context.
    ///
    /// Errors: [`Code::ToolFailed`] if the worker fails or ends.
    pub fn free(&mut self, context: Context) -> Result<()> {
        let Some(number) = context.number else { return Ok(()) };
        let request = [&[protocol::FREE], &number.to_le_bytes()[..]].concat();
        self.send(request, "freeing a context", &mut |_| ()).map(|_| ())
    }

    fn ask(&mut self, kind: u8, request: &impl Serialize, doing: &str, say: &mut dyn FnMut(&str)) -> Result<Vec<u8>> {
        let mut message = vec![kind];
        serde_json::to_writer(&mut message, request).expect("requests have only text keys and plain values");
        self.send(message, doing, say)
    }

    fn send(&mut self, message: Vec<u8>, doing: &str, say: &mut dyn FnMut(&str)) -> Result<Vec<u8>> {
        match self.process.ask(message, ANSWER, doing, say)? {
            Answer::Good(answer) => Ok(answer),
            Answer::Refused(faults) => Err(self.refusal(&faults)),
        }
    }

    /// The worker's faults, with what the library said.
    fn refusal(&self, faults: &[u8]) -> Error {
        let Ok(faults) = serde_json::from_slice::<Vec<Fault>>(faults) else {
            return self.process.bad_answer();
        };
        let said = self.process.said();
        let log = self.process.kept_log();
        let explained = faults.into_iter().map(|fault| explain(fault.into(), &said, log)).collect();
        Error::check(explained).err().unwrap_or_else(|| self.process.bad_answer())
    }

    fn read<T: DeserializeOwned>(&self, answer: &[u8]) -> Result<T> {
        serde_json::from_slice(answer).map_err(|_| self.process.bad_answer())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_keeps_the_folders_of_its_dsp() {
        let check = |set: [Option<&'static str>; 2], expected: [&str; 2]| {
            let inherited = |name| set[usize::from(name == "ADSP_LIBRARY_PATH")].map(OsString::from);
            let found = search_paths(Path::new("/n/lib"), inherited).map(|(_, path)| path);
            assert_eq!(found, expected.map(OsString::from));
        };
        check([None, None], ["/n/lib", "/n/lib"]);
        check([Some("/n/lib:/vendor/lib64"), Some("/n/dsp;/dsp")], ["/n/lib:/n/lib:/vendor/lib64", "/n/dsp;/dsp"]);
    }

    /// What enters a port, and what it then means.
    #[test]
    fn ports_of_every_format() {
        let port = |dtype, encoding| port_info(Port { name: "p".into(), dtype, shape: vec![1, 5], encoding });
        let of = |scale, offset| Some(ScaleOffset { scale, offset });
        let values = [0.0, 0.26, -0.25, 1e9, -1e9];
        for (dtype, encoding, bytes, expected) in [
            (DataType::F32, None, 20, values),
            (DataType::F16, None, 10, [0.0, 0.260_009_77, -0.25, 65504.0, -65504.0]),
            (DataType::U16, of(0.5, -32768), 10, [0.0, 0.5, -0.5, 16383.5, -16384.0]),
            (DataType::U16, of(0.5, 0), 10, [0.0, 0.5, 0.0, 32767.5, 0.0]),
            (DataType::U8, of(0.5, -128), 5, [0.0, 0.5, -0.5, 63.5, -64.0]),
        ] {
            let port = port(dtype, encoding).expect("a port of that kind");
            let mut put = Vec::new();
            port.put(&values, &mut put);
            assert_eq!((put.len(), port.len_bytes(), port.elements()), (bytes, bytes, 5));
            assert_eq!(port.take(&put), expected, "{dtype:?} {encoding:?}");
        }
        for (dtype, encoding) in [
            (DataType::U16, None),
            (DataType::F16, of(0.5, 0)),
            (DataType::U16, of(0.0, 0)),
            (DataType::U16, of(f32::NAN, 0)),
            (DataType::S8, of(0.5, 0)),
            (DataType::I32, None),
        ] {
            let error = port(dtype, encoding).expect_err("npuc does not fill it");
            assert_eq!(error.diagnostics()[0].code, Code::ToolFailed, "{dtype:?} {encoding:?}");
        }
    }
}
