//! Reads the values of a GGUF header.

use super::{Array, Value};
use crate::diag::{Code, Error, Result};
use crate::front::reader::Reader;

/// How deep arrays may lie in arrays.
const MAX_DEPTH: usize = 4;

impl<'a> Reader<'a> {
    pub(super) fn string(&mut self) -> Result<String> {
        let length = self.u64()?;
        let bytes = self.take(length)?;
        self.utf8(bytes)
    }

    /// A value of the type `kind` (source: `enum gguf_type`).
    pub(super) fn value(&mut self, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 | 2 | 4 | 10 => Value::Unsigned(self.unsigned(kind, 1)?[0]),
            1 | 3 | 5 | 11 => Value::Signed(self.signed(kind, 1)?[0]),
            6 | 12 => Value::Float(self.floats(kind, 1)?[0]),
            7 => Value::Bool(self.bools(1)?[0]),
            8 => Value::String(self.string()?),
            9 => Value::Array(self.array(1)?),
            _ => return Err(self.unknown_kind(kind)),
        })
    }

    fn array(&mut self, depth: usize) -> Result<Array> {
        if depth > MAX_DEPTH {
            let fault = self.fault(Code::BadHeader, "arrays are nested too deep");
            return Err(fault.need(format!("at most {MAX_DEPTH} levels")).into());
        }
        let kind = self.u32()?;
        let count = self.u64()?;
        Ok(match kind {
            0 | 2 | 4 | 10 => Array::Unsigned(self.unsigned(kind, count)?),
            1 | 3 | 5 | 11 => Array::Signed(self.signed(kind, count)?),
            6 | 12 => Array::Float(self.floats(kind, count)?),
            7 => Array::Bool(self.bools(count)?),
            8 => Array::String((0..count).map(|_| self.string()).collect::<Result<_>>()?),
            9 => Array::Array((0..count).map(|_| self.array(depth + 1)).collect::<Result<_>>()?),
            _ => return Err(self.unknown_kind(kind)),
        })
    }

    fn unknown_kind(&self, kind: u32) -> Error {
        self.fault(Code::BadHeader, "a metadata value has an unknown type")
            .need("a type from 0 to 12")
            .have(kind)
            .into()
    }

    /// `count` elements of `N` bytes each.
    fn chunks<const N: usize>(&mut self, count: u64) -> Result<&'a [[u8; N]]> {
        Ok(self.take(count.saturating_mul(N as u64))?.as_chunks().0)
    }

    fn unsigned(&mut self, kind: u32, count: u64) -> Result<Vec<u64>> {
        Ok(match kind {
            0 => self.take(count)?.iter().map(|&b| b.into()).collect(),
            2 => self.chunks(count)?.iter().map(|&b| u16::from_le_bytes(b).into()).collect(),
            4 => self.chunks(count)?.iter().map(|&b| u32::from_le_bytes(b).into()).collect(),
            _ => self.chunks(count)?.iter().map(|&b| u64::from_le_bytes(b)).collect(),
        })
    }

    fn signed(&mut self, kind: u32, count: u64) -> Result<Vec<i64>> {
        Ok(match kind {
            1 => self.chunks(count)?.iter().map(|&b| i8::from_le_bytes(b).into()).collect(),
            3 => self.chunks(count)?.iter().map(|&b| i16::from_le_bytes(b).into()).collect(),
            5 => self.chunks(count)?.iter().map(|&b| i32::from_le_bytes(b).into()).collect(),
            _ => self.chunks(count)?.iter().map(|&b| i64::from_le_bytes(b)).collect(),
        })
    }

    fn floats(&mut self, kind: u32, count: u64) -> Result<Vec<f64>> {
        Ok(match kind {
            6 => self.chunks(count)?.iter().map(|&b| f32::from_le_bytes(b).into()).collect(),
            _ => self.chunks(count)?.iter().map(|&b| f64::from_le_bytes(b)).collect(),
        })
    }

    fn bools(&mut self, count: u64) -> Result<Vec<bool>> {
        let bytes = self.take(count)?;
        match bytes.iter().find(|&&byte| byte > 1) {
            Some(byte) => Err(self.fault(Code::BadHeader, "a truth value is neither 0 nor 1").have(byte).into()),
            None => Ok(bytes.iter().map(|&byte| byte == 1).collect()),
        }
    }
}
