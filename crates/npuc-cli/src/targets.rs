//! `npuc targets`: what is known of the chips, with sources.

use std::fmt::Write;

use npuc::Result;
use npuc::diag::Severity;
use npuc::target::rule::{Condition, Text};
use npuc::target::{self, Chip, FormatSupport, Grade, Number, Rule, UnitKind};
use serde::Serialize;

use crate::args::TargetsArgs;
use crate::output::Output;

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    summary: &'a Text,
    builds: bool,
}

/// Runs the command.
pub(crate) fn command(args: &TargetsArgs, output: Output) -> Result<()> {
    let Some(name) = &args.name else {
        let all = target::all().iter();
        let rows: Vec<Row<'_>> = all
            .map(|target| Row { name: &target.name, summary: &target.summary, builds: target.back_end.is_some() })
            .collect();
        let line = |row: &Row<'_>| {
            format!("{:<16}{:<8}{}\n", row.name, if row.builds { "builds" } else { "checks" }, row.summary)
        };
        return output.result(&rows, &rows.iter().map(line).collect::<String>());
    };
    let target = target::find(name)?;
    output.result(&*target, &render(&target))
}

/// The text of a target: a section for each table, every statement followed by its source.
fn render(chip: &Chip) -> String {
    let mut text = Sections(format!("{}\n{}\n", chip.name, chip.summary));
    if !chip.chips.is_empty() {
        text.line(&format!("chips: {}", chip.chips.join(", ")));
    }
    text.line(match chip.back_end {
        Some(_) => "npuc checks and builds for it",
        None => "npuc checks against it; there is no back end for it yet",
    });
    let fallback = if chip.fallback { "go to another unit" } else { "fail the whole file" };
    text.line(&format!("FP means {}; operations that the NPU refuses {fallback}", chip.float.name()));
    units(chip, &mut text);
    operations(chip, &mut text);
    formats(chip, &mut text);
    text.section("rules", chip.rules.is_empty());
    chip.rules.iter().for_each(|rule| rule_lines(rule, &mut text));
    text.section("flags", chip.flags.is_empty());
    for flag in &chip.flags {
        text.line(&format!("  {}{}", flag.flag, condition(&flag.when)));
        text.source(&flag.source, flag.grade);
    }
    text.section("layouts and notes", chip.layouts.is_empty() && chip.notes.is_empty());
    text.section("placement", chip.places.is_empty());
    for place in &chip.places {
        text.line(&format!("  --place {}", place.rule));
        text.source(&place.source, place.grade);
    }
    for note in chip.layouts.iter().chain(&chip.notes) {
        text.line(&format!("  {}", note.text));
        text.source(&note.source, note.grade);
    }
    text.0
}

fn units(chip: &Chip, text: &mut Sections) {
    text.section("units", false);
    for unit in &chip.units {
        let kind = match unit.kind {
            UnitKind::Npu => "NPU",
            UnitKind::Dma => "moves data",
            UnitKind::Cpu => "CPU",
        };
        let cores =
            unit.cores.map_or_else(String::new, |cores| format!(", {cores} core{}", if cores == 1 { "" } else { "s" }));
        let memory = unit.on_chip_bytes.map_or_else(String::new, |bytes| format!(", {bytes} bytes on chip"));
        text.line(&format!("  {} ({kind}{cores}{memory})", unit.name));
        text.source(&unit.source, unit.grade);
    }
    if let Some(dram) = &chip.dram {
        text.line(&format!("  DDR memory, {} GB/s at most, shared by all units", dram.bytes_per_s.get() as f64 / 1e9));
        text.source(&dram.source, dram.grade);
    }
}

fn operations(chip: &Chip, text: &mut Sections) {
    text.section("operations", false);
    for ops in &chip.ops {
        let only = numbers(" in ", &ops.activations);
        for (verb, table) in [("takes", &ops.takes), ("refuses", &ops.refuses)] {
            if !table.is_empty() {
                let names: Vec<String> = table.iter().map(|(op, name)| format!("{} ({name})", op.0)).collect();
                text.line(&format!("  {} {verb}{only}: {}", ops.unit, names.join(", ")));
            }
        }
        text.source(&ops.source, ops.grade);
    }
}

fn formats(chip: &Chip, text: &mut Sections) {
    text.section("formats", false);
    for format in &chip.formats {
        let FormatSupport { activation, weights, tensor, channel, groups, .. } = format;
        let mut scales: Vec<String> = Vec::new();
        scales.extend(tensor.then(|| "per tensor".into()));
        scales.extend(channel.then(|| "per channel".into()));
        scales.extend(groups.iter().map(|len| format!("in groups of {len}")));
        let scales = if scales.is_empty() { String::new() } else { format!(", scales {}", scales.join(", ")) };
        text.line(&format!("  {} activations with weights{}{scales}", activation.name(), numbers(" in ", weights)));
        text.source(&format.source, format.grade);
    }
}

fn rule_lines(rule: &Rule, text: &mut Sections) {
    let severity = match rule.severity {
        Severity::Error => "",
        Severity::Warning => " (warning)",
    };
    let ops: Vec<&str> = rule.ops.iter().map(|op| op.0).collect();
    let ops = if ops.is_empty() { String::new() } else { format!(" of {}", ops.join(", ")) };
    text.line(&format!("  {}{severity}: {}{ops}{}", rule.name, rule.limit, condition(&rule.when)));
    for unless in &rule.unless {
        let multiple = unless.output_multiple_of.map_or_else(String::new, |of| format!(", outputs divisible by {of}"));
        text.line(&format!("    unless the vendor's compiler gets {}{multiple}", unless.flag));
        text.source(&unless.source, unless.grade);
    }
    rule.why.iter().for_each(|why| text.line(&format!("    {why}")));
    text.source(&rule.source, rule.grade);
}

fn condition(when: &Condition) -> String {
    let activation = numbers(", when activations are ", &when.activation);
    format!("{activation}{}", numbers(", when weights are ", &when.weight))
}

fn numbers(before: &str, list: &[Number]) -> String {
    let names: Vec<&str> = list.iter().map(|number| number.name()).collect();
    if names.is_empty() { String::new() } else { format!("{before}{}", names.join(", ")) }
}

/// The text under construction.
struct Sections(String);

impl Sections {
    fn line(&mut self, line: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    fn section(&mut self, name: &str, empty: bool) {
        if !empty {
            self.line(&format!("\n{name}"));
        }
    }

    fn source(&mut self, source: &Text, grade: Grade) {
        self.line(&format!("      [{}] {source}", grade.name()));
    }
}
