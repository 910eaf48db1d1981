//! Decides by path and content what a checkpoint is, and opens it.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Checkpoint, from_ct2, from_gguf, from_hf, name_list};
use crate::diag::{Code, Diagnostic, Error, Result};

/// What can be opened, for messages.
const ACCEPTED: &str = "a folder with config.json and safetensors, a .gguf file, a folder with one .gguf file, or a folder with \
     CTranslate2's model.bin";

/// Opens the checkpoint at `path`: a Hugging Face folder, a file of such a folder (`config.json` or one of its
/// safetensors files), a GGUF file, a folder with exactly one GGUF file, a folder of CTranslate2's, or the `model.bin` of one.
/// No weights are read, but for three cases: the rotary factors of a GGUF file, a head stored beside a tied one, which are
/// compared, and biases of CTranslate2's that must be zeros.
///
/// # Errors
/// `UnknownFormat` for anything else, and whatever the reader of the form finds wrong.
pub fn open(path: &Path) -> Result<Checkpoint> {
    let kind = fs::metadata(path)
        .map_err(|e| Diagnostic::error(Code::Unreadable, format!("cannot open the checkpoint: {e}")).file(path))?;
    if kind.is_dir() { open_folder(path) } else { open_file(path) }
}

fn open_folder(folder: &Path) -> Result<Checkpoint> {
    let names = file_names(folder)?;
    let has = |name: &str| names.iter().any(|n| n == name);
    let ggufs: Vec<&String> = names.iter().filter(|name| name.ends_with(".gguf")).collect();
    let weights = has(from_hf::SINGLE) || has(from_hf::INDEX);
    match ggufs.as_slice() {
        [gguf] if !weights => return open_file(&folder.join(gguf)),
        // Its config.json is not Hugging Face's.
        [] if !weights && has(from_ct2::MODEL) => return from_ct2::open(folder),
        _ if has("config.json") => return from_hf::open(folder),
        _ => {}
    }
    if let Some(part) = names.iter().find(|name| is_part(name)) {
        return Err(part_fault(&folder.join(part)).into());
    }
    let unknown = Diagnostic::error(Code::UnknownFormat, "the folder holds no checkpoint that npuc can read");
    let fault = match ggufs.len() {
        0 if weights => unknown.need("config.json beside the weights"),
        0 => unknown.need(ACCEPTED),
        _ => Diagnostic::error(Code::UnknownFormat, "the folder holds several GGUF files")
            .need("one of them")
            .help("give the path of the file itself"),
    };
    let is_pair = has("encoder") && has("decoder");
    let fault = match is_pair {
        true => {
            fault.help("Whisper's two bundles are for npuc transcribe and npuc verify; other commands take one of them")
        }
        false => fault,
    };
    let have = if names.is_empty() { "an empty folder".to_owned() } else { name_list(&names) };
    Err(fault.file(folder).have(have).into())
}

fn open_file(path: &Path) -> Result<Checkpoint> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if is_part(&name) {
        return Err(part_fault(path).into());
    }
    if name.ends_with(".gguf") || starts_with_magic(path)? {
        return from_gguf::open(path);
    }
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        Some(_) | None => PathBuf::from("."),
    };
    let unknown =
        |message: &str| Error::from(Diagnostic::error(Code::UnknownFormat, message).file(path).need(ACCEPTED));
    if name == from_ct2::MODEL {
        return from_ct2::open(&folder);
    }
    if name == "config.json" || name == from_hf::SINGLE || name == from_hf::INDEX {
        return open_folder(&folder);
    }
    if name.ends_with(".safetensors") {
        // A shard stands for its folder; another file must not be answered with the folder's model.
        if fs::read_to_string(folder.join(from_hf::INDEX)).is_ok_and(|index| index.contains(&format!("\"{name}\""))) {
            return open_folder(&folder);
        }
        return Err(unknown("the safetensors file is not part of a model that its folder describes"));
    }
    Err(unknown("the file is of no kind that npuc can read"))
}

fn starts_with_magic(path: &Path) -> Result<bool> {
    let mut magic = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(4).read_to_end(&mut magic))
        .map_err(|e| Diagnostic::error(Code::Unreadable, format!("cannot read the file: {e}")).file(path))?;
    Ok(magic == b"GGUF")
}

/// The names of what a folder holds, sorted.
pub(super) fn file_names(folder: &Path) -> Result<Vec<String>> {
    let unreadable =
        |e: std::io::Error| Diagnostic::error(Code::Unreadable, format!("cannot read the folder: {e}")).file(folder);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        names.push(entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Whether a file is named as one part of a split GGUF: `….gguf.part1of2`, `….gguf-split-a` or
/// `…-00001-of-00002.gguf`.
fn is_part(name: &str) -> bool {
    name.contains(".gguf.part") || name.contains(".gguf-split-") || numbered(name).is_some_and(|count| count > 1)
}

/// The count of parts in a name like `…-00001-of-00002.gguf`.
fn numbered(name: &str) -> Option<u32> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (_, number) = rest.rsplit_once('-')?;
    number.parse::<u32>().ok()?;
    count.parse().ok()
}

fn part_fault(path: &Path) -> Diagnostic {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some((stem, _)) = name.split_once(".gguf.part").or_else(|| name.split_once(".gguf-split-")) else {
        return from_gguf::split_part(path, &name);
    };
    Diagnostic::error(Code::SplitPart, "the file is one part of a GGUF file that was cut into pieces")
        .file(path)
        .need("the whole file")
        .have(name.clone())
        .help(format!("join the pieces in order, `cat {stem}.gguf* > {stem}.joined.gguf`, and give the joined file"))
}
