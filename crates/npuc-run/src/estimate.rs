//! Estimates for a bundle of Qualcomm's contexts, without a device: bytes that each step moves, and simulated times of another chip.
//!
//! No number here was measured on a chip or in the emulation. A step is the graphs of all parts of the model, one after the other.

use std::path::Path;

use npuc::bundle::Manifest;
use npuc::model::StepShape;
use npuc::target::Target;
use npuc::{Code, Diagnostic, Result};
use serde::Serialize;

use crate::contexts;
use crate::device::qnn::{Estimate, Prepare, Profile, Qnn, Told, Traffic};

/// A chip that Qualcomm's libraries simulate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Proxy {
    /// Its name.
    pub name: String,
    /// Qualcomm's number of it.
    pub soc_model: u32,
    /// The generation of its HTP, e.g. 81, and what it is made for, where npuc knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known: Option<Known>,
}

/// What is known of a chip that the libraries simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Known {
    /// The generation of its HTP.
    pub htp: u32,
    /// What it is made for.
    pub made_for: &'static str,
}

/// The chips that gave estimates with QAIRT 2.51, by name, number, generation and purpose.
const PROXIES: [(&str, u32, u32, &str); 4] = [
    ("SA8797", 72, 81, "cars"),
    ("SA8255", 52, 73, "cars"),
    ("QCS9100", 77, 73, "industry"),
    ("SA8540", 62, 68, "cars"),
];

impl Proxy {
    /// The chip of that name, or of that number.
    ///
    /// Errors: [`Code::BadArgument`] for what is neither.
    pub fn find(text: &str) -> Result<Proxy> {
        let number: Option<u32> = text.parse().ok();
        let is = |&(name, soc, ..): &(&str, u32, u32, &str)| name.eq_ignore_ascii_case(text) || number == Some(soc);
        match (PROXIES.into_iter().find(is), number) {
            (Some(row), _) => Ok(Proxy::of(row)),
            (None, Some(soc_model)) => Ok(Proxy { name: format!("SoC {soc_model}"), soc_model, known: None }),
            (None, None) => {
                let names = PROXIES.map(|(name, ..)| name).join(", ");
                let fault = Diagnostic::error(Code::BadArgument, "npuc does not know this chip").subject("--proxy");
                Err(fault.need(format!("one of: {names}, or Qualcomm's number of a chip")).have(text).into())
            }
        }
    }

    /// The chip whose generation is the nearest to that of the target.
    pub fn nearest(target: &Target) -> Proxy {
        let own = target.generation.as_ref().map_or(u32::MAX, |generation| generation.major);
        let [first, rest @ ..] = PROXIES;
        let nearer = |best: (_, _, u32, _), row: (_, _, u32, _)| match row.2.abs_diff(own) < best.2.abs_diff(own) {
            true => row,
            false => best,
        };
        Proxy::of(rest.into_iter().fold(first, nearer))
    }

    fn of((name, soc_model, htp, made_for): (&str, u32, u32, &'static str)) -> Proxy {
        Proxy { name: name.into(), soc_model, known: Some(Known { htp, made_for }) }
    }
}

/// What the libraries tell of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<T> {
    /// Its shape.
    pub shape: StepShape,
    /// The sum over its graphs.
    pub told: T,
}

/// The bytes that each step of a bundle moves on the chip it was built for, as the libraries schedule its graphs.
///
/// Errors: what [`contexts::requests`] and [`Qnn::prepare`] refuse.
pub fn traffic(
    folder: &Path,
    manifest: &Manifest,
    soc: u32,
    qnn: &mut Qnn,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Step<Traffic>>> {
    let own = tempfile::tempdir().map_err(|e| {
        Diagnostic::error(Code::Unwritable, format!("cannot make a folder for schedules: {e}"))
            .help("set TMPDIR to a folder with free space")
    })?;
    let profile = Profile::Trace { folder: own.path().to_path_buf() };
    let take = |told| match told {
        Told::Traffic(traffic) => Some(traffic),
        Told::Estimate(_) => None,
    };
    steps(folder, manifest, (soc, &profile), qnn, say, (take, Traffic::plus))
}

/// One execution of each step of a bundle as the libraries simulate it on the chip of that number.
///
/// Errors: [`Code::BadArgument`] for a chip that they do not simulate; as [`traffic`].
pub fn simulated(
    folder: &Path,
    manifest: &Manifest,
    soc: u32,
    qnn: &mut Qnn,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Step<Estimate>>> {
    let take = |told| match told {
        Told::Estimate(estimate) => Some(estimate),
        Told::Traffic(_) => None,
    };
    steps(folder, manifest, (soc, &Profile::Estimate), qnn, say, (take, Estimate::plus))
}

/// What a graph told, and the sum of two.
type Sum<T> = (fn(Told) -> Option<T>, fn(T, T) -> Option<T>);

fn steps<T: Copy + Default>(
    folder: &Path,
    manifest: &Manifest,
    (soc, profile): (u32, &Profile),
    qnn: &mut Qnn,
    say: &mut dyn FnMut(&str),
    (take, plus): Sum<T>,
) -> Result<Vec<Step<T>>> {
    let mut steps: Vec<Step<T>> = Vec::new();
    for graph in &manifest.graphs {
        if steps.iter().all(|step| step.shape != graph.shape) {
            steps.push(Step { shape: graph.shape, told: T::default() });
        }
    }
    for request in contexts::requests(folder, manifest, soc, true)? {
        let context = qnn.prepare(&Prepare { keep: false, profile: Some(profile.clone()), ..request }, say)?;
        for (step, graph) in steps.iter_mut().zip(&context.graphs) {
            let sum = graph.told.and_then(take).and_then(|told| plus(step.told, told));
            let fault = || Diagnostic::error(Code::ToolFailed, "QNN told nothing of a graph, or too large a number");
            step.told = sum.ok_or_else(|| fault().subject(&graph.name))?;
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_are_found_by_name_and_number() {
        for (text, expected) in [
            ("SA8797", Some(("SA8797", 72, Some(81)))),
            ("sa8255", Some(("SA8255", 52, Some(73)))),
            ("77", Some(("QCS9100", 77, Some(73)))),
            ("63", Some(("SoC 63", 63, None))),
            ("SM8650", None),
            ("", None),
            ("-1", None),
            ("4294967296", None),
        ] {
            let found =
                Proxy::find(text).map(|proxy| (proxy.name, proxy.soc_model, proxy.known.map(|known| known.htp)));
            match (found, expected) {
                (Ok(found), Some((name, soc, htp))) => assert_eq!(found, (name.into(), soc, htp), "{text}"),
                (Err(error), None) => assert_eq!(error.exit_status(), 2, "{text}: {error}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }

    #[test]
    fn the_nearest_generation_stands_for_a_chip() {
        for (target, expected) in
            [("sm8550", "SA8255"), ("sm8650", "SA8255"), ("sm8750", "SA8797"), ("sm8850", "SA8797"), ("host", "SA8797")]
        {
            assert_eq!(Proxy::nearest(&npuc::target::find(target).expect(target)).name, expected, "{target}");
        }
    }
}
