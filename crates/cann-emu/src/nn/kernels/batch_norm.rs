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
    let of =
        |ch: usize| k.sum(x.iter().enumerate().filter(|(i, _)| i / plane % c == ch).map(|(i, v)| f(i, *v)));
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

/// One pass over a rank's share: sums and sums of squares by channel.
fn reduce(k: &Call) -> Outcome {
    let (c, plane, _) = sizes(k, "x")?;
    let x = k.f("x")?;
    k.put("sum", &Values::F(sums(k, &x, c, plane, |_, v| v)))?;
    k.put("squareSum", &Values::F(sums(k, &x, c, plane, |_, v| v * v)))
}

fn stats(k: &Call) -> Outcome {
    let (c, plane, n) = sizes(k, "input")?;
    let (x, eps) = (k.f("input")?, k.num("eps")?);
    let mean: Vec<f64> = sums(k, &x, c, plane, |_, v| v).into_iter().map(|s| s / n as f64).collect();
    let var = sums(k, &x, c, plane, |i, v| (v - mean[i / plane % c]).powi(2));
    k.put("invstd", &Values::F(var.into_iter().map(|v| 1.0 / (v / n as f64 + eps).sqrt()).collect()))?;
    k.put("mean", &Values::F(mean))
}

/// Means and deviations of ranks' shares `[ranks,C]`, weighed by how many elements each has.
fn gather_stats(k: &Call) -> Outcome {
    let (mean, scale, counts) = (k.f("mean")?, k.f("invstd")?, k.f("counts")?);
    let (eps, m) = (k.num("eps")?, k.num("momentum")?);
    let c = mean.len() / counts.len().max(1);
    let all: f64 = counts.iter().sum();
    let total = |f: &dyn Fn(usize) -> f64, ch: usize| -> f64 {
        counts.iter().enumerate().map(|(r, n)| n * f(r * c + ch)).sum::<f64>() / all
    };
    let means: Vec<f64> = (0..c).map(|ch| total(&|i| mean[i], ch)).collect();
    let spread = |i: usize, ch: usize| 1.0 / (scale[i] * scale[i]) - eps + (mean[i] - means[ch]).powi(2);
    let vars: Vec<f64> = (0..c).map(|ch| total(&|i| spread(i, ch), ch)).collect();
    let mixed = |old: Vec<f64>, new: &dyn Fn(usize) -> f64| {
        Values::F(old.iter().enumerate().map(|(i, v)| (1.0 - m) * v + m * new(i)).collect())
    };
    if let Some(old) = k.opt_f("runningMean")? {
        k.put_opt("runningMean", &mixed(old, &|i| means[i]))?;
    }
    if let Some(old) = k.opt_f("runningVar")? {
        k.put_opt("runningVar", &mixed(old, &|i| vars[i] * all / (all - 1.0)))?;
    }
    k.put("invstdAll", &Values::F(vars.iter().map(|v| 1.0 / (v + eps).sqrt()).collect()))?;
    k.put("meanAll", &Values::F(means))
}

/// As [`gather_stats`], from sums and sums of squares `[ranks,C]`.
fn gather_sums(k: &Call) -> Outcome {
    let (sum, square, counts) = (k.f("totalSum")?, k.f("totalSquareSum")?, k.f("sampleCount")?);
    let (eps, m) = (k.num("eps")?, k.num("momentum")?);
    let c = sum.len() / counts.len().max(1);
    let all: f64 = counts.iter().sum();
    let total = |v: &[f64], ch: usize| (0..counts.len()).map(|r| v[r * c + ch]).sum::<f64>() / all;
    let means: Vec<f64> = (0..c).map(|ch| total(&sum, ch)).collect();
    let vars: Vec<f64> = (0..c).map(|ch| total(&square, ch) - means[ch] * means[ch]).collect();
    let open = all / (all - 1.0);
    for (name, new, scale) in [("mean", &means, 1.0), ("variance", &vars, open)] {
        if let Some(old) = k.opt_f(name)? {
            let mixed = old.iter().zip(new).map(|(o, n)| (1.0 - m) * o + m * n * scale).collect();
            k.put_opt(name, &Values::F(mixed))?;
        }
    }
    k.put("batchInvstd", &Values::F(vars.iter().map(|v| 1.0 / (v + eps).sqrt()).collect()))?;
    k.put("batchMean", &Values::F(means))
}

/// The last pass: every element by given means and deviations.
fn element(k: &Call) -> Outcome {
    let (c, plane, _) = sizes(k, "input")?;
    let (x, mean, scale) = (k.f("input")?, k.f("mean")?, k.f("invstd")?);
    let w = k.opt_f("weight")?.unwrap_or_else(|| vec![1.0; c]);
    let b = k.opt_f("bias")?.unwrap_or_else(|| vec![0.0; c]);
    let one = |(i, v): (usize, &f64)| {
        let ch = i / plane % c;
        (v - mean[ch]) * scale[ch] * w[ch] + b[ch]
    };
    k.put("output", &Values::F(x.iter().enumerate().map(one).collect()))
}

fn reduce_backward(k: &Call) -> Outcome {
    let (c, plane, _) = sizes(k, "input")?;
    let (g, x, mean, scale) = (k.f("gradOut")?, k.f("input")?, k.f("mean")?, k.f("invstd")?);
    let dy = sums(k, &g, c, plane, |_, v| v);
    let dy_x = sums(k, &g, c, plane, |i, v| v * (x[i] - mean[i / plane % c]));
    k.put_opt("gradWeight", &Values::F(dy_x.iter().zip(&scale).map(|(a, s)| a * s).collect()))?;
    k.put_opt("gradBias", &Values::F(dy.clone()))?;
    k.put_opt("sumDy", &Values::F(dy))?;
    k.put_opt("sumDyXmu", &Values::F(dy_x))
}

fn element_backward(k: &Call) -> Outcome {
    let (c, plane, _) = sizes(k, "input")?;
    let (g, x, mean, scale) = (k.f("gradOut")?, k.f("input")?, k.f("mean")?, k.f("invstd")?);
    let (dy, dy_x) = (k.f("sumDy")?, k.f("sumDyXmu")?);
    let w = k.opt_f("weight")?.unwrap_or_else(|| vec![1.0; c]);
    let all: f64 = k.f("counter")?.iter().sum();
    let one = |(i, v): (usize, &f64)| {
        let ch = i / plane % c;
        let shift = (dy[ch] + (x[i] - mean[ch]) * scale[ch] * scale[ch] * dy_x[ch]) / all;
        (v - shift) * scale[ch] * w[ch]
    };
    k.put("gradInput", &Values::F(g.iter().enumerate().map(one).collect()))
}

pub(super) static OPS: &[Row] = &[
    (
        "BatchNorm",
        "input:F rank(input,2..8) inout(runningMean,runningVar) \
         null(weight,bias,runningMean,runningVar,saveMean,saveInvstd)",
        forward,
    ),
    (
        "BatchNormBackward",
        "gradOut:F input:F same(gradOut,input) \
         null(weight,runningMean,runningVar,saveMean,saveInvstd,gradInput,gradWeight,gradBias)",
        backward,
    ),
    ("BatchNormReduce", "x:F rank(x,2..8)", reduce),
    ("BatchNormStats", "input:F rank(input,2..8)", stats),
    (
        "BatchNormGatherStatsWithCounts",
        "mean:F invstd:F counts:F inout(runningMean,runningVar) null(runningMean,runningVar)",
        gather_stats,
    ),
    (
        "SyncBatchNormGatherStats",
        "totalSum:F totalSquareSum:F inout(mean,variance) null(mean,variance)",
        gather_sums,
    ),
    // Constness does not tell that these are read.
    ("BatchNormElemt", "input:F null(weight,bias) inout(mean,invstd)", element),
    (
        "BatchNormReduceBackward",
        "gradOut:F input:F null(weight,sumDy,sumDyXmu,gradWeight,gradBias)",
        reduce_backward,
    ),
    ("BatchNormElemtBackward", "gradOut:F input:F null(weight) inout(counter)", element_backward),
];
