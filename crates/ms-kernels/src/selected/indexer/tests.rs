//! Compared with the formulas in f64 and their finite differences.

use super::super::NONE;
use super::*;
use crate::trial::{assert_same_gradient, finite_differences, random, same_everywhere, wide64};
use ms_testing::assert_close;

const QUERIES: usize = 19;
const KEYS: usize = 9;
const PLACES: usize = 4;
/// Heads of the indexer, and elements of each.
const SCORER: (usize, usize) = (3, 5);
const FORMS: [Divergence; 3] = [Divergence::PICKED, Divergence::POOLED, Divergence::MEGATRON];

/// Rising keys, in some rows fewer than places, and once none.
fn picks() -> Vec<i32> {
    let row = |t: usize| match t % 5 {
        0 => [2, NONE, NONE, NONE],
        1 => [0, 3, 8, NONE],
        2 => [1, 4, 5, 7],
        3 => [NONE; 4],
        _ => [0, 2, 6, 8],
    };
    (0..QUERIES).flat_map(row).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let sum: f64 = x.iter().map(|x| x.exp()).sum();
    x.iter().map(|x| x.exp() / sum).collect()
}

/// The formulas as they stand, a query at a time.
fn formula(q: &[f64], k: &[f64], w: &[f64], attention: &[f64], divergence: Divergence) -> f64 {
    let ((heads, dim), picks) = (SCORER, picks());
    let of = |t: usize| {
        let rows: Vec<usize> = row(&picks, PLACES, t).collect();
        let score = |j: &usize| -> f64 {
            let head = |h: usize| {
                let product = dot(&q[(t * heads + h) * dim..][..dim], &k[j * dim..][..dim]);
                w[t * heads + h] * if product > 0.0 { product } else { 0.0 }
            };
            (0..heads).map(head).sum()
        };
        let p = softmax(&rows.iter().map(score).collect::<Vec<_>>());
        let a = &attention[t * PLACES..][..rows.len()];
        let all: f64 = a.iter().sum();
        let pairs = a.iter().map(|a| a / all).zip(p);
        let each = pairs.map(|(t, p)| match divergence {
            Divergence::Smoothed { eps } => (t + eps) * ((t + eps) / (p + eps)).ln(),
            Divergence::Floored { eps } => t * ((t / (1.0 + eps)).max(eps).ln() - (p + eps).ln()),
            Divergence::Exact { eps } => t * (t.max(eps).ln() - p.ln()),
        });
        each.sum::<f64>()
    };
    (0..QUERIES).map(of).sum()
}

#[test]
fn weights_of_attention_are_softmaxes_summed_over_heads() {
    let (groups, each, dim) = (2, 3, 6);
    let heads = groups * each;
    let (q, k) = (random::<f32>(QUERIES * heads * dim, 1), random::<f32>(KEYS * groups * dim, 2));
    let picks = picks();
    let got = same_everywhere("weights of attention", |cpu| {
        let mut weights = vec![7f32; QUERIES * PLACES];
        attention_weights(cpu, &mut weights, &q, &k, (groups, each, dim), &picks, PLACES, 0.7).unwrap();
        weights
    });
    let (q, k) = (wide64(&q), wide64(&k));
    let mut want = vec![0.0; QUERIES * PLACES];
    for t in 0..QUERIES {
        for head in 0..heads {
            let key = |j: usize| &k[(j * groups + head / each) * dim..][..dim];
            let query = &q[(t * heads + head) * dim..][..dim];
            let p = softmax(&row(&picks, PLACES, t).map(|j| 0.7 * dot(query, key(j))).collect::<Vec<_>>());
            want[t * PLACES..].iter_mut().zip(p).for_each(|(w, p)| *w += p);
        }
    }
    assert_close("weights", &got, &want, 1e-5, 1e-6);
    // Every head has given one.
    let sums: Vec<f32> = got.chunks(PLACES).map(|row| row.iter().sum()).collect();
    assert!((sums[0] - 6.0).abs() < 1e-5 && sums[3] == 0.0, "{sums:?}");
}

#[test]
fn losses_are_the_formulas_and_gradients_their_differences() {
    let (heads, dim) = SCORER;
    let q = random::<f32>(QUERIES * heads * dim, 1);
    let (k, w) = (random::<f32>(KEYS * dim, 2), random::<f32>(QUERIES * heads, 3));
    let mut attention: Vec<f32> =
        random::<f32>(QUERIES * PLACES, 4).iter().map(|a| (2.0 * a).exp()).collect();
    // A key that attention does not look at.
    attention[4] = 0.0;
    let picks = picks();
    for divergence in FORMS {
        let (loss, [dq, dk, dw]) = same_everywhere("loss of an indexer", |cpu| {
            let indexer = Indexer { q: &q, k: &k, w: &w, heads, dim };
            let [mut dq, mut dk, mut dw] = [q.len(), k.len(), w.len()].map(|n| vec![7f32; n]);
            let gradients = Gradients { q: &mut dq, k: &mut dk, w: &mut dw };
            let loss = loss(cpu, gradients, &indexer, (&picks, PLACES), &attention, divergence, 2.5);
            (loss.unwrap(), [dq, dk, dw])
        });
        let [q, k, w, attention] = [&q, &k, &w, &attention].map(|x| wide64(x));
        let want = formula(&q, &k, &w, &attention, divergence);
        assert!((loss - want).abs() < 1e-5 * want, "{divergence:?}: {loss} for {want}");
        let by_q = finite_differences(&q, |q| 2.5 * formula(q, &k, &w, &attention, divergence));
        let by_k = finite_differences(&k, |k| 2.5 * formula(&q, k, &w, &attention, divergence));
        let by_w = finite_differences(&w, |w| 2.5 * formula(&q, &k, w, &attention, divergence));
        for (name, got, want) in [("q", dq, by_q), ("k", dk, by_k), ("w", dw, by_w)] {
            assert!(want.iter().any(|d| d.abs() > 0.1), "{name} has a gradient");
            assert_same_gradient(&format!("{divergence:?} {name}"), &wide64(&got), &want, 2e-5);
        }
    }
}

#[test]
fn an_indexer_that_agrees_with_attention_has_neither_loss_nor_gradient() {
    // Scores ln 1, ln 3 and weights 1, 3, twice over.
    let (q, k, w) = ([1f32], [0f32, 3f32.ln()], [1f32]);
    let indexer = Indexer { q: &q, k: &k, w: &w, heads: 1, dim: 1 };
    for divergence in FORMS {
        let [mut dq, mut dk, mut dw] = [vec![7f32; 1], vec![7f32; 2], vec![7f32; 1]];
        let gradients = Gradients { q: &mut dq, k: &mut dk, w: &mut dw };
        let (cpu, picks) = (Cpu::single(), ([0, 1], 2));
        let loss = loss(&cpu, gradients, &indexer, (&picks.0, 2), &[2.0, 6.0], divergence, 1.0).unwrap();
        assert!(loss.abs() < 1e-6, "{divergence:?}: {loss}");
        assert!(
            dq.iter().chain(&dk).chain(&dw).all(|d| d.abs() < 1e-6),
            "{divergence:?}: {dq:?} {dk:?} {dw:?}"
        );
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let indexer = Indexer { q: &[1.0; 2], k: &[1.0; 2], w: &[1.0; 2], heads: 1, dim: 1 };
    let run = |picks: &[i32], attention: &[f32]| {
        let [mut dq, mut dk, mut dw] = [[0f32; 2]; 3];
        let gradients = Gradients { q: &mut dq, k: &mut dk, w: &mut dw };
        loss(&Cpu::single(), gradients, &indexer, (picks, 1), attention, Divergence::PICKED, 1.0)
    };
    assert!(run(&[0, 2], &[1.0; 2]).unwrap_err().to_string().contains("picks[1] is 2"));
    assert!(run(&[0, 1], &[1.0; 3]).unwrap_err().to_string().contains("attention"));
    let mut weights = [0f32; 2];
    let of =
        attention_weights(&Cpu::single(), &mut weights, &[1f32; 3], &[1f32; 2], (1, 2, 1), &[0, 0], 1, 1.0);
    assert!(of.is_err());
}
