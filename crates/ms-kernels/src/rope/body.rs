//! The fast body.

use super::Rotary;
use crate::Element;
use crate::narrow::{LANES, Lanes, Narrow, widen, widen_two};

const TWO: usize = 2 * LANES;

/// Rotates one head in place; `cos` and `sin` hold `dim/2` values.
#[inline(always)]
pub(crate) fn rotate<E: Element>(
    how: impl Narrow,
    head: &mut [E],
    cos: &[f32],
    sin: &[f32],
    interleaved: bool,
    inverse: bool,
) {
    let half = cos.len();
    let sign = if inverse { -1.0 } else { 1.0 };
    let sin = &sin[..half];
    if interleaved {
        for (i, pair) in head[..2 * half].as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let (a, b) = (pair[0].to_f32(), pair[1].to_f32());
            let (c, s) = (cos[i], sign * sin[i]);
            *pair = [E::from_f32(a * c - b * s), E::from_f32(b * c + a * s)];
        }
    } else {
        let (first, rest) = head.split_at_mut(half);
        // Twice sixteen at a time, for one conversion rounds two vectors.
        let (twice, first) = first.as_chunks_mut::<TWO>();
        let (second_twice, second) = rest[..half].as_chunks_mut::<TWO>();
        let ((cos_twice, cos), (sin_twice, sin)) = (cos.as_chunks::<TWO>(), sin.as_chunks::<TWO>());
        for (((first, second), c), s) in twice.iter_mut().zip(second_twice).zip(cos_twice).zip(sin_twice) {
            let ([a0, a1], [b0, b1]) = (widen_two(first), widen_two(second));
            let ([c0, c1], [s0, s1]) = (widen_two(c), widen_two(s));
            let ((a0, b0), (a1, b1)) = (turned(a0, b0, c0, s0, sign), turned(a1, b1, c1, s1, sign));
            how.store_two(first, [a0, a1], false);
            how.store_two(second, [b0, b1], false);
        }
        let (first, first_tail) = first.as_chunks_mut::<LANES>();
        let (second, second_tail) = second.as_chunks_mut::<LANES>();
        let ((cos, cos_tail), (sin, sin_tail)) = (cos.as_chunks::<LANES>(), sin.as_chunks::<LANES>());
        for (((first, second), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            let (a, b) = turned(widen(first), widen(second), *c, *s, sign);
            how.store(first, a);
            how.store(second, b);
        }
        for (i, (first, second)) in first_tail.iter_mut().zip(second_tail).enumerate() {
            let (a, b) = (first.to_f32(), second.to_f32());
            let (c, s) = (cos_tail[i], sign * sin_tail[i]);
            let (a, b) = (a * c - b * s, b * c + a * s);
            (*first, *second) = (E::from_f32(a), E::from_f32(b));
        }
    }
}

/// Pairs, turned by angles with cosines `c` and sines `sign · s`.
#[inline(always)]
fn turned(mut a: Lanes, mut b: Lanes, c: Lanes, s: Lanes, sign: f32) -> (Lanes, Lanes) {
    for l in 0..LANES {
        let s = sign * s[l];
        (a[l], b[l]) = (a[l] * c[l] - b[l] * s, b[l] * c[l] + a[l] * s);
    }
    (a, b)
}

/// The table row of a position.
#[inline(always)]
pub(crate) fn table_row(table: &[f32], dim: usize, position: i32) -> &[f32] {
    let half = dim / 2;
    &table[position as usize * half..][..half]
}

#[inline(always)]
pub(super) fn apply<E: Element>(
    how: impl Narrow,
    x: &mut [E],
    heads: usize,
    head_dim: usize,
    skip: usize,
    positions: &[i32],
    rotary: &Rotary<'_>,
    inverse: bool,
) {
    if rotary.dim == 0 || heads * head_dim == 0 {
        return;
    }
    for (row, &position) in x.chunks_exact_mut(heads * head_dim).zip(positions) {
        let cos = table_row(rotary.cos, rotary.dim, position);
        let sin = table_row(rotary.sin, rotary.dim, position);
        for head in row.chunks_exact_mut(head_dim) {
            rotate(how, &mut head[skip..], cos, sin, rotary.interleaved, inverse);
        }
    }
}
