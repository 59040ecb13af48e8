//! Losses by margins and by targets, and distances of all pairs.

use super::Row;
use super::decomposition::distance;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::Values;

/// Divergence `t·(log t − x)`, of logarithms `eᵗ·(t − x)`: its gradient by the target.
fn by_target(k: &Call) -> Outcome {
    let (x, t) = (k.t("self")?, k.t("target")?);
    let dims = k.t("gradTarget")?.dims.clone();
    let (g, x) = (k.spread(k.t("gradOutput")?, &dims)?.floats(), k.spread(x, &dims)?.floats());
    let (t, log) = (k.spread(t, &dims)?.floats(), k.flag("logTarget")?);
    let scale = if k.int("reduction")? == 1 { 1.0 / g.len().max(1) as f64 } else { 1.0 };
    let one = |i: usize| {
        let slope = if log {
            t[i].exp() * (t[i] + 1.0 - x[i])
        } else if t[i] > 0.0 {
            t[i].ln() + 1.0 - x[i]
        } else {
            0.0
        };
        g[i] * slope * scale
    };
    k.put("gradTarget", &Values::F((0..g.len()).map(one).collect()))
}

/// Σ over targets t and all others i of max(0, 1 − (x[t] − x[i])), by the number of classes; a list of targets ends at -1.
fn multilabel(k: &Call) -> Outcome {
    let (x, target) = (k.f("self")?, k.load("target")?.ints());
    let n = *k.t("self")?.dims.last().unwrap_or(&1) as usize;
    let (mut losses, mut marks) = (Vec::new(), vec![0.0; x.len()]);
    for ((x, t), mark) in x.chunks(n.max(1)).zip(target.chunks(n.max(1))).zip(marks.chunks_mut(n.max(1))) {
        let targets: Vec<usize> = t.iter().take_while(|t| **t >= 0).map(|t| *t as usize).collect();
        targets.iter().for_each(|t| mark[*t] = 1.0);
        let others = (0..n).filter(|i| mark[*i] == 0.0);
        let terms = others.flat_map(|i| targets.iter().map(move |t| (1.0 - (x[*t] - x[i])).max(0.0)));
        losses.push(terms.sum::<f64>() / n as f64);
    }
    k.put("isTarget", &Values::F(marks))?;
    let sum: f64 = losses.iter().sum();
    let out = match k.int("reduction")? {
        0 => losses,
        1 => vec![sum / losses.len().max(1) as f64],
        _ => vec![sum],
    };
    k.put("out", &Values::F(out))
}

/// Distances of rows i < j, in the order of i.
fn all_pairs(k: &Call, p: f64) -> Outcome {
    let [m, n] = k.t("self")?.dims[..] else { return Err(Fault::from("self is no matrix")) };
    let (m, n, x) = (m as usize, n as usize, k.f("self")?);
    let one = |(i, j): (usize, usize)| distance((0..n).map(|c| x[i * n + c] - x[j * n + c]), p);
    k.put("out", &Values::F((0..m).flat_map(|i| (i + 1..m).map(move |j| (i, j))).map(one).collect()))
}

pub(super) static OPS: &[Row] = &[
    ("KlDivTargetBackward", "self:FD target:FD", by_target),
    ("MultilabelMarginLoss", "self:FD target:L out(isTarget)", multilabel),
    ("Pdist", "self:FD rank(self,2)", |k| all_pairs(k, k.num("p")?)),
    ("PdistForward", "self:FD rank(self,2)", |k| all_pairs(k, k.scalar("pScalar")?.value.f(0))),
];
