//! Softmax and losses.

use super::{Bench, Check, FLOATS, gradient};
use crate::ops::CrossEntropyOptions;
use crate::{Result, ops};
use ms_core::DType;

fn log_softmax(x: &[f64], n: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for row in x.chunks(n) {
        let sum: f64 = row.iter().map(|v| v.exp()).sum();
        out.extend(row.iter().map(|v| v - sum.ln()));
    }
    out
}

fn softmax(x: &[f64], n: usize) -> Vec<f64> {
    log_softmax(x, n).iter().map(|v| v.exp()).collect()
}

fn softmaxes(b: &mut Bench<'_>) -> Result<()> {
    let (m, n) = (b.size.rows, b.size.columns);
    let (x, dy) = (b.random(&[m, n])?, b.random(&[m, n])?);
    let (y, dx) = (b.empty(&[m, n])?, b.empty(&[m, n])?);
    ops::softmax(b.stream, x.view()?, -1, y.view()?)?;
    b.near("softmax", &y, &softmax(&x.v, n))?;
    let (grad_output, output, out) = (dy.view()?, y.view()?, dx.view()?);
    ops::SoftmaxBackward { grad_output, output, dim: -1, out }.run(b.stream)?;
    b.near("its gradient", &dx, &gradient(|x| softmax(x, n), &x.v, &dy.v))?;
    ops::log_softmax(b.stream, x.view()?, 1, y.view()?)?;
    b.near("log softmax", &y, &log_softmax(&x.v, n))?;
    let (grad_output, output, out) = (dy.view()?, y.view()?, dx.view()?);
    ops::LogSoftmaxBackward { grad_output, output, dim: 1, out }.run(b.stream)?;
    b.near("its gradient", &dx, &gradient(|x| log_softmax(x, n), &x.v, &dy.v))
}

/// Every third row is ignored.
fn targets(b: &Bench<'_>) -> (Vec<f64>, f64) {
    let (m, n) = (b.size.rows, b.size.columns);
    let of = |r: usize| if r % 3 == 2 { -100.0 } else { ((r * 5 + 1) % n) as f64 };
    let list: Vec<f64> = (0..m).map(of).collect();
    let counted = list.iter().filter(|t| **t >= 0.0).count();
    (list, counted as f64)
}

/// The mean over rows that count.
fn mean_loss(log: &[f64], target: &[f64], n: usize, counted: f64) -> Vec<f64> {
    let rows = target.iter().enumerate().filter(|(_, t)| **t >= 0.0);
    vec![-rows.map(|(r, t)| log[r * n + *t as usize]).sum::<f64>() / counted]
}

fn cross_entropy(b: &mut Bench<'_>) -> Result<()> {
    let (m, n) = (b.size.rows, b.size.columns);
    let x = b.random(&[m, n])?;
    let (list, counted) = targets(b);
    let target = b.give_as(DType::I64, &[m], &list)?;
    let (loss, log) = (b.empty(&[1])?, b.empty(&[m, n])?);
    // Outputs of the z-loss are reserved: they must be there, and are empty.
    let (z, lse) = (b.empty_as(DType::F32, &[0])?, b.empty_as(DType::F32, &[0])?);
    ops::CrossEntropyLoss {
        input: x.view()?,
        target: target.view()?,
        options: CrossEntropyOptions::default(),
        return_zloss: false,
        loss: loss.view()?,
        log_prob: log.view()?,
        zloss: Some(z.view()?),
        lse_for_zloss: Some(lse.view()?),
    }
    .run(b.stream)?;
    b.near("log probabilities", &log, &log_softmax(&x.v, n))?;
    let f = |x: &[f64]| mean_loss(&log_softmax(x, n), &list, n, counted);
    b.near("loss", &loss, &f(&x.v))?;
    let (dloss, dx) = (b.give(&[1], &[0.5])?, b.empty(&[m, n])?);
    ops::CrossEntropyLossGrad {
        grad_loss: dloss.view()?,
        log_prob: log.view()?,
        target: target.view()?,
        options: CrossEntropyOptions::default(),
        grad_zloss: None,
        lse_for_zloss: None,
        out: dx.view()?,
    }
    .run(b.stream)?;
    b.near("its gradient", &dx, &gradient(f, &x.v, &[0.5]))
}

fn nll(b: &mut Bench<'_>) -> Result<()> {
    let (m, n) = (b.size.rows, b.size.columns);
    let values = b.noise(m * n);
    let x = b.give(&[m, n], &log_softmax(&values, n))?;
    let (list, counted) = targets(b);
    let (target, weight) = (b.give_as(DType::I64, &[m], &list)?, b.give(&[n], &vec![1.0; n])?);
    let (loss, total) = (b.empty(&[1])?, b.empty(&[1])?);
    ops::NLLLoss {
        x: x.view()?,
        target: target.view()?,
        weight: weight.view()?,
        reduction: 1,
        ignore_index: -100,
        out: loss.view()?,
        total_weight: total.view()?,
    }
    .run(b.stream)?;
    let f = |x: &[f64]| mean_loss(x, &list, n, counted);
    b.near("loss", &loss, &f(&x.v))?;
    b.near("weights", &total, &[counted])?;
    let (dloss, dx) = (b.give(&[1], &[2.0])?, b.empty(&[m, n])?);
    ops::NLLLossBackward {
        grad_output: dloss.view()?,
        x: x.view()?,
        target: target.view()?,
        weight: weight.view()?,
        reduction: 1,
        ignore_index: -100,
        total_weight: total.view()?,
        out: dx.view()?,
    }
    .run(b.stream)?;
    b.near("its gradient", &dx, &gradient(f, &x.v, &[2.0]))
}

pub(super) const CHECKS: &[Check] = &[
    Check::of(
        &["aclnnSoftmax", "aclnnSoftmaxBackward", "aclnnLogSoftmax", "aclnnLogSoftmaxBackward"],
        FLOATS,
        softmaxes,
    ),
    Check::of(&["aclnnCrossEntropyLoss", "aclnnCrossEntropyLossGrad"], FLOATS, cross_entropy),
    Check::of(&["aclnnNLLLoss", "aclnnNLLLossBackward"], &[DType::F32, DType::Bf16], nll),
];
