//! The rule that cuts a tensor.

use crate::{Axis, Error, Region, Result, Shape};
use serde::{Deserialize, Serialize};

/// How the ranks along an axis share a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Partition {
    /// Every rank holds all of it.
    Replicated,
    /// Dimension `dim` consists of `blocks` equal blocks, each cut into equal parts over `axis`; a rank holds
    /// its part of every block, one after the other. A plain cut has one block; `[gate; up]` has two.
    Split {
        /// The axis whose ranks share the tensor.
        axis: Axis,
        /// The dimension that is cut.
        dim: usize,
        /// Number of blocks along `dim`.
        blocks: usize,
    },
}

impl Partition {
    /// The part of a tensor of `shape` that position `coord` of an axis of `size` ranks holds.
    ///
    /// # Errors
    /// [`Error::Partition`] if the dimension does not divide evenly.
    pub fn region(&self, name: &str, shape: &Shape, coord: usize, size: usize) -> Result<Region> {
        match *self {
            Self::Replicated => Ok(Region::whole(shape)),
            Self::Split { dim, blocks, .. } => {
                let total = shape.get(dim).copied().unwrap_or(0);
                let parts = blocks * size;
                if total == 0 || total % parts != 0 || coord >= size {
                    return Err(Error::Partition { name: name.to_owned(), dim, size: total, parts });
                }
                let (block, part) = (total / blocks, total / parts);
                let ranges = (0..blocks).map(|b| {
                    let start = b * block + coord * part;
                    start..start + part
                });
                Ok(Region { shape: *shape, dim, ranges: ranges.collect() })
            }
        }
    }

    /// The axis that cuts the tensor, if any.
    pub fn axis(&self) -> Option<Axis> {
        match *self {
            Self::Replicated => None,
            Self::Split { axis, .. } => Some(axis),
        }
    }
}
