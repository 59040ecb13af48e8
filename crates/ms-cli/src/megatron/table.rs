//! A program's flags: upstream's argparse facts (`flags.tsv`), flags that nothing acts on (`others.tsv`), and the options
//! that the program reads.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::common::Common;
use super::options::{Entry, Options, Unset};
use super::range::Range;

/// A program that takes upstream flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `pretrain_gpt.py`, `posttrain_gpt.py`.
    Train,
    /// `inference.py`.
    Infer,
    /// `evaluation.py`.
    Eval,
    /// `preprocess_data.py`.
    Preprocess,
    /// `convert_ckpt.py` (v2.0.0) and `convert_ckpt_v2.py` (head).
    Convert,
}

/// The upstream version whose spelling and behaviour are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Upstream {
    /// MindSpeed-LLM v2.0.0 with Megatron `core_r0.8.0`.
    #[default]
    V2_0_0,
    /// MindSpeed-LLM of August 2026 with Megatron `core_v0.12.1`.
    Head,
}

impl Upstream {
    /// The value of `--upstream`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V2_0_0 => "v2.0.0",
            Self::Head => "head",
        }
    }
}

/// Values that a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arity {
    /// None: a switch.
    Zero,
    /// Exactly one.
    One,
    /// None or one.
    Optional,
    /// Any number.
    Any,
    /// At least one.
    Some,
}

/// Type of a flag's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A switch that stores true.
    True,
    /// A switch that stores false.
    False,
    /// Text.
    Str,
    /// An integer.
    Int,
    /// A float.
    Float,
    /// Python's `bool(text)`: true for any text but the empty one.
    Bool,
    /// Text that must be JSON; kept as text.
    Json,
    /// `--moe-layer-freq`: an integer in v2.0.0; at head an integer or a list expression, kept as text.
    Freq,
    /// `true`, `false` or `none`; kept as text.
    Think,
}

/// What this project does with a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The program reads it.
    Acts,
    /// It is taken and changes nothing.
    Accepted,
    /// It is an error when it asks for something.
    Refused,
}

/// When a flag without effect is worth a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Warns {
    /// Never.
    Never,
    /// When it asks for something.
    Asking,
    /// Whenever it is given: it belongs to a method that is not there.
    Always,
}

/// A flag of a program.
#[derive(Debug, Clone)]
pub struct Flag {
    /// Spelling, with dashes.
    pub flag: &'static str,
    /// Whether it is not an upstream flag.
    pub ours: bool,
    /// Number of values.
    pub arity: Arity,
    /// Type of values.
    pub kind: ValueKind,
    /// What this project does with it.
    pub status: Status,
    /// When that it has no effect is worth a warning.
    pub warns: Warns,
    /// Values of a refused flag that ask for nothing, besides its default.
    pub neutral: Vec<&'static str>,
    /// Heading in the help.
    pub group: &'static str,
    /// Help line, or the reason of the status.
    pub note: String,
    /// The flag that it is a short spelling of.
    pub alias_of: Option<&'static str>,
    /// What holds when it is not given.
    pub unset: Unset,
    /// Versions in which the program has it.
    here: Versions,
    /// Versions of upstream that have it.
    upstream: Versions,
    dest: (&'static str, &'static str),
    default: (Value, Value),
    choices: Vec<&'static str>,
    range: Option<Range>,
    /// Whether the program neither acts on it nor has a reason of its own not to.
    left: bool,
}

/// Some of the versions of upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Versions {
    /// All.
    #[default]
    Both,
    /// v2.0.0 alone.
    V2,
    /// Head alone.
    Head,
}

impl Versions {
    /// Whether `upstream` is one of them.
    pub fn holds(self, upstream: Upstream) -> bool {
        matches!(
            (self, upstream),
            (Self::Both, _) | (Self::V2, Upstream::V2_0_0) | (Self::Head, Upstream::Head)
        )
    }
}

impl Flag {
    /// Values that a number may have.
    pub fn range(&self) -> Option<Range> {
        self.range
    }

    /// Name under which the value is stored.
    pub fn dest(&self, upstream: Upstream) -> &'static str {
        if upstream == Upstream::V2_0_0 { self.dest.0 } else { self.dest.1 }
    }

    /// Value when the flag is not given; null: none.
    pub fn default(&self, upstream: Upstream) -> &Value {
        if upstream == Upstream::V2_0_0 { &self.default.0 } else { &self.default.1 }
    }

    /// Accepted values; empty: any.
    pub fn choices(&self, upstream: Upstream) -> Vec<&'static str> {
        let one = |c: &&'static str| match c.split_once('@') {
            Some((choice, version)) => (version == upstream.name()).then_some(choice),
            None => Some(*c),
        };
        self.choices.iter().filter_map(one).collect()
    }

    /// Whether the program has this flag in `upstream`; our own and those that it acts on are in both, unless upstream has two
    /// programs.
    pub fn is_in(&self, upstream: Upstream) -> bool {
        self.here.holds(upstream) && (self.acts() || self.upstream.holds(upstream))
    }

    /// Whether it is ours, or known to upstream's parser of this version.
    pub fn in_upstream(&self, upstream: Upstream) -> bool {
        self.ours || self.upstream.holds(upstream)
    }

    /// Whether the program acts on it.
    pub fn acts(&self) -> bool {
        self.status == Status::Acts
    }
}

/// Short spellings of the daily few: which flag they stand for in which programs.
const SHORT: [(&str, &str, &[Program]); 13] = {
    use Program::{Convert, Eval, Infer, Preprocess, Train};
    const TRAINER: &[Program] = &[Train, Infer, Eval];
    const EVERY: &[Program] = &[Train, Infer, Eval, Preprocess, Convert];
    [
        ("--tp", "--tensor-model-parallel-size", TRAINER),
        ("--pp", "--pipeline-model-parallel-size", TRAINER),
        ("--ep", "--expert-model-parallel-size", TRAINER),
        ("--cp", "--context-parallel-size", TRAINER),
        ("--tp", "--target-tensor-parallel-size", &[Convert]),
        ("--pp", "--target-pipeline-parallel-size", &[Convert]),
        ("--ep", "--target-expert-parallel-size", &[Convert]),
        ("--vpp", "--num-layers-per-virtual-pipeline-stage", &[Convert]),
        ("--load", "--load-dir", &[Convert]),
        ("--save", "--save-dir", &[Convert]),
        ("-n", "--max-new-tokens", &[Infer]),
        ("-q", "--quiet", EVERY),
        ("-v", "--verbose", EVERY),
    ]
};

/// The upstream programs that one of ours replaces, with their versions.
fn tools(program: Program) -> &'static [(&'static str, Versions)] {
    match program {
        Program::Train => &[("train", Versions::Both)],
        Program::Infer => &[("infer", Versions::Both)],
        Program::Eval => &[("eval", Versions::Both)],
        Program::Preprocess => &[("preprocess", Versions::Both)],
        Program::Convert => &[("convert1", Versions::V2), ("convert2", Versions::Head)],
    }
}

/// Columns of a line of a table, without its comments.
fn table<const N: usize>(text: &'static str) -> impl Iterator<Item = [&'static str; N]> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let columns: Vec<&'static str> = line.split('\t').collect();
        columns
            .try_into()
            .unwrap_or_else(|c: Vec<_>| panic!("expected {N} columns, found {}: {line}", c.len()))
    })
}

/// Upstream's facts of a flag: a line of `flags.tsv`.
type Fact = [&'static str; 8];

fn facts() -> impl Iterator<Item = Fact> {
    table(include_str!("flags.tsv"))
}

/// Whether some program of upstream has this flag.
pub(super) fn is_known(flag: &str) -> bool {
    facts().any(|fact| fact[0] == flag)
}

/// What becomes of a flag that a program does not act on: a line of `others.tsv` without its flags.
struct Other {
    status: Status,
    warns: Warns,
    neutral: Vec<&'static str>,
    reason: &'static str,
}

/// The flags that `tool` takes or refuses without acting on them.
fn others(tool: &str) -> BTreeMap<&'static str, Other> {
    let list = |text: &'static str| text.split(',').filter(|t| !t.is_empty()).collect();
    let mut found = BTreeMap::new();
    for [status, tools, neutral, reason, flags] in table(include_str!("others.tsv")) {
        if !tools.split(',').any(|t| t == tool) {
            continue;
        }
        let (status, warns) = match status {
            "accepted" => (Status::Accepted, Warns::Never),
            "warned" => (Status::Accepted, Warns::Asking),
            "missing" => (Status::Accepted, Warns::Always),
            "refused" => (Status::Refused, Warns::Never),
            other => panic!("others.tsv: status {other}"),
        };
        for flag in flags.split(' ') {
            let other = Other { status, warns, neutral: list(neutral), reason };
            assert!(found.insert(flag, other).is_none(), "others.tsv: {flag} of {tool} stands there twice");
        }
    }
    found
}

fn upstream_flag([flag, _, versions, arity, kind, dest, default, choices]: Fact, here: Versions) -> Flag {
    let json = |text: &str| -> Value {
        serde_json::from_str(text).unwrap_or_else(|e| panic!("flags.tsv: default of {flag}: {e}"))
    };
    let pair = |text: &'static str| text.split_once('|').unwrap_or((text, text));
    let defaults = pair(default);
    Flag {
        flag,
        ours: false,
        arity: match arity {
            "0" => Arity::Zero,
            "1" => Arity::One,
            "?" => Arity::Optional,
            "*" => Arity::Any,
            "+" => Arity::Some,
            other => panic!("flags.tsv: arity {other} of {flag}"),
        },
        kind: match kind {
            "true" => ValueKind::True,
            "false" => ValueKind::False,
            "str" => ValueKind::Str,
            "int" => ValueKind::Int,
            "float" => ValueKind::Float,
            "bool" => ValueKind::Bool,
            "json" => ValueKind::Json,
            "freq" => ValueKind::Freq,
            "think" => ValueKind::Think,
            other => panic!("flags.tsv: type {other} of {flag}"),
        },
        status: Status::Accepted,
        warns: Warns::Never,
        neutral: Vec::new(),
        group: "Other",
        note: String::new(),
        alias_of: None,
        unset: Unset::Default,
        here,
        upstream: match versions {
            "both" => Versions::Both,
            "v2.0.0" => Versions::V2,
            "head" => Versions::Head,
            other => panic!("flags.tsv: versions {other} of {flag}"),
        },
        dest: pair(dest),
        default: (json(defaults.0), json(defaults.1)),
        choices: choices.split(',').filter(|c| !c.is_empty()).collect(),
        range: None,
        left: true,
    }
}

/// Why a flag that other programs act on does nothing: which they are.
fn elsewhere(flag: &str) -> String {
    let mut rows = table::<2>(include_str!("elsewhere.tsv"));
    let found = rows.find(|[_, flags]| flags.split(' ').any(|f| f == flag));
    found
        .map_or_else(|| "no effect in this program".to_owned(), |[programs, _]| format!("acts in {programs}"))
}

/// The table of what programs leave to others, as `elsewhere.tsv` has it, from the command lines of all programs.
pub fn elsewhere_table(lines: &[&Line]) -> String {
    let mut flags: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for flag in lines.iter().flat_map(|line| line.left_to_others()).collect::<BTreeSet<_>>() {
        let acts = |line: &&&Line| line.rows.iter().any(|row| row.flag == flag && row.acts());
        let programs: Vec<&str> = lines.iter().filter(acts).map(|line| line.name).collect();
        flags.entry(programs.join(" and ")).or_default().push(flag);
    }
    let rows = flags.into_iter().map(|(programs, flags)| format!("{programs}\t{}\n", flags.join(" ")));
    let head =
        "# Which programs act on flags that others leave to them; made by `cargo xtask docs`, do not edit.\n";
    std::iter::once(head.to_owned()).chain(rows).collect()
}

impl Flag {
    /// A flag of ours.
    fn own(entry: &Entry, here: Versions) -> Option<Self> {
        let own = entry.own?;
        let default: Value = serde_json::from_str(own.default)
            .unwrap_or_else(|e| panic!("default of {}: {e}: {}", entry.flag, own.default));
        Some(Self {
            flag: entry.flag,
            ours: true,
            arity: entry.arity,
            kind: entry.kind,
            status: Status::Acts,
            warns: Warns::Never,
            neutral: Vec::new(),
            group: entry.group,
            note: entry.help.to_owned(),
            alias_of: None,
            unset: entry.unset,
            here,
            upstream: Versions::Both,
            dest: (own.dest, own.dest),
            default: (default.clone(), default),
            choices: own.choices.split(',').filter(|c| !c.is_empty()).collect(),
            range: entry.range(),
            left: false,
        })
    }

    /// Makes it what `entry` says: the program reads it.
    fn act(&mut self, entry: &Entry) {
        let switch = matches!(self.kind, ValueKind::True | ValueKind::False);
        let fits = match entry.kind {
            ValueKind::Json => true,
            ValueKind::True => switch,
            ValueKind::Int => matches!(self.kind, ValueKind::Int | ValueKind::Freq),
            ValueKind::Float => matches!(self.kind, ValueKind::Int | ValueKind::Float),
            _ => !switch,
        };
        assert!(fits, "{}: values of kind {:?} are read as {:?}", self.flag, self.kind, entry.kind);
        let several = matches!(self.arity, Arity::Any | Arity::Some);
        assert!(
            !several || entry.arity == Arity::Some || entry.kind == ValueKind::Json,
            "{}: a list is read as one value",
            self.flag
        );
        (self.status, self.group, self.range, self.left) = (Status::Acts, entry.group, entry.range(), false);
        self.unset = entry.unset;
        entry.help.clone_into(&mut self.note);
    }
}

/// Upstream's other names of what the program acts on: a value under the same name is the same value.
fn other_names(rows: &mut [Flag], here: Versions) {
    let of_upstream = |row: &Flag| !row.ours && row.here == here;
    let mut acting: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (i, row) in rows.iter().enumerate().filter(|(_, row)| row.acts() && of_upstream(row)) {
        acting.entry(row.dest).or_default().push(i);
    }
    for i in 0..rows.len() {
        let row = &rows[i];
        if !of_upstream(row) || !row.left {
            continue;
        }
        let mut named = acting.get(&row.dest).into_iter().flatten().map(|&i| &rows[i]);
        let Some(same) = named.find(|same| same.kind == row.kind) else { continue };
        let (group, range, note, unset) = (same.group, same.range, same.note.clone(), same.unset);
        rows[i] = Flag { status: Status::Acts, group, range, note, unset, left: false, ..row.clone() };
    }
}

/// The command line of a program: its flags and what becomes of each.
#[derive(Debug)]
pub struct Line {
    /// The program.
    pub program: Program,
    /// Its name.
    pub name: &'static str,
    /// What it is, with examples.
    pub about: &'static str,
    rows: Vec<Flag>,
    by_flag: BTreeMap<&'static str, Vec<usize>>,
    by_dest: BTreeMap<&'static str, Vec<usize>>,
}

impl Line {
    /// The command line of a program that reads `O`, and the options common to every program.
    ///
    /// # Panics
    /// If tables and options do not fit together: a flag that is read twice, or read and listed as one that does nothing, or
    /// one that is not upstream's; a value of another kind. A test that makes the line finds it.
    pub fn new<O: Options>(program: Program, name: &'static str, about: &'static str) -> Self {
        let entries = [Common::entries(), vec![super::options::upstream()], O::entries()].concat();
        let mut read: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in &entries {
            read.entry(entry.flag).or_default().push(entry);
        }
        let mut rows: Vec<Flag> = Vec::new();
        for &(tool, here) in tools(program) {
            let others = others(tool);
            let here_too =
                |e: &&Entry| e.versions == Versions::Both || e.versions == here || here == Versions::Both;
            for fact in facts().filter(|fact| fact[1].split(',').any(|t| t == tool)) {
                let mut flag = upstream_flag(fact, here);
                let spelling = flag.flag;
                let mut readers = read.get(spelling).into_iter().flatten().copied().filter(here_too);
                match (readers.next(), others.get(flag.flag)) {
                    (Some(entry), None) => flag.act(entry),
                    (None, Some(other)) => {
                        (flag.status, flag.warns, flag.neutral) =
                            (other.status, other.warns, other.neutral.clone());
                        other.reason.clone_into(&mut flag.note);
                        flag.left = false;
                    }
                    (Some(_), Some(_)) => {
                        panic!("{name}: {} is read, and others.tsv says that it is not", flag.flag)
                    }
                    (None, None) => flag.note = elsewhere(flag.flag),
                }
                assert!(readers.next().is_none(), "{name}: {} is read by two options", flag.flag);
                rows.push(flag);
            }
            // Ours is what upstream's program lacks.
            let known: BTreeSet<&str> = rows.iter().filter(|r| r.here == here).map(|r| r.flag).collect();
            let idle = others.keys().find(|flag| !known.contains(*flag));
            assert!(idle.is_none(), "others.tsv: {tool} of upstream has no {idle:?}");
            let own = entries.iter().filter(here_too).filter(|e| !known.contains(e.flag));
            let own: Vec<Flag> = own.filter_map(|e| Flag::own(e, here)).collect();
            rows.extend(own);
            other_names(&mut rows, here);
        }
        for (short, long, _) in SHORT.iter().filter(|s| s.2.contains(&program)) {
            let of: Vec<Flag> = rows.iter().filter(|r| r.flag == *long).cloned().collect();
            rows.extend(of.into_iter().map(|flag| Flag {
                flag: short,
                ours: true,
                note: if flag.acts() { format!("short for {long}") } else { flag.note.clone() },
                alias_of: Some(long),
                upstream: Versions::Both,
                ..flag
            }));
        }
        rows.sort_by_key(|row| row.flag);
        let mut by_flag: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        let mut by_dest: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (i, r) in rows.iter().enumerate() {
            by_flag.entry(r.flag).or_default().push(i);
            by_dest.entry(r.dest.0).or_default().push(i);
            if r.dest.1 != r.dest.0 {
                by_dest.entry(r.dest.1).or_default().push(i);
            }
        }
        for entry in &entries {
            assert!(by_flag.contains_key(entry.flag), "{name}: upstream has no {}", entry.flag);
        }
        Self { program, name, about, rows, by_flag, by_dest }
    }

    /// The line with other words for flags that mean less, or something else, in this program than in those that share them.
    ///
    /// # Panics
    /// For a flag that the program does not act on.
    #[must_use]
    pub fn with_help(mut self, texts: &[(&str, &str)]) -> Self {
        for (flag, help) in texts {
            let mut named = self.rows.iter_mut().filter(|row| row.flag == *flag && row.acts()).peekable();
            assert!(named.peek().is_some(), "{}: no help is shown for {flag}", self.name);
            named.for_each(|row| (*help).clone_into(&mut row.note));
        }
        self
    }

    /// Its flags in `upstream`, in the order of spelling.
    pub fn flags(&self, upstream: Upstream) -> impl Iterator<Item = &Flag> {
        self.rows.iter().filter(move |f| f.is_in(upstream))
    }

    /// The flag in `upstream`.
    pub fn find(&self, flag: &str, upstream: Upstream) -> Option<&Flag> {
        self.rows_of(flag).find(|f| f.is_in(upstream))
    }

    /// The flag in `upstream`, or else in the other version.
    pub(super) fn find_anyhow(&self, flag: &str, upstream: Upstream) -> Option<&Flag> {
        self.find(flag, upstream).or_else(|| self.rows_of(flag).next())
    }

    fn rows_of(&self, flag: &str) -> impl Iterator<Item = &Flag> {
        self.by_flag.get(flag).into_iter().flatten().map(|&i| &self.rows[i])
    }

    /// The flag that keeps its value under `dest` (either version's name); upstream's spelling before short ones.
    pub(super) fn by_dest(&self, dest: &str, upstream: Upstream) -> Option<&Flag> {
        let rows = || self.by_dest.get(dest).into_iter().flatten().map(|&i| &self.rows[i]);
        rows()
            .find(|f| f.is_in(upstream) && !f.ours)
            .or_else(|| rows().find(|f| f.is_in(upstream)))
            .or_else(|| rows().next())
    }

    /// The flags of upstream that this program neither acts on nor gives a reason for: another one has to act on them.
    pub fn left_to_others(&self) -> impl Iterator<Item = &'static str> {
        self.rows.iter().filter(|f| !f.ours && f.left).map(|f| f.flag)
    }
}
