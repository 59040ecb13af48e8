//! Mamba3.

use ms_core::{Axis, Partition};

use crate::kept::{Activations, Kept};
use crate::params::{Init, SumGrad, Table};
use crate::parts::recurrent::dt;
use crate::rule::{How, Rule, UNCONCERNED};
use crate::sizes::Mamba3;
use crate::{ModelConfig, Part, Role};

/// How ranks share it.
pub(crate) const RULE: Rule = Rule {
    part: "a trapezoidal mixer (Mamba3)",
    tp: How::Shared("heads; every rank makes the keys, queries and angles that all share"),
    cp: How::Shared("heads for tokens, with copies of what they share"),
    ep: UNCONCERNED,
    has: |c| c.mamba3.is_some(),
    divides: |c, axis| match (axis, &c.mamba3) {
        (Axis::Tp, Some(m)) => vec![("trapezoidal heads", m.heads)],
        (Axis::Cp, Some(m)) => vec![("trapezoidal heads of a rank", m.heads)],
        _ => Vec::new(),
    },
};

/// Its weights.
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig) {
    let m = c.mamba3.as_ref().expect("validate: a trapezoidal layer needs its sizes");
    let (by_head, ranks) = (Table::rows(1), m.ranks.unwrap_or(1));
    // What heads share every rank holds, and sees by its heads.
    let (shared, sum) = (Partition::Replicated, SumGrad::OverTp);
    t.of(Part::StateSpace);
    for (bias, norm) in [(Role::BBias, Role::BNorm), (Role::CBias, Role::CNorm)] {
        t.push(bias, &[m.heads, ranks, m.state], by_head, Init::Ones, SumGrad::No);
        t.vector(norm, m.state, shared, Init::Ones, sum);
    }
    t.vector(Role::D, m.heads, by_head, Init::Ones, SumGrad::No);
    if m.ranks.is_some() {
        for role in [Role::MimoO, Role::MimoX, Role::MimoZ] {
            t.push(role, &[m.heads, ranks, m.head_dim], by_head, Init::Ones, SumGrad::No);
        }
    }
    t.vector(Role::DtBias, m.heads, by_head, dt(m.dt_init), SumGrad::No);
    t.push(Role::InProj, &[m.sections().iter().sum(), c.hidden], shared, t.std(), sum);
    t.matrix(Role::OutProj, [c.hidden, m.inner()], Table::columns(), t.std());
}

impl Activations {
    /// All sections of the projection, keys and queries also normed, unrounded; outputs.
    pub(crate) fn mamba3(&self, m: &Mamba3, hidden: usize) -> Kept {
        let m = &Mamba3 { heads: m.heads / self.tp, ..*m };
        let sections: usize = m.sections().into_iter().sum();
        // The rows of the projection that ranks use of the whole.
        let projection = if self.tp > 1 { sections * hidden * self.element_bytes } else { 0 };
        let ranks = m.ranks.unwrap_or(1);
        let by_rank = if m.ranks.is_some() { 3 * ranks * m.inner() } else { 0 };
        let (wide, weights) = self.wide(2 * m.state + 2 * m.heads + 2 * m.heads * ranks * m.state + by_rank);
        let rows = (sections + 2 * m.keys()) * wide + m.inner() * self.element_bytes;
        (self.tokens * rows + weights + projection, self.tokens * 2 * ranks * wide)
    }
}
