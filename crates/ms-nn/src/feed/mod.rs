//! Feed-forward layers: a dense MLP or a mixture of experts.

mod dispatch;
mod routing;

use crate::params::{Linear, Scope};
use crate::pass::{Pass, SharedExperts};
use ms_core::ops::{DropPolicy, ExpertCapacity, RoutingOverride};
use ms_core::{
    Activation, AxisPlace, DType, Device, GroupScore, ParamId, Router, RouterScore, Routes, ShardState,
    Tensor, Var, VocabShare, ops,
};
use ms_spec::{
    Activation as Kind, GroupScore as SpecGroupScore, Limits, ModelConfig, Moe, Part, Role, RouterDtype,
    Score, Swapped,
};
use routing::MicroBatchRanks;
pub use routing::{AuxiliaryLoss, Capacity, LayerLoad, RouterLoad};
use std::sync::Arc;

/// The activation of a configuration, or of a layer with a limit: its function, and whether there is a gate.
pub(crate) fn activation(c: &ModelConfig, limit: Option<f64>) -> (Activation, bool) {
    if let Some(limit) = limit {
        return (Activation::Limited { limit }, true);
    }
    let kind = match c.activation {
        Kind::Swiglu => Activation::Silu,
        Kind::GegluTanh | Kind::GeluTanh => Activation::GeluTanh,
        Kind::GegluErf | Kind::GeluErf => Activation::GeluErf,
        Kind::ReluSquared => Activation::Relu2,
        Kind::SwigluBounded { limit } => Activation::ClampedSilu { limit },
        Kind::SwigluClamped { alpha, limit } => Activation::Clamped { alpha, limit },
    };
    (kind, c.activation.gated())
}

/// `fc2(f(fc1(x)))`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense {
    fc1: Linear,
    fc2: Linear,
    activation: (Activation, bool),
}

impl Dense {
    pub(crate) fn new(scope: &Scope<'_>, c: &ModelConfig, limits: Limits) -> Self {
        let (fc1, fc2) = (scope.linear(Role::LinearFc1), scope.linear(Role::LinearFc2));
        Self { fc1, fc2, activation: activation(c, limits.dense) }
    }

    /// `[T,H]` to `[T,H]`.
    pub(crate) fn forward(&self, pass: &mut Pass<'_>, x: &Var) -> ms_core::Result<Var> {
        let [mut before] = pass.swapping(Swapped::FC1, &[x], |pass| pass.column_parallel(x, [self.fc1]))?;
        if pass.save_policy.recompute_inner {
            let (w, b) = (pass.param(self.fc1.weight), self.fc1.bias.map(|b| pass.param(b)));
            let ctx = pass.ctx.clone();
            // Where ranks share the tokens they are gathered again.
            before = pass.recompute_inner(before, x, (&w, b.as_ref()), move |device, x, w, b| {
                device.linear(&ctx.all_tokens(x)?, w, b)
            });
        }
        let (kind, gated) = self.activation;
        let inner = ops::activation(pass.g, &before, kind, gated)?;
        let out = pass.swapping(Swapped::FC2, &[&inner], |pass| pass.row_parallel(&inner, self.fc2))?;
        pass.forget_inner(&before, &inner);
        Ok(out)
    }
}

/// A mixture of experts.
#[derive(Clone, Debug)]
pub(crate) struct Experts {
    router_weight: Linear,
    expert_bias: Option<ParamId>,
    /// Experts of each token, in place of the router's choice.
    table: Option<ParamId>,
    router: Router,
    /// Experts with weights; the router's further choices return what they are given.
    pub(crate) experts: usize,
    /// The type in which logits are computed.
    dtype: RouterDtype,
    fc1: Linear,
    fc2: Linear,
    /// Whether this rank adds the bias of `fc2`, which the ranks that share an expert hold alike.
    pub(crate) first_of_etp: bool,
    activation: (Activation, bool),
    shared: Option<(Dense, Option<ParamId>)>,
}

fn router_of(moe: &Moe) -> Router {
    let r = &moe.router;
    let (score, normalise) = match r.score {
        Score::Softmax => (RouterScore::Softmax, r.renormalise),
        // A softmax over the chosen logits is the softmax over all, divided by the sum of the chosen.
        Score::SoftmaxOfChosen => (RouterScore::Softmax, true),
        Score::Sigmoid => (RouterScore::Sigmoid, r.renormalise),
        Score::SqrtSoftplus => (RouterScore::SqrtSoftplus, r.renormalise),
        Score::SparseMixer { jitter } => (RouterScore::SparseMixer { jitter }, false),
    };
    let judge = |by| match by {
        SpecGroupScore::Best(count) if r.score == Score::SoftmaxOfChosen => GroupScore::BestLogits(count),
        SpecGroupScore::Best(count) => GroupScore::Best(count),
        SpecGroupScore::Alike => GroupScore::Alike,
    };
    let groups = r.groups.map(|g| (g.groups, g.keep, judge(g.by)));
    Router { score, top_k: moe.top_k, groups, normalise, scale: r.scale }
}

/// The experts `[T,K]` that a table assigns to the tokens of the batch that the router sees; an even load on the meta device.
fn listed(pass: &Pass<'_>, table: ParamId, choices: usize) -> ms_core::Result<Tensor> {
    let table = pass.store.value(table);
    let seen = pass.ctx.routed_tokens(pass.batch.len());
    let tokens = pass.batch.tokens.rows(seen.start, seen.len())?;
    let share = VocabShare::all(table.as_matrix().0);
    let rows = pass.g.device().embedding(&table, &tokens, share)?;
    let numbers: Vec<i32> = if rows.is_meta() {
        (0..rows.numel()).map(|i| (i % choices.max(1)) as i32).collect()
    } else {
        rows.ready()?.to_f32_vec()?.iter().map(|&e| e as i32).collect()
    };
    Tensor::from_slice(rows.arena(), rows.shape(), &numbers)
}

impl Experts {
    /// The experts of the layer of `scope`.
    pub(crate) fn new(scope: &Scope<'_>, c: &ModelConfig, limits: Limits, etp: AxisPlace) -> Self {
        let moe = c.moe.as_ref().expect("a validated model with a layer of experts has their sizes");
        let (router, experts) = (scope.of(Part::Router), scope.of(Part::Experts));
        let shared = scope.of(Part::SharedExperts);
        let shared = moe
            .shared
            .as_ref()
            .map(|s| (Dense::new(&shared, c, limits), s.gate.then(|| shared.id(Role::GateWeight))));
        Self {
            router_weight: router.linear(Role::Own),
            expert_bias: router.find(Role::ExpertBias),
            table: router.find(Role::Tid2Eid),
            router: router_of(moe),
            experts: moe.experts,
            dtype: moe.router.dtype,
            fc1: experts.linear(Role::LinearFc1),
            fc2: experts.linear(Role::LinearFc2),
            first_of_etp: etp.coord == 0,
            activation: activation(c, limits.experts),
            shared,
        }
    }

    /// `[T,H]` to `[T,H]`.
    pub(crate) fn forward(&self, pass: &mut Pass<'_>, x: &Var) -> ms_core::Result<Var> {
        let entered = pass.enter_experts(x)?;
        let (weights, routes) =
            pass.swapping(Swapped::ROUTER, &[&entered], |pass| self.route(pass, &entered))?;
        pass.shared_experts = self.shared.is_some().then(|| SharedExperts::Pending(x.clone()));
        let out = self.dispatched(pass, &entered, &weights, &routes)?;
        let out = pass.ctx.leave_experts(pass.g, &out)?;
        self.run_shared_experts(pass)?;
        match pass.shared_experts.take() {
            Some(SharedExperts::Done(shared)) => ops::add(pass.g, &out, &shared),
            _ => Ok(out),
        }
    }

    /// The experts that all tokens share, unless they have worked.
    pub(crate) fn run_shared_experts(&self, pass: &mut Pass<'_>) -> ms_core::Result<()> {
        if let (Some((shared, gate)), Some(SharedExperts::Pending(x))) =
            (&self.shared, pass.shared_experts.clone())
        {
            let of_all = |pass: &mut Pass<'_>| Self::of_all(pass, &x, shared, *gate);
            let done = pass.swapping(Swapped::SHARED_EXPERTS, &[&x], of_all)?;
            pass.shared_experts = Some(SharedExperts::Done(done));
        }
        Ok(())
    }

    fn of_all(pass: &mut Pass<'_>, x: &Var, shared: &Dense, gate: Option<ParamId>) -> ms_core::Result<Var> {
        let save_policy = pass.save_policy;
        pass.save_policy = save_policy.of_experts();
        let mut out = shared.forward(pass, x)?;
        pass.save_policy = save_policy;
        if let Some(gate) = gate {
            let w = pass.param(gate);
            let by = ops::linear(pass.g, x, &w, None)?;
            out = ops::gate(pass.g, &out, &by, Activation::Sigmoid)?;
        }
        Ok(out)
    }

    /// Weights `[T,K]` and routes of the tokens that this rank routes.
    fn route(&self, pass: &mut Pass<'_>, x: &Var) -> ms_core::Result<(Var, Arc<Routes>)> {
        let unrounded = x.value().dtype().wide();
        let seen = pass.ctx.routed_tokens(pass.batch.len());
        let judged = pass.jitter(x, pass.ctx.router_tokens(pass.batch.len()))?;
        let wide = match self.dtype {
            RouterDtype::Model => None,
            RouterDtype::F32 => Some(unrounded),
            RouterDtype::F64 => Some(DType::F64),
        };
        let logits = if let Some(wide) = wide {
            let rows = ops::cast(pass.g, &judged, wide)?;
            let w = pass.param(self.router_weight.weight);
            let w = ops::cast(pass.g, &w, wide)?;
            let bias = self.router_weight.bias.map(|b| pass.param(b));
            let bias = bias.map(|b| ops::cast(pass.g, &b, wide)).transpose()?;
            ops::linear(pass.g, &rows, &w, bias.as_ref())?
        } else {
            pass.linear(&judged, self.router_weight)?
        };
        let scored = wide.unwrap_or(unrounded);
        let logits = ops::cast(pass.g, &logits, scored)?;
        let logits = pass.ctx.all_logits(pass.g, &logits)?;
        let device = pass.g.device().clone();
        let bias = self.expert_bias.map(|id| device.cast(&pass.store.value(id), scored)).transpose()?;
        let auxiliary = pass.balance.clone();
        let (tokens, width) = logits.value().as_matrix();
        let share_of = pass.batch.capacity_shares.clone();
        let taken = pass.batch.capacity.map(|capacity| {
            let shares = share_of.iter().max().map_or(1, |last| *last as usize + 1);
            let capacity_of = capacity.copies(tokens / shares, self.router.top_k, width);
            let of_batch = &pass.batch.places;
            let places = if of_batch.is_empty() { &[] } else { &of_batch[seen.clone()] };
            ExpertCapacity { capacity: capacity_of, share_of: &share_of, policy: capacity.policy, places }
        });
        let ranks = MicroBatchRanks(pass.ctx);
        let balance = auxiliary.as_ref().map(|a| {
            let sequence_of = if a.sequence_of.is_empty() { &[] } else { &a.sequence_of[seen.clone()] };
            a.of(sequence_of, bias.as_ref(), &ranks, taken)
        });
        let fixed = pass.batch.fixed_routes.as_ref();
        let fixed = fixed.map(|places| self.in_turn(&device, width, &places[seen])).transpose()?;
        let by_expert = pass.batch.fixed_by_expert;
        let mut even = None;
        let routed = match (self.table, fixed) {
            (Some(_), Some(experts)) if !by_expert => {
                ops::route_to(pass.g, &logits, experts, &self.router, balance)?
            }
            (table, Some(experts)) => {
                let picked = match table {
                    Some(table) => Some(listed(pass, table, width)?),
                    None if by_expert && pass.batch.sinkhorn => {
                        Some(ops::sinkhorn(logits.value(), self.router.top_k, ranks.others())?.experts)
                    }
                    None => None,
                };
                let instead = RoutingOverride { experts: &experts, picked, by_expert };
                ops::route_with_override(pass.g, &logits, bias.as_ref(), instead, &self.router, balance)?
            }
            (Some(table), None) => {
                let experts = listed(pass, table, width)?;
                ops::route_to(pass.g, &logits, experts, &self.router, balance)?
            }
            (None, None) if pass.batch.sinkhorn => {
                let chosen = ops::sinkhorn(logits.value(), self.router.top_k, ranks.others())?;
                even = Some(chosen.margin);
                ops::route_to(pass.g, &logits, chosen.experts, &self.router, balance)?
            }
            (None, None) => ops::route(pass.g, &logits, bias.as_ref(), &self.router, balance)?,
        };
        // Rows are weighted in the wide type.
        let (mut weights, mut dropped) = (ops::cast(pass.g, &routed.weights, unrounded)?, Vec::new());
        // Once a step: where a layer is recomputed only its second run records.
        let load = pass.load.clone().filter(|_| pass.g.records());
        if let Some(taken) = taken {
            if let (Some(load), DropPolicy::Weights) = (&load, taken.policy) {
                let of_shares = (taken.capacity, taken.share_of);
                load.watch(pass.layer, || ops::drop_margin(weights.value(), &routed.picked, of_shares))?;
            }
            // As upstream: the capacity applies to the picked experts, whatever is used in their place.
            (weights, dropped) = ops::drop_tokens(pass.g, &weights, &routed.picked, taken)?;
        }
        if let Some(load) = load {
            load.add(pass.layer, routed.balance, &routed.picked, &dropped);
            if self.table.is_none() {
                let of_router = || ops::routing_margin(logits.value(), bias.as_ref(), &self.router);
                load.watch(pass.layer, || even.map_or_else(of_router, Ok))?;
            }
        }
        Ok((weights, routed.routes))
    }

    /// Experts assigned in turn to all choices `[T,K]`, by the tokens' places in the micro-batch.
    ///
    /// # Source
    /// MindSpeed-LLM v2.0.0 and its head (2026), `topk_router_routing`, `--fix-router`.
    fn in_turn(&self, device: &Device, choices: usize, places: &[u32]) -> ms_core::Result<Tensor> {
        let (k, all) = (self.router.top_k, choices as u64);
        let turn =
            |&place: &u32| (0..k as u64).map(move |j| ((u64::from(place) * k as u64 + j) % all) as i32);
        let experts: Vec<i32> = places.iter().flat_map(turn).collect();
        Tensor::from_slice(device.arena(), [places.len(), k], &experts)
    }

    /// The bias that this rank adds: of the second layer, which the ranks that share an expert hold alike, the first of them
    /// does.
    fn added_bias(&self, pass: &mut Pass<'_>, layer: Linear) -> Option<Var> {
        let second = layer.weight == self.fc2.weight;
        let bias = pass.param(layer.bias.filter(|_| !second || self.first_of_etp)?);
        let etp = pass.ctx.etp_group().over;
        if second {
            Some(bias.resharded("bias of one rank", etp, ShardState::Replicated, ShardState::Partial))
        } else {
            Some(bias)
        }
    }

    /// Rows sorted by expert through the two layers of this rank's experts. Without rows the operations are recorded all the
    /// same: all ranks come to the gradients of their experts at the same place.
    pub(crate) fn both(&self, pass: &mut Pass<'_>, x: &Var, routes: &Arc<Routes>) -> ms_core::Result<Var> {
        pass.swapping(Swapped::EXPERTS, &[x], |pass| self.through_both(pass, x, routes))
    }

    fn through_both(&self, pass: &mut Pass<'_>, x: &Var, routes: &Arc<Routes>) -> ms_core::Result<Var> {
        let through = |pass: &mut Pass<'_>, x: &Var, layer: Linear| {
            let (w, b) = (pass.param(layer.weight), self.added_bias(pass, layer));
            ops::expert_linear(pass.g, x, &w, b.as_ref(), routes)
        };
        let (kind, gated) = self.activation;
        let save_policy = pass.save_policy;
        pass.save_policy = save_policy.of_routed_experts();
        let before = pass.swapping(Swapped::FC1, &[x], |pass| through(pass, x, self.fc1))?;
        let (w, b) = (pass.param(self.fc1.weight), self.fc1.bias.map(|b| pass.param(b)));
        let again = routes.clone();
        let before = pass.recompute_inner(before, x, (&w, b.as_ref()), move |device, x, w, b| {
            device.expert_linear(x, w, b, &again)
        });
        let inner = ops::activation(pass.g, &before, kind, gated)?;
        let out = pass.swapping(Swapped::FC2, &[&inner], |pass| through(pass, &inner, self.fc2))?;
        pass.forget_inner(&before, &inner);
        pass.save_policy = save_policy;
        Ok(out)
    }
}
