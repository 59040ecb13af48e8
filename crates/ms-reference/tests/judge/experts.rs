//! Mixtures of experts, and hyper-connections.

use crate::bench::{Bench, Case};
use ms_core::{ExpertLoad, GroupScore, Mixing, Result, Router, RouterScore, Routes, Tensor};

const EXPERTS: usize = 8;
const TOKENS: usize = 11;

fn routers() -> [Router; 8] {
    let plain = Router { score: RouterScore::Softmax, top_k: 2, groups: None, normalise: false, scale: 1.0 };
    [
        plain,
        Router {
            score: RouterScore::Sigmoid,
            top_k: 3,
            groups: Some((4, 2, GroupScore::Best(2))),
            normalise: true,
            scale: 2.5,
        },
        Router { score: RouterScore::Softmax, top_k: 3, groups: Some((4, 2, GroupScore::Best(1))), ..plain },
        Router { top_k: 4, groups: Some((2, 2, GroupScore::Alike)), ..plain },
        Router { top_k: 3, groups: Some((2, 1, GroupScore::Best(3))), ..plain },
        Router { top_k: 3, groups: Some((4, 2, GroupScore::BestLogits(2))), normalise: true, ..plain },
        Router { score: RouterScore::SqrtSoftplus, normalise: true, ..plain },
        Router { score: RouterScore::SparseMixer { jitter: 0.4 }, ..plain },
    ]
}

/// Copies of tokens, two each; one expert gets none.
fn routes(b: &mut Bench<'_>) -> Routes {
    let picks: Vec<i32> = (0..TOKENS)
        .flat_map(|_| {
            let first = b.below(EXPERTS - 1);
            [first, (first + 1 + b.below(EXPERTS - 3)) % (EXPERTS - 1)]
        })
        .map(|e| e as i32)
        .collect();
    // In one draw of three a rank takes the copies of the last experts alone.
    let there = |&e: &i32| (e as usize).checked_sub(EXPERTS - 4);
    match b.draw {
        2 => Routes::taking(&picks.iter().map(there).collect::<Vec<_>>(), 2, EXPERTS).unwrap(),
        _ => Routes::new(&picks, 2, EXPERTS).unwrap(),
    }
}

fn route(b: &mut Bench<'_>) -> Result<Vec<Tensor>> {
    let mut all = Vec::new();
    for router in routers() {
        let (logits, dw, bias) =
            (b.wide(&[TOKENS, EXPERTS]), b.wide(&[TOKENS, router.top_k]), b.wide(&[EXPERTS]).to_reals()?);
        let bias = b.given(&[EXPERTS], &bias.iter().map(|b| 0.1 * b).collect::<Vec<_>>());
        let biased = matches!(router.score, RouterScore::Sigmoid | RouterScore::SqrtSoftplus);
        let (experts, weights) = b.device.route(&logits, biased.then_some(&bias), &router)?;
        let d = b.device.route_backward(&dw, &experts, &logits, &router)?;
        if !matches!(router.score, RouterScore::SparseMixer { .. }) {
            all.push(b.device.weigh(&experts, &logits, &router)?);
        }
        let by_group = b.draw == 1;
        let group_of = if by_group { (0..TOKENS as u32).map(|t| t / 6).collect() } else { Vec::new() };
        let groups = if by_group { 2 } else { 1 };
        let by_load = (0..EXPERTS * groups).map(|i| 0.01 * (i * 7 % 5) as f64).collect();
        let normalised = !matches!(router.score, RouterScore::Softmax | RouterScore::SparseMixer { .. });
        let bias = if normalised && b.draw == 2 { vec![0.03; EXPERTS] } else { Vec::new() };
        let (z, undivided) = (0.002 * b.draw as f64, by_group);
        let load = ExpertLoad { weights: by_load, group_of, groups, bias, undivided, z };
        let mut along = b.wide(&[TOKENS, EXPERTS]);
        let loss = b.device.balance(Some(&mut along), &logits, &load, &router, 0.5)?;
        all.extend([experts, weights, d, along, b.given(&[1], &[loss])]);
    }
    Ok(all)
}

fn mixing(b: &Bench<'_>) -> Mixing {
    Mixing { streams: 4, rounds: (b.draw > 0).then_some(b.draw as usize * 2), eps: 1e-6 }
}

pub(crate) const CASES: &[Case] = &[
    ("route weigh route_backward balance", route),
    ("dispatch dispatch_backward combine combine_backward", |b| {
        let (routes, x, dy) = (routes(b), b.x(&[TOKENS, 6]), b.x(&[TOKENS, 6]));
        let (rows, w) = (b.x(&[routes.copies.len(), 6]), b.wide(&[TOKENS, 2]));
        let (dx, dw) = b.device.combine_backward(&dy, &rows, &w, &routes)?;
        let (out, back) = (b.device.dispatch(&x, &routes)?, b.device.dispatch_backward(&rows, &routes)?);
        Ok(vec![out, back, b.device.combine(&rows, &w, &routes)?, dx, dw])
    }),
    ("expert_linear expert_linear_dx expert_linear_dw expert_linear_db", |b| {
        let routes = routes(b);
        let rows = routes.copies.len();
        let (x, w) = (b.x(&[rows, 6]), b.x(&[EXPERTS, 5, 6]));
        let (bias, dy) = (b.x(&[EXPERTS, 5]), b.x(&[rows, 5]));
        let (mut dw, mut db) = (b.wide(&[EXPERTS, 5, 6]), b.wide(&[EXPERTS, 5]));
        b.device.expert_linear_dw(dw.whole_mut()?, &dy, &x, &routes)?;
        b.device.expert_linear_db(db.whole_mut()?, &dy, &routes)?;
        let y = b.device.expert_linear(&x, &w, Some(&bias), &routes)?;
        Ok(vec![
            y,
            b.device.expert_linear(&x, &w, None, &routes)?,
            b.device.expert_linear_dx(&dy, &w, &routes)?,
            dw,
            db,
        ])
    }),
    ("stream_weights stream_weights_backward", |b| {
        let mixing = mixing(b);
        let c = mixing.width();
        let (mixes, base, scale, dw) =
            (b.wide(&[5, c]), b.wide(&[c]), b.wide(&[mixing.scales()]), b.wide(&[5, c]));
        let (dmixes, dfixed) = b.device.stream_weights_backward(&dw, &mixes, &base, &scale, &mixing)?;
        Ok(vec![b.device.stream_weights(&mixes, &base, &scale, &mixing)?, dmixes, dfixed])
    }),
    ("collapse collapse_backward", |b| {
        let mixing = mixing(b);
        let (x, w, dy) = (b.x(&[5, 24]), b.wide(&[5, mixing.width()]), b.x(&[5, 6]));
        let (dx, dw) = b.device.collapse_backward(&dy, &x, &w, &mixing)?;
        Ok(vec![b.device.collapse(&x, &w, &mixing)?, dx, dw])
    }),
    ("expand expand_backward", |b| {
        let mixing = Mixing { rounds: Some(3), ..mixing(b) };
        let (x, y, w, dout) = (b.x(&[5, 24]), b.x(&[5, 6]), b.wide(&[5, mixing.width()]), b.x(&[5, 24]));
        let grads = b.device.expand_backward(&dout, &x, &y, &w, &mixing)?;
        Ok([vec![b.device.expand(&x, &y, &w, &mixing)?], grads.to_vec()].concat())
    }),
];
