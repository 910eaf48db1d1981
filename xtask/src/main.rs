//! The project's own chores. `cargo xtask demo` and `cargo xtask test` are all a newcomer needs.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::{Parser, Subcommand};

mod bench;
mod demo;
mod fetch;
mod fidelity;
mod litert;
mod modules;
mod peer;
mod qnn;
mod real;
mod speech;
mod tidy;

type Result<T> = std::result::Result<T, String>;

/// npuc's own chores.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Fetch a small real model, build it for this machine and let it answer
    Demo,
    /// Everything CI runs: formatting, lints, tests, documentation, house rules
    Test,
    /// Hold the real model against recorded references (release build; fetches the model)
    Real,
    /// Hold emitted TFLite files in the LiteRT interpreter against the host (release build; fetches both)
    Litert,
    /// Measure the real model in every format: the table of docs/fidelity.md (release build; an hour)
    Fidelity,
    /// Hold GGUF files that npuc writes against llama.cpp (release build; fetches and builds it with cmake and ninja)
    Peer,
    /// Real sizes through Qualcomm's libraries: the shapes of Llama 3.2 3B and 1B, the real model in emulation (release build; two hours,
    /// 12 GB of memory, 40 GB of disk; fetches libraries and model)
    QnnFull {
        /// One half alone: the shapes, which want a quiet machine for their times, or the real model
        #[arg(long, value_enum)]
        part: Option<qnn::Part>,
    },
    /// Real sizes through Torq's and IREE's compilers (release build; half an hour; fetches the tools)
    TorqFull,
    /// Measure the real model over the workload of the repository, audit it, and write docs/example-report.html (release build; a few minutes)
    Bench,
    /// Whisper in every format on spoken sentences: the tables of docs/fidelity.md (release build; a few minutes; fetches models and
    /// espeak-ng)
    Speech,
    /// Write the workload of the repository anew
    Workload,
    /// Pictures of docs/example-report.html by Chromium, wide and as a phone, light and dark
    Screenshots,
    /// Only the house rules: file lengths and headers, unsafe code, large files
    Tidy,
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Demo => demo::demo(),
        Task::Test => test(),
        Task::Real => real::real(),
        Task::Litert => litert::litert(),
        Task::Fidelity => fidelity::fidelity(),
        Task::Peer => peer::peer(),
        Task::QnnFull { part } => qnn::qnn_full(part),
        Task::TorqFull => modules::torq_full(),
        Task::Bench => bench::bench(),
        Task::Speech => speech::speech(),
        Task::Workload => bench::write_workload(),
        Task::Screenshots => bench::screenshots(),
        Task::Tidy => tidy::tidy(&root()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn test() -> Result<()> {
    cargo("formatting", &["fmt", "--all", "--check"])?;
    cargo("lints", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    cargo("tests", &["test", "--workspace"])?;
    if !root().join("../shared/fixtures").is_dir() {
        println!("NOT RUN: the tests on ../shared/fixtures, which is absent; tests/data covers the same ground");
    }
    cargo("documentation", &["doc", "--workspace", "--no-deps"])?;
    step("house rules", || tidy::tidy(&root()))
}

fn cargo(name: &str, args: &[&str]) -> Result<()> {
    let mut command = Command::new("cargo");
    command.args(args).current_dir(root()).env("RUSTDOCFLAGS", "-D warnings");
    step(name, || run(&mut command))
}

fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("== {name}");
    let start = Instant::now();
    work().map_err(|e| format!("{name}: {e}"))?;
    println!("== {name}: good, {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Runs a command to its end.
fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command.status().map_err(|e| format!("cannot start {shown}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{shown} failed: {status}")) }
}

/// The repository's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Where cargo puts what it builds.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
