//! Attention over KV caches, writing caches, merging partial attentions, integer products.

use super::attention::causal_mask;
use super::scores::{Attended, Pair, Parts, Sizes, attend};
use super::{Bench, Check, FLOATS, Given};
use crate::ops::{
    CacheOptions, FusedAttention, FusedInferOptions, InferHeads, InferScales, KeyValueOptions,
    PartialAttention, PromptOptions, QueryOptions, RopeOptions, ScatterOptions, StepOptions,
};
use crate::{Array, Result, acl_type, ops};
use ms_core::DType;

/// Sequences, heads of queries and of keys, size of a head, rows of a page.
const B: usize = 3;
const N: usize = 4;
const G: usize = 2;
const D: usize = 16;
const PAGE: usize = 16;
const SCALE: f64 = 0.25;

/// Whether a query sees a key, by their places and how many queries and keys of the sequence count.
type Sees = fn(usize, usize, usize, usize) -> bool;

/// Rows `[b,s,n,d]` against keys and values `[b,r,g,d]`, of which some count for each sequence.
#[derive(Clone, Copy)]
struct Counts {
    s: usize,
    r: usize,
    queries: [usize; B],
    keys: [usize; B],
}

impl Counts {
    fn attend(&self, parts: Parts<'_>, sees: Sees) -> Attended {
        let score = |p: Pair, dot: f64| {
            let (queries, keys) = (self.queries[p.b], self.keys[p.b]);
            (p.i < queries && p.j < keys && sees(p.i, p.j, queries, keys)).then_some(SCALE * dot)
        };
        attend(Sizes { b: B, s: self.s, r: self.r, n: N, g: G, d: D }, parts, score)
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

/// What operators over whole caches have in common.
struct Prompt {
    q: Given,
    k: Given,
    v: Given,
    out: Array,
    lse: Array,
    counts: Counts,
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
        counts: Counts { s, r, queries: [s, s.div_ceil(2), 1], keys: [r, r - 1, s] },
    })
}

fn lengths(counts: [usize; B]) -> Vec<i64> {
    counts.iter().map(|c| *c as i64).collect()
}

const HEADS: InferHeads = InferHeads {
    num_heads: N as i64,
    num_key_value_heads: G as i64,
    scale_value: SCALE,
    input_layout: c"BSND",
};

impl Prompt {
    fn parts<'a>(&'a self, more: [&'a [f64]; 3]) -> Parts<'a> {
        let [sink, q_own, k_own] = more;
        [&self.q.v, &self.k.v, &self.v.v, sink, q_own, k_own]
    }
}

fn fused(b: &mut Bench<'_>, version: usize) -> Result<()> {
    let (p, mask) = (prompt(b)?, causal_mask(b)?);
    let (ql, kl) = (lengths(p.counts.queries), lengths(p.counts.keys));
    let (s, r, w) = (p.counts.s, p.counts.r, 8);
    let (qr, kr) = (b.random(&[B, s, N, w])?, b.random(&[B, r, G, w])?);
    let values = b.noise(N);
    let sink = b.give(&[N], &values)?;
    let (sparse_mode, sees): (i64, Sees) = match version {
        1 | 3 => (3, behind),
        // A mode of a mask does not count for single queries.
        2 => (2, if s == 1 { all } else { causal }),
        _ => (0, all),
    };
    let of = FusedAttention {
        query: p.q.view()?,
        key: vec![p.k.view()?],
        value: vec![p.v.view()?],
        heads: HEADS,
        options: PromptOptions {
            atten_mask: if sparse_mode == 0 { None } else { Some(mask.view()?) },
            actual_seq_lengths: Some(&ql),
            actual_seq_lengths_kv: Some(&kl),
            sparse_mode,
            ..Default::default()
        },
        fused: FusedInferOptions { softmax_lse_flag: true, ..Default::default() },
        attention_out: p.out.view()?,
        softmax_lse: Some(p.lse.view()?),
    };
    let apart = KeyValueOptions::default();
    let rope = RopeOptions { query_rope: Some(qr.view()?), key_rope: Some(kr.view()?), ..Default::default() };
    let queries = QueryOptions { learnable_sink: Some(sink.view()?), ..Default::default() };
    match version {
        1 => ops::FusedInferAttentionScore { of }.run(b.stream)?,
        2 => ops::FusedInferAttentionScoreV2 { of, apart }.run(b.stream)?,
        3 => ops::FusedInferAttentionScoreV3 { of, apart, rope }.run(b.stream)?,
        _ => ops::FusedInferAttentionScoreV4 { of, apart, rope, queries }.run(b.stream)?,
    }
    let empty: &[f64] = &[];
    let more = match version {
        1 | 2 => [empty; 3],
        3 => [empty, &qr.v, &kr.v],
        _ => [&sink.v[..], &qr.v, &kr.v],
    };
    let want = p.counts.attend(p.parts(more), sees);
    b.near("out", &p.out, &want.out)?;
    b.near_within("sums", &p.lse, &want.sums, super::tolerance(b.dtype))
}

fn prompts(b: &mut Bench<'_>) -> Result<()> {
    let (p, mask) = (prompt(b)?, causal_mask(b)?);
    let (ql, kl) = (lengths(p.counts.queries), lengths(p.counts.keys));
    ops::PromptFlashAttentionV3 {
        query: p.q.view()?,
        key: p.k.view()?,
        value: p.v.view()?,
        heads: HEADS,
        options: PromptOptions {
            atten_mask: Some(mask.view()?),
            actual_seq_lengths: Some(&ql),
            actual_seq_lengths_kv: Some(&kl),
            sparse_mode: 2,
            ..Default::default()
        },
        scales: InferScales::default(),
        attention_out: p.out.view()?,
    }
    .run(b.stream)?;
    b.near("out", &p.out, &p.counts.attend(p.parts([&[]; 3]), causal).out)
}

/// Pages of a cache, in an order of their own, and which belong to which sequence.
struct Pages {
    k: Given,
    v: Given,
    table: Given,
    counts: Counts,
}

/// One query a sequence against up to `r` keys.
fn step_counts(r: usize) -> Counts {
    Counts { s: 1, r, queries: [1; B], keys: [r, 1, r - 2] }
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
        counts: step_counts(r),
    })
}

impl Pages {
    /// The rows of the sequences `[b,r,g,d]`.
    fn rows(&self, cache: &[f64]) -> Vec<f64> {
        let (r, width) = (self.counts.r, G * D);
        let at = |i: usize| cache[slot(i / (r * width), i / width % r, r.div_ceil(PAGE)) * width + i % width];
        (0..B * r * width).map(at).collect()
    }
}

/// A step of every sequence, over keys in one tensor.
fn steps(b: &mut Bench<'_>) -> Result<()> {
    let r = b.size.columns + 3;
    let (q, k, v) = (b.random(&[B, 1, N, D])?, b.random(&[B, r, G, D])?, b.random(&[B, r, G, D])?);
    let (out, counts) = (b.empty(&[B, 1, N, D])?, step_counts(r));
    let kl = lengths(counts.keys);
    ops::IncreFlashAttention {
        query: q.view()?,
        key: vec![k.view()?],
        value: vec![v.view()?],
        heads: HEADS,
        options: StepOptions { actual_seq_lengths: Some(&kl), ..Default::default() },
        attention_out: out.view()?,
    }
    .run(b.stream)?;
    b.near("out", &out, &counts.attend([&q.v, &k.v, &v.v, &[], &[], &[]], all).out)
}

/// A step of every sequence, over pages.
fn paged_steps(b: &mut Bench<'_>) -> Result<()> {
    let (p, q, out) = (pages(b)?, b.random(&[B, 1, N, D])?, b.empty(&[B, 1, N, D])?);
    let kl = lengths(p.counts.keys);
    ops::IncreFlashAttentionV4 {
        query: q.view()?,
        key: vec![p.k.view()?],
        value: vec![p.v.view()?],
        heads: HEADS,
        options: StepOptions { actual_seq_lengths: Some(&kl), ..Default::default() },
        scales: InferScales::default(),
        cache: CacheOptions {
            block_table: Some(p.table.view()?),
            block_size: PAGE as i64,
            ..Default::default()
        },
        inner_precise: 0,
        attention_out: out.view()?,
    }
    .run(b.stream)?;
    let (k, v) = (p.rows(&p.k.v), p.rows(&p.v.v));
    b.near("out", &out, &p.counts.attend([&q.v, &k, &v, &[], &[], &[]], all).out)
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
    ops::ScatterPaKvCache {
        key: k.view()?,
        key_cache: kc.view()?,
        slot_mapping: map.view()?,
        value: v.view()?,
        value_cache: vc.view()?,
        options: ScatterOptions::default(),
    }
    .run(b.stream)?;
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
    let prev = PartialAttention { attn_out: po.view()?, softmax_max: pm.view()?, softmax_sum: ps.view()? };
    let cur = PartialAttention { attn_out: co.view()?, softmax_max: cm.view()?, softmax_sum: cs.view()? };
    let all = PartialAttention { attn_out: out.view()?, softmax_max: max.view()?, softmax_sum: sum.view()? };
    let (actual_seq_qlen, input_layout) = (None, c"SBH");
    if version == 1 {
        ops::RingAttentionUpdate { prev, cur, actual_seq_qlen, input_layout, out: all }.run(b.stream)?;
    } else {
        let input_softmax_layout = c"";
        ops::RingAttentionUpdateV2 {
            prev,
            cur,
            actual_seq_qlen,
            input_layout,
            input_softmax_layout,
            out: all,
        }
        .run(b.stream)?;
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
        ops::quant_param(b.stream, scale.view()?, None, packed.view()?)?;
        ops::QuantMatmulV3 {
            x1: a.view()?,
            x2: c.view()?,
            scale: packed.view()?,
            offset: None,
            bias: Some(bias.view()?),
            transpose_x1: false,
            transpose_x2: false,
            out: y.view()?,
        }
        .run(b.stream)?;
        return b.near("y", &y, &(0..m * n).map(|i| product(i) * scale.v[i % n]).collect::<Vec<_>>());
    }
    ops::QuantMatmulV4 {
        x1: a.view()?,
        x2: c.view()?,
        scale: scale.view()?,
        offset: None,
        pertoken_scale: Some(rows.view()?),
        bias: Some(bias.view()?),
        transpose_x1: false,
        transpose_x2: false,
        out: y.view()?,
    }
    .run(b.stream)?;
    b.near("y", &y, &(0..m * n).map(|i| product(i) * scale.v[i % n] * rows.v[i / n]).collect::<Vec<_>>())
}

fn weight_quant(b: &mut Bench<'_>) -> Result<()> {
    let (m, k, n) = (b.size.rows, b.size.columns, 5);
    let x = b.random(&[m, k])?;
    let values = small(b, k * n);
    let w = b.give_as(DType::I8, &[k, n], &values)?;
    let (scale, offset, bias) = (b.random(&[n])?, b.random(&[n])?, b.random(&[n])?);
    let y = b.empty(&[m, n])?;
    ops::WeightQuantBatchMatmulV2 {
        x: x.view()?,
        weight: w.view()?,
        antiquant_scale: scale.view()?,
        antiquant_offset: Some(offset.view()?),
        quant_scale: None,
        quant_offset: None,
        bias: Some(bias.view()?),
        antiquant_group_size: 0,
        y: y.view()?,
    }
    .run(b.stream)?;
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
    ops::AscendQuantV3 {
        x: x.view()?,
        scale: scale.view()?,
        offset: None,
        sqrt_mode: false,
        round_mode: c"round",
        dst_type: acl_type(DType::I8),
        axis: -1,
        y: y.view()?,
    }
    .run(b.stream)?;
    b.near("int8", &y, &(0..m * n).map(|i| byte(x.v[i] * scale.v[i % n])).collect::<Vec<_>>())?;
    let values = small(b, m * n);
    let (q, back) = (b.give_as(DType::I8, &[m, n], &values)?, b.empty(&[m, n])?);
    let (scale, offset) = (b.random(&[n])?, b.random(&[n])?);
    let kind = if b.dtype == DType::F16 { DType::F16 } else { DType::Bf16 };
    ops::AscendAntiQuant {
        x: q.view()?,
        scale: scale.view()?,
        offset: Some(offset.view()?),
        dst_type: acl_type(kind).into(),
        sqrt_mode: false,
        y: back.view()?,
    }
    .run(b.stream)?;
    b.near(
        "back",
        &back,
        &(0..m * n).map(|i| (values[i] + offset.v[i % n]) * scale.v[i % n]).collect::<Vec<_>>(),
    )?;
    let (y, scales) = (b.empty_as(DType::I8, &[m, n])?, b.empty_as(DType::F32, &[m])?);
    ops::dynamic_quant(b.stream, x.view()?, None, y.view()?, scales.view()?)?;
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
