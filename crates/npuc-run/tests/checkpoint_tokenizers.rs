//! The tokenizers of the small checkpoints against ids from other programs: llama.cpp for GGUF files, the
//! tokenizers library for folders (`tools/tokenizer_reference.py`).
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use npuc::front;
use npuc_run::text::Tokenizer;
use serde::Deserialize;

mod data;

#[derive(Deserialize)]
struct Row {
    text: String,
    ids: Vec<u32>,
}

/// llama.cpp leaves decomposed letters as they are; Qwen2's own tokenizer composes them, and so does npuc.
const COMPOSED: [(&str, &str); 1] = [("qwen2-q8_0.gguf", "cafe\u{301}")];

#[test]
fn ids_and_texts() {
    let reference = data::checkpoints().join("../tokenizer_reference.json");
    let reference: BTreeMap<String, Vec<Row>> = serde_json::from_slice(&std::fs::read(reference).unwrap()).unwrap();
    let mut models = 0;
    for (model, rows) in reference.iter().filter(|(model, _)| !model.starts_with("SmolLM2")) {
        let checkpoint = front::open(&data::checkpoints().join(model)).unwrap();
        let tokenizer = Tokenizer::from_source(&checkpoint.tokenizer.unwrap()).unwrap();
        for Row { text, ids } in rows {
            if COMPOSED.iter().any(|(name, part)| name == model && text.contains(part)) {
                continue;
            }
            assert_eq!(&tokenizer.encode(text, true).unwrap(), ids, "{model}: {text:?}");
        }
        models += 1;
    }
    assert_eq!(models, 6);
}
