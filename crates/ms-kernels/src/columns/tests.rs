//! Compared with the definitions: where columns go, and the transposes as gradients.

use super::*;
use crate::trial::{random, same_everywhere};

const RUNS: [Columns; 4] = [
    Columns::Copy { start: 3, len: 2 },
    Columns::Zero { len: 1 },
    Columns::Copy { start: 0, len: 2 },
    Columns::Copy { start: 3, len: 1 },
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
    let runs = [Columns::Copy { start: 4, len: 2 }];
    let e = forward(&Cpu::single(), &mut [0f32; 2], &[0f32; 5], 5, &runs).unwrap_err();
    assert!(e.to_string().contains("end of a run is 6"), "{e}");
}

#[test]
fn parts_stand_side_by_side() {
    let mut y = [0f32; 6];
    concat(&Cpu::single(), &mut y, &[(&[1., 2.], 1), (&[3., 4., 5., 6.], 2)], 2).unwrap();
    assert_eq!(y, [1., 3., 4., 2., 5., 6.]);
}

#[test]
fn rows_of_length_one_and_scaled_columns_have_the_gradients_of_their_formulas() {
    let (x, w, dy) = (random::<f32>(15, 1), random::<f32>(5, 2), random::<f32>(15, 3));
    let (y, z, dw, dx) = same_everywhere("unit rows", |cpu| {
        let (mut y, mut z, mut dw, mut dx) = (vec![0f32; 15], vec![0f32; 15], vec![0f32; 5], vec![0f32; 15]);
        unit_rows(cpu, &mut y, &x, 5).unwrap();
        scale(cpu, &mut z, &x, &w).unwrap();
        scale_backward(cpu, &mut dw, &dy, &x).unwrap();
        unit_rows_backward(cpu, &mut dx, &dy, &x, 5).unwrap();
        (y, z, dw, dx)
    });
    let unit = |x: &[f64]| -> f64 {
        x.chunks(5)
            .zip(dy.chunks(5))
            .map(|(row, dy)| {
                let length = row.iter().map(|v| v * v).sum::<f64>().sqrt();
                row.iter().zip(dy).map(|(v, d)| v / length * f64::from(*d)).sum::<f64>()
            })
            .sum()
    };
    let wide = crate::trial::wide64(&x);
    ms_testing::assert_close("dx", &dx, &crate::trial::finite_differences(&wide, unit), 1e-4, 1e-5);
    for t in 0..3 {
        let squares: f32 = y[5 * t..][..5].iter().map(|v| v * v).sum();
        assert!((squares - 1.0).abs() < 1e-6);
    }
    for i in 0..15 {
        assert_eq!(z[i], x[i] * w[i % 5]);
    }
    let want: Vec<f64> =
        (0..5).map(|c| (0..3).map(|t| f64::from(x[5 * t + c]) * f64::from(dy[5 * t + c])).sum()).collect();
    ms_testing::assert_close("dw", &dw, &want, 1e-5, 1e-6);
}

#[test]
fn biases_rows_and_products_of_rows_are_what_they_say() {
    let x = [1f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let (cpu, mut y) = (Cpu::single(), [0f32; 6]);
    super::add(&cpu, &mut y, &x, &[10.0, 20.0, 30.0]).unwrap();
    assert_eq!(y, [11.0, 22.0, 33.0, 14.0, 25.0, 36.0]);
    super::scale_rows(&cpu, &mut y, &x, &[2.0, -1.0]).unwrap();
    assert_eq!(y, [2.0, 4.0, 6.0, -4.0, -5.0, -6.0]);
    let mut dots = [0f32; 2];
    super::row_dot(&cpu, &mut dots, &x, &y).unwrap();
    assert_eq!(dots, [28.0, -77.0]);
    assert!(super::add(&cpu, &mut y, &x, &[1.0; 4]).is_err());
    assert!(super::scale_rows(&cpu, &mut y, &x, &[1.0; 4]).is_err());
    assert!(super::row_dot(&cpu, &mut dots, &x, &y[..3]).is_err());
}
