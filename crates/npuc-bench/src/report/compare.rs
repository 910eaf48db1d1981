//! Two runs side by side: differences with intervals from the bootstrap by request, and what they mean in a sentence.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::results::{Request, Results, State};
use crate::stats::{interval95, median};

/// A figure of two runs.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The figure.
    pub figure: &'static str,
    /// The two runs' names.
    pub runs: [String; 2],
    /// What each was measured on.
    pub measured_on: [String; 2],
    /// The figure of each.
    pub values: [f64; 2],
    /// The interval of each that holds the true value in 95 of 100 studies.
    pub intervals95: [[f64; 2]; 2],
    /// The second less the first.
    pub difference: f64,
    /// Its interval.
    pub difference95: [f64; 2],
    /// Whether the same requests were drawn from both runs.
    pub is_paired: bool,
    /// Whether the interval of the difference holds no 0.
    pub is_real: bool,
    /// The same in a sentence.
    pub sentence: String,
}

/// A figure of a request, in ms.
type Of = fn(&Request) -> Option<f64>;

const FIGURES: [(&str, Of); 3] = [
    ("ttft_ms P50", |request| Some(request.ttft_ns()? as f64 / 1e6)),
    ("tpot_ms P50, per request", |request| Some(request.tpot_ns()? / 1e6)),
    ("e2el_ms P50", |request| Some(request.e2el_ns()? as f64 / 1e6)),
];

/// Every figure that both runs have for two requests or more.
pub(super) fn compare(first: (&Results, &str), second: (&Results, &str)) -> Vec<Comparison> {
    FIGURES.into_iter().filter_map(|(figure, of)| comparison(figure, of, first, second)).collect()
}

fn comparison(
    figure: &'static str,
    of: Of,
    (a, a_name): (&Results, &str),
    (b, b_name): (&Results, &str),
) -> Option<Comparison> {
    let (mut a_values, mut b_values) = (values(a, of), values(b, of));
    let is_paired = match paired(a, b, of) {
        Some((a, b)) => {
            (a_values, b_values) = (a, b);
            true
        }
        None => false,
    };
    let drawn =
        |values: &[f64], places: &[usize]| median(&places.iter().map(|&place| values[place]).collect::<Vec<f64>>());
    let count = a_values.len();
    let difference95 = if is_paired {
        interval95([count], |[places]| Some(drawn(&b_values, places)? - drawn(&a_values, places)?))?
    } else {
        let counts = [count, b_values.len()];
        interval95(counts, |[of_a, of_b]| Some(drawn(&b_values, of_b)? - drawn(&a_values, of_a)?))?
    };
    let values = [median(&a_values)?, median(&b_values)?];
    let intervals95 =
        [interval95([count], |[of]| drawn(&a_values, of))?, interval95([b_values.len()], |[of]| drawn(&b_values, of))?];
    let difference = values[1] - values[0];
    let is_real = difference95[0] > 0.0 || difference95[1] < 0.0;
    let marks = marks((a, a_name)) + &marks((b, b_name));
    let measured_on = [a.label(), b.label()];
    let draws = if is_paired {
        format!("paired over {count} requests")
    } else {
        format!("{count} and {} requests, not paired", b_values.len())
    };
    let verdict = match (is_real, is_paired) {
        (true, true) => "the difference is real",
        (true, false) => "the runs differ, which may be because of their requests",
        (false, _) => "the interval holds 0, so no difference is shown",
    };
    let kinds = if a.class == b.class {
        String::new()
    } else {
        format!("; {a_name} is of the class {} and {b_name} of {}, which are different things", a.class, b.class)
    };
    let sentence = format!(
        "{figure}: {b_name} ({}) has {:.3}, {a_name} ({}) has {:.3}: {difference:+.3} ms (95 % interval {:+.3} to {:+.3}, {draws}): \
         {verdict}{kinds}{marks}.",
        measured_on[1], values[1], measured_on[0], values[0], difference95[0], difference95[1]
    );
    let runs = [a_name.to_string(), b_name.to_string()];
    Some(Comparison {
        figure,
        runs,
        measured_on,
        values,
        intervals95,
        difference,
        difference95,
        is_paired,
        is_real,
        sentence,
    })
}

/// What a sentence says of a run that is not whole.
fn marks((run, name): (&Results, &str)) -> String {
    match run.state() {
        State::Complete => String::new(),
        state @ (State::Segmented { .. } | State::Incomplete { .. }) => format!("; {name} is {state}"),
    }
}

fn values(run: &Results, of: Of) -> Vec<f64> {
    run.complete().filter_map(of).collect()
}

/// The values of the requests that both runs have, with the same prompt and limit as far as the files tell; `None` if these are not all of
/// the smaller run, or fewer than two.
fn paired(a: &Results, b: &Results, of: Of) -> Option<(Vec<f64>, Vec<f64>)> {
    let by_id = |run| -> Option<BTreeMap<&str, &Request>> {
        Results::complete(run).map(|request| Some((request.id.as_deref()?, request))).collect()
    };
    let (a, b) = (by_id(a)?, by_id(b)?);
    let same = |a: &Request, b: &Request| {
        let asked = |request: &Request| {
            (request.prompt_sha256.clone(), request.prompt_tokens, request.max_new_tokens, request.ignore_eos)
        };
        asked(a) == asked(b)
    };
    let common: Vec<(&Request, &Request)> =
        a.iter().filter_map(|(id, a)| b.get(id).filter(|b| same(a, b)).map(|b| (*a, *b))).collect();
    if common.len() < 2 || common.len() != a.len().min(b.len()) {
        return None;
    }
    let both = common.into_iter().filter_map(|(a, b)| Some((of(a)?, of(b)?)));
    Some(both.unzip())
}
