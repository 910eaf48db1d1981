//! The formats that keep a model closest to itself within a budget of bits: measured, chosen, and measured again.

use npuc::front::Checkpoint;
use npuc::quant::fold::Folds;
use npuc::quant::plan::{Destination, Plan};
use npuc::quant::recipe::{Activation, Recipe};
use npuc::quant::solve::{Candidate, Grouping, Matrix, bound, bytes, choose, cost, pareto, recipe};
use npuc::target::Target;
use npuc::{Code, Diagnostic, Result};
use serde::Serialize;

use crate::fidelity::{Fidelity, Windows, compare_text};
use crate::program::{Program, shapes_of};
use crate::quantise::{Job, Quality, quantise};
use crate::session::Session;

mod losses;
mod sensitivity;

pub use sensitivity::Sensitivity;

/// A choice of formats.
#[derive(Clone, Debug)]
pub struct Solution {
    /// The recipe.
    pub recipe: Recipe,
    /// What the recipe makes of the checkpoint.
    pub plan: Plan,
    /// The groups of matrices, those first whose smallest format would cost most.
    pub groups: Vec<Group>,
    /// The divergence that the costs add up to, in nats a token.
    pub predicted_kl: f64,
    /// The least that any choice within the budget could add up to.
    pub bound_kl: f64,
    /// Whether more bits would lower the prediction.
    pub budget_binds: bool,
}

/// Matrices with one format.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// The name.
    pub name: String,
    /// The chosen format.
    pub format: &'static str,
    /// Its bytes.
    pub bytes: u64,
    /// Its bits of a weight.
    pub bits_per_weight: f64,
    /// What it adds to the prediction, in nats a token.
    pub kl: f64,
    /// The smallest format there is.
    pub smallest: &'static str,
    /// What that would add.
    pub smallest_kl: f64,
}

/// Chooses formats for a budget of bits a weight, over all matrices.
///
/// Errors: [`Code::BadArgument`] for a budget that is no number above zero, or below what the smallest formats need;
/// [`Code::BadRange`] for a matrix whose numbers no format can hold.
pub fn solve(
    checkpoint: &Checkpoint,
    target: &Target,
    activation: Activation,
    matrices: &[Matrix],
    sensitivity: &Sensitivity,
    grouping: Grouping,
    budget_bits: f64,
) -> Result<Solution> {
    let groups = Groups::new(matrices, sensitivity, grouping)?;
    let budget_bytes = budget_bytes(matrices, budget_bits)?;
    let candidates = &groups.candidates;
    let chosen = choose(candidates, budget_bytes).ok_or_else(|| groups.too_small(matrices, budget_bits))?;
    let format_of = |index: usize| {
        let group = groups.of_matrix[index];
        candidates[group][chosen[group]].format
    };
    let formats = matrices.iter().enumerate().map(|(index, matrix)| (matrix, format_of(index))).collect::<Vec<_>>();
    let recipe = recipe("solved", activation, &formats);
    let folds = Folds::none(&checkpoint.config);
    let plan = Plan::new(checkpoint, &folds, &recipe, &Destination::Target(target.clone()), true)?;
    Ok(Solution {
        recipe,
        plan,
        groups: groups.report(matrices, &chosen),
        predicted_kl: cost(candidates, &chosen),
        bound_kl: bound(candidates, budget_bytes).unwrap_or(0.0),
        budget_binds: chosen.iter().zip(candidates).any(|(at, group)| at + 1 < group.len()),
    })
}

/// Whether the smallest formats fit a budget, before anything is measured.
///
/// Errors: as [`solve`].
pub fn check_budget(matrices: &[Matrix], grouping: Grouping, budget_bits: f64) -> Result<()> {
    let costs = matrices.iter().map(|matrix| vec![0.0; matrix.formats.len()]).collect();
    let groups = Groups::new(matrices, &Sensitivity { costs, probe_kl: 0.0, sum_of_parts_kl: 0.0 }, grouping)?;
    let budget_bytes = budget_bytes(matrices, budget_bits)?;
    choose(&groups.candidates, budget_bytes).map(|_| ()).ok_or_else(|| groups.too_small(matrices, budget_bits))
}

/// The bytes of all matrices at some bits a weight.
fn budget_bytes(matrices: &[Matrix], budget_bits: f64) -> Result<u64> {
    if !(budget_bits > 0.0 && budget_bits.is_finite()) {
        let fault = Diagnostic::error(Code::BadArgument, "a budget is bits of a weight").subject("--budget-bits");
        return Err(fault.need("a number above 0").have(budget_bits).into());
    }
    let elements: u64 = matrices.iter().map(Matrix::elements).sum();
    Ok((budget_bits * elements as f64 / 8.0).floor() as u64)
}

struct Groups {
    names: Vec<String>,
    /// The group of each matrix.
    of_matrix: Vec<usize>,
    /// For each group what is worth choosing, the smallest first.
    candidates: Vec<Vec<Candidate>>,
}

impl Groups {
    fn new(matrices: &[Matrix], sensitivity: &Sensitivity, grouping: Grouping) -> Result<Groups> {
        let mut names: Vec<String> = Vec::new();
        let mut of_matrix = Vec::new();
        for matrix in matrices {
            let name = grouping.of(matrix);
            let known = names.iter().position(|known| *known == name);
            of_matrix.push(known.unwrap_or(names.len()));
            if known.is_none() {
                names.push(name);
            }
        }
        let of_group = |group: usize| {
            let members = matrices.iter().zip(&of_matrix).enumerate().filter(move |(_, (_, of))| **of == group);
            let first = members.clone().next().map(|(_, (matrix, _))| matrix);
            // What one of the matrices cannot have, the group cannot.
            let sum = |format: &npuc::DType| {
                members.clone().try_fold((0, 0.0), |(bytes, cost), (index, (matrix, _))| {
                    let place = matrix.formats.iter().position(|other| other == format)?;
                    Some((bytes + matrix.bytes(*format), cost + sensitivity.costs[index][place]))
                })
            };
            // Among equals what is stored stays.
            let mut formats = first.map_or_else(Vec::new, |matrix| matrix.formats.clone());
            formats.sort_by_key(|format| first.is_none_or(|matrix| matrix.from != *format));
            let all = formats.iter().filter_map(|format| {
                let (bytes, cost) = sum(format).filter(|(_, cost)| cost.is_finite())?;
                Some(Candidate { format: *format, bytes, cost })
            });
            pareto(all.collect())
        };
        let candidates: Vec<Vec<Candidate>> = (0..names.len()).map(of_group).collect();
        if let Some((_, name)) = candidates.iter().zip(&names).find(|(candidates, _)| candidates.is_empty()) {
            let fault = Diagnostic::error(Code::BadRange, "no format can hold the numbers of these weights");
            return Err(fault.subject(name).help("name more formats, or use --by tensor").into());
        }
        Ok(Groups { names, of_matrix, candidates })
    }

    fn too_small(&self, matrices: &[Matrix], budget_bits: f64) -> npuc::Error {
        let smallest = vec![0; self.candidates.len()];
        let least = bits(bytes(&self.candidates, &smallest), matrices.iter());
        Diagnostic::error(Code::BadArgument, "the budget is less than the smallest formats take")
            .subject("--budget-bits")
            .need(format!("at least {:.4} bits a weight", (least * 1e4).ceil() / 1e4))
            .have(budget_bits)
            .help("raise the budget, or take whole-number activations (--act int16), with which some chips have smaller formats")
            .into()
    }

    fn report(&self, matrices: &[Matrix], chosen: &[usize]) -> Vec<Group> {
        let group = |(place, (name, candidates)): (usize, (&String, &Vec<Candidate>))| {
            let (taken, smallest) = (&candidates[chosen[place]], &candidates[0]);
            let members = matrices.iter().zip(&self.of_matrix).filter(|(_, group)| **group == place);
            Group {
                name: name.clone(),
                format: taken.format.name(),
                bytes: taken.bytes,
                bits_per_weight: bits(taken.bytes, members.map(|(matrix, _)| matrix)),
                kl: taken.cost,
                smallest: smallest.format.name(),
                smallest_kl: smallest.cost,
            }
        };
        let mut groups: Vec<Group> = self.names.iter().zip(&self.candidates).enumerate().map(group).collect();
        groups.sort_by(|a, b| b.smallest_kl.total_cmp(&a.smallest_kl));
        groups
    }
}

fn bits<'a>(bytes: u64, matrices: impl Iterator<Item = &'a Matrix>) -> f64 {
    8.0 * bytes as f64 / matrices.map(Matrix::elements).sum::<u64>().max(1) as f64
}

/// Quantises a checkpoint as planned, to the nearest numbers with searched scales in a folder for the time being, and
/// compares it with the checkpoint over a text.
///
/// Errors: those of quantising and of comparing; a folder that cannot be made.
pub fn measure(checkpoint: &Checkpoint, plan: &Plan, windows: &Windows, threads: usize) -> Result<Fidelity> {
    let folder = tempfile::tempdir().map_err(|e| {
        Diagnostic::error(Code::Unwritable, format!("cannot make a folder for the quantised weights: {e}"))
            .help("set TMPDIR to a folder with free space")
    })?;
    let folds = Folds::none(&checkpoint.config);
    let job = Job { plan, folds: &folds, scale: false, quality: Quality::Search, corpus: None, threads };
    let quantised = quantise(checkpoint, &job, &folder.path().join("work"), &mut |_| {})?;
    let program = |checkpoint: &Checkpoint| {
        Program::from_checkpoint(checkpoint.clone(), Some(shapes_of(&checkpoint.config, windows.context())))
    };
    let (model, reference) = (program(&quantised.checkpoint)?, program(checkpoint)?);
    let mut model = Session::new(&model, threads, &[])?;
    compare_text(&mut model, &mut Session::new(&reference, threads, &[])?, windows)
}

#[cfg(test)]
#[path = "solve/tests.rs"]
mod tests;
