//! How pandas parses the cells of a CSV column, and prints them.
//!
//! # Source
//! pandas 2.2, `_libs/parsers.pyx` (`_convert_tokens`: whole numbers, numbers, truth values, else text) and
//! `_libs/src/parser/tokenizer.c` (`str_to_int64`, `str_to_uint64`, `precise_xstrtod`).

use ms_text::python_json::str_of;

/// Cells that are missing, printed as `nan`.
const MISSING: [&str; 19] = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A",
    "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
];

/// The cells of a column as `str` of what pandas takes them for.
pub(crate) fn printed(cells: &[String]) -> Vec<String> {
    let raw = cells;
    let cells: Vec<Option<&str>> =
        raw.iter().map(|c| Some(c.as_str()).filter(|c| !MISSING.contains(c))).collect();
    let texts = || cells.iter().map(|c| c.unwrap_or("nan").to_owned()).collect();
    match whole_numbers(&cells) {
        Whole::Numbers(numbers) => return numbers,
        // Then nothing is parsed, not even missing values.
        Whole::TooLarge => return raw.to_owned(),
        Whole::Not => {}
    }
    let all = |of: fn(&str) -> Option<String>| -> Option<Vec<String>> {
        cells.iter().map(|c| c.map_or_else(|| Some("nan".to_owned()), of)).collect()
    };
    all(|c| number(c).map(float_text)).or_else(|| all(truth)).unwrap_or_else(texts)
}

/// What a column is as one of whole numbers.
enum Whole {
    Numbers(Vec<String>),
    /// Some exceed 64 bits, or 63 bits together with negative or missing ones: text.
    TooLarge,
    Not,
}

fn whole_numbers(cells: &[Option<&str>]) -> Whole {
    let mut numbers = Vec::new();
    for cell in cells.iter().flatten() {
        match digits(cell).map(|(negative, digits)| signed(negative, digits)) {
            None => return Whole::Not,
            Some(None) => return unsigned(cells),
            Some(Some(n)) => numbers.push(n),
        }
    }
    if numbers.len() == cells.len() {
        return Whole::Numbers(numbers.iter().map(ToString::to_string).collect());
    }
    // Beside what is missing they become numbers that have a place for it.
    let mut numbers = numbers.into_iter();
    #[allow(clippy::cast_precision_loss)] // as pandas does
    let text = |cell: &Option<&str>| {
        cell.and_then(|_| numbers.next()).map_or("nan".into(), |n| float_text(n as f64))
    };
    Whole::Numbers(cells.iter().map(text).collect())
}

fn unsigned(cells: &[Option<&str>]) -> Whole {
    let (mut numbers, mut other) = (Vec::new(), false);
    for cell in cells {
        let Some(cell) = cell else {
            other = true;
            continue;
        };
        match digits(cell) {
            None if !cell.trim_start().starts_with('-') => return Whole::Not,
            None | Some((true, _)) => other = true,
            Some((false, digits)) => match digits.parse::<u64>() {
                Ok(n) => numbers.push(n.to_string()),
                Err(_) => return Whole::TooLarge,
            },
        }
    }
    if other { Whole::TooLarge } else { Whole::Numbers(numbers) }
}

/// Sign (true: negative) and digits of a whole number between white space.
fn digits(cell: &str) -> Option<(bool, &str)> {
    let cell = cell.trim_matches(is_space);
    let digits = cell.strip_prefix(['-', '+']).unwrap_or(cell);
    let whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    whole.then_some((cell.starts_with('-'), digits))
}

fn signed(negative: bool, digits: &str) -> Option<i64> {
    if negative { format!("-{digits}").parse().ok() } else { digits.parse().ok() }
}

/// C's `isspace`.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

/// A number between white space: seventeen digits times a power of ten, or over one, in f64.
fn number(cell: &str) -> Option<f64> {
    let word = cell.strip_prefix(['-', '+']).unwrap_or(cell);
    if word.eq_ignore_ascii_case("inf") || word.eq_ignore_ascii_case("infinity") {
        return Some(if cell.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY });
    }
    let cell = cell.trim_matches(is_space);
    let unsigned = cell.strip_prefix(['-', '+']).unwrap_or(cell);
    let sign = if cell.starts_with('-') { -1.0 } else { 1.0 };
    let (mantissa, power) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, power)) => {
            let (negative, digits) = digits(power).filter(|_| power.trim_matches(is_space) == power)?;
            let power: i64 = digits.parse().unwrap_or(i64::from(u16::MAX)).min(i64::from(u16::MAX));
            (mantissa, if negative { -power } else { power })
        }
        None => (unsigned, 0),
    };
    let (whole, behind) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = whole.bytes().chain(behind.bytes());
    if all.clone().next().is_none() || !all.clone().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // Seventeen digits count, zeros before them too; of those that do not, digits before the point move it.
    let kept = all.clone().count().min(17);
    let value = all.take(kept).fold(0.0, |n, b| n * 10.0 + f64::from(b - b'0'));
    let power = power + whole.len() as i64 - kept as i64;
    let ten = |n: i64| format!("1e{n}").parse::<f64>().expect("a power of ten");
    let value = match power {
        _ if value == 0.0 => 0.0,
        309.. => return None,
        0.. => value * ten(power),
        -308..0 => value / ten(-power),
        _ => value / ten(-308 - power) / ten(308),
    };
    // A value that overflows is not treated as a number.
    value.is_finite().then_some(sign * value)
}

/// A number as Python prints it.
pub(crate) fn float_text(value: f64) -> String {
    match serde_json::Number::from_f64(value) {
        Some(number) => str_of(&number.into()),
        None => if value < 0.0 { "-inf" } else { "inf" }.to_owned(),
    }
}

fn truth(cell: &str) -> Option<String> {
    match cell {
        "True" | "TRUE" | "true" => Some("True".to_owned()),
        "False" | "FALSE" | "false" => Some("False".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::printed;

    /// `[str(v) for v in pandas.read_csv(column, names=["x", "y"])["x"]]` of pandas 2.2.3.
    #[test]
    fn columns_are_printed_as_pandas_does() {
        let cases: &[(&[&str], &[&str])] = &[
            (&["7", "007"], &["7", "7"]),
            (&["1.50", "2"], &["1.5", "2.0"]),
            (&["1", "", "3"], &["1.0", "nan", "3.0"]),
            (&["TRUE", "false"], &["True", "False"]),
            (&["True", "NA"], &["True", "nan"]),
            (&["True", "1"], &["True", "1"]),
            (&["1e3", "4"], &["1000.0", "4.0"]),
            (&["-0", "3"], &["0", "3"]),
            (&["-0.0", "3.25"], &["-0.0", "3.25"]),
            (&["inf", "-Infinity", "1"], &["inf", "-inf", "1.0"]),
            (&["1,000", "2"], &["1,000", "2"]),
            (&["12345678901234567890", "1"], &["12345678901234567890", "1"]),
            (&["12345678901234567890", "-1"], &["12345678901234567890", "-1"]),
            (&["12345678901234567890", ""], &["12345678901234567890", ""]),
            (&["12345678901234567890", "1.5"], &["1.2345678901234567e+19", "1.5"]),
            (&["123456789012345678901", "1"], &["123456789012345678901", "1"]),
            (&["1.5", "123456789012345678901"], &["1.5", "1.2345678901234568e+20"]),
            (&[" 7", "8 "], &["7", "8"]),
            (&["+5", "6"], &["5", "6"]),
            (&["1.", "2"], &["1.0", "2.0"]),
            (&[".5", "-.5"], &["0.5", "-0.5"]),
            (&["1e", "2"], &["1e", "2"]),
            (&["1e400", "2"], &["1e400", "2"]),
            (&["1e-400", "2"], &["0.0", "2.0"]),
            (&["0.1", "0.2", "0.30000000000000004"], &["0.1", "0.2", "0.3"]),
            (&["None", "null"], &["nan", "nan"]),
            (&["10%", "2"], &["10%", "2"]),
            (&["0x10", "1"], &["0x10", "1"]),
            (&["1e22", "1e16"], &["1e+22", "1e+16"]),
            (&["1e-5", "0.0001"], &["1e-05", "0.0001"]),
            (&["3.141592653589793238", "2"], &["3.1415926535897927", "2.0"]),
            (&["9007199254740993", ""], &["9007199254740992.0", "nan"]),
            (&["-9223372036854775808", "1"], &["-9223372036854775808", "1"]),
            (&["x", "1"], &["x", "1"]),
            (&["1_000", "2"], &["1_000", "2"]),
            (&["1 000", "2"], &["1 000", "2"]),
            (&["1E5", "2e+3"], &["100000.0", "2000.0"]),
            (&["nan", "1.5"], &["nan", "1.5"]),
            (&["1e+", "2"], &["1e+", "2"]),
            (&["-", "1"], &["-", "1"]),
            (&["+", "1"], &["+", "1"]),
            (&[".", " 1"], &[".", " 1"]),
            (&["-12345678901234567890", "x"], &["-12345678901234567890", "x"]),
            (&["12345678901234567890", "-x"], &["12345678901234567890", "-x"]),
            (&["1e5 ", "2"], &["100000.0", "2.0"]),
            (&["inf ", "2"], &["inf ", "2"]),
            (&["1 e5", "2"], &["1 e5", "2"]),
            (&["1e308", "2e308"], &["1e308", "2e308"]),
            (
                &["123456789012345678.5", "0.000000123456789012345678"],
                &["1.2345678901234568e+17", "1.23456789e-07"],
            ),
        ];
        for (cells, want) in cases {
            let cells: Vec<String> = cells.iter().map(|&c| c.to_owned()).collect();
            assert_eq!(printed(&cells), *want, "{cells:?}");
        }
    }
}
