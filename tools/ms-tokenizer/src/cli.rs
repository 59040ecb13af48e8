//! The command line of `ms-tokenizer`.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Trains tokenizers, encodes text into token ids and decodes them.
#[derive(Parser, Debug)]
#[command(name = "ms-tokenizer", version, max_term_width = 100, after_long_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) common: ms_cli::Common,
}

const EXAMPLES: &str = "\
Examples:
  ms-tokenizer train --vocab-size 8192 -o tok README.md src
  find . -name '*.md' | ms-tokenizer train --vocab-size 8192 -o tok --files-from -
  echo 'Hello world' | ms-tokenizer encode --tokenizer tok
  ms-tokenizer decode --tokenizer tok 260 17 42
  ms-tokenizer info tok --json
  ms-tokenizer compare --tokenizer tok corpus.jsonl more.txt";

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Train a byte-level BPE tokenizer on files and write a Hugging Face folder
    Train(Train),
    /// Encode text into token ids
    Encode(Encode),
    /// Decode token ids into text
    Decode(Decode),
    /// Describe a tokenizer folder
    Info(Info),
    /// Check that the fast engine gives the ids of the reference engine on your text
    Compare(Compare),
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Train {
    /// Files and folders to read: of .json and .jsonl files the text of a field, other files as plain text
    pub(crate) files: Vec<PathBuf>,
    /// File with the names of more files, one per line (- for stdin)
    #[arg(long, value_name = "FILE")]
    pub(crate) files_from: Option<PathBuf>,
    /// Field of JSON records that holds the text
    #[arg(long, value_name = "KEY", default_value = "text")]
    pub(crate) json_key: String,
    /// Vocabulary size, including the 256 bytes and 4 special tokens
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16_777_216), help_heading = "Model")]
    pub(crate) vocab_size: u32,
    /// Minimum number of occurrences of a pair to be merged
    #[arg(long, value_name = "N", default_value_t = 2, help_heading = "Model")]
    pub(crate) min_frequency: u64,
    /// Folder to write, created if missing
    #[arg(short, long, value_name = "DIR", help_heading = "Output")]
    pub(crate) output: PathBuf,
    /// Replace an existing tokenizer
    #[arg(long, help_heading = "Output")]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Folder {
    /// Tokenizer folder, or a vocabulary file such as tokenizer.model
    #[arg(short, long, alias = "tokenizer-name-or-path", value_name = "DIR", help_heading = "Tokenizer")]
    pub(crate) tokenizer: PathBuf,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Encode {
    #[command(flatten)]
    pub(crate) folder: Folder,
    /// File to read (default: stdin, as -)
    pub(crate) file: Option<PathBuf>,
    /// Encode every line separately
    #[arg(long)]
    pub(crate) lines: bool,
    /// Add the tokenizer's special tokens around a text, such as a beginning-of-sequence token
    #[arg(long)]
    pub(crate) special: bool,
}

/// A token's id; `None`: those of stdin.
pub(crate) type Id = Option<u32>;

fn id(text: &str) -> Result<Id, std::num::ParseIntError> {
    if text == "-" { Ok(None) } else { text.parse().map(Some) }
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Decode {
    #[command(flatten)]
    pub(crate) folder: Folder,
    /// Token ids (- or none: from stdin, separated by spaces, commas or line ends)
    #[arg(value_parser = id)]
    pub(crate) ids: Vec<Id>,
    /// Leave out special tokens
    #[arg(long)]
    pub(crate) skip_special: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Info {
    /// Tokenizer folder
    pub(crate) tokenizer: PathBuf,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Compare {
    #[command(flatten)]
    pub(crate) folder: Folder,
    /// Files to read, line by line; bytes that are not UTF-8 become U+FFFD
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Add the tokenizer's special tokens around a text
    #[arg(long)]
    pub(crate) special: bool,
}
