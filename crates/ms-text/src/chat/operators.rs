//! Operators that the engine computes otherwise than Jinja: `~`, which writes floats, lists and dicts in its own way,
//! comparisons by order and `in`, which it makes of any two values, and `+` and `*`, whose memory it does not count.

use super::code::{WORDS, brackets, is_of_word, parts, text_length, word};
use super::memory::MADE;
use super::nothing::IN_TURN;

/// Filter for a comparison, or a chain of them: a value, then pairs of an operator and a value.
pub(super) const COMPARED: &str = "compared";

/// Filter for what `~` joins: a value, then others.
pub(super) const JOINED: &str = "joined";

/// Filter for `+`.
pub(super) const PLUS: &str = "plus";

/// Filter for `*`.
pub(super) const MULTIPLIED: &str = "multiplied";

/// Filter that hands on the list that `cycle` takes its values of, if it has some.
pub(super) const IN_CYCLE: &str = "in_cycle";

/// A tag with filters in place of comparisons by order and of `in`, `~`, `+` and `*`, and behind lists, tuples and dicts.
pub(super) fn replaced(tag: &str) -> String {
    let (begin, end) = inner(tag);
    let name = &tag[2..begin];
    match rewritten(&tag[begin..end], name.trim_start_matches(['-', '+']).trim_start()) {
        Some(code) => format!("{}{code}{}", &tag[..begin], &tag[end..]),
        None => tag.to_owned(),
    }
}

/// Where the expressions of a tag stand: behind its name, if it has one, and between the marks that control blanks.
pub(super) fn inner(tag: &str) -> (usize, usize) {
    let end = 2 + tag[2..tag.len() - 2].trim_end_matches(['-', '+']).len();
    let blanks = |at: usize| at + (tag[at..end].len() - tag[at..end].trim_start().len());
    let begin = 2 + (tag[2..end].len() - tag[2..end].trim_start_matches(['-', '+']).len());
    if tag.starts_with("{%") {
        let name = blanks(begin);
        (name + word(&tag[name..end]), end)
    } else {
        (begin, end)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Blank,
    Text,
    Word,
    Brackets,
    /// Brackets that are a list, a tuple or a dict of what is computed, unless they are what is given a value.
    Several,
    Symbol,
}

/// A piece of code; what stands in brackets is rewritten already.
struct Token {
    kind: Kind,
    code: String,
}

impl Token {
    fn is(&self, kind: Kind, code: &str) -> bool {
        self.kind == kind && self.code == code
    }

    /// Whether a value may end here.
    fn ends_value(&self) -> bool {
        match self.kind {
            Kind::Text | Kind::Brackets | Kind::Several => true,
            Kind::Word => !WORDS.contains(&&*self.code),
            Kind::Blank | Kind::Symbol => false,
        }
    }
}

/// Comparisons that are filters; with `==` and `!=` in a chain with others, those are, too.
const COMPARISONS: [&str; 6] = ["<", "<=", ">", ">=", "in", "not in"];

/// Code with other operators; `None` if brackets or texts do not end. The first `in` of a loop names what it goes over. `name`
/// is the tag's.
fn rewritten(code: &str, name: &str) -> Option<String> {
    if !code.contains(['<', '>', '~', '+', '*', '[', '{', '(']) && !code.contains("in") {
        return Some(code.to_owned());
    }
    let mut of_loop = name == "for";
    let mut out = String::with_capacity(code.len());
    let (mut segment, mut after_is) = (Vec::new(), false);
    let mut tokens = made(tokens(code)?, name).into_iter().peekable();
    while let Some(token) = tokens.next() {
        // The name of a test is none of the words, whatever it is; nor is a `not` before it.
        let named = after_is && token.kind == Kind::Word;
        after_is = match token.kind {
            Kind::Blank => after_is,
            Kind::Word => token.code == "is" || named && token.code == "not",
            _ => false,
        };
        let separates = match token.kind {
            Kind::Symbol => [",", ":", "="].contains(&&*token.code),
            Kind::Word if named => false,
            Kind::Word if token.code == "in" => std::mem::take(&mut of_loop),
            Kind::Word if token.code == "not" => {
                // `not in` compares.
                let blank = tokens.next_if(|next| next.kind == Kind::Blank);
                let compares = !segment.is_empty() && tokens.peek().is_some_and(|t| t.is(Kind::Word, "in"));
                if !compares {
                    out.push_str(&compared(std::mem::take(&mut segment)));
                    out.push_str("not");
                } else {
                    segment.push(token);
                }
                match (compares, blank) {
                    (true, blank) => segment.extend(blank),
                    (false, Some(blank)) => out.push_str(&blank.code),
                    (false, None) => {}
                }
                continue;
            }
            // Behind a value that is the mark of a loop, and no name.
            Kind::Word if token.code == "recursive" => segment
                .iter()
                .rev()
                .find(|token: &&Token| token.kind != Kind::Blank)
                .is_some_and(Token::ends_value),
            Kind::Word => ["and", "or", "if", "else"].contains(&&*token.code),
            _ => false,
        };
        if separates {
            out.push_str(&compared(std::mem::take(&mut segment)));
            out.push_str(&token.code);
        } else {
            segment.push(token);
        }
    }
    out.push_str(&compared(segment));
    Some(out)
}

/// Code with a filter behind each list, tuple and dict.
fn made(mut tokens: Vec<Token>, name: &str) -> Vec<Token> {
    // Behind what is given a value, or of a macro's block, what it takes.
    let begin = match name {
        "for" => tokens.iter().position(|token| token.is(Kind::Word, "in")),
        "set" => tokens.iter().position(|token| token.is(Kind::Symbol, "=")),
        "call" => tokens.iter().position(|token| token.kind == Kind::Word),
        _ => None,
    };
    for i in begin.unwrap_or(0)..tokens.len() {
        let mut behind = tokens[i + 1..].iter().filter(|token| token.kind != Kind::Blank);
        if tokens[i].kind == Kind::Several && !behind.next().is_some_and(|token| token.is(Kind::Symbol, "="))
        {
            tokens[i].code = format!("({}|{MADE})", tokens[i].code);
        }
    }
    tokens
}

/// Whether what stands in brackets, after what is no value, is several values that are not all written there: of those the
/// engine makes one list, once.
fn is_several(open: char, inside: &str) -> bool {
    let mut at = 0;
    while let Some(c) = inside[at..].chars().next() {
        at += match c {
            '\'' | '"' => text_length(&inside[at..]).unwrap_or(inside.len() - at),
            _ if c.is_whitespace() || c.is_ascii_digit() || ",:.".contains(c) => c.len_utf8(),
            _ => return open != '(' || parts(inside, ',').len() > 1,
        }
    }
    false
}

/// The pieces of code; `None` if brackets or texts do not end.
fn tokens(code: &str) -> Option<Vec<Token>> {
    let (mut at, mut out) = (0, Vec::<Token>::new());
    while let Some(c) = code[at..].chars().next() {
        let rest = &code[at..];
        let symbols = ["==", "!=", "<=", ">=", "**", "//"];
        let (mut kind, length) = match c {
            '\'' | '"' => (Kind::Text, text_length(rest)?),
            '(' | '[' | '{' => (Kind::Brackets, brackets(rest)),
            _ if c.is_whitespace() => (Kind::Blank, rest.len() - rest.trim_start().len()),
            _ if c.is_ascii_digit() && !out.last().is_some_and(|t| t.is(Kind::Symbol, ".")) => {
                (Kind::Word, number(rest))
            }
            _ if is_of_word(c) => (Kind::Word, word(rest)),
            _ => (Kind::Symbol, if symbols.iter().any(|s| rest.starts_with(s)) { 2 } else { c.len_utf8() }),
        };
        let mut code = rest[..length].to_owned();
        if kind == Kind::Brackets {
            let closed = length > 1 && rest[..length].ends_with([')', ']', '}']);
            let inside = if closed { &rest[1..length - 1] } else { return None };
            let mut before = out.iter().rev().filter(|token| token.kind != Kind::Blank);
            let (last, other) = (before.next(), before.next().map(|token| &*token.code));
            let called = last.filter(|_| c == '(').map_or("", |token| &*token.code);
            if !last.is_some_and(Token::ends_value) && is_several(c, inside) {
                kind = Kind::Several;
            }
            let again = called == "loop"
                && other != Some(".")
                && parts(inside, ',').len() == 1
                && !inside.trim().is_empty();
            let inside = rewritten(inside, "")?;
            let inside = match called {
                "cycle" if other == Some(".") => in_cycle(inside),
                _ if again => format!("({inside})|{IN_TURN}"),
                _ => inside,
            };
            code = format!("{c}{inside}{}", &rest[length - 1..length]);
        }
        out.push(Token { kind, code });
        at += length;
    }
    Some(out)
}

/// What `cycle` takes in turn, behind a check that it is not nothing, of which the engine would end the program.
fn in_cycle(values: String) -> String {
    if values.trim().is_empty() {
        return format!("none|{IN_CYCLE}");
    }
    let parts = parts(&values, ',');
    let Some(lists) = parts.iter().map(|part| part.strip_prefix('*')).collect::<Option<Vec<_>>>() else {
        return values;
    };
    let all: Vec<String> = lists.iter().map(|list| format!("({list})|list")).collect();
    format!("*({})|{IN_CYCLE}", all.join(" + "))
}

/// Bytes of a number.
fn number(code: &str) -> usize {
    let digits = |at: usize| at + code[at..].len() - code[at..].trim_start_matches(is_of_word).len();
    let is_digit = |at: usize| code[at..].starts_with(|c: char| c.is_ascii_digit());
    let mut at = digits(0);
    if code[at..].starts_with('.') && is_digit(at + 1) {
        at = digits(at + 1);
    }
    if code[..at].ends_with(['e', 'E']) && code[at..].starts_with(['+', '-']) && is_digit(at + 1) {
        at = digits(at + 1);
    }
    at
}

/// An expression without `and` and the like, in which comparisons are filters, unless all are `==` or `!=`.
fn compared(segment: Vec<Token>) -> String {
    let (mut operators, mut operands) = (Vec::<String>::new(), vec![Vec::new()]);
    let mut after_is = false;
    for token in segment {
        let named = after_is && token.kind == Kind::Word;
        after_is =
            token.is(Kind::Word, "is") || after_is && (token.kind == Kind::Blank || token.code == "not");
        let compares = match token.kind {
            Kind::Symbol => COMPARISONS.contains(&&*token.code) || ["==", "!="].contains(&&*token.code),
            Kind::Word => !named && ["in", "not"].contains(&&*token.code),
            _ => false,
        };
        if let Some(not) = operators.last_mut().filter(|operator| compares && **operator == "not") {
            not.push_str(" in");
        } else if compares {
            operators.push(token.code);
            operands.push(Vec::new());
        } else if let Some(operand) = operands.last_mut() {
            operand.push(token);
        }
    }
    let is_own = |operator: &String| COMPARISONS.contains(&&**operator);
    let empty = |operand: &Vec<Token>| operand.iter().all(|token| token.kind == Kind::Blank);
    let as_filter = operators.iter().any(is_own) && !operands.iter().any(empty);
    let first = sum(&operands[0]);
    let others = operators.into_iter().zip(&operands[1..]);
    if !as_filter {
        return first + &others.map(|(operator, operand)| operator + &sum(operand)).collect::<String>();
    }
    let pairs: Vec<String> =
        others.flat_map(|(operator, operand)| [format!("'{operator}'"), sum(operand)]).collect();
    let (_, simple) = from_left(&operands[0], ("+", PLUS), &["-"], joined);
    filtered(&first, simple, COMPARED, &pairs)
}

/// A sum, of whose terms those with `~` join texts.
fn sum(tokens: &[Token]) -> String {
    from_left(tokens, ("+", PLUS), &["-"], joined).0
}

/// Operators that bind alike, from the left: `own` becomes a filter, the others stay. Also whether a filter behind it applies to
/// all of it.
fn from_left(
    tokens: &[Token],
    own: (&str, &str),
    others: &[&str],
    inner: fn(&[Token]) -> (String, bool),
) -> (String, bool) {
    let (mut operands, mut operators, mut begin, mut value) = (Vec::new(), Vec::new(), 0, false);
    for (i, token) in tokens.iter().enumerate() {
        let code = &*token.code;
        if value && token.kind == Kind::Symbol && (code == own.0 || others.contains(&code)) {
            operands.push(&tokens[begin..i]);
            operators.push(code);
            (begin, value) = (i + 1, false);
        } else if token.kind != Kind::Blank {
            value = token.ends_value();
        }
    }
    operands.push(&tokens[begin..]);
    let (mut out, mut simple) = inner(operands[0]);
    for (operator, operand) in operators.into_iter().zip(&operands[1..]) {
        let (code, _) = inner(operand);
        if operator != own.0 || code.trim().is_empty() {
            out = out + operator + &code;
            simple = false;
            continue;
        }
        out = filtered(&out, simple, own.1, &[code]);
        simple = true;
    }
    (out, simple)
}

/// A value and others as the arguments of a filter. Blanks with the ends of lines stay, by which errors are told.
fn filtered(value: &str, simple: bool, filter: &str, others: &[String]) -> String {
    let ends = |blanks: &str| if blanks.contains('\n') { blanks.to_owned() } else { String::new() };
    let (before, value, mut behind) = trimmed(value);
    let mut out = format!("{before}{}|{filter}(", bracketed(value, simple));
    for (i, other) in others.iter().enumerate() {
        let (before, value, after) = trimmed(other);
        out.push_str(&format!("{}{}{}{value}", ends(behind), if i > 0 { ", " } else { "" }, ends(before)));
        behind = after;
    }
    out + ")" + behind
}

/// What `~` joins, each a text as Python writes it.
fn joined(tokens: &[Token]) -> (String, bool) {
    let product = |part| from_left(part, ("*", MULTIPLIED), &["/", "//", "%"], plain);
    let mut parts = tokens.split(|token| token.is(Kind::Symbol, "~")).map(product);
    let (first, simple) = parts.next().unwrap_or_default();
    let others: Vec<String> = parts.map(|(code, _)| code).collect();
    if others.is_empty() {
        return (first, simple);
    }
    if first.trim().is_empty() || others.iter().any(|other| other.trim().is_empty()) {
        return (first + "~" + &others.join("~"), false);
    }
    (filtered(&first, simple, JOINED, &others), true)
}

fn plain(tokens: &[Token]) -> (String, bool) {
    (tokens.iter().map(|token| &*token.code).collect(), is_simple(tokens))
}

/// Whether a filter behind this applies to all of it.
fn is_simple(tokens: &[Token]) -> bool {
    let mut values = tokens.iter().filter(|token| token.kind != Kind::Blank);
    values.all(|t| t.ends_value() || t.is(Kind::Symbol, ".") || t.is(Kind::Symbol, "|"))
}

fn bracketed(value: &str, simple: bool) -> String {
    if simple { value.to_owned() } else { format!("({value})") }
}

/// The blanks before, the code, and the blanks behind.
fn trimmed(code: &str) -> (&str, &str, &str) {
    let start = code.len() - code.trim_start().len();
    let value = code.trim();
    (&code[..start], value, &code[start + value.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_become_filters_with_their_operands() {
        for (source, want) in [
            ("{{ a < b }}", "{{ a|compared('<', b) }}"),
            (
                "{%- if not a.b[0]|length > 1 + c and d -%}",
                "{%- if not a.b[0]|length|compared('>', 1|plus(c)) and d -%}",
            ),
            ("{{ -a <= b == c }}", "{{ (-a)|compared('<=', b, '==', c) }}"),
            ("{{ a == b ~ 'c' }}", "{{ a == b|joined('c') }}"),
            ("{{ 'a' ~ 1e-5 - 2 * b ~ \"c\" }}", "{{ 'a'|joined(1e-5) - 2|multiplied(b)|joined(\"c\") }}"),
            (
                "{{ 'a' ~ -b ~ (c ~ d) if e < f else g ~ h }}",
                "{{ 'a'|joined(-b, (c|joined(d))) if e|compared('<', f) else g|joined(h) }}",
            ),
            ("{% set a = b ~ c %}", "{% set a = b|joined(c) %}"),
            (
                "{% for a in b if a is not in c ~ d or e not in f %}",
                "{% for a in b if (a is not in c)|joined(d) or e|compared('not in', f) %}",
            ),
            (
                "{{ not -a in b < c }}{{ '<' ~ ' in ' }}",
                "{{ not (-a)|compared('in', b, '<', c) }}{{ '<'|joined(' in ') }}",
            ),
            (
                "{%- for a, b in c if 'd' in b['e' in f] -%}",
                "{%- for a, b in c if 'd'|compared('in', b['e'|compared('in', f)]) -%}",
            ),
            ("{{ a in }}{{ inn not\nin b }}", "{{ a in }}{{ inn|compared('not in', \n b) }}"),
            ("{{ a - b + c * d / 2 ** e }}", "{{ (a - b)|plus(c|multiplied(d) / 2 ** e) }}"),
            ("{{ f(*a, **b) + -c * +d }}", "{{ f(*a, **b)|plus((-c)|multiplied(+d)) }}"),
            (
                "{{ f(a=b ~ 'c', d={'e': g > 1.5}) }}",
                "{{ f(a=b|joined('c'), d=({'e': g|compared('>', 1.5)}|made)) }}",
            ),
            ("{{ a ~ (b }}{{ a < }}", "{{ a ~ (b }}{{ a < }}"),
            (
                "{{ loop.cycle() ~ loop.cycle('a', *b) ~ loop.cycle(*b) }}",
                "{{ loop.cycle(none|in_cycle)|joined(loop.cycle('a', *b), loop.cycle(*((b)|list)|in_cycle)) }}",
            ),
            ("{{ [a, ['b', 1], (c)] }}", "{{ ([a, ['b', 1], (c)]|made) }}"),
            ("{% set (a, b), c = (1, c) == {} %}", "{% set (a, b), c = ((1, c)|made) == {} %}"),
            (
                "{% for (a, b), c in (d, {e: 1}) recursive %}",
                "{% for (a, b), c in ((d, ({e: 1}|made))|made) recursive %}",
            ),
            ("{% with (a, b) = c, (d, e) = f %}", "{% with (a, b) = c, (d, e) = f %}"),
            ("{% call (a, b) f([c]) %}", "{% call (a, b) f(([c]|made)) %}"),
            (
                "{{ loop(a.b) ~ x.loop(a) ~ loop(a, b) }}",
                "{{ loop((a.b)|in_turn)|joined(x.loop(a), loop(a, b)) }}",
            ),
            ("{{ a <\n b\n== c }}", "{{ a|compared('<', \n b\n, '==', c) }}"),
            ("{% for a in b if a.c < 3 recursive %}", "{% for a in b if a.c|compared('<', 3) recursive %}"),
            (
                "{% for a in recursive if recursive < 3 %}",
                "{% for a in recursive if recursive|compared('<', 3) %}",
            ),
        ] {
            let tags = source.split_inclusive("}}").filter(|tag| tag.starts_with('{') && tag.len() > 3);
            assert_eq!(tags.map(replaced).collect::<String>(), want, "{source}");
        }
    }
}
