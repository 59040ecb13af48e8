//! The fast bodies.

use half::bf16;

use super::Factors;
use crate::Element;
use crate::narrow::{LANES, Narrow, fetch, sees_streams};

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
    let n = p.len();
    let (m, v, g) = (&mut m[..n], &mut v[..n], &g[..n]);
    for i in 0..n {
        element(&mut p[i], &mut m[i], &mut v[i], g[i], factors);
    }
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
    let n = p.len();
    let (m, v, g, model) = (&mut m[..n], &mut v[..n], &g[..n], &mut model[..n]);
    let ask = !sees_streams();
    let (p, p_tail) = p.as_chunks_mut::<LANES>();
    let (m, m_tail) = m.as_chunks_mut::<LANES>();
    let (v, v_tail) = v.as_chunks_mut::<LANES>();
    let (g, g_tail) = g.as_chunks::<LANES>();
    let (model, model_tail) = model.as_chunks_mut::<LANES>();
    for ((((p, m), v), g), model) in p.iter_mut().zip(m).zip(v).zip(g).zip(model) {
        if ask {
            let lines = [p.as_ptr(), m.as_ptr(), v.as_ptr(), g.as_ptr()];
            lines.into_iter().for_each(|line| fetch(line.wrapping_add(AHEAD)));
        }
        for l in 0..LANES {
            element(&mut p[l], &mut m[l], &mut v[l], g[l], factors);
        }
        *model = how.narrow(*p);
    }
    for i in 0..p_tail.len() {
        element(&mut p_tail[i], &mut m_tail[i], &mut v_tail[i], g_tail[i], factors);
        model_tail[i] = <bf16 as Element>::from_f32(p_tail[i]);
    }
}
