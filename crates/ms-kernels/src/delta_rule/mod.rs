//! The gated delta rule of Gated DeltaNet.
//!
//! Up to four heads with a common key are processed together, 64 tokens at a time (see `recurrence`). They share the products
//! of queries and keys.

mod gradient;
#[cfg(test)]
mod tests;

use crate::attention::Segment;
use crate::cpu::Disjoint;
use crate::error::{expect_len, expect_rows};
use crate::isa::instances;
use crate::matmul::kernel::Kernel;
use crate::memory::{Scratch, with_scratch};
use crate::prefetch::fetch_rows;
use crate::recurrence::Step;
use crate::recurrence::chunk::{Rows, Sizes, Work, lines, take};
use crate::recurrence::product::{View, triangle, with_f32_kernel};
use crate::recurrence::system::System;
use crate::recurrence::units::{Groups, Heads, expect_covered};
use crate::{Cpu, Error, Isa, Result};
pub use gradient::{Gradients, backward};
pub use ms_operands::DeltaRule as Shape;

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

/// Added to the squared length of queries and keys.
const EPS: f32 = 1e-6;

mod body {
    use crate::float::{exp, sigmoid, softplus};

    /// Rows `out = factor · x / sqrt(Σ x² + eps)`; those of `x` `stride` apart.
    #[inline(always)]
    pub(super) fn units(out: &mut [f32], width: usize, x: &[f32], stride: usize, factor: f32) {
        for (i, out) in out.chunks_exact_mut(width).enumerate() {
            let x = &x[i * stride..][..width];
            let r = factor / (crate::lanes::body::dot(x, x) + super::EPS).sqrt();
            out.iter_mut().zip(x).for_each(|(o, v)| *o = r * v);
        }
    }

    /// Gradient of [`units`] with respect to `x` for one row.
    #[inline(always)]
    pub(super) fn unit_backward(dx: &mut [f32], dout: &[f32], x: &[f32], factor: f32) {
        use crate::lanes::body::dot;
        let r = 1.0 / (dot(x, x) + super::EPS).sqrt();
        let along = dot(dout, x) * r * r;
        for ((o, d), v) in dx.iter_mut().zip(dout).zip(x) {
            *o = factor * r * (d - v * along);
        }
    }

    /// A row of [`super::decay`].
    #[inline(always)]
    pub(super) fn decay(g: &mut [f32], a: &[f32], a_log: &[f32], dt_bias: &[f32]) {
        for (i, g) in g.iter_mut().enumerate() {
            *g = -exp(a_log[i]) * softplus(a[i] + dt_bias[i]);
        }
    }

    /// A row of the gradients of [`super::decay`], with respect to `a` and to `a_log`.
    #[inline(always)]
    pub(super) fn decay_slopes(
        [da, by_log]: [&mut [f32]; 2],
        dg: &[f32],
        a: &[f32],
        a_log: &[f32],
        dt_bias: &[f32],
    ) {
        for (i, (da, by_log)) in da.iter_mut().zip(by_log).enumerate() {
            let (raw, rate) = (a[i] + dt_bias[i], exp(a_log[i]));
            (*da, *by_log) = (-rate * sigmoid(raw) * dg[i], -rate * softplus(raw) * dg[i]);
        }
    }
}

instances! {
    fn units_of(out: &mut [f32], width: usize, x: &[f32], stride: usize, factor: f32) = body::units;
    fn unit_backward(dx: &mut [f32], dout: &[f32], x: &[f32], factor: f32) = body::unit_backward;
    fn decay_of(g: &mut [f32], a: &[f32], a_log: &[f32], dt_bias: &[f32]) = body::decay;
    fn decay_slopes(to: [&mut [f32]; 2], dg: &[f32], a: &[f32], a_log: &[f32], dt_bias: &[f32]) = body::decay_slopes;
}

impl<'a> Scan<'a> {
    fn groups(&self) -> Groups {
        Groups { groups: self.shape.key_heads, heads: self.shape.value_heads }
    }

    fn sizes(&self) -> Sizes {
        Sizes { s: self.shape.key_dim, p: self.shape.value_dim, ranks: 1 }
    }

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

    /// A key head's rows of queries or keys from token `t` on, and how far apart they are.
    fn keys(&self, of: &'a [f32], t: usize, key: usize) -> (&'a [f32], usize) {
        let Shape { key_heads, key_dim, .. } = self.shape;
        (&of[(t * key_heads + key) * key_dim..], key_heads * key_dim)
    }

    /// A head's rows of values, or of what has their shape, from token `t` on, and how far apart they are.
    fn values<'b>(&self, of: &'b [f32], t: usize, n: usize) -> (&'b [f32], usize) {
        let Shape { value_heads, value_dim, .. } = self.shape;
        (&of[(t * value_heads + n) * value_dim..], value_heads * value_dim)
    }

    /// Decays and strengths of head `n` in a document.
    fn numbers(&self, isa: Isa, segment: &Segment, n: usize) -> Numbers {
        let tokens = segment.q_start..segment.q_start + segment.q_len;
        let of = |all: &[f32]| -> Vec<f32> {
            tokens.clone().map(|t| all[t * self.shape.value_heads + n]).collect()
        };
        let (g, beta) = (of(self.g), of(self.beta));
        let mut decay = g;
        crate::lanes::exponentials(isa, &mut decay, 0.0);
        Numbers { decay, beta }
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
    if !states.is_empty() {
        expect_len(OP, "states", scan.segments.len() * heads * size, states.len())?;
    }
    let (documents, y) = (scan.segments.len(), Disjoint::new(y));
    scan.groups().for_each_with(cpu, documents, (states, size), |document, of, states| {
        with_f32_kernel!(cpu.isa(), K => through::<K>(cpu, scan, &y, states, &scan.segments[document], of));
    });
    Ok(())
}

/// A head's numbers, one for each token.
struct Numbers {
    decay: Vec<f32>,
    beta: Vec<f32>,
}

/// A chunk's normalised queries and keys and their products.
struct Keys<'a> {
    q: &'a mut [f32],
    k: &'a mut [f32],
    /// `q kᵀ` and `k kᵀ`.
    scores: &'a mut [f32],
    overlaps: &'a mut [f32],
}

impl<'a> Keys<'a> {
    fn len(sizes: &Sizes) -> usize {
        let n = sizes.rows();
        2 * lines(n * sizes.s) + 2 * lines(n * n)
    }

    fn new(rest: &mut &'a mut [f32], sizes: &Sizes) -> Self {
        let (n, s) = (sizes.rows(), sizes.s);
        Self {
            q: take(rest, n * s),
            k: take(rest, n * s),
            scores: take(rest, n * n),
            overlaps: take(rest, n * n),
        }
    }

    /// Forms those of `n` tokens from token `t` on, but for the scores.
    fn form<K: Kernel<Packed = f32>>(
        &mut self,
        isa: Isa,
        scan: &Scan<'_>,
        (t, n): (usize, usize),
        key: usize,
    ) {
        let (s, ld) = (scan.shape.key_dim, scan.sizes().rows());
        for (to, of, factor) in [(&mut *self.q, scan.q, scan.scale()), (&mut *self.k, scan.k, 1.0)] {
            let (rows, stride) = scan.keys(of, t, key);
            fetch_rows(rows.as_ptr(), stride, n, s);
            units_of(isa, &mut to[..n * s], s, rows, stride, factor);
        }
        let k = View::of(self.k, s);
        triangle::<K>((self.overlaps, ld), k, k, [n, s], 1);
    }

    /// Forms the scores of `n` tokens.
    fn score<K: Kernel<Packed = f32>>(&mut self, sizes: &Sizes, n: usize) {
        let (q, k) = (View::of(self.q, sizes.s), View::of(self.k, sizes.s));
        triangle::<K>((self.scores, sizes.rows()), q, k, [n, sizes.s], 1);
    }
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
    let (isa, sizes, heads) = (cpu.isa(), scan.sizes(), scan.shape.value_heads);
    let Sizes { s, p, .. } = sizes;
    let (size, most) = (s * p, sizes.rows());
    let own = if states.is_empty() { of.count * size } else { 0 };
    let room = Work::len(&sizes) + Keys::len(&sizes) + 3 * lines(most * p) + own;
    with_scratch(Scratch::Keys, room, |mut rest: &mut [f32]| {
        let mut work = Work::new(isa, sizes, &mut rest);
        let mut keys = Keys::new(&mut rest, &sizes);
        let [e, u, out] = [0; 3].map(|_| take(&mut rest, most * p));
        let mut fresh = states.is_empty();
        let kept = !fresh;
        let states = if kept { states } else { rest };
        let numbers: Vec<Numbers> = (0..of.count).map(|i| scan.numbers(isa, segment, of.first + i)).collect();
        let end = segment.q_start + segment.q_len;
        for t in (segment.q_start..end).step_by(most) {
            let n = most.min(end - t);
            let inside = t - segment.q_start..t - segment.q_start + n;
            keys.form::<K>(isa, scan, (t, n), of.group);
            keys.score::<K>(&sizes, n);
            let (q, k) = (View::of(keys.q, s), View::of(keys.k, s));
            for ((h, numbers), head) in states.chunks_exact_mut(size).zip(&numbers).zip(of.first..) {
                let (v, stride) = scan.values(scan.v, t, head);
                for rows in [v.as_ptr(), y.address().wrapping_add((t * heads + head) * p)] {
                    fetch_rows(rows, stride, n, p);
                }
                work.begin(Step::decaying(&numbers.decay[inside.clone()]));
                let system = System { overlaps: keys.overlaps, beta: &numbers.beta[inside.clone()] };
                let before = if fresh { None } else { Some(&*h) };
                let written = (&mut e[..n * p], &mut u[..n * p]);
                work.solve::<K>(written, k, (v, stride), &system, before);
                let rows = Rows { q, k, scores: keys.scores, v: &u[..n * p] };
                work.outputs::<K>(&mut out[..n * p], &rows, before);
                for (i, out) in out.chunks_exact(p).take(n).enumerate() {
                    // SAFETY: a unit takes its heads of its document's tokens.
                    unsafe { y.part(((t + i) * heads + head) * p, p) }.copy_from_slice(out);
                }
                if t + n < end || kept {
                    work.carry::<K>(h, &rows, fresh);
                }
            }
            fresh = false;
        }
    });
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
    cpu.for_each_row(rows, 64, (g, n), |t, g| {
        decay_of(cpu.isa(), g, &a[t * n..][..n], a_log, dt_bias);
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
    let mut by_log = vec![0f32; a.len()];
    cpu.for_each_row_of_both(rows, 64, (&mut *da, n), (&mut by_log, n), |t, da, by_log| {
        let row = t * n..(t + 1) * n;
        decay_slopes(cpu.isa(), [da, by_log], &dg[row.clone()], &a[row], a_log, dt_bias);
    });
    for (sum, of) in [(da_log, &by_log[..]), (ddt_bias, da)] {
        cpu.sum_rows(sum, rows, |t, sum| sum.iter_mut().zip(&of[t * n..]).for_each(|(s, d)| *s += d));
    }
    Ok(())
}
