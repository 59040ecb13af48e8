//! Against causal attention where every key is picked, and the definition of a pick.

use super::*;
use crate::attention;
use crate::trial::{random, same_everywhere};
use ms_testing::assert_close;

const SHAPE: Packed = Packed { tokens: 11, groups: 2, heads_per_group: 2, head_dim: 4 };
const OPTIONS: Options = Options { scale: 0.5, window: None, softcap: None, causal: true, alibi: None };

fn segments() -> [Segment; 2] {
    [Segment::of(0, 7), Segment::of(7, 4)]
}

/// Scores that make every key of a document up to the query win.
fn all_keys() -> Vec<i32> {
    let indexer =
        Indexer { q: &[1.0; 11], k: &[1.0; 11], w: &[1.0; 11], heads: 1, dim: 1, segments: &segments() };
    let mut picks = vec![0; 11 * 7];
    pick(&Cpu::single(), &mut picks, 7, &indexer).unwrap();
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
        forward(cpu, &mut out, &mut lse, q, k, v, (2, 2, 4), &picks, 7, 11, &OPTIONS).unwrap();
        let mut d = vec![0f32; qkv.len()];
        backward(cpu, &mut d, &dout, &qkv, &out, &lse, &SHAPE, &picks, 7, &OPTIONS).unwrap();
        (out, d)
    });
    let cpu = Cpu::single();
    let (mut want, mut lse) = (vec![0f32; out.len()], vec![0f32; 11 * 4]);
    let (q, k, v) = heads;
    attention::forward(&cpu, &mut want, Some(&mut lse), q, k, v, 2, 2, 4, &segments(), &OPTIONS).unwrap();
    let mut dwant = vec![0f32; qkv.len()];
    attention::backward(&cpu, &mut dwant, &dout, &qkv, &want, &lse, &SHAPE, &segments(), &OPTIONS).unwrap();
    let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    assert_close("out", &out, &wide(&want), 1e-5, 1e-6);
    assert_close("dqkv", &dqkv, &wide(&dwant), 1e-4, 1e-5);
}

#[test]
fn the_best_keys_of_the_own_document_are_picked() {
    let k = [0.5, 3.0, 1.0, 2.0, 9.0, 9.0];
    let segments = [Segment::of(0, 4), Segment::of(4, 2)];
    let indexer = Indexer { q: &[1.0; 6], k: &k, w: &[1.0; 6], heads: 1, dim: 1, segments: &segments };
    let mut picks = vec![0; 12];
    pick(&Cpu::single(), &mut picks, 2, &indexer).unwrap();
    assert_eq!(picks, [0, NONE, 0, 1, 1, 2, 1, 3, 4, NONE, 4, 5]);
}

#[test]
fn a_pick_outside_the_keys_is_refused() {
    let qkv = vec![0f32; 11 * SHAPE.width()];
    let (q, k, v) = (Heads::queries(&qkv, &SHAPE), Heads::keys(&qkv, &SHAPE), Heads::values(&qkv, &SHAPE));
    let (mut out, mut lse) = (vec![0f32; 11 * 16], vec![0f32; 11 * 4]);
    let e = forward(&Cpu::single(), &mut out, &mut lse, q, k, v, (2, 2, 4), &[11; 11], 1, 11, &OPTIONS);
    assert!(e.unwrap_err().to_string().contains("picks[0] is 11"));
}
