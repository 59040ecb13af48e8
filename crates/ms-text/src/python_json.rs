//! JSON and `str()` as Python writes them.
//!
//! Prompt templates put re-serialised JSON into training text, so spaces, escapes and number formats of
//! `json.dumps(value, ensure_ascii=False)` are part of the bytes.

use serde_json::{Number, Value};
use std::fmt::Write;

/// `json.dumps(value, ensure_ascii=False)`; with `indent`, its pretty form with that many spaces.
///
/// ```
/// let value = serde_json::json!({"a": [1, 2.0, 1e16], "ü": null});
/// assert_eq!(ms_text::python_json::dumps(&value, None), r#"{"a": [1, 2.0, 1e+16], "ü": null}"#);
/// ```
pub fn dumps(value: &Value, indent: Option<usize>) -> String {
    Style { indent, ..Style::default() }.dumps(value)
}

/// The arguments of `json.dumps`.
#[derive(Clone, Debug, Default)]
pub struct Style {
    /// Spaces a level, each item on a line of its own.
    pub indent: Option<usize>,
    /// The separators between items and after keys; `None`: `", "` (`","` with `indent`) and `": "`.
    pub separators: Option<(String, String)>,
    /// Keys in the order of their characters.
    pub sort_keys: bool,
    /// Escapes of what is not ASCII.
    pub ensure_ascii: bool,
}

impl Style {
    /// `json.dumps(value, ...)`.
    pub fn dumps(&self, value: &Value) -> String {
        let mut out = String::new();
        write_value(&mut out, value, self, 0);
        out
    }

    fn between(&self) -> &str {
        match (&self.separators, self.indent) {
            (Some((between, _)), _) => between,
            (None, Some(_)) => ",",
            (None, None) => ", ",
        }
    }

    fn behind_key(&self) -> &str {
        self.separators.as_ref().map_or(": ", |(_, behind)| behind)
    }
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => out.push_str(&number_text(number)),
        Value::String(text) => write_string(out, text, style.ensure_ascii),
        Value::Array(list) => write_items(out, ('[', ']'), list.len(), style, depth, |out, i| {
            write_value(out, &list[i], style, depth + 1);
        }),
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            if style.sort_keys {
                entries.sort_unstable_by_key(|(key, _)| *key);
            }
            write_items(out, ('{', '}'), entries.len(), style, depth, |out, i| {
                write_string(out, entries[i].0, style.ensure_ascii);
                out.push_str(style.behind_key());
                write_value(out, entries[i].1, style, depth + 1);
            });
        }
    }
}

fn write_items(
    out: &mut String,
    (open, close): (char, char),
    count: usize,
    style: &Style,
    depth: usize,
    mut item: impl FnMut(&mut String, usize),
) {
    out.push(open);
    for i in 0..count {
        if i > 0 {
            out.push_str(style.between());
        }
        if let Some(width) = style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * (depth + 1)));
        }
        item(out, i);
    }
    if let (Some(width), true) = (style.indent, count > 0) {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', width * depth));
    }
    out.push(close);
}

fn write_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if u32::from(c) < 0x20 => {
                write!(out, "\\u{:04x}", u32::from(c)).expect("writing to a String does not fail");
            }
            c if ensure_ascii && (c > '~' || c == '\u{7f}') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}").expect("writing to a String does not fail");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn number_text(number: &Number) -> String {
    if number.is_i64() || number.is_u64() {
        return number.to_string();
    }
    number.as_f64().map_or_else(|| number.to_string(), float_repr)
}

/// `repr(float)`: shortest digits that round-trip; exponent form from 1e16 up and below 1e-4.
fn float_repr(value: f64) -> String {
    if value == 0.0 {
        return if value.is_sign_negative() { "-0.0".into() } else { "0.0".into() };
    }
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').expect("the exponent form has an e");
    let exponent: i32 = exponent.parse().expect("the exponent is a number");
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        if plain.contains('.') { plain } else { plain + ".0" }
    } else {
        format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
    }
}

/// `str(value)` of what `json.loads` would give: strings unchanged, `None`, `True`, lists and dicts as `repr` shows them.
pub fn str_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => repr(other),
    }
}

fn repr(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(number) => number_text(number),
        Value::String(text) => string_repr(text),
        Value::Array(list) => format!("[{}]", list.iter().map(repr).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let entries: Vec<_> =
                map.iter().map(|(k, v)| format!("{}: {}", string_repr(k), repr(v))).collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

fn string_repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if u32::from(c) < 0x20 || c == '\u{7f}' => {
                write!(out, "\\x{:02x}", u32::from(c)).expect("writing to a String does not fail");
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (value, want) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (-2.5e300, "-2.5e+300"),
            (-0.0, "-0.0"),
        ] {
            assert_eq!(float_repr(value), want);
        }
    }

    #[test]
    fn strings_escape_only_what_json_must_and_keep_other_scripts() {
        assert_eq!(dumps(&json!("a\"\\\n\u{1}é"), None), "\"a\\\"\\\\\\n\\u0001é\"");
    }

    #[test]
    fn the_indented_form_has_no_space_after_commas() {
        assert_eq!(
            dumps(&json!({"a": [1, 2], "b": {}}), Some(2)),
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}"
        );
    }

    /// By Python 3.11.
    #[test]
    fn the_arguments_of_dumps_do_what_they_do_in_python() {
        let value = json!({"b": [1, "é\u{7f}😀"], "a": {"d": 1, "c": {}}});
        let style = |separators: Option<(&str, &str)>, sort_keys, ensure_ascii, indent| Style {
            separators: separators.map(|(a, b)| (a.into(), b.into())),
            sort_keys,
            ensure_ascii,
            indent,
        };
        assert_eq!(
            style(Some((",", ":")), false, false, None).dumps(&value),
            "{\"b\":[1,\"é\u{7f}😀\"],\"a\":{\"d\":1,\"c\":{}}}"
        );
        assert_eq!(
            style(None, true, true, None).dumps(&value),
            r#"{"a": {"c": {}, "d": 1}, "b": [1, "\u00e9\u007f\ud83d\ude00"]}"#
        );
        assert_eq!(
            style(Some((" ;", "=")), true, false, Some(1)).dumps(&json!({"b": 1, "a": [2, 3]})),
            "{\n \"a\"=[\n  2 ;\n  3\n ] ;\n \"b\"=1\n}"
        );
    }

    #[test]
    fn lists_of_texts_become_python_lists() {
        assert_eq!(str_of(&json!(["string", null, true, "it's"])), "['string', None, True, \"it's\"]");
        assert_eq!(str_of(&json!("plain")), "plain");
    }
}
