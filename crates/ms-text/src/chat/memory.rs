//! What a rendering makes in all, and how deep: a template comes with a model, and a few steps double a text.

use indexmap::IndexMap;
use minijinja::value::{FunctionArgs, FunctionResult, Kwargs, Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters, functions, functions::Function};
use std::collections::HashMap;

use super::lists::{MOST_DEPTH, View, is_list};

type Result<T> = std::result::Result<T, Error>;

/// Filter for what code makes of several values: a list, a tuple or a dict.
pub(super) const MADE: &str = "made";

/// Filter for what a namespace keeps.
pub(super) const KEPT: &str = "kept";

/// Most bytes of texts and lists that a rendering makes, with those that it lets go: a template for a conversation makes a few
/// times as many as that has.
const MOST: usize = if cfg!(test) { 1 << 24 } else { 1 << 31 };

/// Most values in a list or dict, with those in the lists and dicts in it, each as often as it stands there.
const MOST_VALUES: usize = 1 << 24;

/// What a rendering has made so far.
struct Made(usize);

/// Gives an environment the engine's filters and functions that make lists, dicts and what holds them.
pub(super) fn add(environment: &mut Environment<'static>) {
    add_of_lists(environment, "map", filters::map);
    add_of_lists(environment, "select", filters::select);
    add_of_lists(environment, "reject", filters::reject);
    add_of_lists(environment, "selectattr", filters::selectattr);
    add_of_lists(environment, "rejectattr", filters::rejectattr);
    // What Jinja does not have.
    for name in ["split", "lines", "chain", "zip"] {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
    environment.add_filter(MADE, |state: &mut State, made: Value| counted(state, made));
    environment.add_filter(KEPT, |value: Value| kept(&value).map(|()| value));
    environment.add_function("namespace", |values: Option<ValueOrKwargs>| {
        let values = values.map(ValueOrKwargs::into_value);
        if let Some(values) = values.as_ref().filter(|values| values.kind() == ValueKind::Map) {
            values.try_iter()?.try_for_each(|key| kept(&values.get_item(&key)?))?;
        }
        functions::namespace(values.map(ValueOrKwargs::from))
    });
    environment.add_function("dict", |state: &mut State, value: Option<Value>, named: Kwargs| {
        let value = match value {
            Some(pairs) if is_list(&pairs) => Some(of_pairs(state, &pairs)?),
            other => other,
        };
        counted(state, functions::dict(value, named)?)
    });
    environment.add_function("cycler", |state: &mut State, items: Rest<Value>| {
        counted(state, items.0.iter().cloned().collect())?;
        minijinja_contrib::globals::cycler(items.0)
    });
    environment.add_function("joiner", |state: &mut State, between: Option<Value>| {
        counted(state, between.iter().cloned().collect())?;
        Ok::<_, Error>(minijinja_contrib::globals::joiner(between))
    });
}

/// A dict of pairs of a key and a value.
fn of_pairs(state: &mut State, pairs: &Value) -> Result<Value> {
    count_elements(state, 2 * pairs.len().unwrap_or(0))?;
    let pairs = pairs.try_iter()?.map(|pair| match (is_list(&pair), pair.len()) {
        (true, Some(2)) => match pair.get_item_by_index(0)? {
            key if key.kind() == ValueKind::Map || is_list(&key) => Err(wrong(format!(
                "dict: expected keys that are no lists, tuples or dicts, found a {}",
                key.kind()
            ))),
            key => Ok((key, pair.get_item_by_index(1)?)),
        },
        _ => Err(wrong(format!("dict: expected pairs of a key and a value, found {}", pair.kind()))),
    });
    Ok(Value::from_object(pairs.collect::<Result<IndexMap<Value, Value>>>()?))
}

/// Adds a filter whose result counts.
pub(super) fn add_counted<F, Rv, Args>(environment: &mut Environment<'static>, name: &'static str, filter: F)
where
    F: Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    let filter = Value::from_function(filter);
    environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| -> Result<Value> {
        let made = filter.call(state, &args.into_values())?;
        counted(state, made)
    });
}

/// Adds a filter that makes a list of its first argument, whose elements count before.
pub(super) fn add_of_lists<F, Rv, Args>(environment: &mut Environment<'static>, name: &'static str, filter: F)
where
    F: Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    let filter = Value::from_function(filter);
    environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| -> Result<Value> {
        let args = args.into_values();
        count_elements(state, args.first().and_then(Value::len).unwrap_or(0))?;
        let made = filter.call(state, &args)?;
        bounded(state, &made)?;
        Ok(made)
    });
}

/// Counts bytes that are about to be made, or were.
///
/// # Errors
/// If the rendering has made too many.
pub(super) fn count(state: &mut State, bytes: usize) -> Result<()> {
    let made = state.get_or_insert_extension(Made(0));
    made.0 = made.0.saturating_add(bytes);
    if made.0 > MOST {
        let what = format!("expected texts and lists of at most {MOST} bytes in all, found more");
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    }
    Ok(())
}

/// [`count`] of the elements of a list.
///
/// # Errors
/// As there.
pub(super) fn count_elements(state: &mut State, elements: usize) -> Result<()> {
    count(state, elements.saturating_mul(size_of::<Value>()))
}

/// A value that was made, counted.
///
/// # Errors
/// As [`count`]; if it is a list or dict that is too deep or too long, or holds what may come to hold it.
pub(super) fn counted(state: &mut State, made: Value) -> Result<Value> {
    let each = if made.kind() == ValueKind::Map { 2 } else { 1 };
    match made.as_str() {
        Some(text) => count(state, text.len())?,
        None => count_elements(state, made.len().unwrap_or(0).saturating_mul(each))?,
    }
    bounded(state, &made)?;
    Ok(made)
}

/// Checks how deep and how long a list or dict is: the engine goes down into them by calls, and each way.
fn bounded(state: &mut State, made: &Value) -> Result<()> {
    if made.as_object().is_none() {
        return Ok(());
    }
    let known = state.get_or_insert_extension_with(Known::default);
    let before = known.extents.len();
    known.of_elements(made, 0)?;
    let more = known.extents.len() - before;
    // With room for as many, and the lists themselves.
    count(state, more.saturating_mul(3 * size_of::<(usize, (Value, Extent))>()))
}

/// How deep lists and dicts are in each other, and how many values they have in all.
#[derive(Clone, Copy, Default)]
struct Extent {
    depth: usize,
    values: usize,
}

/// What lists and dicts that others hold come to, by their places in memory, where they stay for the rendering: each is gone
/// through once.
#[derive(Default)]
struct Known {
    extents: HashMap<usize, (Value, Extent)>,
    /// Values of those without a place, which are gone through each time.
    again: usize,
}

impl Known {
    fn of(&mut self, value: &Value, outside: usize) -> Result<Extent> {
        let place = place(value);
        if let Some((_, extent)) = place.and_then(|place| self.extents.get(&place)) {
            return Ok(*extent);
        }
        let extent = self.of_elements(value, outside)?;
        match place {
            Some(place) => drop(self.extents.insert(place, (value.clone(), extent))),
            None => self.again += value.len().unwrap_or(0),
        }
        Ok(extent)
    }

    /// The extent of what has `outside` lists and dicts around it.
    fn of_elements(&mut self, value: &Value, outside: usize) -> Result<Extent> {
        let mut all = Extent { depth: 1, values: 0 };
        let mut add = |item: &Value| -> Result<()> {
            if is_open(item) || item.kind() == ValueKind::Plain {
                return Err(held(item));
            }
            all.values += 1;
            if item.as_object().is_some() && outside < MOST_DEPTH {
                let inner = self.of(item, outside + 1)?;
                all.depth = all.depth.max(inner.depth + 1);
                all.values = all.values.saturating_add(inner.values);
            }
            if outside == MOST_DEPTH || all.depth > MOST_DEPTH {
                return Err(wrong(format!(
                    "expected at most {MOST_DEPTH} lists and dicts in each other, found more"
                )));
            }
            if all.values.max(self.again) > MOST_VALUES {
                return Err(wrong(format!(
                    "expected a list or dict of at most {MOST_VALUES} values, found more"
                )));
            }
            Ok(())
        };
        match value.kind() {
            ValueKind::Map => value.try_iter()?.try_for_each(|key| {
                add(&value.get_item(&key)?)?;
                add(&key)
            })?,
            _ if is_list(value) => value.try_iter()?.try_for_each(|item| add(&item))?,
            _ => {}
        }
        Ok(all)
    }
}

/// Where the elements of a list or dict are.
fn place(value: &Value) -> Option<usize> {
    fn of<T: 'static>(value: &Value) -> Option<usize> {
        value.downcast_object_ref::<T>().map(|object| std::ptr::from_ref(object).addr())
    }
    let lists = of::<Vec<Value>>(value).or_else(|| of::<Tuple>(value)).or_else(|| of::<View>(value));
    lists.or_else(|| of::<IndexMap<Value, Value>>(value))
}

/// Whether it is a namespace, or what `loop` is: they come to hold other values later.
fn is_open(value: &Value) -> bool {
    let is = |name| value.as_object().is_some_and(|object| object.type_name().ends_with(name));
    is("::Namespace") || is("::Loop")
}

/// Checks a value that a namespace is given.
fn kept(value: &Value) -> Result<()> {
    if is_open(value) { Err(held(value)) } else { Ok(()) }
}

fn held(value: &Value) -> Error {
    let what = value.as_object().map_or("", |object| object.type_name());
    wrong(match what.rsplit("::").next().unwrap_or(what) {
        open @ ("Namespace" | "Loop") => format!(
            "expected no {} in a list, a dict or a namespace, which it may come to hold itself",
            open.to_lowercase()
        ),
        "BoxedFunction" => "expected values in a list or dict, found a function".to_owned(),
        other => format!("expected values in a list or dict, found a {}", other.to_lowercase()),
    })
}

fn wrong(what: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

#[cfg(test)]
mod tests {
    use crate::{ChatTemplate, GenerationPrompt};

    fn render(source: &str) -> Result<String, String> {
        let template = ChatTemplate::new(source).map_err(|e| e.to_string())?;
        template
            .render(&serde_json::json!([{"a": [1]}]), None, GenerationPrompt::Omit)
            .map_err(|e| e.to_string())
    }

    /// A step that is taken very often.
    fn again(step: &str) -> String {
        let begin = "{% set ns = namespace(l=[1], n=none) %}";
        format!("{begin}{{% for i in range(99999) %}}{step}{{% endfor %}}{{{{ ns.l == ns.n }}}}")
    }

    #[test]
    fn lists_and_dicts_do_not_become_deep_or_grow_without_end_however_they_are_made() {
        let x = |step: &str| "{% set x = 1 %}".to_owned() + &step.repeat(1000) + "{{ x }}";
        for source in [
            x("{% set x = [x] %}"),
            x("{% set x = (x,) %}"),
            x("{% set x = x, 1 %}"),
            x("{%- set x={ 'a' :x } -%}"),
            x("{% set x = [1, x][1:] %}{% set x = [x]|batch(2)|list %}"),
            again("{% set ns.l = [ns.l] %}"),
            again("{% set ns.l = ns.l, %}"),
            again("{% set ns.l = dict(a=ns.l) %}"),
            again("{% set ns.l = ns.l|batch(1) %}"),
            again("{% set ns.l = ns.l|slice(1) %}"),
            again("{% set ns.l = {'a': ns.l}|items %}"),
            again("{% set ns.l = {'a': ns.l}.values() %}"),
            again("{% set ns.l = {'a': ns.l}|dictsort %}"),
            again("{% set ns.l = [{'a': 1, 'b': ns.l}]|groupby('a') %}"),
            again("{% set ns.l = ([{'a': 1, 'b': ns.l}, {'a': 1, 'b': ns.l}]|groupby('a'))[0] %}"),
            again("{% set ns.l = [ns.l]|map('batch', 1) %}"),
            again("{% set ns.l = [ns.l, ns.l] %}{% set ns.n = [ns.n, ns.n] %}"),
            "{% macro f(x) %}{{ f([[[[[[[[x]]]]]]]]) }}{% endmacro %}{{ f(1) }}".to_owned(),
            "{% macro f() %}{{ caller([[[[[[[[1]]]]]]]]) }}{% endmacro %}{% macro g(x) %}{% call(y) f() %}{{ g([x, [[[[y]]]]]) }}{% endcall %}{% endmacro %}{{ g(1) }}".to_owned(),
            "{% for x in [1] recursive %}{{ loop([[[[[x]]]]]) }}{% endfor %}".to_owned(),
        ] {
            let error = render(&source).expect_err(&source[..source.len().min(200)]);
            let bounds = [
                "expected at most 200 lists and dicts in each other, found more",
                "expected a list or dict of at most 16777216 values, found more",
                "of at most 16777216 bytes in all, found more",
                "recursion limit exceeded",
            ];
            assert!(bounds.iter().any(|bound| error.contains(bound)), "{source:.200}: {error:.300}");
        }
        let deep = "{% set x = [] %}".to_owned() + &"{% set x = [x] %}".repeat(190);
        assert_eq!(
            render(&(deep + "{{ x == [x] }}{{ x|string|length }}{{ x|tojson|length }}")).unwrap(),
            "False382382"
        );
        let turned = again("{% set ns.l = ns.l|reverse|list|reverse %}");
        assert_eq!(render(&turned).unwrap(), "False");
    }

    #[test]
    fn nothing_comes_to_hold_itself() {
        for (code, found) in [
            ("{% set ns.a = ns %}", "namespace"),
            ("{% set (ns.a, b) = (ns, 1) %}", "namespace"),
            ("{% set ns.a = [ns] %}", "namespace"),
            ("{% set n = namespace(b=ns) %}", "namespace"),
            ("{% set n = dict(b=ns) %}", "namespace"),
            ("{% set c = cycler(ns) %}", "namespace"),
            ("{% for x in [1] %}{% set ns.a = loop %}{% endfor %}", "loop"),
            ("{% for x in [1] %}{{ [loop]|length }}{% endfor %}", "loop"),
        ] {
            let error = render(&("{% set ns = namespace() %}".to_owned() + code)).expect_err(code);
            let found = format!("expected no {found} in a list, a dict or a namespace");
            assert!(error.contains(&found), "{code}: {error}");
        }
        for (code, found) in [
            ("{% set n = namespace({'a': 1}, b=ns) %}", "too many arguments"),
            ("{% set c = cycler(cycler(1)) %}", "expected values in a list or dict, found a cycler"),
            ("{% set j = joiner(joiner()) %}", "expected values in a list or dict, found a joiner"),
            ("{% set j = [1, range] %}", "expected values in a list or dict, found a function"),
            (
                "{% set j = dict([(1, 2), (3,)]) %}",
                "dict: expected pairs of a key and a value, found sequence",
            ),
            ("{% set j = dict(['ab']) %}", "dict: expected pairs of a key and a value, found string"),
        ] {
            let error = render(&("{% set ns = namespace() %}".to_owned() + code)).expect_err(code);
            assert!(error.contains(found), "{code}: {error}");
        }
        for (source, want) in [
            (
                "{% set ns = namespace(a=messages) %}{% set ns.b, c = 1, [ns.a] %}{{ ns.b }}{{ c }}",
                "1[[{'a': [1]}]]",
            ),
            (
                "{% for x in [1] %}{% set outer = loop %}{% for y in [2, 3] %}{{ outer.index }}{{ loop.index }}{% endfor %}{% endfor %}",
                "1112",
            ),
            (
                "{% set ns = namespace(c=cycler('a', [1])) %}{{ ns.c.next() }}{{ ns.c.next() }}{{ ns.c.next() }}",
                "a[1]a",
            ),
            (
                "{% macro m(a) %}<{{ a }}>{% endmacro %}{% set d = {'m': m} %}{{ d.m(1) }}{{ d['m'](2) }}",
                "<1><2>",
            ),
            (
                "{{ dict([('a', 1), ['b', messages]], c=2) }}{{ dict({'a': 1}.items()) }}{{ dict({'a': 1}, b=2) }}",
                "{'a': 1, 'b': [{'a': [1]}], 'c': 2}{'a': 1}{'a': 1, 'b': 2}",
            ),
            ("{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "123"),
            (
                "{% with (a, b) = (1, messages), (c, d) = (3, [messages, 4]) %}{{ a }}{{ c }}{{ d[1] }}{% endwith %}",
                "134",
            ),
            (
                "{% macro m() %}{{ caller(1, messages) }}{% endmacro %}{% call (a, b) m() %}{{ a }}{{ b }}{% endcall %}",
                "1[{'a': [1]}]",
            ),
            (
                "{% set x = [1, messages][0] %}{{ x }}{{ [messages, 2][1] }}{{ {'a': messages}.a[0].a }}",
                "12[1]",
            ),
            ("{% set x | replace('(a=b, c)', '1') %}(a=b, c)\n{% endset %}{{ x }}", "1\n"),
        ] {
            assert_eq!(render(source).as_deref(), Ok(want), "{source}");
        }
    }

    #[test]
    fn what_is_counted_is_what_is_made() {
        let long = |step: &str, times: usize| {
            let begin = "{% set a = 'a ' * 500000 %}";
            format!("{begin}{{% for i in range({times}) %}}{{% set x = {step} %}}{{% endfor %}}")
        };
        for step in ["a[1:]", "a.upper()", "a.replace('b', 'c')", "a.split(' ', 1)", "a % ()"] {
            assert_eq!(render(&long(step, 9)).as_deref(), Ok(""), "{step}");
            assert!(render(&long(step, 17)).is_err(), "{step}");
        }
        for step in ["a.startswith('a')", "a.find('b')", "a.isspace()", "a.count('a')"] {
            assert_eq!(render(&long(step, 17)).as_deref(), Ok(""), "{step}");
        }
        let text = "a".repeat(1 << 10);
        for source in [
            long("'%s' % {'a': a, 'b': a, 'c': a, 'd': a, 'e': a}", 4),
            long("'%s%s%s%s%s' % (a, a, a, a, a)", 4),
            long("'{}'.format([a, a, a, a, a])", 4),
            again("{% set x = '%1000d' % 1 %}"),
            again("{% set x = [i, i, i, i, i, i, i, i] %}"),
            again("{% set x = {'a': i, 'b': i, 'c': i, 'd': i} %}"),
            format!("{{% macro f() %}}{text}{{% endmacro %}}{}", again("{% set x = f() %}")),
            format!("{{% macro f() %}}{}{{% endmacro %}}{{% call f() %}}{text}{{% endcall %}}", "{% set x = caller() %}".repeat((1 << 14) + 1)),
            format!("{{% for i in range(2) recursive %}}{text}{{% if loop.depth < 15 %}}{{% set x = loop(range(2)) %}}{{% endif %}}{{% endfor %}}"),
            "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l]|sum(start=[]) %}{% endfor %}".to_owned(),
        ] {
            let error = render(&source).expect_err(&source[..source.len().min(200)]);
            assert!(error.contains("of at most 16777216 bytes in all, found more"), "{source:.200}: {error:.300}");
        }
    }
}
