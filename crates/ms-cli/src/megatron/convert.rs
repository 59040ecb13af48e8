//! Conversion of a value's text to JSON, as Python's argparse types do it.

use serde_json::Value;

use super::table::{Flag, Upstream, ValueKind};

/// A converted value, and whether upstream's parser would have refused the text.
pub(super) struct Converted {
    pub value: Value,
    pub tolerated: Option<String>,
}

fn exact(value: Value) -> Converted {
    Converted { value, tolerated: None }
}

/// Digits with single underscores between them, as Python's `int` and `float` allow.
fn without_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    for (i, b) in bytes.iter().enumerate() {
        let digit = |j: Option<&u8>| j.is_some_and(u8::is_ascii_digit);
        if *b == b'_' && !(digit(i.checked_sub(1).and_then(|j| bytes.get(j))) && digit(bytes.get(i + 1))) {
            return None;
        }
    }
    Some(text.replace('_', ""))
}

pub(super) fn python_int(text: &str) -> Option<i64> {
    without_underscores(text.trim())?.parse().ok()
}

pub(super) fn python_float(text: &str) -> Option<f64> {
    let plain = without_underscores(text.trim())?;
    let lower = plain.trim_start_matches(['+', '-']).to_ascii_lowercase();
    // Rust also reads "infinity" and "nan"; the rest of both grammars is the same.
    if lower.is_empty() || lower.starts_with(['+', '-']) { None } else { plain.parse().ok() }
}

fn float_value(x: f64, text: &str) -> Value {
    // JSON has no infinities; they stay text, which the float getter reads.
    serde_json::Number::from_f64(x).map_or_else(|| Value::String(text.trim().to_owned()), Value::Number)
}

/// Converts one value of `flag`. The error says what was expected.
pub(super) fn convert(flag: &Flag, upstream: Upstream, text: &str) -> Result<Converted, String> {
    let converted = match flag.kind {
        ValueKind::True | ValueKind::False => {
            unreachable!("switches take no values; the parser never calls this")
        }
        ValueKind::Str => exact(Value::String(text.to_owned())),
        ValueKind::Int => int(text)?,
        ValueKind::Float => {
            let x = python_float(text).ok_or_else(|| format!("expected a number, got '{text}'"))?;
            exact(float_value(x, text))
        }
        ValueKind::Bool => exact(Value::Bool(!text.is_empty())),
        ValueKind::Json => {
            serde_json::from_str::<Value>(text).map_err(|e| format!("expected JSON, got '{text}': {e}"))?;
            exact(Value::String(text.to_owned()))
        }
        ValueKind::Freq if upstream == Upstream::V2_0_0 => int(text)?,
        ValueKind::Freq => {
            let list = text.contains('[') && text.chars().all(|c| "[]()+*, 0123456789".contains(c));
            if !list && python_int(text).is_none() {
                return Err(format!("expected an integer or a list of 0 and 1, got '{text}'"));
            }
            exact(Value::String(text.to_owned()))
        }
        ValueKind::Think => match text.to_ascii_lowercase().as_str() {
            "true" | "false" | "none" => exact(Value::String(text.to_owned())),
            _ => return Err(format!("expected true, false or none, got '{text}'")),
        },
    };
    let choices = flag.choices(upstream);
    if !choices.is_empty() {
        let plain = match &converted.value {
            Value::String(s) => s.clone(),
            other => other.to_string(),
        };
        if !choices.contains(&plain.as_str()) {
            let hint = did_you_mean(&plain, &choices);
            return Err(format!("expected one of {}, got '{text}'{hint}", choices.join(", ")));
        }
    }
    Ok(converted)
}

/// A hint, on a line of its own, with the choice closest to a word; empty if none is close.
pub fn did_you_mean(word: &str, choices: &[&str]) -> String {
    let near = choices.iter().map(|c| (strsim::jaro_winkler(&word.to_lowercase(), &c.to_lowercase()), *c));
    let near = near.filter(|n| n.0 > 0.8).max_by(|a, b| a.0.total_cmp(&b.0));
    near.map_or(String::new(), |(_, choice)| format!("\nhint: did you mean {choice}?"))
}

fn int(text: &str) -> Result<Converted, String> {
    if let Some(i) = python_int(text) {
        return Ok(exact(Value::from(i)));
    }
    match python_float(text) {
        Some(x) if x.fract() == 0.0 && x.abs() < 9e15 => Ok(Converted {
            value: Value::from(x as i64),
            tolerated: Some(format!("'{text}' is read as the integer {}", x as i64)),
        }),
        _ => Err(format!("expected an integer, got '{text}'")),
    }
}

/// Whether argparse takes a token that starts with `-` for a negative number.
pub(super) fn negative_number(token: &str) -> bool {
    let Some(rest) = token.strip_prefix('-') else { return false };
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    match rest.split_once('.') {
        None => digits(rest),
        Some((whole, fraction)) => (whole.is_empty() || digits(whole)) && digits(fraction),
    }
}
