//! Linear layers.

use crate::Reference;
use crate::operand::{expect, expect_shape, optional, reals};
use ms_core::{MatmulBackend, Result, Tensor, TensorMut};

/// `y[m,n] = Σ_k x[m,k] · w[n,k]`.
pub(crate) fn times_transposed(x: &[f64], w: &[f64], k: usize) -> Vec<f64> {
    let row = |x: &[f64], w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
    x.chunks_exact(k).flat_map(|x| w.chunks_exact(k).map(move |w| row(x, w))).collect()
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
        expect("linear", "w", w, &[n, k])?;
        let mut y = times_transposed(reals(x)?, reals(w)?, k);
        if let Some(bias) = optional(bias)? {
            for row in y.chunks_exact_mut(n) {
                row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            }
        }
        self.give(&[m, n], &y)
    }

    fn linear_dx(&self, dy: &Tensor, w: &Tensor) -> Result<Tensor> {
        let ((m, n), (_, k)) = (dy.as_matrix(), w.as_matrix());
        expect("linear_dx", "w", w, &[n, k])?;
        self.give(&[m, k], &times(reals(dy)?, reals(w)?, n, k))
    }

    fn linear_dw(&self, mut dw: TensorMut<'_>, dy: &Tensor, x: &Tensor) -> Result<()> {
        let ((t, n), (_, k)) = (dy.as_matrix(), x.as_matrix());
        expect("linear_dw", "x", x, &[t, k])?;
        expect_shape("linear_dw", "dw", dw.shape(), &[n, k])?;
        add_outer(dw.as_mut_slice()?, reals(dy)?, reals(x)?, n, k);
        Ok(())
    }

    fn linear_db(&self, mut db: TensorMut<'_>, dy: &Tensor) -> Result<()> {
        expect_shape("linear_db", "db", db.shape(), &[dy.as_matrix().1])?;
        add_rows(db.as_mut_slice()?, reals(dy)?);
        Ok(())
    }
}
