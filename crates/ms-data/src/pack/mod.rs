//! Packing samples into rows of one length.
//!
//! [`Packer`] collects samples and produces rows: by upstream's [`knapsack`], which needs all lengths first, or as samples
//! arrive, with a bounded number of open rows ([`Packing`]).

mod knapsack;
mod mapped_rows;
mod store;
mod window;

pub use knapsack::{knapsack, knapsack_bins};

use crate::sft::IGNORED;
use crate::token_stream::TokenMap;
use crate::{Error, Result};
use std::path::PathBuf;
use store::SampleStore;
use window::Window;

/// How samples are chosen for a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// Upstream's: the largest sample that fits, again and again. Samples wait in a file; memory is 20 bytes per sample.
    #[default]
    Knapsack,
    /// The oldest of `window` open rows with enough room, as samples come.
    FirstFit {
        /// Rows that are open at a time.
        window: usize,
    },
    /// The fullest of `window` open rows with enough room, as samples come.
    BestFit {
        /// Rows that are open at a time.
        window: usize,
    },
}

/// How rows are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackOptions {
    /// Tokens of a packed row: `--seq-length`. One place stays free, as upstream leaves it.
    pub row_tokens: usize,
    /// `--neat-pack`: the attention mask numbers the samples of a row from 1, padding is 0, long samples are cut.
    pub neat: bool,
    /// Fills up the input ids.
    pub pad: i32,
    /// How samples are chosen.
    pub packing: Packing,
    /// Samples are padded to a multiple of this many tokens inside their row; 1 is upstream's behaviour.
    pub multiple: usize,
}

impl PackOptions {
    /// Upstream's packing into rows of `row_tokens`.
    pub fn new(row_tokens: usize, neat: bool, pad: i32) -> Self {
        Self { row_tokens, neat, pad, packing: Packing::Knapsack, multiple: 1 }
    }

    /// Refuses what no row can be packed with. To be called before [`Packer::new`] and [`plan`].
    ///
    /// # Errors
    /// [`Error::Options`] if a row has no room for a sample, or more than 2³¹ − 1 tokens.
    pub fn check(&self) -> Result<()> {
        // One place stays free, and a sample needs one of its multiples.
        if self.multiple > 0 && self.row_tokens > self.multiple && i32::try_from(self.row_tokens).is_ok() {
            return Ok(());
        }
        Err(Error::options(format!(
            "--seq-length: cannot pack into rows of {} tokens in multiples of {} (--pad-to-multiple-of)",
            self.row_tokens, self.multiple
        )))
    }

    /// The space for a sample of this many tokens: how many are kept, and how many it occupies; `None` if it is left out.
    ///
    /// Upstream v2.0.0 keeps a sample of exactly `row_tokens` and then never ends; its head drops or cuts it too.
    fn lengths(&self, tokens: usize) -> Option<(usize, usize)> {
        let most = (self.row_tokens - 1) / self.multiple * self.multiple;
        if tokens > most && !self.neat {
            return None;
        }
        let kept = tokens.min(most);
        Some((kept, kept.next_multiple_of(self.multiple)))
    }
}

/// Packs samples. What it holds in memory beyond the [`Packing`]'s needs is bounded by 64 MB.
#[derive(Debug)]
pub struct Packer {
    options: PackOptions,
    wait: PendingSamples,
    row: RowBuilder,
    counts: PackCounts,
}

/// Samples that have no complete row yet.
#[derive(Debug)]
enum PendingSamples {
    /// All of them, and the length that each takes up.
    Store(SampleStore, Vec<u32>),
    /// Those of the open rows: ids and labels.
    Window(Window<(Vec<i32>, Vec<i32>)>),
}

/// What a packer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackCounts {
    /// Samples that were added and not left out.
    pub samples: u64,
    /// Samples too long to be packed, left out.
    pub dropped: u64,
    /// Samples that were cut.
    pub cut: u64,
    /// Tokens of these samples that are kept.
    pub tokens: u64,
    /// Complete rows.
    pub rows: u64,
}

impl PackCounts {
    /// Counts a sample of `length` tokens, of which come back how many are kept, and how many places they take up; `None` if
    /// it is left out.
    fn sample(&mut self, options: &PackOptions, length: usize) -> Option<(usize, usize)> {
        let Some((kept, taken)) = options.lengths(length) else {
            self.dropped += 1;
            return None;
        };
        self.samples += 1;
        self.cut += u64::from(kept < length);
        self.tokens += kept as u64;
        Some((kept, taken))
    }

    /// Share of the rows' positions that hold tokens of samples.
    pub fn fill(&self, row_tokens: usize) -> f64 {
        if self.rows == 0 { 0.0 } else { self.tokens as f64 / (self.rows as f64 * row_tokens as f64) }
    }
}

/// One packed row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedRow {
    /// Input ids, padded.
    pub input_ids: Vec<i32>,
    /// 1 everywhere; or the sample's number in the row, 0 for padding.
    pub attention_mask: Vec<i32>,
    /// Labels; −100 for padding.
    pub labels: Vec<i32>,
}

impl Packer {
    /// An empty packer. Samples that do not fit into memory wait in a file called `spill`, which is made when needed and
    /// goes away with the packer.
    pub fn new(options: PackOptions, spill: PathBuf) -> Self {
        let capacity = options.row_tokens.saturating_sub(1);
        let wait = match Window::new(options.packing, capacity) {
            Some(window) => PendingSamples::Window(window),
            None => PendingSamples::Store(SampleStore::new(spill), Vec::new()),
        };
        Self { options, wait, row: RowBuilder::default(), counts: PackCounts::default() }
    }

    /// Adds a sample, and gives rows that are complete to `write`. A sample of `row_tokens` or more is left out, or cut by
    /// neat packing.
    ///
    /// # Errors
    /// What `write` returns; [`crate::Error::Io`].
    pub fn add(
        &mut self,
        input_ids: &[i32],
        labels: &[i32],
        write: impl FnMut(&PackedRow) -> Result<()>,
    ) -> Result<()> {
        let length = input_ids.len().min(labels.len());
        let Some((kept, taken)) = self.counts.sample(&self.options, length) else { return Ok(()) };
        let (ids, labels) = (&input_ids[..kept], &labels[..kept]);
        match &mut self.wait {
            PendingSamples::Store(store, lengths) => {
                store.push(ids, labels)?;
                lengths.push(taken as u32);
            }
            PendingSamples::Window(window) => {
                if let Some(samples) = window.add(taken, (ids.to_vec(), labels.to_vec())) {
                    self.counts.rows += 1;
                    self.row.write(&self.options, &samples, write)?;
                }
            }
        }
        Ok(())
    }

    /// Packs all rows of streams that are files, whose columns `columns` hold input ids and labels, apart from what was
    /// added; nothing waits in a file of its own, and no sample is copied before its row is written.
    ///
    /// # Errors
    /// What `write` returns.
    ///
    /// # Panics
    /// If a stream has no such columns.
    pub fn pack_maps(
        &mut self,
        maps: &[TokenMap],
        columns: (usize, usize),
        write: impl FnMut(&PackedRow) -> Result<()>,
    ) -> Result<()> {
        mapped_rows::pack_maps(&self.options, (&mut self.row, &mut self.counts), maps, columns, write)
    }

    /// What was done so far.
    pub fn counts(&self) -> PackCounts {
        self.counts
    }

    /// Gives the remaining rows to `write` and starts again empty; counts go on.
    ///
    /// # Errors
    /// What `write` returns; [`crate::Error::Io`].
    pub fn finish(&mut self, mut write: impl FnMut(&PackedRow) -> Result<()>) -> Result<()> {
        let (options, row, counts) = (&self.options, &mut self.row, &mut self.counts);
        match &mut self.wait {
            PendingSamples::Window(window) => {
                for samples in window.finish() {
                    counts.rows += 1;
                    row.write(options, &samples, &mut write)?;
                }
            }
            PendingSamples::Store(store, lengths) => {
                knapsack_bins(lengths, options.row_tokens as u32 - 1, |bin| {
                    counts.rows += 1;
                    row.begin();
                    for &sample in bin {
                        let (ids, labels) = store.sample(sample as usize)?;
                        row.push(options, ids, labels);
                    }
                    row.end(options);
                    write(&row.row)
                })?;
                lengths.clear();
                store.clear();
            }
        }
        Ok(())
    }
}

/// Lays samples side by side and fills the row up.
#[derive(Debug, Default)]
struct RowBuilder {
    row: PackedRow,
    samples: i32,
}

impl RowBuilder {
    fn begin(&mut self) {
        self.row.input_ids.clear();
        self.row.labels.clear();
        self.row.attention_mask.clear();
        self.samples = 0;
    }

    fn push(&mut self, options: &PackOptions, ids: &[i32], labels: &[i32]) {
        self.samples += 1;
        self.row.input_ids.extend_from_slice(ids);
        self.row.labels.extend_from_slice(labels);
        let length = self.row.input_ids.len().next_multiple_of(options.multiple);
        self.resize(options, length, if options.neat { self.samples } else { 1 });
    }

    fn end(&mut self, options: &PackOptions) {
        self.resize(options, options.row_tokens, if options.neat { 0 } else { 1 });
    }

    fn resize(&mut self, options: &PackOptions, length: usize, mask: i32) {
        self.row.input_ids.resize(length, options.pad);
        self.row.labels.resize(length, IGNORED);
        self.row.attention_mask.resize(length, mask);
    }

    fn write(
        &mut self,
        options: &PackOptions,
        samples: &[(Vec<i32>, Vec<i32>)],
        mut write: impl FnMut(&PackedRow) -> Result<()>,
    ) -> Result<()> {
        self.begin();
        for (ids, labels) in samples {
            self.push(options, ids, labels);
        }
        self.end(options);
        write(&self.row)
    }
}

/// Rows that samples of these lengths would give, without packing them.
pub fn plan(lengths: &[usize], options: &PackOptions) -> PackCounts {
    let mut counts = PackCounts::default();
    let capacity = options.row_tokens - 1;
    let mut window = Window::new(options.packing, capacity);
    let mut taken = Vec::new();
    for &length in lengths {
        let Some((_, takes)) = counts.sample(options, length) else { continue };
        match &mut window {
            None => taken.push(takes as u32),
            Some(window) => counts.rows += u64::from(window.add(takes, ()).is_some()),
        }
    }
    if let Some(mut window) = window {
        counts.rows += window.finish().count() as u64;
    }
    let count = |_: &[u32]| -> std::result::Result<(), std::convert::Infallible> {
        counts.rows += 1;
        Ok(())
    };
    match knapsack_bins(&taken, capacity as u32, count) {
        Ok(()) => counts,
    }
}

#[cfg(test)]
mod tests;
