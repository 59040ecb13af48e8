//! Goldens from PyTorch, the f64 formula, and equality of bits.

use half::bf16;
use ms_testing::{Golden, assert_close, golden, read_golden};
use proptest::prelude::*;
use std::collections::BTreeMap;

use super::{Alibi, Dropout, Heads, Options, QkvRows, Segment, backward, forward, reference};
use crate::qkv::Packed;
use crate::trial::{cpus, cpus_in, cpus_of_many_counts, random, same_everywhere, wide, wide64};
use crate::{Arithmetic, Cpu, Element, Error};

mod instruction_sets;

/// Forward and backward over packed rows.
pub(super) struct Run<E> {
    pub(super) out: Vec<E>,
    pub(super) lse: Vec<f32>,
    pub(super) dqkv: Vec<E>,
}

pub(super) fn run<E: Element>(
    cpu: &Cpu,
    qkv: &[E],
    dout: &[E],
    shape: &Packed,
    segments: &[Segment],
    options: &Options,
    dropout: Option<&Dropout<'_>>,
) -> Run<E> {
    let (heads, dim) = (shape.heads(), shape.head_dim);
    let mut out = vec![E::from_f32(9.0); shape.tokens * heads * dim];
    let mut lse = vec![7.0; heads * shape.tokens];
    forward(
        cpu,
        &mut out,
        Some(&mut lse),
        Heads::queries(qkv, shape),
        Heads::keys(qkv, shape),
        Heads::values(qkv, shape),
        shape.groups,
        shape.heads_per_group,
        dim,
        segments,
        options,
        dropout,
    )
    .unwrap();
    let mut dqkv = vec![E::from_f32(5.0); qkv.len()];
    let rows = QkvRows::Packed((&mut dqkv[..], qkv));
    backward(cpu, rows, dout, &out, &lse, shape, segments, options, dropout).unwrap();
    Run { out, lse, dqkv }
}

/// The same by the f64 formula: out, lse, dqkv.
fn formula<E: Element>(
    qkv: &[E],
    dout: &[E],
    shape: &Packed,
    segments: &[Segment],
    options: &Options,
    dropout: Option<&Dropout<'_>>,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let (heads, dim, tokens) = (shape.heads(), shape.head_dim, shape.tokens);
    let mut out = vec![9.0; tokens * heads * dim];
    let mut lse = vec![7.0; heads * tokens];
    let mut dqkv = vec![0.0; qkv.len()];
    let (hq, hk, hv) = (Heads::queries(qkv, shape), Heads::keys(qkv, shape), Heads::values(qkv, shape));
    for s in segments {
        for n in 0..heads {
            let (group, head) = (n / shape.heads_per_group, n % shape.heads_per_group);
            let wide = |h: &Heads<'_, E>, start: usize, len: usize, head: usize| -> Vec<f64> {
                (start..start + len)
                    .flat_map(|t| h.data[h.at(t, group, head)..][..dim].iter().map(|v| f64::from(v.to_f32())))
                    .collect()
            };
            let (q, k, v) = (
                wide(&hq, s.q_start, s.q_len, head),
                wide(&hk, s.k_start, s.k_len, 0),
                wide(&hv, s.k_start, s.k_len, 0),
            );
            let g: Vec<f64> = (s.q_start..s.q_start + s.q_len)
                .flat_map(|t| dout[(t * heads + n) * dim..][..dim].iter().map(|v| f64::from(v.to_f32())))
                .collect();
            let dropout = dropout.map(|d| (d, s.q_start));
            let one = reference::Head { q: &q, k: &k, v: &v, dim, number: n, dropout };
            let (y, l) = one.forward(options);
            let (dq, dk, dv) = one.backward(&g, options);
            for i in 0..s.q_len {
                let t = s.q_start + i;
                out[(t * heads + n) * dim..][..dim].copy_from_slice(&y[i * dim..][..dim]);
                lse[n * tokens + t] = l[i];
                dqkv[hq.at(t, group, head)..][..dim].copy_from_slice(&dq[i * dim..][..dim]);
            }
            for j in 0..s.k_len {
                for d in 0..dim {
                    dqkv[hk.at(s.k_start + j, group, 0) + d] += dk[j * dim + d];
                    dqkv[hv.at(s.k_start + j, group, 0) + d] += dv[j * dim + d];
                }
            }
        }
    }
    (out, lse, dqkv)
}

/// Compares every instruction set with the formula, and those of one order of sums with each other by bits.
fn check<E: Element>(shape: Packed, segments: &[Segment], options: &Options, threads: &[usize]) {
    check_thinned::<E>(shape, segments, options, threads, None);
}

/// The same with dropout.
fn check_thinned<E: Element>(
    shape: Packed,
    segments: &[Segment],
    options: &Options,
    threads: &[usize],
    dropout: Option<&Dropout<'_>>,
) {
    check_on::<E>(shape, segments, options, |order| cpus_in(order, threads), dropout);
}

/// The same on the processors that `cpus` gives of an order of sums.
fn check_on<E: Element>(
    shape: Packed,
    segments: &[Segment],
    options: &Options,
    cpus: impl Fn(Arithmetic) -> Vec<Cpu>,
    dropout: Option<&Dropout<'_>>,
) {
    let qkv = random::<E>(shape.tokens * shape.width(), 3 + shape.tokens as u64);
    let dout = random::<E>(shape.tokens * shape.heads() * shape.head_dim, 11);
    let (out, lse, dqkv) = formula(&qkv, &dout, &shape, segments, options, dropout);
    for arithmetic in orders::<E>() {
        let (rtol, atol) = if E::NAME == "f32" { (2e-5, 2e-5) } else { (1e-2, 2e-2) };
        let mut first: Option<Run<E>> = None;
        for cpu in cpus(*arithmetic) {
            let got = run(&cpu, &qkv, &dout, &shape, segments, options, dropout);
            let what = format!("{} {cpu:?} {shape:?} {segments:?} {options:?}", E::NAME);
            match &first {
                Some(want) => {
                    assert!(want.out == got.out, "{what}: out differs between instances");
                    assert!(want.lse == got.lse, "{what}: lse differs between instances");
                    assert!(want.dqkv == got.dqkv, "{what}: dqkv differs between instances");
                }
                None => {
                    assert_close(&format!("{what}: out"), &wide(&got.out), &out, rtol, atol);
                    for (i, (&got, &want)) in got.lse.iter().zip(&lse).enumerate() {
                        let close = (f64::from(got) - want).abs() <= 1e-4 || f64::from(got) == want;
                        assert!(close, "{what}: lse {i}: {got} for {want}");
                    }
                    assert_close(&format!("{what}: dqkv"), &wide(&got.dqkv), &dqkv, rtol, 4.0 * atol);
                    first = Some(got);
                }
            }
        }
    }
}

/// Orders of sums that products of this type have.
fn orders<E: Element>() -> &'static [Arithmetic] {
    if E::NAME == "f32" { &[Arithmetic::Pair] } else { &Arithmetic::ALL }
}

pub(super) fn shape(tokens: usize, groups: usize, heads_per_group: usize, head_dim: usize) -> Packed {
    Packed { tokens, groups, heads_per_group, head_dim }
}

pub(super) fn causal(dim: usize) -> Options {
    Options { scale: 1.0 / (dim as f32).sqrt(), window: None, softcap: None, causal: true, alibi: None }
}

#[test]
fn one_document_matches_the_formula_at_the_edges_of_blocks() {
    for tokens in [5usize, 64, 127, 129, 193, 300] {
        check::<f32>(shape(tokens, 1, 2, 16), &[Segment::of(0, tokens)], &causal(16), &[1]);
    }
    check::<bf16>(shape(200, 2, 1, 64), &[Segment::of(0, 200)], &causal(64), &[1]);
    for tokens in [5usize, 191, 193, 225] {
        check::<bf16>(shape(tokens, 1, 1, 66), &[Segment::of(0, tokens)], &causal(66), &[1]);
    }
}

#[test]
fn every_head_size_matches_the_formula() {
    for dim in [2usize, 8, 10, 66, 80, 128, 256] {
        check::<f32>(shape(40, 1, 1, dim), &[Segment::of(0, 40)], &causal(dim), &[1]);
    }
}

#[test]
fn the_number_of_threads_does_not_reach_the_bits() {
    let segments = [Segment::of(0, 30), Segment::of(30, 140), Segment::of(170, 30)];
    check_on::<bf16>(shape(200, 2, 2, 16), &segments, &causal(16), cpus_of_many_counts, None);
    // Few groups: each of their heads is a unit.
    check_on::<bf16>(shape(140, 1, 3, 16), &[Segment::of(0, 140)], &causal(16), cpus_of_many_counts, None);
}

#[test]
fn windows_caps_and_full_attention_match_the_formula() {
    let full = Options { causal: false, ..causal(16) };
    let segments = [Segment::of(2, 200), Segment::of(202, 21)];
    let shape = shape(230, 1, 2, 16);
    check::<f32>(shape, &segments, &full, &[1]);
    for window in [1, 7, 150] {
        check::<f32>(shape, &segments, &Options { window: Some(window), ..causal(16) }, &[1]);
        check::<f32>(shape, &segments, &Options { window: Some(window), ..full }, &[1]);
    }
    check::<f32>(shape, &segments, &Options { softcap: Some(0.8), ..causal(16) }, &[1]);
    let alibi = Some(Alibi { heads: 12, first: 6 });
    check::<f32>(shape, &segments, &Options { alibi, ..causal(16) }, &[1, 2]);
    check::<bf16>(shape, &segments, &Options { alibi, softcap: Some(3.0), ..causal(16) }, &[2]);
    check::<bf16>(shape, &segments, &Options { softcap: Some(5.0), window: Some(40), ..causal(16) }, &[2]);
}

#[test]
fn dropped_weights_match_the_formula_wherever_the_keys_stand() {
    let shape = shape(330, 2, 2, 24);
    let segments = [Segment::of(1, 3), Segment::of(4, 250), Segment::of(254, 76)];
    let keys: Vec<u64> = (0..330u64).map(|t| t.wrapping_mul(0x1234_5678_9ABC_DEF1)).collect();
    let dropout = |rate| Dropout { rate, site: 5, first_head: 8, keys: &keys };
    let options = Options { softcap: Some(5.0), window: Some(140), ..causal(24) };
    check_thinned::<f32>(shape, &segments, &causal(24), &[3], Some(&dropout(0.1)));
    check_thinned::<bf16>(shape, &segments, &causal(24), &[2], Some(&dropout(0.4)));
    check_thinned::<f32>(shape, &segments, &options, &[2], Some(&dropout(0.5)));
    let qkv = random::<f32>(330 * shape.width(), 1);
    let dout = random::<f32>(330 * shape.heads() * 24, 2);
    let of = |dropout| run(&Cpu::single(), &qkv, &dout, &shape, &segments, &causal(24), dropout);
    let (all, thinned) = (of(None), of(Some(&dropout(0.1))));
    assert!(all.lse == thinned.lse, "sums are taken before weights are dropped");
    assert!(all.out != thinned.out);
    // A tenth of a head's weights, give or take; other heads and tokens draw other ones.
    let dropped =
        |n: usize, t: usize| (0..10_000).filter(|&d| dropout(0.1).factor(t, n, d) == 0.0).collect::<Vec<_>>();
    assert!((850..1150).contains(&dropped(0, 7).len()), "{}", dropped(0, 7).len());
    assert_ne!(dropped(0, 7), dropped(1, 7));
    assert_ne!(dropped(0, 7), dropped(0, 8));
}

#[test]
fn slopes_halve_and_what_is_over_takes_every_other_one() {
    let slopes = |heads: usize| (0..heads).map(|n| Alibi { heads, first: 0 }.slope(n)).collect::<Vec<_>>();
    assert_eq!(slopes(8), [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]);
    let twelve = slopes(12);
    assert_eq!(twelve[..8], slopes(8));
    assert_eq!(twelve[8..], slopes(16).iter().copied().step_by(2).take(4).collect::<Vec<_>>());
    assert_eq!(Alibi { heads: 12, first: 6 }.slope(3), twelve[9]);
}

#[test]
fn queries_that_see_no_key_give_zero_and_minus_infinity() {
    // Seven queries, four keys: the first three queries end before the first key.
    let segment = [Segment { q_start: 0, q_len: 7, k_start: 3, k_len: 4, ahead: 0 }];
    check::<f32>(shape(7, 1, 1, 8), &segment, &causal(8), &[1]);
}

#[test]
fn tokens_outside_every_segment_get_no_gradient_and_keep_their_output() {
    let shape = shape(20, 1, 1, 8);
    let qkv = random::<f32>(20 * shape.width(), 1);
    let dout = random::<f32>(20 * 8, 2);
    let got = run(&Cpu::single(), &qkv, &dout, &shape, &[Segment::of(4, 10)], &causal(8), None);
    let outside = |t: usize| !(4..14).contains(&t);
    for t in (0..20).filter(|&t| outside(t)) {
        assert!(got.dqkv[t * shape.width()..][..shape.width()].iter().all(|&g| g == 0.0));
        assert!(got.out[t * 8..][..8].iter().all(|&y| y == 9.0));
    }
}

#[test]
fn few_queries_agree_with_many_on_the_same_keys() {
    // A cache of 300 keys in another layout: [group][token][d].
    let (groups, per_group, dim, keys) = (2, 3, 32, 300);
    let k = random::<bf16>(groups * keys * dim, 1);
    let v = random::<bf16>(groups * keys * dim, 2);
    let q = random::<bf16>(8 * groups * per_group * dim, 3);
    for window in [None, Some(50)] {
        let options = Options { window, ..causal(dim) };
        let cache =
            |data| Heads { data, offset: 0, token_stride: dim, group_stride: keys * dim, head_stride: 0 };
        let attend = |cpu: &Cpu, count: usize| {
            let width = groups * per_group * dim;
            let queries = Heads {
                data: &q[(8 - count) * width..],
                offset: 0,
                token_stride: width,
                group_stride: per_group * dim,
                head_stride: dim,
            };
            let segment = [Segment { q_start: 0, q_len: count, k_start: 0, k_len: keys, ahead: 0 }];
            let mut out = vec![bf16::ZERO; count * width];
            let (k, v) = (cache(&k[..]), cache(&v[..]));
            forward(cpu, &mut out, None, queries, k, v, groups, per_group, dim, &segment, &options, None)
                .unwrap();
            out[(count - 1) * width..].to_vec()
        };
        let mut first: Option<Vec<bf16>> = None;
        for cpu in cpus(&[1, 3]) {
            let (one, many) = (attend(&cpu, 1), attend(&cpu, 8));
            let many: Vec<f64> = many.iter().map(|v| v.to_f64()).collect();
            assert_close("one query against eight", &wide(&one), &many, 1e-2, 1e-3);
            assert!(first.get_or_insert_with(|| one.clone()) == &one, "{cpu:?}");
        }
    }
}

#[test]
fn few_queries_of_several_documents_agree_with_each_of_them_alone_among_many() {
    // Queries and keys of each document: none, one block of keys, several, no key at all.
    let documents = [(1, 300), (3, 129), (0, 50), (4, 0), (4, 257), (2, 7)];
    let (groups, per_group, dim) = (2, 2, 20);
    let width = groups * per_group * dim;
    let keys: usize = documents.iter().map(|d| d.1).sum();
    let k = random::<f32>(keys * groups * dim, 1);
    let v = random::<f32>(keys * groups * dim, 2);
    let alibi = Some(Alibi { heads: 4, first: 0 });
    for options in [
        causal(dim),
        Options { window: Some(140), ..causal(dim) },
        Options { softcap: Some(3.0), alibi, ..causal(dim) },
        Options { causal: false, ..causal(dim) },
    ] {
        fn heads(
            data: &[f32],
            token_stride: usize,
            group_stride: usize,
            head_stride: usize,
        ) -> Heads<'_, f32> {
            Heads { data, offset: 0, token_stride, group_stride, head_stride }
        }
        let attend = |cpu: &Cpu, q: &[f32], segments: &[Segment]| {
            let tokens = q.len() / width;
            let (mut out, mut lse) = (vec![9f32; q.len()], vec![9f32; groups * per_group * tokens]);
            forward(
                cpu,
                &mut out,
                Some(&mut lse),
                heads(q, width, per_group * dim, dim),
                heads(&k, groups * dim, dim, 0),
                heads(&v, groups * dim, dim, 0),
                groups,
                per_group,
                dim,
                segments,
                &options,
                None,
            )
            .unwrap();
            (out, lse)
        };
        let few: Vec<Segment> = documents
            .iter()
            .scan((0, 0), |(q_start, k_start), &(q_len, k_len)| {
                let segment = Segment { q_start: *q_start, q_len, k_start: *k_start, k_len, ahead: 0 };
                (*q_start, *k_start) = (*q_start + q_len, *k_start + k_len);
                Some(segment)
            })
            .collect();
        let tokens: usize = documents.iter().map(|d| d.0).sum();
        let q = random::<f32>(tokens * width, 3);
        let (out, lse) = same_everywhere("few queries", |cpu| attend(cpu, &q, &few));
        for s in few.iter().filter(|s| s.q_len > 0) {
            // The same queries after eight others, which take another code path.
            let mut many = random::<f32>(8 * width, 4);
            many.extend(&q[s.q_start * width..][..s.q_len * width]);
            let alone = Segment { q_start: 0, q_len: 8 + s.q_len, ..*s };
            let (want, want_lse) = attend(&Cpu::single(), &many, &[alone]);
            let want: Vec<f64> = wide64(&want[8 * width..]);
            assert_close("output", &out[s.q_start * width..][..s.q_len * width], &want, 1e-4, 1e-5);
            for n in 0..groups * per_group {
                for i in 0..s.q_len {
                    let (got, want) = (lse[n * tokens + s.q_start + i], want_lse[n * (8 + s.q_len) + 8 + i]);
                    assert!(got == want || (got - want).abs() < 1e-4, "{s:?} head {n}: {got} for {want}");
                }
            }
        }
    }
}

/// Columns of batch `b` of a golden `[s,b,n,d]` as `[s,n,d]`.
fn batch(golden: &Golden, b: usize) -> Vec<f32> {
    let [s, batches, n, d] = golden.shape[..] else { panic!("a golden of four dimensions") };
    let values = golden.f32();
    (0..s).flat_map(|t| values[(t * batches + b) * n * d..][..n * d].to_vec()).collect()
}

fn batch64(golden: &Golden, b: usize) -> Vec<f64> {
    batch(golden, b).iter().map(|&v| f64::from(v)).collect()
}

#[test]
fn pytorch_goldens_of_every_kind_of_mask_are_met() {
    let path = golden("ops/attention.safetensors");
    let (g, meta): (BTreeMap<String, Golden>, _) = read_golden(&path);
    let number = |name: &str| meta[name].parse::<f64>().unwrap();
    let (tokens, heads, groups, dim) = (12, 4, 2, 8);
    let shape = shape(tokens, groups, heads / groups, dim);
    let plain =
        Options { scale: number("scale") as f32, window: None, softcap: None, causal: true, alibi: None };
    let cu = g["cu_seqlens"].i64();
    let documents: Vec<Segment> =
        cu.windows(2).map(|w| Segment::of(w[0] as usize, (w[1] - w[0]) as usize)).collect();
    let whole = vec![Segment::of(0, tokens)];
    let window = Some(number("band_pre_tokens") as usize + 1);
    let cap = Some(number("softcap") as f32);
    let cases = [
        ("", 2, whole.clone(), plain),
        ("varlen_", 1, documents, plain),
        ("band_", 2, whole.clone(), Options { window, ..plain }),
        ("softcap_", 2, whole, Options { softcap: cap, ..plain }),
    ];
    for cpu in cpus(&[1, 2]) {
        for (prefix, batches, segments, options) in &cases {
            for b in 0..*batches {
                let (q, k, v, dout) =
                    (batch(&g["q"], b), batch(&g["k"], b), batch(&g["v"], b), batch(&g["dout"], b));
                let qkv = pack(&q, &k, &v, &shape);
                let got = run(&cpu, &qkv, &dout, &shape, segments, options, None);
                let what = format!("{prefix}{b} {cpu:?}");
                let want = |name: &str| batch64(&g[&format!("{prefix}{name}")], b);
                assert_close(&format!("{what} out"), &got.out, &want("out"), 1e-5, 1e-6);
                let (dq, dk, dv) = unpack(&got.dqkv, &shape);
                assert_close(&format!("{what} dq"), &dq, &want("dq"), 1e-4, 1e-6);
                assert_close(&format!("{what} dk"), &dk, &want("dk"), 1e-4, 1e-6);
                assert_close(&format!("{what} dv"), &dv, &want("dv"), 1e-4, 1e-6);
                if let (Some(max), Some(sum)) =
                    (g.get(&format!("{prefix}softmax_max")), g.get(&format!("{prefix}softmax_sum")))
                {
                    let at = b * heads * tokens;
                    let lse: Vec<f64> =
                        (at..at + heads * tokens).map(|i| max.values[i] + sum.values[i].ln()).collect();
                    assert_close(&format!("{what} lse"), &got.lse, &lse, 1e-5, 1e-6);
                }
            }
        }
        // The last few queries against all keys.
        let last = number("sq_rightdown") as usize;
        for b in 0..2 {
            let qkv = pack(&batch(&g["q"], b), &batch(&g["k"], b), &batch(&g["v"], b), &shape);
            let mut out = vec![0f32; last * heads * dim];
            let mut q = Heads::queries(&qkv[..], &shape);
            q.offset += (tokens - last) * q.token_stride;
            let (k, v) = (Heads::keys(&qkv[..], &shape), Heads::values(&qkv[..], &shape));
            let segment = [Segment { q_start: 0, q_len: last, k_start: 0, k_len: tokens, ahead: 0 }];
            forward(&cpu, &mut out, None, q, k, v, groups, heads / groups, dim, &segment, &plain, None)
                .unwrap();
            assert_close("rightdown", &out, &batch64(&g["rightdown_out"], b), 1e-5, 1e-6);
        }
    }
}

/// Packs `[s,n,d]`, `[s,g,d]`, `[s,g,d]` into rows.
fn pack(q: &[f32], k: &[f32], v: &[f32], shape: &Packed) -> Vec<f32> {
    let (d, p) = (shape.head_dim, shape.heads_per_group);
    let mut rows = Vec::new();
    for t in 0..shape.tokens {
        for group in 0..shape.groups {
            rows.extend_from_slice(&q[(t * shape.heads() + group * p) * d..][..p * d]);
            rows.extend_from_slice(&k[(t * shape.groups + group) * d..][..d]);
            rows.extend_from_slice(&v[(t * shape.groups + group) * d..][..d]);
        }
    }
    rows
}

/// The inverse of [`pack`].
fn unpack(rows: &[f32], shape: &Packed) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let (d, p) = (shape.head_dim, shape.heads_per_group);
    let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
    for group in rows.chunks_exact(shape.group_width()) {
        q.extend_from_slice(&group[..p * d]);
        k.extend_from_slice(&group[p * d..][..d]);
        v.extend_from_slice(&group[(p + 1) * d..][..d]);
    }
    (q, k, v)
}

#[test]
fn the_formula_s_gradients_are_its_finite_differences() {
    let (s, l, dim) = (3usize, 4usize, 2usize);
    let options = Options { scale: 0.7, window: Some(3), softcap: Some(1.5), causal: true, alibi: None };
    let wide =
        |n: usize, seed: u64| -> Vec<f64> { random::<f32>(n, seed).iter().map(|&v| f64::from(v)).collect() };
    let parts = [wide(s * dim, 1), wide(l * dim, 2), wide(l * dim, 3)];
    let dout = wide(s * dim, 4);
    let loss = |p: &[Vec<f64>; 3]| -> f64 {
        let (y, _) =
            reference::Head { q: &p[0], k: &p[1], v: &p[2], dim, number: 0, dropout: None }.forward(&options);
        y.iter().zip(&dout).map(|(a, b)| a * b).sum()
    };
    let (dq, dk, dv) =
        reference::Head { q: &parts[0], k: &parts[1], v: &parts[2], dim, number: 0, dropout: None }
            .backward(&dout, &options);
    for (which, gradient) in [dq, dk, dv].iter().enumerate() {
        for i in 0..gradient.len() {
            let at = |step: f64| {
                let mut p = parts.clone();
                p[which][i] += step;
                loss(&p)
            };
            let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
            assert!((slope - gradient[i]).abs() < 1e-8, "operand {which} element {i}");
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_errors() {
    let cpu = Cpu::single();
    let shape = shape(6, 1, 1, 4);
    let qkv = vec![0f32; 6 * shape.width()];
    let (mut out, mut lse) = (vec![0f32; 24], vec![0f32; 6]);
    let mut call = |segments: &[Segment], lse: &mut [f32], data: &[f32]| {
        let (q, k, v) =
            (Heads::queries(data, &shape), Heads::keys(data, &shape), Heads::values(data, &shape));
        forward(&cpu, &mut out, Some(lse), q, k, v, 1, 1, 4, segments, &causal(4), None)
    };
    assert_eq!(call(&[Segment::of(0, 6)], &mut lse, &qkv), Ok(()));
    assert_eq!(call(&[], &mut lse, &qkv), Ok(()));
    assert!(matches!(call(&[Segment::of(1, 6)], &mut lse, &qkv), Err(Error::Shape { .. })));
    assert!(matches!(call(&[Segment::of(0, 6)], &mut lse[..5], &qkv), Err(Error::Shape { name: "lse", .. })));
    let error = call(&[Segment::of(0, 4), Segment::of(3, 2)], &mut lse, &qkv).unwrap_err();
    assert!(matches!(error, Error::Segments { index: 1, start: 3, end: 4, .. }), "{error}");
    assert!(matches!(call(&[Segment::of(0, 6)], &mut lse, &qkv[..71]), Err(Error::Shape { name: "v", .. })));
    let mut dqkv = qkv.clone();
    let far = [Segment { q_start: 0, q_len: 2, k_start: 4, k_len: 3, ahead: 0 }];
    let rows = QkvRows::Packed((&mut dqkv[..], &qkv[..]));
    let error = backward(&cpu, rows, &out, &out, &lse, &shape, &far, &causal(4), None).unwrap_err();
    assert!(matches!(error, Error::Shape { want: 6, got: 7, .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn any_documents_match_the_formula(
        lengths in prop::collection::vec(0usize..50, 1..4),
        groups in 1usize..3,
        per_group in 1usize..3,
        half_dim in 1usize..12,
        window in prop::option::of(1usize..40),
        causal_mask: bool,
    ) {
        let mut segments = Vec::new();
        let mut start = 0;
        for len in lengths {
            segments.push(Segment::of(start, len));
            start += len;
        }
        let options = Options { window, causal: causal_mask, ..causal(2 * half_dim) };
        check::<f32>(shape(start, groups, per_group, 2 * half_dim), &segments, &options, &[1]);
    }
}
