//! Attention of all kinds, and the training of indexers.

use crate::{Case, Made, case};
use ms_core::ops::{self, IndexerTarget};
use ms_core::{
    Alibi, AttentionDropout, AttentionOptions, Device, Divergence, HeadLayout, Mixing, Pooling, QkvRows,
    Result, Rotary, Segment, Tensor, Window,
};
use std::sync::Arc;

const PLAIN: AttentionOptions = AttentionOptions { scale: 0.5, window: None, softcap: None, alibi: None };

pub(crate) fn documents() -> Arc<[Segment]> {
    [(0, 4), (4, 1), (5, 3)].map(|(start, len)| Segment::of(start, len)).into()
}

/// Tables for 16 positions, in the statistics type for `like`.
fn rotary(device: &Device, like: &Tensor, dim: usize, interleaved: bool) -> Result<Rotary> {
    let angle = |p: usize, i: usize| p as f64 * 100f64.powf(-2.0 * i as f64 / dim as f64);
    let table = |f: fn(f64) -> f64| {
        let values: Vec<f64> =
            (0..16).flat_map(|p| (0..dim / 2).map(move |i| f64::from(f(angle(p, i)) as f32))).collect();
        Tensor::from_reals(device.arena(), like.dtype().wide(), [16, dim / 2], &values)
    };
    Ok(Rotary { cos: table(f64::cos)?, sin: table(f64::sin)?, dim, interleaved })
}

fn prepared(norm: bool, interleaved: bool) -> Case {
    let heads = HeadLayout { groups: 2, heads_per_group: 2, head_dim: 4 };
    let segments: Arc<[Segment]> = [(0, 5), (5, 4)].map(|(start, len)| Segment::of(start, len)).into();
    let weights: [(&'static [usize], f32, f32); 2] = [(&[4], 0.2, 1.0), (&[4], 0.2, 1.0)];
    let weights = if norm { &weights[..] } else { &[] };
    case("prepare_qkv attention", &[9, 32], weights, move |g, w, x| {
        let device = g.device().clone();
        let positions = Tensor::from_slice(device.arena(), [9], &[0i32, 1, 2, 3, 4, 0, 1, 2, 3])?;
        let scales = norm.then(|| (&w[0], &w[1], 1e-5));
        let rotary = rotary(&device, x.value(), 4, interleaved)?;
        let qkv = ops::prepare_qkv(g, x, heads, scales, &rotary, &positions)?;
        ops::attention(g, &qkv, heads, None, &segments, PLAIN, None)
    })
}

fn whole() -> Vec<Case> {
    let sinks = HeadLayout { groups: 1, heads_per_group: 2, head_dim: 8 };
    let narrow = AttentionOptions { scale: 0.4, window: Some(3), ..PLAIN };
    let three = HeadLayout { groups: 3, heads_per_group: 1, head_dim: 4 };
    let sloped = AttentionOptions { alibi: Some(Alibi { heads: 3, first: 0 }), ..PLAIN };
    let capped = AttentionOptions { softcap: Some(1.5), ..PLAIN };
    let dropout = AttentionDropout { rate: 0.4, site: 3, first_head: 1, keys: (7..15).collect() };
    let dropped = Some(dropout);
    vec![
        case("attention", &[8, 32], &[(&[2], 0.5, 0.2)], move |g, w, x| {
            ops::attention(g, x, sinks, Some(&w[0]), &documents(), narrow, None)
        }),
        case("attention", &[8, 36], &[], move |g, _, x| {
            ops::attention(g, x, three, None, &documents(), sloped, None)
        }),
        case("attention", &[8, 36], &[], move |g, _, x| {
            ops::attention(g, x, three, None, &documents(), capped, None)
        }),
        case("attention", &[8, 36], &[], move |g, _, x| {
            ops::attention(g, x, three, None, &documents(), PLAIN, dropped.clone())
        }),
    ]
}

fn picked() -> Vec<Case> {
    let heads = HeadLayout { groups: 2, heads_per_group: 2, head_dim: 4 };
    vec![
        case("attention_picked", &[4, 32], &[], move |g, _, x| {
            let picks = Tensor::from_slice(g.device().arena(), [4, 2], &[0, -1, 0, 1, 2, 0, 3, 1i32])?;
            ops::attention_picked(g, QkvRows::Packed(x), heads, &picks, PLAIN)
        }),
        // Three queries over six keys.
        case("attention_picked", &[3, 48], &[], move |g, _, x| {
            let [q, kv] = ops::split(g, x, [16, 32])?;
            let kv = ops::reshape(g, &kv, [6, 16])?;
            let picks = Tensor::from_slice(g.device().arena(), [3, 2], &[4, -1, 0, 1, 2, 5i32])?;
            ops::attention_picked(g, QkvRows::Apart { q: &q, kv: &kv }, heads, &picks, PLAIN)
        }),
    ]
}

/// The loss is not in the output: its gradients enter through indexers' queries, keys and head weights in addition to the
/// others.
fn indexer(divergence: Divergence) -> Case {
    // Four queries with two heads of four, four keys, weights of heads, and the layer's output.
    case("indexer_loss", &[4, 17], &[], move |g, _, x| {
        let [q, k, w, out] = ops::split(g, x, [8, 4, 2, 3])?;
        let arena = g.device().arena().clone();
        let picks = Tensor::from_slice(&arena, [4, 3], &[0, -1, -1, 1, 0, -1, 2, 0, 1, 3, 1, 2i32])?;
        // Of each query the weights of three keys, over all heads: none of what is not picked.
        let attention = [1.9, 0.0, 0.0, 0.7, 1.1, 0.0, 0.25, 0.5, 1.0, 0.75, 0.125, 0.5];
        let attention = Tensor::from_reals(&arena, w.value().dtype().wide(), [4, 3], &attention)?;
        let factor = 0.75;
        let target = IndexerTarget { picks: &picks, attention: &attention, divergence, factor };
        let (y, loss) = ops::indexer_loss(g, &out, [&q, &k, &w], target)?;
        Ok(Made { y, beside: factor * loss.to_reals()?[0] })
    })
}

/// Tokens and entries that windows of them are pooled to, with overlapping halves or without.
fn pooled(overlap: bool) -> Case {
    let shape = Pooling { ratio: 2, dim: 4, overlap };
    let weights: [(&'static [usize], f32, f32); 2] =
        [(if overlap { &[2, 8] } else { &[2, 4] }, 0.5, 0.0), (&[2], 0.5, 0.2)];
    let x: &'static [usize] = if overlap { &[5, 28] } else { &[5, 20] };
    case("rotate_last pool_windows attention_shared", x, &weights, move |g, w, x| {
        let arena = g.device().arena().clone();
        let width = if overlap { 8 } else { 4 };
        let [q, near, kv, gate] = ops::split(g, x, [8, 4, width, width])?;
        let rotary = rotary(&g.device().clone(), x.value(), 2, true)?;
        let positions = Tensor::from_slice(&arena, [5], &[0i32, 1, 2, 3, 4])?;
        let q = ops::rotate_last(g, &q, 4, &rotary, &positions, false)?;
        let before = overlap.then_some(0);
        let windows: Arc<[Window]> = [Window { own: 0, before: None }, Window { own: 2, before }].into();
        let far = ops::pool_windows(g, &kv, &gate, &w[0], &windows, &shape)?;
        let picks = [0, -1, -1, 0, 1, 5, 1, 2, 5, 2, 3, 6, 3, 4, 6i32];
        let picks = Tensor::from_slice(&arena, [5, 3], &picks)?;
        let out = ops::attention_shared(g, &q, [&near, &far], &picks, Some(&w[1]), 0.5)?;
        ops::rotate_last(g, &out, 4, &rotary, &positions, true)
    })
}

fn streams() -> Vec<Case> {
    let mixing = Mixing { streams: 2, rounds: Some(3), eps: 1e-3 };
    let end = Mixing { rounds: None, ..mixing };
    let all: [(&'static [usize], f32, f32); 3] = [(&[8, 6], 0.5, 0.0), (&[8], 0.5, 0.0), (&[3], 0.3, 1.0)];
    let last: [(&'static [usize], f32, f32); 3] = [(&[2, 6], 0.5, 0.0), (&[2], 0.5, 0.0), (&[1], 0.3, 1.0)];
    vec![
        case("stream_weights collapse expand", &[4, 6], &all, move |g, w, x| {
            let mixes = ops::linear(g, x, &w[0], None)?;
            let weights = ops::stream_weights(g, &mixes, &w[1], &w[2], &mixing)?;
            let input = ops::collapse(g, x, &weights, &mixing)?;
            ops::expand(g, x, &input, &weights, &mixing)
        }),
        case("stream_weights collapse", &[4, 6], &last, move |g, w, x| {
            let mixes = ops::linear(g, x, &w[0], None)?;
            let weights = ops::stream_weights(g, &mixes, &w[1], &w[2], &end)?;
            ops::collapse(g, x, &weights, &end)
        }),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    let prepared = [(false, false), (true, false), (true, true)].map(|(norm, turn)| prepared(norm, turn));
    let indexer = [Divergence::PICKED, Divergence::POOLED, Divergence::MEGATRON].map(indexer);
    let pooled = [pooled(true), pooled(false)];
    [prepared.into(), whole(), picked(), indexer.into(), pooled.into(), streams()]
        .into_iter()
        .flat_map(|cases: Vec<Case>| cases)
        .collect()
}
