//! Mixtures of several datasets of a `dataset_info.json`: `--mix-strategy`, `--interleave-probs`, `--max-samples`.

use crate::cli::Options;
use anyhow::Result;
use ms_cli::megatron::Given;
use ms_cli::{Usage, refuse};
use ms_data::handler::{Handler, RecordKind};
use ms_data::preprocess::count_rows;
use ms_data::records::{InputFile, RawRecord, RecordReader};
use ms_data::select::{Mix, mixed};
use std::ops::Range;
use std::sync::Arc;

options! {
    /// How the sets of a `dataset_info.json` are mixed.
    pub(crate) struct Mixing in "Input" {
        strategy: Given<String> = "--mix-strategy", "LlamaFactory: datasets one after the other (concat), or interleaved until the first (interleave_under) or every one (interleave_over) has ended";
        probabilities: Given<Option<String>> = "--interleave-probs", "LlamaFactory: draw from the datasets with these probabilities, as A,B,C, by --seed";
        most: Given<Option<usize>> = "--max-samples", "LlamaFactory: number of records to take from each dataset", range = "[1,)";
    }
}

/// How sets become one.
#[derive(Clone, Debug)]
pub(crate) struct Mixture {
    /// Input files of each set.
    sets: Vec<Range<usize>>,
    /// `--max-samples`: records that are read of each set.
    most: Option<usize>,
    /// `--mix-strategy`, unless the sets follow each other.
    mix: Option<Mix>,
}

impl Mixture {
    /// Resolves the flags; `None` if all records of the sets follow each other.
    pub(crate) fn resolve(all: &Options, kind: RecordKind, sets: Vec<Range<usize>>) -> Result<Option<Self>> {
        let o = &all.mixing;
        let (strategy, most) = (o.strategy.value.as_str(), o.most.value);
        if kind != RecordKind::LlamaFactory {
            // Upstream's other handlers do not look at them.
            let given = [o.strategy.written, o.probabilities.written, o.most.written];
            if let Some(flag) = given.into_iter().flatten().next() {
                let text = format!("{flag} acts only on the sets of --style llama-factory");
                if all.work.strict {
                    return Err(Usage(text).into());
                }
                tracing::warn!("{text}");
            }
            return Ok(None);
        }
        if most == Some(0) {
            refuse!("--max-samples: expected at least 1");
        }
        let mix = if strategy == "concat" || sets.len() == 1 {
            None
        } else {
            let probabilities = o.probabilities.value.as_deref().map(|list| {
                let numbers = list.split(',').map(|p| p.trim().parse::<f64>());
                numbers.collect::<Result<Vec<_>, _>>().map_err(|_| {
                    Usage(format!("--interleave-probs: expected numbers like 0.7,0.3, found {list:?}"))
                })
            });
            Some(Mix {
                over: strategy == "interleave_over",
                probabilities: probabilities.transpose()?,
                seed: all.work.seed,
            })
        };
        Ok((most.is_some() || mix.is_some()).then_some(Self { sets, most, mix }))
    }

    /// The records of the mixture of `files`. If sets take turns, all are read before: the records that are left out do
    /// not count.
    pub(crate) fn records(
        &self,
        files: &[InputFile],
        handler: &Handler,
    ) -> ms_data::Result<Box<dyn Iterator<Item = ms_data::Result<RawRecord>> + Send>> {
        let (sets, most) = (self.sets.clone(), self.most.unwrap_or(usize::MAX));
        let files: Arc<[InputFile]> = files.into();
        let open = move |set: usize| {
            let files = sets[set].clone().map(|file| (file as u32, files[file].clone()));
            RecordReader::numbered(files.collect::<Vec<_>>()).take(most)
        };
        let Some(mix) = &self.mix else {
            return Ok(Box::new((0..self.sets.len()).flat_map(open)));
        };
        let lengths = (0..self.sets.len()).map(|set| count_rows(open(set), handler));
        let order = mix.order(&lengths.collect::<ms_data::Result<Vec<_>>>()?)?;
        // Records that become no row have no turn.
        let alignments = Arc::clone(handler.alignments());
        let kept = move |set: usize| {
            let alignments = Arc::clone(&alignments);
            open(set).filter(move |record| {
                let Ok(record) = record else { return true };
                record.parse().is_ok_and(|object| alignments.keeps(&object, record.file) != Ok(false))
            })
        };
        Ok(Box::new(mixed(order, kept)))
    }
}
