//! Attention of all kinds.

use crate::bench::{Bench, Case};
use ms_core::{
    Alibi, AttentionDropout, AttentionOptions, Divergence, HeadLayout, IndexerInputs, Pooling, QkNorm,
    QkvRows, Result, Rotary, Segment, Sight, Tensor, Window,
};

const HEADS: HeadLayout = HeadLayout { groups: 2, heads_per_group: 3, head_dim: 8 };
const TOKENS: usize = 13;

fn rotary(b: &mut Bench<'_>, dim: usize) -> Rotary {
    let (mut cos, mut sin) = (Vec::new(), Vec::new());
    for i in 0..20 * dim / 2 {
        let angle = (i / (dim / 2)) as f64 * 0.3f64.powi((i % (dim / 2)) as i32);
        // As an f32 holds them, so that both devices turn by the same.
        cos.push(f64::from(angle.cos() as f32));
        sin.push(f64::from(angle.sin() as f32));
    }
    let (cos, sin) = (b.given(&[20, dim / 2], &cos), b.given(&[20, dim / 2], &sin));
    Rotary { cos, sin, dim, interleaved: b.draw == 1 }
}

fn options(b: &Bench<'_>) -> AttentionOptions {
    let plain = AttentionOptions { scale: 0.35, window: None, softcap: None, alibi: None };
    match b.draw {
        0 => plain,
        1 => AttentionOptions { window: Some(4), softcap: Some(2.0), ..plain },
        _ => AttentionOptions { alibi: Some(Alibi { heads: 12, first: 6 }), ..plain },
    }
}

/// Of weights in the last two draws, so that it meets windows and keys of other ranks.
fn dropout(b: &Bench<'_>) -> Option<AttentionDropout> {
    let keys = (1..=TOKENS as u64).map(|t| t * 0x1234_5678_9ABC).collect();
    (b.draw > 0).then_some(AttentionDropout { rate: 0.3, site: 9, first_head: 6, keys })
}

fn with_norm(b: &mut Bench<'_>) -> Result<Vec<Tensor>> {
    let (qkv, q, k) = (b.x(&[TOKENS, HEADS.packed_width()]), b.x(&[8]), b.x(&[8]));
    let (d, positions, rotary) = (b.x(&[TOKENS, HEADS.packed_width()]), b.draw_ids(TOKENS, 20), rotary(b, 6));
    let norm = QkNorm { q: &q, k: &k, eps: 1e-3 };
    let (y, rstd) = b.device.prepare_qkv(&qkv, HEADS, Some(&norm), &rotary, &positions)?;
    let (mut dq, mut dk) = (b.zeros(&[8]), b.zeros(&[8]));
    let grads = Some((&mut dq, &mut dk));
    let dx = b.device.prepare_qkv_backward(d, &qkv, &rstd, HEADS, Some(&norm), grads, &rotary, &positions)?;
    Ok(vec![y, rstd, dx, dq, dk])
}

fn without_norm(b: &mut Bench<'_>) -> Result<Vec<Tensor>> {
    let (qkv, d) = (b.x(&[TOKENS, HEADS.packed_width()]), b.x(&[TOKENS, HEADS.packed_width()]));
    let (positions, rotary) = (b.draw_ids(TOKENS, 20), rotary(b, 8));
    let (y, none) = b.device.prepare_qkv(&qkv, HEADS, None, &rotary, &positions)?;
    let dx = b.device.prepare_qkv_backward(d, &none, &none, HEADS, None, None, &rotary, &positions)?;
    Ok(vec![y, dx])
}

/// Documents; in the last draw one of another rank's keys, further back than the queries.
fn segments(b: &mut Bench<'_>) -> Vec<Segment> {
    match b.draw {
        2 => vec![Segment { q_start: 0, q_len: 5, k_start: 6, k_len: 7, ahead: 9 }],
        _ => b.documents(TOKENS),
    }
}

/// Queries and keys whose products are positive: equal scores, among which devices may pick differently, are then rare.
fn indexer(b: &mut Bench<'_>) -> [Tensor; 3] {
    let drawn = [b.wide(&[TOKENS, 2 * 4]), b.wide(&[TOKENS, 4]), b.wide(&[TOKENS, 2])];
    drawn.map(|t| {
        let positive: Vec<f64> = t.to_reals().unwrap().into_iter().map(f64::abs).collect();
        b.given(&t.shape(), &positive)
    })
}

/// A few earlier rows of each token, among `rows` in all.
fn picks(b: &mut Bench<'_>, rows: usize) -> Tensor {
    let mut all = Vec::new();
    for t in 0..TOKENS {
        let mut row: Vec<i32> = (0..4).map(|_| b.below(rows) as i32).collect();
        row.sort_unstable();
        row.dedup();
        if t == 3 {
            row.clear();
        }
        row.resize(4, -1);
        all.extend(row);
    }
    b.ids(&[TOKENS, 4], &all)
}

const PLAIN: AttentionOptions = AttentionOptions { scale: 0.35, window: None, softcap: None, alibi: None };

pub(crate) const CASES: &[Case] = &[
    ("prepare_qkv prepare_qkv_backward", with_norm),
    ("prepare_qkv prepare_qkv_backward", without_norm),
    ("attention attention_backward attention_sinks attention_sinks_backward", |b| {
        let (qkv, dout) = (b.x(&[TOKENS, HEADS.packed_width()]), b.x(&[TOKENS, 48]));
        let (sinks, segments, o, dropout) = (b.wide(&[6]), segments(b), options(b), dropout(b));
        let (d, dropout) = (b.device, dropout.as_ref());
        let (mut out, mut lse) = d.attention(QkvRows::Packed(&qkv), HEADS, &segments, &o, dropout)?;
        let rows = QkvRows::Packed(&qkv);
        let dx = d.attention_backward(&dout, rows, &out, &lse, HEADS, &segments, &o, dropout)?;
        let before = [out.reshape([TOKENS * 48])?, lse.reshape([6 * TOKENS])?].map(|t| t.to_reals().unwrap());
        d.attention_sinks(&mut out, &mut lse, &sinks)?;
        let mut dsinks = b.zeros(&[6]);
        d.attention_sinks_backward(dsinks.whole_mut()?, &dout, &out, &lse, &sinks)?;
        let joined = d.attention_backward(&dout, rows, &out, &lse, HEADS, &segments, &o, dropout)?;
        let before = before.map(|v| b.given(&[v.len()], &v));
        Ok([
            before.to_vec(),
            [dx, joined].into_iter().flat_map(QkvRows::into_parts).collect(),
            vec![out, lse, dsinks],
        ]
        .concat())
    }),
    ("attention_merge", |b| {
        let (first, second) = (b.x(&[TOKENS, HEADS.packed_width()]), b.x(&[TOKENS, HEADS.packed_width()]));
        let (d, o) = (b.device, PLAIN);
        let (out, mut lse) =
            d.attention(QkvRows::Packed(&first), HEADS, &[Segment::of(2, TOKENS - 2)], &o, None)?;
        let (part, part_lse) =
            d.attention(QkvRows::Packed(&second), HEADS, &[Segment::of(0, TOKENS - 3)], &o, None)?;
        let mut out = Tensor::from_reals(d.arena(), b.dtype.wide(), out.shape(), &out.to_reals()?)?;
        d.attention_merge(&mut out, &mut lse, &part, &part_lse)?;
        Ok(vec![out, lse])
    }),
    ("attention_cached cache_append", |b| {
        let (qkv, mut keys, mut values) = (b.x(&[3, HEADS.packed_width()]), b.x(&[16, 16]), b.x(&[16, 16]));
        b.device.cache_append(&mut keys, &mut values, &qkv, HEADS, &[6, 7, 15])?;
        let o = options(b);
        let segments = [
            Segment { q_start: 0, q_len: 2, k_start: 0, k_len: 8, ahead: 0 },
            Segment { q_start: 2, q_len: 1, k_start: 10, k_len: 6, ahead: 0 },
        ];
        let (out, lse) = b.device.attention_cached(&qkv, &keys, &values, HEADS, &segments, &o)?;
        Ok(vec![keys, values, out, lse])
    }),
    ("pick_seen", |b| {
        let [q, k, w] = indexer(b);
        let sights: Vec<Sight> = (0..TOKENS).map(|t| Sight { start: t / 4, seen: t / 2, all: 8 }).collect();
        Ok(vec![b.device.pick_seen(&IndexerInputs { q: &q, k: &k, w: &w }, &sights, 3)?])
    }),
    ("attention_weights", |b| {
        let (q, k, picks) = (b.x(&[TOKENS, 48]), b.x(&[TOKENS + 5, 16]), picks(b, TOKENS + 5));
        Ok(vec![b.device.attention_weights(&q, &k, HEADS, &picks, 0.35)?])
    }),
    ("indexer_loss", |b| {
        let [q, k, w] = [b.wide(&[TOKENS, 3 * 8]), b.wide(&[TOKENS + 5, 8]), b.wide(&[TOKENS, 3])];
        let picks = picks(b, TOKENS + 5);
        let attention = b.wide(&[TOKENS, 4]).to_reals()?;
        let attention: Vec<f64> = attention.into_iter().map(|a| f64::from(a.exp() as f32)).collect();
        let attention = b.given(&[TOKENS, 4], &attention);
        let divergence = [Divergence::PICKED, Divergence::POOLED, Divergence::MEGATRON][b.draw as usize];
        let inputs = IndexerInputs { q: &q, k: &k, w: &w };
        let (loss, gradients) = b.device.indexer_loss(&inputs, &picks, &attention, divergence, 0.5)?;
        Ok([vec![loss], gradients.to_vec()].concat())
    }),
    ("attention attention_backward", |b| {
        // Queries separate from keys and values; there are more of the latter, and some may be visible only to other queries.
        let (q, kv, dout) = (b.x(&[TOKENS, 48]), b.x(&[TOKENS + 5, 32]), b.x(&[TOKENS, 48]));
        let (rows, o, dropout) = (QkvRows::Apart { q: &q, kv: &kv }, options(b), dropout(b));
        let (d, dropout) = (b.device, dropout.as_ref());
        let segments = [
            Segment { q_start: 1, q_len: 4, k_start: 2, k_len: 7, ahead: 0 },
            Segment { q_start: 6, q_len: 3, k_start: 10, k_len: 5, ahead: 4 },
        ];
        let (out, lse) = d.attention(rows, HEADS, &segments, &o, dropout)?;
        let gradients = d.attention_backward(&dout, rows, &out, &lse, HEADS, &segments, &o, dropout)?;
        Ok([out, lse].into_iter().chain(gradients.into_parts()).collect())
    }),
    ("attention_picked attention_picked_backward attention_picked_cached", |b| {
        let (qkv, dout, picks) = (b.x(&[TOKENS, HEADS.packed_width()]), b.x(&[TOKENS, 48]), picks(b, TOKENS));
        let (o, rows) = (PLAIN, QkvRows::Packed(&qkv));
        let (out, lse) = b.device.attention_picked(rows, HEADS, &picks, &o)?;
        let dx = b.device.attention_picked_backward(&dout, rows, &out, &lse, HEADS, &picks, &o)?;
        let (keys, values) = (b.x(&[TOKENS, 16]), b.x(&[TOKENS, 16]));
        let (cached, _) = b.device.attention_picked_cached(&qkv, (&keys, &values), HEADS, &picks, &o)?;
        Ok([out, lse, cached].into_iter().chain(dx.into_parts()).collect())
    }),
    ("attention_picked attention_picked_backward", |b| {
        // More keys than queries.
        let (q, kv, dout) = (b.x(&[TOKENS, 48]), b.x(&[TOKENS + 5, 32]), b.x(&[TOKENS, 48]));
        let picks = picks(b, TOKENS + 5);
        let (o, rows) = (PLAIN, QkvRows::Apart { q: &q, kv: &kv });
        let (out, lse) = b.device.attention_picked(rows, HEADS, &picks, &o)?;
        let gradients = b.device.attention_picked_backward(&dout, rows, &out, &lse, HEADS, &picks, &o)?;
        Ok([out, lse].into_iter().chain(gradients.into_parts()).collect())
    }),
    ("rotate_last", |b| {
        let (x, positions, rotary) = (b.x(&[TOKENS, 24]), b.draw_ids(TOKENS, 20), rotary(b, 4));
        let turned = b.device.rotate_last(&x, 8, &rotary, &positions, false)?;
        Ok(vec![turned, b.device.rotate_last(&x, 8, &rotary, &positions, true)?])
    }),
    ("pool_windows pool_windows_backward", |b| {
        let shape = Pooling { ratio: 4, dim: 6, overlap: b.draw != 0 };
        let (kv, gate) = (b.x(&[12, shape.width()]), b.x(&[12, shape.width()]));
        let (ape, dout) = (b.wide(&[4, shape.width()]), b.x(&[3, 6]));
        let windows = [
            Window { own: 0, before: None },
            Window { own: 4, before: Some(0) },
            Window { own: 8, before: Some(4) },
        ];
        let mut dape = b.zeros(&[4, shape.width()]);
        let y = b.device.pool_windows(&kv, &gate, &ape, &windows, &shape)?;
        let (dkv, dgate) =
            b.device.pool_windows_backward(dape.whole_mut()?, &dout, &kv, &gate, &ape, &windows, &shape)?;
        Ok(vec![y, dkv, dgate, dape])
    }),
    ("attention_shared attention_shared_backward", |b| {
        let (q, near, far) = (b.x(&[TOKENS, 24]), b.x(&[TOKENS, 8]), b.x(&[5, 8]));
        let (dout, picks) = (b.x(&[TOKENS, 24]), picks(b, TOKENS + 5));
        let (out, lse) = b.device.attention_shared(&q, &near, &far, &picks, 0.35)?;
        let grads = b.device.attention_shared_backward(&dout, &q, &near, &far, &out, &lse, &picks, 0.35)?;
        Ok([vec![out, lse], grads.to_vec()].concat())
    }),
];
