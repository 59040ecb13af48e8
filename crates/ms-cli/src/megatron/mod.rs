//! Megatron's and MindSpeed-LLM's command lines: one table of flags, an argparse-exact parser, help.
//!
//! The table (`flags.tsv`, made by `xtask/flags/make_flag_table.py`) says of each flag which programs parse it,
//! how many values it takes and of which type, under which name the value is kept, its default and choices in
//! v2.0.0 and at head, and whether this project supports it, accepts it without effect, or refuses it, and why.
//!
//! ```
//! use ms_cli::megatron::{Program, parse};
//! let args = parse(Program::Train, ["--tp", "2", "--lr", "1e-4", "--bf16"])?;
//! assert_eq!(args.int("tensor_model_parallel_size"), Some(2));
//! assert_eq!(args.float("lr"), Some(1e-4));
//! assert!(args.flag("bf16"));
//! assert_eq!(args.int("micro_batch_size"), None);
//! assert_eq!(args.float("adam_beta2"), Some(0.999)); // the table's default
//! # Ok::<(), ms_cli::Usage>(())
//! ```

mod args;
mod convert;
mod help;
mod parse;
mod range;
mod table;

#[cfg(test)]
mod tests;

pub use args::{Args, Explained, Notice, Origin};
pub use convert::did_you_mean;
pub use help::{command, long_help, model_help, reference_page, short_help, upstream_help, word_help, words};
pub use parse::{answer, parse, parse_or_exit};
pub use range::Range;
pub use table::{Arity, Flag, Kind, Program, Status, Upstream, flags};
