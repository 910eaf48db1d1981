//! Replays descriptions through the library: a context for a chip, graph by graph, and what comes of it.
//!
//! A tensor is made when the first node needs it and its memory is freed as soon as the library no longer reads it, so that of a
//! large model's weights only one at a time is there twice.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::io::{self, Read};
use std::path::Path;
use std::ptr;
use std::rc::Rc;
use std::time::Instant;

use npuc::back::qnn::Description;
use npuc::back::qnn::description::{self, DataType, Node, Param, Role};
use npuc::{Code, Diagnostic, Result};

use super::Weights;
use super::abi::{
    self, Config, ContextOption, DeviceOption, GraphOption, Handle, Operation, ParamValue, Scalar, ScalarValue, Status,
    graph_option,
};
use super::info::{ContextInfo, TensorInfo};
use super::library::{self, Library};
use super::profile::{Profiler, Told};
use super::protocol::{Options, Port, Prepare};
use super::refusal;
use super::tensor::{Built, c_text};

/// The package of the operations that npuc uses.
const PACKAGE: &std::ffi::CStr = c"qti.aisw";

/// What is told while a graph is prepared.
pub(super) trait Notes {
    /// What is being done.
    fn stage(&mut self, text: &str);
    /// What is worked on, in case that nothing follows.
    fn place(&mut self, text: &str);
}

/// A context: graphs that are prepared for one chip.
pub(super) struct Context {
    library: Rc<Library>,
    back_end: Handle,
    device: Handle,
    context: Handle,
    graphs: Vec<Graph>,
    /// The binary that it was loaded from, which stays while the context does.
    binary: Vec<u8>,
}

/// A graph that can be executed.
struct Graph {
    handle: Handle,
    name: String,
    inputs: Vec<Built>,
    outputs: Vec<Built>,
}

/// The ports of a graph that was loaded.
pub(super) struct GraphPorts {
    pub(super) name: String,
    pub(super) inputs: Vec<Port>,
    pub(super) outputs: Vec<Port>,
}

/// How a graph came to be.
pub(super) struct Times {
    pub(super) compose_ms: u64,
    pub(super) finalize_ms: u64,
    pub(super) told: Option<Told>,
}

impl Context {
    /// An empty context for the chip.
    ///
    /// Errors: [`Code::VendorRefusal`] for a chip that the library does not know; [`Code::ToolFailed`].
    pub(super) fn new(library: &Rc<Library>, soc: u32, shared: bool) -> Result<Context> {
        let mut context = Context::on_device(library, soc)?;
        let option = ContextOption::share_weights(shared);
        let config = Config::custom(&option);
        let configs = [&raw const config, ptr::null()];
        let create = library.functions.context_create;
        // SAFETY: the configurations live until the call returns, and the handles are the library's.
        let status = unsafe { create(context.back_end, context.device, configs.as_ptr(), &raw mut context.context) };
        accept(library, status, || Diagnostic::error(Code::ToolFailed, "QNN makes no context"))?;
        Ok(context)
    }

    /// The context of a binary, with the ports of its graphs.
    ///
    /// Errors: [`Code::VendorRefusal`] if the library does not load it; [`Code::ToolFailed`] for ports that npuc does not fill.
    pub(super) fn load(library: &Rc<Library>, info: &ContextInfo, path: &Path) -> Result<(Context, Vec<GraphPorts>)> {
        let mut context = Context::on_device(library, info.soc)?;
        let unreadable =
            |e: io::Error| Diagnostic::error(Code::Unreadable, format!("cannot read the file: {e}")).file(path);
        context.binary = std::fs::read(path).map_err(unreadable)?;
        let load = library.functions.context_load;
        let (start, len_bytes) = (context.binary.as_ptr().cast(), context.binary.len() as u64);
        let (at, none) = (&raw mut context.context, ptr::null_mut());
        // SAFETY: the buffer has `len_bytes` bytes and stays while the context does; the handle is written.
        let status = unsafe { load(context.back_end, context.device, ptr::null(), start, len_bytes, at, none) };
        accept(library, status, || {
            Diagnostic::error(Code::VendorRefusal, "QNN does not load the context binary").file(path)
        })?;
        let mut ports = Vec::with_capacity(info.graphs.len());
        for graph in &info.graphs {
            let name = c_text(&graph.name)?;
            let mut handle = ptr::null_mut();
            // SAFETY: the name lives until the call returns, and the handle is written.
            let status = unsafe { (library.functions.graph_retrieve)(context.context, name.as_ptr(), &raw mut handle) };
            accept(library, status, || {
                let fault = Diagnostic::error(Code::VendorRefusal, "QNN does not find a graph of the context binary");
                fault.file(path).subject(&graph.name)
            })?;
            let of = |tensors: &[TensorInfo], role: Role| -> Result<(Vec<Built>, Vec<Port>)> {
                let made: Vec<_> = tensors.iter().map(|info| Built::port(info, role.clone())).collect::<Result<_>>()?;
                Ok(made.into_iter().unzip())
            };
            let (inputs, input_ports) = of(&graph.inputs, Role::Input)?;
            let (outputs, output_ports) = of(&graph.outputs, Role::Output)?;
            context.graphs.push(Graph { handle, name: graph.name.clone(), inputs, outputs });
            ports.push(GraphPorts { name: graph.name.clone(), inputs: input_ports, outputs: output_ports });
        }
        Ok((context, ports))
    }

    /// Back end and device, and no context yet.
    fn on_device(library: &Rc<Library>, soc: u32) -> Result<Context> {
        let mut made = Context {
            library: Rc::clone(library),
            back_end: ptr::null_mut(),
            device: ptr::null_mut(),
            context: ptr::null_mut(),
            graphs: Vec::new(),
            binary: Vec::new(),
        };
        let functions = &library.functions;
        // SAFETY: no configurations are given, and the handle is written.
        let status = unsafe { (functions.back_end_create)(library.logger, ptr::null(), &raw mut made.back_end) };
        accept(library, status, || Diagnostic::error(Code::ToolFailed, "QNN makes no back end"))?;
        let option = DeviceOption::chip(soc);
        let config = Config::custom(&option);
        let configs = [&raw const config, ptr::null()];
        // SAFETY: the configurations live until the call returns, and the handle is written.
        let status = unsafe { (functions.device_create)(library.logger, configs.as_ptr(), &raw mut made.device) };
        accept(library, status, || {
            Diagnostic::error(Code::VendorRefusal, "QNN makes no device of the chip")
                .subject(format!("SoC {soc}"))
                .help("a chip that is newer than the libraries needs newer libraries")
        })?;
        Ok(made)
    }

    /// Adds a graph and prepares it.
    ///
    /// Errors: [`Code::VendorRefusal`] with the graph, the node and the tensor that the library refuses.
    pub(super) fn add(
        &mut self,
        description: &Description,
        weights: &Weights,
        prepare: &Prepare,
        notes: &mut dyn Notes,
    ) -> Result<Times> {
        let start = Instant::now();
        notes.stage(&format!("composing the graph {}", description.name));
        let graph = self.create_graph(description, prepare.options)?;
        let composer = Composer { library: &self.library, back_end: self.back_end, graph, name: &description.name };
        let built = composer.compose(description, weights, notes)?;
        let compose_ms = start.elapsed().as_millis() as u64;
        notes.place(&format!("the end of the graph {}", description.name));
        notes.stage(&format!("preparing the graph {}", description.name));
        let start = Instant::now();
        let profiler = Profiler::start(&self.library, self.back_end, prepare.profile.as_ref())?;
        // SAFETY: graph and profile are the library's.
        let status = unsafe { (self.library.functions.finalize)(graph, profiler.handle(), ptr::null_mut()) };
        accept(&self.library, status, || {
            Diagnostic::error(Code::VendorRefusal, "QNN does not prepare the graph").subject(&description.name)
        })?;
        let finalize_ms = start.elapsed().as_millis() as u64;
        let told = profiler.finish(&description.name)?;
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (tensor, built) in description.tensors.iter().zip(built) {
            match tensor.role {
                Role::Input => inputs.extend(built),
                Role::Output => outputs.extend(built),
                Role::Native | Role::Numbers(_) | Role::Reals(_) | Role::Weight(_) => {}
                Role::Filter(_) | Role::FloatFilter(_) => {}
            }
        }
        self.graphs.push(Graph { handle: graph, name: description.name.clone(), inputs, outputs });
        Ok(Times { compose_ms, finalize_ms, told })
    }

    fn create_graph(&self, description: &Description, options: Options) -> Result<Handle> {
        let is_float = |dtype| matches!(dtype, DataType::F16 | DataType::F32);
        let float = description.tensors.iter().any(|tensor| is_float(tensor.dtype));
        let mut chosen = vec![GraphOption::new(graph_option::OPTIMISATION, 3, f32::from(options.optimisation))];
        chosen.extend(float.then(|| GraphOption::new(graph_option::PRECISION, 1, 0.0)));
        let configs: Vec<Config> = chosen.iter().map(Config::custom).collect();
        let list: Vec<*const Config> = configs.iter().map(ptr::from_ref).chain([ptr::null()]).collect();
        let name = c_text(&description.name)?;
        let mut graph = ptr::null_mut();
        let create = self.library.functions.graph_create;
        // SAFETY: name and configurations live until the call returns, and the handle is written.
        let status = unsafe { create(self.context, name.as_ptr(), list.as_ptr(), &raw mut graph) };
        accept(&self.library, status, || {
            Diagnostic::error(Code::VendorRefusal, "QNN makes no graph").subject(&description.name)
        })?;
        Ok(graph)
    }

    /// Writes the context binary, whole or not at all; gives its size. `rest` is called where the library has made its parts and not yet
    /// put them together.
    ///
    /// The library fills the mapped file, so that there is no copy of it in memory beside the three or so that the library makes.
    ///
    /// Errors: [`Code::ToolFailed`] if the library does not give it, or gives none; [`Code::Unwritable`].
    pub(super) fn write(&self, path: &Path, rest: impl FnOnce()) -> Result<u64> {
        let fault = || Diagnostic::error(Code::ToolFailed, "QNN gives no context binary");
        let unwritable =
            |e: io::Error| Diagnostic::error(Code::Unwritable, format!("cannot write the file: {e}")).file(path);
        let mut size = 0;
        // SAFETY: the context is the library's, and the size is written.
        let status = unsafe { (self.library.functions.binary_size)(self.context, &raw mut size) };
        accept(&self.library, status, fault)?;
        if size == 0 {
            return Err(fault().have("0 bytes").into());
        }
        rest();
        // Readable for whom the user's files are.
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        let mut file =
            tempfile::Builder::new().permissions(permissions).tempfile_in(folder_of(path)).map_err(unwritable)?;
        // Written out, so that a full disk is an error here and no signal where the mapping is filled.
        io::copy(&mut io::repeat(0).take(size), file.as_file_mut()).map_err(unwritable)?;
        // SAFETY: the file was made just now, under a name that nobody else has.
        let mut map = unsafe { memmap2::MmapMut::map_mut(file.as_file()) }.map_err(unwritable)?;
        let (start, mut written) = (map.as_mut_ptr().cast::<c_void>(), 0);
        // SAFETY: the mapping has `size` bytes.
        let status = unsafe { (self.library.functions.binary)(self.context, start, size, &raw mut written) };
        accept(&self.library, status, fault)?;
        if written == 0 || written > size {
            return Err(fault().have(format!("{written} of {size} bytes")).into());
        }
        drop(map);
        file.as_file().set_len(written).map_err(unwritable)?;
        file.as_file().sync_all().map_err(unwritable)?;
        file.persist(path).map_err(|e| unwritable(e.error))?;
        Ok(written)
    }

    /// Executes a graph: the bytes of its input ports in order, to those of its output ports.
    ///
    /// Errors: [`Code::BadShape`] for another number of bytes; [`Code::ToolFailed`] if the library fails.
    pub(super) fn run(&mut self, graph: usize, input: &[u8]) -> Result<Vec<u8>> {
        let fault = |message: &str| Diagnostic::error(Code::ToolFailed, message);
        let graph = self.graphs.get(graph).ok_or_else(|| fault("the context has no such graph"))?;
        let expected: usize = graph.inputs.iter().map(Built::len_bytes).sum();
        if input.len() != expected {
            let fault = fault("the inputs have another size than the ports").subject(&graph.name);
            return Err(fault.need(format!("{expected} bytes")).have(format!("{} bytes", input.len())).into());
        }
        let mut rest = input;
        let mut take = |port: &Built| {
            let (now, later) = rest.split_at(port.len_bytes());
            rest = later;
            Buffer::of(now)
        };
        let mut given: Vec<Buffer> = graph.inputs.iter().map(&mut take).collect();
        let mut made: Vec<Buffer> = graph.outputs.iter().map(|port| Buffer::zeros(port.len_bytes())).collect();
        let bind = |ports: &[Built], buffers: &mut [Buffer]| -> Vec<abi::Tensor> {
            ports.iter().zip(buffers).map(|(port, buffer)| abi::Tensor { data: buffer.data(), ..port.raw }).collect()
        };
        let inputs = bind(&graph.inputs, &mut given);
        let mut outputs = bind(&graph.outputs, &mut made);
        let (input_count, output_count) = (inputs.len() as u32, outputs.len() as u32);
        let execute = self.library.functions.execute;
        let (given_at, made_at, none) = (inputs.as_ptr(), outputs.as_mut_ptr(), ptr::null_mut());
        // SAFETY: every tensor has a buffer of its size, and all live until the call returns.
        let status = unsafe { execute(graph.handle, given_at, input_count, made_at, output_count, none, none) };
        accept(&self.library, status, || fault("QNN does not execute the graph").subject(&graph.name))?;
        Ok(made.iter().flat_map(Buffer::bytes).copied().collect())
    }
}

/// The folder that a file is in.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Drop for Context {
    fn drop(&mut self) {
        let functions = &self.library.functions;
        // What the library says to this changes nothing.
        // SAFETY: the handles are the library's, freed once each and in the reverse order of their making.
        unsafe {
            if !self.context.is_null() {
                (functions.context_free)(self.context, ptr::null_mut());
            }
            if !self.device.is_null() {
                (functions.device_free)(self.device);
            }
            if !self.back_end.is_null() {
                (functions.back_end_free)(self.back_end);
            }
        }
    }
}

/// Memory of a port, aligned for every data type.
struct Buffer {
    words: Vec<u64>,
    len_bytes: usize,
}

impl Buffer {
    fn zeros(len_bytes: usize) -> Buffer {
        Buffer { words: vec![0; len_bytes.div_ceil(8)], len_bytes }
    }

    fn of(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::zeros(bytes.len());
        bytemuck::cast_slice_mut(&mut buffer.words)[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len_bytes]
    }

    fn data(&mut self) -> abi::Data {
        abi::Data { start: self.words.as_mut_ptr().cast(), len_bytes: self.len_bytes as u32 }
    }
}

/// A graph that is being put together.
struct Composer<'a> {
    library: &'a Library,
    back_end: Handle,
    graph: Handle,
    name: &'a str,
}

impl Composer<'_> {
    /// Makes tensors and nodes; gives the tensors of the ports.
    fn compose(
        &self,
        description: &Description,
        weights: &Weights,
        notes: &mut dyn Notes,
    ) -> Result<Vec<Option<Built>>> {
        let tensors = &description.tensors;
        let mut built: Vec<Option<Built>> = tensors.iter().map(|_| None).collect();
        for (tensor, built) in tensors.iter().zip(&mut built) {
            if matches!(tensor.role, Role::Input | Role::Output) {
                *built = Some(self.make(tensor, weights)?);
            }
        }
        let mut last_use = vec![0; tensors.len()];
        for (at, node) in description.nodes.iter().enumerate() {
            used(node).for_each(|tensor| last_use[tensor] = at);
        }
        for (at, node) in description.nodes.iter().enumerate() {
            notes.place(&format!("the node {} ({}) of the graph {}", node.name, node.op, self.name));
            for tensor in used(node) {
                if built[tensor].is_none() {
                    built[tensor] = Some(self.make(&tensors[tensor], weights)?);
                }
            }
            self.add(node, &built)?;
            for tensor in used(node) {
                if last_use[tensor] == at && !matches!(tensors[tensor].role, Role::Input | Role::Output) {
                    built[tensor] = None;
                }
            }
        }
        Ok(built)
    }

    fn make(&self, tensor: &description::Tensor, weights: &Weights) -> Result<Built> {
        let mut built = Built::new(tensor, weights)?;
        // SAFETY: everything that the tensor points to lives in `built`; the library fills in the number.
        let status = unsafe { (self.library.functions.create_tensor)(self.graph, &raw mut built.raw) };
        accept(self.library, status, || {
            Diagnostic::error(Code::VendorRefusal, "QNN refuses a tensor")
                .subject(format!("{}: {}", self.name, tensor.name))
        })?;
        // The library copies data when it makes a tensor, but reads that of parameters when it takes the node.
        if matches!(tensor.role, Role::Filter(_) | Role::FloatFilter(_)) {
            built.forget_data();
        }
        Ok(built)
    }

    fn add(&self, node: &Node, built: &[Option<Built>]) -> Result<()> {
        let raw = |tensor: &usize| built[*tensor].as_ref().map_or(abi::Tensor::EMPTY, |built| built.raw);
        let (name, op) = (c_text(&node.name)?, c_text(&node.op)?);
        let names: Vec<CString> = node.params.iter().map(|(name, _)| c_text(name)).collect::<Result<_>>()?;
        let params: Vec<abi::Param> = node
            .params
            .iter()
            .zip(&names)
            .map(|((_, param), name)| match param {
                Param::Tensor(tensor) => {
                    abi::Param { kind: 1, name: name.as_ptr(), value: ParamValue { tensor: raw(tensor) } }
                }
                Param::Bool(_) | Param::U32(_) | Param::I32(_) | Param::F32(_) => {
                    abi::Param { kind: 0, name: name.as_ptr(), value: ParamValue { scalar: scalar(param) } }
                }
            })
            .collect();
        let inputs: Vec<abi::Tensor> = node.inputs.iter().map(raw).collect();
        let outputs: Vec<abi::Tensor> = node.outputs.iter().map(raw).collect();
        let operation = Operation {
            version: 1,
            name: name.as_ptr(),
            package: PACKAGE.as_ptr(),
            op: op.as_ptr(),
            param_count: params.len() as u32,
            params: params.as_ptr(),
            input_count: inputs.len() as u32,
            inputs: inputs.as_ptr(),
            output_count: outputs.len() as u32,
            outputs: outputs.as_ptr(),
        };
        let fault = |message: &str| {
            let subject = format!("{}: {} ({})", self.name, node.name, node.op);
            Diagnostic::error(Code::VendorRefusal, message).subject(subject)
        };
        // Taking a node does not validate it.
        // SAFETY: everything that the operation points to lives until the call returns.
        let status = unsafe { (self.library.functions.validate)(self.back_end, operation) };
        accept(self.library, status, || fault("QNN's validation refuses a node"))?;
        // SAFETY: as before.
        let status = unsafe { (self.library.functions.add_node)(self.graph, operation) };
        accept(self.library, status, || fault("QNN does not take a node"))
    }
}

/// The tensors of a node, those of its parameters first.
fn used(node: &Node) -> impl Iterator<Item = usize> {
    node.param_tensors().chain(node.inputs.iter().copied()).chain(node.outputs.iter().copied())
}

/// A parameter that is a number.
fn scalar(param: &Param) -> Scalar {
    let (dtype, value) = match *param {
        Param::Bool(switch) => (0x508, ScalarValue { bits: u64::from(switch) }),
        Param::U32(unsigned) => (0x132, ScalarValue { bits: u64::from(unsigned) }),
        Param::I32(signed) => (0x32, ScalarValue { signed }),
        Param::F32(float) => (0x232, ScalarValue { float }),
        Param::Tensor(_) => unreachable!("a tensor is no number"),
    };
    Scalar { dtype, value }
}

/// `fault` with the library's error if the status is one.
pub(super) fn accept(library: &Library, status: Status, fault: impl FnOnce() -> Diagnostic) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    library::say(&refusal::error_line(status));
    let name = library.error_name(status).map(|name| format!(": {name}")).unwrap_or_default();
    Err(fault().have(format!("error {}{name}", status & 0xffff)).into())
}
