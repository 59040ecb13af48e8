//! What a rendering makes in all, and how deep: a template comes with a model, and a few steps double a text.

use indexmap::IndexMap;
use minijinja::value::{FunctionArgs, FunctionResult, Kwargs, Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters, functions, functions::Function};
use std::collections::HashMap;

use super::texts::{MOST_DEPTH, View, is_list};

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
    if made.as_object().is_some() {
        state.get_or_insert_extension_with(Known::default).of_elements(made, 0)?;
    }
    Ok(())
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
                return Err(wrong(format!("expected at most {MOST_DEPTH} lists and dicts in each other, found more")));
            }
            if all.values.max(self.again) > MOST_VALUES {
                return Err(wrong(format!("expected a list or dict of at most {MOST_VALUES} values, found more")));
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
    let what = value.as_object().map_or("value", |object| object.type_name());
    let what = what.rsplit("::").next().unwrap_or(what).to_lowercase();
    wrong(format!("expected no {what} in a list, a dict or a namespace, which it may come to hold itself"))
}

fn wrong(what: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}
