//! `ms-tokenizer`: trains tokenizers, turns text into tokens and back.

use std::process::ExitCode;

fn main() -> ExitCode {
    ms_cli::run("ms-tokenizer", ms_tokenizer::run)
}
