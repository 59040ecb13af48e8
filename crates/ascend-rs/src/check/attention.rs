//! Rotary embeddings and attention with its gradients.

use super::scores::{Pair, Sizes, attend};
use super::{Bench, Check, FLOATS, Given, gradient};
use crate::ops::{Attention, AttentionGradients, AttentionOptions, AttentionResults};
use crate::{Result, ops};
use ms_core::DType;

/// The other element of a rotated pair and the sign of its sine: halves (`mode` 0) or neighbours (1) of rows of `d`.
fn partner(i: usize, d: usize, mode: i64) -> (usize, f64) {
    let (row, at) = (i / d * d, i % d);
    match mode {
        0 if at < d / 2 => (row + at + d / 2, -1.0),
        0 => (row + at - d / 2, 1.0),
        _ if at % 2 == 0 => (row + at + 1, -1.0),
        _ => (row + at - 1, 1.0),
    }
}

/// `[.., d]` rotated by tables of the same shape.
fn turn(x: &[f64], cos: &[f64], sin: &[f64], d: usize, mode: i64) -> Vec<f64> {
    let one = |i: usize| {
        let (j, sign) = partner(i, d, mode);
        x[i] * cos[i] + sign * x[j] * sin[i]
    };
    (0..x.len()).map(one).collect()
}

/// Tables of `[1,s,1,d]` at every element of `[b,s,n,d]`.
fn spread(table: &[f64], b: usize, s: usize, n: usize, d: usize) -> Vec<f64> {
    (0..b * s * n * d).map(|i| table[i / (n * d) % s * d + i % d]).collect()
}

fn rotary(b: &mut Bench<'_>) -> Result<()> {
    let (batch, s, n, d) = (2, b.size.rows, 3, 64);
    let shape = [batch, s, n, d];
    for mode in [0, 1] {
        let (x, dy) = (b.random(&shape)?, b.random(&shape)?);
        let (cos, sin) = (b.random(&[1, s, 1, d])?, b.random(&[1, s, 1, d])?);
        let (c, i) = (spread(&cos.v, batch, s, n, d), spread(&sin.v, batch, s, n, d));
        let (y, dx) = (b.empty(&shape)?, b.empty(&shape)?);
        ops::RotaryPositionEmbedding {
            x: x.view()?,
            cos: cos.view()?,
            sin: sin.view()?,
            mode,
            out: y.view()?,
        }
        .run(b.stream)?;
        b.near("y", &y, &turn(&x.v, &c, &i, d, mode))?;
        let (dcos, dsin) = (b.empty(&[1, s, 1, d])?, b.empty(&[1, s, 1, d])?);
        ops::RotaryPositionEmbeddingGrad {
            dy: dy.view()?,
            cos: cos.view()?,
            sin: sin.view()?,
            x: None,
            mode,
            dx: dx.view()?,
            dcos: Some(dcos.view()?),
            dsin: Some(dsin.view()?),
        }
        .run(b.stream)?;
        // Linear in x: the transposed matrix.
        let back = |at: usize| {
            let (j, sign) = partner(at, d, mode);
            dy.v[at] * c[at] - sign * dy.v[j] * i[j]
        };
        b.near("dx", &dx, &(0..x.v.len()).map(back).collect::<Vec<f64>>())?;
    }
    Ok(())
}

fn rotary_in_place(b: &mut Bench<'_>) -> Result<()> {
    let (batch, s, n, d) = (2, b.size.rows, 2, 64);
    let (q, k) = (b.random(&[batch, s, n, d])?, b.random(&[batch, s, 1, d])?);
    let (cos, sin) = (b.random(&[batch, s, 1, d])?, b.random(&[batch, s, 1, d])?);
    ops::ApplyRotaryPosEmb {
        query: q.view()?,
        key: k.view()?,
        cos: cos.view()?,
        sin: sin.view()?,
        layout: 1,
    }
    .run(b.stream)?;
    for (x, n) in [(&q, n), (&k, 1)] {
        let (c, i) = (spread(&cos.v, 1, batch * s, n, d), spread(&sin.v, 1, batch * s, n, d));
        b.near("rotated", &x.a, &turn(&x.v, &c, &i, d, 0))?;
    }
    Ok(())
}

/// `[b,s,n,d]` in the order of a layout.
fn laid_out(v: &[f64], layout: &str, b: usize, s: usize, n: usize, d: usize) -> Vec<f64> {
    let mut out = vec![0.0; v.len()];
    for (i, value) in v.iter().enumerate() {
        let (bi, si, ni, di) = (i / (s * n * d), i / (n * d) % s, i / d % n, i % d);
        let at = match layout {
            "SBH" => ((si * b + bi) * n + ni) * d + di,
            "BNSD" => ((bi * n + ni) * s + si) * d + di,
            _ => i,
        };
        out[at] = *value;
    }
    out
}

fn dims(layout: &str, b: usize, s: usize, n: usize, d: usize) -> Vec<usize> {
    match layout {
        "BSH" => vec![b, s, n * d],
        "SBH" => vec![s, b, n * d],
        "BNSD" => vec![b, n, s, d],
        _ => vec![b, s, n, d],
    }
}

/// The compressed causal mask of 2048 × 2048: 1 where a score is dropped.
pub(super) fn causal_mask(b: &Bench<'_>) -> Result<Given> {
    let values: Vec<f64> = (0..2048 * 2048).map(|i| f64::from(u8::from(i % 2048 > i / 2048))).collect();
    b.give_as(DType::Bool, &[2048, 2048], &values)
}

/// Every layout, causal and not.
fn layouts(b: &mut Bench<'_>) -> Result<()> {
    // Central differences of a loop over all pairs: the sequence stays short.
    let s = b.size.rows.min(7);
    let h = Sizes { b: 2, s, r: s, n: 4, g: 2, d: 16 };
    let (scale, mask) = (0.25, causal_mask(b)?);
    let layouts = [("BSH", c"BSH"), ("SBH", c"SBH"), ("BSND", c"BSND"), ("BNSD", c"BNSD")];
    let own = b.size.rows % layouts.len();
    for (i, (layout, text)) in layouts.into_iter().enumerate() {
        let causal = i % 2 == 0;
        let (nq, nk) = (h.b * h.s * h.n * h.d, h.b * h.s * h.g * h.d);
        let (q, k, v, dy) = (b.noise(nq), b.noise(nk), b.noise(nk), b.noise(nq));
        let of = |values: &[f64], heads: usize| {
            b.give(&dims(layout, h.b, h.s, heads, h.d), &laid_out(values, layout, h.b, h.s, heads, h.d))
        };
        let (gq, gk, gv, gdy) = (of(&q, h.n)?, of(&k, h.g)?, of(&v, h.g)?, of(&dy, h.n)?);
        let statistics = [h.b, h.n, h.s, 8];
        let (max, sum) = (b.empty_as(DType::F32, &statistics)?, b.empty_as(DType::F32, &statistics)?);
        let (out, none) = (b.empty(gq.shape())?, b.empty(&[0])?);
        let options = if causal {
            AttentionOptions { atten_mask: Some(mask.view()?), sparse_mode: 2, ..Default::default() }
        } else {
            AttentionOptions::default()
        };
        let of = Attention {
            query: gq.view()?,
            key: gk.view()?,
            value: gv.view()?,
            head_num: h.n as i64,
            input_layout: text,
            scale_value: scale,
            options,
        };
        let results = AttentionResults {
            softmax_max: max.view()?,
            softmax_sum: sum.view()?,
            softmax_out: Some(none.view()?),
            attention_out: out.view()?,
        };
        ops::FlashAttentionScore { of: of.clone(), results: results.clone() }.run(b.stream)?;
        // The formula on rounded values, in the order of [b,s,n,d].
        let exact = |g: &Given, heads: usize| -> Vec<f64> {
            let marks: Vec<f64> = (0..g.v.len()).map(|i| i as f64).collect();
            let order = laid_out(&marks, layout, h.b, h.s, heads, h.d);
            let mut out = vec![0.0; g.v.len()];
            order.iter().zip(&g.v).for_each(|(at, v)| out[*at as usize] = *v);
            out
        };
        let (q, k, v, dy) = (exact(&gq, h.n), exact(&gk, h.g), exact(&gv, h.g), exact(&gdy, h.n));
        let formula = |q: &[f64], k: &[f64], v: &[f64]| -> Vec<f64> {
            let score = |p: Pair, dot: f64| (!causal || p.j <= p.i).then_some(dot * scale);
            attend(h, [q, k, v, &[], &[], &[]], score).out
        };
        let turned = |v: &[f64], heads: usize| laid_out(v, layout, h.b, h.s, heads, h.d);
        b.near(layout, &out, &turned(&formula(&q, &k, &v), h.n))?;
        if i != own {
            // Gradients by differences take a while: each size does one layout.
            continue;
        }
        let (dq, dk, dv) = (b.empty(gq.shape())?, b.empty(gk.shape())?, b.empty(gv.shape())?);
        let gradients =
            AttentionGradients { dq: dq.view()?, dk: dk.view()?, dv: dv.view()?, dpse: Some(none.view()?) };
        ops::FlashAttentionScoreGrad { of, dy: gdy.view()?, results, gradients }.run(b.stream)?;
        b.near("dq", &dq, &turned(&gradient(|q| formula(q, &k, &v), &q, &dy), h.n))?;
        b.near("dk", &dk, &turned(&gradient(|k| formula(&q, k, &v), &k, &dy), h.g))?;
        b.near("dv", &dv, &turned(&gradient(|v| formula(&q, &k, v), &v, &dy), h.g))?;
    }
    Ok(())
}

pub(super) const CHECKS: &[Check] = &[
    Check::of(&["aclnnRotaryPositionEmbedding", "aclnnRotaryPositionEmbeddingGrad"], FLOATS, rotary),
    Check::of(&["aclnnApplyRotaryPosEmb"], FLOATS, rotary_in_place),
    Check::of(&["aclnnFlashAttentionScore", "aclnnFlashAttentionScoreGrad"], FLOATS, layouts),
];
