//! Building for this machine: one graph a step shape over weights as they are stored.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

use npuc::back::{self, BackEnd, Emitted};
use npuc::build::{self, Plan};
use npuc::bundle::write::{Contents, Written};
use npuc::front::{Checkpoint, non_finite};
use npuc::model::StepShape;
use npuc::pass::Pass;
use npuc::target::Target;
use npuc::{Diagnostic, Error, Result};
use npuc_run::calibrate::Material;
use npuc_run::corpus::Corpus;
use npuc_run::integer;
use npuc_run::program::{self, default_shapes};
use npuc_run::text::{BundleText, bundle_text};
use serde::Serialize;

use super::{ms, open, write};
use crate::args::{BuildArgs, ChipArgs, QuantizeArgs, passes, shapes};
use crate::output::{Output, bytes};
use crate::quantize;
use crate::recipe::Prepared;

#[derive(Serialize)]
struct Report {
    bundle: String,
    target: String,
    graphs: Vec<GraphReport>,
    #[serde(flatten)]
    written: Written,
    lower_ms: f64,
    check_weights_ms: f64,
    write_ms: f64,
    warnings: Vec<Diagnostic>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dumps: Vec<Dump>,
}

#[derive(Serialize)]
struct GraphReport {
    shape: String,
    operations: usize,
    rewrites: usize,
}

#[derive(Serialize)]
struct Dump {
    pass: String,
    ir: String,
}

/// Builds a checkpoint for the host.
pub(super) fn build(args: &BuildArgs, target: &Target, output: Output) -> Result<()> {
    refuse_chip_flags(args)?;
    super::refuse_idle_recipe_flags(args)?;
    if let Some(recipe) = &args.recipe {
        return quantised(args, recipe, output);
    }
    let given = shapes(args.shapes.as_ref())?;
    let dump_after: Option<Pass> = args.dump_after.as_ref().map(|name| Pass::parse(name)).transpose()?;
    let checkpoint = open(args)?;
    let mut plan =
        Plan::new(target.clone(), &checkpoint.config, given.unwrap_or_else(|| default_shapes(&checkpoint.config)))?;
    if let Some(names) = &args.passes {
        plan.passes = passes(names)?;
    }
    refuse_absent_dump(dump_after, &plan)?;
    let text = super::text(&checkpoint, output)?;

    let start = Instant::now();
    let (mut dumps, mut rewrites) = (Vec::new(), Vec::new());
    let graphs = build::lower(&checkpoint, &plan, |pass, graph, reasons| {
        rewrites.push((graph.name.clone(), reasons.len()));
        if dump_after == Some(pass) {
            dumps.push(Dump { pass: pass.name().into(), ir: graph.to_string() });
        }
    })?;
    let lower_ms = ms(start);
    let start = Instant::now();
    let mut warnings = checkpoint.warnings.clone();
    let spinner = output.spinner("checking weights");
    warnings.extend(non_finite(&checkpoint));
    drop(spinner);
    let check_weights_ms = ms(start);

    let emitted = graphs.iter().map(|(shape, graph)| back::host::emit(*shape, graph)).collect();
    let contents = contents(target, emitted, &checkpoint, text);
    let start = Instant::now();
    let written = write(&args.output, &checkpoint, contents, output)?;
    let reports = graphs.iter().map(|(shape, graph)| GraphReport {
        shape: shape.to_string(),
        operations: graph.graph().values.iter().filter(|v| matches!(v.def, npuc::ir::Def::Op { .. })).count(),
        rewrites: rewrites.iter().filter(|(name, _)| *name == graph.graph().name).map(|(_, count)| count).sum(),
    });
    let report = Report {
        bundle: args.output.display().to_string(),
        target: target.name.clone(),
        graphs: reports.collect(),
        written,
        lower_ms,
        check_weights_ms,
        write_ms: ms(start),
        warnings,
        dumps,
    };
    output.warnings(&report.warnings);
    output.result(&report, &render(&report))
}

/// Builds after a recipe, as `npuc quantize` does.
fn quantised(args: &BuildArgs, recipe: &str, output: Output) -> Result<()> {
    let idle = [("--passes", args.passes.is_some()), ("--dump-after", args.dump_after.is_some())];
    let faults = idle.into_iter().filter(|(_, given)| *given).map(|(flag, _)| {
        let fault = Diagnostic::error(npuc::Code::BadArgument, format!("{flag} does nothing with a recipe"));
        fault.help("quantise into a GGUF file first, and build that")
    });
    Error::check(faults.collect())?;
    let asked = QuantizeArgs {
        stack: args.stack,
        model: args.model.clone(),
        recipe: recipe.to_owned(),
        how: args.how.clone(),
        output: args.output.clone(),
        target: None,
        shapes: args.shapes.clone(),
        no_tokenizer: args.no_tokenizer,
        threads: None,
    };
    quantize::command(&asked, output)
}

/// Writes a checkpoint whose weights were quantised as a bundle for this machine, into the folder `dir`. Where the recipe has
/// activations in whole numbers, this machine computes in them as a chip does.
pub(crate) fn write_quantised(
    checkpoint: &Checkpoint,
    prepared: &Prepared,
    shapes: Option<Vec<StepShape>>,
    dir: &Path,
    output: Output,
) -> Result<Written> {
    let target = npuc::target::host();
    let shapes = shapes.unwrap_or_else(|| default_shapes(&checkpoint.config));
    let graphs: Vec<Emitted> = match prepared.arithmetic() {
        None => {
            let plan = Plan::new(target.clone(), &checkpoint.config, shapes)?;
            let graphs = build::lower(checkpoint, &plan, |_, _, _| {})?;
            graphs.iter().map(|(shape, graph)| back::host::emit(*shape, graph)).collect()
        }
        Some(arithmetic) => {
            let spinner = output.spinner("taking ranges of activations");
            let corpus = prepared.range_corpus();
            let material = corpus.as_ref().map_or(Material::Text(&[]), Corpus::material);
            let ranges = integer::ranges(checkpoint, arithmetic, material, prepared.threads())?;
            drop(spinner);
            let program = integer::program(checkpoint, shapes, &ranges, arithmetic)?;
            program.steps.into_iter().flat_map(emitted).collect()
        }
    };
    let contents = Contents {
        precision: prepared.recipe.name.clone(),
        recipe: Some(prepared.recipe_record()),
        calibration: prepared.calibration_record(),
        ..contents(&target, graphs, checkpoint, bundle_text(checkpoint)?)
    };
    write(dir, checkpoint, contents, output)
}

/// The graphs of a step with the meaning of their whole numbers.
fn emitted(step: program::Step) -> impl Iterator<Item = Emitted> {
    let shape = step.shape;
    step.segments.into_iter().map(move |program::Segment { graph, encodings, emitted: _ }| Emitted {
        shape,
        graph,
        file: None,
        encodings: encodings.map(|encodings| (*encodings).clone()),
    })
}

/// The graphs over all weights as they are stored.
fn contents<'a>(target: &Target, graphs: Vec<Emitted>, checkpoint: &'a Checkpoint, text: BundleText) -> Contents<'a> {
    Contents {
        target: target.clone(),
        back_end: BackEnd::Host,
        precision: "stored".into(),
        recipe: None,
        calibration: None,
        mends: Vec::new(),
        flags: BTreeSet::new(),
        placement: Vec::new(),
        hidden_mask: target.hidden_mask,
        graphs,
        weights: checkpoint.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect(),
        files: Vec::new(),
        tokenizer_json: text.tokenizer_json,
        chat_template: text.chat_template,
        text: text.record,
    }
}

/// Flags that would change nothing are a misunderstanding, not a wish.
fn refuse_chip_flags(args: &BuildArgs) -> Result<()> {
    let ChipArgs { precision, chunks, flag, fix: _, no_fix, place, outer_buffers } = &args.chip;
    let idle = [
        ("--precision", precision.is_some()),
        ("--chunks", chunks.is_some()),
        ("--calibration", args.how.calibration.is_some() && args.recipe.is_none()),
        ("--flag", !flag.is_empty()),
        ("--no-fix", *no_fix),
        ("--outer-buffers", *outer_buffers),
        ("--place", !place.place.is_empty()),
        ("--deny-fallback", place.deny_fallback),
    ];
    let faults = idle.into_iter().filter(|(_, idle)| *idle).map(|(flag, _)| {
        let fault =
            Diagnostic::error(npuc::Code::BadArgument, format!("{flag} does nothing in a build for this machine"));
        fault.help("add --target, or leave the flag out")
    });
    Error::check(faults.collect())
}

fn refuse_absent_dump(dump_after: Option<Pass>, plan: &Plan) -> Result<()> {
    match dump_after {
        Some(pass) if !plan.passes.contains(&pass) => {
            let runs: Vec<&str> = plan.passes.iter().map(|pass| pass.name()).collect();
            Err(Diagnostic::error(npuc::Code::BadArgument, "the pass to dump after does not run")
                .need(format!("one of: {}", runs.join(", ")))
                .have(pass.name())
                .help("add it with --passes")
                .into())
        }
        Some(_) | None => Ok(()),
    }
}

fn render(report: &Report) -> String {
    let mut text: String = report.dumps.iter().map(|dump| format!("{}\n", dump.ir)).collect();
    let line = |text: &mut String, name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<12}{value}");
    };
    for graph in &report.graphs {
        let value = format!("{} operations, {} rewrites", graph.operations, graph.rewrites);
        line(&mut text, &graph.shape, value);
    }
    let Written { weights_bytes, stored_bytes, bundle_bytes, files } = report.written;
    line(&mut text, "weights", format!("{} ({} stored)", bytes(weights_bytes), bytes(stored_bytes)));
    line(&mut text, "bundle", format!("{} ({} in {files} files)", report.bundle, bytes(bundle_bytes)));
    let (lower, check, write) = (report.lower_ms, report.check_weights_ms, report.write_ms);
    line(&mut text, "time", format!("graphs {lower:.0} ms, weight check {check:.0} ms, writing {write:.0} ms"));
    text
}
