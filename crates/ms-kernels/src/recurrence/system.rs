//! What the tokens of a chunk write if each subtracts what is stored under its key: a triangular system.
//!
//! `e_t = v_t − k_t (a_t H_{t−1})`, `u_t = β_t e_t` is what is written. Within a chunk
//! `e_t = v_t − p_t k_t H_0 − Σ_{j<t} L[t,j] (k_t·k_j) u_j`.

use super::chunk::{Rows, ToRows, Work};
use super::product::{Band, View, triangle};
use super::{add_scaled_rows, gather, negative, scale_rows, solve, solve_back, subtract_from, weigh};
use crate::matmul::kernel::Kernel;

/// The inputs of a system, in addition to its rows.
#[derive(Clone, Copy)]
pub(crate) struct System<'a> {
    /// `k kᵀ`, `[n,n]`.
    pub(crate) overlaps: &'a [f32],
    /// `β`, a token each.
    pub(crate) beta: &'a [f32],
}

impl Work<'_> {
    /// Forms `e` and `u`, both `[n,P]`, from the values, rows so far apart as they say, and the state in front of the chunk.
    pub(crate) fn solve<K: Kernel<Packed = f32>>(
        &mut self,
        (e, u): (&mut [f32], &mut [f32]),
        k: View<'_>,
        (v, stride): (&[f32], usize),
        system: &System<'_>,
        h: Option<&[f32]>,
    ) {
        let (isa, n, ld, p) = (self.isa, self.rows(), self.sizes.rows(), self.sizes.p);
        if let Some(h) = h {
            self.ahead.product::<K>((e, p), false, k, View::of(h, p), [n, p, self.sizes.s], Band::All);
            scale_rows(isa, e, p, self.p, 1);
        } else {
            e.fill(0.0);
        }
        subtract_from(isa, e, p, v, stride);
        weigh(isa, self.m, system.overlaps, self.l, n, ld);
        solve(isa, e, u, p, self.m, ld, system.beta);
    }

    /// The backward step between [`Work::back`] and [`Work::back_through`]: from the gradient with respect to `u` in `to.v`
    /// to that of the values in the same place, and those of keys (added), `d_overlaps` (added) and `dbeta` (written).
    /// [`Work::taken_off`] adds the rest, through the state before the chunk.
    pub(crate) fn back_solve<K: Kernel<Packed = f32>>(
        &mut self,
        to: &mut ToRows<'_>,
        (d_overlaps, dbeta): (&mut [f32], &mut [f32]),
        rows: &Rows<'_>,
        e: &[f32],
        system: &System<'_>,
        h: Option<&[f32]>,
    ) {
        let (isa, n, ld) = (self.isa, self.rows(), self.sizes.rows());
        let (s, p) = (self.sizes.s, self.sizes.p);
        weigh(isa, self.m, system.overlaps, self.l, n, ld);
        dbeta.fill(0.0);
        solve_back(isa, to.v, dbeta, e, p, self.m, ld, system.beta);
        negative(isa, &mut self.own[..n * p], to.v);
        triangle::<K>((self.d, ld), View::of(self.own, p), View::of(rows.v, p), [n, p], 1);
        for i in 0..n {
            self.d[i * ld + i] = 0.0;
        }
        gather(isa, self.c, d_overlaps, self.d, system.overlaps, self.l, n, ld, true);
        if let Some(h) = h {
            self.ahead.product::<K>(
                (self.wide, s),
                false,
                View::of(self.own, p),
                View::of(h, p).t(),
                [n, s, p],
                Band::All,
            );
            for (i, f) in self.f[..n].iter_mut().enumerate() {
                *f += rows.k.dot_row(isa, i, &self.wide[i * s..][..s]);
            }
            add_scaled_rows(isa, to.k, s, &self.wide[..n * s], self.p, 1);
        }
    }

    /// After [`Work::back_through`]: what [`Work::back_solve`] adds to the gradient with respect to the state in front of the
    /// chunk.
    pub(crate) fn taken_off<K: Kernel<Packed = f32>>(&mut self, k: View<'_>, dh: &mut [f32]) {
        let (n, s, p) = (self.rows(), self.sizes.s, self.sizes.p);
        scale_rows(self.isa, &mut self.own[..n * p], p, self.p, 1);
        self.ahead.product::<K>((dh, p), true, k.t(), View::of(self.own, p), [s, p, n], Band::All);
    }
}
