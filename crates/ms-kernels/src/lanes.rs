//! Dot products and weighted sums of rows, in sixteen lanes on every instruction set.

use crate::isa::instances;
use crate::narrow::LANES;

pub(crate) mod body {
    use super::LANES;
    use crate::Element;
    use crate::float::exp;
    use crate::narrow::filled;
    use crate::rms_norm::body::lane_sum;
    use std::hint::black_box;

    /// A step of [`dot`]: a function, for a closure is compiled without the instance's instructions.
    #[inline(always)]
    fn add<E: Element>(acc: &mut [f32; LANES], a: &[E; LANES], b: &[E; LANES]) {
        for l in 0..LANES {
            acc[l] = a[l].to_f32().mul_add(b[l].to_f32(), acc[l]);
        }
    }

    /// `Σ_i a[i] · b[i]` in sixteen lanes, of rows of one length.
    #[inline(always)]
    pub(crate) fn dot<E: Element>(a: &[E], b: &[E]) -> f32 {
        debug_assert_eq!(a.len(), b.len(), "rows of one length");
        let mut acc = [0f32; LANES];
        let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        for (a, b) in a.iter().zip(b) {
            add(&mut acc, a, b);
        }
        if !a_rest.is_empty() {
            add(&mut acc, &filled(a_rest), &filled(b_rest));
        }
        // Seen as an array in memory the lanes stay in a register above.
        lane_sum(black_box(acc))
    }

    #[inline(always)]
    pub(super) fn dots<E: Element>(to: &mut [f32], pairs: &[[&[E]; 2]]) {
        for (to, [a, b]) in to.iter_mut().zip(pairs) {
            *to = dot(a, b);
        }
    }

    #[inline(always)]
    pub(super) fn blend<E: Element>(out: &mut [E], parts: &[(f32, &[E])]) {
        let (blocks, tail) = out.as_chunks_mut::<LANES>();
        let whole = blocks.len() * LANES;
        for (b, block) in blocks.iter_mut().enumerate() {
            let mut acc = [0f32; LANES];
            for (w, x) in parts {
                let x = &x[b * LANES..][..LANES];
                for l in 0..LANES {
                    acc[l] = x[l].to_f32().mul_add(*w, acc[l]);
                }
            }
            for l in 0..LANES {
                block[l] = E::from_f32(acc[l]);
            }
        }
        for (i, o) in tail.iter_mut().enumerate() {
            let sum = parts.iter().fold(0f32, |sum, (w, x)| x[whole + i].to_f32().mul_add(*w, sum));
            *o = E::from_f32(sum);
        }
    }

    #[inline(always)]
    pub(super) fn exponentials(x: &mut [f32], shift: f32) {
        x.iter_mut().for_each(|x| *x = exp(*x - shift));
    }

    #[inline(always)]
    pub(super) fn add_two<E: Element>(out: &mut [f32], (v, x): (f32, &[E]), (w, y): (f32, &[E])) {
        let (x, y) = (&x[..out.len()], &y[..out.len()]);
        for i in 0..out.len() {
            out[i] = x[i].to_f32().mul_add(v, y[i].to_f32().mul_add(w, out[i]));
        }
    }
}

instances! {
    fn dot_rows<E: crate::Element>(a: &[E], b: &[E]) -> f32 = body::dot;
    fn dots_of_rows<E: crate::Element>(to: &mut [f32], pairs: &[[&[E]; 2]]) = body::dots;
    fn blend_rows<E: crate::Element>(out: &mut [E], parts: &[(f32, &[E])]) = body::blend;
    fn exponentials_of(x: &mut [f32], shift: f32) = body::exponentials;
    fn add_two_rows<E: crate::Element>(out: &mut [f32], a: (f32, &[E]), b: (f32, &[E])) = body::add_two;
}

/// `Σ_i a[i] · b[i]`, in f32.
pub(crate) fn dot<E: crate::Element>(isa: crate::Isa, a: &[E], b: &[E]) -> f32 {
    dot_rows(isa, a, b)
}

/// [`dot`] of each pair.
pub(crate) fn dots<E: crate::Element>(isa: crate::Isa, to: &mut [f32], pairs: &[[&[E]; 2]]) {
    dots_of_rows(isa, to, pairs);
}

/// `out[i] = Σ_p weight_p · row_p[i]`, summed in f32 in the order of the parts; every row is at least as long as `out`.
pub(crate) fn blend<E: crate::Element>(isa: crate::Isa, out: &mut [E], parts: &[(f32, &[E])]) {
    blend_rows(isa, out, parts);
}

/// `x[i] = exp(x[i] − shift)`.
pub(crate) fn exponentials(isa: crate::Isa, x: &mut [f32], shift: f32) {
    exponentials_of(isa, x, shift);
}

/// `out[i] += v · x[i] + w · y[i]`; both rows are at least as long as `out`.
pub(crate) fn add_two<E: crate::Element>(isa: crate::Isa, out: &mut [f32], a: (f32, &[E]), b: (f32, &[E])) {
    add_two_rows(isa, out, a, b);
}
