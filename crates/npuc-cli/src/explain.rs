//! `npuc explain`: the page of a diagnostic code, or what a vendor's log means.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use npuc::diag::Class;
use npuc::ir::{Graph, text, verify};
use npuc::target::Place;
use npuc::{Code, Diagnostic, Result};
use npuc_run::vendor_log::{Finding, Operation, Said, Weight, decode, last_lines, locate_all};
use serde::Serialize;

use crate::args::ExplainArgs;
use crate::output::Output;

/// How many lines of a finding, and how many of its places, the text shows.
const SHOWN: usize = 4;

#[derive(Serialize)]
struct Page {
    code: Code,
    text: &'static str,
}

#[derive(Serialize)]
struct Report<'a> {
    log: String,
    lines: usize,
    recognised: bool,
    findings: Vec<Located<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    last_lines: Vec<&'a str>,
}

#[derive(Serialize)]
struct Located<'a> {
    #[serde(flatten)]
    finding: &'a Finding,
    places: &'a [Place],
}

/// Runs the command; gives the exit status.
pub(crate) fn command(args: &ExplainArgs, output: Output) -> Result<u8> {
    let Some(what) = &args.what else {
        let title = |code: &Code| code.page().lines().nth(2).unwrap_or_default();
        let list: String = Code::ALL.iter().map(|code| format!("{:<26}{}\n", code.name(), title(code))).collect();
        return output.result(&Code::ALL, &list).map(|()| 0);
    };
    if let Some(code) = Code::from_name(what) {
        if !args.ir.is_empty() {
            let fault = Diagnostic::error(Code::BadArgument, "graphs are for logs, and this is a code");
            return Err(fault.need("--ir with a log").have(what).into());
        }
        return output.result(&Page { code, text: code.page() }, code.page()).map(|()| 0);
    }
    let as_error = format!("QNN error {what}");
    let digits = what.strip_prefix("0x").unwrap_or(what);
    if digits.chars().all(|digit| digit.is_ascii_hexdigit()) && !decode(&as_error).is_empty() {
        return explained(what, &as_error, &args.ir, output);
    }
    let path = Path::new(what);
    let is_log = path.is_file() || path.extension().is_some_and(|ending| ending == "log" || ending == "txt");
    if is_log {
        return explain_log(path, &args.ir, output);
    }
    Err(Diagnostic::error(Code::BadArgument, "there is no such code and no such file")
        .have(what)
        .help("list the codes with `npuc explain`; of vendors' numbers those of QNN are known")
        .into())
}

fn explain_log(path: &Path, ir: &[PathBuf], output: Output) -> Result<u8> {
    let log = String::from_utf8_lossy(&read(path)?).into_owned();
    explained(&path.display().to_string(), &log, ir, output)
}

/// Tells findings of a text, with their places in graphs.
fn explained(name: &str, log: &str, ir: &[PathBuf], output: Output) -> Result<u8> {
    let findings = decode(log);
    let graphs: Vec<Graph> = ir.iter().map(|path| graph(path)).collect::<Result<_>>()?;
    let places = locate_all(&findings, &graphs);
    let report = Report {
        log: name.to_owned(),
        lines: log.lines().count(),
        recognised: !findings.is_empty(),
        findings: findings.iter().zip(&places).map(|(finding, places)| Located { finding, places }).collect(),
        last_lines: if findings.is_empty() { last_lines(log) } else { Vec::new() },
    };
    output.result(&report, &render(&report, !graphs.is_empty()))?;
    Ok(if report.recognised { 0 } else { Class::No.exit_status() })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        Diagnostic::error(Code::Unreadable, format!("cannot read the file: {error}")).file(path).into()
    })
}

fn graph(path: &Path) -> Result<Graph> {
    let parse = |bytes: Vec<u8>| {
        let text = String::from_utf8(bytes)
            .map_err(|error| Diagnostic::error(Code::IrSyntax, format!("the file is not UTF-8: {error}")))?;
        let graph = text::parse(&text)?;
        verify::verify(&graph)?;
        Ok::<_, npuc::Error>(graph)
    };
    parse(read(path)?).map_err(|error| error.in_file(path))
}

fn render(report: &Report<'_>, with_graphs: bool) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut line = |line: &str| _ = writeln!(text, "{}", plain(line));
    if !report.recognised {
        line(&format!("npuc recognises nothing in the {} lines of {}.", report.lines, report.log));
        if !report.last_lines.is_empty() {
            line("The last of them:");
        }
        report.last_lines.iter().for_each(|last| line(&format!("  {last}")));
        return text;
    }
    for located in &report.findings {
        render_finding(located, &report.log, with_graphs, &mut line);
    }
    let count = |weight| report.findings.iter().filter(|located| located.finding.weight == weight).count();
    let [reasons, rest, notes] = [Weight::Refusal, Weight::Consequence, Weight::Note].map(count);
    let reasons = match reasons {
        0 => "no reason of a refusal that npuc knows".to_owned(),
        1 => "1 reason of a refusal".to_owned(),
        more => format!("{more} reasons of a refusal"),
    };
    line(&format!(
        "answer        {reasons}; {rest} that follow, {notes} only worth knowing; {} lines in all",
        report.lines
    ));
    text
}

/// One finding in the manner of a compiler's message.
fn render_finding(located: &Located<'_>, log: &str, with_graphs: bool, line: &mut impl FnMut(&str)) {
    let finding = located.finding;
    let head = match finding.weight {
        Weight::Refusal => format!("error[{}]", Code::VendorRefusal),
        Weight::Consequence | Weight::Note => "note".to_owned(),
    };
    line(&format!("{head}: {}: {}", finding.tool, finding.message));
    let width = finding.said.iter().take(SHOWN).map(|said| said.line.to_string().len()).max().unwrap_or(1);
    let margin = " ".repeat(width);
    let first = finding.said.first().map_or(0, |said| said.line);
    line(&format!("{margin}--> {log}:{first}"));
    line(&format!("{margin} |"));
    for Said { line: number, text } in finding.said.iter().take(SHOWN) {
        line(&format!("{number:>width$} | {text}"));
    }
    if finding.said.len() > SHOWN {
        line(&format!("{margin} | (and {} more lines)", finding.said.len() - SHOWN));
    }
    line(&format!("{margin} |"));
    let mut item = |name: &str, value: &str| line(&format!("{margin} = {name}: {value}"));
    if let Some((first, others)) = finding.operations.split_first() {
        let what = if first.node.is_some() { "" } else { " of these extents" };
        let more = if others.is_empty() { String::new() } else { format!(" (and {} more{what})", others.len()) };
        item("operation", &format!("{}{more}", operation(first)));
        render_places(located.places, with_graphs, &mut item);
    }
    finding.limit.iter().for_each(|limit| item("limit", limit));
    finding.actual.iter().for_each(|actual| item("actual", actual));
    item("note", finding.meaning);
    item("source", &format!("{} ({})", finding.source, finding.grade.name()));
    finding.remedies.iter().for_each(|remedy| item("help", &remedy.to_string()));
    line("");
}

fn render_places(places: &[Place], with_graphs: bool, item: &mut impl FnMut(&str, &str)) {
    if places.is_empty() && with_graphs {
        item("place", "no operation of the graphs agrees with the log");
    }
    for place in places.iter().take(SHOWN) {
        item("place", &format!("{} ({}.ir:{}): {}", place.path, place.graph, place.line, place.text));
    }
    if places.len() > SHOWN {
        item("place", &format!("and {} more", places.len() - SHOWN));
    }
}

fn operation(operation: &Operation) -> String {
    let words = [Some(operation.builtin.as_str()), operation.node.as_deref()];
    let words: Vec<&str> = words.into_iter().flatten().filter(|word| !word.is_empty()).collect();
    let mut text = words.join(" ");
    if let Some(index) = operation.index {
        let _ = write!(text, " (number {index})");
    }
    let all = [("operands", &operation.operands), ("results", &operation.results), ("tensors", &operation.tensors)];
    for (what, shapes) in all {
        if !shapes.is_empty() {
            let shapes: Vec<String> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
            let _ = write!(text, ", {what} {}", shapes.join(" "));
        }
    }
    text
}

/// The text with control characters escaped: a log must not drive the user's terminal.
fn plain(text: &str) -> String {
    let escape = |c: char| if c.is_control() && c != '\t' { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}
