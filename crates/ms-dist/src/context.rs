//! What a rank knows about its place.

use crate::{Communicator, Fabric, Result};
use ms_core::{Axis, Topology};
use std::sync::Arc;

/// A rank's place in the grid and its communicators along the axes; handed down, never global.
#[derive(Clone)]
pub struct ParallelCtx {
    /// The grid.
    pub topo: Topology,
    /// This rank's number.
    pub rank: usize,
    /// Ranks that hold pieces of one matrix.
    pub tp: Arc<dyn Communicator>,
    /// Ranks that hold pieces of one sequence.
    pub cp: Arc<dyn Communicator>,
    /// Ranks that see different samples.
    pub dp: Arc<dyn Communicator>,
    /// Ranks whose gradients are summed: data and context parallel together.
    pub dp_cp: Arc<dyn Communicator>,
    /// Ranks that hold different layers.
    pub pp: Arc<dyn Communicator>,
    /// All ranks.
    pub world: Arc<dyn Communicator>,
}

impl ParallelCtx {
    /// The context of `fabric`'s rank in the grid `topo`.
    ///
    /// # Errors
    /// If the fabric does not have as many ranks as the grid.
    pub fn new(topo: Topology, fabric: &dyn Fabric) -> Result<Self> {
        let (rank, world) = (fabric.rank(), fabric.world());
        if topo.world() != world {
            let message = format!("the grid has {} ranks, the run has {world}", topo.world());
            return Err(ms_core::Error::Topology(message).into());
        }
        let group = |axes: &[Axis]| fabric.group(&topo.group(rank, axes));
        Ok(Self {
            rank,
            tp: group(&[Axis::Tp])?,
            cp: group(&[Axis::Cp])?,
            dp: group(&[Axis::Dp])?,
            dp_cp: group(&[Axis::Dp, Axis::Cp])?,
            pp: group(&[Axis::Pp])?,
            world: fabric.group(&(0..world).collect::<Vec<_>>())?,
            topo,
        })
    }

    /// The context of a run of one rank.
    pub fn single() -> Self {
        let topo = Topology::new(&[]).expect("a grid of one rank is legal");
        Self::new(topo, &crate::threads::ThreadFabric::single()).expect("one rank has all its groups")
    }

    /// Position along `axis`.
    pub fn coord(&self, axis: Axis) -> usize {
        self.topo.coord(self.rank, axis)
    }

    /// `rank 3 (dp 1, tp 1)`: for messages.
    pub fn describe(&self) -> String {
        let place: Vec<String> = Axis::DEFAULT_ORDER
            .iter()
            .filter(|&&a| self.topo.size(a) > 1)
            .map(|&a| format!("{a} {}", self.coord(a)))
            .collect();
        if place.is_empty() {
            format!("rank {}", self.rank)
        } else {
            format!("rank {} ({})", self.rank, place.join(", "))
        }
    }
}
