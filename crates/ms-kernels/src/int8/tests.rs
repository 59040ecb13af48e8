//! The definition in f64, bounds of the rounding, equality of bits.

use half::bf16;
use ms_testing::assert_close;

use super::{Dims, linear, quantize, row_bytes};
use crate::trial::{random, same_everywhere, wide64};
use crate::{Cpu, Element};

/// The bytes of a weight.
fn bytes<E: Element>(w: &[E], n: usize, k: usize) -> Vec<u8> {
    let mut bytes = vec![9; n * row_bytes(k)];
    quantize(&Cpu::single(), &mut bytes, w, n, k).unwrap();
    bytes
}

#[test]
fn a_weight_comes_back_within_half_a_level_of_its_row() {
    for (n, k) in [(1, 1), (3, 64), (5, 100), (2, 515)] {
        let w: Vec<f32> =
            random::<f32>(n * k, 7).iter().enumerate().map(|(i, v)| v * (1 + i / k) as f32).collect();
        let bytes = same_everywhere("bytes", |cpu| {
            let mut bytes = vec![9; n * row_bytes(k)];
            quantize(cpu, &mut bytes, &w, n, k).unwrap();
            bytes
        });
        let back: Vec<f32> = bytes
            .chunks(row_bytes(k))
            .flat_map(|row| {
                let scale = super::body::scale_of(row);
                row[..k].iter().map(move |code| f32::from(code.cast_signed()) * scale)
            })
            .collect();
        for (row, back) in w.chunks(k).zip(back.chunks(k)) {
            let max = row.iter().fold(0f32, |m, v| m.max(v.abs()));
            for (w, b) in row.iter().zip(back) {
                assert!((w - b).abs() <= max / 127.0 * 0.5001, "{w} became {b}, largest {max}");
            }
        }
    }
}

/// The definition in f64: `x` rounded in groups of 64, whole numbers, scales.
fn formula(x: &[f64], w: &[f64], m: usize, n: usize, k: usize) -> Vec<f64> {
    let round = |values: &[f64]| -> (Vec<f64>, f64) {
        let max = values.iter().fold(0f64, |m, v| m.max(v.abs()));
        // Levels are f32 as in the kernel, or a value near the border of two would fall to the other.
        let (scale, inverse) = (max as f32 / 127.0, 127.0 / max as f32);
        (values.iter().map(|v| (v * f64::from(inverse)).round_ties_even()).collect(), f64::from(scale))
    };
    let mut y = Vec::with_capacity(m * n);
    for x in x.chunks(k) {
        let x: Vec<f64> = x
            .chunks(64)
            .flat_map(|group| {
                let (codes, scale) = round(group);
                codes.into_iter().map(move |c| c * scale)
            })
            .collect();
        for w in w.chunks(k) {
            let (codes, scale) = round(w);
            y.push(codes.iter().zip(&x).map(|(c, x)| c * x).sum::<f64>() * scale);
        }
    }
    y
}

/// Products in f32 with a bias against the definition.
fn check_formula(m: usize, n: usize, k: usize) {
    let (x, w) = (random::<f32>(m * k, 3), random::<f32>(n * k, 5));
    let (bias, bytes) = (random::<f32>(n, 8), bytes(&w, n, k));
    let y = same_everywhere(&format!("{m} x {n} x {k}"), |cpu| {
        let mut y = vec![0f32; m * n];
        linear(cpu, &mut y, &x, &bytes, Some(&bias), Dims { m, n, k }).unwrap();
        y
    });
    let mut want = if k == 0 { vec![0.0; m * n] } else { formula(&wide64(&x), &wide64(&w), m, n, k) };
    for row in want.chunks_mut(n) {
        row.iter_mut().zip(&bias).for_each(|(y, b)| *y += f64::from(*b));
    }
    assert_close("products", &y, &want, 1e-5, 1e-4);
}

#[test]
fn few_rows_follow_the_definition_with_equal_bits_everywhere() {
    for (m, n, k) in
        [(1, 300, 64), (1, 5, 63), (2, 7, 129), (3, 40, 515), (5, 9, 1000), (8, 33, 96), (1, 1, 1)]
    {
        check_formula(m, n, k);
    }
}

#[test]
fn many_rows_follow_it_too() {
    // Remainders of tiles of every body, of lines and of panels, and more rows than a unit takes.
    for (m, n, k) in [(9, 33, 64), (12, 16, 70), (33, 65, 515), (40, 7, 1), (600, 35, 129), (10, 3, 0)] {
        check_formula(m, n, k);
    }
}

/// The sums of [`linear`] with many rows, one after another.
fn in_order(x: &[f32], w: &[f32], (m, n, k): (usize, usize, usize)) -> Vec<f32> {
    let (bytes, width) = (bytes(w, n, k), row_bytes(k));
    let mut y = Vec::with_capacity(m * n);
    for x in x.chunks(k) {
        let lines: Vec<([i32; 64], f32)> = x
            .chunks(64)
            .map(|x| {
                let mut codes = [0; 64];
                let (scale, inverse) = super::body::scale(x);
                codes.iter_mut().zip(x).for_each(|(to, v)| *to = super::body::code(*v, inverse));
                (codes, scale)
            })
            .collect();
        for row in bytes.chunks_exact(width) {
            let sum = lines.iter().zip(row.chunks_exact(64)).fold(0f32, |sum, ((codes, scale), row)| {
                let whole: i32 = codes.iter().zip(row).map(|(c, w)| c * i32::from(w.cast_signed())).sum();
                (whole as f32).mul_add(*scale, sum)
            });
            y.push(sum * super::body::scale_of(row));
        }
    }
    y
}

#[test]
fn sums_of_many_rows_are_one_chain_of_lines() {
    let (m, n, k) = (21, 40, 900);
    let (x, w) = (random::<f32>(m * k, 3), random::<f32>(n * k, 5));
    let y = same_everywhere("many rows", |cpu| {
        let mut y = vec![0f32; m * n];
        linear(cpu, &mut y, &x, &bytes(&w, n, k), None, Dims { m, n, k }).unwrap();
        y
    });
    assert!(y == in_order(&x, &w, (m, n, k)));
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn matrix_tiles_of_bytes_give_the_same_bits() {
    use super::many::{amx::Amx, product};
    use crate::Isa;
    use crate::matmul::kernel::tile32::trap;
    if !Isa::Avx512.is_available() {
        eprintln!("skipped: packing for AMX needs AVX-512");
        return;
    }
    let in_software = trap::install();
    let before = trap::performed();
    for (m, n, k) in [(32, 32, 64), (9, 3, 1), (33, 65, 515), (70, 40, 1100)] {
        let (x, w) = (random::<f32>(m * k, 3), random::<f32>(n * k, 5));
        for threads in [1, 3] {
            let cpu = Cpu::new(threads, Isa::Avx512).unwrap();
            let mut y = vec![0f32; m * n];
            // SAFETY: sizes fit, and the instructions are performed.
            unsafe { product::<Amx, f32>(&cpu, &mut y, &x, &bytes(&w, n, k), None, Dims { m, n, k }) };
            assert!(y == in_order(&x, &w, (m, n, k)), "{m} x {n} x {k}, {threads} threads");
        }
    }
    assert_eq!(trap::performed() > before, in_software, "the tile instructions ran");
}

#[test]
fn rows_of_bf16_are_near_the_product_without_rounding() {
    for m in [4, 20] {
        is_near(m, 64, 2048);
    }
}

fn is_near(m: usize, n: usize, k: usize) {
    let (x, w) = (random::<bf16>(m * k, 3), random::<bf16>(n * k, 5));
    let mut y = vec![bf16::ZERO; m * n];
    linear(&Cpu::single(), &mut y, &x, &bytes(&w, n, k), None, Dims { m, n, k }).unwrap();
    let (x, w) = (wide64(&x), wide64(&w));
    let (mut error, mut size) = (0f64, 0f64);
    for i in 0..m {
        for j in 0..n {
            let want: f64 = x[i * k..][..k].iter().zip(&w[j * k..][..k]).map(|(a, b)| a * b).sum();
            error += (y[i * n + j].to_f64() - want).powi(2);
            size += want * want;
        }
    }
    assert!((error / size).sqrt() < 0.01, "relative error {}", (error / size).sqrt());
}

#[test]
fn what_is_no_number_stays_visible_and_zero_is_zero() {
    for m in [1, 9] {
        is_visible(m, 2, 70);
    }
}

fn is_visible(m: usize, n: usize, k: usize) {
    let mut w = vec![0f32; n * k];
    w[k + 3] = f32::INFINITY;
    let mut x = vec![0f32; m * k];
    let run = |x: &[f32]| {
        same_everywhere("zeros", |cpu| {
            let mut y = vec![5f32; m * n];
            linear(cpu, &mut y, x, &bytes(&w, n, k), None, Dims { m, n, k }).unwrap();
            y[..n].iter().map(|y| y.is_nan()).collect::<Vec<_>>()
        })
    };
    assert_eq!(run(&x), [false, true]);
    x[1] = f32::NAN;
    assert_eq!(run(&x), [true, true]);
}

#[test]
fn operands_that_do_not_fit_are_errors() {
    let mut y = [0f32; 2];
    let error = linear(&Cpu::single(), &mut y, &[0.0; 3], &[0; 128], None, Dims { m: 2, n: 1, k: 3 });
    assert!(error.unwrap_err().to_string().contains('x'));
}
