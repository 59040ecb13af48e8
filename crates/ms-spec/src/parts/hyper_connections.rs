//! Hyper-connections: a residual of several streams.

use ms_core::Partition;

use crate::kept::Activations;
use crate::params::{Init, SumGrad, Table};
use crate::rule::{How, Rule, UNCONCERNED, nothing};
use crate::sizes::HyperConnections;
use crate::{ModelConfig, Part, Role};

/// How ranks share them.
pub(crate) const RULE: Rule = Rule {
    part: "hyper-connections",
    tp: How::Shared("shares of the tokens"),
    cp: How::Shared("tokens"),
    ep: UNCONCERNED,
    has: |c| c.hyper.is_some(),
    divides: nothing,
};

/// What weighs the streams of hyper-connections before and behind a sublayer, or at their `end`.
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig, part: Part, end: bool) {
    let Some(h) = &c.hyper else { return };
    t.of(part);
    let (n, by_sequence) = (h.streams, SumGrad::OverTpWithSequenceParallel);
    let (rows, scales) = if end { (n, 1) } else { ((2 + n) * n, 3) };
    let whole = Partition::Replicated;
    t.vector(Role::HcBase, rows, whole, Init::Zeros, by_sequence);
    t.push(Role::HcFn, &[rows, n * c.hidden], whole, t.std(), by_sequence);
    t.vector(Role::HcScale, scales, whole, Init::Ones, by_sequence);
}

impl Activations {
    /// Around one sublayer, or where the streams `end`: the streams as they came, unrounded and normed, what they are weighed
    /// by before and behind the weights' own function, and what the sublayer made.
    pub(crate) fn streams(&self, c: &ModelConfig, h: &HyperConnections, end: bool) -> usize {
        let all = h.streams * c.hidden;
        let weights = if end { h.streams } else { (2 + h.streams) * h.streams };
        let scales = if end { 1 } else { 3 };
        let (wide, copies) = self.wide(weights * all + weights + scales);
        let unrounded = if self.element_bytes < wide { all * wide } else { 0 };
        let made = if end { 0 } else { c.hidden * self.element_bytes };
        let row = all * self.element_bytes + unrounded + all * wide + wide + 2 * weights * wide + made;
        // The norm has a weight of ones.
        self.stream() * row + copies + all * wide
    }
}
