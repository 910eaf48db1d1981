//! The token ids that commands run models on: from a file of ids, from a text, or a few prompts of npuc's own.

use std::path::Path;

use npuc::{Code, Diagnostic, Error, Result};
use npuc_run::corpus::read_text;
use npuc_run::program::Program;
use npuc_run::text::TextModel;

use crate::args::CorpusArgs;

/// What a model is asked where the user gives nothing.
const PROMPTS: [&str; 3] = [
    "The capital of France is",
    "Water boils at a lower temperature on a mountain, because",
    "def add(a, b):\n    return a + b\n\ndef multiply(a, b):",
];
/// Ids of a prompt for a model without a tokenizer.
const PROMPT_IDS: u32 = 12;

/// The model's tokenizer and template, where text cannot do without.
pub(crate) fn text_model<'a>(program: &'a Program, model: &Path) -> Result<&'a TextModel> {
    let text = program.text.as_ref().map_err(Clone::clone)?;
    text.as_ref().ok_or_else(|| {
        Diagnostic::error(Code::NoTokenizer, "the model has no tokenizer, so it cannot read text")
            .file(model)
            .need("tokenizer.json in the folder, or a GGUF with tokenizer metadata")
            .help("give token ids with --ids FILE")
            .into()
    })
}

/// The ids of the flags, if there are any.
///
/// Errors: a file that cannot be read or is not what it should be, ids outside the vocabulary.
pub(crate) fn given(args: &CorpusArgs, program: &Program, model: &Path) -> Result<Option<Vec<u32>>> {
    match (&args.text, &args.ids) {
        (Some(file), _) => {
            let tokenizer = &text_model(program, model)?.tokenizer;
            tokenizer.encode(&read_text(file)?, true).map(Some).map_err(|e| e.in_file(file))
        }
        (None, Some(file)) => {
            let ids = read_ids(file)?;
            let vocab = program.config.vocab();
            if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
                let fault = Diagnostic::error(Code::BadTokenId, "a token id is outside the vocabulary").file(file);
                return Err(fault.need(format!("ids below {vocab}")).have(id).into());
            }
            Ok(Some(ids))
        }
        (None, None) => Ok(None),
    }
}

/// A few short prompts of npuc's own: texts where the model has a tokenizer.
pub(crate) fn prompts(program: &Program) -> Result<Vec<Vec<u32>>> {
    let vocab = program.config.vocab() as u32;
    match &program.text {
        Ok(Some(text)) => PROMPTS.iter().map(|prompt| text.tokenizer.encode(prompt, true)).collect(),
        Ok(None) | Err(_) => {
            Ok((1..4).map(|seed| (0..PROMPT_IDS).map(|i| (i * 7919 + seed * 131) % vocab).collect()).collect())
        }
    }
}

/// The ids of a file, or of standard input for `-`.
pub(crate) fn read_ids(path: &Path) -> Result<Vec<u32>> {
    let text =
        if path == Path::new("-") { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) };
    let text =
        text.map_err(|e| Diagnostic::error(Code::Unreadable, format!("cannot read the file: {e}")).file(path))?;
    let words = text.split(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']')).filter(|word| !word.is_empty());
    let id = |word: &str| {
        word.parse().map_err(|_| {
            let fault = Diagnostic::error(Code::BadTokenId, "the file has something other than token ids").file(path);
            fault.need("whole numbers separated by white space or commas").have(word).into()
        })
    };
    words.map(id).collect()
}

/// An id out of range is the file's fault.
pub(crate) fn name_ids_file(error: Error, file: &Path) -> Error {
    let from_ids = error.diagnostics().iter().all(|fault| fault.code == Code::BadTokenId);
    if from_ids { error.in_file(file) } else { error }
}
