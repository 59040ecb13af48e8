//! The fast body.

use super::Rotary;
use crate::Element;
use crate::narrow::{LANES, Narrow, widen};

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
        let turned = |a: f32, b: f32, c: f32, s: f32| (a * c - b * sign * s, b * c + a * sign * s);
        let (first, first_tail) = first.as_chunks_mut::<LANES>();
        let (second, second_tail) = rest[..half].as_chunks_mut::<LANES>();
        let ((cos, cos_tail), (sin, sin_tail)) = (cos.as_chunks::<LANES>(), sin.as_chunks::<LANES>());
        for (((first, second), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            let (mut a, mut b) = (widen(first), widen(second));
            for l in 0..LANES {
                (a[l], b[l]) = turned(a[l], b[l], c[l], s[l]);
            }
            how.store(first, a);
            how.store(second, b);
        }
        for (i, (first, second)) in first_tail.iter_mut().zip(second_tail).enumerate() {
            let (a, b) = turned(first.to_f32(), second.to_f32(), cos_tail[i], sin_tail[i]);
            (*first, *second) = (E::from_f32(a), E::from_f32(b));
        }
    }
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
