//! The file of parameters: safetensors whose every tensor begins at a multiple of 64 bytes, so that runtimes map it.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::{Constant, Element};

/// Where tensors begin: what IREE's runtime asks of parameters that it maps.
const ALIGN_BYTES: u64 = 64;

/// A parameter and where it lies.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What it holds.
    pub constant: Constant,
    /// Where its bytes begin in the file.
    pub offset: u64,
}

/// All parameters of a bundle's modules.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// By name, in the order of the file.
    pub entries: Vec<Entry>,
    header: Vec<u8>,
}

impl Parameters {
    /// The file of these parameters, each once by name.
    pub fn new(constants: impl IntoIterator<Item = Constant>) -> Parameters {
        let constants: BTreeMap<String, Constant> =
            constants.into_iter().map(|constant| (constant.name.clone(), constant)).collect();
        let mut object = Map::new();
        let mut offset = 0;
        let mut entries = Vec::with_capacity(constants.len());
        for (place, (name, constant)) in constants.into_iter().enumerate() {
            let end = offset + constant.len_bytes();
            object.insert(name, described(&constant, offset, end));
            entries.push(Entry { constant, offset });
            offset = end.next_multiple_of(ALIGN_BYTES);
            if end < offset {
                // Readers refuse bytes that belong to no tensor.
                let shape = [offset - end];
                object.insert(
                    format!("__padding.{place}"),
                    json!({ "dtype": "U8", "shape": shape, "data_offsets": [end, offset] }),
                );
            }
        }
        let mut header = serde_json::to_vec(&Value::Object(object)).expect("a header has only text keys and numbers");
        let start = (8 + header.len() as u64).next_multiple_of(ALIGN_BYTES);
        header.resize(start as usize - 8, b' ');
        entries.iter_mut().for_each(|entry| entry.offset += start);
        Parameters { entries, header }
    }

    /// Bytes of the file.
    pub fn len_bytes(&self) -> u64 {
        let end = |entry: &Entry| (entry.offset + entry.constant.len_bytes()).next_multiple_of(ALIGN_BYTES);
        self.entries.last().map_or(8 + self.header.len() as u64, end)
    }

    /// Writes the file. `progress` is told the bytes of each parameter.
    pub fn write(&self, out: &mut dyn Write, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
        out.write_all(&(self.header.len() as u64).to_le_bytes())?;
        out.write_all(&self.header)?;
        for Entry { constant, .. } in &self.entries {
            constant.write(out)?;
            let len = constant.len_bytes();
            io::copy(&mut io::Read::take(io::repeat(0), len.next_multiple_of(ALIGN_BYTES) - len), out)?;
            progress(len);
        }
        Ok(())
    }
}

/// Half bytes have no name in the format: two of them are a byte there.
fn described(constant: &Constant, start: u64, end: u64) -> Value {
    let mut shape = constant.shape.clone();
    let dtype = match constant.element {
        Element::F32 => "F32",
        Element::F16 => "F16",
        Element::Bf16 => "BF16",
        Element::I8 => "I8",
        Element::I4 => {
            let bytes: usize = shape.iter().product::<usize>() / 2;
            shape = vec![bytes];
            "U8"
        }
    };
    json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] })
}
