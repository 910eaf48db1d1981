//! `npuc push`: a bundle for one of Qualcomm's chips on a phone, over adb.

use std::fmt::Write;
use std::path::{Path, PathBuf, absolute};

use npuc::bundle::staging::{PUSH_SCRIPT, write_file};
use npuc::bundle::{Bundle, MANIFEST, Manifest};
use npuc::target::{self, Target};
use npuc::{Code, Diagnostic, Result};
use npuc_run::push::adb::{self, Limits};
use npuc_run::push::libraries::{self, Binary, Version};
use npuc_run::push::{Plan, Pushed, Sources, Step, plan};
use serde::Serialize;

use crate::args::PushArgs;
use crate::output::{Output, bytes};

#[derive(Serialize)]
struct Report<'a> {
    bundle: String,
    serial: &'a str,
    to: &'a str,
    /// What each step does.
    steps: Vec<&'a str>,
    bytes: u64,
    /// The same steps for a shell.
    script: String,
    /// What starts an answer, on this machine's command line.
    start: String,
    /// Whether the steps were only told.
    dry_run: bool,
}

/// Runs the command.
pub(crate) fn command(args: &PushArgs, output: Output) -> Result<()> {
    let plan = planned(args)?;
    let script = args.bundle.join(PUSH_SCRIPT);
    write_file(&script, plan.script().as_bytes())?;
    if !args.dry_run {
        let adb = adb::find()?;
        let bar = output.bytes_bar("pushing");
        bar.set_length(plan.bytes);
        let mut pushed = 0;
        adb::run(&adb, &plan, Limits::default(), &mut |_, step: &Step| {
            bar.set_position(pushed);
            pushed += step.bytes;
        })?;
        bar.finish_and_clear();
    }
    let report = Report {
        bundle: args.bundle.display().to_string(),
        serial: &args.serial,
        to: &args.to,
        steps: plan.steps.iter().map(|step| step.what.as_str()).collect(),
        bytes: plan.bytes,
        script: script.display().to_string(),
        start: plan.start_here(),
        dry_run: args.dry_run,
    };
    output.result(&report, &render(&report))
}

/// The steps, after all that can be checked without the phone.
fn planned(args: &PushArgs) -> Result<Plan> {
    let bundle = folder(&args.bundle)?;
    let manifest = Bundle::open(&bundle)?.manifest;
    let pushed = pushed(&bundle, &manifest)?;
    let runner = args.runner.as_deref().map(|path| libraries::runner(&folder(path)?)).transpose()?;
    let libraries = args.libraries.as_deref().map(|path| libraries::find(&folder(path)?, pushed.arch)).transpose()?;
    if let Some(libraries) = &libraries {
        check_libraries(libraries, &pushed, args.force)?;
    }
    let sources = Sources { bundle: &bundle, runner: runner.as_ref(), libraries: libraries.as_deref() };
    plan(&pushed, &sources, &args.serial, &args.to, args.force)
}

fn check_libraries(found: &[Binary], pushed: &Pushed, force: bool) -> Result<()> {
    let need = pushed.build_id.as_deref().and_then(Version::parse);
    libraries::check(found, need.as_ref(), force)
}

/// A path that holds from every folder, for the script may be called in another.
fn folder(path: &Path) -> Result<PathBuf> {
    absolute(path).map_err(|error| {
        Diagnostic::error(Code::BadArgument, format!("the path means nothing: {error}")).file(path).into()
    })
}

/// What a push has to know of a bundle: all of its files go to the phone, where npuc holds each against its hash.
fn pushed(folder: &Path, manifest: &Manifest) -> Result<Pushed> {
    let target = target::find(&manifest.target)?;
    let arch = arch(&target)?;
    let path = folder.join(MANIFEST);
    let own = std::fs::metadata(&path)
        .map_err(|e| Diagnostic::error(Code::Unreadable, format!("cannot read the file: {e}")).file(&path))?;
    let files = manifest.files.iter().map(|file| (file.path.clone(), file.bytes));
    Ok(Pushed {
        files: files.chain([(MANIFEST.to_owned(), own.len())]).collect(),
        build_id: manifest.contexts.first().map(|context| context.build_id.clone()),
        target: target.name.clone(),
        chips: target.chips.clone(),
        arch,
    })
}

/// The generation of a Qualcomm chip's NPU.
fn arch(target: &Target) -> Result<u32> {
    let htp = target.generation.as_ref().filter(|generation| generation.name.0.starts_with("HTP v"));
    htp.map(|generation| generation.major).ok_or_else(|| {
        Diagnostic::error(Code::BadArgument, "the bundle is for none of Qualcomm's chips")
            .need("a bundle for sm8550, sm8650, sm8750 or sm8850")
            .have(format!("one for {}", target.name))
            .into()
    })
}

fn render(report: &Report<'_>) -> String {
    let mut text = String::new();
    // Writing to a text cannot fail.
    if report.dry_run {
        for (index, step) in report.steps.iter().enumerate() {
            let _ = writeln!(text, "{:>4}  {step}", index + 1);
        }
    }
    let verb = if report.dry_run { "would go" } else { "went" };
    let (steps, size) = (report.steps.len(), bytes(report.bytes));
    let _ = writeln!(text, "{size} {verb} to {} of {} in {steps} steps", report.to, report.serial);
    let _ = writeln!(text, "the same steps for a shell: {}", report.script);
    let _ = writeln!(text, "what starts an answer, which then stays in {}/log:\n  {}", report.to, report.start);
    text
}
