//! Compared with the recurrence in f64, its finite differences, and documents processed in pieces.

use super::*;
use crate::trial::{finite_differences_of_every, random, same_everywhere, wide64};
use ms_testing::assert_close;

const SHAPE: Shape = Shape { heads: 4, head_dim: 3, groups: 2, state: 5, step_limit: (0.01, 10.0) };
/// More heads of a group than go together, so that what they find of its keys is summed.
const MANY: Shape = Shape { heads: 10, ..SHAPE };

/// The recurrence as written in the paper, in f64. Operands in one vector: x, b, c, dt, `a_log`, d, `dt_bias`.
fn reference(shape: &Shape, all: &[f64], borders: &[usize]) -> Vec<f64> {
    let tokens = borders[borders.len() - 1];
    let Shape { heads, head_dim, groups, state, step_limit } = *shape;
    let sizes = sizes(shape, tokens);
    let mut parts = Vec::new();
    let mut rest = all;
    for s in sizes {
        let (a, b) = rest.split_at(s);
        parts.push(a);
        rest = b;
    }
    let [x, b, c, dt, a_log, d, bias] = parts[..] else { unreachable!() };
    let mut y = vec![0.0; x.len()];
    for pair in borders.windows(2) {
        for n in 0..heads {
            let mut h = vec![0.0; head_dim * state];
            let g = n * groups / heads;
            for t in pair[0]..pair[1] {
                let step = (1.0 + (dt[t * heads + n] + bias[n]).exp()).ln().clamp(step_limit.0, step_limit.1);
                let a = (-a_log[n].exp() * step).exp();
                for p in 0..head_dim {
                    let xv = x[(t * heads + n) * head_dim + p];
                    let mut sum = d[n] * xv;
                    for s in 0..state {
                        let v = &mut h[p * state + s];
                        *v = a * *v + step * xv * b[(t * groups + g) * state + s];
                        sum += *v * c[(t * groups + g) * state + s];
                    }
                    y[(t * heads + n) * head_dim + p] = sum;
                }
            }
        }
    }
    y
}

fn sizes(shape: &Shape, tokens: usize) -> [usize; 7] {
    let Shape { heads, head_dim, groups, state, .. } = *shape;
    let bc = tokens * groups * state;
    [tokens * heads * head_dim, bc, bc, tokens * heads, heads, heads, heads]
}

#[test]
fn the_scan_and_its_gradient_are_those_of_the_recurrence() {
    // Documents longer and shorter than a chunk, of a whole number of chunks, and empty ones.
    for (shape, borders) in [
        (SHAPE, vec![0usize, 3, 4, 9]),
        (SHAPE, vec![0, 70]),
        // Rows of six numbers, of which a group has three.
        (Shape { state: 3, ..SHAPE }, vec![0, 5, 70]),
        (MANY, vec![0, 2, 40]),
        (MANY, vec![0, 2, 70]),
        (SHAPE, vec![0, 64, 130, 130, 330]),
        (MANY, vec![0, 64, 130, 130, 330]),
    ] {
        let tokens = borders[borders.len() - 1];
        let segments: Vec<Segment> = borders.windows(2).map(|p| Segment::of(p[0], p[1] - p[0])).collect();
        let sizes = sizes(&shape, tokens);
        let all = random::<f32>(sizes.iter().sum(), 3);
        let mut at = [0usize; 8];
        for i in 0..7 {
            at[i + 1] = at[i] + sizes[i];
        }
        let part = |i: usize| &all[at[i]..at[i + 1]];
        let scan = Scan {
            x: part(0),
            b: part(1),
            c: part(2),
            dt: part(3),
            a_log: part(4),
            d: part(5),
            dt_bias: part(6),
            segments: &segments,
            shape,
        };
        let dy = random::<f32>(sizes[0], 9);
        let (y, grads) = same_everywhere("state_space", |cpu| {
            let mut y = vec![0f32; sizes[0]];
            forward(cpu, &mut y, &mut [], &scan).unwrap();
            let mut g: Vec<Vec<f32>> = sizes.iter().map(|&n| vec![0f32; n]).collect();
            let [x, b, c, dt, a_log, d, dt_bias] = &mut g[..] else { unreachable!() };
            backward(cpu, Gradients { x, b, c, dt, a_log, d, dt_bias }, &dy, &scan).unwrap();
            (y, g.concat())
        });
        let wide = wide64(&all);
        assert_close("y", &y, &reference(&shape, &wide, &borders), 1e-4, 1e-5);
        let loss = |all: &[f64]| -> f64 {
            reference(&shape, all, &borders).iter().zip(&dy).map(|(y, d)| y * f64::from(*d)).sum()
        };
        // Of few numbers each, of more every eleventh, and of many the direction alone.
        if all.len() < 4000 {
            let nth = if all.len() < 1000 { 1 } else { 11 };
            let some: Vec<f32> = grads.iter().copied().step_by(nth).collect();
            let want = finite_differences_of_every(nth, &wide, loss);
            assert_close("gradients", &some, &want, 1e-3, 1e-4);
        }
        let way = wide64(&random::<f32>(all.len(), 11));
        let along =
            |by: f64| -> f64 { loss(&wide.iter().zip(&way).map(|(a, w)| a + by * w).collect::<Vec<f64>>()) };
        let want = (along(1e-5) - along(-1e-5)) / 2e-5;
        let got: f64 = grads.iter().zip(&way).map(|(g, w)| f64::from(*g) * w).sum();
        assert!((got - want).abs() < 1e-3 * want.abs().max(1.0), "{got} for {want}");
    }
}

#[test]
fn a_document_in_pieces_gives_the_same_as_in_one() {
    let tokens = 150;
    let sizes = sizes(&SHAPE, tokens);
    let all: Vec<Vec<f32>> = sizes.iter().enumerate().map(|(i, &n)| random::<f32>(n, i as u64)).collect();
    let run = |start: usize, len: usize, states: &mut [f32]| {
        let row = |i: usize| &all[i][start * sizes[i] / tokens..(start + len) * sizes[i] / tokens];
        let segments = [Segment::of(0, len)];
        let scan = Scan {
            x: row(0),
            b: row(1),
            c: row(2),
            dt: row(3),
            a_log: &all[4],
            d: &all[5],
            dt_bias: &all[6],
            segments: &segments,
            shape: SHAPE,
        };
        let mut y = vec![0f32; row(0).len()];
        forward(&Cpu::single(), &mut y, states, &scan).unwrap();
        y
    };
    let pieces = |ends: &[usize]| -> (Vec<f32>, Vec<f32>) {
        let mut state = vec![0f32; SHAPE.heads * SHAPE.head_dim * SHAPE.state];
        let mut start = 0;
        let mut y = Vec::new();
        for &end in ends {
            y.extend(run(start, end - start, &mut state));
            start = end;
        }
        (y, state)
    };
    let whole = pieces(&[tokens]);
    assert!(run(0, tokens, &mut []) == whole.0, "states of zero are none");
    // Where chunks begin, bit for bit; elsewhere the sums have another order.
    assert!(whole == pieces(&[64, 128, tokens]), "cut where chunks begin");
    let got = pieces(&[4, 5, 100, 101, tokens]);
    assert_close("y", &got.0, &wide64(&whole.0), 1e-5, 1e-5);
    assert_close("states", &got.1, &wide64(&whole.1), 1e-5, 1e-5);
}
