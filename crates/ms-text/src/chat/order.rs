//! Comparisons by order, which Python makes of two numbers, two texts, two lists or two tuples, and of nothing else; and `in`.
//!
//! # Source
//! Python 3.11, `__lt__` and its like of the built-in types; Jinja 3.1, `filters.py` and `tests.py`.

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters};
use std::cmp::Ordering;

use super::arguments::named;
use super::lists::{MOST_DEPTH, is_list};
use super::memory::add_of_lists;
use super::nothing::listed;
use super::operators::COMPARED;

type Result<T> = std::result::Result<T, Error>;

/// Gives an environment these filters and tests.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_filter(COMPARED, chain);
    environment.add_test("in", contained);
    for (operator, names) in [
        ("<", &["lt", "lessthan", "<"][..]),
        ("<=", &["le", "<="]),
        (">", &["gt", "greaterthan", ">"]),
        (">=", &["ge", ">="]),
    ] {
        for name in names {
            environment
                .add_test(*name, move |state: &State, a: &Value, b: &Value| holds(state, operator, a, b));
        }
    }
    environment.add_filter("sort()", filters::sort);
    environment.add_filter("min()", filters::min);
    environment.add_filter("max()", filters::max);
    environment.add_filter("groupby()", filters::groupby);
    environment.add_filter("unique()", filters::unique);
    environment.add_filter("dictsort()", filters::dictsort);
    add_of_lists(environment, "sort", |state: &mut State, args: Rest<ValueOrKwargs>| {
        sorted("sort", state, &named(&["reverse", "case_sensitive", "attribute"], args))
    });
    for name in ["min", "max"] {
        environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            sorted(name, state, &named(&["case_sensitive", "attribute"], args))
        });
    }
    add_of_lists(environment, "groupby", |state: &mut State, args: Rest<ValueOrKwargs>| {
        sorted("groupby", state, &named(&["attribute", "default", "case_sensitive"], args))
    });
    add_of_lists(environment, "unique", |state: &mut State, args: Rest<ValueOrKwargs>| {
        args.first().map_or(Ok(()), |list| listed(list))?;
        state.apply_filter("unique()", &named(&["case_sensitive", "attribute"], args))
    });
    add_of_lists(environment, "dictsort", |state: &mut State, args: Rest<ValueOrKwargs>| {
        state.apply_filter("dictsort()", &named(&["case_sensitive", "by", "reverse"], args))
    });
}

/// `a < b == c` and the like: whether each two neighbours are so.
#[allow(clippy::needless_pass_by_value)] // the form that the template engine takes
fn chain(state: &State, first: &Value, others: Rest<Value>) -> Result<bool> {
    let mut left = first;
    for pair in others.chunks_exact(2) {
        if !holds(state, pair[0].as_str().unwrap_or_default(), left, &pair[1])? {
            return Ok(false);
        }
        left = &pair[1];
    }
    Ok(true)
}

fn holds(state: &State, operator: &str, a: &Value, b: &Value) -> Result<bool> {
    Ok(match operator {
        "==" => a == b,
        "!=" => a != b,
        "in" => contained(state, a, b)?,
        "not in" => !contained(state, a, b)?,
        _ => order(operator, a, b, 0)?.is_some_and(|order| match operator {
            "<" => order.is_lt(),
            "<=" => order.is_le(),
            ">" => order.is_gt(),
            _ => order.is_ge(),
        }),
    })
}

/// `a in b`: of a text only texts are asked, of a dict no lists or dicts, and of what is no list, nothing.
fn contained(state: &State, a: &Value, b: &Value) -> Result<bool> {
    let (what, within) = (a.kind(), b.kind());
    let wants = match within {
        ValueKind::String if what != ValueKind::String => "a text in a text",
        ValueKind::Map if what == ValueKind::Map || is_list(a) && !a.is_tuple() => "a key in a dict",
        ValueKind::None | ValueKind::Number | ValueKind::Bool => "a list or a text",
        _ => return minijinja::tests::is_in(state, a, b),
    };
    Err(Error::new(ErrorKind::InvalidOperation, format!("in: expected {wants}, found {what} in {within}")))
}

/// Which of two values is the greater; `None` where one is no number.
fn order(operator: &str, a: &Value, b: &Value, depth: usize) -> Result<Option<Ordering>> {
    let number = |v: &Value| match v.kind() {
        ValueKind::Bool => Some(Value::from(i64::from(v.is_true()))),
        ValueKind::Number => Some(v.clone()),
        _ => None,
    };
    if let (Some(a), Some(b)) = (number(a), number(b)) {
        let nan = |v: &Value| !v.is_integer() && f64::try_from(v.clone()).is_ok_and(f64::is_nan);
        return Ok(if nan(&a) || nan(&b) { None } else { Some(a.cmp(&b)) });
    }
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return Ok(Some(a.cmp(b)));
    }
    if is_list(a) && is_list(b) && a.is_tuple() == b.is_tuple() {
        if depth == MOST_DEPTH {
            let what = format!("{operator}: expected at most {MOST_DEPTH} lists in each other, found more");
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
        let differ = a.try_iter()?.zip(b.try_iter()?).find(|(a, b)| a != b);
        return match differ {
            Some((a, b)) => order(operator, &a, &b, depth + 1),
            None => Ok(Some(a.len().cmp(&b.len()))),
        };
    }
    let (a, b) = (a.kind(), b.kind());
    let what = format!("{operator}: expected two numbers, two texts or two lists, found {a} and {b}");
    Err(Error::new(ErrorKind::InvalidOperation, what))
}

/// A filter that sorts, behind a check that all values have an order.
fn sorted(name: &str, state: &mut State, args: &[Value]) -> Result<Value> {
    let Some(list) = args.first() else { return state.apply_filter(&format!("{name}()"), args) };
    listed(list)?;
    let given = |name: &str| args.get(1)?.get_attr(name).ok().filter(|arg| !arg.is_undefined());
    let attribute = given("attribute").filter(|attribute| !attribute.is_none());
    let keys = match &attribute {
        None => list.clone(),
        Some(attribute) => {
            let default = given("default").map(|default| ("default", default));
            let by: Kwargs = [("attribute", attribute.clone())].into_iter().chain(default).collect();
            state.apply_filter("map", &[list.clone(), by.into()])?
        }
    };
    // Several attributes are a list of keys.
    if attribute.as_ref().and_then(Value::as_str).is_none_or(|text| !text.contains(',')) {
        let mut keys = keys.try_iter()?;
        if let Some(first) = keys.next() {
            // Jinja sorts lists of one key each, and asks of equal ones no more.
            let alike = |key: &Value| name == "sort" && *key == first;
            keys.try_for_each(|key| {
                // The engine puts the former before all of the latter.
                if (first.kind() == ValueKind::Bool) != (key.kind() == ValueKind::Bool) {
                    let (a, b) = (first.kind(), key.kind());
                    let what = format!("{name}: expected truth values or others alone, found {a} and {b}");
                    return Err(Error::new(ErrorKind::InvalidOperation, what));
                }
                if alike(&key) { Ok(()) } else { order(name, &first, &key, 0).map(drop) }
            })?;
        }
    }
    state.apply_filter(&format!("{name}()"), args)
}

#[cfg(test)]
mod tests {
    use crate::{ChatTemplate, GenerationPrompt};
    use serde_json::json;

    fn render(source: &str) -> Result<String, String> {
        let template = ChatTemplate::new(source).map_err(|e| e.to_string())?;
        let messages = json!([{"role": "user", "calls": null, "n": 2}, {"role": "user", "n": 1}]);
        template.render(&messages, None, GenerationPrompt::Omit).map_err(|e| e.to_string())
    }

    #[test]
    fn what_has_an_order_is_compared_as_in_python() {
        for (source, want) in [
            ("{{ true > 0 }}{{ 1 < 1.5 }}{{ 2 <= true }}", "TrueTrueFalse"),
            (
                "{{ 'a' < 'b' }}{{ [1, 'a'] < [1, 'b'] }}{{ (1,) < (1, 2) }}{{ [] >= [0] }}",
                "TrueTrueTrueFalse",
            ),
            ("{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 1 == 1 < 2 }}{{ not 1 > 2 }}", "TrueFalseTrueTrue"),
            ("{{ [3, 1, true]|select('gt', 1)|list }}{{ 2 is lt 3 }}", "[3]True"),
            (
                "{{ [1, 3, 2]|sort(true) }}{{ ['b', 'A']|sort(false, true) }}{{ messages|sort(true, false, 'n')|map(attribute='n')|list }}",
                "[3, 2, 1]['A', 'b'][2, 1]",
            ),
            ("{{ messages|min(false, 'n') }}{{ ['b', 'A']|max(true) }}", "{'role': 'user', 'n': 1}b"),
            (
                "{{ ['a', 'A']|unique(true)|list }}{{ {'b': 1, 'A': 2}|dictsort(false, 'value') }}",
                "['a', 'A'][('b', 1), ('A', 2)]",
            ),
            (
                "{% for g in [{'n': 1}, {}]|groupby('n', 0) %}{{ g.grouper }}{{ g.list }}{% endfor %}",
                "0[{}]1[{'n': 1}]",
            ),
            ("{{ messages|map(attribute='n')|sort }}{{ (messages|sort(attribute='n'))[0].n }}", "[1, 2]1"),
            ("{% for m in messages|groupby('n') %}{{ m.grouper }}{% endfor %}{{ [1, 3]|max }}", "123"),
            ("{{ [none, none]|sort }}{{ messages|sort(attribute='other')|length }}", "[None, None]2"),
            ("{% for g in [{'n': 1}, {}]|groupby('n', default=0) %}{{ g.grouper }}{% endfor %}", "01"),
            (
                "{{ 'a' in 'ba' }}{{ 1 not in [2] }}{{ 'n' in messages[0] }}{{ 1 in other }}",
                "TrueTrueTrueFalse",
            ),
            (
                "{{ (1,) in {(1,): 2} }}{{ 0 < 1 in [1] }}{{ 2 is in [1] }}{{ not 'c' in 'ab' }}",
                "TrueTrueFalseTrue",
            ),
        ] {
            assert_eq!(render(source).as_deref(), Ok(want), "{source}");
        }
    }

    #[test]
    fn what_has_none_is_an_error() {
        for (source, found) in [
            ("{{ none < 1 }}", "<: expected two numbers, two texts or two lists, found none and number"),
            ("{{ messages[0].calls >= 1 }}", "found none and number"),
            ("{{ 1 < 'a' }}", "found number and string"),
            ("{{ other > 1 }}", "found undefined and number"),
            ("{{ {} < {} }}", "found map and map"),
            ("{{ (1,) < [1] }}", "found sequence and sequence"),
            ("{{ 1 in '12' }}", "in: expected a text in a text, found number in string"),
            ("{{ other not in 'a' }}", "found undefined in string"),
            ("{{ [1] in {} }}", "in: expected a key in a dict, found sequence in map"),
            ("{{ 'a' in messages[0].calls }}", "in: expected a list or a text, found string in none"),
            ("{{ 1 is in 'a' }}", "found number in string"),
            ("{{ [1, none]|sort }}", "sort: expected"),
            ("{{ [none, none]|min }}", "min: expected"),
            ("{{ [{'n': 1}, {}]|groupby('n') }}", "groupby: expected"),
            ("{{ [1, 'a']|min }}", "min: expected"),
            ("{{ [0, true]|sort }}", "sort: expected truth values or others alone, found number and bool"),
            ("{{ messages|map(attribute='calls')|max }}", "max: expected"),
            ("{{ messages|sort(attribute='calls') }}", "sort: expected"),
            ("{{ none is lt 1 }}", "found none and number"),
            ("{{ [1, none]|select('lt', 1)|list }}", "found none and number"),
        ] {
            let error = render(source).expect_err(source);
            assert!(error.contains(found), "{source}: {error}");
        }
    }
}
