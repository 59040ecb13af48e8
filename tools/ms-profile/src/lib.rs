//! `ms-profile cpu` measures what this machine can do at the moment; `ms-profile report` says where the time of recorded
//! iterations went and what share of the machine's peak they reached; `ms-profile schedule` draws pipelines;
//! `ms-profile npu-doctor` examines a CANN installation.

mod cli;
mod cpu;
mod npu;
pub mod report;
mod schedule;

use anyhow::Result;
use cli::{Cli, Command};

/// The command line, for the reference page.
pub fn command() -> clap::Command {
    <cli::Cli as clap::CommandFactory>::command()
}

/// The program.
///
/// # Errors
/// If a trace cannot be read, a schedule does not exist for the numbers, a check of `npu-doctor` fails, or `MS_ISA` names an
/// instruction set that this machine does not have.
pub fn main() -> Result<()> {
    let cli: Cli = ms_cli::parse()?;
    cli.common.start_logging();
    match cli.command {
        Command::Cpu { threads, quick } => cpu::run(threads.map(|n| n as usize), quick, cli.common.json),
        Command::Schedule(args) => schedule::run(&args, cli.common.json),
        Command::NpuDoctor(args) => npu::run(&args, cli.common.json),
        Command::Report { trace, top } => {
            report::write(&mut std::io::stdout().lock(), &trace, top, cli.common.json)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
