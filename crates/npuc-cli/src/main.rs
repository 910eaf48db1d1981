//! The command line of npuc: flags, progress bars and rendering; the work is done by the other crates.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use npuc::{Code, Diagnostic, Error, Result};

mod args;
mod audit;
mod bench;
mod build;
mod check;
mod context;
mod corpus;
mod diff;
mod estimate;
mod explain;
mod inspect;
mod mended;
mod output;
mod push;
mod quantize;
mod recipe;
mod recipes;
mod report;
mod run;
mod sarif;
mod serve;
mod session;
mod solve;
mod synth;
mod targets;
mod toolchain;
mod transcribe;
mod verify;

use args::{Cli, Command};
use output::Output;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let output = Output { json: cli.json };
    match catch_file_size_limit().and_then(|()| run(cli.command, output)) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            output.error(&error);
            ExitCode::from(error.exit_status())
        }
    }
}

fn run(command: Command, output: Output) -> Result<u8> {
    match command {
        Command::Inspect(args) => inspect::command(&args, output).map(|()| 0),
        Command::Check(args) => check::command(&args, output),
        Command::Targets(args) => targets::command(&args, output).map(|()| 0),
        Command::Build(args) => build::command(&args, output).map(|()| 0),
        Command::Tune(args) => build::tune::command(&args, output).map(|()| 0),
        Command::Quantize(args) => quantize::command(&args, output).map(|()| 0),
        Command::Recipes(args) => recipes::command(&args, output).map(|()| 0),
        Command::Solve(args) => solve::command(&args, output),
        Command::Run(args) => run::command(&args, output).map(|()| 0),
        Command::Transcribe(args) => transcribe::command(&args, output).map(|()| 0),
        Command::Push(args) => push::command(&args, output).map(|()| 0),
        Command::Explain(args) => explain::command(&args, output),
        Command::Synth(args) => synth::command(&args, output).map(|()| 0),
        Command::Toolchain(command) => toolchain::command(&command, output).map(|()| 0),
        Command::QnnWorker => npuc_run::device::qnn::worker().map(|()| 0),
        Command::Verify(args) => verify::command(&args, output),
        Command::Bench(args) => bench::command(&args, output),
        Command::Audit(args) => audit::command(&args, output),
        Command::Report(args) => report::command(&args, output).map(|()| 0),
        Command::ServeJsonl(args) => serve::command(&args, output).map(|()| 0),
        Command::Estimate(args) => estimate::command(&args, output).map(|()| 0),
        Command::Context(args) => context::command(&args, output),
        Command::Diff(args) => diff::command(&args, output),
    }
}

/// Help goes where clap sends it; a fault is told as an object too where one was asked for.
fn usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && std::env::args_os().any(|arg| arg == "--json") {
        let message = error.to_string();
        let message = message.lines().next().unwrap_or_default().trim_start_matches("error: ").to_string();
        let fault = Diagnostic::error(Code::BadArgument, message).help("see `npuc help`");
        Output { json: true }.error(&Error::from(fault));
    } else {
        // Where not even the help can be printed, the exit status is all there is.
        let _ = error.print();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// A write past the limit on file sizes becomes an error of that write instead of the end of the process.
fn catch_file_size_limit() -> Result<()> {
    let seen = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, seen)
        .map(|_| ())
        .map_err(|e| Diagnostic::error(Code::BadArgument, format!("cannot watch the file size limit: {e}")).into())
}
