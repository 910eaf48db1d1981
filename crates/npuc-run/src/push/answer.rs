//! What adb's answer to a step has to be, and what is wrong when it is another: for npuc itself, and as a line of the
//! script.

use npuc::back::shell::quoted;
use npuc::{Code, Diagnostic};

use super::libraries::{Version, older};

/// What the answer to a call that ended well has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Anything.
    Any,
    /// This word.
    Word(String),
    /// One of these chips, or a variant of one: its number and what is no digit (`SM8650P`).
    Chip {
        /// The target's name.
        target: String,
        /// The numbers.
        chips: Vec<String>,
    },
    /// The table of `df -Pk` with at least so many bytes free.
    FreeBytes {
        /// What the files take.
        bytes: u64,
        /// The folder that was asked about.
        folder: String,
    },
    /// Anything: Qualcomm's libraries are there.
    Libraries,
    /// A version of libraries that is not older.
    Version {
        /// The version that made the context binaries.
        need: Version,
        /// Whether no version at all will do.
        unknown_is_fine: bool,
    },
    /// This number of bytes.
    Bytes {
        /// The size on this machine.
        bytes: u64,
        /// The file's name.
        name: String,
    },
}

impl Answer {
    /// What is wrong with an answer, from which carriage returns are taken.
    pub(super) fn fault(&self, answer: &str) -> Option<Diagnostic> {
        let answer = answer.replace('\r', "");
        let answer = answer.trim();
        let failed = |message: &str| Diagnostic::error(Code::ToolFailed, message);
        match self {
            Answer::Any | Answer::Libraries => None,
            Answer::Word(word) => (answer != word).then(|| failed("the phone is not ready").need(word).have(answer)),
            Answer::Chip { target, chips } => (!chips.iter().any(|chip| is_chip(answer, chip))).then(|| {
                let fault = Diagnostic::error(Code::Misfit, "the phone has another chip than the bundle was built for");
                let have = if answer.is_empty() { "no ro.soc.model" } else { answer };
                let fault = fault.need(format!("{} ({target})", chips.join(" or "))).have(have);
                fault.help("build a bundle for this chip: `npuc targets` lists those that npuc knows")
            }),
            Answer::FreeBytes { bytes, folder } => match free_bytes(answer) {
                Some(free) if free >= *bytes => None,
                free => {
                    let fault = Diagnostic::error(Code::ByteLimit, "the phone has too little space").subject(folder);
                    let have = free.map_or("no figure from df".to_owned(), |free| format!("{free} bytes free"));
                    let help = format!("remove what is not needed there, e.g. an earlier bundle in {folder}/bundle");
                    Some(fault.need(format!("{bytes} bytes")).have(have).help(help))
                }
            },
            Answer::Version { need, unknown_is_fine } => match Version::parse(answer) {
                Some(have) => have.is_older_than(need).then(|| older(need, &have)),
                None if *unknown_is_fine => None,
                None => {
                    let fault =
                        Diagnostic::error(Code::MissingTool, "the version of the phone's libraries is not known");
                    let have = if answer.is_empty() { "none in the file" } else { answer };
                    let fault = fault.need(format!("{need} or later")).have(have);
                    Some(fault.help("give --libraries, or push all the same with --force"))
                }
            },
            Answer::Bytes { bytes, name } => (answer != bytes.to_string()).then(|| {
                let fault = failed("a file came to the phone in another size").subject(name);
                fault.need(format!("{bytes} bytes")).have(answer)
            }),
        }
    }

    /// What the user can do when the call itself fails.
    pub(super) const fn help(&self) -> Option<&'static str> {
        match self {
            Answer::Libraries => {
                Some("give --libraries: the folder of Qualcomm's SDK (QAIRT) with the phone's libraries")
            }
            Answer::Word(_) => Some("`adb devices` lists the phones; allow this computer on the phone's screen"),
            Answer::Any
            | Answer::Chip { .. }
            | Answer::FreeBytes { .. }
            | Answer::Version { .. }
            | Answer::Bytes { .. } => None,
        }
    }

    /// The line of the script that checks `$answer` in the same way.
    pub(super) fn script(&self) -> Option<String> {
        match self {
            Answer::Any | Answer::Libraries => None,
            Answer::Word(word) => Some(format!("is {}", quoted(word))),
            Answer::Chip { chips, .. } => {
                let chips: Vec<String> = chips.iter().map(|chip| quoted(chip)).collect();
                Some(format!("is_chip {}", chips.join(" ")))
            }
            Answer::FreeBytes { bytes, .. } => Some(format!("has_free {bytes}")),
            Answer::Version { need, unknown_is_fine } => {
                let unless = if *unknown_is_fine { "is_no_version || " } else { "" };
                Some(format!("{unless}is_not_older {need}"))
            }
            Answer::Bytes { bytes, .. } => Some(format!("is {bytes}")),
        }
    }
}

/// Whether a phone's `ro.soc.model` names that chip.
fn is_chip(answer: &str, chip: &str) -> bool {
    answer.strip_prefix(chip).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The fourth figure of the last line of `df -Pk`, in bytes.
fn free_bytes(answer: &str) -> Option<u64> {
    let free: u64 = answer.lines().last()?.split_whitespace().nth(3)?.parse().ok()?;
    free.checked_mul(1024)
}
