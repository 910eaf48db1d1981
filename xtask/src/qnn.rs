//! Real sizes through Qualcomm's libraries: the shapes of Llama 3.2 3B and 1B with random weights as context binaries, and the real
//! model in both modes for two chips, run in emulation.
//!
//! Takes about two hours on two cores, 12 GB of memory and 40 GB of disk. The shapes need `../shared/configs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use crate::fetch::smollm2;
use crate::{Result, root, run, step, target};

/// What a build of the 3B shape may take: bytes of the context binary, of memory in the process with the libraries and in npuc's
/// own, mapped files included, and seconds.
const LIMIT_BINARY_BYTES: u64 = 1_800_000_000;
const LIMIT_WORKER_BYTES: u64 = 12_000_000_000;
const LIMIT_NPUC_BYTES: u64 = 2 << 30;
const LIMIT_S: u64 = 15 * 60;
/// Inputs and outputs of each of its graphs.
const PORTS_3B: (u64, u64) = (59, 57);
/// The bytes of the published context binary of that shape.
const PUBLISHED_3B_BYTES: u64 = 2_531_520_512;
const U16: &[&str] = &["--recipe", "w4a16-lpbq-g32", "--quality", "search"];
const F16: &[&str] = &["--recipe", "f16-bw4-g32", "--quality", "search"];

/// The halves of the task.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    Shapes,
    Emulation,
}

/// Measures everything, or one part, and tells at the end what failed and which limits were missed.
pub(crate) fn qnn_full(part: Option<Part>) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--package", "npuc-cli"]).current_dir(root());
    step("release build", || run(&mut cargo))?;
    let dir = target().join("qnn-full");
    fs::create_dir_all(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    step("libraries", || run(npuc().args(["toolchain", "install", "qnn"])))?;
    let mut failed = Vec::new();
    if part != Some(Part::Emulation) {
        failed.extend(shapes(&dir));
    }
    if part != Some(Part::Shapes) {
        failed.extend(faithful(&dir));
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// All shapes; gives what failed or was missed.
fn shapes(dir: &Path) -> Vec<String> {
    let configs = root().join("../shared/configs");
    if !configs.is_dir() {
        println!("NOT RUN: the shapes of Llama 3.2, whose configs in ../shared/configs are absent");
        return Vec::new();
    }
    let all = [("llama-3.2-3b", 2048), ("llama-3.2-1b", 1024)];
    all.into_iter().flat_map(|(name, rows)| shape(dir, &configs.join(format!("{name}.json")), name, rows)).collect()
}

/// A shape with random weights in both forms of attention; gives what failed or was missed.
fn shape(dir: &Path, config: &Path, name: &str, capacity: usize) -> Vec<String> {
    let model = dir.join(name);
    let made = step(&format!("{name}: weights"), || run(npuc().arg("synth").arg(config).arg("-o").arg(&model)));
    let mut failed: Vec<String> = made.err().into_iter().collect();
    if failed.is_empty() {
        for attention in ["grouped", "split-head"] {
            failed.extend(sized(dir, name, capacity, attention).unwrap_or_else(|fault| vec![fault]));
        }
    }
    let removed = fs::remove_dir_all(&model).map_err(|e| format!("cannot remove {}: {e}", model.display()));
    failed.extend(removed.err());
    failed
}

/// SmolLM2 in emulation against the host in the same numbers and in float, on both chips and in both modes.
fn faithful(dir: &Path) -> Vec<String> {
    let files = || {
        let calibration = crate::fidelity::book(dir, "calibration.txt", crate::fidelity::CALIBRATION)?;
        Ok((smollm2()?, calibration, crate::fidelity::book(dir, "held.txt", crate::fidelity::HELD)?))
    };
    let (model, calibration, held) = match files() {
        Ok(files) => files,
        Err(fault) => return vec![fault],
    };
    let mut failed = Vec::new();
    for chip in ["sm8650", "sm8750"] {
        for (mode, flags) in [("u16", U16), ("f16", F16)] {
            let bundle = dir.join(format!("smollm2-{chip}-{mode}"));
            let mut build = npuc();
            build.arg("build").arg(&model).args(["--target", chip, "--shapes", "32t128c,1t128c", "-o"]).arg(&bundle);
            build.args(flags);
            if mode == "u16" {
                build.arg("--calibration").arg(&calibration).args(["--samples", "8", "--tokens", "128"]);
            }
            if let Err(fault) = step(&format!("SmolLM2, {chip}, {mode}: build"), || run(&mut build)) {
                failed.push(fault);
                continue;
            }
            let mut test = Command::new("cargo");
            test.args(["test", "--package", "npuc-cli", "--test", "qnn_real", "--", "--nocapture"]);
            test.env("NPUC_QNN_BUNDLE", &bundle).env("NPUC_QNN_MODEL", &model).env("NPUC_QNN_TEXT", &held);
            let name = format!("SmolLM2, {chip}, {mode}: emulation");
            failed.extend(step(&name, || run(test.current_dir(root()))).err());
        }
    }
    failed
}

/// Builds a shape and tells time, memory, bytes and ports; gives which limits were missed.
fn sized(dir: &Path, name: &str, capacity: usize, attention: &str) -> Result<Vec<String>> {
    let bundle = dir.join(format!("{name}-{attention}"));
    let shapes = format!("32t{capacity}c,1t{capacity}c");
    let mut build = npuc();
    build.arg("--json").arg("build").arg(dir.join(name)).args(["--target", "sm8650", "--shapes", &shapes]);
    build.args(["--recipe", "w4a16-lpbq-g32", "--quality", "fast", "--samples", "1", "--tokens", "64"]);
    build.args(["--attention", attention, "-o"]).arg(&bundle);
    println!("== {name}, {attention}: build");
    let start = Instant::now();
    let output = build.output().map_err(|e| format!("cannot start {build:?}: {e}"))?;
    let seconds = start.elapsed().as_secs();
    if !output.status.success() {
        return Err(format!("{build:?} failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let report: Value = serde_json::from_slice(&output.stdout).map_err(|e| format!("npuc's report: {e}"))?;
    let contexts = report["contexts"].as_array().cloned().unwrap_or_default();
    println!(
        "{seconds} s, {} bytes with the libraries, {} in npuc",
        report["worker_peak_bytes"], report["peak_rss_bytes"]
    );
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("the machine's load in the last 1, 5 and 15 minutes, this build's included: {}", load.trim());
    for context in &contexts {
        println!("{}", serde_json::to_string(context).unwrap_or_default());
    }
    let missed = if name.ends_with("3b") { missed_3b(&report, &contexts, seconds) } else { Vec::new() };
    let missed: Vec<String> =
        missed.into_iter().map(|limit| format!("MISSED by {name}, {attention}: {limit}")).collect();
    missed.iter().for_each(|limit| println!("{limit}"));
    fs::remove_dir_all(&bundle).map_err(|e| format!("cannot remove {}: {e}", bundle.display()))?;
    Ok(missed)
}

/// The limits of the 3B shape that a build missed. What was not told counts as missed.
fn missed_3b(report: &Value, contexts: &[Value], seconds: u64) -> Vec<String> {
    let total: u64 = contexts.iter().filter_map(|context| context["bytes"].as_u64()).sum();
    println!("{total} bytes; the published context binary of this shape has {PUBLISHED_3B_BYTES}");
    let mut missed = Vec::new();
    let limits = [
        ("seconds", Some(seconds), LIMIT_S),
        ("contexts", Some(contexts.len() as u64), 1),
        ("bytes of the binary", Some(total), LIMIT_BINARY_BYTES),
        ("bytes of memory with the libraries", report["worker_peak_bytes"].as_u64(), LIMIT_WORKER_BYTES),
        ("bytes of memory in npuc", report["peak_rss_bytes"].as_u64(), LIMIT_NPUC_BYTES),
    ];
    for (what, have, most) in limits {
        if !have.is_some_and(|have| have > 0 && have <= most) {
            missed.push(format!("{have:?} {what}, at most {most} were wanted"));
        }
    }
    for context in contexts {
        let ports = |field: &str| -> Vec<u64> {
            context[field].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
        };
        if (ports("inputs"), ports("outputs")) != (vec![PORTS_3B.0; 2], vec![PORTS_3B.1; 2]) {
            let (inputs, outputs) = (ports("inputs"), ports("outputs"));
            missed.push(format!("{inputs:?} inputs and {outputs:?} outputs, {PORTS_3B:?} of both graphs were wanted"));
        }
    }
    missed
}

fn npuc() -> Command {
    let mut command = Command::new(program());
    command.current_dir(root());
    command
}

fn program() -> PathBuf {
    target().join("release/npuc")
}
