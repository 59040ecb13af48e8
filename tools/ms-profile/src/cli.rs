//! The command line.

use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Measures this machine, reads the traces of ms-train, and examines an installation of CANN.
#[derive(Debug, Parser)]
#[command(name = "ms-profile", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Command to run.
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
    /// Measures this machine: instruction set, threads, f32 and bf16 throughput, memory bandwidth.
    Cpu {
        /// Number of threads to measure with (default: all cores).
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
        threads: Option<u32>,
        /// Shorter measurement, for scripts.
        #[arg(long)]
        quick: bool,
    },
    /// Shows where the time of the iterations recorded in a trace went.
    Report {
        /// Trace file (`trace_view.json`), or a folder with one; of several the newest.
        #[arg(value_name = "TRACE")]
        trace: PathBuf,
        /// Number of operations to list.
        #[arg(long, value_name = "N", default_value_t = 20)]
        top: usize,
    },
    /// Draws a pipeline schedule, with its bubble and the activations that stages keep.
    Schedule(Schedule),
    /// Checks the CANN installation for Ascend NPUs: libraries, symbols, devices, operators, collectives.
    NpuDoctor(NpuDoctor),
}

/// Arguments of `schedule`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each stage has two lines: the number of the micro-batch (0-9, a-z, then from 0 again), and its pass: \
F forward, B backward, I input gradients only, W weight gradients; in chunks after the first f, b, i, w. The forward pass of a \
chunk takes one column, its backward pass two.

Examples:
  ms-profile schedule --pipeline-model-parallel-size 4 --micro-batches 8
  ms-profile schedule --pipeline-model-parallel-size 4 --micro-batches 8 --schedules-method zero-bubble
  ms-profile schedule --pipeline-model-parallel-size 4 --micro-batches 8 --num-virtual-stages-per-pipeline-rank 2 --json"
)]
pub(crate) struct Schedule {
    /// Number of pipeline stages.
    #[arg(long, alias = "pp", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub pipeline_model_parallel_size: u32,
    /// Number of micro-batches per iteration on a data-parallel rank.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub micro_batches: u32,
    /// Interleaved schedule: number of chunks (virtual stages) per stage.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub num_virtual_stages_per_pipeline_rank: u32,
    /// Number of layers of the model; with --num-layers-per-virtual-pipeline-stage this gives the chunks per stage.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub num_layers: Option<u32>,
    /// Number of layers per chunk, instead of chunks per stage.
    #[arg(
        long,
        value_name = "N",
        requires = "num_layers",
        conflicts_with = "num_virtual_stages_per_pipeline_rank"
    )]
    pub num_layers_per_virtual_pipeline_stage: Option<u32>,
    /// Number of layers of each stage, or of each chunk in the order in which a micro-batch passes them; the time of a chunk
    /// is proportional to its layers.
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(0..=1024),
        conflicts_with_all = ["num_virtual_stages_per_pipeline_rank", "num_layers", "schedules_method"]
    )]
    pub num_layer_list: Option<Vec<u32>>,
    /// Overlap forward and backward passes of different micro-batches; overlapped passes are drawn one after the other.
    #[arg(long)]
    pub moe_fb_overlap: bool,
    /// Count kept activations with recomputation in the bubble: passes beyond the pipeline's number of chunks keep their
    /// input only.
    #[arg(long)]
    pub recompute_in_bubble: bool,
    /// Pipeline schedule (default: 1F1B, interleaved if stages have several chunks).
    #[arg(long, value_name = "NAME", value_parser = ["zero-bubble", "dualpipev"])]
    pub schedules_method: Option<String>,
    /// Number of micro-batches that pass a chunk before the next chunk runs (default: number of stages).
    #[arg(long, value_name = "N")]
    pub microbatch_group_size_per_vp_stage: Option<u32>,
    /// Version of upstream whose interleaved order to follow: with as many micro-batches as stages v2.0.0 runs all forward
    /// passes first.
    #[arg(long, value_name = "VERSION", default_value = "v2.0.0", value_parser = ["v2.0.0", "head"])]
    pub upstream: String,
    /// Width of the drawing in columns (default: the variable COLUMNS, or 120).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(20..=10000))]
    pub width: Option<u32>,
}

/// Arguments of `npu-doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "The exit code is 1 if a check fails; without CANN the first one does.

Examples:
  ms-profile npu-doctor
  ms-profile npu-doctor --devices 0,1 --report npu.json")]
pub(crate) struct NpuDoctor {
    /// Devices to check (default: all that are visible).
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub devices: Vec<i32>,
    /// Do not check collectives, for a machine whose other devices are in use.
    #[arg(long)]
    pub no_collectives: bool,
    /// Also write the JSON report to a file, to attach to an issue.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}
