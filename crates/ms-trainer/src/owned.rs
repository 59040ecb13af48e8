//! The parameter elements that a rank updates, and their positions in its optimizer state tensors.

use ms_dist::DataParallel;
use ms_dist::buckets::ParamSlice;
use ms_spec::ParamSpec;

/// A part of a parameter that a rank owns.
pub(crate) struct Owned {
    pub(crate) slice: ParamSlice,
    /// First element in the state tensors.
    pub(crate) at: usize,
    /// Whether weight decay applies.
    pub(crate) decay: bool,
    /// Whether it is a vocabulary matrix, which can have its own learning rate.
    pub(crate) words: bool,
    /// Whether this rank's elements count in a norm over all ranks: of equal copies one does, of what no gradient changes none.
    pub(crate) counts: bool,
}

/// Which elements a rank owns.
pub(crate) struct Shard {
    pub(crate) parts: Vec<Owned>,
    /// First element of each bucket's part in the state tensors, and its length.
    pub(crate) buckets: Vec<(usize, usize)>,
    /// First element of each bucket's part in the model's buffer.
    pub(crate) homes: Vec<usize>,
    pub(crate) numel: usize,
}

impl Shard {
    pub(crate) fn new(dp: &DataParallel, specs: &[ParamSpec], counts: &[bool]) -> Self {
        let mut numel = 0;
        let place = |shard: std::ops::Range<usize>| {
            let start = numel;
            numel += shard.len();
            (start, shard.len())
        };
        let homes = dp.shards().iter().map(|own| own.start).collect();
        let buckets: Vec<(usize, usize)> = dp.shards().into_iter().map(place).collect();
        let own = |slice: ParamSlice| Owned {
            at: buckets[slice.bucket].0 + slice.offset,
            decay: specs[slice.param].decay,
            words: specs[slice.param].slot.is_word_table(),
            counts: counts[slice.param] && specs[slice.param].trained(),
            slice,
        };
        Self { parts: dp.slices().into_iter().map(own).collect(), buckets, homes, numel }
    }

    /// What this rank owns of a bucket.
    pub(crate) fn of_bucket(&self, bucket: usize) -> &[Owned] {
        let first = self.parts.partition_point(|own| own.slice.bucket < bucket);
        let behind = self.parts.partition_point(|own| own.slice.bucket <= bucket);
        &self.parts[first..behind]
    }

    /// First element of a part in the model's buffer.
    pub(crate) fn home(&self, own: &Owned) -> usize {
        self.homes[own.slice.bucket] + own.slice.offset
    }
}
