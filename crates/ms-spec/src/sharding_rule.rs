//! The sharding rule of a model part: how ranks share it, or why they cannot.

use ms_core::Axis;

use crate::ModelConfig;

/// What an axis of parallelism does with a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisRule {
    /// Ranks share it so.
    Shared(&'static str),
    /// Context-parallel ranks share it so where each sees whole documents, of gathered rows or of some of the heads; otherwise it
    /// is refused.
    WholeDocuments {
        /// How they share it.
        how: &'static str,
        /// Why not otherwise.
        otherwise: &'static str,
    },
    /// The axis has nothing to do with it.
    Unconcerned,
    /// It is refused, for this reason.
    Refused(&'static str),
}

/// A part of models and how ranks share it.
#[derive(Clone, Copy, Debug)]
pub struct ShardingRule {
    /// The part.
    pub part: &'static str,
    /// Tensor parallelism.
    pub tp: AxisRule,
    /// Context parallelism.
    pub cp: AxisRule,
    /// Expert parallelism.
    pub ep: AxisRule,
    pub(crate) has: fn(&ModelConfig) -> bool,
    /// What of a model must divide among the ranks along an axis, where the part is shared.
    pub(crate) divides: fn(&ModelConfig, Axis) -> Vec<(&'static str, usize)>,
}

impl ShardingRule {
    /// What `axis` does with the part; data and pipeline parallelism leave parts whole.
    pub fn along(&self, axis: Axis) -> AxisRule {
        match axis {
            Axis::Tp => self.tp,
            Axis::Cp => self.cp,
            Axis::Ep => self.ep,
            Axis::Dp | Axis::Pp => AxisRule::Unconcerned,
        }
    }
}

pub(crate) const UNCONCERNED: AxisRule = AxisRule::Unconcerned;

/// Why rings do not serve attention that picks or pools its keys.
pub(crate) const NO_RING: &str = "a query picks among all keys before it, and windows reach over ranks: keys are gathered (kvallgather_cp_algo) or heads exchanged for tokens (ulysses_cp_algo), as in upstream, not passed around";

/// Of parts that nothing has to divide of.
pub(crate) fn nothing(_: &ModelConfig, _: Axis) -> Vec<(&'static str, usize)> {
    Vec::new()
}

/// Query heads, which tensor-parallel ranks share.
pub(crate) fn query_heads(c: &ModelConfig, axis: Axis) -> Vec<(&'static str, usize)> {
    if axis != Axis::Tp {
        return Vec::new();
    }
    let mut sizes = vec![("query heads", c.heads)];
    sizes.extend(c.windowed.iter().map(|w| ("query heads of windowed layers", w.heads)));
    sizes
}
