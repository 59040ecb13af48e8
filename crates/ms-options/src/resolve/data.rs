//! The datasets of a run.

use crate::resolve::checked::Checked;
use ms_data::gpt::{DataPaths, GptOptions, build};
use ms_data::sampler::{DataParallelRank, Sampler, SamplerKind};
use ms_data::sft::{self, Form, Order, SftOptions};
use ms_data::{
    Documents, FixedSubSequences, Loader, LoaderConfig, RowLayout, SafetensorsSamples, Samples, Split,
    Upstream,
};
use ms_trainer::{Batches, DataSource, TrainConfig};
use std::path::PathBuf;
use std::sync::Arc;

/// Where samples come from and how they become micro-batches.
#[derive(Clone, Debug)]
pub(crate) struct DataConfig {
    /// The samples.
    pub kind: DataKind,
    /// The flags that name them, and the file if that does.
    pub flag: String,
    /// Order of samples over a run.
    pub sampler: SamplerKind,
    /// Form of micro-batches of rows of unequal length.
    pub layout: RowLayout,
    /// Tokens that attend within themselves, in place of documents.
    pub stretch: Option<usize>,
    /// Micro-batches read ahead.
    pub ahead: usize,
    /// Tokens of a row after the trained ones, which prediction modules see.
    pub beyond: usize,
}

/// Kinds of datasets.
#[derive(Clone, Debug)]
pub(crate) enum DataKind {
    /// Ready samples in a safetensors file, taken in order.
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The effect of document ends inside a row.
        documents: Option<Documents>,
    },
    /// Megatron's GPT dataset.
    Gpt {
        /// The datasets and their split.
        paths: DataPaths,
        /// How samples are made of tokens.
        options: GptOptions,
        /// The upstream version whose rules for blends apply.
        upstream: Upstream,
    },
    /// MindSpeed-LLM's fine-tuning datasets.
    Sft {
        /// Prefixes, or weights and prefixes in turn.
        paths: Vec<String>,
        /// Shares of training, validation and test.
        split: Split,
        /// How sequences become rows.
        options: SftOptions,
    },
}

impl DataKind {
    /// Its name in messages.
    fn name(&self) -> String {
        match self {
            Self::Safetensors { path, .. } => path.display().to_string(),
            Self::Gpt { paths: DataPaths::Split { paths, .. }, .. } | Self::Sft { paths, .. } => {
                paths.join(" ")
            }
            Self::Gpt { paths: DataPaths::PerSplit(lists), .. } => lists.concat().join(" "),
            Self::Gpt { paths: DataPaths::Mock, .. } => "--mock-data".to_owned(),
        }
    }
}

/// How ranks share the tokens of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenShares {
    /// Chunks that a row is cut into for context-parallel ranks, and how many of these there are.
    pub pieces: usize,
    pub cp: usize,
    /// How many ranks share what one of these has.
    pub tp: usize,
}

/// The open datasets of one rank.
pub(crate) struct Data {
    sets: [Option<Arc<dyn Samples>>; 3],
    /// Samples that the run takes of each.
    wanted: [u64; 3],
    shares: TokenShares,
    config: DataConfig,
    micro: usize,
    data_parallel: DataParallelRank,
}

impl DataConfig {
    /// An error of the data with its flag, and advice on an empty split.
    pub(crate) fn named(&self, error: ms_data::Error) -> anyhow::Error {
        let empty = matches!(error, ms_data::Error::EmptySplit { split: "valid" | "test", .. });
        let error = anyhow::Error::new(error).context(self.flag.clone());
        if empty {
            error.context("hint: give it a share with --split, or pass --eval-iters 0")
        } else {
            error
        }
    }
}

/// Samples that a run takes of its training, validation and test data.
pub(crate) fn wanted(run: &TrainConfig) -> [u64; 3] {
    let evaluations = run.train_iters.checked_div(run.eval.interval).unwrap_or(0) + 1;
    let one = run.eval.iters.saturating_mul(run.batch.global as u64);
    [run.train_samples, evaluations.saturating_mul(one), one]
}

impl Data {
    /// Opens the datasets with as many samples as the run needs.
    ///
    /// # Errors
    /// If a dataset is missing, damaged or too small.
    pub(crate) fn open(
        data: &DataConfig,
        run: &TrainConfig,
        data_parallel: DataParallelRank,
        shares: TokenShares,
    ) -> anyhow::Result<Self> {
        let samples = wanted(run);
        let sets = match &data.kind {
            DataKind::Safetensors { path, documents } => {
                let set = SafetensorsSamples::open(path)?.with_documents(*documents);
                let [_, batch, tokens] = set.shape();
                let global = run.batch.running(run.batch.global, data_parallel.size);
                anyhow::ensure!(
                    batch == global,
                    "{}: expected {} samples per iteration (--global-batch-size), found {batch}",
                    path.display(),
                    global
                );
                anyhow::ensure!(
                    tokens == run.seq_length + data.beyond,
                    "{}: expected samples of {} tokens (--seq-length, and --num-nextn-predict-layers more), found {tokens}",
                    path.display(),
                    run.seq_length + data.beyond
                );
                anyhow::ensure!(
                    !set.holds_pairs(),
                    "{}: preference pairs; they belong to --stage dpo, which is not part of this version",
                    path.display()
                );
                [Some(Arc::new(set) as Arc<dyn Samples>), None, None]
            }
            DataKind::Gpt { paths, options, upstream } => {
                let wanted = samples.map(Some);
                let sets = build(paths, wanted, options, *upstream).map_err(|e| data.named(e))?;
                let mut used = samples.iter();
                sets.map(|set| {
                    let wanted = used.next().copied().unwrap_or(0);
                    set.filter(|_| wanted > 0).map(|s| Arc::new(s) as Arc<dyn Samples>)
                })
            }
            DataKind::Sft { paths, split, options } => {
                sft::build(paths, split, samples, options).map_err(|e| data.named(e))?
            }
        };
        let (rows, name) = (run.model.padded_vocab, data.kind.name());
        let checked = |set| Arc::new(Checked::new(set, rows, &name)) as Arc<dyn Samples>;
        let stretched = |rows| match data.stretch {
            Some(length) => Arc::new(FixedSubSequences { rows, length }) as Arc<dyn Samples>,
            None => rows,
        };
        let sets = sets.map(|set| set.map(checked).map(stretched));
        let micro = run.batch.micro;
        Ok(Self { sets, wanted: samples, shares, config: data.clone(), micro, data_parallel })
    }

    /// Checks that tensor- and context-parallel ranks can share the rows that this data-parallel rank takes after `consumed`
    /// samples of all, as far as their lengths are known. Epochs differ in what forms a micro-batch: as many micro-batches are
    /// looked at as two of them have.
    fn check_shares(&self, which: usize, consumed: u64) -> ms_trainer::Result<()> {
        let TokenShares { pieces, cp, tp } = self.shares;
        let Some(set) = self.sets[which].as_ref().filter(|_| self.config.layout == RowLayout::Packed) else {
            return Ok(());
        };
        let chunk = (self.micro * self.data_parallel.size) as u64;
        let taken = (self.wanted[which].saturating_sub(consumed) / chunk).min(2 * (set.len() / chunk));
        if pieces * tp == 1 || taken == 0 || set.row_tokens(0).is_none() {
            return Ok(());
        }
        let rows = Sampler::new(self.config.sampler, set.len(), self.micro, self.data_parallel, consumed)?;
        for rows in rows.take(taken as usize) {
            let mut batch = 0;
            for &index in &rows {
                let Some(tokens) = set.row_tokens(index) else { return Ok(()) };
                if !tokens.is_multiple_of(pieces) {
                    let expected = format!("rows that divide into {pieces} chunks for {cp} ranks");
                    let found = format!("sample {index} of {tokens} tokens");
                    return Err(ms_trainer::Error::config("--context-parallel-size", expected, found));
                }
                batch += tokens / cp;
            }
            if !batch.is_multiple_of(tp) {
                let expected = format!("micro-batches whose tokens {tp} ranks can share");
                let found = format!("{batch} tokens of samples {rows:?}");
                return Err(ms_trainer::Error::config("--sequence-parallel", expected, found));
            }
        }
        Ok(())
    }

    fn batches(&self, which: usize, consumed: u64) -> ms_trainer::Result<Option<Batches>> {
        let Some(set) = &self.sets[which] else { return Ok(None) };
        let config = LoaderConfig {
            kind: self.config.sampler,
            micro_batch_size: self.micro,
            data_parallel: self.data_parallel,
            consumed,
            layout: self.config.layout,
            ahead: self.config.ahead,
        };
        let batches = Loader::new(set.clone(), &config)?;
        Ok(Some(match self.config.beyond {
            0 => Box::new(batches),
            n => Box::new(batches.map(move |batch| Ok(batch?.windows(n)))),
        }))
    }
}

impl DataSource for Data {
    fn train(&self, consumed: u64) -> ms_trainer::Result<Batches> {
        let hint = "give it a share in --split, and data that is not empty";
        let empty = ms_trainer::Error::DataEnded { split: "training", iteration: 0, hint };
        // Before the first iteration, whenever the others are taken. How far a resumed run is with validation is known then.
        self.check_shares(0, consumed)?;
        if consumed == 0 {
            self.check_shares(1, 0)?;
        }
        self.check_shares(2, 0)?;
        self.batches(0, consumed)?.ok_or(empty)
    }

    fn valid(&self, consumed: u64) -> ms_trainer::Result<Option<Batches>> {
        self.batches(1, consumed)
    }

    fn test(&self) -> ms_trainer::Result<Option<Batches>> {
        self.batches(2, 0)
    }
}

/// The rows of a fine-tuning dataset as `--stage sft` reads them.
pub(crate) fn sft_options(row_tokens: usize, form: Form, eos: i32, order: Order) -> SftOptions {
    SftOptions { row_tokens, form, eos, order, negative_ids_as_upstream: false, index_files: false }
}
