//! The fast bodies.

use crate::Element;
use crate::narrow::{LANES, Narrow, load, sigmoids, store};

#[inline(always)]
pub(super) fn forward<E: Element>(how: impl Narrow, y: &mut [E], x: &[E], f: usize) {
    if f == 0 {
        return;
    }
    for (y, x) in y.chunks_exact_mut(f).zip(x.chunks_exact(2 * f)) {
        let (gate, up) = x.split_at(f);
        for n in 0..f.div_ceil(LANES) {
            let (mut g, u) = (load(gate, n), load(up, n));
            let s = sigmoids(g);
            for l in 0..LANES {
                g[l] = g[l] * s[l] * u[l];
            }
            store(how, y, n, g);
        }
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
        for n in 0..f.div_ceil(LANES) {
            let (mut g, mut u, d) = (load(gate, n), load(up, n), load(dy, n));
            let s = sigmoids(g);
            for l in 0..LANES {
                let gate = g[l];
                g[l] = d[l] * u[l] * s[l] * gate.mul_add(1.0 - s[l], 1.0);
                u[l] = d[l] * gate * s[l];
            }
            store(how, dgate, n, g);
            store(how, dup, n, u);
        }
    }
}
