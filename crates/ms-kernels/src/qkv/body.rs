//! The fast bodies.

use super::{Packed, QkNorm};
use crate::Element;
use crate::narrow::{LANES, Narrow};
use crate::rms_norm::{lane_sum, scaled};
use crate::rope::Rotary;
use crate::rope::body::{Heads, rotate, table_row};
use std::hint::black_box;

/// Sum of `f(d)` over a head, in sixteen lanes.
#[inline(always)]
fn head_sum(len: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut acc = [0f32; LANES];
    let blocks = len / LANES * LANES;
    for b in (0..blocks).step_by(LANES) {
        for l in 0..LANES {
            acc[l] += f(b + l);
        }
    }
    for d in blocks..len {
        acc[d - blocks] += f(d);
    }
    // Seen as an array in memory the lanes stay in a register above.
    lane_sum(black_box(acc))
}

#[inline(always)]
pub(super) fn forward<E: Element>(
    how: impl Narrow,
    out: &mut [E],
    rstd: &mut [f32],
    qkv: &[E],
    shape: &Packed,
    norm: Option<&QkNorm<'_, E>>,
    positions: &[i32],
    rotary: &Rotary<'_>,
) {
    let (width, dim, per_group) = (shape.width(), shape.head_dim, shape.heads_per_group);
    let heads = Heads { dim, skip: 0 };
    for (t, &position) in positions.iter().enumerate() {
        let cos = table_row(rotary.cos, rotary.dim, position);
        let sin = table_row(rotary.sin, rotary.dim, position);
        let (out, qkv) = (&mut out[t * width..][..width], &qkv[t * width..][..width]);
        for group in 0..shape.groups {
            for head in 0..per_group + 2 {
                let at = group * shape.group_width() + head * dim;
                let (y, x) = (&mut out[at..at + dim], &qkv[at..at + dim]);
                if head > per_group {
                    y.copy_from_slice(x);
                    continue;
                }
                match norm {
                    None => y.copy_from_slice(x),
                    Some(norm) => {
                        let w = &(if head == per_group { norm.k_weight } else { norm.q_weight })[..dim];
                        let squares = head_sum(dim, |d| x[d].to_f32() * x[d].to_f32());
                        let r = 1.0 / (squares / dim as f32 + norm.eps).sqrt();
                        rstd[t * shape.norms() + group * (per_group + 1) + head] = r;
                        scaled(how, y, x, r, w, false);
                    }
                }
            }
            let at = group * shape.group_width();
            let rotated = &mut out[at..][..(per_group + 1) * dim];
            rotate(how, rotated, heads, cos, sin, rotary.interleaved, false);
        }
    }
}

#[inline(always)]
pub(super) fn backward<E: Element>(
    how: impl Narrow,
    dqkv: &mut [E],
    qkv: &[E],
    rstd: &[f32],
    shape: &Packed,
    norm: Option<&QkNorm<'_, E>>,
    dweights: &mut [f32],
    positions: &[i32],
    rotary: &Rotary<'_>,
) {
    let (width, dim, per_group) = (shape.width(), shape.head_dim, shape.heads_per_group);
    let heads = Heads { dim, skip: 0 };
    for (t, &position) in positions.iter().enumerate() {
        let cos = table_row(rotary.cos, rotary.dim, position);
        let sin = table_row(rotary.sin, rotary.dim, position);
        let row = &mut dqkv[t * width..][..width];
        for group in 0..shape.groups {
            let at = group * shape.group_width();
            let rotated = &mut row[at..][..(per_group + 1) * dim];
            rotate(how, rotated, heads, cos, sin, rotary.interleaved, true);
            let Some(norm) = norm else { continue };
            for head in 0..=per_group {
                let at = at + head * dim;
                let g = &mut row[at..at + dim];
                let key = head == per_group;
                let w = &(if key { norm.k_weight } else { norm.q_weight })[..dim];
                let dw = &mut dweights[usize::from(key) * dim..][..dim];
                let x = &qkv[t * width + at..][..dim];
                let r = rstd[t * shape.norms() + group * (per_group + 1) + head];
                let dot = head_sum(dim, |d| g[d].to_f32() * w[d].to_f32() * x[d].to_f32());
                let c = -(dot * r * r * r) / dim as f32;
                for d in 0..dim {
                    let (gradient, v) = (g[d].to_f32(), x[d].to_f32());
                    dw[d] = gradient.mul_add(E::round(v * r), dw[d]);
                    g[d] = E::from_f32(v.mul_add(c, gradient * w[d].to_f32() * r));
                }
            }
        }
    }
}
