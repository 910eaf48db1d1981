//! The front ends: good checkpoints open rightly, and each kind of bad input gets its full message.

// Tables of cases are long.
#![allow(clippy::too_many_lines)]

#[path = "../checkpoints/mod.rs"]
mod checkpoints;
mod config;
mod config_gguf;
mod config_lfm2;
mod ct2;
mod folders;
mod gguf;
mod good;
mod safetensors;
mod tokenizers;
mod weights;
