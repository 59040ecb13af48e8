//! One element of a product, as the module documentation defines it.

use super::{Form, Mat};
use crate::Element;

/// `start + sum_k a·b` in the canonical order: per pair of `k` the odd one first, then the even one.
pub(crate) fn element<E: Element>(
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
    let mut sum = start;
    for k in (0..terms).step_by(2) {
        if k + 1 < terms {
            sum = left(k + 1).mul_add(right(k + 1), sum);
        }
        sum = left(k).mul_add(right(k), sum);
    }
    sum
}
