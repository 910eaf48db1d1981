//! Everything between text and token ids: tokenizer, chat template, sampler, streamed output.
//!
//! Nothing here reads a file, the clock or the environment; callers pass bytes, dates and seeds.

mod bpe_json;
mod model;
mod pieces;
mod pretokenizer;
mod sampler;
mod stream;
mod template;
mod to_gguf;
mod tokenizer;
mod vocab_gguf;

pub use model::{BundleText, TextModel, bundle_text};
pub use sampler::{Sampler, Sampling, SamplingConfig};
pub use stream::{Held, StopTexts, TextStream};
pub use template::{ChatTemplate, Date, Message};
pub use to_gguf::gguf_vocab;
pub use tokenizer::Tokenizer;
pub use vocab_gguf::tokenizer_json;

use npuc::diag::{Code, Diagnostic};

/// A fault of the tokenizer's data.
fn bad_tokenizer(message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(Code::BadTokenizer, message)
}
