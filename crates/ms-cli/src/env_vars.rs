//! Every environment variable that the programs read.

/// Filter of log messages in `tracing` syntax, for example `ms_dist=debug`. Wins over `-v` and `--quiet`.
pub const MS_LOG: &str = "MS_LOG";

/// Any value: no progress bars, even on a terminal.
pub const MS_NO_PROGRESS: &str = "MS_NO_PROGRESS";

/// Any non-empty value: no colours. See <https://no-color.org>.
pub const NO_COLOR: &str = "NO_COLOR";

/// Instruction set of the kernels (`portable`, `avx2`, `avx512`, `avx512bf16`) instead of the best one found.
pub const MS_ISA: &str = "MS_ISA";

/// Threads of the kernels when no flag says otherwise.
pub const MS_THREADS: &str = "MS_THREADS";

/// Tests only. `1`: a test whose reference values are absent fails instead of being skipped.
pub const MS_REQUIRE_SHARED: &str = "MS_REQUIRE_SHARED";
