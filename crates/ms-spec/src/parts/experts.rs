//! Mixtures of experts.

use ms_core::{Axis, Dispatcher, Partition, UpdatedBy};

use crate::params::{Init, SumGrad, Table};
use crate::parts::dense;
use crate::save_policy::LayerSavePolicy;
use crate::saved_bytes::{Activations, ExpertLayerBytes};
use crate::sharding_rule::{AxisRule, ShardingRule, UNCONCERNED, nothing};
use crate::sizes::Moe;
use crate::{ModelConfig, Part, Role};

/// How ranks share them.
pub(crate) const RULE: ShardingRule = ShardingRule {
    part: "experts",
    tp: AxisRule::Shared("as dense networks, or whole experts on tensor-parallel ranks"),
    cp: AxisRule::Shared("tokens"),
    ep: AxisRule::Shared("experts"),
    has: |c| c.moe.is_some(),
    divides: |c, axis| match (axis, &c.moe) {
        (Axis::Ep, Some(moe)) => vec![("experts", moe.experts)],
        _ => Vec::new(),
    },
};

/// How ranks share routers.
pub(crate) const ROUTERS: ShardingRule = ShardingRule {
    part: "routers and their losses",
    tp: AxisRule::Shared("every rank routes the tokens of its experts' inputs"),
    cp: AxisRule::Shared("tokens; the load is counted over all ranks"),
    ep: AxisRule::Shared("tokens"),
    has: |c| c.moe.is_some(),
    divides: nothing,
};

/// How ranks share the experts that all tokens pass.
pub(crate) const SHARED: ShardingRule = ShardingRule {
    part: "shared experts",
    tp: AxisRule::Shared("as dense networks"),
    cp: AxisRule::Shared("tokens"),
    ep: UNCONCERNED,
    has: |c| c.moe.as_ref().is_some_and(|moe| moe.shared.is_some()),
    divides: |c, axis| match (axis, c.moe.as_ref().and_then(|moe| moe.shared)) {
        (Axis::Tp, Some(shared)) => vec![("shared expert ffn size", shared.ffn)],
        _ => Vec::new(),
    },
};

/// How ranks share experts that return their input.
pub(crate) const WITHOUT_WEIGHTS: ShardingRule = ShardingRule {
    part: "experts without weights",
    tp: AxisRule::Shared("one of the ranks that share an expert adds the tokens"),
    cp: AxisRule::Shared("tokens"),
    ep: AxisRule::Shared("tokens stay on their rank"),
    has: |c| c.moe.as_ref().is_some_and(|moe| moe.zero_experts > 0),
    divides: nothing,
};

/// The weights of a layer of experts; `hashed`: a table chooses them.
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig, hashed: bool) {
    let moe = c.moe.as_ref().expect("validate: a layer of experts needs their sizes");
    let by_sequence = SumGrad::OverTpWithSequenceParallel;
    let (e, h, f) = (moe.experts, c.hidden, moe.ffn);
    let choices = e + moe.zero_experts;
    t.of(Part::Router);
    // Routers run where experts do, on all tokens of the ranks that share an expert, so their gradients are partial sums.
    t.push(Role::Own, &[choices, h], Partition::Replicated, t.std(), SumGrad::OverTp);
    if moe.router.linear_bias {
        t.vector(Role::Own.bias(), choices, Partition::Replicated, Init::Zeros, SumGrad::OverTp);
    }
    if hashed {
        let (rows, numbers) = ([c.vocab, moe.top_k], Init::RoundRobin { of: e });
        t.matrix(Role::Tid2Eid, rows, Partition::Replicated, numbers);
        let table = t.list.last_mut().expect("just pushed");
        (table.updated_by, table.decay, table.integral) = (UpdatedBy::Nothing, false, true);
    } else if moe.router.bias {
        t.vector(Role::ExpertBias, choices, Partition::Replicated, Init::Zeros, SumGrad::No);
        t.list.last_mut().expect("just pushed").updated_by = UpdatedBy::ExpertLoad;
    }
    t.of(Part::Experts);
    let blocks = if c.activation.gated() { 2 } else { 1 };
    let rows = Partition::Experts { dim: 1, blocks };
    t.push(Role::LinearFc1, &[e, blocks * f, h], rows, t.std(), SumGrad::No);
    if c.bias.mlp {
        t.push(Role::LinearFc1.bias(), &[e, blocks * f], rows, Init::Zeros, SumGrad::No);
        t.list.last_mut().expect("just pushed").decay = false;
    }
    let columns = Partition::Experts { dim: 2, blocks: 1 };
    t.push(Role::LinearFc2, &[e, h, f], columns, t.out_std(), SumGrad::No);
    if c.bias.mlp {
        // Whole on every rank that shares its experts; the first of them adds it.
        let shared = Partition::Split { axis: ms_core::Axis::Ep, dim: 0, blocks: 1 };
        t.push(Role::LinearFc2.bias(), &[e, h], shared, Init::Zeros, SumGrad::OverTp);
        t.list.last_mut().expect("just pushed").decay = false;
    }
    if let Some(shared) = &moe.shared {
        dense::params(t, c, Part::SharedExperts, shared.ffn);
        if shared.gate {
            t.push(
                Role::GateWeight,
                &[if shared.wide_gate { h } else { 1 }, h],
                Partition::Replicated,
                Init::Uniform { bound: (h as f64).powf(-0.5) }, // `torch.nn.Linear`'s own, which nothing draws anew
                by_sequence,
            );
        }
    }
}

/// FLOPs of a token in the experts that it is sent to and in those that all tokens pass, forward and backward; routers are not
/// counted.
pub(crate) fn flops(c: &ModelConfig, moe: &Moe) -> f64 {
    dense::flops(c, moe.top_k * moe.ffn + moe.shared.map_or(0, |shared| shared.ffn))
}

/// Tokens of a rank around experts.
pub(crate) struct Tokens {
    /// That the router's inputs are of.
    pub(crate) entered: usize,
    /// That it routes.
    routed: usize,
    /// That it has the weights of.
    weighed: usize,
    /// As many whole rows come back for each choice.
    back: usize,
}

impl Activations {
    /// Whether ranks exchange tokens for columns before they send them to experts.
    pub(crate) fn exchanges_columns(&self) -> bool {
        self.dispatcher == Dispatcher::AllToAllSeq && self.etp > 1
    }

    /// Tokens of the rank around experts.
    pub(crate) fn around_experts(&self) -> Tokens {
        let (own, sharing) = (self.tokens / self.tp, self.tokens / self.tp * self.etp);
        let alike = self.etp == self.tp && !self.sequence_parallel;
        match self.dispatcher {
            Dispatcher::AllGather if !self.tp.is_multiple_of(self.etp) => {
                Tokens { entered: own, routed: own, weighed: sharing * self.ep, back: own }
            }
            Dispatcher::AllGather => {
                Tokens { entered: sharing, routed: sharing, weighed: sharing * self.ep, back: sharing }
            }
            Dispatcher::AllToAll => Tokens { entered: own, routed: own, weighed: own, back: own },
            Dispatcher::AllToAllSeq => {
                let entered = if alike { sharing } else { own };
                Tokens { entered, routed: sharing, weighed: sharing, back: own }
            }
        }
    }

    /// A layer of experts after its norm, with an even load.
    pub(crate) fn experts(
        &self,
        c: &ModelConfig,
        moe: &Moe,
        save_policy: LayerSavePolicy,
    ) -> ExpertLayerBytes {
        let (element, wide) = (self.element_bytes, self.element_bytes.max(4));
        let tokens = self.around_experts();
        // The type in which logits are computed, and the one in which scores are saved.
        let formed = moe.router.dtype.bytes(element);
        let scores = tokens.routed * (moe.experts + moe.zero_experts) * formed.max(wide);
        // Experts and weights of each token; what goes into experts and what comes out of them.
        let (choices, weights) = (moe.top_k * 4 * tokens.routed, moe.top_k * wide * tokens.weighed);
        let copies = |tokens: usize| tokens * moe.top_k * c.hidden * element;
        let (into, out) = (copies(self.tokens / self.tp * self.etp), copies(tokens.back));
        // Rows are recomputed from the columns that ranks have exchanged tokens for.
        let columns = usize::from(self.exchanges_columns()) * tokens.routed * (c.hidden / self.etp) * element;
        let (out, sent) = if save_policy.swap_expert_outputs { (0, out) } else { (out, 0) };
        let (into, columns) = if save_policy.recompute_experts { (0, columns) } else { (into, 0) };
        // Unrounded scores need unrounded rows and router weights.
        let rounded = if formed > element {
            (tokens.entered + moe.experts + moe.zero_experts) * c.hidden * formed
        } else {
            0
        };
        // A gate of the shared experts takes their output.
        let gate = moe.shared.filter(|s| s.gate).map_or(0, |s| {
            let by = if s.wide_gate { c.hidden } else { 1 };
            self.stream() * (c.hidden + by) * element
        });
        let shared = moe.shared.map(|s| self.dense(c, s.ffn, save_policy.of_experts())).unwrap_or_default();
        let routed = self.dense(c, moe.ffn, save_policy.of_routed_experts()).times(moe.top_k);
        let (router, around) = (scores + rounded, weights + columns);
        ExpertLayerBytes { router, choices, around, into, out, sent, routed, shared, gate }
    }
}
