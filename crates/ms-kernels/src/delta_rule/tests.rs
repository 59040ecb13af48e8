//! Compared with the recurrence in f64, its finite differences, and documents processed in pieces.

use super::*;
use crate::trial::{finite_differences, random, same_everywhere, wide64};
use ms_testing::assert_close;

const SHAPE: Shape = Shape { key_heads: 2, value_heads: 4, key_dim: 3, value_dim: 5 };
/// More heads of a key than go together, so that what they find of it is summed.
const MANY: Shape = Shape { value_heads: 10, ..SHAPE };

fn sizes(shape: &Shape, tokens: usize) -> [usize; 5] {
    let Shape { key_heads, value_heads, key_dim, value_dim } = *shape;
    let (k, n) = (tokens * key_heads * key_dim, tokens * value_heads);
    [k, k, n * value_dim, n, n]
}

fn split<'a, T>(shape: &Shape, all: &'a [T], tokens: usize) -> [&'a [T]; 5] {
    let mut rest = all;
    sizes(shape, tokens).map(|n| {
        let (part, tail) = rest.split_at(n);
        rest = tail;
        part
    })
}

/// The recurrence of the paper, in f64.
fn reference(shape: &Shape, all: &[f64], borders: &[usize]) -> Vec<f64> {
    let Shape { key_heads, value_heads, key_dim, value_dim } = *shape;
    let [q, k, v, g, beta] = split(shape, all, borders[borders.len() - 1]);
    let unit = |x: &[f64], factor: f64| -> Vec<f64> {
        let r = factor / (x.iter().map(|v| v * v).sum::<f64>() + 1e-6).sqrt();
        x.iter().map(|v| v * r).collect()
    };
    let mut y = vec![0.0; v.len()];
    for pair in borders.windows(2) {
        for n in 0..value_heads {
            let mut s = vec![0.0; key_dim * value_dim];
            for t in pair[0]..pair[1] {
                let key = (t * key_heads + n * key_heads / value_heads) * key_dim;
                let (q, k) = (
                    unit(&q[key..][..key_dim], (key_dim as f64).powf(-0.5)),
                    unit(&k[key..][..key_dim], 1.0),
                );
                let at = t * value_heads + n;
                s.iter_mut().for_each(|x| *x *= g[at].exp());
                for j in 0..value_dim {
                    let read: f64 = (0..key_dim).map(|i| s[i * value_dim + j] * k[i]).sum();
                    let write = beta[at] * (v[at * value_dim + j] - read);
                    for i in 0..key_dim {
                        s[i * value_dim + j] += k[i] * write;
                    }
                    y[at * value_dim + j] = (0..key_dim).map(|i| s[i * value_dim + j] * q[i]).sum();
                }
            }
        }
    }
    y
}

fn operands(shape: &Shape, tokens: usize) -> Vec<f32> {
    let mut all = random::<f32>(sizes(shape, tokens).iter().sum(), 3);
    // Decays below 1, strengths between 0 and 1.
    let n = all.len();
    let heads = tokens * shape.value_heads;
    all[n - 2 * heads..n - heads].iter_mut().for_each(|g| *g = -g.abs());
    all[n - heads..].iter_mut().for_each(|b| *b = b.abs());
    all
}

fn scan<'a>(shape: Shape, all: &'a [f32], tokens: usize, segments: &'a [Segment]) -> Scan<'a> {
    let [q, k, v, g, beta] = split(&shape, all, tokens);
    Scan { q, k, v, g, beta, segments, shape }
}

#[test]
fn the_scan_and_its_gradient_are_those_of_the_recurrence() {
    for (shape, borders) in [
        (SHAPE, vec![0usize, 3, 4, 9]),
        (SHAPE, vec![0, 70]),
        (MANY, vec![0, 2, 40]),
        (MANY, vec![0, 2, 70]),
        (SHAPE, vec![0, 64, 130, 130, 330]),
        (MANY, vec![0, 64, 130, 130, 330]),
    ] {
        let tokens = borders[borders.len() - 1];
        let segments: Vec<Segment> = borders.windows(2).map(|p| Segment::of(p[0], p[1] - p[0])).collect();
        let all = operands(&shape, tokens);
        let scan = scan(shape, &all, tokens, &segments);
        let dy = random::<f32>(scan.v.len(), 9);
        let (y, grads) = same_everywhere("delta_rule", |cpu| {
            let mut y = vec![0f32; scan.v.len()];
            forward(cpu, &mut y, &mut [], &scan).unwrap();
            let mut grads: Vec<Vec<f32>> = sizes(&shape, tokens).iter().map(|&n| vec![0f32; n]).collect();
            let [q, k, v, g, beta] = &mut grads[..] else { unreachable!() };
            backward(cpu, Gradients { q, k, v, g, beta }, &dy, &scan).unwrap();
            (y, grads.concat())
        });
        let wide = wide64(&all);
        assert_close("y", &y, &reference(&shape, &wide, &borders), 1e-4, 1e-5);
        let loss = |all: &[f64]| -> f64 {
            reference(&shape, all, &borders).iter().zip(&dy).map(|(y, d)| y * f64::from(*d)).sum()
        };
        if all.len() < 4000 {
            assert_close("gradients", &grads, &finite_differences(&wide, loss), 1e-3, 2e-4);
        } else {
            let way = wide64(&random::<f32>(all.len(), 11));
            let along = |by: f64| loss(&wide.iter().zip(&way).map(|(a, w)| a + by * w).collect::<Vec<_>>());
            let want = (along(1e-5) - along(-1e-5)) / 2e-5;
            let got: f64 = grads.iter().zip(&way).map(|(g, w)| f64::from(*g) * w).sum();
            assert!((got - want).abs() < 1e-3 * want.abs().max(1.0), "{got} for {want}");
        }
    }
}

#[test]
fn a_document_in_pieces_gives_the_same_as_in_one() {
    const TOKENS: usize = 150;
    let all = operands(&SHAPE, TOKENS);
    let run = |start: usize, len: usize, states: &mut [f32]| {
        let part: Vec<f32> = split(&SHAPE, &all, TOKENS)
            .iter()
            .flat_map(|p| p[start * p.len() / TOKENS..(start + len) * p.len() / TOKENS].to_vec())
            .collect();
        let segments = [Segment::of(0, len)];
        let mut y = vec![0f32; sizes(&SHAPE, len)[2]];
        forward(&Cpu::single(), &mut y, states, &scan(SHAPE, &part, len, &segments)).unwrap();
        y
    };
    let pieces = |ends: &[usize]| -> (Vec<f32>, Vec<f32>) {
        let mut state = vec![0f32; SHAPE.value_heads * SHAPE.key_dim * SHAPE.value_dim];
        let (mut start, mut y) = (0, Vec::new());
        for &end in ends {
            y.extend(run(start, end - start, &mut state));
            start = end;
        }
        (y, state)
    };
    let whole = pieces(&[TOKENS]);
    assert!(run(0, TOKENS, &mut []) == whole.0, "states of zero are none");
    // Where chunks begin, bit for bit; elsewhere the sums have another order.
    assert!(whole == pieces(&[64, 128, TOKENS]), "cut where chunks begin");
    let got = pieces(&[4, 5, 100, 101, TOKENS]);
    assert_close("y", &got.0, &wide64(&whole.0), 1e-5, 1e-5);
    assert_close("states", &got.1, &wide64(&whole.1), 1e-5, 1e-5);
}

#[test]
fn heads_that_do_not_divide_are_refused() {
    let bad = Scan { shape: Shape { key_heads: 3, ..SHAPE }, ..scan(SHAPE, &[], 0, &[]) };
    let e = forward(&Cpu::single(), &mut [], &mut [], &bad).unwrap_err().to_string();
    assert!(e.contains("key heads is 3"), "{e}");
}
