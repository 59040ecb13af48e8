//! The fast bodies.

use crate::Element;
use crate::float::sigmoid;

#[inline(always)]
pub(super) fn forward<E: Element>(y: &mut [E], x: &[E], f: usize) {
    if f == 0 {
        return;
    }
    for (y, x) in y.chunks_exact_mut(f).zip(x.chunks_exact(2 * f)) {
        let (gate, up) = x.split_at(f);
        let up = &up[..f];
        for i in 0..f {
            let g = gate[i].to_f32();
            y[i] = E::from_f32(g * sigmoid(g) * up[i].to_f32());
        }
    }
}

#[inline(always)]
pub(super) fn backward<E: Element>(dx: &mut [E], dy: &[E], x: &[E], f: usize) {
    if f == 0 {
        return;
    }
    for ((dx, dy), x) in dx.chunks_exact_mut(2 * f).zip(dy.chunks_exact(f)).zip(x.chunks_exact(2 * f)) {
        let (gate, up) = x.split_at(f);
        let (dgate, dup) = dx.split_at_mut(f);
        let (up, dup) = (&up[..f], &mut dup[..f]);
        for i in 0..f {
            let (g, d) = (gate[i].to_f32(), dy[i].to_f32());
            let s = sigmoid(g);
            dup[i] = E::from_f32(d * g * s);
            dgate[i] = E::from_f32(d * up[i].to_f32() * s * g.mul_add(1.0 - s, 1.0));
        }
    }
}
