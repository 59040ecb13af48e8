//! Memory of a rank's model copy in training, by kind; saved activations are in [`crate::Activations`].

use ms_core::Grid;
use serde::{Deserialize, Serialize};

use crate::{PlacedParam, Result, local};

/// Bytes of one rank by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Elements of the weights that the rank holds, copies included.
    pub elements: usize,
    /// Weights that the forward pass reads.
    pub weights: usize,
    /// Accumulated gradients.
    pub gradients: usize,
    /// Float32 copy of the weights, when they are of a shorter type, or its lower halves.
    pub master: usize,
    /// First and second moments, or momentum, in float32 (float64 for float64 weights).
    pub moments: usize,
}

impl Memory {
    /// The sum of all kinds.
    pub fn total(&self) -> usize {
        [self.gradients, self.master, self.moments].into_iter().fold(self.weights, usize::saturating_add)
    }
}

/// Bytes that the parameters `held` take on `rank`: given the bytes per element of weight and gradient, and of master weight
/// and moments.
///
/// Master weights and moments are sharded as the grid's optimizer setting says.
///
/// # Errors
/// A parameter that the sizes of the grid do not divide.
pub fn of(
    held: &[PlacedParam],
    grid: &Grid,
    rank: usize,
    (weight, gradient): (usize, usize),
    (master, moments): (usize, usize),
) -> Result<Memory> {
    let mut memory = Memory::default();
    for PlacedParam { spec, .. } in held {
        let elements = local(spec, grid, rank)?.local_shape().numel();
        let owned = elements.div_ceil(grid.optimizer().shards(grid.alike(spec.of_experts())));
        let add = |sum: &mut usize, count: usize, bytes: usize| {
            *sum = sum.saturating_add(count.saturating_mul(bytes));
        };
        add(&mut memory.elements, elements, 1);
        add(&mut memory.weights, elements, weight);
        add(&mut memory.gradients, elements, gradient);
        add(&mut memory.master, owned, master);
        add(&mut memory.moments, owned, moments);
    }
    Ok(memory)
}
