//! What helps against a finding, from its kind and its numbers.

use npuc::target::rule::{Cost, Remedy};

use super::{Finding, Kind};

/// Fills in what follows from all lines of a finding: the actual value of a limit of extents, the count of steps,
/// and the remedies.
pub(super) fn complete(finding: &mut Finding) {
    if let Some(max) = finding.max_extent {
        finding.actual = too_large(finding, max);
    }
    if finding.kind == Kind::Placement {
        let steps = finding.said.len();
        finding.actual = Some(format!("{steps} step{}", if steps == 1 { "" } else { "s" }));
    }
    finding.remedies = remedies(finding);
    finding.remedies.sort_by_key(|remedy| remedy.cost);
}

/// The extents above `max` with the shapes that have them.
fn too_large(finding: &Finding, max: usize) -> Option<String> {
    let operation = finding.operations.first()?;
    let all = [("operand", &operation.operands), ("result", &operation.results), ("tensor", &operation.tensors)];
    let mut said: Vec<String> = Vec::new();
    for (what, shapes) in all {
        for shape in shapes {
            let text = shape.iter().max().filter(|extent| **extent > max);
            let text = text.map(|extent| format!("{extent} in the {what} {shape:?}"));
            said.extend(text.filter(|text| !said.contains(text)));
        }
    }
    (!said.is_empty()).then(|| said.join(", "))
}

fn remedies(finding: &Finding) -> Vec<Remedy> {
    let known = finding.kind.facts().remedies.iter().map(|(cost, option, text)| {
        let remedy = Remedy::new(*cost, *text);
        if option.is_empty() { remedy } else { remedy.option(*option) }
    });
    let mut of_numbers = Vec::new();
    if finding.kind == Kind::Dimension {
        of_numbers = dimension(finding);
    } else if matches!(finding.kind, Kind::UnsupportedOperation | Kind::OtherReason) {
        of_numbers = unsupported(finding);
    } else if finding.kind == Kind::ForeignUnit {
        of_numbers = foreign_unit(finding);
    }
    known.chain(of_numbers).collect()
}

fn foreign_unit(finding: &Finding) -> Vec<Remedy> {
    if finding.actual.as_ref().is_some_and(|unit| unit.starts_with("EDPA")) {
        let text = "keep the compiler from planning conversions on an EDPA, and make it say so where it would need one";
        let flags = "--suppress-input --suppress-output --disallow-bridge";
        return vec![Remedy::new(Cost::Flag, text).option(flags)];
    }
    vec![Remedy::new(Cost::Flag, "compile with the board's own --arch; `npuc targets CHIP` lists its flags")]
}

fn dimension(finding: &Finding) -> Vec<Remedy> {
    let max = finding.max_extent.unwrap_or(usize::MAX);
    let builtin = finding.operations.first().map(|operation| operation.builtin.as_str());
    if builtin.is_some_and(|builtin| builtin != "FULLY_CONNECTED") {
        let text =
            "where the extent is the cache's or the prompt's, a shorter context or fewer tokens at once bring it down";
        return vec![Remedy::new(Cost::Option, text).option("--shapes")];
    }
    let extents = finding.operations.iter().flat_map(|operation| operation.shapes().flatten());
    let outputs = extents.copied().filter(|extent| *extent > max).max();
    let lifts = "lifts the limit for outputs of FULLY_CONNECTED that are divisible by 16";
    let (lifts, parts) = match outputs {
        Some(outputs) if outputs.is_multiple_of(16) => (
            format!("{lifts}, and {outputs} is (MediaTek's staff)"),
            format!("split the {outputs} outputs into at least {} parts", outputs.div_ceil(max.max(1))),
        ),
        Some(outputs) => (
            format!("{lifts}, and {outputs} is not: pad to {} first (MediaTek's staff)", outputs.next_multiple_of(16)),
            format!("split the {outputs} outputs into at least {} parts", outputs.div_ceil(max.max(1))),
        ),
        None => (format!("{lifts} (MediaTek's staff)"), "split the outputs into parts".to_owned()),
    };
    let parts = format!("{parts} and join the results; `npuc check` names parts that fit");
    vec![Remedy::new(Cost::Flag, lifts).option("--flag gno=LTS"), Remedy::new(Cost::Rewrite, parts)]
}

fn unsupported(finding: &Finding) -> Vec<Remedy> {
    let mut remedies = vec![
        Remedy::new(Cost::Option, "tells beforehand which operations the chip takes").option("npuc check --target"),
        Remedy::new(
            Cost::Cpu,
            "compute the operation on the CPU between two files: one refused operation refuses its whole file",
        ),
    ];
    if finding.operations.iter().any(|operation| operation.builtin == "BATCH_MATMUL") {
        let text = "a chip with MDLA 3.5 or later: users saw BATCH_MATMUL taken there and refused by MDLA 2.0 and 3.0";
        remedies.push(Remedy::new(Cost::Other, text));
    }
    remedies
}
