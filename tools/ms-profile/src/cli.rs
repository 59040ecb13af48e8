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
    /// Draws an order of work in a pipeline, with its bubble and the activations that stages keep.
    Schedule(Schedule),
    /// What is there of CANN for Ascend NPUs and whether it works: libraries, functions, devices, every operator that
    /// training would use against its formula, collectives across devices.
    NpuDoctor(NpuDoctor),
}

/// Arguments of `schedule`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Two lines a stage: the number of the micro-batch (0-9, a-z, then from 0 again), and what is done with it: \
F forward, B backward, I its gradients by inputs alone, W those by weights; in chunks after the first f, b, i, w. A forward of \
a chunk takes one column, a backward two.

Examples:
  ms-profile schedule --pipeline-model-parallel-size 4 --micro-batches 8
  ms-profile schedule --pipeline-model-parallel-size 4 --micro-batches 8 --schedules-method zero-bubble
  ms-profile schedule --pipeline-model-parallel-size 4 --micro-batches 8 --num-virtual-stages-per-pipeline-rank 2 --json"
)]
pub(crate) struct Schedule {
    /// Stages of the pipeline.
    #[arg(long, alias = "pp", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub pipeline_model_parallel_size: u32,
    /// Micro-batches of an iteration on one data-parallel rank.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub micro_batches: u32,
    /// Chunks of a stage (interleaved).
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub num_virtual_stages_per_pipeline_rank: u32,
    /// Layers of the model: with --num-layers-per-virtual-pipeline-stage they say how many chunks a stage has.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub num_layers: Option<u32>,
    /// Layers of a chunk, instead of chunks of a stage.
    #[arg(
        long,
        value_name = "N",
        requires = "num_layers",
        conflicts_with = "num_virtual_stages_per_pipeline_rank"
    )]
    pub num_layers_per_virtual_pipeline_stage: Option<u32>,
    /// Layers of each stage, or of each chunk of several in the order in which a micro-batch passes them: a chunk takes as
    /// long as it has layers.
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(0..=1024),
        conflicts_with_all = ["num_virtual_stages_per_pipeline_rank", "num_layers", "schedules_method"]
    )]
    pub num_layer_list: Option<Vec<u32>>,
    /// Forward passes go beside backward passes of other micro-batches; those that go together are drawn one behind the other.
    #[arg(long)]
    pub moe_fb_overlap: bool,
    /// Count what stages keep where passes beyond as many as the pipeline has chunks keep only their input.
    #[arg(long)]
    pub recompute_in_bubble: bool,
    /// Order of work; default: one forward, one backward, or interleaved where there are chunks.
    #[arg(long, value_name = "NAME", value_parser = ["zero-bubble", "dualpipev"])]
    pub schedules_method: Option<String>,
    /// Micro-batches that pass a chunk before the next chunk runs (default: the stages).
    #[arg(long, value_name = "N")]
    pub microbatch_group_size_per_vp_stage: Option<u32>,
    /// Whose interleaved order: v2.0.0 does all forwards first where there are as many micro-batches as stages.
    #[arg(long, value_name = "VERSION", default_value = "v2.0.0", value_parser = ["v2.0.0", "head"])]
    pub upstream: String,
    /// Columns of a line (default: the variable COLUMNS, else 120).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(20..=10000))]
    pub width: Option<u32>,
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
