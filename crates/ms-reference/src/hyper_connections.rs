//! Hyper-connections: a residual with several streams.

use crate::Reference;
use crate::operand::{expect, reals};
use crate::tape::{Real, gradient, sum};
use ms_core::{HyperConnectionsBackend, Mixing, Result, Tensor};

/// Divides the lines of `m[n,n]`, rows or `columns`, by their sums plus `eps`.
fn divide<R: Real>(m: &mut [R], n: usize, columns: bool, eps: f64) {
    for i in 0..n {
        let at = |j: usize| if columns { j * n + i } else { i * n + j };
        let total = sum((0..n).map(|j| m[at(j)])) + R::from(eps);
        (0..n).for_each(|j| m[at(j)] = m[at(j)] / total);
    }
}

/// Weights `[T,C]`: with `z = scale · mixes + base`, `pre = σ(z) + eps`, `post = 2 σ(z)`, and `comb` the softmax of each row
/// of `z` plus eps, whose columns, then in turn rows and columns, are divided by their sums.
fn weights<R: Real>(mixes: &[R], base: &[R], scale: &[R], mixing: &Mixing) -> Vec<R> {
    let (n, eps) = (mixing.streams, mixing.eps);
    let row = |mixes: &[R]| {
        let z: Vec<R> = (0..base.len()).map(|c| scale[(c / n).min(2)] * mixes[c] + base[c]).collect();
        let mut w: Vec<R> = z[..n].iter().map(|z| z.sigmoid() + R::from(eps)).collect();
        let Some(rounds) = mixing.rounds else { return w };
        w.extend(z[n..2 * n].iter().map(|z| R::from(2.0) * z.sigmoid()));
        let mut comb = Vec::with_capacity(n * n);
        for row in z[2 * n..].chunks_exact(n) {
            let max = row.iter().map(|z| z.value()).fold(f64::NEG_INFINITY, f64::max);
            let e: Vec<R> = row.iter().map(|&z| (z - R::from(max)).exp()).collect();
            let total = sum(e.iter().copied());
            comb.extend(e.iter().map(|&e| e / total + R::from(eps)));
        }
        divide(&mut comb, n, true, eps);
        for _ in 1..rounds {
            divide(&mut comb, n, false, eps);
            divide(&mut comb, n, true, eps);
        }
        w.extend(comb);
        w
    };
    mixes.chunks_exact(base.len()).flat_map(row).collect()
}

/// `y[t] = Σ_j pre[t,j] · x[t,j]`.
fn collapse<R: Real>(x: &[R], w: &[R], tokens: usize, mixing: &Mixing) -> Vec<R> {
    let (n, width) = (mixing.streams, mixing.width());
    let h = x.len() / (tokens * n).max(1);
    let each = (0..tokens).flat_map(|t| (0..h).map(move |i| (t, i)));
    each.map(|(t, i)| sum((0..n).map(|j| w[t * width + j] * x[(t * n + j) * h + i]))).collect()
}

/// `out[t,k] = post[t,k] · y[t] + Σ_j comb[t,j,k] · x[t,j]`.
fn expand<R: Real>(x: &[R], y: &[R], w: &[R], tokens: usize, mixing: &Mixing) -> Vec<R> {
    let (n, width) = (mixing.streams, mixing.width());
    let h = y.len() / tokens.max(1);
    let mut out = Vec::with_capacity(x.len());
    for t in 0..tokens {
        let w = &w[t * width..][..width];
        for k in 0..n {
            for i in 0..h {
                let streams = sum((0..n).map(|j| w[2 * n + j * n + k] * x[(t * n + j) * h + i]));
                out.push(w[n + k] * y[t * h + i] + streams);
            }
        }
    }
    out
}

impl HyperConnectionsBackend for Reference {
    fn stream_weights(
        &self,
        mixes: &Tensor,
        base: &Tensor,
        scale: &Tensor,
        mixing: &Mixing,
    ) -> Result<Tensor> {
        expect("stream_weights", "base", base, &[mixing.width()])?;
        expect("stream_weights", "scale", scale, &[mixing.scales()])?;
        self.give_as(mixes, &weights(reals(mixes)?, reals(base)?, reals(scale)?, mixing))
    }

    fn stream_weights_backward(
        &self,
        dw: &Tensor,
        mixes: &Tensor,
        base: &Tensor,
        scale: &Tensor,
        mixing: &Mixing,
    ) -> Result<(Tensor, Tensor)> {
        let [dmixes, dbase, dscale] =
            gradient([reals(mixes)?, reals(base)?, reals(scale)?], reals(dw)?, |[mixes, base, scale]| {
                weights(mixes, base, scale, mixing)
            });
        let fixed = [dbase, dscale].concat();
        Ok((self.give_as(mixes, &dmixes)?, self.give(&[fixed.len()], &fixed)?))
    }

    fn collapse(&self, x: &Tensor, w: &Tensor, mixing: &Mixing) -> Result<Tensor> {
        let (tokens, width) = x.as_matrix();
        expect("collapse", "w", w, &[tokens, mixing.width()])?;
        self.give(&[tokens, width / mixing.streams], &collapse(reals(x)?, reals(w)?, tokens, mixing))
    }

    fn collapse_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        mixing: &Mixing,
    ) -> Result<(Tensor, Tensor)> {
        let tokens = x.as_matrix().0;
        let [dx, dw] = gradient([reals(x)?, reals(w)?], reals(dy)?, |[x, w]| collapse(x, w, tokens, mixing));
        Ok((self.give_as(x, &dx)?, self.give_as(w, &dw)?))
    }

    fn expand(&self, x: &Tensor, y: &Tensor, w: &Tensor, mixing: &Mixing) -> Result<Tensor> {
        let tokens = x.as_matrix().0;
        expect("expand", "w", w, &[tokens, mixing.width()])?;
        self.give_as(x, &expand(reals(x)?, reals(y)?, reals(w)?, tokens, mixing))
    }

    fn expand_backward(
        &self,
        dout: &Tensor,
        x: &Tensor,
        y: &Tensor,
        w: &Tensor,
        mixing: &Mixing,
    ) -> Result<[Tensor; 3]> {
        let tokens = x.as_matrix().0;
        let [dx, dy, dw] = gradient([reals(x)?, reals(y)?, reals(w)?], reals(dout)?, |[x, y, w]| {
            expand(x, y, w, tokens, mixing)
        });
        Ok([self.give_as(x, &dx)?, self.give_as(y, &dy)?, self.give_as(w, &dw)?])
    }
}
