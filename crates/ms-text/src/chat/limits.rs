//! Bounds on what a template may ask for: it comes with a model, from whoever published that.

use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters};

use super::memory::{add_counted, add_of_lists, count};
use super::nothing::listed;
use super::texts::text_of;

type Result<T> = std::result::Result<T, Error>;

/// Steps of a rendering, a second or two: a template for a conversation takes some dozens for each message.
pub(super) const STEPS: u64 = 50_000_000;

/// Most characters that a text is filled up with, and parts that a list is cut into.
const MOST: usize = 1 << 20;

/// Most characters that all lines of a text are filled up with.
const MOST_OF_LINES: usize = 1 << 26;

/// Gives an environment a limit of steps, and bounds of the filters that fill or cut: they are there a second time, under names
/// that no template has, behind a check of what they are asked for.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.set_fuel(Some(STEPS));
    environment.add_filter("indent()", filters::indent);
    environment.add_filter("slice()", filters::slice);
    environment.add_filter("batch()", filters::batch);
    environment.add_filter("format()", filters::format);
    add_counted(environment, "indent", indent);
    add_of_lists(environment, "slice", slice);
    add_of_lists(environment, "batch", batch);
    environment.add_filter("format", format_text);
}

fn indent(state: &mut State, args: Rest<ValueOrKwargs>) -> Result<Value> {
    let args = checked("indent", args)?;
    if let Some(other) = args.first().filter(|value| value.as_str().is_none()) {
        let what = format!("indent: expected a text, found {}", other.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    }
    let lines = args.first().and_then(Value::as_str).map_or(0, |text| text.matches('\n').count());
    let width = args.get(1).map_or(0, largest);
    lines_within("indent", width, lines)?;
    state.apply_filter("indent()", &args)
}

fn slice(state: &mut State, args: Rest<ValueOrKwargs>) -> Result<Value> {
    let args = checked("slice", args)?;
    args.first().map_or(Ok(()), listed)?;
    state.apply_filter("slice()", &args)
}

fn batch(state: &mut State, args: Rest<ValueOrKwargs>) -> Result<Value> {
    let args = checked("batch", args)?;
    args.first().map_or(Ok(()), listed)?;
    state.apply_filter("batch()", &args)
}

fn format_text(state: &mut State, args: Rest<ValueOrKwargs>) -> Result<Value> {
    let args = args.into_values();
    if let Some(text) = args.first().and_then(Value::as_str) {
        let values = args[1..].iter().filter(|arg| !arg.is_kwargs()).count();
        all_taken("format", text, values)?;
        count_filled(state, "format", text, '%', &args[1..])?;
    }
    state.apply_filter("format()", &args)
}

/// The arguments of a filter whose first one is a number, or has that under its name.
fn checked(what: &str, args: Rest<ValueOrKwargs>) -> Result<Vec<Value>> {
    let args = args.into_values();
    args.get(1).map_or(Ok(()), |arg| numbers_within(what, arg))?;
    Ok(args)
}

fn beyond(what: &str, most: usize, found: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{what}: expected at most {most}, found {found}"))
}

/// The largest number of an argument that is one, or has them under names.
fn largest(arg: &Value) -> usize {
    let named = || arg.try_iter().into_iter().flatten().filter_map(|key| arg.get_item(&key).ok());
    match arg.kind() {
        ValueKind::Map => named().map(|value| usize::try_from(value).unwrap_or(0)).max().unwrap_or(0),
        _ => usize::try_from(arg.clone()).unwrap_or(0),
    }
}

/// Checks what lines are filled up with: `each` of them, `lines` times.
///
/// # Errors
/// With `what` asks for it, where it comes to more than the limit.
pub(super) fn lines_within(what: &str, each: usize, lines: usize) -> Result<()> {
    match each.saturating_mul(lines) {
        all if all > MOST_OF_LINES => {
            Err(beyond(what, MOST_OF_LINES, format_args!("lines that are filled with {all}")))
        }
        _ => Ok(()),
    }
}

/// A number of characters or parts that a template gives.
///
/// # Errors
/// With `what` asks for it, where it is above the limit.
pub(super) fn within(what: &str, number: usize) -> Result<usize> {
    if number > MOST { Err(beyond(what, MOST, number)) } else { Ok(number) }
}

/// Checks an argument that is a number, and those that have names.
fn numbers_within(what: &str, arg: &Value) -> Result<()> {
    if arg.kind() == ValueKind::Map {
        return arg.try_iter()?.try_for_each(|key| match arg.get_item(&key)? {
            number if number.kind() == ValueKind::Number => numbers_within(what, &number),
            _ => Ok(()),
        });
    }
    match i128::try_from(arg.clone()) {
        Ok(number) if number > MOST as i128 => Err(beyond(what, MOST, number)),
        _ => Ok(()),
    }
}

/// The widths and precisions of a text that is formatted, by `%` or, with a `mark` of `{`, by braces, in all. It is read as
/// the engine reads it, which stops where a name does not end.
///
/// # Errors
/// With `what` formats, where they come to more than the limit.
fn widths_within(what: &str, text: &str, mark: char) -> Result<usize> {
    let (mut sum, mut rest) = (0usize, text);
    'fields: while let Some((_, behind)) = rest.split_once(mark) {
        rest = behind;
        if let Some(behind) = rest.strip_prefix(mark) {
            rest = behind;
            continue;
        }
        if mark == '%' && rest.starts_with('(') {
            let Some((_, behind)) = rest.split_once(')') else { break };
            rest = behind;
        }
        if mark == '{' {
            let name = |c: char| c.is_ascii_alphanumeric() || "_.".contains(c);
            rest = rest.trim_start_matches(name);
            while rest.starts_with('[') {
                let Some((_, behind)) = rest.split_once(']') else { break 'fields };
                rest = behind.trim_start_matches(name);
            }
            let Some(behind) = rest.strip_prefix(':') else { continue };
            // What it is filled with may be any character.
            let mut chars = behind.chars();
            let fill = chars.next().filter(|_| chars.next().is_some_and(|c| "<>^".contains(c)));
            rest = &behind[fill.map_or(0, char::len_utf8)..];
        }
        let ends = |c: char| !c.is_ascii_digit() && !"<>^#-+ .,_".contains(c);
        let (spec, behind) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
        let numbers = spec.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty());
        sum = numbers.map(|number| number.parse().unwrap_or(usize::MAX)).fold(sum, usize::saturating_add);
        rest = behind;
    }
    if sum > MOST { Err(beyond(what, MOST, format_args!("widths that come to {sum}"))) } else { Ok(sum) }
}

/// Counts what a text becomes whose places, each with a `mark`, are filled with values.
///
/// # Errors
/// As [`count`]; with `what` formats, where its widths come to more than the limit.
pub(super) fn count_filled(
    state: &mut State,
    what: &str,
    text: &str,
    mark: char,
    values: &[Value],
) -> Result<()> {
    // In characters, of which those that fill up have up to four bytes.
    let widths = widths_within(what, text, mark)?.saturating_mul(if mark == '{' { 4 } else { 1 });
    // Each place may then have any of them; otherwise each has its own.
    let named = mark == '{' || text.contains("%(");
    let (mut sum, mut longest) = (0usize, 0);
    let mut measure = |value: &Value| -> Result<()> {
        let length = text_of(value)?.len();
        sum = sum.saturating_add(length);
        longest = longest.max(length);
        Ok(())
    };
    for value in values {
        if value.is_kwargs() || mark == '%' && named && value.kind() == ValueKind::Map {
            value.try_iter()?.try_for_each(|key| measure(&value.get_item(&key)?))?;
        } else {
            measure(value)?;
        }
    }
    let filled = if named { text.matches(mark).count().saturating_mul(longest) } else { sum };
    count(state, text.len().saturating_add(widths).saturating_add(filled))
}

/// Checks that a text that is formatted takes all of the values that are there.
///
/// # Errors
/// With `what` formats, if some are left.
pub(super) fn all_taken(what: &str, text: &str, values: usize) -> Result<()> {
    let (mut taken, mut rest) = (0, text);
    while let Some((_, spec)) = rest.split_once('%') {
        let end = spec.find(|c: char| !c.is_ascii_digit() && !"#- +.*hlL".contains(c)).unwrap_or(spec.len());
        let (flags, conversion) = spec.split_at(end);
        taken += flags.matches('*').count() + usize::from(!conversion.starts_with('%'));
        rest = conversion.strip_prefix('%').unwrap_or(conversion);
    }
    if taken < values {
        let what = format!("{what}: expected {taken} values, as {text:?} takes, found {values}");
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::widths_within;
    use crate::{ChatTemplate, GenerationPrompt};

    fn render(source: &str) -> Result<String, String> {
        let template = ChatTemplate::new(source).map_err(|e| e.to_string())?;
        template.render(&serde_json::json!([]), None, GenerationPrompt::Omit).map_err(|e| e.to_string())
    }

    #[test]
    fn what_is_filled_up_or_cut_beyond_all_bounds_is_refused_by_its_name() {
        for (name, code) in [
            ("ljust", "'a'.ljust(9223372036854775807)"),
            ("rjust", "'a'.rjust(10000000000000)"),
            ("center", "'a'.center(10000000000000, '-')"),
            ("center", "'a'|center(18446744073709551615)"),
            ("zfill", "'a'.zfill(10000000000000)"),
            ("expandtabs", "'\t'.expandtabs(10000000000000)"),
            ("indent", "'a\nb'|indent(10000000000000)"),
            ("indent", "'a\nb'|indent(width=10000000000000)"),
            ("slice", "[1]|slice(10000000000000)|length"),
            ("batch", "[1]|batch(10000000000000, 0)|length"),
            ("tojson", "[1]|tojson(indent=10000000000000)"),
            ("%", "'%10000000000000d' % 1"),
            ("%", "'%(a).10000000000000f' % {'a': 1.5}"),
            ("format", "'%10000000000000d'|format(1)"),
            ("format", "'{:>10000000000000}'.format('a')"),
            ("format", "'{:{<10000000000000}'.format('a')"),
            ("format", "'{0[}]:>10000000000000}'.format({'}': 'a'})"),
        ] {
            let error = render(&format!("{{{{ {code} }}}}")).expect_err(code);
            assert!(error.contains(&format!("{name}: expected at most 1048576, found")), "{code}: {error}");
        }
        assert_eq!(
            render("{{ 'a'.ljust(3) ~ 'b\nc'|indent(2) ~ '%3d|{}' % 7 }}").unwrap(),
            "a  b\n  c  7|{}"
        );
        assert_eq!(render("{{ '{:>3}'.format('a') ~ [1, 2, 3]|slice(2)|list|length }}").unwrap(), "  a2");
        let many = "'".to_owned() + &"%99999d".repeat(11) + "' % (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)";
        assert!(render(&format!("{{{{ {many} }}}}")).unwrap_err().contains("widths that come to 1099989"));
    }

    #[test]
    fn a_format_is_read_once() {
        // Each would be a minute and more, were what is behind each mark gone through to the end.
        for text in ["%(", "%(a)%(", "{[", "{:", "{:>", "% ", "%-"] {
            let text = text.repeat(1 << 20);
            widths_within("%", &text, '%').unwrap();
            widths_within("format", &text, '{').unwrap();
        }
        for (mark, text, want) in [
            ('%', "%(a)12d%% %-7.3f%+9s%(b%9s", 31),
            ('%', "%%(a %99d%%%4s)", 103),
            ('%', "%(%7s)5s%%(%8s", 13),
            ('{', "{:>12}{a:5.3}{{:4}} {{{:6}", 26),
            ('{', "{:{<12}{a[:}].b[0]:}^+7,}{a[:9}", 19),
        ] {
            assert_eq!(widths_within("", text, mark).unwrap(), want, "{text}");
        }
    }

    #[test]
    fn lines_that_are_filled_up_are_bounded_together() {
        for (name, code) in [
            ("indent", "('a\n' * 1000)|indent(1000000)"),
            ("indent", "('a\n' * 1000)|indent(first=true, width=1000000)"),
            ("tojson", "([1] * 1000)|tojson(indent=1000000)"),
            ("tojson", "[[[{'a': [1] * 100}]]]|tojson(indent=1000000)"),
        ] {
            let error = render(&format!("{{{{ {code} }}}}")).expect_err(code);
            let bound = format!("{name}: expected at most 67108864, found lines that are filled with");
            assert!(error.contains(&bound), "{code}: {error}");
        }
        assert_eq!(
            render("{{ [1, {'a': []}]|tojson(indent=1) }}").unwrap(),
            "[\n 1,\n {\n  \"a\": []\n }\n]"
        );
        assert_eq!(render("{{ ('a\n' * 1000)|indent(1000)|length }}").unwrap(), "1000999");
    }

    #[test]
    fn what_is_divided_by_nothing_is_an_error() {
        for code in ["1 is divisibleby 0", "1.5 is divisibleby 0.0", "false is divisibleby false"] {
            assert!(render(&format!("{{{{ {code} }}}}")).unwrap_err().contains("modulo by zero"), "{code}");
        }
        let sound =
            "{{ [6 is divisibleby 3, 7 is divisibleby 3, 7.5 is divisibleby 2.5, '%s' is divisibleby 1] }}";
        assert_eq!(render(sound).unwrap(), "[True, False, True, False]");
    }

    #[test]
    fn loops_without_an_end_in_sight_are_an_error() {
        let nested = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        let error = render(nested).unwrap_err();
        assert!(error.contains("the template takes more than 50000000 steps"), "{error}");
    }
}
