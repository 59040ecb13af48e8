//! The implementation of `ms-preprocess`.

#[macro_use]
#[path = "../../../crates/ms-cli/src/megatron/macros.rs"]
mod macros;

mod cli;
mod curation;
mod empty;
mod memory_estimate;
mod merge;
mod mixture;
mod processes;
mod recognise;
mod run;
mod sentences;

use anyhow::Result;
pub use cli::line;
use cli::{Job, resolve};
use ms_cli::Usage;
use ms_cli::megatron::begin;
use std::io::IsTerminal;

/// Parses the command line and does what it says.
///
/// # Errors
/// What went wrong; [`Usage`] for a command line that makes no sense.
pub fn run(interrupt: &ms_cli::Interrupt) -> Result<()> {
    let Some((_, args)) = begin(line(), 0, |_| false)? else { return Ok(()) };
    match resolve(&args, &args.read()?, !std::io::stdout().is_terminal())? {
        Job::Merge { folder, words, prefix, force } => {
            merge::run(&args, &folder, &words, &prefix, force, interrupt)
        }
        Job::Tokenize(job) => {
            run::tokenize(&args, &job, interrupt).map_err(|error| empty::explained(error, &job))
        }
    }
}

/// Mistakes in options are mistakes of the command line.
fn as_usage(error: ms_data::Error) -> anyhow::Error {
    match error {
        ms_data::Error::Options(text) => Usage(text).into(),
        other => other.into(),
    }
}
