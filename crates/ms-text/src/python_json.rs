//! JSON and `str()` as Python writes them.
//!
//! Prompt templates put re-serialised JSON into training text, so spaces, escapes and number formats of
//! `json.dumps(value, ensure_ascii=False)` are part of the bytes.

use regex::Regex;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Number, Value};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::{self, Write};
use std::sync::LazyLock;

/// `json.dumps(value, ensure_ascii=False)`; with `indent`, its pretty form with that many spaces.
///
/// ```
/// let value = serde_json::json!({"a": [1, 2.0, 1e16], "ü": null});
/// assert_eq!(ms_text::python_json::dumps(&value, None), r#"{"a": [1, 2.0, 1e+16], "ü": null}"#);
/// ```
pub fn dumps(value: &Value, indent: Option<usize>) -> String {
    Style { indent, ..Style::default() }.dumps(value)
}

/// Levels of lists and objects in each other, as `serde_json` takes them.
const MOST_DEPTH: usize = 128;

/// `json.dumps(json.loads(text), ensure_ascii=False)`. Unlike [`dumps`] of the parsed text, whole numbers keep all their
/// digits, of which a [`Value`] has those of 64 bits.
///
/// ```
/// assert_eq!(ms_text::python_json::rewritten("[100000000000000000000000,1e2]")?, "[100000000000000000000000, 100.0]");
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// # Errors
/// What is wrong with the text.
pub fn rewritten(text: &str) -> serde_json::Result<String> {
    let mut out = String::new();
    rewrite(&mut out, serde_json::from_str(text)?, 0)?;
    Ok(out)
}

fn rewrite(out: &mut String, value: &RawValue, depth: usize) -> serde_json::Result<()> {
    if depth > MOST_DEPTH {
        return Err(serde_json::Error::custom("lists and objects in each other are too deep"));
    }
    let text = value.get();
    match text.as_bytes()[0] {
        b'{' => {
            out.push('{');
            for (i, (key, member)) in serde_json::from_str::<Members>(text)?.0.into_iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write_string(out, &key, false);
                out.push_str(": ");
                rewrite(out, member, depth + 1)?;
            }
            out.push('}');
        }
        b'[' => {
            out.push('[');
            for (i, item) in serde_json::from_str::<Vec<&RawValue>>(text)?.into_iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                rewrite(out, item, depth + 1)?;
            }
            out.push(']');
        }
        b'"' => write_string(out, &serde_json::from_str::<String>(text)?, false),
        b't' | b'f' | b'n' => out.push_str(text),
        // Python's whole numbers have no negative zero.
        _ if !text.contains(['.', 'e', 'E']) => out.push_str(if text == "-0" { "0" } else { text }),
        _ => match text.parse() {
            Ok(f64::INFINITY) => out.push_str("Infinity"),
            Ok(f64::NEG_INFINITY) => out.push_str("-Infinity"),
            Ok(number) => out.push_str(&float_repr(number)),
            Err(error) => return Err(serde_json::Error::custom(error)),
        },
    }
    Ok(())
}

/// The members of an object, each as it is written. Of several with one name the last one counts, in the place of the first,
/// as in a Python dict.
pub(crate) struct Members<'a>(pub(crate) Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    /// The member with this name.
    pub(crate) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collector;
        impl<'de> Visitor<'de> for Collector {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members: Vec<(String, &'de RawValue)> = Vec::new();
                let mut places: HashMap<String, usize> = HashMap::new();
                while let Some((key, value)) = map.next_entry::<String, &'de RawValue>()? {
                    match places.entry(key) {
                        Entry::Occupied(place) => members[*place.get()].1 = value,
                        Entry::Vacant(place) => {
                            members.push((place.key().clone(), value));
                            place.insert(members.len() - 1);
                        }
                    }
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collector)
    }
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

/// `repr(float)` of a finite number: shortest digits that round-trip; exponent form from 1e16 up and below 1e-4.
pub(crate) fn float_repr(value: f64) -> String {
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

/// What `str.isprintable` says of a character: no separator but the space, no control, format, private or unassigned one.
static PRINTABLE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^[^\p{C}\p{Z}]$").expect("a class of characters"));

/// `repr(str)`: characters that are not printable are escaped.
pub(crate) fn string_repr(text: &str) -> String {
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
            c if c.is_ascii() && !c.is_ascii_control() => out.push(c),
            c if PRINTABLE.is_match(c.encode_utf8(&mut [0; 4])) => out.push(c),
            c => match u32::from(c) {
                n @ 0..=0xff => write!(out, "\\x{n:02x}"),
                n @ 0x100..=0xffff => write!(out, "\\u{n:04x}"),
                n => write!(out, "\\U{n:08x}"),
            }
            .expect("writing to a String does not fail"),
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

    /// By Python 3.11.
    #[test]
    fn a_text_is_written_again_with_all_digits_and_the_last_of_equal_names() {
        for (text, want) in [
            (
                r#" {"a":100000000000000000000000,"b":[-0,-0.0,1E5,1e400,-18446744073709551616]} "#,
                r#"{"a": 100000000000000000000000, "b": [0, -0.0, 100000.0, Infinity, -18446744073709551616]}"#,
            ),
            (r#"{"x":1,"y":{},"x":["\u00e9\n",true,null]}"#, r#"{"x": ["é\n", true, null], "y": {}}"#),
            ("\"a\\/b\"", "\"a/b\""),
        ] {
            assert_eq!(rewritten(text).unwrap(), want);
        }
        assert!(rewritten("[1,]").is_err() && rewritten(&"[".repeat(1000)).is_err());
        assert!(rewritten(&format!("{}{}", "[".repeat(1000), "]".repeat(1000))).is_err());
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
