//! Connectionist temporal classification: Graves et al., "Connectionist Temporal Classification" (ICML 2006), section 4.

use super::Row;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::Values;

fn log_add(a: f64, b: f64) -> f64 {
    let m = a.max(b);
    if m == f64::NEG_INFINITY { m } else { m + ((a - m).exp() + (b - m).exp()).ln() }
}

/// One batch of log probabilities `[T,N,C]` with labels.
struct Batch {
    log: Vec<f64>,
    n: usize,
    c: usize,
    steps: usize,
    lengths: Vec<i64>,
    labels: Vec<Vec<usize>>,
    blank: usize,
}

impl Batch {
    fn new(k: &Call) -> Result<Batch, Fault> {
        let d = &k.t("logProbs")?.dims;
        let (steps, n, c) = (d[0] as usize, d[1] as usize, d[2] as usize);
        let counts = k.ints("targetlengths|targetLengths")?;
        let flat = k.load("targets")?.ints();
        let stacked = k.t("targets")?.dims.len() == 2;
        let width = if stacked { k.t("targets")?.dims[1] as usize } else { 0 };
        let mut start = 0;
        let mut labels = Vec::new();
        for (i, count) in counts.iter().enumerate() {
            let at = if stacked { i * width } else { start };
            labels.push(flat[at..at + *count as usize].iter().map(|l| *l as usize).collect());
            start += *count as usize;
        }
        let (lengths, blank) = (k.ints("inputLengths")?, k.int("blank")? as usize);
        Ok(Batch { log: k.f("logProbs")?, n, c, steps, lengths, labels, blank })
    }

    fn p(&self, t: usize, b: usize, symbol: usize) -> f64 {
        self.log[(t * self.n + b) * self.c + symbol]
    }

    /// Labels with blanks around each.
    fn path(&self, b: usize) -> Vec<usize> {
        let mut out = vec![self.blank];
        self.labels[b].iter().for_each(|l| out.extend([*l, self.blank]));
        out
    }

    /// Logarithms of the sums over all beginnings of paths, by step and state.
    fn alpha(&self, b: usize) -> Vec<Vec<f64>> {
        let path = self.path(b);
        let mut all: Vec<Vec<f64>> = Vec::new();
        for t in 0..self.lengths[b] as usize {
            let one = |s: usize| {
                let Some(before) = all.last() else {
                    return if s < 2 { self.p(0, b, path[s]) } else { f64::NEG_INFINITY };
                };
                let mut v = before[s];
                if s > 0 {
                    v = log_add(v, before[s - 1]);
                }
                if s > 1 && path[s] != self.blank && path[s] != path[s - 2] {
                    v = log_add(v, before[s - 2]);
                }
                v + self.p(t, b, path[s])
            };
            let row = (0..path.len()).map(one).collect();
            all.push(row);
        }
        all
    }

    fn loss(&self, alpha: &[Vec<f64>]) -> f64 {
        let Some(last) = alpha.last() else { return f64::INFINITY };
        let n = last.len();
        -if n > 1 { log_add(last[n - 1], last[n - 2]) } else { last[0] }
    }
}

fn forward(k: &Call) -> Outcome {
    let b = Batch::new(k)?;
    let view = k.t("logAlphaOut")?;
    let width = *view.dims.last().unwrap_or(&1) as usize;
    let rows = view.numel() / (b.n * width).max(1);
    let mut all = vec![f64::NEG_INFINITY; view.numel()];
    let mut loss = Vec::new();
    let zero = k.flag("zeroInfinity")?;
    for i in 0..b.n {
        let alpha = b.alpha(i);
        for (t, row) in alpha.iter().enumerate().take(rows) {
            for (s, v) in row.iter().enumerate().take(width) {
                all[(i * rows + t) * width + s] = *v;
            }
        }
        let v = b.loss(&alpha);
        loss.push(if zero && v.is_infinite() { 0.0 } else { v });
    }
    k.put("negLogLikelihoodOut", &Values::F(loss))?;
    k.put("logAlphaOut", &Values::F(all))
}

fn backward(k: &Call) -> Outcome {
    let b = Batch::new(k)?;
    let g = k.f("gradOut")?;
    let zero = k.flag("zeroInfinity")?;
    let mut dx = vec![0.0; b.steps * b.n * b.c];
    for i in 0..b.n {
        let (path, alpha) = (b.path(i), b.alpha(i));
        let loss = b.loss(&alpha);
        if zero && loss.is_infinite() {
            continue;
        }
        let (len, n) = (alpha.len(), path.len());
        let mut beta = vec![f64::NEG_INFINITY; n];
        for t in (0..len).rev() {
            // Sums over all endings, this step's symbol included.
            let next: Vec<f64> = (0..n)
                .map(|s| {
                    let p = b.p(t, i, path[s]);
                    if t == len - 1 {
                        return if s + 2 >= n { p } else { f64::NEG_INFINITY };
                    }
                    let mut v = beta[s];
                    if s + 1 < n {
                        v = log_add(v, beta[s + 1]);
                    }
                    if s + 2 < n && path[s + 2] != b.blank && path[s + 2] != path[s] {
                        v = log_add(v, beta[s + 2]);
                    }
                    v + p
                })
                .collect();
            beta = next;
            let mut sums = vec![f64::NEG_INFINITY; b.c];
            for s in 0..n {
                sums[path[s]] = log_add(sums[path[s]], alpha[t][s] + beta[s]);
            }
            for (c, sum) in sums.iter().enumerate() {
                let p = b.p(t, i, c);
                dx[(t * b.n + i) * b.c + c] = (p.exp() - (sum + loss - p).exp()) * g[i];
            }
        }
    }
    k.put("out", &Values::F(dx))
}

pub(super) static OPS: &[Row] = &[
    ("CtcLoss", "logProbs:FD targets:L rank(logProbs,3)", forward),
    ("CtcLossBackward", "gradOut:FD logProbs:FD rank(logProbs,3)", backward),
];
