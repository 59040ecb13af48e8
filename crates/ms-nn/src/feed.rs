//! Feed-forward networks: one for all tokens, or a mixture of experts.

use crate::layer::Pass;
use crate::params::{Linear, Scope};
use ms_core::{Activation, DType, GroupScore, ParamId, Router, RouterScore, Routes, Tensor, Var, ops};
use ms_spec::{Activation as Kind, GroupScore as SpecGroupScore, Limits, ModelConfig, Moe, Score};
use std::sync::Arc;

/// The activation of a configuration, or of a layer with a limit: its function, and whether there is a gate.
pub(crate) fn activation(c: &ModelConfig, limit: Option<f64>) -> (Activation, bool) {
    if let Some(limit) = limit {
        return (Activation::Limited { limit: limit as f32 }, true);
    }
    let kind = match c.activation {
        Kind::Swiglu => Activation::Silu,
        Kind::GegluTanh | Kind::GeluTanh => Activation::GeluTanh,
        Kind::GeluErf => Activation::GeluErf,
        Kind::ReluSquared => Activation::Relu2,
        Kind::SwigluBounded { limit } => Activation::ClampedSilu { limit: limit as f32 },
        Kind::SwigluClamped { alpha, limit } => {
            Activation::Clamped { alpha: alpha as f32, limit: limit as f32 }
        }
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
        let (fc1, fc2) = (scope.linear("linear_fc1"), scope.linear("linear_fc2"));
        Self { fc1, fc2, activation: activation(c, limits.dense) }
    }

    /// `[T,H]` to `[T,H]`.
    pub(crate) fn forward(&self, pass: &mut Pass<'_>, x: &Var) -> ms_core::Result<Var> {
        let x = pass.ctx.enter_tp(pass.g, x)?;
        let inner = pass.linear(&x, self.fc1)?;
        let (kind, gated) = self.activation;
        let inner = ops::activation(pass.g, &inner, kind, gated)?;
        pass.row_parallel(&inner, self.fc2)
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
    experts: usize,
    /// Logits are formed in f32.
    wide: bool,
    fc1: Linear,
    fc2: Linear,
    activation: (Activation, bool),
    shared: Option<(Dense, Option<ParamId>)>,
}

fn router(moe: &Moe) -> Router {
    let r = &moe.router;
    let (score, normalise) = match r.score {
        Score::Softmax => (RouterScore::Softmax, r.renormalise),
        // A softmax over the chosen logits is the softmax over all, divided by the sum of the chosen.
        Score::SoftmaxOfChosen => (RouterScore::Softmax, true),
        Score::Sigmoid => (RouterScore::Sigmoid, r.renormalise),
        Score::SqrtSoftplus => (RouterScore::SqrtSoftplus, r.renormalise),
        Score::SparseMixer { jitter } => (RouterScore::SparseMixer { jitter: jitter as f32 }, false),
    };
    let judge = |by| match by {
        SpecGroupScore::Best => GroupScore::Best,
        SpecGroupScore::BestTwo => GroupScore::BestTwo,
    };
    let groups = r.groups.map(|g| (g.groups, g.keep, judge(g.by)));
    Router { score, top_k: moe.top_k, groups, normalise, scale: r.scale as f32 }
}

/// The experts `[T,K]` that a table has for the batch's tokens.
fn listed(pass: &Pass<'_>, table: ParamId) -> ms_core::Result<Tensor> {
    let rows = pass.g.device().embedding(&pass.store.get(table), &pass.batch.tokens)?;
    let numbers: Vec<i32> = rows.to_f32_vec()?.iter().map(|&e| e as i32).collect();
    Tensor::from_slice(rows.arena(), rows.shape(), &numbers)
}

impl Experts {
    /// The experts under `scope`, a layer's `mlp`.
    pub(crate) fn new(scope: &Scope<'_>, c: &ModelConfig, limits: Limits) -> Self {
        let moe = c.moe.as_ref().expect("a validated model with a layer of experts has their sizes");
        let shared = scope.under("shared_experts");
        let shared = moe
            .shared
            .as_ref()
            .map(|s| (Dense::new(&shared, c, limits), s.gate.then(|| shared.id("gate_weight"))));
        Self {
            router_weight: scope.linear("router"),
            expert_bias: scope.find("router.expert_bias"),
            table: scope.find("router.tid2eid"),
            router: router(moe),
            experts: moe.experts,
            wide: moe.router.f32,
            fc1: scope.linear("experts.linear_fc1"),
            fc2: scope.linear("experts.linear_fc2"),
            activation: activation(c, limits.experts),
            shared,
        }
    }

    /// `[T,H]` to `[T,H]`.
    pub(crate) fn forward(&self, pass: &mut Pass<'_>, x: &Var) -> ms_core::Result<Var> {
        let logits = if self.wide {
            let wide = ops::cast(pass.g, x, DType::F32)?;
            let w = pass.param(self.router_weight.weight);
            let w = ops::cast(pass.g, &w, DType::F32)?;
            let bias = self.router_weight.bias.map(|b| pass.param(b));
            let bias = bias.map(|b| ops::cast(pass.g, &b, DType::F32)).transpose()?;
            ops::linear(pass.g, &wide, &w, bias.as_ref())?
        } else {
            pass.linear(x, self.router_weight)?
        };
        let logits = ops::cast(pass.g, &logits, DType::F32)?;
        let device = pass.g.device().clone();
        let bias = self.expert_bias.map(|id| device.cast(&pass.store.get(id), DType::F32)).transpose()?;
        let routed = match self.table {
            Some(table) => {
                let experts = listed(pass, table)?;
                ops::route_to(pass.g, &logits, experts, &self.router, pass.balance)?
            }
            None => ops::route(pass.g, &logits, bias.as_ref(), &self.router, pass.balance)?,
        };
        // Once a step: where a layer is recomputed only its second run records.
        if let Some(load) = pass.load.as_ref().filter(|_| pass.g.records()) {
            load.add(pass.layer, routed.balance, &routed.routes);
        }
        let rows = ops::dispatch(pass.g, x, &routed.routes)?;
        let out = self.through_experts(pass, &rows, &routed.routes)?;
        let out = ops::combine(pass.g, &out, &routed.weights, &routed.routes)?;
        let Some((shared, gate)) = &self.shared else { return Ok(out) };
        let mut beside = shared.forward(pass, x)?;
        if let Some(gate) = gate {
            let w = pass.param(*gate);
            let by = ops::linear(pass.g, x, &w, None)?;
            beside = ops::gate(pass.g, &beside, &by, Activation::Sigmoid)?;
        }
        ops::add(pass.g, &out, &beside)
    }
    /// Rows sorted by expert, each through its expert. Rows of choices without weights come last and stay what they are.
    fn through_experts(&self, pass: &mut Pass<'_>, rows: &Var, routes: &Arc<Routes>) -> ms_core::Result<Var> {
        let through = |pass: &mut Pass<'_>, x: &Var, layer: Linear, routes: &Arc<Routes>| {
            let (w, b) = (pass.param(layer.weight), layer.bias.map(|b| pass.param(b)));
            ops::expert_linear(pass.g, x, &w, b.as_ref(), routes)
        };
        let (kind, gated) = self.activation;
        let both = |pass: &mut Pass<'_>, x: &Var, routes: &Arc<Routes>| {
            let inner = through(pass, x, self.fc1, routes)?;
            let inner = ops::activation(pass.g, &inner, kind, gated)?;
            through(pass, &inner, self.fc2, routes)
        };
        let (all, width) = rows.value().as_matrix();
        let worked = routes.starts[self.experts];
        if worked == all {
            return match routes.starts.len() - 1 == self.experts {
                true => both(pass, rows, routes),
                false => both(pass, rows, &Arc::new(routes.first(self.experts))),
            };
        }
        if worked == 0 {
            return Ok(rows.clone());
        }
        // Rows stand one after the other, so parts of the matrix are runs of columns of one long row.
        let long = ops::reshape(pass.g, rows, [1, all * width])?;
        let [head, tail] = ops::split(pass.g, &long, [worked * width, (all - worked) * width])?;
        let head = ops::reshape(pass.g, &head, [worked, width])?;
        let head = both(pass, &head, &Arc::new(routes.first(self.experts)))?;
        let head = ops::reshape(pass.g, &head, [1, worked * width])?;
        let long = ops::concat(pass.g, &[&head, &tail])?;
        ops::reshape(pass.g, &long, [all, width])
    }
}
