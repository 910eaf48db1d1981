//! `npuc quantize` from the command line: every format against recorded outputs, GPTQ, rotations and scales, work that was
//! broken off, and input that is odd or bad.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

mod model;
mod program;

use model::{COLS, Tiny, UP};
use program::{checkpoint, files, npuc};

/// Runs a command line whose words are separated by spaces, in the folder of the checkpoints; `TMP` is `folder`.
fn call(line: &str, folder: &Path) -> Output {
    let words = line.split_whitespace().map(|word| word.replace("TMP", folder.to_str().unwrap()));
    npuc().current_dir(checkpoint("")).args(words).output().unwrap()
}

/// The report of a quantisation that must succeed, as JSON.
fn quantise(line: &str, folder: &Path) -> Value {
    let output = call(&format!("quantize {line} --json"), folder);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["forecast_bytes"], report["written_bytes"], "{line}");
    report
}

/// What a command says on standard error, with its exit status.
fn said(line: &str, folder: &Path) -> (String, i32) {
    let output = call(line, folder);
    let stderr = String::from_utf8(output.stderr).unwrap().replace(folder.to_str().unwrap(), "TMP");
    (stderr, output.status.code().unwrap())
}

/// Holds a model against recorded outputs.
fn verify(model: &str, reference: &str, gate: &str, folder: &Path) {
    let output = call(&format!("verify {model} --reference {reference} --gate {gate}"), folder);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{model} against {reference}: {stderr}{stdout}");
}

#[path = "quantize/bad.rs"]
mod bad;
#[path = "quantize/formats.rs"]
mod formats;
#[path = "quantize/memory.rs"]
mod memory;
#[path = "quantize/resume.rs"]
mod resume;
