//! Mixtures of experts: routing, moving tokens, the experts' linear layers.

use super::layout::op;
use super::only;
use crate::{BackwardCx, ExpertLoad, Graph, Op, Result, Router, Routes, Tensor, Var};
use std::sync::Arc;

/// The auxiliary loss that spreads tokens over experts.
#[derive(Clone, Copy)]
pub struct Balance<'a> {
    /// Its coefficient.
    pub coeff: f64,
    /// Factor of its gradient: what the main loss is scaled by.
    pub grad_scale: f64,
    /// The group of each token `[T]`, each with a loss of its own, of which the mean is taken; empty: one group.
    pub group_of: &'a [u32],
    /// Number of groups.
    pub groups: usize,
    /// The ranks whose tokens these groups share; `None`: this one has all of them.
    pub ranks: Option<&'a dyn TokenGroup>,
}

impl Balance<'_> {
    /// The loss over all tokens of a micro-batch that one rank has.
    pub fn whole(coeff: f64, grad_scale: f64) -> Self {
        Self { coeff, grad_scale, group_of: &[], groups: 1, ranks: None }
    }
}

/// The ranks that share the tokens of a micro-batch, as its auxiliary loss sees them.
pub trait TokenGroup {
    /// The sums over the ranks.
    ///
    /// # Errors
    /// If a rank fails.
    fn sum(&self, counts: Vec<i64>) -> Result<Vec<i64>>;
}

/// What a router decides.
pub struct Routed {
    /// Weights `[T,K]`, f32 or f64.
    pub weights: Var,
    /// Where each copy goes.
    pub routes: Arc<Routes>,
    /// The auxiliary loss, if one is asked for; of tokens that ranks share this rank's summand.
    pub balance: Option<f64>,
}

struct Route {
    logits: Tensor,
    experts: Tensor,
    router: Router,
    balance: Option<(ExpertLoad, f64)>,
}
op!(Route, "route", |op, cx, dy| {
    let mut d = cx.device.route_backward(&dy, &op.experts, &op.logits, &op.router)?;
    if let Some((load, grad_scale)) = op.balance {
        cx.device.balance(Some(&mut d), &op.logits, &load, &op.router, grad_scale)?;
    }
    Ok(vec![Some(d)])
});

/// Experts and weights for tokens with router logits `[T,E]`, f32 or f64. Keeps logits and picks.
///
/// `bias[E]` takes part in the choice alone and has no gradient. The auxiliary loss enters by its gradient at
/// the logits, not by the main loss, as upstream has it.
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
    routed(g, logits, (experts, weights), router, balance)
}

/// [`route`] to `experts[T,K]` i32 that were chosen otherwise, by a table for instance.
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
    routed(g, logits, (experts, weights), router, balance)
}

/// Counts and factors of an auxiliary loss over the tokens of all its ranks.
fn load(b: &Balance<'_>, experts: &[i32], top_k: usize, count: usize) -> Result<ExpertLoad> {
    let group = |t: usize| b.group_of.get(t).map_or(0, |&g| g as usize);
    let groups = b.groups.max(1);
    // Of each group the counts by expert and, last, its tokens.
    let mut counts = vec![0i64; groups * (count + 1)];
    for (t, picks) in experts.chunks_exact(top_k.max(1)).enumerate() {
        let row = &mut counts[group(t) * (count + 1)..][..=count];
        picks.iter().for_each(|&e| row[e as usize] += 1);
        row[count] += 1;
    }
    if let Some(ranks) = b.ranks {
        counts = ranks.sum(counts)?;
    }
    let mut load =
        ExpertLoad { counts: Vec::new(), group_of: b.group_of.to_vec(), factors: Vec::with_capacity(groups) };
    for row in counts.chunks_exact(count + 1) {
        let tokens = row[count].max(1) as f64;
        let factor = b.coeff * count as f64 / (tokens * tokens * top_k as f64 * groups as f64);
        load.counts.extend(row[..count].iter().map(|&n| n as u32));
        load.factors.push(factor as f32);
    }
    Ok(load)
}

fn routed(
    g: &mut Graph,
    logits: &Var,
    (experts, weights): (Tensor, Tensor),
    router: &Router,
    balance: Option<Balance<'_>>,
) -> Result<Routed> {
    let device = g.device().clone();
    let count = logits.value().as_matrix().1;
    let picks = experts.as_slice::<i32>()?;
    let routes = Arc::new(Routes::new(picks, router.top_k, count)?);
    let balance = balance
        .map(|b| Ok::<_, crate::Error>((load(&b, picks, router.top_k, count)?, b.grad_scale)))
        .transpose()?;
    let loss = balance
        .as_ref()
        .map(|(load, scale)| device.balance(None, logits.value(), load, router, *scale))
        .transpose()?;
    let op = || -> Box<dyn Op> {
        Box::new(Route { logits: logits.value().clone(), experts: experts.clone(), router: *router, balance })
    };
    let weights = g.apply(weights, &[logits], op);
    Ok(Routed { weights, routes, balance: loss })
}

struct BeyondCapacity {
    kept: Tensor,
}
op!(BeyondCapacity, "drop_beyond_capacity", |op, cx, dy| Ok(vec![Some(cx.device.multiply(&dy, &op.kept)?)]));

/// Which copies of tokens an expert that has too many does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropPolicy {
    /// Those with the smallest weights.
    Weights,
    /// The last ones.
    Position,
}

/// The weights `[T,K]` of a router whose experts take at most `capacity` copies each: those beyond weigh 0, the others what
/// they did. Returns them with the number of dropped copies. Keeps a number for each weight.
///
/// # Errors
/// If shapes do not fit.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/core/transformer/moe/moe_utils.py`, `topk_softmax_with_capacity`.
pub fn drop_beyond(
    g: &mut Graph,
    weights: &Var,
    routes: &Routes,
    capacity: usize,
    policy: DropPolicy,
) -> Result<(Var, usize)> {
    let device = g.device().clone();
    let values = weights.value().to_reals()?;
    let mut kept = vec![1.0; values.len()];
    let mut dropped = 0;
    for expert in 0..routes.starts.len() - 1 {
        // In the order of tokens.
        let mut copies: Vec<u32> = routes.copies[routes.range(expert)].to_vec();
        if copies.len() <= capacity {
            continue;
        }
        if policy == DropPolicy::Weights {
            copies.sort_by(|a, b| values[*b as usize].total_cmp(&values[*a as usize]));
        }
        for &copy in &copies[capacity..] {
            kept[copy as usize] = 0.0;
            dropped += 1;
        }
    }
    let value = weights.value();
    let kept = Tensor::from_reals(device.arena(), value.dtype(), value.shape(), &kept)?;
    let out = device.multiply(weights.value(), &kept)?;
    Ok((g.apply(out, &[weights], || Box::new(BeyondCapacity { kept })), dropped))
}

struct Dispatch(Arc<Routes>);
op!(Dispatch, "dispatch", |op, cx, dy| Ok(vec![Some(cx.device.dispatch_backward(&dy, &op.0)?)]));

/// A row of `x[T,H]` for every copy of a token, sorted by expert: `[T·K,H]`. Keeps the routes.
///
/// # Errors
/// If shapes do not fit.
pub fn dispatch(g: &mut Graph, x: &Var, routes: &Arc<Routes>) -> Result<Var> {
    let y = g.device().dispatch(x.value(), routes)?;
    Ok(g.apply(y, &[x], || Box::new(Dispatch(routes.clone()))))
}

struct Restore(Arc<Routes>);
op!(Restore, "restore", |op, cx, dy| Ok(vec![Some(cx.device.dispatch(&dy, &op.0)?)]));

/// The rows of `y[R,H]` in the order that they had before [`dispatch`] with routes of one copy a row. Keeps the routes.
///
/// # Errors
/// If shapes do not fit.
pub fn restore(g: &mut Graph, y: &Var, routes: &Arc<Routes>) -> Result<Var> {
    let x = g.device().dispatch_backward(y.value(), routes)?;
    Ok(g.apply(x, &[y], || Box::new(Restore(routes.clone()))))
}

struct Combine {
    x: Tensor,
    weights: Tensor,
    routes: Arc<Routes>,
}
op!(Combine, "combine", |op, cx, dy| {
    let (dx, dw) = cx.device.combine_backward(&dy, &op.x, &op.weights, &op.routes)?;
    Ok(vec![Some(dx), Some(dw)])
});

/// The weighted sum of each token's rows: `[T,H]`. Keeps rows and weights.
///
/// # Errors
/// If shapes or element types do not fit.
pub fn combine(g: &mut Graph, x: &Var, weights: &Var, routes: &Arc<Routes>) -> Result<Var> {
    let y = g.device().combine(x.value(), weights.value(), routes)?;
    Ok(g.apply(y, &[x, weights], || {
        Box::new(Combine { x: x.value().clone(), weights: weights.value().clone(), routes: routes.clone() })
    }))
}

struct ExpertLinear {
    x: Tensor,
    w: Tensor,
    bias: Option<Tensor>,
    routes: Arc<Routes>,
}
op!(ExpertLinear, "expert_linear", |op, cx, dy| {
    let ExpertLinear { x, w, bias, routes } = op;
    let dx = cx.device.expert_linear_dx(&dy, &w, &routes)?;
    let db = match bias {
        Some(b) => {
            let (dy, routes) = (dy.clone(), routes.clone());
            cx.weight_gradient(2, &b, move |device, grad| device.expert_linear_db(grad, &dy, &routes))?
        }
        None => None,
    };
    let dw =
        cx.weight_gradient(1, &w, move |device, grad| device.expert_linear_dw(grad, &dy, &x, &routes))?;
    Ok(vec![Some(dx), dw, db])
});

/// Each expert's rows of `x[R,K]` through its matrix of `w[E,N,K]`, plus its row of `bias[E,N]`: `[R,N]`. Keeps `x`
/// and `w`.
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
            x: x.value().clone(),
            w: w.value().clone(),
            bias: bias.map(|b| b.value().clone()),
            routes: routes.clone(),
        })
    }))
}
