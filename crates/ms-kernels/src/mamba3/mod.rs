//! The state space of Mamba-3: trapezoidal steps, keys and queries rotated by accumulated angles, inputs and outputs of
//! several ranks (MIMO).
//!
//! Four heads are processed together in chunks of 64 rows of keys (see `recurrence`). They read the same keys and queries,
//! and sum their gradients.

mod body;
mod gradient;
mod head;
#[cfg(test)]
mod tests;

use crate::attention::Segment;
use crate::cpu::Disjoint;
use crate::error::{expect_len, expect_rows};
use crate::matmul::kernel::Kernel;
use crate::memory::{Scratch, with_scratch};
use crate::prefetch::fetch_rows;
use crate::recurrence::chunk::Sizes;
use crate::recurrence::product::with_f32_kernel;
use crate::recurrence::units::{Groups, expect_covered};
use crate::{Cpu, Error, Result};
pub use gradient::backward;
use head::{Document, Head, State, Walk};
pub use ms_operands::{Mamba3Operands as Operands, Mamba3Shape as Shape, TurnedPairs as Pairs};
use std::ops::Range;

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

fn chunk_sizes(shape: &Shape) -> Sizes {
    Sizes { s: shape.state, p: shape.head_dim, ranks: shape.ranks }
}

impl<'a> Scan<'a> {
    /// Heads share all that they share.
    fn groups(&self) -> Groups {
        Groups { groups: 1, heads: self.shape.heads }
    }

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

    /// Head `n`'s factors `[R,P]` of `[N,R,P]`, ones if there are none.
    fn factors(&self, of: &[f32], n: usize) -> Vec<f32> {
        let size = self.shape.ranks * self.shape.head_dim;
        if of.is_empty() { vec![1.0; size] } else { of[n * size..][..size].to_vec() }
    }
}

/// `h_t = a_t (h_{t−1} + Δ_t (1−λ_t) V_{t−1} K_{t−1}) + Δ_t λ_t V_t K_t`, `o_r = h_t q_r + D v_r`, `y = Σ_r o_r · silu(z ·
/// rank_z_r) · rank_o_r`.
///
/// `V K` is `Σ_r v_r ⊗ k_r` with `v_r = x · rank_x_r`; `Δ = softplus(dt + dt_bias)`,
/// `a = exp(−max(softplus(rate), rate_floor) Δ)`, `λ = sigmoid(trap)`; `k_r` and `q_r` are `b_r + b_bias` and `c_r + c_bias`,
/// rotated by `θ_t = θ_{t−1} + π Δ_t tanh(angle_t)`.
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
    const OP: &str = "mamba3::forward";
    scan.check(OP)?;
    let o = &scan.operands;
    expect_len(OP, "y", o.x.len(), y.len())?;
    let Shape { heads, head_dim: p, state: s, .. } = scan.shape;
    let (size, width) = (p * s, scan.shape.last());
    let kept = !last.is_empty();
    let remembered = if kept { scan.segments.len() * heads } else { 0 };
    expect_len(OP, "last", remembered * width, last.len())?;
    expect_len(OP, "states", remembered * size, states.len())?;
    let (y, last, states) = (Disjoint::new(y), Disjoint::new(last), Disjoint::new(states));
    scan.groups().for_each(cpu, scan.segments.len(), |document, of| {
        let (at, count) = (document * heads + of.first, of.count);
        let (mut none, mut nothing) = ([], []);
        let (last, states) = match kept {
            // SAFETY: a unit takes the memory of its heads of its document.
            true => unsafe { (last.part(at * width, count * width), states.part(at * size, count * size)) },
            false => (&mut none[..], &mut nothing[..]),
        };
        let segment = &scan.segments[document];
        with_f32_kernel!(cpu.isa(), K => through::<K>(cpu, scan, &y, (last, states), segment, of.numbers()));
    });
    Ok(())
}

/// Takes some heads through a document.
fn through<K: Kernel<Packed = f32>>(
    cpu: &Cpu,
    scan: &Scan<'_>,
    y: &Disjoint<'_, f32>,
    (last, states): (&mut [f32], &mut [f32]),
    segment: &Segment,
    numbers: Range<usize>,
) {
    let (isa, sizes, Shape { heads, head_dim: p, .. }) = (cpu.isa(), chunk_sizes(&scan.shape), scan.shape);
    let (size, width, kept) = (p * sizes.s, scan.shape.last(), !last.is_empty());
    let document = Document::new(isa, scan, segment);
    let of: Vec<Head> = numbers.map(|n| Head::new(isa, scan, segment, n)).collect();
    let room = Walk::len(&sizes) + of.len() * State::len(&sizes);
    with_scratch(Scratch::Keys, room, |mut rest: &mut [f32]| {
        let mut walk = Walk::new(isa, scan, &mut rest);
        let part = |of: &[f32], i: usize, len: usize| -> Vec<f32> {
            if kept { of[i * len..][..len].to_vec() } else { Vec::new() }
        };
        let mut inside: Vec<State<'_>> = (0..of.len())
            .map(|i| State::new(isa, scan, &mut rest, &part(last, i, width), &part(states, i, size)))
            .collect();
        for tokens in walk.chunks(segment) {
            for (head, state) in of.iter().zip(&mut inside) {
                let at = ((segment.q_start + tokens.start) * heads + head.n) * p;
                for rows in [scan.operands.x.as_ptr(), scan.operands.z.as_ptr(), y.address()] {
                    fetch_rows(rows.wrapping_add(at), heads * p, tokens.len(), p);
                }
                walk.enter::<K>(scan, &document, head, state, tokens.clone());
                walk.queries::<K>(scan, head, tokens.clone());
                walk.outputs::<K>(state);
                for (i, token) in tokens.clone().enumerate() {
                    let t = segment.q_start + token;
                    // SAFETY: a unit takes its heads of its document's tokens.
                    let y = unsafe { y.part((t * heads + head.n) * p, p) };
                    walk.gated(scan, head, y, t, i);
                }
                if kept || tokens.end < segment.q_len {
                    walk.leave::<K>(state);
                }
            }
        }
        if kept {
            let memory = last.chunks_exact_mut(width).zip(states.chunks_exact_mut(size));
            for (state, (last, h)) in inside.iter().zip(memory) {
                state.keep(isa, last, h, p);
            }
        }
    });
}
