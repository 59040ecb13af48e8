//! Translation of Jinja syntax that the engine does not support into syntax that it does.

use super::code::{WORDS, brackets, is_of_word, parts, text_length, word};
use super::memory::KEPT;
use super::nothing::{IN_TURN, TEXT};
use super::operators::{inner, replaced};
use super::tags::{code_end, comment_end, opening, raw_end};
use std::collections::HashSet;
use std::ops::Range;

/// Filter for Python's `%`: a text that is formatted, or a remainder.
pub(super) const PERCENT: &str = "percent_of_text";

/// Filter for slices.
pub(super) const IN_STEPS: &str = "in_steps";

/// Most operators of one tag, and most `elif`: each takes the engine one call deeper, and nothing else stops it before the end of
/// its stack.
const DEEPEST: usize = 500;

/// A template in the engine's syntax, and the bytes of text between the tags of each of its bodies: of loops, macros and
/// blocks, without those of bodies in them. The first is the template itself.
///
/// - Line ends are `\n`, as Jinja's lexer makes them.
/// - `{% generation %}` … `{% endgeneration %}`, with which transformers marks what an assistant said, is a scope.
/// - `text % value` formats, as `number % value` is a remainder: which of the two is seen when it is computed.
/// - What a loop goes over is checked, for the engine goes over null; so is what a namespace is given.
/// - What is written more than once, as a macro is, says so each time, to be counted; a loop says it for all of its rounds.
/// - Slices are a filter: those of the engine that go backwards do not stop before the first element, and not at all in an empty
///   list, and it has slices of null.
/// - Comparisons by order and `in` are filters, and what `~` joins is made texts by one.
///
/// # Errors
/// What there is too much of, for a tag that goes deeper, or a template with more `elif`, than any of a conversation.
///
/// # Source
/// Jinja 3.1, `lexer.py`, `newline_re`; transformers 4.51 and 5.24, `AssistantTracker` in `chat_template_utils.py`.
pub(super) fn prepared(source: &str) -> Result<(String, Vec<usize>), String> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    let (mut branches, mut bodies, mut after_trim) =
        (0, Bodies { open: vec![(0, false)], bytes: vec![0] }, false);
    while let Some(at) = opening(rest) {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        // Blanks that a tag takes away are in no output.
        let shown = if after_trim { before.trim_start() } else { before };
        bodies.add(if tag[2..].starts_with('-') { shown.trim_end() } else { shown });
        let length = match &tag[..2] {
            "{#" => comment_end(tag).map(|end| end + 2),
            opening => code_end(&tag[2..], if opening == "{%" { "%}" } else { "}}" }).map(|end| end + 4),
        };
        let (tag, behind) = tag.split_at(length.unwrap_or(tag.len()));
        rest = behind;
        // Not what controls the blanks before it.
        after_trim = length.is_some() && tag.len() > 5 && tag[..tag.len() - 2].ends_with('-');
        if tag.starts_with("{#") {
            out.push_str(tag);
            continue;
        }
        // Code without an end is parsed, too.
        let code = if length.is_some() { &tag[2..tag.len() - 2] } else { &tag[2..] };
        branches += usize::from(code.trim_start_matches(['-', '+']).trim_start().starts_with("elif"));
        for (what, count) in [("operators in one tag", depth(code)), ("elif", branches)] {
            if count > DEEPEST {
                return Err(format!("expected at most {DEEPEST} {what}, found {count}"));
            }
        }
        if length.is_none() {
            out.push_str(tag);
        } else {
            let (rounds, again) = bodies.pass(tag);
            out.push_str(&set_apart(replaced(&formatted(&stored(&checked(&sliced(block(tag))?, rounds))))));
            if let Some(body) = again {
                // Blanks behind it are controlled as they were.
                let control = ["-%}", "+%}"].into_iter().find(|end| tag.ends_with(end)).unwrap_or("%}");
                out.push_str(&format!("{{% if {body}|{TEXT} %}}{{% endif {control}"));
            }
        }
        if length.is_some() && tag.starts_with("{%") && words(tag) == "raw" {
            let (text, behind) = rest.split_at(raw_end(rest).unwrap_or(rest.len()));
            out.push_str(text);
            bodies.add(text);
            rest = behind;
        }
    }
    bodies.add(rest);
    Ok((out + rest, bodies.bytes))
}

/// What may be written more than once: bodies of loops, macros and blocks.
struct Bodies {
    /// Those that begin before a place and do not end there, and whether each is a loop that calls itself.
    open: Vec<(usize, bool)>,
    /// Text in each.
    bytes: Vec<usize>,
}

impl Bodies {
    fn add(&mut self, text: &str) {
        let (body, _) = self.open.last().expect("the template is never closed");
        self.bytes[*body] += text.len();
    }

    /// Goes past a tag, and says of which body each round counts behind it, and which one counts there each time.
    fn pass(&mut self, tag: &str) -> (Option<usize>, Option<usize>) {
        let words = words(tag);
        let name = if tag.starts_with("{%") { &words[..word(words)] } else { "" };
        let recursive = name == "for" && words.ends_with("recursive");
        match name {
            "for" | "macro" | "call" | "block" => {
                let body = self.bytes.len();
                self.bytes.push(0);
                self.open.push((body, recursive));
                if name == "for" && !recursive { (Some(body), None) } else { (None, Some(body)) }
            }
            // It may be called for nothing, and writes what stands there.
            "else" => (None, self.open.last().filter(|(_, recursive)| *recursive).map(|(body, _)| *body)),
            "endfor" | "endmacro" | "endcall" | "endblock" if self.open.len() > 1 => {
                self.open.pop();
                (None, None)
            }
            _ => (None, None),
        }
    }
}

/// What stands in a tag, without what controls the blanks around it.
fn words(tag: &str) -> &str {
    tag[2..tag.len() - 2].trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim()
}

/// Most calls in each other for which code may ask: its operators and brackets outside of texts, without those of elements before
/// it in the same brackets.
fn depth(code: &str) -> usize {
    // By brackets that are open: what stands there since the last comma.
    let (mut at, mut counts, mut sum, mut most) = (0, vec![0], 0, 0);
    while let Some(c) = code[at..].chars().next() {
        let length = match c {
            '\'' | '"' => text_length(&code[at..]).unwrap_or(code.len() - at),
            _ if is_of_word(c) => word(&code[at..]),
            _ => c.len_utf8(),
        };
        let operator = match c {
            '\'' | '"' | ',' | ':' | ')' | ']' | '}' => false,
            _ if is_of_word(c) => WORDS.contains(&&code[at..at + length]),
            _ => !c.is_whitespace(),
        };
        if operator {
            *counts.last_mut().expect("the outermost is never closed") += 1;
            sum += 1;
            most = most.max(sum);
        }
        match c {
            '(' | '[' | '{' => counts.push(0),
            ')' | ']' | '}' if counts.len() > 1 => sum -= counts.pop().unwrap_or(0),
            ',' => sum -= std::mem::take(counts.last_mut().expect("the outermost is never closed")),
            _ => {}
        }
        at += length;
    }
    most
}

/// A tag without a name that the engine does not know.
fn block(tag: &str) -> String {
    let words = words(tag);
    match words {
        "generation" if tag.starts_with("{%") => tag.replacen(words, "with", 1),
        "endgeneration" if tag.starts_with("{%") => tag.replacen(words, "endwith", 1),
        _ => tag.to_owned(),
    }
}

/// The beginning of a loop, with a check of what it goes over, and the number of the body of which each round counts.
fn checked(tag: &str, rounds: Option<usize>) -> String {
    let Some(Range { start, end }) = gone_over(tag) else { return tag.to_owned() };
    let body = rounds.map_or(String::new(), |body| format!("({body})"));
    format!("{}({})|{IN_TURN}{body}{}", &tag[..start], &tag[start..end], &tag[end..])
}

/// What `set` gives, in brackets where it is a tuple, and behind a check where it is given to a namespace.
fn stored(tag: &str) -> String {
    let Some((target, value)) = set(tag) else { return tag.to_owned() };
    let is_tuple = parts(&tag[value.clone()], ',').len() > 1;
    let behind = if is_tuple { String::new() } else { format!("|{KEPT}") };
    if !is_tuple && !tag[target].contains('.') {
        return tag.to_owned();
    }
    format!("{}({}){behind}{}", &tag[..value.start], &tag[value.clone()], &tag[value.end..])
}

/// Name for what `set` gives to a name that stands in it, too: in a macro the engine takes that for its own from there on.
const GIVEN: &str = "value_of_this_set__";

/// `set` in two steps, where what it gives mentions what is given it.
fn set_apart(tag: String) -> String {
    let Some((target, value)) = set(&tag) else { return tag };
    let names =
        |code: &Range<usize>| tag[code.clone()].split(|c| !is_of_word(c)).filter(|name| !name.is_empty());
    let given: HashSet<&str> = names(&target).collect();
    if tag[target.clone()].contains('.') || !names(&value).any(|name| given.contains(name)) {
        return tag;
    }
    let (before, code, behind) = (&tag[..target.start], &tag[value.clone()], &tag[value.end..]);
    format!("{before} {GIVEN} = {code} %}}{{% set{}= {GIVEN}{behind}", &tag[target])
}

/// Where a `set` has what is given a value, and the value.
fn set(tag: &str) -> Option<(Range<usize>, Range<usize>)> {
    let (begin, end) = inner(tag);
    let (target, value) = tag[begin..end].split_once('=')?;
    let is_target = target.chars().all(|c| is_of_word(c) || c.is_whitespace() || ".,()".contains(c));
    let start = begin + target.len() + 1 + blanks(value);
    let sets = tag.starts_with("{%") && tag[..begin].ends_with("set") && is_target;
    sets.then_some((begin..begin + target.len(), start..start + value.trim().len()))
}

/// Where a tag says what a loop goes over.
fn gone_over(tag: &str) -> Option<Range<usize>> {
    let mut end = tag.strip_suffix("%}")?.trim_end_matches(['-', '+']).len();
    let (mut at, mut depth, mut words, mut start) = (2, 0, 0, None);
    while at < end {
        let c = tag[at..].chars().next()?;
        let mut length = c.len_utf8();
        match c {
            '\'' | '"' => length = text_length(&tag[at..])?,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ if is_of_word(c) => {
                length = word(&tag[at..]);
                match (&tag[at..at + length], start) {
                    (first, _) if words == 0 && first != "for" => return None,
                    ("in", None) if depth == 0 => start = Some(at + length + blanks(&tag[at + length..])),
                    ("if" | "recursive", Some(_)) if depth == 0 => end = at,
                    _ => {}
                }
                words += 1;
            }
            _ => {}
        }
        at += length;
    }
    let start = start?;
    Some(start..start + tag.get(start..end)?.trim_end().len())
}

/// Code with a filter in place of each slice.
///
/// # Errors
/// If there are more of them than templates have: the code is gone through for each.
fn sliced(mut tag: String) -> Result<String, String> {
    for count in 0.. {
        let Some((operand, slice)) = stepped(&tag) else { break };
        if count == DEEPEST {
            return Err(format!("expected at most {DEEPEST} slices in one tag, found more"));
        }
        let parts = parts(&tag[slice.start + 1..slice.end - 1], ':');
        let args = parts.iter().map(|part| if part.is_empty() { "none" } else { part });
        let args = args.collect::<Vec<_>>().join(", ");
        let filter = format!("({}|{IN_STEPS}({args}))", &tag[operand..slice.start]);
        tag.replace_range(operand..slice.end, &filter);
    }
    Ok(tag)
}

/// Where the first such slice stands, and where what it is a slice of begins.
fn stepped(tag: &str) -> Option<(usize, Range<usize>)> {
    let (mut at, mut in_value) = (2, false);
    // Where the value begins that stands here, by brackets.
    let mut begins = vec![at];
    while at < tag.len() - 2 {
        let c = tag[at..].chars().next()?;
        let depth = begins.len() - 1;
        let mut length = c.len_utf8();
        match c {
            '\'' | '"' => length = text_length(&tag[at..])?,
            _ if is_of_word(c) => length = word(&tag[at..]),
            _ => {}
        }
        let starts = !in_value && (is_of_word(c) || matches!(c, '\'' | '"' | '(' | '[' | '{'));
        if starts {
            begins[depth] = at;
        }
        match c {
            '[' if in_value => {
                let slice = at..at + brackets(&tag[at..]);
                let parts = parts(&tag[at + 1..slice.end - 1], ':');
                if parts.len() > 1 {
                    return Some((begins[depth], slice));
                }
                begins.push(at);
                in_value = false;
            }
            '(' | '[' | '{' => {
                begins.push(at);
                in_value = false;
            }
            ')' | ']' | '}' => {
                if depth > 0 {
                    begins.pop();
                }
                in_value = true;
            }
            '\'' | '"' => in_value = true,
            _ if is_of_word(c) => in_value = !OPERATORS.contains(&&tag[at..at + length]),
            '.' => {}
            _ if c.is_whitespace() => {}
            _ => in_value = false,
        }
        at += length;
    }
    None
}

/// Words between values.
const OPERATORS: [&str; 8] = ["and", "or", "not", "in", "is", "if", "elif", "else"];

/// Code with a filter in place of each `%` that may format.
fn formatted(tag: &str) -> String {
    // Replacements for byte ranges; operands may contain operators themselves.
    let mut edits = Vec::new();
    for operator in operators(tag) {
        let behind = operator + 1 + blanks(&tag[operator + 1..]);
        let length = operand_length(&tag[behind..]);
        let end = behind + length;
        // A power binds closer than a remainder, a filter closer than a power.
        if length > 0 && !tag[end..].trim_start().starts_with("**") {
            edits.push((operator..behind, format!("|{PERCENT}(")));
            edits.push((end..end, ")".to_owned()));
        }
    }
    edits.sort_by_key(|(range, _)| range.start);
    let (mut code, mut at) = (String::with_capacity(tag.len()), 0);
    for (range, text) in edits {
        code.push_str(&tag[at..range.start]);
        code.push_str(&text);
        at = range.end;
    }
    code + &tag[at..]
}

/// What stands before a place in code.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A literal text.
    Text,
    /// Another value that may be a text.
    Value,
    /// A number, or no value.
    Other,
}

/// Positions of `%` after an expression that may be a string. After products, which bind like remainders and not like
/// filters, only string literals are considered.
fn operators(code: &str) -> Vec<usize> {
    let (mut at, mut before, mut found) = (2, Before::Other, Vec::new());
    // Whether what comes is in a product, by brackets.
    let mut product = vec![false];
    let inner: Range<usize> = 2..code.len() - 2;
    while at < inner.end {
        let Some(c) = code[at..].chars().next() else { break };
        let depth = product.len() - 1;
        let length = match c {
            '\'' | '"' => text_length(&code[at..]).unwrap_or(1),
            _ if is_of_word(c) => word(&code[at..]),
            _ => c.len_utf8(),
        };
        before = match c {
            '\'' | '"' => Before::Text,
            _ if is_of_word(c) => {
                let word = &code[at..at + length];
                let operator = OPERATORS.contains(&word);
                product[depth] &= !operator;
                if operator || c.is_ascii_digit() { Before::Other } else { Before::Value }
            }
            '%' => {
                if before == Before::Text || before == Before::Value && !product[depth] {
                    found.push(at);
                } else {
                    product[depth] = true;
                }
                Before::Other
            }
            '(' | '[' | '{' => {
                product.push(false);
                Before::Other
            }
            ')' | ']' | '}' => {
                if depth > 0 {
                    product.pop();
                }
                Before::Value
            }
            _ if c.is_whitespace() => before,
            _ => {
                product[depth] = matches!(c, '*' | '/') || product[depth] && matches!(c, '.' | '|');
                Before::Other
            }
        };
        at += length;
    }
    found
}

fn blanks(code: &str) -> usize {
    code.len() - code.trim_start().len()
}

/// Bytes of a value with all that binds to it: a literal, a name or brackets, then members, calls and filters.
fn operand_length(code: &str) -> usize {
    let mut at = usize::from(code.starts_with(['-', '+']));
    at += match code[at..].chars().next() {
        Some('\'' | '"') => text_length(&code[at..]).unwrap_or(0),
        Some('(' | '[' | '{') => brackets(&code[at..]),
        _ => word(&code[at..]),
    };
    loop {
        let rest = &code[at..];
        let next = blanks(rest);
        at += match rest[next..].chars().next() {
            Some('(' | '[') if next == 0 => brackets(rest),
            Some('.') if next == 0 => 1 + word(&rest[1..]),
            Some('|') => {
                let name = next + 1 + blanks(&rest[next + 1..]);
                name + word(&rest[name..])
            }
            _ => return at,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_rewritten_and_texts_are_not() {
        for (source, want) in [
            ("a\r\nb\rc", "a\nb\nc"),
            ("{%- generation -%}x{% endgeneration %}", "{%- with -%}x{% endwith %}"),
            (
                "{{ '{% generation %}' }}{# {% generation %} #}",
                "{{ '{% generation %}' }}{# {% generation %} #}",
            ),
            ("{{ '%s-%d' % (a, 2) }}", "{{ '%s-%d' |percent_of_text(((a, 2)|made)) }}"),
            (
                "{{ '%s' % a.b[0]|upper ~ 'c' % 'd' }}",
                "{{ '%s' |percent_of_text(a.b[0]|upper)|joined('c' |percent_of_text('d')) }}",
            ),
            ("{{ 7 % 2 }}{{ 3 * x['a'] % 2 }}%", "{{ 7 % 2 }}{{ 3|multiplied(x['a']) % 2 }}%"),
            ("{% if x['a'] % 2 == 0 -%}", "{% if x['a'] |percent_of_text(2) == 0 -%}"),
            ("{{ (a ~ b) % c % d }}", "{{ (a|joined(b)) |percent_of_text(c) |percent_of_text(d) }}"),
            (
                "{{ 2 * f(a % b) + a % b ** 2 }}",
                "{{ 2|multiplied(f(a |percent_of_text(b)))|plus(a % b ** 2) }}",
            ),
            ("{% set ns.a = b in c -%}", "{% set ns.a = (b|compared('in', c))|kept -%}"),
            ("{%set a = b, c%}{% set a|f('=') %}", "{%set a = ((b, c)|made)%}{% set a|f('=') %}"),
            (
                "{%- set a, b = b, c -%}",
                "{%- set value_of_this_set__ = ((b, c)|made) %}{% set a, b = value_of_this_set__ -%}",
            ),
            (
                "{%- macro f(a, b=1) +%}\n{% for a in b recursive -%}",
                "{%- macro f(a, b=1) +%}{% if 1|text_again %}{% endif +%}\n{% for a in (b)|in_turn recursive -%}{% if 2|text_again %}{% endif -%}",
            ),
            ("{% if '%}' == a %}{{ 'unfinished", "{% if '%}' == a %}{{ 'unfinished"),
            (
                "{%- for a, b in c.d('in')[1:] -%}",
                "{%- for a, b in ((c.d('in')|in_steps(1, none)))|in_turn(1) -%}",
            ),
            (
                "{% for a in (b if c) if a in d recursive %}",
                "{% for a in ((b if c))|in_turn if a|compared('in', d) recursive %}{% if 1|text_again %}{% endif %}",
            ),
            (
                "{% for a in b.c()[::-1] %}{% form in c %}",
                "{% for a in ((b.c()|in_steps(none, none, -1)))|in_turn(1) %}{% form in c %}",
            ),
            (
                "{{ -a['[::-1]'][b[1:]: 2 :-2].c + d[::2] }}",
                "{{ (-(a['[::-1]']|in_steps((b|in_steps(1, none)), 2, -2)).c)|plus((d|in_steps(none, none, 2))) }}",
            ),
            (
                "{{ not [a][::-1][::-1] }}",
                "{{ not ((([a]|made)|in_steps(none, none, -1))|in_steps(none, none, -1)) }}",
            ),
            (
                "{% raw %}{% for a in b %}{% endraw %}{{ a % b }}",
                "{% raw %}{% for a in b %}{% endraw %}{{ a |percent_of_text(b) }}",
            ),
            (
                "{% raw %}{{ a % b ' {%- endraw %}{{ a % b }}",
                "{% raw %}{{ a % b ' {%- endraw %}{{ a |percent_of_text(b) }}",
            ),
        ] {
            assert_eq!(prepared(source).unwrap().0, want);
        }
    }

    /// On a stack of 2 MB, a thread's by default and less than that of a program.
    #[test]
    fn what_would_take_the_engine_too_deep_is_refused_and_what_is_let_through_is_rendered() {
        let check = |before: &str, again: &str, after: &str, longest: usize, renders: bool| {
            let render = |count: usize| {
                let source = [before, &again.repeat(count), after].concat();
                let template = crate::ChatTemplate::new(&source)?;
                template.render(&serde_json::json!([]), None, crate::GenerationPrompt::Omit)
            };
            let refused = render(longest + 1).unwrap_err().to_string();
            assert!(refused.contains(&format!("expected at most {DEEPEST}")), "{again}: {refused}");
            match render(longest) {
                Ok(_) => assert!(renders, "{again}"),
                Err(error) => {
                    assert!(!renders && !error.to_string().contains("expected at most"), "{again}: {error}");
                }
            }
        };
        let chains = move || {
            // What the values do not allow.
            let fails = [".a", "[0]", "()"];
            for (before, again, after) in [
                ("{{ ", "not ", "1 }}"),
                ("{{ ", "-", "1 }}"),
                ("{{ 1", "|int", " }}"),
                ("{{ 'a'", "~''", " }}"),
                ("{{ 1", "**1", " }}"),
                ("{{ 1", " and 1", " }}"),
                ("{{ 1", "<2", " }}"),
                ("{{ messages", ".a", " }}"),
                ("{{ messages", "[0]", " }}"),
                ("{{ messages", "()", " }}"),
                ("{{ 1", " is odd", " }}"),
                ("{{ 1", " if 1", " }}"),
            ] {
                check(before, again, after, DEEPEST / depth(again), !fails.contains(&again));
            }
            check("{% if 0 %}", "{% elif 1 %}", "{% endif %}", DEEPEST, true);
            check("{{ '}}' ", "not ", "", DEEPEST, false);
        };
        std::thread::Builder::new().stack_size(2 << 20).spawn(chains).unwrap().join().unwrap();
    }

    #[test]
    fn elements_beside_each_other_are_not_deep() {
        let code = |again: &str, count: usize| format!("{{% set t = [{}] %}}", again.repeat(count));
        for again in ["('k', 0), ", "{'a': -1.5, 'b': [1 - 2]}, ", "f(-a, not b) + 1, "] {
            assert_eq!(depth(&code(again, 600)), depth(&code(again, 1)), "{again}");
        }
        assert_eq!(depth("[1, [2, -(3)]]"), 4);
    }

    #[test]
    fn a_template_of_many_tags_is_read_once() {
        let source = "{% if 1 %}{% endif %}".repeat(100_000);
        assert_eq!(prepared(&source).unwrap().0.len(), source.len());
        let many = |name: &str| vec![name; 50_000].join(", ");
        let set = prepared(&format!("{{% set {} = {}, a %}}", many("a"), many("b"))).unwrap().0;
        assert!(set.contains("%}{% set a, a,") && set.ends_with(" a = value_of_this_set__ %}"));
        // Blanks that tags take away are not counted: 'a', 'b ' and the line's end are.
        assert_eq!(prepared("a {%- if x -%}  b {% endif %}\n").unwrap().1, [4]);
        let nested =
            "a{% for x in y %}bc{% macro m() %}def{% for x in y %}{% endfor %}g{% endmacro %}{% endfor %}h";
        assert_eq!(prepared(nested).unwrap().1, [2, 2, 4, 0]);
    }
}
