//! Multi-token prediction modules.

use ms_core::Axis;

use crate::description::Site;
use crate::params::Table;
use crate::parts;
use crate::saved_bytes::Activations;
use crate::sharding_rule::{AxisRule, ShardingRule};
use crate::{ModelConfig, Part, Place, Role};

/// How ranks share them.
pub(crate) const RULE: ShardingRule = ShardingRule {
    part: "prediction modules",
    tp: AxisRule::Shared("as layers; the joint projection by columns"),
    cp: AxisRule::Shared("rows are shifted whole, then cut"),
    ep: AxisRule::Shared("as layers"),
    has: |c| c.mtp > 0,
    divides: |c, axis| match axis {
        Axis::Tp => {
            vec![("hidden size, which the joint projection of a prediction module makes,", c.hidden)]
        }
        _ => Vec::new(),
    },
};

/// The weights of module `k` before its layer; the layer's come next.
pub(crate) fn before(t: &mut Table<'_>, c: &ModelConfig, k: usize) {
    t.at(Place::Mtp(k), Part::Prediction);
    t.norm(Role::Enorm, c.hidden);
    t.norm(Role::Hnorm, c.hidden);
    t.matrix(Role::EhProj, [c.hidden, 2 * c.hidden], Table::rows(1), t.std());
}

/// Those after it.
pub(crate) fn behind(t: &mut Table<'_>, c: &ModelConfig, k: usize) {
    t.at(Place::Mtp(k), Part::Last);
    parts::params_around(t, c, Site::End);
    t.of(Part::Last);
    t.norm(Role::FinalLayernorm, c.hidden);
}

/// FLOPs of a token in a module but in its layer, and without its logits: three norms and the joint projection.
pub(crate) fn flops(c: &ModelConfig) -> f64 {
    let h = c.hidden as f64;
    6.0 * (3.0 * h + 2.0 * h * h)
}

impl Activations {
    /// A module except its layer: ids and embedding of the tokens ahead; both normed inputs, concatenated; and the values
    /// saved by its end, as by the model's.
    pub(crate) fn module(&self, c: &ModelConfig) -> usize {
        let (row, rstd) = (self.stream_bytes(c), self.stream() * self.element_bytes.max(4));
        let joined = if self.save_policy.recompute_predictor_norms { 0 } else { 2 * row };
        4 * self.tokens + row + 2 * rstd + joined + self.head(c)
    }
}
