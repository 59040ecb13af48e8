//! Backward pass of a scan.

use super::body::{self, Gated};
use super::head::{Document, Head, State, Walk};
use super::{Cpu, Disjoint, NAMES, Operands, Pairs, Result, Scan, Shape, chunk_sizes, expect_len};
use crate::attention::Segment;
use crate::isa::instances;
use crate::matmul::kernel::Kernel;
use crate::memory::{Scratch, with_scratch};
use crate::prefetch::fetch_rows;
use crate::recurrence::chunk::{Rows, Sizes, ToRows, lines, take};
use crate::recurrence::product::{Band, View, product, with_f32_kernel};
use crate::recurrence::{ROWS, Step};
use std::ops::Range;

instances! {
    fn turned_back(
        d: &mut [f32], by_angle: &mut [f32], turned: &[f32], turns: (&[f32], &[f32]), sizes: (usize, bool),
    ) = body::turned_back;
    fn gated_back(
        to: (&mut [f32], &mut [f32]), by_rank: (&mut [f32], &mut [f32]), of: &Gated<'_>, d: f32,
    ) -> f32 = body::gated_back;
    fn by_rank(v: &mut [f32], p: usize, x: &[f32], stride: usize, factors: &[f32]) = body::by_rank;
    fn by_rank_back(
        dx: &mut [f32], d_factors: &mut [f32], from: (&[f32], &[f32]), x: &[f32], factors: &[f32], skip: f32,
    ) = body::by_rank_back;
    fn angles_back(to: &mut [f32], by_angle: &[f32], speeds: &[f32], step: f32) -> f32 = body::angles_back;
    fn add_twice(to: &mut [f32], other: &mut [f32], from: &[f32]) = body::add_twice;
    fn add(to: &mut [f32], from: &[f32]) = body::add;
}

/// Where heads put the gradients of tokens.
struct To<'a> {
    x: Disjoint<'a, f32>,
    z: Disjoint<'a, f32>,
    dt: Disjoint<'a, f32>,
    rate: Disjoint<'a, f32>,
    trap: Disjoint<'a, f32>,
    /// Keys, queries and angles `[units,T,2·R·S+A]`.
    shared: Disjoint<'a, f32>,
    /// [`Sums`] of each head of each document.
    sums: Disjoint<'a, f32>,
}

/// Sums over a head's tokens: gradients of its weights.
struct Sums<'a> {
    dt_bias: &'a mut f32,
    d: &'a mut f32,
    b_bias: &'a mut [f32],
    c_bias: &'a mut [f32],
    /// Inputs, gates and outputs by rank.
    ranks: [&'a mut [f32]; 3],
}

impl<'a> Sums<'a> {
    fn size(shape: &Shape) -> usize {
        2 + 2 * shape.ranks * shape.state + 3 * shape.ranks * shape.head_dim
    }

    fn of(shape: &Shape, all: &'a mut [f32]) -> Self {
        let (bias, by_rank) = (shape.ranks * shape.state, shape.ranks * shape.head_dim);
        let (single, rest) = all.split_at_mut(2);
        let (dt_bias, d) = single.split_at_mut(1);
        let (b_bias, rest) = rest.split_at_mut(bias);
        let (c_bias, rest) = rest.split_at_mut(bias);
        let (x, rest) = rest.split_at_mut(by_rank);
        let (z, o) = rest.split_at_mut(by_rank);
        Self { dt_bias: &mut dt_bias[0], d: &mut d[0], b_bias, c_bias, ranks: [x, z, o] }
    }
}

/// The scan of one head: what it has saved of each chunk in the forward direction, and the gradients from a chunk's
/// successors.
struct One<'a> {
    head: Head,
    sums: Sums<'a>,
    state: State<'a>,
    /// States `[chunks,S,P]`, with what the chunk's first token writes again.
    fronts: &'a mut [f32],
    /// Keys `[chunks,R,S]` of the token in front of it.
    before: &'a mut [f32],
    /// Angles after every token `[T,A]`.
    angles: &'a mut [f32],
    /// By the state `[S,P]`.
    dh: &'a mut [f32],
    /// By keys and values `[R,S]` and `[R,P]` of the last token, through what the next one writes again.
    keys: &'a mut [f32],
    values: &'a mut [f32],
    by_angle: Vec<f32>,
}

impl<'a> One<'a> {
    /// Scratch elements for a document of this many tokens.
    fn len(shape: &Shape, tokens: usize) -> usize {
        let (sizes, chunks) = (chunk_sizes(shape), tokens.div_ceil(chunk_sizes(shape).tokens()));
        let (state, keys, values) = (sizes.s * sizes.p, sizes.ranks * sizes.s, sizes.ranks * sizes.p);
        let kept = lines(chunks * state) + lines(chunks * keys) + lines(tokens * shape.angles);
        State::len(&sizes) + kept + lines(state) + lines(keys) + lines(values)
    }
}

/// What is found of one head in one chunk.
struct Back<'a> {
    d_out: &'a mut [f32],
    dv: &'a mut [f32],
    dq: &'a mut [f32],
    dk: &'a mut [f32],
    d_scores: &'a mut [f32],
}

impl<'a> Back<'a> {
    fn len(sizes: &Sizes) -> usize {
        let n = sizes.rows();
        2 * lines(n * sizes.p) + 2 * lines(n * sizes.s) + lines(n * n)
    }

    fn new(rest: &mut &'a mut [f32], sizes: &Sizes) -> Self {
        let n = sizes.rows();
        Self {
            d_out: take(rest, n * sizes.p),
            dv: take(rest, n * sizes.p),
            dq: take(rest, n * sizes.s),
            dk: take(rest, n * sizes.s),
            d_scores: take(rest, n * n),
        }
    }
}

/// Backward of a unit's heads through a document.
struct Way<'a> {
    cpu: &'a Cpu,
    scan: &'a Scan<'a>,
    dy: &'a [f32],
    to: &'a To<'a>,
    segment: &'a Segment,
    document: &'a Document,
    unit: usize,
}

impl Way<'_> {
    /// Goes through the document and back with the heads `numbers`, whose sums are `sums`, one after the other.
    fn go<K: Kernel<Packed = f32>>(&self, numbers: Range<usize>, sums: &mut [f32]) {
        let (isa, scan, sizes, a) =
            (self.cpu.isa(), self.scan, chunk_sizes(&self.scan.shape), self.scan.shape.angles);
        let (size, keys, len) = (sizes.s * sizes.p, sizes.ranks * sizes.s, self.segment.q_len);
        let chunks = len.div_ceil(sizes.tokens());
        let room = Walk::len(&sizes) + Back::len(&sizes) + numbers.len() * One::len(&scan.shape, len);
        with_scratch(Scratch::Keys, room, |mut rest: &mut [f32]| {
            let mut walk = Walk::new(isa, scan, &mut rest);
            let mut back = Back::new(&mut rest, &sizes);
            let mut heads: Vec<One<'_>> = numbers
                .zip(sums.chunks_exact_mut(Sums::size(&scan.shape)))
                .map(|(n, sums)| One {
                    head: Head::new(isa, scan, self.segment, n),
                    sums: Sums::of(&scan.shape, sums),
                    state: State::new(isa, scan, &mut rest, &[], &[]),
                    fronts: take(&mut rest, chunks * size),
                    before: take(&mut rest, chunks * keys),
                    angles: take(&mut rest, len * a),
                    dh: take(&mut rest, size),
                    keys: take(&mut rest, keys),
                    values: take(&mut rest, sizes.ranks * sizes.p),
                    by_angle: vec![0.0; a],
                })
                .collect();
            for (c, tokens) in walk.chunks(self.segment).enumerate() {
                for one in &mut heads {
                    let (at, width) = self.rows(&one.head, &tokens);
                    fetch_rows(scan.operands.x.as_ptr().wrapping_add(at), width, tokens.len(), sizes.p);
                    walk.enter::<K>(scan, self.document, &one.head, &mut one.state, tokens.clone());
                    one.angles[tokens.start * a..tokens.end * a].copy_from_slice(walk.kept(a));
                    if c > 0 {
                        one.fronts[c * size..][..size].copy_from_slice(one.state.h);
                        one.before[c * keys..][..keys].copy_from_slice(&one.state.last_keys);
                    }
                    if tokens.end < len {
                        walk.leave::<K>(&mut one.state);
                    }
                }
            }
            let chunks: Vec<Range<usize>> = walk.chunks(self.segment).collect();
            for (c, tokens) in chunks.into_iter().enumerate().rev() {
                for (i, one) in heads.iter_mut().enumerate() {
                    one.state.fresh = c == 0;
                    if c > 0 {
                        one.state.h.copy_from_slice(&one.fronts[c * size..][..size]);
                    }
                    let (at, width) = self.rows(&one.head, &tokens);
                    for rows in [
                        scan.operands.x.as_ptr(),
                        scan.operands.z.as_ptr(),
                        self.dy.as_ptr(),
                        self.to.x.address(),
                        self.to.z.address(),
                    ] {
                        fetch_rows(rows.wrapping_add(at), width, tokens.len(), sizes.p);
                    }
                    let angles = &one.angles[tokens.start * a..tokens.end * a];
                    walk.again::<K>(scan, &one.head, tokens.clone(), angles);
                    walk.outputs::<K>(&one.state);
                    self.chunk::<K>(&mut walk, &mut back, one, (c, tokens.clone()), i > 0);
                }
            }
        });
    }

    /// Where a head's channels of some tokens of the document begin, and how far apart they are.
    fn rows(&self, head: &Head, tokens: &Range<usize>) -> (usize, usize) {
        let Shape { heads, head_dim: p, .. } = self.scan.shape;
        (((self.segment.q_start + tokens.start) * heads + head.n) * p, heads * p)
    }

    /// Goes back over chunk `c` with one head; `add` says whether a head of the unit was there before.
    fn chunk<K: Kernel<Packed = f32>>(
        &self,
        walk: &mut Walk<'_>,
        back: &mut Back<'_>,
        one: &mut One<'_>,
        (c, tokens): (usize, Range<usize>),
        add_to: bool,
    ) {
        let (isa, scan, o) = (self.cpu.isa(), self.scan, &self.scan.operands);
        let One { head, sums, state, before, dh, keys: by_keys, values: by_values, by_angle, .. } = one;
        let Sizes { s, p, ranks } = walk.sizes;
        let (n, ld, heads, skip) = (walk.n, walk.sizes.rows(), scan.shape.heads, o.d[head.n]);
        let (first, ended) = (c == 0, tokens.end == self.segment.q_len);
        let (values, keys) = (ranks * p, ranks * s);
        for (i, token) in tokens.clone().enumerate() {
            let at = (self.segment.q_start + token) * heads + head.n;
            let of = Gated {
                out: &walk.out[i * values..][..values],
                v: &walk.v[i * values..][..values],
                z: &o.z[at * p..][..p],
                dy: &self.dy[at * p..][..p],
                rank_z: &head.factors[1],
                rank_o: &head.factors[2],
            };
            // SAFETY: a unit takes its heads of its document's tokens.
            let dz = unsafe { self.to.z.part(at * p, p) };
            let [_, by_z, by_o] = &mut sums.ranks;
            *sums.d +=
                gated_back(isa, (&mut back.d_out[i * values..][..values], dz), (by_z, by_o), &of, skip);
        }
        let d_out = (&back.d_out[..n * p], p);
        let (q, k) = (View::of(walk.q, s), View::of(walk.k, s));
        let rows = Rows { q, k, scores: walk.scores, v: &walk.v[..n * p] };
        let (dq, dk, dv) = (&mut back.dq[..n * s], &mut back.dk[..n * s], &mut back.dv[..n * p]);
        dq.fill(0.0);
        dk.fill(0.0);
        back.d_scores.fill(0.0);
        let mut d = [Step::default(); ROWS];
        let mut rows_to = ToRows { q: &mut *dq, k: &mut *dk, scores: back.d_scores, v: &mut *dv };
        walk.work.back::<K>(
            &mut rows_to,
            &rows,
            d_out,
            (!first).then_some(&*state.h),
            (!ended).then_some(&**dh),
        );
        walk.work.back_through::<K>(&mut d, &rows, d_out, (!first).then_some(&mut **dh), ended);
        let d_scores = View::of(back.d_scores, ld);
        product::<K>((dq, s), true, d_scores, k, [n, s, n], Band::UpTo(ranks));
        product::<K>((dk, s), true, d_scores.t(), q, [n, s, n], Band::From(ranks));
        if !ended {
            add(isa, &mut dk[n * s - keys..], by_keys);
            add(isa, &mut dv[n * p - values..], by_values);
        }
        if !first {
            let (step, end) = (head.numbers.step[tokens.start], head.numbers.end[tokens.start]);
            let again = step * (1.0 - end);
            let x = scan.channels(o.x, self.segment.q_start + tokens.start - 1, head.n);
            by_rank(isa, &mut walk.last_values, p, x, p, &head.factors[0]);
            let (dh, before) = (View::of(dh, p), &before[c * keys..][..keys]);
            product::<K>(
                (by_keys, s),
                false,
                View::of(&walk.last_values, p),
                dh.t(),
                [ranks, s, p],
                Band::All,
            );
            product::<K>((by_values, p), false, View::of(before, s), dh, [ranks, p, s], Band::All);
            d[0].extra = crate::lanes::dot(isa, by_keys, before);
            by_keys.iter_mut().chain(by_values.iter_mut()).for_each(|v| *v *= again);
        }
        for (i, token) in tokens.enumerate().rev() {
            let rows = (&mut dk[i * keys..][..keys], &mut dq[i * keys..][..keys]);
            let by = (&dv[i * values..][..values], &back.d_out[i * values..][..values]);
            self.token(walk, head, by_angle, rows, by, &d[i], (token, i), sums, add_to);
        }
    }

    /// From the gradients of a token's rows, the `i`-th of its chunk, to those of its operands.
    fn token(
        &self,
        walk: &Walk<'_>,
        head: &Head,
        by_angle: &mut [f32],
        (dk, dq): (&mut [f32], &mut [f32]),
        (dv, d_out): (&[f32], &[f32]),
        d: &Step,
        (token, i): (usize, usize),
        sums: &mut Sums<'_>,
        add_to: bool,
    ) {
        let (isa, scan, numbers) = (self.cpu.isa(), self.scan, &head.numbers);
        let Shape { heads, head_dim: p, state: s, ranks, angles: a, .. } = scan.shape;
        let (t, keys) = (self.segment.q_start + token, ranks * s);
        let (at, shared) = (t * heads + head.n, 2 * keys + a);
        let tokens = scan.operands.dt.len() / heads;
        // SAFETY: a unit takes its heads of its document's tokens, and its own sums of what heads share.
        let (dx, ddt, drate, dtrap, shared) = unsafe {
            (
                self.to.x.part(at * p, p),
                self.to.dt.part(at, 1),
                self.to.rate.part(at, 1),
                self.to.trap.part(at, 1),
                self.to.shared.part((self.unit * tokens + t) * shared, shared),
            )
        };
        if !add_to {
            shared.fill(0.0);
        }
        let (b, rest) = shared.split_at_mut(keys);
        let (c, angle) = rest.split_at_mut(keys);
        let turns = (&walk.cos[i * a..][..a], &walk.sin[i * a..][..a]);
        let sizes = (s, scan.shape.pairs == Pairs::Halves);
        for (d, of, to, bias) in [(dk, &*walk.k, b, &mut *sums.b_bias), (dq, &*walk.q, c, &mut *sums.c_bias)]
        {
            turned_back(isa, d, by_angle, &of[i * keys..][..keys], turns, sizes);
            add_twice(isa, to, bias, d);
        }
        let x = scan.channels(scan.operands.x, t, head.n);
        let [by_x, ..] = &mut sums.ranks;
        by_rank_back(isa, dx, by_x, (dv, d_out), x, &head.factors[0], scan.operands.d[head.n]);
        // unit = Δ λ, extra = Δ (1−λ), log a = −rate Δ, θ = … + Δ π tanh(angle)
        let (step, end, rate) = (numbers.step[token], numbers.end[token], numbers.rate[token]);
        let speeds = &self.document.speeds[token * a..][..a];
        let d_step = d.unit * end + d.extra * (1.0 - end) - d.decay * rate
            + angles_back(isa, angle, by_angle, speeds, step);
        ddt[0] = d_step * numbers.step_slope[token];
        drate[0] = -d.decay * step * numbers.rate_slope[token];
        dtrap[0] = (d.unit - d.extra) * step * end * (1.0 - end);
        *sums.dt_bias += ddt[0];
    }
}

/// Gradients of [`super::forward`] without stored states. Those of tokens are written, those of weights are added to.
///
/// The states before the chunks are recomputed. Gradients of what all heads share are summed over the heads in order.
///
/// # Errors
/// As [`super::forward`].
pub fn backward(cpu: &Cpu, grads: Operands<&mut [f32]>, dy: &[f32], scan: &Scan<'_>) -> Result<()> {
    const OP: &str = "mamba3::backward";
    let tokens = scan.check(OP)?;
    let Shape { heads, head_dim: p, state: s, ranks: r, angles, .. } = scan.shape;
    expect_len(OP, "dy", scan.operands.x.len(), dy.len())?;
    let grads = grads.each();
    for ((name, want), got) in NAMES.into_iter().zip(scan.lengths(tokens)).zip(&grads) {
        expect_len(OP, name, want, got.len())?;
    }
    let [x, z, b, c, dt, rate, trap, angle, dt_bias, b_bias, c_bias, d, rank_x, rank_z, rank_o] = grads;
    let (units, size) = (scan.groups().units(), Sums::size(&scan.shape));
    let width = 2 * r * s + angles; // keys, queries and angles of a token
    let mut weights = vec![0f32; scan.segments.len() * heads * size];
    with_scratch(Scratch::Rows, units * tokens * width, |parts: &mut [f32]| {
        let [x, z, dt, rate, trap, shared, sums] =
            [&mut *x, z, dt, rate, trap, &mut *parts, &mut weights].map(Disjoint::new);
        let to = To { x, z, dt, rate, trap, shared, sums };
        scan.groups().for_each(cpu, scan.segments.len(), |at, of| {
            let segment = &scan.segments[at];
            let document = Document::new(cpu.isa(), scan, segment);
            // SAFETY: a unit takes the sums of its heads.
            let sums = unsafe { to.sums.part((at * heads + of.first) * size, of.count * size) };
            let way = Way { cpu, scan, dy, to: &to, segment, document: &document, unit: of.unit };
            with_f32_kernel!(cpu.isa(), K => way.go::<K>(of.numbers(), sums));
        });
        let parts = &*parts;
        for (to, from, len) in [(b, 0, r * s), (c, r * s, r * s), (angle, 2 * r * s, angles)] {
            cpu.for_each_row(tokens, 64, (to, len), |t, to| {
                to.fill(0.0);
                for unit in 0..units {
                    add(cpu.isa(), to, &parts[(unit * tokens + t) * width + from..][..len]);
                }
            });
        }
    });
    for (u, all) in weights.chunks_exact_mut(size).enumerate() {
        let (n, isa, sums) = (u % heads, cpu.isa(), Sums::of(&scan.shape, all));
        dt_bias[n] += *sums.dt_bias;
        d[n] += *sums.d;
        add(isa, &mut b_bias[n * r * s..][..r * s], sums.b_bias);
        add(isa, &mut c_bias[n * r * s..][..r * s], sums.c_bias);
        if !rank_x.is_empty() {
            for (to, from) in [&mut *rank_x, &mut *rank_z, &mut *rank_o].into_iter().zip(sums.ranks) {
                add(isa, &mut to[n * r * p..][..r * p], from);
            }
        }
    }
    Ok(())
}
