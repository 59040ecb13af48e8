//! Compared with the formula in f64, and gradients with its finite differences.

use super::*;
use crate::trial::{assert_same_gradient, finite_differences, random, same_everywhere, wide64};
use ms_testing::assert_close;

/// The definition; `x` is `[kv | gate | ape]`.
fn reference(x: &[f64], rows: usize, windows: &[Window], shape: &Pooling) -> Vec<f64> {
    let (width, dim) = (shape.width(), shape.dim);
    let (kv, rest) = x.split_at(rows * width);
    let (gate, ape) = rest.split_at(rows * width);
    let mut out = Vec::new();
    for w in windows {
        for d in 0..dim {
            let mut all = Vec::new();
            if let (Some(first), true) = (w.before, shape.overlap) {
                all.extend((0..shape.ratio).map(|i| ((first + i) * width + d, i * width + d)));
            }
            let own = if shape.overlap { dim + d } else { d };
            all.extend((0..shape.ratio).map(|i| ((w.own + i) * width + own, i * width + own)));
            let weight = |&(at, i): &(usize, usize)| (gate[at] + ape[i]).exp();
            let sum: f64 = all.iter().map(weight).sum();
            out.push(all.iter().map(|slot| weight(slot) / sum * kv[slot.0]).sum());
        }
    }
    out
}

#[test]
fn entries_follow_the_formula_and_their_gradients_its_differences() {
    let after = |own: usize, before: Option<usize>| Window { own, before };
    for (overlap, windows) in [
        (false, vec![after(0, None), after(3, None), after(7, None)]),
        (true, vec![after(0, None), after(3, Some(0)), after(6, Some(3)), after(10, None)]),
    ] {
        let shape = Pooling { ratio: 3, dim: 11, overlap };
        let (rows, width) = (14, shape.width());
        let (kv, gate) = (random::<f32>(rows * width, 1), random::<f32>(rows * width, 2));
        let (ape, dout) = (random::<f32>(3 * width, 3), random::<f32>(windows.len() * 11, 4));
        let (out, d) = same_everywhere("pooling", |cpu| {
            let mut out = vec![0f32; dout.len()];
            forward(cpu, &mut out, &kv, &gate, &ape, &windows, &shape).unwrap();
            let (mut dkv, mut dgate, mut dape) =
                (vec![9f32; kv.len()], vec![9f32; kv.len()], vec![0f32; ape.len()]);
            let to = (&mut dkv[..], &mut dgate[..], &mut dape[..]);
            backward(cpu, to, &dout, &kv, &gate, &ape, &windows, &shape).unwrap();
            (out, [dkv, dgate, dape].concat())
        });
        let x = wide64(&[kv, gate, ape].concat());
        assert_close("entries", &out, &reference(&x, rows, &windows, &shape), 1e-5, 1e-6);
        let want = finite_differences(&x, |x| {
            reference(x, rows, &windows, &shape).iter().zip(&dout).map(|(o, d)| o * f64::from(*d)).sum()
        });
        assert_same_gradient("entries", &wide64(&d), &want, 1e-5);
    }
}

#[test]
fn windows_outside_the_rows_and_windows_that_meet_are_refused() {
    let shape = Pooling { ratio: 2, dim: 1, overlap: false };
    let window = |own| Window { own, before: None };
    let (cpu, x, ape) = (Cpu::single(), [0f32; 4], [0f32; 2]);
    let e = forward(&cpu, &mut [0f32], &x, &x, &ape, &[window(3)], &shape).unwrap_err();
    assert!(e.to_string().contains("windows"), "{e}");
    let (mut dkv, mut dgate, mut dape) = ([0f32; 4], [0f32; 4], [0f32; 2]);
    let to = (&mut dkv[..], &mut dgate[..], &mut dape[..]);
    let windows = [window(0), window(1)];
    assert!(backward(&cpu, to, &[0f32; 2], &x, &x, &ape, &windows, &shape).is_err());
}
