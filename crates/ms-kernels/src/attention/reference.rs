//! The formula for one head, in f64.

use super::{Dropout, Options};

/// One head's operands: `q` `[S,D]`, `k` and `v` `[L,D]`.
pub(crate) struct Head<'a> {
    pub(crate) q: &'a [f64],
    pub(crate) k: &'a [f64],
    pub(crate) v: &'a [f64],
    pub(crate) dim: usize,
    /// Number of the head in its call.
    pub(crate) number: usize,
    /// Which weights count, and the call's token that is query 0.
    pub(crate) dropout: Option<(&'a Dropout<'a>, usize)>,
}

impl Head<'_> {
    fn sizes(&self) -> (usize, usize) {
        (self.q.len() / self.dim, self.k.len() / self.dim)
    }

    /// Scaled and capped score, and its derivative by the scaled one; `None` where the mask hides the key.
    fn score(&self, i: usize, j: usize, o: &Options) -> Option<(f64, f64)> {
        let (s, l) = self.sizes();
        if !super::visible(i, j, s, l, 0, o) {
            return None;
        }
        let (q, k) = (&self.q[i * self.dim..][..self.dim], &self.k[j * self.dim..][..self.dim]);
        let raw: f64 = q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() * f64::from(o.scale);
        let distance = (i + l) as f64 - s as f64 - j as f64;
        let tilt = o.alibi.map_or(0.0, |a| -f64::from(a.slope(self.number) as f32) * distance);
        Some(match o.softcap {
            None => (raw + tilt, 1.0),
            Some(cap) => {
                let t = (raw / f64::from(cap)).tanh();
                (f64::from(cap) * t + tilt, 1.0 - t * t)
            }
        })
    }

    /// What the weight of a key is multiplied by.
    fn factor(&self, i: usize, j: usize) -> f64 {
        let (s, l) = self.sizes();
        let distance = (i + l) as i64 - s as i64 - j as i64;
        self.dropout.map_or(1.0, |(d, start)| d.factor(start + i, self.number, distance))
    }

    /// Output `[S,D]` and log-sum-exp `[S]`.
    pub(crate) fn forward(&self, o: &Options) -> (Vec<f64>, Vec<f64>) {
        let (s, l) = self.sizes();
        let (mut out, mut lse) = (vec![0.0; s * self.dim], vec![f64::NEG_INFINITY; s]);
        for i in 0..s {
            let scores: Vec<(usize, f64)> =
                (0..l).filter_map(|j| self.score(i, j, o).map(|(x, _)| (j, x))).collect();
            let max = scores.iter().fold(f64::NEG_INFINITY, |m, &(_, x)| m.max(x));
            if scores.is_empty() {
                continue;
            }
            let sum: f64 = scores.iter().map(|&(_, x)| (x - max).exp()).sum();
            lse[i] = max + sum.ln();
            for &(j, x) in &scores {
                for d in 0..self.dim {
                    out[i * self.dim + d] +=
                        (x - lse[i]).exp() * self.factor(i, j) * self.v[j * self.dim + d];
                }
            }
        }
        (out, lse)
    }

    /// Gradients of `q`, `k` and `v` for the gradient `dout` `[S,D]` of the output.
    pub(crate) fn backward(&self, dout: &[f64], o: &Options) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let ((s, l), dim) = (self.sizes(), self.dim);
        let (out, lse) = self.forward(o);
        let (mut dq, mut dk, mut dv) = (vec![0.0; s * dim], vec![0.0; l * dim], vec![0.0; l * dim]);
        for i in 0..s {
            let g = &dout[i * dim..][..dim];
            let delta: f64 = g.iter().zip(&out[i * dim..]).map(|(a, b)| a * b).sum();
            for j in 0..l {
                let Some((x, slope)) = self.score(i, j, o) else { continue };
                let p = (x - lse[i]).exp();
                let dp: f64 = g.iter().zip(&self.v[j * dim..]).map(|(a, b)| a * b).sum();
                let m = self.factor(i, j);
                let ds = p * (m * dp - delta) * slope * f64::from(o.scale);
                for d in 0..dim {
                    dq[i * dim + d] += ds * self.k[j * dim + d];
                    dk[j * dim + d] += ds * self.q[i * dim + d];
                    dv[j * dim + d] += m * p * g[d];
                }
            }
        }
        (dq, dk, dv)
    }
}
