//! Processing of one chunk of one head, forward and backward.

use super::product::{Ahead, Band, View, triangle};
use super::{
    ROWS, Step, add_scaled_rows, adjoint, factors, gather, row_dots, scale_rows, scaled_rows, transposed,
    weigh,
};
use crate::Isa;
use crate::matmul::kernel::Kernel;

/// Cuts the first `len` elements off, and whole cache lines.
pub(crate) fn take<'a>(rest: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (part, after) = std::mem::take(rest).split_at_mut(lines(len));
    *rest = after;
    &mut part[..len]
}

/// Elements of whole cache lines.
pub(crate) fn lines(len: usize) -> usize {
    len.next_multiple_of(16)
}

/// Sizes of a head's state, and rows of a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Size of a key and a query.
    pub(crate) s: usize,
    /// Size of a value.
    pub(crate) p: usize,
    /// Rows of a token.
    pub(crate) ranks: usize,
}

impl Sizes {
    /// Tokens of a chunk.
    pub(crate) fn tokens(&self) -> usize {
        (ROWS / self.ranks).max(1)
    }

    /// Rows of a chunk, and how far apart those of square matrices are.
    pub(crate) fn rows(&self) -> usize {
        self.tokens() * self.ranks
    }
}

/// Rows of queries, keys and values of a chunk.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// `[n,S]`.
    pub(crate) q: View<'a>,
    /// `[n,S]`.
    pub(crate) k: View<'a>,
    /// Scores `q kᵀ`, `[n,n]`, by [`triangle`].
    pub(crate) scores: &'a [f32],
    /// `[n,P]`.
    pub(crate) v: &'a [f32],
}

/// Where the gradients of a chunk's rows go.
pub(crate) struct ToRows<'a> {
    /// Added to, `[n,S]`.
    pub(crate) q: &'a mut [f32],
    /// Added to, `[n,S]`.
    pub(crate) k: &'a mut [f32],
    /// Added to, `[n,n]`.
    pub(crate) scores: &'a mut [f32],
    /// Written, `[n,P]`.
    pub(crate) v: &'a mut [f32],
}

/// Additional buffers of a chunk, for one head at a time.
pub(crate) struct Work<'a> {
    pub(super) isa: Isa,
    pub(super) sizes: Sizes,
    steps: Vec<Step>,
    /// `L`, `[n,n]`.
    pub(super) l: &'a mut [f32],
    /// `p`, a token each.
    pub(super) p: &'a mut [f32],
    /// `scores ∘ L`.
    pub(super) m: &'a mut [f32],
    /// Gradients by that, and by `L`.
    pub(super) d: &'a mut [f32],
    pub(super) c: &'a mut [f32],
    /// Gradients with respect to `p`, `w`, a row each.
    pub(super) f: &'a mut [f32],
    by_row: &'a mut [f32],
    by_start: f32,
    /// `[n, max(S,P)]`.
    pub(super) wide: &'a mut [f32],
    /// `[n,P]`.
    pub(super) own: &'a mut [f32],
    /// What products ask for meanwhile.
    pub(crate) ahead: Ahead,
}

impl<'a> Work<'a> {
    /// Elements of [`Work::new`].
    pub(crate) fn len(sizes: &Sizes) -> usize {
        let n = sizes.rows();
        4 * lines(n * n) + 3 * lines(n) + lines(n * sizes.s.max(sizes.p)) + lines(n * sizes.p)
    }

    /// In the first [`Work::len`] elements of `rest`, which are cut off.
    pub(crate) fn new(isa: Isa, sizes: Sizes, rest: &mut &'a mut [f32]) -> Self {
        let n = sizes.rows();
        Self {
            isa,
            sizes,
            steps: Vec::with_capacity(n),
            l: take(rest, n * n),
            p: take(rest, n),
            m: take(rest, n * n),
            d: take(rest, n * n),
            c: take(rest, n * n),
            f: take(rest, n),
            by_row: take(rest, n),
            by_start: 0.0,
            wide: take(rest, n * sizes.s.max(sizes.p)),
            own: take(rest, n * sizes.p),
            ahead: Ahead::default(),
        }
    }

    /// Begins a chunk of one head, whose tokens do `steps`.
    pub(crate) fn begin(&mut self, steps: impl Iterator<Item = Step>) {
        self.steps.clear();
        self.steps.extend(steps);
        factors(self.isa, self.l, self.sizes.rows(), self.p, &self.steps, self.sizes.ranks);
    }

    /// The instruction set.
    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    /// Rows of the chunk.
    pub(super) fn rows(&self) -> usize {
        self.steps.len() * self.sizes.ranks
    }

    /// `y = M v + p ∘ (q h)`, `[n,P]`; `h` is the state `[S,P]` in front of the chunk, or nothing if that is zero.
    pub(crate) fn outputs<K: Kernel<Packed = f32>>(
        &mut self,
        y: &mut [f32],
        rows: &Rows<'_>,
        h: Option<&[f32]>,
    ) {
        let (n, ld, Sizes { s, p, ranks }) = (self.rows(), self.sizes.rows(), self.sizes);
        if let Some(h) = h {
            self.ahead.product::<K>((y, p), false, rows.q, View::of(h, p), [n, p, s], Band::All);
            scale_rows(self.isa, y, p, self.p, ranks);
        }
        weigh(self.isa, self.m, rows.scores, self.l, n, ld);
        self.ahead.product::<K>(
            (y, p),
            h.is_some(),
            View::of(self.m, ld),
            View::of(rows.v, p),
            [n, p, n],
            Band::UpTo(ranks),
        );
    }

    /// `h = p h + kᵀ (w ∘ v)`: from the state before the chunk to the one after it.
    pub(crate) fn carry<K: Kernel<Packed = f32>>(&mut self, h: &mut [f32], rows: &Rows<'_>, fresh: bool) {
        if !fresh {
            scale_rows(self.isa, h, h.len(), &self.p[self.steps.len() - 1..], 1);
        }
        self.write::<K>(h, rows, !fresh);
    }

    /// The same from one place to another; without a state before the chunk it is zero.
    pub(crate) fn carry_from<K: Kernel<Packed = f32>>(
        &mut self,
        before: Option<&[f32]>,
        h: &mut [f32],
        rows: &Rows<'_>,
    ) {
        if let Some(before) = before {
            scaled_rows(self.isa, h, h.len(), before, 0, &self.p[self.steps.len() - 1..], 1);
        }
        self.write::<K>(h, rows, before.is_some());
    }

    /// `h = kᵀ (w ∘ v)`, or added to it.
    fn write<K: Kernel<Packed = f32>>(&mut self, h: &mut [f32], rows: &Rows<'_>, add: bool) {
        let (n, Sizes { s, p, .. }) = (self.rows(), self.sizes);
        let end = &self.l[(n - 1) * self.sizes.rows()..][..n];
        scaled_rows(self.isa, &mut self.wide[..n * p], p, rows.v, p, end, 1);
        self.ahead.product::<K>((h, p), add, rows.k.t(), View::of(self.wide, p), [s, p, n], Band::All);
    }

    /// First part of the backward pass: the gradients of values, those of queries and keys through the states, and those of
    /// scores.
    ///
    /// `dy` is `[n,P]`, with its own row stride; `h` the state before the chunk, unless that is zero; `dh` the gradient with
    /// respect to the state after it, if there is one.
    pub(crate) fn back<K: Kernel<Packed = f32>>(
        &mut self,
        to: &mut ToRows<'_>,
        rows: &Rows<'_>,
        (dy, stride): (&[f32], usize),
        h: Option<&[f32]>,
        dh: Option<&[f32]>,
    ) {
        let (isa, n, ld, Sizes { s, p, ranks }) = (self.isa, self.rows(), self.sizes.rows(), self.sizes);
        triangle::<K>((self.d, ld), View::of(dy, stride), View::of(rows.v, p), [n, p], ranks);
        weigh(isa, self.m, rows.scores, self.l, n, ld);
        gather(isa, self.c, to.scores, self.d, rows.scores, self.l, n, ld, false);
        if let Some(dh) = dh {
            self.ahead.product::<K>((to.v, p), false, rows.k, View::of(dh, p), [n, p, s], Band::All);
            row_dots(isa, &mut self.by_row[..n], rows.v, p, to.v, p, p);
            scale_rows(isa, to.v, p, &self.l[(n - 1) * ld..][..n], 1);
            scaled_rows(isa, &mut self.wide[..n * p], p, rows.v, p, &self.l[(n - 1) * ld..][..n], 1);
            self.ahead.product::<K>(
                (to.k, s),
                true,
                View::of(self.wide, p),
                View::of(dh, p).t(),
                [n, s, p],
                Band::All,
            );
        } else {
            self.by_row[..n].fill(0.0);
        }
        self.ahead.product::<K>(
            (to.v, p),
            dh.is_some(),
            View::of(self.m, ld).t(),
            View::of(dy, stride),
            [n, p, n],
            Band::From(ranks),
        );
        self.f[..n].fill(0.0);
        self.by_start = 0.0;
        if let Some(h) = h {
            self.ahead.product::<K>(
                (self.wide, s),
                false,
                View::of(dy, stride),
                View::of(h, p).t(),
                [n, s, p],
                Band::All,
            );
            for (i, f) in self.f[..n].iter_mut().enumerate() {
                *f = rows.q.dot_row(isa, i, &self.wide[i * s..][..s]);
            }
            add_scaled_rows(isa, to.q, s, &self.wide[..n * s], self.p, ranks);
            if let Some(dh) = dh {
                row_dots(isa, std::slice::from_mut(&mut self.by_start), h, 0, dh, 0, s * p);
            }
        }
    }

    /// Second part: the gradient with respect to the state before the chunk in `dh`, replacing that of the state after it, if
    /// it is needed; and the gradients of the steps. `ended` says that nothing follows the chunk.
    pub(crate) fn back_through<K: Kernel<Packed = f32>>(
        &mut self,
        d: &mut [Step],
        rows: &Rows<'_>,
        (dy, stride): (&[f32], usize),
        dh: Option<&mut [f32]>,
        ended: bool,
    ) {
        let (isa, n, ld, Sizes { s, p, ranks }) = (self.isa, self.rows(), self.sizes.rows(), self.sizes);
        if let Some(dh) = dh {
            scaled_rows(isa, &mut self.wide[..n * p], p, dy, stride, self.p, ranks);
            if !ended {
                scale_rows(isa, dh, s * p, &self.p[self.steps.len() - 1..], 1);
            }
            self.ahead.product::<K>(
                (dh, p),
                !ended,
                rows.q.t(),
                View::of(self.wide, p),
                [s, p, n],
                Band::All,
            );
        }
        let d = &mut d[..self.steps.len()];
        let by_row = &mut self.by_row[..n];
        adjoint(isa, d, by_row, self.by_start, self.c, self.f, self.l, ld, self.p, &self.steps, ranks);
    }
}

/// Copies a state `[P,S]` to `[S,P]`, or the other way with the sizes exchanged.
pub(crate) fn transpose(isa: Isa, to: &mut [f32], from: &[f32], columns: usize) {
    transposed(isa, to, from, columns);
}

/// `to = by · from`, rows of `width`, those of `from` `stride` apart.
pub(crate) fn rows_times(
    isa: Isa,
    to: &mut [f32],
    width: usize,
    (from, stride): (&[f32], usize),
    by: &[f32],
) {
    scaled_rows(isa, to, width, from, stride, by, 1);
}

/// `out[i] = Σ_j a[i,j] · b[i,j]` of rows of `width`, each operand's so far apart as it says.
pub(crate) fn dots(
    isa: Isa,
    out: &mut [f32],
    (a, of_a): (&[f32], usize),
    (b, of_b): (&[f32], usize),
    width: usize,
) {
    row_dots(isa, out, a, of_a, b, of_b, width);
}
