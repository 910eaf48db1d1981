//! A model's text side as a program keeps it: tokenizer and chat template, from a checkpoint or a bundle.

use npuc::bundle::TextRecord;
use npuc::diag::{Code, Diagnostic, Result};
use npuc::front::{Checkpoint, TokenizerSource};

use super::{ChatTemplate, Date, Message, Tokenizer, tokenizer_json};

/// Tokenizer and chat template.
#[derive(Debug)]
pub struct TextModel {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template, if the model has one.
    pub template: Option<ChatTemplate>,
}

impl TextModel {
    /// The text side of a checkpoint.
    ///
    /// # Errors
    /// `bad-tokenizer` if its data is malformed or of a kind npuc does not read.
    pub fn from_source(source: &TokenizerSource) -> Result<TextModel> {
        Ok(TextModel { tokenizer: Tokenizer::from_source(source)?, template: ChatTemplate::from_source(source)? })
    }

    /// The text side of a checkpoint, if it has one.
    ///
    /// # Errors
    /// As [`TextModel::from_source`], naming the checkpoint.
    pub fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Option<TextModel>> {
        let text = checkpoint.tokenizer.as_ref().map(TextModel::from_source).transpose();
        text.map_err(|e| e.in_file(&checkpoint.path))
    }

    /// The text side of a bundle.
    ///
    /// # Errors
    /// `bad-tokenizer` as [`TextModel::from_source`].
    pub fn from_bundle(tokenizer_json: &[u8], template: Option<String>, record: &TextRecord) -> Result<TextModel> {
        let special_tokens = record.special_tokens.clone();
        Ok(TextModel {
            tokenizer: Tokenizer::from_json(tokenizer_json)?,
            template: template.map(|template| ChatTemplate { template, special_tokens }),
        })
    }

    /// The ids that put a conversation to the model, up to where its answer begins. The template writes
    /// BOS where the model wants it, so none is added.
    ///
    /// # Errors
    /// `bad-template` if there is no template or it refuses the messages.
    pub fn encode_chat(&self, messages: &[Message], date: Date) -> Result<Vec<u32>> {
        let template = self.template.as_ref().ok_or_else(|| {
            Diagnostic::error(Code::BadTemplate, "the model has no chat template")
                .need(
                    "chat_template in tokenizer_config.json, chat_template.jinja, or tokenizer.chat_template in a GGUF",
                )
                .help("give plain text with -p and without --chat")
        })?;
        self.tokenizer.encode(&template.render(messages, true, date)?, false)
    }
}

/// What a bundle keeps of a checkpoint's text side, next to the tokenizer and template files.
///
/// # Errors
/// `bad-tokenizer` as [`TextModel::from_source`].
pub fn bundle_text(checkpoint: &Checkpoint) -> Result<BundleText> {
    let mut text = BundleText::default();
    text.record.bos = checkpoint.special.bos;
    text.record.eos = checkpoint.special.eos.clone();
    if let (Some(source), Some(model)) = (&checkpoint.tokenizer, TextModel::of_checkpoint(checkpoint)?) {
        text.tokenizer_json = Some(tokenizer_json(source)?.into_owned());
        if let Some(ChatTemplate { template, special_tokens }) = model.template {
            text.chat_template = Some(template);
            text.record.special_tokens = special_tokens;
        }
    }
    Ok(text)
}

/// The text side of a bundle's files.
#[derive(Clone, Debug, Default)]
pub struct BundleText {
    /// The content of the tokenizer's file, if there is a tokenizer.
    pub tokenizer_json: Option<Vec<u8>>,
    /// The content of the template's file, if there is a template.
    pub chat_template: Option<String>,
    /// What the manifest keeps.
    pub record: TextRecord,
}
