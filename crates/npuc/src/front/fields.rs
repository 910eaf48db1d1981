//! Reading validated numbers from `config.json` or GGUF metadata: one set of rules and messages for both.
//!
//! A malformed value is noted as a fault and a harmless stand-in is returned, so that all faults are told
//! at once; the caller must check [`Fields::faults`] before it uses any value.

use std::ops::RangeInclusive;

use crate::diag::{Code, Diagnostic};

/// Limits that no model of today comes near, small enough that no product of two of them overflows.
pub(super) mod limit {
    use std::ops::RangeInclusive;

    pub(in crate::front) const WIDTH: RangeInclusive<usize> = 1..=1 << 24;
    pub(in crate::front) const LAYERS: RangeInclusive<usize> = 1..=4096;
    pub(in crate::front) const HEADS: RangeInclusive<usize> = 1..=1 << 16;
    /// Taps of a short convolution: with one there is no history, and no such model.
    pub(in crate::front) const WINDOW: RangeInclusive<usize> = 2..=1 << 10;
    /// Bands of a spectrogram.
    pub(in crate::front) const BANDS: RangeInclusive<usize> = 1..=1 << 10;
    pub(in crate::front) const VOCAB: RangeInclusive<usize> = 1..=1 << 28;
    pub(in crate::front) const POSITIONS: RangeInclusive<usize> = 1..=1 << 31;
    pub(in crate::front) const ANY: RangeInclusive<usize> = 0..=1 << 40;
}

/// A value as stored, whatever the file form. Null counts as absent.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Field {
    Int(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    /// Anything else, as the message shall name it.
    Other(String),
}

impl Field {
    /// The value as messages show it.
    pub(super) fn describe(&self) -> String {
        match self {
            Field::Int(value) => value.to_string(),
            Field::Float(value) => value.to_string(),
            Field::Bool(value) => value.to_string(),
            Field::Text(value) => format!("the text {value:?}"),
            Field::Other(kind) => kind.clone(),
        }
    }
}

type Lookup<'a> = dyn Fn(&str) -> Option<Field> + 'a;

/// The values of one object or key prefix, and the faults found while reading them.
pub(super) struct Fields<'a> {
    lookup: Box<Lookup<'a>>,
    prefix: String,
    pub(super) faults: Vec<Diagnostic>,
}

impl<'a> Fields<'a> {
    /// Reads through `lookup`; messages name keys with `prefix` before them.
    pub(super) fn new(prefix: impl Into<String>, lookup: impl Fn(&str) -> Option<Field> + 'a) -> Fields<'a> {
        Fields { lookup: Box::new(lookup), prefix: prefix.into(), faults: Vec::new() }
    }

    /// The key as messages name it.
    pub(super) fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The value as stored.
    pub(super) fn get(&self, key: &str) -> Option<Field> {
        (self.lookup)(key)
    }

    /// Notes a fault of `key`.
    pub(super) fn fault(&mut self, key: &str, fault: Diagnostic) {
        self.faults.push(fault.subject(self.path(key)));
    }

    fn malformed<T>(&mut self, key: &str, need: String, have: &Field) -> Option<T> {
        let fault = Diagnostic::error(Code::BadConfig, "the value is malformed").need(need).have(have.describe());
        self.fault(key, fault);
        None
    }

    /// A whole number within `limit`.
    pub(super) fn count(&mut self, key: &str, limit: RangeInclusive<usize>) -> Option<usize> {
        let field = self.get(key)?;
        if let Field::Int(value) = field
            && let Ok(value) = usize::try_from(value)
            && limit.contains(&value)
        {
            return Some(value);
        }
        self.malformed(key, format!("a whole number from {} to {}", limit.start(), limit.end()), &field)
    }

    /// A whole number within `limit` that must be there.
    pub(super) fn required_count(&mut self, key: &str, limit: RangeInclusive<usize>) -> usize {
        self.required(key);
        self.count(key, limit.clone()).unwrap_or(*limit.start())
    }

    /// A finite number above zero.
    pub(super) fn positive(&mut self, key: &str) -> Option<f32> {
        self.wide_positive(key).map(|value| value as f32)
    }

    /// A finite number above zero in the precision of the file, and not beyond what 32 bits can hold.
    pub(super) fn wide_positive(&mut self, key: &str) -> Option<f64> {
        let field = self.get(key)?;
        let value = match field {
            Field::Int(value) => value as f64,
            Field::Float(value) => value,
            Field::Bool(_) | Field::Text(_) | Field::Other(_) => f64::NAN,
        };
        let narrow = value as f32;
        if narrow.is_finite() && narrow > 0.0 {
            return Some(value);
        }
        self.malformed(key, "a number above zero that 32 bits can hold".into(), &field)
    }

    /// A finite number above zero that must be there.
    pub(super) fn required_positive(&mut self, key: &str) -> f32 {
        self.required(key);
        self.positive(key).unwrap_or(1.0)
    }

    /// True or false.
    pub(super) fn flag(&mut self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Field::Bool(value) => Some(value),
            field @ (Field::Int(_) | Field::Float(_) | Field::Text(_) | Field::Other(_)) => {
                self.malformed(key, "true or false".into(), &field)
            }
        }
    }

    /// A text.
    pub(super) fn text(&mut self, key: &str) -> Option<String> {
        match self.get(key)? {
            Field::Text(value) => Some(value),
            field @ (Field::Int(_) | Field::Float(_) | Field::Bool(_) | Field::Other(_)) => {
                self.malformed(key, "a text".into(), &field)
            }
        }
    }

    fn required(&mut self, key: &str) {
        if self.get(key).is_none() {
            self.fault(key, Diagnostic::error(Code::BadConfig, "a key that the model needs is absent"));
        }
    }
}
