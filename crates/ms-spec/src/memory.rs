//! Bytes that a rank's copy of the weights takes in training, by kind.

use ms_core::{Axis, Grid};
use serde::{Deserialize, Serialize};

use crate::{PlacedParam, Result, local};

/// Bytes of one rank by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Elements of the weights that the rank holds, copies included.
    pub elements: usize,
    /// Weights that the forward pass reads.
    pub weights: usize,
    /// Accumulated gradients, float32.
    pub gradients: usize,
    /// Float32 copy of the weights, when they are of a shorter type.
    pub master: usize,
    /// First and second moments, float32.
    pub moments: usize,
}

impl Memory {
    /// The sum of all kinds.
    pub fn total(&self) -> usize {
        self.weights + self.gradients + self.master + self.moments
    }
}

/// Bytes that the parameters `held` take on `rank`, with weights of `weight_bytes` bytes per element.
///
/// With `distributed_optimizer` the master copy and the moments are shared by the ranks that hold the same: data and
/// context parallel ranks, of experts the ranks with the same experts.
///
/// # Errors
/// A parameter that does not divide by the sizes of the grid.
pub fn of(
    held: &[PlacedParam],
    grid: &Grid,
    rank: usize,
    weight_bytes: usize,
    distributed_optimizer: bool,
) -> Result<Memory> {
    let mut memory = Memory::default();
    for PlacedParam { spec, .. } in held {
        let elements = local(spec, grid, rank)?.local_shape().numel();
        let share = match (distributed_optimizer, spec.of_experts()) {
            (false, _) => 1,
            (true, true) => grid.expert().size(Axis::Dp),
            (true, false) => grid.size(Axis::Dp) * grid.size(Axis::Cp),
        };
        let owned = elements.div_ceil(share);
        memory.elements += elements;
        memory.weights += elements * weight_bytes;
        memory.gradients += elements * 4;
        memory.master += if weight_bytes < 4 { owned * 4 } else { 0 };
        memory.moments += owned * 8;
    }
    Ok(memory)
}
