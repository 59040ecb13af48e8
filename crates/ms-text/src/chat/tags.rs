//! Where tags, comments and raw text begin and end. The engine must find the same places: what it runs and the translation took
//! for a comment would be neither checked nor counted.
//!
//! # Source
//! minijinja 3.0.5, `compiler/lexer.rs`: `find_start_marker_memchr`, `handle_start_marker`, `skip_basic_tag`; as Jinja 3.1.

use super::code::text_length;

/// Where the first tag begins.
pub(super) fn opening(text: &str) -> Option<usize> {
    let mut places = text.match_indices('{').map(|(at, _)| at);
    places.find(|at| matches!(text.as_bytes().get(at + 1), Some(b'%' | b'{' | b'#')))
}

/// Where code ends: the first `end` outside of texts and braces.
pub(super) fn code_end(code: &str, end: &str) -> Option<usize> {
    let (mut at, mut depth) = (0, 0);
    while let Some(c) = code[at..].chars().next() {
        match c {
            '\'' | '"' => {
                at += text_length(&code[at..])?;
                continue;
            }
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            _ if code[at..].starts_with(end) => return Some(at),
            _ => {}
        }
        at += c.len_utf8();
    }
    None
}

/// Where the `#}` of a comment stands: behind its `{#` and what controls blanks, of which neither is part of it.
pub(super) fn comment_end(comment: &str) -> Option<usize> {
    let begin = 2 + usize::from(comment[2..].starts_with(['-', '+']));
    comment[begin..].find("#}").map(|end| begin + end)
}

/// Where the tag that ends raw text begins.
pub(super) fn raw_end(text: &str) -> Option<usize> {
    text.match_indices("{%").map(|(at, _)| at).find(|at| {
        let tag = &text[at + 2..];
        let name = tag.strip_prefix(['-', '+']).unwrap_or(tag).trim_ascii_start().strip_prefix("endraw");
        name.map(str::trim_ascii_start)
            .is_some_and(|end| end.strip_prefix(['-', '+']).unwrap_or(end).starts_with("%}"))
    })
}

#[cfg(test)]
mod tests {
    use crate::{ChatTemplate, GenerationPrompt};

    fn render(source: &str) -> Result<String, String> {
        let template = ChatTemplate::new(source).map_err(|e| e.to_string())?;
        template.render(&serde_json::json!([]), None, GenerationPrompt::Omit).map_err(|e| e.to_string())
    }

    #[test]
    fn comments_and_raw_text_end_where_jinjas_do() {
        for (source, want) in [
            ("a{# b #}c{#}d#}e{#-#}  f", "ace  f"),
            ("a {#- b -#} c {#+ d +#}e", "ac e"),
            ("{#}{% raw %}#}{{ 1 + 1 }}{% raw %}{{ x }}{% endraw %}", "2{{ x }}"),
            ("{% raw %}{% endrawx %}{# {% endraw %}{{ 1 + 1 }}{# #}", "{% endrawx %}{# 2"),
            ("{% raw %}{%--endraw %}{%- endraw +%}x", "{%--endraw %}x"),
        ] {
            assert_eq!(render(source).as_deref(), Ok(want), "{source}");
        }
        for source in ["{#}", "{#-}", "{% raw %}{% endrawx %}", "{% raw %}{%\u{a0}endraw %}"] {
            assert!(render(source).is_err(), "{source}");
        }
    }

    #[test]
    fn what_looks_like_a_comment_or_raw_text_is_checked_and_counted() {
        // The engine has no end of these, or of its stack.
        let wrong = [
            "{% for x in [1] %}{{ loop.cycle() }}{% endfor %}".to_owned(),
            format!("{{{{ {}1 }}}}", "-".repeat(20000)),
        ];
        let (text, blanks) = ("x".repeat(1 << 10), " ".repeat(1 << 10));
        for wrong in wrong {
            for source in [
                format!("{{#}}{{% raw %}}#}}{wrong}{{% raw %}}{{% endraw %}}"),
                format!("{{% raw %}}{{% endrawx %}}{{# {{% endraw %}}{wrong}{{# #}}"),
            ] {
                assert!(render(&source).is_err(), "{source:.80}");
            }
        }
        for (inside, written) in [
            ("{#}{% for j in k %}#}", &text),
            ("{% for j in [] %}{#}{% endfor %}#}{% endfor %}", &text),
            ("{% raw %}{% endrawx %}{% for j in k %}{% endraw %}", &text),
            ("{#-#}", &blanks),
        ] {
            let source = format!("{{% for i in range(99999) %}}{inside}{written}{{% endfor %}}");
            let error = render(&source).expect_err(inside);
            assert!(error.contains("bytes in all, found more"), "{inside}: {error:.300}");
        }
    }
}
