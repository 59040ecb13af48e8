//! Every instance against the reference, the goldens and each other.

use half::bf16;
use ms_testing::{assert_close, golden, read_golden};
use proptest::prelude::*;

use super::{backward, forward, reference};
use crate::trial::{assert_same_gradient, cpus, finite_differences, random, same_everywhere, wide, wide64};
use crate::{Cpu, Element, Error};

#[test]
fn pytorch_goldens_are_met() {
    let path = golden("ops/swiglu.safetensors");
    let (g, _) = read_golden(&path);
    let (tokens, f) = (g["y"].shape[0], g["y"].shape[1]);
    for cpu in cpus(&[1, 2]) {
        let (x, dy) = (g["x"].f32(), g["dy"].f32());
        let (mut y, mut dx) = (vec![0f32; dy.len()], vec![0f32; x.len()]);
        forward(&cpu, &mut y, &x, tokens, f).unwrap();
        assert_close("y", &y, &g["y"].values, 1e-5, 1e-6);
        backward(&cpu, &mut dx, &dy, &x, tokens, f).unwrap();
        assert_close("dx", &dx, &g["dx"].values, 1e-4, 1e-6);
    }
}

fn formula_is_met<E: Element>(tokens: usize, f: usize) {
    let x: Vec<E> = random::<E>(2 * tokens * f, 1).iter().map(|v| E::from_f32(v.to_f32() * 12.0)).collect();
    let dy = random::<E>(tokens * f, 2);
    let (y, dx) = same_everywhere("swiglu", |cpu| {
        let (mut y, mut dx) = (vec![E::default(); dy.len()], vec![E::default(); x.len()]);
        forward(cpu, &mut y, &x, tokens, f).unwrap();
        backward(cpu, &mut dx, &dy, &x, tokens, f).unwrap();
        (y, dx)
    });
    let rtol = if E::NAME == "f32" { 2e-6 } else { 8e-3 };
    for t in 0..tokens {
        let (gate, up) = x[2 * t * f..][..2 * f].split_at(f);
        for i in 0..f {
            let (g, u, d) =
                (f64::from(gate[i].to_f32()), f64::from(up[i].to_f32()), f64::from(dy[t * f + i].to_f32()));
            assert_close("y", &[y[t * f + i].to_f32()], &[reference::forward(g, u)], rtol, 1e-9);
            let (dg, du) = reference::backward(d, g, u);
            assert_close("dgate", &[dx[2 * t * f + i].to_f32()], &[dg], rtol, 2e-5);
            assert_close("dup", &[dx[2 * t * f + f + i].to_f32()], &[du], rtol, 1e-9);
        }
    }
}

#[test]
fn every_instance_meets_the_formula() {
    formula_is_met::<f32>(300, 130);
    formula_is_met::<bf16>(40, 1000);
}

#[test]
fn the_formula_s_gradient_is_its_finite_difference() {
    for x in wide64(&random::<f32>(40, 5)).chunks_exact(2) {
        let (g, u) = reference::backward(0.7, 4.0 * x[0], x[1]);
        let slope = finite_differences(&[4.0 * x[0], x[1]], |x| 0.7 * reference::forward(x[0], x[1]));
        assert_same_gradient("gate and up", &[g, u], &slope, 1e-8);
    }
}

#[test]
fn large_gates_neither_overflow_nor_lose_their_value() {
    let x = [-1e4f32, 1e4, -100.0, 100.0, 2.0, 3.0, 2.0, 3.0];
    let mut y = [0f32; 4];
    forward(&Cpu::single(), &mut y, &x, 1, 4).unwrap();
    assert!(y[0].abs() < 1e-30 && y[2].abs() < 1e-30, "{y:?}");
    assert_eq!(wide(&[y[1], y[3]]), [3e4, 300.0]);
}

#[test]
fn operands_that_do_not_fit_are_errors() {
    let (cpu, x, mut y) = (Cpu::single(), [0f32; 12], [0f32; 6]);
    assert_eq!(forward(&cpu, &mut y, &x, 2, 3), Ok(()));
    assert!(matches!(forward(&cpu, &mut y, &x, 2, 4), Err(Error::Shape { name: "x", want: 16, .. })));
    assert!(matches!(forward(&cpu, &mut y[..5], &x, 2, 3), Err(Error::Shape { name: "y", .. })));
    assert_eq!(forward::<f32>(&cpu, &mut [], &[], 5, 0), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn any_size_meets_the_formula(tokens in 0usize..5, f in 0usize..70) {
        formula_is_met::<f32>(tokens, f);
    }
}
