//! Command lines of `ncc-tflite`, MediaTek's offline compiler, which makes a `.dla` of a TFLite file.
//!
//! The compiler is not public, and npuc does not contain it. The same arguments go into a script ([`Plan::script`])
//! and to npuc's own runner; both call the compiler in the folder of the files.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use crate::back::shell::{comment, quoted};
use crate::diag::{Code, Diagnostic, Result};
use crate::model::StepShape;
use crate::target::{Number, Precision, Question, Target};

#[cfg(test)]
mod tests;

/// The name of the script.
pub const SCRIPT_FILE: &str = "compile.sh";

/// The name of the compiler.
pub const PROGRAM: &str = "ncc-tflite";

/// What a graph is for; MediaTek's toolkit compiles the two with different flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Many tokens at once.
    Prompt,
    /// One token.
    Generation,
}

impl Role {
    /// The role of a step shape.
    pub const fn of(shape: StepShape) -> Role {
        if shape.tokens == 1 { Role::Generation } else { Role::Prompt }
    }

    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Prompt => "prompt",
            Role::Generation => "generation",
        }
    }
}

/// A file to compile. Paths are relative to the folder, with `/` between folders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The TFLite file.
    pub tflite: String,
    /// The file to make.
    pub dla: String,
    /// What its graph is for.
    pub role: Role,
}

impl File {
    /// The files of a graph that was exported under `stem`.
    pub fn of(stem: &str, shape: StepShape) -> File {
        File { tflite: format!("{stem}.tflite"), dla: format!("{stem}.dla"), role: Role::of(shape) }
    }
}

/// One call of the compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What it compiles.
    pub file: File,
    /// The flags, without the names of files.
    pub flags: Vec<String>,
}

impl Line {
    /// The arguments, for a call in the folder of the files. The output goes to [`Line::partial`].
    pub fn arguments(&self) -> Vec<String> {
        // `./` keeps a name that begins with a dash from being read as a flag.
        let files = ["-d".to_owned(), format!("./{}", self.partial()), format!("./{}", self.file.tflite)];
        self.flags.iter().cloned().chain(files).collect()
    }

    /// The name of the output until it is whole. It keeps the ending, in case the compiler looks at it.
    pub fn partial(&self) -> String {
        format!("{}.part.dla", self.file.dla.strip_suffix(".dla").unwrap_or(&self.file.dla))
    }

    /// The name of the file that keeps what the compiler says.
    pub fn log(&self) -> String {
        format!("{}.log", self.file.dla)
    }
}

/// All calls for a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The chip's name and summary.
    target: String,
    /// The name of the precision.
    precision: String,
    /// One call a file, in the order of the files.
    pub lines: Vec<Line>,
    /// What the user has to know.
    pub warnings: Vec<Diagnostic>,
}

/// The calls that compile `files` for a target, with the flags of the target file and those that lift limits.
///
/// # Errors
/// A target that `ncc-tflite` does not compile for ([`Code::NoBackEnd`]); a name that is no relative path, or two
/// files of one name ([`Code::BadArgument`]).
pub fn plan(target: &Target, question: &Question, files: &[File]) -> Result<Plan> {
    let precision = &question.precision;
    let chip: Vec<String> = target.flags_for(precision).into_iter().map(str::to_owned).collect();
    if !chip.iter().any(|flag| flag.starts_with("--arch=")) {
        return Err(Diagnostic::error(Code::NoBackEnd, format!("{PROGRAM} does not compile for {}", target.name))
            .need("a target whose file names the flag --arch")
            .have(&target.name)
            .into());
    }
    check_names(files)?;
    let line = |file: &File| {
        let lifting = question.flags.iter().flat_map(|flag| lifting(flag, precision));
        let by_role = by_role(file.role, precision).iter().map(|flag| (*flag).to_owned());
        let flags = chip.iter().cloned().chain(lifting).chain(by_role).collect();
        Line { file: file.clone(), flags }
    };
    Ok(Plan {
        target: format!("{} ({})", target.name, target.summary),
        precision: precision.name.clone(),
        lines: files.iter().map(line).collect(),
        warnings: question.flags.iter().filter_map(|flag| float_warning(flag, precision)).collect(),
    })
}

fn check_names(files: &[File]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in files.iter().flat_map(|file| [&file.tflite, &file.dla]) {
        let fault = |message: &str| Diagnostic::error(Code::BadArgument, message).subject(name);
        let plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        if name.is_empty() || name.contains('\0') || !plain {
            return Err(fault("a file cannot have this name").need("a path inside the folder").into());
        }
        if !seen.insert(name) {
            return Err(fault("two files have one name").need("a name of its own for each file").into());
        }
    }
    Ok(())
}

/// A flag that lifts a limit, with those that go together with it.
///
/// Source: users' command lines give `--gno=LTS` together with the other two, always on integer graphs; MediaTek's
/// staff want the smallest set of flags on float graphs, so there it goes alone.
fn lifting(flag: &str, precision: &Precision) -> Vec<String> {
    let own = format!("--{flag}");
    if flag.starts_with("gno=") && !precision.activation.is_float() {
        return vec![own, "--gno-exp".to_owned(), "--gno-non-4d-tiling".to_owned()];
    }
    vec![own]
}

/// The flags that depend on what a graph is for.
///
/// Source: users' command lines for Genio 720 and Dimensity chips give `--split-16a4w-conv-oc` to the generation graph of
/// 4-bit weights and 16-bit activations only.
fn by_role(role: Role, precision: &Precision) -> &'static [&'static str] {
    let weight = precision.weight.map(|format| format.number);
    match (role, precision.activation, weight) {
        (Role::Generation, Number::Int16, Some(Number::Int4)) => &["--split-16a4w-conv-oc"],
        (Role::Prompt | Role::Generation, _, _) => &[],
    }
}

fn float_warning(flag: &str, precision: &Precision) -> Option<Diagnostic> {
    precision.activation.is_float().then(|| {
        Diagnostic::warning(Code::VendorRefusal, format!("{PROGRAM} may refuse a float graph for the flag --{flag}"))
            .need("the smallest set of flags on float graphs (vendor: MediaTek's staff)")
            .have(format!("--{flag} at {}", precision.name))
            .help("without the flag, the parts that `npuc check` names bring the graph under the limit")
            .help("with `--precision 8W16A` or `4W16A` the flag is in use")
    })
}

impl Plan {
    /// A script for a POSIX shell that makes all the calls, stops at the first refusal and names its log.
    pub fn script(&self) -> String {
        let mut text =
            HEAD.replace("@target@", &comment(&self.target)).replace("@precision@", &comment(&self.precision));
        for (index, line) in self.lines.iter().enumerate() {
            let what = format!(
                "{} of {}: the {} graph {}",
                index + 1,
                self.lines.len(),
                line.file.role.name(),
                line.file.tflite
            );
            let names = [what, format!("./{}", line.file.dla), format!("./{}", line.partial())];
            let words: Vec<String> = names.iter().chain(&line.arguments()).map(|word| quoted(word)).collect();
            text.push_str(&format!("\ncompile {}\n", words.join(" ")));
        }
        text.push_str("\nprintf '%s\\n' 'All files are compiled.'\n");
        text
    }
}

const HEAD: &str = r#"#!/bin/sh
# Compiles the TFLite files beside this script for @target@
# in the precision @precision@, with ncc-tflite, MediaTek's offline compiler. npuc wrote it.
#
# Every file becomes a .dla; what ncc-tflite says of it is kept in a .dla.log. The first refusal ends the script,
# and `npuc explain LOG` tells what it means.
set -eu

case $0 in
*/*) CDPATH='' cd -- "${0%/*}/" ;;
esac

if ! command -v ncc-tflite >/dev/null 2>&1; then
    printf '%s\n' "compile.sh: ncc-tflite is not on the PATH. It is part of MediaTek's NeuroPilot SDK: add the SDK's" \
        "  neuron_sdk/host/bin to PATH and neuron_sdk/host/lib to LD_LIBRARY_PATH." >&2
    exit 4
fi

# compile WHAT OUTPUT PARTIAL ARGUMENT...
compile() {
    what=$1 output=$2 partial=$3
    shift 3
    printf '%s\n' "$what"
    rm -f "$partial" "$output"
    status=0
    ncc-tflite "$@" >"$output.log" 2>&1 || status=$?
    if [ "$status" -eq 0 ] && [ -s "$partial" ]; then
        mv "$partial" "$output"
        return
    fi
    rm -f "$partial"
    printf '%s\n' "compile.sh: ncc-tflite ended with status $status and did not make $output." \
        "  Its answer is in $output.log" "  What it means: npuc explain \"$output.log\"" >&2
    exit 1
}
"#;
