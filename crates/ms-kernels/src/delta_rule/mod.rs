//! The gated delta rule of Gated DeltaNet, as a scan.

#[cfg(test)]
mod tests;

use crate::attention::Segment;
use crate::cpu::Disjoint;
use crate::error::{expect_len, expect_rows};
use crate::isa::instances;
use crate::state_space::expect_covered;
use crate::{Cpu, Error, Result};

/// Sizes of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Key heads `G`.
    pub key_heads: usize,
    /// Value heads `N`, a multiple of the key heads; head `n` uses key head `n·G/N`.
    pub value_heads: usize,
    /// Size of a key `K`.
    pub key_dim: usize,
    /// Size of a value `V`.
    pub value_dim: usize,
}

/// Operands of a scan, all f32.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// Queries `[T,G·K]`; normalised to length 1 and scaled by `K^-1/2` inside.
    pub q: &'a [f32],
    /// Keys `[T,G·K]`; normalised to length 1 inside.
    pub k: &'a [f32],
    /// Values `[T,N·V]`.
    pub v: &'a [f32],
    /// Logarithm of the decay, `[T,N]`, not above 0.
    pub g: &'a [f32],
    /// Writing strength, `[T,N]`.
    pub beta: &'a [f32],
    /// Documents, covering the tokens in order.
    pub segments: &'a [Segment],
    /// Sizes.
    pub shape: Shape,
}

/// Gradients of a scan's operands, in the shapes of [`Scan`]; all are written.
#[derive(Debug)]
#[allow(missing_docs)] // each is the gradient of the operand of its name
pub struct Gradients<'a> {
    pub q: &'a mut [f32],
    pub k: &'a mut [f32],
    pub v: &'a mut [f32],
    pub g: &'a mut [f32],
    pub beta: &'a mut [f32],
}

/// Added to the squared length of queries and keys.
const EPS: f32 = 1e-6;

mod body {
    /// `state = decay · state`, `written = beta · (v − stateᵀ k)`, `state += k ⊗ written`, `y = stateᵀ q`.
    #[inline(always)]
    pub(super) fn advance(
        state: &mut [f32],
        y: &mut [f32],
        written: &mut [f32],
        (q, k, v): (&[f32], &[f32], &[f32]),
        decay: f32,
        beta: f32,
    ) {
        let n = v.len();
        written.fill(0.0);
        for (row, &k) in state.chunks_exact_mut(n).zip(k) {
            for i in 0..n {
                row[i] *= decay;
                written[i] += row[i] * k;
            }
        }
        for i in 0..n {
            written[i] = beta * (v[i] - written[i]);
        }
        y.fill(0.0);
        for ((row, &k), &q) in state.chunks_exact_mut(n).zip(k).zip(q) {
            for i in 0..n {
                row[i] += k * written[i];
                y[i] += row[i] * q;
            }
        }
    }

    /// One step back. `d` is the gradient by the state after the step without this token's output, on return by the
    /// state before it; `before` is that state. Returns the gradients by the decay's logarithm and by `beta`.
    #[inline(always)]
    pub(super) fn retreat(
        d: &mut [f32],
        before: &[f32],
        (dq, dk, dv): (&mut [f32], &mut [f32], &mut [f32]),
        scratch: &mut [f32],
        dy: &[f32],
        (q, k, v): (&[f32], &[f32], &[f32]),
        decay: f32,
        beta: f32,
    ) -> (f32, f32) {
        let n = v.len();
        let (error, rest) = scratch.split_at_mut(n); // v − stateᵀ k
        let dwritten = &mut rest[..n];
        error.fill(0.0);
        dwritten.fill(0.0);
        for (row, &k) in before.chunks_exact(n).zip(k) {
            for i in 0..n {
                error[i] += decay * row[i] * k;
            }
        }
        for i in 0..n {
            error[i] = v[i] - error[i];
        }
        for (((row, old), (&k, &q)), dq) in
            d.chunks_exact_mut(n).zip(before.chunks_exact(n)).zip(k.iter().zip(q)).zip(dq.iter_mut())
        {
            let mut along = 0.0;
            for i in 0..n {
                row[i] += q * dy[i];
                along += (decay * old[i] + k * beta * error[i]) * dy[i];
                dwritten[i] += row[i] * k;
            }
            *dq = along;
        }
        let mut dbeta = 0.0;
        for i in 0..n {
            dbeta += dwritten[i] * error[i];
            dv[i] = beta * dwritten[i];
        }
        let mut dg = 0.0;
        for (((row, old), &k), dk) in
            d.chunks_exact_mut(n).zip(before.chunks_exact(n)).zip(k).zip(dk.iter_mut())
        {
            let mut along = 0.0;
            for i in 0..n {
                along += row[i] * beta * error[i] - decay * old[i] * dv[i];
                row[i] -= k * dv[i];
                dg += row[i] * decay * old[i];
                row[i] *= decay;
            }
            *dk = along;
        }
        (dg, dbeta)
    }
}

instances! {
    fn advance(
        state: &mut [f32], y: &mut [f32], written: &mut [f32], qkv: (&[f32], &[f32], &[f32]), decay: f32, beta: f32,
    ) = body::advance;
    fn retreat(
        d: &mut [f32], before: &[f32], grads: (&mut [f32], &mut [f32], &mut [f32]), scratch: &mut [f32],
        dy: &[f32], qkv: (&[f32], &[f32], &[f32]), decay: f32, beta: f32,
    ) -> (f32, f32) = body::retreat;
}

/// `out = factor · x / sqrt(Σ x² + eps)`; returns the reciprocal root.
fn unit(out: &mut [f32], x: &[f32], factor: f32) -> f32 {
    let r = 1.0 / (x.iter().map(|v| v * v).sum::<f32>() + EPS).sqrt();
    out.iter_mut().zip(x).for_each(|(o, v)| *o = factor * r * v);
    r
}

/// Gradient of [`unit`] by `x`, added to `dx`.
fn unit_backward(dx: &mut [f32], dout: &[f32], x: &[f32], factor: f32) {
    let r = 1.0 / (x.iter().map(|v| v * v).sum::<f32>() + EPS).sqrt();
    let along: f32 = dout.iter().zip(x).map(|(d, v)| d * v).sum();
    for ((o, d), v) in dx.iter_mut().zip(dout).zip(x) {
        *o += factor * r * (d - v * r * r * along);
    }
}

impl<'a> Scan<'a> {
    fn check(&self, op: &'static str) -> Result<usize> {
        let Shape { key_heads, value_heads, key_dim, value_dim } = self.shape;
        if key_heads == 0 || !value_heads.is_multiple_of(key_heads) {
            return Err(Error::Size {
                op,
                name: "key heads",
                want: "a divisor of the value heads",
                got: key_heads,
            });
        }
        let tokens = expect_rows(op, "v", value_heads * value_dim, self.v.len())?;
        expect_len(op, "q", tokens * key_heads * key_dim, self.q.len())?;
        expect_len(op, "k", tokens * key_heads * key_dim, self.k.len())?;
        expect_len(op, "g", tokens * value_heads, self.g.len())?;
        expect_len(op, "beta", tokens * value_heads, self.beta.len())?;
        expect_covered(op, self.segments, tokens)?;
        Ok(tokens)
    }

    fn key(&self, of: &'a [f32], t: usize, n: usize) -> &'a [f32] {
        let Shape { key_heads, value_heads, key_dim, .. } = self.shape;
        &of[(t * key_heads + n * key_heads / value_heads) * key_dim..][..key_dim]
    }

    fn value(&self, of: &'a [f32], t: usize, n: usize) -> &'a [f32] {
        let Shape { value_heads, value_dim, .. } = self.shape;
        &of[(t * value_heads + n) * value_dim..][..value_dim]
    }

    fn scale(&self) -> f32 {
        1.0 / (self.shape.key_dim as f32).sqrt()
    }
}

/// `S_t = e^{g_t} S_{t−1} + k_t ⊗ β_t (v_t − (e^{g_t} S_{t−1})ᵀ k_t)`, `y_t = S_tᵀ q_t`.
///
/// | arg      | shape       | dtype | meaning                                                       |
/// |----------|-------------|-------|---------------------------------------------------------------|
/// | `y`      | `[T,N·V]`   | f32   | output                                                        |
/// | `states` | `[D,N,K,V]` | f32   | state of each document: read as the one before it, replaced by the one after it; empty: zeros, dropped |
///
/// # Errors
/// [`Error::Shape`], [`Error::Size`] or [`Error::Segments`] if an operand does not fit.
///
/// # Source
/// Yang et al., arXiv:2412.06464, eq. 10.
pub fn forward(cpu: &Cpu, y: &mut [f32], states: &mut [f32], scan: &Scan<'_>) -> Result<()> {
    const OP: &str = "delta_rule::forward";
    scan.check(OP)?;
    expect_len(OP, "y", scan.v.len(), y.len())?;
    let Shape { value_heads: heads, key_dim, value_dim, .. } = scan.shape;
    let size = key_dim * value_dim;
    let kept = !states.is_empty();
    if kept {
        expect_len(OP, "states", scan.segments.len() * heads * size, states.len())?;
    }
    let (y, states) = (Disjoint::new(y), Disjoint::new(states));
    cpu.for_each_unit(scan.segments.len() * heads, |u| {
        let (segment, n) = (&scan.segments[u / heads], u % heads);
        let mut fresh = if kept { Vec::new() } else { vec![0f32; size] };
        // SAFETY: a unit takes its own state.
        let state = if kept { unsafe { states.part(u * size, size) } } else { &mut fresh[..] };
        let (mut q, mut k, mut written) = (vec![0f32; key_dim], vec![0f32; key_dim], vec![0f32; value_dim]);
        for t in segment.q_start..segment.q_start + segment.q_len {
            unit(&mut q, scan.key(scan.q, t, n), scan.scale());
            unit(&mut k, scan.key(scan.k, t, n), 1.0);
            // SAFETY: a unit takes one head of its document's tokens.
            let y = unsafe { y.part((t * heads + n) * value_dim, value_dim) };
            let (decay, beta) = (crate::float::exp(scan.g[t * heads + n]), scan.beta[t * heads + n]);
            advance(cpu.isa(), state, y, &mut written, (&q, &k, scan.value(scan.v, t, n)), decay, beta);
        }
    });
    Ok(())
}

/// Tokens whose states exist at once in the backward pass.
const CHUNK: usize = 64;

/// Gradients of [`forward`] from zero states.
///
/// States are recomputed 64 tokens at a time. Gradients of shared queries and keys sum over value heads in order.
///
/// # Errors
/// As [`forward`].
pub fn backward(cpu: &Cpu, grads: Gradients<'_>, dy: &[f32], scan: &Scan<'_>) -> Result<()> {
    const OP: &str = "delta_rule::backward";
    let tokens = scan.check(OP)?;
    let Shape { key_heads, value_heads: heads, key_dim, value_dim } = scan.shape;
    expect_len(OP, "dy", scan.v.len(), dy.len())?;
    expect_len(OP, "dq", scan.q.len(), grads.q.len())?;
    expect_len(OP, "dk", scan.k.len(), grads.k.len())?;
    expect_len(OP, "dv", scan.v.len(), grads.v.len())?;
    expect_len(OP, "dg", scan.g.len(), grads.g.len())?;
    expect_len(OP, "dbeta", scan.beta.len(), grads.beta.len())?;
    let mut by_head = vec![0f32; 2 * heads * tokens * key_dim]; // by normalised queries and keys
    let parts = Disjoint::new(&mut by_head);
    let (dv, dg, dbeta) = (Disjoint::new(grads.v), Disjoint::new(grads.g), Disjoint::new(grads.beta));
    cpu.for_each_unit(scan.segments.len() * heads, |u| {
        let (segment, n) = (&scan.segments[u / heads], u % heads);
        let (first, len, size) = (segment.q_start, segment.q_len, key_dim * value_dim);
        let (mut q, mut k) = (vec![0f32; key_dim], vec![0f32; key_dim]);
        let (mut written, mut y) = (vec![0f32; value_dim], vec![0f32; value_dim]);
        let mut scratch = vec![0f32; 2 * value_dim];
        let number = |t: usize| (crate::float::exp(scan.g[t * heads + n]), scan.beta[t * heads + n]);
        let mut walk = |state: &mut [f32], t: usize| {
            unit(&mut q, scan.key(scan.q, t, n), scan.scale());
            unit(&mut k, scan.key(scan.k, t, n), 1.0);
            let (decay, beta) = number(t);
            advance(cpu.isa(), state, &mut y, &mut written, (&q, &k, scan.value(scan.v, t, n)), decay, beta);
        };
        let chunks = len.div_ceil(CHUNK);
        let mut fronts = vec![0f32; (chunks + 1) * size];
        for chunk in 0..chunks {
            let (done, rest) = fronts.split_at_mut((chunk + 1) * size);
            rest[..size].copy_from_slice(&done[chunk * size..]);
            for t in chunk * CHUNK..len.min((chunk + 1) * CHUNK) {
                walk(&mut rest[..size], first + t);
            }
        }
        let (mut d, mut inside) = (vec![0f32; size], vec![0f32; CHUNK * size]);
        let (mut qn, mut kn) = (vec![0f32; key_dim], vec![0f32; key_dim]);
        for chunk in (0..chunks).rev() {
            let range = chunk * CHUNK..len.min((chunk + 1) * CHUNK);
            inside[..size].copy_from_slice(&fronts[chunk * size..][..size]);
            for (i, t) in range.clone().enumerate().take(range.len() - 1) {
                let (done, rest) = inside.split_at_mut((i + 1) * size);
                rest[..size].copy_from_slice(&done[i * size..]);
                walk(&mut rest[..size], first + t);
            }
            for (i, local) in range.enumerate().rev() {
                let t = first + local;
                unit(&mut qn, scan.key(scan.q, t, n), scan.scale());
                unit(&mut kn, scan.key(scan.k, t, n), 1.0);
                let (decay, beta) = number(t);
                // SAFETY: a unit takes one head of its document's tokens.
                let (dq, dk, dv, dg, dbeta) = unsafe {
                    let row = |which: usize| parts.part(((2 * n + which) * tokens + t) * key_dim, key_dim);
                    let at = t * heads + n;
                    (row(0), row(1), dv.part(at * value_dim, value_dim), dg.part(at, 1), dbeta.part(at, 1))
                };
                let dy = &dy[(t * heads + n) * value_dim..][..value_dim];
                let before = &inside[i * size..][..size];
                let qkv = (&qn[..], &kn[..], scan.value(scan.v, t, n));
                (dg[0], dbeta[0]) =
                    retreat(cpu.isa(), &mut d, before, (dq, dk, dv), &mut scratch, dy, qkv, decay, beta);
            }
        }
    });
    let per_key = heads / key_heads;
    for (which, (to, x, factor)) in
        [(grads.q, scan.q, scan.scale()), (grads.k, scan.k, 1.0)].into_iter().enumerate()
    {
        cpu.for_each_row(tokens * key_heads, 16, (to, key_dim), (&mut [] as &mut [u8], 0), |row, to, _| {
            let (t, group) = (row / key_heads, row % key_heads);
            let mut sum = vec![0f32; key_dim];
            for n in group * per_key..(group + 1) * per_key {
                let part = &by_head[((2 * n + which) * tokens + t) * key_dim..][..key_dim];
                sum.iter_mut().zip(part).for_each(|(s, p)| *s += p);
            }
            to.fill(0.0);
            unit_backward(to, &sum, &x[row * key_dim..][..key_dim], factor);
        });
    }
    Ok(())
}

/// `g[t,n] = −exp(a_log[n]) · softplus(a[t,n] + dt_bias[n])`: the logarithm of the decay. All f32.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
pub fn decay(cpu: &Cpu, g: &mut [f32], a: &[f32], a_log: &[f32], dt_bias: &[f32]) -> Result<()> {
    const OP: &str = "delta_rule::decay";
    let n = a_log.len();
    let rows = expect_rows(OP, "a", n, a.len())?;
    expect_len(OP, "g", a.len(), g.len())?;
    expect_len(OP, "dt_bias", n, dt_bias.len())?;
    cpu.for_each_row(rows, 64, (g, n), (&mut [] as &mut [u8], 0), |t, g, _| {
        for i in 0..n {
            g[i] = -crate::float::exp(a_log[i]) * crate::float::softplus(a[t * n + i] + dt_bias[i]);
        }
    });
    Ok(())
}

/// Gradients of [`decay`]: `da` is written, those of `a_log` and `dt_bias` are added to.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
pub fn decay_backward(
    cpu: &Cpu,
    (da, da_log, ddt_bias): (&mut [f32], &mut [f32], &mut [f32]),
    dg: &[f32],
    (a, a_log, dt_bias): (&[f32], &[f32], &[f32]),
) -> Result<()> {
    const OP: &str = "delta_rule::decay_backward";
    let n = a_log.len();
    let rows = expect_rows(OP, "a", n, a.len())?;
    expect_len(OP, "da", a.len(), da.len())?;
    expect_len(OP, "dg", a.len(), dg.len())?;
    for (name, len) in [("dt_bias", dt_bias.len()), ("da_log", da_log.len()), ("ddt_bias", ddt_bias.len())] {
        expect_len(OP, name, n, len)?;
    }
    let at = |t: usize, i: usize| {
        let raw = a[t * n + i] + dt_bias[i];
        let (value, slope) = (crate::float::softplus(raw), crate::float::sigmoid(raw));
        let rate = crate::float::exp(a_log[i]);
        (-rate * value * dg[t * n + i], -rate * slope * dg[t * n + i])
    };
    cpu.for_each_row(rows, 64, (da, n), (&mut [] as &mut [u8], 0), |t, da, _| {
        da.iter_mut().enumerate().for_each(|(i, d)| *d = at(t, i).1);
    });
    cpu.sum_rows(da_log, rows, |t, sum| sum.iter_mut().enumerate().for_each(|(i, s)| *s += at(t, i).0));
    cpu.sum_rows(ddt_bias, rows, |t, sum| sum.iter_mut().enumerate().for_each(|(i, s)| *s += at(t, i).1));
    Ok(())
}
