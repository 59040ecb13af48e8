//! Null and undefined values, which the engine treats otherwise than Jinja: an undefined value is an empty list, and null is no
//! list.
//!
//! # Source
//! Jinja 3.1, `Undefined` of `runtime.py`, and `filters.py`.

use super::arguments::named;
use super::memory::{add_counted, add_of_lists, count, count_elements};
use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, filters};
use std::sync::Arc;

type Result<T> = std::result::Result<T, Error>;

/// Filter that hands on what a loop goes over, as a list where the engine would not know how long it is; with the number of
/// the loop's body, it counts the text of that for each round.
pub(super) const IN_TURN: &str = "in_turn";

/// Filter that counts the text of the body whose number it is given.
pub(super) const TEXT: &str = "text_again";

/// Gives an environment these filters, for a template whose bodies of loops and macros have so many `bytes` of text between
/// their tags, without those of other bodies in them.
pub(super) fn add(environment: &mut Environment<'static>, bytes: Vec<usize>) {
    let bytes: Arc<[usize]> = bytes.into();
    let of_body = move |body: usize| bytes.get(body).copied().unwrap_or(0);
    let text = of_body.clone();
    environment.add_filter(
        IN_TURN,
        move |state: &mut State, value: &Value, body: Option<usize>| -> Result<Value> {
            listed(value)?;
            let counted = value.kind() != ValueKind::String
                && (value.kind() != ValueKind::Iterable || value.len().is_some());
            let list = if counted {
                value.clone()
            } else {
                count_elements(state, value.len().unwrap_or(0))?;
                value.try_iter()?.collect()
            };
            // Without a round it may write what stands behind its `else`.
            let rounds = list.len().unwrap_or(0).max(1);
            count(state, rounds.saturating_mul(body.map_or(0, &text)))?;
            Ok(list)
        },
    );
    environment.add_filter(TEXT, move |state: &mut State, body: usize| count(state, of_body(body)));
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
    environment.add_filter("default", default);
    environment.add_filter("d", default);
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

/// Jinja's filter: what is undefined, and with `boolean` what is not true, is `default_value`, or no text.
fn default(args: Rest<ValueOrKwargs>) -> Result<Value> {
    let args = named(&["default_value", "boolean"], args);
    let (value, given): (&Value, Kwargs) = from_args(&args)?;
    let get = |name| if given.has(name) { given.get::<Value>(name).map(Some) } else { Ok(None) };
    let (default, boolean) = (get("default_value")?, get("boolean")?);
    given.assert_all_used()?;
    let replaced = value.is_undefined() || boolean.is_some_and(|lax| lax.is_true()) && !value.is_true();
    Ok(if replaced { default.unwrap_or_else(|| "".into()) } else { value.clone() })
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

    /// Command R7B's template looks for each answer of a tool through all messages, in a macro whose loops have no text.
    #[test]
    fn a_round_counts_the_text_of_its_loop_and_no_other() {
        let source = "{% macro place(id) %}{% for m in messages -%}
                {% for call in m.calls %}{% if call == id %}{{ loop.index }}{% endif %}{% endfor %}
            {%- endfor %}{% endmacro %}PREAMBLE{% for m in messages %}{{ place(m.id) }}{% endfor %}";
        let source = source.replace("PREAMBLE", &"p".repeat(8000));
        let template = ChatTemplate::new(&source).unwrap();
        let messages: Vec<_> = (0..100).map(|i| json!({"id": i, "calls": [i]})).collect();
        let text = template.render(&json!(messages), None, GenerationPrompt::Omit).unwrap();
        assert_eq!(text.trim_start_matches('p'), "1".repeat(100));
    }

    #[test]
    fn text_counts_as_often_as_it_may_be_written() {
        let text = "a".repeat(1 << 10);
        for source in [
            // Text behind `else`, with which a loop ends that has no round.
            "{% for i in range(99999) %}{% for x in [] %}{% else %}TEXT{% endfor %}{% endfor %}",
            "{% for i in range(99999) recursive %}{{ loop([]) }}{% else %}TEXT{% endfor %}",
            "{% for i in range(99999) recursive %}{% set again = loop %}{{ again([]) }}{% else %}TEXT{% endfor %}",
            // A body in another, and text behind that.
            "{% macro f() %}{% for i in [] %}{% endfor %}TEXT{% endmacro %}{% for i in range(99999) %}{{ f() }}{% endfor %}",
            "{% for i in range(999) %}{% for j in range(99) %}{% endfor %}{% for j in range(99) %}TEXT{% endfor %}{% endfor %}",
            "{% for i in range(99999) %}{% set x %}TEXT{% endset %}{% endfor %}",
            "{% for i in range(99999) %}{% raw %}TEXT{% endraw %}{% endfor %}",
            "{% block b %}TEXT{% endblock %}{% for i in range(99999) %}{% set x = self.b() %}{% endfor %}",
            "{% for i in range(99999) %}{% if i %}{% filter upper %}TEXT{% endfilter %}{% endif %}{% endfor %}",
        ] {
            let error = render(&source.replace("TEXT", &text)).expect_err(source);
            assert!(error.contains("of at most 16777216 bytes in all, found more"), "{source}: {error}");
        }
    }

    /// Values: Jinja 3.1.6.
    #[test]
    fn defaults_are_jinjas() {
        for (source, want) in [
            ("{{ other|default('y') }}{{ ''|default('y') }}{{ none|d('y') }}|{{ other|d }}", "yNone|"),
            ("{{ other|default('y', boolean=true) }}{{ ''|default('y', boolean=true) }}", "yy"),
            ("{{ ''|default('y', boolean=false) }}{{ ''|d('y', true) }}{{ 1|d('y', true) }}", "y1"),
            ("{{ other|default(default_value='z') }}{{ 0|d(boolean=1, default_value='z') }}", "zz"),
            ("{{ other|default(none) }}{{ other|default(another) is undefined }}", "NoneTrue"),
            ("{{ messages[0].calls|default([], true)|length }}{{ messages[0].x|default({}) }}", "0{}"),
        ] {
            assert_eq!(render(source).as_deref(), Ok(want), "{source}");
        }
        for code in ["1|default('y', true, 2)", "1|default('y', lax=true)"] {
            render(&format!("{{{{ {code} }}}}")).expect_err(code);
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
