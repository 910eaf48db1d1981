//! The answer about a checkpoint of two models: each by itself, and what would take both.

use std::fmt::Write;

use npuc::back::BackEnd;
use npuc::fit::{Request, takes_whole};
use npuc::front::ModelConfig;
use npuc::mend::{Mended, Preference, mend};
use npuc::model::StepShape;
use npuc::place::Bill;
use npuc::target::{self, Mend, Precision, Question};
use npuc::{Result, place};
use npuc_run::program::default_shapes_for;
use npuc_run::speech;
use serde::Serialize;

use super::{Examined, Report};
use crate::mended;
use crate::output::count;

/// What is said of both models.
#[derive(Serialize)]
pub(super) struct Pair<'a> {
    fits: bool,
    encoder: &'a Report<'a>,
    decoder: &'a Report<'a>,
    /// What would make them fit; absent where they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<Plan>,
    /// The chips whose NPUs compute every operation of both, with rewrites that npuc proves.
    whole_on: Vec<String>,
}

/// How both models come onto the target, in the order in which they run.
#[derive(Serialize)]
struct Plan {
    /// Whether nothing keeps them from the target then.
    fits: bool,
    /// Rules of placement for `--place`.
    place: Vec<String>,
    /// Everything else that is done.
    mends: Vec<String>,
    encoder: Vec<(StepShape, Bill)>,
    decoder: Vec<(StepShape, Bill)>,
}

/// Both reports with a plan and the chips that need none.
///
/// Errors: those of holding the models against chips.
pub(super) fn of<'a>(configs: &[ModelConfig], reports: &'a [Report<'a>], examined: &[Examined]) -> Result<Pair<'a>> {
    let [encoder, decoder] = reports else { unreachable!("a checkpoint of several models has these two") };
    let fits = encoder.fits && decoder.fits;
    let plan = if fits { None } else { Some(plan(configs, examined)?) };
    Ok(Pair { fits, encoder, decoder, plan, whole_on: whole_on(configs)? })
}

fn plan(configs: &[ModelConfig], examined: &[Examined]) -> Result<Plan> {
    let mended = configs.iter().zip(examined).map(|(config, of)| mend(config, None, &of.request, Preference::Rewrites));
    let mended = mended.collect::<Result<Vec<Mended>>>()?;
    let (mut place, mut mends) = (Vec::new(), Vec::new());
    for applied in mended.iter().flat_map(|mended| &mended.applied) {
        let (list, text) = match &applied.mend {
            Mend::Place(rule) => (&mut place, rule.to_string()),
            other @ (Mend::Pass(_) | Mend::SplitHead(_) | Mend::Flag(_)) => (&mut mends, other.to_string()),
        };
        if !list.contains(&text) {
            list.push(text);
        }
    }
    let own = examined[0].request.target.placement();
    let given = examined[0].request.placement.iter().filter(|rule| !own.contains(rule)).map(place::Rule::to_string);
    place.splice(0..0, given);
    let fits = mended.iter().all(|mended| mended.fit.fits());
    let mut bills = mended.into_iter().map(|mended| mended.fit.bills);
    let (encoder, decoder) = (bills.next().unwrap_or_default(), bills.next().unwrap_or_default());
    Ok(Plan { fits, place, mends, encoder, decoder })
}

/// The chips that compute every operation of all models on their NPUs, in float.
fn whole_on(configs: &[ModelConfig]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for target in target::all() {
        if target.back_end == Some(BackEnd::Host) || target.main_unit().kind != target::UnitKind::Npu {
            continue;
        }
        let precision = Precision::parse("FP", target.float)?;
        let question = Question::new(target, precision, &[])?;
        let mut takes = true;
        for config in configs {
            let shapes = default_shapes_for(target, config);
            takes = takes && takes_whole(config, &Request::new(target.clone(), question.clone(), shapes))?;
        }
        if takes {
            names.push(target.name.clone());
        }
    }
    Ok(names)
}

/// Both models one after the other, and the answer.
pub(super) fn render(pair: &Pair<'_>, examined: &[Examined]) -> String {
    let mut text = String::new();
    for ((name, report), of) in
        [(speech::ENCODER, pair.encoder), (speech::DECODER, pair.decoder)].into_iter().zip(examined)
    {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "model         {name}\n");
        text.push_str(&super::render(report, &of.fit, &of.request.target));
        text.push('\n');
    }
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<14}{value}");
    };
    if let Some(Plan { fits, place, mends, encoder, decoder }) = &pair.plan {
        let rules: Vec<String> = place.iter().map(|rule| format!("--place '{rule}'")).collect();
        let how = if *fits { "fits with" } else { "does not fit even with" };
        line("plan", format!("{how} {}", if rules.is_empty() { "no placement".to_owned() } else { rules.join(" ") }));
        if !mends.is_empty() {
            line("  and --fix", mends.join(", "));
        }
        for (name, bills) in [(speech::ENCODER, encoder), (speech::DECODER, decoder)] {
            for bill in mended::bills(bills).lines() {
                line(&format!("  {name}"), bill.split_at(14).1.to_owned());
            }
        }
    }
    let whole = match &pair.whole_on[..] {
        [] => "no chip that npuc knows".to_owned(),
        names => names.join(", "),
    };
    line("whole on", format!("{whole} (every operation on the NPU, in float)"));
    let misfits = pair.encoder.misfits.len() + pair.decoder.misfits.len();
    line(
        "answer",
        if pair.fits { "both fit".to_owned() } else { format!("does not fit: {}", count(misfits, "misfit")) },
    );
    text
}
