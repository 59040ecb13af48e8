//! Which rank reads which rows.
//!
//! Rows are distributed in chunks of `micro_batch_size * dp_size`; each data-parallel rank takes its slice of every chunk.
//! Source: MindSpeed-LLM v2.0.0 `mindspeed_llm/legacy/data/data_samplers.py`.

use crate::random::torch_randperm;
use crate::{Error, Result};

/// Order in which rows are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SamplerKind {
    /// `--dataloader-type single`: in order, once; a last chunk that is not full is dropped.
    #[default]
    Single,
    /// `--dataloader-type cyclic`: forever; each epoch, every rank permutes its own share.
    Cyclic,
    /// The same with `--no-data-sharding`: each epoch, all rows are permuted together, and ranks take them in turn.
    CyclicInTurns,
}

/// A place among data-parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataParallelRank {
    /// Its number, from 0.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
}

/// Row numbers of one rank's micro-batches from a given number of consumed samples on.
#[derive(Clone, Debug)]
pub struct Sampler {
    kind: SamplerKind,
    total: u64,
    micro_batch_size: u64,
    rank: u64,
    size: u64,
    consumed: u64,
    /// Permutation of the current epoch.
    epoch: Option<(u64, Vec<u32>)>,
}

impl Sampler {
    /// A sampler over `total` rows that starts after `consumed` samples (counted over all ranks).
    ///
    /// # Errors
    /// [`Error::Options`] if a size is 0, the rank is outside, or no full chunk fits into the dataset.
    pub fn new(
        kind: SamplerKind,
        total: u64,
        micro_batch_size: usize,
        DataParallelRank { rank, size }: DataParallelRank,
        consumed: u64,
    ) -> Result<Self> {
        if micro_batch_size == 0 || size == 0 || rank >= size {
            return Err(Error::options(format!(
                "micro-batch size {micro_batch_size}, data-parallel rank {rank} of {size}: expected sizes above zero and a rank below"
            )));
        }
        let chunk = (micro_batch_size * size) as u64;
        if total < chunk {
            return Err(Error::options(format!(
                "{total} samples do not fill one micro-batch of {micro_batch_size} on {size} data-parallel ranks"
            )));
        }
        Ok(Self {
            kind,
            total,
            micro_batch_size: micro_batch_size as u64,
            rank: rank as u64,
            size: size as u64,
            consumed,
            epoch: None,
        })
    }
}

impl Iterator for Sampler {
    type Item = Vec<u64>;

    fn next(&mut self) -> Option<Vec<u64>> {
        let chunk = self.micro_batch_size * self.size;
        let rows = match self.kind {
            SamplerKind::Single => {
                if self.consumed + chunk > self.total {
                    return None;
                }
                let start = self.consumed + self.rank * self.micro_batch_size;
                (start..start + self.micro_batch_size).collect()
            }
            SamplerKind::Cyclic => {
                let per_epoch = self.total - self.total % chunk;
                let bucket = per_epoch / self.size;
                let (epoch, within) = (self.consumed / per_epoch, self.consumed % per_epoch);
                if self.epoch.as_ref().is_none_or(|(known, _)| *known != epoch) {
                    self.epoch = Some((epoch, torch_randperm(bucket as usize, epoch)));
                }
                let (_, order) = self.epoch.as_ref().expect("set just above");
                let at = (within / self.size) as usize;
                // A resumed run may begin inside a chunk of another shape; the end of the epoch then gives a short one,
                // which upstream drops.
                let Some(slice) = order.get(at..at + self.micro_batch_size as usize) else {
                    self.consumed = (epoch + 1) * per_epoch;
                    return self.next();
                };
                slice.iter().map(|&row| self.rank * bucket + u64::from(row)).collect()
            }
            // Upstream's ranks go on with rows that do not fill a chunk of all ranks, each for itself; here none does.
            SamplerKind::CyclicInTurns => {
                let per_epoch = self.total - self.total % chunk;
                let (epoch, within) = (self.consumed / per_epoch, self.consumed % per_epoch);
                if within + chunk > per_epoch {
                    self.consumed = (epoch + 1) * per_epoch;
                    return self.next();
                }
                if self.epoch.as_ref().is_none_or(|(known, _)| *known != epoch) {
                    let rows = self.total - self.total % self.micro_batch_size;
                    self.epoch = Some((epoch, torch_randperm(rows as usize, epoch)));
                }
                let (_, order) = self.epoch.as_ref().expect("set just above");
                let mine = order[within as usize..][..chunk as usize].iter().skip(self.rank as usize);
                mine.step_by(self.size as usize).map(|&row| u64::from(row)).collect()
            }
        };
        self.consumed += chunk;
        Some(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(rank: usize, size: usize) -> DataParallelRank {
        DataParallelRank { rank, size }
    }

    #[test]
    fn ranks_take_slices_of_consecutive_chunks_and_the_rest_is_dropped() {
        let rank = |r| Sampler::new(SamplerKind::Single, 11, 2, at(r, 2), 4).unwrap().collect::<Vec<_>>();
        assert_eq!(rank(0), [vec![4, 5]]);
        assert_eq!(rank(1), [vec![6, 7]]);
    }

    #[test]
    fn cyclic_order_is_torchs_and_resumes_anywhere() {
        // Epoch 0 permutes four rows per rank into 0, 1, 3, 2.
        let all =
            |r, c| Sampler::new(SamplerKind::Cyclic, 9, 2, at(r, 2), c).unwrap().take(4).collect::<Vec<_>>();
        assert_eq!(all(0, 0)[..2], [vec![0, 1], vec![3, 2]]);
        assert_eq!(all(1, 0)[..2], [vec![4, 5], vec![7, 6]]);
        assert_eq!(all(0, 4)[..3], all(0, 0)[1..4]);
    }

    #[test]
    fn rows_in_turns_are_one_order_whatever_ranks_there_are() {
        let taken = |micro, dp: usize, c| -> Vec<u64> {
            let mut ranks: Vec<Sampler> = (0..dp)
                .map(|r| Sampler::new(SamplerKind::CyclicInTurns, 12, micro, at(r, dp), c).unwrap())
                .collect();
            let mut all = Vec::new();
            for _ in 0..24 / (micro * dp) {
                let rows: Vec<Vec<u64>> = ranks.iter_mut().map(|r| r.next().unwrap()).collect();
                all.extend((0..micro).flat_map(|i| rows.iter().map(move |row| row[i])));
            }
            all
        };
        let epoch = |n| torch_randperm(12, n).into_iter().map(u64::from);
        let want: Vec<u64> = epoch(0).chain(epoch(1)).collect();
        for (micro, dp) in [(1, 1), (2, 1), (1, 3), (2, 2), (3, 4)] {
            assert_eq!(taken(micro, dp, 0), want, "{micro} {dp}");
        }
        assert_eq!(taken(2, 2, 4)[..8], want[4..12]);
        // Another chunk than before at the end of an epoch: it begins the next one.
        assert_eq!(taken(2, 3, 8)[..6], want[12..18]);
    }

    #[test]
    fn a_set_smaller_than_a_chunk_is_refused() {
        let error = Sampler::new(SamplerKind::Single, 3, 2, at(0, 2), 0).unwrap_err().to_string();
        assert!(error.contains("3 samples do not fill"), "{error}");
    }
}
