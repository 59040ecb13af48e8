//! Micro-batches of packed tokens, prefetched by a thread.

use crate::sampler::{DataParallelRank, Sampler, SamplerKind};
use crate::{Error, Result, Sample, Samples};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

/// What a rank feeds to the model at once: the rows of a micro-batch, one after the other.
///
/// `T` is the number of tokens of all rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MicroBatch {
    /// Input ids, `[T]`.
    pub tokens: Vec<i32>,
    /// Id that follows each input, `[T]`; 0 where `loss_mask` is 0.
    pub labels: Vec<i32>,
    /// 1.0 where the loss counts, `[T]`.
    pub loss_mask: Vec<f32>,
    /// Position of each token, `[T]`.
    pub position_ids: Vec<i32>,
    /// Ends of the stretches that attend within themselves, with a leading 0; the last is `T`.
    pub cu_seqlens: Vec<i32>,
    /// Ends of the rows, padding included; for preference pairs all chosen rows, then all rejected ones.
    pub row_ends: Vec<usize>,
    /// Numbers of the samples in the set.
    pub samples: Vec<u64>,
    /// The same rows seen from 1, 2, ... tokens further on, where rows are longer than what is trained ([`MicroBatch::windows`]).
    pub ahead: Vec<MicroBatch>,
}

impl MicroBatch {
    /// Rows that are `n` tokens longer than what is trained, as multi-token prediction of MindSpeed-LLM 2.0.0 has them: the first
    /// tokens of each row, and [`MicroBatch::ahead`] the `n` windows of as many that begin 1, 2, ... tokens further on. Positions
    /// of a window count from its first token on, or up to the first document that begins in it.
    ///
    /// # Source
    /// MindSpeed-LLM 2.0.0, `mindspeed_llm/core/models/gpt/gpt_model.py`, `tensor_slide` and `regenerate_position_ids`.
    #[must_use]
    pub fn windows(&self, n: usize) -> Self {
        if n == 0 {
            return self.clone();
        }
        let ahead = (1..=n).map(|offset| self.window(offset, n)).collect();
        Self { ahead, ..self.window(0, n) }
    }

    /// The window of each row that omits its first `offset` tokens, and those of the last `n` after it.
    fn window(&self, offset: usize, n: usize) -> Self {
        let mut seen = Self { samples: self.samples.clone(), cu_seqlens: vec![0], ..Self::default() };
        let mut start = 0;
        for &end in &self.row_ends {
            let length = (end - start).saturating_sub(n);
            let (from, to) = ((start + offset).min(end), (start + offset + length).min(end));
            let first = seen.tokens.len();
            seen.tokens.extend_from_slice(&self.tokens[from..to]);
            seen.labels.extend_from_slice(&self.labels[from..to]);
            seen.loss_mask.extend_from_slice(&self.loss_mask[from..to]);
            let positions = &self.position_ids[from..to];
            match positions.iter().position(|&p| p == 0) {
                Some(restart) => {
                    seen.position_ids.extend(0..restart as i32);
                    seen.position_ids.extend_from_slice(&positions[restart..]);
                }
                // `offset` less, unless a document has begun among the tokens that are left out: upstream's are then negative.
                None => {
                    let first = positions.first().copied().unwrap_or(0);
                    seen.position_ids.extend(positions.iter().map(|&p| p - first));
                }
            }
            for &border in self.cu_seqlens.iter().filter(|&&b| (from + 1..to).contains(&(b as usize))) {
                seen.end_stretch((first + border as usize - from) as i32);
            }
            seen.end_stretch(seen.tokens.len() as i32);
            seen.row_ends.push(seen.tokens.len());
            start = end;
        }
        seen
    }
}

/// How rows of unequal length are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowLayout {
    /// As they are, without padding.
    #[default]
    Packed,
    /// All padded to the longest of the micro-batch, rounded up to a multiple. With the row length as multiple every
    /// micro-batch has the same shape (upstream's default); with 8 it is `--variable-seq-lengths`. Padding is a segment of
    /// its own, so nothing attends to it, and has no loss.
    Padded {
        /// Row lengths are multiples of this many tokens.
        multiple: usize,
        /// Id to fill with.
        pad: i32,
        /// Fill on the left (`--tokenizer-padding-side left`).
        left: bool,
    },
}

/// What a [`Loader`] reads.
#[derive(Clone, Debug)]
pub struct LoaderConfig {
    /// Order of rows.
    pub kind: SamplerKind,
    /// `--micro-batch-size`, in samples.
    pub micro_batch_size: usize,
    /// The rank that reads.
    pub data_parallel: DataParallelRank,
    /// Samples that were read before, over all ranks.
    pub consumed: u64,
    /// Form of a micro-batch.
    pub layout: RowLayout,
    /// Micro-batches read ahead; at least 1.
    pub ahead: usize,
}

impl Default for LoaderConfig {
    fn default() -> Self {
        Self {
            kind: SamplerKind::Single,
            micro_batch_size: 1,
            data_parallel: DataParallelRank { rank: 0, size: 1 },
            consumed: 0,
            layout: RowLayout::Packed,
            ahead: 4,
        }
    }
}

/// Yields one rank's micro-batches, prepared by a background thread; ends with the dataset (`single`), or never (`cyclic`).
///
/// After an error it ends. Dropping it stops the thread.
pub struct Loader {
    batches: Receiver<Result<MicroBatch>>,
}

impl Loader {
    /// Starts reading.
    ///
    /// # Errors
    /// [`Error::Options`] for sizes that do not fit together, [`Error::Stream`] if no thread can be started.
    pub fn new(samples: Arc<dyn Samples>, config: &LoaderConfig) -> Result<Self> {
        let sampler = Sampler::new(
            config.kind,
            samples.len(),
            config.micro_batch_size,
            config.data_parallel,
            config.consumed,
        )?;
        if let RowLayout::Padded { multiple: 0, .. } = config.layout {
            return Err(Error::options("rows cannot be padded to a multiple of 0 tokens"));
        }
        let (send, batches) = sync_channel(config.ahead.max(1));
        let layout = config.layout;
        std::thread::Builder::new()
            .name("ms-data loader".into())
            .spawn(move || {
                for numbers in sampler {
                    let batch = assemble(samples.as_ref(), numbers, layout);
                    let failed = batch.is_err();
                    // A closed channel means that nobody wants more.
                    if send.send(batch).is_err() || failed {
                        return;
                    }
                }
            })
            .map_err(|source| Error::Stream { name: "loader thread".into(), source })?;
        Ok(Self { batches })
    }
}

impl Iterator for Loader {
    type Item = Result<MicroBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batches.recv().ok()
    }
}

fn assemble(samples: &dyn Samples, numbers: Vec<u64>, layout: RowLayout) -> Result<MicroBatch> {
    let mut rows = numbers.iter().map(|&n| samples.get(n)).collect::<Result<Vec<_>>>()?;
    let rejected: Vec<Sample> =
        rows.iter_mut().filter_map(|row| row.rejected.take()).map(|row| *row).collect();
    rows.extend(rejected);
    let longest = rows.iter().map(|row| row.tokens.len()).max().unwrap_or(0);
    let mut batch = MicroBatch { samples: numbers, cu_seqlens: vec![0], ..MicroBatch::default() };
    for row in &rows {
        if let Some(&id) = row.tokens.iter().find(|&&id| id < 0) {
            return Err(Error::options(format!("a sample holds the negative input id {id}")));
        }
        match layout {
            RowLayout::Packed => batch.push(row),
            RowLayout::Padded { multiple, pad, left } => {
                let fill = longest.next_multiple_of(multiple) - row.tokens.len();
                if left {
                    batch.push_padding(fill, pad, 0);
                }
                // Positions of a padded row count from its start, padding included, as upstream's default positions do.
                let shift = if left { fill } else { 0 };
                let start = batch.position_ids.len();
                batch.push(row);
                batch.position_ids[start..].iter_mut().for_each(|p| *p += shift as i32);
                if !left {
                    batch.push_padding(fill, pad, row.tokens.len());
                }
            }
        }
        batch.row_ends.push(batch.tokens.len());
    }
    Ok(batch)
}

impl MicroBatch {
    fn push(&mut self, row: &Sample) {
        let start = self.tokens.len() as i32;
        self.tokens.extend_from_slice(&row.tokens);
        self.labels.extend_from_slice(&row.labels);
        self.loss_mask.extend_from_slice(&row.loss_mask);
        self.position_ids.extend_from_slice(&row.position_ids);
        for &end in &row.segment_ends {
            self.end_stretch(start + end);
        }
    }

    fn push_padding(&mut self, count: usize, pad: i32, first_position: usize) {
        let length = self.tokens.len() + count;
        self.tokens.resize(length, pad);
        self.labels.resize(length, 0);
        self.loss_mask.resize(length, 0.0);
        self.position_ids.extend((first_position..first_position + count).map(|p| p as i32));
        self.end_stretch(length as i32);
    }

    /// Empty stretches are not stretches.
    fn end_stretch(&mut self, end: i32) {
        if self.cu_seqlens.last() != Some(&end) {
            self.cu_seqlens.push(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_seen_from_further_on() {
        // Two rows of four tokens and two more; in the first a document begins at its fourth token.
        let whole = MicroBatch {
            tokens: (10..22).collect(),
            labels: (11..23).collect(),
            loss_mask: (0..12).map(|t| if t % 5 == 0 { 0.0 } else { 1.0 }).collect(),
            position_ids: vec![0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 4, 5],
            cu_seqlens: vec![0, 3, 6, 12],
            row_ends: vec![6, 12],
            samples: vec![7, 8],
            ahead: Vec::new(),
        };
        let seen = whole.windows(2);
        assert_eq!(seen.tokens, [10, 11, 12, 13, 16, 17, 18, 19]);
        assert_eq!((&seen.row_ends[..], &seen.cu_seqlens[..]), (&[4, 8][..], &[0, 3, 4, 8][..]));
        assert_eq!(seen.position_ids, [0, 1, 2, 0, 0, 1, 2, 3]);
        let [one, two] = &seen.ahead[..] else { panic!("a window for each") };
        assert_eq!(one.tokens, [11, 12, 13, 14, 17, 18, 19, 20]);
        assert_eq!(one.labels, [12, 13, 14, 15, 18, 19, 20, 21]);
        assert_eq!(
            (&one.cu_seqlens[..], &one.position_ids[..]),
            (&[0, 2, 4, 8][..], &[0, 1, 0, 1, 0, 1, 2, 3][..])
        );
        assert_eq!(two.tokens, [12, 13, 14, 15, 18, 19, 20, 21]);
        assert_eq!(
            (&two.cu_seqlens[..], &two.position_ids[..]),
            (&[0, 1, 4, 8][..], &[0, 0, 1, 2, 0, 1, 2, 3][..])
        );
        assert_eq!(whole.windows(0), whole);
        // A document that is over before the window begins.
        let short = MicroBatch {
            position_ids: vec![0, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5],
            cu_seqlens: vec![0, 1, 6, 12],
            ..whole
        };
        assert_eq!(short.windows(2).ahead[1].position_ids, [0, 1, 2, 3, 0, 1, 2, 3]);
    }

    /// Row `i` holds `i + 1` tokens, all `i`.
    struct Stairs(u64);

    impl Samples for Stairs {
        fn len(&self) -> u64 {
            self.0
        }
        fn get(&self, i: u64) -> Result<Sample> {
            crate::samples::check_index(i, self.0)?;
            let n = i as usize + 1;
            Ok(Sample {
                tokens: vec![i as i32; n],
                labels: vec![i as i32; n],
                loss_mask: vec![1.0; n],
                position_ids: (0..n as i32).collect(),
                segment_ends: vec![n as i32],
                rejected: None,
            })
        }
    }

    fn batches(config: &LoaderConfig) -> Vec<MicroBatch> {
        Loader::new(Arc::new(Stairs(8)), config).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn ranks_together_read_every_sample_once() {
        let mut seen = Vec::new();
        for rank in 0..2 {
            let data_parallel = DataParallelRank { rank, size: 2 };
            let config = LoaderConfig { micro_batch_size: 2, data_parallel, ..LoaderConfig::default() };
            seen.extend(batches(&config).into_iter().flat_map(|b| b.samples));
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn a_resumed_loader_goes_on_where_the_first_stopped() {
        let config = LoaderConfig { micro_batch_size: 2, ..LoaderConfig::default() };
        let resumed = LoaderConfig { consumed: 4, ..config.clone() };
        assert_eq!(batches(&config)[2..], batches(&resumed)[..]);
    }

    #[test]
    fn padding_is_a_stretch_of_its_own_without_loss() {
        let layout = RowLayout::Padded { multiple: 4, pad: 99, left: false };
        let config = LoaderConfig { micro_batch_size: 2, layout, ..LoaderConfig::default() };
        let batch = &batches(&config)[1];
        assert_eq!(batch.tokens, [2, 2, 2, 99, 3, 3, 3, 3]);
        assert_eq!(batch.loss_mask, [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(batch.position_ids, [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(batch.cu_seqlens, [0, 3, 4, 8]);
        let layout = RowLayout::Padded { multiple: 4, pad: 99, left: true };
        let config = LoaderConfig { micro_batch_size: 2, layout, ..LoaderConfig::default() };
        let batch = &batches(&config)[1];
        assert_eq!((&batch.tokens[..4], &batch.cu_seqlens[..]), (&[99, 2, 2, 2][..], &[0, 1, 4, 8][..]));
    }

    #[test]
    fn dropping_a_loader_early_does_not_hang() {
        let mut loader =
            Loader::new(Arc::new(Stairs(8)), &LoaderConfig { ahead: 1, ..LoaderConfig::default() }).unwrap();
        assert_eq!(loader.next().unwrap().unwrap().tokens, [0]);
        drop(loader);
    }
}
