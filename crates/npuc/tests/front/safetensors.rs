//! Bad safetensors files and indexes.

use std::fs;

use safetensors::Dtype;

use super::checkpoints::fixture::fixture;
use super::checkpoints::small::{HfFolder, Weight, raw_safetensors, safetensors_bytes};
use super::checkpoints::{open_bad, open_good};

/// What opening says when `model.safetensors` of a good folder is replaced.
fn check(file: &[u8], expected: &str) {
    let folder = HfFolder::default().write();
    fs::write(folder.path().join("model.safetensors"), file).expect("writable");
    assert_eq!(open_bad(folder.path(), folder.path()), expected.trim_start());
}

fn good() -> Vec<u8> {
    safetensors_bytes(&HfFolder::default().weights)
}

#[test]
fn truncated() {
    let good = good();
    let header_bytes = 8 + u64::from_le_bytes(good[..8].try_into().expect("8 bytes")) as usize;
    check(
        &[],
        "
error[truncated-file]: the file ends inside its header
  --> DIR/model.safetensors
  = need: 8 bytes at least
  = have: 0 bytes
  = help: copy or download the file again",
    );
    check(
        &good[..100],
        &format!(
            "
error[truncated-file]: the file ends inside its header
  --> DIR/model.safetensors
  = need: {header_bytes} bytes at least
  = have: 100 bytes
  = help: copy or download the file again"
        ),
    );
    check(
        &good[..header_bytes + 600],
        &format!(
            "
error[truncated-file]: the file ends before the data of its tensors does
  --> DIR/model.safetensors: model.layers.0.mlp.down_proj.weight, model.layers.0.mlp.gate_proj.weight, \
             model.layers.0.mlp.up_proj.weight, model.layers.0.post_attention_layernorm.weight and 5 more
  = need: {} bytes
  = have: {} bytes
  = help: copy or download the file again",
            good.len(),
            header_bytes + 600
        ),
    );
    check(
        &good[..good.len() - 1],
        &format!(
            "
error[truncated-file]: the file ends before the data of its tensors does
  --> DIR/model.safetensors: model.norm.weight
  = need: {} bytes
  = have: {} bytes
  = help: copy or download the file again",
            good.len(),
            good.len() - 1
        ),
    );
}

#[test]
fn malformed_headers() {
    let mut huge = good();
    huge[..8].copy_from_slice(&(1u64 << 63).to_le_bytes());
    check(
        &huge,
        "
error[bad-header]: the header length is impossible: this is not a safetensors file
  --> DIR/model.safetensors
  = need: at most 100000000 bytes, the limit of the format
  = have: 9223372036854775808 bytes",
    );
    check(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "
error[bad-header]: the file is a Git LFS pointer, not the content it stands for
  --> DIR/model.safetensors
  = help: run `git lfs pull` in the repository, or download the file itself",
    );
    check(
        &raw_safetensors("{\"a\": ", 0),
        "
error[bad-header]: the header is malformed: tensor `a`: EOF while parsing a value at line 1 column 6
  --> DIR/model.safetensors",
    );
    check(
        &raw_safetensors(r#"{"a": {"dtype": "F32", "shape": [1]}}"#, 4),
        "
error[bad-header]: the header is malformed: tensor `a`: missing field `data_offsets` at line 1 column 36
  --> DIR/model.safetensors",
    );
    check(
        &raw_safetensors(r#"{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}"#, 4),
        "
error[unknown-tensor-type]: a tensor has an element type that the format does not know
  --> DIR/model.safetensors: a
  = need: F32, F16 or BF16
  = have: F99",
    );
    check(
        &raw_safetensors(
            r#"{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
                "a": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}}"#,
            12,
        ),
        "
error[duplicate-name]: two tensors have the same name
  --> DIR/model.safetensors: a",
    );
}

/// A header with f32 vectors: name, elements, begin, end.
fn vectors(tensors: &[(&str, u64, u64, u64)]) -> String {
    let entries = tensors.iter().map(|(name, n, begin, end)| {
        format!(r#""{name}": {{"dtype": "F32", "shape": [{n}], "data_offsets": [{begin}, {end}]}}"#)
    });
    // Padded so that the data begins at a round number.
    format!("{:<492}", format!("{{{}}}", entries.collect::<Vec<_>>().join(", ")))
}

#[test]
fn bad_offsets() {
    let check = |tensors: &[(&str, u64, u64, u64)], expected| check(&raw_safetensors(&vectors(tensors), 100), expected);
    check(
        &[("a", 15, 0, 60), ("b", 15, 40, 100)],
        "
error[bad-offsets]: the data of two tensors overlap
  --> DIR/model.safetensors: b
  = need: a start at 560, where a ends, or later
  = have: bytes 540 to 600 of the file",
    );
    check(
        &[("a", 10, 0, 40), ("b", 10, 60, 100)],
        "
error[bad-offsets]: there is a hole before the data of a tensor
  --> DIR/model.safetensors: b
  = need: a start at 540, where a ends
  = have: bytes 560 to 600 of the file",
    );
    check(
        &[("a", 10, 0, 40), ("b", 10, 1000, 1040)],
        "
error[bad-offsets]: there is a hole before the data of a tensor
  --> DIR/model.safetensors: b
  = need: a start at 540, where a ends
  = have: bytes 1500 to 1540 of the file
error[bad-offsets]: the data of a tensor leaves the file
  --> DIR/model.safetensors: b
  = need: an end within the data, bytes 500 to 600 of the file
  = have: bytes 1500 to 1540 of the file",
    );
    check(
        &[("a", 10, 0, 40)],
        "
error[bad-offsets]: there are bytes after the data of the last tensor
  --> DIR/model.safetensors
  = need: 540 bytes
  = have: 600 bytes",
    );
    check(
        &[("a", 10, 0, 100), ("b", 10, 40, 0), ("c", u64::MAX / 2, 0, 8)],
        "
error[bad-offsets]: the data of a tensor has the wrong size
  --> DIR/model.safetensors: a
  = need: 40 bytes for shape [10] of F32
  = have: 100 bytes, data_offsets [0, 100]
error[bad-offsets]: the data of a tensor ends before it begins
  --> DIR/model.safetensors: b
  = need: begin <= end
  = have: data_offsets [40, 0]
error[bad-offsets]: the size of a tensor overflows
  --> DIR/model.safetensors: c
  = have: shape [9223372036854775807] of F32",
    );
    check(
        &[("a", 1, u64::MAX - 4, u64::MAX)],
        "
error[bad-offsets]: the data of a tensor leaves the file
  --> DIR/model.safetensors: a
  = have: data_offsets [18446744073709551611, 18446744073709551615]",
    );
}

/// What opening says when the shards of a good fixture are changed by `change`, given their folder.
fn check_sharded(change: impl Fn(&std::path::Path), expected: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(fixture) = fixture("llama-untied-sharded-f16") else { return };
    for entry in fs::read_dir(fixture).expect("readable") {
        let entry = entry.expect("readable");
        let copy = fs::read(entry.path()).expect("readable");
        fs::write(folder.path().join(entry.file_name()), copy).expect("writable");
    }
    change(folder.path());
    assert_eq!(open_bad(folder.path(), folder.path()), expected.trim_start());
}

fn edit_index(folder: &std::path::Path, from: &str, to: &str) {
    let path = folder.join("model.safetensors.index.json");
    let index = fs::read_to_string(&path).expect("readable");
    assert!(index.contains(from));
    fs::write(&path, index.replace(from, to)).expect("writable");
}

#[test]
fn shards() {
    check_sharded(
        |folder| {
            for number in [2, 4] {
                fs::remove_file(folder.join(format!("model-0000{number}-of-00005.safetensors"))).expect("removable");
            }
        },
        "
error[missing-shard]: a shard that the index names is absent
  --> DIR/model.safetensors.index.json: model-00002-of-00005.safetensors
  = need: 5 shards beside the index
  = have: 3 of them
  = help: copy or download the missing file into the folder
error[missing-shard]: a shard that the index names is absent
  --> DIR/model.safetensors.index.json: model-00004-of-00005.safetensors
  = need: 5 shards beside the index
  = have: 3 of them
  = help: copy or download the missing file into the folder",
    );
    check_sharded(
        |folder| edit_index(folder, "\"model.norm.weight\"", "\"model.other.weight\""),
        "
error[missing-tensor]: the shard lacks tensors that the index puts there
  --> DIR/model-00004-of-00005.safetensors: model.other.weight
  = help: copy or download the shard again",
    );
    check_sharded(
        |folder| edit_index(folder, "\"lm_head.weight\"", "\"model.norm.weight\""),
        "
error[duplicate-name]: the index names a tensor twice
  --> DIR/model.safetensors.index.json: model.norm.weight",
    );
    check_sharded(
        |folder| edit_index(folder, "\"model-00005-of", "\"../model-00005-of"),
        "
error[bad-header]: the index names a shard outside the folder
  --> DIR/model.safetensors.index.json: lm_head.weight
  = need: the name of a file
  = have: ../model-00005-of-00005.safetensors",
    );
    check_sharded(
        |folder| fs::write(folder.join("model.safetensors.index.json"), "{\n\"weight_map\": 3}").expect("writable"),
        "
error[bad-header]: the index is malformed: invalid type: integer `3`, expected an object of tensors at line 2 column 15
  --> DIR/model.safetensors.index.json:2",
    );
    check_sharded(
        |folder| {
            let path = folder.join("model-00003-of-00005.safetensors");
            let shard = fs::read(&path).expect("readable");
            fs::write(path, &shard[..shard.len() - 1]).expect("writable");
        },
        "
error[truncated-file]: the file ends before the data of its tensors does
  --> DIR/model-00003-of-00005.safetensors: model.layers.2.self_attn.v_proj.weight
  = need: 93360 bytes
  = have: 93359 bytes
  = help: copy or download the file again",
    );
}

#[test]
fn tensors_that_the_index_leaves_out_are_told() {
    let mut hf = HfFolder::default();
    hf.weights.push(Weight::new("lm_head.weight", &[16, 8]));
    let folder = hf.write();
    let here = folder.path();
    fs::rename(here.join("model.safetensors"), here.join("a.safetensors")).expect("movable");
    let map = hf.weights[..11].iter().map(|weight| format!("\"{}\": \"a.safetensors\"", weight.name));
    let index = format!("{{\"weight_map\": {{{}}}}}", map.collect::<Vec<_>>().join(", "));
    fs::write(here.join("model.safetensors.index.json"), index).expect("writable");
    for opened in [here, &here.join("a.safetensors")] {
        let warnings: Vec<String> = open_good(opened).warnings.iter().map(|w| w.to_string()).collect();
        assert_eq!(
            warnings.join("\n").replace(&here.display().to_string(), "DIR"),
            "warning[unused-tensors]: the shards hold tensors that the index does not put there; they are not used
  --> DIR: lm_head.weight"
        );
    }
}

/// Integer buffers, which old checkpoints hold beside the weights, stop nothing; integer weights do.
#[test]
fn foreign_element_types() {
    let integers = |name: &str, count: usize| Weight {
        dtype: Dtype::I64,
        data: vec![0; 8 * count],
        ..Weight::new(name, &[count])
    };
    let mut hf = HfFolder::default();
    hf.weights.push(integers("model.position_ids", 64));
    let folder = hf.write();
    let warnings = open_good(folder.path()).warnings;
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].subject.as_deref(), Some("model.position_ids"));
    *hf.weight("model.norm.weight") = integers("model.norm.weight", 8);
    check(
        &safetensors_bytes(&hf.weights),
        "
error[unknown-tensor-type]: tensors are stored in a format that npuc does not read
  --> DIR: model.norm.weight
  = need: F32, F16 or BF16
  = have: I64",
    );
}
