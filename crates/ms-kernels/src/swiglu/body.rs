//! The fast bodies.

use crate::Element;
use crate::float::sigmoid;
use crate::narrow::{Narrow, map, map_two, zip};

#[inline(always)]
pub(super) fn forward<E: Element>(how: impl Narrow, y: &mut [E], x: &[E], f: usize) {
    if f == 0 {
        return;
    }
    for (y, x) in y.chunks_exact_mut(f).zip(x.chunks_exact(2 * f)) {
        let (gate, up) = x.split_at(f);
        map(how, y, [gate, up], |[g, u]| zip(g, u, |g, u| g * sigmoid(g) * u));
    }
}

#[inline(always)]
pub(super) fn backward<E: Element>(how: impl Narrow, dx: &mut [E], dy: &[E], x: &[E], f: usize) {
    if f == 0 {
        return;
    }
    for ((dx, dy), x) in dx.chunks_exact_mut(2 * f).zip(dy.chunks_exact(f)).zip(x.chunks_exact(2 * f)) {
        let (gate, up) = x.split_at(f);
        let (dgate, dup) = dx.split_at_mut(f);
        map_two(how, dgate, dup, [gate, up, dy], |[g, u, d]| {
            let s = g.map(sigmoid);
            let by_silu = zip(zip(d, u, |d, u| d * u), s, |d, s| d * s);
            let slope = zip(g, s, |g, s| g.mul_add(1.0 - s, 1.0));
            let by_up = zip(zip(d, g, |d, g| d * g), s, |d, s| d * s);
            (zip(by_silu, slope, |d, slope| d * slope), by_up)
        });
    }
}
