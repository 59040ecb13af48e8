//! The command line.

use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Measures this machine and reads the traces of ms-train.
#[derive(Debug, Parser)]
#[command(name = "ms-profile", version, about, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Flags of every program.
    #[command(flatten)]
    pub common: ms_cli::Common,
}

const EXAMPLES: &str = "Examples:
  ms-profile cpu --json
  ms-train --load model --tokenizer-name-or-path tok --data-path data/corpus_text_document \\
    --seq-length 512 --micro-batch-size 1 --global-batch-size 4 --train-iters 10 --lr 1e-4 \\
    --profile --profile-step-start 5 --profile-step-end 8 --profile-save-path trace
  ms-profile report trace";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Instruction set chosen, threads, and what they reach now: f32, bf16, memory.
    Cpu {
        /// Threads to measure with (default: all cores).
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
        threads: Option<u32>,
        /// Shorter measurement, for scripts.
        #[arg(long)]
        quick: bool,
    },
    /// Where the time of the recorded iterations went.
    Report {
        /// A trace (`trace_view.json`), or a folder that holds one; of several the newest.
        #[arg(value_name = "TRACE")]
        trace: PathBuf,
        /// Operations to list.
        #[arg(long, value_name = "N", default_value_t = 20)]
        top: usize,
    },
}
