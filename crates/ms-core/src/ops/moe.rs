//! Mixtures of experts: routing, moving tokens, the experts' linear layers.

use super::layout::op;
use super::only;
use crate::{BackwardCx, Graph, Op, Result, Router, Routes, Tensor, Var};
use std::sync::Arc;

/// The auxiliary loss that spreads tokens over experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// Its coefficient.
    pub coeff: f32,
    /// Factor of its gradient: what the main loss is scaled by.
    pub grad_scale: f32,
}

/// What a router decides.
pub struct Routed {
    /// Weights `[T,K]` f32.
    pub weights: Var,
    /// Where each copy goes.
    pub routes: Arc<Routes>,
    /// The auxiliary loss, if one is asked for.
    pub balance: Option<f32>,
}

struct Route {
    logits: Tensor,
    experts: Tensor,
    router: Router,
    balance: Option<Balance>,
}
op!(Route, "route", |op, cx, dy| {
    let mut d = cx.device.route_backward(&dy, &op.experts, &op.logits, &op.router)?;
    if let Some(Balance { coeff, grad_scale }) = op.balance {
        cx.device.balance(Some(&mut d), &op.logits, &op.experts, &op.router, coeff, grad_scale)?;
    }
    Ok(vec![Some(d)])
});

/// Experts and weights for tokens with router logits `[T,E]` f32. Keeps logits and picks.
///
/// `bias[E]` f32 takes part in the choice alone and has no gradient. The auxiliary loss enters by its gradient at
/// the logits, not by the main loss, as upstream has it.
///
/// # Errors
/// If shapes or element types do not fit, or the router cannot pick that many experts.
pub fn route(
    g: &mut Graph,
    logits: &Var,
    bias: Option<&Tensor>,
    router: &Router,
    balance: Option<Balance>,
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
    balance: Option<Balance>,
) -> Result<Routed> {
    let weights = g.device().weigh(&experts, logits.value(), router)?;
    routed(g, logits, (experts, weights), router, balance)
}

fn routed(
    g: &mut Graph,
    logits: &Var,
    (experts, weights): (Tensor, Tensor),
    router: &Router,
    balance: Option<Balance>,
) -> Result<Routed> {
    let device = g.device().clone();
    let count = logits.value().as_matrix().1;
    let routes = Arc::new(Routes::new(experts.as_slice::<i32>()?, router.top_k, count)?);
    let loss = balance
        .map(|b| device.balance(None, logits.value(), &experts, router, b.coeff, b.grad_scale))
        .transpose()?;
    let op = || -> Box<dyn Op> {
        Box::new(Route { logits: logits.value().clone(), experts: experts.clone(), router: *router, balance })
    };
    let weights = g.apply(weights, &[logits], op);
    Ok(Routed { weights, routes, balance: loss })
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
