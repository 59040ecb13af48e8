//! Normalisation by channel over a batch.

use super::Row;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::Values;

/// Channels, elements of a plane, elements of a channel.
fn sizes(k: &Call, name: &str) -> Result<(usize, usize, usize), Fault> {
    let d = &k.t(name)?.dims;
    let plane = d.iter().skip(2).product::<i64>() as usize;
    Ok((d[1] as usize, plane, d[0] as usize * plane))
}

/// Sums of a function of each element by channel.
fn sums(k: &Call, x: &[f64], c: usize, plane: usize, f: impl Fn(usize, f64) -> f64) -> Vec<f64> {
    let of = |ch: usize| {
        k.sum(x.iter().enumerate().filter(|(i, _)| i / plane % c == ch).map(|(i, v)| f(i, *v)))
    };
    (0..c).map(of).collect()
}

fn forward(k: &Call) -> Outcome {
    let (c, plane, n) = sizes(k, "input")?;
    let x = k.f("input")?;
    let one = |name: &str, other: f64| -> Result<Vec<f64>, Fault> {
        Ok(k.opt_f(name)?.unwrap_or_else(|| vec![other; c]))
    };
    let (w, b, eps) = (one("weight", 1.0)?, one("bias", 0.0)?, k.num("eps")?);
    let (mean, var) = if k.flag("training")? {
        let mean: Vec<f64> = sums(k, &x, c, plane, |_, v| v).into_iter().map(|s| s / n as f64).collect();
        let square = |i: usize, v: f64| (v - mean[i / plane % c]).powi(2);
        let var: Vec<f64> = sums(k, &x, c, plane, square).into_iter().map(|s| s / n as f64).collect();
        let m = k.num("momentum")?;
        let mixed = |old: &[f64], new: &dyn Fn(usize) -> f64| {
            Values::F((0..c).map(|i| (1.0 - m) * old[i] + m * new(i)).collect())
        };
        if let Some(old) = k.opt_f("runningMean")? {
            k.put_opt("runningMean", &mixed(&old, &|i| mean[i]))?;
        }
        if let Some(old) = k.opt_f("runningVar")? {
            let open = n as f64 / (n as f64 - 1.0);
            k.put_opt("runningVar", &mixed(&old, &|i| var[i] * open))?;
        }
        (mean, var)
    } else {
        (one("runningMean", 0.0)?, one("runningVar", 1.0)?)
    };
    let scale: Vec<f64> = var.iter().map(|v| 1.0 / (v + eps).sqrt()).collect();
    let y = x.iter().enumerate().map(|(i, v)| {
        let ch = i / plane % c;
        (v - mean[ch]) * scale[ch] * w[ch] + b[ch]
    });
    k.put("output", &Values::F(y.collect()))?;
    k.put_opt("saveMean", &Values::F(mean))?;
    k.put_opt("saveInvstd", &Values::F(scale))
}

fn backward(k: &Call) -> Outcome {
    let (c, plane, n) = sizes(k, "input")?;
    let (x, g, eps) = (k.f("input")?, k.f("gradOut")?, k.num("eps")?);
    let w = k.opt_f("weight")?.unwrap_or_else(|| vec![1.0; c]);
    let training = k.flag("training")?;
    let (mean, scale) = if training {
        (k.f("saveMean")?, k.f("saveInvstd")?)
    } else {
        let var = k.f("runningVar")?;
        (k.f("runningMean")?, var.iter().map(|v| 1.0 / (v + eps).sqrt()).collect())
    };
    let ch = |i: usize| i / plane % c;
    let normal = |i: usize| (x[i] - mean[ch(i)]) * scale[ch(i)];
    let db = sums(k, &g, c, plane, |_, v| v);
    let dw = sums(k, &g, c, plane, |i, v| v * normal(i));
    let mask = k.bools("outputMask")?;
    let wanted = |i: usize| mask.get(i).copied().unwrap_or(true);
    if wanted(0) {
        let one = |(i, v): (usize, &f64)| {
            let ch = ch(i);
            let shift = if training { (db[ch] + normal(i) * dw[ch]) / n as f64 } else { 0.0 };
            w[ch] * scale[ch] * (v - shift)
        };
        k.put_opt("gradInput", &Values::F(g.iter().enumerate().map(one).collect()))?;
    }
    if wanted(1) {
        k.put_opt("gradWeight", &Values::F(dw))?;
    }
    if wanted(2) {
        k.put_opt("gradBias", &Values::F(db))?;
    }
    Ok(())
}

pub(super) static OPS: &[Row] = &[
    (
        "BatchNorm",
        "input:F rank(input,2..8) inout(runningMean,runningVar) null(weight,bias,runningMean,runningVar,saveMean,saveInvstd)",
        forward,
    ),
    (
        "BatchNormBackward",
        "gradOut:F input:F same(gradOut,input) null(weight,runningMean,runningVar,saveMean,saveInvstd,gradInput,gradWeight,gradBias)",
        backward,
    ),
];
