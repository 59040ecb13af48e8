//! Case conversion of Python's `str`, including title case, which Rust's standard library does not have.

/// `str.capitalize`: the first character as in a title, all others lower.
///
/// ```
/// assert_eq!(ms_text::python_case::capitalize("ßEN ΟΔΟΣ"), "Ssen οδος");
/// ```
pub fn capitalize(text: &str) -> String {
    let Some(first) = text.chars().next() else { return String::new() };
    // Whether a sigma ends a word is decided by what stands before it, too.
    let lower = text.to_lowercase();
    let taken: usize = first.to_lowercase().map(char::len_utf8).sum();
    titled(first) + &lower[taken..]
}

/// `str.title`: letters that follow letters become lower case, all others title case.
///
/// ```
/// assert_eq!(ms_text::python_case::title("they're ǆ x1y"), "They'Re ǅ X1Y");
/// ```
pub fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c| !is_cased(c)).unwrap_or(rest.len());
        let taken = word.max(first.len_utf8());
        if is_cased(first) {
            out.push_str(&capitalize(&rest[..taken]));
        } else {
            out.push_str(&titled(first));
        }
        rest = &rest[taken..];
    }
    out
}

/// Whether Python calls a character cased: lower, upper, or a letter of titles.
fn is_cased(c: char) -> bool {
    c.is_lowercase()
        || c.is_uppercase()
        || matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ')
        || matches!(c as u32, 0x1F80..=0x1FAF | 0x1FBC | 0x1FCC | 0x1FFC)
}

/// A character at the beginning of a title.
///
/// # Source
/// The Unicode Character Database, `Simple_Titlecase_Mapping` and `SpecialCasing.txt`: what differs from capitals.
fn titled(c: char) -> String {
    let one = |code: u32| char::from_u32(code).map(String::from).unwrap_or_default();
    let upper: Vec<char> = c.to_uppercase().collect();
    match c {
        'Ǆ'..='ǆ' => "ǅ".to_owned(),
        'Ǉ'..='ǉ' => "ǈ".to_owned(),
        'Ǌ'..='ǌ' => "ǋ".to_owned(),
        'Ǳ'..='ǳ' => "ǲ".to_owned(),
        // Georgian has capitals only for whole words.
        '\u{10D0}'..='\u{10FA}' | '\u{10FD}'..='\u{10FF}' => c.to_string(),
        // A iota that stands below stays there.
        '\u{1F80}'..='\u{1FAF}' => one(c as u32 | 8),
        '\u{1FB3}' | '\u{1FBC}' => one(0x1FBC),
        '\u{1FC3}' | '\u{1FCC}' => one(0x1FCC),
        '\u{1FF3}' | '\u{1FFC}' => one(0x1FFC),
        '\u{1FB2}' | '\u{1FB4}' | '\u{1FB7}' | '\u{1FC2}' | '\u{1FC4}' | '\u{1FC7}' | '\u{1FF2}'
        | '\u{1FF4}' | '\u{1FF7}' => upper.iter().map(|&u| if u == 'Ι' { '\u{345}' } else { u }).collect(),
        'ŉ' => upper.iter().collect(),
        // Ligatures: one capital.
        _ => match &upper[..] {
            [first, rest @ ..] => {
                std::iter::once(*first).chain(rest.iter().flat_map(|r| r.to_lowercase())).collect()
            }
            [] => String::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of Python 3.11.
    #[test]
    fn titles_are_pythons() {
        for (c, want) in [
            ('ß', "Ss"),
            ('ﬃ', "Ffi"),
            ('ŉ', "ʼN"),
            ('ǰ', "J\u{30c}"),
            ('ǉ', "ǈ"),
            ('ა', "ა"),
            ('ᾀ', "ᾈ"),
            ('ᾷ', "Α\u{342}\u{345}"),
            ('ῴ', "Ώ\u{345}"),
            ('ῼ', "ῼ"),
            ('ﬗ', "Մխ"),
            ('ΐ', "Ι\u{308}\u{301}"),
            ('5', "5"),
            ('é', "É"),
        ] {
            assert_eq!(titled(c), want, "{c}");
        }
        assert_eq!(capitalize("ǆINDO"), "ǅindo");
        assert_eq!(capitalize(""), "");
        assert_eq!(title("hELLO wORLD-of ΟΔΟΣ 3d"), "Hello World-Of Οδος 3D");
    }
}
