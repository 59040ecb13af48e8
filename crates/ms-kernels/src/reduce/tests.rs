//! Every instance against the reference, the goldens and each other.

use half::bf16;
use ms_testing::assert_close;

use super::{ExactSum, column_sums, sum_squares};
use crate::Cpu;
use crate::trial::{random, same_everywhere, wide64};

#[test]
fn sums_meet_the_formula_on_every_instance() {
    for len in [0, 1, 63, 64, 4097, 200_003] {
        let x = random::<f32>(len, 1);
        let got = same_everywhere("sum of squares", |cpu| sum_squares(cpu, &x).to_digits());
        let got = ExactSum::from_digits(&got).unwrap().value();
        let want: f64 = wide64(&x).iter().map(|v| v * v).sum();
        assert!((got - want).abs() <= 1e-12 * want, "{len}: {got} for {want}");
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

/// Random signs and mantissas, with exponents up to this far below 1.
fn spread(len: usize, seed: u64, below: u64) -> Vec<f32> {
    let of = |i: usize| {
        let drawn = (seed + i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let drawn = (drawn ^ drawn >> 31).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let exponent = 126 - (drawn >> 40) % (below + 1);
        f32::from_bits((drawn as u32 & 0x807f_ffff) | (exponent as u32) << 23)
    };
    (0..len).map(of).collect()
}

#[test]
fn sums_of_squares_are_the_nearest_to_those_of_whole_numbers() {
    for bits in [8u32, 16, 24] {
        let whole = |v: &f32| (f64::from(*v) * f64::from(1u32 << bits)).trunc();
        let x: Vec<f32> = spread(100_000, bits.into(), 3).iter().map(|v| whole(v) as f32).collect();
        let want: u128 = x.iter().map(|&v| (v.abs() as u128).pow(2)).sum();
        let sum = sum_squares(&Cpu::single(), &x);
        assert_eq!(sum.value().to_bits(), (want as f64).to_bits(), "{bits} bits");
    }
    let of = |values: &[f64]| {
        let mut sum = ExactSum::default();
        values.iter().for_each(|&v| sum.add(v));
        sum.value()
    };
    let (one, tiny) = (2f64.powi(53), f64::from_bits(1));
    assert_eq!(of(&[one, 1.0]), one, "a tie goes to the even neighbour");
    assert_eq!(of(&[one, 1.0, tiny]), one + 2.0);
    assert_eq!(of(&[one, 1.0, -tiny]), one);
    assert_eq!(of(&[-one, -1.0, -tiny]), -(one + 2.0));
    assert_eq!(of(&[f64::MAX, 1.0, -f64::MAX]), 1.0);
    assert_eq!(of(&[tiny, tiny]), 2.0 * tiny);
    assert_eq!(of(&[f64::MAX, f64::MAX]), f64::INFINITY);
}

#[test]
fn sums_of_squares_hang_on_no_order_and_no_cut() {
    // Exponents that are summed at once, at the edge of that, and in many rounds.
    for below in [10, 21, 22, 25, 60, 125] {
        let mut x = spread(30_000, 5, below);
        let whole = same_everywhere("sum of squares", |cpu| sum_squares(cpu, &x).to_digits());
        let mut one_by_one = ExactSum::default();
        x.iter().for_each(|&v| one_by_one.add(f64::from(v) * f64::from(v)));
        assert_eq!(whole, one_by_one.to_digits(), "{below}");
        for (len, seed) in [(1, 1), (97, 2), (4096, 3), (9999, 4)] {
            x.sort_by_key(|v| (v.to_bits() as u64 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            // As ranks add them.
            let mut digits = vec![0; whole.len()];
            for part in x.chunks(len) {
                let part = sum_squares(&Cpu::single(), part).to_digits();
                digits.iter_mut().zip(part).for_each(|(sum, d)| *sum += d);
            }
            let sum = ExactSum::from_digits(&digits).unwrap();
            assert_eq!(sum.to_digits(), whole, "{below}, parts of {len}");
        }
    }
    assert!(ExactSum::from_digits(&[0; 3]).is_none());
}

#[test]
fn what_a_part_says_of_the_next_changes_no_sum() {
    // Parts of 4096 that are larger, much smaller, zero or of all sizes, one after another.
    let parts = [(10, 0), (10, 1), (10, 3), (10, -30), (5, 80), (0, -120), (120, 0), (10, 2)];
    let mut x: Vec<f32> = Vec::new();
    for (i, (below, exponent)) in parts.into_iter().enumerate() {
        let scale = 2f64.powi(exponent) as f32;
        x.extend(spread(4096, i as u64, below).iter().map(|v| v * scale));
        x.resize(x.len() + 4096 * (i % 2), 0.0);
    }
    x.truncate(x.len() - 7);
    let mut one_by_one = ExactSum::default();
    x.iter().for_each(|&v| one_by_one.add(f64::from(v) * f64::from(v)));
    let whole = same_everywhere("sum of squares", |cpu| sum_squares(cpu, &x).to_digits());
    assert_eq!(whole, one_by_one.to_digits());
    for (bad, says) in [(f32::INFINITY, f64::INFINITY), (f32::NAN, f64::NAN)] {
        x[4096 * 2 + 5] = bad;
        assert_eq!(sum_squares(&Cpu::single(), &x).value().to_bits(), says.to_bits());
    }
}

#[test]
fn a_few_small_elements_and_zeros_among_others_are_not_lost() {
    // After a part that sets the expectation, one in which this many elements are far smaller, and as many zero.
    for few in [1, 31, 32, 33, 500] {
        let mut x = spread(3 * 4096, few, 3);
        for i in 0..few as usize {
            x[4096 + 7 * i] *= 2f32.powi(-40);
            x[4096 + 7 * i + 3] = 0.0;
        }
        let mut one_by_one = ExactSum::default();
        x.iter().for_each(|&v| one_by_one.add(f64::from(v) * f64::from(v)));
        let sum = same_everywhere("sum of squares", |cpu| sum_squares(cpu, &x).to_digits());
        assert_eq!(sum, one_by_one.to_digits(), "{few}");
    }
}

#[test]
fn a_sum_of_squares_of_what_is_beyond_numbers_says_so() {
    let mut x = vec![1e30f32; 5000];
    let want = 5000.0 * f64::from(1e30f32).powi(2);
    assert_eq!(sum_squares(&Cpu::single(), &x).value(), want, "larger than f32 can hold");
    x[17] = f32::NEG_INFINITY;
    assert_eq!(sum_squares(&Cpu::single(), &x).value(), f64::INFINITY);
    x[4999] = f32::NAN;
    assert!(sum_squares(&Cpu::single(), &x).value().is_nan());
}
