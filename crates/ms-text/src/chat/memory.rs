//! What a rendering makes in all: a template comes with a model, and a few steps double a text.

use minijinja::value::{FunctionArgs, FunctionResult, Rest, Value, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters, functions::Function};

type Result<T> = std::result::Result<T, Error>;

/// Most bytes of texts and lists that a rendering makes, with those that it lets go: a template for a conversation makes a few
/// times as many as that has.
const MOST: usize = if cfg!(test) { 1 << 24 } else { 1 << 31 };

/// What a rendering has made so far.
struct Made(usize);

/// Gives an environment the engine's filters that make lists.
pub(super) fn add(environment: &mut Environment<'static>) {
    add_of_lists(environment, "map", filters::map);
    add_of_lists(environment, "select", filters::select);
    add_of_lists(environment, "reject", filters::reject);
    add_of_lists(environment, "selectattr", filters::selectattr);
    add_of_lists(environment, "rejectattr", filters::rejectattr);
    add_of_lists(environment, "dictsort", filters::dictsort);
    // What Jinja does not have.
    for name in ["split", "lines", "chain", "zip"] {
        environment.remove_filter(name);
    }
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
        filter.call(state, &args)
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
/// As [`count`].
pub(super) fn counted(state: &mut State, made: Value) -> Result<Value> {
    match made.as_str() {
        Some(text) => count(state, text.len())?,
        None => count_elements(state, made.len().unwrap_or(0))?,
    }
    Ok(made)
}
