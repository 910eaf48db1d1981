//! Reads numbers and texts of binary headers: the one place that advances through untrusted bytes.

use crate::diag::{Code, Diagnostic, Result};

/// More bytes than any file has.
const MAX_BYTES: u64 = 1 << 48;

/// A position in the file; `place` says what is being read.
pub(super) struct Reader<'a> {
    file: &'a [u8],
    at: usize,
    place: String,
}

impl<'a> Reader<'a> {
    /// At the start of the file.
    pub(super) fn new(file: &'a [u8]) -> Reader<'a> {
        Reader { file, at: 0, place: String::new() }
    }

    /// The offset of the next byte.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Names what is read from here on.
    pub(super) fn enter(&mut self, place: String) {
        self.place = place;
    }

    /// A fault of what is being read.
    pub(super) fn fault(&self, code: Code, message: &str) -> Diagnostic {
        let fault = Diagnostic::error(code, message);
        if self.place.is_empty() { fault } else { fault.subject(&self.place) }
    }

    /// The next `bytes` bytes.
    pub(super) fn take(&mut self, bytes: u64) -> Result<&'a [u8]> {
        if bytes > MAX_BYTES {
            return Err(self
                .fault(Code::BadHeader, "a length in the header is impossible")
                .need(format!("at most {MAX_BYTES} bytes"))
                .have(format!("{bytes} bytes"))
                .into());
        }
        let end = usize::try_from(bytes).ok().and_then(|bytes| self.at.checked_add(bytes));
        match end.and_then(|end| Some((end, self.file.get(self.at..end)?))) {
            Some((end, slice)) => {
                self.at = end;
                Ok(slice)
            }
            None => Err(self
                .fault(Code::TruncatedFile, "the file ends inside its header")
                .need(format!("{} bytes at least", (self.at as u64).saturating_add(bytes)))
                .have(format!("{} bytes", self.file.len()))
                .help("copy or download the file again")
                .into()),
        }
    }

    /// The next bytes, as many as fit the array.
    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N as u64)?);
        Ok(bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.bytes()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.bytes()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    /// A number that must fit `usize`.
    pub(super) fn length(&mut self) -> Result<usize> {
        let length = self.u64()?;
        usize::try_from(length)
            .map_err(|_| self.fault(Code::BadHeader, "a length in the header is impossible").have(length).into())
    }

    /// The text of bytes that were taken.
    pub(super) fn utf8(&self, bytes: &[u8]) -> Result<String> {
        let text = std::str::from_utf8(bytes).map_err(|e| {
            self.fault(Code::BadHeader, "a text is not UTF-8").have(format!(
                "`{}`, wrong from byte {}",
                bytes[..bytes.len().min(64)].escape_ascii(),
                e.valid_up_to()
            ))
        })?;
        Ok(text.to_owned())
    }
}
