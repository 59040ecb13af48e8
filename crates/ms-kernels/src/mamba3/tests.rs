//! Compared with the quadratic form in f64, its finite differences, and documents processed in pieces.

use super::*;
use crate::trial::{finite_differences, random, same_everywhere, wide64};
use ms_testing::assert_close;

const SINGLE: Shape =
    Shape { heads: 2, head_dim: 3, state: 8, ranks: 1, angles: 2, pairs: Pairs::Neighbours, rate_floor: 0.5 };
const RANKS: Shape = Shape { ranks: 3, pairs: Pairs::Halves, ..SINGLE };
/// More heads than go together.
const MANY: Shape = Shape { heads: 6, ..RANKS };

fn sizes(shape: &Shape, tokens: usize) -> [usize; 15] {
    let Shape { heads: n, head_dim: p, state: s, ranks: r, angles: a, .. } = *shape;
    let by_rank = if r == 1 { 0 } else { n * r * p };
    let (x, bc, one) = (tokens * n * p, tokens * r * s, tokens * n);
    [x, x, bc, bc, one, one, one, tokens * a, n, n * r * s, n * r * s, n, by_rank, by_rank, by_rank]
}

fn cut<'a, T>(all: &'a [T], sizes: &[usize; 15]) -> [&'a [T]; 15] {
    let mut at = 0;
    sizes.map(|size| {
        at += size;
        &all[at - size..at]
    })
}

/// `y_t = Σ_{s≤t} (q_t·k_s) w_s exp(Σ_{s<u≤t} log a_u) v_s` with `w_s = Δ_s λ_s + Δ_{s+1} (1−λ_{s+1})`, without the second
/// term for `s = t`; then the skip, the gate and the sum over ranks.
fn reference(shape: &Shape, all: &[f64], borders: &[usize]) -> Vec<f64> {
    let tokens = borders[borders.len() - 1];
    let Shape { heads, head_dim: p, state: s, ranks: r, angles, pairs, rate_floor } = *shape;
    let o = Operands::of(cut(all, &sizes(shape, tokens)));
    let (soft, sig) = (|x: f64| (1.0 + x.exp()).ln(), |x: f64| 1.0 / (1.0 + (-x).exp()));
    let factor = |of: &[f64], i: usize| if of.is_empty() { 1.0 } else { of[i] };
    let mut y = vec![0.0; o.x.len()];
    for (pair, n) in borders.windows(2).flat_map(|w| (0..heads).map(move |n| (w, n))) {
        let step = |t: usize| soft(o.dt[t * heads + n] + o.dt_bias[n]);
        let log_a = |t: usize| -soft(o.rate[t * heads + n]).max(rate_floor) * step(t);
        let end = |t: usize| sig(o.trap[t * heads + n]);
        let turned = |of: &[f64], bias: &[f64], t: usize, rank: usize| {
            let mut row: Vec<f64> =
                (0..s).map(|i| of[(t * r + rank) * s + i] + bias[(n * r + rank) * s + i]).collect();
            for j in 0..angles {
                let angle: f64 = (pair[0]..=t)
                    .map(|u| o.angle[u * angles + j].tanh() * std::f64::consts::PI * step(u))
                    .sum();
                let (a, b) = if pairs == Pairs::Halves { (j, j + s / 2) } else { (2 * j, 2 * j + 1) };
                let (x, y) = (row[a], row[b]);
                row[a] = x * angle.cos() - y * angle.sin();
                row[b] = x * angle.sin() + y * angle.cos();
            }
            row
        };
        let keys: Vec<Vec<f64>> = (pair[0]..pair[1])
            .flat_map(|u| (0..r).map(move |rank| (u, rank)))
            .map(|(u, rank)| turned(o.b, o.b_bias, u, rank))
            .collect();
        for (t, to) in (pair[0]..pair[1]).flat_map(|t| (0..r).map(move |to| (t, to))) {
            let q = turned(o.c, o.c_bias, t, to);
            // What each key up to here weighs.
            let (mut weights, mut decay) = (Vec::new(), 0.0);
            for u in (pair[0]..=t).rev() {
                let later = if u < t { step(u + 1) * (1.0 - end(u + 1)) } else { 0.0 };
                for rank in 0..r {
                    let k = &keys[(u - pair[0]) * r + rank];
                    let score: f64 = q.iter().zip(k).map(|(a, b)| a * b).sum();
                    weights.push((u, rank, score * (step(u) * end(u) + later) * f64::exp(decay)));
                }
                decay += log_a(u);
            }
            for i in 0..p {
                let value = |t: usize, rank: usize| {
                    o.x[(t * heads + n) * p + i] * factor(o.rank_x, (n * r + rank) * p + i)
                };
                let inner: f64 = weights.iter().map(|&(u, rank, weight)| weight * value(u, rank)).sum();
                let sum = o.d[n] * value(t, to) + inner;
                let gate = o.z[(t * heads + n) * p + i] * factor(o.rank_z, (n * r + to) * p + i);
                y[(t * heads + n) * p + i] += sum * gate * sig(gate) * factor(o.rank_o, (n * r + to) * p + i);
            }
        }
    }
    y
}

#[test]
fn the_scan_and_its_gradient_are_those_of_the_quadratic_form() {
    for (shape, borders) in [
        (SINGLE, vec![0, 3, 4, 8]),
        (RANKS, vec![0, 1, 6]),
        (MANY, vec![0, 2, 5]),
        (SINGLE, vec![0, 70]),
        (SINGLE, vec![0, 64, 130, 130, 145]),
        (RANKS, vec![0, 21, 90, 101]),
    ] {
        let tokens = borders[borders.len() - 1];
        let segments: Vec<Segment> = borders.windows(2).map(|p| Segment::of(p[0], p[1] - p[0])).collect();
        let sizes = sizes(&shape, tokens);
        let all = random::<f32>(sizes.iter().sum(), 3);
        let scan = Scan { operands: Operands::of(cut(&all, &sizes)), segments: &segments, shape };
        let dy = random::<f32>(sizes[0], 9);
        let (y, grads) = same_everywhere("mamba3", |cpu| {
            let mut y = vec![0f32; sizes[0]];
            forward(cpu, &mut y, &mut [], &mut [], &scan).unwrap();
            let mut grads = sizes.map(|n| vec![0f32; n]);
            backward(cpu, Operands::of(grads.each_mut().map(|g| &mut g[..])), &dy, &scan).unwrap();
            (y, grads.concat())
        });
        let wide = wide64(&all);
        assert_close("y", &y, &reference(&shape, &wide, &borders), 1e-4, 1e-5);
        let loss = |all: &[f64]| -> f64 {
            reference(&shape, all, &borders).iter().zip(&dy).map(|(y, d)| y * f64::from(*d)).sum()
        };
        if tokens < 20 {
            assert_close("gradients", &grads, &finite_differences(&wide, loss), 1e-3, 1e-4);
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
    let (tokens, shape) = (70, RANKS);
    let sizes = sizes(&shape, tokens);
    let all = random::<f32>(sizes.iter().sum(), 5);
    let parts = cut(&all, &sizes);
    let run = |start: usize, len: usize, last: &mut [f32], states: &mut [f32]| {
        let mut rows = parts;
        for (row, size) in rows.iter_mut().zip(sizes).take(8) {
            *row = &row[start * size / tokens..(start + len) * size / tokens];
        }
        let segments = [Segment::of(0, len)];
        let scan = Scan { operands: Operands::of(rows), segments: &segments, shape };
        let mut y = vec![0f32; rows[0].len()];
        forward(&Cpu::single(), &mut y, last, states, &scan).unwrap();
        y
    };
    let pieces = |ends: &[usize]| {
        let mut last = vec![0f32; shape.heads * shape.last()];
        let mut states = vec![0f32; shape.heads * shape.head_dim * shape.state];
        let (mut start, mut y) = (0, Vec::new());
        for &end in ends {
            y.extend(run(start, end - start, &mut last, &mut states));
            start = end;
        }
        [y, last, states]
    };
    let whole = pieces(&[tokens]);
    assert!(run(0, tokens, &mut [], &mut []) == whole[0], "states of zero are none");
    // Where chunks begin, bit for bit; elsewhere the sums have another order.
    let chunk = 64 / shape.ranks;
    assert!(whole == pieces(&[chunk, 3 * chunk, tokens]), "cut where chunks begin");
    for (got, want) in pieces(&[4, 5, 40, 41, tokens]).iter().zip(&whole) {
        assert_close("pieces", got, &wide64(want), 1e-5, 1e-5);
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let sizes = sizes(&SINGLE, 2);
    let all = random::<f32>(sizes.iter().sum(), 5);
    let segments = [Segment::of(0, 2)];
    let scan = Scan { operands: Operands::of(cut(&all, &sizes)), segments: &segments, shape: SINGLE };
    let run = |scan: Scan<'_>| forward(&Cpu::single(), &mut [0.0; 12], &mut [], &mut [], &scan).is_err();
    assert!(!run(scan));
    assert!(run(Scan { shape: Shape { angles: 5, ..SINGLE }, ..scan }));
    assert!(run(Scan { shape: Shape { ranks: 2, ..SINGLE }, ..scan }));
    assert!(run(Scan { operands: Operands { trap: &all[..3], ..scan.operands }, ..scan }));
    assert!(run(Scan { segments: &[], ..scan }));
}
