//! Backward pass of the delta rule.

use super::{Keys, Numbers, Scan, Shape, expect_len, unit_backward};
use crate::attention::Segment;
use crate::cpu::Disjoint;
use crate::matmul::kernel::Kernel;
use crate::memory::{Scratch, with_scratch};
use crate::prefetch::fetch_rows;
use crate::recurrence::chunk::{Rows, Sizes, ToRows, Work, lines, rows_times, take};
use crate::recurrence::product::{Band, View, product, with_f32_kernel};
use crate::recurrence::system::System;
use crate::recurrence::units::Heads;
use crate::recurrence::{ROWS, Step};
use crate::{Cpu, Result};

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

/// Where units put what they find.
struct To<'a> {
    v: Disjoint<'a, f32>,
    g: Disjoint<'a, f32>,
    beta: Disjoint<'a, f32>,
    /// Gradients of queries and keys if a key is one unit's; or else of the normalised ones by a unit's heads, `[units,T,K]`.
    q: Disjoint<'a, f32>,
    k: Disjoint<'a, f32>,
}

/// Gradients of [`super::forward`] from zero states.
///
/// The states before the chunks and the values written are recomputed. Gradients of shared queries and keys sum over value
/// heads in order.
///
/// # Errors
/// As [`super::forward`].
pub fn backward(cpu: &Cpu, grads: Gradients<'_>, dy: &[f32], scan: &Scan<'_>) -> Result<()> {
    const OP: &str = "delta_rule::backward";
    let tokens = scan.check(OP)?;
    let Shape { key_heads, key_dim, .. } = scan.shape;
    expect_len(OP, "dy", scan.v.len(), dy.len())?;
    expect_len(OP, "dq", scan.q.len(), grads.q.len())?;
    expect_len(OP, "dk", scan.k.len(), grads.k.len())?;
    expect_len(OP, "dv", scan.v.len(), grads.v.len())?;
    expect_len(OP, "dg", scan.g.len(), grads.g.len())?;
    expect_len(OP, "dbeta", scan.beta.len(), grads.beta.len())?;
    let (documents, of) = (scan.segments.len(), scan.groups());
    let part = if of.alone() { 0 } else { of.units() * tokens * key_dim };
    with_scratch(Scratch::Rows, 2 * part, |parts: &mut [f32]| {
        let (q_parts, k_parts) = parts.split_at_mut(part);
        let (q, k) = if of.alone() { (&mut *grads.q, &mut *grads.k) } else { (&mut *q_parts, &mut *k_parts) };
        let [v, g, beta, q, k] = [grads.v, grads.g, grads.beta, q, k].map(Disjoint::new);
        let to = To { v, g, beta, q, k };
        of.for_each(cpu, documents, |document, of| {
            let segment = &scan.segments[document];
            with_f32_kernel!(cpu.isa(), K => back::<K>(cpu, scan, dy, &to, segment, of));
        });
        if of.alone() {
            return;
        }
        for (to, parts, x, factor) in
            [(grads.q, &*q_parts, scan.q, scan.scale()), (grads.k, &*k_parts, scan.k, 1.0)]
        {
            cpu.for_each_row(tokens * key_heads, 16, (to, key_dim), |row, to| {
                let (t, key) = (row / key_heads, row % key_heads);
                let mut sum = vec![0f32; key_dim];
                of.sum(&mut sum, key, |unit| &parts[(unit * tokens + t) * key_dim..][..key_dim]);
                unit_backward(cpu.isa(), to, &sum, &x[row * key_dim..][..key_dim], factor);
            });
        }
    });
    Ok(())
}

/// One head's way, where it is in the scratch of a unit.
struct Head<'a> {
    numbers: &'a Numbers,
    /// The state in front of each chunk, `[chunks,K,V]`.
    fronts: &'a mut [f32],
    /// What each token found other than it wanted, `[T,V]`.
    e: &'a mut [f32],
    /// Gradient with respect to the state, `[K,V]`.
    dh: &'a mut [f32],
}

/// Takes some heads through a document and back.
fn back<K: Kernel<Packed = f32>>(
    cpu: &Cpu,
    scan: &Scan<'_>,
    dy: &[f32],
    to: &To<'_>,
    segment: &Segment,
    of: Heads,
) {
    let (isa, sizes) = (cpu.isa(), scan.sizes());
    let Sizes { s, p, .. } = sizes;
    let (size, most) = (s * p, sizes.rows());
    let chunks = segment.q_len.div_ceil(most);
    let numbers: Vec<Numbers> = (0..of.count).map(|i| scan.numbers(isa, segment, of.first + i)).collect();
    let of_head = lines(chunks * size) + lines(segment.q_len * p) + lines(size);
    let room = Work::len(&sizes) + Chunk::len(&sizes) + of.count * of_head;
    with_scratch(Scratch::Keys, room, |mut rest: &mut [f32]| {
        let mut work = Work::new(isa, sizes, &mut rest);
        let mut chunk = Chunk::new(&mut rest, &sizes);
        let mut heads: Vec<Head<'_>> = numbers
            .iter()
            .map(|numbers| Head {
                numbers,
                fronts: take(&mut rest, chunks * size),
                e: take(&mut rest, segment.q_len * p),
                dh: take(&mut rest, size),
            })
            .collect();
        for c in 0..chunks {
            chunk.forward::<K>(&mut work, scan, &mut heads, (segment, c), of);
        }
        for c in (0..chunks).rev() {
            chunk.back::<K>(&mut work, scan, &mut heads, dy, to, (segment, c), of);
        }
    });
}

/// Scratch of a chunk.
struct Chunk<'a> {
    sizes: Sizes,
    keys: Keys<'a>,
    d_scores: &'a mut [f32],
    d_overlaps: &'a mut [f32],
    u: &'a mut [f32],
    dv: &'a mut [f32],
    dq: &'a mut [f32],
    dk: &'a mut [f32],
}

impl<'a> Chunk<'a> {
    fn len(sizes: &Sizes) -> usize {
        let n = sizes.rows();
        Keys::len(sizes) + 2 * lines(n * n) + 2 * lines(n * sizes.p) + 2 * lines(n * sizes.s)
    }

    fn new(rest: &mut &'a mut [f32], sizes: &Sizes) -> Self {
        let n = sizes.rows();
        Self {
            sizes: *sizes,
            keys: Keys::new(rest, sizes),
            d_scores: take(rest, n * n),
            d_overlaps: take(rest, n * n),
            u: take(rest, n * sizes.p),
            dv: take(rest, n * sizes.p),
            dq: take(rest, n * sizes.s),
            dk: take(rest, n * sizes.s),
        }
    }

    /// Tokens of chunk `c`, counted in the document.
    fn tokens(&self, segment: &Segment, c: usize) -> std::ops::Range<usize> {
        let most = self.sizes.rows();
        c * most..segment.q_len.min((c + 1) * most)
    }

    /// Computes what the tokens of chunk `c` write, and the state after it if a chunk follows.
    fn forward<K: Kernel<Packed = f32>>(
        &mut self,
        work: &mut Work<'_>,
        scan: &Scan<'_>,
        heads: &mut [Head<'_>],
        (segment, c): (&Segment, usize),
        of: Heads,
    ) {
        let Sizes { s, p, .. } = self.sizes;
        let (size, inside) = (s * p, self.tokens(segment, c));
        let (t, n) = (segment.q_start + inside.start, inside.len());
        self.keys.form::<K>(work.isa(), scan, (t, n), of.group);
        let (q, k) = (View::of(self.keys.q, s), View::of(self.keys.k, s));
        for (head, number) in heads.iter_mut().zip(of.first..) {
            let (v, stride) = scan.values(scan.v, t, number);
            fetch_rows(v.as_ptr(), stride, n, p);
            work.begin(Step::decaying(&head.numbers.decay[inside.clone()]));
            let (before, after) = head.fronts.split_at_mut((c + 1) * size);
            let h = &before[c * size..];
            let system = System { overlaps: self.keys.overlaps, beta: &head.numbers.beta[inside.clone()] };
            let written = (&mut head.e[inside.start * p..inside.end * p], &mut self.u[..n * p]);
            work.solve::<K>(written, k, (v, stride), &system, (c > 0).then_some(h));
            if inside.end < segment.q_len {
                let rows = Rows { q, k, scores: self.keys.scores, v: &self.u[..n * p] };
                work.carry_from::<K>((c > 0).then_some(h), &mut after[..size], &rows);
            }
        }
    }

    /// Goes back over chunk `c` with all heads of a unit.
    fn back<K: Kernel<Packed = f32>>(
        &mut self,
        work: &mut Work<'_>,
        scan: &Scan<'_>,
        heads: &mut [Head<'_>],
        dy: &[f32],
        to: &To<'_>,
        (segment, c): (&Segment, usize),
        of: Heads,
    ) {
        let Sizes { s, p, .. } = self.sizes;
        let (isa, all, most, size) = (work.isa(), scan.shape.value_heads, self.sizes.rows(), s * p);
        let inside = self.tokens(segment, c);
        let (t, n) = (segment.q_start + inside.start, inside.len());
        let ended = inside.end == segment.q_len;
        self.keys.form::<K>(isa, scan, (t, n), of.group);
        self.keys.score::<K>(&self.sizes, n);
        let (q, k) = (View::of(self.keys.q, s), View::of(self.keys.k, s));
        self.d_scores.fill(0.0);
        self.d_overlaps.fill(0.0);
        let (dq, dk) = (&mut self.dq[..n * s], &mut self.dk[..n * s]);
        dq.fill(0.0);
        dk.fill(0.0);
        let (mut d, mut dbeta) = ([Step::default(); ROWS], [0f32; ROWS]);
        for (head, number) in heads.iter_mut().zip(of.first..) {
            let beta = &head.numbers.beta[inside.clone()];
            let (u, dv, e) =
                (&mut self.u[..n * p], &mut self.dv[..n * p], &head.e[inside.start * p..inside.end * p]);
            let own_dy = scan.values(dy, t, number);
            for rows in [own_dy.0.as_ptr(), to.v.address().wrapping_add((t * all + number) * p)] {
                fetch_rows(rows, own_dy.1, n, p);
            }
            rows_times(isa, u, p, (e, p), beta);
            work.begin(Step::decaying(&head.numbers.decay[inside.clone()]));
            let rows = Rows { q, k, scores: self.keys.scores, v: u };
            let system = System { overlaps: self.keys.overlaps, beta };
            let front = (c > 0).then(|| &head.fronts[c * size..][..size]);
            let dh = (!ended).then_some(&*head.dh);
            let mut rows_to = ToRows { q: &mut *dq, k: &mut *dk, scores: self.d_scores, v: dv };
            work.back::<K>(&mut rows_to, &rows, own_dy, front, dh);
            let system_to = (&mut *self.d_overlaps, &mut dbeta[..n]);
            work.back_solve::<K>(&mut rows_to, system_to, &rows, e, &system, front);
            work.back_through::<K>(&mut d, &rows, own_dy, (c > 0).then_some(&mut *head.dh), ended);
            if c > 0 {
                work.taken_off::<K>(k, head.dh);
            }
            for (i, row) in dv.chunks_exact(p).enumerate() {
                let at = (t + i) * all + number;
                // SAFETY: a unit takes its heads of its document's tokens.
                let (dv, dg, to_beta) =
                    unsafe { (to.v.part(at * p, p), to.g.part(at, 1), to.beta.part(at, 1)) };
                dv.copy_from_slice(row);
                (dg[0], to_beta[0]) = (d[i].decay, dbeta[i]);
            }
        }
        let (scores, overlaps) = (View::of(self.d_scores, most), View::of(self.d_overlaps, most));
        product::<K>((dq, s), true, scores, k, [n, s, n], Band::UpTo(1));
        product::<K>((dk, s), true, scores.t(), q, [n, s, n], Band::From(1));
        product::<K>((dk, s), true, overlaps, k, [n, s, n], Band::UpTo(1));
        product::<K>((dk, s), true, overlaps.t(), k, [n, s, n], Band::From(1));
        let groups = scan.groups();
        for (to, d, x, factor) in [(&to.q, dq, scan.q, scan.scale()), (&to.k, dk, scan.k, 1.0)] {
            let (x, stride) = scan.keys(x, t, of.group);
            for (i, d) in d.chunks_exact(s).enumerate() {
                let row = groups.row(of.unit, scan.g.len() / all, t + i);
                // SAFETY: a unit takes its own rows of its document's tokens.
                let to = unsafe { to.part(row * s, s) };
                if groups.alone() {
                    unit_backward(isa, to, d, &x[i * stride..][..s], factor);
                } else {
                    to.copy_from_slice(d);
                }
            }
        }
    }
}
