//! Work units: heads that share keys are processed together.

use crate::attention::Segment;
use crate::cpu::Disjoint;
use crate::error::expect_len;
use crate::{Cpu, Error, Result};
use std::ops::Range;

/// Heads of a unit, at most.
const TOGETHER: usize = 4;

/// Groups of as many heads each, which share keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups {
    pub(crate) groups: usize,
    pub(crate) heads: usize,
}

/// Heads of one group that go through a document together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    /// The unit's number in a document.
    pub(crate) unit: usize,
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) group: usize,
}

impl Heads {
    /// Their numbers.
    pub(crate) fn numbers(self) -> Range<usize> {
        self.first..self.first + self.count
    }

    /// What comes after head `number` in a chunk: the next head there, or the first one in the chunk that follows.
    pub(crate) fn after<C>(self, number: usize, chunk: C, follows: Option<C>) -> Option<(C, usize)> {
        if number + 1 < self.numbers().end {
            Some((chunk, number + 1))
        } else {
            follows.map(|c| (c, self.first))
        }
    }
}

impl Groups {
    /// Units of a group.
    fn of_group(self) -> usize {
        (self.heads / self.groups).div_ceil(TOGETHER)
    }

    /// Units of a document.
    pub(crate) fn units(self) -> usize {
        self.groups * self.of_group()
    }

    /// Whether each group is one unit, so that nothing of different units is summed.
    pub(crate) fn alone(self) -> bool {
        self.units() == self.groups
    }

    /// Where a unit's row of token `t` is: among the groups' rows `[T,groups]` if it is alone, or else among all units'
    /// `[units,T]`.
    pub(crate) fn row(self, unit: usize, tokens: usize, t: usize) -> usize {
        if self.alone() { t * self.groups + unit } else { unit * tokens + t }
    }

    /// Runs `work` for all units of this many documents.
    pub(crate) fn for_each(self, cpu: &Cpu, documents: usize, work: impl Fn(usize, Heads) + Sync) {
        let (units, per_group) = (self.units(), self.heads / self.groups);
        cpu.for_each_unit(documents * units, |u| {
            let unit = u % units;
            let (group, first) = (unit / self.of_group(), unit % self.of_group() * TOGETHER);
            let count = TOGETHER.min(per_group - first);
            work(u / units, Heads { unit, first: group * per_group + first, count, group });
        });
    }

    /// The same with the states of a unit's heads, of `size` elements each; none where `states` are none.
    pub(crate) fn for_each_with(
        self,
        cpu: &Cpu,
        documents: usize,
        (states, size): (&mut [f32], usize),
        work: impl Fn(usize, Heads, &mut [f32]) + Sync,
    ) {
        let (kept, states) = (!states.is_empty(), Disjoint::new(states));
        self.for_each(cpu, documents, |document, of| {
            let own = match kept {
                // SAFETY: a unit takes the states of its heads of its document.
                true => unsafe { states.part((document * self.heads + of.first) * size, of.count * size) },
                false => &mut [],
            };
            work(document, of, own);
        });
    }

    /// Sums what the units of a group have found, in their order.
    pub(crate) fn sum<'a>(self, to: &mut [f32], group: usize, found: impl Fn(usize) -> &'a [f32]) {
        to.fill(0.0);
        for unit in group * self.of_group()..(group + 1) * self.of_group() {
            to.iter_mut().zip(found(unit)).for_each(|(sum, part)| *sum += part);
        }
    }
}

/// Checks that documents cover the tokens in order, without gap.
pub(crate) fn expect_covered(op: &'static str, segments: &[Segment], tokens: usize) -> Result<()> {
    let mut end = 0;
    for (index, s) in segments.iter().enumerate() {
        if s.q_start != end {
            return Err(Error::Segments { op, name: "query", index, start: s.q_start, end });
        }
        end += s.q_len;
    }
    expect_len(op, "segments' query tokens", tokens, end)
}
