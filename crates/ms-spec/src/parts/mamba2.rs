//! Mamba2.

use ms_core::{Axis, Partition};

use crate::error::divides;
use crate::kept::{Activations, Kept};
use crate::params::{Init, SumGrad, Table};
use crate::parts::recurrent::{A, Recurrence, Recurrent, conv_init, dt};
use crate::rule::{How, Rule, UNCONCERNED};
use crate::sizes::{Mamba2, Mixer};
use crate::{ModelConfig, Part, Result, Role};

/// The kind of mixer.
pub(crate) static KIND: Recurrence = Recurrence {
    mixer: Mixer::Mamba2,
    what: "state-space mixer",
    norm: Some(Role::Norm),
    rule: RULE,
    of: |c| c.mamba2.as_ref().map(|sizes| sizes as _),
    of_mut: |c| c.mamba2.as_mut().map(|sizes| sizes as _),
};

/// How ranks share it.
const RULE: Rule = Rule {
    part: "Mamba2",
    tp: How::Shared("groups of heads, which must divide, as Megatron's MambaMixer asks, too"),
    cp: How::Shared("heads for tokens; a group's keys are copied where groups do not divide"),
    ep: UNCONCERNED,
    has: |c| c.mamba2.is_some(),
    divides: |c, axis| match (axis, &c.mamba2) {
        (Axis::Tp, Some(m)) => vec![("state-space groups", m.groups)],
        (Axis::Cp, Some(m)) => vec![("state-space heads of a rank", m.heads)],
        _ => Vec::new(),
    },
};

impl Recurrent for Mamba2 {
    fn sizes(&self) -> Vec<usize> {
        vec![self.heads, self.head_dim, self.groups, self.state, self.conv, self.chunk]
    }

    fn check(&self) -> Result<()> {
        divides("state-space heads", self.heads, "groups", self.groups)
    }

    fn params(&self, t: &mut Table<'_>, c: &ModelConfig) {
        let sections = self.sections();
        let [inner, _, bc, _, heads] = sections;
        let cut = |sizes| Partition::Sections { axis: Axis::Tp, dim: 0, sizes };
        let convolved = [inner, bc, bc, 0, 0];
        t.of(Part::StateSpace);
        t.vector(Role::DtBias, heads, Table::rows(1), dt(self.dt_init), SumGrad::No);
        t.vector(Role::ALog, heads, Table::rows(1), A, SumGrad::No);
        t.vector(Role::D, heads, Table::rows(1), Init::Ones, SumGrad::No);
        let rows = sections.iter().sum();
        t.matrix(Role::InProj, [rows, c.hidden], cut(sections), t.std());
        if self.bias {
            t.vector(Role::InProj.bias(), rows, cut(sections), Init::Zeros, SumGrad::No);
        }
        let rows = convolved.iter().sum();
        t.push(Role::Conv1d, &[rows, 1, self.conv], cut(convolved), conv_init(self.conv), SumGrad::No);
        if self.conv_bias {
            t.vector(Role::Conv1d.bias(), rows, cut(convolved), Init::Zeros, SumGrad::No);
        }
        t.vector(Role::Norm, inner, Table::rows(1), Init::Ones, SumGrad::No);
        t.matrix(Role::OutProj, [c.hidden, inner], Table::columns(), t.out_std());
        if self.bias {
            t.whole_bias(Role::OutProj, c.hidden);
        }
    }

    /// What goes into the convolution and comes out of it, steps, gates, outputs and gated outputs unrounded; normed, and
    /// scaled.
    fn kept(&self, a: &Activations, _: &ModelConfig) -> Kept {
        let [inner, _, bc, _, heads] =
            Self { heads: self.heads / a.tp, groups: self.groups / a.tp, ..*self }.sections();
        let convolved = inner + 2 * bc;
        let biases = usize::from(self.conv_bias) * convolved;
        let (wide, weights) = a.wide(convolved * self.conv + biases + 3 * heads);
        let rows = (3 * inner + 2 * convolved + heads) * wide + 2 * inner * a.element_bytes;
        // The norm of each group has a weight of ones.
        let ones = inner * a.tp / self.groups * wide;
        (a.tokens * rows + weights + ones, a.tokens * (self.groups / a.tp) * wide)
    }

    /// Of a layer that is twice as wide as the stream, whatever width it has.
    fn flops(&self, c: &ModelConfig) -> Option<f64> {
        let (h, state) = (c.hidden as f64, self.state as f64);
        let inner = 2.0 * h;
        let heads = (2 * c.hidden / self.head_dim.max(1)) as f64;
        let projections =
            2.0 * h * (2.0 * inner + 2.0 * self.groups as f64 * state + heads) + 2.0 * inner * h;
        Some(3.0 * (projections + 7.0 * inner * state))
    }

    fn shrink(&mut self, ranks: usize) {
        self.heads = ranks * (self.heads / self.groups.max(1)).clamp(1, 2);
        (self.groups, self.head_dim, self.state) = (ranks, self.head_dim.min(8), self.state.min(8));
    }
}
