//! The rule by which a tensor is sharded.

use crate::{Axis, AxisPlace, Error, Region, Result, Shape};
use serde::{Deserialize, Serialize};

/// How a tensor is sharded along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Partition {
    /// Every rank holds all of it.
    Replicated,
    /// Dimension `dim` consists of `blocks` equal blocks, each sharded evenly over `axis`; a rank holds its shard of every
    /// block, one after the other. A plain partition has one block; `[gate; up]` has two.
    Split {
        /// The axis whose ranks share the tensor.
        axis: Axis,
        /// The sharded dimension.
        dim: usize,
        /// Number of blocks along `dim`.
        blocks: usize,
    },
    /// As [`Partition::Split`], with blocks of different sizes: the packed projection of a state-space layer.
    Sections {
        /// The axis whose ranks share the tensor.
        axis: Axis,
        /// The sharded dimension.
        dim: usize,
        /// Sizes of the blocks; zeros at the end mean that there are fewer.
        sizes: [usize; 5],
    },
    /// Weights of all experts, stacked along dimension 0: the experts are distributed over the ranks along [`Axis::Ep`], and
    /// dimension `dim` of each is sharded over those along [`Axis::Tp`], as with [`Partition::Split`].
    Experts {
        /// The dimension that is sharded over tensor-parallel ranks; not 0.
        dim: usize,
        /// Number of blocks along `dim`.
        blocks: usize,
    },
}

impl Partition {
    /// The part of a tensor of `shape` that position `coord` of an axis of `size` ranks holds; positions along other
    /// axes are 0 of 1.
    ///
    /// # Errors
    /// [`Error::Partition`] if the dimension does not divide evenly.
    pub fn region(&self, name: &str, shape: &Shape, coord: usize, size: usize) -> Result<Region> {
        let axis = self.axes().first().copied();
        self.region_on(name, shape, |a| {
            if Some(a) == axis { AxisPlace { coord, size } } else { AxisPlace { coord: 0, size: 1 } }
        })
    }

    /// The part of a tensor of `shape` that the rank at `place(axis)` holds.
    ///
    /// # Errors
    /// [`Error::Partition`] if a dimension does not divide evenly.
    pub fn region_on(&self, name: &str, shape: &Shape, place: impl Fn(Axis) -> AxisPlace) -> Result<Region> {
        let length = |dim: usize| shape.get(dim).copied().unwrap_or(0);
        let even = |dim: usize, total: usize, parts: usize, coord: usize, size: usize| {
            if total == 0 || parts == 0 || !total.is_multiple_of(parts) || coord >= size {
                return Err(Error::Partition { name: name.to_owned(), dim, size: total, parts });
            }
            Ok(total / parts)
        };
        let split = |dim: usize, blocks: usize, axis: Axis| -> Result<Region> {
            let AxisPlace { coord, size } = place(axis);
            let total = length(dim);
            let part = even(dim, total, blocks * size, coord, size)?;
            let block = total / blocks;
            let ranges = (0..blocks).map(|b| {
                let start = b * block + coord * part;
                start..start + part
            });
            Ok(Region::along(shape, dim, ranges))
        };
        match *self {
            Self::Replicated => Ok(Region::whole(shape)),
            Self::Split { axis, dim, blocks } => split(dim, blocks, axis),
            Self::Sections { axis, dim, sizes } => {
                let AxisPlace { coord, size } = place(axis);
                even(dim, length(dim), length(dim).max(1), 0, 1)?;
                let (mut start, mut ranges) = (0, Vec::new());
                for section in sizes.into_iter().filter(|&s| s > 0) {
                    let part = even(dim, section, size, coord, size)?;
                    ranges.push(start + coord * part..start + (coord + 1) * part);
                    start += section;
                }
                if start != length(dim) {
                    return Err(Error::Partition {
                        name: name.to_owned(),
                        dim,
                        size: length(dim),
                        parts: start,
                    });
                }
                Ok(Region::along(shape, dim, ranges))
            }
            Self::Experts { dim, blocks } => {
                let AxisPlace { coord, size } = place(Axis::Ep);
                let part = even(0, length(0), size, coord, size)?;
                Ok(Region { lead: Some(coord * part..(coord + 1) * part), ..split(dim, blocks, Axis::Tp)? })
            }
        }
    }

    /// Whether ranks hold different parts.
    pub fn is_cut(&self) -> bool {
        !matches!(self, Self::Replicated)
    }

    /// The axes over which the tensor is sharded, the outermost first.
    pub fn axes(&self) -> &'static [Axis] {
        const ONE: [[Axis; 1]; 5] = [[Axis::Tp], [Axis::Cp], [Axis::Ep], [Axis::Dp], [Axis::Pp]];
        match *self {
            Self::Replicated => &[],
            Self::Split { axis, .. } | Self::Sections { axis, .. } => {
                ONE.iter().find(|a| a[0] == axis).expect("every axis is listed")
            }
            Self::Experts { .. } => &[Axis::Ep, Axis::Tp],
        }
    }
}
