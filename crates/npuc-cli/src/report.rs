//! `npuc report`: measured latencies as tables, curves and plots.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

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
        write_whole(path, &html(&made, &runs)?)?;
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
    for path in &args.results {
        match read_results(path, &args.map.map) {
            Ok(mut run) => {
                if let (Class::Unstated, Some(on)) = (run.class, args.measured_on) {
                    run.class = on.into();
                    run.measured_on = "as the user says".into();
                }
                runs.push(run);
            }
            Err(error) => faults.extend(error.diagnostics().iter().cloned()),
        }
    }
    Error::check(faults)?;
    Ok(runs)
}

/// Writes a file whole or not at all.
fn write_whole(path: &Path, text: &str) -> Result<()> {
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
