//! The figures of `npuc verify` as text.

use std::fmt::Write;

use npuc_run::fidelity::{Fidelity, Layers, Perplexity, TextFigures};

use crate::output::count;

/// Values in the table, the worst first.
const WORST: usize = 10;

/// The figures, one a line, and the tables after them.
pub(super) fn render(fidelity: &Fidelity, measured_on: &str) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name:<18}{value}");
        }
    };
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    let greedy = |(share, length): (f64, f64)| {
        format!("{} of {} ids, {length:.1} a prompt", percent(share), fidelity.greedy_ids)
    };
    line("positions", (fidelity.positions > 0).then(|| fidelity.positions.to_string()));
    line("cosine, mean", fidelity.cosine_mean.map(|x| format!("{x:.9}")));
    line("cosine, least", fidelity.cosine_min.map(|x| format!("{x:.9}")));
    line("SQNR", fidelity.sqnr_db.map(|db| format!("{db:.1} dB")));
    line("max |difference|", fidelity.max_abs.map(|x| format!("{x:.3e}")));
    line("top-1 agreement", fidelity.top1.map(percent));
    line("top-10 agreement", fidelity.top10.map(percent));
    line("greedy agreement", fidelity.greedy.zip(fidelity.greedy_length).map(greedy));
    if let Some(text) = &fidelity.text {
        on_text(text, &mut line);
    }
    line("measured on", Some(measured_on.into()));
    if let Some(figures) = &fidelity.text {
        text.push_str(&by_position(figures));
    }
    if let Some(saturated) = &fidelity.saturated {
        text.push_str(&cut_off(saturated));
    }
    if let Some(layers) = &fidelity.layers {
        text.push_str(&worst(layers));
    }
    text
}

fn on_text(text: &TextFigures, line: &mut dyn FnMut(&str, Option<String>)) {
    let perplexity = |p: Perplexity| format!("{:.4} +/- {:.4}", p.value, p.standard_error);
    line("perplexity", Some(perplexity(text.perplexity)));
    line("of the reference", text.reference_perplexity.map(perplexity));
    line("ratio", text.perplexity_ratio.map(|ratio| format!("{ratio:.6}")));
    let kl = |name: &str, of: fn(&npuc_run::fidelity::Kl) -> f64| (format!("KL, {name}"), of);
    for (name, of) in [kl("mean", |kl| kl.mean), kl("median", |kl| kl.median), kl("99 %", |kl| kl.p99)] {
        line(&name, text.kl.as_ref().map(|kl| format!("{:.6} nats", of(kl))));
    }
    line("KL, max", text.kl.as_ref().map(|kl| format!("{:.6} nats", kl.max)));
    let windows = count(text.windows, "window");
    line("scored", Some(format!("{} ids in {windows} of {}", text.perplexity.ids, text.context)));
    let left_out = format!("{} of the text, in no window measured", count(text.left_out_ids, "id"));
    line("left out", (text.left_out_ids > 0).then_some(left_out));
}

/// The values of which most numbers were beyond their ranges.
fn cut_off(saturated: &[(String, u64)]) -> String {
    let total: u64 = saturated.iter().map(|(_, count)| count).sum();
    let mut text = format!("\nnumbers cut off   {total} in {}\n", count(saturated.len(), "value"));
    for (name, count) in saturated.iter().take(WORST) {
        let _ = writeln!(text, "  {count:>10}  {name}");
    }
    text
}

fn by_position(figures: &TextFigures) -> String {
    let mut text = String::new();
    if !figures.cosine_by_position.is_empty() {
        text.push_str("\nmean cosine by position in the window\n");
    }
    for bin in &figures.cosine_by_position {
        let _ = writeln!(text, "  {:<16}{:.9}", format!("{}-{}", bin.first, bin.last), bin.cosine);
    }
    text
}

fn worst(layers: &Layers) -> String {
    let mut text = String::new();
    let equal = layers.values.iter().filter(|value| value.equal).count();
    let _ = writeln!(
        text,
        "\nsignal to noise inside, over a prefill step of {} and {}: {} compared, {equal} equal",
        count(layers.prefill_tokens, "token"),
        count(layers.decode_steps, "decode step"),
        count(layers.values.len(), "value"),
    );
    for value in layers.values.iter().filter(|value| !value.equal).take(WORST) {
        let db = match value.sqnr_db {
            Some(db) => format!("{db:.2} dB"),
            None if value.non_finite > 0 => format!("{} not finite", value.non_finite),
            None => "no signal".into(),
        };
        let _ = writeln!(text, "  {db:<16}{:<14.3e}{} {}", value.max_abs, value.path, value.op);
    }
    let npuc_run::fidelity::Unpaired { reference, model } = layers.unpaired;
    if reference + model > 0 {
        let _ = writeln!(text, "  not in both: {} of the reference, {model} of the model", count(reference, "value"));
    }
    text
}
