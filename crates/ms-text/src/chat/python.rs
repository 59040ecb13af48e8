//! Python and Jinja functions that templates use and the engine does not provide.
//!
//! # Source
//! Python 3.11, `str`, `list` and `dict`; Jinja 3.1, `filters.py` and `tests.py`, in its immutable sandbox.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, filters};

use super::limits::{all_taken, count_filled, within};
use super::lists::{View, is_list};
use super::memory::{add_counted, count, count_elements, counted};
use super::source::{IN_STEPS, PERCENT};
use super::texts::{is_float, text_of};
use crate::python_case;

type Result<T> = std::result::Result<T, Error>;

/// Gives an environment these methods, filters, tests and functions.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(method);
    environment.add_filter(PERCENT, percent);
    environment.add_filter(IN_STEPS, in_steps);
    add_counted(environment, "capitalize", |value: &Value| {
        text_of(value).map(|text| python_case::capitalize(&text))
    });
    add_counted(environment, "center", |value: &Value, width: Option<usize>| -> Result<String> {
        Ok(centred(&text_of(value)?, within("center", width.unwrap_or(80))?, ' '))
    });
    environment.add_filter("int", int);
    environment.add_filter("round", round);
    environment.add_filter("float", float);
    environment.add_filter("wordcount", |value: &Value| text_of(value).map(|text| words(&text)));
    add_counted(environment, "truncate", truncate);
    add_counted(environment, "striptags", minijinja_contrib::filters::striptags);
    environment.add_filter("filesizeformat", minijinja_contrib::filters::filesizeformat);
    // The engine's own goes over null, as if it were an empty list.
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    // What has a length and places: texts and dicts, too, and what is undefined.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
    });
    environment.add_test("divisibleby", divisible);
    environment.add_test("even", |state: &mut State, value: &Value| {
        remainder_by_2(state, value).map(|rest| rest == Value::from(0))
    });
    environment.add_test("odd", |state: &mut State, value: &Value| {
        remainder_by_2(state, value).map(|rest| rest == Value::from(1))
    });
    environment.add_function("range", View::of_range);
}

fn wrong(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// `text % values`, or the remainder of numbers, whose sign is the divisor's.
fn percent(state: &mut State, left: &Value, right: &Value) -> Result<Value> {
    if let Some(text) = left.as_str() {
        let values = if right.is_tuple() { right.try_iter()?.collect() } else { vec![right.clone()] };
        count_filled(state, "%", text, '%', &values)?;
        return percent_of_text(text, right).map(Value::from);
    }
    let whole = |v: &Value| i128::try_from(v.clone()).ok().filter(|_| !is_float(v));
    if let (Some(a), Some(b)) = (whole(left), whole(right)) {
        let rest = a.checked_rem(b).ok_or_else(|| wrong("modulo by zero"))?;
        let rest = if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest };
        return Ok(i64::try_from(rest).map_or_else(|_| Value::from(rest), Value::from));
    }
    let real = |v: &Value| f64::try_from(v.clone()).map_err(|_| cannot(left, right));
    let (a, b) = (real(left)?, real(right)?);
    if b == 0.0 {
        return Err(wrong("modulo by zero"));
    }
    let rest = a % b;
    let same_sign = rest == 0.0 || (rest < 0.0) == (b < 0.0);
    Ok(Value::from(if rest == 0.0 {
        0.0f64.copysign(b)
    } else if same_sign {
        rest
    } else {
        rest + b
    }))
}

/// `value[start:stop:step]`.
fn in_steps(
    state: &mut State,
    value: &Value,
    start: Option<i64>,
    stop: Option<i64>,
    step: Option<i64>,
) -> Result<Value> {
    if value.as_str().is_none() && !is_list(value) {
        return Err(wrong(format!("a slice of {}", value.kind())));
    }
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(wrong("a step of 0"));
    }
    if let (Some(text), 1) = (value.as_str(), step) {
        return counted(state, slice(text, start, stop).map_or("", |(_, part)| part).into());
    }
    let (chars, items): (Vec<char>, Vec<Value>) = match value.as_str() {
        Some(text) => (text.chars().collect(), Vec::new()),
        None => {
            count_elements(state, value.len().unwrap_or(0))?;
            (Vec::new(), value.try_iter()?.collect())
        }
    };
    let length = chars.len().max(items.len()) as i64;
    // Of a slice that goes backwards, -1 is before the first element.
    let (least, most) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let place = |at: i64| (if at < 0 { at + length } else { at }).clamp(least, most);
    let (first, end) = if step > 0 { (0, length) } else { (length - 1, -1) };
    let (start, stop) = (start.map_or(first, place), stop.map_or(end, place));
    let each = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
    let places: Vec<i64> = if step > 0 {
        (start..stop).step_by(each).collect()
    } else {
        (stop + 1..=start).rev().step_by(each).collect()
    };
    if value.as_str().is_some() {
        let text: String = places.into_iter().map(|at| chars[at as usize]).collect();
        return counted(state, text.into());
    }
    let kept = places.into_iter().map(|at| items[at as usize].clone());
    Ok(if value.is_tuple() { Tuple::from(kept.collect::<Vec<_>>()).into() } else { kept.collect() })
}

/// Jinja's test, which the engine's own does not survive where the divisor is 0.
fn divisible(state: &mut State, value: &Value, by: &Value) -> Result<bool> {
    Ok(percent(state, value, by)? == Value::from(0))
}

/// `value % 2`.
fn remainder_by_2(state: &mut State, value: &Value) -> Result<Value> {
    let two = Value::from(2);
    if value.as_str().is_some() { Err(cannot(value, &two)) } else { percent(state, value, &two) }
}

fn cannot(left: &Value, right: &Value) -> Error {
    wrong(format!("%: expected a text or two numbers, found {} and {}", left.kind(), right.kind()))
}

/// A tuple is several values, a dict may be taken by its keys.
fn percent_of_text(text: &str, values: &Value) -> Result<String> {
    if values.is_tuple() {
        let values: Vec<Value> = values.try_iter()?.collect();
        all_taken("%", text, values.len())?;
        return format(FormatStyle::Printf, text, &values);
    }
    if values.kind() == ValueKind::Map && text.contains("%(") {
        let mut named = Vec::new();
        for key in values.try_iter()? {
            named.push((key.to_string(), values.get_item(&key)?));
        }
        let named: Kwargs = named.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
        return format(FormatStyle::Printf, text, &[named.into()]);
    }
    // What has keys or places may have more of them than the text takes.
    if !is_list(values) && !matches!(values.kind(), ValueKind::Map | ValueKind::Undefined) {
        all_taken("%", text, 1)?;
    }
    format(FormatStyle::Printf, text, std::slice::from_ref(values))
}

/// Jinja's filter: what is not a number is `default`, or 0; what is undefined, an error.
#[allow(clippy::needless_pass_by_value)] // the form that the template engine takes
fn int(
    state: &State,
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    kwargs: Kwargs,
) -> Result<Value> {
    let default = match default {
        Some(default) => default,
        None => kwargs.get::<Option<Value>>("default")?.unwrap_or(Value::from(0)),
    };
    let base = base.or(kwargs.get("base")?);
    kwargs.assert_all_used()?;
    defined("int", value)?;
    let none: Kwargs = std::iter::empty::<(&str, Value)>().collect();
    Ok(filters::int(state, value, Some(default.clone()), base, none).unwrap_or(default))
}

/// Jinja's filter: up and down, also a whole number becomes a float.
#[allow(clippy::needless_pass_by_value)] // the form that the template engine takes
fn round(value: Value, precision: Option<i32>, method: Option<&str>, kwargs: Kwargs) -> Result<Value> {
    let precision = precision.or(kwargs.get("precision")?);
    let method = method.or(kwargs.get("method")?);
    kwargs.assert_all_used()?;
    let none: Kwargs = std::iter::empty::<(&str, Value)>().collect();
    let directed = method.is_some_and(|method| method != "common");
    let rounded = filters::round(value, precision, method, none)?;
    if directed && !is_float(&rounded) { f64::try_from(rounded).map(Value::from) } else { Ok(rounded) }
}

fn defined(what: &str, value: &Value) -> Result<()> {
    if value.is_undefined() {
        Err(wrong(format!("{what}: expected a value, found undefined")))
    } else {
        Ok(())
    }
}

/// Jinja's filter: anything that is not a number becomes `default`, or 0.0; what is undefined, an error.
#[allow(clippy::needless_pass_by_value)] // the form that the template engine takes
fn float(state: &State, value: &Value, default: Option<Value>, kwargs: Kwargs) -> Result<Value> {
    let default = match default {
        Some(default) => default,
        None => kwargs.get::<Option<Value>>("default")?.unwrap_or(Value::from(0.0)),
    };
    kwargs.assert_all_used()?;
    defined("float", value)?;
    let none: Kwargs = std::iter::empty::<(&str, Value)>().collect();
    Ok(filters::float(state, value, Some(default.clone()), none).unwrap_or(default))
}

/// Jinja's filter: a text of more than `length` and `leeway` characters ends in `end`, at a blank unless `killwords`.
#[allow(clippy::needless_pass_by_value)] // the form that the template engine takes
fn truncate(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value> {
    let args = args.into_values();
    let (length, killwords, end, leeway, kwargs): (
        Option<usize>,
        Option<bool>,
        Option<&str>,
        Option<usize>,
        Kwargs,
    ) = from_args(&args)?;
    let length = length.or(kwargs.get("length")?).unwrap_or(255);
    let killwords = killwords.or(kwargs.get("killwords")?).unwrap_or(false);
    let end = end.or(kwargs.get("end")?).unwrap_or("...");
    let leeway = leeway.or(kwargs.get("leeway")?).unwrap_or(5);
    kwargs.assert_all_used()?;
    // Lists and dicts have a length, too, but cannot be shortened.
    let text = value.as_str();
    let all = if value.is_undefined() { Some(0) } else { text.map(|t| t.chars().count()).or(value.len()) };
    if all.is_some_and(|all| all <= length.saturating_add(leeway)) {
        return Ok(value.clone());
    }
    let text = text.ok_or_else(|| wrong(format!("truncate: expected a text, found {}", value.kind())))?;
    let room = length.checked_sub(end.chars().count());
    let room =
        room.ok_or_else(|| wrong(format!("truncate: {length} characters have no room for {end:?}")))?;
    let kept: String = text.chars().take(room).collect();
    let kept = kept.rsplit_once(' ').filter(|_| !killwords).map_or(&*kept, |(before, _)| before);
    Ok(format!("{kept}{end}").into())
}

/// Words as Jinja counts them: runs of letters, digits and underscores.
fn words(text: &str) -> usize {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count()
}

/// A method of a text, a list or a dict: Python's, or what the engine's own crate has of them.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value> {
    let ahead = value.as_str().map_or(Ok(false), |text| count_ahead(state, text, name, args))?;
    let own = match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => text_method(text, name, args)?,
        (ValueKind::Seq, _) => list_method(value, name, args)?,
        (ValueKind::Map, _) if name == "copy" => {
            let () = from_args(args)?;
            Some(value.clone())
        }
        _ => None,
    };
    let made = match own {
        Some(own) => own,
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)?,
    };
    match (value.kind(), name) {
        (ValueKind::Map, "keys" | "values" | "items") => counted(state, View::of_dict(name, &made)?),
        (ValueKind::String, _) if !ahead => counted(state, made),
        _ => Ok(made),
    }
}

/// Counts what a method is about to make of a text, where that may be far more than the text. Whether it is one of those.
fn count_ahead(state: &mut State, text: &str, name: &str, args: &[Value]) -> Result<bool> {
    let given = |place: usize, name: &str| {
        let named = || args.last().filter(|last| last.is_kwargs())?.get_attr(name).ok();
        args.get(place).filter(|arg| !arg.is_kwargs()).cloned().or_else(named)
    };
    let most =
        |place, name| given(place, name).and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    match name {
        "replace" => {
            let (old, new) = (given(0, "old").unwrap_or_default(), given(1, "new").unwrap_or_default());
            let (old, new) = (old.as_str().unwrap_or_default(), new.as_str().unwrap_or_default());
            let places = text.matches(old).count().min(most(2, "count"));
            count(state, (text.len() - places * old.len()).saturating_add(places.saturating_mul(new.len())))?;
        }
        "split" | "rsplit" | "splitlines" => {
            let separator = given(0, "sep");
            let places = match separator.as_ref().and_then(Value::as_str).filter(|text| !text.is_empty()) {
                _ if name == "splitlines" => text.matches(ends_line).count(),
                Some(separator) => text.matches(separator).count().min(most(1, "maxsplit")),
                None => text.split(is_space).filter(|word| !word.is_empty()).count().min(most(1, "maxsplit")),
            };
            count(state, text.len())?;
            // A part is a slice, a text and a value in turn.
            count_elements(state, places.saturating_add(1).saturating_mul(3))?;
        }
        "format" => count_filled(state, name, text, '{', args)?,
        "join" => match args.first() {
            Some(list) if is_list(list) => list.try_iter()?.try_for_each(|item| {
                count(state, text.len().saturating_add(item.as_str().map_or(0, str::len)))
            })?,
            Some(list) => {
                count(state, text.len().saturating_add(8).saturating_mul(list.len().unwrap_or(0)))?;
            }
            None => {}
        },
        _ => return Ok(false),
    }
    Ok(true)
}

fn list_method(value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>> {
    Ok(match name {
        "copy" if !value.is_tuple() => {
            let () = from_args(args)?;
            Some(value.clone())
        }
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            let place = value.try_iter()?.position(|item| item == *what);
            Some(Value::from(place.ok_or_else(|| wrong(format!("{what} is not in the list")))?))
        }
        _ => None,
    })
}

/// White space as `str.isspace` has it.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

fn text_method(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>> {
    let three = |parts: [&str; 3]| Value::from(Tuple::from(parts.map(Value::from)));
    Ok(Some(match name {
        "capitalize" => {
            let () = from_args(args)?;
            python_case::capitalize(text).into()
        }
        "title" => {
            let () = from_args(args)?;
            python_case::title(text).into()
        }
        "swapcase" => {
            let () = from_args(args)?;
            text.chars().map(swapped).collect::<String>().into()
        }
        "isspace" => {
            let () = from_args(args)?;
            (!text.is_empty() && text.chars().all(is_space)).into()
        }
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            stripped(text, chars, name != "rstrip", name != "lstrip").into()
        }
        "split" | "rsplit" => {
            let (separator, most, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = separator.or(kwargs.get("sep")?).filter(|s| !s.is_none());
            let most = most.or(kwargs.get("maxsplit")?).and_then(|most| usize::try_from(most).ok());
            kwargs.assert_all_used()?;
            let separator = separator.as_ref().map(|s| s.as_str().ok_or_else(|| wrong("split wants a text")));
            Value::from(split(text, separator.transpose()?, most, name == "rsplit")?)
        }
        "splitlines" => {
            let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.or(kwargs.get("keepends")?).unwrap_or(false);
            kwargs.assert_all_used()?;
            Value::from(lines(text, keep))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(wrong("empty separator"));
            }
            three(match (name, text.split_once(separator), text.rsplit_once(separator)) {
                ("partition", Some((before, behind)), _) | ("rpartition", _, Some((before, behind))) => {
                    [before, separator, behind]
                }
                ("partition", ..) => [text, "", ""],
                _ => ["", "", text],
            })
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (i64, Option<char>) = from_args(args)?;
            let (width, fill) = (within(name, usize::try_from(width).unwrap_or(0))?, fill.unwrap_or(' '));
            let pad = padding(text, width, fill);
            match name {
                "ljust" => format!("{text}{pad}"),
                "rjust" => format!("{pad}{text}"),
                _ => centred(text, width, fill),
            }
            .into()
        }
        "zfill" => {
            let (width,): (i64,) = from_args(args)?;
            let zeros = padding(text, within(name, usize::try_from(width).unwrap_or(0))?, '0');
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            format!("{sign}{zeros}{digits}").into()
        }
        "expandtabs" => {
            let (size, kwargs): (Option<usize>, Kwargs) = from_args(args)?;
            let size = size.or(kwargs.get("tabsize")?).unwrap_or(8);
            kwargs.assert_all_used()?;
            within(name, size.saturating_mul(text.matches('\t').count()))?;
            expanded(text, size).into()
        }
        "startswith" | "endswith" => {
            let (what, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
            let part = slice(text, start, end).map(|(_, part)| part);
            let texts: Vec<Value> = match what.kind() {
                ValueKind::String => vec![what.clone()],
                ValueKind::Seq if what.is_tuple() => what.try_iter()?.collect(),
                kind => return Err(wrong(format!("{name} wants a text or a tuple of them, found {kind}"))),
            };
            let mut found = false;
            for one in &texts {
                let one = one.as_str().ok_or_else(|| wrong(format!("{name} wants texts, found {one}")))?;
                found |= part.is_some_and(|part| match name {
                    "startswith" => part.starts_with(one),
                    _ => part.ends_with(one),
                });
            }
            found.into()
        }
        "find" | "rfind" | "index" | "rindex" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            let place = slice(text, start, end).and_then(|(first, part)| {
                let at = if name.starts_with('r') { part.rfind(what) } else { part.find(what) }?;
                Some(first + part[..at].chars().count())
            });
            match place {
                Some(place) => place.into(),
                None if name.ends_with("index") => return Err(wrong("substring not found")),
                None => (-1).into(),
            }
        }
        "count" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            slice(text, start, end).map_or(0, |(_, part)| part.matches(what).count()).into()
        }
        _ => return Ok(None),
    }))
}

fn swapped(c: char) -> String {
    match c {
        _ if c.is_uppercase() => c.to_lowercase().collect(),
        _ if c.is_lowercase() => c.to_uppercase().collect(),
        _ => c.to_string(),
    }
}

fn stripped<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(goes) } else { text };
    if right { text.trim_end_matches(goes) } else { text }
}

/// `str.split` and, from the right, `str.rsplit`; `None`: at runs of white space, without empty parts.
fn split(text: &str, separator: Option<&str>, most: Option<usize>, from_right: bool) -> Result<Vec<String>> {
    let most = most.map_or(usize::MAX, |most| most.saturating_add(1));
    let mut parts: Vec<&str> = match (separator, from_right) {
        (Some(""), _) => return Err(wrong("empty separator")),
        (Some(separator), false) => text.splitn(most, separator).collect(),
        (Some(separator), true) => text.rsplitn(most, separator).collect(),
        (None, _) => {
            let (mut parts, mut rest) = (Vec::new(), stripped(text, None, !from_right, from_right));
            while !rest.is_empty() {
                let cut = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
                let Some(cut) = cut.filter(|_| parts.len() + 1 < most) else {
                    parts.push(rest);
                    break;
                };
                let space = rest[cut..].chars().next().map_or(0, char::len_utf8);
                let (part, other) = if from_right {
                    (&rest[cut + space..], &rest[..cut])
                } else {
                    (&rest[..cut], &rest[cut + space..])
                };
                parts.push(part);
                rest = stripped(other, None, !from_right, from_right);
            }
            parts
        }
    };
    if from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(str::to_owned).collect())
}

/// Whether a line ends there, as `str.splitlines` has it.
fn ends_line(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Lines as `str.splitlines` has them.
fn lines(text: &str, keep: bool) -> Vec<String> {
    let (mut lines, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let line = rest.find(ends_line).unwrap_or(rest.len());
        let end = match &rest[line..] {
            tail if tail.starts_with("\r\n") => 2,
            tail => tail.chars().next().map_or(0, char::len_utf8),
        };
        lines.push(rest[..if keep { line + end } else { line }].to_owned());
        rest = &rest[line + end..];
    }
    lines
}

/// What a text lacks of `width` characters.
fn padding(text: &str, width: usize, fill: char) -> String {
    std::iter::repeat_n(fill, width.saturating_sub(text.chars().count())).collect()
}

/// `str.center`, whose odd character stands on the left where the width is odd.
fn centred(text: &str, width: usize, fill: char) -> String {
    let all = width.saturating_sub(text.chars().count());
    let left = all / 2 + (all & width & 1);
    let pad = |n| std::iter::repeat_n(fill, n).collect::<String>();
    format!("{}{text}{}", pad(left), pad(all - left))
}

fn expanded(text: &str, size: usize) -> String {
    let (mut out, mut column) = (String::with_capacity(text.len()), 0);
    for c in text.chars() {
        match c {
            '\t' => {
                let n = if size == 0 { 0 } else { size - column % size };
                out.extend(std::iter::repeat_n(' ', n));
                column += n;
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            _ => {
                out.push(c);
                column += 1;
            }
        }
    }
    out
}

/// Characters `start..end` of a text as Python counts them, with the number of the first; `None` if the start is past the
/// end.
fn slice(text: &str, start: Option<i64>, end: Option<i64>) -> Option<(usize, &str)> {
    let n = text.chars().count();
    let place = |at: Option<i64>, other: usize| match at {
        None => other,
        Some(at) if at < 0 => n.saturating_sub(usize::try_from(at.unsigned_abs()).unwrap_or(usize::MAX)),
        Some(at) => usize::try_from(at).unwrap_or(usize::MAX),
    };
    let (start, end) = (place(start, 0), place(end, n).min(n));
    if start > end {
        return None;
    }
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(i, _)| i);
    Some((start, &text[byte(start)..byte(end)]))
}
