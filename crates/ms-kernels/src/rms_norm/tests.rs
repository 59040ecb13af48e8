//! Every instance against the reference, the goldens and each other.

use half::bf16;
use ms_testing::{assert_close, golden, read_golden};
use proptest::prelude::*;

use super::{Options, backward, forward, forward_add, reference};
use crate::trial::{assert_same_gradient, cpus, finite_differences, random, same_everywhere, wide, wide64};
use crate::{Cpu, Element, Error};

const PLAIN: Options = Options { eps: 1e-5, unit_offset: false };

#[test]
fn pytorch_goldens_are_met() {
    let path = golden("ops/rmsnorm.safetensors");
    let (g, meta) = read_golden(&path);
    let options = Options { eps: meta["eps"].parse().unwrap(), unit_offset: false };
    for cpu in cpus(&[1, 3]) {
        let (x, w, dy) = (g["x"].f32(), g["weight"].f32(), g["dy"].f32());
        let (mut y, mut rstd) = (vec![0f32; x.len()], vec![0f32; x.len() / w.len()]);
        forward(&cpu, &mut y, &mut rstd, &x, &w, &options).unwrap();
        assert_close("y", &y, &g["y"].values, 1e-5, 1e-6);
        assert_close("rstd", &rstd, &g["rstd"].values, 1e-5, 1e-6);
        let (mut dx, mut dw) = (vec![0f32; x.len()], vec![0f32; w.len()]);
        backward(&cpu, &mut dx, &mut dw, &dy, &x, &w, &rstd, None, &options).unwrap();
        assert_close("dx", &dx, &g["dx_f64"].values, 1e-4, 1e-6);
        assert_close("dw", &dw, &g["dweight_f64"].values, 1e-4, 1e-6);

        let (x, w) = (g["x_bf16"].bf16(), g["weight_bf16"].bf16());
        let mut y = vec![bf16::ZERO; x.len()];
        forward(&cpu, &mut y, &mut rstd, &x, &w, &options).unwrap();
        assert_eq!(y, g["y_bf16"].bf16(), "the bf16 cast order is upstream's to the bit");
        let gemma = Options { unit_offset: true, ..options };
        forward(&cpu, &mut y, &mut rstd, &x, &w, &gemma).unwrap();
        assert_close("unit offset", &wide(&y), &g["y_bf16_unit_offset"].values, 8e-3, 1e-6);
    }
}

fn formula_is_met<E: Element>(rows: usize, width: usize, unit_offset: bool) {
    let options = Options { unit_offset, ..PLAIN };
    let (x, w, dy) = (random::<E>(rows * width, 1), random::<E>(width, 2), random::<E>(rows * width, 3));
    let residual = random::<E>(rows * width, 4);
    let what = format!("{} {rows}x{width} {options:?}", E::NAME);
    let (y, sum, rstd, dx, dw) = same_everywhere(&what, |cpu| {
        let (mut y, mut sum) = (vec![E::default(); x.len()], vec![E::default(); x.len()]);
        let (mut rstd, mut dx, mut dw) = (vec![0f32; rows], vec![E::default(); x.len()], vec![0.5f32; width]);
        forward_add(cpu, &mut y, &mut sum, &mut rstd, &x, &residual, &w, &options).unwrap();
        backward(cpu, &mut dx, &mut dw, &dy, &sum, &w, &rstd, Some(&residual), &options).unwrap();
        let (mut alone, mut rstd_alone) = (vec![E::default(); x.len()], vec![0f32; rows]);
        forward(cpu, &mut alone, &mut rstd_alone, &sum, &w, &options).unwrap();
        assert!(alone == y && rstd_alone == rstd, "{what}: adding first is the same as norm of the sum");
        (y, sum, rstd, dx, dw)
    });
    let (tolerance, atol) = if E::NAME == "f32" { (1e-5, 1e-6) } else { (2e-2, 2e-2) };
    let factor: Vec<f64> = wide64(&w).iter().map(|w| w + f64::from(u8::from(unit_offset))).collect();
    let mut want_dw = vec![0.5f64; width];
    for t in 0..rows {
        let row = t * width..(t + 1) * width;
        for h in row.clone() {
            assert_eq!(sum[h], E::from_f32(x[h].to_f32() + residual[h].to_f32()));
        }
        let (s, g) = (wide64(&sum[row.clone()]), wide64(&dy[row.clone()]));
        let (want, want_r) = reference::forward(&s, &factor, 1e-5);
        assert_close(&what, &wide(&y[row.clone()]), &want, tolerance, atol);
        assert_close(&what, &rstd[t..=t], &[want_r], 1e-5, 0.0);
        let (want_dx, part) = reference::backward(&g, &s, &factor, 1e-5);
        let want_dx: Vec<f64> =
            want_dx.iter().zip(wide64(&residual[row.clone()])).map(|(a, b)| a + b).collect();
        assert_close(&what, &wide(&dx[row]), &want_dx, tolerance, 10.0 * atol);
        want_dw.iter_mut().zip(part).for_each(|(a, b)| *a += b);
    }
    assert_close(&what, &dw, &want_dw, tolerance, 10.0 * atol * (rows as f64).sqrt());
}

#[test]
fn every_instance_meets_the_formula() {
    for unit_offset in [false, true] {
        formula_is_met::<f32>(3, 64, unit_offset);
        formula_is_met::<bf16>(3, 64, unit_offset);
    }
    // More rows than one unit and one partial sum of dw hold.
    formula_is_met::<f32>(200, 384, false);
    formula_is_met::<bf16>(70, 1000, false);
}

#[test]
fn the_formula_s_gradient_is_its_finite_difference() {
    let (x, w, dy) =
        (wide64(&random::<f32>(7, 1)), wide64(&random::<f32>(7, 2)), wide64(&random::<f32>(7, 3)));
    let loss = |x: &[f64], w: &[f64]| -> f64 {
        reference::forward(x, w, 1e-5).0.iter().zip(&dy).map(|(a, b)| a * b).sum()
    };
    let (dx, dw) = reference::backward(&dy, &x, &w, 1e-5);
    assert_same_gradient("dx", &dx, &finite_differences(&x, |x| loss(x, &w)), 1e-8);
    assert_same_gradient("dw", &dw, &finite_differences(&w, |w| loss(&x, w)), 1e-8);
}

#[test]
fn operands_that_do_not_fit_are_errors() {
    let cpu = Cpu::single();
    let (x, w) = (vec![1f32; 12], vec![1f32; 4]);
    let (mut y, mut rstd) = (vec![0f32; 12], vec![0f32; 3]);
    assert_eq!(forward(&cpu, &mut y, &mut rstd, &x, &w, &PLAIN), Ok(()));
    let error = forward(&cpu, &mut y, &mut rstd[..2], &x, &w, &PLAIN).unwrap_err();
    assert_eq!(error.to_string(), "rms_norm::forward: rstd has 2 elements, expected 3");
    let error = forward(&cpu, &mut y, &mut rstd, &x[..11], &w, &PLAIN).unwrap_err();
    assert_eq!(error, Error::Shape { op: "rms_norm::forward", name: "x", want: 12, got: 11 });
    assert_eq!(forward::<f32>(&cpu, &mut [], &mut [], &[], &w, &PLAIN), Ok(()));
    assert_eq!(forward::<f32>(&cpu, &mut [], &mut [], &[], &[], &PLAIN), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn any_width_meets_the_formula(rows in 0usize..6, width in 1usize..90) {
        formula_is_met::<f32>(rows, width, false);
    }
}
