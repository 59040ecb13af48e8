//! Shared by the binaries, so that eight programs behave alike.
//!
//! - [`run`] turns a fallible main into the common exit codes and error lines; [`Usage`] marks mistakes in how a program was
//!   called, [`refuse`] returns one from a function; [`hint`](ResultHint::hint) adds what to do about an error.
//! - [`Common`] holds the flags that every clap-based program has, and sets up logging and [`Progress`].
//! - [`megatron`] is the table of upstream flags with its own argparse-exact parser, for the programs that take Megatron's
//!   and MindSpeed-LLM's command lines.
//!
//! ```no_run
//! use clap::Parser;
//!
//! /// Counts things.
//! #[derive(Parser)]
//! #[command(name = "ms-count")]
//! struct Cli {
//!     #[command(flatten)]
//!     common: ms_cli::Common,
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     ms_cli::run("ms-count", |_interrupt| {
//!         let cli: Cli = ms_cli::parse()?;
//!         cli.common.start_logging();
//!         let bar = cli.common.progress().bar(10, "counting");
//!         bar.finish_and_clear();
//!         Ok(())
//!     })
//! }
//! ```
//!
//! Of the libraries only `ms-options` depends on this one, and nothing here knows what a program computes.

extern crate self as ms_cli; // as the macros name it

#[macro_use]
#[path = "megatron/macros.rs"]
mod macros;

mod cache_files;
mod claim;
mod common;
pub mod env_vars;
mod exit;
mod generate;
mod interrupt;
mod leftovers;
mod logging;
mod machine;
pub mod megatron;
mod progress;

pub use cache_files::{processor_choice, tokenizer_cache};
pub use claim::{Claim, check_prefix, make_folder, make_parent};
pub use common::{Common, parse};
pub use exit::{ResultHint, Usage, report, run, said};
pub use generate::{Artefact, generate};
pub use interrupt::Interrupt;
pub use logging::{LogFormat, Verbosity, start_logging, start_logging_with};
pub use machine::{available_memory, free_bytes, say_bytes, too_little_memory};
pub use progress::Progress;
