//! PyTorch's values, and the formula in f64.

use super::{backward, forward};
use crate::Cpu;
use crate::trial::{cpus, finite_differences, random, same_everywhere, wide64};
use ms_testing::{assert_close, golden, read_golden};

#[test]
fn pytorch_goldens_are_met() {
    let path = golden("ops/layernorm.safetensors");
    let (g, meta) = read_golden(&path);
    let eps: f32 = meta["eps"].parse().unwrap();
    let (x, w, b, dy) = (g["x"].f32(), g["weight"].f32(), g["bias"].f32(), g["dy"].f32());
    let (width, rows) = (w.len(), x.len() / w.len());
    for cpu in cpus(&[1, 2]) {
        let (mut y, mut stats) = (vec![0f32; x.len()], vec![0f32; 2 * rows]);
        forward(&cpu, &mut y, &mut stats, &x, &w, &b, eps).unwrap();
        assert_close("y", &y, &g["y"].values, 1e-5, 1e-6);
        let (mut dx, mut dwb) = (vec![0f32; x.len()], vec![0f32; 2 * width]);
        backward(&cpu, &mut dx, &mut dwb, &dy, &x, &w, &stats).unwrap();
        assert_close("dx", &dx, &g["dx"].values, 1e-4, 2e-6);
        assert_close("dweight", &dwb[..width], &g["dweight"].values, 1e-4, 2e-6);
        assert_close("dbias", &dwb[width..], &g["dbias"].values, 1e-4, 2e-6);
    }
}

#[test]
fn the_gradient_is_that_of_the_formula_for_any_number_of_rows() {
    let (rows, width) = (70, 9);
    let (x, w, dy) =
        (random::<f32>(rows * width, 1), random::<f32>(width, 2), random::<f32>(rows * width, 3));
    let (dx, dwb) = same_everywhere("layer_norm", |cpu| {
        let (mut y, mut stats) = (vec![0f32; x.len()], vec![0f32; 2 * rows]);
        forward(cpu, &mut y, &mut stats, &x, &w, &[], 1e-5).unwrap();
        let (mut dx, mut dwb) = (vec![0f32; x.len()], vec![0f32; 2 * width]);
        backward(cpu, &mut dx, &mut dwb, &dy, &x, &w, &stats).unwrap();
        (dx, dwb)
    });
    let value = |x: &[f64], w: &[f64], t: usize| -> f64 {
        let row = &x[..width];
        let mean = row.iter().sum::<f64>() / width as f64;
        let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / width as f64;
        let rstd = 1.0 / (var + 1e-5).sqrt();
        (0..width).map(|h| f64::from(dy[t * width + h]) * (row[h] - mean) * rstd * w[h]).sum()
    };
    let (x64, w64) = (wide64(&x), wide64(&w));
    for t in [0, 1, 63, 64, 69] {
        let want = finite_differences(&x64[t * width..][..width], |x| value(x, &w64, t));
        assert_close("dx", &dx[t * width..][..width], &want, 1e-3, 1e-4);
    }
    let want = finite_differences(&w64, |w| (0..rows).map(|t| value(&x64[t * width..], w, t)).sum());
    assert_close("dw", &dwb[..width], &want, 1e-4, 1e-4);
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let e = forward(&Cpu::single(), &mut [0f32; 6], &mut [0f32; 4], &[0f32; 6], &[1.0; 3], &[0.0; 2], 1e-5);
    assert_eq!(e.unwrap_err().to_string(), "layer_norm::forward: b has 2 elements, expected 3");
}
