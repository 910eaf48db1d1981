//! The text form of a graph: one value a line, parsed back to exactly the same graph.
//!
//! ```text
//! graph "128t1024c" {
//!   %0 = input "embeds" : f32[128, 576]
//!   %1 = weight "norm.weight" : f32[576]
//!   %2 = rms_norm(%0, %1) {eps = 1e-5} : f32[128, 576] @ "norm"
//!   output "hidden" = %2
//! }
//! ```
//!
//! Values are numbered from 0 in order, outputs come last, `@ "path"` is left out where the path is empty.
//! `#` starts a comment, blank lines are free. Real numbers carry a point or an exponent. In names `\"`,
//! `\\`, `\n`, `\r`, `\t` and `\u{hex}` stand for characters that cannot be written plainly. Parsing checks
//! the form only; whether the graph obeys the rules of the IR is [`super::verify::verify`]'s question.

use std::fmt::{self, Write};

use super::op::Attr;
use super::{Def, Graph, Op, Output, Type, Value, ValueId};
use crate::diag::{Code, Diagnostic, Result};
use crate::tensor::{DType, Shape};

/// The text form of `graph`.
pub fn print(graph: &Graph) -> String {
    graph.to_string()
}

/// The 1-based line of [`print()`] that defines the value.
pub fn value_line(value: ValueId) -> usize {
    value.index() + 2
}

/// The 1-based line of [`print()`] that states the output of that index.
pub fn output_line(graph: &Graph, output: usize) -> usize {
    graph.values.len() + output + 2
}

/// The call alone, e.g. `rms_norm(%0, %1) {eps = 1e-5}`: two values of the same call are equal.
pub fn call(op: &Op, args: &[ValueId]) -> String {
    let args: Vec<String> = args.iter().map(ValueId::to_string).collect();
    let attrs: Vec<String> = op.attrs().iter().map(|(name, attr)| format!("{name} = {attr}")).collect();
    let attrs = if attrs.is_empty() { String::new() } else { format!(" {{{}}}", attrs.join(", ")) };
    format!("{}({}){attrs}", op.name(), args.join(", "))
}

/// The line that defines the value, without its indentation.
pub fn value_text(graph: &Graph, id: ValueId) -> String {
    let Value { name, ty, def } = graph.value(id);
    let quoted = Quoted(name);
    match def {
        Def::Input => format!("{id} = input {quoted} : {ty}"),
        Def::Weight => format!("{id} = weight {quoted} : {ty}"),
        Def::Op { op, args } if name.is_empty() => format!("{id} = {} : {ty}", call(op, args)),
        Def::Op { op, args } => format!("{id} = {} : {ty} @ {quoted}", call(op, args)),
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {} {{", Quoted(&self.name))?;
        for id in self.ids() {
            writeln!(f, "  {}", value_text(self, id))?;
        }
        for Output { name, value } in &self.outputs {
            writeln!(f, "  output {} = {value}", Quoted(name))?;
        }
        writeln!(f, "}}")
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The debug form is the shortest that reads back as the same number and is never a bare integer.
            Attr::Float(x) => write!(f, "{x:?}"),
            Attr::Int(n) => write!(f, "{n}"),
            Attr::Bool(b) => write!(f, "{b}"),
            Attr::List(list) => write!(f, "{list:?}"),
        }
    }
}

/// A name in quotes, on one line.
pub(super) struct Quoted<'n>(pub(super) &'n str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                c if c.is_control() => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// The graph that `text` describes.
///
/// # Errors
/// [`Code::IrSyntax`] with the line, what was expected there and what was found.
pub fn parse(text: &str) -> Result<Graph> {
    let mut lines = text.lines().enumerate().map(|(i, line)| Cursor { line: i + 1, all: line, rest: line });
    let mut next = move || lines.by_ref().find(|line| !line.rest_is_empty());
    let end = text.lines().count();
    let ended = |expected: &str| {
        Diagnostic::error(Code::IrSyntax, format!("expected {expected}")).have("the end of the text").line(end.max(1))
    };

    let mut line = next().ok_or_else(|| ended("`graph \"name\" {`"))?;
    line.expect("graph")?;
    let mut graph = Graph { name: line.string()?, values: Vec::new(), outputs: Vec::new() };
    line.expect("{")?;
    line.end()?;
    loop {
        let mut line = next().ok_or_else(|| ended("`}`"))?;
        if line.accept("}") {
            line.end()?;
            break;
        }
        if line.accept("output") {
            let name = line.string()?;
            line.expect("=")?;
            graph.outputs.push(Output { name, value: line.value_id()? });
        } else if graph.outputs.is_empty() {
            let value = parse_value(&mut line, graph.values.len())?;
            graph.values.push(value);
        } else {
            return Err(line.expected("`output` or `}` after an output").into());
        }
        line.end()?;
    }
    match next() {
        None => Ok(graph),
        Some(line) => Err(line.expected("the end of the text after `}`").into()),
    }
}

fn parse_value(line: &mut Cursor<'_>, index: usize) -> Result<Value> {
    let at = line.clone();
    if !line.rest.trim_start().starts_with('%') {
        return Err(at.expected("a value (`%…`), `output` or `}`").into());
    }
    if line.value_id()?.index() != index {
        return Err(at.expected(&format!("`%{index}`, for values are numbered in order")).into());
    }
    line.expect("=")?;
    let at = line.clone();
    let (name, def) = match line.word() {
        "" => return Err(at.expected("`input`, `weight` or an operation").into()),
        "input" => (Some(line.string()?), Def::Input),
        "weight" => (Some(line.string()?), Def::Weight),
        op => {
            let args = line.list("(", ")", Cursor::value_id)?;
            let attrs = if line.next_is('{') { line.list("{", "}", attribute)? } else { Vec::new() };
            let op = Op::from_parts(op, &attrs).map_err(|why| line.fault(why))?;
            (None, Def::Op { op, args })
        }
    };
    line.expect(":")?;
    let ty = parse_type(line)?;
    let name = match name {
        Some(name) => name,
        None if line.accept("@") => line.string()?,
        None => String::new(),
    };
    Ok(Value { name, ty, def })
}

fn parse_type(line: &mut Cursor<'_>) -> Result<Type> {
    let at = line.clone();
    let dtype = DType::from_name(line.word()).ok_or_else(|| {
        let names: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
        at.expected(&format!("a number format ({})", names.join(", ")))
    })?;
    Ok(Type { dtype, shape: Shape(line.list("[", "]", Cursor::integer)?) })
}

fn attribute(line: &mut Cursor<'_>) -> Result<(String, Attr)> {
    let at = line.clone();
    let name = line.word().to_owned();
    if name.is_empty() {
        return Err(at.expected("an attribute's name").into());
    }
    line.expect("=")?;
    if line.next_is('[') {
        return Ok((name, Attr::List(line.list("[", "]", Cursor::integer)?)));
    }
    let at = line.clone();
    let word = line.word();
    let attr = match word {
        "true" => Attr::Bool(true),
        "false" => Attr::Bool(false),
        "NaN" => Attr::Float(f32::NAN),
        "inf" => Attr::Float(f32::INFINITY),
        "-inf" => Attr::Float(f32::NEG_INFINITY),
        _ if !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit()) => Attr::Int(at.clone().integer()?),
        _ => Attr::Float(real(word).ok_or_else(|| at.expected("a number, `true`, `false` or a list in `[…]`"))?),
    };
    Ok((name, attr))
}

/// A real number in decimal that an f32 can hold.
fn real(word: &str) -> Option<f32> {
    let digits = word.strip_prefix('-').unwrap_or(word);
    let decimal = digits.starts_with(|c: char| c.is_ascii_digit());
    word.parse().ok().filter(|x: &f32| decimal && x.is_finite())
}

/// What is left of one line. Copies mark a place for messages.
#[derive(Clone)]
struct Cursor<'t> {
    line: usize,
    all: &'t str,
    rest: &'t str,
}

impl<'t> Cursor<'t> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
        if self.rest.starts_with('#') {
            self.rest = "";
        }
    }

    fn rest_is_empty(&self) -> bool {
        let rest = self.rest.trim_start();
        rest.is_empty() || rest.starts_with('#')
    }

    fn next_is(&self, c: char) -> bool {
        self.rest.trim_start().starts_with(c)
    }

    fn accept(&mut self, token: &str) -> bool {
        self.skip_space();
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        if self.accept(token) { Ok(()) } else { Err(self.expected(&format!("`{token}`")).into()) }
    }

    fn end(&self) -> Result<()> {
        if self.rest_is_empty() { Ok(()) } else { Err(self.expected("the end of the line").into()) }
    }

    /// The longest run of letters, digits and the signs of numbers; may be empty.
    fn word(&mut self) -> &'t str {
        self.skip_space();
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_.+-".contains(c)));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }

    fn integer(&mut self) -> Result<usize> {
        let at = self.clone();
        let word = self.word();
        if word.is_empty() || !word.bytes().all(|b| b.is_ascii_digit()) {
            return Err(at.expected("a whole number").into());
        }
        word.parse().map_err(|_| at.expected(&format!("a whole number up to {}", usize::MAX)).into())
    }

    fn value_id(&mut self) -> Result<ValueId> {
        self.expect("%")?;
        let at = self.clone();
        let id = self.integer()?;
        u32::try_from(id).map(ValueId).map_err(|_| at.expected(&format!("a number up to {}", u32::MAX)).into())
    }

    fn list<T>(
        &mut self,
        open: &str,
        close: &str,
        mut item: impl FnMut(&mut Cursor<'t>) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.expect(open)?;
        let mut items = Vec::new();
        if self.accept(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.accept(close) {
                return Ok(items);
            }
            if !self.accept(",") {
                return Err(self.expected(&format!("`,` or `{close}`")).into());
            }
        }
    }

    fn string(&mut self) -> Result<String> {
        if !self.accept("\"") {
            return Err(self.expected("a name in double quotes").into());
        }
        let mut text = String::new();
        loop {
            let at = self.clone();
            let mut chars = self.rest.chars();
            let c = chars.next();
            self.rest = chars.as_str();
            match c {
                Some('"') => return Ok(text),
                Some('\\') => text.push(self.escape().ok_or_else(|| {
                    at.expected("one of the escapes `\\\"`, `\\\\`, `\\n`, `\\r`, `\\t`, `\\u{hex}`")
                })?),
                Some(c) => text.push(c),
                None => return Err(at.expected("`\"` at the end of the name").into()),
            }
        }
    }

    /// The character that the rest of an escape stands for.
    fn escape(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let c = chars.next()?;
        self.rest = chars.as_str();
        match c {
            '"' | '\\' => Some(c),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'u' => {
                let (hex, rest) = self.rest.strip_prefix('{')?.split_once('}')?;
                self.rest = rest;
                let hex_only = hex.bytes().all(|b| b.is_ascii_hexdigit());
                u32::from_str_radix(hex, 16).ok().filter(|_| hex_only).and_then(char::from_u32)
            }
            _ => None,
        }
    }

    /// A fault at this place.
    fn expected(&self, what: &str) -> Diagnostic {
        const SHOWN: usize = 24;
        let rest = if self.rest_is_empty() { "" } else { self.rest.trim_start() };
        let mut shown: String = rest.chars().take(SHOWN).collect();
        if shown.len() < rest.len() {
            shown.push('…');
        }
        let column = self.all[..self.all.len() - rest.len()].chars().count() + 1;
        let found = if shown.is_empty() { "the end of the line".into() } else { format!("`{shown}`") };
        self.fault(format!("expected {what}")).have(format!("{found} at column {column}"))
    }

    fn fault(&self, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(Code::IrSyntax, message).line(self.line)
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
