//! The topology: a grid of ranks with named axes.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A direction of the grid of ranks. ("Axis", so that "dim" always means a dimension of a tensor.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// Tensor parallel: ranks that hold shards of one matrix.
    Tp,
    /// Context parallel: ranks that hold parts of one sequence.
    Cp,
    /// Expert parallel: ranks that hold different experts.
    Ep,
    /// Data parallel: ranks that see different samples.
    Dp,
    /// Pipeline parallel: ranks that hold different layers.
    Pp,
}

impl Axis {
    /// Megatron's default order, fastest first: `tp-cp-ep-dp-pp`.
    pub const DEFAULT_ORDER: [Self; 5] = [Self::Tp, Self::Cp, Self::Ep, Self::Dp, Self::Pp];

    /// `tp`, `cp`, `ep`, `dp` or `pp`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tp => "tp",
            Self::Cp => "cp",
            Self::Ep => "ep",
            Self::Dp => "dp",
            Self::Pp => "pp",
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A rank's place along an axis.
#[derive(Clone, Copy, Debug)]
pub struct AxisPlace {
    /// Its position: from 0, less than `size`.
    pub coord: usize,
    /// Ranks along the axis.
    pub size: usize,
}

/// Sizes of the axes and the order in which ranks are numbered along them.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/core/parallel_state.py`, `RankGenerator`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// Axis and size, the axis that varies fastest first.
    axes: Vec<(Axis, usize)>,
}

impl Topology {
    /// A grid in Megatron's default order; axes that are not named have size 1.
    ///
    /// # Errors
    /// [`Error::Topology`] if a size is zero or an axis is named twice.
    pub fn new(sizes: &[(Axis, usize)]) -> Result<Self> {
        Self::with_order(&Axis::DEFAULT_ORDER, sizes)
    }

    /// A grid whose ranks are numbered along `order`, fastest first.
    ///
    /// # Errors
    /// [`Error::Topology`] if a size is zero, an axis is named twice, or one of size above 1 is not in `order`.
    pub fn with_order(order: &[Axis], sizes: &[(Axis, usize)]) -> Result<Self> {
        let twice = |list: &[Axis]| (1..list.len()).find(|&i| list[..i].contains(&list[i])).map(|i| list[i]);
        let named: Vec<Axis> = sizes.iter().map(|s| s.0).collect();
        if let Some(axis) = twice(order).or_else(|| twice(&named)) {
            return Err(Error::Topology(format!("axis {axis} is named twice")));
        }
        for &(axis, size) in sizes {
            if size == 0 {
                return Err(Error::Topology(format!("axis {axis} has size 0, expected at least 1")));
            }
            if size > 1 && !order.contains(&axis) {
                return Err(Error::Topology(format!("axis {axis} of size {size} is missing in the order")));
            }
        }
        let size = |axis| sizes.iter().find(|s| s.0 == axis).map_or(1, |s| s.1);
        Ok(Self { axes: order.iter().map(|&axis| (axis, size(axis))).collect() })
    }

    /// Number of ranks in the whole grid.
    pub fn world(&self) -> usize {
        self.axes.iter().map(|a| a.1).product()
    }

    /// Size of an axis; 1 if the grid does not have it.
    pub fn size(&self, axis: Axis) -> usize {
        self.axes.iter().find(|a| a.0 == axis).map_or(1, |a| a.1)
    }

    /// Between the numbers of neighbours along an axis; 1 if the grid does not have it.
    pub(crate) fn step(&self, axis: Axis) -> usize {
        let Some(at) = self.axes.iter().position(|a| a.0 == axis) else { return 1 };
        self.axes[..at].iter().map(|a| a.1).product()
    }

    /// Position of `rank` along `axis`.
    pub fn coord(&self, rank: usize, axis: Axis) -> usize {
        let mut rest = rank;
        for &(a, size) in &self.axes {
            if a == axis {
                return rest % size;
            }
            rest /= size;
        }
        0
    }

    /// Place of `rank` along `axis`.
    pub fn place(&self, rank: usize, axis: Axis) -> AxisPlace {
        AxisPlace { coord: self.coord(rank, axis), size: self.size(axis) }
    }

    /// The ranks that differ from `rank` only along `axes`, in rank order; `rank` is among them.
    pub fn group(&self, rank: usize, axes: &[Axis]) -> Vec<usize> {
        (0..self.world())
            .filter(|&other| {
                self.axes
                    .iter()
                    .all(|&(a, _)| axes.contains(&a) || self.coord(other, a) == self.coord(rank, a))
            })
            .collect()
    }

    /// All groups along `axes`, ordered by their first rank; every rank is in exactly one.
    pub fn groups(&self, axes: &[Axis]) -> Vec<Vec<usize>> {
        let mut by_first: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for rank in 0..self.world() {
            by_first.entry(self.first(rank, axes)).or_default().push(rank);
        }
        by_first.into_values().collect()
    }

    /// The first rank of the group of `rank` along `axes`.
    fn first(&self, rank: usize, axes: &[Axis]) -> usize {
        let (mut rest, mut step, mut along) = (rank, 1, 0);
        for &(axis, size) in &self.axes {
            if axes.contains(&axis) {
                along += rest % size * step;
            }
            (rest, step) = (rest / size, step * size);
        }
        rank - along
    }

    /// `tp 2, dp 4`: the axes larger than 1, or `one rank`.
    pub fn describe(&self) -> String {
        let parts: Vec<String> =
            self.axes.iter().filter(|a| a.1 > 1).map(|(a, n)| format!("{a} {n}")).collect();
        if parts.is_empty() { "one rank".to_owned() } else { parts.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_found_in_exactly_one_group_of_every_axis() {
        let topo = Topology::new(&[(Axis::Tp, 2), (Axis::Dp, 3), (Axis::Pp, 2)]).unwrap();
        assert_eq!(topo.world(), 12);
        for axis in Axis::DEFAULT_ORDER {
            let mut all: Vec<usize> = topo.groups(&[axis]).concat();
            all.sort_unstable();
            assert_eq!(all, (0..12).collect::<Vec<_>>());
        }
        assert_eq!(topo.group(0, &[Axis::Dp]), [0, 2, 4]);
        assert_eq!(topo.group(7, &[Axis::Tp, Axis::Dp]), [6, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn groups_are_those_of_their_ranks_in_the_order_of_the_first() {
        let sizes = [(Axis::Tp, 2), (Axis::Cp, 3), (Axis::Dp, 2), (Axis::Pp, 2)];
        let turned = [Axis::Tp, Axis::Pp, Axis::Dp, Axis::Cp];
        for topo in [Topology::new(&sizes).unwrap(), Topology::with_order(&turned, &sizes).unwrap()] {
            for axes in
                [&[][..], &[Axis::Cp], &[Axis::Tp, Axis::Dp], &[Axis::Cp, Axis::Pp], &Axis::DEFAULT_ORDER]
            {
                let all = (0..topo.world()).map(|rank| topo.group(rank, axes)).enumerate();
                let want: Vec<_> = all.filter(|(rank, g)| g[0] == *rank).map(|(_, g)| g).collect();
                assert_eq!(topo.groups(axes), want, "{topo:?} along {axes:?}");
            }
        }
    }

    #[test]
    fn a_grid_that_cannot_be_built_is_refused() {
        assert!(Topology::new(&[(Axis::Tp, 0)]).is_err());
        assert!(Topology::new(&[(Axis::Tp, 2), (Axis::Tp, 2)]).is_err());
        assert!(Topology::with_order(&[Axis::Tp], &[(Axis::Dp, 2)]).is_err());
    }
}
