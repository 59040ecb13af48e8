//! Linear layers.

use crate::Reference;
use crate::operand::{expect, expect_shape, optional, reals};
use ms_core::{DType, MatmulBackend, Result, Tensor, TensorMut, int8_row_bytes};

/// The numbers that a weight of eight bits stands for: each row's codes times the scale that stands in its last 64 bytes.
fn weight_of(bytes: &Tensor, n: usize, k: usize) -> Result<Vec<f64>> {
    let width = int8_row_bytes(k);
    expect_shape("linear", "w", bytes.shape(), &[n, width])?;
    let rows = bytes.as_slice::<u8>()?.chunks_exact(width);
    let of_row = |row: &[u8]| {
        let mut scale = [0u8; 4];
        scale.copy_from_slice(&row[width - 64..width - 60]);
        let scale = f64::from(f32::from_le_bytes(scale));
        row[..k].iter().map(move |code| f64::from(code.cast_signed()) * scale).collect::<Vec<_>>()
    };
    Ok(rows.flat_map(of_row).collect())
}

/// `x[m,k]` rounded for an 8-bit weight: for every 64 terms of a row, integers times the largest magnitude divided by 127.
fn rounded(x: &[f64], k: usize) -> Vec<f64> {
    let of_line = |line: &[f64]| {
        let largest = line.iter().fold(0f64, |m, x| m.max(x.abs())) as f32;
        // The scale and its inverse are f32, and what is too small for an inverse is zero.
        let (scale, inverse) = match largest {
            _ if !largest.is_finite() => (f32::NAN, 0.0),
            _ if largest < 1e-35 => (0.0, 0.0),
            _ => (largest / 127.0, 127.0 / largest),
        };
        line.iter().map(|x| (x * f64::from(inverse)).round_ties_even() * f64::from(scale)).collect::<Vec<_>>()
    };
    x.chunks(k.max(1)).flat_map(|row| row.chunks(64).flat_map(of_line)).collect()
}

/// `y[m,n] = Σ_k x[m,k] · w[n,k]`.
pub(crate) fn times_transposed(x: &[f64], w: &[f64], k: usize) -> Vec<f64> {
    if w.is_empty() {
        return Vec::new();
    }
    let n = w.len() / k;
    let mut turned = vec![0f64; w.len()];
    for (i, row) in w.chunks_exact(k).enumerate() {
        row.iter().enumerate().for_each(|(j, &w)| turned[j * n + i] = w);
    }
    // Terms rising, many sums at once.
    times(x, &turned, k, n)
}

/// `dx[m,k] = Σ_n dy[m,n] · w[n,k]`.
pub(crate) fn times(dy: &[f64], w: &[f64], n: usize, k: usize) -> Vec<f64> {
    let mut dx = vec![0f64; dy.len() / n.max(1) * k];
    for (dx, dy) in dx.chunks_exact_mut(k).zip(dy.chunks_exact(n)) {
        for (w, d) in w.chunks_exact(k).zip(dy) {
            dx.iter_mut().zip(w).for_each(|(dx, w)| *dx += d * w);
        }
    }
    dx
}

/// `dw[n,k] += Σ_m dy[m,n] · x[m,k]`.
pub(crate) fn add_outer(dw: &mut [f64], dy: &[f64], x: &[f64], n: usize, k: usize) {
    for (dy, x) in dy.chunks_exact(n).zip(x.chunks_exact(k)) {
        for (dw, d) in dw.chunks_exact_mut(k).zip(dy) {
            dw.iter_mut().zip(x).for_each(|(dw, x)| *dw += d * x);
        }
    }
}

/// `db[n] += Σ_m dy[m,n]`.
pub(crate) fn add_rows(db: &mut [f64], dy: &[f64]) {
    for row in dy.chunks_exact(db.len().max(1)) {
        db.iter_mut().zip(row).for_each(|(b, d)| *b += d);
    }
}

impl MatmulBackend for Reference {
    fn linear(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let ((m, k), (n, _)) = (x.as_matrix(), w.as_matrix());
        let of_bytes = if w.dtype() == DType::U8 { Some(weight_of(w, n, k)?) } else { None };
        if of_bytes.is_none() {
            expect("linear", "w", w, &[n, k])?;
        }
        self.worked(m * n * k);
        let mut y = match of_bytes {
            Some(w) => times_transposed(&rounded(reals(x)?, k), &w, k),
            None => times_transposed(reals(x)?, reals(w)?, k),
        };
        if let Some(bias) = optional(bias)? {
            for row in y.chunks_exact_mut(n) {
                row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            }
        }
        self.give(&[m, n], &y)
    }

    fn quantize(&self, w: &Tensor) -> Result<Tensor> {
        let (n, k) = w.as_matrix();
        let width = int8_row_bytes(k);
        let mut bytes = vec![0u8; n * width];
        for (row, to) in reals(w)?.chunks_exact(k).zip(bytes.chunks_exact_mut(width)) {
            // The scale and its inverse are kept and multiplied with as f32.
            let largest = row.iter().fold(0f64, |m, w| m.max(w.abs())) as f32;
            let (scale, inverse) =
                if largest > 0.0 { (largest / 127.0, 127.0 / largest) } else { (0.0, 0.0) };
            for (to, w) in to.iter_mut().zip(row) {
                *to = ((w * f64::from(inverse)).round_ties_even() as i8).cast_unsigned();
            }
            to[width - 64..width - 60].copy_from_slice(&scale.to_le_bytes());
        }
        Tensor::from_slice(&self.arena, [n, width], &bytes)
    }

    fn linear_dx(&self, dy: &Tensor, w: &Tensor) -> Result<Tensor> {
        let ((m, n), (_, k)) = (dy.as_matrix(), w.as_matrix());
        expect("linear_dx", "w", w, &[n, k])?;
        self.worked(m * n * k);
        self.give(&[m, k], &times(reals(dy)?, reals(w)?, n, k))
    }

    fn linear_dw(&self, mut dw: TensorMut<'_>, dy: &Tensor, x: &Tensor) -> Result<()> {
        let ((t, n), (_, k)) = (dy.as_matrix(), x.as_matrix());
        expect("linear_dw", "x", x, &[t, k])?;
        expect_shape("linear_dw", "dw", dw.shape(), &[n, k])?;
        self.worked(t * n * k);
        add_outer(dw.as_mut_slice()?, reals(dy)?, reals(x)?, n, k);
        Ok(())
    }

    fn linear_db(&self, mut db: TensorMut<'_>, dy: &Tensor) -> Result<()> {
        expect_shape("linear_db", "db", db.shape(), &[dy.as_matrix().1])?;
        add_rows(db.as_mut_slice()?, reals(dy)?);
        Ok(())
    }
}
