//! Norms, softmax, losses.

use super::Row;
use super::reduce::rows;
use super::special as sp;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Values, View};

fn softmax_row(k: &Call, row: &[f64]) -> Vec<f64> {
    let m = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Vec<f64> = row.iter().map(|v| (v - m).exp()).collect();
    let s = k.sum(e.iter().copied());
    e.into_iter().map(|v| v / s).collect()
}

fn log_softmax_row(k: &Call, row: &[f64]) -> Vec<f64> {
    let m = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let s = k.sum(row.iter().map(|v| (v - m).exp())).ln() + m;
    row.iter().map(|v| v - s).collect()
}

fn by_row(k: &Call, input: &View, out: &View, dim: i64, f: impl Fn(&Call, &[f64]) -> Vec<f64>) -> Outcome {
    let (moved, n) = rows(input, &[dim])?;
    let (to, _) = rows(out, &[dim])?;
    let x = moved.load(k.decl.name)?.floats();
    k.put_view(&to, &Values::F(x.chunks(n.max(1)).flat_map(|row| f(k, row)).collect()))
}

/// dx of (dy, y) by rows.
fn by_row_grad(k: &Call, f: impl Fn(&Call, &[f64], &[f64]) -> Vec<f64>) -> Outcome {
    let dim = k.int("dim")?;
    let (g, n) = rows(k.t("gradOutput")?, &[dim])?;
    let (y, _) = rows(k.t("output")?, &[dim])?;
    let (to, _) = rows(k.t("out")?, &[dim])?;
    let (g, y) = (g.load(k.decl.name)?.floats(), y.load(k.decl.name)?.floats());
    let n = n.max(1);
    k.put_view(&to, &Values::F(g.chunks(n).zip(y.chunks(n)).flat_map(|(g, y)| f(k, g, y)).collect()))
}

fn dot(k: &Call, a: &[f64], b: &[f64]) -> f64 {
    k.sum(a.iter().zip(b).map(|(a, b)| a * b))
}

fn softmax_grad(k: &Call, g: &[f64], y: &[f64]) -> Vec<f64> {
    let d = dot(k, g, y);
    g.iter().zip(y).map(|(g, y)| y * (g - d)).collect()
}

fn masked_softmax(k: &Call) -> Outcome {
    let x = k.t("x")?;
    let scale = k.num("scale")?;
    let v = x.load(k.decl.name)?.floats();
    let mask = k.spread(k.t("mask")?, &x.dims)?;
    let n = *x.dims.last().unwrap_or(&1) as usize;
    let mut y = Vec::new();
    for (r, row) in v.chunks(n.max(1)).enumerate() {
        let kept: Vec<f64> =
            (0..n).map(|i| if mask.b(r * n + i) { -10_000.0 } else { row[i] * scale }).collect();
        y.extend(softmax_row(k, &kept));
    }
    k.put("y", &Values::F(y))
}

fn masked_softmax_grad(k: &Call) -> Outcome {
    let y = k.t("y")?;
    let scale = k.num("scale")?;
    let n = *y.dims.last().unwrap_or(&1) as usize;
    let (g, v) = (k.f("gradOutput")?, y.load(k.decl.name)?.floats());
    let mask = k.spread(k.t("mask")?, &y.dims)?;
    let mut dx: Vec<f64> =
        g.chunks(n.max(1)).zip(v.chunks(n.max(1))).flat_map(|(g, y)| softmax_grad(k, g, y)).collect();
    for (i, d) in dx.iter_mut().enumerate() {
        *d = if mask.b(i) { 0.0 } else { *d * scale };
    }
    k.put("out", &Values::F(dx))
}

/// y = x / sqrt(mean(x²) + ε) · γ over the trailing dimensions of γ; rstd in f32.
pub(super) fn rms(k: &Call, x: &[f64], gamma: &[f64], eps: f64, shift: f64) -> (Vec<f64>, Vec<f64>) {
    let n = gamma.len();
    let mut y = Vec::with_capacity(x.len());
    let mut rstd = Vec::new();
    for row in x.chunks(n.max(1)) {
        let r = f64::from((1.0 / (k.sum(row.iter().map(|v| v * v)) / n as f64 + eps).sqrt()) as f32);
        y.extend(row.iter().zip(gamma).map(|(v, g)| v * r * (g + shift)));
        rstd.push(r);
    }
    (y, rstd)
}

fn rms_norm(k: &Call, shift: f64) -> Outcome {
    let (y, rstd) = rms(k, &k.f("x")?, &k.f("gamma")?, k.num("epsilon")?, shift);
    k.put("yOut", &Values::F(y))?;
    k.put("rstdOut", &Values::F(rstd))
}

fn add_rms_norm(k: &Call) -> Outcome {
    let (a, b) = (k.f("x1|x1Ref")?, k.f("x2|x2Ref")?);
    let dtype = k.t("x1|x1Ref")?.dtype;
    let x: Vec<f64> =
        a.iter().zip(&b).map(|(a, b)| super::elementwise::round_to(Some(dtype), a + b)).collect();
    let (y, rstd) = rms(k, &x, &k.f("gamma")?, k.num("epsilon")?, 0.0);
    k.put("yOut|x1Ref|y1Out", &Values::F(y.clone()))?;
    if k.value("y2Out").is_some() {
        k.put("y2Out", &Values::F(y))?;
    }
    k.put_opt("rstdOut", &Values::F(rstd))?;
    k.put("xOut|x2Ref", &Values::F(x))
}

fn rms_norm_grad(k: &Call) -> Outcome {
    let (dy, x, rstd, gamma) = (k.f("dy")?, k.f("x")?, k.f("rstd")?, k.f("gamma")?);
    let n = gamma.len();
    let mut dx = Vec::with_capacity(x.len());
    let mut dgamma = vec![0.0; n];
    for (r, (g, row)) in dy.chunks(n).zip(x.chunks(n)).enumerate() {
        let s = rstd[r];
        let d = k.sum((0..n).map(|i| g[i] * gamma[i] * row[i])) * s * s / n as f64;
        dx.extend((0..n).map(|i| s * (g[i] * gamma[i] - row[i] * d)));
    }
    for r in k.order(rstd.len().min(x.len() / n.max(1))) {
        for (i, held) in dgamma.iter_mut().enumerate() {
            *held = Call::added(*held, dy[r * n + i] * x[r * n + i] * rstd[r]);
        }
    }
    k.put("dxOut", &Values::F(dx))?;
    k.put("dgammaOut", &Values::F(dgamma))
}

fn layer_norm(k: &Call) -> Outcome {
    let x = k.f("input")?;
    let n: usize = k.ints("normalizedShape")?.iter().product::<i64>() as usize;
    let eps = k.num("eps")?;
    let (w, b) = (k.opt_f("weightOptional")?, k.opt_f("biasOptional")?);
    let (mut y, mut means, mut rstds) = (Vec::new(), Vec::new(), Vec::new());
    for row in x.chunks(n.max(1)) {
        let mean = k.sum(row.iter().copied()) / n as f64;
        let var = k.sum(row.iter().map(|v| (v - mean) * (v - mean))) / n as f64;
        let r = 1.0 / (var + eps).sqrt();
        y.extend(row.iter().enumerate().map(|(i, v)| {
            (v - mean) * r * w.as_ref().map_or(1.0, |w| w[i]) + b.as_ref().map_or(0.0, |b| b[i])
        }));
        means.push(mean);
        rstds.push(r);
    }
    k.put("out", &Values::F(y))?;
    k.put_opt("meanOutOptional", &Values::F(means))?;
    k.put_opt("rstdOutOptional", &Values::F(rstds))
}

fn layer_norm_grad(k: &Call) -> Outcome {
    let (g, x, mean, rstd) = (k.f("gradOut")?, k.f("input")?, k.f("mean")?, k.f("rstd")?);
    let n: usize = k.ints("normalizedShape")?.iter().product::<i64>() as usize;
    let w = k.opt_f("weightOptional")?;
    let mask = k.bools("outputMask")?;
    let (mut dx, mut dw, mut db) = (Vec::new(), vec![0.0; n], vec![0.0; n]);
    for (r, (g, row)) in g.chunks(n.max(1)).zip(x.chunks(n.max(1))).enumerate() {
        let (m, s) = (mean[r], rstd[r]);
        let gw: Vec<f64> = (0..n).map(|i| g[i] * w.as_ref().map_or(1.0, |w| w[i])).collect();
        let a = k.sum(gw.iter().copied()) / n as f64;
        let b = k.sum((0..n).map(|i| gw[i] * (row[i] - m) * s)) / n as f64;
        for i in 0..n {
            let hat = (row[i] - m) * s;
            dx.push(s * (gw[i] - a - hat * b));
            dw[i] += g[i] * hat;
            db[i] += g[i];
        }
    }
    for (i, (name, v)) in
        [("gradInputOut", dx), ("gradWeightOut", dw), ("gradBiasOut", db)].into_iter().enumerate()
    {
        if mask.get(i).copied().unwrap_or(true) {
            k.put_opt(name, &Values::F(v))?;
        }
    }
    Ok(())
}

fn group_norm(k: &Call) -> Outcome {
    let x = k.f("self")?;
    let (n, c, hw, group) =
        (k.int("N")? as usize, k.int("C")? as usize, k.int("HxW")? as usize, k.int("group")? as usize);
    let eps = k.num("eps")?;
    let (w, b) = (k.opt_f("gamma")?, k.opt_f("beta")?);
    let m = c / group * hw;
    let (mut y, mut means, mut rstds) = (Vec::new(), Vec::new(), Vec::new());
    for (r, row) in x.chunks(m.max(1)).enumerate().take(n * group) {
        let mean = k.sum(row.iter().copied()) / m as f64;
        let s = 1.0 / (k.sum(row.iter().map(|v| (v - mean) * (v - mean))) / m as f64 + eps).sqrt();
        for (i, v) in row.iter().enumerate() {
            let ch = r % group * (c / group) + i / hw;
            y.push((v - mean) * s * w.as_ref().map_or(1.0, |w| w[ch]) + b.as_ref().map_or(0.0, |b| b[ch]));
        }
        means.push(mean);
        rstds.push(s);
    }
    k.put("out", &Values::F(y))?;
    k.put("meanOut", &Values::F(means))?;
    k.put("rstdOut", &Values::F(rstds))
}

fn group_norm_grad(k: &Call) -> Outcome {
    let (g, x, mean, rstd) = (k.f("gradOut")?, k.f("input")?, k.f("mean")?, k.f("rstd")?);
    let (c, hw, group) = (k.int("C")? as usize, k.int("HxW")? as usize, k.int("group")? as usize);
    let w = k.opt_f("gamma")?;
    let m = c / group * hw;
    let (mut dx, mut dw, mut db) = (Vec::new(), vec![0.0; c], vec![0.0; c]);
    for (r, (g, row)) in g.chunks(m.max(1)).zip(x.chunks(m.max(1))).enumerate() {
        let ch = |i: usize| r % group * (c / group) + i / hw;
        let gw: Vec<f64> = (0..m).map(|i| g[i] * w.as_ref().map_or(1.0, |w| w[ch(i)])).collect();
        let hat: Vec<f64> = row.iter().map(|v| (v - mean[r]) * rstd[r]).collect();
        let a = k.sum(gw.iter().copied()) / m as f64;
        let b = dot(k, &gw, &hat) / m as f64;
        for i in 0..m {
            dx.push(rstd[r] * (gw[i] - a - hat[i] * b));
            dw[ch(i)] += g[i] * hat[i];
            db[ch(i)] += g[i];
        }
    }
    k.put_opt("gradInput", &Values::F(dx))?;
    k.put_opt("gradGammaOut", &Values::F(dw))?;
    k.put_opt("gradBetaOut", &Values::F(db))
}

/// reduction 0 none, 1 mean, 2 sum.
fn reduced(k: &Call, out: &str, terms: Vec<f64>, how: i64) -> Outcome {
    let n = terms.len() as f64;
    let v = match how {
        0 => terms,
        1 => vec![k.sum(terms.into_iter()) / n],
        _ => vec![k.sum(terms.into_iter())],
    };
    k.put(out, &Values::F(v))
}

fn elementwise_loss(k: &Call, out: &str, f: impl Fn(f64, f64) -> f64) -> Outcome {
    let dims = super::elementwise::common(&k.t("self")?.dims, &k.t("target")?.dims);
    let (x, t) = (k.spread(k.t("self")?, &dims)?.floats(), k.spread(k.t("target")?, &dims)?.floats());
    reduced(k, out, x.iter().zip(&t).map(|(x, t)| f(*x, *t)).collect(), k.int("reduction")?)
}

fn elementwise_loss_grad(k: &Call, out: &str, f: impl Fn(f64, f64) -> f64) -> Outcome {
    let to = k.t(out)?;
    let (x, t) = (k.spread(k.t("self")?, &to.dims)?.floats(), k.spread(k.t("target")?, &to.dims)?.floats());
    let g = k.spread(k.t("gradOutput|gradOut")?, &to.dims)?.floats();
    let scale = if k.int("reduction")? == 1 { 1.0 / x.len() as f64 } else { 1.0 };
    k.put_view(to, &Values::F((0..x.len()).map(|i| g[i] * scale * f(x[i], t[i])).collect()))
}

/// A weight for each term of a loss, 1 where none is given.
fn weights(k: &Call, name: &str, dims: &[i64]) -> Result<Option<Vec<f64>>, Fault> {
    match k.opt(name) {
        Ok(Some(view)) if view.numel() > 0 => Ok(Some(k.spread(view, dims)?.floats())),
        _ => Ok(None),
    }
}

fn bce(k: &Call, logits: bool) -> Outcome {
    let view = k.t("self")?;
    let (x, t) = (k.f("self")?, k.f("target")?);
    let w = weights(k, if logits { "weightOptional" } else { "weight" }, &view.dims)?;
    let p = if logits { weights(k, "posWeightOptional", &view.dims)? } else { None };
    let term = |i: usize| {
        let (x, t) = (x[i], t[i]);
        let loss = if logits {
            let positive = 1.0 + (p.as_ref().map_or(1.0, |p| p[i]) - 1.0) * t;
            (1.0 - t) * x + positive * sp::softplus(-x)
        } else {
            -(t * x.ln().max(-100.0) + (1.0 - t) * (-x).ln_1p().max(-100.0))
        };
        loss * w.as_ref().map_or(1.0, |w| w[i])
    };
    reduced(k, "out", (0..x.len()).map(term).collect(), k.int("reduction")?)
}

fn bce_grad(k: &Call, logits: bool) -> Outcome {
    let view = k.t("out")?;
    let (x, t) = (k.f("self")?, k.f("target")?);
    let g = k.spread(k.t("gradOutput")?, &view.dims)?.floats();
    let w = weights(k, "weightOptional", &view.dims)?;
    let p = if logits { weights(k, "posWeightOptional", &view.dims)? } else { None };
    let scale = if k.int("reduction")? == 1 { 1.0 / x.len() as f64 } else { 1.0 };
    let term = |i: usize| {
        let (x, t) = (x[i], t[i]);
        let d = if logits {
            let pos = p.as_ref().map_or(1.0, |p| p[i]);
            let positive = pos * t;
            (positive + 1.0 - t) * sp::sigmoid(x) - positive
        } else {
            (x - t) / ((1.0 - x) * x).max(1e-12)
        };
        g[i] * scale * d * w.as_ref().map_or(1.0, |w| w[i])
    };
    k.put("out", &Values::F((0..x.len()).map(term).collect()))
}

type Nll = (Vec<f64>, Vec<i64>, Vec<f64>, usize);

/// The class dimension last: rows of log-probabilities, the targets, and the weights of the classes.
fn nll_parts(k: &Call) -> Result<Nll, Fault> {
    let view = k.t("self")?;
    let dim = if view.dims.len() > 1 { 1 } else { 0 };
    let (moved, c) = rows(view, &[dim])?;
    let w = k.opt_f("weight")?.unwrap_or_else(|| vec![1.0; c]);
    Ok((moved.load(k.decl.name)?.floats(), k.load("target")?.ints(), w, c))
}

fn nll(k: &Call) -> Outcome {
    let (x, target, w, c) = nll_parts(k)?;
    let ignore = k.int("ignoreIndex")?;
    let how = k.int("reduction")?;
    let (mut terms, mut total) = (Vec::new(), 0.0);
    for (r, t) in target.iter().enumerate() {
        if *t == ignore {
            terms.push(0.0);
            continue;
        }
        let i = *t as usize;
        if *t < 0 || i >= c {
            return Err(Fault::from(format!("target {t} of {c} classes")));
        }
        terms.push(-x[r * c + i] * w[i]);
        total += w[i];
    }
    let v = match how {
        0 => terms,
        1 => vec![k.sum(terms.into_iter()) / total],
        _ => vec![k.sum(terms.into_iter())],
    };
    k.put("out", &Values::F(v))?;
    k.put_opt("totalWeightOut", &Values::F(vec![if how == 0 { 0.0 } else { total }]))
}

fn nll_grad(k: &Call) -> Outcome {
    let (x, target, w, c) = nll_parts(k)?;
    let ignore = k.int("ignoreIndex")?;
    let how = k.int("reduction")?;
    let g = k.f("gradOutput")?;
    let total = k.f("totalWeight")?.first().copied().unwrap_or(1.0);
    let mut dx = vec![0.0; x.len()];
    for (r, t) in target.iter().enumerate().filter(|(_, t)| **t != ignore) {
        let i = *t as usize;
        let gr = if how == 0 { g[r] } else { g[0] };
        dx[r * c + i] = -gr * w[i] / if how == 1 { total } else { 1.0 };
    }
    let out = k.t("out")?;
    let (to, _) = rows(out, &[if out.dims.len() > 1 { 1 } else { 0 }])?;
    k.put_view(&to, &Values::F(dx))
}

fn cross_entropy(k: &Call) -> Outcome {
    let x = k.f("input")?;
    let target = k.load("target")?.ints();
    let n = *k.t("input")?.dims.last().unwrap_or(&1) as usize;
    let w = k.opt_f("weightOptional")?;
    let (ignore, smooth) = (k.int("ignoreIndex")?, k.num("labelSmoothing")?);
    if k.flag("returnZloss")? {
        return Err(Fault::from("returnZloss must be false"));
    }
    let log: Vec<f64> = x.chunks(n).flat_map(|row| log_softmax_row(k, row)).collect();
    let (mut terms, mut total) = (Vec::new(), 0.0);
    for (row, t) in log.chunks(n).zip(&target) {
        if *t == ignore {
            terms.push(0.0);
            continue;
        }
        let wt = w.as_ref().map_or(1.0, |w| w[*t as usize]);
        let even: f64 =
            row.iter().enumerate().map(|(i, v)| -v * w.as_ref().map_or(1.0, |w| w[i])).sum::<f64>()
                / n as f64;
        terms.push((1.0 - smooth) * -row[*t as usize] * wt + smooth * even);
        total += wt;
    }
    let loss = match k.text("reductionOptional")? {
        "none" => terms,
        "sum" => vec![k.sum(terms.into_iter())],
        _ => vec![k.sum(terms.into_iter()) / total],
    };
    k.put("lossOut", &Values::F(loss))?;
    k.put("logProbOut", &Values::F(log))
}

fn cross_entropy_grad(k: &Call) -> Outcome {
    let log = k.f("logProb")?;
    let target = k.load("target")?.ints();
    let n = *k.t("logProb")?.dims.last().unwrap_or(&1) as usize;
    let w = k.opt_f("weightOptional")?;
    let (ignore, smooth) = (k.int("ignoreIndex")?, k.num("labelSmoothing")?);
    let how = k.text("reductionOptional")?;
    let g = k.f("gradLoss")?;
    let weight = |i: usize| w.as_ref().map_or(1.0, |w| w[i]);
    let total: f64 = target.iter().filter(|t| **t != ignore).map(|t| weight(*t as usize)).sum();
    let sum_w: f64 = (0..n).map(weight).sum();
    let mut dx = Vec::with_capacity(log.len());
    for (r, (row, t)) in log.chunks(n).zip(&target).enumerate() {
        if *t == ignore {
            dx.extend(std::iter::repeat_n(0.0, n));
            continue;
        }
        let gr = match how {
            "none" => g[r],
            "sum" => g[0],
            _ => g[0] / total,
        };
        let wt = weight(*t as usize);
        let part = smooth / n as f64;
        for (i, v) in row.iter().enumerate() {
            let hard = (1.0 - smooth) * wt * (v.exp() - f64::from(u8::from(i == *t as usize)));
            let soft = part * (sum_w * v.exp() - weight(i));
            dx.push(gr * (hard + soft));
        }
    }
    k.put("out", &Values::F(dx))
}

fn kl(t: f64, log_target: bool, x: f64) -> f64 {
    if log_target {
        t.exp() * (t - x)
    } else if t > 0.0 {
        t * (t.ln() - x)
    } else {
        0.0
    }
}

fn smooth_l1(x: f64, t: f64, beta: f64) -> f64 {
    let d = (x - t).abs();
    if d < beta { 0.5 * d * d / beta } else { d - 0.5 * beta }
}

fn sign(v: f64) -> f64 {
    if v == 0.0 { 0.0 } else { v.signum() }
}

pub(super) static OPS: &[Row] = &[
    ("Softmax", "self:FD", |k| by_row(k, k.t("self")?, k.t("out")?, k.int("dim")?, softmax_row)),
    ("LogSoftmax", "self:FD", |k| by_row(k, k.t("self")?, k.t("out")?, k.int("dim")?, log_softmax_row)),
    ("SoftmaxBackward", "gradOutput:FD same(gradOutput,output,out)", |k| by_row_grad(k, softmax_grad)),
    ("LogSoftmaxBackward", "gradOutput:FD same(gradOutput,output,out)", |k| {
        by_row_grad(k, |k, g, y| {
            let s = k.sum(g.iter().copied());
            g.iter().zip(y).map(|(g, y)| g - y.exp() * s).collect()
        })
    }),
    ("ScaledMaskedSoftmax", "x:F mask:B out(y)", masked_softmax),
    ("ScaledMaskedSoftmaxBackward", "y:F mask:B", masked_softmax_grad),
    ("RmsNorm", "x:F gamma:F same(x,yOut) rstdOut:S", |k| rms_norm(k, 0.0)),
    ("GemmaRmsNorm", "x:F gamma:F same(x,yOut) rstdOut:S", |k| rms_norm(k, 1.0)),
    ("RmsNormGrad", "x:F dy:F rstd:S dgammaOut:S same(x,dy,dxOut)", rms_norm_grad),
    ("AddRmsNorm", "x1:F x2:F same(x1,x2,yOut,xOut) type(x1,x2)", add_rms_norm),
    ("InplaceAddRmsNorm", "x1Ref:F same(x1Ref,x2Ref)", add_rms_norm),
    ("AddRmsNormCast", "x1:F same(x1,x2,y1Out,y2Out,xOut)", add_rms_norm),
    ("LayerNorm", "input:FD same(input,out)", layer_norm),
    ("FastLayerNorm", "input:FD same(input,out)", layer_norm),
    (
        "LayerNormBackward",
        "input:FD gradOut:FD same(input,gradOut) null(gradInputOut,gradWeightOut,gradBiasOut)",
        layer_norm_grad,
    ),
    ("GroupNorm", "self:FD null(gamma,beta)", group_norm),
    (
        "GroupNormBackward",
        "gradOut:FD null(gamma,gradInput,gradGammaOut,gradBetaOut) out(gradInput)",
        group_norm_grad,
    ),
    ("NLLLoss", "self:FD target:IU null(weight)", nll),
    ("NLLLossBackward", "self:FD null(weight)", nll_grad),
    ("NLLLoss2d", "self:FD null(weight)", nll),
    ("NLLLoss2dBackward", "self:FD null(weight)", nll_grad),
    ("CrossEntropyLoss", "input:F target:L rank(input,2) null(lseForZlossOut,zlossOut)", cross_entropy),
    ("CrossEntropyLossGrad", "logProb:F target:L", cross_entropy_grad),
    ("MseLoss", "self:FD", |k| elementwise_loss(k, "out", |x, t| (x - t) * (x - t))),
    ("MseLossOut", "self:FD", |k| elementwise_loss(k, "out", |x, t| (x - t) * (x - t))),
    ("MseLossBackward", "self:FD", |k| elementwise_loss_grad(k, "out", |x, t| 2.0 * (x - t))),
    ("L1Loss", "self:FD", |k| elementwise_loss(k, "out", |x, t| (x - t).abs())),
    ("L1LossBackward", "self:FD out(gradInput)", |k| {
        elementwise_loss_grad(k, "gradInput", |x, t| sign(x - t))
    }),
    ("SmoothL1Loss", "self:FD out(result)", |k| {
        let b = k.num("beta")?;
        elementwise_loss(k, "result", |x, t| smooth_l1(x, t, b))
    }),
    ("SmoothL1LossBackward", "self:FD out(gradInput)", |k| {
        let b = k.num("beta")?;
        elementwise_loss_grad(
            k,
            "gradInput",
            |x, t| if (x - t).abs() < b { (x - t) / b } else { sign(x - t) },
        )
    }),
    ("SoftMarginLoss", "self:FD", |k| elementwise_loss(k, "out", |x, t| sp::softplus(-x * t))),
    ("SoftMarginLossBackward", "self:FD", |k| {
        elementwise_loss_grad(k, "out", |x, t| -t * sp::sigmoid(-x * t))
    }),
    ("KlDiv", "self:FD", |k| {
        let log = k.flag("logTarget")?;
        elementwise_loss(k, "out", |x, t| kl(t, log, x))
    }),
    ("KlDivBackward", "self:FD", |k| {
        let log = k.flag("logTarget")?;
        elementwise_loss_grad(k, "out", |_, t| if log { -t.exp() } else { -t.max(0.0) })
    }),
    ("BinaryCrossEntropy", "self:FD null(weight)", |k| bce(k, false)),
    ("BinaryCrossEntropyBackward", "self:FD", |k| bce_grad(k, false)),
    ("BinaryCrossEntropyWithLogits", "self:FD", |k| bce(k, true)),
    ("BinaryCrossEntropyWithLogitsBackward", "self:FD", |k| bce_grad(k, true)),
];
