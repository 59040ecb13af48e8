//! The fast bodies, sixteen elements at a time.

use crate::Element;
use crate::narrow::{LANES, Narrow, fetch, filled, sigmoids, widen};

#[inline(always)]
pub(super) fn forward<E: Element>(how: impl Narrow, y: &mut [E], x: &[E], f: usize) {
    if f == 0 {
        return;
    }
    for (y, x) in y.chunks_exact_mut(f).zip(x.chunks_exact(2 * f)) {
        let ((gate, gate_rest), (up, up_rest)) =
            (x[..f].as_chunks::<LANES>(), x[f..2 * f].as_chunks::<LANES>());
        let (y, y_rest) = y.as_chunks_mut::<LANES>();
        for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
            // A row is too short for what the processor guesses of two streams.
            fetch(gate.as_ptr().cast::<E>().wrapping_add(2 * f));
            fetch(up.as_ptr().cast::<E>().wrapping_add(2 * f));
            gated(how, y, gate, up);
        }
        if !y_rest.is_empty() {
            let mut last = [E::default(); LANES];
            gated(how, &mut last, &filled(gate_rest), &filled(up_rest));
            y_rest.copy_from_slice(&last[..y_rest.len()]);
        }
    }
}

/// `silu(gate) · up`.
#[inline(always)]
fn gated<E: Element>(how: impl Narrow, y: &mut [E; LANES], gate: &[E; LANES], up: &[E; LANES]) {
    let (mut g, u) = (widen(gate), widen(up));
    let s = sigmoids(g);
    for l in 0..LANES {
        g[l] = g[l] * s[l] * u[l];
    }
    how.store(y, g);
}

#[inline(always)]
pub(super) fn backward<E: Element>(how: impl Narrow, dx: &mut [E], dy: &[E], x: &[E], f: usize) {
    if f == 0 {
        return;
    }
    for ((dx, dy), x) in dx.chunks_exact_mut(2 * f).zip(dy.chunks_exact(f)).zip(x.chunks_exact(2 * f)) {
        let ((gate, gate_rest), (up, up_rest)) =
            (x[..f].as_chunks::<LANES>(), x[f..2 * f].as_chunks::<LANES>());
        let (dgate, dup) = dx.split_at_mut(f);
        let ((dgate, dgate_rest), (dup, dup_rest)) =
            (dgate.as_chunks_mut::<LANES>(), dup.as_chunks_mut::<LANES>());
        let (dy, dy_rest) = dy.as_chunks::<LANES>();
        for ((((dgate, dup), dy), gate), up) in dgate.iter_mut().zip(dup).zip(dy).zip(gate).zip(up) {
            fetch(gate.as_ptr().cast::<E>().wrapping_add(2 * f));
            fetch(up.as_ptr().cast::<E>().wrapping_add(2 * f));
            fetch(dy.as_ptr().cast::<E>().wrapping_add(f));
            gated_back(how, (dgate, dup), dy, gate, up);
        }
        if !dy_rest.is_empty() {
            let mut last = [[E::default(); LANES]; 2];
            let [by_gate, by_up] = &mut last;
            gated_back(how, (by_gate, by_up), &filled(dy_rest), &filled(gate_rest), &filled(up_rest));
            dgate_rest.copy_from_slice(&by_gate[..dgate_rest.len()]);
            dup_rest.copy_from_slice(&by_up[..dup_rest.len()]);
        }
    }
}

/// The way back through [`gated`].
#[inline(always)]
fn gated_back<E: Element>(
    how: impl Narrow,
    (dgate, dup): (&mut [E; LANES], &mut [E; LANES]),
    dy: &[E; LANES],
    gate: &[E; LANES],
    up: &[E; LANES],
) {
    let (mut g, mut u, d) = (widen(gate), widen(up), widen(dy));
    let s = sigmoids(g);
    for l in 0..LANES {
        let gate = g[l];
        g[l] = d[l] * u[l] * s[l] * gate.mul_add(1.0 - s[l], 1.0);
        u[l] = d[l] * gate * s[l];
    }
    how.store(dgate, g);
    how.store(dup, u);
}
