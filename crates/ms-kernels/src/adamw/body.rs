//! The fast bodies.

use half::bf16;

use super::Factors;
use crate::Element;
use crate::narrow::{LANES, Lanes, Narrow};
use crate::prefetch::{fetch, sees_streams};

/// Elements that are prefetched ahead of their use.
const AHEAD: usize = 1024;

#[inline(always)]
fn element(p: &mut f32, m: &mut f32, v: &mut f32, g: f32, f: &Factors) {
    let g = g * f.grad_scale;
    *m = g.mul_add(f.one_minus_beta1, f.beta1 * *m);
    *v = (g * g).mul_add(f.one_minus_beta2, f.beta2 * *v);
    let root = (*v * f.unbias2).sqrt() + f.eps;
    *p = (*m / root).mul_add(f.step_size, *p * f.keep);
}

#[inline(always)]
pub(super) fn step(p: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32], factors: &Factors) {
    by_lanes((p, m, v, g), factors, |_, _| {}, |_, _| {});
}

#[inline(always)]
pub(super) fn step_with_model(
    how: impl Narrow,
    p: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
    g: &[f32],
    model: &mut [bf16],
    factors: &Factors,
) {
    let (model, model_tail) = model[..p.len()].as_chunks_mut::<LANES>();
    let narrowed = |at: usize, p: &Lanes| model[at] = how.narrow(*p);
    by_lanes((p, m, v, g), factors, narrowed, |at, p| model_tail[at] = <bf16 as Element>::from_f32(p));
}

/// The step sixteen elements at a time and then one at a time; the number of each and its new weights are passed on.
#[inline(always)]
fn by_lanes(
    (p, m, v, g): (&mut [f32], &mut [f32], &mut [f32], &[f32]),
    factors: &Factors,
    mut sixteen: impl FnMut(usize, &Lanes),
    mut one: impl FnMut(usize, f32),
) {
    let n = p.len();
    let ask = !sees_streams();
    let (p, p_tail) = p.as_chunks_mut::<LANES>();
    let (m, m_tail) = m[..n].as_chunks_mut::<LANES>();
    let (v, v_tail) = v[..n].as_chunks_mut::<LANES>();
    let (g, g_tail) = g[..n].as_chunks::<LANES>();
    for (at, (((p, m), v), g)) in p.iter_mut().zip(m).zip(v).zip(g).enumerate() {
        if ask {
            let lines = [p.as_ptr(), m.as_ptr(), v.as_ptr(), g.as_ptr()];
            lines.into_iter().for_each(|line| fetch(line.wrapping_add(AHEAD)));
        }
        for l in 0..LANES {
            element(&mut p[l], &mut m[l], &mut v[l], g[l], factors);
        }
        sixteen(at, p);
    }
    for i in 0..p_tail.len() {
        element(&mut p_tail[i], &mut m_tail[i], &mut v_tail[i], g_tail[i], factors);
        one(i, p_tail[i]);
    }
}
