//! Recurrent mixers.

use crate::bench::{Bench, Case};
use ms_core::{DeltaRule, Mamba3Shape, Result, Segment, StateSpace, Tensor, TurnedPairs};

const TOKENS: usize = 9;

fn convolution(b: &mut Bench<'_>) -> Result<Vec<Tensor>> {
    let (x, w, bias, dy) = (b.wide(&[TOKENS, 5]), b.wide(&[5, 1, 4]), b.wide(&[5]), b.wide(&[TOKENS, 5]));
    let (mut history, segments) = (b.wide(&[2, 3 * 5]), b.documents(TOKENS));
    let bias = (b.draw != 0).then_some(&bias);
    let grads = b.device.convolution_backward(&dy, &x, &w, bias, &segments)?;
    let y = b.device.convolution(&x, &w, bias, None, &segments)?;
    let after = b.device.convolution(&x, &w, bias, Some(&mut history), &segments)?;
    Ok([vec![y, after, history], grads.to_vec()].concat())
}

fn state_space(b: &mut Bench<'_>) -> Result<Vec<Tensor>> {
    let shape = StateSpace {
        heads: 4,
        head_dim: 3,
        groups: 2,
        state: 5,
        step_limit: if b.draw == 1 { (0.5, 1.0) } else { (0.0, f64::INFINITY) },
    };
    let inputs = [b.wide(&[TOKENS, 12]), b.wide(&[TOKENS, 10]), b.wide(&[TOKENS, 10]), b.wide(&[TOKENS, 4])];
    let weights = [b.wide(&[4]), b.wide(&[4]), b.wide(&[4])];
    let (dy, mut states, segments) = (b.wide(&[TOKENS, 12]), b.wide(&[2, 4 * 3 * 5]), b.documents(TOKENS));
    let (x, w) = (inputs.each_ref(), weights.each_ref());
    let y = b.device.state_space(x, w, None, &segments, &shape)?;
    let after = b.device.state_space(x, w, Some(&mut states), &segments, &shape)?;
    let (by_inputs, by_weights) = b.device.state_space_backward(&dy, x, w, &segments, &shape)?;
    Ok([vec![y, after, states], by_inputs.to_vec(), by_weights.to_vec()].concat())
}

fn mamba3(b: &mut Bench<'_>) -> Result<Vec<Tensor>> {
    let ranks = if b.draw == 0 { 1 } else { 2 };
    let pairs = if b.draw == 1 { TurnedPairs::Halves } else { TurnedPairs::Neighbours };
    let shape = Mamba3Shape { heads: 2, head_dim: 3, state: 4, ranks, angles: 2, pairs, rate_floor: 0.5 };
    let (n, p, s, a) = (2, 3, 4, 2);
    let by_rank = if ranks == 1 { 0 } else { n * ranks * p };
    let (x, bc, one, bias) = ([TOKENS, n * p], [TOKENS, ranks * s], [TOKENS, n], n * ranks * s);
    let operands = [
        b.wide(&x),
        b.wide(&x),
        b.wide(&bc),
        b.wide(&bc),
        b.wide(&one),
        b.wide(&one),
        b.wide(&one),
        b.wide(&[TOKENS, a]),
        b.wide(&[n]),
        b.wide(&[bias]),
        b.wide(&[bias]),
        b.wide(&[n]),
        b.wide(&[by_rank]),
        b.wide(&[by_rank]),
        b.wide(&[by_rank]),
    ];
    let (dy, segments) = (b.wide(&x), b.documents(TOKENS));
    let (mut last, mut states) = (b.wide(&[2, n * shape.last()]), b.wide(&[2, n * p * s]));
    let all = operands.each_ref();
    let y = b.device.mamba3(all, None, &segments, &shape)?;
    let after = b.device.mamba3(all, Some([&mut last, &mut states]), &segments, &shape)?;
    let grads = b.device.mamba3_backward(&dy, all, &segments, &shape)?;
    // Angles are kept as they are here and brought under a whole turn there: what they do shows in what follows.
    let next = b.device.mamba3(all, Some([&mut last, &mut states]), &segments, &shape)?;
    Ok([vec![y, after, states, next], grads.to_vec()].concat())
}

fn delta_rule(b: &mut Bench<'_>) -> Result<Vec<Tensor>> {
    let shape = DeltaRule { key_heads: 2, value_heads: 4, key_dim: 3, value_dim: 5 };
    let (a, a_log, bias) = (b.wide(&[TOKENS, 4]), b.wide(&[4]), b.wide(&[4]));
    let g = b.device.decay(&a, &a_log, &bias)?;
    let inputs =
        [b.wide(&[TOKENS, 6]), b.wide(&[TOKENS, 6]), b.wide(&[TOKENS, 20]), g.clone(), b.wide(&[TOKENS, 4])];
    let (dy, mut states, dg) = (b.wide(&[TOKENS, 20]), b.wide(&[2, 4 * 3 * 5]), b.wide(&[TOKENS, 4]));
    let segments: Vec<Segment> = b.documents(TOKENS);
    let y = b.device.delta_rule(inputs.each_ref(), None, &segments, &shape)?;
    let after = b.device.delta_rule(inputs.each_ref(), Some(&mut states), &segments, &shape)?;
    let grads = b.device.delta_rule_backward(&dy, inputs.each_ref(), &segments, &shape)?;
    let decays = b.device.decay_backward(&dg, &a, &a_log, &bias)?;
    Ok([vec![g, y, after, states], grads.to_vec(), decays.to_vec()].concat())
}

pub(crate) const CASES: &[Case] = &[
    ("convolution convolution_backward", convolution),
    ("state_space state_space_backward", state_space),
    ("mamba3 mamba3_backward", mamba3),
    ("delta_rule delta_rule_backward decay decay_backward", delta_rule),
];
