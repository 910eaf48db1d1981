//! Transcription without a model: a scripted recogniser says what it hears, openai/whisper says what must come of it.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod fake;
mod formats;
mod hearing;
mod rules;
mod tokens;
