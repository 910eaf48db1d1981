//! What is opened for a path, and what is said of paths that hold no checkpoint.

use std::fs;

use npuc::front::Source;

use super::checkpoints::small::{HfFolder, small_gguf, write_beside, write_file};
use super::checkpoints::{open_bad, open_good};

const ACCEPTED: &str = "a folder with config.json and safetensors, a .gguf file, a folder with one .gguf file, or a folder with \
    CTranslate2's model.bin";

#[test]
fn a_file_of_a_folder_stands_for_the_folder() {
    let folder = HfFolder::default().write();
    for name in ["", "config.json", "model.safetensors"] {
        let checkpoint = open_good(&folder.path().join(name));
        assert_eq!(checkpoint.source, Source::HuggingFace, "{name}");
        assert_eq!(checkpoint.path, folder.path(), "{name}");
    }
}

#[test]
fn gguf_files_are_found() {
    let (folder, path) = write_file("m.gguf", &small_gguf().bytes());
    for opened in [path.as_path(), folder.path()] {
        assert_eq!(open_good(opened).path, path);
    }
    // Repositories of GGUF files often hold the config.json of the model as well.
    write_beside(folder.path(), "config.json", b"{}");
    assert_eq!(open_good(folder.path()).path, path);
    // Content decides where a name does not.
    let (_folder, path) = write_file("sha256-0123", &small_gguf().bytes());
    assert_eq!(open_good(&path).source, Source::Gguf);
}

#[test]
fn nothing_to_open() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let here = folder.path();
    assert_eq!(
        open_bad(&here.join("absent"), here),
        "error[unreadable]: cannot open the checkpoint: No such file or directory (os error 2)\n  --> DIR/absent"
    );
    assert_eq!(
        open_bad(here, here),
        format!(
            "error[unknown-format]: the folder holds no checkpoint that npuc can read
  --> DIR
  = need: {ACCEPTED}
  = have: an empty folder"
        )
    );
    let readme = write_beside(here, "README.md", b"hello");
    assert_eq!(
        open_bad(&readme, here),
        format!(
            "error[unknown-format]: the file is of no kind that npuc can read\n  --> DIR/README.md\n  = need: {ACCEPTED}"
        )
    );
    write_beside(here, "model.safetensors", b"");
    assert_eq!(
        open_bad(here, here),
        "error[unknown-format]: the folder holds no checkpoint that npuc can read
  --> DIR
  = need: config.json beside the weights
  = have: README.md, model.safetensors"
    );
    let other = write_beside(here, "adapter_model.safetensors", b"");
    assert_eq!(
        open_bad(&other, here),
        format!(
            "error[unknown-format]: the safetensors file is not part of a model that its folder describes
  --> DIR/adapter_model.safetensors
  = need: {ACCEPTED}"
        )
    );
}

#[test]
fn several_gguf_files() {
    let (folder, _) = write_file("a.gguf", b"GGUF");
    write_beside(folder.path(), "b.gguf", b"GGUF");
    assert_eq!(
        open_bad(folder.path(), folder.path()),
        "error[unknown-format]: the folder holds several GGUF files
  --> DIR
  = need: one of them
  = have: a.gguf, b.gguf
  = help: give the path of the file itself"
    );
}

#[test]
fn a_folder_without_safetensors() {
    let folder = HfFolder::default().write();
    fs::rename(folder.path().join("model.safetensors"), folder.path().join("pytorch_model.bin")).expect("movable");
    assert_eq!(
        open_bad(folder.path(), folder.path()),
        "error[unknown-format]: the folder has no weights that npuc reads
  --> DIR
  = need: model.safetensors or model.safetensors.index.json
  = have: config.json, pytorch_model.bin
  = help: save the model again with `save_pretrained(..., safe_serialization=True)`"
    );
}
