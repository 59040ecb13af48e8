//! Backward pass of the state space.

use super::{Scan, Shape, Steps, blend, exp, expect_len};
use crate::attention::Segment;
use crate::cpu::Disjoint;
use crate::matmul::kernel::Kernel;
use crate::memory::{Scratch, with_scratch};
use crate::prefetch::Lines;
use crate::recurrence::chunk::{Rows, Sizes, ToRows, Work, dots, lines, rows_times, take};
use crate::recurrence::product::{Band, View, product, triangle, with_f32_kernel};
use crate::recurrence::units::Heads;
use crate::recurrence::{ROWS, Step};
use crate::{Cpu, Result};

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

/// Where units put what they find.
struct To<'a> {
    x: Disjoint<'a, f32>,
    dt: Disjoint<'a, f32>,
    /// Gradients of `B` and `C` by a unit's heads: those asked for if a group is one unit, or else `[units,T,S]`.
    b: Disjoint<'a, f32>,
    c: Disjoint<'a, f32>,
    /// Those of the three weights of a head of a document.
    sums: Disjoint<'a, f32>,
}

/// Gradients of [`super::forward`] from zero states.
///
/// The states before the chunks are recomputed. The gradients of `B` and `C` sum over the heads of a group in order.
///
/// # Errors
/// As [`super::forward`].
pub fn backward(cpu: &Cpu, grads: Gradients<'_>, dy: &[f32], scan: &Scan<'_>) -> Result<()> {
    const OP: &str = "state_space::backward";
    let tokens = scan.check(OP)?;
    let Shape { heads, groups, state, .. } = scan.shape;
    expect_len(OP, "dy", scan.x.len(), dy.len())?;
    expect_len(OP, "dx", scan.x.len(), grads.x.len())?;
    expect_len(OP, "db", scan.b.len(), grads.b.len())?;
    expect_len(OP, "dc", scan.c.len(), grads.c.len())?;
    expect_len(OP, "ddt", scan.dt.len(), grads.dt.len())?;
    for (name, g) in [("da_log", &grads.a_log), ("dd", &grads.d), ("ddt_bias", &grads.dt_bias)] {
        expect_len(OP, name, heads, g.len())?;
    }
    let (documents, of) = (scan.segments.len(), scan.groups());
    let mut weights = vec![0f32; 3 * documents * heads];
    let part = if of.alone() { 0 } else { of.units() * tokens * state };
    with_scratch(Scratch::Rows, 2 * part, |parts: &mut [f32]| {
        let (b_parts, c_parts) = parts.split_at_mut(part);
        let (b, c) = if of.alone() { (&mut *grads.b, &mut *grads.c) } else { (&mut *b_parts, &mut *c_parts) };
        let [x, dt, b, c, sums] = [grads.x, grads.dt, b, c, &mut weights].map(Disjoint::new);
        let to = To { x, dt, b, c, sums };
        of.for_each(cpu, documents, |document, of| {
            with_f32_kernel!(cpu.isa(), K => back::<K>(cpu, scan, dy, &to, document, of));
        });
        if of.alone() {
            return;
        }
        for (to, parts) in [(grads.b, &*b_parts), (grads.c, &*c_parts)] {
            cpu.for_each_row(tokens * groups, 64, (to, state), |row, to| {
                let (t, group) = (row / groups, row % groups);
                of.sum(to, group, |unit| &parts[(unit * tokens + t) * state..][..state]);
            });
        }
    });
    for (u, sum) in weights.chunks_exact(3).enumerate() {
        grads.a_log[u % heads] += sum[0];
        grads.d[u % heads] += sum[1];
        grads.dt_bias[u % heads] += sum[2];
    }
    Ok(())
}

/// One head's way, where it is in the scratch of a unit.
struct Head<'a> {
    steps: &'a Steps,
    /// The state in front of each chunk, `[chunks,S,P]`.
    fronts: &'a mut [f32],
    /// Gradient with respect to the state, `[S,P]`.
    dh: &'a mut [f32],
}

/// Takes some heads through a document and back.
fn back<K: Kernel<Packed = f32>>(
    cpu: &Cpu,
    scan: &Scan<'_>,
    dy: &[f32],
    to: &To<'_>,
    document: usize,
    of: Heads,
) {
    let (segment, isa, sizes) = (&scan.segments[document], cpu.isa(), scan.sizes());
    let (size, most) = (sizes.s * sizes.p, sizes.rows());
    let chunks = segment.q_len.div_ceil(most);
    let steps: Vec<Steps> = (0..of.count).map(|i| scan.steps(isa, segment, of.first + i)).collect();
    let of_head = lines(chunks * size) + lines(size);
    let room = Work::len(&sizes) + of.count * of_head + Chunk::len(&sizes);
    with_scratch(Scratch::Keys, room, |mut rest: &mut [f32]| {
        let mut work = Work::new(isa, sizes, &mut rest);
        let mut chunk = Chunk::new(&mut rest, &sizes);
        let mut heads: Vec<Head<'_>> = steps
            .iter()
            .map(|steps| Head { steps, fronts: take(&mut rest, chunks * size), dh: take(&mut rest, size) })
            .collect();
        for c in 0..chunks - usize::from(chunks > 0) {
            for (head, n) in heads.iter_mut().zip(of.first..) {
                if let Some((c, n)) = of.after(n, c, Some(c + 1)) {
                    let (x, stride) = scan.rows_x(segment.q_start + c * most, n);
                    let tokens = most.min(segment.q_len - c * most);
                    work.ahead.want([Lines::new(x.as_ptr(), stride, tokens, sizes.p)]);
                }
                chunk.forward::<K>(&mut work, scan, head, (segment, c), (n, of.group));
            }
        }
        for c in (0..chunks).rev() {
            chunk.back::<K>(&mut work, scan, &mut heads, dy, to, (document, segment, c), of);
        }
    });
}

/// Scratch of a chunk.
struct Chunk<'a> {
    sizes: Sizes,
    scores: &'a mut [f32],
    d_scores: &'a mut [f32],
    v: &'a mut [f32],
    dv: &'a mut [f32],
    dq: &'a mut [f32],
    dk: &'a mut [f32],
}

impl<'a> Chunk<'a> {
    fn len(sizes: &Sizes) -> usize {
        let n = sizes.rows();
        2 * lines(n * n) + 2 * lines(n * sizes.p) + 2 * lines(n * sizes.s)
    }

    fn new(rest: &mut &'a mut [f32], sizes: &Sizes) -> Self {
        let n = sizes.rows();
        Self {
            sizes: *sizes,
            scores: take(rest, n * n),
            d_scores: take(rest, n * n),
            v: take(rest, n * sizes.p),
            dv: take(rest, n * sizes.p),
            dq: take(rest, n * sizes.s),
            dk: take(rest, n * sizes.s),
        }
    }

    /// Forms the state in front of chunk `c + 1` from that in front of chunk `c`.
    fn forward<K: Kernel<Packed = f32>>(
        &mut self,
        work: &mut Work<'_>,
        scan: &Scan<'_>,
        head: &mut Head<'_>,
        (segment, c): (&Segment, usize),
        (n, group): (usize, usize),
    ) {
        let Sizes { s, p, .. } = self.sizes;
        let (most, size) = (self.sizes.rows(), s * p);
        let t = segment.q_start + c * most;
        let inside = c * most..(c + 1) * most;
        rows_times(work.isa(), self.v, p, scan.rows_x(t, n), &head.steps.step[inside.clone()]);
        work.begin(Step::decaying(&head.steps.decay[inside]));
        let (before, after) = head.fronts.split_at_mut((c + 1) * size);
        let (q, k) = (scan.bc(scan.c, t, group), scan.bc(scan.b, t, group));
        let rows = Rows { q, k, scores: self.scores, v: self.v };
        work.carry_from::<K>((c > 0).then_some(&before[c * size..]), &mut after[..size], &rows);
    }

    /// Goes back over chunk `c` with all heads of a unit.
    fn back<K: Kernel<Packed = f32>>(
        &mut self,
        work: &mut Work<'_>,
        scan: &Scan<'_>,
        heads: &mut [Head<'_>],
        dy: &[f32],
        to: &To<'_>,
        (document, segment, c): (usize, &Segment, usize),
        of: Heads,
    ) {
        let Sizes { s, p, .. } = self.sizes;
        let (isa, all, most, size) = (work.isa(), scan.shape.heads, self.sizes.rows(), s * p);
        let n = most.min(segment.q_len - c * most);
        let t = segment.q_start + c * most;
        let ended = (c + 1) * most >= segment.q_len;
        let (q, k) = (scan.bc(scan.c, t, of.group), scan.bc(scan.b, t, of.group));
        triangle::<K>((self.scores, most), q, k, [n, s], 1);
        self.d_scores.fill(0.0);
        let (dq, dk) = (&mut self.dq[..n * s], &mut self.dk[..n * s]);
        dk.fill(0.0);
        dq.fill(0.0);
        let mut d = [Step::default(); ROWS];
        for (head, number) in heads.iter_mut().zip(of.first..) {
            let (inside, steps) = (c * most..c * most + n, head.steps);
            let (v, dv) = (&mut self.v[..n * p], &mut self.dv[..n * p]);
            let own_dy = (&dy[(t * all + number) * p..], all * p);
            let x = scan.rows_x(t, number);
            if let Some((c, number)) = of.after(number, c, c.checked_sub(1)) {
                let at = ((segment.q_start + c * most) * all + number) * p;
                let rows = [scan.x.as_ptr(), dy.as_ptr(), to.x.address()];
                let tokens = most.min(segment.q_len - c * most);
                work.ahead.want(rows.map(|of| Lines::new(of.wrapping_add(at), all * p, tokens, p)));
            }
            rows_times(isa, v, p, x, &steps.step[inside.clone()]);
            work.begin(Step::decaying(&steps.decay[inside]));
            let rows = Rows { q, k, scores: self.scores, v };
            let mut to_rows = ToRows { q: &mut *dq, k: &mut *dk, scores: self.d_scores, v: dv };
            let front = (c > 0).then(|| &head.fronts[c * size..][..size]);
            let dh = (!ended).then_some(&*head.dh);
            work.back::<K>(&mut to_rows, &rows, own_dy, front, dh);
            work.back_through::<K>(&mut d, &rows, own_dy, (c > 0).then_some(&mut *head.dh), ended);
            // SAFETY: a unit takes the sums of its heads of its document.
            let sum = unsafe { to.sums.part(3 * (document * all + number), 3) };
            let (rate, skip) = (exp(scan.a_log[number]), scan.d[number]);
            let (mut along_dy, mut along_dv) = ([0f32; ROWS], [0f32; ROWS]);
            dots(isa, &mut along_dy[..n], x, own_dy, p);
            dots(isa, &mut along_dv[..n], x, (dv, p), p);
            for (i, dv) in dv.chunks_exact(p).enumerate() {
                let (step, slope) = (steps.step[c * most + i], steps.slope[c * most + i]);
                let dy = &own_dy.0[i * own_dy.1..][..p];
                // SAFETY: a unit takes its heads of its document's tokens.
                let (dx, ddt) = unsafe {
                    (to.x.part(((t + i) * all + number) * p, p), to.dt.part((t + i) * all + number, 1))
                };
                blend(isa, dx, step, dv, skip, dy);
                // log a = −rate·step
                sum[0] -= d[i].decay * rate * step;
                sum[1] += along_dy[i];
                ddt[0] = (along_dv[i] - d[i].decay * rate) * slope;
                sum[2] += ddt[0];
            }
        }
        product::<K>((dq, s), true, View::of(self.d_scores, most), k, [n, s, n], Band::UpTo(1));
        product::<K>((dk, s), true, View::of(self.d_scores, most).t(), q, [n, s, n], Band::From(1));
        for (i, (dk, dq)) in dk.chunks_exact(s).zip(dq.chunks_exact(s)).enumerate() {
            let row = scan.groups().row(of.unit, scan.dt.len() / all, t + i);
            // SAFETY: a unit takes its own rows of its document's tokens.
            let (b, c) = unsafe { (to.b.part(row * s, s), to.c.part(row * s, s)) };
            b.copy_from_slice(dk);
            c.copy_from_slice(dq);
        }
    }
}
