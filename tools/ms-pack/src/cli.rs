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
    /// Pack token streams into a dataset (the default command)
    Pack(Pack),
    /// Merge datasets into one
    Merge(Merge),
    /// Split a dataset by documents
    Split(Split),
    /// Print the rows of a dataset or stream as JSON lines
    Cat(Cat),
    /// Describe datasets and streams
    Info(Names),
    /// Check datasets and streams for damage
    Verify(Verify),
    /// Show the order of samples in training
    Samples(Box<Samples>),
}

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Input")]
pub(crate) struct Pack {
    /// Token streams of one kind, in order (default: stdin, as -)
    #[arg(long, num_args = 1.., value_name = "FILE")]
    pub(crate) input: Vec<PathBuf>,
    /// Tokens per row; unpacked rows may have fewer
    #[arg(long, value_name = "N", help_heading = "Packing")]
    pub(crate) seq_length: Option<usize>,
    /// Number the samples of a row in the attention mask, so that attention stays inside each; long samples are cut instead of
    /// dropped
    #[arg(long, help_heading = "Packing")]
    pub(crate) neat_pack: bool,
    /// Write samples as rows, without packing
    #[arg(long, conflicts_with = "neat_pack", help_heading = "Packing")]
    pub(crate) no_pack: bool,
    /// Packing algorithm: upstream's knapsack, which needs all samples first, or an online one
    #[arg(long, value_name = "WAY", default_value = "knapsack", value_parser = ["knapsack", "first-fit", "best-fit"], conflicts_with = "no_pack", help_heading = "Packing")]
    pub(crate) packing: String,
    /// With first-fit and best-fit: number of open rows
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Packing")]
    pub(crate) window: u32,
    /// Pad every sample in its row to a multiple of this number of tokens, as ring attention needs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "no_pack", help_heading = "Packing")]
    pub(crate) pad_to_multiple_of: u32,
    /// Token id for padding, instead of the tokenizer's
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(i32).range(0..), conflicts_with = "no_pack", help_heading = "Packing")]
    pub(crate) pad_id: Option<i32>,
    /// Show the number of rows and their fill for every packing algorithm, and write nothing
    #[arg(long, help_heading = "Packing")]
    pub(crate) dry_run: bool,
    /// Tokenizer that the streams must have been made with
    #[arg(long, value_name = "DIR", help_heading = "Packing")]
    pub(crate) tokenizer_name_or_path: Option<PathBuf>,
    /// Path of the dataset to write, without suffix
    #[arg(long, value_name = "PREFIX", help_heading = "Output")]
    pub(crate) output_prefix: Option<PathBuf>,
    /// Replace an existing dataset
    #[arg(long, help_heading = "Output")]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Merge {
    /// Datasets to merge, in order, as paths without suffix
    #[arg(required_unless_present = "input", value_name = "PREFIX")]
    pub(crate) parts: Vec<PathBuf>,
    /// Folder whose datasets are all merged, by name, as upstream's `merge_datasets.py` does
    #[arg(long, value_name = "DIR", conflicts_with = "parts")]
    pub(crate) input: Option<PathBuf>,
    /// Path of the merged dataset, without suffix
    #[arg(long, value_name = "PREFIX", help_heading = "Output")]
    pub(crate) output_prefix: PathBuf,
    /// Replace an existing dataset
    #[arg(long, help_heading = "Output")]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Split {
    /// Dataset to split, as a path without suffix
    #[arg(value_name = "PREFIX")]
    pub(crate) input: PathBuf,
    /// Shares of training, validation and test data, written to `PREFIX_train`, `PREFIX_valid`, `PREFIX_test`
    #[arg(long, value_name = "A,B,C", required_unless_present = "parts", help_heading = "Output")]
    pub(crate) split: Option<String>,
    /// Number of equal parts by documents, written to `PREFIX_00000_of_00004` and so on
    #[arg(long, value_name = "N", conflicts_with = "split", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Output")]
    pub(crate) parts: Option<u32>,
    /// Path of the parts, without suffix
    #[arg(long, value_name = "PREFIX", help_heading = "Output")]
    pub(crate) output_prefix: PathBuf,
    /// Replace existing datasets
    #[arg(long, help_heading = "Output")]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Verify {
    /// Datasets as paths without suffix, prefixes of datasets with a part per key, or stream files
    #[arg(required = true, value_name = "PREFIX|FILE")]
    pub(crate) names: Vec<PathBuf>,
    /// Tokenizer whose vocabulary all token ids must belong to
    #[arg(long, value_name = "DIR")]
    pub(crate) tokenizer_name_or_path: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Cat {
    /// Dataset as a path without suffix, or a stream file (default: a stream from stdin, as -)
    pub(crate) input: Option<PathBuf>,
    /// Tokenizer to decode the token ids with
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) tokenizer_name_or_path: Option<PathBuf>,
    /// Number of rows to skip
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Output")]
    pub(crate) skip: u64,
    /// Number of rows to print
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
    /// Dataset prefixes, or weights and prefixes in turn
    #[arg(long, num_args = 1.., value_name = "PATH")]
    pub(crate) data_path: Vec<String>,
    /// Dataset for training only
    #[arg(long, num_args = 1.., value_name = "PATH", conflicts_with_all = ["data_path", "split"])]
    pub(crate) train_data_path: Vec<String>,
    /// Dataset for validation only
    #[arg(long, num_args = 1.., value_name = "PATH", conflicts_with_all = ["data_path", "split"])]
    pub(crate) valid_data_path: Vec<String>,
    /// Dataset for testing only
    #[arg(long, num_args = 1.., value_name = "PATH", conflicts_with_all = ["data_path", "split"])]
    pub(crate) test_data_path: Vec<String>,
    /// Artificial sequences, as Megatron makes them, instead of a dataset
    #[arg(long, conflicts_with_all = ["data_path", "train_data_path", "valid_data_path", "test_data_path", "split", "total"],
          requires = "tokenizer_name_or_path")]
    pub(crate) mock_data: bool,
    /// Shares of training, validation and test data
    #[arg(long, value_name = "A,B,C", default_value = "969, 30, 1")]
    pub(crate) split: String,
    /// Tokens per sample
    #[arg(long, value_name = "N", required_unless_present = "total", help_heading = "Order")]
    pub(crate) seq_length: Option<usize>,
    /// Show which samples of a dataset with this number of samples each data-parallel rank takes, without reading data
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 31), requires = "micro_batch_size",
          conflicts_with_all = ["data_path", "train_data_path", "valid_data_path", "test_data_path"],
          help_heading = "Batches of ranks")]
    pub(crate) total: Option<u64>,
    /// Number of samples consumed before
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        requires = "total",
        help_heading = "Batches of ranks"
    )]
    pub(crate) consumed_samples: u64,
    /// Number of samples per forward pass
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "total",
          help_heading = "Batches of ranks")]
    pub(crate) micro_batch_size: Option<u32>,
    /// Number of data-parallel ranks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536),
          requires = "total", help_heading = "Batches of ranks")]
    pub(crate) data_parallel_size: u32,
    /// Order of samples: sequential and once, or shuffled and repeated
    #[arg(long, value_name = "KIND", default_value = "single", value_parser = ["single", "cyclic"], requires = "total",
          help_heading = "Batches of ranks")]
    pub(crate) dataloader_type: String,
    /// Number of batches per rank to show
    #[arg(
        long,
        value_name = "K",
        default_value_t = 4,
        requires = "total",
        help_heading = "Batches of ranks"
    )]
    pub(crate) batches: usize,
    /// Seed of the sample order
    #[arg(long, value_name = "N", default_value_t = 1234, help_heading = "Order")]
    pub(crate) seed: u32,
    /// Number of training samples (default: one epoch)
    #[arg(long, value_name = "N", help_heading = "Order")]
    pub(crate) train_samples: Option<u64>,
    /// Number of validation samples (default: one epoch)
    #[arg(long, value_name = "N", help_heading = "Order")]
    pub(crate) valid_samples: Option<u64>,
    /// Number of test samples (default: one epoch)
    #[arg(long, value_name = "N", help_heading = "Order")]
    pub(crate) test_samples: Option<u64>,
    /// Folder of index files in upstream's format; missing ones are made
    #[arg(long, value_name = "DIR", help_heading = "Order")]
    pub(crate) data_cache_path: Option<PathBuf>,
    /// Version of upstream whose blending rules to follow
    #[arg(long, value_name = "VERSION", default_value = "v2.0.0", value_parser = ["v2.0.0", "head"], help_heading = "Order")]
    pub(crate) upstream: String,
    /// Tokenizer whose end-of-document and padding ids are used
    #[arg(long, value_name = "DIR", help_heading = "Samples")]
    pub(crate) tokenizer_name_or_path: Option<PathBuf>,
    /// Positions restart after each document
    #[arg(long, requires = "tokenizer_name_or_path", help_heading = "Samples")]
    pub(crate) reset_position_ids: bool,
    /// Attention stays inside a document
    #[arg(long, requires = "tokenizer_name_or_path", help_heading = "Samples")]
    pub(crate) reset_attention_mask: bool,
    /// No loss on end-of-document tokens
    #[arg(long, requires = "tokenizer_name_or_path", help_heading = "Samples")]
    pub(crate) eod_mask_loss: bool,
    /// Number of samples of each split to show
    #[arg(long, value_name = "N", default_value_t = 4, help_heading = "Samples")]
    pub(crate) first: u64,
}
