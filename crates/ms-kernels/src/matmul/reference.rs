//! One element of a product, as the module documentation defines it.

use super::kernel::bfdot;
use super::kernel::tile32::{TILE_TERMS, model};
use super::{Form, Mat};
use crate::element::is_bf16;
use crate::{Arithmetic, Element};

/// `start + sum_k a·b` in the order of `arithmetic`, which for f32 is always [`Arithmetic::Pair`]: per pair of `k` the odd
/// one first, then the even one.
pub(crate) fn element<E: Element>(
    arithmetic: Arithmetic,
    form: Form,
    terms: usize,
    a: Mat<'_, E>,
    b: Mat<'_, E>,
    i: usize,
    j: usize,
    start: f32,
) -> f32 {
    let left = |k: usize| match form {
        Form::Tn => a.data[k * a.stride + i].to_f32(),
        Form::Nt | Form::Nn => a.data[i * a.stride + k].to_f32(),
    };
    let right = |k: usize| match form {
        Form::Nt => b.data[j * b.stride + k].to_f32(),
        Form::Nn | Form::Tn => b.data[k * b.stride + j].to_f32(),
    };
    if arithmetic == Arithmetic::Tile32 && is_bf16::<E>() {
        return (0..terms).step_by(TILE_TERMS).fold(start, |sum, first| {
            model::product(sum, (first..terms.min(first + TILE_TERMS)).map(|k| (left(k), right(k))))
        });
    }
    if arithmetic == Arithmetic::Bfdot && is_bf16::<E>() {
        let of = |k: usize| if k < terms { (left(k), right(k)) } else { (0.0, 0.0) };
        return (0..terms.next_multiple_of(bfdot::GRANULE)).step_by(2).fold(start, |sum, k| {
            let ((a, b), (next_a, next_b)) = (of(k), of(k + 1));
            bfdot::add_pair(sum, [a, next_a], [b, next_b])
        });
    }
    let mut sum = start;
    for k in (0..terms).step_by(2) {
        if k + 1 < terms {
            sum = left(k + 1).mul_add(right(k + 1), sum);
        }
        sum = left(k).mul_add(right(k), sum);
    }
    sum
}
