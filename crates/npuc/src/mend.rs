//! Mending: the remedies that npuc carries out by itself, chosen until none is left, each then proved on the host.
//!
//! A remedy of a misfit that has a [`Mend`] is one that npuc can do; there is no other list.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::diag::Result;
use crate::fit::{Fit, Request, Subject, fit};
use crate::front::ModelConfig;
use crate::target::{Mend, Misfit};
use crate::tensor::Tensor;

mod prove;

pub use prove::{Proof, prove};

/// A head in more parts than this is slower than one that a flag of the vendor's compiler lets through: a user measured
/// a head in 16 parts to be slower than one in few.
const MOST_PARTS: usize = 4;
/// Mends may bring misfits of their own; a chain of more than these is a fault of a target's rules.
const MOST_ROUNDS: usize = 8;

/// Which of several mends of one misfit is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// What can be proved on the host before what the vendor's compiler is trusted with.
    Rewrites,
    /// The cheapest, flags first.
    Flags,
}

/// A mend and what it was for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// What was done.
    pub mend: Mend,
    /// The rules that asked for it.
    pub rules: Vec<String>,
}

/// A request that npuc mended.
#[derive(Clone, Debug)]
pub struct Mended {
    /// The request with the mends in it.
    pub request: Request,
    /// What was done, in order.
    pub applied: Vec<Applied>,
    /// How the model fits then.
    pub fit: Fit,
}

/// Mends what keeps the model from the target or is a danger there, as far as npuc can; then holds the model against it.
///
/// # Errors
/// As [`fit`]; misfits that are left are no errors but part of the answer.
pub fn mend(
    config: &ModelConfig,
    weights: Option<&BTreeMap<String, Tensor>>,
    request: &Request,
    preference: Preference,
) -> Result<Mended> {
    let (request, applied) = settled(config, weights, request, preference)?;
    let fit = fit(config, weights, &request)?;
    Ok(Mended { request, applied, fit })
}

/// The request with every mend that npuc can do, and these.
pub(crate) fn settled(
    config: &ModelConfig,
    weights: Option<&BTreeMap<String, Tensor>>,
    request: &Request,
    preference: Preference,
) -> Result<(Request, Vec<Applied>)> {
    let mut request = request.clone();
    let mut applied: Vec<Applied> = Vec::new();
    for _ in 0..MOST_ROUNDS {
        let misfits = Subject::new(config, weights, &request).survey()?.misfits;
        let new = chosen(&misfits, &request, preference);
        if new.is_empty() {
            break;
        }
        for Applied { mend, .. } in &new {
            apply(&mut request, mend)?;
        }
        applied.extend(new);
    }
    Ok((request, applied))
}

/// The mends of all misfits that the request does not have yet, one a misfit; the split of a head only once, in the form
/// that keeps all rules.
fn chosen(misfits: &[Misfit], request: &Request, preference: Preference) -> Vec<Applied> {
    let mut chosen: Vec<Applied> = Vec::new();
    for misfit in misfits {
        let mends: Vec<&Mend> = misfit.remedies.iter().filter_map(|remedy| remedy.mend.as_ref()).collect();
        let Some(mend) = preferred(&mends, preference).filter(|mend| !is_applied(request, mend)) else { continue };
        let same = |other: &&mut Applied| match (&other.mend, mend) {
            (Mend::SplitHead(_), Mend::SplitHead(_)) => true,
            (other, mend) => other == mend,
        };
        match chosen.iter_mut().find(same) {
            None => chosen.push(Applied { mend: mend.clone(), rules: vec![misfit.rule.clone()] }),
            Some(known) => {
                if let (Mend::SplitHead(rows), Mend::SplitHead(more)) = (&mut known.mend, mend)
                    && more.len() > rows.len()
                {
                    rows.clone_from(more);
                }
                if !known.rules.contains(&misfit.rule) {
                    known.rules.push(misfit.rule.clone());
                }
            }
        }
    }
    chosen
}

fn preferred<'a>(mends: &[&'a Mend], preference: Preference) -> Option<&'a Mend> {
    let is_flag = |mend: &&Mend| matches!(mend, Mend::Flag(_));
    // One part is a head that is only padded, after which a flag may be had.
    let is_padding = |mend: &&Mend| matches!(mend, Mend::SplitHead(rows) if rows.len() == 1);
    let flag = mends.iter().copied().find(is_flag);
    let padding = mends.iter().copied().find(is_padding);
    let rewrite = mends.iter().copied().find(|mend| !is_flag(mend) && !is_padding(mend));
    let long = matches!(rewrite, Some(Mend::SplitHead(rows)) if rows.len() > MOST_PARTS);
    match preference {
        Preference::Rewrites if !long => rewrite.or(padding).or(flag),
        Preference::Rewrites | Preference::Flags => flag.or(padding).or(rewrite),
    }
}

fn is_applied(request: &Request, mend: &Mend) -> bool {
    let splits = |mend: &Mend| matches!(mend, Mend::SplitHead(_));
    match mend {
        Mend::Flag(flag) => request.question.flags.contains(flag),
        Mend::SplitHead(_) => request.mends.iter().any(splits),
        Mend::Pass(_) | Mend::Place(_) => request.mends.contains(mend),
    }
}

fn apply(request: &mut Request, mend: &Mend) -> Result<()> {
    match mend {
        Mend::Flag(flag) => _ = request.question.flags.insert(flag.clone()),
        Mend::SplitHead(_) | Mend::Pass(_) => request.mends.push(mend.clone()),
        Mend::Place(rule) => {
            request.placement.push(rule.parse()?);
            request.mends.push(mend.clone());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
