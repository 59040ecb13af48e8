//! Mamba2.

use ms_core::{Axis, Partition};

use crate::kept::{Activations, Kept};
use crate::params::{Init, SumGrad, Table};
use crate::parts::recurrent::{A, conv_init, dt};
use crate::rule::{How, Rule, UNCONCERNED};
use crate::sizes::Mamba2;
use crate::{ModelConfig, Part, Role};

/// How ranks share it.
pub(crate) const RULE: Rule = Rule {
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

/// Its weights.
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig) {
    let m = c.mamba2.as_ref().expect("validate: a state-space layer needs its sizes");
    let sections = m.sections();
    let [inner, _, bc, _, heads] = sections;
    let cut = |sizes| Partition::Sections { axis: Axis::Tp, dim: 0, sizes };
    let convolved = [inner, bc, bc, 0, 0];
    t.of(Part::Layer);
    t.norm(Role::Norm, c.hidden);
    t.of(Part::StateSpace);
    t.vector(Role::DtBias, heads, Table::rows(1), dt(m.dt_init), SumGrad::No);
    t.vector(Role::ALog, heads, Table::rows(1), A, SumGrad::No);
    t.vector(Role::D, heads, Table::rows(1), Init::Ones, SumGrad::No);
    let rows = sections.iter().sum();
    t.matrix(Role::InProj, [rows, c.hidden], cut(sections), t.std());
    if m.bias {
        t.vector(Role::InProj.bias(), rows, cut(sections), Init::Zeros, SumGrad::No);
    }
    let rows = convolved.iter().sum();
    t.push(Role::Conv1d, &[rows, 1, m.conv], cut(convolved), conv_init(m.conv), SumGrad::No);
    if m.conv_bias {
        t.vector(Role::Conv1d.bias(), rows, cut(convolved), Init::Zeros, SumGrad::No);
    }
    t.vector(Role::Norm, inner, Table::rows(1), Init::Ones, SumGrad::No);
    t.matrix(Role::OutProj, [c.hidden, inner], Table::columns(), t.out_std());
    if m.bias {
        t.whole_bias(Role::OutProj, c.hidden);
    }
}

/// FLOPs of a token, forward and backward, of a layer that is twice as wide as the stream, whatever width it has.
pub(crate) fn flops(c: &ModelConfig, m: &Mamba2) -> f64 {
    let (h, state) = (c.hidden as f64, m.state as f64);
    let inner = 2.0 * h;
    let heads = (2 * c.hidden / m.head_dim.max(1)) as f64;
    let projections = 2.0 * h * (2.0 * inner + 2.0 * m.groups as f64 * state + heads) + 2.0 * inner * h;
    3.0 * (projections + 7.0 * inner * state)
}

impl Activations {
    /// What goes into the convolution and comes out of it, steps, gates, outputs and gated outputs unrounded; normed, and
    /// scaled.
    pub(crate) fn mamba2(&self, m: &Mamba2) -> Kept {
        let [inner, _, bc, _, heads] =
            Mamba2 { heads: m.heads / self.tp, groups: m.groups / self.tp, ..*m }.sections();
        let convolved = inner + 2 * bc;
        let biases = usize::from(m.conv_bias) * convolved;
        let (wide, weights) = self.wide(convolved * m.conv + biases + 3 * heads);
        let rows = (3 * inner + 2 * convolved + heads) * wide + 2 * inner * self.element_bytes;
        // The norm of each group has a weight of ones.
        let ones = inner * self.tp / m.groups * wide;
        (self.tokens * rows + weights + ones, self.tokens * (m.groups / self.tp) * wide)
    }
}
