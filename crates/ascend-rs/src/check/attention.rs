//! Rotary embeddings and attention with its gradients.

use super::{Bench, Check, FLOATS, Given, gradient};
use crate::{Result, ops};
use ms_core::DType;

/// Halves (`mode` 0) or neighbours (1) of `[.., d]` rotated by tables of the same shape.
fn turn(x: &[f64], cos: &[f64], sin: &[f64], d: usize, mode: i64) -> Vec<f64> {
    let partner = |i: usize| -> (usize, f64) {
        let (row, at) = (i / d * d, i % d);
        match mode {
            0 if at < d / 2 => (row + at + d / 2, -1.0),
            0 => (row + at - d / 2, 1.0),
            _ if at % 2 == 0 => (row + at + 1, -1.0),
            _ => (row + at - 1, 1.0),
        }
    };
    (0..x.len())
        .map(|i| {
            let (j, sign) = partner(i);
            x[i] * cos[i] + sign * x[j] * sin[i]
        })
        .collect()
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
        ops::rotary(b.stream, x.view()?, cos.view()?, sin.view()?, mode, y.view()?)?;
        b.near("y", &y, &turn(&x.v, &c, &i, d, mode))?;
        let (dcos, dsin) = (b.empty(&[1, s, 1, d])?, b.empty(&[1, s, 1, d])?);
        ops::rotary_grad(
            b.stream,
            dy.view()?,
            cos.view()?,
            sin.view()?,
            None,
            mode,
            dx.view()?,
            Some(dcos.view()?),
            Some(dsin.view()?),
        )?;
        // Linear in x: the sum over elements of what each row of the gradient's matrix gives.
        let flipped: Vec<f64> = (0..x.v.len())
            .map(|at| {
                let (row, e) = (at / d * d, at % d);
                let (j, sign) = match mode {
                    0 if e < d / 2 => (row + e + d / 2, 1.0),
                    0 => (row + e - d / 2, -1.0),
                    _ if e % 2 == 0 => (row + e + 1, 1.0),
                    _ => (row + e - 1, -1.0),
                };
                dy.v[at] * c[at] + sign * dy.v[j] * i[j]
            })
            .collect();
        b.near("dx", &dx, &flipped)?;
    }
    Ok(())
}

fn rotary_in_place(b: &mut Bench<'_>) -> Result<()> {
    let (batch, s, n, d) = (2, b.size.rows, 2, 64);
    let (q, k) = (b.random(&[batch, s, n, d])?, b.random(&[batch, s, 1, d])?);
    let (cos, sin) = (b.random(&[batch, s, 1, d])?, b.random(&[batch, s, 1, d])?);
    ops::rotary_in_place(b.stream, q.view()?, k.view()?, cos.view()?, sin.view()?, 1)?;
    for (x, n) in [(&q, n), (&k, 1)] {
        let (c, i) = (spread(&cos.v, 1, batch * s, n, d), spread(&sin.v, 1, batch * s, n, d));
        b.near("rotated", &x.a, &turn(&x.v, &c, &i, d, 0))?;
    }
    Ok(())
}

/// Sizes of one attention: batch, sequence, query heads, heads of keys, head size.
#[derive(Clone, Copy)]
struct Heads {
    b: usize,
    s: usize,
    n: usize,
    g: usize,
    d: usize,
}

/// Attention in the layout `[b,s,n,d]`; `allowed(i, j)` says whether row i sees key j.
fn attend(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    h: Heads,
    scale: f64,
    allowed: impl Fn(usize, usize) -> bool,
) -> Vec<f64> {
    let mut out = vec![0.0; q.len()];
    for b in 0..h.b {
        for n in 0..h.n {
            for i in 0..h.s {
                let row = ((b * h.s + i) * h.n + n) * h.d;
                let key = |j: usize| ((b * h.s + j) * h.g + n / (h.n / h.g)) * h.d;
                let weight = |j: usize| -> f64 {
                    let dot: f64 = (0..h.d).map(|c| q[row + c] * k[key(j) + c]).sum();
                    if allowed(i, j) { (dot * scale).exp() } else { 0.0 }
                };
                let weights: Vec<f64> = (0..h.s).map(weight).collect();
                let sum: f64 = weights.iter().sum();
                for (j, w) in weights.iter().enumerate() {
                    for c in 0..h.d {
                        out[row + c] += w / sum * v[key(j) + c];
                    }
                }
            }
        }
    }
    out
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

fn attention(b: &mut Bench<'_>) -> Result<()> {
    // Central differences of a loop over all pairs: the sequence stays short.
    let h = Heads { b: 2, s: b.size.rows.min(7), n: 4, g: 2, d: 16 };
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
        let masked = || if causal { mask.view().map(Some) } else { Ok(None) };
        let mode = if causal { 2 } else { 0 };
        ops::attention(
            b.stream,
            gq.view()?,
            gk.view()?,
            gv.view()?,
            None,
            None,
            None,
            masked()?,
            None,
            scale,
            1.0,
            65536,
            65536,
            h.n as i64,
            text,
            0,
            mode,
            max.view()?,
            sum.view()?,
            Some(none.view()?),
            out.view()?,
        )?;
        // The formula on rounded values, in the order of [b,s,n,d].
        let exact = |g: &Given, heads: usize| -> Vec<f64> {
            let marks: Vec<f64> = (0..g.v.len()).map(|i| i as f64).collect();
            let order = laid_out(&marks, layout, h.b, h.s, heads, h.d);
            let mut out = vec![0.0; g.v.len()];
            order.iter().zip(&g.v).for_each(|(at, v)| out[*at as usize] = *v);
            out
        };
        let (q, k, v, dy) = (exact(&gq, h.n), exact(&gk, h.g), exact(&gv, h.g), exact(&gdy, h.n));
        let sees = |i: usize, j: usize| !causal || j <= i;
        let turned = |v: &[f64], heads: usize| laid_out(v, layout, h.b, h.s, heads, h.d);
        b.near(layout, &out, &turned(&attend(&q, &k, &v, h, scale, sees), h.n))?;
        if i != own {
            // Gradients by differences take a while: each size does one layout.
            continue;
        }
        let (dq, dk, dv) = (b.empty(gq.shape())?, b.empty(gk.shape())?, b.empty(gv.shape())?);
        ops::attention_grad(
            b.stream,
            gq.view()?,
            gk.view()?,
            gv.view()?,
            gdy.view()?,
            None,
            None,
            None,
            masked()?,
            Some(max.view()?),
            Some(sum.view()?),
            None,
            Some(out.view()?),
            None,
            scale,
            1.0,
            65536,
            65536,
            h.n as i64,
            text,
            0,
            mode,
            dq.view()?,
            dk.view()?,
            dv.view()?,
            Some(none.view()?),
        )?;
        let want = gradient(|q| attend(q, &k, &v, h, scale, sees), &q, &dy);
        b.near("dq", &dq, &turned(&want, h.n))?;
        let want = gradient(|k| attend(&q, k, &v, h, scale, sees), &k, &dy);
        b.near("dk", &dk, &turned(&want, h.g))?;
        let want = gradient(|v| attend(&q, &k, v, h, scale, sees), &v, &dy);
        b.near("dv", &dv, &turned(&want, h.g))?;
    }
    Ok(())
}

/// Sequences one after the other, one of them empty, each causal.
fn ragged(b: &mut Bench<'_>) -> Result<()> {
    let lengths = [b.size.rows.min(6), 0, 1, 3];
    let t: usize = lengths.iter().sum();
    let (n, d, scale) = (2, 16, 0.25);
    let ends: Vec<i64> = lengths
        .iter()
        .scan(0i64, |at, n| {
            *at += *n as i64;
            Some(*at)
        })
        .collect();
    let owner = |i: usize| ends.iter().position(|e| (i as i64) < *e);
    let shape = [t, n, d];
    let (q, k, v, dy) = (b.random(&shape)?, b.random(&shape)?, b.random(&shape)?, b.random(&shape)?);
    let mask = causal_mask(b)?;
    let (max, sum) = (b.empty_as(DType::F32, &[t, n, 8])?, b.empty_as(DType::F32, &[t, n, 8])?);
    let (out, none) = (b.empty(&shape)?, b.empty(&[0])?);
    let lists = (Some(&ends[..]), Some(&ends[..]));
    ops::attention_ragged(
        b.stream,
        q.view()?,
        k.view()?,
        v.view()?,
        None,
        None,
        None,
        Some(mask.view()?),
        None,
        lists.0,
        lists.1,
        scale,
        1.0,
        65536,
        65536,
        n as i64,
        c"TND",
        0,
        2,
        max.view()?,
        sum.view()?,
        Some(none.view()?),
        out.view()?,
    )?;
    let h = Heads { b: 1, s: t, n, g: n, d };
    let sees = |i: usize, j: usize| j <= i && owner(i) == owner(j);
    b.near("out", &out, &attend(&q.v, &k.v, &v.v, h, scale, sees))?;
    let (dq, dk, dv) = (b.empty(&shape)?, b.empty(&shape)?, b.empty(&shape)?);
    ops::attention_ragged_grad(
        b.stream,
        q.view()?,
        k.view()?,
        v.view()?,
        dy.view()?,
        None,
        None,
        None,
        Some(mask.view()?),
        Some(max.view()?),
        Some(sum.view()?),
        None,
        Some(out.view()?),
        None,
        lists.0,
        lists.1,
        scale,
        1.0,
        65536,
        65536,
        n as i64,
        c"TND",
        0,
        2,
        dq.view()?,
        dk.view()?,
        dv.view()?,
        Some(none.view()?),
    )?;
    b.near("dq", &dq, &gradient(|q| attend(q, &k.v, &v.v, h, scale, sees), &q.v, &dy.v))?;
    b.near("dk", &dk, &gradient(|k| attend(&q.v, k, &v.v, h, scale, sees), &k.v, &dy.v))?;
    b.near("dv", &dv, &gradient(|v| attend(&q.v, &k.v, v, h, scale, sees), &v.v, &dy.v))
}

pub(super) const CHECKS: &[Check] = &[
    Check::of(&["aclnnRotaryPositionEmbedding", "aclnnRotaryPositionEmbeddingGrad"], FLOATS, rotary),
    Check::of(&["aclnnApplyRotaryPosEmb"], FLOATS, rotary_in_place),
    Check::of(&["aclnnFlashAttentionScore", "aclnnFlashAttentionScoreGrad"], FLOATS, attention),
    Check::of(&["aclnnFlashAttentionVarLenScore", "aclnnFlashAttentionUnpaddingScoreGrad"], FLOATS, ragged),
];
