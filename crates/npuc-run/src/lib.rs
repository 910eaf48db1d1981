//! The runner: opens a bundle or checkpoint as a [`program::Program`], keeps a conversation's state in a
//! [`session::Session`], turns text into tokens and back and sound into text, and compares results with references.

pub mod calibrate;
pub mod contexts;
pub mod corpus;
pub mod device;
pub mod dump;
pub mod estimate;
pub mod fidelity;
pub mod generate;
pub mod inspect;
pub mod integer;
pub mod memory;
pub mod modules;
pub mod program;
pub mod push;
pub mod quantise;
pub mod session;
pub mod solve;
pub mod sound;
pub mod speech;
pub mod text;
pub mod toolchain;
pub mod vendor_log;
