//! The parser: Python's argparse with abbreviations off, plus what a friendly tool tolerates.
//!
//! Rules, as upstream's parsers follow them: later duplicates win; a token that looks like a negative number is
//! a value; a token that starts with `-` and holds a space is a value; `*` and `+` take tokens up to the next
//! flag; `--flag=value` works for flags that take values; a switch takes none; an unknown flag or a stray word
//! is an error. Beyond upstream, and with a warning: blank or carriage-return tokens (from scripts with a
//! space after the line-continuation backslash, or with CRLF line ends) are dropped, and `500000.0` is an
//! integer where one is expected. `--input` of preprocessing takes several files. `--print-args` refuses what upstream's parser
//! refuses.

use std::ffi::OsString;
use std::io::Write as _;

use serde_json::Value;

use super::args::{Args, Origin};
use super::common::ConfigFile;
use super::convert::{convert, negative_number};
use super::help;
use super::table::{Arity, Flag, Line, Program, Upstream, ValueKind, is_known};
use crate::common::utf8;
use crate::generate::{Artefact, generate};
use crate::{Usage, refuse};

/// Parses the arguments of a program, without its own name.
///
/// `--upstream` among them decides which version's names, types and defaults hold.
///
/// # Errors
/// [`Usage`] for what upstream's parser refuses, except for the tolerated cases, which are in [`Args::tolerated`].
pub fn parse<I, S>(line: &'static Line, argv: I) -> Result<Args, Usage>
where
    I: IntoIterator<Item = S>,
    S: Into<String>,
{
    let argv: Vec<String> = argv.into_iter().map(Into::into).collect();
    let upstream = upstream_of(&argv)?;
    let mut args = Args::empty(line, upstream);
    let mut at = 0;
    while at < argv.len() {
        let token = &argv[at];
        at += 1;
        let Some((flag, inline)) = as_flag(token, line, upstream)? else {
            if blank(token) {
                args.tolerate(format!("a blank word ({token:?}) is left out"));
                continue;
            }
            refuse!("unexpected word '{token}'{}", values_hint(&argv[..at - 1], line, upstream));
        };
        let start = at;
        if inline.is_none() {
            at += values_behind(flag, &argv[at..], line, upstream)?;
        }
        let values: Vec<&str> =
            inline.map_or_else(|| argv[start..at].iter().map(String::as_str).collect(), |v| vec![v]);
        let value = if takes_several(flag, line) && values.len() > 1 {
            args.extend_upstream("--input: upstream takes one file or folder".to_owned());
            Value::Array(values.into_iter().map(Value::from).collect())
        } else {
            read(flag, upstream, &values, inline.is_some(), &mut args)?
        };
        if !flag.in_upstream(upstream) {
            args.extend_upstream(format!("{} is not a flag of {}", flag.flag, upstream.name()));
        }
        // Upstream's rule is that later duplicates win; texts of a prompt follow each other.
        let value = match (value, args.record().get(flag.dest(upstream))) {
            (Value::Array(more), Some(Value::Array(before)))
                if ["--prompt", "--stop"].contains(&flag.flag) =>
            {
                Value::Array(before.iter().cloned().chain(more).collect())
            }
            (value, _) => value,
        };
        args.set(flag, value, Origin::Flag);
    }
    Ok(args)
}

/// Whether a flag takes all words behind it although upstream's takes one.
fn takes_several(flag: &Flag, line: &Line) -> bool {
    line.program == Program::Preprocess && flag.flag == "--input"
}

/// How many of the words behind a flag are its values.
fn values_behind(
    flag: &Flag,
    behind: &[String],
    line: &'static Line,
    upstream: Upstream,
) -> Result<usize, Usage> {
    // One value or none: what follows belongs to the line, not to the flag.
    let most = match flag.arity {
        Arity::Zero => 0,
        Arity::One | Arity::Optional if !takes_several(flag, line) => 1,
        _ => usize::MAX,
    };
    let mut count = 0;
    while count < most.min(behind.len()) && as_flag(&behind[count], line, upstream)?.is_none() {
        count += 1;
    }
    Ok(count)
}

/// Takes a program's own words out of its arguments: those in front, `most` at the most, and of those that are no flag's
/// value the ones that it `takes`, which is told the words before.
///
/// # Errors
/// As [`answer`].
pub fn take_words(
    line: &'static Line,
    argv: &mut Vec<OsString>,
    most: usize,
    takes: impl Fn(&[OsString], &str) -> bool,
) -> Result<Vec<OsString>, Usage> {
    let in_front = argv.iter().take(most).take_while(|word| !word.to_string_lossy().starts_with('-')).count();
    let mut words: Vec<OsString> = argv.drain(..in_front).collect();
    let texts: Vec<String> = argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let upstream = upstream_of(&texts)?;
    let (mut at, mut rest) = (0, Vec::with_capacity(argv.len()));
    while at < texts.len() {
        let start = at;
        at += 1;
        match as_flag(&texts[start], line, upstream) {
            // The parser says what is wrong, and of other programs' flags nobody knows the values.
            Err(_) => at = texts.len(),
            Ok(Some((_, Some(_)))) => {}
            Ok(Some((flag, None))) => at += values_behind(flag, &texts[at..], line, upstream).unwrap_or(0),
            Ok(None) if takes(&words, &texts[start]) => {
                words.push(argv[start].clone());
                continue;
            }
            Ok(None) => {}
        }
        rest.extend_from_slice(&argv[start..at]);
    }
    *argv = rest;
    Ok(words)
}

/// What this process was called with: words in front, `most` at the most, or those among the flags that it `knows`, and the
/// flags. What is asked of the program itself, and `--explain` (`None`: nothing is left to do), is answered then, what is
/// refused has been, and messages go where the flags say.
///
/// # Errors
/// As [`parse_or_exit`] and [`Args::check`].
pub fn begin(
    line: &'static Line,
    most: usize,
    knows: impl Fn(&str) -> bool,
) -> anyhow::Result<Option<(Vec<String>, Args)>> {
    let mut argv: Vec<OsString> = std::env::args_os().skip(1).collect();
    answer(line, &argv)?;
    let words = take_words(line, &mut argv, most, |before, word| before.len() < most && knows(word))?;
    let words: Vec<String> =
        words.iter().map(|word| utf8(word).map(str::to_owned)).collect::<Result<_, _>>()?;
    let args = parse_or_exit(line, &argv)?;
    if args.explains()? {
        return Ok(None);
    }
    args.check()?;
    args.start_logging();
    Ok(Some((words, args)))
}

/// Parses the process's arguments, and what the file of `--config` says behind them; help, `--generate` and `--print-args` are
/// answered and end the process.
///
/// Leading words (sub-commands, FROM and TO) must be removed before.
///
/// # Errors
/// [`Usage`] as [`parse`], for arguments that are not UTF-8, and, with `--print-args`, for tolerated ones; if the file of
/// `--config` cannot be read, or as [`Args::layer_toml`]; I/O errors of stdout.
pub fn parse_or_exit(line: &'static Line, argv: &[OsString]) -> anyhow::Result<Args> {
    answer(line, argv)?;
    let mut out = std::io::stdout().lock();
    let mut texts = Vec::with_capacity(argv.len());
    for arg in argv {
        let text = utf8(arg)?;
        texts.push(text.to_owned());
    }
    let mut args = parse(line, texts)?;
    ConfigFile::layer(&mut args)?;
    if args.prints() {
        if let Some(first) = args.beyond_upstream() {
            refuse!("{first}\nhint: without --print-args this is accepted");
        }
        serde_json::to_writer(&mut out, &args.upstream_values())?;
        out.write_all(b"\n")?;
        out.flush()?;
        std::process::exit(0);
    }
    Ok(args)
}

/// Handles requests about the program itself, and then ends the process: `completions SHELL`, `man`, `help [WORD]`,
/// `--generate KIND`, `--version`, `-h`, `--help`, `--help model`, `--help upstream` and `--help WORD`. `argv` are all its
/// arguments, leading words too.
///
/// # Errors
/// [`Usage`] for a shell, a word or a version that is not known; I/O errors of stdout.
pub fn answer(line: &'static Line, argv: &[OsString]) -> anyhow::Result<()> {
    let name = line.name;
    let mut with_name = vec![OsString::from(name)];
    with_name.extend_from_slice(argv);
    let texts: Vec<&str> = argv.iter().map(|arg| utf8(arg)).collect::<Result<_, _>>()?;
    let owned: Vec<String> = texts.iter().map(|&t| t.to_owned()).collect();
    let text = if let Some(artefact) = Artefact::asked_for(&with_name)? {
        let mut bytes = Vec::new();
        generate(artefact, &mut help::command(line), &mut bytes)?;
        String::from_utf8_lossy(&bytes).into_owned()
    } else if texts.iter().any(|t| *t == "--version" || *t == "-V") {
        format!("{name} {}\n", env!("CARGO_PKG_VERSION"))
    } else if texts.first() == Some(&"help") {
        let upstream = upstream_of(&owned)?;
        match texts.get(1).filter(|word| !word.starts_with("--upstream")) {
            None => help::long_help(line, upstream, line.about, false),
            Some(word) => about_word(line, upstream, word)?,
        }
    } else if let Some(at) = texts.iter().position(|t| *t == "-h" || *t == "--help") {
        let upstream = upstream_of(&owned)?;
        match (texts[at], texts.get(at + 1).filter(|word| !word.starts_with('-'))) {
            ("-h", _) => help::short_help(line, upstream),
            (_, Some(&"model")) => help::model_help(line, upstream),
            (_, Some(&"upstream")) => help::upstream_help(line, upstream).trim_start().to_owned(),
            (_, Some(word)) => about_word(line, upstream, word)?,
            (_, None) => help::long_help(line, upstream, line.about, false),
        }
    } else {
        return Ok(());
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    std::process::exit(0);
}

fn about_word(line: &Line, upstream: Upstream, word: &str) -> Result<String, Usage> {
    help::word_help(line, upstream, word)
        .ok_or_else(|| Usage(format!("help {word}: no flag is about that\nhint: --help lists all flags")))
}

fn upstream_of(argv: &[String]) -> Result<Upstream, Usage> {
    let mut upstream = Upstream::default();
    for (i, token) in argv.iter().enumerate() {
        let value = match token.strip_prefix("--upstream") {
            Some("") => argv.get(i + 1).map_or("", String::as_str),
            Some(rest) if rest.starts_with('=') => &rest[1..],
            _ => continue,
        };
        upstream = match value {
            "v2.0.0" => Upstream::V2_0_0,
            "head" => Upstream::Head,
            other => refuse!("--upstream: expected v2.0.0 or head, got '{other}'"),
        };
    }
    Ok(upstream)
}

fn blank(token: &str) -> bool {
    token.trim().is_empty()
}

/// The flag that a token names, with the value after `=`; `None` for a word or value.
fn as_flag<'a>(
    token: &'a str,
    line: &'static Line,
    upstream: Upstream,
) -> Result<Option<(&'static Flag, Option<&'a str>)>, Usage> {
    if !token.starts_with('-') || token.len() == 1 {
        return Ok(None);
    }
    if let Some(flag) = line.find(token, upstream) {
        return Ok(Some((flag, None)));
    }
    if let Some((name, value)) = token.split_once('=')
        && let Some(flag) = line.find(name, upstream)
    {
        return Ok(Some((flag, Some(value))));
    }
    if negative_number(token) || token.contains(' ') {
        return Ok(None);
    }
    Err(unknown(token.split('=').next().unwrap_or(token), line, upstream))
}

fn read(
    flag: &'static Flag,
    upstream: Upstream,
    values: &[&str],
    inline: bool,
    args: &mut Args,
) -> Result<Value, Usage> {
    let name = flag.flag;
    match (flag.arity, values.len()) {
        (Arity::Zero, _) => {
            if inline {
                refuse!("{name} takes no value");
            }
            return Ok(Value::Bool(flag.kind == ValueKind::True));
        }
        (Arity::One, 0) => refuse!("{name}: expected one value"),
        (Arity::Some, 0) => refuse!("{name}: expected at least one value"),
        (Arity::Optional, 0) => return Ok(Value::Null),
        _ => {}
    }
    let mut one = |text: &str| -> Result<Value, Usage> {
        let converted =
            convert(flag, upstream, text).map_err(|expected| Usage(format!("{name}: {expected}")))?;
        if let Some(note) = converted.tolerated {
            args.tolerate(format!("{name}: {note}"));
        }
        Ok(converted.value)
    };
    if matches!(flag.arity, Arity::Any | Arity::Some) {
        return values.iter().map(|v| one(v)).collect::<Result<Vec<_>, _>>().map(Value::Array);
    }
    one(values[0])
}

/// Converts the value of a flag from a configuration file, which may be typed.
pub(super) fn read_toml(flag: &'static Flag, value: &toml::Value, args: &mut Args) -> Result<Value, Usage> {
    let text = |v: &toml::Value| match v {
        toml::Value::String(s) => s.clone(),
        other => other.to_string(),
    };
    let upstream = args.upstream();
    match (flag.arity, value) {
        (Arity::Zero, toml::Value::Boolean(b)) => Ok(Value::Bool(*b)),
        (Arity::Zero, other) => Err(Usage(format!("{}: expected true or false, got {other}", flag.flag))),
        (Arity::Any | Arity::Some, toml::Value::Array(items)) => {
            let items: Vec<String> = items.iter().map(text).collect();
            let items: Vec<&str> = items.iter().map(String::as_str).collect();
            read(flag, upstream, &items, false, args)
        }
        (_, other) => read(flag, upstream, &[text(other).as_str()], false, args),
    }
}

pub(super) fn unknown(token: &str, line: &Line, upstream: Upstream) -> Usage {
    let other = if upstream == Upstream::V2_0_0 { Upstream::Head } else { Upstream::V2_0_0 };
    if line.find(token, other).is_some() {
        return Usage(format!(
            "{token} is not a flag of {}\nhint: {} has it: pass --upstream {}",
            upstream.name(),
            other.name(),
            other.name()
        ));
    }
    let mut message = format!("unknown flag {token}");
    // Flags that do nothing here are no help, as long as one that does something is as near.
    let acts = |flag: &str| line.find(flag, upstream).is_some_and(Flag::acts);
    let near = line
        .flags(upstream)
        .map(|f| (strsim::jaro_winkler(token, f.flag), f.flag))
        .filter(|(likeness, _)| *likeness > 0.9)
        .max_by(|a, b| acts(a.1).cmp(&acts(b.1)).then(a.0.total_cmp(&b.0)));
    if let Some((_, flag)) = near {
        message.push_str(&format!("\nhint: did you mean {flag}?"));
    } else if is_known(token) {
        message.push_str("\nhint: another program has this flag");
    }
    Usage(message)
}

/// A word after a complete flag: say how many values that flag takes.
fn values_hint(before: &[String], line: &Line, upstream: Upstream) -> String {
    let last = before
        .iter()
        .rev()
        .find_map(|t| line.find(t.split('=').next().unwrap_or(t), upstream).filter(|_| t.starts_with('-')));
    match last {
        Some(f) if f.arity == Arity::Zero => format!("\nhint: {} takes no value", f.flag),
        Some(f) if f.arity == Arity::One => format!("\nhint: {} takes one value", f.flag),
        _ => String::new(),
    }
}
