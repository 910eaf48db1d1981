//! The modules of a bundle for IREE or Torq: compiled while the bundle is written, opened when it is run.
//!
//! A module is compiled for one machine, which its flags say; it runs where they lead and nowhere else.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use npuc::back::BackEnd;
use npuc::back::stablehlo::{Module, PARAMETERS, SCOPE};
use npuc::bundle::{GraphRecord, Manifest, ModuleRecord};
use npuc::ir::{Def, Graph};
use npuc::target::{Target, graph_flags};
use npuc::{Code, Diagnostic, Error, Result};
use serde::Serialize;

use crate::device::module::{self, ModuleSpec, Runner};
use crate::device::port::{PortFormat, PortInfo};
use crate::program::Segment;
use crate::toolchain::child::remove;
use crate::toolchain::compile::{Compilation, Compiled, compile};
use crate::toolchain::torq_profile::TorqProfile;
use crate::toolchain::{Installed, Tool};

mod products;

pub use products::{ProvedProduct, product_cosine, prove_products};

/// The tool whose compiler makes the modules of a target.
///
/// Errors: [`Code::BadArgument`] for a target of another back end.
pub fn compiler(target: &Target) -> Result<Tool> {
    match target.back_end()? {
        BackEnd::Iree => Ok(Tool::Iree),
        BackEnd::Torq => Ok(Tool::Torq),
        BackEnd::Host | BackEnd::Tflite | BackEnd::Qnn => {
            Err(Diagnostic::error(Code::BadArgument, "the target takes no modules")
                .subject(&target.name)
                .help("build for iree-cpu, iree-vulkan, mali-valhall or sl2610")
                .into())
        }
    }
}

/// A module that was compiled.
#[derive(Clone, Debug, Serialize)]
pub struct Made {
    /// What the manifest says of it.
    #[serde(flatten)]
    pub record: ModuleRecord,
    /// How long the compiler took.
    pub wall_ms: u64,
    /// The most memory that it had.
    pub peak_rss_bytes: u64,
    /// What the compiler of an NPU expects of a step, which is an estimate, where it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<TorqProfile>,
}

/// How modules are compiled.
pub struct Making<'a> {
    /// The compiler.
    pub tool: &'a Installed,
    /// The target, whose flags it gets.
    pub target: &'a Target,
    /// Flags instead of the target's, see [`make`]: `--name=value`, or `--name=` for none.
    pub changes: &'a [String],
    /// Whether the compiler tells what it expects of a step.
    pub profile: bool,
    /// Where what it says is kept: this path with the module's name and `.log` behind it.
    pub log: &'a Path,
    /// How long a module may take.
    pub limit: Duration,
    /// Is told of the progress.
    pub say: &'a mut dyn FnMut(&str),
}

/// Compiles every module of a bundle that is being written into `folder`, whose `graphs` are given in the manifest's order.
///
/// Errors: those of [`compile`], with the weight whose product is refused; a bundle whose graphs have no modules.
pub fn make(folder: &Path, manifest: &Manifest, graphs: &[&Graph], making: &mut Making<'_>) -> Result<Vec<Made>> {
    let mut made = Vec::new();
    for (record, graph) in manifest.graphs.iter().zip(graphs) {
        let source = module_of(record)?;
        let function = Path::new(source).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let file = Path::new(source).with_extension("vmfb").to_string_lossy().into_owned();
        let mut log = making.log.as_os_str().to_owned();
        log.push(format!(".{function}.log"));
        let flags = graph_flags(making.target, graph, making.changes);
        let (compiled, estimate) =
            compiled((&folder.join(source), &folder.join(&file)), &flags, Path::new(&log), making)?;
        let Compiled { wall_ms, peak_rss_bytes, vmfb_bytes: bytes } = compiled;
        let (source, compiler) = (source.to_owned(), making.tool.tool.version().to_owned());
        let record = ModuleRecord { file, source, function, compiler, flags, bytes };
        made.push(Made { record, wall_ms, peak_rss_bytes, estimate });
    }
    Ok(made)
}

/// Compiles a module that belongs to no bundle, to learn what its compiler says of it. Nothing of it stays but the log.
///
/// Errors: as [`make`].
pub fn tried(module: &Module, graph: &Graph, making: &mut Making<'_>) -> Result<(Compiled, Option<TorqProfile>)> {
    let folder = scratch()?;
    let (mlir, vmfb) = (folder.path().join("tried.mlir"), folder.path().join("tried.vmfb"));
    write_module(module, &mlir)?;
    let flags = graph_flags(making.target, graph, making.changes);
    let mut log = making.log.as_os_str().to_owned();
    log.push(".tried.log");
    compiled((&mlir, &vmfb), &flags, Path::new(&log), making)
}

/// Writes the text of a module.
///
/// Errors: [`Code::Unwritable`].
pub(crate) fn write_module(module: &Module, path: &Path) -> Result<()> {
    let file = File::create(path).map(BufWriter::new);
    let written = file.and_then(|mut file| module.write(&mut file).and_then(|()| file.flush()));
    Ok(written.map_err(|e| unwritable_text(&e))?)
}

/// A folder for modules that belong to no bundle.
pub(crate) fn scratch() -> Result<tempfile::TempDir> {
    Ok(tempfile::tempdir().map_err(|e| unwritable_text(&e))?)
}

fn unwritable_text(error: &std::io::Error) -> Diagnostic {
    Diagnostic::error(Code::Unwritable, format!("cannot write a module: {error}"))
        .help("set TMPDIR to a folder with free space")
}

/// Compiles one module, and reads the compiler's estimate if it is asked for.
fn compiled(
    (mlir, vmfb): (&Path, &Path),
    flags: &[String],
    log: &Path,
    making: &mut Making<'_>,
) -> Result<(Compiled, Option<TorqProfile>)> {
    let timeline = vmfb.with_extension("csv");
    let mut flags = flags.to_vec();
    if making.profile {
        flags.push("--torq-enable-profiling".into());
        flags.push(format!("--torq-dump-profiling={}", timeline.display()));
    }
    let compilation = Compilation { tool: making.tool, flags: &flags, mlir, vmfb, log, limit: making.limit };
    let compiled = compile(&compilation, making.say).map_err(|e| named(e, mlir, log))?;
    if !making.profile {
        return Ok((compiled, None));
    }
    let estimate = TorqProfile::read(&timeline)?;
    remove(&timeline)?;
    Ok((compiled, Some(estimate)))
}

/// The refusal with the weight that the first line of an error is about: a product that the compiler does not fold.
fn named(refusal: Error, mlir: &Path, log: &Path) -> Error {
    let weight = || {
        let (text, said) = (File::open(mlir).ok()?, std::fs::read_to_string(log).ok()?);
        let line = said.lines().find(|line| line.contains(": error: "))?;
        let number: usize = line.split(':').find_map(|part| part.parse().ok())?;
        let lines = BufReader::new(text).lines().map_while(std::io::Result::ok).take(number);
        lines.filter_map(|line| line.trim().strip_prefix("// ").map(str::to_owned)).last()
    };
    let Some(weight) = weight() else { return refusal };
    let told =
        |fault: &Diagnostic| fault.clone().help(format!("the product with {weight} is the last before that line"));
    Error::check(refusal.diagnostics().iter().map(told).collect()).err().unwrap_or(refusal)
}

fn module_of(graph: &GraphRecord) -> Result<&str> {
    let fault = || Diagnostic::error(Code::BadBundle, "a graph of the bundle has no module").subject(&graph.ir);
    Ok(graph.emitted.as_deref().ok_or_else(fault)?)
}

/// What a compiled module runs on here, as its flags say.
pub(crate) fn runner(record: &ModuleRecord) -> Option<Runner> {
    let has = |text: &str| record.flags.iter().any(|flag| flag == text);
    let known = [
        ("--iree-hal-local-target-device-backends=llvm-cpu", Runner::IreeCpu),
        ("--iree-vulkan-target=llvmpipe", Runner::IreeVulkan),
        ("--iree-vulkan-target=valhall4", Runner::ValhallOnVulkan),
        ("--iree-hal-target-device=torq", Runner::TorqSim),
    ];
    known.into_iter().find(|(flag, _)| has(flag)).map(|(_, runner)| runner)
}

/// The modules of a bundle, opened for one of the `wanted` runners, in the order of its graphs.
#[derive(Debug)]
pub struct Opened {
    modules: Vec<(PathBuf, module::Module)>,
}

impl Opened {
    /// The module of a segment, which is taken out.
    ///
    /// Errors: [`Code::BadBundle`] for a segment without one.
    pub(crate) fn take(&mut self, segment: &Segment) -> Result<module::Module> {
        let place = self.modules.iter().position(|(source, _)| Some(source) == segment.emitted.as_ref());
        let fault =
            || Diagnostic::error(Code::BadBundle, "a graph has no compiled module").subject(&segment.graph.name);
        Ok(self.modules.remove(place.ok_or_else(fault)?).1)
    }
}

/// Opens the modules of the bundle in `folder` with its graphs' ports.
///
/// Errors: a bundle without compiled modules, or with some for another machine ([`Code::BadArgument`]); a tool that is not installed; what
/// [`module::Module::open`] refuses.
pub fn open(
    folder: &Path,
    manifest: &Manifest,
    graphs: &[&Graph],
    wanted: &[Runner],
    log: &Path,
    limit: Duration,
) -> Result<Opened> {
    let fault = |message: &str| Diagnostic::error(Code::BadArgument, message).file(folder);
    if manifest.modules.is_empty() {
        let fault = fault("the bundle holds no compiled modules");
        return Err(fault
            .help("build it for iree-cpu, iree-vulkan, mali-valhall or sl2610 without --no-compile")
            .into());
    }
    let mut modules = Vec::new();
    for (record, graph) in manifest.modules.iter().zip(graphs) {
        let Some(runner) = runner(record).filter(|runner| wanted.contains(runner)) else {
            let fault = fault("the modules of the bundle are for another machine").subject(&record.file);
            let flags = record.flags.join(" ");
            return Err(fault.have(format!("{}: {flags}", manifest.target)).help(way(record)).into());
        };
        let format = if manifest.back_end == BackEnd::Torq { PortFormat::Bf16 } else { PortFormat::F32 };
        let (inputs, outputs) = ports(graph, format);
        let parameters = (manifest.back_end == BackEnd::Iree && graph_has_weights(graph))
            .then(|| (SCOPE.to_owned(), folder.join(PARAMETERS)));
        let spec = ModuleSpec {
            runner,
            vmfb: folder.join(&record.file),
            function: record.function.clone(),
            parameters,
            inputs,
            outputs,
            log: log.to_path_buf(),
            limit,
        };
        modules.push((folder.join(&record.source), module::Module::open(spec, &runner.find_tools()?)?));
    }
    Ok(Opened { modules })
}

fn graph_has_weights(graph: &Graph) -> bool {
    graph.values.iter().any(|value| value.def == Def::Weight)
}

/// The flag with which such a module runs here.
fn way(record: &ModuleRecord) -> String {
    match runner(record) {
        Some(Runner::IreeCpu) => "run it with --on iree-cpu".into(),
        Some(Runner::IreeVulkan | Runner::ValhallOnVulkan) => "run it with --on iree-vulkan".into(),
        Some(Runner::TorqSim) => "run it with --on torq-sim".into(),
        None => "nothing here runs such modules".into(),
    }
}

/// The ports of a graph with numbers of that kind.
pub(crate) fn ports(graph: &Graph, format: PortFormat) -> (Vec<PortInfo>, Vec<PortInfo>) {
    let port = |name: &str, shape: &[usize]| PortInfo { name: name.to_owned(), shape: shape.to_vec(), format };
    let inputs = graph.values.iter().filter(|value| value.def == Def::Input);
    let outputs = graph.outputs.iter().map(|output| port(&output.name, &graph.value(output.value).ty.shape));
    (inputs.map(|value| port(&value.name, &value.ty.shape)).collect(), outputs.collect())
}
