//! Dropout of attention weights, drawn by counters.
//!
//! Whether a query keeps a key follows from the query's noise key, the layer's place, the head and the distance from query to
//! key: not from blocks, ranks or the order of work. So ring attention, where queries stay while keys pass by, draws the same
//! values as one rank would, and a backward pass draws the values of the forward pass again.

use super::body::{BQ, STRIDE, Write};
use super::{Dropout, Segment};
use crate::isa::instances;
use crate::narrow::{self, LANES, Narrow};
use crate::noise::{after, beginning};

/// The factors of one block of queries of one head.
pub(super) struct Thinning {
    /// Where each query's numbers begin.
    from: [u64; BQ],
    /// Distance from query 0 of the block back to key 0 of the segment.
    ahead: i64,
    /// Numbers below it are dropped.
    below: u64,
    keep: f32,
}

impl Thinning {
    /// For the queries of `segment` from `q0` on.
    pub(super) fn new(dropout: &Dropout<'_>, segment: &Segment, n: usize, q0: usize, queries: usize) -> Self {
        let mut from = [0; BQ];
        let site = dropout.site_of(n);
        for (from, &key) in from.iter_mut().zip(&dropout.keys[segment.q_start + q0..][..queries]) {
            *from = beginning(key, site);
        }
        Self {
            from,
            ahead: (q0 + segment.k_len) as i64 - segment.q_len as i64 + segment.ahead,
            below: (dropout.rate * 4_294_967_296.0).ceil() as u64,
            keep: (1.0 / (1.0 - dropout.rate)) as f32,
        }
    }

    /// The factors of the block whose first key is `k0`.
    pub(super) fn at(&self, k0: usize) -> Thin<'_> {
        Thin { all: self, ahead: self.ahead - k0 as i64 }
    }
}

/// The factors of one block of keys and queries: a row is a key, a column a query.
#[derive(Clone, Copy)]
pub(super) struct Thin<'a> {
    all: &'a Thinning,
    /// Distance from the first column's query back to the first row's key.
    ahead: i64,
}

impl Thin<'_> {
    /// Sixteen columns of a row, each times its factor.
    #[inline(always)]
    fn times(&self, mut x: narrow::Lanes, row: usize, c: usize) -> narrow::Lanes {
        let from = &self.all.from[c..][..LANES];
        let first = self.ahead + c as i64 - row as i64;
        for l in 0..LANES {
            let distance = (first + l as i64) as u64;
            let drawn = after(from[l], distance / 2) >> (32 * (distance % 2)) & 0xFFFF_FFFF;
            x[l] = if drawn < self.all.below { 0.0 } else { x[l] * self.all.keep };
        }
        x
    }
}

/// Weights are thinned, then go where `to` puts them.
pub(super) struct Thinned<'a, W> {
    pub(super) to: W,
    pub(super) thin: Thin<'a>,
}

impl<W: Write> Write for Thinned<'_, W> {
    type Kept = W::Kept;

    #[inline(always)]
    fn put(&mut self, how: impl Narrow, block: &mut [f32], row: usize, c: usize, two: [narrow::Lanes; 2]) {
        let two = [self.thin.times(two[0], row, c), self.thin.times(two[1], row + 1, c)];
        self.to.put(how, block, row, c, two);
    }
    #[inline(always)]
    fn clear(&mut self, block: &mut [f32], row: usize, c: usize) {
        self.to.clear(block, row, c);
    }
}

instances! {
    fn thin_rows(block: &mut [f32], rows: usize, columns: usize, thin: Thin<'_>) = rows_of_a_block;
}

#[inline(always)]
fn rows_of_a_block(block: &mut [f32], rows: usize, columns: usize, thin: Thin<'_>) {
    for row in 0..rows {
        for c in (0..columns).step_by(LANES) {
            let x: &mut narrow::Lanes =
                (&mut block[row * STRIDE + c..][..LANES]).try_into().expect("sixteen");
            *x = thin.times(*x, row, c);
        }
    }
}

/// Multiplies the first `rows` rows of a block by their factors.
pub(super) fn thin_block(isa: crate::Isa, block: &mut [f32], rows: usize, columns: usize, thin: Thin<'_>) {
    thin_rows(isa, block, rows, columns, thin);
}
