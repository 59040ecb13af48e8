//! `~`, `+` and `*`, as Python computes them, whose memory the engine's own do not count.

use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::lists::is_list;
use super::memory::{count, count_elements, counted};
use super::nothing::listed;
use super::operators::{JOINED, MULTIPLIED, PLUS};
use super::texts::{attributes, escaped, is_float, text_of};

type Result<T> = std::result::Result<T, Error>;

/// Gives an environment these operators.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_filter(JOINED, joined);
    environment.add_filter(PLUS, plus);
    environment.add_filter(MULTIPLIED, multiplied);
    environment.add_filter("sum", sum);
}

fn wrong(what: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// `a ~ b ~ c`, each made a text as Python writes it.
#[allow(clippy::needless_pass_by_value)] // the form that the template engine takes
fn joined(state: &mut State, first: &Value, others: Rest<Value>) -> Result<String> {
    let mut out = String::new();
    for value in std::iter::once(first).chain(others.iter()) {
        let text = text_of(value)?;
        count(state, text.len())?;
        out.push_str(&text);
    }
    Ok(out)
}

/// Jinja's filter, from the left.
#[allow(clippy::needless_pass_by_value)] // the form that the template engine takes
fn sum(
    state: &mut State,
    value: &Value,
    attribute: Option<Value>,
    start: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value> {
    let attribute = attribute.or(kwargs.get("attribute")?);
    let start = start.or(kwargs.get("start")?).unwrap_or(Value::from(0));
    kwargs.assert_all_used()?;
    listed(value)?;
    attributes(state, value, attribute)?.try_iter()?.try_fold(start, |sum, item| plus(state, &sum, &item))
}

/// `a + b`.
fn plus(state: &mut State, a: &Value, b: &Value) -> Result<Value> {
    if a.is_safe() && b.as_str().is_some() || b.is_safe() && a.as_str().is_some() {
        let (a, b) = (escaped(a)?, escaped(b)?);
        let text = [a.as_str(), b.as_str()].into_iter().flatten().collect();
        return counted(state, Value::from_safe_string(text));
    }
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        count(state, a.len() + b.len())?;
        return Ok([a, b].concat().into());
    }
    if is_list(a) && is_list(b) && a.is_tuple() == b.is_tuple() {
        let elements = |list: &Value| list.len().unwrap_or(0);
        count_elements(state, elements(a) + elements(b))?;
        let all: Vec<Value> = a.try_iter()?.chain(b.try_iter()?).collect();
        return Ok(if a.is_tuple() { Tuple::from(all).into() } else { all.into() });
    }
    numbers("+", a, b, i128::checked_add, |a, b| a + b)
}

/// `a * b`.
fn multiplied(state: &mut State, a: &Value, b: &Value) -> Result<Value> {
    let is_repeated = |v: &Value| v.as_str().is_some() || is_list(v);
    let (value, times) = match (is_repeated(a), is_repeated(b)) {
        (true, false) => (a, b),
        (false, true) => (b, a),
        _ => return numbers("*", a, b, i128::checked_mul, |a, b| a * b),
    };
    let times = whole(times).ok_or_else(|| {
        wrong(format!("*: expected a whole number of times, found {} of {}", times.kind(), value.kind()))
    })?;
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    if let Some(text) = value.as_str() {
        count(state, text.len().saturating_mul(times))?;
        return Ok(if text.is_empty() { String::new() } else { text.repeat(times) }.into());
    }
    let all: Vec<Value> = value.try_iter()?.collect();
    count_elements(state, all.len().saturating_mul(times))?;
    let times = if all.is_empty() { 0 } else { times };
    let all: Vec<Value> = (0..times).flat_map(|_| all.iter().cloned()).collect();
    Ok(if value.is_tuple() { Tuple::from(all).into() } else { all.into() })
}

/// A whole number, as which Python takes truth values, too.
fn whole(v: &Value) -> Option<i128> {
    let is_number = matches!(v.kind(), ValueKind::Number | ValueKind::Bool) && !is_float(v);
    i128::try_from(v.clone()).ok().filter(|_| is_number)
}

fn numbers(
    operator: &str,
    a: &Value,
    b: &Value,
    of_whole: impl Fn(i128, i128) -> Option<i128>,
    of_real: impl Fn(f64, f64) -> f64,
) -> Result<Value> {
    if let (Some(a), Some(b)) = (whole(a), whole(b)) {
        let out =
            of_whole(a, b).ok_or_else(|| wrong(format!("{operator}: expected 128 bits, found more")))?;
        return Ok(i64::try_from(out).map_or_else(|_| Value::from(out), Value::from));
    }
    let real = |v: &Value| match v.kind() {
        ValueKind::Number => f64::try_from(v.clone()).ok(),
        ValueKind::Bool => Some(f64::from(u8::from(v.is_true()))),
        _ => None,
    };
    match (real(a), real(b)) {
        (Some(a), Some(b)) => Ok(of_real(a, b).into()),
        _ => {
            let (a, b) = (a.kind(), b.kind());
            Err(wrong(format!("{operator}: expected two numbers, texts or lists, found {a} and {b}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{ChatTemplate, GenerationPrompt};

    fn render(source: &str) -> Result<String, String> {
        let template = ChatTemplate::new(source).map_err(|e| e.to_string())?;
        template.render(&serde_json::json!([]), None, GenerationPrompt::Omit).map_err(|e| e.to_string())
    }

    #[test]
    fn sums_and_products_are_pythons() {
        for (source, want) in [
            ("{{ 1 + 2 - 3 + 4 * 5 * 2 }} {{ 1.5 + true }} {{ 2 * 0.5 * 3 }}", "40 2.5 3.0"),
            ("{{ -2 * 3 + 2 ** 3 * 2 }} {{ 7 // 2 * 2 % 4 }} {{ 8 / 2 * 2 }}", "10 2 8.0"),
            ("{{ 'a' + 'b' + 'c' * 2 + 2 * 'd' }}{{ 'x' * -1 }}{{ true * 'y' }}", "abccddy"),
            ("{{ [1] + [2] * 2 + [] }}{{ (1,) + (2,) * 2 }}{{ [1] * -3 }}", "[1, 2, 2](1, 2, 2)[]"),
            ("{{ 9223372036854775807 + 1 }}{{ 3 * 'a' ~ 1 + '1' }}", "9223372036854775808aaa11"),
            (
                "{{ [[1], [2]]|sum(start=[]) }}{{ [{'n': 2}, {'n': 0.5}]|sum('n', 1) }}{{ []|sum }}",
                "[1, 2]3.50",
            ),
            (
                "{% macro f(a) %}{{ varargs|length if 0 else a }}{% endmacro %}{{ f(*[1]) + f(**{'a': '2'}) }}",
                "12",
            ),
        ] {
            assert_eq!(render(source).as_deref(), Ok(want), "{source}");
        }
        for (code, found) in [
            ("[[1], [1]]|sum", "+: expected two numbers, texts or lists, found number and sequence"),
            ("[other]|sum", "found number and undefined"),
            ("1 + 'a'", "+: expected two numbers, texts or lists, found number and string"),
            ("none + 1", "found none and number"),
            ("other + 'a'", "found undefined and string"),
            ("[1] + (1,)", "found sequence and sequence"),
            ("'a' * 1.0", "*: expected a whole number of times, found number of string"),
            ("'a' * 'b'", "*: expected two numbers, texts or lists, found string and string"),
        ] {
            let error = render(&format!("{{{{ {code} }}}}")).expect_err(code);
            assert!(error.contains(found), "{code}: {error}");
        }
    }

    #[test]
    fn what_a_rendering_makes_is_bounded_however_it_is_made() {
        let twice = |step: &str| {
            format!(
                "{{% set ns = namespace(a='ab', l=[1], s=0) %}}{{% for i in range(99999) %}}{step}{{% endfor %}}"
            )
        };
        for source in [
            twice("{% set ns.a = ns.a ~ ns.a %}"),
            twice("{% set ns.a = ns.a + ns.a %}"),
            twice("{% set ns.a = ns.a * 2 %}"),
            twice("{% set ns.a = 2 * ns.a %}"),
            twice("{% set ns.l = ns.l + ns.l %}"),
            twice("{% set ns.l = ns.l * 2 %}"),
            twice("{% set ns.a = ns.a|replace('a', ns.a) %}"),
            twice("{% set ns.a = ns.a.replace('a', ns.a) %}"),
            twice("{% set ns.a = [ns.a, ns.a]|join %}"),
            twice("{% set ns.a = ns.a.join(['a', 'a', 'a', 'a']) %}"),
            twice("{% set ns.a = '%s%s' % (ns.a, ns.a) %}"),
            twice("{% set ns.a = '%(x)s%(x)s' % {'x': ns.a} %}"),
            twice("{% set ns.a = '%s%s'|format(ns.a, ns.a) %}"),
            twice("{% set ns.a = '{0}{0}'.format(ns.a) %}"),
            twice("{% set ns.a = [ns.a, ns.a]|tojson %}"),
            twice("{% set ns.a = [ns.a, ns.a]|string %}"),
            twice("{% set a %}{{ ns.a }}{{ ns.a }}{% endset %}{% set ns.a = a %}"),
            twice("{% set ns.l = [ns.l, ns.l] %}{% set ns.a = ns.l|tojson %}"),
            "{% set a = 'a' * 1000000 %}".to_owned()
                + &twice("{% set ns.l = ns.l + [a|upper, a.lower(), a[1:]] %}"),
            "{% set a = 'a' * 1000000 %}".to_owned() + &twice("{{ a }}"),
            "{% set a = 'a' * 1000000 %}{{ a|list|length }}".to_owned(),
            "{% set a = 'a' * 1000000 %}{{ a|map('upper')|list|length }}".to_owned(),
            "{% set a = 'a' * 1000000 %}{% for c in a %}{% endfor %}".to_owned(),
            "{% macro f(a) %}{{ f(a ~ a) }}{% endmacro %}{{ f('a') }}".to_owned(),
            twice(&format!("{{% for i in range(99999) %}}{}{{% endfor %}}", "a".repeat(1 << 10))),
            "{{ (1,) * 1000000000 }}{{ range(1000000000) }}".to_owned(),
        ] {
            let error = render(&source).expect_err(&source[..source.len().min(200)]);
            let bounds =
                ["of at most 16777216 bytes in all, found more", "of at most 16777216 values, found more"];
            assert!(bounds.iter().any(|bound| error.contains(bound)), "{source:.200}: {error:.300}");
        }
        assert_eq!(
            render("{{ ('ab' * 1000000)|length }}{{ ([1] * 100000)|length }}").unwrap(),
            "2000000100000"
        );
    }
}
