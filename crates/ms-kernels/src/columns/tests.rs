use super::*;
use crate::trial::{random, same_everywhere};

const RUNS: [Run; 4] = [
    Run::Copy { start: 3, len: 2 },
    Run::Zero { len: 1 },
    Run::Copy { start: 0, len: 2 },
    Run::Copy { start: 3, len: 1 },
];

#[test]
fn columns_go_where_the_runs_say() {
    let x: Vec<f32> = (0..10).map(|v| v as f32).collect();
    let mut y = vec![9f32; 12];
    forward(&Cpu::single(), &mut y, &x, 5, &RUNS).unwrap();
    assert_eq!(y, [3., 4., 0., 0., 1., 3., 8., 9., 0., 5., 6., 8.]);
}

#[test]
fn the_gradient_is_the_transpose_of_the_rearrangement() {
    let (x, dy) = (random::<f32>(35, 1), random::<f32>(42, 2));
    let (y, dx) = same_everywhere("columns", |cpu| {
        let (mut y, mut dx) = (vec![0f32; 42], vec![0f32; 35]);
        forward(cpu, &mut y, &x, 5, &RUNS).unwrap();
        backward(cpu, &mut dx, &dy, 5, &RUNS).unwrap();
        (y, dx)
    });
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    assert!((dot(&y, &dy) - dot(&x, &dx)).abs() < 1e-5);
    assert!(dx.iter().skip(2).step_by(5).all(|&d| d == 0.0), "nothing reads column 2");
}

#[test]
fn a_run_past_the_last_column_is_refused() {
    let runs = [Run::Copy { start: 4, len: 2 }];
    let e = forward(&Cpu::single(), &mut [0f32; 2], &[0f32; 5], 5, &runs).unwrap_err();
    assert!(e.to_string().contains("end of a run is 6"), "{e}");
}

#[test]
fn parts_stand_side_by_side() {
    let mut y = [0f32; 6];
    concat(&Cpu::single(), &mut y, &[(&[1., 2.], 1), (&[3., 4., 5., 6.], 2)], 2).unwrap();
    assert_eq!(y, [1., 3., 4., 2., 5., 6.]);
}
