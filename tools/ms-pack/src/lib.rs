//! The implementation of `ms-pack`.

mod cli;
mod inspect;
mod pack;
mod record;
mod regroup;
mod samples;
mod verify;

use anyhow::Result;
use cli::{Cli, Command};
use ms_cli::Usage;

/// The command line, for the reference page.
pub fn command() -> clap::Command {
    <cli::Cli as clap::CommandFactory>::command()
}

/// Parses the command line and does what it says.
///
/// # Errors
/// What went wrong; [`Usage`] for a command line that makes no sense.
pub fn run(interrupt: &ms_cli::Interrupt) -> Result<()> {
    let cli: Cli = ms_cli::parse()?;
    cli.common.start_logging();
    match &cli.command {
        None => pack::run(&cli.pack, &cli.common, interrupt),
        Some(Command::Pack(args)) => pack::run(args, &cli.common, interrupt),
        Some(Command::Merge(args)) => regroup::merge(args, &cli.common, interrupt),
        Some(Command::Split(args)) => regroup::split(args, &cli.common, interrupt),
        Some(Command::Cat(args)) => inspect::cat(args),
        Some(Command::Info(args)) => inspect::info(&args.names, cli.common.json),
        Some(Command::Verify(args)) => verify::run(args, &cli.common),
        Some(Command::Samples(args)) => samples::run(args, cli.common.json),
    }
}

/// Mistakes in options are mistakes of the command line.
fn as_usage(error: ms_data::Error) -> anyhow::Error {
    match error {
        ms_data::Error::Options(text) => Usage(text).into(),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_definition_is_sound() {
        super::Cli::command().debug_assert();
    }
}
