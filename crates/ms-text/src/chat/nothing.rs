//! Null and undefined values, which the engine treats otherwise than Jinja: an undefined value is an empty list, and null is no
//! list.
//!
//! # Source
//! Jinja 3.1, `Undefined` of `runtime.py`, and `filters.py`.

use super::memory::{add_counted, add_of_lists, count, count_elements};
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, filters};

type Result<T> = std::result::Result<T, Error>;

/// Filter that hands on what a loop goes over, as a list where the engine would not know how long it is.
pub(super) const IN_TURN: &str = "in_turn";

/// Filter that counts the template's text.
pub(super) const TEXT: &str = "text_again";

/// Gives an environment these filters, for a template with `bytes` of text between its tags.
pub(super) fn add(environment: &mut Environment<'static>, bytes: usize) {
    environment.add_filter(IN_TURN, move |state: &mut State, value: &Value| -> Result<Value> {
        listed(value)?;
        // In each round it may write all of them.
        let rounds = value.len().unwrap_or(0);
        count(state, rounds.saturating_mul(bytes))?;
        let counted = value.kind() != ValueKind::String
            && (value.kind() != ValueKind::Iterable || value.len().is_some());
        if counted {
            return Ok(value.clone());
        }
        count_elements(state, rounds)?;
        Ok(value.try_iter()?.collect())
    });
    environment.add_filter(TEXT, move |state: &mut State, _: &Value| count(state, bytes));
    add_of_lists(environment, "list", |state: &State, value: Value| {
        listed(&value)?;
        filters::list(state, value)
    });
    // The engine's own keeps what it is of.
    add_counted(environment, "reverse", |value: &Value| -> Result<Value> {
        listed(value)?;
        if value.as_object().is_none() {
            return filters::reverse(value);
        }
        let items: Vec<Value> = value.try_iter()?.collect();
        Ok(items.into_iter().rev().collect())
    });
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("first", |value: &Value| match value.kind() {
        ValueKind::Undefined => Ok(Value::UNDEFINED),
        _ => filters::first(value),
    });
    environment.add_filter("last", |value: Value| match value.kind() {
        ValueKind::Undefined => Ok(value),
        ValueKind::Map => Ok(value.try_iter()?.last().unwrap_or_default()),
        _ => filters::last(value),
    });
    add_counted(environment, "items", |value: &Value| -> Result<Value> {
        match value.kind() {
            ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
            _ => Ok(filters::items(value)?.try_iter()?.collect()),
        }
    });
}

/// Checks that a value may be a list.
///
/// # Errors
/// If it is null.
pub(super) fn listed(value: &Value) -> Result<()> {
    match value.kind() {
        ValueKind::None => Err(Error::new(ErrorKind::InvalidOperation, "null is no list")),
        _ => Ok(()),
    }
}

fn length(value: &Value) -> Result<usize> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

#[cfg(test)]
mod tests {
    use crate::{ChatTemplate, GenerationPrompt};
    use serde_json::json;

    fn render(source: &str) -> Result<String, String> {
        let template = ChatTemplate::new(source).map_err(|e| e.to_string())?;
        let messages = json!([{"role": "user", "calls": null}]);
        template.render(&messages, None, GenerationPrompt::Omit).map_err(|e| e.to_string())
    }

    #[test]
    fn what_is_undefined_is_an_empty_list() {
        for (source, want) in [
            ("{{ messages[0].tools|length }}{{ other|count }}", "00"),
            ("{{ other|first }}|{{ messages[0].tools|last }}", "|"),
            ("{% for k, v in messages[0].schema|items %}{{ k }}{% else %}none{% endfor %}", "none"),
            ("{% for x in other %}{{ x }}{% else %}none{% endfor %}", "none"),
            ("{{ other is sequence }}{{ other|list }}{{ other|join }}", "True[]"),
            ("{{ [1, 2]|length }}{{ [1, 2]|first }}{{ 'ab'|last }}{{ {'a': 1}|last }}", "21ba"),
            ("{% for k, v in {'a': 1}|items %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ] {
            assert_eq!(render(source).as_deref(), Ok(want), "{source}");
        }
    }

    #[test]
    fn null_is_no_list() {
        for code in [
            "{% for x in messages[0].calls %}{% endfor %}",
            "{%- for a, b in (none) if a recursive -%}{% endfor %}",
            "{{ none|list }}",
            "{{ messages[0].calls|join(', ') }}",
            "{{ none|sort(attribute='a') }}",
            "{{ none|batch(2)|list }}",
            "{{ none|slice(2)|list }}",
        ] {
            assert!(render(code).unwrap_err().contains("null is no list"), "{code}");
        }
        for (source, want) in [
            ("{% for x in [1, 2] if x > 1 %}{{ loop.index }}{{ x }}{% endfor %}", "12"),
            ("{% for x in 'ab' %}{{ loop.length }}{{ loop.last }}{% endfor %}", "2False2True"),
            (
                "{% for x in [3, 4][::-1] %}{{ x }}{% endfor %}{% for x in [][::-1] %}{{ x }}{% endfor %}",
                "43",
            ),
            (
                "{% set n = 1 %}{% macro m(a) %}{%- set n = n + a -%}\n{{ n }}{% set a, n = n, a %}{{ a }}{{ n }}{% endmacro %}{{ m(2) }}{{ n }}",
                "3321",
            ),
            ("{{ ['b', 'a']|sort|join('-') }}{{ [1, 2]|sum }}{{ [1, 2]|max }}", "a-b32"),
            ("{{ ['b', 'A']|sort(reverse=true, case_sensitive=true)|join(d='+') }}", "b+A"),
        ] {
            assert_eq!(render(source).as_deref(), Ok(want), "{source}");
        }
    }
}
