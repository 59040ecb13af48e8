//! Recurrent mixers: the short convolution, and the scans that follow it.

mod delta_rule;
mod mamba3;
mod state_space;

use crate::Reference;
use crate::operand::{expect, optional, reals};
use crate::tape::{Real, gradient};
use mamba3::Memory;
use ms_core::{DeltaRule, Error, Mamba3Shape, RecurrentBackend, Result, Segment, StateSpace, Tensor};
use state_space::Scan;

/// Checks that documents cover the tokens in order, without gap.
fn covered(segments: &[Segment], tokens: usize) -> Result<()> {
    let mut end = 0;
    for s in segments {
        if s.q_start != end {
            return Err(Error::Range { what: "documents in a row", start: s.q_start, end, len: tokens });
        }
        end += s.q_len;
    }
    if end == tokens { Ok(()) } else { Err(Error::Range { what: "documents", start: 0, end, len: tokens }) }
}

/// Taps before a token's own.
fn behind(w: &Tensor, channels: usize) -> usize {
    (w.numel() / channels.max(1)).saturating_sub(1)
}

/// `y[t,c] = silu(b[c] + Σ_k w[c,k] · x[t−W+1+k,c])` over the tokens of a document, and before it those of
/// `history[S,W−1,C]`.
fn convolution<R: Real>(
    x: &[R],
    w: &[R],
    b: &[R],
    history: Option<&[R]>,
    segments: &[Segment],
    channels: usize,
) -> Vec<R> {
    let taps = w.len() / channels.max(1);
    let mut y = Vec::with_capacity(x.len());
    for (document, s) in segments.iter().enumerate() {
        // Row `i` of the document, counted from `taps − 1` rows before it.
        let row = |i: usize, c: usize| match i.checked_sub(taps - 1) {
            Some(t) => x[(s.q_start + t) * channels + c],
            None => history.map_or(R::from(0.0), |h| h[(document * (taps - 1) + i) * channels + c]),
        };
        for (t, c) in (0..s.q_len).flat_map(|t| (0..channels).map(move |c| (t, c))) {
            let start = b.get(c).copied().unwrap_or(R::from(0.0));
            let sum = (0..taps).fold(start, |sum, k| sum + w[c * taps + k] * row(t + k, c));
            y.push(sum * sum.sigmoid());
        }
    }
    y
}

/// The last `W − 1` inputs of each document, those of the history included.
fn last_inputs(x: &[f64], history: &[f64], segments: &[Segment], channels: usize, behind: usize) -> Vec<f64> {
    let mut out = Vec::with_capacity(history.len());
    for (document, s) in segments.iter().enumerate() {
        let before = &history[document * behind * channels..][..behind * channels];
        let all = [before, &x[s.q_start * channels..(s.q_start + s.q_len) * channels]].concat();
        out.extend_from_slice(&all[all.len() - behind * channels..]);
    }
    out
}

/// Runs `work` on what is remembered, and puts back what it becomes.
fn remembering(
    memory: Option<&mut Tensor>,
    work: impl FnOnce(Option<&mut [f64]>) -> Vec<f64>,
) -> Result<Vec<f64>> {
    Ok(match memory {
        Some(memory) => work(Some(memory.as_mut_slice::<f64>()?)),
        None => work(None),
    })
}

impl Reference {
    fn give_all<const N: usize>(&self, like: [&Tensor; N], values: &[Vec<f64>; N]) -> Result<[Tensor; N]> {
        let all: Vec<Tensor> =
            like.iter().zip(values).map(|(like, v)| self.give_as(like, v)).collect::<Result<_>>()?;
        Ok(all.try_into().expect("as many as there were"))
    }
}

/// The elements of several operands.
fn each<const N: usize>(tensors: [&Tensor; N]) -> Result<[&[f64]; N]> {
    let mut slices = [&[] as &[f64]; N];
    for (slice, t) in slices.iter_mut().zip(tensors) {
        *slice = reals(t)?;
    }
    Ok(slices)
}

impl RecurrentBackend for Reference {
    fn convolution(
        &self,
        x: &Tensor,
        w: &Tensor,
        b: Option<&Tensor>,
        history: Option<&mut Tensor>,
        segments: &[Segment],
    ) -> Result<Tensor> {
        let (tokens, channels) = x.as_matrix();
        covered(segments, tokens)?;
        let (inputs, w_, b) = (reals(x)?, reals(w)?, optional(b)?.unwrap_or(&[]));
        let y = remembering(history, |mut history| {
            let y = convolution(inputs, w_, b, history.as_deref(), segments, channels);
            if let Some(history) = &mut history {
                let last = last_inputs(inputs, history, segments, channels, behind(w, channels));
                history.copy_from_slice(&last);
            }
            y
        })?;
        self.give_as(x, &y)
    }

    fn convolution_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        b: Option<&Tensor>,
        segments: &[Segment],
    ) -> Result<[Tensor; 3]> {
        let channels = x.as_matrix().1;
        let bias = optional(b)?.unwrap_or(&[]);
        let [dx, dw, db] = gradient([reals(x)?, reals(w)?, bias], reals(dy)?, |[x, w, b]| {
            convolution(x, w, b, None, segments, channels)
        });
        Ok([self.give_as(x, &dx)?, self.give_as(w, &dw)?, self.give(&[db.len()], &db)?])
    }

    fn state_space(
        &self,
        inputs: [&Tensor; 4],
        weights: [&Tensor; 3],
        states: Option<&mut Tensor>,
        segments: &[Segment],
        shape: &StateSpace,
    ) -> Result<Tensor> {
        covered(segments, inputs[0].as_matrix().0)?;
        let scan = Scan { inputs: each(inputs)?, weights: each(weights)?, segments, shape: *shape };
        let y = remembering(states, |states| state_space::scan(&scan, states))?;
        self.give_as(inputs[0], &y)
    }

    fn state_space_backward(
        &self,
        dy: &Tensor,
        inputs: [&Tensor; 4],
        weights: [&Tensor; 3],
        segments: &[Segment],
        shape: &StateSpace,
    ) -> Result<([Tensor; 4], [Tensor; 3])> {
        let ([x, b, c, dt], [a, d, bias]) = (each(inputs)?, each(weights)?);
        let [x, b, c, dt, a, d, bias] =
            gradient([x, b, c, dt, a, d, bias], reals(dy)?, |[x, b, c, dt, a, d, bias]| {
                let (inputs, weights) = ([x, b, c, dt], [a, d, bias]);
                state_space::scan(&Scan { inputs, weights, segments, shape: *shape }, None)
            });
        Ok((self.give_all(inputs, &[x, b, c, dt])?, self.give_all(weights, &[a, d, bias])?))
    }

    fn mamba3(
        &self,
        operands: [&Tensor; 15],
        memory: Option<[&mut Tensor; 2]>,
        segments: &[Segment],
        shape: &Mamba3Shape,
    ) -> Result<Tensor> {
        covered(segments, operands[0].as_matrix().0)?;
        let values = each(operands)?;
        let y = match memory {
            Some([last, states]) => {
                let memory = Memory { last: last.as_mut_slice()?, states: states.as_mut_slice()? };
                mamba3::scan(values, segments, shape, Some(memory))
            }
            None => mamba3::scan(values, segments, shape, None),
        };
        self.give_as(operands[0], &y)
    }

    fn mamba3_backward(
        &self,
        dy: &Tensor,
        operands: [&Tensor; 15],
        segments: &[Segment],
        shape: &Mamba3Shape,
    ) -> Result<[Tensor; 15]> {
        let grads = gradient(each(operands)?, reals(dy)?, |all| mamba3::scan(all, segments, shape, None));
        self.give_all(operands, &grads)
    }

    fn delta_rule(
        &self,
        inputs: [&Tensor; 5],
        states: Option<&mut Tensor>,
        segments: &[Segment],
        shape: &DeltaRule,
    ) -> Result<Tensor> {
        covered(segments, inputs[0].as_matrix().0)?;
        let values = each(inputs)?;
        let y = remembering(states, |states| delta_rule::scan(values, segments, shape, states))?;
        self.give_as(inputs[2], &y)
    }

    fn delta_rule_backward(
        &self,
        dy: &Tensor,
        inputs: [&Tensor; 5],
        segments: &[Segment],
        shape: &DeltaRule,
    ) -> Result<[Tensor; 5]> {
        let grads = gradient(each(inputs)?, reals(dy)?, |all| delta_rule::scan(all, segments, shape, None));
        self.give_all(inputs, &grads)
    }

    fn decay(&self, a: &Tensor, a_log: &Tensor, dt_bias: &Tensor) -> Result<Tensor> {
        expect("decay", "a_log", a_log, &[a.as_matrix().1])?;
        self.give_as(a, &delta_rule::decay(reals(a)?, reals(a_log)?, reals(dt_bias)?))
    }

    fn decay_backward(
        &self,
        dy: &Tensor,
        a: &Tensor,
        a_log: &Tensor,
        dt_bias: &Tensor,
    ) -> Result<[Tensor; 3]> {
        let operands = [a, a_log, dt_bias];
        let grads =
            gradient(each(operands)?, reals(dy)?, |[a, a_log, bias]| delta_rule::decay(a, a_log, bias));
        self.give_all(operands, &grads)
    }
}
