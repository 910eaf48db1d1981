//! Audio for Whisper: a WAV file becomes samples at 16 kHz ([`resample::to_16k`]) and these become log-mel windows
//! ([`mel`]).
//!
//! What can be wrong about audio is found when it is read ([`wav::read`], [`Audio::new`]); behind that nothing fails.
//!
//! ```no_run
//! # fn main() -> npuc::diag::Result<()> {
//! use npuc_audio::{mel::{Bands, Extractor}, resample::to_16k, wav};
//! let speech = to_16k(wav::read("speech.wav".as_ref())?);
//! for window in Extractor::new(Bands::Mel80).spectrogram(&speech).windows() {
//!     println!("{}: {} frames of sound", window.start_sample, window.content_frames);
//! }
//! # Ok(())
//! # }
//! ```

mod audio;
mod filters;
pub mod mel;
pub mod resample;
pub mod wav;

pub use audio::{Audio, MAX_MAGNITUDE, MAX_RATE_HZ, MIN_RATE_HZ, Mono16k};
