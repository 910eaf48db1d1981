//! Speech: Whisper on a device, and what makes text of it.

mod model;

pub use model::{Encoder, Speech};

use npuc::Result;

/// A Whisper model on any device: 30 s of sound, then tokens about them.
pub trait Recogniser {
    /// Encodes a window, `mel` is `[bands, frames]`. What is fed afterwards is about it; nothing is fed yet.
    fn listen(&mut self, mel: &[f32]) -> Result<()>;
    /// Forgets the tokens fed, but not the window, and feeds these; `each` gets the scores `[vocab]` after every one of them, in
    /// order.
    fn restart(&mut self, prompt: &[u32], each: &mut dyn FnMut(&[f32])) -> Result<()>;
    /// Feeds one token.
    fn feed(&mut self, id: u32) -> Result<()>;
    /// The scores `[vocab]` after the last token fed.
    fn scores(&self) -> &[f32];
    /// The most tokens that can be fed.
    fn capacity(&self) -> usize;
}
