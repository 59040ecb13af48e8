//! The selective state space of Mamba-2.
//!
//! Up to four heads of a group are processed together, 64 tokens at a time (see `recurrence`). They share the scores of `C`
//! and `B`.

mod gradient;
#[cfg(test)]
mod tests;

use crate::attention::Segment;
use crate::cpu::Disjoint;
use crate::error::{expect_len, expect_rows};
use crate::float::exp;
use crate::isa::instances;
use crate::matmul::kernel::Kernel;
use crate::memory::{Scratch, with_scratch};
use crate::prefetch::Lines;
use crate::recurrence::Step;
use crate::recurrence::chunk::{Rows, Sizes, Work, lines, rows_times, take, transpose};
use crate::recurrence::product::{View, triangle, with_f32_kernel};
use crate::recurrence::units::{Groups, Heads, expect_covered};
use crate::{Cpu, Error, Isa, Result};
pub use gradient::{Gradients, backward};
pub use ms_operands::StateSpace as Shape;

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

mod body {
    use crate::float::{exp, sigmoid, softplus};

    /// From `dt + dt_bias` to the step, the decay and the step's slope.
    #[inline(always)]
    pub(super) fn steps(
        (step, decay, slope): (&mut [f32], &mut [f32], &mut [f32]),
        raw: &[f32],
        rate: f32,
        (low, high): (f32, f32),
    ) {
        for i in 0..raw.len() {
            let soft = softplus(raw[i]);
            let inside = if soft < low || soft > high { 0.0 } else { 1.0 };
            let limited = if soft < low { low } else { soft };
            let limited = if limited > high { high } else { limited };
            step[i] = limited;
            decay[i] = exp(-rate * limited);
            slope[i] = inside * sigmoid(raw[i]);
        }
    }

    /// `to = a · x + b · y`.
    #[inline(always)]
    pub(super) fn blend(to: &mut [f32], a: f32, x: &[f32], b: f32, y: &[f32]) {
        for ((to, x), y) in to.iter_mut().zip(x).zip(y) {
            *to = a * x + b * y;
        }
    }
}

instances! {
    fn steps_of(
        to: (&mut [f32], &mut [f32], &mut [f32]), raw: &[f32], rate: f32, limits: (f32, f32),
    ) = body::steps;
    fn blend(to: &mut [f32], a: f32, x: &[f32], b: f32, y: &[f32]) = body::blend;
}

/// A head's steps, one for each token.
struct Steps {
    step: Vec<f32>,
    /// `a_t`.
    decay: Vec<f32>,
    /// Derivative of the step with respect to `dt`.
    slope: Vec<f32>,
}

impl<'a> Scan<'a> {
    fn groups(&self) -> Groups {
        Groups { groups: self.shape.groups, heads: self.shape.heads }
    }

    fn sizes(&self) -> Sizes {
        Sizes { s: self.shape.state, p: self.shape.head_dim, ranks: 1 }
    }

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

    /// Rows of a group's `B` or `C` from token `t` on.
    fn bc(&self, of: &'a [f32], t: usize, group: usize) -> View<'a> {
        let Shape { groups, state, .. } = self.shape;
        View::of(&of[(t * groups + group) * state..], groups * state)
    }

    /// A head's rows of `x` from token `t` on, and how far apart they are.
    fn rows_x(&self, t: usize, n: usize) -> (&'a [f32], usize) {
        let Shape { heads, head_dim, .. } = self.shape;
        (&self.x[(t * heads + n) * head_dim..], heads * head_dim)
    }

    /// Steps of head `n` in a document.
    fn steps(&self, isa: Isa, segment: &Segment, n: usize) -> Steps {
        let tokens = segment.q_start..segment.q_start + segment.q_len;
        let raw: Vec<f32> = tokens.map(|t| self.dt[t * self.shape.heads + n] + self.dt_bias[n]).collect();
        let new = || vec![0f32; raw.len()];
        let (mut step, mut decay, mut slope) = (new(), new(), new());
        let rate = exp(self.a_log[n]);
        let (low, high) = self.shape.step_limit;
        let limit = (low as f32, high as f32);
        steps_of(isa, (&mut step, &mut decay, &mut slope), &raw, rate, limit);
        Steps { step, decay, slope }
    }
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
    let (documents, y) = (scan.segments.len(), Disjoint::new(y));
    scan.groups().for_each_with(cpu, documents, (states, size), |document, of, states| {
        with_f32_kernel!(cpu.isa(), K => through::<K>(cpu, scan, &y, states, &scan.segments[document], of));
    });
    Ok(())
}

/// Takes some heads through a document.
fn through<K: Kernel<Packed = f32>>(
    cpu: &Cpu,
    scan: &Scan<'_>,
    y: &Disjoint<'_, f32>,
    states: &mut [f32],
    segment: &Segment,
    of: Heads,
) {
    let (isa, sizes) = (cpu.isa(), scan.sizes());
    let (Shape { heads, .. }, Sizes { s, p, .. }) = (scan.shape, sizes);
    let (size, most) = (s * p, sizes.rows());
    let room = Work::len(&sizes) + of.count * lines(size) + lines(most * most) + 2 * lines(most * p);
    with_scratch(Scratch::Keys, room, |mut rest: &mut [f32]| {
        let mut work = Work::new(isa, sizes, &mut rest);
        let scores = take(&mut rest, most * most);
        let (v, out) = (take(&mut rest, most * p), take(&mut rest, most * p));
        let mut fresh = states.is_empty();
        let steps: Vec<Steps> = (0..of.count).map(|i| scan.steps(isa, segment, of.first + i)).collect();
        for (h, state) in rest.chunks_exact_mut(lines(size)).zip(states.chunks_exact(size)) {
            transpose(isa, &mut h[..size], state, s);
        }
        let end = segment.q_start + segment.q_len;
        for t in (segment.q_start..end).step_by(most) {
            let n = most.min(end - t);
            let (q, k) = (scan.bc(scan.c, t, of.group), scan.bc(scan.b, t, of.group));
            triangle::<K>((scores, most), q, k, [n, s], 1);
            let inside = t - segment.q_start..t - segment.q_start + n;
            for ((h, steps), head) in rest.chunks_exact_mut(lines(size)).zip(&steps).zip(of.first..) {
                let h = &mut h[..size];
                if let Some((t, head)) = of.after(head, t, Some(t + n).filter(|&t| t < end)) {
                    let (at, tokens) = ((t * heads + head) * p, most.min(end - t));
                    let rows = [scan.x.as_ptr(), y.address()];
                    work.ahead.want(rows.map(|of| Lines::new(of.wrapping_add(at), heads * p, tokens, p)));
                }
                rows_times(isa, &mut v[..n * p], p, scan.rows_x(t, head), &steps.step[inside.clone()]);
                work.begin(Step::decaying(&steps.decay[inside.clone()]));
                let rows = Rows { q, k, scores, v: &v[..n * p] };
                let before = if fresh { None } else { Some(&*h) };
                work.outputs::<K>(&mut out[..n * p], &rows, before);
                for (i, out) in out.chunks_exact(p).take(n).enumerate() {
                    // SAFETY: a unit takes its heads of its document's tokens.
                    let y = unsafe { y.part(((t + i) * heads + head) * p, p) };
                    blend(isa, y, 1.0, out, scan.d[head], scan.x(t + i, head));
                }
                if t + n < end || !states.is_empty() {
                    work.carry::<K>(h, &rows, fresh);
                }
            }
            fresh = false;
        }
        for (h, state) in rest.chunks_exact(lines(size)).zip(states.chunks_exact_mut(size)) {
            transpose(isa, state, &h[..size], p);
        }
    });
}
