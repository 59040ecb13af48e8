//! Compared with causal attention when every key is picked, and with the definition of a pick.

use super::*;
use crate::attention::{self, Options, Segment};
use crate::trial::{assert_same_gradient, finite_differences, random, same_everywhere, wide64};
use ms_testing::assert_close;

const SHAPE: Packed = Packed { tokens: 11, groups: 2, heads_per_group: 2, head_dim: 4 };
const OPTIONS: Options = Options { scale: 0.5, window: None, softcap: None, causal: true, alibi: None };

fn segments() -> [Segment; 2] {
    [Segment::of(0, 7), Segment::of(7, 4)]
}

/// Every query sees the keys of its document up to itself.
fn sights(segments: &[Segment]) -> Vec<Sight> {
    let sight = |s: &Segment, t: usize| Sight { start: s.k_start, seen: t + 1, all: s.k_len };
    segments.iter().flat_map(|s| (0..s.q_len).map(move |t| sight(s, t))).collect()
}

/// Scores that make every key of a document up to the query win.
fn all_keys() -> Vec<i32> {
    let indexer = Indexer { q: &[1.0; 11], k: &[1.0; 11], w: &[1.0; 11], heads: 1, dim: 1 };
    let mut picks = vec![0; 11 * 7];
    pick_seen(&Cpu::single(), &mut picks, 7, &indexer, &sights(&segments())).unwrap();
    picks
}

#[test]
fn with_every_key_picked_it_is_causal_attention_with_its_gradient() {
    let (qkv, dout) = (random::<f32>(11 * SHAPE.width(), 1), random::<f32>(11 * 16, 2));
    let picks = all_keys();
    let heads = (Heads::queries(&qkv, &SHAPE), Heads::keys(&qkv, &SHAPE), Heads::values(&qkv, &SHAPE));
    let (out, dqkv) = same_everywhere("selected", |cpu| {
        let (mut out, mut lse) = (vec![0f32; 11 * 16], vec![0f32; 11 * 4]);
        let (q, k, v) = heads;
        forward(cpu, &mut out, &mut lse, q, k, v, (2, 2, 4), &picks, 7, 11, OPTIONS.scale).unwrap();
        let mut d = vec![0f32; qkv.len()];
        backward(cpu, QkvRows::Packed((&mut d, &qkv)), &dout, &out, &lse, &SHAPE, (&picks, 7), OPTIONS.scale)
            .unwrap();
        (out, d)
    });
    let cpu = Cpu::single();
    let (mut want, mut lse) = (vec![0f32; out.len()], vec![0f32; 11 * 4]);
    let (q, k, v) = heads;
    attention::forward(&cpu, &mut want, Some(&mut lse), q, k, v, 2, 2, 4, &segments(), &OPTIONS, None)
        .unwrap();
    let mut dwant = vec![0f32; qkv.len()];
    let rows = QkvRows::Packed((&mut dwant[..], &qkv[..]));
    attention::backward(&cpu, rows, &dout, &want, &lse, &SHAPE, &segments(), &OPTIONS, None).unwrap();
    let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    assert_close("out", &out, &wide(&want), 1e-5, 1e-6);
    assert_close("dqkv", &dqkv, &wide(&dwant), 1e-4, 1e-5);
}

#[test]
fn a_key_that_is_no_number_is_picked() {
    let k = [0.5, f32::NAN, 1.0, 2.0];
    let indexer = Indexer { q: &[1.0], k: &k, w: &[1.0], heads: 1, dim: 1 };
    let mut picks = [0; 2];
    pick_seen(&Cpu::single(), &mut picks, 2, &indexer, &[Sight { start: 0, seen: 4, all: 4 }]).unwrap();
    assert_eq!(picks, [1, 3]);
}

#[test]
fn the_best_keys_of_the_own_document_are_picked() {
    let k = [0.5, 3.0, 1.0, 2.0, 9.0, 9.0];
    let segments = [Segment::of(0, 4), Segment::of(4, 2)];
    let indexer = Indexer { q: &[1.0; 6], k: &k, w: &[1.0; 6], heads: 1, dim: 1 };
    let mut picks = vec![0; 12];
    pick_seen(&Cpu::single(), &mut picks, 2, &indexer, &sights(&segments)).unwrap();
    assert_eq!(picks, [0, NONE, 0, 1, 1, 2, 1, 3, 4, NONE, 4, 5]);
}

#[test]
fn queries_apart_from_more_keys_have_the_gradient_of_their_share_of_a_document() {
    // The last four queries, over the keys of all.
    let (qkv, dout) = (random::<f32>(11 * SHAPE.width(), 1), random::<f32>(4 * 16, 2));
    let first = 7;
    let columns = |t: usize, group: usize| &qkv[t * SHAPE.width() + group * 16..][..16];
    let q: Vec<f32> =
        (first..11).flat_map(|t| (0..2).flat_map(move |g| columns(t, g)[..8].to_vec())).collect();
    let kv: Vec<f32> = (0..11).flat_map(|t| (0..2).flat_map(move |g| columns(t, g)[8..].to_vec())).collect();
    let picks: Vec<i32> = vec![0, 3, 7, NONE, 1, 8, NONE, NONE, 2, 6, 9, NONE, 0, 4, 7, 10];
    let shape = Packed { tokens: 4, ..SHAPE };
    let (out, [dq, dkv]) = same_everywhere("selected apart", |cpu| {
        let (mut out, mut lse) = (vec![0f32; 4 * 16], vec![0f32; 4 * 4]);
        let [queries, k, v] = Heads::of(QkvRows::Apart { q: &q[..], kv: &kv[..] }, &shape);
        forward(cpu, &mut out, &mut lse, queries, k, v, (2, 2, 4), &picks, 4, 11, OPTIONS.scale).unwrap();
        let (mut dq, mut dkv) = (vec![0f32; q.len()], vec![0f32; kv.len()]);
        let rows = QkvRows::Apart { q: (&mut dq[..], &q[..]), kv: (&mut dkv[..], &kv[..]) };
        backward(cpu, rows, &dout, &out, &lse, &shape, (&picks, 4), OPTIONS.scale).unwrap();
        (out, [dq, dkv])
    });
    // The same of packed rows, where the other queries pick nothing.
    let cpu = Cpu::single();
    let all: Vec<i32> = std::iter::repeat_n(NONE, first * 4).chain(picks.iter().copied()).collect();
    let (mut want, mut lse) = (vec![0f32; 11 * 16], vec![0f32; 11 * 4]);
    let (queries, keys) = (Heads::queries(&qkv, &SHAPE), Heads::keys(&qkv, &SHAPE));
    let values = Heads::values(&qkv, &SHAPE);
    forward(&cpu, &mut want, &mut lse, queries, keys, values, (2, 2, 4), &all, 4, 11, OPTIONS.scale).unwrap();
    let mut dwant = vec![0f32; qkv.len()];
    let dall = [vec![0f32; first * 16], dout].concat();
    let rows = QkvRows::Packed((&mut dwant[..], &qkv[..]));
    backward(&cpu, rows, &dall, &want, &lse, &SHAPE, (&all, 4), OPTIONS.scale).unwrap();
    assert_eq!(out, want[first * 16..]);
    for t in 0..11 {
        for g in 0..2 {
            let want = &dwant[t * SHAPE.width() + g * 16..][..16];
            if t >= first {
                assert_eq!(dq[((t - first) * 2 + g) * 8..][..8], want[..8]);
            }
            assert_eq!(dkv[(t * 2 + g) * 8..][..8], want[8..]);
        }
    }
}

#[test]
fn a_pick_outside_the_keys_is_refused() {
    let qkv = vec![0f32; 11 * SHAPE.width()];
    let (q, k, v) = (Heads::queries(&qkv, &SHAPE), Heads::keys(&qkv, &SHAPE), Heads::values(&qkv, &SHAPE));
    let (mut out, mut lse) = (vec![0f32; 11 * 16], vec![0f32; 11 * 4]);
    let e = forward(&Cpu::single(), &mut out, &mut lse, q, k, v, (2, 2, 4), &[11; 11], 1, 11, OPTIONS.scale);
    assert!(e.unwrap_err().to_string().contains("picks[0] is 11"));
}

#[test]
fn rows_that_are_key_and_value_give_the_attention_of_one_group_and_its_gradient() {
    // 6 tokens, 3 heads of 20 elements, 4 rows of tokens and 3 of entries.
    let (tokens, heads, dim, places) = (6, 3, 20, 4);
    let (q, rows) = (random::<f32>(tokens * heads * dim, 1), random::<f32>(7 * dim, 2));
    let dout = random::<f32>(q.len(), 3);
    let picks: Vec<i32> =
        [[0, NONE, NONE, NONE], [0, 1, NONE, NONE], [1, 2, 4, NONE], [2, 3, 4, 5], [0, 3, 6, 5], [NONE; 4]]
            .concat();
    let keys =
        |rows: &'_ [f32]| -> (Vec<f32>, Vec<f32>) { (rows[..4 * dim].to_vec(), rows[4 * dim..].to_vec()) };
    let (near, far) = keys(&rows);
    let (out, dq, dkeys) = same_everywhere("shared", |cpu| {
        let keys = shared::Shared { near: &near, far: &far, dim };
        let (mut out, mut lse) = (vec![0f32; q.len()], vec![0f32; heads * tokens]);
        shared::forward(cpu, &mut out, &mut lse, &q, keys, heads, &picks, places, 0.3).unwrap();
        let (mut dq, mut dkeys) = (vec![0f32; q.len()], vec![0f32; rows.len()]);
        let to = (&mut dq[..], &mut dkeys[..]);
        shared::backward(cpu, to, &dout, &q, (&out, &lse), keys, heads, &picks, places, 0.3).unwrap();
        (out, dq, dkeys)
    });
    let reference = |q: &[f64], rows: &[f64]| -> Vec<f64> {
        let mut all = Vec::new();
        for (at, q) in q.chunks(dim).enumerate() {
            let picked: Vec<&[f64]> =
                row(&picks, places, at / heads).map(|j| &rows[j * dim..][..dim]).collect();
            let dot = |k: &[f64]| (q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() * 0.3).exp();
            let sum: f64 = picked.iter().map(|k| dot(k)).sum();
            all.extend((0..dim).map(|d| picked.iter().map(|k| dot(k) / sum * k[d]).sum::<f64>()));
        }
        all
    };
    let (q, rows) = (wide64(&q), wide64(&rows));
    assert_close("out", &out, &reference(&q, &rows), 1e-5, 1e-6);
    let loss = |out: Vec<f64>| out.iter().zip(&dout).map(|(o, d)| o * f64::from(*d)).sum::<f64>();
    let want = finite_differences(&q, |q| loss(reference(q, &rows)));
    assert_same_gradient("queries", &wide64(&dq), &want, 1e-4);
    let want = finite_differences(&rows, |rows| loss(reference(&q, rows)));
    assert_same_gradient("rows", &wide64(&dkeys), &want, 1e-4);
}

#[test]
fn the_best_of_the_keys_that_are_seen_are_picked() {
    let sight = |seen| Sight { start: 1, seen, all: 3 };
    let indexer = Indexer { q: &[1.0; 3], k: &[9.0, 1.0, 3.0, 2.0], w: &[1.0; 3], heads: 1, dim: 1 };
    let mut picks = vec![0; 6];
    pick_seen(&Cpu::single(), &mut picks, 2, &indexer, &[sight(0), sight(1), sight(3)]).unwrap();
    assert_eq!(picks, [NONE, NONE, 1, NONE, 2, 3]);
    assert!(
        pick_seen(&Cpu::single(), &mut picks, 2, &indexer, &[Sight { start: 2, seen: 1, all: 3 }; 3])
            .is_err()
    );
}
