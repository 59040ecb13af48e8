//! The command line of `ms-pack`.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Packs a token stream into a dataset; merges, shows and checks datasets.
#[derive(Parser, Debug)]
#[command(
    name = "ms-pack",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    after_long_help = EXAMPLES
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) pack: Pack,
    #[command(flatten)]
    pub(crate) common: ms_cli::Common,
}

const EXAMPLES: &str = "\
Examples:
  ms-preprocess --style sharegpt --prompt-type qwen --input chats.json \\
    --tokenizer-name-or-path tok | ms-pack --seq-length 512 --output-prefix data/chats
  ms-pack --input chats.arrow --seq-length 512 --neat-pack --output-prefix data/chats
  ms-pack --input a.arrow b.arrow --seq-length 4096 --packing first-fit --window 500 \\
    --output-prefix data/chats
  ms-pack --input chats.arrow --seq-length 4096 --dry-run
  ms-pack merge --output-prefix data/all data/a_text_document data/b_text_document
  ms-pack split data/all --split 98,1,1 --output-prefix data/all
  ms-pack cat data/all | head -3
  ms-pack verify data/all
  ms-pack samples --data-path data/all --split 969,30,1 --seq-length 256 --seed 1234 \\
    --train-samples 1000 --json

  # which samples two data-parallel ranks take, without reading any
  ms-pack samples --total 23 --consumed-samples 4 --micro-batch-size 2 --data-parallel-size 2 --json";

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Token stream to dataset; what ms-pack does without a command
    Pack(Pack),
    /// Several datasets into one
    Merge(Merge),
    /// One dataset into several, document by document
    Split(Split),
    /// Rows of a dataset or stream as JSON lines
    Cat(Cat),
    /// What datasets and streams hold
    Info(Names),
    /// Check everything that can be checked about datasets and streams
    Verify(Verify),
    /// The order of samples that training would use
    Samples(Box<Samples>),
}

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Input")]
pub(crate) struct Pack {
    /// Token streams of one kind, in order; - or nothing is stdin
    #[arg(long, num_args = 1.., value_name = "FILE")]
    pub(crate) input: Vec<PathBuf>,
    /// Tokens of a row: packed rows have exactly that many, unpacked ones fewer
    #[arg(long, value_name = "N", help_heading = "Packing")]
    pub(crate) seq_length: Option<usize>,
    /// Number the samples of a row in the attention mask and cut long ones, instead of dropping them
    #[arg(long, help_heading = "Packing")]
    pub(crate) neat_pack: bool,
    /// Write rows as they are
    #[arg(long, conflicts_with = "neat_pack", help_heading = "Packing")]
    pub(crate) no_pack: bool,
    /// How samples are chosen for a row: upstream's way, which waits for all of them, or as they come
    #[arg(long, value_name = "WAY", default_value = "knapsack", value_parser = ["knapsack", "first-fit", "best-fit"], conflicts_with = "no_pack", help_heading = "Packing")]
    pub(crate) packing: String,
    /// Rows that are open at a time, for first-fit and best-fit
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Packing")]
    pub(crate) window: u32,
    /// Fill samples up to a multiple of this many tokens inside their row, as ring attention wants them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "no_pack", help_heading = "Packing")]
    pub(crate) pad_to_multiple_of: u32,
    /// Fill with this id instead of the tokenizer's padding id
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(i32).range(0..), conflicts_with = "no_pack", help_heading = "Packing")]
    pub(crate) pad_id: Option<i32>,
    /// Show how many rows every way of packing gives, and how full they are; write nothing
    #[arg(long, help_heading = "Packing")]
    pub(crate) dry_run: bool,
    /// Refuse a stream of another tokenizer
    #[arg(long, value_name = "DIR", help_heading = "Packing")]
    pub(crate) tokenizer_name_or_path: Option<PathBuf>,
    /// Path of the dataset without suffix
    #[arg(long, value_name = "PREFIX", help_heading = "Output")]
    pub(crate) output_prefix: Option<PathBuf>,
    /// Replace an existing dataset
    #[arg(long, help_heading = "Output")]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Merge {
    /// Datasets in order, as paths without suffix
    #[arg(required_unless_present = "input", value_name = "PREFIX")]
    pub(crate) parts: Vec<PathBuf>,
    /// All datasets of a folder, by name, as upstream's `merge_datasets.py` takes them
    #[arg(long, value_name = "DIR", conflicts_with = "parts")]
    pub(crate) input: Option<PathBuf>,
    /// Path of the merged dataset without suffix
    #[arg(long, value_name = "PREFIX", help_heading = "Output")]
    pub(crate) output_prefix: PathBuf,
    /// Replace an existing dataset
    #[arg(long, help_heading = "Output")]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Split {
    /// Dataset as path without suffix
    #[arg(value_name = "PREFIX")]
    pub(crate) input: PathBuf,
    /// Shares of train, valid and test: `PREFIX_train`, `PREFIX_valid`, `PREFIX_test`
    #[arg(long, value_name = "A,B,C", required_unless_present = "parts", help_heading = "Output")]
    pub(crate) split: Option<String>,
    /// Equal parts by documents: `PREFIX_00000_of_00004` and so on
    #[arg(long, value_name = "N", conflicts_with = "split", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Output")]
    pub(crate) parts: Option<u32>,
    /// Path of the parts without suffix
    #[arg(long, value_name = "PREFIX", help_heading = "Output")]
    pub(crate) output_prefix: PathBuf,
    /// Replace existing datasets
    #[arg(long, help_heading = "Output")]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Verify {
    /// Datasets as paths without suffix, prefixes of sets with a part per key, or stream files
    #[arg(required = true, value_name = "PREFIX|FILE")]
    pub(crate) names: Vec<PathBuf>,
    /// Refuse ids that this tokenizer does not have
    #[arg(long, value_name = "DIR")]
    pub(crate) tokenizer_name_or_path: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Cat {
    /// Dataset as path without suffix, or stream file; - or nothing is a stream on stdin
    pub(crate) input: Option<PathBuf>,
    /// Also decode the ids with this tokenizer
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) tokenizer_name_or_path: Option<PathBuf>,
    /// First row
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Output")]
    pub(crate) skip: u64,
    /// Number of rows
    #[arg(long, value_name = "N", help_heading = "Output")]
    pub(crate) rows: Option<u64>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Names {
    /// Datasets as paths without suffix, or stream files
    #[arg(required = true, value_name = "PREFIX|FILE")]
    pub(crate) names: Vec<PathBuf>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Samples {
    /// Prefixes, or weights and prefixes in turn
    #[arg(long, num_args = 1.., value_name = "PATH")]
    pub(crate) data_path: Vec<String>,
    /// Data of the train split alone
    #[arg(long, num_args = 1.., value_name = "PATH", conflicts_with_all = ["data_path", "split"])]
    pub(crate) train_data_path: Vec<String>,
    /// Data of the valid split alone
    #[arg(long, num_args = 1.., value_name = "PATH", conflicts_with_all = ["data_path", "split"])]
    pub(crate) valid_data_path: Vec<String>,
    /// Data of the test split alone
    #[arg(long, num_args = 1.., value_name = "PATH", conflicts_with_all = ["data_path", "split"])]
    pub(crate) test_data_path: Vec<String>,
    /// Artificial sequences, as Megatron makes them, in place of a set
    #[arg(long, conflicts_with_all = ["data_path", "train_data_path", "valid_data_path", "test_data_path", "split", "total"],
          requires = "tokenizer_name_or_path")]
    pub(crate) mock_data: bool,
    /// Shares of train, valid and test
    #[arg(long, value_name = "A,B,C", default_value = "969, 30, 1")]
    pub(crate) split: String,
    /// Tokens of a row
    #[arg(long, value_name = "N", required_unless_present = "total", help_heading = "Order")]
    pub(crate) seq_length: Option<usize>,
    /// Show which samples each data-parallel rank takes of so many, without reading any
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 31), requires = "micro_batch_size",
          conflicts_with_all = ["data_path", "train_data_path", "valid_data_path", "test_data_path"],
          help_heading = "Batches of ranks")]
    pub(crate) total: Option<u64>,
    /// Samples that were taken before
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        requires = "total",
        help_heading = "Batches of ranks"
    )]
    pub(crate) consumed_samples: u64,
    /// Samples of one forward pass
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "total",
          help_heading = "Batches of ranks")]
    pub(crate) micro_batch_size: Option<u32>,
    /// Data-parallel ranks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536),
          requires = "total", help_heading = "Batches of ranks")]
    pub(crate) data_parallel_size: u32,
    /// In order and once, or permuted for ever
    #[arg(long, value_name = "KIND", default_value = "single", value_parser = ["single", "cyclic"], requires = "total",
          help_heading = "Batches of ranks")]
    pub(crate) dataloader_type: String,
    /// Batches of each rank to show
    #[arg(
        long,
        value_name = "K",
        default_value_t = 4,
        requires = "total",
        help_heading = "Batches of ranks"
    )]
    pub(crate) batches: usize,
    /// Seed of the order
    #[arg(long, value_name = "N", default_value_t = 1234, help_heading = "Order")]
    pub(crate) seed: u32,
    /// Samples of the train split; without it one epoch
    #[arg(long, value_name = "N", help_heading = "Order")]
    pub(crate) train_samples: Option<u64>,
    /// Samples of the valid split; without it one epoch
    #[arg(long, value_name = "N", help_heading = "Order")]
    pub(crate) valid_samples: Option<u64>,
    /// Samples of the test split; without it one epoch
    #[arg(long, value_name = "N", help_heading = "Order")]
    pub(crate) test_samples: Option<u64>,
    /// Folder of index files that upstream reads and writes too; they are made where they are missing
    #[arg(long, value_name = "DIR", help_heading = "Order")]
    pub(crate) data_cache_path: Option<PathBuf>,
    /// Whose rules of blending to follow
    #[arg(long, value_name = "VERSION", default_value = "v2.0.0", value_parser = ["v2.0.0", "head"], help_heading = "Order")]
    pub(crate) upstream: String,
    /// Tokenizer whose end-of-document and padding ids are used
    #[arg(long, value_name = "DIR", help_heading = "Samples")]
    pub(crate) tokenizer_name_or_path: Option<PathBuf>,
    /// Restart positions after each end of document
    #[arg(long, requires = "tokenizer_name_or_path", help_heading = "Samples")]
    pub(crate) reset_position_ids: bool,
    /// No attention across an end of document
    #[arg(long, requires = "tokenizer_name_or_path", help_heading = "Samples")]
    pub(crate) reset_attention_mask: bool,
    /// No loss where the input is an end of document
    #[arg(long, requires = "tokenizer_name_or_path", help_heading = "Samples")]
    pub(crate) eod_mask_loss: bool,
    /// Samples of each split to show
    #[arg(long, value_name = "N", default_value_t = 4, help_heading = "Samples")]
    pub(crate) first: u64,
}
