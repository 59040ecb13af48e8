//! The number types that routers compute in.

use crate::Cpu;
use crate::float;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Sub};

/// A type that a router forms scores in: f32 or f64.
pub trait Real:
    Copy
    + Default
    + PartialOrd
    + Send
    + Sync
    + Into<f64>
    + Sum
    + Add<Output = Self>
    + AddAssign
    + Sub<Output = Self>
    + Mul<Output = Self>
    + MulAssign
    + Div<Output = Self>
    + DivAssign
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Below every number.
    const NEG_INFINITY: Self;
    /// The least normal number above 0.
    const MIN_POSITIVE: Self;

    /// The nearest to `x`.
    fn of(x: f64) -> Self;
    /// The greater of two.
    fn max(self, other: Self) -> Self;
    /// Without its sign.
    fn abs(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// `e^x`.
    fn exp(self) -> Self;
    /// `1 / (1 + e^-x)`.
    fn sigmoid(self) -> Self;
    /// `ln(1 + e^x)`.
    fn softplus(self) -> Self;

    /// `sum[w] += Σ_row contribution`, where `work(row, partial)` adds that of one row, in an order that does not depend on the
    /// number of threads.
    fn sum_rows(cpu: &Cpu, sum: &mut [Self], rows: usize, work: impl Fn(usize, &mut [Self]) + Sync);
}

/// What both types do by methods of their own.
macro_rules! same {
    ($R:ty) => {
        const ZERO: Self = 0.0;
        const ONE: Self = 1.0;
        const NEG_INFINITY: Self = <$R>::NEG_INFINITY;
        const MIN_POSITIVE: Self = <$R>::MIN_POSITIVE;

        fn of(x: f64) -> Self {
            x as $R
        }

        fn max(self, other: Self) -> Self {
            <$R>::max(self, other)
        }

        fn abs(self) -> Self {
            <$R>::abs(self)
        }

        fn sqrt(self) -> Self {
            <$R>::sqrt(self)
        }

        fn ln(self) -> Self {
            <$R>::ln(self)
        }
    };
}

impl Real for f32 {
    same!(f32);

    fn exp(self) -> Self {
        float::exp(self)
    }

    fn sigmoid(self) -> Self {
        float::sigmoid(self)
    }

    fn softplus(self) -> Self {
        float::softplus(self)
    }

    fn sum_rows(cpu: &Cpu, sum: &mut [Self], rows: usize, work: impl Fn(usize, &mut [Self]) + Sync) {
        cpu.sum_rows(sum, rows, work);
    }
}

impl Real for f64 {
    same!(f64);

    fn exp(self) -> Self {
        f64::exp(self)
    }

    fn sigmoid(self) -> Self {
        1.0 / (1.0 + (-self).exp())
    }

    fn softplus(self) -> Self {
        if self > 40.0 { self } else { f64::exp(self).ln_1p() }
    }

    /// One row after the other, on one thread: rows of routers are few and short.
    fn sum_rows(_: &Cpu, sum: &mut [Self], rows: usize, work: impl Fn(usize, &mut [Self]) + Sync) {
        (0..rows).for_each(|row| work(row, sum));
    }
}
