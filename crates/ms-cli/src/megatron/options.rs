//! Typed options: a flag is one value with its meaning, its range and the place that reads it.
//!
//! The macro `options!` (`macros.rs`) turns a list of flags into a struct, and into the list of what the program supports. So
//! a supported flag is a field, and a field that nobody reads is refused by the compiler's lint.

use serde_json::Value;
use std::path::PathBuf;

use super::args::Args;
use super::range::Range;
use super::table::{Arity, Upstream, ValueKind, Versions};
use crate::Usage;

/// What a program says of a flag that it reads.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Spelling, with dashes.
    pub flag: &'static str,
    /// What it means, in a line.
    pub help: &'static str,
    /// Heading in the help.
    pub group: &'static str,
    /// Interval of a number, as [`Range::parse`] reads it; empty for what is no number.
    pub range: &'static str,
    /// A flag of ours; `None`: upstream's, whose facts are in the table.
    pub own: Option<Own>,
    /// Versions in which it is read.
    pub versions: Versions,
    /// Number of values, of flags of ours.
    pub arity: Arity,
    /// What it is read as.
    pub kind: ValueKind,
    /// The commands that read it, of a program with several; none named: whatever the program does.
    pub by: &'static [&'static str],
    /// What holds when it is not given.
    pub unset: Unset,
}

/// What holds when a flag is not given, as help says it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unset {
    /// The default of the table.
    #[default]
    Default,
    /// What the help line says; the default of the table holds in upstream's programs alone.
    Otherwise,
    /// This value, of which the table has another spelling.
    Is(&'static str),
}

/// What upstream's table has of its flags, for a flag of ours.
#[derive(Debug, Clone, Copy)]
pub struct Own {
    /// Name in the parsed object.
    pub dest: &'static str,
    /// Value when it is not given, as JSON.
    pub default: &'static str,
    /// Values with commas between them; empty: any.
    pub choices: &'static str,
}

/// A flag of ours without a default that takes any value.
pub const fn own(dest: &'static str) -> Option<Own> {
    Some(Own { dest, default: "null", choices: "" })
}

/// A flag of ours with a default, as JSON.
pub const fn own_or(dest: &'static str, default: &'static str) -> Option<Own> {
    Some(Own { dest, default, choices: "" })
}

/// A flag of ours with a default, as JSON, and choices, with commas between them.
pub const fn own_of(dest: &'static str, default: &'static str, choices: &'static str) -> Option<Own> {
    Some(Own { dest, default, choices })
}

impl Entry {
    /// A flag that is read as `T`.
    pub const fn new<T: Field>(flag: &'static str, help: &'static str, group: &'static str) -> Self {
        let (arity, kind) = T::FORM;
        Self {
            flag,
            help,
            group,
            range: "",
            own: None,
            versions: Versions::Both,
            arity,
            kind,
            by: &[],
            unset: Unset::Default,
        }
    }

    pub(super) fn range(&self) -> Option<Range> {
        let parsed = |text| Range::parse(text).unwrap_or_else(|| panic!("range {text} of {}", self.flag));
        (!self.range.is_empty()).then(|| parsed(self.range))
    }
}

/// A group of options that is read from a command line.
pub trait Options: Sized {
    /// The flags behind its fields.
    fn entries() -> Vec<Entry>;

    /// Its values.
    ///
    /// # Errors
    /// [`Usage`] for a number below zero where a size is expected.
    fn read(from: &Reader<'_>) -> Result<Self, Usage>;
}

/// What values are taken from; only [`Args::read`] makes one, for [`Options`].
#[derive(Debug)]
pub struct Reader<'a>(pub(super) &'a Args);

impl Reader<'_> {
    /// The value of a flag.
    ///
    /// # Errors
    /// As [`Options::read`].
    ///
    /// # Panics
    /// If the program has no such flag: a group of options that is read without being part of its line.
    pub fn take<T: Field>(&self, flag: &'static str) -> Result<T, Usage> {
        Ok(self.named(flag)?.1)
    }

    /// The value of a flag, and the name that it is kept under.
    ///
    /// # Errors
    /// As [`Options::read`].
    ///
    /// # Panics
    /// As [`Reader::take`].
    pub fn named<T: Field>(&self, flag: &'static str) -> Result<(&'static str, T), Usage> {
        let args = self.0;
        let found = args.line().find_anyhow(flag, args.upstream());
        let row = found.unwrap_or_else(|| panic!("{} has no {flag}", args.line().name));
        let dest = row.dest(args.upstream());
        let value = args.value(dest);
        Ok((dest, T::of(Found { flag, value, written: args.written(dest) })?))
    }

    /// Whose behaviour was asked for.
    pub fn upstream(&self) -> Upstream {
        self.0.upstream()
    }

    /// The command line.
    pub fn args(&self) -> &Args {
        self.0
    }
}

/// A flag's value on a command line.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    flag: &'static str,
    value: Option<&'a Value>,
    written: Option<&'static str>,
}

/// A type that flags are read as.
pub trait Field: Sized {
    /// Number and type of a flag's values, for flags of ours.
    const FORM: (Arity, ValueKind);

    /// Reads it.
    ///
    /// # Errors
    /// As [`Options::read`].
    fn of(found: Found<'_>) -> Result<Self, Usage>;
}

/// A value that knows whether it was given.
#[derive(Clone, Debug)]
pub struct Given<T> {
    /// The value, or its default.
    pub value: T,
    /// How the flag was written, if it was given.
    pub written: Option<&'static str>,
}

impl<T> Given<T> {
    /// Whether it was given, on the line or in a configuration file.
    pub fn is_given(&self) -> bool {
        self.written.is_some()
    }

    /// The value, if it was given.
    pub fn given(&self) -> Option<&T> {
        self.is_given().then_some(&self.value)
    }
}

impl<T: Field> Field for Given<T> {
    const FORM: (Arity, ValueKind) = T::FORM;

    fn of(found: Found<'_>) -> Result<Self, Usage> {
        Ok(Self { value: T::of(found)?, written: found.written })
    }
}

impl Field for bool {
    const FORM: (Arity, ValueKind) = (Arity::Zero, ValueKind::True);

    fn of(found: Found<'_>) -> Result<Self, Usage> {
        Ok(found.value.and_then(Value::as_bool).unwrap_or(false))
    }
}

impl Field for Vec<String> {
    const FORM: (Arity, ValueKind) = (Arity::Some, ValueKind::Str);

    fn of(found: Found<'_>) -> Result<Self, Usage> {
        let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
        Ok(match found.value {
            None => Vec::new(),
            Some(Value::Array(items)) => items.iter().map(text).collect(),
            Some(one) => vec![text(one)],
        })
    }
}

/// A single value.
pub trait Scalar: Sized {
    /// Its type, for flags of ours.
    const KIND: ValueKind;

    /// Reads it from what the parser made of a text; `None` if it is of another type.
    ///
    /// # Errors
    /// As [`Options::read`].
    fn of(flag: &str, value: &Value) -> Result<Option<Self>, Usage>;
}

impl<T: Scalar> Field for Option<T> {
    const FORM: (Arity, ValueKind) = (Arity::One, T::KIND);

    fn of(found: Found<'_>) -> Result<Self, Usage> {
        found.value.map_or(Ok(None), |value| T::of(found.flag, value))
    }
}

fn int(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

impl Scalar for i64 {
    const KIND: ValueKind = ValueKind::Int;

    fn of(_: &str, value: &Value) -> Result<Option<Self>, Usage> {
        Ok(int(value))
    }
}

impl Scalar for usize {
    const KIND: ValueKind = ValueKind::Int;

    fn of(flag: &str, value: &Value) -> Result<Option<Self>, Usage> {
        let below = |i| Usage(format!("{flag}: expected a number of at least 0, got {i}"));
        int(value).map(|i| Self::try_from(i).map_err(|_| below(i))).transpose()
    }
}

impl Scalar for u64 {
    const KIND: ValueKind = ValueKind::Int;

    fn of(flag: &str, value: &Value) -> Result<Option<Self>, Usage> {
        Ok(<usize as Scalar>::of(flag, value)?.map(|n| n as Self))
    }
}

impl Scalar for f64 {
    const KIND: ValueKind = ValueKind::Float;

    fn of(_: &str, value: &Value) -> Result<Option<Self>, Usage> {
        Ok(value.as_f64().or_else(|| super::convert::python_float(value.as_str()?)))
    }
}

impl Scalar for String {
    const KIND: ValueKind = ValueKind::Str;

    fn of(_: &str, value: &Value) -> Result<Option<Self>, Usage> {
        Ok(value.as_str().map(str::to_owned))
    }
}

/// Whatever the parser made of it.
impl Scalar for Value {
    const KIND: ValueKind = ValueKind::Json;

    fn of(_: &str, value: &Value) -> Result<Option<Self>, Usage> {
        Ok(Some(value.clone()))
    }
}

impl Scalar for PathBuf {
    const KIND: ValueKind = ValueKind::Str;

    fn of(_: &str, value: &Value) -> Result<Option<Self>, Usage> {
        Ok(value.as_str().map(Self::from))
    }
}

/// Values of flags that have a default.
macro_rules! with_default {
    ($($ty:ty),*) => {$(
        impl Field for $ty {
            const FORM: (Arity, ValueKind) = (Arity::One, <$ty as Scalar>::KIND);

            fn of(found: Found<'_>) -> Result<Self, Usage> {
                let value = Option::<$ty>::of(found)?;
                Ok(value.unwrap_or_else(|| panic!("{}: it has no default to be read without", found.flag)))
            }
        }
    )*};
}
with_default!(i64, usize, u64, f64, String, PathBuf);

/// `--upstream`, which decides before anything else is read.
pub(super) fn upstream() -> Entry {
    let help = "version of upstream whose flags and behaviour to follow";
    let own = own_of("upstream", "\"v2.0.0\"", "v2.0.0,head");
    Entry { own, ..Entry::new::<String>("--upstream", help, "Configuration") }
}

/// The version that the parser was told.
impl Options for Upstream {
    fn entries() -> Vec<Entry> {
        Vec::new()
    }

    fn read(from: &Reader<'_>) -> Result<Self, Usage> {
        Ok(from.upstream())
    }
}

impl<A: Options, B: Options> Options for (A, B) {
    fn entries() -> Vec<Entry> {
        [A::entries(), B::entries()].concat()
    }

    fn read(from: &Reader<'_>) -> Result<Self, Usage> {
        Ok((A::read(from)?, B::read(from)?))
    }
}
