//! Numbers that record how they were computed, for automatic differentiation.
//!
//! A definition is written once, over [`Real`]. Evaluated on `f64` it gives values; evaluated on [`Traced`] it leaves a tape,
//! from which [`gradient`] computes the derivatives by the chain rule, last operation first.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// What definitions compute with.
pub(crate) trait Real:
    Copy
    + From<f64>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// The number itself, for choices that have no derivative.
    fn value(self) -> f64;
    /// `e^x`.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Cosine.
    fn cos(self) -> Self;
    /// Sine.
    fn sin(self) -> Self;
    /// The error function.
    fn erf(self) -> Self;
    /// `ln(1 + e^x)`.
    fn softplus(self) -> Self;

    /// `1 / (1 + e^-x)`.
    fn sigmoid(self) -> Self {
        // The same number both ways; this one never overflows.
        if self.value() < 0.0 {
            let e = self.exp();
            return e / (e + 1.0.into());
        }
        Self::from(1.0) / (Self::from(1.0) + (-self).exp())
    }
    /// The smaller.
    fn min(self, other: Self) -> Self {
        if other.value() < self.value() { other } else { self }
    }
    /// The larger.
    fn max(self, other: Self) -> Self {
        if other.value() > self.value() { other } else { self }
    }
}

impl Real for f64 {
    fn value(self) -> f64 {
        self
    }
    fn exp(self) -> Self {
        f64::exp(self)
    }
    fn ln(self) -> Self {
        f64::ln(self)
    }
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }
    fn tanh(self) -> Self {
        f64::tanh(self)
    }
    fn cos(self) -> Self {
        f64::cos(self)
    }
    fn sin(self) -> Self {
        f64::sin(self)
    }
    fn erf(self) -> Self {
        libm::erf(self)
    }
    fn softplus(self) -> Self {
        f64::max(self, 0.0) + (-self.abs()).exp().ln_1p()
    }
}

/// A number on the tape of its thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traced {
    value: f64,
    /// Place on the tape; `CONSTANT` for a number that nothing is differentiated by.
    place: u32,
}

const CONSTANT: u32 = u32::MAX;

/// For each number, the positions of its operands, with the derivative with respect to each.
type Made = [(u32, f64); 2];

thread_local! {
    static TAPE: RefCell<Vec<Made>> = const { RefCell::new(Vec::new()) };
}

impl Traced {
    fn made(value: f64, of: Made) -> Self {
        if of.iter().all(|o| o.0 == CONSTANT) {
            return value.into();
        }
        TAPE.with_borrow_mut(|tape| {
            tape.push(of);
            Self { value, place: tape.len() as u32 - 1 }
        })
    }

    fn input(value: f64) -> Self {
        TAPE.with_borrow_mut(|tape| {
            tape.push([(CONSTANT, 0.0); 2]);
            Self { value, place: tape.len() as u32 - 1 }
        })
    }

    fn by(self, value: f64, slope: f64) -> Self {
        Self::made(value, [(self.place, slope), (CONSTANT, 0.0)])
    }
}

impl From<f64> for Traced {
    fn from(value: f64) -> Self {
        Self { value, place: CONSTANT }
    }
}

impl Add for Traced {
    type Output = Self;
    fn add(self, o: Self) -> Self {
        Self::made(self.value + o.value, [(self.place, 1.0), (o.place, 1.0)])
    }
}

impl Sub for Traced {
    type Output = Self;
    fn sub(self, o: Self) -> Self {
        Self::made(self.value - o.value, [(self.place, 1.0), (o.place, -1.0)])
    }
}

impl Mul for Traced {
    type Output = Self;
    fn mul(self, o: Self) -> Self {
        Self::made(self.value * o.value, [(self.place, o.value), (o.place, self.value)])
    }
}

impl Div for Traced {
    type Output = Self;
    fn div(self, o: Self) -> Self {
        let value = self.value / o.value;
        Self::made(value, [(self.place, 1.0 / o.value), (o.place, -value / o.value)])
    }
}

impl Neg for Traced {
    type Output = Self;
    fn neg(self) -> Self {
        self.by(-self.value, -1.0)
    }
}

impl Real for Traced {
    fn value(self) -> f64 {
        self.value
    }
    fn exp(self) -> Self {
        let e = self.value.exp();
        self.by(e, e)
    }
    fn ln(self) -> Self {
        self.by(self.value.ln(), 1.0 / self.value)
    }
    fn sqrt(self) -> Self {
        let root = self.value.sqrt();
        self.by(root, 0.5 / root)
    }
    fn tanh(self) -> Self {
        let t = self.value.tanh();
        self.by(t, 1.0 - t * t)
    }
    fn cos(self) -> Self {
        self.by(self.value.cos(), -self.value.sin())
    }
    fn sin(self) -> Self {
        self.by(self.value.sin(), self.value.cos())
    }
    fn erf(self) -> Self {
        let slope = std::f64::consts::FRAC_2_SQRT_PI * (-self.value * self.value).exp();
        self.by(libm::erf(self.value), slope)
    }
    fn softplus(self) -> Self {
        self.by(Real::softplus(self.value), Real::sigmoid(self.value))
    }
}

/// The gradients, by the elements of each of `inputs`, of `Σ_i dy[i] · f(inputs)[i]`.
///
/// # Panics
/// If `f` does not give as many numbers as `dy` has.
pub(crate) fn gradient<const N: usize>(
    inputs: [&[f64]; N],
    dy: &[f64],
    f: impl FnOnce([&[Traced]; N]) -> Vec<Traced>,
) -> [Vec<f64>; N] {
    TAPE.with_borrow_mut(Vec::clear);
    let traced = inputs.map(|x| x.iter().map(|&v| Traced::input(v)).collect::<Vec<_>>());
    let y = f(traced.each_ref().map(Vec::as_slice));
    assert_eq!(y.len(), dy.len(), "a gradient for each number");
    TAPE.with_borrow_mut(|tape| {
        let mut slopes = vec![0f64; tape.len()];
        for (y, d) in y.iter().zip(dy).filter(|(y, _)| y.place != CONSTANT) {
            slopes[y.place as usize] += d;
        }
        for place in (0..tape.len()).rev() {
            let slope = slopes[place];
            for (of, by) in tape[place] {
                if of != CONSTANT {
                    slopes[of as usize] += slope * by;
                }
            }
        }
        tape.clear();
        traced.map(|x| x.iter().map(|t| slopes[t.place as usize]).collect())
    })
}

/// The sum of `values`.
pub(crate) fn sum<R: Real>(values: impl IntoIterator<Item = R>) -> R {
    values.into_iter().fold(R::from(0.0), |sum, v| sum + v)
}

/// `Σ a·b`.
pub(crate) fn dot<R: Real>(a: &[R], b: &[R]) -> R {
    sum(a.iter().zip(b).map(|(&a, &b)| a * b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all<R: Real>(x: &[R]) -> Vec<R> {
        let [a, b] = [x[0], x[1]];
        vec![
            (a * b - a / b).exp(),
            (a * a + 1.0.into()).sqrt() + b.tanh(),
            a.cos() * b.sin() - (-a).erf(),
            (a + b).softplus() * (b - a).sigmoid(),
            a.min(b) * 3.0.into() + a.max(b),
        ]
    }

    #[test]
    fn the_chain_rule_agrees_with_differences() {
        let (x, dy) = ([0.7, -1.3], [0.3, -1.0, 0.5, 2.0, 1.5]);
        let [got] = gradient([&x], &dy, |[x]| all(x));
        let loss = |x: &[f64]| dot(&all(x), &dy);
        for i in 0..2 {
            let along = |h: f64| {
                let mut moved = x;
                moved[i] += h;
                loss(&moved)
            };
            let want = (along(1e-6) - along(-1e-6)) / 2e-6;
            assert!((got[i] - want).abs() < 1e-8, "{i}: {} for {want}", got[i]);
        }
    }

    #[test]
    fn constants_and_repeated_use_are_counted() {
        let [x, y] =
            gradient([&[3.0], &[5.0]], &[1.0, 1.0], |[x, y]| vec![x[0] * x[0], x[0] * y[0] * 2.0.into()]);
        assert_eq!((x, y), (vec![16.0], vec![6.0]));
        assert_eq!(gradient([&[1.0]], &[1.0], |_| vec![Traced::from(2.0)]), [vec![0.0]]);
    }

    #[test]
    fn the_sigmoid_does_not_overflow() {
        for x in [-1000.0, 1000.0] {
            assert!(Real::sigmoid(x).is_finite() && Real::softplus(x).is_finite());
        }
    }
}
