//! The short causal convolution before a recurrent layer, followed by SiLU.

#[cfg(test)]
mod tests;

use crate::activation::{Activation, body::at};
use crate::attention::Segment;
use crate::error::{expect_len, expect_rows};
use crate::{Cpu, Error, Result};

/// First token of each token's document, for `tokens` tokens.
///
/// # Errors
/// [`Error::Segments`] unless the segments cover the tokens in order, without gap.
fn starts(op: &'static str, segments: &[Segment], tokens: usize) -> Result<Vec<u32>> {
    let mut starts = Vec::with_capacity(tokens);
    for (index, s) in segments.iter().enumerate() {
        if s.q_start != starts.len() {
            return Err(Error::Segments { op, name: "query", index, start: s.q_start, end: starts.len() });
        }
        starts.resize(s.q_start + s.q_len, s.q_start as u32);
    }
    if starts.len() == tokens {
        return Ok(starts);
    }
    Err(Error::Shape { op, name: "segments' query tokens", want: tokens, got: starts.len() })
}

/// A call's operands: `x[T,C]`, `w[C,W]`, `b[C]` or empty, and the documents.
///
/// `history[S,W-1,C]` holds what came before each document's first token (empty: zeros).
#[derive(Clone, Copy, Debug)]
pub struct Convolution<'a> {
    /// Input, `[T,C]` f32.
    pub x: &'a [f32],
    /// Taps, `[C,W]` f32; the last one multiplies the token itself.
    pub w: &'a [f32],
    /// Bias `[C]` f32, or empty.
    pub b: &'a [f32],
    /// Inputs before each document, `[S,W-1,C]` f32, or empty for zeros.
    pub history: &'a [f32],
    /// Documents, covering the tokens in order.
    pub segments: &'a [Segment],
    /// Channels `C`.
    pub channels: usize,
}

impl Convolution<'_> {
    fn check(&self, op: &'static str) -> Result<(usize, usize)> {
        let tokens = expect_rows(op, "x", self.channels, self.x.len())?;
        let taps = self.w.len().checked_div(self.channels).unwrap_or(0);
        expect_len(op, "w", self.channels * taps.max(1), self.w.len())?;
        if !self.b.is_empty() {
            expect_len(op, "b", self.channels, self.b.len())?;
        }
        if !self.history.is_empty() {
            expect_len(op, "history", self.segments.len() * (taps - 1) * self.channels, self.history.len())?;
        }
        Ok((tokens, taps))
    }

    /// The sum in front of the activation, at token `t` of the document that starts at `start`.
    fn sum(&self, out: &mut [f32], t: usize, start: usize, segment: usize, taps: usize) {
        let c = self.channels;
        if self.b.is_empty() {
            out.fill(0.0);
        } else {
            out.copy_from_slice(self.b);
        }
        for k in 0..taps {
            let back = taps - 1 - k;
            let row = if t >= start + back {
                &self.x[(t - back) * c..][..c]
            } else if self.history.is_empty() {
                continue;
            } else {
                // Row `taps − 1 − i` of the history is `i` tokens before the document.
                let before = back - (t - start);
                &self.history[(segment * (taps - 1) + taps - 1 - before) * c..][..c]
            };
            for (i, o) in out.iter_mut().enumerate() {
                *o += self.w[i * taps + k] * row[i];
            }
        }
    }
}

const STEP: usize = 16;

/// `y[t,c] = silu(b[c] + Σ_k w[c,k] · x[t−W+1+k,c])`, over the tokens of a document.
///
/// `y` is `[T,C]` f32.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit, [`Error::Segments`] if the documents do not cover the tokens.
///
/// # Source
/// Gu and Dao, arXiv:2312.00752, section 3.4.
pub fn forward(cpu: &Cpu, y: &mut [f32], call: &Convolution<'_>) -> Result<()> {
    const OP: &str = "convolution::forward";
    let (tokens, taps) = call.check(OP)?;
    expect_len(OP, "y", call.x.len(), y.len())?;
    let starts = starts(OP, call.segments, tokens)?;
    let segment_of = |t: usize| call.segments.partition_point(|s| s.q_start + s.q_len <= t);
    cpu.for_each_row(tokens, STEP, (y, call.channels), |t, y| {
        call.sum(y, t, starts[t] as usize, segment_of(t), taps);
        y.iter_mut().for_each(|v| *v = at(Activation::Silu, *v).0);
    });
    Ok(())
}

/// Gradients of [`forward`] without history: `dx[T,C]` is written, `dw[C,W]` and `db[C]` (or empty) are added to.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    cpu: &Cpu,
    dx: &mut [f32],
    dw: &mut [f32],
    db: &mut [f32],
    dy: &[f32],
    call: &Convolution<'_>,
) -> Result<()> {
    const OP: &str = "convolution::backward";
    let (tokens, taps) = call.check(OP)?;
    let c = call.channels;
    expect_len(OP, "dx", call.x.len(), dx.len())?;
    expect_len(OP, "dy", call.x.len(), dy.len())?;
    expect_len(OP, "dw", call.w.len(), dw.len())?;
    expect_len(OP, "db", call.b.len(), db.len())?;
    expect_len(OP, "history", 0, call.history.len())?;
    let starts = starts(OP, call.segments, tokens)?;
    // By the sums in front of the activation.
    let mut inner = vec![0f32; call.x.len()];
    cpu.for_each_row(tokens, STEP, (&mut inner, c), |t, d| {
        call.sum(d, t, starts[t] as usize, 0, taps);
        d.iter_mut().zip(&dy[t * c..]).for_each(|(d, g)| *d = g * at(Activation::Silu, *d).1);
    });
    cpu.for_each_row(tokens, STEP, (dx, c), |t, dx| {
        dx.fill(0.0);
        for k in 0..taps {
            let later = t + taps - 1 - k;
            if later < tokens && starts[later] == starts[t] {
                for (i, d) in dx.iter_mut().enumerate() {
                    *d += call.w[i * taps + k] * inner[later * c + i];
                }
            }
        }
    });
    cpu.sum_rows(dw, tokens, |t, sum| {
        for k in 0..taps {
            let back = taps - 1 - k;
            if t >= starts[t] as usize + back {
                let row = &call.x[(t - back) * c..][..c];
                for i in 0..c {
                    sum[i * taps + k] += inner[t * c + i] * row[i];
                }
            }
        }
    });
    if !db.is_empty() {
        cpu.sum_rows(db, tokens, |t, sum| sum.iter_mut().zip(&inner[t * c..]).for_each(|(s, d)| *s += d));
    }
    Ok(())
}

/// What the next call's history is: the last `W − 1` inputs of each document, `[S,W-1,C]`.
///
/// # Errors
/// As [`forward`].
pub fn last_inputs(call: &Convolution<'_>) -> Result<Vec<f32>> {
    const OP: &str = "convolution::last_inputs";
    let (tokens, taps) = call.check(OP)?;
    starts(OP, call.segments, tokens)?;
    let c = call.channels;
    let mut out = vec![0f32; call.segments.len() * (taps - 1) * c];
    for (s, segment) in call.segments.iter().enumerate() {
        for row in 0..taps - 1 {
            let to = &mut out[(s * (taps - 1) + row) * c..][..c];
            let before = taps - 1 - row; // this many tokens before the next one
            if segment.q_len >= before {
                to.copy_from_slice(&call.x[(segment.q_start + segment.q_len - before) * c..][..c]);
            } else if !call.history.is_empty() {
                to.copy_from_slice(&call.history[(s * (taps - 1) + row + segment.q_len) * c..][..c]);
            }
        }
    }
    Ok(out)
}
