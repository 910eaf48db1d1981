//! What CTranslate2 calls Whisper's weights.
//!
//! A container has some projections in one: the rows of the queries, keys and values of a layer follow each other. Here such
//! a part has the name of these rows, e.g. `decoder/layer_0/self_attention/linear_0/weight[512..1024]`.

use crate::tensor::rows_name;

/// The keys' projections, which are parts of others.
pub(super) const KEYS: [&str; 2] = ["self_attn.k_proj", "encoder_attn.k_proj"];

/// Modules in the file, and the modules whose rows they hold, in their order.
type Table = [(&'static str, &'static [&'static str])];

const OUTER: &Table = &[
    ("conv1", &["conv1"]),
    ("conv2", &["conv2"]),
    ("position_encodings", &["embed_positions"]),
    ("layer_norm", &["layer_norm"]),
    ("embeddings", &["embed_tokens"]),
    ("projection", &["lm_head"]),
];

const LAYER: &Table = &[
    ("self_attention/layer_norm", &["self_attn_layer_norm"]),
    ("self_attention/linear_0", &["self_attn.q_proj", KEYS[0], "self_attn.v_proj"]),
    ("self_attention/linear_1", &["self_attn.out_proj"]),
    ("attention/layer_norm", &["encoder_attn_layer_norm"]),
    ("attention/linear_0", &["encoder_attn.q_proj"]),
    ("attention/linear_1", &[KEYS[1], "encoder_attn.v_proj"]),
    ("attention/linear_2", &["encoder_attn.out_proj"]),
    ("ffn/layer_norm", &["final_layer_norm"]),
    ("ffn/linear_0", &["fc1"]),
    ("ffn/linear_1", &["fc2"]),
];

/// What a module's weight and bias are called.
fn kinds(module: &str) -> [&'static str; 2] {
    match module.rsplit('/').next() {
        Some("layer_norm") => ["gamma", "beta"],
        Some("position_encodings") => ["encodings", "bias"],
        Some(_) | None => ["weight", "bias"],
    }
}

/// The modules whose rows a stored tensor holds.
pub(super) fn parts(stored: &str) -> Option<&'static [&'static str]> {
    Some(split(stored)?.parts)
}

/// A stored name, taken apart.
struct Split<'n> {
    side: &'n str,
    layer: Option<&'n str>,
    parts: &'static [&'static str],
    kind: &'static str,
}

fn split(stored: &str) -> Option<Split<'_>> {
    let (path, kind) = stored.rsplit_once('/')?;
    let (side, rest) = path.split_once('/')?;
    let (layer, module, table) = match rest.strip_prefix("layer_").and_then(|rest| rest.split_once('/')) {
        Some((layer, module)) if layer.bytes().all(|byte| byte.is_ascii_digit()) => (Some(layer), module, LAYER),
        Some(_) | None => (None, rest, OUTER),
    };
    let (_, parts) = table.iter().find(|(name, _)| *name == module)?;
    let kind = ["weight", "bias"][kinds(module).iter().position(|name| *name == kind)?];
    ["encoder", "decoder"].contains(&side).then_some(Split { side, layer, parts, kind })
}

/// The canonical name of a stored tensor, or of the rows that one of its parts has in a model of that width; `None` if Whisper
/// has no such weight.
pub(super) fn canonical(stored: &str, hidden: usize) -> Option<String> {
    let (stored, part) = match stored.strip_suffix(']').and_then(|rest| rest.rsplit_once('[')) {
        Some((stored, rows)) => (stored, rows.split_once("..")?.0.parse::<usize>().ok()?.checked_div(hidden)?),
        None => (stored, 0),
    };
    let Split { side, layer, parts, kind } = split(stored)?;
    let module = parts.get(part)?;
    let side = if side == "encoder" { "encoder." } else { "" };
    Some(match layer {
        Some(layer) => format!("{side}layers.{layer}.{module}.{kind}"),
        None => format!("{side}{module}.{kind}"),
    })
}

/// The name that the container gives a canonical name, of the rows where it is a part.
pub(super) fn stored(canonical: &str, hidden: usize) -> String {
    let (side, rest) = match canonical.strip_prefix("encoder.") {
        Some(rest) => ("encoder", rest),
        None => ("decoder", canonical),
    };
    let (layer, rest, table) = match rest.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, rest)) => (format!("layer_{layer}/"), rest, LAYER),
        None => (String::new(), rest, OUTER),
    };
    let (module, kind) = rest.rsplit_once('.').unwrap_or((rest, "weight"));
    let found = table.iter().find_map(|(name, parts)| Some((name, parts, parts.iter().position(|p| *p == module)?)));
    let Some((name, parts, part)) = found else { return canonical.to_owned() };
    let kind = kinds(name)[usize::from(kind == "bias")];
    let whole = format!("{side}/{layer}{name}/{kind}");
    match parts.len() {
        1 => whole,
        _ => rows_name(&whole, &(part * hidden..(part + 1) * hidden)),
    }
}
