//! Element-by-element operations.

#[cfg(test)]
mod tests;

use crate::cpu::Disjoint;
use crate::error::expect_len;
use crate::isa::instances;
use crate::{Cpu, Element, Result};

mod body {
    use crate::Element;

    #[inline(always)]
    pub(super) fn add<E: Element>(out: &mut [E], a: &[E], b: &[E]) {
        let n = out.len();
        let (a, b) = (&a[..n], &b[..n]);
        for i in 0..n {
            out[i] = E::from_f32(a[i].to_f32() + b[i].to_f32());
        }
    }

    #[inline(always)]
    pub(super) fn add_assign<E: Element>(a: &mut [E], b: &[E]) {
        let n = a.len();
        let b = &b[..n];
        for i in 0..n {
            a[i] = E::from_f32(a[i].to_f32() + b[i].to_f32());
        }
    }

    #[inline(always)]
    pub(super) fn scale<E: Element>(x: &mut [E], factor: f32) {
        for v in x {
            *v = E::from_f32(v.to_f32() * factor);
        }
    }

    #[inline(always)]
    pub(super) fn softcap<E: Element>(x: &mut [E], cap: f32) {
        for v in x {
            *v = E::from_f32(cap * crate::float::tanh(v.to_f32() / cap));
        }
    }

    #[inline(always)]
    pub(super) fn softcap_backward<E: Element>(d: &mut [E], y: &[E], cap: f32) {
        for (d, y) in d.iter_mut().zip(y) {
            let t = y.to_f32() / cap;
            *d = E::from_f32(d.to_f32() * (1.0 - t * t));
        }
    }

    #[inline(always)]
    pub(super) fn axpy(y: &mut [f32], x: &[f32], a: f32) {
        let n = y.len();
        let x = &x[..n];
        for i in 0..n {
            y[i] = x[i].mul_add(a, y[i]);
        }
    }

    #[inline(always)]
    pub(super) fn cast<To: Element, From: Element>(out: &mut [To], x: &[From]) {
        let n = out.len();
        let x = &x[..n];
        for i in 0..n {
            out[i] = To::from_f32(x[i].to_f32());
        }
    }
}

instances! {
    fn add_part<E: Element>(out: &mut [E], a: &[E], b: &[E]) = body::add;
    fn add_assign_part<E: Element>(a: &mut [E], b: &[E]) = body::add_assign;
    fn scale_part<E: Element>(x: &mut [E], factor: f32) = body::scale;
    fn softcap_part<E: Element>(x: &mut [E], cap: f32) = body::softcap;
    fn softcap_backward_part<E: Element>(d: &mut [E], y: &[E], cap: f32) = body::softcap_backward;
    fn axpy_part(y: &mut [f32], x: &[f32], a: f32) = body::axpy;
    fn cast_part<To: Element, From: Element>(out: &mut [To], x: &[From]) = body::cast;
}

const UNIT: usize = 64 * 1024;

/// Calls `work(start, part)` for fixed parts of `out` on all threads.
pub(crate) fn parts<T: Send>(cpu: &Cpu, out: &mut [T], work: impl Fn(usize, &mut [T]) + Sync) {
    let len = out.len();
    let out = Disjoint::new(out);
    cpu.for_each_unit(len.div_ceil(UNIT), |u| {
        // SAFETY: a unit takes its own elements.
        work(u * UNIT, unsafe { out.part(u * UNIT, UNIT.min(len - u * UNIT)) });
    });
}

/// `out = a + b`, added in f32 and rounded once.
///
/// # Errors
/// [`crate::Error::Shape`] unless all three have the same length.
pub fn add<E: Element>(cpu: &Cpu, out: &mut [E], a: &[E], b: &[E]) -> Result<()> {
    expect_len("elementwise::add", "a", out.len(), a.len())?;
    expect_len("elementwise::add", "b", out.len(), b.len())?;
    parts(cpu, out, |at, out| add_part(cpu.isa(), out, &a[at..][..out.len()], &b[at..][..out.len()]));
    Ok(())
}

/// `out = a · b`, multiplied in f32 and rounded once.
///
/// # Errors
/// [`crate::Error::Shape`] unless all three have the same length.
pub fn multiply<E: Element>(cpu: &Cpu, out: &mut [E], a: &[E], b: &[E]) -> Result<()> {
    expect_len("elementwise::multiply", "a", out.len(), a.len())?;
    expect_len("elementwise::multiply", "b", out.len(), b.len())?;
    parts(cpu, out, |at, out| {
        for ((o, a), b) in out.iter_mut().zip(&a[at..]).zip(&b[at..]) {
            *o = E::from_f32(a.to_f32() * b.to_f32());
        }
    });
    Ok(())
}

/// `a = a + b`, added in f32 and rounded once.
///
/// # Errors
/// [`crate::Error::Shape`] unless both have the same length.
pub fn add_assign<E: Element>(cpu: &Cpu, a: &mut [E], b: &[E]) -> Result<()> {
    expect_len("elementwise::add_assign", "b", a.len(), b.len())?;
    parts(cpu, a, |at, a| add_assign_part(cpu.isa(), a, &b[at..][..a.len()]));
    Ok(())
}

/// `x = factor · x`, multiplied in f32 and rounded once.
pub fn scale<E: Element>(cpu: &Cpu, x: &mut [E], factor: f32) {
    parts(cpu, x, |_, x| scale_part(cpu.isa(), x, factor));
}

/// `x = c · tanh(x / c)`.
pub fn softcap<E: Element>(cpu: &Cpu, x: &mut [E], cap: f32) {
    parts(cpu, x, |_, x| softcap_part(cpu.isa(), x, cap));
}

/// Converts the gradient `d` with respect to the result `y` of [`softcap`] into that with respect to its operand:
/// `d = d · (1 − (y/c)²)`.
///
/// # Errors
/// [`crate::Error::Shape`] unless both have the same length.
pub fn softcap_backward<E: Element>(cpu: &Cpu, d: &mut [E], y: &[E], cap: f32) -> Result<()> {
    expect_len("elementwise::softcap_backward", "y", d.len(), y.len())?;
    parts(cpu, d, |at, d| softcap_backward_part(cpu.isa(), d, &y[at..][..d.len()], cap));
    Ok(())
}

/// `y = y + a · x`, one fused multiply-add per element.
///
/// # Errors
/// [`crate::Error::Shape`] unless both have the same length.
pub fn axpy(cpu: &Cpu, y: &mut [f32], x: &[f32], a: f32) -> Result<()> {
    expect_len("elementwise::axpy", "x", y.len(), x.len())?;
    parts(cpu, y, |at, y| axpy_part(cpu.isa(), y, &x[at..][..y.len()], a));
    Ok(())
}

/// `out = x` in another type, rounded to nearest even.
///
/// # Errors
/// [`crate::Error::Shape`] unless both have the same length.
pub fn cast<To: Element, From: Element>(cpu: &Cpu, out: &mut [To], x: &[From]) -> Result<()> {
    expect_len("elementwise::cast", "x", out.len(), x.len())?;
    parts(cpu, out, |at, out| cast_part(cpu.isa(), out, &x[at..][..out.len()]));
    Ok(())
}

/// `x = 0`.
pub fn zero<E: Element>(cpu: &Cpu, x: &mut [E]) {
    parts(cpu, x, |_, x| x.fill(E::default()));
}
