//! WAV files: chunks of RIFF, read whole and taken as they stand or refused.
//!
//! Read: whole numbers in 8 (unsigned), 16, 24 and 32 bits and floats in 32 bits, plain or `WAVE_FORMAT_EXTENSIBLE`,
//! one to [`MAX_CHANNELS`] channels, rates as [`Audio::new`] takes them, files up to [`MAX_BYTES`]. Full scale is 1:
//! whole numbers of n bits are divided by 2^(n−1). Channels are averaged with equal weights, whatever loudspeakers they
//! are for, so opposite channels cancel.
//!
//! `hound` was not taken: it loses its place behind a chunk of odd length, refuses plain whole numbers of 32 bits in the
//! longer header, and cannot say what a file lacks. The tests write their files with it.
//!
//! Not looked at, because they repeat what is stated elsewhere or are about other things: the length of the whole file,
//! bytes a second, loudspeakers, and chunks other than `fmt ` and `data`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use npuc::diag::{Code, Diagnostic, Error, Result};

use crate::audio::{Audio, bad_sample, check_rate, is_good};

/// The most channels that are averaged.
pub const MAX_CHANNELS: u16 = 8;

/// The largest file, 2 GiB: 18 hours of one channel at 16 kHz in 16 bits.
pub const MAX_BYTES: u64 = 1 << 31;

/// `RIFF`, a length and `WAVE`.
const MAGIC_BYTES: usize = 12;

/// Lengths of samples that stand for "until the file ends": what writes to a pipe cannot come back to fill in the true
/// one. The first is ffmpeg's, the second eSpeak NG's.
const UNTIL_THE_END: [u32; 2] = [0xFFFF_FFFF, 0x7FFF_F000];

const CONVERT: &str = "convert it: ffmpeg -i FILE -ar 16000 -ac 1 -c:a pcm_s16le OUT.wav";

/// The audio of a WAV file; its channels are averaged.
///
/// Errors: those of [`parse`] with the file's name, and `unreadable`. A file that does not begin as WAV files do is not
/// read further.
pub fn read(path: &Path) -> Result<Audio> {
    read_bytes(path).and_then(|bytes| parse(&bytes)).map_err(|error| error.in_file(path))
}

fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    let unreadable = |e: std::io::Error| Diagnostic::error(Code::Unreadable, format!("cannot read the audio: {e}"));
    let mut file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut bytes).map_err(unreadable)?;
    check_magic(&bytes)?;
    file.take(MAX_BYTES - MAGIC_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        let fault = Diagnostic::error(Code::UnsupportedAudio, "the file is larger than npuc reads");
        return Err(fault.need(format!("at most {MAX_BYTES} bytes")).help("cut it into pieces").into());
    }
    Ok(bytes)
}

/// The audio of the bytes of a WAV file; its channels are averaged. A file without samples is audio of no length.
///
/// Errors: `unknown-format` for anything but a WAV file, `truncated-file` for one that is empty or ends early,
/// `bad-header` for one that contradicts itself, `unsupported-audio` for encodings, channels and rates that npuc does
/// not read, `bad-samples` as [`Audio::new`] has it.
pub fn parse(bytes: &[u8]) -> Result<Audio> {
    check_magic(bytes)?;
    let mut form = None;
    let mut rest = &bytes[MAGIC_BYTES..];
    loop {
        let Some((head, behind)) = chunk(rest) else {
            let fault = Diagnostic::error(Code::TruncatedFile, "the file ends before its samples begin");
            return Err(fault.need("a chunk `data`").have(format!("{} bytes in all", bytes.len())).into());
        };
        match &head.id {
            b"data" => {
                let form: Form =
                    form.ok_or_else(|| bad("the samples come before the chunk `fmt ` that explains them"))?;
                return samples(&form, data(&head, behind)?);
            }
            b"fmt " if form.is_some() => return Err(bad("the file has two chunks `fmt `").into()),
            b"fmt " => form = Some(Form::parse(whole(&head, behind)?)?),
            _ => drop(whole(&head, behind)?),
        }
        rest = behind.get(head.padded()..).unwrap_or(&[]);
    }
}

fn check_magic(bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Err(Diagnostic::error(Code::TruncatedFile, "the audio file is empty").into());
    }
    let (riff, kind) = (bytes.get(..4).unwrap_or(bytes), bytes.get(8..MAGIC_BYTES));
    if b"RIFF".starts_with(riff) && kind.is_none_or(|kind| kind == b"WAVE") {
        if kind.is_some() {
            return Ok(());
        }
        return Err(ends_early("the header", MAGIC_BYTES as u64, bytes.len()).into());
    }
    let have = match riff {
        b"RIFF" => "another kind of RIFF file",
        b"RF64" | b"BW64" => "a WAV file with lengths of 64 bits",
        b"RIFX" => "a WAV file with the high bytes first",
        b"FORM" => "an AIFF file",
        b"fLaC" => "a FLAC file",
        b"OggS" => "an Ogg file",
        [b'I', b'D', b'3', ..] | [0xFF, 0xE0..=0xFF, ..] => "an MP3 or AAC file",
        _ if bytes.get(4..8) == Some(b"ftyp") => "an MP4 file",
        _ if bytes.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) => "text",
        _ => "something else",
    };
    let fault = Diagnostic::error(Code::UnknownFormat, "the file is no WAV file");
    Err(fault.need("`RIFF`, a length and `WAVE` at its start").have(have).help(CONVERT).into())
}

/// The head of a chunk.
struct Head {
    id: [u8; 4],
    len: u32,
}

impl Head {
    /// The length with the byte that makes it even.
    fn padded(&self) -> usize {
        self.len as usize + (self.len % 2) as usize
    }
}

/// The chunk at the start of `bytes` and what follows its head.
fn chunk(bytes: &[u8]) -> Option<(Head, &[u8])> {
    let (id, rest) = bytes.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    Some((Head { id: *id, len: u32::from_le_bytes(*len) }, rest))
}

/// The bytes of a chunk, all of them.
fn whole<'a>(head: &Head, behind: &'a [u8]) -> Result<&'a [u8]> {
    let name = || format!("the chunk `{}`", head.id.escape_ascii());
    Ok(behind.get(..head.len as usize).ok_or_else(|| ends_early(&name(), u64::from(head.len), behind.len()))?)
}

/// The bytes of the samples.
fn data<'a>(head: &Head, behind: &'a [u8]) -> Result<&'a [u8]> {
    if UNTIL_THE_END.contains(&head.len) && behind.len() < head.len as usize {
        return Ok(behind);
    }
    let body = whole(head, behind)?;
    let mut rest = behind.get(head.padded()..).unwrap_or(&[]);
    while let Some((next, behind)) = chunk(rest) {
        if &next.id == b"data" {
            return Err(bad("the file has two chunks `data`").help(CONVERT).into());
        }
        if behind.len() < next.len as usize {
            break;
        }
        rest = behind.get(next.padded()..).unwrap_or(&[]);
    }
    if body.is_empty() && !rest.is_empty() {
        let fault = bad("the header says that there are no samples, and something follows that is no chunk");
        let fault = fault.have(format!("{} bytes", rest.len()));
        return Err(fault.help("the recording broke off; an audio editor may read it as raw samples").into());
    }
    Ok(body)
}

/// How one sample of one channel is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Unsigned8,
    Int16,
    Int24,
    Int32,
    Float32,
}

impl Encoding {
    fn of(tag: u16, bits: u16) -> Result<Encoding> {
        match (tag, bits) {
            (PCM, 8) => Ok(Encoding::Unsigned8),
            (PCM, 16) => Ok(Encoding::Int16),
            (PCM, 24) => Ok(Encoding::Int24),
            (PCM, 32) => Ok(Encoding::Int32),
            (FLOAT, 32) => Ok(Encoding::Float32),
            _ => {
                let fault =
                    Diagnostic::error(Code::UnsupportedAudio, "the samples are in an encoding that npuc does not read");
                let fault = fault.need("whole numbers in 8, 16, 24 or 32 bits, or floats in 32");
                Err(fault.have(format!("{} in {bits} bits", tag_name(tag))).help(CONVERT).into())
            }
        }
    }

    const fn bytes(self) -> usize {
        match self {
            Encoding::Unsigned8 => 1,
            Encoding::Int16 => 2,
            Encoding::Int24 => 3,
            Encoding::Int32 | Encoding::Float32 => 4,
        }
    }

    /// The sample of these [`Encoding::bytes`] bytes, with full scale at 1, as the nearest f32.
    fn decode(self, bytes: &[u8]) -> f32 {
        let byte = |i: usize| bytes[i];
        // The bits at the top of a word, so that one division fits all.
        let top = |low: [u8; 4]| (f64::from(i32::from_le_bytes(low)) / f64::from(1u32 << 31)) as f32;
        match self {
            Encoding::Unsigned8 => top([0, 0, 0, byte(0) ^ 0x80]),
            Encoding::Int16 => top([0, 0, byte(0), byte(1)]),
            Encoding::Int24 => top([0, byte(0), byte(1), byte(2)]),
            Encoding::Int32 => top([byte(0), byte(1), byte(2), byte(3)]),
            Encoding::Float32 => f32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)]),
        }
    }
}

const PCM: u16 = 1;
const FLOAT: u16 = 3;
const EXTENSIBLE: u16 = 0xFFFE;

fn tag_name(tag: u16) -> String {
    match tag {
        PCM => "whole numbers".into(),
        FLOAT => "floats".into(),
        0x02 | 0x11 => "ADPCM".into(),
        0x06 => "A-law".into(),
        0x07 => "µ-law".into(),
        0x31 => "GSM 6.10".into(),
        0x55 => "MP3".into(),
        _ => format!("format {tag:#06x}"),
    }
}

/// What the chunk `fmt ` says.
struct Form {
    encoding: Encoding,
    channels: u16,
    rate_hz: u32,
}

/// The bytes of a subformat's GUID that follow its tag.
const GUID_TAIL: [u8; 14] = [0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71];

impl Form {
    /// Reads `WAVEFORMAT`, `WAVEFORMATEX` or `WAVEFORMATEXTENSIBLE` of mmreg.h. Fewer valid bits than stored ones are
    /// no matter, since the valid ones are at the top.
    fn parse(bytes: &[u8]) -> Result<Form> {
        let u16_at = |at: usize| bytes.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        let short = |need: usize| {
            let fault = bad("the chunk `fmt ` is too short").need(format!("{need} bytes"));
            Error::from(fault.have(format!("{} bytes", bytes.len())))
        };
        let field = |at: usize| u16_at(at).ok_or_else(|| short(16));
        let (mut tag, channels, align, bits) = (field(0)?, field(2)?, field(12)?, field(14)?);
        let rate_hz = u32::from(field(4)?) | u32::from(field(6)?) << 16;
        if tag == EXTENSIBLE {
            let (valid_bits, guid) = (u16_at(18), bytes.get(24..40));
            let (valid_bits, guid) = valid_bits.zip(guid).ok_or_else(|| short(40))?;
            if guid[2..] != GUID_TAIL {
                let fault =
                    Diagnostic::error(Code::UnsupportedAudio, "the samples are in an encoding of a vendor's own");
                return Err(fault.help(CONVERT).into());
            }
            if valid_bits > bits {
                let fault = bad("more bits of a sample are valid than are stored");
                return Err(fault.need(format!("at most {bits}")).have(valid_bits).into());
            }
            tag = u16::from_le_bytes([guid[0], guid[1]]);
        }
        check_channels(channels)?;
        check_rate(rate_hz)?;
        let encoding = Encoding::of(tag, bits)?;
        let frame = channels as usize * encoding.bytes();
        if usize::from(align) != frame {
            let fault = bad("the header contradicts itself about the bytes of a frame");
            return Err(fault.need(format!("{channels} channels of {bits} bits, {frame} bytes")).have(align).into());
        }
        Ok(Form { encoding, channels, rate_hz })
    }
}

fn check_channels(channels: u16) -> Result<()> {
    let need = format!("1 to {MAX_CHANNELS}");
    match channels {
        0 => Err(bad("the audio has no channels").need(need).have(0).into()),
        1..=MAX_CHANNELS => Ok(()),
        _ => {
            let fault = Diagnostic::error(Code::UnsupportedAudio, "the audio has more channels than npuc averages");
            Err(fault.need(need).have(channels).help(CONVERT).into())
        }
    }
}

/// Reads all samples and averages the channels.
fn samples(form: &Form, body: &[u8]) -> Result<Audio> {
    let channels = usize::from(form.channels);
    let frame = channels * form.encoding.bytes();
    if !body.len().is_multiple_of(frame) {
        let fault = Diagnostic::error(Code::TruncatedFile, "the file ends within a sample");
        return Err(fault.need(format!("frames of {frame} bytes")).have(format!("{} bytes", body.len())).into());
    }
    let average = |(at, bytes): (usize, &[u8])| {
        let mut sum = 0.0;
        for sample in bytes.chunks_exact(form.encoding.bytes()).map(|bytes| form.encoding.decode(bytes)) {
            // The average of an infinity and a large number would not tell which was wrong.
            if !is_good(sample) {
                return Err(Error::from(bad_sample(sample, at, form.rate_hz)));
            }
            sum += f64::from(sample);
        }
        Ok((sum / channels as f64) as f32)
    };
    let samples = body.chunks_exact(frame).enumerate().map(average).collect::<Result<Vec<f32>>>()?;
    Audio::new(samples, form.rate_hz)
}

fn bad(message: &str) -> Diagnostic {
    Diagnostic::error(Code::BadHeader, message)
}

fn ends_early(what: &str, need: u64, have: usize) -> Diagnostic {
    let fault = Diagnostic::error(Code::TruncatedFile, format!("the file ends within {what}"));
    fault.need(format!("{need} bytes")).have(format!("{have} bytes")).help("copy or record it again")
}
