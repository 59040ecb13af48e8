//! Hyper-connections: a residual with several streams, from which a sublayer's input is mixed and to which its output is
//! distributed.
//!
//! `n` is the number of streams. The streams of a token are contiguous, `[T,n·H]`; their weights are one row, see [`Mixing`].

#[cfg(test)]
mod tests;

use crate::error::{expect_len, expect_rows};
use crate::float::{exp, sigmoid};
use crate::{Cpu, Element, Error, Result, lanes};
pub use ms_operands::Mixing;

/// The factor that column `c` of a row has.
fn part(mixing: &Mixing, c: usize) -> usize {
    (c / mixing.streams).min(2)
}

fn check(mixing: &Mixing, op: &'static str) -> Result<()> {
    let size = |name, want, got| Error::Size { op, name, want, got };
    if mixing.streams == 0 || mixing.streams > 64 {
        return Err(size("streams", "1 to 64", mixing.streams));
    }
    match mixing.rounds {
        Some(rounds) if rounds == 0 || rounds > 1000 => Err(size("rounds", "1 to 1000", rounds)),
        _ => Ok(()),
    }
}

/// Brings rows (`along`: columns) of `m[n,n]` to sum 1, but for `eps`.
fn divide(m: &mut [f32], n: usize, along: bool, eps: f32) {
    for i in 0..n {
        let at = |j: usize| if along { j * n + i } else { i * n + j };
        let sum = (0..n).map(|j| m[at(j)]).sum::<f32>() + eps;
        (0..n).for_each(|j| m[at(j)] /= sum);
    }
}

/// Turns the gradient `d` by the result of [`divide`] into that by its input `m`.
fn divide_backward(d: &mut [f32], m: &[f32], n: usize, along: bool, eps: f32) {
    for i in 0..n {
        let at = |j: usize| if along { j * n + i } else { i * n + j };
        let sum = (0..n).map(|j| m[at(j)]).sum::<f32>() + eps;
        let dot: f32 = (0..n).map(|j| d[at(j)] * m[at(j)] / sum).sum();
        (0..n).for_each(|j| d[at(j)] = (d[at(j)] - dot) / sum);
    }
}

/// Softmax of each row of `z[n,n]`, in place.
fn softmax_rows(z: &mut [f32], n: usize) {
    for row in z.chunks_exact_mut(n) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter_mut().for_each(|v| *v = exp(*v - max));
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|v| *v /= sum);
    }
}

/// Which way each step after the softmax goes: columns, then rows and columns in turn.
fn steps(rounds: usize) -> impl DoubleEndedIterator<Item = bool> + ExactSizeIterator {
    (0..2 * rounds - 1).map(|i| i % 2 == 0)
}

/// The weights of each token's streams.
///
/// With `z = scale · mixes + base`: `pre = σ(z) + eps`, `post = 2 σ(z)`, `comb` is the softmax of each row of `z`, plus eps,
/// whose columns are divided by their sums (plus eps), then `rounds - 1` times its rows and its columns.
///
/// | arg     | shape   | dtype | meaning                                                          |
/// |---------|---------|-------|------------------------------------------------------------------|
/// | `w`     | `[T,C]` | f32   | output; `C` is [`Mixing::width`]                                 |
/// | `mixes` | `[T,C]` | f32   | a linear function of the normed streams                          |
/// | `base`  | `[C]`   | f32   | what a token without streams would have                          |
/// | `scale` | `[3]`   | f32   | factors of `pre`, `post`, `comb`; `[1]` where there is `pre` alone |
///
/// # Errors
/// [`Error::Shape`] or [`Error::Size`] if an operand does not fit.
///
/// # Source
/// DeepSeek-V4 in transformers 5.23, `modeling_deepseek_v4.py`; Sinkhorn and Knopp, 1967.
pub fn weights(
    cpu: &Cpu,
    w: &mut [f32],
    mixes: &[f32],
    base: &[f32],
    scale: &[f32],
    mixing: &Mixing,
) -> Result<()> {
    const OP: &str = "hyper_connections::weights";
    let (tokens, width) = check_weights(OP, w.len(), mixes, base, scale, mixing)?;
    let (n, eps) = (mixing.streams, mixing.eps as f32);
    cpu.for_each_row(tokens, 16, (w, width), |t, w| {
        for (c, w) in w.iter_mut().enumerate() {
            *w = mixes[t * width + c].mul_add(scale[part(mixing, c)], base[c]);
        }
        let (pre, rest) = w.split_at_mut(n);
        pre.iter_mut().for_each(|v| *v = sigmoid(*v) + eps);
        let Some(rounds) = mixing.rounds else { return };
        let (post, comb) = rest.split_at_mut(n);
        post.iter_mut().for_each(|v| *v = 2.0 * sigmoid(*v));
        softmax_rows(comb, n);
        comb.iter_mut().for_each(|v| *v += eps);
        steps(rounds).for_each(|along| divide(comb, n, along, eps));
    });
    Ok(())
}

fn check_weights(
    op: &'static str,
    out: usize,
    mixes: &[f32],
    base: &[f32],
    scale: &[f32],
    mixing: &Mixing,
) -> Result<(usize, usize)> {
    check(mixing, op)?;
    let width = mixing.width();
    let tokens = expect_rows(op, "mixes", width, mixes.len())?;
    expect_len(op, "w", mixes.len(), out)?;
    expect_len(op, "base", width, base.len())?;
    expect_len(op, "scale", mixing.scales(), scale.len())?;
    Ok((tokens, width))
}

/// Gradients of [`weights`]: `dmixes[T,C]`, and those with respect to `base` and `scale`, concatenated and added to
/// `dfixed[C + scales]`.
///
/// # Errors
/// As [`weights`].
pub fn weights_backward(
    cpu: &Cpu,
    dmixes: &mut [f32],
    dfixed: &mut [f32],
    dw: &[f32],
    mixes: &[f32],
    base: &[f32],
    scale: &[f32],
    mixing: &Mixing,
) -> Result<()> {
    const OP: &str = "hyper_connections::weights_backward";
    let (tokens, width) = check_weights(OP, dw.len(), mixes, base, scale, mixing)?;
    expect_len(OP, "dmixes", mixes.len(), dmixes.len())?;
    expect_len(OP, "dfixed", width + mixing.scales(), dfixed.len())?;
    let n = mixing.streams;
    // First by z, from which the gradients of all three follow.
    cpu.for_each_row(tokens, 16, (&mut *dmixes, width), |t, d| {
        let (dw, mixes) = (&dw[t * width..][..width], &mixes[t * width..][..width]);
        let z = |c: usize| mixes[c].mul_add(scale[part(mixing, c)], base[c]);
        for c in 0..width.min(2 * n) {
            let s = sigmoid(z(c));
            d[c] = dw[c] * s * (1.0 - s) * if c < n { 1.0 } else { 2.0 };
        }
        if let Some(rounds) = mixing.rounds {
            let z: Vec<f32> = (2 * n..width).map(z).collect();
            comb_backward(&mut d[2 * n..], &dw[2 * n..], z, rounds, mixing);
        }
    });
    let dz: &[f32] = dmixes;
    cpu.sum_rows(dfixed, tokens, |t, sum| {
        for c in 0..width {
            let d = dz[t * width + c];
            sum[c] += d;
            sum[width + part(mixing, c)] += d * mixes[t * width + c];
        }
    });
    cpu.for_each_row(tokens, 64, (dmixes, width), |_, d| {
        d.iter_mut().enumerate().for_each(|(c, d)| *d *= scale[part(mixing, c)]);
    });
    Ok(())
}

/// Gradient with respect to the logits `z` of `comb`, from that by the finished matrix.
fn comb_backward(dz: &mut [f32], dcomb: &[f32], z: Vec<f32>, rounds: usize, mixing: &Mixing) {
    let (n, eps) = (mixing.streams, mixing.eps as f32);
    let mut probabilities = z;
    softmax_rows(&mut probabilities, n);
    // The matrix before each step.
    let mut before: Vec<Vec<f32>> = Vec::with_capacity(2 * rounds);
    let mut m: Vec<f32> = probabilities.iter().map(|p| p + eps).collect();
    for along in steps(rounds) {
        before.push(m.clone());
        divide(&mut m, n, along, eps);
    }
    dz.copy_from_slice(dcomb);
    for (along, m) in steps(rounds).zip(&before).rev() {
        divide_backward(dz, m, n, along, eps);
    }
    for (d, p) in dz.chunks_exact_mut(n).zip(probabilities.chunks_exact(n)) {
        let dot: f32 = d.iter().zip(p).map(|(d, p)| d * p).sum();
        d.iter_mut().zip(p).for_each(|(d, p)| *d = p * (*d - dot));
    }
}

/// Checks the streams `x[T,n·H]` against weights `[T,C]`; returns tokens and `H`.
fn check_streams(op: &'static str, x: usize, w: &[f32], mixing: &Mixing) -> Result<(usize, usize)> {
    check(mixing, op)?;
    let tokens = expect_rows(op, "w", mixing.width(), w.len())?;
    let width = expect_rows(op, "x", tokens, x)?;
    Ok((tokens, expect_rows(op, "x", mixing.streams, width)?))
}

/// The input of a sublayer: `y[t] = Σ_j pre[t,j] · x[t,j]`.
///
/// | arg | shape     | dtype | meaning                 |
/// |-----|-----------|-------|-------------------------|
/// | `y` | `[T,H]`   | `E`   | output                  |
/// | `x` | `[T,n·H]` | `E`   | streams                 |
/// | `w` | `[T,C]`   | f32   | from [`weights`]        |
///
/// # Errors
/// [`Error::Shape`] or [`Error::Size`] if an operand does not fit.
pub fn collapse<E: Element>(cpu: &Cpu, y: &mut [E], x: &[E], w: &[f32], mixing: &Mixing) -> Result<()> {
    const OP: &str = "hyper_connections::collapse";
    let (tokens, h) = check_streams(OP, x.len(), w, mixing)?;
    expect_len(OP, "y", tokens * h, y.len())?;
    let (n, width) = (mixing.streams, mixing.width());
    cpu.for_each_row(tokens, 4, (y, h), |t, y| {
        let x = &x[t * n * h..][..n * h];
        let parts: Vec<(f32, &[E])> = (0..n).map(|j| (w[t * width + j], &x[j * h..][..h])).collect();
        lanes::blend(cpu.isa(), y, &parts);
    });
    Ok(())
}

/// Gradients of [`collapse`]: `dx[T,n·H]`, and `dw[T,C]` f32, which is 0 outside `pre`.
///
/// # Errors
/// As [`collapse`].
pub fn collapse_backward<E: Element>(
    cpu: &Cpu,
    dx: &mut [E],
    dw: &mut [f32],
    dy: &[E],
    x: &[E],
    w: &[f32],
    mixing: &Mixing,
) -> Result<()> {
    const OP: &str = "hyper_connections::collapse_backward";
    let (tokens, h) = check_streams(OP, x.len(), w, mixing)?;
    expect_len(OP, "dx", x.len(), dx.len())?;
    expect_len(OP, "dw", w.len(), dw.len())?;
    expect_len(OP, "dy", tokens * h, dy.len())?;
    let (n, width) = (mixing.streams, mixing.width());
    cpu.for_each_row_of_both(tokens, 4, (dx, n * h), (dw, width), |t, dx, dw| {
        let (x, dy) = (&x[t * n * h..][..n * h], &dy[t * h..][..h]);
        dw.fill(0.0);
        for j in 0..n {
            dw[j] = lanes::dot(cpu.isa(), &x[j * h..][..h], dy);
            lanes::blend(cpu.isa(), &mut dx[j * h..][..h], &[(w[t * width + j], dy)]);
        }
    });
    Ok(())
}

/// The streams after a sublayer: `out[t,k] = post[t,k] · y[t] + Σ_j comb[t,j,k] · x[t,j]`.
///
/// | arg   | shape     | dtype | meaning                            |
/// |-------|-----------|-------|------------------------------------|
/// | `out` | `[T,n·H]` | `E`   | output                             |
/// | `x`   | `[T,n·H]` | `E`   | streams before the sublayer        |
/// | `y`   | `[T,H]`   | `E`   | what the sublayer made             |
/// | `w`   | `[T,C]`   | f32   | from [`weights`], with `comb`      |
///
/// # Errors
/// [`Error::Shape`] or [`Error::Size`] if an operand does not fit.
pub fn expand<E: Element>(
    cpu: &Cpu,
    out: &mut [E],
    x: &[E],
    y: &[E],
    w: &[f32],
    mixing: &Mixing,
) -> Result<()> {
    const OP: &str = "hyper_connections::expand";
    let (tokens, h) = check_streams(OP, x.len(), w, mixing)?;
    expect_all(OP, mixing)?;
    expect_len(OP, "out", x.len(), out.len())?;
    expect_len(OP, "y", tokens * h, y.len())?;
    let (n, width) = (mixing.streams, mixing.width());
    cpu.for_each_row(tokens, 4, (out, n * h), |t, out| {
        let (x, w) = (&x[t * n * h..][..n * h], &w[t * width..][..width]);
        for k in 0..n {
            let output = (w[n + k], &y[t * h..][..h]);
            let streams = (0..n).map(|j| (w[2 * n + j * n + k], &x[j * h..][..h]));
            let parts: Vec<(f32, &[E])> = std::iter::once(output).chain(streams).collect();
            lanes::blend(cpu.isa(), &mut out[k * h..][..h], &parts);
        }
    });
    Ok(())
}

fn expect_all(op: &'static str, mixing: &Mixing) -> Result<()> {
    match mixing.rounds {
        Some(_) => Ok(()),
        None => Err(Error::Size { op, name: "rounds", want: "weights with post and comb", got: 0 }),
    }
}

/// Gradients of [`expand`]: `dx[T,n·H]`, `dy[T,H]`, and `dw[T,C]` f32, which is 0 in `pre`.
///
/// # Errors
/// As [`expand`].
pub fn expand_backward<E: Element>(
    cpu: &Cpu,
    (dx, dy, dw): (&mut [E], &mut [E], &mut [f32]),
    dout: &[E],
    x: &[E],
    y: &[E],
    w: &[f32],
    mixing: &Mixing,
) -> Result<()> {
    const OP: &str = "hyper_connections::expand_backward";
    let (tokens, h) = check_streams(OP, x.len(), w, mixing)?;
    expect_all(OP, mixing)?;
    for (name, len) in [("dx", dx.len()), ("dout", dout.len())] {
        expect_len(OP, name, x.len(), len)?;
    }
    expect_len(OP, "dy", tokens * h, dy.len())?;
    expect_len(OP, "y", tokens * h, y.len())?;
    expect_len(OP, "dw", w.len(), dw.len())?;
    let (n, width, isa) = (mixing.streams, mixing.width(), cpu.isa());
    let stream = |t: usize, j: usize| (t * n + j) * h..(t * n + j + 1) * h;
    cpu.for_each_row_of_both(tokens, 4, (dx, n * h), (dw, width), |t, dx, dw| {
        let w = &w[t * width..][..width];
        dw[..n].fill(0.0);
        for k in 0..n {
            let d = &dout[stream(t, k)];
            dw[n + k] = lanes::dot(isa, d, &y[t * h..][..h]);
            for j in 0..n {
                dw[2 * n + j * n + k] = lanes::dot(isa, d, &x[stream(t, j)]);
            }
        }
        for j in 0..n {
            let parts: Vec<(f32, &[E])> =
                (0..n).map(|k| (w[2 * n + j * n + k], &dout[stream(t, k)])).collect();
            lanes::blend(isa, &mut dx[j * h..][..h], &parts);
        }
    });
    cpu.for_each_row(tokens, 4, (dy, h), |t, dy| {
        let parts: Vec<(f32, &[E])> = (0..n).map(|k| (w[t * width + n + k], &dout[stream(t, k)])).collect();
        lanes::blend(isa, dy, &parts);
    });
    Ok(())
}
