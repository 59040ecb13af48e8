//! How optimizer state is sharded over the ranks that hold the same parameters.

use super::divisors::nearest_divisors;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// Which rank holds which shard of the optimizer state. Ranks that hold the same parameters are data- and context-parallel
/// ranks; for experts, the ranks with the same experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OptimizerSharding {
    /// Every rank keeps all of it and updates all of its parameters.
    Replicated,
    /// This many instances (`--num-distributed-optimizer-instances`), each of neighbouring ranks over which a copy is
    /// sharded. With one instance there is one copy of the state.
    Instances(usize),
}

impl Default for OptimizerSharding {
    fn default() -> Self {
        Self::Instances(1)
    }
}

impl OptimizerSharding {
    /// Copies that `alike` ranks with the same parameters keep of their state.
    pub fn copies(self, alike: usize) -> usize {
        match self {
            Self::Replicated => alike,
            Self::Instances(n) => n,
        }
    }

    /// Ranks of `alike` with the same parameters over which a copy is spread.
    pub fn shards(self, alike: usize) -> usize {
        alike / self.copies(alike)
    }

    /// Checks that `alike` ranks divide into the instances.
    pub(super) fn check(self, alike: usize, whose: &str) -> Result<()> {
        let copies = self.copies(alike);
        if copies == 0 || !alike.is_multiple_of(copies) {
            return Err(Error::Topology(format!(
                "distributed optimizer instances: expected a divisor of the {alike} ranks that hold the same {whose}, found \
                 {copies}; {}",
                nearest_divisors(alike, copies)
            )));
        }
        Ok(())
    }

    /// The ranks of `groups` over which a copy is sharded, group by group.
    ///
    /// # Source
    /// Megatron-LM `core_v0.12.1`, `megatron/core/parallel_state.py`, `_INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP`.
    pub(super) fn intra(self, groups: &[Vec<usize>]) -> Vec<Vec<usize>> {
        groups.iter().flat_map(|g| g.chunks(self.shards(g.len()))).map(<[usize]>::to_vec).collect()
    }

    /// The ranks of `groups` that hold the same shard, group by group.
    ///
    /// # Source
    /// As [`OptimizerSharding::intra`], `_INTER_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP`.
    pub(super) fn inter(self, groups: &[Vec<usize>]) -> Vec<Vec<usize>> {
        let same = |g: &Vec<usize>, part: usize| -> Vec<usize> {
            g.iter().copied().skip(part).step_by(self.shards(g.len())).collect()
        };
        groups.iter().flat_map(|g| (0..self.shards(g.len())).map(move |part| same(g, part))).collect()
    }
}
