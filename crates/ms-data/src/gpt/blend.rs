//! Blends of several pretraining datasets, and the three splits of a run.

use super::cache::{BlendKey, SetKey};
use super::{BlendIndex, GptDataset, GptOptions, MockSequences, Source};
use crate::indexed::IndexedDataset;
use crate::samples::check_index;
use crate::split::NAMES;
use crate::{Error, Result, Sample, Samples, Split, Upstream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Several datasets, sampled by weight.
#[derive(Debug)]
pub struct Blend<S> {
    /// The sets.
    pub parts: Vec<S>,
    /// The order of draws.
    pub index: BlendIndex,
    /// Share of each set.
    pub weights: Vec<f64>,
}

impl<S: Samples> Samples for Blend<S> {
    fn len(&self) -> u64 {
        self.index.dataset.len() as u64
    }

    fn get(&self, index: u64) -> Result<Sample> {
        check_index(index, self.len())?;
        let part = self.index.dataset[index as usize] as usize;
        self.parts[part].get(self.index.sample[index as usize] as u64)
    }

    fn row_tokens(&self, index: u64) -> Option<usize> {
        let part = *self.index.dataset.get(index as usize)? as usize;
        self.parts[part].row_tokens(self.index.sample[index as usize] as u64)
    }
}

/// One split of a run: a dataset, or a blend of datasets.
#[derive(Debug)]
pub enum GptSet {
    /// One set.
    Single(GptDataset),
    /// Several.
    Blend(Blend<GptDataset>),
}

impl GptSet {
    /// Its datasets.
    pub fn parts(&self) -> &[GptDataset] {
        match self {
            Self::Single(set) => std::slice::from_ref(set),
            Self::Blend(blend) => &blend.parts,
        }
    }
}

impl Samples for GptSet {
    fn len(&self) -> u64 {
        match self {
            Self::Single(set) => Samples::len(set),
            Self::Blend(blend) => Samples::len(blend),
        }
    }

    fn get(&self, index: u64) -> Result<Sample> {
        match self {
            Self::Single(set) => set.get(index),
            Self::Blend(blend) => blend.get(index),
        }
    }
}

/// A list as `--data-path` gives it: prefixes, or weights and prefixes in turn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BlendList {
    pub(crate) prefixes: Vec<PathBuf>,
    pub(crate) weights: Option<Vec<f64>>,
}

impl BlendList {
    /// Parses the values. An odd count, or no numbers in the weights' places: only prefixes. A mixture is an error.
    pub(crate) fn parse(words: &[String]) -> Result<Self> {
        let numbers: Vec<Option<f64>> = words.iter().step_by(2).map(|word| word.parse().ok()).collect();
        let numeric = numbers.iter().flatten().count();
        if words.len() % 2 == 1 || numeric == 0 {
            return Ok(Self { prefixes: words.iter().map(PathBuf::from).collect(), weights: None });
        }
        let weights: Vec<f64> = numbers.iter().copied().flatten().collect();
        if weights.len() != numbers.len() || weights.iter().any(|w| !(w.is_finite() && *w > 0.0)) {
            return Err(Error::options(format!(
                "{}: expected every second word, from the first, to be a weight above zero",
                words.join(" ")
            )));
        }
        Ok(Self {
            prefixes: words.iter().skip(1).step_by(2).map(PathBuf::from).collect(),
            weights: Some(shares(&weights)),
        })
    }
}

/// Where the data of a run comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum DataPaths {
    /// `--data-path`, cut by `--split`.
    Split {
        /// Prefixes, or weights and prefixes in turn.
        paths: Vec<String>,
        /// Shares of train, valid, test.
        split: Split,
    },
    /// `--train-data-path`, `--valid-data-path`, `--test-data-path`; an empty list is no data.
    PerSplit([Vec<String>; 3]),
    /// `--mock-data`: artificial sequences, one third for each split.
    Mock,
}

impl DataPaths {
    /// Every prefix that is named, in order.
    ///
    /// # Errors
    /// [`Error::Options`] for a list that mixes forms.
    pub fn prefixes(&self) -> Result<Vec<PathBuf>> {
        let lists = match self {
            Self::Split { paths, .. } => std::slice::from_ref(paths),
            Self::PerSplit(lists) => lists.as_slice(),
            Self::Mock => &[],
        };
        let mut prefixes = Vec::new();
        for list in lists.iter().filter(|list| !list.is_empty()) {
            prefixes.extend(BlendList::parse(list)?.prefixes);
        }
        Ok(prefixes)
    }
}

/// Builds train, valid and test splits with `samples` samples each (`None`: one epoch).
///
/// # Errors
/// [`Error::Options`] for a data path that mixes forms; what opening a dataset returns; [`Error::EmptySplit`].
pub fn build(
    paths: &DataPaths,
    samples: [Option<u64>; 3],
    options: &GptOptions,
    upstream: Upstream,
) -> Result<[Option<GptSet>; 3]> {
    build_at(Path::new(""), paths, samples, options, upstream)
}

/// [`build`] with prefixes that are relative to `base`.
pub(super) fn build_at(
    base: &Path,
    paths: &DataPaths,
    samples: [Option<u64>; 3],
    options: &GptOptions,
    upstream: Upstream,
) -> Result<[Option<GptSet>; 3]> {
    let apart = upstream.keeps_documents_apart(options.reset_position_ids, options.reset_attention_mask);
    let options = &GptOptions { reset_attention_mask: apart, ..options.clone() };
    let mut out = [None, None, None];
    match paths {
        DataPaths::Mock => {
            // Upstream's split of artificial data, whatever --split says.
            let split = Split::parse("1,1,1")?;
            let data = Source::Mock(Arc::new(MockSequences::new(options.eod)));
            let ranges = split.pretraining_ranges(data.sequences());
            // Sorting a third takes a while, so unused ones are skipped.
            for (which, range) in
                ranges.into_iter().enumerate().filter(|(which, _)| samples[*which] != Some(0))
            {
                let cut = Cut { which, split: &split, named: true, options, upstream };
                let set = cut.set(None, data.clone(), range.unwrap_or_default(), samples[which])?;
                out[which] = Some(GptSet::Single(set));
            }
        }
        DataPaths::Split { paths, split } => {
            let list = BlendList::parse(paths)?;
            let data = open_all(base, &list)?;
            for which in 0..3 {
                let cut = Cut { which, split, named: true, options, upstream };
                out[which] = build_split(&list, &data, cut, samples[which])?;
            }
        }
        DataPaths::PerSplit(lists) => {
            for which in 0..3 {
                if lists[which].is_empty() {
                    continue;
                }
                let list = BlendList::parse(&lists[which])?;
                let data = open_all(base, &list)?;
                let whole = Split::only(which);
                let cut = Cut { which, split: &whole, named: false, options, upstream };
                out[which] = build_split(&list, &data, cut, samples[which])?;
            }
        }
    }
    Ok(out)
}

/// A split that is built.
#[derive(Clone, Copy)]
struct Cut<'a> {
    which: usize,
    split: &'a Split,
    /// Whether its shares were requested.
    named: bool,
    options: &'a GptOptions,
    upstream: Upstream,
}

impl Cut<'_> {
    /// What index files of a set are known by, if there are to be some.
    fn key(&self, prefix: Option<&Path>, samples: Option<u64>) -> Option<SetKey<'_>> {
        self.options.cache.as_ref().map(|cache| SetKey {
            cache,
            prefix: prefix.map(Path::to_path_buf),
            samples,
            split_name: NAMES[self.which],
            split: self.named.then_some(self.split),
            seed: self.options.seed,
            row_tokens: self.options.row_tokens,
            upstream: self.upstream,
        })
    }

    fn set(
        &self,
        prefix: Option<&Path>,
        data: Source,
        range: Range<usize>,
        samples: Option<u64>,
    ) -> Result<GptDataset> {
        let options = self.options.clone();
        match self.key(prefix, samples) {
            None => GptDataset::new(data, NAMES[self.which], range, samples, options),
            Some(key) => GptDataset::cached(data, range, options, &key),
        }
    }
}

fn open_all(base: &Path, list: &BlendList) -> Result<Vec<Arc<IndexedDataset>>> {
    list.prefixes.iter().map(|prefix| IndexedDataset::open(base.join(prefix)).map(Arc::new)).collect()
}

fn build_split(
    list: &BlendList,
    data: &[Arc<IndexedDataset>],
    cut: Cut<'_>,
    samples: Option<u64>,
) -> Result<Option<GptSet>> {
    let Cut { which, split, named, options, upstream } = cut;
    if split.matrix()[which].is_none() {
        return Ok(None);
    }
    // An empty split stops only a run that needs samples of it.
    let empty = |set: &Arc<IndexedDataset>| {
        split.pretraining_ranges(set.len())[which].as_ref().is_none_or(Range::is_empty)
    };
    if samples.is_none_or(|n| n == 0) && data.iter().any(empty) {
        return Ok(None);
    }
    let part = |(prefix, set): (&PathBuf, &Arc<IndexedDataset>), samples: Option<u64>| {
        let range = split.pretraining_ranges(set.len())[which].clone().unwrap_or(0..0);
        cut.set(Some(prefix), set.clone().into(), range, samples)
    };
    // The weight of a single prefix matters only where datasets are split by shares.
    if data.len() == 1 && (list.weights.is_none() || !named) {
        return Ok(Some(GptSet::Single(part((&list.prefixes[0], &data[0]), samples)?)));
    }
    let sets = || list.prefixes.iter().zip(data);
    let (parts, asked, weights, size) = match (&list.weights, samples) {
        (Some(weights), Some(total)) => {
            let sizes: Vec<u64> = weights.iter().map(|w| part_size(total, *w, upstream)).collect();
            let parts = sets().zip(&sizes).map(|(set, &n)| part(set, Some(n))).collect::<Result<Vec<_>>>()?;
            let size = match upstream {
                Upstream::V2_0_0 => sizes.iter().sum(),
                Upstream::Head => weights.iter().map(|w| (total as f64 * w).ceil() as u64).sum(),
            };
            // Upstream divides once more where the blend has a size; the last digits then decide what is drawn next.
            (parts, sizes.into_iter().map(Some).collect(), shares(weights), Some(size))
        }
        (weights, total) => {
            let parts = sets().map(|set| part(set, None)).collect::<Result<Vec<_>>>()?;
            let lengths: Vec<u64> = parts.iter().map(Samples::len).collect();
            let sum: u64 = lengths.iter().sum();
            let by_length = || lengths.iter().map(|&n| n as f64 / sum as f64).collect();
            let asked: Vec<Option<u64>> = vec![None; parts.len()];
            (parts, asked, weights.clone().unwrap_or_else(by_length), total.map(|total| total.min(sum)))
        }
    };
    let lengths: Vec<u64> = parts.iter().map(Samples::len).collect();
    let draw = || match size {
        Some(size) => BlendIndex::weighted(&weights, size as usize),
        None => BlendIndex::exhaustive(&lengths),
    };
    let descriptions =
        list.prefixes.iter().zip(&asked).filter_map(|(set, n)| Some(cut.key(Some(set), *n)?.description()));
    let key = options.cache.as_ref().map(|cache| BlendKey {
        cache,
        parts: descriptions.collect(),
        split_name: NAMES[which],
        weights: &weights,
        size,
    });
    let index = match key.as_ref().and_then(|key| key.read(&lengths)) {
        Some(index) => index,
        None => {
            let index = draw();
            if let Some(key) = &key {
                key.write(&index)?;
            }
            index
        }
    };
    // A blend is drawn a little longer than what is asked for, and that nobody takes.
    let taken = samples.map_or(usize::MAX, |total| total as usize);
    for (set, &sample) in index.dataset.iter().zip(&index.sample).take(taken) {
        if sample as u64 >= lengths[*set as usize] {
            return Err(Error::options(format!(
                "{} split: the blend draws sample {sample} of {}, which has {}",
                NAMES[which],
                parts[*set as usize].data().name().display(),
                lengths[*set as usize]
            )));
        }
    }
    Ok(Some(GptSet::Blend(Blend { parts, index, weights })))
}

/// Samples built of one part: its share, and half a percent more.
fn part_size(total: u64, weight: f64, upstream: Upstream) -> u64 {
    match upstream {
        Upstream::V2_0_0 => (total as f64 * weight * 1.005).ceil() as u64,
        Upstream::Head => ((total as f64 * weight).ceil() * 1.005).ceil() as u64,
    }
}

/// Weights divided by their sum.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/core/datasets/utils.py`, `normalize`.
fn shares(weights: &[f64]) -> Vec<f64> {
    let sum = numpy_sum(weights);
    weights.iter().map(|w| w / sum).collect()
}

/// `numpy.sum` of f64: left to right below eight numbers, eight partial sums up to 128, halves above.
fn numpy_sum(values: &[f64]) -> f64 {
    if values.len() < 8 {
        return values.iter().sum();
    }
    if values.len() <= 128 {
        let mut lanes: [f64; 8] = std::array::from_fn(|i| values[i]);
        let whole = values.len() - values.len() % 8;
        for chunk in values[8..whole].chunks_exact(8) {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane += value;
            }
        }
        let [a, b, c, d, e, f, g, h] = lanes;
        let sum = ((a + b) + (c + d)) + ((e + f) + (g + h));
        return values[whole..].iter().fold(sum, |sum, value| sum + value);
    }
    let half = values.len() / 2;
    let half = half - half % 8;
    numpy_sum(&values[..half]) + numpy_sum(&values[half..])
}
