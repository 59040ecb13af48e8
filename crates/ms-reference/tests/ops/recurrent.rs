//! Operations that carry a state along documents.

use crate::heads::documents;
use crate::{Case, case};
use ms_core::ops;
use ms_core::{Activation, DeltaRule, Mamba3Shape, StateSpace, TurnedPairs};

/// Mamba-3's scan with weights of single inputs alone, or of two a head.
fn mamba3(ranks: usize, pairs: TurnedPairs) -> Case {
    let shape = Mamba3Shape { heads: 2, head_dim: 3, state: 4, ranks, angles: 2, pairs, rate_floor: 0.5 };
    let weights: [(&'static [usize], f32, f32); 7] = [
        (&[2], 0.5, 0.0),
        (if ranks == 1 { &[2 * 4] } else { &[2 * 2 * 4] }, 0.5, 1.0),
        (if ranks == 1 { &[2 * 4] } else { &[2 * 2 * 4] }, 0.5, 1.0),
        (&[2], 0.5, 1.0),
        (&[2 * 2 * 3], 0.5, 1.0),
        (&[2 * 2 * 3], 0.5, 1.0),
        (&[2 * 2 * 3], 0.5, 1.0),
    ];
    let x: &'static [usize] = if ranks == 1 { &[8, 28] } else { &[8, 36] };
    let given = if ranks == 1 { 4 } else { 7 };
    case("mamba3", x, &weights[..given], move |g, w, x| {
        let inputs = ops::split(g, x, [6, 6, 4 * ranks, 4 * ranks, 2, 2, 2, 2])?;
        let by_rank = (ranks > 1).then(|| [&w[4], &w[5], &w[6]]);
        let single = [&w[0], &w[1], &w[2], &w[3]];
        ops::mamba3(g, inputs.each_ref(), single, by_rank, None, &documents(), &shape)
    })
}

pub(crate) fn cases() -> Vec<Case> {
    let state_space =
        StateSpace { heads: 2, head_dim: 3, groups: 1, state: 4, step_limit: (0.0, f64::INFINITY) };
    let delta_rule = DeltaRule { key_heads: 1, value_heads: 2, key_dim: 3, value_dim: 4 };
    let of_scan: [(&'static [usize], f32, f32); 3] = [(&[2], 0.3, 0.0), (&[2], 0.5, 1.0), (&[2], 0.3, 0.0)];
    vec![
        case("convolution", &[8, 3], &[(&[3, 1, 4], 0.5, 0.0), (&[3], 0.5, 0.0)], |g, w, x| {
            ops::convolution(g, x, &w[0], Some(&w[1]), None, &documents())
        }),
        case("state_space", &[8, 16], &of_scan, move |g, w, x| {
            let [x, b, c, dt] = ops::split(g, x, [6, 4, 4, 2])?;
            let inputs = [&x, &b, &c, &dt];
            ops::state_space(g, inputs, [&w[0], &w[1], &w[2]], None, &documents(), &state_space)
        }),
        case("delta_rule decay", &[8, 18], &[(&[2], 0.3, 0.0), (&[2], 0.3, 0.0)], move |g, w, x| {
            let [q, k, v, a, b] = ops::split(g, x, [3, 3, 8, 2, 2])?;
            let decay = ops::decay(g, &a, &w[0], &w[1])?;
            let beta = ops::activation(g, &b, Activation::Sigmoid, false)?;
            ops::delta_rule(g, [&q, &k, &v, &decay, &beta], None, &documents(), &delta_rule)
        }),
        mamba3(1, TurnedPairs::Neighbours),
        mamba3(2, TurnedPairs::Halves),
    ]
}
