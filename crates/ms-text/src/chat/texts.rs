//! Values as texts: what Python writes in another way than the engine, and filters that take anything for a text.
//!
//! # Source
//! Python 3.11, `str` and `repr`; Jinja 3.1, `filters.py`, `soft_str` in them, and `runtime.py`, `LoopContext`.

use minijinja::value::{DynObject, Kwargs, Rest, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, escape_formatter, filters};

use super::lists::{MOST_DEPTH, View, is_list};
use super::memory::{add_counted, count};
use super::nothing::listed;
use super::operators::IN_CYCLE;
use crate::python_json;

type Result<T> = std::result::Result<T, Error>;

/// Gives an environment filters a second time, under names that no template has, behind one that makes their value a text.
macro_rules! add_of_texts {
    ($environment:ident: $($name:ident)*) => {$(
        fn $name(state: &mut State, args: Rest<ValueOrKwargs>) -> Result<Value> {
            let mut args = args.into_values();
            if let Some(value) = args.first_mut()
                && let Some(text) = text(value)?
            {
                *value = text.into();
            }
            state.apply_filter(concat!(stringify!($name), "()"), &args)
        }
        $environment.add_filter(concat!(stringify!($name), "()"), filters::$name);
        add_counted($environment, stringify!($name), $name);
    )*};
}

/// Gives an environment these filters, and the way in which values are written.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.set_formatter(|out, state, value| {
        let text = text(value)?;
        count(state, text.as_deref().or(value.as_str()).map_or(0, str::len))?;
        match text {
            Some(text) => out.write_str(&text).map_err(Error::from),
            None => escape_formatter(out, state, value),
        }
    });
    add_counted(environment, "string", |value: &Value| match value.as_str() {
        Some(_) => Ok(value.clone()),
        None => text_of(value).map(Value::from),
    });
    add_of_texts!(environment: upper lower title trim);
    environment.add_filter("replace", replace);
    add_counted(environment, "escape", escaped);
    add_counted(environment, "e", escaped);
    // Python's has an order and lines of its own.
    environment.remove_filter("pprint");
    add_counted(environment, "safe", |value: &Value| {
        Ok::<_, Error>(Value::from_safe_string(text_of(value)?))
    });
    environment.add_filter("join", join);
    environment.add_filter(IN_CYCLE, |values: &Value| match values.len() {
        Some(0) | None => Err(wrong("cycle: expected at least one value")),
        _ => Ok(values.clone()),
    });
    environment.add_test("lower", |value: &Value| {
        text_of(value).map(|text| minijinja::tests::is_lower(&text.into()))
    });
    environment.add_test("upper", |value: &Value| {
        text_of(value).map(|text| minijinja::tests::is_upper(&text.into()))
    });
}

/// Jinja's filter: texts of the elements, or of one attribute of each.
#[allow(clippy::needless_pass_by_value)] // the form that the template engine takes
fn join(state: &mut State, value: &Value, args: Rest<ValueOrKwargs>) -> Result<String> {
    let mut args = args.into_values();
    let kwargs = args.pop_if(|last| last.is_kwargs()).map(Kwargs::try_from);
    let kwargs = kwargs.unwrap_or_else(|| Ok(Kwargs::from_iter([("", Value::UNDEFINED); 0])))?;
    let given = |place: usize, name: &str| match args.get(place) {
        None if kwargs.has(name) => kwargs.get::<Value>(name).map(Some),
        given => Ok(given.cloned()),
    };
    let between = given(0, "d")?.map_or(Ok(String::new()), |between| text_of(&between))?;
    let attribute = given(1, "attribute")?;
    kwargs.assert_all_used()?;
    if args.len() > 2 {
        return Err(wrong("join: expected a text between and an attribute, found more"));
    }
    listed(value)?;
    let list = attributes(state, value, attribute)?;
    let mut out = String::new();
    for (i, item) in list.try_iter()?.enumerate() {
        let item = text_of(&item)?;
        count(state, between.len() + item.len())?;
        out.push_str(if i > 0 { &between } else { "" });
        out.push_str(&item);
    }
    Ok(out)
}

/// One attribute of each element, or the list itself.
pub(super) fn attributes(state: &mut State, list: &Value, attribute: Option<Value>) -> Result<Value> {
    let Some(attribute) = attribute.filter(|attribute| !attribute.is_none()) else { return Ok(list.clone()) };
    let by: Kwargs = [("attribute", attribute)].into_iter().collect();
    state.apply_filter("map", &[list.clone(), by.into()])
}

/// Jinja's filter: the first `count` places of a text, or all of them.
#[allow(clippy::needless_pass_by_value)] // the form that the template engine takes
fn replace(state: &mut State, value: &Value, args: Rest<ValueOrKwargs>) -> Result<String> {
    let args = args.into_values();
    let (old, new, most, kwargs): (&Value, &Value, Option<usize>, Kwargs) = from_args(&args)?;
    let most = most.or(kwargs.get("count")?).unwrap_or(usize::MAX);
    kwargs.assert_all_used()?;
    let (text, old, new) = (text_of(value)?, text_of(old)?, text_of(new)?);
    let places = text.matches(&*old).count().min(most);
    count(state, text.len().saturating_add(places.saturating_mul(new.len())))?;
    Ok(text.replacen(&*old, &new, most))
}

/// HTML with the escapes of Python's `markupsafe`, of which it is no more made.
pub(super) fn escaped(value: &Value) -> Result<Value> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    let mut out = String::new();
    for c in text_of(value)?.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(Value::from_safe_string(out))
}

/// `str` of a value.
pub(super) fn text_of(value: &Value) -> Result<String> {
    Ok(text(value)?.unwrap_or_else(|| value.to_string()))
}

pub(super) fn is_float(v: &Value) -> bool {
    v.kind() == ValueKind::Number && !v.is_integer()
}

/// `str` of what Python writes in another way than the engine: floats, lists, tuples and dicts.
pub(super) fn text(value: &Value) -> Result<Option<String>> {
    if let Some(text) = loop_text(value)? {
        return Ok(Some(text));
    }
    if !is_list(value) && value.kind() != ValueKind::Map {
        return Ok(float_text(value));
    }
    let mut out = String::new();
    repr(&mut out, value, 0)?;
    Ok(Some(out))
}

/// `str` of a float, whose exponent form the engine does not have.
fn float_text(value: &Value) -> Option<String> {
    let number = is_float(value).then(|| f64::try_from(value.clone()).ok())??;
    match number {
        _ if number.is_finite() => Some(python_json::float_repr(number)),
        _ if number.is_nan() => Some("nan".to_owned()),
        _ => None,
    }
}

/// `str` of what `loop` is: the engine has a dict of it, which begins so where it writes it.
fn loop_text(value: &Value) -> Result<Option<String>> {
    if value.kind() != ValueKind::Map || value.get_attr("revindex0")?.is_undefined() {
        return Ok(None);
    }
    let (index, length) = (value.get_attr("index")?, value.get_attr("length")?);
    Ok(value.to_string().starts_with("<loop ").then(|| format!("<LoopContext {index}/{length}>")))
}

/// Most bytes that are written: a list may hold another many times.
const MOST_BYTES: usize = 1 << 26;

/// `repr` of a value.
fn repr(out: &mut String, value: &Value, depth: usize) -> Result<()> {
    if depth > MOST_DEPTH || out.len() > MOST_BYTES {
        return Err(wrong("lists and dicts in each other are too deep or too long to be written"));
    }
    match value.kind() {
        ValueKind::String => out.push_str(&python_json::string_repr(value.as_str().unwrap_or_default())),
        _ if is_list(value) => {
            let view = value.downcast_object_ref::<View>();
            if let Some(view) = view {
                out.push_str(&view.name);
                if !view.written {
                    return Ok(());
                }
                out.push('(');
            }
            let is_group = |object: &DynObject| object.type_name().ends_with("::GroupTuple");
            let is_tuple = value.is_tuple() || value.as_object().is_some_and(is_group);
            out.push(if is_tuple { '(' } else { '[' });
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(out, &item, depth + 1)?;
            }
            out.push_str(match (is_tuple, value.len()) {
                (true, Some(1)) => ",)",
                (true, _) => ")",
                (false, _) if view.is_some() => "])",
                (false, _) => "]",
            });
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(out, &key, depth + 1)?;
                out.push_str(": ");
                repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        _ => out.push_str(&float_text(value).unwrap_or_else(|| value.to_string())),
    }
    Ok(())
}

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

#[cfg(test)]
mod tests {
    use crate::{ChatTemplate, GenerationPrompt};

    #[test]
    fn values_are_written_as_python_writes_them_wherever_they_become_texts() {
        for (source, want) in [
            (
                "{{ 1e20 ~ -1e-7 ~ [1e16, {'a': none}] ~ true ~ other }}",
                "1e+20-1e-07[1e+16, {'a': None}]True",
            ),
            (
                "{{ 1e20|upper }} {{ 1e20|title }} {{ [1E-9]|trim }} {{ ['A', 1e20]|lower }}",
                "1E+20 1e+20 [1e-09] ['a', 1e+20]",
            ),
            ("{{ 1e20|replace('e', 'E') }} {{ 1e20|capitalize }} {{ [1]|center(7) }}", "1E+20 1e+20   [1]  "),
            ("{{ [1e20, [1e-9], none, 'a']|join(1e20) }}", "1e+201e+20[1e-09]1e+20None1e+20a"),
            ("{{ [1, 2]|join(none) }}{{ [1, 2]|join(d='-') }}{{ [1, 2]|join }}", "1None21-212"),
            ("{{ [{'a': 1e20}, {'a': 2}]|join('-', attribute='a') }}{{ 'abc'|join('-') }}", "1e+20-2a-b-c"),
            (
                "{% for x in 'abc' %}{{ loop }}{{ loop ~ '' }}{% endfor %}",
                "<LoopContext 1/3><LoopContext 1/3><LoopContext 2/3><LoopContext 2/3><LoopContext 3/3><LoopContext 3/3>",
            ),
            ("{{ 1e20 is lower }}{{ 'A1' is upper }}{{ 1e20 is even }}{{ 2.5 is odd }}", "TrueTrueTrueFalse"),
            ("{{ {'revindex0': 1, 'index': 2} }}{{ 'nan'|float }}", "{'revindex0': 1, 'index': 2}nan"),
            (
                "{{ {'a': 1e20}.items() }}{{ [{'a': 1}.keys(), {}.values()] }}{{ {'b': 2}.items()|list }}",
                "dict_items([('a', 1e+20)])[dict_keys(['a']), dict_values([])][('b', 2)]",
            ),
            ("{{ 'abc'[:-1] }}{{ (1, 2, 3)[1:] }}{{ 'éa'[-1:] }}{{ [1][5:] }}", "ab(2, 3)a[]"),
            ("{{ range(2) }}{{ range(1, 4, 2)|list }}{{ range(3)[1:] }}", "range(0, 2)[1, 3][1, 2]"),
            ("{{ 'abab'|replace('a', 'c', 1) }}{{ 1e20|replace('1', 'x', count=none) }}", "cbabxe+20"),
            (
                "{{ '<a> & \"b\"/'|e }}{{ [\"it's\", 1e20]|escape }}",
                "&lt;a&gt; &amp; &#34;b&#34;/[&#34;it&#39;s&#34;, 1e+20]",
            ),
            ("{{ '<'|e|e }}{{ '<'|safe|e }}{{ '<' + ('<'|e) + '<' }}", "&lt;<&lt;&lt;&lt;"),
            ("{{ (('<'|e) ~ '<')|e }}{{ '<'|e is escaped }}", "&amp;lt;&lt;True"),
            ("{{ {'b': 1, 'a': 2}|reverse|list }}", "['a', 'b']"),
            ("{{ [{'a': 2}, {'a': 1}]|groupby('a') }}", "[(1, [{'a': 1}]), (2, [{'a': 2}])]"),
            ("{{ [1, 2]|truncate(3) }}{{ other|truncate }}{{ {'a': 1}|truncate }}", "[1, 2]{'a': 1}"),
            ("{{ 'a' % [1] }}{{ '%d%%%3d' % (1, 2) }}{{ 'a' % {} }}{{ '%s'|format(1) }}", "a1%  2a1"),
        ] {
            let template = ChatTemplate::new(source).unwrap();
            let said = template.render(&serde_json::json!([]), None, GenerationPrompt::Omit);
            assert_eq!(said.unwrap(), want, "{source}");
        }
    }

    #[test]
    fn what_python_does_not_do_is_an_error() {
        for (code, found) in [
            ("'a' % 1", "%: expected 0 values, as \"a\" takes, found 1"),
            ("'%s %%' % (1, 2)", "expected 1 values"),
            ("'%s'|format(1, 2)", "format: expected 1 values, as \"%s\" takes, found 2"),
            ("'%d' is divisibleby 'a'", "'string' cannot be formatted in decimal format"),
            ("none[1:]", "a slice of none"),
            ("{'a': 1}[::-1]", "a slice of map"),
            ("[{}.x]|tojson", "tojson: expected a value"),
            ("{'a': [other]}|tojson", "tojson: expected a value"),
            ("messages|pprint", "filter pprint is unknown"),
            ("none is divisibleby 2", "%: expected a text or two numbers, found none and number"),
            ("other[1:]", "a slice of undefined"),
            ("other|int", "int: expected a value, found undefined"),
            ("other|float(1)", "float: expected a value, found undefined"),
            ("range(9)|list|truncate(3)", "truncate: expected a text, found sequence"),
        ] {
            let template = ChatTemplate::new(&format!("{{{{ {code} }}}}")).unwrap();
            let error = template.render(&serde_json::json!([]), None, GenerationPrompt::Omit).unwrap_err();
            assert!(error.to_string().contains(found), "{code}: {error}");
        }
    }

    #[test]
    fn a_cycle_of_nothing_is_an_error() {
        for code in ["loop.cycle()", "loop . cycle( )", "loop.cycle(*[])"] {
            let template =
                ChatTemplate::new(&format!("{{% for x in [1] %}}{{{{ {code} }}}}{{% endfor %}}")).unwrap();
            let error = template.render(&serde_json::json!([]), None, GenerationPrompt::Omit).unwrap_err();
            assert!(error.to_string().contains("cycle: expected at least one value"), "{code}: {error}");
        }
    }
}
