//! A rank's coordinates and its process groups.

use crate::{Communicator, ContextParallel, DataParallelGroups, Error, Fabric, LinearOverlap, Result};
use ms_core::{Axis, Digits, Dispatcher, Grid, RankGroup, RingCache};
use std::sync::Arc;

/// How the ranks of a grid share tokens and exchange them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParallelOptions {
    /// Tensor-parallel ranks share the tokens between matrices.
    pub sequence_parallel: bool,
    /// How ranks share a sequence.
    pub context: ContextParallel,
    /// What layers keep of the keys and values that ranks pass around.
    pub ring_cache: RingCache,
    /// How tokens reach the ranks of their experts.
    pub dispatcher: Dispatcher,
    /// Shared experts are computed while tokens are in transit to the routed experts.
    pub overlap_experts: bool,
}

/// Everything is gathered where it is needed, without overlap.
impl Default for ParallelOptions {
    fn default() -> Self {
        Self {
            sequence_parallel: false,
            context: ContextParallel::Gather,
            ring_cache: RingCache::default(),
            dispatcher: Dispatcher::default(),
            overlap_experts: false,
        }
    }
}

/// A rank's coordinates in the grid and its communicators along the axes; passed down, never global.
#[derive(Clone)]
pub struct ParallelCtx {
    /// The grid.
    pub grid: Grid,
    /// Its digits, along which debug builds track sharding states.
    pub digits: Digits,
    /// This rank's number.
    pub rank: usize,
    /// Activations outside tensor-parallel layers are sharded by tokens.
    pub sequence_parallel: bool,
    /// What layers compute while their ranks communicate.
    pub linears: LinearOverlap,
    /// How ranks share a sequence.
    pub context: ContextParallel,
    /// What layers keep of the keys and values that ranks pass around.
    pub ring_cache: RingCache,
    /// How tokens reach the ranks of their experts.
    pub dispatcher: Dispatcher,
    /// Shared experts are computed while tokens are in transit to the routed experts.
    pub overlap_experts: bool,
    /// Ranks that hold shards of one matrix.
    pub tp: Arc<dyn Communicator>,
    /// Ranks that hold pieces of one sequence.
    pub cp: Arc<dyn Communicator>,
    /// The ranks of `cp` that exchange heads for tokens.
    pub ulysses: Arc<dyn Communicator>,
    /// The ranks of `cp` that pass keys and values around a ring.
    pub ring: Arc<dyn Communicator>,
    /// Ranks that see different samples.
    pub dp: Arc<dyn Communicator>,
    /// Ranks over which gradients are summed: data and context parallel together.
    pub dp_cp: Arc<dyn Communicator>,
    /// Ranks that hold different layers.
    pub pp: Arc<dyn Communicator>,
    /// First and last stage, which may both hold the embedding; on other stages this rank alone.
    pub embedding: Arc<dyn Communicator>,
    /// Ranks that hold different experts.
    pub ep: Arc<dyn Communicator>,
    /// Ranks that hold shards of one expert.
    pub etp: Arc<dyn Communicator>,
    /// Ranks that together hold all experts: `ep` and `etp`.
    pub tp_ep: Arc<dyn Communicator>,
    /// Ranks over which experts' gradients are summed.
    pub edp: Arc<dyn Communicator>,
    /// How the ranks of `dp_cp` shard the optimizer state.
    pub replicas: DataParallelGroups,
    /// How the ranks of `edp` shard the optimizer state.
    pub expert_replicas: DataParallelGroups,
    /// Ranks that hold the same layers.
    pub stage: Arc<dyn Communicator>,
    /// All ranks.
    pub world: Arc<dyn Communicator>,
}

impl ParallelCtx {
    /// The context of `fabric`'s rank in `grid`.
    ///
    /// # Errors
    /// If the fabric does not have as many ranks as the grid.
    pub fn new(grid: Grid, parallel: ParallelOptions, fabric: &dyn Fabric) -> Result<Self> {
        let ParallelOptions { sequence_parallel, context, ring_cache, dispatcher, overlap_experts } =
            parallel;
        let (rank, world) = (fabric.rank(), fabric.world());
        if grid.world() != world {
            let message = format!("the grid has {} ranks, the run has {world}", grid.world());
            return Err(Error::Core(ms_core::Error::Topology(message)));
        }
        // Groups of one kind are disjoint, so all ranks request theirs in the same order.
        let group = |group| {
            let ranks = grid.group(group, rank).unwrap_or_else(|| vec![rank]);
            fabric.group(&ranks)
        };
        let split = |of: &Arc<dyn Communicator>, intra, inter| -> Result<DataParallelGroups> {
            // What all ranks of a group do together is done, and counted, in that group.
            let part = |kind| match grid.group(kind, rank) {
                Some(ranks) if ranks.len() == of.size() => Ok(of.clone()),
                _ => group(kind),
            };
            Ok(DataParallelGroups { intra: part(intra)?, inter: part(inter)? })
        };
        let (dp_cp, edp) = (group(RankGroup::DpCp)?, group(RankGroup::ExpertDp)?);
        Ok(Self {
            rank,
            replicas: split(&dp_cp, RankGroup::DpCpIntra, RankGroup::DpCpInter)?,
            expert_replicas: split(&edp, RankGroup::ExpertDpIntra, RankGroup::ExpertDpInter)?,
            dp_cp,
            edp,
            sequence_parallel: sequence_parallel && grid.size(Axis::Tp) > 1,
            linears: LinearOverlap::default(),
            context,
            ring_cache,
            dispatcher,
            overlap_experts,
            tp: group(RankGroup::Tp)?,
            cp: group(RankGroup::Cp)?,
            ulysses: group(RankGroup::Ulysses)?,
            ring: group(RankGroup::Ring)?,
            dp: group(RankGroup::Dp)?,
            pp: group(RankGroup::Pp)?,
            embedding: group(RankGroup::Embedding)?,
            ep: group(RankGroup::Ep)?,
            etp: group(RankGroup::ExpertTp)?,
            tp_ep: group(RankGroup::TpEp)?,
            stage: group(RankGroup::TpDpCp)?,
            world: group(RankGroup::World)?,
            digits: Digits::of(&grid),
            grid,
        })
    }

    /// The context of a run of one rank.
    pub fn single() -> Self {
        Self::new(Grid::single(), ParallelOptions::default(), &crate::threads::ThreadFabric::single())
            .expect("one rank has all its groups")
    }

    /// Position along `axis`.
    pub fn coord(&self, axis: Axis) -> usize {
        self.grid.coord(self.rank, axis)
    }

    pub(crate) fn groups_mut(&mut self) -> impl Iterator<Item = &mut Arc<dyn Communicator>> {
        let Self {
            tp, cp, ulysses, ring, dp, dp_cp, pp, embedding, ep, etp, tp_ep, edp, stage, world, ..
        } = self;
        let groups = [tp, cp, ulysses, ring, dp, dp_cp, pp, embedding, ep, etp, tp_ep, edp, stage, world];
        let parts = [&mut self.replicas, &mut self.expert_replicas].into_iter();
        groups.into_iter().chain(parts.flat_map(|part| [&mut part.intra, &mut part.inter]))
    }

    /// Its groups with their kinds.
    pub fn groups(&self) -> [(RankGroup, &Arc<dyn Communicator>); 18] {
        [
            (RankGroup::Tp, &self.tp),
            (RankGroup::Cp, &self.cp),
            (RankGroup::Ulysses, &self.ulysses),
            (RankGroup::Ring, &self.ring),
            (RankGroup::Dp, &self.dp),
            (RankGroup::DpCp, &self.dp_cp),
            (RankGroup::Pp, &self.pp),
            (RankGroup::Embedding, &self.embedding),
            (RankGroup::Ep, &self.ep),
            (RankGroup::ExpertTp, &self.etp),
            (RankGroup::TpEp, &self.tp_ep),
            (RankGroup::ExpertDp, &self.edp),
            (RankGroup::TpDpCp, &self.stage),
            (RankGroup::World, &self.world),
            (RankGroup::DpCpIntra, &self.replicas.intra),
            (RankGroup::DpCpInter, &self.replicas.inter),
            (RankGroup::ExpertDpIntra, &self.expert_replicas.intra),
            (RankGroup::ExpertDpInter, &self.expert_replicas.inter),
        ]
    }

    /// Bytes that this rank has sent so far, by group; groups of one rank are left out, and identical groups count once,
    /// under the first name.
    pub fn sent_bytes(&self) -> Vec<(RankGroup, u64)> {
        let counts = |(group, comm): &(RankGroup, &Arc<dyn Communicator>)| match group {
            _ if comm.size() == 1 => false,
            RankGroup::DpCpIntra | RankGroup::DpCpInter => comm.size() < self.dp_cp.size(),
            RankGroup::ExpertDpIntra | RankGroup::ExpertDpInter => comm.size() < self.edp.size(),
            _ => true,
        };
        let counted = self.groups().into_iter().filter(counts);
        counted.map(|(group, comm)| (group, comm.sent_bytes())).collect()
    }

    /// `rank 3 (dp 1, tp 1)`: for messages.
    pub fn describe(&self) -> String {
        let place: Vec<String> = Axis::DEFAULT_ORDER
            .iter()
            .filter(|&&a| self.grid.size(a) > 1)
            .map(|&a| format!("{a} {}", self.coord(a)))
            .collect();
        if place.is_empty() {
            format!("rank {}", self.rank)
        } else {
            format!("rank {} ({})", self.rank, place.join(", "))
        }
    }
}
