//! Datasets: from records to training samples and batches.
//!
//! Before training:
//! - [`records`] reads JSON, JSON lines, text, CSV, Parquet and Arrow files; [`handler`] turns a record into token rows
//!   (pretraining, instruction, preference, process reward); [`preprocess`] runs that on several threads in input order.
//! - Rows go to a [`sink`]: an indexed dataset, a packed one, or a token stream.
//! - [`pack`] fills rows of one length: upstream's knapsack, or first fit and best fit with a bounded number of open rows.
//! - [`token_stream`] is the Arrow stream between two programs.
//! - [`indexed`] reads and writes Megatron's `.bin`/`.idx` pair, byte for byte.
//!
//! At training time:
//! - [`gpt`] (pretraining: document, sample and shuffle indices, blends), [`sft`] (fine-tuning, preference pairs) and
//!   [`SafetensorsSamples`] are [`Samples`]: numbered training rows.
//! - [`sampler`] says which rank reads which rows; [`Loader`] prefetches them as [`MicroBatch`]es of packed tokens.
//!
//! All untrusted bytes are validated before use, outputs appear complete or not at all, and neither the number of threads nor
//! the order of a hash map affects a file.
//!
//! ```
//! use ms_data::indexed::{IndexedDataset, IndexedWriter, TokenType};
//! let folder = tempfile::tempdir()?;
//! let prefix = folder.path().join("corpus");
//! let mut writer = IndexedWriter::create(&prefix, TokenType::U16)?;
//! for document in [[5, 6, 7].as_slice(), &[8, 9]] {
//!     writer.sequence(document)?;
//!     writer.end_document()?;
//! }
//! writer.finish()?;
//!
//! let dataset = IndexedDataset::open(&prefix)?; // maps the files
//! assert_eq!(dataset.documents(), 2);
//! let mut tokens = Vec::new();
//! for sequence in dataset.document(0) {
//!     dataset.read(sequence, &mut tokens)?;
//! }
//! assert_eq!(tokens, [5, 6, 7]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod documents;
mod error;
pub mod gpt;
pub mod handler;
pub mod indexed;
mod loader;
mod npy;
pub mod pack;
pub mod preprocess;
pub mod random;
pub mod records;
mod row;
mod safetensors_samples;
pub mod sampler;
mod samples;
pub mod select;
pub mod sft;
pub mod sink;
mod split;
pub mod token_stream;

pub use documents::Documents;
pub use error::{Error, Reason};
pub use loader::{Loader, LoaderConfig, MicroBatch, RowLayout};
pub use ms_files::{AtomicFile, SyncedFile};
pub use safetensors_samples::SafetensorsSamples;
pub use samples::{FixedSubSequences, Sample, Samples};
pub use split::{Split, SplitRanges};

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Which version's behaviour to follow where the two differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Upstream {
    /// MindSpeed-LLM v2.0.0 on Megatron-LM `core_r0.8.0`.
    #[default]
    V2_0_0,
    /// MindSpeed-LLM of August 2026 (c77308a) on Megatron-LM `core_v0.12.1`.
    Head,
}

impl Upstream {
    /// Whether attention stays inside a document of pretraining data, by `--reset-position-ids` and `--reset-attention-mask`:
    /// v2.0.0 also takes the ends of documents from positions that restart.
    ///
    /// # Source
    /// MindSpeed-LLM v2.0.0, `mindspeed_llm/training/utils.py`, `generate_actual_seq_len`; its head,
    /// `get_batch_on_this_tp_rank` of the same file.
    pub fn keeps_documents_apart(self, reset_position_ids: bool, reset_attention_mask: bool) -> bool {
        reset_attention_mask || (reset_position_ids && self == Self::V2_0_0)
    }
}
