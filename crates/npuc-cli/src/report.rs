//! `npuc report`: measured latencies as tables, curves and plots.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use npuc::{Code, Diagnostic, Error, Result};
use npuc_bench::record::Class;
use npuc_bench::report::{Options, csv, html, markdown, report, text};
use npuc_bench::results::Results;

use crate::args::ReportArgs;
use crate::bench::read_results;
use crate::output::Output;

/// Runs the command.
pub(crate) fn command(args: &ReportArgs, output: Output) -> Result<()> {
    let slo = args.slo.as_ref().map(|slo| slo.parse()).transpose()?;
    let runs = runs(args)?;
    let made = report(&runs, Options { slo, allow_incomplete: args.allow_incomplete })?;
    if let Some(path) = &args.html {
        write_whole(path, &args.results, &html(&made, &runs)?)?;
        output.note(&format!("wrote {}", path.display()));
    }
    match (args.md, args.csv) {
        (true, _) => output.text(&markdown(&made)),
        (false, true) => output.text(&csv(&made)),
        (false, false) => output.result(&made, &text(&made)),
    }
}

/// The files; every fault of every one at once.
fn runs(args: &ReportArgs) -> Result<Vec<Results>> {
    let mut faults = Vec::new();
    let mut runs = Vec::new();
    let mut is_idle = args.measured_on.is_some();
    for path in &args.results {
        match read_results(path, &args.map.map) {
            Ok(mut run) => {
                if let (Class::Unstated, Some(on)) = (run.class, args.measured_on) {
                    run.class = on.into();
                    run.measured_on = "as the user says".into();
                    is_idle = false;
                }
                runs.push(run);
            }
            Err(error) => faults.extend(error.diagnostics().iter().cloned()),
        }
    }
    if is_idle && faults.is_empty() {
        let fault = Diagnostic::error(Code::BadArgument, "the files say themselves what they were measured on");
        faults.push(fault.subject("--measured-on").help("leave the flag out"));
    }
    Error::check(faults)?;
    Ok(runs)
}

/// What the pages of `html` begin with.
const PAGE: &str = "<!doctype html";

/// Writes a page whole or not at all; only an earlier page is replaced.
fn write_whole(path: &Path, results: &[PathBuf], text: &str) -> Result<()> {
    // The file itself and not the link to it.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let fault = |message: &str| {
        let fault = Diagnostic::error(Code::Unwritable, message).file(path).subject("--html");
        Err(fault.help("name a new file, or an earlier page to replace").into())
    };
    if results.iter().any(|result| result.canonicalize().is_ok_and(|result| result == *path)) {
        return fault("the page would take the place of the results");
    }
    if let Ok(data) = std::fs::metadata(path) {
        let is_page = || {
            let mut begin = vec![0; PAGE.len()];
            let read = File::open(path).and_then(|mut file| file.read_exact(&mut begin));
            read.is_ok() && begin.eq_ignore_ascii_case(PAGE.as_bytes())
        };
        if !data.is_file() || data.len() > 0 && !is_page() {
            return fault("the file exists and is no page of npuc's");
        }
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        // As the system makes files for this user; a temporary file would be for nobody else.
        let everyone = std::fs::Permissions::from_mode(0o666);
        let mut file = tempfile::Builder::new().permissions(everyone).tempfile_in(folder)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|e| Diagnostic::error(Code::Unwritable, format!("cannot write the page: {e}")).file(path).into())
}
