//! The house rules that no lint knows: file lengths and headers, where unsafe code may be, large files.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Result;

const LONGEST_FILE_LINES: usize = 600;
const LARGEST_FILE_BYTES: u64 = 1_000_000;
const UNSAFE_ALLOWED: [&str; 2] = ["crates/npuc-kernels/", "crates/npuc-run/src/device/"];

/// Checks every tracked file.
pub(crate) fn tidy(root: &Path) -> Result<()> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cannot start git: {e}"))?;
    if !listed.status.success() {
        return Err(format!("git does not list the files: {}", String::from_utf8_lossy(&listed.stderr)));
    }
    let names = String::from_utf8(listed.stdout).map_err(|e| format!("a file name is not UTF-8: {e}"))?;
    let mut faults = Vec::new();
    for name in names.split('\0').filter(|name| !name.is_empty()) {
        let path = root.join(name);
        let Ok(metadata) = fs::metadata(&path) else { continue };
        if metadata.len() > LARGEST_FILE_BYTES {
            faults.push(format!("{name}: {} bytes, at most {LARGEST_FILE_BYTES}", metadata.len()));
        }
        if name.ends_with(".rs") {
            let source = fs::read_to_string(&path).map_err(|e| format!("cannot read {name}: {e}"))?;
            check_source(name, &source, &mut faults);
        }
    }
    check_code_pages(root, &mut faults)?;
    if faults.is_empty() { Ok(()) } else { Err(format!("\n  {}", faults.join("\n  "))) }
}

fn check_source(name: &str, source: &str, faults: &mut Vec<String>) {
    let lines = source.lines().count();
    if lines > LONGEST_FILE_LINES {
        faults.push(format!("{name}: {lines} lines, at most {LONGEST_FILE_LINES}"));
    }
    if !source.starts_with("//!") {
        faults.push(format!("{name}: no `//!` line that says what the file is"));
    }
    // Spelt in two parts so that this file does not find itself.
    let keyword = concat!("un", "safe");
    let uses = |line: &str| ["{", "fn", "impl"].iter().any(|what| line.contains(&format!("{keyword} {what}")));
    if !UNSAFE_ALLOWED.iter().any(|allowed| name.starts_with(allowed)) && source.lines().any(uses) {
        faults.push(format!("{name}: {keyword} code outside {}", UNSAFE_ALLOWED.join(" and ")));
    }
}

/// Every page of a diagnostic belongs to a code; that every code has one, the compiler checks.
fn check_code_pages(root: &Path, faults: &mut Vec<String>) -> Result<()> {
    let source = fs::read_to_string(root.join("crates/npuc/src/diag.rs")).map_err(|e| format!("diag.rs: {e}"))?;
    let pages = fs::read_dir(root.join("docs/diagnostics")).map_err(|e| format!("docs/diagnostics: {e}"))?;
    for page in pages.flatten() {
        let name = page.file_name().to_string_lossy().into_owned();
        if !name.strip_suffix(".md").is_some_and(|code| source.contains(&format!("\"{code}\""))) {
            faults.push(format!("docs/diagnostics/{name}: no code has this page"));
        }
    }
    Ok(())
}
