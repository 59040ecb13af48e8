//! The command line.

use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Measures this machine, reads the traces of ms-train, and examines an installation of CANN.
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
  ms-train --load model --tokenizer-name-or-path tok --data-path data/corpus_text_document --seq-length 512 \\
    --micro-batch-size 1 --global-batch-size 4 --train-iters 10 --lr 1e-4 \\
    --profile --profile-step-start 5 --profile-step-end 8 --profile-save-path trace
  ms-profile report trace
  ms-profile npu-doctor --report npu.json";

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
    /// What is there of CANN for Ascend NPUs and whether it works: libraries, functions, devices, every operator that
    /// training would use against its formula, collectives across devices.
    NpuDoctor(NpuDoctor),
}

/// Arguments of `npu-doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code 1 if a check fails; without CANN that is the first one.

Examples:
  ms-profile npu-doctor
  ms-profile npu-doctor --devices 0,1 --report npu.json")]
pub(crate) struct NpuDoctor {
    /// Devices to check (default: all that this process sees).
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub devices: Vec<i32>,
    /// Do not try collectives: for a machine whose other devices are in use.
    #[arg(long)]
    pub no_collectives: bool,
    /// Also write the JSON object to a file, to attach to an issue.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}
