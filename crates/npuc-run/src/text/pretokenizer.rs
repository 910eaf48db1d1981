//! How GGUF's `tokenizer.ggml.pre` names split text before byte-pair merging.
//!
//! Each row holds the regular expressions of the models' own `tokenizer.json`, applied one after the other, each
//! match and each gap becoming a piece of its own. A name that is not in the table is refused: a wrong split gives
//! ids that look plausible and are not the ones the model was trained on.

use npuc::diag::Result;
use serde_json::{Value, json};

use super::bad_tokenizer;

/// One way to split text.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    /// The values of `tokenizer.ggml.pre` that mean it.
    names: &'static [&'static str],
    /// Regular expressions, applied in this order.
    splits: &'static [&'static str],
    /// Text is brought into normal form C first.
    nfc: bool,
    /// A piece that is a token is taken as it is, without looking at the merges.
    pub(super) ignore_merges: bool,
    /// Whether a text begins with the BOS id where the file does not say.
    pub(super) add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// The common case: no normal form, merges decide, no BOS.
const PLAIN: PreTokenizer = PreTokenizer { names: &[], splits: &[], nfc: false, ignore_merges: false, add_bos: false };

static TABLE: &[PreTokenizer] = &[
    PreTokenizer { names: &["default"], splits: &[r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], ..PLAIN },
    PreTokenizer { names: &["gpt-2", "phi-2"], splits: &[GPT2], ..PLAIN },
    PreTokenizer { names: &["smollm", "starcoder", "refact"], splits: &[DIGIT, GPT2], ..PLAIN },
    PreTokenizer { names: &["command-r"], splits: &[DIGIT, GPT2], nfc: true, ..PLAIN },
    PreTokenizer { names: &["olmo"], splits: &[GPT2], nfc: true, ..PLAIN },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "lfm2"],
        splits: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    PreTokenizer { names: &["dbrx"], splits: &[LLAMA3], ..PLAIN },
    PreTokenizer { names: &["qwen2"], splits: &[QWEN2], nfc: true, ..PLAIN },
    PreTokenizer { names: &["deepseek-r1-qwen"], splits: &[QWEN2], ..PLAIN },
    PreTokenizer { names: &["tekken"], splits: &[TEKKEN], ignore_merges: true, add_bos: true, ..PLAIN },
    PreTokenizer { names: &["gpt-4o", "llama4"], splits: &[GPT4O], ..PLAIN },
    PreTokenizer {
        names: &["deepseek-coder"],
        splits: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGIT],
        ..PLAIN
    },
    PreTokenizer { names: &["deepseek-v3"], splits: &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3], ..PLAIN },
];

impl PreTokenizer {
    /// The row that `tokenizer.ggml.pre` names.
    pub(super) fn named(pre: Option<&str>) -> Result<&'static PreTokenizer> {
        let supported = || TABLE.iter().flat_map(|row| row.names).copied().collect::<Vec<_>>().join(", ");
        let Some(pre) = pre else {
            return Err(bad_tokenizer("the file does not say how its tokenizer splits text")
                .subject("tokenizer.ggml.pre")
                .need(format_args!("one of {}", supported()))
                .have("no such key")
                .help("convert the checkpoint to GGUF again with a current converter")
                .into());
        };
        TABLE.iter().find(|row| row.names.contains(&pre)).ok_or_else(|| {
            bad_tokenizer("the tokenizer splits text in a way npuc does not know")
                .subject("tokenizer.ggml.pre")
                .need(format_args!("one of {}", supported()))
                .have(format_args!("{pre:?}"))
                .help("use the checkpoint's Hugging Face folder, whose tokenizer.json says how to split")
                .into()
        })
    }

    /// The first name of the row that splits text as a `tokenizer.json` does, if there is one.
    pub(super) fn of_json(json: &Value) -> Option<&'static str> {
        let splits = splits_of(&json["pre_tokenizer"])?;
        let nfc = json["normalizer"]["type"].as_str() == Some("NFC");
        let row = TABLE.iter().find(|row| row.splits == splits && row.nfc == nfc)?;
        row.names.first().copied()
    }

    /// The `normalizer` of a `tokenizer.json`.
    pub(super) fn normalizer_json(&self) -> Value {
        if self.nfc { json!({"type": "NFC"}) } else { Value::Null }
    }

    /// The `pre_tokenizer` of a `tokenizer.json`.
    pub(super) fn pre_tokenizer_json(&self) -> Value {
        let split = |regex: &&str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let steps: Vec<Value> = self.splits.iter().map(split).chain([bytes]).collect();
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}

/// The regular expressions that a `pre_tokenizer` isolates, in order; `None` for steps of another kind.
fn splits_of(step: &Value) -> Option<Vec<&str>> {
    match step["type"].as_str()? {
        "Sequence" => {
            let steps: Option<Vec<Vec<&str>>> = step["pretokenizers"].as_array()?.iter().map(splits_of).collect();
            Some(steps?.concat())
        }
        "Split" if step["behavior"] == "Isolated" && step["invert"] != true => {
            Some(vec![step["pattern"]["Regex"].as_str()?])
        }
        "Digits" if step["individual_digits"] == true => Some(vec![DIGIT]),
        "ByteLevel" if step["use_regex"] == false => Some(Vec::new()),
        "ByteLevel" if step["add_prefix_space"] != true => Some(vec![GPT2]),
        _ => None,
    }
}
