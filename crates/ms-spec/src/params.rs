//! Parameter specifications: what is known about a parameter before it has a value.

mod build;

use ms_core::{Axis, Digits, Grid, Partition, Region, Shape, ShardState, ShardStates, UpdatedBy};
use serde::{Deserialize, Serialize};

use crate::{Result, Slot};
pub(crate) use build::Table;

/// Initial value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// Normal with mean 0.
    Normal {
        /// Standard deviation.
        std: f64,
    },
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
    /// Uniform between `-bound` and `bound`.
    Uniform {
        /// The bound.
        bound: f64,
    },
    /// The logarithm of a uniform number.
    LogOfUniform {
        /// Smallest number.
        low: f64,
        /// Largest number.
        high: f64,
    },
    /// Element `(r, c)` of a matrix is `(r + c) % of`.
    RoundRobin {
        /// How many numbers there are.
        of: usize,
    },
    /// The inverse softplus of a number whose logarithm is uniform: the `dt` of a state-space layer.
    InverseSoftplus {
        /// Smallest number.
        low: f64,
        /// Largest number.
        high: f64,
    },
}

/// Ranks whose gradients of a parameter that each holds in full are only parts of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SumGrad {
    /// None: every rank has the whole gradient, or its own piece of it.
    No,
    /// Along tensor parallel, always: each rank saw its own heads, or its own part of every expert. For an expert weight,
    /// along the ranks that share an expert.
    OverTp,
    /// Along tensor parallel, under sequence parallelism: each rank saw its own tokens.
    OverTpWithSequenceParallel,
}

/// One parameter of the whole model, before sharding.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// What it is.
    pub slot: Slot,
    /// Megatron-core's name of it, as [`Slot::name`] prints it.
    pub name: String,
    /// Global shape; linear weights are `[out, in]`, those of experts `[E, out, in]`.
    pub shape: Shape,
    /// How ranks share it.
    pub partition: Partition,
    /// Initial value.
    pub init: Init,
    /// Whether weight decay applies.
    pub decay: bool,
    /// Whether gradients of equal copies must be summed.
    pub sum_grad_over: SumGrad,
    /// What changes it. What no gradient moves, such as the bias of a router, stays float32.
    pub updated_by: UpdatedBy,
    /// Whether it holds integers, such as the table that maps tokens to experts. Files store integers; a program stores them
    /// as float32, whatever the type of the other weights.
    pub integral: bool,
}

/// The piece of a parameter that `rank` of a grid holds, by its tensor- and expert-parallel sharding.
///
/// Stages are not considered: [`crate::Placement`] says which layers a rank has.
///
/// # Errors
/// As [`Partition::region_on`].
pub fn local(spec: &ParamSpec, grid: &Grid, rank: usize) -> Result<Region> {
    let topology = if spec.of_experts() { grid.expert() } else { grid.dense() };
    Ok(spec.partition.region_on(&spec.name, &spec.shape, |axis| topology.place(rank, axis))?)
}

impl ParamSpec {
    /// How it and its gradient are placed along the axes of a grid, in a run with or without sequence parallelism.
    pub fn shard_states(&self, digits: Digits, sequence_parallel: bool) -> ShardStates {
        let along = |axis| if self.of_experts() { digits.expert(axis) } else { digits.dense(axis) };
        let axes = [Axis::Tp, Axis::Cp, Axis::Ep, Axis::Dp];
        let state = |axis| match self.partition {
            Partition::Experts { .. } if axis == Axis::Ep => ShardState::Sharded,
            Partition::Experts { dim, .. } if axis == Axis::Tp => self.cut_along(dim),
            Partition::Split { axis: cut, dim, .. } if axis == cut => self.cut_along(dim),
            Partition::Sections { axis: cut, .. } if axis == cut => ShardState::Sharded,
            _ if self.sums_over(axis, sequence_parallel) => ShardState::Replicated,
            _ => ShardState::Invariant,
        };
        axes.into_iter().fold(ShardStates::default(), |states, axis| states.with(along(axis), state(axis)))
    }

    /// What ranks hold that cut dimension `dim`.
    fn cut_along(&self, dim: usize) -> ShardState {
        let inputs = dim + 1 == self.shape.len() && self.shape.len() > 1 && !self.slot.bias;
        if inputs { ShardState::ShardedInputs } else { ShardState::Sharded }
    }

    /// Whether the gradients of ranks that hold the same of it along an axis, as dense layers see it or, of a weight of
    /// experts, as these do, are partial sums: always of ranks with other samples or other tokens of a sequence.
    pub fn sums_over(&self, axis: Axis, sequence_parallel: bool) -> bool {
        match (axis, self.sum_grad_over) {
            (Axis::Cp | Axis::Dp, _) | (Axis::Tp, SumGrad::OverTp) => true,
            (Axis::Tp, SumGrad::OverTpWithSequenceParallel) => sequence_parallel,
            (Axis::Tp | Axis::Ep | Axis::Pp, _) => false,
        }
    }

    /// Whether a gradient changes it.
    pub fn trained(&self) -> bool {
        self.updated_by == UpdatedBy::Gradient
    }

    /// Whether it is distributed over experts: the expert topology then says who holds what and whose gradients are summed.
    pub fn of_experts(&self) -> bool {
        matches!(self.partition, Partition::Experts { .. } | Partition::Split { axis: Axis::Ep, .. })
    }
}
