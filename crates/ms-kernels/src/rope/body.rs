//! The fast body.

use super::Rotary;
use crate::Element;
use crate::narrow::{LANES, Lanes, Narrow, apart, split_two, widen};

const TWO: usize = 2 * LANES;

/// Rotates one head in place; `cos` and `sin` hold `dim/2` values. The layout of heads: elements per head, and how many of
/// them precede the rotated ones.
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) dim: usize,
    pub(crate) skip: usize,
}

/// Rotates each of the heads that `x` consists of by the same angles.
#[inline(always)]
pub(crate) fn rotate<E: Element>(
    how: impl Narrow,
    x: &mut [E],
    heads: Heads,
    cos: &[f32],
    sin: &[f32],
    interleaved: bool,
    inverse: bool,
) {
    if cos.is_empty() {
        return;
    }
    let sign = if inverse { -1.0 } else { 1.0 };
    let sin = &sin[..cos.len()];
    if interleaved {
        for head in x.chunks_exact_mut(heads.dim) {
            rotate_neighbours(&mut head[heads.skip..], cos, sin, sign);
        }
        return;
    }
    let how = how.of_results();
    let ((cos_twice, cos_rest), (sin_twice, sin_rest)) = (cos.as_chunks::<TWO>(), sin.as_chunks::<TWO>());
    // Twice sixteen angles at a time, for all heads: reordering the angles costs more than a rotation.
    for (n, (c, s)) in cos_twice.iter().zip(sin_twice).enumerate() {
        let ([c0, c1], [s0, s1]) = (apart::<E>(c), apart::<E>(s));
        let (s0, s1) = (signed(s0, sign), signed(s1, sign));
        for head in x.chunks_exact_mut(heads.dim) {
            let (first, second) = head[heads.skip..].split_at_mut(cos.len());
            let (first, second) =
                (&mut first.as_chunks_mut::<TWO>().0[n], &mut second.as_chunks_mut::<TWO>().0[n]);
            let ([a0, a1], [b0, b1]) = (split_two(first), split_two(second));
            let ((a0, b0), (a1, b1)) = (turned(a0, b0, c0, s0), turned(a1, b1, c1, s1));
            how.store_split(first, [a0, a1], false);
            how.store_split(second, [b0, b1], false);
        }
    }
    if cos_rest.is_empty() {
        return;
    }
    let (whole, half) = (cos_twice.len() * TWO, cos.len());
    let ((cos, cos_tail), (sin, sin_tail)) = (cos_rest.as_chunks::<LANES>(), sin_rest.as_chunks::<LANES>());
    for head in x.chunks_exact_mut(heads.dim) {
        let (first, second) = head[heads.skip..].split_at_mut(half);
        let (first, first_tail) = first[whole..].as_chunks_mut::<LANES>();
        let (second, second_tail) = second[whole..half].as_chunks_mut::<LANES>();
        for (((first, second), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            let (a, b) = turned(widen(first), widen(second), *c, signed(*s, sign));
            how.store(first, a);
            how.store(second, b);
        }
        for (((first, second), c), s) in first_tail.iter_mut().zip(second_tail).zip(cos_tail).zip(sin_tail) {
            let (a, b, s) = (first.to_f32(), second.to_f32(), sign * s);
            (*first, *second) = (E::from_f32(a * c - b * s), E::from_f32(b * c + a * s));
        }
    }
}

/// Rotates pairs of neighbours.
#[inline(always)]
fn rotate_neighbours<E: Element>(head: &mut [E], cos: &[f32], sin: &[f32], sign: f32) {
    let sin = &sin[..cos.len()];
    for (i, pair) in head[..2 * cos.len()].as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let (a, b) = (pair[0].to_f32(), pair[1].to_f32());
        let (c, s) = (cos[i], sign * sin[i]);
        *pair = [E::from_f32(a * c - b * s), E::from_f32(b * c + a * s)];
    }
}

#[inline(always)]
fn signed(mut x: Lanes, sign: f32) -> Lanes {
    for l in 0..LANES {
        x[l] *= sign;
    }
    x
}

#[inline(always)]
fn turned(mut a: Lanes, mut b: Lanes, c: Lanes, s: Lanes) -> (Lanes, Lanes) {
    for l in 0..LANES {
        (a[l], b[l]) = (a[l] * c[l] - b[l] * s[l], b[l] * c[l] + a[l] * s[l]);
    }
    (a, b)
}

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
        rotate(how, row, Heads { dim: head_dim, skip }, cos, sin, rotary.interleaved, inverse);
    }
}
