//! The command line of `ms-tokenizer`.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Trains tokenizers, turns text into tokens and back.
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
    /// Train a byte-level BPE on files and write a Hugging Face folder
    Train(Train),
    /// Text to ids
    Encode(Encode),
    /// Ids to text
    Decode(Decode),
    /// What a tokenizer folder holds
    Info(Info),
    /// Check that the fast engine gives the ids of the reference engine on your text
    Compare(Compare),
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Train {
    /// Files and folders to read; .json and .jsonl give the text of a field, all others are text as a whole
    pub(crate) files: Vec<PathBuf>,
    /// Also read the files that are named here, one per line; - is stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) files_from: Option<PathBuf>,
    /// Field of JSON records that holds the text
    #[arg(long, value_name = "KEY", default_value = "text")]
    pub(crate) json_key: String,
    /// Tokens of the vocabulary, the 256 bytes and 4 special tokens included
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16_777_216), help_heading = "Model")]
    pub(crate) vocab_size: u32,
    /// Do not merge pairs that occur fewer times
    #[arg(long, value_name = "N", default_value_t = 2, help_heading = "Model")]
    pub(crate) min_frequency: u64,
    /// Folder to write; made if missing
    #[arg(short, long, value_name = "DIR", help_heading = "Output")]
    pub(crate) output: PathBuf,
    /// Replace a tokenizer that is there
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
    /// File to read; - or nothing is stdin
    pub(crate) file: Option<PathBuf>,
    /// Encode every line on its own
    #[arg(long)]
    pub(crate) lines: bool,
    /// Add what the tokenizer puts around a text, such as a beginning-of-sequence token
    #[arg(long)]
    pub(crate) special: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Decode {
    #[command(flatten)]
    pub(crate) folder: Folder,
    /// Ids; nothing reads them from stdin, separated by spaces, commas or line ends
    pub(crate) ids: Vec<u32>,
    /// Leave special tokens out
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
    /// Add what the tokenizer puts around a text
    #[arg(long)]
    pub(crate) special: bool,
}
