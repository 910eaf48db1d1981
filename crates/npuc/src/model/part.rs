//! Cutting a model by its layers, for targets that take it in several graphs.
//!
//! Every part is a step graph of its own; the residual stream and nothing else passes between them. The head can
//! be cut too, by the rows of its matrix.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::diag::{Code, Diagnostic, Error, Result};

/// A run of layers and perhaps the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The layers. The part that begins with layer 0 takes embeddings.
    pub layers: Range<usize>,
    /// The last norm and the head, if they follow the layers; a head may also stand alone, after no layer.
    pub head: Head,
}

/// The head of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// The part has none.
    Absent,
    /// One projection to the vocabulary.
    Whole,
    /// A projection for each run of that many rows of the matrix, in order. Rows after the matrix's last are
    /// zeros, so that the scores of ids that do not exist come last, where a runner drops them.
    Rows(Vec<usize>),
}

impl Head {
    /// Whether the part has a head.
    pub fn is_present(&self) -> bool {
        *self != Head::Absent
    }
}

impl Part {
    /// The whole of a model with that many layers.
    pub fn whole(layers: usize) -> Part {
        Part { layers: 0..layers, head: Head::Whole }
    }

    /// Refuses layers that a model of `layers` does not have, a head that is not at its end, and rows of a head that
    /// are not those of a vocabulary of `vocab` ids.
    pub(super) fn check(&self, layers: usize, vocab: usize) -> Result<()> {
        let Range { start, end } = self.layers;
        let ordered = start <= end && end <= layers;
        let head = self.head.is_present();
        if let Head::Rows(rows) = &self.head {
            check_rows(rows, vocab)?;
        }
        if ordered && (start < end || head) && (!head || end == layers) {
            return Ok(());
        }
        Err(Diagnostic::error(Code::BadShape, "the part is not a part of the model")
            .need(format!("layers inside 0..{layers}, and the head only after the last of them"))
            .have(format!("{start}..{end}{}", if head { " and the head" } else { "" }))
            .into())
    }
}

/// Every part has rows, and the last one reaches the end of the vocabulary.
fn check_rows(rows: &[usize], vocab: usize) -> Result<()> {
    let total = rows.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
    let before_last = rows.split_last().map(|(_, before)| before.iter().fold(0usize, |sum, &n| sum.saturating_add(n)));
    if !rows.contains(&0) && total.is_some_and(|n| n >= vocab) && before_last.is_some_and(|n| n < vocab) {
        return Ok(());
    }
    let have: Vec<String> = rows.iter().map(usize::to_string).collect();
    Err(Diagnostic::error(Code::BadShape, "the rows of the head's parts are not those of the vocabulary")
        .need(format!("parts of at least one row each, of which the last holds row {}", vocab.saturating_sub(1)))
        .have(have.join(","))
        .into())
}

/// How a model is cut, written `4,4,4,2,2` (layers of each part) or `5` (that many equal parts).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunks {
    /// Layers of each part; the head follows the last.
    Layers(Vec<usize>),
    /// That many parts of equally many layers.
    Equal(usize),
}

impl Chunks {
    /// The parts of a model with `layers` layers, in the order of the computation.
    ///
    /// Errors: [`Code::BadShape`] if the parts do not add up to the layers.
    pub fn parts(&self, layers: usize) -> Result<Vec<Part>> {
        let counts = match self {
            Chunks::Layers(counts) => counts.clone(),
            Chunks::Equal(count) if layers.is_multiple_of(*count) => vec![layers / count; *count],
            Chunks::Equal(count) => return Err(uneven(layers, *count)),
        };
        if counts.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)) != Some(layers) || counts.contains(&0) {
            return Err(Diagnostic::error(Code::BadShape, "the chunks do not add up to the model")
                .need(format!("layers of each chunk, {layers} in all"))
                .have(self)
                .into());
        }
        let ends = counts.iter().scan(0, |end, &n| {
            *end += n;
            Some((*end - n)..*end)
        });
        let part = |layers_of: Range<usize>| {
            let head = if layers_of.end == layers { Head::Whole } else { Head::Absent };
            Part { layers: layers_of, head }
        };
        Ok(ends.map(part).collect())
    }
}

fn uneven(layers: usize, count: usize) -> Error {
    let fault = Diagnostic::error(Code::BadShape, format!("{layers} layers do not divide into {count} equal chunks"))
        .need(format!("a divisor of {layers}, or the layers of each chunk"))
        .have(count);
    if count > layers {
        return fault.into();
    }
    let each: Vec<String> =
        (0..count).map(|i| (layers / count + usize::from(i < layers % count)).to_string()).collect();
    fault.help(format!("write {}", each.join(","))).into()
}

impl fmt::Display for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Chunks::Layers(counts) => f.write_str(&counts.iter().map(usize::to_string).collect::<Vec<_>>().join(",")),
            Chunks::Equal(count) => count.fmt(f),
        }
    }
}

impl FromStr for Chunks {
    type Err = Error;

    fn from_str(text: &str) -> Result<Chunks> {
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|&n| n > 0);
        let counts: Option<Vec<usize>> = text.split(',').map(number).collect();
        match counts.as_deref() {
            Some([count]) => Ok(Chunks::Equal(*count)),
            Some(counts) => Ok(Chunks::Layers(counts.to_vec())),
            None => Err(Diagnostic::error(Code::BadShape, format!("`{text}` is not a way to cut a model"))
                .need("the layers of each chunk (4,4,4,2,2) or the number of equal chunks (5)")
                .have(text)
                .into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts() {
        for (text, layers, expected) in [
            ("1", 3, "0..3+"),
            ("3", 6, "0..2 2..4 4..6+"),
            ("4,4,4,2,2", 16, "0..4 4..8 8..12 12..14 14..16+"),
            ("2, 1", 3, "0..2 2..3+"),
            ("5", 16, "16 layers do not divide into 5 equal chunks; write 4,3,3,3,3"),
            ("17", 16, "16 layers do not divide into 17 equal chunks"),
            ("4,4", 16, "the chunks do not add up to the model"),
            ("18446744073709551615,1", 16, "the chunks do not add up to the model"),
            ("4,0,12", 16, "`4,0,12` is not a way to cut a model"),
            ("0", 16, "`0` is not a way to cut a model"),
            ("four", 16, "`four` is not a way to cut a model"),
        ] {
            let cut = text.parse::<Chunks>().and_then(|chunks| chunks.parts(layers));
            let shown = match cut {
                Ok(parts) => {
                    let show =
                        |part: &Part| format!("{:?}{}", part.layers, if part.head.is_present() { "+" } else { "" });
                    parts.iter().map(show).collect::<Vec<_>>().join(" ")
                }
                Err(error) => {
                    let fault = &error.diagnostics()[0];
                    [vec![fault.message.clone()], fault.help.clone()].concat().join("; ")
                }
            };
            assert_eq!(shown, expected, "{text}");
        }
    }

    #[test]
    fn parts_of_no_model() {
        let rows = |rows: &[usize]| Head::Rows(rows.to_vec());
        for (layers, head, good) in [
            (0..4, Head::Whole, true),
            (0..2, Head::Absent, true),
            (4..4, Head::Whole, true),
            (2..2, Head::Absent, false),
            (0..2, Head::Whole, false),
            (0..5, Head::Whole, false),
            (Range { start: 3, end: 2 }, Head::Absent, false),
            (0..4, rows(&[100]), true),
            (4..4, rows(&[64, 36]), true),
            (0..4, rows(&[64, 64]), true),
            (0..4, rows(&[64, 35]), false),
            (0..4, rows(&[100, 16]), false),
            (0..4, rows(&[64, 0, 36]), false),
            (0..4, rows(&[]), false),
            (0..2, rows(&[100]), false),
            (0..4, rows(&[usize::MAX, 1]), false),
        ] {
            assert_eq!(
                Part { layers: layers.clone(), head: head.clone() }.check(4, 100).is_ok(),
                good,
                "{layers:?} {head:?}"
            );
        }
    }
}
