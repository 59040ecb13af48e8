//! Products in f64, for the few columns of a router whose logits are computed in f64, in one order everywhere.

use super::{Dims, Form};
use crate::cpu::Disjoint;
use crate::error::expect_len;
use crate::isa::instances;
use crate::{Cpu, Result};

const OP: &str = "matmul::add_f64";
/// Chains of a dot product.
const CHAINS: usize = 8;

/// `out[M,N] += A · B` in f64, operands and result without gaps between rows; forms and sizes are those of [`super::matmul`].
///
/// Form `Nt` sums in eight interleaved chains that are joined pairwise, the others in order of `k`, so the bits depend
/// neither on the number of threads nor on the instruction set.
///
/// # Errors
/// [`crate::Error::Shape`] if the length of an operand does not match the sizes.
pub fn add_f64(cpu: &Cpu, form: Form, dims: Dims, a: &[f64], b: &[f64], out: &mut [f64]) -> Result<()> {
    let Dims { m, n, k } = dims;
    expect_len(OP, "a", m * k, a.len())?;
    expect_len(OP, "b", k * n, b.len())?;
    expect_len(OP, "out", m * n, out.len())?;
    let out = Disjoint::new(out);
    cpu.for_each_unit(m, |i| {
        // SAFETY: a unit takes its own row.
        let row = unsafe { out.part(i * n, n) };
        match form {
            Form::Nt => {
                let a = &a[i * k..][..k];
                row.iter_mut().enumerate().for_each(|(j, y)| *y += dot(cpu.isa(), a, &b[j * k..][..k]));
            }
            Form::Nn => (0..k).for_each(|l| add_row(cpu.isa(), row, a[i * k + l], &b[l * n..][..n])),
            Form::Tn => (0..k).for_each(|l| add_row(cpu.isa(), row, a[l * m + i], &b[l * n..][..n])),
        }
    });
    Ok(())
}

mod body {
    use super::CHAINS;

    #[inline(always)]
    pub(super) fn add_row(row: &mut [f64], by: f64, b: &[f64]) {
        row.iter_mut().zip(b).for_each(|(y, b)| *y = by.mul_add(*b, *y));
    }

    #[inline(always)]
    pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
        let mut chains = [0.0; CHAINS];
        let whole = a.len() / CHAINS * CHAINS;
        for (a, b) in a[..whole].chunks_exact(CHAINS).zip(b[..whole].chunks_exact(CHAINS)) {
            for (c, (a, b)) in chains.iter_mut().zip(a.iter().zip(b)) {
                *c = a.mul_add(*b, *c);
            }
        }
        for (c, (a, b)) in chains.iter_mut().zip(a[whole..].iter().zip(&b[whole..])) {
            *c = a.mul_add(*b, *c);
        }
        let [a, b, c, d, e, f, g, h] = chains;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
}

instances! {
    fn add_row(row: &mut [f64], by: f64, b: &[f64]) = body::add_row;
    fn dot(a: &[f64], b: &[f64]) -> f64 = body::dot;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    #[test]
    fn forms_agree_with_sums_of_whole_numbers_on_any_number_of_threads() {
        // Integers have the same sum in any order; 2^40 next to 1 shows that nothing is rounded to f32.
        let dims = Dims { m: 5, n: 7, k: 19 };
        let value = |i: usize| if i.is_multiple_of(11) { 2f64.powi(40) } else { (i * 37 % 23) as f64 - 11.0 };
        let a: Vec<f64> = (0..dims.m * dims.k).map(value).collect();
        let b: Vec<f64> = (0..dims.k * dims.n).map(|i| (i * 13 % 9) as f64 - 4.0).collect();
        let transposed = |x: &[f64], width: usize| -> Vec<f64> {
            let rows = x.len() / width;
            (0..x.len()).map(|i| x[i % rows * width + i / rows]).collect()
        };
        let want = |i: usize, j: usize| {
            1.0 + (0..dims.k).map(|l| a[i * dims.k + l] * b[l * dims.n + j]).sum::<f64>()
        };
        let want: Vec<f64> = (0..dims.m * dims.n).map(|x| want(x / dims.n, x % dims.n)).collect();
        let (at, bt) = (transposed(&a, dims.k), transposed(&b, dims.n));
        for threads in 1..=3 {
            let cpu = Cpu::new(threads, Isa::Portable).unwrap();
            for (form, a, b) in [(Form::Nt, &a, &bt), (Form::Nn, &a, &b), (Form::Tn, &at, &b)] {
                let mut out = vec![1.0; dims.m * dims.n];
                add_f64(&cpu, form, dims, a, b, &mut out).unwrap();
                assert_eq!(out, want, "{form:?}, {threads} threads");
            }
        }
        let short =
            add_f64(&Cpu::new(1, Isa::Portable).unwrap(), Form::Nn, dims, &a[1..], &b, &mut [0.0; 35]);
        assert!(short.unwrap_err().to_string().contains("95"), "what was expected");
    }
}
