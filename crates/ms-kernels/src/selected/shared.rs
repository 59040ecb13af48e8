//! Attention over picked rows that are both key and value, shared by all heads (DeepSeek-V4).

use super::{check_picks, row, score, soften};
use crate::cpu::Disjoint;
use crate::error::{expect_len, expect_rows};
use crate::float::ln;
use crate::{Cpu, Element, Result, lanes};

/// The rows that queries see, in two runs: picks count on from the first into the second.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a, E> {
    /// Rows of tokens, `[A,D]`.
    pub near: &'a [E],
    /// Rows of pooled entries, `[B,D]`.
    pub far: &'a [E],
    /// Elements of a row, `D`.
    pub dim: usize,
}

impl<'a, E> Shared<'a, E> {
    fn rows(&self, op: &'static str) -> Result<usize> {
        let near = expect_rows(op, "near", self.dim, self.near.len())?;
        Ok(near + expect_rows(op, "far", self.dim, self.far.len())?)
    }

    fn row(&self, j: usize) -> &'a [E] {
        let (at, near) = (j * self.dim, self.near.len());
        if at < near { &self.near[at..at + self.dim] } else { &self.far[at - near..at - near + self.dim] }
    }
}

/// Attention of every query over its picked rows.
///
/// | arg     | shape     | dtype | meaning                                                   |
/// |---------|-----------|-------|-----------------------------------------------------------|
/// | `out`   | `[T,N·D]` | `E`   | output; 0 for a query without picks                       |
/// | `lse`   | `[N,T]`   | f32   | log of each softmax's denominator, kept for [`backward`]  |
/// | `q`     | `[T,N·D]` | `E`   | queries                                                   |
/// | `keys`  | -         | `E`   | rows that are key and value                               |
/// | `picks` | `[T,P]`   | i32   | rows of `keys`, or [`super::NONE`]                        |
/// | `scale` | -         | f32   | factor on `q · k`                                         |
///
/// # Errors
/// [`crate::Error::Shape`] or [`crate::Error::Range`] if an operand does not fit.
///
/// # Source
/// DeepSeek-V4 in transformers 5.23, `modeling_deepseek_v4.py`.
pub fn forward<E: Element>(
    cpu: &Cpu,
    out: &mut [E],
    lse: &mut [f32],
    q: &[E],
    keys: Shared<'_, E>,
    heads: usize,
    picks: &[i32],
    places: usize,
    scale: f32,
) -> Result<()> {
    const OP: &str = "selected::shared::forward";
    let dim = keys.dim;
    let tokens = expect_rows(OP, "q", heads * dim, q.len())?;
    expect_len(OP, "out", q.len(), out.len())?;
    expect_len(OP, "lse", heads * tokens, lse.len())?;
    check_picks(OP, picks, places, tokens, keys.rows(OP)?)?;
    let lse = Disjoint::new(lse);
    cpu.for_each_row(tokens, 1, (out, heads * dim), |t, out| {
        let mut parts: Vec<(f32, &[E])> = row(picks, places, t).map(|j| (0.0, keys.row(j))).collect();
        let mut scores = Vec::with_capacity(parts.len());
        for (n, out) in out.chunks_exact_mut(dim.max(1)).enumerate() {
            let query = &q[(t * heads + n) * dim..][..dim];
            let (max, sum) = soften(cpu.isa(), query, parts.iter().map(|(_, key)| *key), &mut scores, scale);
            parts.iter_mut().zip(&scores).for_each(|((p, _), score)| *p = score / sum);
            lanes::blend(cpu.isa(), out, &parts);
            // SAFETY: a unit takes its own heads of its own tokens.
            (unsafe { lse.part(n * tokens + t, 1) })[0] = (f64::from(max) + ln(f64::from(sum))) as f32;
        }
    });
    Ok(())
}

/// Tokens whose probabilities are held at the same time.
const TOKENS: usize = 32;
/// Columns of the rows' gradients that a unit sums.
const COLUMNS: usize = 64;

/// Gradients of [`forward`] with respect to queries and rows; `out` and `lse` may have sinks in them.
///
/// | arg             | shape          | dtype | meaning                      |
/// |-----------------|----------------|-------|------------------------------|
/// | `dq`            | `[T,N·D]`      | `E`   | output                       |
/// | `dkeys`         | `[A + B,D]`    | f32   | output, added to             |
/// | `dout`, `out`   | `[T,N·D]`      | `E`   | gradient and value           |
///
/// Sums run over rising tokens and heads.
///
/// # Errors
/// As [`forward`].
pub fn backward<E: Element>(
    cpu: &Cpu,
    (dq, dkeys): (&mut [E], &mut [f32]),
    dout: &[E],
    q: &[E],
    (out, lse): (&[E], &[f32]),
    keys: Shared<'_, E>,
    heads: usize,
    picks: &[i32],
    places: usize,
    scale: f32,
) -> Result<()> {
    const OP: &str = "selected::shared::backward";
    let (dim, count) = (keys.dim, keys.rows(OP)?);
    let tokens = expect_rows(OP, "q", heads * dim, q.len())?;
    for (name, len) in [("dq", dq.len()), ("dout", dout.len()), ("out", out.len())] {
        expect_len(OP, name, q.len(), len)?;
    }
    expect_len(OP, "lse", heads * tokens, lse.len())?;
    expect_len(OP, "dkeys", count * dim, dkeys.len())?;
    check_picks(OP, picks, places, tokens, count)?;
    let (dq, dkeys) = (Disjoint::new(dq), Disjoint::new(dkeys));
    let width = heads * places;
    // For each head and pick: the gradient of the score, and the probability.
    let mut held = vec![(0f32, 0f32); TOKENS.min(tokens) * width];
    for first in (0..tokens).step_by(TOKENS) {
        let n = TOKENS.min(tokens - first);
        cpu.for_each_row(n, 1, (&mut held, width), |u, held| {
            let t = first + u;
            let picked: Vec<&[E]> = row(picks, places, t).map(|j| keys.row(j)).collect();
            let mut scores = Vec::with_capacity(picked.len());
            for head in 0..heads {
                let at = (t * heads + head) * dim;
                let (query, dout, out) = (&q[at..][..dim], &dout[at..][..dim], &out[at..][..dim]);
                let delta = lanes::dot(cpu.isa(), dout, out);
                let mut parts = Vec::with_capacity(picked.len());
                score(cpu.isa(), query, picked.iter().copied(), &mut scores, scale);
                lanes::exponentials(cpu.isa(), &mut scores, lse[head * tokens + t]);
                for (i, (&key, &p)) in picked.iter().zip(&scores).enumerate() {
                    let ds = p * (lanes::dot(cpu.isa(), dout, key) - delta) * scale;
                    held[head * places + i] = (ds, p);
                    parts.push((ds, key));
                }
                // SAFETY: a unit takes its own tokens.
                lanes::blend(cpu.isa(), unsafe { dq.part(at, dim) }, &parts);
            }
        });
        cpu.for_each_unit(dim.div_ceil(COLUMNS), |u| {
            let columns = u * COLUMNS..dim.min((u + 1) * COLUMNS);
            for (t, held) in (first..first + n).zip(held.chunks_exact(width.max(1))) {
                for head in 0..heads {
                    let at = (t * heads + head) * dim;
                    let (query, dout) = (&q[at..][columns.clone()], &dout[at..][columns.clone()]);
                    for (j, &(ds, p)) in row(picks, places, t).zip(&held[head * places..]) {
                        // SAFETY: a unit takes its own columns.
                        let to = unsafe { dkeys.part(j * dim + columns.start, columns.len()) };
                        lanes::add_two(cpu.isa(), to, (ds, query), (p, dout));
                    }
                }
            }
        });
    }
    Ok(())
}
