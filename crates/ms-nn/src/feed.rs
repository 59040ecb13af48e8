//! Feed-forward networks: one for all tokens, or a mixture of experts.

use crate::layer::Pass;
use crate::params::{Linear, Scope};
use crate::routing::Sharers;
use ms_core::{
    Activation, Device, GroupScore, ParamId, Router, RouterScore, Routes, Tensor, Var, VocabShare, ops,
};
use ms_dist::exchange_rows;
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
        let [inner] = pass.column_parallel(x, [self.fc1])?;
        let (kind, gated) = self.activation;
        let inner = ops::activation(pass.g, &inner, kind, gated)?;
        let out = pass.row_parallel(&inner, self.fc2)?;
        if pass.keeping.activations_again {
            inner.forget();
        }
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
    experts: usize,
    /// Logits are formed in f32.
    wide: bool,
    fc1: Linear,
    fc2: Linear,
    /// Whether this rank adds the bias of `fc2`, which the ranks that share an expert hold alike.
    first_of_etp: bool,
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

/// The experts `[T,K]` that a table has for the tokens of the batch that the router sees.
fn listed(pass: &Pass<'_>, table: ParamId) -> ms_core::Result<Tensor> {
    let table = pass.store.value(table);
    let seen = pass.ctx.router_tokens(pass.batch.len());
    let tokens = pass.batch.tokens.rows(seen.start, seen.len())?;
    let share = VocabShare::all(table.as_matrix().0);
    let rows = pass.g.device().embedding(&table, &tokens, share)?;
    let numbers: Vec<i32> = rows.to_f32_vec()?.iter().map(|&e| e as i32).collect();
    Tensor::from_slice(rows.arena(), rows.shape(), &numbers)
}

impl Experts {
    /// The experts under `scope`, a layer's `mlp`.
    pub(crate) fn new(scope: &Scope<'_>, c: &ModelConfig, limits: Limits, etp: (usize, usize)) -> Self {
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
            first_of_etp: etp.0 == 0,
            activation: activation(c, limits.experts),
            shared,
        }
    }

    /// `[T,H]` to `[T,H]`.
    pub(crate) fn forward(&self, pass: &mut Pass<'_>, x: &Var) -> ms_core::Result<Var> {
        let entered = pass.enter_experts(x)?;
        let out = self.route_and_combine(pass, &entered)?;
        let out = pass.ctx.leave_experts(pass.g, &out)?;
        let Some((shared, gate)) = &self.shared else { return Ok(out) };
        let mut beside = shared.forward(pass, x)?;
        if let Some(gate) = gate {
            let w = pass.param(*gate);
            let by = ops::linear(pass.g, x, &w, None)?;
            beside = ops::gate(pass.g, &beside, &by, Activation::Sigmoid)?;
        }
        ops::add(pass.g, &out, &beside)
    }

    /// Each token through the experts that its router picks: this rank's summand of the result.
    fn route_and_combine(&self, pass: &mut Pass<'_>, x: &Var) -> ms_core::Result<Var> {
        let unrounded = x.value().dtype().wide();
        let seen = pass.ctx.router_tokens(pass.batch.len());
        let judged = pass.jitter(x, seen.clone())?;
        let logits = if self.wide {
            let wide = ops::cast(pass.g, &judged, unrounded)?;
            let w = pass.param(self.router_weight.weight);
            let w = ops::cast(pass.g, &w, unrounded)?;
            let bias = self.router_weight.bias.map(|b| pass.param(b));
            let bias = bias.map(|b| ops::cast(pass.g, &b, unrounded)).transpose()?;
            ops::linear(pass.g, &wide, &w, bias.as_ref())?
        } else {
            pass.linear(&judged, self.router_weight)?
        };
        let logits = ops::cast(pass.g, &logits, unrounded)?;
        let device = pass.g.device().clone();
        let bias = self.expert_bias.map(|id| device.cast(&pass.store.value(id), unrounded)).transpose()?;
        let auxiliary = pass.balance.clone();
        let sharers = Sharers(pass.ctx);
        let balance = auxiliary.as_ref().map(|a| {
            let sequence_of = if a.sequence_of.is_empty() { &[] } else { &a.sequence_of[seen.clone()] };
            a.of(sequence_of, bias.as_ref(), &sharers)
        });
        let width = logits.value().as_matrix().1;
        let fixed = pass.batch.fixed_routes.as_ref();
        let fixed = fixed.map(|places| self.in_turn(&device, width, &places[seen])).transpose()?;
        let routed = match (self.table, fixed) {
            (Some(_), Some(experts)) => ops::route_to(pass.g, &logits, experts, &self.router, balance)?,
            (Some(table), None) => {
                let experts = listed(pass, table)?;
                ops::route_to(pass.g, &logits, experts, &self.router, balance)?
            }
            (None, Some(experts)) => {
                ops::route_instead(pass.g, &logits, bias.as_ref(), &experts, &self.router, balance)?
            }
            (None, None) => ops::route(pass.g, &logits, bias.as_ref(), &self.router, balance)?,
        };
        let (mut weights, mut dropped) = (routed.weights, 0);
        if let Some(capacity) = pass.batch.capacity {
            let tokens = logits.value().as_matrix().0;
            let most = capacity.copies(tokens, self.router.top_k, routed.routes.starts.len() - 1);
            (weights, dropped) = ops::drop_beyond(pass.g, &weights, &routed.routes, most, capacity.policy)?;
        }
        // Once a step: where a layer is recomputed only its second run records.
        if let Some(load) = pass.load.as_ref().filter(|_| pass.g.records()) {
            load.add(pass.layer, routed.balance, &routed.picked, dropped);
            if self.table.is_none() {
                load.watch(pass.layer, logits.value(), bias.as_ref(), &self.router)?;
            }
        }
        let rows = ops::dispatch(pass.g, x, &routed.routes)?;
        let out = self.through_experts(pass, &rows, &routed.routes)?;
        ops::combine(pass.g, &out, &weights, &routed.routes)
    }

    /// Of all choices `[T,K]` in turn, for tokens by their place in the micro-batch.
    ///
    /// # Source
    /// MindSpeed-LLM v2.0.0, `--fix-router`.
    fn in_turn(&self, device: &Device, choices: usize, places: &[u32]) -> ms_core::Result<Tensor> {
        let (k, all) = (self.router.top_k, choices as u64);
        let turn =
            |&place: &u32| (0..k as u64).map(move |j| ((u64::from(place) * k as u64 + j) % all) as i32);
        let experts: Vec<i32> = places.iter().flat_map(turn).collect();
        Tensor::from_slice(device.arena(), [places.len(), k], &experts)
    }

    /// Rows sorted by expert, each through its expert. Rows of choices without weights come last and stay what they are.
    fn through_experts(&self, pass: &mut Pass<'_>, rows: &Var, routes: &Arc<Routes>) -> ms_core::Result<Var> {
        let (all, width) = rows.value().as_matrix();
        let worked = routes.starts[self.experts];
        if worked == all {
            let first = match routes.starts.len() - 1 == self.experts {
                true => routes.clone(),
                false => Arc::new(routes.first(self.experts)),
            };
            return self.on_their_ranks(pass, rows, &first);
        }
        // Rows stand one after the other, so parts of the matrix are runs of columns of one long row.
        let long = ops::reshape(pass.g, rows, [1, all * width])?;
        let [head, tail] = ops::split(pass.g, &long, [worked * width, (all - worked) * width])?;
        let head = ops::reshape(pass.g, &head, [worked, width])?;
        let head = self.on_their_ranks(pass, &head, &Arc::new(routes.first(self.experts)))?;
        let head = ops::reshape(pass.g, &head, [1, worked * width])?;
        // The ranks that share experts sum what they make; of what stays as it is one of them has it.
        let tail = ops::scale(pass.g, &tail, if self.first_of_etp { 1.0 } else { 0.0 })?;
        let long = ops::concat(pass.g, &[&head, &tail])?;
        ops::reshape(pass.g, &long, [all, width])
    }

    /// Rows sorted by expert, each sent to the rank that holds its expert, through it, and back.
    ///
    /// On arrival rows of one expert stand in the order of the ranks that sent them, and so of their tokens.
    fn on_their_ranks(&self, pass: &mut Pass<'_>, rows: &Var, routes: &Arc<Routes>) -> ms_core::Result<Var> {
        let ranks = pass.ctx.ep.size();
        if ranks == 1 {
            return if rows.value().as_matrix().0 == 0 {
                Ok(rows.clone())
            } else {
                self.both(pass, rows, routes)
            };
        }
        let here = self.experts / ranks;
        let counts: Vec<i64> = (0..self.experts).map(|e| routes.range(e).len() as i64).collect();
        let arena = pass.g.device().arena().clone();
        let sent = Tensor::from_slice(&arena, [self.experts], &counts)?;
        let arriving = pass.ctx.ep.all_to_all("rows per expert", sent)?.wait()?;
        let arriving = arriving.as_slice::<i64>()?;
        let sums = |counts: &[i64]| -> Vec<usize> {
            counts.chunks_exact(here).map(|c| c.iter().sum::<i64>() as usize).collect()
        };
        let (send, receive) = (sums(&counts), sums(arriving));
        let ep = pass.ctx.ep.clone();
        let arrived = exchange_rows(pass.g, &ep, rows, &send, &receive)?;
        let expert_of: Vec<i32> = arriving
            .iter()
            .enumerate()
            .flat_map(|(i, &n)| std::iter::repeat_n((i % here) as i32, n as usize))
            .collect();
        let by_expert = Arc::new(Routes::new(&expert_of, 1, here)?);
        let sorted = ops::dispatch(pass.g, &arrived, &by_expert)?;
        let out = match expert_of.is_empty() {
            true => sorted,
            false => self.both(pass, &sorted, &by_expert)?,
        };
        let out = ops::restore(pass.g, &out, &by_expert)?;
        exchange_rows(pass.g, &ep, &out, &receive, &send)
    }

    /// Rows sorted by expert through the two layers of this rank's experts.
    fn both(&self, pass: &mut Pass<'_>, x: &Var, routes: &Arc<Routes>) -> ms_core::Result<Var> {
        let through = |pass: &mut Pass<'_>, x: &Var, layer: Linear| {
            let (w, b) = (pass.param(layer.weight), layer.bias.map(|b| pass.param(b)));
            ops::expert_linear(pass.g, x, &w, b.as_ref(), routes)
        };
        let (kind, gated) = self.activation;
        let inner = through(pass, x, self.fc1)?;
        let inner = ops::activation(pass.g, &inner, kind, gated)?;
        let out =
            through(pass, &inner, Linear { bias: self.fc2.bias.filter(|_| self.first_of_etp), ..self.fc2 })?;
        if pass.keeping.activations_again {
            inner.forget();
        }
        Ok(out)
    }
}
