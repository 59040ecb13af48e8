//! Values compared with the formulas in f64, slopes with finite differences.

use super::*;
use crate::Isa;
use crate::trial::{random, same_everywhere};
use ms_testing::assert_close;

const ALL: [Activation; 8] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::GeluErf,
    Activation::Relu2,
    Activation::Sigmoid,
    Activation::Clamped { alpha: 1.702, limit: 7.0 },
    Activation::ClampedSilu { limit: 5.0 },
    Activation::Limited { limit: 1.5 },
];

/// Simpson's rule for the normal distribution function: independent of the polynomial in the kernel.
fn normal_distribution(x: f64) -> f64 {
    let n = 2000;
    let h = x / f64::from(n);
    let density = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let mut sum = density(0.0) + density(x);
    for i in 1..n {
        sum += density(f64::from(i) * h) * if i % 2 == 1 { 4.0 } else { 2.0 };
    }
    0.5 + sum * h / 3.0
}

fn formula(kind: Activation, x: f64) -> f64 {
    let sigmoid = 1.0 / (1.0 + (-x).exp());
    match kind {
        Activation::Silu => x * sigmoid,
        Activation::Sigmoid => sigmoid,
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }
        Activation::GeluErf => x * normal_distribution(x),
        Activation::Relu2 => x.max(0.0).powi(2),
        Activation::Clamped { alpha, limit } => {
            let g = x.min(limit);
            g / (1.0 + (-alpha * g).exp())
        }
        Activation::ClampedSilu { limit } => {
            let g = x.min(limit);
            g / (1.0 + (-g).exp())
        }
        Activation::Limited { limit } => (x * sigmoid).min(limit),
    }
}

#[test]
fn values_and_slopes_follow_the_formulas_from_minus_eight_to_eight() {
    for kind in ALL {
        let x: Vec<f32> = (-400..400).map(|i| (i as f32 + 0.37) * 0.02).collect();
        let (y, dx) = same_everywhere("activation", |cpu| {
            let (mut y, mut dx) = (vec![0f32; x.len()], vec![0f32; x.len()]);
            forward(cpu, &mut y, &x, kind).unwrap();
            backward(cpu, &mut dx, &vec![1.0; x.len()], &x, kind).unwrap();
            (y, dx)
        });
        let wide = |f: &dyn Fn(f64) -> f64| x.iter().map(|&v| f(f64::from(v))).collect::<Vec<f64>>();
        assert_close(&format!("{kind:?}"), &y, &wide(&|v| formula(kind, v)), 2e-6, 1e-6);
        let slope = |v: f64| (formula(kind, v + 1e-5) - formula(kind, v - 1e-5)) / 2e-5;
        assert_close(&format!("slope of {kind:?}"), &dx, &wide(&slope), 1e-5, 2e-6);
    }
}

#[test]
fn what_is_not_a_number_stays_visible() {
    for kind in ALL {
        let (y, dx) = same_everywhere("NaN", |cpu| {
            let (mut y, mut dx) = ([0f32; 1], [0f32; 1]);
            forward(cpu, &mut y, &[f32::NAN], kind).unwrap();
            backward(cpu, &mut dx, &[1.0], &[f32::NAN], kind).unwrap();
            (y[0].is_nan(), dx[0].is_nan())
        });
        assert!(y && dx, "{kind:?}");
    }
}

#[test]
fn a_clamped_gate_clamps_and_raises_what_it_gates() {
    let cpu = Cpu::new(1, Isa::detect()).unwrap();
    let kind = Activation::Clamped { alpha: 1.702, limit: 7.0 };
    // Rows [gate, up].
    let x = [1.0f32, 2.0, 9.0, 2.0, 1.0, 8.0, 1.0, -8.0];
    let mut y = [0f32; 4];
    glu(&cpu, &mut y, &x, 1, kind).unwrap();
    let f = |g: f64| formula(kind, g);
    assert_close("clamped", &y, &[3.0 * f(1.0), 3.0 * f(7.0), 8.0 * f(1.0), -6.0 * f(1.0)], 1e-5, 1e-6);
    let mut dx = [0f32; 8];
    glu_backward(&cpu, &mut dx, &[1.0; 4], &x, 1, kind).unwrap();
    assert_eq!((dx[2], dx[5], dx[7]), (0.0, 0.0, 0.0));
    assert!(dx[1] > 0.0 && dx[3] > 0.0 && dx[6] < 0.0);
    for x in [[f32::NAN, 1.0], [1.0, f32::NAN]] {
        let mut y = [0f32];
        glu(&cpu, &mut y, &x, 1, kind).unwrap();
        assert!(y[0].is_nan(), "{x:?}");
    }
}

#[test]
fn a_limited_gate_clamps_what_it_gates() {
    let cpu = Cpu::new(1, Isa::detect()).unwrap();
    let kind = Activation::Limited { limit: 1.5 };
    let x = [1.0f32, 1.0, 9.0, 1.0, 1.0, 8.0, 1.0, -8.0];
    let mut y = [0f32; 4];
    glu(&cpu, &mut y, &x, 1, kind).unwrap();
    let one = formula(kind, 1.0);
    assert_close("limited", &y, &[one, 1.5, 1.5 * one, -1.5 * one], 1e-5, 1e-6);
    let mut dx = [0f32; 8];
    glu_backward(&cpu, &mut dx, &[1.0; 4], &x, 1, kind).unwrap();
    assert_eq!((dx[2], dx[5], dx[7]), (0.0, 0.0, 0.0));
    assert_eq!(dx[3], 1.5);
    for x in [[f32::NAN, 1.0], [1.0, f32::NAN]] {
        let mut y = [0f32];
        glu(&cpu, &mut y, &x, 1, kind).unwrap();
        assert!(y[0].is_nan(), "{x:?}");
    }
}

#[test]
fn a_gate_of_one_number_equals_a_gate_of_equal_numbers() {
    let (rows, width) = (5, 7);
    let (x, dy) = (random::<f32>(rows * width, 1), random::<f32>(rows * width, 2));
    let one = random::<f32>(rows, 3);
    let many: Vec<f32> = one.iter().flat_map(|&g| vec![g; width]).collect();
    let run = |g: &[f32]| {
        same_everywhere("gate", |cpu| {
            let (mut y, mut dx, mut dg) = (vec![0f32; x.len()], vec![0f32; x.len()], vec![0f32; g.len()]);
            gate(cpu, &mut y, &x, g, rows, Activation::Sigmoid).unwrap();
            gate_backward(cpu, &mut dx, &mut dg, &dy, &x, g, rows, Activation::Sigmoid).unwrap();
            (y, dx, dg)
        })
    };
    let ((y1, dx1, dg1), (y2, dx2, dg2)) = (run(&one), run(&many));
    assert_eq!((y1, dx1), (y2, dx2));
    let sums: Vec<f64> = dg2.chunks(width).map(|r| r.iter().map(|&v| f64::from(v)).sum()).collect();
    assert_close("dgate", &dg1, &sums, 1e-5, 1e-6);
}

#[test]
fn glu_with_silu_is_swiglu() {
    let (rows, f) = (3, 21);
    let (x, dy) = (random::<f32>(2 * rows * f, 1), random::<f32>(rows * f, 2));
    let cpu = Cpu::single();
    let (mut a, mut b) = (vec![0f32; rows * f], vec![0f32; rows * f]);
    glu(&cpu, &mut a, &x, f, Activation::Silu).unwrap();
    crate::swiglu::forward(&cpu, &mut b, &x, rows, f).unwrap();
    let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    assert_close("y", &a, &wide(&b), 1e-6, 1e-7);
    let (mut a, mut b) = (vec![0f32; x.len()], vec![0f32; x.len()]);
    glu_backward(&cpu, &mut a, &dy, &x, f, Activation::Silu).unwrap();
    crate::swiglu::backward(&cpu, &mut b, &dy, &x, rows, f).unwrap();
    assert_close("dx", &a, &wide(&b), 1e-5, 1e-6);
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let cpu = Cpu::single();
    let e = glu(&cpu, &mut [0f32; 4], &[0f32; 9], 4, Activation::Silu).unwrap_err();
    assert_eq!(e.to_string(), "activation::glu: x has 9 elements, expected 8");
    assert!(gate(&cpu, &mut [0f32; 4], &[0f32; 4], &[0f32; 3], 2, Activation::Silu).is_err());
}
