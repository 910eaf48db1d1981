//! Extents and names of tensors in a line of a log, in any of the spellings that tools use.

use npuc::ir::Op;

use super::Operation;

/// The longest list of extents that is believed.
const MAX_RANK: usize = 8;
/// The most extents and names that are believed of one operation; lines far below a heading belong to something else.
const MAX_TENSORS: usize = 64;
/// The longest name that is believed.
const MAX_NAME_BYTES: usize = 512;

/// Adds what the line says of operands, results and names to the operation.
pub(super) fn read(line: &str, operation: &mut Operation) {
    let lower = line.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let (operand, result) = (says(&["operand", "input"]), says(&["result", "output"]));
    let found = shapes(line, operand || result || says(&["shape", "tensor", "dim"]));
    let shapes = match (operand, result) {
        (true, false) => &mut operation.operands,
        (false, true) => &mut operation.results,
        (true, true) | (false, false) => &mut operation.tensors,
    };
    shapes.extend(found);
    shapes.truncate(MAX_TENSORS);
    for name in names(line) {
        if operation.names.len() < MAX_TENSORS && !operation.names.iter().any(|known| known == name) {
            operation.names.push(name.to_owned());
        }
    }
}

/// The extents in a line: `[1, 128]`, `{1,128}`, `(1x128)`, `1x128` and `1 x 128`. A single number in brackets is one only
/// in a line that speaks of tensors, and never right after a word, where it is an index.
fn shapes(line: &str, of_tensors: bool) -> Vec<Vec<usize>> {
    let chars: Vec<char> = line.chars().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let before = at.checked_sub(1).map(|before| chars[before]);
        let opens = "[{(<".contains(chars[at]);
        let starts = chars[at].is_ascii_digit() && !before.is_some_and(|c| c.is_alphanumeric() || "._-".contains(c));
        let list = if opens || starts { list(&chars[at + usize::from(opens)..], opens) } else { None };
        let Some((extents, used)) = list else {
            at += 1;
            continue;
        };
        let index = extents.len() == 1 && (!of_tensors || before.is_some_and(char::is_alphanumeric));
        if !index && extents.len() <= MAX_RANK && !extents.contains(&0) {
            found.push(extents);
        }
        at += usize::from(opens) + used;
    }
    found
}

/// A list of numbers at the start, with its length in characters: up to a closing bracket, or at least two with
/// crosses between them.
fn list(chars: &[char], bracketed: bool) -> Option<(Vec<usize>, usize)> {
    let mut numbers = Vec::new();
    let mut at = 0;
    let blanks = |at: usize| chars[at..].iter().take_while(|c| **c == ' ').count();
    loop {
        at += blanks(at);
        let digits = chars[at..].iter().take_while(|c| c.is_ascii_digit()).count();
        let number = chars[at..at + digits].iter().collect::<String>().parse().ok()?;
        numbers.push(number);
        at += digits;
        let next = at + blanks(at);
        match chars.get(next) {
            Some('x' | '×' | '*') => at = next + 1,
            Some(',') if bracketed => at = next + 1,
            Some(']' | '}' | ')' | '>') if bracketed => return Some((numbers, next + 1)),
            _ if !bracketed && numbers.len() > 1 => {
                let word = chars.get(at).is_some_and(|c| c.is_alphanumeric() || *c == '.');
                return (!word).then_some((numbers, at));
            }
            _ => return None,
        }
    }
}

/// The words of a line that may be names of tensors: with a point or slash in them, or in quotes.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split(['"', '\'', '`']).skip(1).step_by(2);
    let breaks = |c: char| c.is_whitespace() || "\"'`,;:()[]{}<>=|│├└─".contains(c);
    let plain = line.split(breaks).map(|word| word.trim_end_matches('.'));
    let dotted = plain.filter(|word| word.contains(['.', '/']) && word.starts_with(char::is_alphabetic));
    let name = |word: &&str| (2..=MAX_NAME_BYTES).contains(&word.len()) && !word.ends_with(".cc");
    quoted.chain(dotted).filter(name)
}

/// The path, operation and number of a computed tensor's name, `<path>/<operation>.<value>`.
pub(super) fn computed(name: &str) -> Option<(&str, &'static str, u32)> {
    let (path, rest) = name.rsplit_once('/')?;
    let mut parts = rest.split('.');
    let (op, id) = (parts.next()?, parts.next()?);
    let op = Op::NAMES.iter().find(|known| **known == op)?;
    Some((path, op, id.parse().ok()?))
}

/// The path and number in the name of a port in another form, `<port>/port.<value>`.
pub(super) fn port(name: &str) -> Option<(&str, u32)> {
    let (path, rest) = name.rsplit_once('/')?;
    let number = rest.strip_prefix("port.")?.split('.').next()?;
    Some((path, number.parse().ok()?))
}
