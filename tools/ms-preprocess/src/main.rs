//! `ms-preprocess`: turns raw text and conversations into token datasets.

use std::process::ExitCode;

fn main() -> ExitCode {
    ms_cli::run("ms-preprocess", ms_preprocess::run)
}
