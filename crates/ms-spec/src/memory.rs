//! Bytes that a rank's copy of the weights takes in training, by kind.

use ms_core::{Axis, Topology};
use serde::{Deserialize, Serialize};

use crate::{ParamSpec, Result, local};

/// Bytes of one rank by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
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

/// Bytes that the parameters `specs` take on `rank`, with weights of `weight_bytes` bytes per element.
///
/// With `distributed_optimizer` the master copy and the moments are shared by the data-parallel ranks.
///
/// # Errors
/// A parameter that does not divide by the tensor-parallel size.
pub fn of(
    specs: &[ParamSpec],
    topology: &Topology,
    rank: usize,
    weight_bytes: usize,
    distributed_optimizer: bool,
) -> Result<Memory> {
    let mut elements = 0;
    for spec in specs {
        elements += local(spec, topology, rank)?.local_shape().numel();
    }
    let share = if distributed_optimizer { topology.size(Axis::Dp) * topology.size(Axis::Cp) } else { 1 };
    let owned = elements.div_ceil(share);
    Ok(Memory {
        weights: elements * weight_bytes,
        gradients: elements * 4,
        master: if weight_bytes < 4 { owned * 4 } else { 0 },
        moments: owned * 8,
    })
}
