//! The table of flags: rows of `flags.tsv`, read once.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::Value;

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

/// Whose spelling and behaviour is followed.
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
pub enum Kind {
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
    /// It does what upstream's does.
    Supported,
    /// It is taken and changes nothing.
    Accepted,
    /// It is an error when it asks for something.
    Refused,
}

/// One row: a flag in a set of programs.
#[derive(Debug, Clone)]
pub struct Flag {
    /// Spelling, with dashes.
    pub flag: &'static str,
    /// Whether the row is no upstream flag.
    pub ours: bool,
    /// Number of values.
    pub arity: Arity,
    /// Type of values.
    pub kind: Kind,
    /// What this project does with it.
    pub status: Status,
    /// Values of a refused flag that ask for nothing, besides its default.
    pub neutral: Vec<&'static str>,
    /// Heading in the help.
    pub group: &'static str,
    /// Help line, or the reason of the status.
    pub note: &'static str,
    tools: u8,
    uses: u8,
    in_v2: bool,
    in_head: bool,
    dest: (&'static str, &'static str),
    default: (Value, Value),
    choices: Vec<&'static str>,
    range: Option<Range>,
}

impl Flag {
    /// Values that a supported number may have.
    pub fn range(&self) -> Option<Range> {
        self.range
    }

    /// Name under which the value is kept.
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

    /// Whether `program` has this flag in `upstream`; our own and supported flags are in both.
    pub fn is_in(&self, program: Program, upstream: Upstream) -> bool {
        self.tools & bit(program, upstream) != 0
            && (self.ours || self.in_upstream(upstream) || self.supported_by(program, upstream))
    }

    /// Whether it is an upstream flag of that version.
    pub fn in_upstream(&self, upstream: Upstream) -> bool {
        !self.ours && if upstream == Upstream::V2_0_0 { self.in_v2 } else { self.in_head }
    }

    /// Whether `program` acts on it.
    pub fn supported_by(&self, program: Program, upstream: Upstream) -> bool {
        self.status == Status::Supported && self.uses & bit(program, upstream) != 0
    }
}

const TOOLS: [&str; 6] = ["train", "infer", "eval", "preprocess", "convert1", "convert2"];

fn bit(program: Program, upstream: Upstream) -> u8 {
    match program {
        Program::Train => 1,
        Program::Infer => 2,
        Program::Eval => 4,
        Program::Preprocess => 8,
        Program::Convert => {
            if upstream == Upstream::V2_0_0 {
                16
            } else {
                32
            }
        }
    }
}

fn mask(names: &str) -> u8 {
    TOOLS
        .iter()
        .enumerate()
        .filter(|(_, t)| names.split(',').any(|n| n == **t))
        .fold(0, |m, (i, _)| m | 1 << i)
}

fn row(line: &'static str) -> Flag {
    let c: Vec<&'static str> = line.split('\t').collect();
    let [
        flag,
        tools,
        versions,
        arity,
        kind,
        dest,
        default,
        choices,
        range,
        status,
        uses,
        neutral,
        group,
        note,
    ] = c[..]
    else {
        panic!("flags.tsv: {} columns in {line}", c.len())
    };
    let list = |text: &'static str| text.split(',').filter(|t| !t.is_empty()).collect();
    let json = |text: &str| -> Value {
        serde_json::from_str(text).unwrap_or_else(|e| panic!("flags.tsv: default of {flag}: {e}"))
    };
    let pair = |text: &'static str| text.split_once('|').unwrap_or((text, text));
    let defaults = pair(default);
    Flag {
        flag,
        ours: versions == "ours",
        arity: match arity {
            "0" => Arity::Zero,
            "1" => Arity::One,
            "?" => Arity::Optional,
            "*" => Arity::Any,
            "+" => Arity::Some,
            other => panic!("flags.tsv: arity {other} of {flag}"),
        },
        kind: match kind {
            "true" => Kind::True,
            "false" => Kind::False,
            "str" => Kind::Str,
            "int" => Kind::Int,
            "float" => Kind::Float,
            "bool" => Kind::Bool,
            "json" => Kind::Json,
            "freq" => Kind::Freq,
            "think" => Kind::Think,
            other => panic!("flags.tsv: type {other} of {flag}"),
        },
        choices: list(choices),
        range: (!range.is_empty())
            .then(|| Range::parse(range).unwrap_or_else(|| panic!("flags.tsv: range {range} of {flag}"))),
        status: match status {
            "supported" => Status::Supported,
            "accepted" => Status::Accepted,
            "refused" => Status::Refused,
            other => panic!("flags.tsv: status {other} of {flag}"),
        },
        neutral: list(neutral),
        group,
        note,
        tools: mask(tools),
        uses: mask(uses),
        in_v2: versions != "head",
        in_head: versions != "v2.0.0",
        dest: pair(dest),
        default: (json(defaults.0), json(defaults.1)),
    }
}

struct Table {
    rows: Vec<Flag>,
    by_flag: BTreeMap<&'static str, Vec<usize>>,
    by_dest: BTreeMap<&'static str, Vec<usize>>,
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let rows: Vec<Flag> =
            include_str!("flags.tsv").lines().filter(|l| !l.starts_with('#')).map(row).collect();
        let mut by_flag: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        let mut by_dest: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (i, r) in rows.iter().enumerate() {
            by_flag.entry(r.flag).or_default().push(i);
            by_dest.entry(r.dest.0).or_default().push(i);
            if r.dest.1 != r.dest.0 {
                by_dest.entry(r.dest.1).or_default().push(i);
            }
        }
        Table { rows, by_flag, by_dest }
    })
}

/// Every row of `program` in `upstream`, in the order of spelling.
pub fn flags(program: Program, upstream: Upstream) -> impl Iterator<Item = &'static Flag> {
    table().rows.iter().filter(move |f| f.is_in(program, upstream))
}

pub(super) fn find(flag: &str, program: Program, upstream: Upstream) -> Option<&'static Flag> {
    rows_of(flag).find(|f| f.is_in(program, upstream))
}

/// Rows of a flag in any program and version.
pub(super) fn rows_of(flag: &str) -> impl Iterator<Item = &'static Flag> {
    let t = table();
    t.by_flag.get(flag).into_iter().flatten().map(|&i| &t.rows[i])
}

/// The row that keeps its value under `dest` (either version's name); upstream's spelling before short ones.
pub(super) fn by_dest(dest: &str, program: Program, upstream: Upstream) -> Option<&'static Flag> {
    let t = table();
    let rows = || t.by_dest.get(dest).into_iter().flatten().map(|&i| &t.rows[i]);
    rows()
        .find(|f| f.is_in(program, upstream) && !f.ours)
        .or_else(|| rows().find(|f| f.is_in(program, upstream)))
        .or_else(|| {
            rows().find(|f| f.tools & (bit(program, Upstream::V2_0_0) | bit(program, Upstream::Head)) != 0)
        })
}

pub(super) fn spellings(program: Program, upstream: Upstream) -> impl Iterator<Item = &'static str> {
    flags(program, upstream).map(|f| f.flag)
}
