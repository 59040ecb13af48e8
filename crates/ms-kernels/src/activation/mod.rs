//! Activation functions: alone, as a gate within one row, and as a gate from another tensor.

#[cfg(test)]
mod tests;

use crate::error::{expect_len, expect_rows};
use crate::isa::instances;
use crate::{Cpu, Element, Error, Result};
pub use ms_operands::Activation;

pub(crate) mod body {
    use super::Activation;
    use crate::Element;
    use crate::float::{exp, sigmoid, tanh};

    const ROOT: f32 = 0.797_884_6;
    const CUBE: f32 = 0.044_715;

    /// `erf(x)`, absolute error below 2e-7: its power series below 1, Abramowitz and Stegun 7.1.26 above.
    #[inline(always)]
    fn erf(x: f32) -> f32 {
        let a = x.abs();
        let s = x * x;
        // Maclaurin series up to x^17, good to 1e-8 below 1.
        let series = std::f32::consts::FRAC_2_SQRT_PI
            * x
            * (1.0
                + s * (-1.0 / 3.0
                    + s * (0.1
                        + s * (-1.0 / 42.0
                            + s * (1.0 / 216.0
                                + s * (-1.0 / 1320.0
                                    + s * (1.0 / 9360.0 + s * (-1.0 / 75600.0 + s / 685_440.0))))))));
        let t = 1.0 / 0.327_591_1f32.mul_add(a, 1.0);
        let p = 1.061_405_4f32
            .mul_add(t, -1.453_152_1)
            .mul_add(t, 1.421_413_8)
            .mul_add(t, -0.284_496_72)
            .mul_add(t, 0.254_829_6);
        let tail = (1.0 - p * t * exp(-s)).copysign(x);
        if a < 1.0 { series } else { tail }
    }

    #[inline(always)]
    fn silu(x: f32) -> (f32, f32) {
        let s = sigmoid(x);
        (x * s, s * (1.0 + x * (1.0 - s)))
    }

    /// Value and slope at `x`. It must not call itself: then it is no part of the instances, and each multiply-add is a call.
    #[inline(always)]
    pub(crate) fn at(kind: Activation, x: f32) -> (f32, f32) {
        match kind {
            Activation::Silu => silu(x),
            Activation::Sigmoid => {
                let s = sigmoid(x);
                (s, s * (1.0 - s))
            }
            Activation::GeluTanh => {
                let t = tanh(ROOT * (x + CUBE * x * x * x));
                let inner = ROOT * (1.0 + 3.0 * CUBE * x * x);
                (0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner)
            }
            Activation::GeluErf => {
                let phi = 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
                (x * phi, phi + x * 0.398_942_3 * exp(-0.5 * x * x))
            }
            Activation::Clamped { alpha, limit } => {
                let (alpha, limit) = (alpha as f32, limit as f32);
                // Compared this way round, what is not a number stays visible.
                let g = if x > limit { limit } else { x };
                let s = sigmoid(alpha * g);
                (g * s, if x > limit { 0.0 } else { s * (1.0 + alpha * g * (1.0 - s)) })
            }
            Activation::ClampedSilu { limit } => {
                let limit = limit as f32;
                let g = if x > limit { limit } else { x };
                let s = sigmoid(g);
                (g * s, if x > limit { 0.0 } else { s * (1.0 + g * (1.0 - s)) })
            }
            Activation::Limited { limit } => {
                let ((y, slope), limit) = (silu(x), limit as f32);
                if y > limit { (limit, 0.0) } else { (y, slope) }
            }
            Activation::Relu2 => {
                // Compared this way round for the same reason.
                let r = if x < 0.0 { 0.0 } else { x };
                (r * r, 2.0 * r)
            }
        }
    }

    /// `x` within `±limit`, and the slope there.
    #[inline(always)]
    fn clamp(x: f32, limit: f32) -> (f32, f32) {
        let outside = x < -limit || x > limit;
        if outside { (limit.copysign(x), 0.0) } else { (x, 1.0) }
    }

    /// What a gate of `kind` multiplies for `x`, and its slope.
    #[inline(always)]
    fn gated(kind: Activation, x: f32) -> (f32, f32) {
        match kind {
            Activation::Clamped { limit, .. } => {
                let (clamped, slope) = clamp(x, limit as f32);
                (clamped + 1.0, slope)
            }
            Activation::Limited { limit } | Activation::ClampedSilu { limit } => clamp(x, limit as f32),
            _ => (x, 1.0),
        }
    }

    /// Evaluates `$work` once for each kind, with `$kind` known there: left inside, the choice is made for every element, and
    /// nothing is compiled to vectors.
    macro_rules! for_kind {
        ($kind:ident => $work:expr) => {
            for_kind!(@ $kind $work, Silu, Sigmoid, GeluTanh, GeluErf, Clamped { alpha, limit }, ClampedSilu { limit },
                Limited { limit }, Relu2)
        };
        (@ $kind:ident $work:expr, $($name:ident $({ $($field:ident),* })?),*) => {
            match $kind {
                $(Activation::$name $({ $($field),* })? => {
                    let $kind = Activation::$name $({ $($field),* })?;
                    $work
                })*
            }
        };
    }

    #[inline(always)]
    pub(super) fn forward<E: Element>(y: &mut [E], x: &[E], kind: Activation) {
        for_kind!(kind => for (y, x) in y.iter_mut().zip(x) {
            *y = E::from_f32(at(kind, x.to_f32()).0);
        });
    }

    #[inline(always)]
    pub(super) fn backward<E: Element>(dx: &mut [E], dy: &[E], x: &[E], kind: Activation) {
        for_kind!(kind => for ((dx, dy), x) in dx.iter_mut().zip(dy).zip(x) {
            *dx = E::from_f32(dy.to_f32() * at(kind, x.to_f32()).1);
        });
    }

    #[inline(always)]
    pub(super) fn gate_forward<E: Element>(y: &mut [E], x: &[E], gate: &[E], kind: Activation) {
        if let [gate] = gate {
            let value = at(kind, gate.to_f32()).0;
            for (y, x) in y.iter_mut().zip(x) {
                *y = E::from_f32(gated(kind, x.to_f32()).0 * value);
            }
            return;
        }
        for_kind!(kind => for ((y, x), gate) in y.iter_mut().zip(x).zip(gate) {
            *y = E::from_f32(gated(kind, x.to_f32()).0 * at(kind, gate.to_f32()).0);
        });
    }

    #[inline(always)]
    pub(super) fn gate_backward<E: Element>(
        dx: &mut [E],
        dgate: &mut [E],
        dy: &[E],
        x: &[E],
        gate: &[E],
        kind: Activation,
    ) {
        if gate.len() == 1 {
            let (value, slope) = at(kind, gate[0].to_f32());
            let mut sum = 0.0;
            for i in 0..dx.len() {
                let (d, (up, by)) = (dy[i].to_f32(), gated(kind, x[i].to_f32()));
                dx[i] = E::from_f32(d * value * by);
                sum += d * up;
            }
            dgate[0] = E::from_f32(sum * slope);
            return;
        }
        for_kind!(kind => for ((dx, dgate), ((dy, x), gate)) in dx.iter_mut().zip(dgate).zip(dy.iter().zip(x).zip(gate)) {
            let ((value, slope), d) = (at(kind, gate.to_f32()), dy.to_f32());
            let (up, by) = gated(kind, x.to_f32());
            *dx = E::from_f32(d * value * by);
            *dgate = E::from_f32(d * up * slope);
        });
    }
}

instances! {
    fn forward_part<E: Element>(y: &mut [E], x: &[E], kind: Activation) = body::forward;
    fn backward_part<E: Element>(dx: &mut [E], dy: &[E], x: &[E], kind: Activation) = body::backward;
    fn gate_part<E: Element>(y: &mut [E], x: &[E], gate: &[E], kind: Activation) = body::gate_forward;
    fn gate_backward_part<E: Element>(
        dx: &mut [E], dgate: &mut [E], dy: &[E], x: &[E], gate: &[E], kind: Activation,
    ) = body::gate_backward;
}

const STEP: usize = 16 * 1024;

/// `y = f(x)`, element by element; both of one length, dtype `E`.
///
/// # Errors
/// [`Error::Shape`] unless both have the same length.
///
/// # Source
/// Hendrycks and Gimpel, arXiv:1606.08415 (GELU); So et al., arXiv:2109.08668 (squared ReLU).
pub fn forward<E: Element>(cpu: &Cpu, y: &mut [E], x: &[E], kind: Activation) -> Result<()> {
    expect_len("activation::forward", "x", y.len(), x.len())?;
    let len = y.len();
    crate::elementwise::parts(cpu, y, |at, y| {
        let x = &x[at..len][..y.len()];
        forward_part(cpu.isa(), y, x, kind);
    });
    Ok(())
}

/// `dx = dy · f'(x)`, element by element.
///
/// # Errors
/// [`Error::Shape`] unless all have the same length.
pub fn backward<E: Element>(cpu: &Cpu, dx: &mut [E], dy: &[E], x: &[E], kind: Activation) -> Result<()> {
    expect_len("activation::backward", "x", dx.len(), x.len())?;
    expect_len("activation::backward", "dy", dx.len(), dy.len())?;
    crate::elementwise::parts(cpu, dx, |at, dx| {
        let n = dx.len();
        backward_part(cpu.isa(), dx, &dy[at..][..n], &x[at..][..n], kind);
    });
    Ok(())
}

/// Rows and width of a gated call; the gate is as wide as `x` or one number a row.
fn gate_sizes(op: &'static str, rows: usize, len: usize, gate: usize) -> Result<(usize, usize)> {
    let width = len.checked_div(rows).unwrap_or(0);
    expect_len(op, "x", rows * width, len)?;
    if gate != len && gate != rows {
        return Err(Error::Shape { op, name: "gate", want: len, got: gate });
    }
    Ok((width, if gate == len { width } else { 1 }))
}

/// `y[t,w] = x[t,w] · f(gate[t,w])`, or `f(gate[t])` where the gate has one number a row.
///
/// | arg    | shape              | dtype | meaning  |
/// |--------|--------------------|-------|----------|
/// | `y`    | `[T,W]`            | `E`   | output   |
/// | `x`    | `[T,W]`            | `E`   | what is gated |
/// | `gate` | `[T,W]` or `[T,1]` | `E`   | argument of the activation |
///
/// [`Activation::Clamped`] clamps and raises `x` as well; [`Activation::ClampedSilu`] and [`Activation::Limited`] clamp it.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
pub fn gate<E: Element>(
    cpu: &Cpu,
    y: &mut [E],
    x: &[E],
    gate: &[E],
    rows: usize,
    kind: Activation,
) -> Result<()> {
    const OP: &str = "activation::gate";
    let (width, gates) = gate_sizes(OP, rows, x.len(), gate.len())?;
    expect_len(OP, "y", x.len(), y.len())?;
    let step = (STEP / width.max(1)).max(1);
    cpu.for_each_row(rows, step, (y, width), |t, y| {
        gate_part(cpu.isa(), y, &x[t * width..][..width], &gate[t * gates..][..gates], kind);
    });
    Ok(())
}

/// Gradients of [`gate`] with respect to `x` and `gate`.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
pub fn gate_backward<E: Element>(
    cpu: &Cpu,
    dx: &mut [E],
    dgate: &mut [E],
    dy: &[E],
    x: &[E],
    gate: &[E],
    rows: usize,
    kind: Activation,
) -> Result<()> {
    const OP: &str = "activation::gate_backward";
    let (width, gates) = gate_sizes(OP, rows, x.len(), gate.len())?;
    expect_len(OP, "dx", x.len(), dx.len())?;
    expect_len(OP, "dy", x.len(), dy.len())?;
    expect_len(OP, "dgate", gate.len(), dgate.len())?;
    let step = (STEP / width.max(1)).max(1);
    cpu.for_each_row_of_both(rows, step, (dx, width), (dgate, gates), |t, dx, dgate| {
        let (dy, x) = (&dy[t * width..][..width], &x[t * width..][..width]);
        gate_backward_part(cpu.isa(), dx, dgate, dy, x, &gate[t * gates..][..gates], kind);
    });
    Ok(())
}

/// `y[t,f] = f(x[t,f]) · x[t,F+f]` of rows `[gate | up]`; for [`Activation::Silu`] use [`crate::swiglu`].
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
///
/// # Source
/// Shazeer, arXiv:2002.05202.
pub fn glu<E: Element>(cpu: &Cpu, y: &mut [E], x: &[E], f: usize, kind: Activation) -> Result<()> {
    const OP: &str = "activation::glu";
    let rows = expect_rows(OP, "y", f, y.len())?;
    expect_len(OP, "x", 2 * rows * f, x.len())?;
    let step = (STEP / f.max(1)).max(1);
    cpu.for_each_row(rows, step, (y, f), |t, y| {
        let (gate, up) = x[2 * t * f..][..2 * f].split_at(f);
        gate_part(cpu.isa(), y, up, gate, kind);
    });
    Ok(())
}

/// Gradient of [`glu`] with respect to `x`.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
pub fn glu_backward<E: Element>(
    cpu: &Cpu,
    dx: &mut [E],
    dy: &[E],
    x: &[E],
    f: usize,
    kind: Activation,
) -> Result<()> {
    const OP: &str = "activation::glu_backward";
    let rows = expect_rows(OP, "dy", f, dy.len())?;
    expect_len(OP, "x", 2 * rows * f, x.len())?;
    expect_len(OP, "dx", x.len(), dx.len())?;
    let step = (STEP / f.max(1)).max(1);
    cpu.for_each_row(rows, step, (dx, 2 * f), |t, dx| {
        let (gate, up) = x[2 * t * f..][..2 * f].split_at(f);
        let (dgate, dup) = dx.split_at_mut(f);
        gate_backward_part(cpu.isa(), dup, dgate, &dy[t * f..][..f], up, gate, kind);
    });
    Ok(())
}
