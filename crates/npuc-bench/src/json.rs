//! JSON objects from users, read so that nothing is lost: values keep their text, a key that comes twice is a fault.

use std::fmt;

use npuc::{Code, Diagnostic, Result};
use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// The fields of an object in their order, each as the text it was written in.
#[derive(Clone, Debug, Default)]
pub struct Object(Vec<(String, Box<RawValue>)>);

impl Object {
    /// Takes a field out; `Ok(None)` where there is none.
    ///
    /// Errors: the field is not `expected`, which says in words what `T` is.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, key: &str, expected: &str, code: Code) -> Result<Option<T>> {
        let Some(place) = self.0.iter().position(|(name, _)| name == key) else { return Ok(None) };
        let (_, raw) = self.0.remove(place);
        serde_json::from_str(raw.get()).map(Some).map_err(|_| {
            let fault = Diagnostic::error(code, "a field is not what it should be");
            fault.subject(key).need(expected).have(shortened(raw.get())).into()
        })
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text of a field.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, raw)| raw.get())
    }
}

/// What was found, in at most 60 characters.
pub(crate) fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    if text.chars().count() <= MOST {
        return text.to_string();
    }
    format!("{}…", text.chars().take(MOST).collect::<String>())
}

/// What is wrong with JSON, in words, with the column; who calls it tells the line.
pub(crate) fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let what = text.strip_suffix(&place).unwrap_or(&text);
    let what = if what.starts_with("data did not match any variant") {
        "a value is of none of the kinds that it may be"
    } else {
        what
    };
    let told = match what.rsplit_once("expected ") {
        Some((before, "usize" | "u64" | "u32" | "i64")) => format!("{before}expected a whole number"),
        Some((before, "f64" | "f32")) => format!("{before}expected a number"),
        Some((before, kind)) if kind.starts_with("struct ") => format!("{before}expected an object"),
        Some(_) | None => what.to_string(),
    };
    format!("{told}, at column {}", error.column())
}

/// The same with the field that the fault is in or behind. `text` is one line.
pub(crate) fn reason_in(text: &str, error: &serde_json::Error) -> String {
    let field = field_at(text.get(..error.column()).unwrap_or(text));
    let reason = reason(error);
    if field.is_empty() { reason } else { format!("`{field}`: {reason}") }
}

/// The names of the objects' fields that are open where JSON ends, the outermost first.
fn field_at(json: &str) -> String {
    let mut open: Vec<String> = Vec::new();
    let (mut last, mut rest) = (String::new(), json);
    while let Some(next) = rest.chars().next() {
        if let (true, Some(end)) = (next == '"', text_end(&rest[next.len_utf8()..])) {
            last = rest[1..=end].to_string();
            rest = &rest[end + 2..];
            continue;
        }
        match next {
            '{' | '[' => open.push(String::new()),
            '}' | ']' => drop(open.pop()),
            ':' => open.iter_mut().last().into_iter().for_each(|name| name.clone_from(&last)),
            _ => {}
        }
        rest = &rest[next.len_utf8()..];
    }
    open.retain(|name| !name.is_empty());
    open.join(".")
}

/// Where the quote is that ends a text.
fn text_end(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.find(|c| {
        let ends = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends
    })
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Object, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Object, A::Error> {
                let mut fields: Vec<(String, Box<RawValue>)> = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    if fields.iter().any(|(other, _)| *other == key) {
                        return Err(A::Error::custom(format!("the key `{key}` comes twice")));
                    }
                    fields.push((key, value));
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}
