//! Programs of others: finding them on the PATH, and waiting for a call of one no longer than a time limit.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};
use std::{fs, io};

/// The longest pause between two looks for the end of a call; the first pauses are shorter.
const POLL: Duration = Duration::from_millis(20);

/// The first program of that name in the folders of a PATH.
pub(crate) fn find_in(path: &OsStr, program: &str) -> Option<PathBuf> {
    // A call may start in another folder, so a relative folder of the PATH is made absolute.
    let candidates = std::env::split_paths(path).map(|folder| folder.join(program));
    candidates.filter_map(|program| std::path::absolute(program).ok()).find(|program| is_executable(program))
}

/// Whether the path is a file that may be executed.
#[cfg(unix)]
pub(crate) fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Whether the path is a file.
#[cfg(not(unix))]
pub(crate) fn is_executable(path: &Path) -> bool {
    path.is_file()
}

/// How a call ended.
pub(crate) enum Ended {
    Status(ExitStatus),
    TimeLimit,
}

/// Waits for the end of a call, which is killed at the time limit.
///
/// Errors: what the system says of the child.
pub(crate) fn wait(child: &mut Child, time_limit: Duration) -> io::Result<Ended> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1).min(time_limit);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ended::Status(status));
        }
        if start.elapsed() >= time_limit {
            // It may have ended on its own meanwhile.
            let _ = child.kill();
            child.wait()?;
            return Ok(Ended::TimeLimit);
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(POLL);
    }
}
