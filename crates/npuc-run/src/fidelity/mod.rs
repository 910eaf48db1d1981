//! Fidelity: how close a model's scores are to a reference's, and where two forms of a model part.
//!
//! `docs/fidelity.md` defines every figure with its formula; the code here is that page.

mod board;
mod emulated;
mod figures;
mod gate;
mod modules;
mod pairs;
mod reference;
mod speech;
mod sqnr;
mod text;
mod trace;
mod values;
mod whole_numbers;
mod windows;
mod words;

pub use board::{BoardFigures, compare_board, write_golden};
pub use emulated::emulated;
pub(crate) use figures::cosine;
pub use figures::{Fidelity, best_id};
pub use gate::Gate;
pub use modules::compare_modules;
pub use reference::{Reference, compare};
pub use speech::{
    HeardFidelity, MOST_IDS, SpeechFidelity, SpeechReference, Texts, compare_speech, compare_speech_reference,
};
pub use sqnr::{Layers, ValueFidelity, layers};
pub(crate) use text::kl;
pub use text::{CosineBin, Kl, Perplexity, TextFigures, compare_text, perplexity};
pub use trace::{Difference, Distance, Tracer, Unpaired, Where};
pub use values::OfStep;
pub use whole_numbers::{WholeNumbers, whisper_in_whole_numbers};
pub use windows::{DEFAULT_CONTEXT, Windows, check_context};
pub use words::{word_errors, words};
