//! The fast body.

use super::Rotary;
use crate::Element;

/// Rotates one head in place; `cos` and `sin` hold `dim/2` values.
#[inline(always)]
pub(crate) fn rotate<E: Element>(head: &mut [E], cos: &[f32], sin: &[f32], interleaved: bool, inverse: bool) {
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
        let second = &mut rest[..half];
        for i in 0..half {
            let (a, b) = (first[i].to_f32(), second[i].to_f32());
            let (c, s) = (cos[i], sign * sin[i]);
            first[i] = E::from_f32(a * c - b * s);
            second[i] = E::from_f32(b * c + a * s);
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
            rotate(&mut head[skip..], cos, sin, rotary.interleaved, inverse);
        }
    }
}
