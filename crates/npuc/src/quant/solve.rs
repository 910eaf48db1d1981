//! The choice of a format for every matrix: what a destination takes, the least cost for a budget of bytes, and the recipe.
//!
//! The cost is a sum over groups of matrices, so this is the multiple-choice knapsack. Where costs come from is the caller's.

use std::collections::BTreeMap;

use super::fold::Folds;
use super::plan::{self, Destination};
use super::recipe::{Activation, Condition, Kv, Recipe, Residual, WeightRule};
use crate::diag::{Code, Diagnostic, Result};
use crate::front::Checkpoint;
use crate::model::{self, Role, llama};
use crate::target::Target;
use crate::tensor::{DType, Shape, byte_len};

/// Cells of a table of budgets: bytes are counted in units of this share of what can be chosen.
const CELLS: u64 = 1 << 15;

/// A matrix of a model and the formats that it may get.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The canonical name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// The extents, `[out, in]`.
    pub shape: Shape,
    /// How it is stored.
    pub from: DType,
    /// What the destination takes, in the order of [`DType::ALL`].
    pub formats: Vec<DType>,
}

impl Matrix {
    /// The bytes in a format; the largest number where its blocks do not divide the rows.
    pub fn bytes(&self, format: DType) -> u64 {
        byte_len(format, &self.shape).map_or(u64::MAX, |bytes| bytes as u64)
    }

    /// The weights.
    pub fn elements(&self) -> u64 {
        self.shape.elements().unwrap_or(0) as u64
    }

    /// The layer, and what the matrix is in it; for table and head no layer and the name.
    pub fn place(&self) -> (Option<usize>, &str) {
        let name = self.name.strip_suffix(".weight").unwrap_or(&self.name);
        let inner = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
        match inner.and_then(|(layer, kind)| Some((layer.parse().ok()?, kind))) {
            Some((layer, kind)) => (Some(layer), kind),
            None => (None, name),
        }
    }
}

/// Which matrices get the same format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// Each its own.
    Tensor,
    /// Those of a layer; table and head each their own.
    Layer,
    /// Those that are the same in every layer, e.g. all down projections.
    Role,
}

impl Grouping {
    /// The name of the group of a matrix.
    pub fn of(self, matrix: &Matrix) -> String {
        match (self, matrix.place()) {
            (Grouping::Tensor, (Some(layer), kind)) => format!("layers.{layer}.{kind}"),
            (Grouping::Layer, (Some(layer), _)) => format!("layers.{layer}"),
            (Grouping::Role, (Some(_), kind)) => kind.to_owned(),
            (Grouping::Tensor | Grouping::Layer | Grouping::Role, (None, name)) => name.to_owned(),
        }
    }
}

/// The activations for a target: its own floats where it multiplies floats with some weights, else whole numbers.
///
/// Errors: [`Code::UnsupportedFormat`] for a target that has neither.
pub fn activation(target: &Target) -> Result<Activation> {
    let takes = |activation: Activation| {
        let number = activation.number(target.float);
        target.is_host() || target.formats.iter().any(|row| row.activation == number)
    };
    [Activation::Float, Activation::Int16].into_iter().find(|activation| takes(*activation)).ok_or_else(|| {
        let mut known: Vec<&str> = target.formats.iter().map(|row| row.activation.name()).collect();
        known.dedup();
        Diagnostic::error(Code::UnsupportedFormat, "the target takes no activations that a recipe can name")
            .subject(&target.name)
            .need(format!("a format with {} or int16 activations", target.float.name()))
            .have(known.join(", "))
            .into()
    })
}

/// The matrices of a checkpoint, in the order of the computation, with what `target` takes beside `activation`. A tied head
/// stays tied.
///
/// Errors: activations that the target does not have; [`Code::UnsupportedFormat`] for matrices that have no format there, or
/// none of those in `among`.
pub fn matrices(
    checkpoint: &Checkpoint,
    target: &Target,
    activation: Activation,
    among: Option<&[DType]>,
) -> Result<Vec<Matrix>> {
    let destination = Destination::Target(target.clone());
    let number = plan::activation(&recipe("", activation, &[]), &destination)?;
    let folds = Folds::none(&checkpoint.config);
    let tied = folds.config().tied();
    let specs = model::weight_specs(folds.config()).into_iter().filter(|spec| spec.role.is_matrix());
    let matrix = |spec: model::WeightSpec| {
        let from = checkpoint.tensors.get(&spec.name)?.dtype;
        let legal = |dtype: &DType| plan::is_legal(*dtype, from, &spec, tied, &destination, number).is_ok();
        let asked = |dtype: &DType| among.is_none_or(|among| among.contains(dtype));
        let formats: Vec<DType> = DType::ALL.into_iter().filter(asked).filter(legal).collect();
        let fault = || {
            let fault = Diagnostic::error(Code::UnsupportedFormat, "a matrix can have none of the formats");
            let legal: Vec<&str> = DType::ALL.iter().filter(|dtype| legal(dtype)).map(|dtype| dtype.name()).collect();
            fault.subject(&spec.name).need(format!("one of {}", legal.join(", ")))
        };
        if formats.is_empty() {
            return Some(Err(fault().have(among.map_or_else(String::new, names)).into()));
        }
        Some(Ok(Matrix { name: spec.name, role: spec.role, shape: spec.shape, from, formats }))
    };
    specs.filter_map(matrix).collect()
}

fn names(formats: &[DType]) -> String {
    formats.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}

/// A format that a group may get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The format.
    pub format: DType,
    /// The bytes of all matrices of the group in it.
    pub bytes: u64,
    /// What it costs, finite and at least 0.
    pub cost: f64,
}

/// The candidates of a group that no other one makes idle, the smallest first: each costs less than all that are smaller.
pub fn pareto(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    candidates.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.cost.total_cmp(&b.cost)));
    let mut kept: Vec<Candidate> = Vec::new();
    for candidate in candidates {
        if kept.last().is_none_or(|last| candidate.cost < last.cost) {
            kept.push(candidate);
        }
    }
    kept
}

/// The index of a candidate for every group, so that their bytes are within `budget_bytes` and the sum of their costs is
/// the least there is, or nearly: bytes are counted in units of 1/32768 of the span between all smallest candidates and
/// the budget, rounded up, which is exact where the span has fewer bytes (or common units of bytes). `None` where the
/// smallest candidates are too large. `groups` are [`pareto`] sets.
pub fn choose(groups: &[Vec<Candidate>], budget_bytes: u64) -> Option<Vec<usize>> {
    let least: u64 = groups.iter().filter_map(|group| group.first()).map(|candidate| candidate.bytes).sum();
    let span = budget_bytes.checked_sub(least)?;
    let by_hull = filled(groups, along_hull(groups, span), budget_bytes);
    let by_table = filled(groups, by_table(groups, span), budget_bytes);
    Some(if cost(groups, &by_table) <= cost(groups, &by_hull) { by_table } else { by_hull })
}

/// The cost of a choice.
pub fn cost(groups: &[Vec<Candidate>], choice: &[usize]) -> f64 {
    groups.iter().zip(choice).map(|(group, &index)| group[index].cost).sum()
}

/// The bytes of a choice.
pub fn bytes(groups: &[Vec<Candidate>], choice: &[usize]) -> u64 {
    groups.iter().zip(choice).map(|(group, &index)| group[index].bytes).sum()
}

/// A step from one corner of a group's convex hull to the next.
struct Step {
    group: usize,
    to: usize,
    bytes: u64,
    /// The cost saved for each byte.
    rate: f64,
}

/// The steps along the lower convex hulls of all groups, the best ones first.
fn steps(groups: &[Vec<Candidate>]) -> Vec<Step> {
    let mut steps = Vec::new();
    for (group, candidates) in groups.iter().enumerate() {
        let mut from = 0;
        while let Some((to, rate)) = (from + 1..candidates.len())
            .map(|to| (to, rate(&candidates[from], &candidates[to])))
            .max_by(|a, b| a.1.total_cmp(&b.1))
        {
            steps.push(Step { group, to, bytes: candidates[to].bytes - candidates[from].bytes, rate });
            from = to;
        }
    }
    // Rates of a group fall from step to step, so that a stable order keeps its steps in theirs.
    steps.sort_by(|a, b| b.rate.total_cmp(&a.rate));
    steps
}

fn rate(from: &Candidate, to: &Candidate) -> f64 {
    (from.cost - to.cost) / (to.bytes - from.bytes) as f64
}

/// The least cost that there can be: that of the choice between candidates in fractions, of which no whole one is better.
/// `None` where the smallest candidates are too large.
pub fn bound(groups: &[Vec<Candidate>], budget_bytes: u64) -> Option<f64> {
    let least: u64 = groups.iter().filter_map(|group| group.first()).map(|candidate| candidate.bytes).sum();
    let mut left = budget_bytes.checked_sub(least)?;
    let mut cost: f64 = groups.iter().filter_map(|group| group.first()).map(|candidate| candidate.cost).sum();
    for step in steps(groups) {
        let taken = step.bytes.min(left);
        cost -= step.rate * taken as f64;
        left -= taken;
    }
    // Rounding may leave a little less than nothing.
    Some(if cost > 0.0 { cost } else { 0.0 })
}

/// The steps of the hulls as far as they fit; a group stops at the first that does not.
fn along_hull(groups: &[Vec<Candidate>], span: u64) -> Vec<usize> {
    let (mut choice, mut stopped, mut left) = (vec![0; groups.len()], vec![false; groups.len()], span);
    for step in steps(groups) {
        if stopped[step.group] || step.bytes > left {
            stopped[step.group] = true;
            continue;
        }
        left -= step.bytes;
        choice[step.group] = step.to;
    }
    choice
}

/// The best choice by dynamic programming over what each group has beyond its smallest candidate.
fn by_table(groups: &[Vec<Candidate>], span: u64) -> Vec<usize> {
    let extra = |group: &[Candidate], index: usize| group[index].bytes - group[0].bytes;
    let extras = groups.iter().flat_map(|group| (0..group.len()).map(|index| extra(group, index)));
    let common = extras.fold(0, gcd).max(1);
    // What is beyond all largest candidates is of no use.
    let most: u64 = groups.iter().map(|group| extra(group, group.len() - 1)).sum();
    let span = span.min(most);
    let unit = common * (span / common).div_ceil(CELLS).max(1);
    let cells = (span / unit) as usize + 1;
    let mut best = vec![0.0; cells];
    let mut taken = vec![0u8; groups.len() * cells];
    for (group, taken) in groups.iter().zip(taken.chunks_exact_mut(cells)) {
        let before = best.clone();
        for (index, candidate) in group.iter().enumerate() {
            let units = extra(group, index).div_ceil(unit);
            let Some(units) = usize::try_from(units).ok().filter(|units| *units < cells) else { continue };
            for cell in units..cells {
                let cost = before[cell - units] + candidate.cost;
                if index == 0 || cost < best[cell] {
                    (best[cell], taken[cell]) = (cost, index as u8);
                }
            }
        }
    }
    let mut choice = vec![0; groups.len()];
    let mut cell = cells - 1;
    for (place, group) in groups.iter().enumerate().rev() {
        choice[place] = usize::from(taken[place * cells + cell]);
        cell -= extra(group, choice[place]).div_ceil(unit) as usize;
    }
    choice
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The choice with what is left of the budget spent, the best saving first.
fn filled(groups: &[Vec<Candidate>], mut choice: Vec<usize>, budget_bytes: u64) -> Vec<usize> {
    loop {
        let left = budget_bytes.saturating_sub(bytes(groups, &choice));
        let larger = groups.iter().zip(&choice).enumerate().flat_map(|(place, (group, &at))| {
            (at + 1..group.len())
                .map(move |to| (place, to, group[to].bytes - group[at].bytes, group[at].cost - group[to].cost))
        });
        let found = larger.filter(|(_, _, bytes, _)| *bytes <= left).max_by(|a, b| a.3.total_cmp(&b.3));
        let Some((place, to, _, _)) = found else { return choice };
        choice[place] = to;
    }
}

/// A recipe that gives every matrix its format, in few lines: one for all projections, then for those of a kind, of a layer,
/// and of a name as far as they differ. A tied head has the format of the table.
pub fn recipe(name: &str, activation: Activation, formats: &[(&Matrix, DType)]) -> Recipe {
    let inner: Vec<Cell<'_>> = formats.iter().filter_map(|(matrix, dtype)| Cell::of(matrix, *dtype)).collect();
    let (base, kinds) = lines_of_kinds(&inner);
    let format_of_kind = |kind: &str| kinds.get(kind).copied().unwrap_or(base);
    let rule = |condition, format| WeightRule { condition, format };
    let outer = |name: &str| {
        let found = formats.iter().find(|(matrix, _)| matrix.name == name);
        found.map(|(matrix, dtype)| stored_or(matrix, *dtype))
    };
    let table = outer(llama::EMBEDDING).unwrap_or(None);
    let mut weights = vec![
        rule(Condition::Linear, base),
        rule(Condition::Role(Role::Head), outer(llama::HEAD).unwrap_or(table)),
        rule(Condition::Role(Role::Embedding), table),
    ];
    let of_kinds = kinds.iter().filter(|(_, format)| **format != base);
    weights.extend(of_kinds.map(|(kind, format)| rule(Condition::Name(format!("*.{kind}")), *format)));
    let mut layers: BTreeMap<usize, Vec<&Cell<'_>>> = BTreeMap::new();
    inner.iter().for_each(|cell| layers.entry(cell.layer).or_default().push(cell));
    for (layer, cells) in layers {
        let plain = cells.iter().filter(|cell| cell.format != format_of_kind(cell.kind)).count();
        let most = most_common(cells.iter().map(|cell| cell.format));
        let differ = cells.iter().filter(|cell| Some(cell.format) != most).count();
        let whole = most.filter(|_| differ + 1 < plain);
        weights.extend(whole.map(|format| rule(Condition::Name(format!("layers.{layer}.*")), format)));
        let single = cells.iter().filter(|cell| cell.format != whole.unwrap_or(format_of_kind(cell.kind)));
        weights.extend(single.map(|cell| rule(Condition::Name(format!("layers.{layer}.{}", cell.kind)), cell.format)));
    }
    Recipe { name: name.to_owned(), weights, activation, kv: Kv::Same, residual: Residual::F16 }
}

/// A matrix of a layer in a recipe.
struct Cell<'a> {
    layer: usize,
    kind: &'a str,
    format: Option<DType>,
}

impl<'a> Cell<'a> {
    fn of(matrix: &'a Matrix, dtype: DType) -> Option<Cell<'a>> {
        let (layer, kind) = matrix.place();
        Some(Cell { layer: layer?, kind, format: stored_or(matrix, dtype) })
    }
}

/// The format as recipes have it: what npuc does not write can only stay as it is stored.
fn stored_or(matrix: &Matrix, dtype: DType) -> Option<DType> {
    (matrix.from != dtype || npuc_kernels::quantize::writable(dtype)).then_some(dtype)
}

/// The format of the line for all projections and that of each kind, so that the fewest lines are left.
fn lines_of_kinds<'a>(cells: &[Cell<'a>]) -> (Option<DType>, BTreeMap<&'a str, Option<DType>>) {
    let mut kinds: BTreeMap<&str, Vec<Option<DType>>> = BTreeMap::new();
    cells.iter().for_each(|cell| kinds.entry(cell.kind).or_default().push(cell.format));
    let lines = |base: Option<DType>| {
        let of_kind = |(kind, formats): (&&'a str, &Vec<Option<DType>>)| {
            let others = |format| formats.iter().filter(|other| **other != format).count();
            let most = most_common(formats.iter().copied()).unwrap_or(base);
            let format = if others(base) <= others(most) + 1 { base } else { most };
            (*kind, format, others(format) + usize::from(format != base))
        };
        let of_kinds: Vec<(&'a str, Option<DType>, usize)> = kinds.iter().map(of_kind).collect();
        let count: usize = of_kinds.iter().map(|(_, _, lines)| lines).sum();
        (count, base, of_kinds)
    };
    let mut bases: Vec<Option<DType>> = cells.iter().map(|cell| cell.format).collect();
    bases.sort_unstable();
    bases.dedup();
    let found = bases.into_iter().map(lines).min_by_key(|(count, _, _)| *count);
    let (base, of_kinds) = found.map_or((None, Vec::new()), |(_, base, of_kinds)| (base, of_kinds));
    (base, of_kinds.into_iter().map(|(kind, format, _)| (kind, format)).collect())
}

/// The format that most have, the first of the enum among equals.
fn most_common(formats: impl Iterator<Item = Option<DType>>) -> Option<Option<DType>> {
    let mut counts: BTreeMap<Option<DType>, usize> = BTreeMap::new();
    formats.for_each(|format| *counts.entry(format).or_default() += 1);
    let most = counts.values().copied().max()?;
    counts.into_iter().find(|(_, count)| *count == most).map(|(format, _)| format)
}

#[cfg(test)]
#[path = "solve_tests.rs"]
mod tests;
