//! Bad GGUF files.

use super::checkpoints::gguf_writer::{GgufWriter, Meta};
use super::checkpoints::small::{small_gguf, write_beside, write_file};
use super::checkpoints::{open_bad, open_good};

fn check_bytes(file: &[u8], expected: &str) {
    let (folder, path) = write_file("m.gguf", file);
    assert_eq!(open_bad(&path, folder.path()), expected.trim_start());
}

/// What opening says when a good file is changed.
fn check(change: impl FnOnce(&mut GgufWriter), expected: &str) {
    let mut writer = small_gguf();
    change(&mut writer);
    check_bytes(&writer.bytes(), expected);
}

#[test]
fn truncated() {
    let writer = small_gguf();
    let (good, header) = (writer.bytes(), writer.header().len());
    let cases = [
        (0, "error[truncated-file]: the file ends inside its header\n  --> DIR/m.gguf\n  = need: 4 bytes at least"),
        (20, "error[truncated-file]: the file ends inside its header\n  --> DIR/m.gguf\n  = need: 24 bytes at least"),
        (
            30,
            "error[truncated-file]: the file ends inside its header\n  --> DIR/m.gguf: metadata key 1 of 8\n  = need: 32 \
             bytes at least",
        ),
        (
            60,
            "error[truncated-file]: the file ends inside its header\n  --> DIR/m.gguf: general.architecture\n  = need: 64 \
             bytes at least",
        ),
        (
            header - 1,
            "error[truncated-file]: the file ends inside its header\n  --> DIR/m.gguf: output_norm.weight\n  = need: \
             HEADER bytes at least",
        ),
        (
            header + 100,
            "error[truncated-file]: the file ends before the data of its tensors does\n  --> DIR/m.gguf: \
             token_embd.weight, blk.0.attn_norm.weight, blk.0.attn_q.weight, blk.0.attn_k.weight and 7 more\n  = need: \
             TOTAL bytes",
        ),
        (
            good.len() - 1,
            "error[truncated-file]: the file ends before the data of its tensors does\n  --> DIR/m.gguf: \
             output_norm.weight\n  = need: TOTAL bytes",
        ),
    ];
    for (length, expected) in cases {
        let expected = expected.replace("HEADER", &header.to_string()).replace("TOTAL", &good.len().to_string());
        let end = "  = help: copy or download the file again";
        check_bytes(&good[..length], &format!("{expected}\n  = have: {length} bytes\n{end}"));
    }
}

#[test]
fn versions() {
    check_bytes(
        b"GGML\x01\0\0\0",
        "
error[bad-header]: this is not a GGUF file
  --> DIR/m.gguf
  = need: the first four bytes `GGUF`
  = have: `GGML`",
    );
    let cases = [
        (1u32, "version 1 of GGUF is not supported", "1"),
        (4, "the version of GGUF is not supported", "4"),
        (3u32.swap_bytes(), "big-endian GGUF files are not supported", "version 3 with its bytes reversed"),
    ];
    for (version, message, have) in cases {
        check(
            |writer| writer.version = version,
            &format!(
                "
error[bad-header]: {message}
  --> DIR/m.gguf
  = need: version 2 or 3, little endian
  = have: {have}
  = help: convert the model again with a current converter"
            ),
        );
    }
    let mut version_2 = small_gguf();
    version_2.version = 2;
    let (_folder, path) = write_file("m.gguf", &version_2.bytes());
    assert_eq!(open_good(&path).tensors.len(), 11);
}

#[test]
fn malformed_headers() {
    for (at, what) in [(8, "tensors"), (16, "metadata keys")] {
        let mut bytes = small_gguf().bytes();
        bytes[at..at + 8].copy_from_slice(&(1u64 << 63).to_le_bytes());
        check_bytes(
            &bytes,
            &format!(
                "
error[bad-header]: the number of {what} is impossible
  --> DIR/m.gguf
  = need: at most 16777216
  = have: 9223372036854775808"
            ),
        );
    }
    let raw = |kind: u32, bytes: &[u8]| Meta::Raw(kind, bytes.to_vec());
    let array = |element: u32, count: u64| [&element.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let nested: Vec<u8> = (0..5).flat_map(|_| array(9, 1)).collect();
    let text = |bytes: &[u8]| [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat();
    let cases = [
        (raw(13, &[]), "a metadata value has an unknown type", "a type from 0 to 12", "13"),
        (raw(9, &array(99, 0)), "a metadata value has an unknown type", "a type from 0 to 12", "99"),
        (raw(7, &[2]), "a truth value is neither 0 nor 1", "", "2"),
        (raw(9, &nested), "arrays are nested too deep", "at most 4 levels", ""),
        (raw(8, &text(b"ab\xff")), "a text is not UTF-8", "", "`ab\\xff`, wrong from byte 2"),
        (
            raw(9, &array(12, 1 << 62)),
            "a length in the header is impossible",
            "at most 281474976710656 bytes",
            "18446744073709551615 bytes",
        ),
        (
            raw(8, &u64::MAX.to_le_bytes()),
            "a length in the header is impossible",
            "at most 281474976710656 bytes",
            "18446744073709551615 bytes",
        ),
    ];
    for (value, message, need, have) in cases {
        let mut expected = format!("error[bad-header]: {message}\n  --> DIR/m.gguf: bad.key");
        for (label, text) in [("need", need), ("have", have)].into_iter().filter(|(_, text)| !text.is_empty()) {
            expected += &format!("\n  = {label}: {text}");
        }
        check(|writer| writer.set("bad.key", value), &expected);
    }
    check(
        |writer| writer.metadata.push(("llama.block_count".into(), Meta::U32(2))),
        "
error[duplicate-name]: a metadata key is given twice
  --> DIR/m.gguf: llama.block_count",
    );
    for (value, have) in [(Meta::U32(0), "0"), (Meta::U32(48), "48"), (Meta::from("32"), "a text")] {
        check(
            |writer| writer.set("general.alignment", value),
            &format!(
                "
error[bad-header]: the alignment is impossible
  --> DIR/m.gguf: general.alignment
  = need: a power of two that 32 bits can hold
  = have: {have}"
            ),
        );
    }
}

#[test]
fn an_alignment_of_the_file_is_used() {
    let mut writer = small_gguf();
    writer.set("general.alignment", Meta::U32(256));
    writer.alignment = 256;
    let (_folder, path) = write_file("m.gguf", &writer.bytes());
    let norm = &open_good(&path).tensors["norm.weight"];
    assert_eq!(norm.bytes(), writer.find("output_norm.weight").data.as_slice());
}

#[test]
fn tensor_types() {
    const READ: &str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K";
    let cases = [
        (23, "read", "IQ4_XS (type id 23)"),
        (39, "read", "MXFP4 (type id 39)"),
        (26, "read", "I32 (type id 26)"),
        (77, "know", "type id 77"),
    ];
    for (type_id, verb, have) in cases {
        check(
            |writer| {
                for name in ["blk.0.attn_q.weight", "blk.0.ffn_up.weight"] {
                    writer.find(name).type_id = type_id;
                }
            },
            &format!(
                "
error[unknown-tensor-type]: tensors are stored in a format that npuc does not {verb}
  --> DIR/m.gguf: blk.0.attn_q.weight, blk.0.ffn_up.weight
  = need: {READ}
  = have: {have}
  = help: use a GGUF of the model in one of these formats, or its Hugging Face folder"
            ),
        );
    }
    check(
        |writer| writer.find("blk.0.ffn_up.weight").type_id = 8,
        "
error[bad-offsets]: the rows of a tensor are not whole blocks
  --> DIR/m.gguf: blk.0.ffn_up.weight
  = need: a multiple of 32 columns for q8_0
  = have: 8 columns, shape [12, 8]",
    );
    check(
        |writer| {
            let norm = writer.find("output_norm.weight");
            (norm.type_id, norm.dims, norm.data) = (8, vec![32], vec![0; 34]);
            writer.set("llama.embedding_length", Meta::U32(32));
            writer.set("llama.attention.head_count", Meta::U32(8));
            for name in ["token_embd", "blk.0.attn_norm", "blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v"] {
                writer.tensors.retain(|tensor| tensor.name != format!("{name}.weight"));
            }
            for name in ["attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"] {
                writer.tensors.retain(|tensor| tensor.name != format!("blk.0.{name}.weight"));
            }
            for (name, rows) in [("token_embd", 16), ("blk.0.attn_q", 32), ("blk.0.attn_k", 4), ("blk.0.attn_v", 4)] {
                writer.tensor(&format!("{name}.weight"), 0, &[rows, 32], vec![0; 4 * rows * 32]);
            }
            for (name, rows, cols) in [("attn_output", 32, 32), ("ffn_gate", 12, 32), ("ffn_up", 12, 32)] {
                writer.tensor(&format!("blk.0.{name}.weight"), 0, &[rows, cols], vec![0; 4 * rows * cols]);
            }
            writer.tensor("blk.0.ffn_down.weight", 0, &[32, 12], vec![0; 4 * 32 * 12]);
            for name in ["attn_norm", "ffn_norm"] {
                writer.tensor(&format!("blk.0.{name}.weight"), 0, &[32], vec![0; 4 * 32]);
            }
        },
        "
error[unknown-tensor-type]: norms, biases or filters are stored in a block format
  --> DIR/m.gguf: output_norm.weight
  = need: F32, F16 or BF16
  = have: q8_0",
    );
}

#[test]
fn bad_offsets() {
    let data_start = small_gguf().header().len().next_multiple_of(32);
    let end = small_gguf().bytes().len();
    let at = |offset: usize| (data_start + offset).to_string();
    // token_embd has 512 bytes; the norm after it 32, then attn_q with 256.
    let cases = [
        (
            "blk.0.attn_norm.weight",
            64u64,
            format!(
                "
error[bad-offsets]: the data of two tensors overlap
  --> DIR/m.gguf: blk.0.attn_norm.weight
  = need: a start at {}, where token_embd.weight ends, or later
  = have: bytes {} to {} of the file",
                at(512),
                at(64),
                at(96)
            ),
        ),
        (
            "output_norm.weight",
            7,
            format!(
                "
error[bad-offsets]: the data of two tensors overlap
  --> DIR/m.gguf: output_norm.weight
  = need: a start at {}, where token_embd.weight ends, or later
  = have: bytes {} to {} of the file",
                at(512),
                at(7),
                at(39)
            ),
        ),
        (
            "output_norm.weight",
            10007,
            format!(
                "
error[bad-offsets]: the data of a tensor is not aligned
  --> DIR/m.gguf: output_norm.weight
  = need: a start at {data_start} plus a multiple of 32 bytes
  = have: bytes {} to {} of the file
error[bad-offsets]: the data of a tensor leaves the file
  --> DIR/m.gguf: output_norm.weight
  = need: an end within the data, bytes {data_start} to {end} of the file
  = have: bytes {} to {} of the file",
                at(10007),
                at(10039),
                at(10007),
                at(10039)
            ),
        ),
        (
            "output_norm.weight",
            u64::MAX - 31,
            "
error[bad-offsets]: the data of a tensor leaves the file
  --> DIR/m.gguf: output_norm.weight
  = have: offset 18446744073709551584"
                .to_owned(),
        ),
    ];
    for (name, offset, expected) in cases {
        check(|writer| writer.find(name).offset = Some(offset), &expected);
    }
    check(
        |writer| writer.find("output_norm.weight").dims = vec![1 << 40, 1 << 40],
        "
error[bad-offsets]: the size of a tensor overflows
  --> DIR/m.gguf: output_norm.weight
  = have: shape [1099511627776, 1099511627776] of f32",
    );
    check(
        |writer| writer.find("output_norm.weight").dims = vec![1, 1, 1, 2, 4],
        "
error[bad-header]: a tensor has too many extents
  --> DIR/m.gguf: output_norm.weight
  = need: at most 4
  = have: 5",
    );
    check(
        |writer| writer.find("output_norm.weight").name = "token_embd.weight".into(),
        "
error[duplicate-name]: two tensors have the same name
  --> DIR/m.gguf: token_embd.weight",
    );
}

#[test]
fn parts() {
    let pieces = [("m.Q4_0.gguf.part1of2", "m.Q4_0"), ("m.gguf.part-aa", "m"), ("m.gguf-split-a", "m")];
    for (name, stem) in pieces {
        let (folder, path) = write_file(name, &small_gguf().bytes());
        for opened in [path.as_path(), folder.path()] {
            assert_eq!(
                open_bad(opened, folder.path()),
                format!(
                    "error[split-part]: the file is one part of a GGUF file that was cut into pieces
  --> DIR/{name}
  = need: the whole file
  = have: {name}
  = help: join the pieces in order, `cat {stem}.gguf* > {stem}.joined.gguf`, and give the joined file"
                )
            );
        }
    }
    let split = |have: &str, name: &str| {
        format!(
            "error[split-part]: the file is one part of a model that was split into several GGUF files
  --> DIR/{name}
  = need: the whole model in one file
  = have: {have}
  = help: join the parts with `llama-gguf-split --merge FIRST-PART JOINED.gguf` and give the joined file"
        )
    };
    let name = "m-00001-of-00002.gguf";
    let (folder, path) = write_file(name, &small_gguf().bytes());
    assert_eq!(open_bad(&path, folder.path()), split(name, name));
    write_beside(folder.path(), "m-00002-of-00002.gguf", b"GGUF");
    assert_eq!(open_bad(folder.path(), folder.path()), split(name, name));
    check(|writer| writer.set("split.count", Meta::U32(3)), &split("`split.count` = 3 parts", "m.gguf"));

    let (_folder, path) = write_file("m-00001-of-00001.gguf", &small_gguf().bytes());
    assert_eq!(open_good(&path).tensors.len(), 11);
}
