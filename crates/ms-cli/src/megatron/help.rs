//! Help, man page and completions from the table.

use serde_json::Value;
use std::fmt::Write as _;

use super::options::Unset;
use super::table::{Arity, Flag, Line, Status, Upstream, ValueKind};

/// The group of flags that only some models need.
const FAMILIES: &str = "Model families";

/// The group of flags that trade time for memory.
const MEMORY: &str = "Memory";

/// The group of flags about the stages of a pipeline.
const STAGES: &str = "Pipeline";

/// Headings in the order of the work.
const GROUPS: [&str; 24] = [
    "Task",
    "Input",
    "Selection",
    "Prompt",
    "Tokenizer",
    "Model",
    FAMILIES,
    "Parallelism",
    STAGES,
    "Batch",
    "Data",
    "Precision",
    "Optimizer",
    "Learning rate",
    MEMORY,
    "Checkpoint",
    "Packing",
    "Evaluation",
    "Generation",
    "Profiling",
    "Output",
    "Logging",
    "Configuration",
    "Other",
];
const WIDTH: usize = 100;

fn value_name(flag: &Flag, upstream: Upstream) -> String {
    let choices = flag.choices(upstream);
    let kind = match flag.kind {
        ValueKind::Int | ValueKind::Freq => "N",
        ValueKind::Float => "X",
        ValueKind::Json => "JSON",
        _ => "TEXT",
    };
    let name = if choices.is_empty() || choices.len() > 6 { kind.to_owned() } else { choices.join("|") };
    match flag.arity {
        Arity::Zero => String::new(),
        Arity::One => format!(" {name}"),
        Arity::Optional => format!(" [{name}]"),
        Arity::Any => format!(" [{name}..]"),
        Arity::Some => format!(" {name}.."),
    }
}

fn supported<'a>(line: &'a Line, upstream: Upstream, group: &str) -> Vec<&'a Flag> {
    line.flags(upstream).filter(|f| f.group == group && f.acts()).collect()
}

/// Flags by heading, without explanations and examples: what `-h` prints.
pub fn short_help(program: &Line, upstream: Upstream) -> String {
    let name = program.name;
    let about = program.about.split("\n\n").next().unwrap_or_default();
    let mut out = format!("{about}\n\nUsage: {name} [FLAGS]\n\n");
    for group in GROUPS {
        let rows = supported(program, upstream, group);
        if rows.is_empty() {
            continue;
        }
        // Of these there are many, which most runs leave alone.
        let counted = match group {
            FAMILIES => Some("for some model families: --help model".to_owned()),
            MEMORY => Some(format!("that save memory: {name} help {}", MEMORY.to_lowercase())),
            STAGES => Some(format!("about stages and their layers: {name} help {}", STAGES.to_lowercase())),
            _ => None,
        };
        if let Some(what) = counted.filter(|_| rows.len() > 1) {
            let _ = writeln!(out, "{group}: {} {what}", flags(rows.len()));
            continue;
        }
        let mut line = format!("{group}:");
        for flag in rows {
            if line.len() + 1 + flag.flag.len() > WIDTH {
                out.push_str(&line);
                out.push('\n');
                line = " ".to_owned();
            }
            line.push(' ');
            line.push_str(flag.flag);
        }
        out.push_str(&line);
        out.push('\n');
    }
    out.push_str(
        "\nSee --help for what each flag means and --help upstream for upstream's flags without effect.\n",
    );
    out.push_str(&words(name));
    out
}

/// A number of flags, in words.
fn flags(count: usize) -> String {
    format!("{count} flag{}", if count == 1 { "" } else { "s" })
}

/// One flag with its meaning, values and default.
fn entry(out: &mut String, flag: &Flag, upstream: Upstream) {
    let _ = writeln!(out, "  {}{}", flag.flag, value_name(flag, upstream));
    let _ = write!(out, "      {}", flag.note);
    let (whose, default) = match flag.unset {
        Unset::Default => ("", plain(flag.default(upstream))),
        Unset::Otherwise => ("upstream: ", plain(flag.default(upstream))),
        Unset::Is(value) => ("", value.to_owned()),
    };
    if flag.arity != Arity::Zero && !default.is_empty() && flag.alias_of.is_none() {
        let _ = write!(out, " [{whose}{default}]");
    }
    out.push('\n');
}

/// A value as it would be typed.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// The commands that every program has, at the end of its help.
pub fn words(name: &str) -> String {
    format!(
        "{name} help WORD: flags about a word; {name} completions bash|zsh|fish: shell completions; {name} man: man page.\n"
    )
}

/// The flags that only some models need: what `--help model` prints.
pub fn model_help(line: &Line, upstream: Upstream) -> String {
    let mut out = format!("{}: flags for some model families\n\n", line.name);
    supported(line, upstream, FAMILIES).into_iter().for_each(|flag| entry(&mut out, flag, upstream));
    out
}

/// The flags that are about a word: in their name, their meaning or their heading. What `help WORD` prints.
pub fn word_help(line: &Line, upstream: Upstream, word: &str) -> Option<String> {
    let wanted = word.trim_start_matches('-').to_lowercase();
    let about = |flag: &&Flag| {
        [flag.flag, &flag.note, flag.group].iter().any(|text| text.to_lowercase().contains(&wanted))
    };
    let acts = |flag: &&Flag| flag.acts();
    let rows: Vec<&Flag> = line.flags(upstream).filter(about).collect();
    let mut out = format!("{}: flags about {word}\n\n", line.name);
    rows.iter().copied().filter(acts).for_each(|flag| entry(&mut out, flag, upstream));
    for flag in rows.iter().filter(|flag| !acts(flag)) {
        let _ = writeln!(out, "  {} (upstream's): {}", flag.flag, flag.note);
    }
    (!rows.is_empty()).then_some(out)
}

/// Every flag with its meaning: what `--help` prints. With `whole` also those that only some models need, and
/// [`upstream_help`].
pub fn long_help(line: &Line, upstream: Upstream, about: &str, whole: bool) -> String {
    let name = line.name;
    let mut out = format!("{about}\n\nUsage: {name} [FLAGS]\n");
    for group in GROUPS {
        let rows = supported(line, upstream, group);
        if group == FAMILIES && !whole && !rows.is_empty() {
            let _ = writeln!(out, "\n{group}: {} for some model families: --help model", flags(rows.len()));
            continue;
        }
        if !rows.is_empty() {
            let _ = write!(out, "\n{group}:\n");
        }
        rows.into_iter().for_each(|flag| entry(&mut out, flag, upstream));
    }
    if whole {
        out.push_str(&upstream_help(line, upstream));
        return out;
    }
    let others = line.flags(upstream).filter(|flag| !flag.acts()).count();
    let _ = writeln!(out, "\nUpstream: {} without effect here or refused: --help upstream\n", flags(others));
    out.push_str(&words(name));
    out
}

/// Upstream's other flags with what becomes of them: what `--help upstream` prints.
pub fn upstream_help(line: &Line, upstream: Upstream) -> String {
    let mut out = String::new();
    for (status, title) in [
        (Status::Accepted, "Upstream flags accepted without effect"),
        (Status::Refused, "Upstream flags refused unless their value asks for nothing"),
    ] {
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for flag in line.flags(upstream).filter(|flag| flag.status == status) {
            let reason = flag.note.as_str();
            match reasons.iter_mut().find(|(r, _)| *r == reason) {
                Some((_, list)) => list.push(flag.flag),
                None => reasons.push((reason, vec![flag.flag])),
            }
        }
        let _ = write!(out, "\n{title}:\n");
        for (reason, list) in reasons {
            let _ = writeln!(out, "  {reason}:");
            let mut row = "     ".to_owned();
            for flag in list {
                if row.len() + 1 + flag.len() > WIDTH {
                    let _ = writeln!(out, "{row}");
                    row = "     ".to_owned();
                }
                row.push(' ');
                row.push_str(flag);
            }
            let _ = writeln!(out, "{row}");
        }
    }
    out
}

/// A Markdown page of every flag of a program: `docs/reference` is generated from it, and a check keeps it current.
pub fn reference_page(line: &Line, upstream: Upstream) -> String {
    let name = line.name;
    let help = long_help(line, upstream, &format!("{name}, every flag."), true);
    format!("# {name}\n\n<!-- Generated by `cargo xtask docs`; do not edit. -->\n\n```text\n{help}```\n")
}

/// The supported flags as a clap command, from which man pages and completions are made.
pub fn command(line: &'static Line) -> clap::Command {
    let mut command = clap::Command::new(line.name).about(line.about).version(env!("CARGO_PKG_VERSION"));
    for group in GROUPS {
        for flag in supported(line, Upstream::default(), group) {
            let Some(long) = flag.flag.strip_prefix("--") else { continue };
            let mut arg = clap::Arg::new(long).long(long).help(flag.note.as_str()).help_heading(group);
            arg = match flag.arity {
                Arity::Zero => arg.action(clap::ArgAction::SetTrue),
                Arity::One => arg,
                Arity::Optional => arg.num_args(0..=1),
                Arity::Any => arg.num_args(0..),
                Arity::Some => arg.num_args(1..),
            };
            let choices = flag.choices(Upstream::default());
            if !choices.is_empty() {
                arg = arg.value_parser(clap::builder::PossibleValuesParser::new(choices));
            }
            command = command.arg(arg);
        }
    }
    command
}
