//! Mamba3.

use ms_core::{Axis, Partition};

use crate::params::{Init, SumGrad, Table};
use crate::parts::recurrent::{Recurrence, Recurrent, dt};
use crate::saved_bytes::{Activations, SavedBytes};
use crate::sharding_rule::{AxisRule, ShardingRule, UNCONCERNED};
use crate::sizes::{Mamba3, Mixer};
use crate::{Error, ModelConfig, Part, Result, Role};

pub(crate) static KIND: Recurrence = Recurrence {
    mixer: Mixer::Mamba3,
    what: "trapezoidal mixer",
    norm: None,
    rule: RULE,
    arguments: &[], // none describes it
    args: &[],
    flags: &[],
    same_number: &[],
    last_norm: Role::FinalLayernorm,
    stacked: true,
    of: |c| c.mamba3.as_ref().map(|sizes| sizes as _),
};

/// How ranks share it.
const RULE: ShardingRule = ShardingRule {
    part: "a trapezoidal mixer (Mamba3)",
    tp: AxisRule::Shared("heads; every rank makes the keys, queries and angles that all share"),
    cp: AxisRule::Shared("heads for tokens, with copies of what they share"),
    ep: UNCONCERNED,
    has: |c| c.mamba3.is_some(),
    divides: |c, axis| match (axis, &c.mamba3) {
        (Axis::Tp, Some(m)) => vec![("trapezoidal heads", m.heads)],
        (Axis::Cp, Some(m)) => vec![("trapezoidal heads of a rank", m.heads)],
        _ => Vec::new(),
    },
};

impl Recurrent for Mamba3 {
    fn sizes(&self) -> Vec<usize> {
        let ranks = self.ranks.unwrap_or(1);
        let products = [self.heads.saturating_mul(self.head_dim), ranks.saturating_mul(self.state)];
        [self.heads, self.head_dim, self.state, ranks, self.angles].into_iter().chain(products).collect()
    }

    fn check(&self) -> Result<()> {
        let (a, s) = (self.angles, self.state);
        if 2 * a > s {
            Err(Error::inconsistent(format!("{a} angles turn more than the {s} elements of a key")))
        } else {
            Ok(())
        }
    }

    fn params(&self, t: &mut Table<'_>, c: &ModelConfig) {
        let (by_head, ranks) = (Table::rows(1), self.ranks.unwrap_or(1));
        // What heads share every rank holds, and sees by its heads.
        let (shared, sum) = (Partition::Replicated, SumGrad::OverTp);
        t.of(Part::StateSpace);
        for (bias, norm) in [(Role::BBias, Role::BNorm), (Role::CBias, Role::CNorm)] {
            t.push(bias, &[self.heads, ranks, self.state], by_head, Init::Ones, SumGrad::No);
            t.vector(norm, self.state, shared, Init::Ones, sum);
        }
        t.vector(Role::D, self.heads, by_head, Init::Ones, SumGrad::No);
        if self.ranks.is_some() {
            for role in [Role::MimoO, Role::MimoX, Role::MimoZ] {
                t.push(role, &[self.heads, ranks, self.head_dim], by_head, Init::Ones, SumGrad::No);
            }
        }
        t.vector(Role::DtBias, self.heads, by_head, dt(self.dt_init), SumGrad::No);
        t.push(Role::InProj, &[self.sections().iter().sum(), c.hidden], shared, t.std(), sum);
        t.matrix(Role::OutProj, [c.hidden, self.inner()], Table::columns(), t.std());
    }

    /// All sections of the projection, keys and queries also normed, unrounded; outputs.
    fn kept(&self, a: &Activations, c: &ModelConfig) -> SavedBytes {
        let m = &Self { heads: self.heads / a.tp, ..*self };
        let sections: usize = m.sections().into_iter().sum();
        // The rows of the projection that ranks use of the whole.
        let projection = if a.tp > 1 { sections * c.hidden * a.element_bytes } else { 0 };
        let ranks = m.ranks.unwrap_or(1);
        let by_rank = if m.ranks.is_some() { 3 * ranks * m.inner() } else { 0 };
        let (wide, weights) = a.wide(2 * m.state + 2 * m.heads + 2 * m.heads * ranks * m.state + by_rank);
        let rows = (sections + 2 * m.keys()) * wide + m.inner() * a.element_bytes;
        (a.tokens * rows + weights + projection, a.tokens * 2 * ranks * wide)
    }

    fn shrink(&self, small: &mut ModelConfig, ranks: usize) {
        small.mamba3 = Some(Self { heads: ranks, head_dim: self.head_dim.min(8), ..*self });
    }
}
