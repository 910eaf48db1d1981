//! `npuc inspect`: what a model holds and needs.

use npuc::Result;
use npuc::front::ModelConfig;
use npuc::front::config::RopeScaling;
use npuc_run::inspect::{Inspection, inspect};

use crate::args::{InspectArgs, shapes};
use crate::output::{Output, bytes};

/// Runs the command.
pub(crate) fn command(args: &InspectArgs, output: Output) -> Result<()> {
    let shapes = shapes(args.shapes.as_ref())?;
    let spinner = output.spinner("reading weights");
    let inspection = inspect(&args.model, shapes)?;
    drop(spinner);
    output.result(&inspection, &render(&inspection))?;
    output.warnings(&inspection.warnings);
    Ok(())
}

fn render(inspection: &Inspection) -> String {
    let mut lines = architecture(inspection);
    lines.push(format!("parameters    {} in {}", count(inspection.parameters), bytes(inspection.weights_bytes)));
    for format in &inspection.formats {
        let amount = format!("{} tensors, {}, {}", format.tensors, count(format.parameters), bytes(format.bytes));
        lines.push(format!("  {:<14}{:<6}{amount}", format.role, format.dtype));
    }
    lines.push("memory on the host".into());
    for step in &inspection.memory {
        lines.push(format!(
            "  {:<13} weights {}, cache {}, activations {}",
            step.shape.to_string(),
            bytes(step.weights_bytes),
            bytes(step.cache_bytes),
            bytes(step.activation_bytes)
        ));
    }
    lines.extend(text(inspection));
    lines.join("\n") + "\n"
}

fn architecture(inspection: &Inspection) -> Vec<String> {
    let ModelConfig::Llama(config) = &inspection.config;
    let attention = format!("{} query and {} key/value heads of {}", config.heads, config.kv_heads, config.head_dim);
    let mut parts = vec![];
    for (present, part) in [
        (config.qkv_bias, "q/k/v bias"),
        (config.o_bias, "output bias"),
        (config.mlp_bias, "feed-forward bias"),
        (config.qk_norm, "q/k norm"),
        (config.tied, "tied head"),
    ] {
        if present {
            parts.push(part);
        }
    }
    let extras = if parts.is_empty() { String::new() } else { format!(", {}", parts.join(", ")) };
    vec![
        format!("architecture  {:?} ({})", config.architecture, inspection.form).to_lowercase(),
        format!("layers        {} of width {}, feed-forward {}{extras}", config.layers, config.hidden, config.ffn),
        format!("attention     {attention}"),
        format!("rope          theta {}, {}", config.rope.theta, scaling(&config.rope.scaling)),
        format!("context       {}, vocabulary {}", config.max_positions, config.vocab),
    ]
}

fn scaling(scaling: &RopeScaling) -> String {
    match scaling {
        RopeScaling::None => "no scaling".into(),
        RopeScaling::Linear { factor } => format!("linear scaling by {factor}"),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => format!(
            "llama3 scaling by {factor} from {original_max_positions} positions \
             (low {low_freq_factor}, high {high_freq_factor})"
        ),
        RopeScaling::Factors { factors } => {
            let (least, most) =
                factors.iter().fold((f32::INFINITY, 0.0), |(l, m): (f32, f32), &f| (l.min(f), m.max(f)));
            format!("stored factors from {least} to {most}")
        }
    }
}

fn text(inspection: &Inspection) -> Vec<String> {
    let tokenizer = match &inspection.tokenizer {
        Some(info) => {
            let template = if info.chat_template { "with" } else { "without" };
            format!("{} ids, {template} chat template", info.vocab)
        }
        None => "none (only --ids can run it)".into(),
    };
    let bos = inspection.special.bos.map_or("none".into(), |id| id.to_string());
    let eos: Vec<String> = inspection.special.eos.iter().map(u32::to_string).collect();
    vec![format!("tokenizer     {tokenizer}"), format!("special       bos {bos}, eos {}", eos.join(" "))]
}

/// A count for people: 134.5 M.
fn count(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{:.1} K", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        1_000_000_000.. => format!("{:.2} B", n as f64 / 1e9),
    }
}
