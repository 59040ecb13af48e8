//! Mixtures of experts: routing, token permutation, and the experts' linear layers.

use super::layout::op;
use super::only;
use crate::{
    BackwardCx, Device, ExpertLoad, Graph, Op, Result, Router, Routes, Saved, Tensor, TensorSpec, Var,
};
use std::sync::Arc;

/// A number for each auxiliary loss of routers: its coefficient (0: none), or its value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Auxiliary {
    /// Tokens spread over experts (Switch Transformer).
    pub experts: f64,
    /// Tokens spread over the groups of experts on one device (DeepSeek-V2's device-level loss).
    pub devices: f64,
    /// Tokens that reach a group of experts, however many of its experts they take (DeepSeek-V2's communication loss).
    pub communication: f64,
    /// Small logits (z-loss).
    pub z: f64,
}

impl Auxiliary {
    /// All four.
    pub fn each(&self) -> [f64; 4] {
        [self.experts, self.devices, self.communication, self.z]
    }

    /// The four, in the order of [`Auxiliary::each`].
    pub fn of([experts, devices, communication, z]: [f64; 4]) -> Self {
        Self { experts, devices, communication, z }
    }

    /// Whether there is any loss.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// The auxiliary losses of a router.
#[derive(Clone, Copy)]
pub struct Balance<'a> {
    /// Which.
    pub coefficients: Auxiliary,
    /// Factor of their gradient: what the main loss is scaled by.
    pub grad_scale: f64,
    /// The group of each token `[T]`; each group has its own loss, and the mean is taken; empty: one group.
    pub group_of: &'a [u32],
    /// Number of groups.
    pub groups: usize,
    /// Added to the experts' scores before they are normalised.
    pub bias: Option<&'a Tensor>,
    /// Scores that are not a softmax are not normalised (Megatron 0.12, for one expert a token).
    pub undivided: bool,
    /// The ranks whose tokens these groups share; `None`: this one has all of them.
    pub ranks: Option<&'a dyn TokenGroup>,
    /// Which copies count; `None`: all picked ones, whether or not experts drop them.
    pub taken: Option<ExpertCapacity<'a>>,
    /// With one group: every expert counts as having this many copies, because it is padded to that number.
    pub filled: Option<usize>,
}

impl Balance<'_> {
    /// The load-balancing loss over all tokens of a micro-batch on one rank.
    pub fn whole(coeff: f64, grad_scale: f64) -> Self {
        let coefficients = Auxiliary { experts: coeff, ..Auxiliary::default() };
        Self {
            coefficients,
            grad_scale,
            group_of: &[],
            groups: 1,
            bias: None,
            undivided: false,
            ranks: None,
            taken: None,
            filled: None,
        }
    }
}

/// The ranks that share the tokens of a micro-batch, as seen by its auxiliary loss.
pub trait TokenGroup {
    /// The sums over the ranks.
    ///
    /// # Errors
    /// If a rank fails.
    fn sum(&self, counts: Vec<i64>) -> Result<Vec<i64>>;
    /// The sums over the ranks, of real numbers.
    ///
    /// # Errors
    /// If a rank fails.
    fn sum_reals(&self, values: Vec<f64>) -> Result<Vec<f64>>;
}

/// What a router decides.
pub struct Routed {
    /// Weights `[T,K]`, f32 or f64.
    pub weights: Var,
    /// Where each copy goes.
    pub routes: Arc<Routes>,
    /// Where the router's own picks would go, which determine its losses and its load.
    pub picked: Arc<Routes>,
    /// The requested auxiliary losses, with their coefficients; if ranks share tokens, this rank's partial sums.
    pub balance: Option<Auxiliary>,
}

struct Route {
    logits: Saved,
    experts: Tensor,
    router: Router,
    balance: Option<(ExpertLoad, f64)>,
}
op!(Route, "route", light nonlinear, |op, cx, dy| {
    let logits = op.logits.get(cx.device)?;
    let mut d = cx.device.route_backward(&dy, &op.experts, &logits, &op.router)?;
    if let Some((load, grad_scale)) = op.balance {
        cx.device.balance(Some(&mut d), &logits, &load, &op.router, grad_scale)?;
    }
    Ok(vec![Some(d)])
});

/// Experts and weights for tokens with router logits `[T,E]`, f32 or f64. Saves logits and picks.
///
/// `bias[E]` affects only the choice and has no gradient. The auxiliary loss enters through its gradient at the logits, not
/// through the main loss, as in upstream.
///
/// # Errors
/// If shapes or element types do not fit, or the router cannot pick that many experts.
pub fn route(
    g: &mut Graph,
    logits: &Var,
    bias: Option<&Tensor>,
    router: &Router,
    balance: Option<Balance<'_>>,
) -> Result<Routed> {
    let (experts, weights) = g.device().route(logits.value(), bias, router)?;
    routed(g, logits, (experts, weights), None, router, balance)
}

/// Experts that tokens go to instead of those that were picked.
pub struct RoutingOverride<'a> {
    /// Which, `[T,K]` i32.
    pub experts: &'a Tensor,
    /// Picks made by other means than scores, `[T,K]` i32; `None`: by scores.
    pub picked: Option<Tensor>,
    /// An expert has the weight that the router gives it, 0 if it was not picked, and the experts of a token are all
    /// different; otherwise it has the weight of the pick that it replaces.
    pub by_expert: bool,
}

/// [`route`], with the picks' weights assigned to other experts. [`Routed::weights`] are in the order of the picks.
///
/// # Errors
/// As [`route`], and if an expert does not exist.
pub fn route_with_override(
    g: &mut Graph,
    logits: &Var,
    bias: Option<&Tensor>,
    instead: RoutingOverride<'_>,
    router: &Router,
    balance: Option<Balance<'_>>,
) -> Result<Routed> {
    let device = g.device().clone();
    let (picked, weights) = match instead.picked {
        Some(picked) => {
            let weights = device.weigh(&picked, logits.value(), router)?;
            (picked, weights)
        }
        None => device.route(logits.value(), bias, router)?,
    };
    if !instead.by_expert || picked.is_meta() {
        return routed(g, logits, (picked, weights), Some(instead.experts), router, balance);
    }
    let own = picked.ready()?.as_slice::<i32>()?;
    let given = instead.experts.ready()?.as_slice::<i32>()?;
    let (mut experts, mut kept) = (Vec::with_capacity(given.len()), Vec::with_capacity(given.len()));
    let k = router.top_k.max(1);
    for (own, given) in own.chunks_exact(k).zip(given.chunks_exact(k)) {
        let mut others = given.iter().filter(|e| !own.contains(e));
        for pick in own {
            let known = given.contains(pick);
            experts.push(if known { *pick } else { others.next().copied().unwrap_or(*pick) });
            kept.push(f64::from(u8::from(known)));
        }
    }
    let experts = Tensor::from_slice(device.arena(), picked.shape(), &experts)?;
    let routed = routed(g, logits, (picked, weights), Some(&experts), router, balance)?;
    Ok(Routed { weights: keep(g, &routed.weights, &kept)?, ..routed })
}

/// [`route`] to `experts[T,K]` i32 that were chosen by other means, for example by a table.
///
/// # Errors
/// As [`route`], and if an expert does not exist.
pub fn route_to(
    g: &mut Graph,
    logits: &Var,
    experts: Tensor,
    router: &Router,
    balance: Option<Balance<'_>>,
) -> Result<Routed> {
    let weights = g.device().weigh(&experts, logits.value(), router)?;
    routed(g, logits, (experts, weights), None, router, balance)
}

/// The weights of each expert's scores in the auxiliary losses over the tokens of all ranks.
///
/// For a group of `N` tokens with `K` experts each, `f_e = E · count_e / (N K)`; every loss is a sum of such shares with mean
/// scores `P_e`: `Σ_e f_e P_e` for experts, `Σ_d (mean f of d) · Σ_{e in d} P_e` for the `M` devices `d`, `keep` of which are
/// open to a token, and `Σ_d M / keep · (share of tokens that reach d) · Σ_{e in d} P_e` for communication.
///
/// # Source
/// DeepSeek-V2, arXiv:2405.04434, eqs. 23-31; MindSpeed-LLM v2.0.0, `mindspeed_llm/core/transformer/moe/router.py`,
/// `group_limited_greedy_topKgating`. Copies with a 0 in `kept`, if given, are not counted (Megatron-LM `core_v0.12.1`,
/// `megatron/core/transformer/moe/router.py`, `seq_aux_loss_load_balancing`).
fn loads(b: &Balance<'_>, experts: &[i32], kept: &[f64], router: &Router, count: usize) -> Result<Loads> {
    let of_token = |t: usize| b.group_of.get(t).map_or(0, |&g| g as usize);
    let groups = b.groups.max(1);
    let (devices, keep) = router.groups.map_or((1, 1), |(groups, keep, _)| (groups.max(1), keep.max(1)));
    let per_device = (count / devices).max(1);
    // For each group, the counts by expert, by device that is reached and, last, its tokens.
    let width = count + devices + 1;
    let mut counts = vec![0i64; groups * width];
    let mut reached = vec![false; devices];
    for (t, picks) in experts.chunks_exact(router.top_k.max(1)).enumerate() {
        let row = &mut counts[of_token(t) * width..][..width];
        reached.fill(false);
        for (j, &e) in picks.iter().enumerate() {
            if kept.get(t * router.top_k + j) == Some(&0.0) {
                continue;
            }
            row[e as usize] += 1;
            reached[(e as usize / per_device).min(devices - 1)] = true;
        }
        row[count..].iter_mut().zip(&reached).for_each(|(n, &r)| *n += i64::from(r));
        row[width - 1] += 1;
    }
    if let Some(filled) = b.filled.filter(|_| groups == 1) {
        counts[..count].fill(filled as i64);
    }
    if let Some(ranks) = b.ranks {
        counts = ranks.sum(counts)?;
    }
    let all: i64 = counts.chunks_exact(width).map(|row| row[width - 1]).sum();
    let mut weights = [(); 3].map(|()| Vec::with_capacity(groups * count));
    for row in counts.chunks_exact(width) {
        let tokens = row[width - 1].max(1) as f64;
        let share = |n: i64| n as f64 * count as f64 / (tokens * router.top_k as f64);
        // A mean score is a sum over tokens divided by them, and a loss counts as one of those of all groups.
        let mean = 1.0 / (tokens * groups as f64);
        for e in 0..count {
            let device = (e / per_device).min(devices - 1);
            let of_device: i64 = row[device * per_device..][..per_device].iter().sum();
            let reach = row[count + device] as f64 / tokens * devices as f64 / keep as f64;
            weights[0].push(share(row[e]) * mean);
            weights[1].push(share(of_device) / per_device as f64 * mean);
            weights[2].push(reach * mean);
        }
    }
    let load = ExpertLoad {
        group_of: b.group_of.to_vec(),
        groups,
        bias: b.bias.map(|bias| bias.ready()?.to_reals()).transpose()?.unwrap_or_default(),
        undivided: b.undivided,
        ..ExpertLoad::default()
    };
    Ok(Loads { weights, load, mean: 1.0 / all.max(1) as f64 })
}

/// The weights of the scores in each auxiliary loss without its coefficient.
struct Loads {
    weights: [Vec<f64>; 3],
    load: ExpertLoad,
    /// One divided by the number of all tokens.
    mean: f64,
}

impl Loads {
    /// The weights in the sum of the losses with these coefficients.
    fn with(&self, c: Auxiliary) -> ExpertLoad {
        let [experts, devices, communication] = &self.weights;
        let each = experts.iter().zip(devices).zip(communication);
        let weights = each.map(|((e, d), m)| c.experts * e + c.devices * d + c.communication * m).collect();
        ExpertLoad { weights, z: c.z * self.mean, ..self.load.clone() }
    }

    /// Each loss by itself.
    fn losses(&self, device: &Device, logits: &Tensor, router: &Router, c: Auxiliary) -> Result<Auxiliary> {
        let none = Auxiliary::default();
        let loss = |alone: Auxiliary| {
            if alone.any() { device.balance(None, logits, &self.with(alone), router, 1.0) } else { Ok(0.0) }
        };
        Ok(Auxiliary {
            experts: loss(Auxiliary { experts: c.experts, ..none })?,
            devices: loss(Auxiliary { devices: c.devices, ..none })?,
            communication: loss(Auxiliary { communication: c.communication, ..none })?,
            z: loss(Auxiliary { z: c.z, ..none })?,
        })
    }
}

/// Weights of the experts `weighed`, assigned to the experts `taken` if these differ.
fn routed(
    g: &mut Graph,
    logits: &Var,
    (weighed, weights): (Tensor, Tensor),
    taken: Option<&Tensor>,
    router: &Router,
    balance: Option<Balance<'_>>,
) -> Result<Routed> {
    let device = g.device().clone();
    let count = logits.value().as_matrix().1;
    let picks = weighed.ready()?.as_slice::<i32>()?;
    let sizes = [picks.len(), router.top_k, count];
    let picked = device.routes("picked", sizes, &mut || Ok(Routes::new(picks, router.top_k, count)?))?;
    let routes = match taken {
        Some(taken) => {
            let taken = taken.ready()?.as_slice::<i32>()?;
            device.routes("taken", sizes, &mut || Ok(Routes::new(taken, router.top_k, count)?))?
        }
        None => picked.clone(),
    };
    let mut loss = None;
    let balance = match balance {
        Some(b) => {
            let of_values = |taken: ExpertCapacity<'_>| {
                Ok::<_, crate::Error>(taken.of(&weights.ready()?.to_reals()?, router.top_k, &routes))
            };
            let kept = b.taken.map(of_values).transpose()?.map_or_else(Vec::new, |(kept, _)| kept);
            let loads = loads(&b, picks, &kept, router, count)?;
            loss = Some(loads.losses(&device, logits.value(), router, b.coefficients)?);
            Some((loads.with(b.coefficients), b.grad_scale))
        }
        None => None,
    };
    let op = || -> Box<dyn Op> {
        Box::new(Route { logits: logits.saved(), experts: weighed.clone(), router: *router, balance })
    };
    let weights = g.apply(weights, &[logits], op);
    Ok(Routed { weights, routes, picked, balance: loss })
}

struct Keep {
    kept: Tensor,
}
op!(Keep, "keep_copies", light nonlinear, |op, cx, dy| Ok(vec![Some(cx.device.multiply(&dy, &op.kept)?)]));

/// The weights `[T,K]` of copies with a 1 in `kept`; the others, with a 0, have weight 0.
fn keep(g: &mut Graph, weights: &Var, kept: &[f64]) -> Result<Var> {
    let (device, value) = (g.device().clone(), weights.value());
    let kept = Tensor::from_reals(device.arena(), value.dtype(), value.shape(), kept)?;
    let out = device.multiply(value, &kept)?;
    Ok(g.apply(out, &[weights], || Box::new(Keep { kept })))
}

/// Which copies of tokens an expert drops if it has too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropPolicy {
    /// Those with the smallest weights.
    Weights,
    /// The last ones, in the order of places ([`ExpertCapacity::places`]).
    Position,
}

/// Which copies of tokens experts take.
#[derive(Clone, Copy, Debug)]
pub struct ExpertCapacity<'a> {
    /// At most this many each.
    pub capacity: usize,
    /// The share of each token, `[T]`, each with its own capacity; empty: all are one share.
    pub share_of: &'a [u32],
    /// Which ones are dropped.
    pub policy: DropPolicy,
    /// The place of each token, `[T]`, in the order used by [`DropPolicy::Position`]; empty: their order in the batch.
    pub places: &'a [u32],
}

impl ExpertCapacity<'_> {
    /// How many shares of the tokens there are.
    pub fn shares(&self) -> usize {
        self.share_of.iter().max().map_or(1, |last| *last as usize + 1)
    }

    /// For each copy (`width` per token, with weights `values`), 1, or 0 if it is dropped; and the number of dropped copies
    /// of each expert.
    fn of(&self, values: &[f64], width: usize, routes: &Routes) -> (Vec<f64>, Vec<u64>) {
        let experts = routes.starts.len() - 1;
        let (mut kept, mut dropped) = (vec![1.0; values.len()], vec![0; experts]);
        for (expert, dropped) in dropped.iter_mut().enumerate() {
            // In the order of tokens.
            let mut copies: Vec<u32> = routes.copies[routes.range(expert)].to_vec();
            if copies.len() <= self.capacity {
                continue;
            }
            match self.policy {
                DropPolicy::Weights => {
                    copies.sort_by(|a, b| values[*b as usize].total_cmp(&values[*a as usize]));
                }
                DropPolicy::Position => copies.sort_by_key(|copy| {
                    let token = *copy as usize / width.max(1);
                    self.places.get(token).copied().unwrap_or(token as u32)
                }),
            }
            let mut taken = std::collections::BTreeMap::new();
            for copy in copies {
                let share = self.share_of.get(copy as usize / width.max(1)).copied().unwrap_or(0);
                let taken = taken.entry(share).or_insert(0);
                *taken += 1;
                if *taken > self.capacity {
                    kept[copy as usize] = 0.0;
                    *dropped += 1;
                }
            }
        }
        (kept, dropped)
    }
}

/// The router weights `[T,K]` after dropping copies: dropped copies have weight 0, the others keep theirs. Also returns the
/// number of dropped copies of each expert `[E]`. Saves one number per weight.
///
/// # Errors
/// If shapes do not fit.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/core/transformer/moe/moe_utils.py`, `topk_softmax_with_capacity`.
pub fn drop_tokens(
    g: &mut Graph,
    weights: &Var,
    routes: &Routes,
    taken: ExpertCapacity<'_>,
) -> Result<(Var, Vec<u64>)> {
    let (values, width) = (weights.value().ready()?.to_reals()?, weights.value().as_matrix().1);
    let (kept, dropped) = taken.of(&values, width, routes);
    Ok((keep(g, weights, &kept)?, dropped))
}

struct Dispatch(Arc<Routes>);
op!(Dispatch, "dispatch", light additive, |op, cx, dy| Ok(vec![Some(cx.device.dispatch_backward(&dy, &op.0)?)]));

/// A row of `x[T,H]` for every copy of a token, sorted by expert: `[T·K,H]`. Saves the routes.
///
/// # Errors
/// If shapes do not fit.
pub fn dispatch(g: &mut Graph, x: &Var, routes: &Arc<Routes>) -> Result<Var> {
    let y = g.device().dispatch(x.value(), routes)?;
    Ok(g.apply(y, &[x], || Box::new(Dispatch(routes.clone()))))
}

struct Restore(Arc<Routes>);
op!(Restore, "restore", light additive, |op, cx, dy| Ok(vec![Some(cx.device.dispatch(&dy, &op.0)?)]));

/// The rows of `y[R,H]` in their order before [`dispatch`] with routes of one copy per row. Saves the routes.
///
/// # Errors
/// If shapes do not fit.
pub fn restore(g: &mut Graph, y: &Var, routes: &Arc<Routes>) -> Result<Var> {
    let x = g.device().dispatch_backward(y.value(), routes)?;
    Ok(g.apply(x, &[y], || Box::new(Restore(routes.clone()))))
}

struct Combine {
    x: Saved,
    weights: Saved,
    routes: Arc<Routes>,
}
op!(Combine, "combine", expert_combine, |op, cx, dy| {
    let (x, weights) = (op.x.get(cx.device)?, op.weights.get(cx.device)?);
    let (dx, dw) = cx.device.combine_backward(&dy, &x, &weights, &op.routes)?;
    Ok(vec![Some(dx), Some(dw)])
});

/// The weighted sum of each token's rows: `[T,H]`. Saves rows and weights.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn combine(g: &mut Graph, x: &Var, weights: &Var, routes: &Arc<Routes>) -> Result<Var> {
    let y = g.device().combine(x.value(), weights.value(), routes)?;
    Ok(g.apply(y, &[x, weights], || {
        Box::new(Combine { x: x.saved(), weights: weights.saved(), routes: routes.clone() })
    }))
}

struct ExpertLinear {
    x: Saved,
    w: Saved,
    bias: Option<TensorSpec>,
    routes: Arc<Routes>,
}
op!(ExpertLinear, "expert_linear", expert_linear_layer, |op, cx, dy| {
    let ExpertLinear { x, w, bias, routes } = op;
    let w = w.get(cx.device)?;
    let dx = cx.device.expert_linear_dx(&dy, &w, &routes)?;
    let db = match bias {
        Some(b) => {
            let (dy, routes) = (dy.clone(), routes.clone());
            cx.weight_gradient(2, b, move |device, grad| device.expert_linear_db(grad, &dy, &routes))?
        }
        None => None,
    };
    let x = x.get(cx.device)?;
    let dw =
        cx.weight_gradient(1, &w, move |device, grad| device.expert_linear_dw(grad, &dy, &x, &routes))?;
    Ok(vec![Some(dx), dw, db])
});

/// Each expert's rows of `x[R,K]` through its matrix of `w[E,N,K]`, plus its row of `bias[E,N]`: `[R,N]`. Saves `x` and `w`.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn expert_linear(
    g: &mut Graph,
    x: &Var,
    w: &Var,
    bias: Option<&Var>,
    routes: &Arc<Routes>,
) -> Result<Var> {
    let y = g.device().expert_linear(x.value(), w.value(), bias.map(Var::value), routes)?;
    let none = g.constant(y.clone());
    let inputs = [x, w, bias.unwrap_or(&none)];
    Ok(g.apply(y, &inputs, || {
        Box::new(ExpertLinear {
            x: x.saved(),
            w: w.saved(),
            bias: bias.map(|b| b.value().into()),
            routes: routes.clone(),
        })
    }))
}
