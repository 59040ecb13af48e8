//! The state space of Mamba-3, as a scan: trapezoidal steps, keys and queries turned by accumulated angles, several
//! ranks of inputs and outputs.

mod gradient;
#[cfg(test)]
mod tests;

use crate::attention::Segment;
use crate::cpu::Disjoint;
use crate::error::{expect_len, expect_rows};
use crate::float::{exp, sigmoid, sin_cos, softplus, tanh};
use crate::isa::instances;
use crate::state_space::expect_covered;
use crate::{Cpu, Error, Isa, Result};
pub use gradient::backward;
use std::f32::consts::PI;

/// Which elements of a key are turned together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// Elements `2j` and `2j + 1`.
    Neighbours,
    /// Elements `j` and `j + S/2`.
    Halves,
}

/// Sizes of a scan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Heads `N`.
    pub heads: usize,
    /// Channels of a head `P`.
    pub head_dim: usize,
    /// State per channel `S`.
    pub state: usize,
    /// Inputs and outputs of a head `R`.
    pub ranks: usize,
    /// Pairs that are turned, `A`; the other elements stay.
    pub angles: usize,
    /// Which elements are a pair.
    pub pairs: Pairs,
    /// Least rate of decay.
    pub rate_floor: f32,
}

impl Shape {
    /// Numbers that a head keeps of the token before: its angles `[A]`, keys `[R,S]`, input `[P]`.
    pub fn last(&self) -> usize {
        self.angles + self.ranks * self.state + self.head_dim
    }

    fn pair(&self, j: usize) -> (usize, usize) {
        match self.pairs {
            Pairs::Neighbours => (2 * j, 2 * j + 1),
            Pairs::Halves => (j, j + self.state / 2),
        }
    }
}

/// What belongs to each operand of a scan: its elements, or its gradient. All f32.
#[derive(Clone, Copy, Debug)]
pub struct Operands<T> {
    /// Input `[T,N·P]`.
    pub x: T,
    /// Gate before SiLU `[T,N·P]`.
    pub z: T,
    /// Keys before bias and rotation, of all heads, `[T,R·S]`.
    pub b: T,
    /// Queries before bias and rotation, of all heads, `[T,R·S]`.
    pub c: T,
    /// Step before bias and softplus `[T,N]`.
    pub dt: T,
    /// Rate of decay before softplus `[T,N]`.
    pub rate: T,
    /// Weight of the step's end before sigmoid `[T,N]`; its begin has the rest.
    pub trap: T,
    /// Angular speed in half turns before tanh, of all heads, `[T,A]`.
    pub angle: T,
    /// Bias of the step `[N]`.
    pub dt_bias: T,
    /// Bias of the keys `[N,R,S]`.
    pub b_bias: T,
    /// Bias of the queries `[N,R,S]`.
    pub c_bias: T,
    /// Skip `[N]`.
    pub d: T,
    /// Input of a rank by that of the head `[N,R,P]`; empty: ones.
    pub rank_x: T,
    /// Gate of a rank by that of the head `[N,R,P]`; empty: ones.
    pub rank_z: T,
    /// Output of the head by that of a rank `[N,R,P]`; empty: ones.
    pub rank_o: T,
}

impl<T> Operands<T> {
    /// The operands in the order of their declaration.
    pub fn of(all: [T; 15]) -> Self {
        let [x, z, b, c, dt, rate, trap, angle, dt_bias, b_bias, c_bias, d, rank_x, rank_z, rank_o] = all;
        Self { x, z, b, c, dt, rate, trap, angle, dt_bias, b_bias, c_bias, d, rank_x, rank_z, rank_o }
    }

    /// The other direction of [`Operands::of`].
    pub fn each(self) -> [T; 15] {
        let Self { x, z, b, c, dt, rate, trap, angle, dt_bias, b_bias, c_bias, d, rank_x, rank_z, rank_o } =
            self;
        [x, z, b, c, dt, rate, trap, angle, dt_bias, b_bias, c_bias, d, rank_x, rank_z, rank_o]
    }
}

const NAMES: [&str; 15] = [
    "x", "z", "b", "c", "dt", "rate", "trap", "angle", "dt_bias", "b_bias", "c_bias", "d", "rank_x",
    "rank_z", "rank_o",
];

/// A scan.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// Elements.
    pub operands: Operands<&'a [f32]>,
    /// Documents, covering the tokens in order.
    pub segments: &'a [Segment],
    /// Sizes.
    pub shape: Shape,
}

mod body {
    /// `h = a·h + Σ_j left_j ⊗ right_j`; `h` is `[P,S]`, `left` `[J,P]`, `right` `[J,S]`.
    #[inline(always)]
    pub(super) fn add_products(h: &mut [f32], a: f32, left: &[f32], right: &[f32], s: usize) {
        let p = h.len() / s;
        for (i, row) in h.chunks_exact_mut(s).enumerate() {
            row.iter_mut().for_each(|v| *v *= a);
            for (left, right) in left.chunks_exact(p).zip(right.chunks_exact(s)) {
                row.iter_mut().zip(right).for_each(|(v, r)| *v += left[i] * r);
            }
        }
    }

    /// `out[j,p] = h[p]·right_j`.
    #[inline(always)]
    pub(super) fn along_rows(out: &mut [f32], h: &[f32], right: &[f32], s: usize) {
        let p = h.len() / s;
        for (out, right) in out.chunks_exact_mut(p).zip(right.chunks_exact(s)) {
            for (out, row) in out.iter_mut().zip(h.chunks_exact(s)) {
                *out = row.iter().zip(right).map(|(a, b)| a * b).sum();
            }
        }
    }

    /// `out[j] = Σ_p left[j,p] h[p]`.
    #[inline(always)]
    pub(super) fn along_columns(out: &mut [f32], h: &[f32], left: &[f32], s: usize) {
        let p = h.len() / s;
        for (out, left) in out.chunks_exact_mut(s).zip(left.chunks_exact(p)) {
            out.fill(0.0);
            for (row, l) in h.chunks_exact(s).zip(left) {
                out.iter_mut().zip(row).for_each(|(o, v)| *o += l * v);
            }
        }
    }
}

instances! {
    fn add_products(h: &mut [f32], a: f32, left: &[f32], right: &[f32], s: usize) = body::add_products;
    fn along_rows(out: &mut [f32], h: &[f32], right: &[f32], s: usize) = body::along_rows;
    fn along_columns(out: &mut [f32], h: &[f32], left: &[f32], s: usize) = body::along_columns;
}

/// What a token says to a head beside vectors.
#[derive(Clone, Copy)]
struct Step {
    /// `Δ`.
    step: f32,
    /// Its slope by `dt`.
    step_slope: f32,
    rate: f32,
    rate_slope: f32,
    /// `exp(−rate·Δ)`.
    decay: f32,
    /// Weight of the step's end.
    end: f32,
}

impl Step {
    /// Factors of what was there at the step's begin, and of what is at its end.
    fn weights(&self) -> (f32, f32) {
        (self.decay * self.step * (1.0 - self.end), self.step * self.end)
    }
}

impl<'a> Scan<'a> {
    fn lengths(&self, tokens: usize) -> [usize; 15] {
        let Shape { heads, head_dim, state, ranks, angles, .. } = self.shape;
        let (inner, bc, bias) = (tokens * heads * head_dim, tokens * ranks * state, heads * ranks * state);
        let one = tokens * heads;
        let by_rank = if self.operands.rank_x.is_empty() { 0 } else { heads * ranks * head_dim };
        [
            inner,
            inner,
            bc,
            bc,
            one,
            one,
            one,
            tokens * angles,
            heads,
            bias,
            bias,
            heads,
            by_rank,
            by_rank,
            by_rank,
        ]
    }

    fn check(&self, op: &'static str) -> Result<usize> {
        let Shape { heads, head_dim, state, ranks, angles, .. } = self.shape;
        if 2 * angles > state || state == 0 {
            let want = "at most half the state";
            return Err(Error::Size { op, name: "angles", want, got: angles });
        }
        if ranks == 0 || (ranks > 1 && self.operands.rank_x.is_empty()) {
            let want = "one without inputs by rank";
            return Err(Error::Size { op, name: "ranks", want, got: ranks });
        }
        let tokens = expect_rows(op, "x", heads * head_dim, self.operands.x.len())?;
        let lengths = self.lengths(tokens);
        for ((name, want), got) in NAMES.into_iter().zip(lengths).zip(self.operands.each()) {
            expect_len(op, name, want, got.len())?;
        }
        expect_covered(op, self.segments, tokens)?;
        Ok(tokens)
    }

    /// Channels of head `n` at token `t`.
    fn channels(&self, of: &'a [f32], t: usize, n: usize) -> &'a [f32] {
        let Shape { heads, head_dim, .. } = self.shape;
        &of[(t * heads + n) * head_dim..][..head_dim]
    }

    /// Head `n`'s part of a bias `[N,R,S]`.
    fn bias(&self, of: &'a [f32], n: usize) -> &'a [f32] {
        let size = self.shape.ranks * self.shape.state;
        &of[n * size..][..size]
    }

    /// A factor `[N,R,P]` of head `n` at `i` of `[R,P]`.
    fn factor(&self, of: &[f32], n: usize, i: usize) -> f32 {
        if of.is_empty() { 1.0 } else { of[n * self.shape.ranks * self.shape.head_dim + i] }
    }

    fn step(&self, t: usize, n: usize) -> Step {
        let (at, o) = (t * self.shape.heads + n, &self.operands);
        let raw = o.dt[at] + o.dt_bias[n];
        let (step, soft) = (softplus(raw), softplus(o.rate[at]));
        let floor = self.shape.rate_floor;
        let rate = soft.max(floor);
        Step {
            step,
            step_slope: sigmoid(raw),
            rate,
            rate_slope: if soft < floor { 0.0 } else { sigmoid(o.rate[at]) },
            decay: exp(-rate * step),
            end: sigmoid(o.trap[at]),
        }
    }
}

/// One head on its way through a document.
#[derive(Clone)]
struct Walk {
    /// `[P,S]`.
    h: Vec<f32>,
    angles: Vec<f32>,
    /// Cosine and sine of each angle.
    turns: Vec<(f32, f32)>,
    /// Turned, `[R,S]`.
    keys: Vec<f32>,
    queries: Vec<f32>,
    /// `[P]`.
    x: Vec<f32>,
    /// What was added to the state: `left_j ⊗ right_j`, those of the step's begin, then those of its end.
    left: Vec<f32>,
    right: Vec<f32>,
}

impl Walk {
    /// Before a document, or behind what `last` and `h` have kept of it.
    fn new(shape: &Shape, last: &[f32], h: &[f32]) -> Self {
        let Shape { head_dim: p, state: s, ranks: r, angles: a, .. } = *shape;
        let part = |from: usize, len: usize| match last {
            [] => vec![0.0; len],
            _ => last[from..][..len].to_vec(),
        };
        Self {
            h: if h.is_empty() { vec![0.0; p * s] } else { h.to_vec() },
            angles: part(0, a),
            turns: vec![(1.0, 0.0); a],
            keys: part(a, r * s),
            queries: vec![0.0; r * s],
            x: part(a + r * s, p),
            left: vec![0.0; 2 * r * p],
            right: vec![0.0; 2 * r * s],
        }
    }

    /// What [`Walk::new`] needs to go on.
    fn keep(&self, last: &mut [f32], h: &mut [f32]) {
        let parts = [&self.angles, &self.keys, &self.x];
        last.iter_mut().zip(parts.into_iter().flatten()).for_each(|(to, from)| *to = *from);
        h.copy_from_slice(&self.h);
    }

    /// Takes token `t` in as head `n`.
    fn take(&mut self, isa: Isa, scan: &Scan<'_>, t: usize, n: usize) {
        let (shape, o) = (&scan.shape, &scan.operands);
        let Shape { head_dim: p, state: s, ranks: r, angles, .. } = *shape;
        let step = scan.step(t, n);
        let (begin, end) = step.weights();
        self.right[..r * s].copy_from_slice(&self.keys);
        for i in 0..r * p {
            self.left[i] = begin * scan.factor(o.rank_x, n, i) * self.x[i % p];
        }
        for (j, (angle, turn)) in self.angles.iter_mut().zip(&mut self.turns).enumerate() {
            let sum = *angle + tanh(o.angle[t * angles + j]) * PI * step.step;
            *angle = sum - 2.0 * PI * (sum / (2.0 * PI)).floor();
            let (sin, cos) = sin_cos(f64::from(*angle));
            *turn = (cos as f32, sin as f32);
        }
        for (to, raw, bias) in [(&mut self.keys, o.b, o.b_bias), (&mut self.queries, o.c, o.c_bias)] {
            let raw = &raw[t * r * s..][..r * s];
            to.iter_mut().zip(raw).zip(scan.bias(bias, n)).for_each(|((to, raw), bias)| *to = raw + bias);
            for row in to.chunks_exact_mut(s) {
                for (j, &(cos, sin)) in self.turns.iter().enumerate() {
                    let (first, second) = shape.pair(j);
                    let (a, b) = (row[first], row[second]);
                    (row[first], row[second]) = (a * cos - b * sin, a * sin + b * cos);
                }
            }
        }
        self.x.copy_from_slice(scan.channels(o.x, t, n));
        self.right[r * s..].copy_from_slice(&self.keys);
        for i in 0..r * p {
            self.left[r * p + i] = end * scan.factor(o.rank_x, n, i) * self.x[i % p];
        }
        add_products(isa, &mut self.h, step.decay, &self.left, &self.right, s);
    }
}

/// `h_t = a_t (h_{t−1} + Δ_t (1−λ_t) V_{t−1} K_{t−1}) + Δ_t λ_t V_t K_t`, `o_r = h_t q_r + D v_r`,
/// `y = Σ_r o_r · silu(z · rank_z_r) · rank_o_r`.
///
/// `V K` is `Σ_r v_r ⊗ k_r` with `v_r = x · rank_x_r`; `Δ = softplus(dt + dt_bias)`, `a = exp(−max(softplus(rate),
/// rate_floor) Δ)`, `λ = sigmoid(trap)`; `k_r` and `q_r` are `b_r + b_bias` and `c_r + c_bias`, turned by
/// `θ_t = θ_{t−1} + π Δ_t tanh(angle_t)`.
///
/// | arg     | shape         | dtype | meaning                                                       |
/// |---------|---------------|-------|---------------------------------------------------------------|
/// | `y`     | `[T,N·P]`     | f32   | output                                                        |
/// | `last`  | `[D,N,A+R·S+P]` | f32 | what each document's last token left: [`Shape::last`]; read as before it, replaced by after it; empty: zeros, dropped |
/// | `states`| `[D,N,P,S]`   | f32   | states, likewise; empty with `last`                           |
///
/// # Errors
/// [`Error::Shape`], [`Error::Size`] or [`Error::Segments`] if an operand does not fit.
///
/// # Source
/// MindSpeed-LLM (2026), `mindspeed_llm/fsdp2/models/mamba3/mamba3_block.py`, there as a quadratic form and by chunks.
pub fn forward(
    cpu: &Cpu,
    y: &mut [f32],
    last: &mut [f32],
    states: &mut [f32],
    scan: &Scan<'_>,
) -> Result<()> {
    const OP: &str = "trapezoid::forward";
    scan.check(OP)?;
    let o = &scan.operands;
    expect_len(OP, "y", o.x.len(), y.len())?;
    let Shape { heads, head_dim: p, state: s, ranks: r, .. } = scan.shape;
    let (size, width, units) = (p * s, scan.shape.last(), scan.segments.len() * heads);
    let kept = !last.is_empty();
    expect_len(OP, "last", if kept { units * width } else { 0 }, last.len())?;
    expect_len(OP, "states", if kept { units * size } else { 0 }, states.len())?;
    let (y, last, states) = (Disjoint::new(y), Disjoint::new(last), Disjoint::new(states));
    cpu.for_each_unit(units, |u| {
        let (segment, n) = (&scan.segments[u / heads], u % heads);
        let (mut none, mut nothing) = ([], []);
        let (last, state) = match kept {
            // SAFETY: a unit takes its own memory.
            true => unsafe { (last.part(u * width, width), states.part(u * size, size)) },
            false => (&mut none[..], &mut nothing[..]),
        };
        let mut walk = Walk::new(&scan.shape, last, state);
        let mut out = vec![0f32; r * p];
        for t in segment.q_start..segment.q_start + segment.q_len {
            walk.take(cpu.isa(), scan, t, n);
            along_rows(cpu.isa(), &mut out, &walk.h, &walk.queries, s);
            // SAFETY: a unit takes one head of its document's tokens.
            let y = unsafe { y.part((t * heads + n) * p, p) };
            y.fill(0.0);
            let z = scan.channels(o.z, t, n);
            for (i, out) in out.iter().enumerate() {
                let v = walk.x[i % p] * scan.factor(o.rank_x, n, i);
                let gate = z[i % p] * scan.factor(o.rank_z, n, i);
                y[i % p] += (out + o.d[n] * v) * gate * sigmoid(gate) * scan.factor(o.rank_o, n, i);
            }
        }
        if kept {
            walk.keep(last, state);
        }
    });
    Ok(())
}
