//! Blends of several fine-tuning datasets.

use super::{SftDataset, SftOptions};
use crate::gpt::{Blend, BlendIndex, BlendList};
use crate::split::NAMES;
use crate::{Error, Result, Samples, Split};
use std::path::PathBuf;
use std::sync::Arc;

/// Train, valid and test sets of `--data-path`: one prefix, several, or weights and prefixes in turn.
///
/// Without weights, datasets count by their sequences. Each dataset provides its share plus half a percent, as Megatron's
/// blends are; draws follow the weights ([`BlendIndex::weighted`]). A set whose split is empty takes no part in that split.
/// (MindSpeed-LLM v2.0.0 itself reads the first path only.)
///
/// # Errors
/// [`Error::Options`] for a list that mixes forms; what opening a dataset returns.
pub fn build(
    paths: &[String],
    split: &Split,
    samples: [u64; 3],
    options: &SftOptions,
) -> Result<[Option<Arc<dyn Samples>>; 3]> {
    let list = BlendList::parse(paths)?;
    if let ([prefix], None) = (list.prefixes.as_slice(), &list.weights) {
        let sets = SftDataset::open(prefix, split, samples, options)?;
        return Ok(sets.map(|set| set.map(|set| set as Arc<dyn Samples>)));
    }
    if list.prefixes.is_empty() {
        return Err(Error::options("no data path"));
    }
    let weights = match list.weights {
        Some(weights) => weights,
        None => {
            let sizes: Vec<f64> = list
                .prefixes
                .iter()
                .map(|prefix| SftDataset::sequences_of(prefix, options).map(|n| n as f64))
                .collect::<Result<_>>()?;
            let sum: f64 = sizes.iter().sum();
            sizes.into_iter().map(|size| size / sum).collect()
        }
    };
    let mut opened: Vec<[Option<Arc<SftDataset>>; 3]> = Vec::with_capacity(weights.len());
    for (prefix, weight) in list.prefixes.iter().zip(&weights) {
        let share = samples.map(|total| ((total as f64 * weight).ceil() * 1.005).ceil() as u64);
        opened.push(SftDataset::open(prefix, split, share, options)?);
    }
    let mut out: [Option<Arc<dyn Samples>>; 3] = [None, None, None];
    for which in 0..3 {
        out[which] = blend(&list.prefixes, &weights, &opened, which, samples[which])?;
    }
    Ok(out)
}

fn blend(
    prefixes: &[PathBuf],
    weights: &[f64],
    opened: &[[Option<Arc<SftDataset>>; 3]],
    which: usize,
    samples: u64,
) -> Result<Option<Arc<dyn Samples>>> {
    let mut parts = Vec::new();
    let mut kept = Vec::new();
    for ((sets, weight), prefix) in opened.iter().zip(weights).zip(prefixes) {
        match &sets[which] {
            Some(set) => {
                parts.push(Arc::clone(set));
                kept.push(*weight);
            }
            None if samples > 0 => {
                tracing::warn!("{}: its {} split is empty and takes no part", prefix.display(), NAMES[which]);
            }
            None => {}
        }
    }
    if parts.is_empty() {
        return Ok(None);
    }
    let sum: f64 = kept.iter().sum();
    let size: u64 = kept.iter().map(|weight| (samples as f64 * weight).ceil() as u64).sum();
    let shares: Vec<f64> = kept.iter().map(|weight| weight / sum).collect();
    let index = BlendIndex::weighted(&shares, size as usize);
    // A blend is drawn a little longer than what is asked for, and that nobody takes.
    for (&set, &sample) in index.dataset.iter().zip(&index.sample).take(samples as usize) {
        let (set, length) = (set as usize, parts[set as usize].order().len());
        if sample as usize >= length {
            return Err(Error::options(format!(
                "{} split: the blend draws sample {sample} of set {set}, which has {length}",
                NAMES[which]
            )));
        }
    }
    Ok(Some(Arc::new(Blend { parts, index, weights: shares })))
}
