//! The fast bodies, 32 elements at a time.

use crate::Element;
use crate::narrow::{LANES, Lanes, Narrow, filled, lies_in_lines, split_two};
use crate::prefetch::fetch;

const TWO: usize = 2 * LANES;

#[inline(always)]
pub(super) fn forward<E: Element>(how: impl Narrow, y: &mut [E], x: &[E], f: usize, past: bool) {
    if f == 0 {
        return;
    }
    let how = how.of_results();
    for (y, x) in y.chunks_exact_mut(f).zip(x.chunks_exact(2 * f)) {
        let ((gate, gate_rest), (up, up_rest)) = (x[..f].as_chunks::<TWO>(), x[f..2 * f].as_chunks::<TWO>());
        let past = past && lies_in_lines(y);
        let (y, y_rest) = y.as_chunks_mut::<TWO>();
        for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
            // A row is too short for what the processor guesses of two streams.
            fetch(gate.as_ptr().cast::<E>().wrapping_add(2 * f));
            fetch(up.as_ptr().cast::<E>().wrapping_add(2 * f));
            how.store_split(y, gated(how, gate, up), past);
        }
        if !y_rest.is_empty() {
            let mut last = [E::default(); TWO];
            how.store_split(&mut last, gated(how, &filled(gate_rest), &filled(up_rest)), false);
            y_rest.copy_from_slice(&last[..y_rest.len()]);
        }
    }
    how.fence();
}

/// `silu(gate) · up`, split as [`split_two`] does.
#[inline(always)]
fn gated<E: Element>(how: impl Narrow, gate: &[E; TWO], up: &[E; TWO]) -> [Lanes; 2] {
    let (mut gate, up) = (split_two(gate), split_two(up));
    let s = how.sigmoids::<E>(gate);
    for ((g, u), s) in gate.iter_mut().zip(&up).zip(&s) {
        for l in 0..LANES {
            g[l] = g[l] * s[l] * u[l];
        }
    }
    gate
}

#[inline(always)]
pub(super) fn backward<E: Element>(how: impl Narrow, dx: &mut [E], dy: &[E], x: &[E], f: usize, past: bool) {
    if f == 0 {
        return;
    }
    let how = how.of_results();
    for ((dx, dy), x) in dx.chunks_exact_mut(2 * f).zip(dy.chunks_exact(f)).zip(x.chunks_exact(2 * f)) {
        let ((gate, gate_rest), (up, up_rest)) = (x[..f].as_chunks::<TWO>(), x[f..2 * f].as_chunks::<TWO>());
        let (dgate, dup) = dx.split_at_mut(f);
        let past = past && lies_in_lines(dgate) && lies_in_lines(dup);
        let ((dgate, dgate_rest), (dup, dup_rest)) =
            (dgate.as_chunks_mut::<TWO>(), dup.as_chunks_mut::<TWO>());
        let (dy, dy_rest) = dy.as_chunks::<TWO>();
        for ((((dgate, dup), dy), gate), up) in dgate.iter_mut().zip(dup).zip(dy).zip(gate).zip(up) {
            fetch(gate.as_ptr().cast::<E>().wrapping_add(2 * f));
            fetch(up.as_ptr().cast::<E>().wrapping_add(2 * f));
            fetch(dy.as_ptr().cast::<E>().wrapping_add(f));
            let [by_gate, by_up] = gated_back(how, dy, gate, up);
            how.store_split(dgate, by_gate, past);
            how.store_split(dup, by_up, past);
        }
        if !dy_rest.is_empty() {
            let mut last = [[E::default(); TWO]; 2];
            let back = gated_back(how, &filled(dy_rest), &filled(gate_rest), &filled(up_rest));
            let [by_gate, by_up] = &mut last;
            how.store_split(by_gate, back[0], false);
            how.store_split(by_up, back[1], false);
            dgate_rest.copy_from_slice(&by_gate[..dgate_rest.len()]);
            dup_rest.copy_from_slice(&by_up[..dup_rest.len()]);
        }
    }
    how.fence();
}

/// Backward of [`gated`], in halves: bound by multiplications, it gains nothing from pairs.
#[inline(always)]
fn gated_back<E: Element>(
    how: impl Narrow,
    dy: &[E; TWO],
    gate: &[E; TWO],
    up: &[E; TWO],
) -> [[Lanes; 2]; 2] {
    let (mut gate, mut up, dy) = (split_two(gate), split_two(up), split_two(dy));
    let s = how.sigmoids::<E>(gate);
    for (((g, u), d), s) in gate.iter_mut().zip(&mut up).zip(&dy).zip(&s) {
        for l in 0..LANES {
            let gate = g[l];
            g[l] = d[l] * u[l] * s[l] * gate.mul_add(1.0 - s[l], 1.0);
            u[l] = d[l] * gate * s[l];
        }
    }
    [gate, up]
}
