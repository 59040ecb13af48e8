//! Packing samples into rows of one length: upstream's knapsack, in near-linear time.

use crate::Result;
use crate::sft::IGNORED;

/// Fills bins of `capacity`: each bin takes the largest remaining length that fits, again and again. Returns for every
/// bin the numbers of its samples in the order they were taken; of equal lengths the latest sample is taken first.
///
/// The result is that of sorting and bisecting a shrinking list, as upstream does; here lengths are counted, and a
/// union-find over lengths gives the next smaller one that is left, so that `n` samples take about `n` steps.
///
/// # Panics
/// If a length exceeds `capacity`: it could never be placed.
pub fn knapsack(lengths: &[u32], capacity: u32) -> Vec<Vec<u32>> {
    let size = capacity as usize + 1;
    let mut by_length: Vec<Vec<u32>> = vec![Vec::new(); size];
    for (sample, &length) in lengths.iter().enumerate() {
        assert!(length <= capacity, "sample {sample} of {length} tokens does not fit {capacity}");
        by_length[length as usize].push(sample as u32);
    }
    // below[l + 1] leads to the largest non-empty length at or below l; 0 means there is none.
    let mut below: Vec<u32> = (0..=size as u32).collect();
    let mut find = |mut at: u32, by_length: &[Vec<u32>]| -> Option<u32> {
        let start = at;
        loop {
            if at == 0 {
                break;
            }
            if below[at as usize] != at {
                at = below[at as usize];
            } else if by_length[at as usize - 1].is_empty() {
                below[at as usize] = at - 1;
            } else {
                break;
            }
        }
        let mut walk = start;
        while walk != at {
            walk = std::mem::replace(&mut below[walk as usize], at);
        }
        at.checked_sub(1)
    };
    let mut bins = Vec::new();
    let mut left = lengths.len();
    while left > 0 {
        let mut room = capacity;
        let mut bin = Vec::new();
        while let Some(length) = find(room + 1, &by_length) {
            bin.push(by_length[length as usize].pop().expect("found as non-empty"));
            left -= 1;
            room -= length;
        }
        bins.push(bin);
    }
    bins
}

/// How rows are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackOptions {
    /// Tokens of a packed row: `--seq-length`.
    pub row_tokens: usize,
    /// `--neat-pack`: the attention mask numbers the samples of a row from 1, padding is 0, long samples are cut.
    pub neat: bool,
    /// Fills up the input ids.
    pub pad: i32,
}

/// Collects samples and packs them at the end. Memory: the tokens of all samples.
#[derive(Debug)]
pub struct Packer {
    options: PackOptions,
    /// Input ids and labels of all samples, one after the other.
    ids: Vec<i32>,
    labels: Vec<i32>,
    starts: Vec<usize>,
    dropped: u64,
}

/// One packed row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedRow {
    /// Input ids, filled up.
    pub input_ids: Vec<i32>,
    /// 1 everywhere; or the sample's number in the row, 0 for padding.
    pub attention_mask: Vec<i32>,
    /// Labels; −100 for padding.
    pub labels: Vec<i32>,
}

impl Packer {
    /// An empty packer.
    pub fn new(options: PackOptions) -> Self {
        Self { options, ids: Vec::new(), labels: Vec::new(), starts: vec![0], dropped: 0 }
    }

    /// Adds a sample. A sample of `row_tokens` or more is dropped, or cut to `row_tokens - 1` by neat packing.
    ///
    /// Upstream v2.0.0 keeps a sample of exactly `row_tokens` and then never ends; its head drops or cuts it too.
    pub fn add(&mut self, input_ids: &[i32], labels: &[i32]) {
        let most = self.options.row_tokens - 1;
        let length = input_ids.len().min(labels.len());
        if length > most && !self.options.neat {
            self.dropped += 1;
            return;
        }
        let length = length.min(most);
        self.ids.extend_from_slice(&input_ids[..length]);
        self.labels.extend_from_slice(&labels[..length]);
        self.starts.push(self.ids.len());
    }

    /// Samples too long to be packed.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Samples that were added.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives every packed row to `write` and starts again empty.
    ///
    /// # Errors
    /// What `write` returns.
    pub fn finish(&mut self, mut write: impl FnMut(&PackedRow) -> Result<()>) -> Result<()> {
        let PackOptions { row_tokens, neat, pad } = self.options;
        let lengths: Vec<u32> = self.starts.windows(2).map(|w| (w[1] - w[0]) as u32).collect();
        let mut row = PackedRow::default();
        for bin in knapsack(&lengths, row_tokens as u32 - 1) {
            row.input_ids.clear();
            row.labels.clear();
            row.attention_mask.clear();
            for (i, &sample) in bin.iter().enumerate() {
                let span = self.starts[sample as usize]..self.starts[sample as usize + 1];
                row.input_ids.extend_from_slice(&self.ids[span.clone()]);
                row.labels.extend_from_slice(&self.labels[span]);
                row.attention_mask.resize(row.input_ids.len(), if neat { i as i32 + 1 } else { 1 });
            }
            row.input_ids.resize(row_tokens, pad);
            row.labels.resize(row_tokens, IGNORED);
            row.attention_mask.resize(row_tokens, if neat { 0 } else { 1 });
            write(&row)?;
        }
        *self = Self { dropped: self.dropped, ..Self::new(self.options) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Upstream's way: a sorted list, bisected and shrunk.
    fn by_bisection(lengths: &[u32], capacity: u32) -> Vec<Vec<u32>> {
        let mut numbers: Vec<u32> = lengths.to_vec();
        numbers.sort_unstable();
        let mut samples: std::collections::BTreeMap<u32, Vec<u32>> = std::collections::BTreeMap::new();
        for (i, &length) in lengths.iter().enumerate() {
            samples.entry(length).or_default().push(i as u32);
        }
        let mut bins = Vec::new();
        while !numbers.is_empty() {
            let (mut room, mut bin) = (capacity, Vec::new());
            loop {
                let at = numbers.partition_point(|&n| n <= room);
                if at == 0 {
                    break;
                }
                let length = numbers.remove(at - 1);
                room -= length;
                bin.push(samples.get_mut(&length).unwrap().pop().unwrap());
            }
            bins.push(bin);
        }
        bins
    }

    #[test]
    fn the_latest_of_equal_lengths_is_taken_first() {
        assert_eq!(knapsack(&[5, 3, 5, 2], 10), [vec![2, 0], vec![1, 3]]);
        assert_eq!(knapsack(&[], 10), Vec::<Vec<u32>>::new());
    }

    #[test]
    fn a_long_sample_is_dropped_or_cut() {
        let mut rows = Vec::new();
        let mut pack = |neat| {
            rows.clear();
            let mut packer = Packer::new(PackOptions { row_tokens: 4, neat, pad: 9 });
            packer.add(&[1, 2, 3, 4], &[1, 2, 3, 4]);
            packer.add(&[5], &[-100]);
            packer
                .finish(|row| {
                    rows.push(row.clone());
                    Ok(())
                })
                .unwrap();
            (rows.clone(), packer.dropped())
        };
        let (plain, dropped) = pack(false);
        assert_eq!((plain.len(), dropped), (1, 1));
        assert_eq!(plain[0].input_ids, [5, 9, 9, 9]);
        assert_eq!(plain[0].attention_mask, [1, 1, 1, 1]);
        assert_eq!(plain[0].labels, [-100; 4]);
        let (neat, dropped) = pack(true);
        assert_eq!((neat.len(), dropped), (2, 0));
        assert_eq!(neat[0].input_ids, [1, 2, 3, 9]);
        assert_eq!(neat[0].attention_mask, [1, 1, 1, 0]);
    }

    proptest! {
        #[test]
        fn counting_gives_the_result_of_bisecting(lengths in proptest::collection::vec(0u32..40, 0..200), more in 0u32..20) {
            let capacity = 39 + more;
            prop_assert_eq!(knapsack(&lengths, capacity), by_bisection(&lengths, capacity));
        }
    }
}
