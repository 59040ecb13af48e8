//! Where the pieces of a template's code end.

/// Words that are operators.
pub(super) const WORDS: [&str; 7] = ["and", "or", "not", "in", "is", "if", "else"];

/// Bytes of the literal text that `code` begins with; `None` if it does not end.
pub(super) fn text_length(code: &str) -> Option<usize> {
    let quote = code.chars().next()?;
    let mut escaped = false;
    for (i, c) in code.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(i + c.len_utf8()),
            _ => {}
        }
    }
    None
}

pub(super) fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Bytes of a name or a number.
pub(super) fn word(code: &str) -> usize {
    code.find(|c: char| !is_of_word(c)).unwrap_or(code.len())
}

/// Bytes of brackets and what they hold.
pub(super) fn brackets(code: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    while let Some(c) = code[at..].chars().next() {
        match c {
            '\'' | '"' => {
                at += text_length(&code[at..]).unwrap_or(code.len() - at);
                continue;
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        at += c.len_utf8();
        if depth == 0 {
            break;
        }
    }
    at
}

/// The parts of code between `separator`s that stand in no brackets, without the blanks around them.
pub(super) fn parts(code: &str, separator: char) -> Vec<&str> {
    let (mut at, mut start, mut parts) = (0, 0, Vec::new());
    while let Some(c) = code[at..].chars().next() {
        at += match c {
            '\'' | '"' => text_length(&code[at..]).unwrap_or(code.len() - at),
            '(' | '[' | '{' => brackets(&code[at..]),
            _ => c.len_utf8(),
        };
        if c == separator {
            parts.push(code[start..at - 1].trim());
            start = at;
        }
    }
    parts.push(code[start..].trim());
    parts
}
