//! StableHLO modules compiled by IREE's and Torq's compilers: the flags of each target, one process a module.
//!
//! The compiled module is there whole or not at all, and everything that the compiler says is kept.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use npuc::{Code, Diagnostic, Result};

use super::Installed;
use super::child::{Call, Ended, remove, unwritable};
use crate::vendor_log;

/// How long a compilation may take unless the caller says otherwise.
pub const TIME_LIMIT: Duration = Duration::from_secs(3600);

/// How often a compilation that goes on is told of.
const TELL: Duration = Duration::from_secs(30);

/// What a compilation took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Its duration.
    pub wall_ms: u64,
    /// The most memory that the compiler was seen to have, without the programs that it starts. It is looked at every 20 ms;
    /// 0 where the system does not tell.
    pub peak_rss_bytes: u64,
    /// The size of the compiled module.
    pub vmfb_bytes: u64,
}

/// One compilation.
#[derive(Clone, Copy, Debug)]
pub struct Compilation<'a> {
    /// The tool whose compiler it is.
    pub tool: &'a Installed,
    /// The compiler's flags, those that name the target among them.
    pub flags: &'a [String],
    /// The text of the module.
    pub mlir: &'a Path,
    /// The compiled module.
    pub vmfb: &'a Path,
    /// What the compiler says.
    pub log: &'a Path,
    /// How long it may take.
    pub limit: Duration,
}

/// Compiles a module in a process of its own that is killed after the limit. `say` is told of the beginning and, every half minute, of the
/// progress.
///
/// # Errors
/// A refusal whose reasons npuc knows is [`Code::VendorRefusal`] with the reasons; a crash, a hang and an answer that npuc does
/// not know are [`Code::ToolFailed`] with the end of the log; [`Code::MissingTool`] if the tool has no compiler or is
/// not whole; [`Code::Unwritable`] for files that cannot be written. No module is left then, not even an earlier one.
pub fn compile(compilation: &Compilation<'_>, say: &mut dyn FnMut(&str)) -> Result<Compiled> {
    let Compilation { tool, flags, mlir, vmfb, log, limit } = *compilation;
    let compiler = tool.compiler().filter(|program| program.is_file());
    let compiler = compiler.ok_or_else(|| {
        Diagnostic::error(Code::MissingTool, "the tool that compiles for the target is not there")
            .subject(tool.tool.name())
            .help(format!("run `npuc toolchain install {}`", tool.tool.name()))
    })?;
    let partial = partial(vmfb);
    for old in [vmfb, &partial] {
        remove(old)?;
    }
    let mut command = Command::new(&compiler);
    command.args(flags).arg(mlir).arg("-o").arg(&partial);
    let name = compiler.file_name().unwrap_or_default().to_string_lossy();
    let subject = mlir.display().to_string();
    let call = Call { name: &name, subject: &subject, log, limit };
    say(&format!("{name} {subject}"));
    let start = Instant::now();
    let (mut peak_rss_bytes, mut told) = (0, Duration::ZERO);
    let ended = call.make(command, &mut |child| {
        peak_rss_bytes = peak_rss(child).max(peak_rss_bytes);
        if start.elapsed() - told >= TELL {
            told = start.elapsed();
            say(&format!("{name} {subject}: {} s, {} MiB", told.as_secs(), peak_rss_bytes >> 20));
        }
    })?;
    let wall_ms = start.elapsed().as_millis() as u64;
    let vmfb_bytes = fs::metadata(&partial).map_or(0, |data| data.len());
    match &ended {
        Ended::Status(status) if status.success() && vmfb_bytes > 0 => {
            let kept = fs::File::open(&partial).and_then(|file| file.sync_all());
            kept.and_then(|()| fs::rename(&partial, vmfb)).map_err(|error| unwritable(vmfb, &error))?;
            return Ok(Compiled { wall_ms, peak_rss_bytes, vmfb_bytes });
        }
        Ended::Status(_) | Ended::TimeLimit => remove(&partial)?,
    }
    let answer = call.answer()?;
    Err(call.failure(&ended, &answer, &vendor_log::decode(&answer), &[]).into())
}

/// The name that a module has until it is whole.
fn partial(vmfb: &Path) -> PathBuf {
    let mut name = vmfb.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    vmfb.with_file_name(name)
}

/// The most memory that a running child has had so far.
fn peak_rss(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    kib.unwrap_or(0u64) << 10
}
