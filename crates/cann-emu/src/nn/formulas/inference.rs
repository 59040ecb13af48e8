//! Attention for inference, its caches, ring updates, rotations, quantisation, gating.

use super::maths::{product, transpose, truth, zip};
use super::run::{Run, rounded};
use super::{Cases, F32, FLOATS};
use crate::nn::tensor::Dtype;

const HALF: &[Dtype] = &[Dtype::F16, Dtype::Bf16];

/// Two sequences, two heads of queries, one of keys, width 4.
const B: usize = 2;
const N: usize = 2;
const D: usize = 4;

/// Attention of `[B,S,N,D]` to keys that `key(b, j)` gives; who sees what.
fn attend<'a>(
    q: &[f64],
    s: usize,
    key: impl Fn(usize, usize) -> &'a [f64],
    value: impl Fn(usize, usize) -> &'a [f64],
    keys: [usize; B],
    sees: impl Fn(usize, usize, usize) -> bool,
) -> Vec<f64> {
    let mut out = vec![0.0; B * s * N * D];
    for (at, row) in q.chunks(D).enumerate() {
        let (b, i) = (at / (s * N), at / N % s);
        let score = |j: usize| (zip(row, key(b, j), |a, c| a * c).iter().sum::<f64>() * 0.5).exp();
        let seen: Vec<usize> = (0..keys[b]).filter(|j| sees(b, i, *j)).collect();
        let total: f64 = seen.iter().map(|j| score(*j)).sum();
        for e in 0..D {
            let sum: f64 = seen.iter().map(|j| score(*j) * value(b, *j)[e]).sum();
            out[at * D + e] = if seen.is_empty() { 0.0 } else { sum / total };
        }
    }
    out
}

/// What all versions have in common.
fn heads(r: &mut Run) {
    r.n("numHeads", N as f64)
        .n("scaleValue", 0.5)
        .n("numKeyValueHeads", 1.0)
        .text("inputLayout", "BSND")
        .loose(3.0);
}

/// Keys or values `[B,7,1,D]`, as a tensor or as a list of one.
fn cache(r: &mut Run, name: &str) -> Vec<f64> {
    let d: &[i64] = &[2, 7, 1, 4];
    if r.is_tensor(name) {
        return r.x(name, d);
    }
    let v = r.values(56);
    r.list(name, &[(d, v)]).remove(0)
}

pub(super) fn cases(c: &mut Cases) {
    prompts(c);
    steps(c);
    pages(c);
    rings(c);
    rotations(c);
    quantised(c);
    gating(c);
}

fn prompts(c: &mut Cases) {
    const Q: &[i64] = &[2, 5, 2, 4];
    let row = |b: usize, j: usize| (b * 7 + j) * D..(b * 7 + j + 1) * D;
    for name in ["PromptFlashAttention", "PromptFlashAttentionV2"] {
        // By a mask, one row of queries.
        c.add(name, HALF, move |r| {
            let (q, k, v) = (r.x("query", Q), cache(r, "key"), cache(r, "value"));
            let mut dropped = vec![0.0; 35];
            dropped.iter_mut().step_by(3).for_each(|m| *m = 1.0);
            r.t("attenMask", &[5, 7], Dtype::Bool, &dropped);
            heads(r);
            r.n("preTokens", 1e6).n("nextTokens", 1e6);
            if r.has("sparseMode") {
                r.n("sparseMode", 1.0);
            }
            let (key, value) = (|b, j| &k[row(b, j)], |b, j| &v[row(b, j)]);
            r.out("attentionOut", Q, attend(&q, 5, key, value, [7; B], |_, i, j| dropped[i * 7 + j] == 0.0));
        });
    }
    // A band, and lengths of queries and keys of their own.
    c.add("PromptFlashAttentionV2", HALF, move |r| {
        let (q, k, v) = (r.x("query", Q), cache(r, "key"), cache(r, "value"));
        heads(r);
        r.n("preTokens", 2.0).n("nextTokens", 1.0).n("sparseMode", 0.0);
        r.ints("actualSeqLengths", &[5, 3]).ints("actualSeqLengthsKv", &[7, 4]);
        let (key, value) = (|b, j| &k[row(b, j)], |b, j| &v[row(b, j)]);
        let sees = |b: usize, i: usize, j: usize| (b == 0 || i < 3) && j <= i + 1 && i <= j + 2;
        r.out("attentionOut", Q, attend(&q, 5, key, value, [7, 4], sees));
    });
}

/// One query a sequence.
fn steps(c: &mut Cases) {
    const Q: &[i64] = &[2, 1, 2, 4];
    for name in ["IncreFlashAttentionV2", "IncreFlashAttentionV3"] {
        c.add(name, HALF, |r| {
            let (q, k, v) = (r.x("query", Q), cache(r, "key"), cache(r, "value"));
            heads(r);
            r.ints("actualSeqLengths", &[6, 3]);
            let row = |b: usize, j: usize| (b * 7 + j) * D..(b * 7 + j + 1) * D;
            let want = attend(&q, 1, |b, j| &k[row(b, j)], |b, j| &v[row(b, j)], [6, 3], |_, _, _| true);
            r.out("attentionOut", Q, want);
        });
    }
}

/// Blocks of three rows, in any order; sequence 0 in blocks 4 1 0, sequence 1 in block 2 and one that is not used.
const TABLE: [f64; 6] = [4.0, 1.0, 0.0, 2.0, 3.0, 3.0];

fn paged(v: &[f64], b: usize, j: usize) -> &[f64] {
    let at = (TABLE[b * 3 + j / 3] as usize * 3 + j % 3) * D;
    &v[at..at + D]
}

fn pages(c: &mut Cases) {
    // Prefill and a step.
    for (name, s) in
        [("FusedInferAttentionScoreV3", 4), ("FusedInferAttentionScoreV2", 3), ("IncreFlashAttentionV3", 1)]
    {
        c.add(name, HALF, move |r| {
            let dims: &[i64] = &[2, s as i64, 2, 4];
            let q = r.x("query", dims);
            let (k, v) = (r.values(60), r.values(60));
            let k = r.list("key", &[(&[5, 3, 4], k)]).remove(0);
            let v = r.list("value", &[(&[5, 3, 4], v)]).remove(0);
            let table = if r.has("blocktable") { "blocktable" } else { "blockTableOptional" };
            let table = if r.has(table) { table } else { "blockTable" };
            r.t(table, &[2, 3], Dtype::I32, &TABLE);
            heads(r);
            r.n("blockSize", 3.0);
            if s == 1 {
                r.ints("actualSeqLengths", &[8, 2]);
            } else {
                let (own, keys) = if r.has("actualSeqLengthsOptional") {
                    ("actualSeqLengthsOptional", "actualSeqLengthsKvOptional")
                } else {
                    ("actualSeqLengths", "actualSeqLengthsKv")
                };
                r.ints(own, &[s as i64, 2]).ints(keys, &[8, 2]);
                r.n("preTokens", 1e6).n("nextTokens", 1e6).n("sparseMode", 0.0);
            }
            let sees = |b: usize, i: usize, _: usize| b == 0 || i < 2;
            let want = attend(&q, s, |b, j| paged(&k, b, j), |b, j| paged(&v, b, j), [8, 2], sees);
            r.out("attentionOut", dims, want);
        });
    }
    c.add("ScatterPaCache", HALF, |r| {
        let x = r.x("key", &[3, 1, 4]);
        let mut cache = r.x("keyCacheRef", &[2, 3, 1, 4]);
        // Slots 4 and 1; a negative one is left out.
        r.t("slotMapping", &[3], Dtype::I32, &[4.0, -1.0, 1.0]);
        cache[16..20].copy_from_slice(&x[..4]);
        cache[4..8].copy_from_slice(&x[8..]);
        r.text("cacheMode", "Norm").becomes("keyCacheRef", cache);
    });
}

/// Attention over keys in two halves, put together, is attention over all keys.
fn rings(c: &mut Cases) {
    const T: usize = 3;
    for name in ["RingAttentionUpdate", "RingAttentionUpdateV2"] {
        c.add(name, F32, |r| {
            let scores = r.values(T * N * 6);
            let values = r.values(6 * D);
            // Output, largest score, sum of exponentials over keys `from..to`, each statistic eight times.
            let part =
                |from: usize, to: usize| -> [Vec<f64>; 3] {
                    let (mut out, mut max, mut sum) = (Vec::new(), Vec::new(), Vec::new());
                    for row in scores.chunks(6) {
                        let m = row[from..to].iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        let e: Vec<f64> = row[from..to].iter().map(|s| (s - m).exp()).collect();
                        let total: f64 = e.iter().sum();
                        out.extend((0..D).map(|d| {
                            (from..to).map(|j| e[j - from] * values[j * D + d]).sum::<f64>() / total
                        }));
                        max.extend([m; 8]);
                        sum.extend([total; 8]);
                    }
                    [out, max, sum]
                };
            let (out, stat): (&[i64], &[i64]) = (&[3, 2, 4], &[3, 2, 8]);
            for (which, [o, m, s]) in [("prev", part(0, 2)), ("cur", part(2, 6))] {
                r.t(&format!("{which}AttnOut"), out, r.dtype, &o);
                r.t(&format!("{which}SoftmaxMax"), stat, Dtype::F32, &m);
                r.t(&format!("{which}SoftmaxSum"), stat, Dtype::F32, &s);
            }
            let [o, m, s] = part(0, 6);
            r.t("actualSeqQlenOptional", &[1], Dtype::I64, &[3.0]);
            r.text("inputLayoutOptional", "TND").loose(3.0);
            if r.has("inputSoftmaxLayoutOptional") {
                r.text("inputSoftmaxLayoutOptional", "TND");
            }
            r.out("attnOutOut", out, o).out_as("softmaxMaxOut", stat, Dtype::F32, m);
            r.out_as("softmaxSumOut", stat, Dtype::F32, s);
        });
    }
}

/// Pairs of a row as points of a plane, turned: neighbours, or one from each half.
fn rotated(x: &[f64], cos: &[f64], sin: &[f64], interleaved: bool) -> Vec<f64> {
    let n = cos.len();
    let mut y = vec![0.0; n];
    for p in 0..n / 2 {
        let (a, b) = if interleaved { (2 * p, 2 * p + 1) } else { (p, n / 2 + p) };
        y[a] = x[a] * cos[a] - x[b] * sin[a];
        y[b] = x[b] * cos[b] + x[a] * sin[b];
    }
    y
}

fn rotations(c: &mut Cases) {
    const X: &[i64] = &[2, 3, 2, 4];
    let all = |x: &[f64], cos: &[f64], sin: &[f64], interleaved: bool| -> Vec<f64> {
        let rows = x.chunks(4).enumerate().map(|(i, row)| {
            let s = i / 2 % 3 * 4;
            rotated(row, &cos[s..s + 4], &sin[s..s + 4], interleaved)
        });
        rows.flatten().collect()
    };
    for interleaved in [false, true] {
        c.add("RotaryPositionEmbeddingV2", FLOATS, move |r| {
            let (x, cos, sin) = (r.x("x", X), r.x("cos", &[1, 3, 1, 4]), r.x("sin", &[1, 3, 1, 4]));
            r.n("mode", truth(interleaved)).loose(2.0).out("out", X, all(&x, &cos, &sin, interleaved));
        });
        c.add("ApplyRotaryPosEmbV2", FLOATS, move |r| {
            let (q, k) = (r.x("queryRef", X), r.x("keyRef", &[2, 3, 1, 4]));
            let (cos, sin) = (r.x("cos", &[1, 3, 1, 4]), r.x("sin", &[1, 3, 1, 4]));
            r.n("layout", 1.0).text("rotaryMode", if interleaved { "interleave" } else { "half" }).loose(2.0);
            let keys: Vec<f64> = k
                .chunks(4)
                .enumerate()
                .flat_map(|(i, row)| {
                    let s = i % 3 * 4;
                    rotated(row, &cos[s..s + 4], &sin[s..s + 4], interleaved)
                })
                .collect();
            r.becomes("queryRef", all(&q, &cos, &sin, interleaved)).becomes("keyRef", keys);
        });
    }
}

fn whole(v: f64) -> f64 {
    let down = v.floor();
    let up = v - down;
    let even = if down.rem_euclid(2.0) == 0.0 { down } else { down + 1.0 };
    if up == 0.5 {
        even
    } else if up < 0.5 {
        down
    } else {
        down + 1.0
    }
}

fn quantised(c: &mut Cases) {
    c.add("AscendQuant", FLOATS, |r| {
        let x = r.within("x", &[3, 5], -9.0, 9.0);
        let (s, o) = (r.within("scale", &[5], 5.0, 20.0), r.whole("offset", &[5], r.dtype, -9, 9));
        let want = (0..15).map(|i| whole(x[i] * s[i % 5] + o[i % 5]).clamp(-128.0, 127.0)).collect();
        r.text("roundMode", "round").n("dstType", 2.0).out_as("y", &[3, 5], Dtype::I8, want);
    });
    // The first two forms: one scale, and packed ones, as many as the columns rounded up to 16.
    for name in ["QuantMatmul", "QuantMatmulV2"] {
        c.add(name, HALF, move |r| {
            let second = name == "QuantMatmulV2";
            let x = r.whole("x1", &[3, 4], Dtype::I8, -5, 5);
            let y = r.whole("x2", if second { &[5, 4] } else { &[4, 5] }, Dtype::I8, -5, 5);
            let y = if second { transpose(&y, 5, 4) } else { y };
            let b = r.whole("bias", &[5], Dtype::I32, -9, 9);
            let scale = |c: usize| if second { 0.5 + c as f64 / 4.0 } else { 0.5 };
            if second {
                let bits = |c: usize| f64::from((scale(c) as f32).to_bits()) + 2f64.powi(46);
                r.t("deqScale", &[16], Dtype::U64, &(0..16).map(bits).collect::<Vec<_>>());
                r.n("adjX2", 1.0);
            } else {
                r.n("deqScale", 0.5);
            }
            let p = product(&x, &y, 3, 4, 5);
            let want = (0..15).map(|i| (p[i] + b[i % 5]) * scale(i % 5)).collect();
            r.out("out", &[3, 5], want);
        });
    }
    c.add("DynamicQuantV2", HALF, |r| {
        let x = r.x("x", &[3, 5]);
        let top = |i: usize| x[i * 5..][..5].iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        let scale: Vec<f64> = rounded(&(0..3).map(|i| top(i) / 127.0).collect::<Vec<_>>(), Dtype::F32);
        let want = (0..15).map(|i| whole(x[i] / scale[i / 5]).clamp(-128.0, 127.0)).collect();
        r.n("dstType", 2.0).out_as("yOut", &[3, 5], Dtype::I8, want).out_as(
            "scaleOut",
            &[3],
            Dtype::F32,
            scale,
        );
    });
    c.add("TransQuantParamV3", F32, |r| {
        let s = r.t("scale", &[2], Dtype::F32, &[0.75, 3.141_592_5]);
        let o = r.t("offset", &[2], Dtype::F32, &[5.0, -3.0]);
        // A float of 19 bits below, nine bits of the offset above, a mark between.
        let one = |i: usize| {
            let bits = u64::from((s[i] as f32).to_bits()) >> 13 << 13;
            (bits + (1 << 46) + ((o[i] as i64 as u64 & 0x1ff) << 37)) as f64
        };
        r.out_as("out", &[2], Dtype::U64, vec![one(0), one(1)]);
    });
    // Rows and columns with scales of their own.
    for turned in [false, true] {
        c.add("QuantMatmulV5", &[Dtype::F16, Dtype::Bf16], move |r| {
            let a = r.whole("x1", &[3, 5], Dtype::I8, -9, 9);
            let b = r.whole("x2", if turned { &[2, 5] } else { &[5, 2] }, Dtype::I8, -9, 9);
            let b = if turned { super::maths::transpose(&b, 2, 5) } else { b };
            let rows = r.t("x1Scale", &[3], Dtype::F32, &[0.5, 0.25, 1.0]);
            let columns = r.t("x2Scale", &[2], Dtype::F32, &[0.125, 2.0]);
            r.n("transposeX1", 0.0).n("transposeX2", truth(turned));
            let p = product(&a, &b, 3, 5, 2);
            r.out("out", &[3, 2], (0..6).map(|i| p[i] * rows[i / 2] * columns[i % 2]).collect());
        });
    }
    c.add("WeightQuantBatchMatmulV3", HALF, |r| {
        let x = r.x("x", &[3, 4]);
        let w = r.whole("weight", &[4, 2], Dtype::I8, -9, 9);
        // Two rows a group.
        let (s, o) = (r.x("antiquantScale", &[2, 2]), r.x("antiquantOffsetOptional", &[2, 2]));
        let b = r.x("biasOptional", &[2]);
        let wide: Vec<f64> = (0..8).map(|i| (w[i] + o[i / 4 * 2 + i % 2]) * s[i / 4 * 2 + i % 2]).collect();
        let p = product(&x, &wide, 3, 4, 2);
        r.n("antiquantGroupSize", 2.0).loose(2.0).out(
            "y",
            &[3, 2],
            (0..6).map(|i| p[i] + b[i % 2]).collect(),
        );
    });
}

fn gating(c: &mut Cases) {
    for renorm in [false, true] {
        c.add("MoeGatingTopKSoftmaxV2", F32, move |r| {
            let x = r.x("x", &[3, 5]);
            let (mut y, mut at, mut soft) = (Vec::new(), Vec::new(), Vec::new());
            for row in x.chunks(5) {
                let total: f64 = row.iter().map(|v| v.exp()).sum();
                let p: Vec<f64> = row.iter().map(|v| v.exp() / total).collect();
                let mut order: Vec<usize> = (0..5).collect();
                order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
                let kept: f64 = order[..2].iter().map(|i| p[*i]).sum();
                y.extend(order[..2].iter().map(|i| p[*i] / if renorm { kept } else { 1.0 }));
                at.extend(order[..2].iter().map(|i| *i as f64));
                soft.extend(p);
            }
            r.n("k", 2.0).n("renorm", truth(renorm)).n("outputSoftmaxResultFlag", truth(!renorm)).loose(3.0);
            r.out("yOut", &[3, 2], y).out_as("expertIdxOut", &[3, 2], Dtype::I32, at);
            if !renorm {
                r.out_as("softmaxResultOutOptional", &[3, 5], Dtype::F32, soft);
            }
        });
    }
}
