//! Remedies that follow from the numbers of a misfit.

use super::misfit::sizes;
use super::number::{Granularity, Precision, WeightFormat};
use super::rule::{Cost, Exception, Mend, Remedy};
use super::{Chip, FormatSupport};

/// The fewest parts that hold `len`, none larger than `max`, as equal as they can be, each a multiple of `unit` as long
/// as that is no more than `max`; what they hold beyond `len` is padding.
pub(super) fn split(len: usize, max: usize, unit: usize) -> Vec<usize> {
    let max = max.max(1);
    let unit = if unit == 0 || unit > max { 1 } else { unit };
    let (units, most) = (len.div_ceil(unit), max / unit);
    let parts = units.div_ceil(most).max(1);
    let (each, left) = (units / parts, units % parts);
    (0..parts).map(|part| unit * (each + usize::from(part < left))).collect()
}

/// How a projection with too many outputs comes under `max`. `head_unit` is given for a head, which npuc can split,
/// and is what its parts have to be multiples of.
pub(super) fn outputs(len: usize, max: usize, head_unit: Option<usize>) -> Remedy {
    let parts = split(len, max, head_unit.unwrap_or(if len.is_multiple_of(16) { 16 } else { 1 }));
    let padding = match parts.iter().sum::<usize>() - len {
        0 => String::new(),
        more => format!(", the last {more} of them padding,"),
    };
    let text = format!("split the {len} outputs into {}{padding} and join the results", sizes(&parts));
    let remedy = Remedy::new(Cost::Rewrite, text);
    if head_unit.is_some() { remedy.mend(Mend::SplitHead(parts)) } else { remedy }
}

/// How a flag that lifts the limit for `outputs` is had: at once, or after padding, which npuc does for a head.
pub(super) fn flag(exception: &Exception, outputs: usize, is_head: bool) -> Remedy {
    let flag = format!("--{}", exception.flag);
    let says = format!("({}: {})", exception.grade.name(), exception.source);
    let lifts = Mend::Flag(exception.flag.0.clone());
    match exception.output_multiple_of.map(std::num::NonZero::get) {
        None => Remedy::new(Cost::Flag, format!("lifts the limit {says}")).option(flag).mend(lifts),
        Some(of) if outputs.is_multiple_of(of) => {
            let text = format!("lifts the limit, for {outputs} is divisible by {of} {says}");
            Remedy::new(Cost::Flag, text).option(flag).mend(lifts)
        }
        Some(of) => {
            let padded = outputs.div_ceil(of) * of;
            let text =
                format!("lifts the limit once the {outputs} outputs are padded to {padded}, a multiple of {of} {says}");
            let remedy = Remedy::new(Cost::Rewrite, text).option(flag);
            if is_head { remedy.mend(Mend::SplitHead(vec![padded])) } else { remedy }
        }
    }
}

/// Where nothing on this chip helps.
pub(super) fn other_chip() -> Remedy {
    Remedy::new(Cost::Other, "choose a chip that takes the operation")
}

/// The precisions that a chip takes in place of `precision`, those of equal activations first.
pub(super) fn precisions(chip: &Chip, precision: &Precision) -> Vec<Remedy> {
    let mut formats: Vec<&FormatSupport> = chip.formats.iter().collect();
    formats.sort_by_key(|format| format.activation != precision.activation);
    let names = formats.into_iter().flat_map(|format| named(chip, format));
    let mut names: Vec<String> = names.filter(|name| *name != precision.name).collect();
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    let names = names.into_iter().take(4);
    names
        .map(|name| {
            Remedy::new(Cost::Option, "is a precision that the target takes").option(format!("--precision {name}"))
        })
        .collect()
}

/// The names of the precisions that a row of the format table allows.
fn named(chip: &Chip, format: &FormatSupport) -> Vec<String> {
    let candidates = ["FP", "FP32", "FP16", "BF16"].map(str::to_owned).into_iter();
    let integers = ["4", "8", "16"].into_iter().flat_map(|bits| {
        ["8A", "16A", "FP"].into_iter().flat_map(move |activation| {
            let name = format!("{bits}W{activation}");
            [name.clone(), format!("{name}-g32"), format!("{name}-g128")]
        })
    });
    let takes = |name: &String| {
        let precision = Precision::parse(name, chip.float);
        let pair = precision.ok().and_then(|p| p.weight.map(|weight| (p.activation, weight)));
        pair.is_some_and(|(activation, weight)| activation == format.activation && format.takes(weight))
    };
    candidates.chain(integers).filter(takes).collect()
}

/// How weights come into groups that divide `inputs`.
pub(super) fn groups(chip: &Chip, precision: &Precision, format: WeightFormat, inputs: usize) -> Vec<Remedy> {
    let rows = chip.formats.iter().filter(|row| row.activation == precision.activation);
    let rows: Vec<&FormatSupport> = rows.filter(|row| row.weights.contains(&format.number)).collect();
    let mut sizes: Vec<usize> = rows.iter().flat_map(|row| row.groups.iter().copied()).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.dedup();
    let fitting = sizes.into_iter().find(|&len| len > 0 && inputs.is_multiple_of(len));
    let base = precision.name.split("-g").next().unwrap_or_default().to_owned();
    let mut remedies: Vec<Remedy> = fitting
        .map(|len| {
            Remedy::new(Cost::Option, format!("groups of {len} divide {inputs}"))
                .option(format!("--precision {base}-g{len}"))
        })
        .into_iter()
        .collect();
    let channel = WeightFormat { granularity: Granularity::Channel, ..format };
    if rows.iter().any(|row| row.takes(channel)) {
        remedies.push(
            Remedy::new(Cost::Option, "one scale a channel needs no groups").option(format!("--precision {base}")),
        );
    }
    if let Granularity::Group(len) = format.granularity
        && len > 0
    {
        let padded = inputs.div_ceil(len) * len;
        remedies.push(Remedy::new(Cost::Rewrite, format!("pad the {inputs} inputs with zeros to {padded}")));
    }
    remedies
}

/// How many of `rows` rows stay within `max` bytes, when all take `bytes`.
pub(super) fn rows_within(max: u64, bytes: u64, rows: usize) -> usize {
    let row_bytes = (bytes / rows.max(1) as u64).max(1);
    usize::try_from(max / row_bytes).unwrap_or(usize::MAX).max(1)
}
