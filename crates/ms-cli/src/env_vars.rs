//! Every environment variable that the programs read.

/// Filter of log messages in `tracing` syntax, for example `ms_dist=debug`. Wins over `-v` and `--quiet`.
pub const MS_LOG: &str = "MS_LOG";

/// Any value: no progress bars, even on a terminal.
pub const MS_NO_PROGRESS: &str = "MS_NO_PROGRESS";

/// Any non-empty value: no colours. See <https://no-color.org>.
pub const NO_COLOR: &str = "NO_COLOR";

/// Instruction set of the kernels (`portable`, `avx2`, `avx512`, `avx512bf16`, `amx`) instead of the one measured to be
/// the fastest; bf16 products are then summed in its order unless `--arithmetic` names one.
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

/// Kind of terminal; `dumb`: no colours, and no lines that are drawn over.
pub const TERM: &str = "TERM";

/// Whether the terminal can only add text.
pub(crate) fn dumb_terminal() -> bool {
    std::env::var_os(TERM).is_some_and(|kind| kind == "dumb")
}
