//! Every instance against the reference, the goldens and each other.

use half::bf16;
use ms_testing::assert_close;

use super::{column_sums, has_non_finite, sum_squares};
use crate::Cpu;
use crate::trial::{random, same_everywhere, wide64};

#[test]
fn sums_meet_the_formula_on_every_instance() {
    for len in [0, 1, 63, 64, 4097, 200_003] {
        let x = random::<f32>(len, 1);
        let got = same_everywhere("sum of squares", |cpu| sum_squares(cpu, &x));
        let want: f64 = wide64(&x).iter().map(|v| v * v).sum();
        assert!((got - want).abs() <= 1e-6 * want, "{len}: {got} for {want}");
    }
    for (rows, cols) in [(0, 5), (1, 1), (200, 37), (65, 300)] {
        let x = random::<bf16>(rows * cols, 2);
        let got = same_everywhere("column sums", |cpu| {
            let mut out = vec![0.5f32; cols];
            column_sums(cpu, &mut out, &x, rows, cols).unwrap();
            out
        });
        let want: Vec<f64> = (0..cols)
            .map(|c| 0.5 + (0..rows).map(|r| f64::from(x[r * cols + c].to_f32())).sum::<f64>())
            .collect();
        assert_close("column sums", &got, &want, 1e-5, 1e-5);
    }
    assert!(column_sums(&Cpu::single(), &mut [0.0], &[1f32; 3], 2, 1).is_err());
}

#[test]
fn one_bad_element_anywhere_is_found() {
    let mut x = random::<f32>(150_000, 3);
    assert!(!same_everywhere("finite", |cpu| has_non_finite(cpu, &x)));
    for (at, bad) in [(0, f32::NAN), (70_000, f32::INFINITY), (149_999, f32::NEG_INFINITY)] {
        let before = std::mem::replace(&mut x[at], bad);
        assert!(same_everywhere("not finite", |cpu| has_non_finite(cpu, &x)), "{bad} at {at}");
        x[at] = before;
    }
    assert!(has_non_finite(&Cpu::single(), &[bf16::ONE, bf16::NAN]));
    assert!(!has_non_finite::<f32>(&Cpu::single(), &[]));
}
