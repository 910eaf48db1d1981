//! `npuc inspect`: what a model holds and needs.

use npuc::Result;
use npuc::front::ModelConfig;
use npuc::front::config::{LayerKind, RopeScaling, StackSizes};
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
    let config = &inspection.config;
    let (architecture, mut parts) = family(config);
    parts.extend(config.tied().then_some("tied head"));
    let extras = if parts.is_empty() { String::new() } else { format!(", {}", parts.join(", ")) };
    let mut lines = vec![
        format!("architecture  {architecture} ({})", inspection.form).to_lowercase(),
        format!(
            "layers        {} of width {}, feed-forward {}{extras}",
            config.layers(),
            config.hidden(),
            config.ffn()
        ),
    ];
    let of = |kind| (0..config.layers()).filter(|&layer| config.kind(layer) == kind).count();
    let (attention, convolutions) = (of(LayerKind::Attention), of(LayerKind::Convolution));
    let (heads, kv_heads, head_dim) = (config.heads(), config.kv_heads(), config.head_dim());
    let within = if convolutions > 0 { format!(" in {attention} layers") } else { String::new() };
    if convolutions > 0 {
        lines.push(format!("convolution   over {} tokens in {convolutions} layers", config.history() + 1));
    }
    lines.push(format!("attention     {heads} query and {kv_heads} key/value heads of {head_dim}{within}"));
    lines.extend(config.rope().map(|rope| format!("rope          theta {}, {}", rope.theta, scaling(&rope.scaling))));
    lines.push(format!("context       {}, vocabulary {}", config.max_positions(), config.vocab()));
    if let ModelConfig::Whisper(config) = config {
        let StackSizes { layers, heads, ffn } = config.encoder;
        lines.push(format!("encoder       {layers} layers of {heads} heads, feed-forward {ffn}"));
        lines.push(format!("sound         {} bands in {} frames", config.mels, config.frames()));
    }
    lines
}

/// The name of an architecture, and what its layers have besides the matrices.
fn family(config: &ModelConfig) -> (String, Vec<&'static str>) {
    let named = match config {
        ModelConfig::Llama(config) => vec![
            (config.qkv_bias, "q/k/v bias"),
            (config.o_bias, "output bias"),
            (config.mlp_bias, "feed-forward bias"),
            (config.qk_norm, "q/k norm"),
        ],
        ModelConfig::Lfm2(config) => vec![(config.conv_bias, "convolution bias"), (true, "q/k norm")],
        ModelConfig::Whisper(_) => vec![(true, "biases")],
    };
    let name = match config {
        ModelConfig::Llama(config) => format!("{:?}", config.architecture),
        ModelConfig::Lfm2(_) | ModelConfig::Whisper(_) => config.family().to_owned(),
    };
    (name, named.into_iter().filter_map(|(present, part)| present.then_some(part)).collect())
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
