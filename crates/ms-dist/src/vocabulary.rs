//! Ranks that share the rows of the output layer (the vocabulary).

use crate::ParallelCtx;
use crate::parallel_linear::LinearGroup;
use ms_core::ops::{PendingSum, VocabGroup};
use ms_core::{Digits, Result, Tensor};

/// The tensor-parallel ranks, as seen by a loss over a sharded vocabulary.
pub struct Vocabulary {
    group: LinearGroup,
    first: usize,
}

impl ParallelCtx {
    /// The ranks over which the vocabulary is sharded, this rank's shard beginning with id `first`; `None`: this rank has all
    /// of it.
    pub fn vocabulary(&self, first: usize) -> Option<Vocabulary> {
        (self.tp.size() > 1).then(|| Vocabulary { group: self.linear_group(), first })
    }
}

impl VocabGroup for Vocabulary {
    fn first(&self) -> usize {
        self.first
    }

    fn gather(&self, statistics: Tensor) -> Result<Tensor> {
        Ok(self.group.comm.all_gather("loss statistics", statistics)?.wait()?)
    }

    fn size(&self) -> usize {
        self.group.comm.size()
    }

    fn shares(&self) -> usize {
        self.group.shares()
    }

    fn enter(&self, x: Tensor) -> Result<Tensor> {
        if self.group.sequence_parallel {
            Ok(self.group.comm.all_gather("enter_tp", x)?.wait()?)
        } else {
            Ok(x)
        }
    }

    fn begin_sum(&self, dx: Tensor) -> Result<PendingSum> {
        let pending = self.group.overlapped(self.group.begin_sum("enter_tp", dx)?)?;
        Ok(Box::new(|| Ok(pending.wait()?)))
    }

    fn over(&self) -> Digits {
        self.group.comm.over
    }
}
