//! `ms-pack`: packs, merges, shows and checks token datasets.

use std::process::ExitCode;

fn main() -> ExitCode {
    ms_cli::run("ms-pack", ms_pack::run)
}
