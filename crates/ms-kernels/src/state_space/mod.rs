//! The selective state space of Mamba-2, as a scan.

#[cfg(test)]
mod tests;

use crate::attention::Segment;
use crate::cpu::Disjoint;
use crate::error::{expect_len, expect_rows};
use crate::float::{exp, sigmoid, softplus};
use crate::isa::instances;
use crate::{Cpu, Error, Result};

/// Sizes of a scan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Heads `N`.
    pub heads: usize,
    /// Channels of a head `P`.
    pub head_dim: usize,
    /// Groups `G` that share `B` and `C`.
    pub groups: usize,
    /// State per channel `S`.
    pub state: usize,
    /// Least and largest step after softplus.
    pub step_limit: (f32, f32),
}

/// Operands of a scan, all f32.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// Input `[T,N·P]`.
    pub x: &'a [f32],
    /// Input map `[T,G·S]`.
    pub b: &'a [f32],
    /// Output map `[T,G·S]`.
    pub c: &'a [f32],
    /// Step before bias and softplus, `[T,N]`.
    pub dt: &'a [f32],
    /// Logarithm of the negated decay rate, `[N]`.
    pub a_log: &'a [f32],
    /// Skip, `[N]`.
    pub d: &'a [f32],
    /// Bias of the step, `[N]`.
    pub dt_bias: &'a [f32],
    /// Documents, covering the tokens in order.
    pub segments: &'a [Segment],
    /// Sizes.
    pub shape: Shape,
}

/// Gradients of a scan's operands, in the shapes of [`Scan`].
///
/// Those of tokens are written, those of weights are added to.
#[derive(Debug)]
#[allow(missing_docs)] // each is the gradient of the operand of its name
pub struct Gradients<'a> {
    pub x: &'a mut [f32],
    pub b: &'a mut [f32],
    pub c: &'a mut [f32],
    pub dt: &'a mut [f32],
    pub a_log: &'a mut [f32],
    pub d: &'a mut [f32],
    pub dt_bias: &'a mut [f32],
}

mod body {
    /// `h = a·h + (step·x) ⊗ b`, `y = h·c`; `h` is `[P,S]`.
    #[inline(always)]
    pub(super) fn advance(h: &mut [f32], y: &mut [f32], x: &[f32], b: &[f32], c: &[f32], a: f32, step: f32) {
        let s = b.len();
        for (p, row) in h.chunks_exact_mut(s).enumerate() {
            let input = step * x[p];
            let mut sum = 0.0;
            for i in 0..s {
                row[i] = a * row[i] + input * b[i];
                sum += row[i] * c[i];
            }
            y[p] = sum;
        }
    }

    /// One step back: `dh` is the gradient by the state after the step (without this token's output); on return by
    /// the state before it. Returns the gradients by `a` and by `step`.
    #[inline(always)]
    pub(super) fn retreat(
        dh: &mut [f32],
        before: &[f32],
        (dx, db, dc): (&mut [f32], &mut [f32], &mut [f32]),
        dy: &[f32],
        (x, b, c): (&[f32], &[f32], &[f32]),
        a: f32,
        step: f32,
    ) -> (f32, f32) {
        let s = b.len();
        let (mut da, mut dstep) = (0.0, 0.0);
        for (p, (row, old)) in dh.chunks_exact_mut(s).zip(before.chunks_exact(s)).enumerate() {
            let (input, g) = (step * x[p], dy[p]);
            let mut along = 0.0;
            for i in 0..s {
                dc[i] += g * (a * old[i] + input * b[i]);
                let d = row[i] + g * c[i];
                da += d * old[i];
                along += d * b[i];
                db[i] += d * input;
                row[i] = a * d;
            }
            dx[p] += step * along;
            dstep += x[p] * along;
        }
        (da, dstep)
    }
}

instances! {
    fn advance(h: &mut [f32], y: &mut [f32], x: &[f32], b: &[f32], c: &[f32], a: f32, step: f32) = body::advance;
    fn retreat(
        dh: &mut [f32], before: &[f32], grads: (&mut [f32], &mut [f32], &mut [f32]), dy: &[f32],
        operands: (&[f32], &[f32], &[f32]), a: f32, step: f32,
    ) -> (f32, f32) = body::retreat;
}

impl<'a> Scan<'a> {
    fn check(&self, op: &'static str) -> Result<usize> {
        let Shape { heads, head_dim, groups, state, .. } = self.shape;
        if groups == 0 || !heads.is_multiple_of(groups) {
            return Err(Error::Size { op, name: "groups", want: "a divisor of the heads", got: groups });
        }
        let tokens = expect_rows(op, "x", heads * head_dim, self.x.len())?;
        expect_len(op, "b", tokens * groups * state, self.b.len())?;
        expect_len(op, "c", tokens * groups * state, self.c.len())?;
        expect_len(op, "dt", tokens * heads, self.dt.len())?;
        for (name, v) in [("a_log", self.a_log), ("d", self.d), ("dt_bias", self.dt_bias)] {
            expect_len(op, name, heads, v.len())?;
        }
        expect_covered(op, self.segments, tokens)?;
        Ok(tokens)
    }

    fn x(&self, t: usize, n: usize) -> &'a [f32] {
        let p = self.shape.head_dim;
        &self.x[(t * self.shape.heads + n) * p..][..p]
    }

    fn bc(&self, of: &'a [f32], t: usize, n: usize) -> &'a [f32] {
        let Shape { heads, groups, state, .. } = self.shape;
        &of[(t * groups + n * groups / heads) * state..][..state]
    }

    /// Step and decay of head `n` at token `t`: `(step, a, slope of the step by dt)`.
    fn step(&self, t: usize, n: usize) -> (f32, f32, f32) {
        let raw = self.dt[t * self.shape.heads + n] + self.dt_bias[n];
        let soft = softplus(raw);
        let (low, high) = self.shape.step_limit;
        let step = soft.clamp(low, high);
        let slope = if soft < low || soft > high { 0.0 } else { sigmoid(raw) };
        (step, exp(-exp(self.a_log[n]) * step), slope)
    }
}

/// Checks that documents cover the tokens in order, without gap.
pub(crate) fn expect_covered(op: &'static str, segments: &[Segment], tokens: usize) -> Result<()> {
    let mut end = 0;
    for (index, s) in segments.iter().enumerate() {
        if s.q_start != end {
            return Err(Error::Segments { op, name: "query", index, start: s.q_start, end });
        }
        end += s.q_len;
    }
    expect_len(op, "segments' query tokens", tokens, end)
}

/// `h_t = exp(−e^{a_log} Δ_t) h_{t−1} + Δ_t x_t ⊗ B_t`, `y_t = h_t C_t + D x_t`, `Δ_t = softplus(dt_t + dt_bias)`.
///
/// | arg     | shape       | dtype | meaning                                                       |
/// |---------|-------------|-------|---------------------------------------------------------------|
/// | `y`     | `[T,N·P]`   | f32   | output                                                        |
/// | `states`| `[D,N,P,S]` | f32   | state of each document: read as the one before it, replaced by the one after it; empty: zeros, dropped |
///
/// # Errors
/// [`Error::Shape`], [`Error::Size`] or [`Error::Segments`] if an operand does not fit.
///
/// # Source
/// Dao and Gu, arXiv:2405.21060, eq. 2 with the scalar decay of section 3.
pub fn forward(cpu: &Cpu, y: &mut [f32], states: &mut [f32], scan: &Scan<'_>) -> Result<()> {
    const OP: &str = "state_space::forward";
    scan.check(OP)?;
    expect_len(OP, "y", scan.x.len(), y.len())?;
    let Shape { heads, head_dim, state, .. } = scan.shape;
    let size = head_dim * state;
    if !states.is_empty() {
        expect_len(OP, "states", scan.segments.len() * heads * size, states.len())?;
    }
    let kept = !states.is_empty();
    let (y, states) = (Disjoint::new(y), Disjoint::new(states));
    cpu.for_each_unit(scan.segments.len() * heads, |u| {
        let (segment, n) = (&scan.segments[u / heads], u % heads);
        let mut fresh = if kept { Vec::new() } else { vec![0f32; size] };
        // SAFETY: a unit takes its own state.
        let h = if kept { unsafe { states.part(u * size, size) } } else { &mut fresh[..] };
        for t in segment.q_start..segment.q_start + segment.q_len {
            let (step, a, _) = scan.step(t, n);
            let x = scan.x(t, n);
            // SAFETY: a unit takes one head of its document's tokens.
            let y = unsafe { y.part((t * heads + n) * head_dim, head_dim) };
            advance(cpu.isa(), h, y, x, scan.bc(scan.b, t, n), scan.bc(scan.c, t, n), a, step);
            y.iter_mut().zip(x).for_each(|(y, x)| *y += scan.d[n] * x);
        }
    });
    Ok(())
}

/// Tokens whose states exist at once in the backward pass.
const CHUNK: usize = 64;

/// Gradients of [`forward`] from zero states.
///
/// States are recomputed 64 tokens at a time. The gradients of `B` and `C` sum over the heads of a group in order.
///
/// # Errors
/// As [`forward`].
pub fn backward(cpu: &Cpu, grads: Gradients<'_>, dy: &[f32], scan: &Scan<'_>) -> Result<()> {
    const OP: &str = "state_space::backward";
    let tokens = scan.check(OP)?;
    let Shape { heads, head_dim, groups, state, .. } = scan.shape;
    expect_len(OP, "dy", scan.x.len(), dy.len())?;
    expect_len(OP, "dx", scan.x.len(), grads.x.len())?;
    expect_len(OP, "db", scan.b.len(), grads.b.len())?;
    expect_len(OP, "dc", scan.c.len(), grads.c.len())?;
    expect_len(OP, "ddt", scan.dt.len(), grads.dt.len())?;
    for (name, g) in [("da_log", &grads.a_log), ("dd", &grads.d), ("ddt_bias", &grads.dt_bias)] {
        expect_len(OP, name, heads, g.len())?;
    }
    let units = scan.segments.len() * heads;
    let mut by_head = vec![0f32; 2 * heads * tokens * state]; // dB and dC of each head
    let mut weights = vec![0f32; 3 * units];
    let (dx, ddt) = (Disjoint::new(grads.x), Disjoint::new(grads.dt));
    let (parts, sums) = (Disjoint::new(&mut by_head), Disjoint::new(&mut weights));
    cpu.for_each_unit(units, |u| {
        let (segment, n) = (&scan.segments[u / heads], u % heads);
        let (first, len) = (segment.q_start, segment.q_len);
        // SAFETY: a unit takes its own sums and one head of its document's tokens.
        let (sum, db, dc) = unsafe {
            let bc = |which: usize| parts.part(((2 * n + which) * tokens + first) * state, len * state);
            (sums.part(3 * u, 3), bc(0), bc(1))
        };
        let size = head_dim * state;
        let rate = exp(scan.a_log[n]);
        // The state in front of each chunk, then inside one chunk that in front of each token.
        let chunks = len.div_ceil(CHUNK);
        let mut fronts = vec![0f32; (chunks + 1) * size];
        let mut y = vec![0f32; head_dim];
        let walk = |h: &mut [f32], y: &mut [f32], t: usize| {
            let (step, a, _) = scan.step(t, n);
            advance(cpu.isa(), h, y, scan.x(t, n), scan.bc(scan.b, t, n), scan.bc(scan.c, t, n), a, step);
        };
        for chunk in 0..chunks {
            let (done, rest) = fronts.split_at_mut((chunk + 1) * size);
            rest[..size].copy_from_slice(&done[chunk * size..]);
            for t in chunk * CHUNK..len.min((chunk + 1) * CHUNK) {
                walk(&mut rest[..size], &mut y, first + t);
            }
        }
        let mut dh = vec![0f32; size];
        let mut inside = vec![0f32; CHUNK * size];
        for chunk in (0..chunks).rev() {
            let range = chunk * CHUNK..len.min((chunk + 1) * CHUNK);
            inside[..size].copy_from_slice(&fronts[chunk * size..][..size]);
            for (i, t) in range.clone().enumerate().take(range.len() - 1) {
                let (done, rest) = inside.split_at_mut((i + 1) * size);
                rest[..size].copy_from_slice(&done[i * size..]);
                walk(&mut rest[..size], &mut y, first + t);
            }
            for (i, local) in range.enumerate().rev() {
                let t = first + local;
                let (step, a, slope) = scan.step(t, n);
                let (x, dy) = (scan.x(t, n), &dy[(t * heads + n) * head_dim..][..head_dim]);
                // SAFETY: a unit takes one head of its document's tokens.
                let (dx, ddt) =
                    unsafe { (dx.part((t * heads + n) * head_dim, head_dim), ddt.part(t * heads + n, 1)) };
                for p in 0..head_dim {
                    dx[p] = scan.d[n] * dy[p];
                    sum[1] += x[p] * dy[p];
                }
                let to = (&mut *dx, &mut db[local * state..][..state], &mut dc[local * state..][..state]);
                let operands = (x, scan.bc(scan.b, t, n), scan.bc(scan.c, t, n));
                let (da, dstep) =
                    retreat(cpu.isa(), &mut dh, &inside[i * size..][..size], to, dy, operands, a, step);
                // a = exp(−rate·step)
                sum[0] -= da * a * step * rate;
                ddt[0] = (dstep - da * a * rate) * slope;
                sum[2] += ddt[0];
            }
        }
    });
    for (u, sum) in weights.chunks_exact(3).enumerate() {
        grads.a_log[u % heads] += sum[0];
        grads.d[u % heads] += sum[1];
        grads.dt_bias[u % heads] += sum[2];
    }
    let per_group = heads / groups;
    for (which, to) in [grads.b, grads.c].into_iter().enumerate() {
        cpu.for_each_row(tokens * groups, 64, (to, state), (&mut [] as &mut [u8], 0), |row, to, _| {
            let (t, group) = (row / groups, row % groups);
            to.fill(0.0);
            for n in group * per_group..(group + 1) * per_group {
                let part = &by_head[((2 * n + which) * tokens + t) * state..][..state];
                to.iter_mut().zip(part).for_each(|(s, p)| *s += p);
            }
        });
    }
    Ok(())
}
