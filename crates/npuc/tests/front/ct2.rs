//! Whisper models in CTranslate2's container: good ones have the weights of their Hugging Face form, bad ones get a full message.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use npuc::DType;
use npuc::front::config::{Stack, StackSizes, WhisperConfig};
use npuc::front::{Checkpoint, ModelConfig, Source, TokenizerSource, ct2, non_finite};
use npuc::model::weight_specs;
use npuc_kernels::dequant::dequantize_row;
use npuc_kernels::linear::{Matrix, linear};
use tempfile::TempDir;

use super::checkpoints::ct2_writer::{BF16, Ct2Writer, F16, F32, I8, I16, Variable, ct2_form};
use super::checkpoints::fixture::fixture;
use super::checkpoints::small::{small_ct2, write_beside};
use super::checkpoints::{open_bad, open_good};

/// A folder with this container, a configuration that says nothing, and a tokenizer.
fn folder(model: &[u8]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_beside(folder.path(), "model.bin", model);
    write_beside(folder.path(), "config.json", br#"{"suppress_ids": [1, 2], "alignment_heads": [[0, 1]]}"#);
    write_beside(folder.path(), "vocabulary.txt", b"a\n");
    write_beside(folder.path(), "tokenizer.json", br#"{"added_tokens": [{"id": 9, "content": "<|endoftext|>"}]}"#);
    folder
}

fn whisper(checkpoint: &Checkpoint) -> &WhisperConfig {
    let ModelConfig::Whisper(config) = &checkpoint.config else { panic!("another family") };
    config
}

fn warnings(checkpoint: &Checkpoint, folder: &Path) -> String {
    let warnings = checkpoint.warnings.iter().map(|w| w.to_string().replace(&folder.display().to_string(), "DIR"));
    warnings.collect::<Vec<_>>().join("\n")
}

/// The container of a fixture of transformers' opens to the same configuration and bytes.
#[test]
fn the_fixture_opens_from_both_forms() {
    let Some(hf) = fixture("whisper-f32") else { return };
    let hf = open_good(&hf);
    let folder = folder(&ct2_form(&hf).bytes());
    let ct2 = open_good(folder.path());
    assert_eq!(ct2.config, hf.config);
    assert_eq!(warnings(&ct2, folder.path()), "");
    let names = |checkpoint: &Checkpoint| checkpoint.tensors.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&ct2), names(&hf));
    for (name, tensor) in &hf.tensors {
        let other = &ct2.tensors[name];
        assert_eq!((&tensor.shape, tensor.dtype), (&other.shape, other.dtype), "{name}");
        assert!(tensor.bytes() == other.bytes(), "{name} differs");
        assert!(other.file().is_some(), "{name} is a slice of the file");
    }
}

#[test]
fn a_small_model_opens() {
    let folder = folder(&small_ct2().bytes());
    let sizes = StackSizes { layers: 1, heads: 2, ffn: 12 };
    let config = WhisperConfig {
        stack: Stack::Both,
        mels: 3,
        hidden: 8,
        encoder: sizes,
        decoder: sizes,
        source_positions: 4,
        target_positions: 5,
        vocab: 16,
        tied: true,
    };
    for name in ["", "model.bin", "config.json"] {
        let checkpoint = open_good(&folder.path().join(name));
        assert_eq!((checkpoint.source, checkpoint.path.as_path()), (Source::CTranslate2, folder.path()), "{name}");
        assert_eq!(whisper(&checkpoint), &config);
        assert_eq!((checkpoint.special.bos, checkpoint.special.first_eos), (Some(9), Some(9)));
        assert_eq!(checkpoint.special.eos, BTreeSet::from([9]));
        assert!(matches!(checkpoint.tokenizer, Some(TokenizerSource::HuggingFace { .. })));
        assert_eq!(warnings(&checkpoint, folder.path()), "");
        assert_eq!(checkpoint.tensors.len(), weight_specs(&checkpoint.config).len());
    }
    let checkpoint = open_good(folder.path());
    let whole = small_ct2().find("encoder/layer_0/self_attention/linear_0/weight").data.clone();
    for (part, rows) in [("q_proj", 0..256), ("k_proj", 256..512), ("v_proj", 512..768)] {
        let tensor = &checkpoint.tensors[&format!("encoder.layers.0.self_attn.{part}.weight")];
        assert_eq!((&tensor.shape[..], &tensor.bytes()[..]), (&[8, 8][..], &whole[rows]), "{part}");
    }
    assert!(!checkpoint.tensors.contains_key("encoder.layers.0.self_attn.k_proj.bias"));
    assert_eq!(checkpoint.tensors["encoder.conv1.weight"].shape[..], [8, 9]);
}

/// Older versions of the container, other types, a head of its own, further names of equal tensors.
#[test]
fn other_forms_open() {
    for version in [4, 5] {
        let writer = Ct2Writer { version, revision: 1, ..small_ct2() };
        open_good(folder(&writer.bytes()).path());
    }
    for (id, dtype) in [(F16, DType::F16), (BF16, DType::BF16)] {
        let mut writer = small_ct2();
        for variable in writer.variables.iter_mut().filter(|variable| variable.type_id == F32) {
            variable.type_id = id;
            // Any half of a number serves; none is the bias of keys' but zeros.
            variable.data = variable.data.chunks(4).flat_map(|number| [number[2], number[3]]).collect();
        }
        let folder = folder(&writer.bytes());
        let checkpoint = open_good(folder.path());
        assert!(checkpoint.tensors.values().all(|tensor| tensor.dtype == dtype));
    }
    let mut writer = small_ct2();
    writer.aliases.clear();
    writer.add("decoder/projection/weight", F32, &[16, 8], vec![1; 512]);
    let untied = folder(&writer.bytes());
    let untied = open_good(untied.path());
    assert!(!whisper(&untied).tied);
    assert_eq!(untied.tensors["lm_head.weight"].bytes()[..], [1; 512]);

    let (beta, gamma) = ("encoder/layer_norm/beta", "encoder/layer_norm/gamma");
    let mut writer = small_ct2();
    writer.remove(beta);
    writer.aliases.push((beta.into(), gamma.into()));
    let aliased = folder(&writer.bytes());
    let aliased = open_good(aliased.path());
    assert_eq!(
        aliased.tensors["encoder.layer_norm.bias"].bytes(),
        aliased.tensors["encoder.layer_norm.weight"].bytes()
    );
}

/// Tensors begin at any byte, and whatever reads them minds none of it.
#[test]
fn weights_begin_at_any_byte() {
    let container = small_ct2().bytes();
    let parsed = ct2::parse(&container).expect("a good container");
    let offsets: BTreeSet<usize> = parsed.tensors.iter().map(|tensor| tensor.range.start % 4).collect();
    assert_eq!(offsets.len(), 4, "the names' lengths put tensors at every offset");
    let folder = folder(&container);
    let checkpoint = open_good(folder.path());
    assert!(non_finite(&checkpoint).is_empty());
    for (dtype, element) in [(DType::F32, 4), (DType::F16, 2), (DType::BF16, 2)] {
        let (rows, cols) = (9, 37);
        let numbers: Vec<u8> = (0..rows * cols * element).map(|i| (i * 31 % 113) as u8).collect();
        let x: Vec<f32> = (0..2 * cols).map(|i| i as f32 / 64.0 - 0.5).collect();
        let results: Vec<(Vec<f32>, Vec<f32>)> = (0..8)
            .map(|offset| {
                let mut bytes = vec![0; offset];
                bytes.extend(&numbers);
                let (mut row, mut out) = (vec![0.0; cols], vec![0.0; 2 * rows]);
                dequantize_row(dtype, &bytes[offset..][..cols * element], &mut row);
                linear(&x, 2, Matrix { dtype, bytes: &bytes[offset..], rows, cols }, None, &mut out);
                (row, out)
            })
            .collect();
        assert!(results.iter().all(|result| *result == results[0]), "{dtype}");
    }
}

#[test]
fn heads_that_are_not_told_are_as_wide_as_usual() {
    let mut writer = small_ct2();
    writer.remove("encoder/num_heads");
    check(
        &writer.bytes(),
        "
error[bad-config]: the container does not say how many heads there are
  --> DIR/model.bin: encoder/num_heads
  = need: a width that is a multiple of 64, that of published models' heads
  = have: 8",
    );
    let Some(hf) = fixture("whisper-f32") else { return };
    let hf = open_good(&hf);
    let hidden = whisper(&hf).hidden;
    let mut writer = ct2_form(&hf);
    writer.remove("encoder/num_heads");
    writer.remove("decoder/num_heads");
    let folder = folder(&writer.bytes());
    if !hidden.is_multiple_of(64) {
        assert!(open_bad(folder.path(), folder.path()).contains("how many heads"));
        return;
    }
    let checkpoint = open_good(folder.path());
    assert_eq!(whisper(&checkpoint).encoder.heads, hidden / 64);
    assert_eq!(
        warnings(&checkpoint, folder.path()),
        "warning[bad-config]: the container does not say how many heads there are
  --> DIR/model.bin: encoder/num_heads, decoder/num_heads
  = have: heads as wide as those of published Whisper models, 64"
    );
}

#[test]
fn special_ids_come_from_the_tokenizer() {
    let folder = folder(&small_ct2().bytes());
    write_beside(folder.path(), "tokenizer.json", br#"{"added_tokens": []}"#);
    assert_eq!(
        warnings(&open_good(folder.path()), folder.path()),
        "warning[bad-tokenizer]: a special token is none of the tokenizer's added tokens
  --> DIR/tokenizer.json: <|endoftext|>
  = need: a token in added_tokens of tokenizer.json"
    );
    fs::remove_file(folder.path().join("tokenizer.json")).expect("removable");
    let checkpoint = open_good(folder.path());
    assert!(checkpoint.tokenizer.is_none() && checkpoint.special.eos.is_empty() && checkpoint.warnings.is_empty());
}

/// What opening says of a folder with this container.
fn check(model: &[u8], expected: &str) {
    let folder = folder(model);
    assert_eq!(open_bad(folder.path(), folder.path()), expected.trim_start());
}

/// The same of the small model with a change.
fn changed(change: impl FnOnce(&mut Ct2Writer), expected: &str) {
    let mut writer = small_ct2();
    change(&mut writer);
    check(&writer.bytes(), expected);
}

/// A file that is cut anywhere is an error, and so is one that goes on.
#[test]
fn cut_files() {
    let good = small_ct2().bytes();
    for length in 0..good.len() {
        assert!(ct2::parse(&good[..length]).is_err(), "{length} of {} bytes", good.len());
    }
    for length in (0..good.len()).step_by(97) {
        let folder = folder(&good[..length]);
        open_bad(folder.path(), folder.path());
    }
    check(
        &good[..good.len() - 1],
        &format!(
            "
error[truncated-file]: the file ends inside its header
  --> DIR/model.bin: alias 0 of 1, at byte {}
  = need: {} bytes at least
  = have: {} bytes
  = help: copy or download the file again",
            good.len() - 56,
            good.len(),
            good.len() - 1
        ),
    );
    check(
        &good[..200],
        "
error[truncated-file]: the file ends before the data of its tensors does
  --> DIR/model.bin: decoder/embeddings/weight
  = need: 668 bytes at least
  = have: 200 bytes
  = help: copy or download the file again",
    );
    check(
        &[&good[..], b"x"].concat(),
        &format!(
            "
error[bad-offsets]: there are bytes after the end of the container
  --> DIR/model.bin
  = need: {} bytes
  = have: {} bytes",
            good.len(),
            good.len() + 1
        ),
    );
}

#[test]
fn other_files() {
    let unknown = |file: &[u8], expected: &str| check(file, &format!("error[unknown-format]: {expected}"));
    let pickled = "the file holds weights as PyTorch pickles them, which npuc does not read
  --> DIR/model.bin
  = help: save the model again with `save_pretrained(..., safe_serialization=True)`";
    unknown(b"PK\x03\x04pytorch_model/data.pkl", pickled);
    unknown(&[0x80, 2, 0x8a, 10], pickled);
    unknown(
        b"lmgg\x50\xca\x00\x00",
        "the file is one of whisper.cpp's, which npuc does not read
  --> DIR/model.bin
  = help: give the model's Hugging Face folder or its CTranslate2 folder",
    );
    unknown(
        b"\x06\0\0\0\x0c\0WhisperSpe",
        "the file is no container of CTranslate2
  --> DIR/model.bin
  = need: a version and the name of a kind of model, such as WhisperSpec
  = have: 16 bytes that begin with `\\x06\\x00\\x00\\x00\\x0c\\x00WhisperSpe`",
    );
    check(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "
error[bad-header]: the file is a Git LFS pointer, not the content it stands for
  --> DIR/model.bin
  = help: run `git lfs pull` in the repository, or download the file itself",
    );
    for version in [3, 7] {
        changed(
            |writer| writer.version = version,
            &format!(
                "
error[bad-header]: the container has a version that npuc does not read
  --> DIR/model.bin
  = need: 4 to 6
  = have: {version}
  = help: convert the model again with a CTranslate2 of today"
            ),
        );
    }
    for (spec, revision) in [("TransformerSpec", 3), ("WhisperSpec", 4)] {
        changed(
            |writer| (writer.spec, writer.revision) = (spec.into(), revision),
            &format!(
                "
error[unsupported-architecture]: the container is of a model that npuc does not build
  --> DIR/model.bin
  = need: WhisperSpec, up to revision 3
  = have: {spec}, revision {revision}"
            ),
        );
    }
}

#[test]
fn malformed_containers() {
    let size = small_ct2().bytes().len();
    changed(
        |writer| writer.counts[0] = Some(u32::MAX),
        &format!(
            "
error[bad-header]: a text is empty or does not end with a zero byte
  --> DIR/model.bin: tensor 48 of 4294967295, at byte {}
  = have: `\\x00`, 1 bytes at byte {}",
            size - 60,
            size - 60
        ),
    );
    changed(
        |writer| writer.counts[1] = Some(u32::MAX),
        &format!(
            "
error[truncated-file]: the file ends inside its header
  --> DIR/model.bin: alias 1 of 4294967295, at byte {size}
  = need: {} bytes at least
  = have: {size} bytes
  = help: copy or download the file again",
            size + 2
        ),
    );
    changed(
        |writer| writer.variables[0].name = b"decoder/\xff\xfe".to_vec(),
        "
error[bad-header]: a text is not UTF-8
  --> DIR/model.bin: tensor 0 of 48, at byte 26
  = have: `decoder/\\xff\\xfe`, wrong from byte 8",
    );
    changed(
        |writer| writer.variables[1] = writer.variables[0].clone(),
        "
error[duplicate-name]: two tensors have the same name
  --> DIR/model.bin: decoder/activation",
    );
    // A size that is too small would make two tensors overlap.
    for size in [64, u32::MAX] {
        changed(
            |writer| writer.variables[3].size = Some(size),
            &format!(
                "
error[bad-offsets]: the data of a tensor has the wrong size
  --> DIR/model.bin: decoder/embeddings/weight
  = need: 512 bytes for shape [16, 8] of float32
  = have: {size} bytes, from byte 156"
            ),
        );
    }
    changed(
        |writer| writer.variables[3].dims = vec![u32::MAX; 3],
        "
error[bad-offsets]: the size of a tensor overflows
  --> DIR/model.bin: decoder/embeddings/weight",
    );
    changed(
        |writer| writer.variables[3].type_id = 6,
        "
error[unknown-tensor-type]: a tensor has an element type that the format does not know
  --> DIR/model.bin: decoder/embeddings/weight
  = need: 0 to 5
  = have: 6 at byte 151",
    );
    changed(
        |writer| writer.aliases[0].1 = "decoder/other/weight".into(),
        "
error[missing-tensor]: an alias names a tensor that is not there
  --> DIR/model.bin: decoder/projection/weight
  = have: decoder/other/weight",
    );
    changed(
        |writer| writer.aliases[0].0 = "encoder/conv1/bias".into(),
        "
error[duplicate-name]: an alias is the name of another tensor
  --> DIR/model.bin: encoder/conv1/bias",
    );
}

#[test]
fn weights_that_are_not_whispers() {
    let name = "encoder/layer_0/self_attention/linear_0";
    changed(
        |writer| writer.find(&format!("{name}/bias")).data[32..36].copy_from_slice(&0.5f32.to_le_bytes()),
        "
error[unsupported-architecture]: the projection of the keys has a bias, and Whisper's has none
  --> DIR/model.bin: encoder/layer_0/self_attention/linear_0/bias[8..16]
  = need: zeros
  = have: 0.5 in row 0",
    );
    changed(
        |writer| {
            writer.find("decoder/layer_0/attention/linear_1/bias").data[28..32].copy_from_slice(&[0, 0, 0xc0, 0x7f])
        },
        "
error[unsupported-architecture]: the projection of the keys has a bias, and Whisper's has none
  --> DIR/model.bin: decoder/layer_0/attention/linear_1/bias[0..8]
  = need: zeros
  = have: NaN in row 7",
    );
    changed(
        |writer| writer.find(&format!("{name}/weight")).dims = vec![8, 24],
        "
error[wrong-shape]: a tensor has another shape than the model's
  --> DIR/model.bin: encoder/layer_0/self_attention/linear_0/weight
  = need: [24, 8]
  = have: [8, 24]",
    );
    changed(
        |writer| writer.find("encoder/conv1/weight").dims = vec![8, 9],
        "
error[wrong-shape]: a tensor has another shape than the model's
  --> DIR/model.bin: encoder/conv1/weight
  = need: 3 extents
  = have: [8, 9]",
    );
    changed(
        |writer| writer.find("encoder/layer_0/ffn/linear_1/weight").dims = vec![12, 8],
        "
error[wrong-shape]: tensors have another shape than the configuration says
  --> DIR/model.bin: encoder/layer_0/ffn/linear_1/weight
  = need: [8, 12]
  = have: [12, 8]",
    );
    changed(
        |writer| {
            writer.remove(&format!("{name}/weight"));
            writer.aliases.clear();
        },
        "
error[missing-tensor]: tensors that the model needs are absent
  --> DIR/model.bin: encoder/layer_0/self_attention/linear_0/weight[0..8], \
         encoder/layer_0/self_attention/linear_0/weight[8..16], encoder/layer_0/self_attention/linear_0/weight[16..24]
  = need: shape [8, 8]
error[missing-tensor]: tensors that the model needs are absent
  --> DIR/model.bin: decoder/projection/weight
  = need: shape [16, 8]",
    );
    changed(
        |writer| {
            for name in ["decoder/embeddings/weight", "decoder/layer_0/ffn/linear_0/weight"] {
                let Variable { dims, type_id, data, .. } = writer.find(name);
                (*type_id, *data) = (I8, vec![1; dims.iter().product::<u32>() as usize]);
                let scales = dims[0] as usize;
                writer.add(&format!("{name}_scale"), F32, &[scales], vec![0; 4 * scales]);
            }
        },
        "
error[unknown-tensor-type]: weights are quantised in a form of CTranslate2 that npuc does not read
  --> DIR/model.bin: decoder/embeddings/weight, decoder/layer_0/ffn/linear_0/weight, decoder/projection/weight
  = need: float32, float16 or bfloat16
  = have: int8
  = help: convert the model again with `--quantization float16`; npuc quantises by a recipe",
    );
}

#[test]
fn sizes_and_settings_that_are_not_whispers() {
    changed(
        |writer| {
            writer.find("decoder/activation").data = vec![0];
            writer.find("decoder/pre_norm").dims = vec![0];
            writer.find("decoder/pre_norm").data.clear();
            writer.remove("decoder/scale_embeddings");
        },
        "
error[unsupported-activation]: a setting is not Whisper's
  --> DIR/model.bin: decoder/activation
  = need: 3, exact GELU
  = have: 0
error[unsupported-architecture]: a setting is not Whisper's
  --> DIR/model.bin: decoder/pre_norm
  = need: 1, norms before attention
  = have: a tensor of shape [0]
error[unsupported-architecture]: a setting is not Whisper's
  --> DIR/model.bin: decoder/scale_embeddings
  = need: 0, embeddings as they are stored
  = have: none, which stands for 1",
    );
    let heads = |heads: i16, expected: &str| {
        changed(|writer| writer.find("decoder/num_heads").data = heads.to_le_bytes().to_vec(), expected);
    };
    for value in [0, -1] {
        heads(
            value,
            &format!(
                "
error[bad-config]: a number of the model is not possible
  --> DIR/model.bin: decoder/num_heads
  = need: a whole number from 1 to 65536
  = have: {value}"
            ),
        );
    }
    heads(
        3,
        "
error[bad-config]: the width does not divide into heads
  --> DIR/model.bin: decoder/num_heads
  = need: a divisor of encoder/layer_norm/gamma = 8
  = have: 3",
    );
    changed(
        |writer| {
            writer.add("encoder/layer_2/ffn/linear_0/weight", F32, &[1], vec![0; 4]);
            writer.add("decoder/layer_99999999999999999999/ffn/linear_0/weight", F32, &[1], vec![0; 4]);
            writer.remove("encoder/position_encodings/encodings");
            let table = writer.find("decoder/position_encodings/encodings");
            (table.dims, table.data) = (vec![0, 8], Vec::new());
        },
        "
error[missing-tensor]: a layer is absent
  --> DIR/model.bin: encoder/layer_1
  = have: 2 layers, the last of which is encoder/layer_2
error[missing-tensor]: a tensor that the model needs is absent
  --> DIR/model.bin: encoder/position_encodings/encodings
error[bad-config]: a number of the model is not possible
  --> DIR/model.bin: decoder/position_encodings/encodings
  = need: an extent from 1 to 2147483648 along axis 0
  = have: [0, 8]",
    );
}

/// What the model does not use is told.
#[test]
fn unknown_tensors_are_told() {
    let mut writer = small_ct2();
    writer.add("decoder/projection/bias", F32, &[16], vec![0; 64]);
    writer.add("decoder/rotary_dim", I16, &[], vec![1, 0]);
    let folder = folder(&writer.bytes());
    assert_eq!(
        warnings(&open_good(folder.path()), folder.path()),
        "warning[unused-tensors]: the checkpoint has 2 tensors that the model does not use
  --> DIR/model.bin: decoder/rotary_dim, decoder/projection/bias"
    );
}
