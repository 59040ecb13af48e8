//! Digits of a rank number, along which dense layers and experts see the same ranks.
//!
//! Dense layers and experts number the same ranks along different axes. The rank number is written in digits so fine that
//! every axis of either numbering is a contiguous range of digits. A digit then belongs to one dense axis and one expert
//! axis: the ranks along `cp` may be the ranks along `ep`, for example, and whatever holds along that digit holds along both.

use crate::{Axis, Grid, Topology};
use std::fmt;
use std::ops::Range;

/// Groups of digits as dense layers see them: `tp`, then for `cp` the ranks that exchange heads and the ring, then `dp`.
const DENSE: [&str; 4] = ["tp", "cp", "cp", "dp"];
/// As experts see them.
const EXPERT: [&str; 3] = ["etp", "ep", "edp"];

/// One digit: along one axis of dense layers and one of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digit(u8);

impl Digit {
    /// Digits that a grid may have.
    pub const COUNT: usize = DENSE.len() * EXPERT.len();

    /// All that a grid may have.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }

    /// Its number, below [`Digit::COUNT`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Whether ranks along it see different samples, not parts of the same ones.
    pub const fn of_samples(self) -> bool {
        self.index() / EXPERT.len() == DENSE.len() - 1
    }
}

impl fmt::Display for Digit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dense, expert) = (self.index() / EXPERT.len(), self.index() % EXPERT.len());
        write!(f, "{}/{}", DENSE[dense], EXPERT[expert])
    }
}

/// Some digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digits(u16);

impl Digits {
    /// None.
    pub const NONE: Self = Self(0);

    /// One.
    pub const fn only(digit: Digit) -> Self {
        Self(1 << digit.0)
    }

    /// The digits of some groups of dense layers.
    const fn rows(runs: Range<usize>) -> Self {
        let width = EXPERT.len();
        Self((1 << (runs.end * width)) - (1 << (runs.start * width)))
    }

    /// The digits of one group of experts.
    const fn column(run: usize) -> Self {
        let (mut bits, mut i) = (0, 0);
        while i < DENSE.len() {
            bits |= 1 << (i * EXPERT.len() + run);
            i += 1;
        }
        Self(bits)
    }

    /// The digits of a grid: those of its ranks that hold the same layers. None, if expert axes are not contiguous digits of
    /// dense axes, nor the other way around (3 ranks along `ep` over 2 along `tp`): then nothing can be said about both.
    pub fn of(grid: &Grid) -> Self {
        let (tp, cp, u) = (grid.size(Axis::Tp), grid.size(Axis::Cp), grid.ulysses());
        let (begin, _) = extent(grid.dense(), Axis::Cp);
        let dense = [
            extent(grid.dense(), Axis::Tp),
            (begin, begin * u),
            (begin * u, begin * cp),
            extent(grid.dense(), Axis::Dp),
        ];
        let expert = [Axis::Tp, Axis::Ep, Axis::Dp].map(|axis| extent(grid.expert(), axis));
        debug_assert!(dense[0] == (1, tp), "tensor-parallel ranks are neighbours");
        let mut cuts: Vec<usize> = dense.iter().chain(&expert).flat_map(|&(from, to)| [from, to]).collect();
        cuts.sort_unstable();
        if cuts.windows(2).any(|pair| !pair[1].is_multiple_of(pair[0])) {
            return Self::NONE;
        }
        let here = |digit: &Digit| {
            let (d, e) = (dense[digit.index() / EXPERT.len()], expert[digit.index() % EXPERT.len()]);
            d.0.max(e.0) < d.1.min(e.1)
        };
        Digit::all().filter(here).fold(Self::NONE, |all, digit| all.or(Self::only(digit)))
    }

    /// Those of them that are along an axis, as dense layers see it.
    #[must_use]
    pub const fn dense(self, axis: Axis) -> Self {
        let rows = match axis {
            Axis::Tp => Self::rows(0..1),
            Axis::Cp => Self::rows(1..3),
            Axis::Dp => Self::rows(3..4),
            Axis::Ep | Axis::Pp => Self::NONE,
        };
        self.and(rows)
    }

    /// Those of them that are along an axis, as experts see it: [`Axis::Tp`] cuts an expert, [`Axis::Dp`] joins ranks that hold
    /// the same experts.
    #[must_use]
    pub const fn expert(self, axis: Axis) -> Self {
        let column = match axis {
            Axis::Tp => Self::column(0),
            Axis::Ep => Self::column(1),
            Axis::Dp => Self::column(2),
            Axis::Cp | Axis::Pp => Self::NONE,
        };
        self.and(column)
    }

    /// Those of them along which context-parallel ranks exchange heads for tokens.
    #[must_use]
    pub const fn ulysses(self) -> Self {
        self.and(Self::rows(1..2))
    }

    /// Those of them along which context-parallel ranks pass keys and values around.
    #[must_use]
    pub const fn ring(self) -> Self {
        self.and(Self::rows(2..3))
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// These and others.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether a digit is among them.
    pub const fn contains(self, digit: Digit) -> bool {
        self.0 >> digit.0 & 1 == 1
    }

    /// One by one.
    pub fn each(self) -> impl Iterator<Item = Digit> {
        Digit::all().filter(move |&digit| self.contains(digit))
    }
}

/// Numbers of ranks between neighbours along an axis, and between groups along it.
fn extent(topology: &Topology, axis: Axis) -> (usize, usize) {
    let step = topology.step(axis);
    (step, step * topology.size(axis))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GridRules, GridSizes};

    fn names(digits: Digits) -> Vec<String> {
        digits.each().map(|d| d.to_string()).collect()
    }

    fn grid(world: usize, sizes: GridSizes) -> Grid {
        Grid::new(world, &sizes, GridRules::Head).unwrap()
    }

    #[test]
    fn a_digit_is_along_an_axis_of_dense_layers_and_one_of_experts() {
        let sizes = GridSizes { tp: 2, cp: 2, ep: 2, etp: Some(1), ..GridSizes::default() };
        let digits = Digits::of(&grid(8, sizes));
        assert_eq!(names(digits), ["tp/ep", "cp/edp", "dp/edp"]);
        assert_eq!(names(digits.expert(Axis::Ep)), names(digits.dense(Axis::Tp)));
        assert_eq!(names(digits.expert(Axis::Dp)), ["cp/edp", "dp/edp"]);
        // An expert is sharded over ranks of two axes.
        let wide = Digits::of(&grid(8, GridSizes { etp: Some(4), ..sizes }));
        assert_eq!(names(wide), ["tp/etp", "cp/etp", "dp/ep"]);
        // The ranks of one axis of experts hold the same along a part of `cp` and exchange along the other.
        let hybrid = GridSizes { cp: 4, ep: 2, ulysses: 2, ..GridSizes::default() };
        let hybrid = Digits::of(&grid(4, hybrid));
        assert_eq!(
            (names(hybrid.ulysses()), names(hybrid.ring())),
            (vec!["cp/ep".into()], vec!["cp/edp".into()])
        );
        assert_eq!(hybrid.dense(Axis::Cp), hybrid);
        assert!(hybrid.each().all(|d| !d.of_samples()) && wide.each().any(Digit::of_samples));
    }

    #[test]
    fn axes_that_are_no_runs_of_each_other_have_no_digits() {
        let sizes = GridSizes { tp: 2, ep: 3, etp: Some(1), ..GridSizes::default() };
        assert_eq!(Digits::of(&grid(6, sizes)), Digits::NONE);
        assert_eq!(Digits::of(&Grid::single()), Digits::NONE);
    }

    /// Ranks that differ along some digits alone are those of the group along the axis.
    #[test]
    fn groups_are_as_large_as_their_digits_say() {
        for sizes in [
            GridSizes { tp: 2, cp: 2, ep: 4, etp: Some(1), ..GridSizes::default() },
            GridSizes { tp: 4, ep: 2, etp: Some(2), pp: 2, ..GridSizes::default() },
        ] {
            let grid = grid(16, sizes);
            let digits = Digits::of(&grid);
            for axis in [Axis::Tp, Axis::Cp, Axis::Dp] {
                assert_eq!(digits.dense(axis) == Digits::NONE, grid.dense().size(axis) == 1, "{axis}");
            }
            for axis in [Axis::Tp, Axis::Ep, Axis::Dp] {
                assert_eq!(digits.expert(axis) == Digits::NONE, grid.expert().size(axis) == 1, "{axis}");
            }
        }
    }
}
