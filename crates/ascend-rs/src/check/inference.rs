//! Attention over KV caches, writing caches, merging partial attentions, integer products.

use super::attention::causal_mask;
use super::{Bench, Check, FLOATS, Given};
use crate::operator::View;
use crate::{Array, Result, ops};
use ms_core::DType;

/// Sequences, heads of queries and of keys, size of a head, rows of a page.
const B: usize = 3;
const N: usize = 4;
const G: usize = 2;
const D: usize = 16;
const PAGE: usize = 16;
const SCALE: f64 = 0.25;

/// Rows `[b,s,n,d]` against keys and values `[b,r,g,d]`: for each sequence how many queries and keys count; a query sees
/// what `sees` says of its place, a key's place, and both counts.
#[derive(Clone, Copy)]
struct Attend<'a> {
    s: usize,
    r: usize,
    queries: [usize; B],
    keys: [usize; B],
    sees: &'a dyn Fn(usize, usize, usize, usize) -> bool,
}

impl Attend<'_> {
    /// Output, and the logarithm of the sum of exponents `[b,n,s]`.
    fn run(
        &self,
        q: &[f64],
        k: &[f64],
        v: &[f64],
        extra: Option<(&[f64], &[f64], usize)>,
        sink: &[f64],
    ) -> [Vec<f64>; 2] {
        let (mut out, mut lse) = (vec![0.0; q.len()], vec![f64::INFINITY; B * N * self.s]);
        for b in 0..B {
            for (i, n) in (0..self.queries[b]).flat_map(|i| (0..N).map(move |n| (i, n))) {
                let (row, g) = ((b * self.s + i) * N + n, n / (N / G));
                let weight = |j: usize| -> f64 {
                    if !(self.sees)(i, j, self.queries[b], self.keys[b]) {
                        return 0.0;
                    }
                    let key = (b * self.r + j) * G + g;
                    let mut dot: f64 = (0..D).map(|c| q[row * D + c] * k[key * D + c]).sum();
                    if let Some((qr, kr, w)) = extra {
                        dot += (0..w).map(|c| qr[row * w + c] * kr[key * w + c]).sum::<f64>();
                    }
                    (SCALE * dot).exp()
                };
                let weights: Vec<f64> = (0..self.keys[b]).map(weight).collect();
                let sum = weights.iter().sum::<f64>() + sink.get(n).map_or(0.0, |s| s.exp());
                lse[(b * N + n) * self.s + i] = sum.ln();
                for (j, w) in weights.iter().enumerate() {
                    let key = (b * self.r + j) * G + g;
                    (0..D).for_each(|c| out[row * D + c] += w / sum * v[key * D + c]);
                }
            }
        }
        [out, lse]
    }
}

fn all(_: usize, _: usize, _: usize, _: usize) -> bool {
    true
}

fn causal(i: usize, j: usize, _: usize, _: usize) -> bool {
    j <= i
}

/// Causal with the last query at the last key.
fn behind(i: usize, j: usize, queries: usize, keys: usize) -> bool {
    j + queries <= i + keys
}

/// What the versions of one operator have in common.
struct Prompt {
    q: Given,
    k: Given,
    v: Given,
    out: Array,
    lse: Array,
    queries: [usize; B],
    keys: [usize; B],
}

fn prompt(b: &mut Bench<'_>) -> Result<Prompt> {
    let s = b.size.rows.min(9);
    let r = s + 2;
    Ok(Prompt {
        q: b.random(&[B, s, N, D])?,
        k: b.random(&[B, r, G, D])?,
        v: b.random(&[B, r, G, D])?,
        out: b.empty(&[B, s, N, D])?,
        lse: b.empty_as(DType::F32, &[B, N, s, 1])?,
        queries: [s, s.div_ceil(2), 1],
        keys: [r, r - 1, s],
    })
}

fn lengths(counts: [usize; B]) -> Vec<i64> {
    counts.iter().map(|c| *c as i64).collect()
}

impl Prompt {
    fn compare(
        &self,
        b: &mut Bench<'_>,
        sees: &dyn Fn(usize, usize, usize, usize) -> bool,
        extra: Option<(&[f64], &[f64], usize)>,
        sink: &[f64],
        lse: bool,
    ) -> Result<()> {
        let (s, r) = (self.q.shape()[1], self.k.shape()[1]);
        let form = Attend { s, r, queries: self.queries, keys: self.keys, sees };
        let [out, sums] = form.run(&self.q.v, &self.k.v, &self.v.v, extra, sink);
        b.near("out", &self.out, &out)?;
        if lse { b.near_within("sums", &self.lse, &sums, super::tolerance(b.dtype)) } else { Ok(()) }
    }
}

#[rustfmt::skip] // calls of forty operands
fn fused(b: &mut Bench<'_>, version: usize) -> Result<()> {
    let (p, mask) = (prompt(b)?, causal_mask(b)?);
    let (ql, kl) = (lengths(p.queries), lengths(p.keys));
    let (st, n, g, far) = (b.stream, N as i64, G as i64, i64::from(i32::MAX));
    let (q, k, v) = (p.q.view()?, vec![p.k.view()?], vec![p.v.view()?]);
    let (m, out, lse) = (Some(mask.view()?), p.out.view()?, Some(p.lse.view()?));
    let (qs, ks) = (Some(&ql[..]), Some(&kl[..]));
    let w = 8;
    let (s, r) = (p.q.shape()[1], p.k.shape()[1]);
    let (qr, kr) = (b.random(&[B, s, N, w])?, b.random(&[B, r, G, w])?);
    let values = b.noise(N);
    let sink = b.give(&[N], &values)?;
    let extra = Some((&qr.v[..], &kr.v[..], w));
    match version {
        1 => {
            ops::inference::infer_attention(st, q, k, v, None, m, qs, ks, None, None, None, None, None, None, None, None, None, None, n, SCALE, far, far, c"BSND", g, 3, 0, 0, 0, true, out, lse)?;
            p.compare(b, &behind, None, &[], true)
        }
        2 => {
            ops::inference::infer_attention_v2(st, q, k, v, None, m, qs, ks, None, None, None, None, None, None, None, None, None, None, None, None, None, None, None, None, None, n, SCALE, far, far, c"BSND", g, 2, 0, 0, 0, true, 0, 0, out, lse)?;
            // A mode of a mask does not count for single queries.
            if s == 1 { p.compare(b, &all, None, &[], true) } else { p.compare(b, &causal, None, &[], true) }
        }
        3 => {
            ops::inference::infer_attention_v3(st, q, k, v, None, m, qs, ks, None, None, None, None, None, None, None, None, None, None, None, None, None, None, None, None, None, Some(qr.view()?), Some(kr.view()?), None, n, SCALE, far, far, c"BSND", g, 3, 0, 0, 0, true, 0, 0, out, lse)?;
            p.compare(b, &behind, extra, &[], true)
        }
        _ => {
            ops::inference::infer_attention_v4(st, q, k, v, None, None, qs, ks, None, None, None, None, None, None, None, None, None, None, None, None, None, None, None, None, None, Some(qr.view()?), Some(kr.view()?), None, None, Some(sink.view()?), n, SCALE, far, far, c"BSND", g, 0, 0, 0, 0, true, 0, 0, 0, out, lse)?;
            p.compare(b, &all, extra, &sink.v, true)
        }
    }
}

#[rustfmt::skip] // calls of twenty operands
fn prompts(b: &mut Bench<'_>) -> Result<()> {
    let (p, mask) = (prompt(b)?, causal_mask(b)?);
    let (ql, kl) = (lengths(p.queries), lengths(p.keys));
    let far = i64::from(i32::MAX);
    ops::inference::prompt_attention(b.stream, p.q.view()?, p.k.view()?, p.v.view()?, None, Some(mask.view()?), Some(&ql), Some(&kl), None, None, None, None, None, N as i64, SCALE, far, far, c"BSND", G as i64, 2, 0, p.out.view()?)?;
    p.compare(b, &causal, None, &[], false)
}

/// Pages of a cache, in an order of their own, and which belong to which sequence.
struct Pages {
    k: Given,
    v: Given,
    table: Given,
    keys: [usize; B],
    r: usize,
}

/// Where the row of a sequence stands, in rows of the cache.
fn slot(b: usize, row: usize, per: usize) -> usize {
    // Pages of all sequences in turn, backwards.
    (B * per - 1 - (row / PAGE * B + b)) * PAGE + row % PAGE
}

fn pages(b: &mut Bench<'_>) -> Result<Pages> {
    let r = b.size.columns + 3;
    let per = r.div_ceil(PAGE);
    let shape = [B * per, PAGE, G * D];
    let table: Vec<f64> = (0..B * per).map(|i| (slot(i / per, i % per * PAGE, per) / PAGE) as f64).collect();
    Ok(Pages {
        k: b.random(&shape)?,
        v: b.random(&shape)?,
        table: b.give_as(DType::I32, &[B, per], &table)?,
        keys: [r, 1, r - 2],
        r,
    })
}

impl Pages {
    /// The rows of the sequences `[b,r,g,d]`.
    fn rows(&self, cache: &[f64]) -> Vec<f64> {
        let (per, width) = (self.r.div_ceil(PAGE), G * D);
        let at = |i: usize| cache[slot(i / (self.r * width), i / width % self.r, per) * width + i % width];
        (0..B * self.r * width).map(at).collect()
    }

    fn compare(&self, b: &mut Bench<'_>, q: &Given, out: &Array) -> Result<()> {
        let form = Attend { s: 1, r: self.r, queries: [1; B], keys: self.keys, sees: &all };
        let [want, _] = form.run(&q.v, &self.rows(&self.k.v), &self.rows(&self.v.v), None, &[]);
        b.near("out", out, &want)
    }
}

/// A step of every sequence, over keys in one tensor and over pages.
#[rustfmt::skip] // calls of twenty operands
fn steps(b: &mut Bench<'_>) -> Result<()> {
    let r = b.size.columns + 3;
    let (q, k, v) = (b.random(&[B, 1, N, D])?, b.random(&[B, r, G, D])?, b.random(&[B, r, G, D])?);
    let (out, keys) = (b.empty(&[B, 1, N, D])?, [r, 1, r - 2]);
    let kl = lengths(keys);
    ops::inference::step_attention(b.stream, q.view()?, vec![k.view()?], vec![v.view()?], None, None, Some(&kl), N as i64, SCALE, c"BSND", G as i64, out.view()?)?;
    let form = Attend { s: 1, r, queries: [1; B], keys, sees: &all };
    let [want, _] = form.run(&q.v, &k.v, &v.v, None, &[]);
    b.near("out", &out, &want)
}

#[rustfmt::skip] // calls of twenty operands
fn paged_steps(b: &mut Bench<'_>) -> Result<()> {
    let (p, q, out) = (pages(b)?, b.random(&[B, 1, N, D])?, b.empty(&[B, 1, N, D])?);
    let kl = lengths(p.keys);
    ops::inference::step_attention_v4(b.stream, q.view()?, vec![p.k.view()?], vec![p.v.view()?], None, None, Some(&kl), None, None, None, None, None, None, None, Some(p.table.view()?), None, N as i64, SCALE, c"BSND", G as i64, PAGE as i64, 0, out.view()?)?;
    p.compare(b, &q, &out)
}

/// New rows into the pages, one of them left out.
fn scatter(b: &mut Bench<'_>) -> Result<()> {
    let t = b.size.rows;
    let blocks = t.div_ceil(PAGE) + 1;
    let (k, v) = (b.random(&[t, G, D])?, b.random(&[t, G, 2 * D])?);
    let (kc, vc) = (b.random(&[blocks, PAGE, G, D])?, b.random(&[blocks, PAGE, G, 2 * D])?);
    let slots: Vec<f64> =
        (0..t).map(|i| if i == 1 { -1.0 } else { (blocks * PAGE - 1 - i) as f64 }).collect();
    let map = b.give_as(DType::I32, &[t], &slots)?;
    ops::inference::scatter_cache(
        b.stream,
        k.view()?,
        kc.view()?,
        map.view()?,
        v.view()?,
        vc.view()?,
        None,
        None,
        None,
        c"Norm",
        c"None",
        None,
        None,
    )?;
    for (name, rows, cache, width) in [("keys", &k, &kc, G * D), ("values", &v, &vc, 2 * G * D)] {
        let mut want = cache.v.clone();
        for (i, s) in slots.iter().enumerate().filter(|(_, s)| **s >= 0.0) {
            let to = *s as usize * width;
            want[to..to + width].copy_from_slice(&rows.v[i * width..(i + 1) * width]);
        }
        b.near(name, &cache.a, &want)?;
    }
    Ok(())
}

/// Attention over two halves of the keys, merged, is attention over all: in SBH with one copy of statistics in each of eight.
fn ring(b: &mut Bench<'_>, version: usize) -> Result<()> {
    let (s, batch, half) = (b.size.rows, 2, b.size.columns);
    let (scores, values) = (b.noise(s * batch * N * 2 * half), b.noise(batch * N * 2 * half * D));
    let part = |from: usize, to: usize| -> [Vec<f64>; 3] {
        let (mut out, mut max, mut sum) =
            (vec![0.0; s * batch * N * D], vec![0.0; batch * N * s * 8], vec![0.0; batch * N * s * 8]);
        for (b, n, i) in (0..batch * N * s).map(|i| (i / (N * s), i / s % N, i % s)) {
            let score = |j: usize| 4.0 * scores[((i * batch + b) * N + n) * 2 * half + j];
            let m = (from..to).map(score).fold(f64::NEG_INFINITY, f64::max);
            let all: f64 = (from..to).map(|j| (score(j) - m).exp()).sum();
            let at = ((b * N + n) * s + i) * 8;
            max[at..at + 8].fill(m);
            sum[at..at + 8].fill(all);
            for j in from..to {
                for c in 0..D {
                    let v = values[((b * N + n) * 2 * half + j) * D + c];
                    out[((i * batch + b) * N + n) * D + c] += (score(j) - m).exp() / all * v;
                }
            }
        }
        [out, max, sum]
    };
    let (rows, statistics) = ([s, batch, N * D], [batch, N, s, 8]);
    let give = |[out, max, sum]: [Vec<f64>; 3]| -> Result<[Given; 3]> {
        Ok([
            b.give(&rows, &out)?,
            b.give_as(DType::F32, &statistics, &max)?,
            b.give_as(DType::F32, &statistics, &sum)?,
        ])
    };
    let ([po, pm, ps], [co, cm, cs]) = (give(part(0, half))?, give(part(half, 2 * half))?);
    let (out, max, sum) =
        (b.empty(&rows)?, b.empty_as(DType::F32, &statistics)?, b.empty_as(DType::F32, &statistics)?);
    let (st, [a, c, d]) = (b.stream, [po.view()?, pm.view()?, ps.view()?]);
    let [e, f, g] = [co.view()?, cm.view()?, cs.view()?];
    let [x, y, z]: [View<'_>; 3] = [out.view()?, max.view()?, sum.view()?];
    if version == 1 {
        ops::inference::ring_update(st, a, c, d, e, f, g, None, c"SBH", x, y, z)?;
    } else {
        ops::inference::ring_update_v2(st, a, c, d, e, f, g, None, c"SBH", c"", x, y, z)?;
    }
    let [want, maxima, sums] = part(0, 2 * half);
    b.near("out", &out, &want)?;
    b.near("maxima", &max, &maxima)?;
    b.near("sums", &sum, &sums)
}

/// Whole numbers from -9 to 9.
fn small(b: &mut Bench<'_>, n: usize) -> Vec<f64> {
    b.noise(n).iter().map(|v| (v * 9.0).round()).collect()
}

/// Half to even.
fn byte(v: f64) -> f64 {
    v.round_ties_even().clamp(-128.0, 127.0)
}

fn quant_matmul(b: &mut Bench<'_>, version: usize) -> Result<()> {
    let (m, k, n) = (b.size.rows, b.size.columns, 7);
    let (x, w) = (small(b, m * k), small(b, k * n));
    let (a, c) = (b.give_as(DType::I8, &[m, k], &x)?, b.give_as(DType::I8, &[k, n], &w)?);
    let scales: Vec<f64> = (1..=n).map(|i| i as f64 / 256.0).collect();
    let scale = b.give_as(DType::F32, &[n], &scales)?;
    let shifts = small(b, n);
    let bias = b.give_as(DType::I32, &[n], &shifts)?;
    let rows: Vec<f64> = (0..m).map(|i| 1.0 / (1.0 + i as f64)).collect();
    let rows = b.give_as(DType::F32, &[m], &rows)?;
    let y = b.empty(&[m, n])?;
    let packed = b.empty_as(DType::I64, &[n])?;
    let product = |i: usize| (0..k).map(|p| x[i / n * k + p] * w[p * n + i % n]).sum::<f64>() + shifts[i % n];
    if version == 3 {
        // Scales in the packed form, which keeps ten bits of their fraction.
        ops::inference::quant_param(b.stream, scale.view()?, None, packed.view()?)?;
        let (s, t) = (packed.view()?, Some(bias.view()?));
        ops::inference::quant_matmul_v3(b.stream, a.view()?, c.view()?, s, None, t, false, false, y.view()?)?;
        return b.near("y", &y, &(0..m * n).map(|i| product(i) * scale.v[i % n]).collect::<Vec<_>>());
    }
    let (s, r, t) = (scale.view()?, Some(rows.view()?), Some(bias.view()?));
    ops::inference::quant_matmul(b.stream, a.view()?, c.view()?, s, None, r, t, false, false, y.view()?)?;
    b.near("y", &y, &(0..m * n).map(|i| product(i) * scale.v[i % n] * rows.v[i / n]).collect::<Vec<_>>())
}

fn weight_quant(b: &mut Bench<'_>) -> Result<()> {
    let (m, k, n) = (b.size.rows, b.size.columns, 5);
    let x = b.random(&[m, k])?;
    let values = small(b, k * n);
    let w = b.give_as(DType::I8, &[k, n], &values)?;
    let (scale, offset, bias) = (b.random(&[n])?, b.random(&[n])?, b.random(&[n])?);
    let y = b.empty(&[m, n])?;
    ops::inference::weight_quant_matmul(
        b.stream,
        x.view()?,
        w.view()?,
        scale.view()?,
        Some(offset.view()?),
        None,
        None,
        Some(bias.view()?),
        0,
        y.view()?,
    )?;
    let one = |i: usize| {
        let (r, c) = (i / n, i % n);
        (0..k).map(|p| x.v[r * k + p] * (values[p * n + c] + offset.v[c]) * scale.v[c]).sum::<f64>()
            + bias.v[c]
    };
    b.near("y", &y, &(0..m * n).map(one).collect::<Vec<_>>())
}

fn quantised(b: &mut Bench<'_>) -> Result<()> {
    let (m, n) = (b.size.rows, b.size.columns);
    let x = b.random(&[m, n])?;
    // Powers of two: products are exact, so that both round alike.
    let scales: Vec<f64> = (0..n).map(|i| f64::from(1 << (i % 9))).collect();
    let (scale, y) = (b.give(&[n], &scales)?, b.empty_as(DType::I8, &[m, n])?);
    ops::inference::quantise(b.stream, x.view()?, scale.view()?, None, false, c"round", 2, -1, y.view()?)?;
    b.near("int8", &y, &(0..m * n).map(|i| byte(x.v[i] * scale.v[i % n])).collect::<Vec<_>>())?;
    let values = small(b, m * n);
    let (q, back) = (b.give_as(DType::I8, &[m, n], &values)?, b.empty(&[m, n])?);
    let (scale, offset) = (b.random(&[n])?, b.random(&[n])?);
    // 1: float16, 27: bfloat16.
    let kind = if b.dtype == DType::F16 { 1 } else { 27 };
    ops::inference::dequantise(
        b.stream,
        q.view()?,
        scale.view()?,
        Some(offset.view()?),
        kind,
        false,
        back.view()?,
    )?;
    b.near(
        "back",
        &back,
        &(0..m * n).map(|i| (values[i] + offset.v[i % n]) * scale.v[i % n]).collect::<Vec<_>>(),
    )?;
    let (y, scales) = (b.empty_as(DType::I8, &[m, n])?, b.empty_as(DType::F32, &[m])?);
    ops::inference::dynamic_quant(b.stream, x.view()?, None, y.view()?, scales.view()?)?;
    let largest: Vec<f64> =
        x.v.chunks(n).map(|r| r.iter().fold(0.0f64, |m, v| m.max(v.abs())) / 127.0).collect();
    b.near("scales", &scales, &largest)?;
    // A value in the middle of two may go either way.
    let found = b.read(&y)?;
    let exact: Vec<f64> = (0..m * n).map(|i| x.v[i] / largest[i / n]).collect();
    let near = |(f, e): (&f64, &f64)| if (f - e).abs() <= 0.501 { *f } else { byte(*e) };
    b.near("rows", &y, &found.iter().zip(&exact).map(near).collect::<Vec<_>>())
}

/// Element types of a step of generation: f32 is not among those of the pages.
const HALVES: &[DType] = &[DType::F16, DType::Bf16];

pub(super) const CHECKS: &[Check] = &[
    Check::of(&["aclnnFusedInferAttentionScore"], HALVES, |b| fused(b, 1)),
    Check::of(&["aclnnFusedInferAttentionScoreV2"], HALVES, |b| fused(b, 2)),
    Check::of(&["aclnnFusedInferAttentionScoreV3"], HALVES, |b| fused(b, 3)),
    Check::of(&["aclnnFusedInferAttentionScoreV4"], HALVES, |b| fused(b, 4)),
    Check::of(&["aclnnPromptFlashAttentionV3"], HALVES, prompts),
    Check::of(&["aclnnIncreFlashAttention"], HALVES, steps),
    Check::of(&["aclnnIncreFlashAttentionV4"], HALVES, paged_steps),
    Check::of(&["aclnnScatterPaKvCache"], HALVES, scatter),
    Check::of(&["aclnnRingAttentionUpdate"], FLOATS, |b| ring(b, 1)),
    Check::of(&["aclnnRingAttentionUpdateV2"], FLOATS, |b| ring(b, 2)),
    Check::of(&["aclnnTransQuantParamV2", "aclnnQuantMatmulV3"], HALVES, |b| quant_matmul(b, 3)),
    Check::of(&["aclnnQuantMatmulV4"], HALVES, |b| quant_matmul(b, 4)),
    Check::of(&["aclnnWeightQuantBatchMatmulV2"], HALVES, weight_quant),
    Check::of(&["aclnnAscendQuantV3", "aclnnAscendAntiQuant", "aclnnDynamicQuant"], HALVES, quantised),
];
