//! Compared with the formulas in f64, and gradients with their finite differences.

use super::*;
use crate::trial::{assert_same_gradient, finite_differences, random, same_everywhere, wide64};
use ms_testing::assert_close;

const EPS: f64 = 1e-3;

fn mixing(streams: usize, rounds: Option<usize>) -> Mixing {
    Mixing { streams, rounds, eps: EPS }
}

fn sigmoid64(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The definition, for one token.
fn reference(mixes: &[f64], base: &[f64], scale: &[f64], m: &Mixing) -> Vec<f64> {
    let n = m.streams;
    let z: Vec<f64> = (0..m.width()).map(|c| mixes[c] * scale[(c / n).min(2)] + base[c]).collect();
    let mut w: Vec<f64> = z[..n].iter().map(|&z| sigmoid64(z) + EPS).collect();
    let Some(rounds) = m.rounds else { return w };
    w.extend(z[n..2 * n].iter().map(|&z| 2.0 * sigmoid64(z)));
    let mut comb: Vec<Vec<f64>> = z[2 * n..]
        .chunks(n)
        .map(|row| {
            let sum: f64 = row.iter().map(|v| v.exp()).sum();
            row.iter().map(|v| v.exp() / sum + EPS).collect()
        })
        .collect();
    for step in 0..2 * rounds - 1 {
        for i in 0..n {
            if step % 2 == 0 {
                let sum: f64 = (0..n).map(|j| comb[j][i]).sum::<f64>() + EPS;
                (0..n).for_each(|j| comb[j][i] /= sum);
            } else {
                let sum: f64 = comb[i].iter().sum::<f64>() + EPS;
                comb[i].iter_mut().for_each(|v| *v /= sum);
            }
        }
    }
    w.extend(comb.into_iter().flatten());
    w
}

#[test]
fn weights_follow_the_formula_and_their_gradient_its_differences() {
    for m in [mixing(3, Some(4)), mixing(2, Some(1)), mixing(4, None)] {
        let (c, tokens) = (m.width(), 5);
        let (mixes, base) = (random::<f32>(tokens * c, 1), random::<f32>(c, 2));
        let (scale, dw) = (random::<f32>(m.scales(), 3), random::<f32>(tokens * c, 4));
        let (w, dmixes, dfixed) = same_everywhere("hyper_connections", |cpu| {
            let mut w = vec![0f32; tokens * c];
            weights(cpu, &mut w, &mixes, &base, &scale, &m).unwrap();
            let (mut dmixes, mut dfixed) = (vec![0f32; tokens * c], vec![0f32; c + m.scales()]);
            weights_backward(cpu, &mut dmixes, &mut dfixed, &dw, &mixes, &base, &scale, &m).unwrap();
            (w, dmixes, dfixed)
        });
        let all = |mixes: &[f64], fixed: &[f64]| -> Vec<f64> {
            mixes.chunks(c).flat_map(|t| reference(t, &fixed[..c], &fixed[c..], &m)).collect()
        };
        let (mixes, fixed) = (wide64(&mixes), [wide64(&base), wide64(&scale)].concat());
        assert_close("weights", &w, &all(&mixes, &fixed), 1e-5, 1e-6);
        let loss = |w: Vec<f64>| w.iter().zip(&dw).map(|(w, d)| w * f64::from(*d)).sum::<f64>();
        let want = finite_differences(&mixes, |x| loss(all(x, &fixed)));
        assert_same_gradient("mixes", &wide64(&dmixes), &want, 1e-4);
        let want = finite_differences(&fixed, |x| loss(all(&mixes, x)));
        assert_same_gradient("base and scale", &wide64(&dfixed), &want, 1e-4);
    }
}

#[test]
fn streams_make_the_input_and_take_the_output() {
    let (m, tokens, h) = (mixing(3, Some(3)), 4, 21);
    let (n, c) = (m.streams, m.width());
    let (x, y) = (random::<f32>(tokens * n * h, 5), random::<f32>(tokens * h, 6));
    let (w, dout) = (random::<f32>(tokens * c, 7), random::<f32>(tokens * n * h, 8));
    let made = same_everywhere("hyper_connections", |cpu| {
        let (mut input, mut out) = (vec![0f32; tokens * h], vec![0f32; x.len()]);
        collapse(cpu, &mut input, &x, &w, &m).unwrap();
        expand(cpu, &mut out, &x, &y, &w, &m).unwrap();
        let (mut dx, mut dw) = (vec![0f32; x.len()], vec![0f32; w.len()]);
        collapse_backward(cpu, &mut dx, &mut dw, &y, &x, &w, &m).unwrap();
        let (mut ex, mut ey, mut ew) = (vec![0f32; x.len()], vec![0f32; y.len()], vec![0f32; w.len()]);
        expand_backward(cpu, (&mut ex, &mut ey, &mut ew), &dout, &x, &y, &w, &m).unwrap();
        vec![input, out, dx, dw, ex, ey, ew]
    });
    let taken = |x: &[f64], w: &[f64]| -> Vec<f64> {
        let at = |t: usize, i: usize| (0..n).map(|j| w[t * c + j] * x[(t * n + j) * h + i]).sum();
        (0..tokens * h).map(|i| at(i / h, i % h)).collect()
    };
    let given = |x: &[f64], y: &[f64], w: &[f64]| -> Vec<f64> {
        let at = |t: usize, k: usize, i: usize| {
            let on: f64 = (0..n).map(|j| w[t * c + 2 * n + j * n + k] * x[(t * n + j) * h + i]).sum();
            on + w[t * c + n + k] * y[t * h + i]
        };
        (0..tokens * n * h).map(|i| at(i / (n * h), i / h % n, i % h)).collect()
    };
    let (x, y, w) = (wide64(&x), wide64(&y), wide64(&w));
    assert_close("input", &made[0], &taken(&x, &w), 1e-5, 1e-6);
    assert_close("streams", &made[1], &given(&x, &y, &w), 1e-5, 1e-6);
    let dot = |a: Vec<f64>, b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let dout = wide64(&dout);
    for (what, got, want) in [
        ("input by streams", &made[2], finite_differences(&x, |x| dot(taken(x, &w), &y))),
        ("input by weights", &made[3], finite_differences(&w, |w| dot(taken(&x, w), &y))),
        ("streams by streams", &made[4], finite_differences(&x, |x| dot(given(x, &y, &w), &dout))),
        ("streams by output", &made[5], finite_differences(&y, |y| dot(given(&x, y, &w), &dout))),
        ("streams by weights", &made[6], finite_differences(&w, |w| dot(given(&x, &y, w), &dout))),
    ] {
        assert_same_gradient(what, &wide64(got), &want, 1e-5);
    }
}

#[test]
fn after_many_rounds_rows_and_columns_have_sum_one() {
    let m = Mixing { streams: 4, rounds: Some(40), eps: 1e-6 };
    let mut w = vec![0f32; m.width()];
    weights(&Cpu::single(), &mut w, &random::<f32>(m.width(), 9), &[0.0; 24], &[1.0; 3], &m).unwrap();
    for i in 0..4 {
        let (row, column): (f32, f32) =
            ((0..4).map(|j| w[8 + i * 4 + j]).sum(), (0..4).map(|j| w[8 + j * 4 + i]).sum());
        assert!((row - 1.0).abs() < 1e-4 && (column - 1.0).abs() < 1e-4, "{row} {column}");
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let (cpu, m) = (Cpu::single(), mixing(2, Some(2)));
    let mut w = [0f32; 8];
    assert!(weights(&cpu, &mut w, &[0.0; 8], &[0.0; 7], &[0.0; 3], &m).is_err());
    assert!(weights(&cpu, &mut w, &[0.0; 8], &[0.0; 8], &[0.0; 1], &m).is_err());
    assert!(weights(&cpu, &mut w, &[0.0; 8], &[0.0; 8], &[0.0; 3], &mixing(2, Some(0))).is_err());
    assert!(collapse(&cpu, &mut [0f32; 3], &[0.0; 7], &[0.0; 8], &m).is_err());
    let ends = mixing(2, None);
    assert!(expand(&cpu, &mut [0f32; 6], &[0.0; 6], &[0.0; 3], &[0.0; 2], &ends).is_err());
}
