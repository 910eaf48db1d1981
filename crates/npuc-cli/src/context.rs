//! `npuc context`: what a context binary for Qualcomm's chips holds, or how two of them differ.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use npuc::{Code, Diagnostic, Error, Result, target};
use npuc_run::device::qnn::Qnn;
use npuc_run::device::qnn::compare::{Difference, compare};
use npuc_run::device::qnn::info::{ContextInfo, GraphInfo, GraphSizes, TensorInfo};
use serde::Serialize;

use crate::output::{Output, count, exact_bytes};
use crate::session::start_qnn_reader;

#[derive(Args)]
pub(crate) struct ContextArgs {
    /// A context binary (.bin) of any maker
    #[arg(required_unless_present = "compare", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Tell how two context binaries differ; the exit status is 1 where that is in graphs or ports, on which a runner depends
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with = "file")]
    pub(crate) compare: Option<Vec<PathBuf>>,
}

/// How long the library may read a file, of which it needs the beginning.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Serialize)]
struct Told<'a> {
    file: String,
    /// The target of npuc with the binary's chip, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'static str>,
    #[serde(flatten)]
    info: &'a ContextInfo,
}

#[derive(Serialize)]
struct Compared {
    first: String,
    second: String,
    /// Whether a runner of one is one of the other.
    compatible: bool,
    differences: Vec<Difference>,
}

/// Runs the command; gives the exit status.
pub(crate) fn command(args: &ContextArgs, output: Output) -> Result<u8> {
    // clap sees to it that there are two.
    if let Some([first, second]) = args.compare.as_deref() {
        return comparison(first, second, output);
    }
    let Some(file) = &args.file else {
        return Err(Diagnostic::error(Code::BadArgument, "no context binary is named").into());
    };
    let info = read(file, &mut reader()?)?;
    let told = Told { file: file.display().to_string(), target: target_of(info.soc), info: &info };
    output.result(&told, &render(&told))?;
    Ok(0)
}

fn comparison(first: &Path, second: &Path, output: Output) -> Result<u8> {
    let mut worker = reader()?;
    let [first_info, second_info] = [read(first, &mut worker)?, read(second, &mut worker)?];
    let differences = compare(&first_info, &second_info);
    let compatible = differences.iter().all(|difference| !difference.depends);
    let [first, second] = [first, second].map(|path| path.display().to_string());
    let report = Compared { first, second, compatible, differences };
    output.result(&report, &render_comparison(&report))?;
    Ok(u8::from(!compatible))
}

fn reader() -> Result<Qnn> {
    start_qnn_reader(LIMIT)
}

/// What the file holds. A library that ends over a file is told as a fault of the file.
fn read(file: &Path, worker: &mut Qnn) -> Result<ContextInfo> {
    let kind = known_kind(file);
    let blamed = |fault: &Diagnostic| {
        let fault = if fault.code == Code::ToolFailed {
            let message = format!("QNN's library cannot read the file: {}", fault.message);
            let help = fault.help.clone();
            let fault = Diagnostic { help, ..Diagnostic::error(Code::UnknownFormat, message) };
            fault.file(file).need("a whole context binary")
        } else {
            fault.clone()
        };
        let kind = kind.filter(|_| fault.code == Code::UnknownFormat);
        kind.map(|kind| format!("it begins like {kind}")).into_iter().fold(fault, Diagnostic::help)
    };
    worker.info(file).map_err(|error| {
        let faults = error.diagnostics().iter().map(blamed).collect();
        Error::check(faults).err().unwrap_or(error)
    })
}

/// What else the file is likely to be.
fn known_kind(file: &Path) -> Option<&'static str> {
    let mut start = Vec::new();
    // A file that cannot be read is told of by whoever reads it.
    File::open(file).and_then(|file| file.take(8).read_to_end(&mut start)).ok()?;
    match start[..] {
        [b'G', b'G', b'U', b'F', ..] => Some("a GGUF file, which is a checkpoint"),
        [b'P', b'K', 3, 4, ..] => Some("a zip archive, as QNN's .dlc files are"),
        [0x7f, b'E', b'L', b'F', ..] => Some("a library, as QNN's graphs in C++ become"),
        [_, _, _, _, b'T', b'F', b'L', b'3'] => Some("a TFLite file"),
        _ => None,
    }
}

/// The target with the chip of that number.
fn target_of(soc: u32) -> Option<&'static str> {
    target::all().iter().find(|target| target.soc_model == Some(soc)).map(|target| target.name.as_str())
}

fn render(told: &Told<'_>) -> String {
    let ContextInfo { bytes: size, build, core, back_end, form, soc, dsp_arch, blob_bytes, tensors, graphs } =
        told.info;
    let mut text = String::new();
    let dotted = |version: &[u32; 3]| version.map(|part| part.to_string()).join(".");
    line(&mut text, "file", &format!("{}: {}, form {}", plain(&told.file), exact_bytes(*size), dotted(form)));
    line(&mut text, "made by", &format!("{}: QNN {}, HTP {}", plain(build), dotted(core), dotted(back_end)));
    let name = told.target.map_or_else(String::new, |name| format!("{name}, "));
    let arch = dsp_arch.map_or_else(String::new, |arch| format!(", DSP v{arch}"));
    line(&mut text, "chip", &format!("{name}SoC {soc}{arch}"));
    line(&mut text, "content", &format!("{}, {}", count(graphs.len(), "graph"), exact_bytes(*blob_bytes)));
    if !tensors.is_empty() {
        text.push_str("\ntensors of no graph\n");
        tensors.iter().for_each(|tensor| tensor_line(&mut text, "", tensor));
    }
    graphs.iter().for_each(|graph| graph_lines(&mut text, graph));
    text
}

fn graph_lines(text: &mut String, graph: &GraphInfo) {
    let GraphInfo { name, inputs, outputs, updatable, sizes } = graph;
    let ports = format!("{}, {}", count(inputs.len(), "input"), count(outputs.len(), "output"));
    let updatable = if *updatable == 0 { String::new() } else { format!(", {updatable} updatable") };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "\ngraph {}: {ports}{updatable}", plain(name));
    for (what, size) in sizes.as_ref().map(GraphSizes::named).into_iter().flatten() {
        let size = if what == "optimisation" { size.to_string() } else { exact_bytes(size) };
        let _ = writeln!(text, "  {what:<16}{size}");
    }
    inputs.iter().for_each(|tensor| tensor_line(text, "in", tensor));
    outputs.iter().for_each(|tensor| tensor_line(text, "out", tensor));
}

fn tensor_line(text: &mut String, kind: &str, tensor: &TensorInfo) {
    let TensorInfo { name, id, dtype, shape, encoding } = tensor;
    let size = tensor.bytes().map_or("of unknown size".into(), |size| format!("{size} bytes"));
    let _ = writeln!(
        text,
        "  {kind:<4}{:<16}{dtype:<5}{:<18}{size}, {}, id {id}",
        plain(name),
        format!("{shape:?}"),
        encoding.to_text()
    );
}

fn render_comparison(report: &Compared) -> String {
    let mut text = String::new();
    line(&mut text, "first", &plain(&report.first));
    line(&mut text, "second", &plain(&report.second));
    let mut section = |title: &str, depends: bool| {
        let mut of = report.differences.iter().filter(|difference| difference.depends == depends).peekable();
        if of.peek().is_some() {
            let _ = writeln!(text, "\n{title}");
        }
        for Difference { about, what, first, second, .. } in of {
            let _ = writeln!(text, "  {}: {what} {} | {}", plain(about), plain(first), plain(second));
        }
    };
    section("differences that a runner depends on", true);
    section("other differences", false);
    let verdict = match (report.compatible, report.differences.is_empty()) {
        (true, true) => "nothing that is told of them differs",
        (true, false) => "one runner drives both, each on the chip that it was made for: graphs and ports are the same",
        (false, _) => "a runner of one is none of the other",
    };
    let _ = writeln!(text, "\n{verdict}");
    text
}

fn line(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "{name:<10}{value}");
}

/// The text with control characters escaped: names from files must not drive the user's terminal.
fn plain(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}
