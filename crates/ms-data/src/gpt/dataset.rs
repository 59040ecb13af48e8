//! Samples of one pretraining dataset and split.

use super::IndexCache;
use super::cache::SetKey;
use super::index::{GptIndex, build_for};
use super::source::Source;
use crate::samples::check_index;
use crate::{Documents, Result, Sample, Samples};
use std::ops::Range;

/// What is done with tokens equal to the pad id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PadTokens {
    /// As upstream: fed as id 0, never a target. Where the tokenizer has no padding token and pads with the end of
    /// document, this hides every end of document from the model; files and losses of upstream have it so.
    #[default]
    AsUpstream,
    /// The pad id is an ordinary token; only positions past the end of the data are masked.
    Keep,
}

/// How samples are made of tokens.
#[derive(Clone, Debug)]
pub struct GptOptions {
    /// Tokens of a row: `--seq-length`, plus the multi-token-prediction layers at v2.0.0.
    pub row_tokens: usize,
    /// `--seed`.
    pub seed: u32,
    /// End-of-document id.
    pub eod: i32,
    /// Padding id, if any.
    pub pad: Option<i32>,
    /// Treatment of the padding id.
    pub pad_tokens: PadTokens,
    /// `--reset-position-ids`: positions restart after each end of document.
    pub reset_position_ids: bool,
    /// `--reset-attention-mask`: no attention across an end of document. [`super::build`] sets it where
    /// [`crate::Upstream::keeps_documents_apart`] says so.
    pub reset_attention_mask: bool,
    /// `--eod-mask-loss`: no loss where the *input* is an end of document.
    pub eod_mask_loss: bool,
    /// An id outside the vocabulary that marks filling (upstream's head, `--pad-to-multiple-of`): fed as 0, no loss, and
    /// not counted in positions.
    pub filler: Option<i32>,
    /// Index files that are read, and written where they are missing.
    pub cache: Option<IndexCache>,
}

impl GptOptions {
    /// Plain samples of `row_tokens` tokens: no resets, no masks.
    pub fn new(row_tokens: usize, seed: u32, eod: i32) -> Self {
        Self {
            row_tokens,
            seed,
            eod,
            pad: None,
            pad_tokens: PadTokens::AsUpstream,
            reset_position_ids: false,
            reset_attention_mask: false,
            eod_mask_loss: false,
            filler: None,
            cache: None,
        }
    }
}

/// One split of a dataset, with its order.
#[derive(Debug)]
pub struct GptDataset {
    data: Source,
    options: GptOptions,
    index: GptIndex,
    sequences: Range<usize>,
}

impl GptDataset {
    /// Orders `sequences` of `data` into `samples` samples, or one epoch.
    ///
    /// # Errors
    /// [`crate::Error::EmptySplit`] if there are no tokens; [`crate::Error::Input`] if no order can be built.
    pub fn new(
        data: impl Into<Source>,
        split: &'static str,
        sequences: Range<usize>,
        samples: Option<u64>,
        options: GptOptions,
    ) -> Result<Self> {
        let data = data.into();
        let index = build_for(&data, split, sequences.clone(), options.row_tokens, samples, options.seed)?;
        Ok(Self { data, options, index, sequences })
    }

    /// As [`GptDataset::new`], with the index files of `key`.
    pub(super) fn cached(
        data: Source,
        sequences: Range<usize>,
        options: GptOptions,
        key: &SetKey<'_>,
    ) -> Result<Self> {
        if let Some(index) = key.read(&data, &sequences) {
            return Ok(Self { data, options, index, sequences });
        }
        let set = Self::new(data, key.split_name, sequences, key.samples, options)?;
        key.write(&set.index)?;
        Ok(set)
    }

    /// The order of samples.
    pub fn index(&self) -> &GptIndex {
        &self.index
    }

    /// The sequences of the dataset that belong to this split.
    pub fn sequences(&self) -> Range<usize> {
        self.sequences.clone()
    }

    /// What it reads.
    pub fn data(&self) -> &Source {
        &self.data
    }

    /// The `row_tokens + 1` tokens of a sample, as stored; fewer at the very end of the data.
    fn text(&self, index: u64) -> Result<Vec<i32>> {
        let row = self.index.shuffle[index as usize] as usize;
        let ((first, start), (last, end)) = (self.index.samples[row], self.index.samples[row + 1]);
        let mut text = Vec::with_capacity(self.options.row_tokens + 1);
        for at in first..=last {
            let sequence = self.index.documents[at as usize] as usize;
            let length = self.data.length(sequence);
            let from = if at == first { start as usize } else { 0 };
            let to = if at == last { (end as usize + 1).min(length) } else { length };
            self.data.read_range(sequence, from..to.max(from), &mut text)?;
        }
        Ok(text)
    }
}

impl Samples for GptDataset {
    fn len(&self) -> u64 {
        self.index.len() as u64
    }

    fn get(&self, index: u64) -> Result<Sample> {
        check_index(index, Samples::len(self))?;
        let mut text = self.text(index)?;
        let rows = self.options.row_tokens;
        let known = text.len();
        let filling = self.options.pad.unwrap_or(0);
        text.resize(rows + 1, filling);
        Ok(align(&text, known, &self.options))
    }
}

/// Inputs, targets, mask and positions of one piece of text, whose first `known` tokens are data.
fn align(text: &[i32], known: usize, options: &GptOptions) -> Sample {
    let rows = text.len() - 1;
    let (mut tokens, mut labels) = (text[..rows].to_vec(), text[1..].to_vec());
    let mut loss_mask = vec![1.0; rows];
    let mut position_ids = vec![0; rows];
    let documents = Documents {
        eod: options.eod,
        reset_position_ids: options.reset_position_ids,
        reset_attention_mask: options.reset_attention_mask,
        eod_mask_loss: options.eod_mask_loss,
    };
    let segment_ends = documents.mark(&tokens, options.filler, &mut position_ids, &mut loss_mask);
    for mask in loss_mask.iter_mut().skip(known.saturating_sub(1)) {
        *mask = 0.0;
    }
    let hidden = |id: i32| {
        options.filler == Some(id) || (options.pad_tokens == PadTokens::AsUpstream && options.pad == Some(id))
    };
    for i in 0..rows {
        if hidden(labels[i]) {
            loss_mask[i] = 0.0;
            labels[i] = 0;
        }
        if options.filler == Some(tokens[i]) {
            loss_mask[i] = 0.0;
        }
        if hidden(tokens[i]) {
            tokens[i] = 0;
        }
    }
    Sample { tokens, labels, loss_mask, position_ids, segment_ends, rejected: None }
}
