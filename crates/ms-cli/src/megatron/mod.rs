//! Megatron's and MindSpeed-LLM's command lines: one table of flags, an argparse-exact parser, help.
//!
//! Upstream's facts about each flag are data (`flags.tsv`, made by `xtask/flags/make_flag_table.py`): which programs parse
//! it, how many values it takes and of which type, under which name the value is stored, its default and choices in v2.0.0
//! and at head. What a program supports is defined by the [`Options`] that it reads; other flags that it accepts without
//! effect or refuses are listed with reasons in `others.tsv`. The three make a [`Line`].

mod args;
mod common;
mod convert;
mod help;
mod levels;
mod options;
mod parse;
mod range;
mod table;

#[cfg(test)]
mod tests;

pub use args::{Args, Explained, Notice, Origin};
pub use common::ConfigFile;
pub use convert::did_you_mean;
pub use help::{command, long_help, model_help, reference_page, short_help, upstream_help, word_help, words};
pub use options::{Entry, Field, Found, Given, Options, Own, Reader, Scalar, Unset, own, own_of, own_or};
pub use parse::{answer, begin, parse, parse_or_exit, take_words};
pub use range::Range;
pub use table::{Arity, Flag, Line, Program, Status, Upstream, ValueKind, Versions, Warns, elsewhere_table};
