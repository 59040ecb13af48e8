//! Routers and experts.

use crate::{Case, Made, case};
use ms_core::ops::{self, Auxiliary, Balance, DropPolicy, ExpertCapacity, RoutingOverride};
use ms_core::{GroupScore, Router, RouterScore, Routes, Tensor};
use std::sync::Arc;

fn router(score: RouterScore) -> Router {
    Router { score, top_k: 2, groups: None, normalise: true, scale: 1.5 }
}

/// From the router to the sum over experts.
fn mixture(router: Router) -> Case {
    let weights: [(&'static [usize], f32, f32); 4] =
        [(&[4, 6], 0.9, 0.0), (&[4, 10, 6], 0.4, 0.0), (&[4, 6, 5], 0.4, 0.0), (&[4, 6], 0.4, 0.0)];
    case("route dispatch expert_linear combine", &[5, 6], &weights, move |g, w, x| {
        let logits = ops::linear(g, x, &w[0], None)?;
        let routed = ops::route(g, &logits, None, &router, None)?;
        let rows = ops::dispatch(g, x, &routed.routes)?;
        let inner = ops::expert_linear(g, &rows, &w[1], None, &routed.routes)?;
        let inner = ops::swiglu(g, &inner)?;
        let out = ops::expert_linear(g, &inner, &w[2], Some(&w[3]), &routed.routes)?;
        ops::combine(g, &out, &routed.weights, &routed.routes)
    })
}

/// The auxiliary losses are not in the output: their gradients enter at the logits.
fn balanced(router: Router, coefficients: Auxiliary, by_sequence: bool) -> Case {
    case("route", &[6, 4], &[], move |g, _, x| {
        let (group_of, groups): (&[u32], _) = if by_sequence { (&[0, 0, 0, 1, 1, 1], 2) } else { (&[], 1) };
        let balance = Balance { coefficients, group_of, groups, ..Balance::whole(0.0, 1.0) };
        let routed = ops::route(g, x, None, &router, Some(balance))?;
        let losses = routed.balance.expect("losses were asked for");
        Ok(Made { y: routed.weights, beside: losses.each().iter().sum() })
    })
}

fn capacity(policy: DropPolicy) -> Case {
    case("drop_tokens route", &[6, 3], &[], move |g, _, x| {
        let routed = ops::route(g, x, None, &router(RouterScore::Softmax), None)?;
        let taken = ExpertCapacity { capacity: 3, share_of: &[], policy, places: &[] };
        let (weights, dropped) = ops::drop_tokens(g, &routed.weights, &routed.routes, taken)?;
        assert!(dropped.iter().sum::<u64>() > 0);
        Ok(weights)
    })
}

pub(crate) fn cases() -> Vec<Case> {
    let limited = Router { groups: Some((2, 1, GroupScore::Best(2))), ..router(RouterScore::Sigmoid) };
    let plain = router(RouterScore::Softmax);
    let devices = Router { groups: Some((2, 1, GroupScore::Best(1))), ..plain };
    let all = Auxiliary { experts: 0.3, devices: 0.2, communication: 0.4, z: 0.1 };
    let two = Auxiliary { experts: 0.3, z: 0.1, ..Auxiliary::default() };
    vec![
        mixture(plain),
        mixture(limited),
        mixture(router(RouterScore::SparseMixer { jitter: 0.1 })),
        balanced(plain, two, false),
        balanced(plain, two, true),
        balanced(devices, all, false),
        case("route_to", &[4, 3], &[], |g, _, x| {
            let experts = Tensor::from_slice(g.device().arena(), [4, 2], &[0i32, 2, 1, 0, 2, 1, 1, 2])?;
            Ok(ops::route_to(g, x, experts, &router(RouterScore::SqrtSoftplus), None)?.weights)
        }),
        // Weights of the router's picks go to other experts.
        case("route_with_override", &[4, 3], &[(&[3, 3], 0.6, 0.0), (&[3, 3, 3], 0.6, 0.0)], |g, w, x| {
            let experts = Tensor::from_slice(g.device().arena(), [4, 2], &[0i32, 2, 1, 0, 2, 1, 1, 2])?;
            let logits = ops::linear(g, x, &w[0], None)?;
            let router = router(RouterScore::Sigmoid);
            let instead = RoutingOverride { experts: &experts, picked: None, by_expert: false };
            let routed = ops::route_with_override(g, &logits, None, instead, &router, None)?;
            let rows = ops::dispatch(g, x, &routed.routes)?;
            let rows = ops::expert_linear(g, &rows, &w[1], None, &routed.routes)?;
            ops::combine(g, &rows, &routed.weights, &routed.routes)
        }),
        // Of the experts in place of others those weigh that were picked, too.
        case("route_with_override", &[4, 3], &[(&[3, 3], 0.6, 0.0), (&[3, 3, 3], 0.6, 0.0)], |g, w, x| {
            let experts = Tensor::from_slice(g.device().arena(), [4, 2], &[0i32, 2, 1, 0, 2, 1, 1, 2])?;
            let picked = Tensor::from_slice(g.device().arena(), [4, 2], &[1i32, 2, 0, 1, 0, 1, 2, 0])?;
            let logits = ops::linear(g, x, &w[0], None)?;
            let router = router(RouterScore::Sigmoid);
            let instead = RoutingOverride { experts: &experts, picked: Some(picked), by_expert: true };
            let routed = ops::route_with_override(g, &logits, None, instead, &router, None)?;
            let rows = ops::dispatch(g, x, &routed.routes)?;
            let rows = ops::expert_linear(g, &rows, &w[1], None, &routed.routes)?;
            ops::combine(g, &rows, &routed.weights, &routed.routes)
        }),
        capacity(DropPolicy::Weights),
        capacity(DropPolicy::Position),
        // Rows in another order and back, and back alone.
        case("restore dispatch scale_columns", &[4, 3], &[(&[3], 0.5, 1.0)], |g, w, x| {
            let routes = Arc::new(Routes::new(&[2, 0, 3, 1], 1, 4)?);
            let rows = ops::dispatch(g, x, &routes)?;
            let rows = ops::scale_columns(g, &rows, &w[0])?;
            let there = ops::restore(g, &rows, &routes)?;
            let other = ops::restore(g, x, &routes)?;
            ops::add(g, &there, &other)
        }),
    ]
}
