//! The values of a command line by name, with the table's defaults for missing ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value};

use super::convert::python_float;
use super::levels::{HIGHEST, OF_HIGHEST};
use super::options::{Options, Reader};
use super::parse::{read_toml, unknown};
use super::table::{Arity, Flag, Line, Status, Upstream, ValueKind, Warns};
use crate::{Usage, refuse};

/// What names a file, a folder or a field, which always has one.
const NEVER_EMPTY: [&str; 13] = [
    "config",
    "data_path",
    "files_from",
    "hf_cfg_dir",
    "input",
    "json_keys",
    "load",
    "load_dir",
    "metrics_file",
    "output_prefix",
    "save",
    "tokenizer_model",
    "tokenizer_name_or_path",
];

/// Flags by which the line is read before the file of [`Args::layer_toml`].
const OF_THE_LINE: [&str; 3] = ["--config", "--print-args", "--upstream"];

/// Where a value came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// A configuration file.
    Config,
    /// The table of flags.
    Default,
}

/// Something that a given flag does not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Spelling of the flag.
    pub flag: &'static str,
    /// Why it has no effect, or why it is refused.
    pub reason: String,
    /// Whether that is worth a warning.
    pub loud: bool,
}

/// What becomes of a given flag.
#[derive(Debug, Clone, PartialEq)]
pub struct Explained {
    /// Spelling of the flag.
    pub flag: &'static str,
    /// Its value.
    pub value: Value,
    /// `acts`, `no effect` or `refused`.
    pub status: &'static str,
    /// What it does, or why nothing.
    pub note: String,
}

/// Parsed flags: upstream's `dest` names to typed values, in the order of their first appearance.
#[derive(Debug, Clone)]
pub struct Args {
    line: &'static Line,
    upstream: Upstream,
    given: Map<String, Value>,
    origin: BTreeMap<String, (Origin, &'static str)>,
    tolerated: Vec<String>,
    extended: Vec<String>,
    /// Flags above the requested optimization level, as they were given.
    above: Vec<Explained>,
}

impl Args {
    pub(super) fn empty(line: &'static Line, upstream: Upstream) -> Self {
        Self {
            line,
            upstream,
            given: Map::new(),
            origin: BTreeMap::new(),
            tolerated: Vec::new(),
            extended: Vec::new(),
            above: Vec::new(),
        }
    }

    pub(super) fn set(&mut self, flag: &'static Flag, value: Value, origin: Origin) {
        let dest = flag.dest(self.upstream);
        self.given.insert(dest.to_owned(), value);
        self.origin.insert(dest.to_owned(), (origin, flag.flag));
    }

    pub(super) fn tolerate(&mut self, note: String) {
        self.tolerated.push(note);
    }

    pub(super) fn extend_upstream(&mut self, note: String) {
        self.extended.push(note);
    }

    /// The first thing that upstream's parser would have refused, whether it is worth a warning or an ability of ours.
    pub(super) fn beyond_upstream(&self) -> Option<&str> {
        self.tolerated.iter().chain(&self.extended).next().map(String::as_str)
    }

    /// The program's command line.
    pub fn line(&self) -> &'static Line {
        self.line
    }

    /// The requested upstream version.
    pub fn upstream(&self) -> Upstream {
        self.upstream
    }

    /// The values of a group of options of the program.
    ///
    /// # Errors
    /// As [`Options::read`].
    ///
    /// # Panics
    /// If the group is not part of the program's line: a mistake in the caller.
    pub fn read<O: Options>(&self) -> Result<O, Usage> {
        O::read(&Reader(self))
    }

    /// Warnings: things that upstream's parser would have refused.
    pub fn tolerated(&self) -> &[String] {
        &self.tolerated
    }

    /// Every value that was given, by `dest`: for the record of a command line stored with its results. Values are read as
    /// [`Options`].
    pub fn record(&self) -> &Map<String, Value> {
        &self.given
    }

    /// The given values of upstream flags: what `--print-args` prints.
    pub fn upstream_values(&self) -> Map<String, Value> {
        self.given
            .iter()
            .filter(|(dest, _)| self.line.by_dest(dest, self.upstream).is_some_and(|f| !f.ours))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }

    /// How each given flag was written, by `dest`.
    pub fn written_flags(&self) -> impl Iterator<Item = (String, &'static str)> {
        self.origin.iter().map(|(dest, origin)| (dest.clone(), origin.1))
    }

    /// Name, value and origin of every setting of the program.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, Option<&Value>, Origin)> {
        self.line.flags(self.upstream).map(|flag| {
            let dest = flag.dest(self.upstream);
            (dest, self.value(dest), self.origin.get(dest).map_or(Origin::Default, |o| o.0))
        })
    }

    /// The value of `dest`, else its default; `None` when there is neither.
    ///
    /// Where the versions name it differently, either name finds it.
    ///
    /// # Panics
    /// If the program has no such `dest`: a mistake in the caller.
    pub(super) fn value(&self, dest: &str) -> Option<&Value> {
        let value = self.given.get(self.key(dest)).or_else(|| {
            let flag = self.line.by_dest(dest, self.upstream);
            let flag = flag.unwrap_or_else(|| panic!("{}: no flag is kept under {dest}", self.line.name));
            Some(flag.default(self.upstream))
        });
        value.filter(|v| !v.is_null())
    }

    fn key<'a>(&self, dest: &'a str) -> &'a str {
        if self.given.contains_key(dest) {
            return dest;
        }
        self.line.by_dest(dest, self.upstream).map_or(dest, |f| f.dest(self.upstream))
    }

    /// Sets the value of a flag that the environment decides, such as a number of processes.
    ///
    /// # Panics
    /// If the program has no such flag.
    pub fn settle(&mut self, flag: &str, value: Value) {
        let flag = self.line.find(flag, self.upstream).expect("a flag of the program");
        self.set(flag, value, Origin::Config);
    }

    /// Takes back the value that is kept under `dest`; it, and how its flag was written.
    pub fn forget(&mut self, dest: &str) -> Option<(Value, &'static str)> {
        Some((self.given.shift_remove(dest)?, self.origin.remove(dest)?.1))
    }

    /// All that was given, on the line or in a configuration file, as one line for a shell.
    pub fn to_shell(&self) -> String {
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            Value::Bool(false) => String::new(),
            other => other.to_string(),
        };
        let mut words: Vec<String> = Vec::new();
        for (flag, value) in self.rows() {
            let name = self.spelling(flag);
            let switch = flag.arity == Arity::Zero;
            match value {
                // A file can turn off what a line can only leave alone.
                _ if switch && *value == Value::Bool(flag.kind == ValueKind::False) => {}
                _ if switch => words.push(name.to_owned()),
                Value::Null => words.push(name.to_owned()),
                Value::Array(items) => {
                    words.push(name.to_owned());
                    words.extend(items.iter().map(text));
                }
                one if text(one).starts_with('-') => words.push(format!("{name}={}", text(one))),
                one => words.extend([name.to_owned(), text(one)]),
            }
        }
        words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }

    /// Adds the values of a TOML configuration; what the command line gave stays.
    ///
    /// Keys are flags without dashes in front (`seq-length`) or `dest` names (`seq_length`); tables only group.
    ///
    /// # Errors
    /// [`Usage`] naming `path` for text that is no TOML, unknown keys, keys of two values, wrong values, and what only the
    /// line can say.
    pub fn layer_toml(&mut self, text: &str, path: &Path) -> Result<(), Usage> {
        let at = |e: &dyn std::fmt::Display| Usage(format!("{}: {e}", path.display()));
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| at(&e))?;
        self.layer_table(&table, &mut BTreeSet::new()).map_err(|e| at(&e))
    }

    fn layer_table(&mut self, table: &toml::Table, seen: &mut BTreeSet<String>) -> Result<(), Usage> {
        for (key, value) in table {
            if let toml::Value::Table(inner) = value {
                self.layer_table(inner, seen)?;
                continue;
            }
            let spelling = format!("--{}", key.replace('_', "-"));
            let (line, upstream) = (self.line, self.upstream);
            let flag = line
                .find(&spelling, upstream)
                .or_else(|| line.find(&format!("--{key}"), upstream))
                .or_else(|| line.by_dest(key, upstream))
                .ok_or_else(|| unknown(&spelling, line, upstream))?;
            if OF_THE_LINE.contains(&flag.flag) {
                refuse!("{key}: the line is read by it before this file; pass {} there", flag.flag);
            }
            if !seen.insert(flag.dest(upstream).to_owned()) {
                refuse!("{key}: a second value of {}", flag.flag);
            }
            if self.origin.get(flag.dest(self.upstream)).is_some_and(|o| o.0 == Origin::Flag) {
                continue;
            }
            let value = read_toml(flag, value, self)?;
            // `bf16 = false` asks for nothing; a switch that stores false is `gradient_accumulation_fusion = false`.
            let value = match (flag.kind, value) {
                (ValueKind::False, Value::Bool(on)) if line.find(&spelling, upstream).is_some() => {
                    Value::Bool(!on)
                }
                (_, value) => value,
            };
            self.set(flag, value, Origin::Config);
        }
        Ok(())
    }

    /// Passes over given flags of features above `level` (`--optimization-level`), as upstream does.
    pub fn keep_to_level(&mut self, level: u64) {
        let above = if level < HIGHEST { &OF_HIGHEST[..] } else { &[] };
        for name in above {
            let Some(dest) = self.line.find(name, self.upstream).map(|flag| flag.dest(self.upstream)) else {
                continue;
            };
            let Some((value, flag)) = self.forget(dest) else { continue };
            let note = format!("needs --optimization-level {HIGHEST}, found {level}");
            self.above.push(Explained { flag, value, status: "no effect", note });
        }
    }

    /// What becomes of each given flag, in the order of the table: what it does, or why it does nothing.
    pub fn explained(&self) -> Vec<Explained> {
        let of = |(flag, value): (&'static Flag, &Value)| {
            let (status, note) = match flag.status {
                Status::Acts => ("acts", flag.note.as_str()),
                Status::Accepted => ("no effect", flag.note.as_str()),
                Status::Refused if harmless(flag, value, self.upstream) => ("no effect", "asks for nothing"),
                Status::Refused => ("refused", flag.note.as_str()),
            };
            let level = if OF_HIGHEST.contains(&flag.flag) {
                format!(" (--optimization-level {HIGHEST})")
            } else {
                String::new()
            };
            Explained {
                flag: self.spelling(flag),
                value: value.clone(),
                status,
                note: format!("{note}{level}"),
            }
        };
        self.rows().map(of).chain(self.above.iter().cloned()).collect()
    }

    /// Given flags that change nothing in this program, with the reason.
    pub fn without_effect(&self) -> Vec<Notice> {
        let rows = self.rows().filter(|(flag, _)| flag.status == Status::Accepted);
        let rows = rows.map(|(flag, value)| {
            let loud = match flag.warns {
                Warns::Never => false,
                Warns::Asking => !harmless(flag, value, self.upstream),
                Warns::Always => *value != Value::Bool(false),
            };
            Notice { flag: flag.flag, reason: flag.note.clone(), loud }
        });
        let above = self.above.iter().map(|a| Notice { flag: a.flag, reason: a.note.clone(), loud: true });
        rows.chain(above).collect()
    }

    /// Given flags that request something this version does not do.
    pub fn refused(&self) -> Vec<Notice> {
        self.rows()
            .filter(|(flag, value)| flag.status == Status::Refused && !harmless(flag, value, self.upstream))
            .map(|(flag, _)| Notice { flag: self.spelling(flag), reason: flag.note.clone(), loud: true })
            .collect()
    }

    /// Checks that nothing given is refused and that every number is in its range.
    ///
    /// # Errors
    /// [`Usage`] that names each refused flag with its reason, and each number that is out of range with what was
    /// expected and found.
    pub fn check(&self) -> Result<(), Usage> {
        let refused = self.refused().into_iter().map(|n| format!("{}: {}", n.flag, n.reason));
        let lines: Vec<String> = refused.chain(self.out_of_range()).chain(self.without_a_name()).collect();
        if lines.is_empty() {
            return Ok(());
        }
        Err(Usage(lines.join("\n")))
    }

    /// How the flag with this name was written, if it was given.
    pub(super) fn written(&self, dest: &str) -> Option<&'static str> {
        self.origin.get(self.key(dest)).map(|o| o.1)
    }

    /// How a flag was written, where several spellings have one name.
    fn spelling(&self, flag: &'static Flag) -> &'static str {
        self.origin.get(flag.dest(self.upstream)).map_or(flag.flag, |o| o.1)
    }

    /// Numbers that this program acts on and that are not in the table's range.
    fn out_of_range(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (flag, value) in self.rows() {
            let Some(range) = flag.range() else {
                continue;
            };
            let name = self.spelling(flag);
            let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            for value in values {
                let number = value.as_f64().or_else(|| python_float(value.as_str()?));
                if let Some(number) = number.filter(|&x| !range.contains(x)) {
                    lines.push(format!("{name}: expected {range}, found {number}"));
                }
            }
        }
        lines
    }

    /// Names of files, folders and fields that are empty, as a variable of a script that is not set makes them.
    fn without_a_name(&self) -> Vec<String> {
        let is_empty = |value: &Value| match value {
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.iter().any(|value| value.as_str() == Some("")),
            _ => false,
        };
        let rows = self.rows().filter(|(flag, value)| {
            let dest = flag.dest(self.upstream);
            NEVER_EMPTY.contains(&dest) && flag.acts() && is_empty(value)
        });
        rows.map(|(flag, _)| format!("{}: expected a name, found nothing", self.spelling(flag))).collect()
    }

    fn rows(&self) -> impl Iterator<Item = (&'static Flag, &Value)> {
        self.given.iter().filter_map(|(dest, value)| Some((self.line.by_dest(dest, self.upstream)?, value)))
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn harmless(flag: &Flag, value: &Value, upstream: Upstream) -> bool {
    let plain = match value {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    };
    value == flag.default(upstream)
        || flag.neutral.contains(&plain.as_str())
        || (flag.arity == Arity::Zero && *value == Value::Bool(flag.kind == ValueKind::False))
}
