//! Shared by the tests of all kernels: instances to try, data, comparison.

use crate::{Arithmetic, Cpu, Element, Isa};

/// A [`Cpu`] for every instruction set of this processor and every number of threads; all give the same bits.
pub(crate) fn cpus(threads: &[usize]) -> Vec<Cpu> {
    cpus_in(Arithmetic::Pair, threads)
}

/// [`cpus`] of one order of sums.
pub(crate) fn cpus_in(arithmetic: Arithmetic, threads: &[usize]) -> Vec<Cpu> {
    let mut all = Vec::new();
    for isa in Isa::all_available() {
        all.extend(threads.iter().map(|&t| Cpu::with_arithmetic(t, isa, arithmetic).unwrap()));
    }
    all
}

/// Every instruction set of this processor with several threads in one order of sums: the newest with 1, 2, 3 and 5, others
/// with 1 and 3, for what cuts work into units is the same.
pub(crate) fn cpus_of_many_counts(arithmetic: Arithmetic) -> Vec<Cpu> {
    let mut all = cpus_in(arithmetic, &[1, 3]);
    all.extend([2, 5].map(|t| Cpu::with_arithmetic(t, Isa::detect(), arithmetic).unwrap()));
    all
}

/// Numbers in (-1, 1) from a fixed seed.
pub(crate) fn random<E: Element>(len: usize, seed: u64) -> Vec<E> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            E::from_f32((s >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
        })
        .collect()
}

/// Widened to f32.
pub(crate) fn wide<E: Element>(x: &[E]) -> Vec<f32> {
    x.iter().map(|v| v.to_f32()).collect()
}

/// Widened to f64.
pub(crate) fn wide64<E: Element>(x: &[E]) -> Vec<f64> {
    x.iter().map(|v| f64::from(v.to_f32())).collect()
}

/// Runs `work` on [`cpus_of_many_counts`], asserts that all results have the same bits
/// (as `PartialEq` of results without NaN or signed zeros sees them), and returns one.
pub(crate) fn same_everywhere<R: PartialEq>(what: &str, work: impl Fn(&Cpu) -> R) -> R {
    let mut first: Option<R> = None;
    for cpu in cpus_of_many_counts(Arithmetic::Pair) {
        let result = work(&cpu);
        match &first {
            Some(want) => assert!(*want == result, "{what}: {cpu:?} differs from the first"),
            None => first = Some(result),
        }
    }
    first.expect("at least the portable instance ran")
}

/// Central differences of `loss` by each element of `x`.
pub(crate) fn finite_differences(x: &[f64], loss: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    finite_differences_of_every(1, x, loss)
}

/// Central differences of `loss` by elements 0, `nth`, 2 `nth` ... of `x`.
pub(crate) fn finite_differences_of_every(nth: usize, x: &[f64], loss: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let mut moved = x.to_vec();
    (0..x.len())
        .step_by(nth)
        .map(|i| {
            let mut at = |step: f64| {
                moved[i] = x[i] + step;
                let value = loss(&moved);
                moved[i] = x[i];
                value
            };
            (at(1e-5) - at(-1e-5)) / 2e-5
        })
        .collect()
}

/// Asserts that two f64 gradients agree to `tolerance`.
#[track_caller]
pub(crate) fn assert_same_gradient(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * (1.0 + w.abs()), "{what}: element {i}: {g} for {w}");
    }
}
