//! Every environment variable that the programs themselves read. `ms-profile npu-doctor` also prints those of Ascend's
//! toolkit, by which `hccl-sys` finds its libraries.

/// Filter of log messages in `tracing` syntax, for example `ms_dist=debug`. Overrides `-v` and `--quiet`.
pub const MS_LOG: &str = "MS_LOG";

/// Any value: no progress bars, even on a terminal.
pub const MS_NO_PROGRESS: &str = "MS_NO_PROGRESS";

/// Any non-empty value: no colours. See <https://no-color.org>.
pub const NO_COLOR: &str = "NO_COLOR";

/// Instruction set of the kernels (`portable`; `avx2`, `avx512`, `avx512convert`, `avx512bf16`, `amx`; `neon`, `neonbf16`)
/// instead of the one measured to be the fastest; bf16 products are then summed in its order unless `--arithmetic` names
/// one.
pub const MS_ISA: &str = "MS_ISA";

/// Folders of NLTK's data, as `PATH` lists folders; `ms-preprocess --split-sentences` looks for its model there first.
pub const NLTK_DATA: &str = "NLTK_DATA";

/// The active Python environment, whose `nltk_data` folders come after the user's.
pub const VIRTUAL_ENV: &str = "VIRTUAL_ENV";

/// The active Conda environment; as [`VIRTUAL_ENV`].
pub const CONDA_PREFIX: &str = "CONDA_PREFIX";

/// Folder where large tokenizers are kept in a form that loads at once, instead of `ms-tools/tokenizers` in the user's cache
/// folder; `off`: none are.
pub const MS_TOKENIZER_CACHE: &str = "MS_TOKENIZER_CACHE";

/// The user's cache folder, `~/.cache` if not set.
pub const XDG_CACHE_HOME: &str = "XDG_CACHE_HOME";

/// The user's folder.
pub const HOME: &str = "HOME";

/// Kind of terminal; `dumb`: no colours, and no lines that are redrawn.
pub const TERM: &str = "TERM";

/// Columns of the terminal, if a shell sets it; the width that `ms-profile schedule` draws without `--width`.
pub const COLUMNS: &str = "COLUMNS";

/// The name of this job in the batch system (Slurm); `ms-train --log-progress` records it.
pub const SLURM_JOB_ID: &str = "SLURM_JOB_ID";

/// Number of processes that a launcher of MPI started: Open MPI's, and launchers' with PMI.
pub const OF_MPI: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];

/// Number of ranks, by torchrun; plans of `ms-train` use it, and MPI's number must agree.
pub const WORLD_SIZE: &str = "WORLD_SIZE";

/// This process's rank, by torchrun; MPI's must agree.
pub const RANK: &str = "RANK";

/// This process's number on its machine, by torchrun; as [`RANK`].
pub const LOCAL_RANK: &str = "LOCAL_RANK";

/// Number of processes on this machine, by torchrun; as [`RANK`].
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";

/// A fault that a test injects into a run of `ms-train`: `RANK EXCHANGE TIME DEED`.
pub const MS_PLANTED_FAULT: &str = "MS_PLANTED_FAULT";

/// Whether the terminal can only add text.
pub(crate) fn dumb_terminal() -> bool {
    std::env::var_os(TERM).is_some_and(|kind| kind == "dumb")
}
