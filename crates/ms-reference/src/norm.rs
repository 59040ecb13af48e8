//! RMSNorm and LayerNorm.

use crate::Reference;
use crate::operand::{add_to, expect, optional, reals};
use crate::tape::{Real, dot, gradient, sum};
use ms_core::{Norm, NormBackend, Result, Tensor, TensorMut};

/// `1 / sqrt(mean(x²) + eps)`.
pub(crate) fn reciprocal_root_mean_square<R: Real>(x: &[R], eps: f64) -> R {
    let mean = dot(x, x) / R::from(x.len() as f64);
    R::from(1.0) / (mean + R::from(eps)).sqrt()
}

/// `y = x / rms(x) · (w + offset)`, row by row.
pub(crate) fn rms_norm<R: Real>(x: &[R], w: &[R], eps: f64, offset: f64) -> Vec<R> {
    let row = |x: &[R]| {
        let r = reciprocal_root_mean_square(x, eps);
        x.iter().zip(w).map(|(&x, &w)| x * r * (w + R::from(offset))).collect::<Vec<_>>()
    };
    x.chunks_exact(w.len()).flat_map(row).collect()
}

/// Mean and `1 / sqrt(variance + eps)`.
fn moments<R: Real>(x: &[R], eps: f64) -> (R, R) {
    let n = R::from(x.len() as f64);
    let mean = sum(x.iter().copied()) / n;
    let variance = sum(x.iter().map(|&x| (x - mean) * (x - mean))) / n;
    (mean, R::from(1.0) / (variance + R::from(eps)).sqrt())
}

/// `y = (x − mean) / sqrt(variance + eps) · w + b`, row by row.
fn layer_norm<R: Real>(x: &[R], w: &[R], b: &[R], eps: f64) -> Vec<R> {
    let row = |x: &[R]| {
        let (mean, r) = moments(x, eps);
        let each = x.iter().zip(w.iter().zip(b));
        each.map(|(&x, (&w, &b))| (x - mean) * r * w + b).collect::<Vec<_>>()
    };
    x.chunks_exact(w.len()).flat_map(row).collect()
}

fn offset(norm: &Norm) -> f64 {
    f64::from(u8::from(norm.unit_offset))
}

impl NormBackend for Reference {
    fn rms_norm(&self, x: &Tensor, w: &Tensor, norm: &Norm) -> Result<(Tensor, Tensor)> {
        let (t, h) = x.as_matrix();
        expect("rms_norm", "w", w, &[h])?;
        let eps = norm.eps;
        let y = rms_norm(reals(x)?, reals(w)?, eps, offset(norm));
        let rstd: Vec<f64> = reals(x)?.chunks_exact(h).map(|x| reciprocal_root_mean_square(x, eps)).collect();
        Ok((self.give(&[t, h], &y)?, self.give(&[t], &rstd)?))
    }

    fn add_rms_norm(
        &self,
        x: &Tensor,
        residual: &Tensor,
        w: &Tensor,
        norm: &Norm,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let sum = ms_core::ActBackend::add(self, x, residual)?;
        let (y, rstd) = self.rms_norm(&sum, w, norm)?;
        Ok((sum, y, rstd))
    }

    fn layer_norm(&self, x: &Tensor, w: &Tensor, b: Option<&Tensor>, eps: f64) -> Result<(Tensor, Tensor)> {
        let (t, h) = x.as_matrix();
        expect("layer_norm", "w", w, &[h])?;
        let zeros = vec![0.0; h];
        let (x, w, b, eps) = (reals(x)?, reals(w)?, optional(b)?.unwrap_or(&zeros), eps.into());
        let stats: Vec<f64> = x.chunks_exact(h).flat_map(|x| <[f64; 2]>::from(moments(x, eps))).collect();
        Ok((self.give(&[t, h], &layer_norm(x, w, b, eps))?, self.give(&[t, 2], &stats)?))
    }

    fn layer_norm_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        stats: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let (t, h) = x.as_matrix();
        expect("layer_norm_backward", "dy", dy, &[t, h])?;
        // The variance's epsilon is not handed over: it follows from what the forward pass kept.
        let (mean, r) = (reals(stats)?[0], reals(stats)?[1]);
        let variance = reals(x)?[..h].iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / h as f64;
        let eps = 1.0 / (r * r) - variance;
        let zeros = vec![0.0; h];
        let [dx, dw, db] =
            gradient([reals(x)?, reals(w)?, &zeros], reals(dy)?, |[x, w, b]| layer_norm(x, w, b, eps));
        Ok((self.give(&[t, h], &dx)?, self.give(&[2, h], &[dw, db].concat())?))
    }

    fn rms_norm_backward(
        &self,
        dw: Option<TensorMut<'_>>,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        _rstd: &Tensor,
        dresidual: Option<&Tensor>,
        norm: &Norm,
    ) -> Result<Tensor> {
        let (t, h) = x.as_matrix();
        expect("rms_norm_backward", "dy", dy, &[t, h])?;
        let [mut dx, by_w] =
            gradient([reals(x)?, reals(w)?], reals(dy)?, |[x, w]| rms_norm(x, w, norm.eps, offset(norm)));
        if let Some(d) = optional(dresidual)? {
            dx.iter_mut().zip(d).for_each(|(dx, d)| *dx += d);
        }
        if let Some(mut dw) = dw {
            add_to("rms_norm_backward", &mut dw, &by_w)?;
        }
        self.give(&[t, h], &dx)
    }
}

#[cfg(test)]
mod tests {
    use ms_core::{DType, Norm, Tensor};

    #[test]
    fn epsilons_and_caps_are_not_rounded() {
        let device = crate::device();
        let (eps, cap, x) = (1e-5, 0.1, [3e-4, -2e-3]);
        let of = |values: &[f64]| Tensor::from_reals(device.arena(), DType::F64, [1, 2], values).unwrap();
        let ones = Tensor::from_reals(device.arena(), DType::F64, [2], &[1.0; 2]).unwrap();
        let near = |found: &[f64], want: [f64; 2]| {
            for (found, want) in found.iter().zip(want) {
                assert!((found / want - 1.0).abs() < 1e-14, "{found} is not {want}");
            }
        };
        let norm = Norm { eps, unit_offset: false };
        let (y, _) = device.rms_norm(&of(&x), &ones, &norm).unwrap();
        let root = (x.iter().map(|x| x * x).sum::<f64>() / 2.0 + eps).sqrt();
        near(y.as_slice().unwrap(), x.map(|x| x / root));
        let (mean, y) =
            (x.iter().sum::<f64>() / 2.0, device.layer_norm(&of(&x), &ones, None, eps).unwrap().0);
        let root = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 2.0 + eps).sqrt();
        near(y.as_slice().unwrap(), x.map(|x| (x - mean) / root));
        let mut y = of(&[0.3, -0.02]);
        device.softcap(&mut y, cap).unwrap();
        near(y.as_slice().unwrap(), [0.3, -0.02].map(|x: f64| cap * (x / cap).tanh()));
    }
}
