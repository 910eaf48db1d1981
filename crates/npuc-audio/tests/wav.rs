//! WAV files: what hound and the format's definition write is read to the last bit, and what is wrong is named.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Cursor;

use hound::{SampleFormat, WavSpec, WavWriter};
use npuc::diag::Code;
use npuc_audio::Audio;
use npuc_audio::wav::{parse, read};

#[path = "../../npuc/tests/mutants/mod.rs"]
mod mutants;

/// A header field by field, as mmreg.h defines it, and the samples' bytes.
#[derive(Clone)]
struct File {
    tag: u16,
    channels: u16,
    rate_hz: u32,
    align: u16,
    bits: u16,
    /// What follows the first 16 bytes of `fmt `.
    extra: Vec<u8>,
    /// Whole chunks before `fmt `, before `data` and behind it.
    chunks: [Vec<u8>; 3],
    data: Vec<u8>,
    /// The length that `data` is said to have, if another.
    promised: Option<u32>,
}

fn pcm16(data: &[i16]) -> File {
    File {
        tag: 1,
        channels: 1,
        rate_hz: 16_000,
        align: 2,
        bits: 16,
        extra: Vec::new(),
        chunks: [const { Vec::new() }; 3],
        data: data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        promised: None,
    }
}

fn float32(data: &[f32]) -> File {
    let data = data.iter().flat_map(|v| v.to_le_bytes()).collect();
    File { tag: 3, align: 4, bits: 32, data, ..pcm16(&[]) }
}

fn extensible(file: File, tag: u16, valid_bits: u16) -> File {
    let mut extra = [22u16.to_le_bytes(), valid_bits.to_le_bytes(), [0; 2], [0; 2], tag.to_le_bytes()].concat();
    extra.extend([0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71]);
    File { tag: 0xFFFE, extra, ..file }
}

/// A chunk with the byte that makes it even.
fn chunk(id: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let padding = vec![0; body.len() % 2];
    [id, &(body.len() as u32).to_le_bytes()[..], body, &padding].concat()
}

fn bytes(file: &File) -> Vec<u8> {
    let mut form = [file.tag.to_le_bytes(), file.channels.to_le_bytes()].concat();
    form.extend(file.rate_hz.to_le_bytes());
    form.extend(file.rate_hz.wrapping_mul(u32::from(file.align)).to_le_bytes());
    form.extend([file.align.to_le_bytes(), file.bits.to_le_bytes()].concat());
    form.extend(&file.extra);
    let mut data = chunk(b"data", &file.data);
    if let Some(promised) = file.promised {
        data[4..8].copy_from_slice(&promised.to_le_bytes());
    }
    let [first, second, last] = &file.chunks;
    let body = [b"WAVE", &first[..], &chunk(b"fmt ", &form), second, &data, last].concat();
    chunk(b"RIFF", &body)
}

#[test]
fn every_encoding_that_hound_writes_is_read_exactly() {
    // The expected value is an integer over a power of two in f64, averaged, and the nearest f32.
    let check = |bits: u16, format: SampleFormat, channels: u16, rate_hz: u32| {
        let spec = WavSpec { channels, sample_rate: rate_hz, bits_per_sample: bits, sample_format: format };
        let mut out = Cursor::new(Vec::new());
        let mut writer = WavWriter::new(&mut out, spec).unwrap();
        let full = 2f64.powi(i32::from(bits) - 1);
        let edges = [-full, full - 1.0, 0.0, 1.0, -1.0, full / 2.0, -full / 4.0, 77.0];
        let mut stored = Vec::new();
        for i in 0..edges.len() * usize::from(channels) {
            let value = edges[(i * 5 + i / 8) % edges.len()];
            match format {
                SampleFormat::Int => writer.write_sample(value as i32).unwrap(),
                SampleFormat::Float => writer.write_sample((value / full) as f32).unwrap(),
            }
            stored.push(match format {
                SampleFormat::Int => f64::from((value / full) as f32),
                SampleFormat::Float => f64::from((value / full) as f32),
            });
        }
        writer.finalize().unwrap();
        let audio = parse(out.get_ref()).unwrap_or_else(|e| panic!("{bits} bits, {channels} channels: {e}"));
        let frames = stored.chunks_exact(usize::from(channels));
        let expected: Vec<f32> = frames.map(|f| (f.iter().sum::<f64>() / f.len() as f64) as f32).collect();
        assert_eq!(audio.samples(), expected, "{bits} bits, {channels} channels");
        assert_eq!(audio.rate_hz(), rate_hz);
    };
    for channels in 1..=8 {
        for rate_hz in [4_000, 8_000, 16_000, 44_100, 192_000] {
            for bits in [8, 16, 24, 32] {
                check(bits, SampleFormat::Int, channels, rate_hz);
            }
            check(32, SampleFormat::Float, channels, rate_hz);
        }
    }
}

#[test]
fn what_the_format_allows_is_read() {
    let check = |name: &str, file: File, expected: &[f32]| {
        let audio = parse(&bytes(&file)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(audio.samples(), expected, "{name}");
    };
    let some = || pcm16(&[16384, -32768, 1]);
    let expected = [0.5, -1.0, 1.0 / 32768.0];
    check("plain", some(), &expected);
    check("no samples", pcm16(&[]), &[]);
    let odd = || chunk(b"LIST", b"odd");
    check("odd chunks", File { chunks: [odd(), odd(), odd()], ..some() }, &expected);
    check("a chunk of no length", File { chunks: [chunk(b"junk", b""), vec![], vec![]], ..some() }, &expected);
    check("bytes of no chunk behind", File { chunks: [vec![], vec![], vec![7; 5]], ..some() }, &expected);
    check("no samples, chunk behind", File { chunks: [vec![], vec![], odd()], ..pcm16(&[]) }, &[]);
    check("longer fmt", File { extra: vec![0; 2], ..some() }, &expected);
    check("fmt with text behind", File { extra: b"\x00\x00abcd".to_vec(), ..some() }, &expected);
    check("extensible", extensible(some(), 1, 16), &expected);
    check("extensible, 12 bits", extensible(some(), 1, 12), &expected);
    check("extensible float", extensible(float32(&[0.25, -1.5]), 3, 32), &[0.25, -1.5]);
    check(
        "above full scale",
        float32(&[256.0, -256.0, f32::MIN_POSITIVE, -0.0]),
        &[256.0, -256.0, f32::MIN_POSITIVE, 0.0],
    );
    for length in [0xFFFF_FFFF, 0x7FFF_F000] {
        check("written to a pipe", File { promised: Some(length), ..some() }, &expected);
    }
    let bytes32 = [i32::MIN, i32::MAX, 1 << 30].iter().flat_map(|v| v.to_le_bytes()).collect();
    check("plain 32 bits", File { align: 4, bits: 32, extra: vec![0; 2], data: bytes32, ..some() }, &[-1.0, 1.0, 0.5]);
    check("8 bits", File { align: 1, bits: 8, data: vec![0, 128, 192], ..some() }, &[-1.0, 0.0, 0.5]);
    let stereo = File { channels: 2, align: 4, ..pcm16(&[16384, 0, 100, -100]) };
    check("opposite channels cancel", stereo, &[0.25, 0.0]);
}

/// These bytes are refused with this code, and the message says this.
fn refused(name: &str, bytes: &[u8], code: Code, says: &str) {
    let error = match parse(bytes) {
        Ok(audio) => panic!("{name}: read as {} samples", audio.samples().len()),
        Err(error) => error,
    };
    assert_eq!(error.diagnostics()[0].code, code, "{name}: {error}");
    assert!(error.to_string().contains(says), "{name}: `{says}` is not in: {error}");
}

fn some() -> File {
    pcm16(&[1, 2, 3])
}

#[test]
fn what_is_no_wav_file_is_named() {
    refused("empty", b"", Code::TruncatedFile, "empty");
    refused("two letters of the magic", b"RI", Code::TruncatedFile, "within the header");
    let check = |start: &[u8], says: &str| refused("another format", start, Code::UnknownFormat, says);
    check(b"And so my fellow Americans\n", "have: text");
    check(b"R2", "have: text");
    check(&[0, 1, 2, 3, 4], "something else");
    check(b"RIFF\0\0\0\0AVI LIST", "another kind");
    check(b"RF64\xff\xff\xff\xffWAVEds64", "64 bits");
    check(b"RIFX\0\0\0\0WAVEfmt ", "high bytes");
    check(b"FORM\0\0\0\0AIFFCOMM", "AIFF");
    check(b"fLaC\0\0\0\x22", "FLAC");
    check(b"OggS\0\x02", "Ogg");
    check(b"ID3\x04\0", "MP3");
    check(b"\xff\xfb\x90\x64", "MP3");
    check(b"\0\0\0\x20ftypM4A ", "MP4");
}

#[test]
fn what_is_cut_is_named() {
    let good = bytes(&some());
    let check = |end: usize, says: &str| refused("cut", &good[..end], Code::TruncatedFile, says);
    check(11, "within the header");
    check(12, "before its samples begin");
    check(30, "chunk `fmt `");
    check(36, "before its samples begin");
    check(43, "before its samples begin");
    check(44, "chunk `data`");
    check(good.len() - 2, "chunk `data`");
    check(good.len() - 1, "need: 6 bytes");
    let piped = File { data: vec![1, 2, 3], promised: Some(u32::MAX), ..some() };
    refused("pipe, cut", &bytes(&piped)[..47], Code::TruncatedFile, "within a sample");
    let half = File { channels: 2, align: 4, ..some() };
    refused("half a frame", &bytes(&half), Code::TruncatedFile, "frames of 4 bytes");
}

#[test]
fn what_is_wrong_about_the_form_is_named() {
    let check = |name: &str, file: File, code: Code, says: &str| refused(name, &bytes(&file), code, says);
    check("0 Hz", File { rate_hz: 0, ..some() }, Code::BadHeader, "0 samples a second");
    for rate_hz in [1, 3_999, 192_001, u32::MAX] {
        check("rate", File { rate_hz, ..some() }, Code::UnsupportedAudio, &format!("have: {rate_hz} Hz"));
    }
    check("no channels", File { channels: 0, align: 0, ..some() }, Code::BadHeader, "no channels");
    for channels in [9, 32_768, u16::MAX] {
        let file = File { channels, align: channels.wrapping_mul(2), ..some() };
        check("channels", file, Code::UnsupportedAudio, &format!("have: {channels}"));
    }
    let encodings = [
        (1, 12, "12 bits"),
        (1, 0, "0 bits"),
        (3, 64, "floats in 64"),
        (7, 8, "µ-law"),
        (0x55, 0, "MP3"),
        (9, 16, "0x0009"),
    ];
    for (tag, bits, says) in encodings {
        check("encoding", File { tag, bits, ..some() }, Code::UnsupportedAudio, says);
    }
    check("frame of 0 bytes", File { align: 0, ..some() }, Code::BadHeader, "bytes of a frame");
    check("another frame", File { align: 4, ..some() }, Code::BadHeader, "have: 4");
    check("short extensible", File { tag: 0xFFFE, extra: vec![0; 20], ..some() }, Code::BadHeader, "need: 40");
    check("valid bits", extensible(some(), 1, 17), Code::BadHeader, "more bits");
    let mut vendor = extensible(some(), 1, 16);
    vendor.extra[23] ^= 1;
    check("vendor's guid", vendor, Code::UnsupportedAudio, "vendor");
    check("extensible ADPCM", extensible(some(), 2, 16), Code::UnsupportedAudio, "ADPCM");
}

#[test]
fn what_is_wrong_about_chunks_is_named() {
    let check = |name: &str, file: File, says: &str| refused(name, &bytes(&file), Code::BadHeader, says);
    let good = bytes(&some());
    let around = |before: Vec<u8>, behind: Vec<u8>| File { chunks: [before, vec![], behind], ..some() };
    let tailed = File { data: vec![], ..around(vec![], vec![9; 64]) };
    check("length never filled in", tailed, "no samples, and something follows");
    let again = chunk(b"data", &[1, 2]);
    check("two data", around(vec![], again.clone()), "two chunks `data`");
    check(
        "two data, one behind",
        around(vec![], [chunk(b"LIST", b"odd"), again.clone()].concat()),
        "two chunks `data`",
    );
    check("data first", around(again, vec![]), "before the chunk `fmt `");
    check("two fmt", around(chunk(b"fmt ", &good[20..36]), vec![]), "two chunks `fmt `");
    check("short fmt", around(chunk(b"fmt ", &good[20..34]), vec![]), "too short");
}

#[test]
fn samples_that_are_no_numbers_are_named() {
    let check = |name: &str, file: File, says: &str| refused(name, &bytes(&file), Code::BadSamples, says);
    let values =
        [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf"), (256.1, "256.1"), (-3e38, "-3")];
    for (value, says) in values {
        check("mono", float32(&[0.0, value, 0.0]), says);
        check("its place", float32(&[0.0, value, 0.0]), "sample 1 at 0.000 s");
        check("stereo", File { channels: 2, align: 8, ..float32(&[0.0, 1.0, 1.0, value]) }, "sample 1 at");
    }
}

#[test]
fn samples_from_elsewhere_are_held_to_the_same() {
    let check = |samples: &[f32], rate_hz: u32, code: Code| {
        let error = Audio::new(samples.to_vec(), rate_hz).unwrap_err();
        assert_eq!(error.diagnostics()[0].code, code, "{samples:?} at {rate_hz} Hz: {error}");
    };
    check(&[], 0, Code::BadHeader);
    check(&[0.0], 3_999, Code::UnsupportedAudio);
    check(&[0.0], 192_001, Code::UnsupportedAudio);
    check(&[0.0, f32::NAN], 16_000, Code::BadSamples);
    check(&[f32::INFINITY], 16_000, Code::BadSamples);
    check(&[0.0, -256.1], 16_000, Code::BadSamples);
    assert_eq!(Audio::new(vec![], 4_000).unwrap().duration_s(), 0.0);
    assert_eq!(Audio::new(vec![256.0; 96_000], 192_000).unwrap().duration_s(), 0.5);
}

#[test]
fn no_prefix_of_a_file_is_read() {
    for file in [
        pcm16(&[1, 2, 3]),
        extensible(float32(&[0.5]), 3, 32),
        File { chunks: [chunk(b"LIST", b"odd"), vec![], vec![]], ..pcm16(&[7]) },
    ] {
        let whole = bytes(&file);
        assert!(parse(&whole).is_ok());
        for end in 0..whole.len() {
            assert!(parse(&whole[..end]).is_err(), "the first {end} of {} bytes", whole.len());
        }
    }
}

#[test]
fn files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.wav");
    fs::write(&path, bytes(&pcm16(&[-32768]))).unwrap();
    assert_eq!(read(&path).unwrap().samples(), [-1.0]);
    fs::write(&path, "text").unwrap();
    let error = read(&path).unwrap_err();
    assert_eq!(error.diagnostics()[0].code, Code::UnknownFormat);
    for (path, code) in [
        (path, Code::UnknownFormat),
        (folder.path().join("none.wav"), Code::Unreadable),
        (folder.path().into(), Code::Unreadable),
    ] {
        let error = read(&path).unwrap_err();
        assert_eq!(
            (error.diagnostics()[0].code, error.diagnostics()[0].file.as_deref()),
            (code, Some(&*path)),
            "{error}"
        );
    }
}

#[test]
fn mutants_of_files() {
    let list = || [vec![], chunk(b"LIST", b"INFO"), chunk(b"id3 ", b"x")];
    let stereo = File { channels: 2, align: 8, chunks: list(), ..float32(&[0.5, -0.5, 0.25, 1.0]) };
    let seeds =
        [("plain", pcm16(&[1, -2, 300])), ("chunks", stereo.clone()), ("extensible", extensible(stereo, 3, 32))];
    for (name, seed) in seeds {
        mutants::run(name, &bytes(&seed), |bytes| match parse(bytes) {
            Ok(audio) => {
                assert!(audio.samples().len() <= bytes.len() && audio.samples().iter().all(|v| v.is_finite()));
                true
            }
            Err(_) => false,
        });
    }
}
