//! Distances, factors, statistics and constants by type name, where 8.1 has no function of its own for them.

use super::decomposition::{distance, factors, full_factors};
use crate::nn::by_type::Operands;
use crate::report::fail;

/// `|v|`'s share in a distance of order `p` (−1: the largest), as a slope: d distance / d v.
pub(in crate::nn) fn slope(v: f64, distance: f64, p: f64) -> f64 {
    if distance == 0.0 || p == 0.0 || v == 0.0 {
        0.0
    } else if p.is_infinite() || p < 0.0 {
        // The distance was rounded when it was stored.
        if v.abs() as f32 == distance as f32 { v.signum() } else { 0.0 }
    } else {
        v.signum() * (v.abs() / distance).powf(p - 1.0)
    }
}

/// `Cdist`: both inputs `[B,R,P,C]`, copied along rows and columns; output `[B,R,P]`.
pub(in crate::nn) fn cdist(k: &Operands) -> Result<(), i32> {
    let (x, y, p) = (k.input(0)?, k.input(1)?, k.float("p", 2.0));
    let p = if p < 0.0 { f64::INFINITY } else { p };
    let width = k.dims(0).last().copied().unwrap_or(1).max(1);
    let one = |(a, b): (&[f64], &[f64])| distance(a.iter().zip(b).map(|(a, b)| a - b), p);
    k.put(0, x.chunks(width).zip(y.chunks(width)).map(one).collect())
}

/// `CdistGrad`: gradient, both points and distance, all copied to `[..,R,P,C]`; output `[..,R,C]`.
pub(in crate::nn) fn cdist_grad(k: &Operands) -> Result<(), i32> {
    let (g, x, y, far) = (k.input(0)?, k.input(1)?, k.input(2)?, k.input(3)?);
    let (d, p) = (k.dims(1), k.float("p", 2.0));
    let [.., columns, width] = d[..] else { return Ok(()) };
    let mut dx = vec![0.0; k.out_len(0)];
    for i in 0..x.len() {
        // Stacks that were spread over the others' come together again.
        let at = (i / (columns * width) * width + i % width) % dx.len();
        dx[at] += g[i] * slope(x[i] - y[i], far[i], p);
    }
    k.put(0, dx)
}

/// `BNTrainingReduce`: `[N,C,..]` to sums and sums of squares by channel.
pub(in crate::nn) fn channel_sums(k: &Operands) -> Result<(), i32> {
    let (x, d) = (k.input(0)?, k.dims(0));
    let plane: usize = d[2..].iter().product();
    let mut sums = [vec![0.0; d[1]], vec![0.0; d[1]]];
    for (i, v) in x.iter().enumerate() {
        let ch = i / plane.max(1) % d[1];
        sums[0][ch] += v;
        sums[1][ch] += v * v;
    }
    let [sum, square] = sums;
    k.put(0, sum)?;
    k.put(1, square)
}

/// `SyncBatchNormGatherStats`: sums and sums of squares `[ranks,C]`, counts, running mean and variance. Outputs: mean,
/// 1/deviation, and both running values.
pub(in crate::nn) fn gather_sums(k: &Operands) -> Result<(), i32> {
    let (sum, square, counts) = (k.input(0)?, k.input(1)?, k.input(2)?);
    let (eps, m) = (k.float("eps", 1e-5), k.float("momentum", 0.1));
    let c = sum.len() / counts.len().max(1);
    let all: f64 = counts.iter().sum();
    let total = |v: &[f64], ch: usize| (0..counts.len()).map(|r| v[r * c + ch]).sum::<f64>() / all;
    let means: Vec<f64> = (0..c).map(|ch| total(&sum, ch)).collect();
    let vars: Vec<f64> = (0..c).map(|ch| total(&square, ch) - means[ch] * means[ch]).collect();
    for (at, new, scale) in [(3, &means, 1.0), (4, &vars, all / (all - 1.0))] {
        let old = k.input(at)?;
        k.put(at - 1, old.iter().zip(new).map(|(o, n)| (1.0 - m) * o + m * n * scale).collect())?;
    }
    k.put(1, vars.iter().map(|v| 1.0 / (v + eps).sqrt()).collect())?;
    k.put(0, means)
}

/// `Svd`: matrices to singular values and both factors.
pub(in crate::nn) fn svd(k: &Operands) -> Result<(), i32> {
    let (x, d) = (k.input(0)?, k.dims(0));
    let [.., m, n] = d[..] else { return Err(fail(100_000, &format!("Svd of {d:?}"))) };
    let mut out = [Vec::new(), Vec::new(), Vec::new()];
    for a in x.chunks((m * n).max(1)) {
        let full = k.is_on("full_matrices");
        let parts = if full { full_factors(a, m, n) } else { factors(a, m, n) };
        out.iter_mut().zip(parts).for_each(|(all, part)| all.extend(part));
    }
    let [u, s, v] = out;
    k.put(0, s)?;
    if k.is_on("compute_uv") {
        k.put(1, u)?;
        k.put(2, v)?;
    }
    Ok(())
}

/// `Fill`: a shape, and a value for all elements of the output.
pub(in crate::nn) fn fill(k: &Operands) -> Result<(), i32> {
    let value = k.number(1)?;
    k.put(0, vec![value; k.out_len(0)])
}

fn shifted(k: &Operands, f: impl Fn(i64, u32) -> i64) -> Result<(), i32> {
    let single = k.dims(1).iter().product::<usize>() == 1;
    let (x, by) = (k.input(0)?, if single { vec![k.number(1)?] } else { k.input(1)? });
    let one = |(i, v): (usize, &f64)| f(*v as i64, by[i % by.len()] as u32) as f64;
    k.put(0, x.iter().enumerate().map(one).collect())
}

/// `LeftShift` of integers.
pub(in crate::nn) fn shift_left(k: &Operands) -> Result<(), i32> {
    shifted(k, i64::wrapping_shl)
}

/// `RightShift` of integers.
pub(in crate::nn) fn shift_right(k: &Operands) -> Result<(), i32> {
    shifted(k, i64::wrapping_shr)
}
