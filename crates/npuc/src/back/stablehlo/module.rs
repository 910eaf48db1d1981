//! A module before it is a file: lines of text, and constants that are written where they stand.

use std::io::{self, Write};

use super::{Constant, ModulePort};

/// A step graph as an MLIR module with one function.
#[derive(Clone, Debug)]
pub struct Module {
    /// The name of the module and of its function.
    pub name: String,
    /// What enters, in order.
    pub inputs: Vec<ModulePort>,
    /// What leaves, in order.
    pub outputs: Vec<ModulePort>,
    /// For each output the input whose storage it takes over.
    pub aliases: Vec<Option<usize>>,
    /// The weights that the module finds in the file of parameters, each once.
    pub parameters: Vec<Constant>,
    /// Products with weights in blocks, by the names of the weights.
    pub packed: Vec<String>,
    pub(super) pieces: Vec<Piece>,
}

/// A piece of a module's text.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    Text(String),
    /// The digits of a constant.
    Digits(Constant),
}

impl Module {
    /// Bytes of the file.
    pub fn len_bytes(&self) -> u64 {
        let of = |piece: &Piece| match piece {
            Piece::Text(text) => text.len() as u64,
            Piece::Digits(constant) => digits(constant),
        };
        self.pieces.iter().map(of).sum()
    }

    /// The text without names of the function and of weights and without the digits of constants: modules with the same outline take the
    /// compiler and the chip as long.
    pub fn outline(&self) -> String {
        let text = self.pieces.iter().map(|piece| match piece {
            Piece::Text(text) => text.as_str(),
            Piece::Digits(_) => "",
        });
        let text: String = text.collect();
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.map(|line| line.replace(&format!("@{}", self.name), "@")).collect::<Vec<_>>().join("\n")
    }

    /// Writes the text.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.pieces.iter().try_for_each(|piece| match piece {
            Piece::Text(text) => out.write_all(text.as_bytes()),
            Piece::Digits(constant) => constant.write_hex(out),
        })
    }
}

fn digits(constant: &Constant) -> u64 {
    let elements: u64 = constant.shape.iter().map(|&extent| extent as u64).product();
    elements * 2 * constant.element.bits().div_ceil(8) as u64
}
