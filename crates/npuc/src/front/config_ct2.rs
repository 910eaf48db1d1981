//! Whisper's configuration from the tensors of a CTranslate2 container, which has no other: sizes are extents, and a few
//! settings are tensors of one number.
//!
//! Containers say the number of heads. Where one does not, heads are as wide as those of all published Whisper models
//! (A. Radford et al., 2022, and large-v2, large-v3 and turbo): 64. An absent setting means what CTranslate2 takes then.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::config_whisper::{self, Stack, StackSizes, WhisperConfig};
use super::ct2::{Container, Element, StoredTensor};
use super::fields::{Fields, limit};
use crate::diag::{Code, Diagnostic, Error, Result};

/// The name of a head that is not the embedding table.
pub(super) const PROJECTION: &str = "decoder/projection/weight";
/// The name of the embedding table.
const EMBEDDINGS: &str = "decoder/embeddings/weight";
/// The width of a head where the container does not say how many there are.
const HEAD_DIM: usize = 64;

/// Settings of CTranslate2's decoders: the number that Whisper has, what it is, the number that an absent one stands for (source:
/// CTranslate2's `src/layers/transformer.cc`), and the code of another one.
const SETTINGS: [(&str, f64, &str, f64, Code); 5] = [
    ("decoder/activation", 3.0, "3, exact GELU", 0.0, Code::UnsupportedActivation),
    ("decoder/pre_norm", 1.0, "1, norms before attention", 1.0, Code::UnsupportedArchitecture),
    ("decoder/scale_embeddings", 0.0, "0, embeddings as they are stored", 1.0, Code::UnsupportedArchitecture),
    ("decoder/alibi", 0.0, "0, learned positions", 0.0, Code::UnsupportedArchitecture),
    (
        "decoder/start_from_zero_embedding",
        0.0,
        "0, a text that begins with a token",
        0.0,
        Code::UnsupportedArchitecture,
    ),
];

/// Settings that are read elsewhere, or are about more than the model's numbers.
const OTHER_SETTINGS: [&str; 4] =
    ["encoder/num_heads", "decoder/num_heads", "decoder/alignment_heads", "decoder/alignment_layer"];

/// Whether a tensor is a setting and no weight.
pub(super) fn is_setting(name: &str) -> bool {
    OTHER_SETTINGS.contains(&name) || SETTINGS.iter().any(|(setting, ..)| *setting == name)
}

/// The tensors of a container by all their names, and the file's bytes.
pub(super) struct Names<'a> {
    pub(super) by_name: BTreeMap<&'a str, &'a StoredTensor>,
    file: &'a [u8],
}

impl<'a> Names<'a> {
    /// The names in `container`, which was read from `file`.
    pub(super) fn new(container: &'a Container, file: &'a [u8]) -> Names<'a> {
        let own = container.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor));
        let further = container.aliases.iter();
        let further = further.filter_map(|(name, index)| Some((name.as_str(), container.tensors.get(*index)?)));
        Names { by_name: own.chain(further).collect(), file }
    }

    /// The one number of a tensor of one number; `None` for other tensors and other names.
    fn number(&self, name: &str) -> Option<f64> {
        let tensor = self.by_name.get(name)?;
        let bytes = self.file.get(tensor.range.clone())?;
        Some(match tensor.element {
            Element::I8 => i8::from_le_bytes(bytes.try_into().ok()?).into(),
            Element::I16 => i16::from_le_bytes(bytes.try_into().ok()?).into(),
            Element::I32 => i32::from_le_bytes(bytes.try_into().ok()?).into(),
            Element::F32 => f32::from_le_bytes(bytes.try_into().ok()?).into(),
            Element::F16 => half::f16::from_le_bytes(bytes.try_into().ok()?).into(),
            Element::Bf16 => half::bf16::from_le_bytes(bytes.try_into().ok()?).into(),
        })
    }
}

/// The configuration, and a warning where heads had to be counted by their usual width.
///
/// # Errors
/// Settings that Whisper does not have, absent tensors that sizes are read from, sizes out of range, and heads that do not
/// divide the width; all at once, as far as one does not follow from another.
pub(super) fn parse(names: &Names<'_>) -> Result<(WhisperConfig, Option<Diagnostic>)> {
    let mut sizes = Sizes { names, faults: settings(names) };
    let hidden = sizes.extent("encoder/layer_norm/gamma", [1, 0], limit::WIDTH);
    let mut heads_by_width = Vec::new();
    let mut stack = |sizes: &mut Sizes<'_, '_>, side: &str| StackSizes {
        layers: sizes.layers(side),
        ffn: sizes.extent(&format!("{side}/layer_0/ffn/linear_0/weight"), [2, 0], limit::WIDTH),
        heads: sizes.heads(&format!("{side}/num_heads"), hidden, &mut heads_by_width),
    };
    let (encoder, decoder) = (stack(&mut sizes, "encoder"), stack(&mut sizes, "decoder"));
    let range = |name: &str| names.by_name.get(name).map(|tensor| &tensor.range);
    let config = WhisperConfig {
        stack: Stack::Both,
        mels: sizes.extent("encoder/conv1/weight", [3, 1], limit::BANDS),
        hidden,
        encoder,
        decoder,
        source_positions: sizes.extent("encoder/position_encodings/encodings", [2, 0], limit::POSITIONS),
        target_positions: sizes.extent("decoder/position_encodings/encodings", [2, 0], limit::POSITIONS),
        vocab: sizes.extent(EMBEDDINGS, [2, 0], limit::VOCAB),
        tied: range(PROJECTION).is_some() && range(PROJECTION) == range(EMBEDDINGS),
    };
    let mut fields = Fields::new("", |_| None);
    fields.faults = sizes.faults;
    config_whisper::check(&config, ["encoder/num_heads", "decoder/num_heads", "encoder/layer_norm/gamma"], &mut fields);
    Error::check(fields.faults)?;
    let warning = (!heads_by_width.is_empty()).then(|| {
        Diagnostic::warning(Code::BadConfig, "the container does not say how many heads there are")
            .subject(heads_by_width.join(", "))
            .have(format!("heads as wide as those of published Whisper models, {HEAD_DIM}"))
    });
    Ok((config, warning))
}

/// The faults of settings that Whisper does not have.
fn settings(names: &Names<'_>) -> Vec<Diagnostic> {
    let fault = |(name, whisper, need, absent, code): (&str, f64, &str, f64, Code)| {
        let have = match (names.number(name), names.by_name.get(name)) {
            (Some(stored), _) if stored == whisper => return None,
            (Some(stored), _) => stored.to_string(),
            (None, Some(tensor)) => format!("a tensor of shape {}", tensor.shape),
            (None, None) if absent == whisper => return None,
            (None, None) => format!("none, which stands for {absent}"),
        };
        Some(Diagnostic::error(code, "a setting is not Whisper's").subject(name).need(need).have(have))
    };
    SETTINGS.into_iter().filter_map(fault).collect()
}

/// Reads sizes and notes what is wrong with them; a harmless number stands in for those.
struct Sizes<'n, 'a> {
    names: &'n Names<'a>,
    faults: Vec<Diagnostic>,
}

impl Sizes<'_, '_> {
    /// The extent along `axis` of a tensor of that rank.
    fn extent(&mut self, name: &str, [rank, axis]: [usize; 2], range: RangeInclusive<usize>) -> usize {
        let Some(tensor) = self.names.by_name.get(name) else {
            let fault = Diagnostic::error(Code::MissingTensor, "a tensor that the model needs is absent");
            self.faults.push(fault.subject(name));
            return *range.start();
        };
        let fault = match tensor.shape.get(axis) {
            Some(extent) if tensor.shape.len() == rank && range.contains(extent) => return *extent,
            Some(_) if tensor.shape.len() == rank => Diagnostic::error(
                Code::BadConfig,
                "a number of the model is not possible",
            )
            .need(format!("an extent from {} to {} along axis {axis}", range.start(), range.end())),
            Some(_) | None => Diagnostic::error(Code::WrongShape, "a tensor has another shape than the model's")
                .need(format!("{rank} extents")),
        };
        self.faults.push(fault.subject(name).have(&tensor.shape));
        *range.start()
    }

    /// The number of layers that tensors are of, which has no gaps.
    fn layers(&mut self, side: &str) -> usize {
        let start = format!("{side}/layer_");
        let number = |name: &&str| name.strip_prefix(&start)?.split_once('/')?.0.parse::<usize>().ok();
        let numbers: BTreeSet<usize> = self.names.by_name.keys().filter_map(number).collect();
        let absent = (0..numbers.len()).find(|layer| !numbers.contains(layer));
        let fault = match (absent, numbers.last()) {
            (None, Some(_)) if limit::LAYERS.contains(&numbers.len()) => return numbers.len(),
            (None, Some(last)) => Diagnostic::error(Code::BadConfig, "a number of the model is not possible")
                .subject(format!("{start}{last}"))
                .need(format!("{} to {} layers", limit::LAYERS.start(), limit::LAYERS.end()))
                .have(numbers.len()),
            (Some(absent), Some(last)) => Diagnostic::error(Code::MissingTensor, "a layer is absent")
                .subject(format!("{start}{absent}"))
                .have(format!("{} layers, the last of which is {start}{last}", numbers.len())),
            (_, None) => Diagnostic::error(Code::MissingTensor, "the model has no layers").subject(format!("{start}0")),
        };
        self.faults.push(fault);
        *limit::LAYERS.start()
    }

    /// The number of heads; where the container does not say it, by their usual width, with `name` added to `by_width`.
    fn heads(&mut self, name: &str, hidden: usize, by_width: &mut Vec<String>) -> usize {
        let (code, message) = (Code::BadConfig, "a number of the model is not possible");
        let fault = match self.names.number(name) {
            // In range, so that the cast is exact.
            Some(heads) if heads.fract() == 0.0 && limit::HEADS.contains(&(heads as usize)) => return heads as usize,
            Some(heads) => Diagnostic::error(code, message)
                .need(format!("a whole number from {} to {}", limit::HEADS.start(), limit::HEADS.end()))
                .have(heads),
            None if self.names.by_name.contains_key(name) => Diagnostic::error(code, message).need("one number"),
            None if hidden.is_multiple_of(HEAD_DIM) => {
                by_width.push(name.to_owned());
                return hidden / HEAD_DIM;
            }
            None if !self.faults.is_empty() => return 1,
            None => Diagnostic::error(Code::BadConfig, "the container does not say how many heads there are")
                .need(format!("a width that is a multiple of {HEAD_DIM}, that of published models' heads"))
                .have(hidden),
        };
        self.faults.push(fault.subject(name));
        1
    }
}
