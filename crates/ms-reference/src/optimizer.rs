//! Optimizer steps on flat buffers.

use crate::Reference;
use crate::operand::{add_to, reals};
use ms_core::{AdamW, ExactSum, OptimBackend, Result, Sgd, Tensor, TensorMut};

impl OptimBackend for Reference {
    fn adamw(
        &self,
        mut master: TensorMut<'_>,
        mut m: TensorMut<'_>,
        mut v: TensorMut<'_>,
        g: &Tensor,
        grad_scale: f64,
        step: &AdamW,
    ) -> Result<()> {
        let AdamW { lr, beta1, beta2, eps, weight_decay, step } = *step;
        self.worked(g.numel());
        let unbias = |beta: f64| 1.0 - beta.powf(step as f64);
        let state = master.as_mut_slice::<f64>()?.iter_mut().zip(m.as_mut_slice::<f64>()?);
        for (((p, m), v), g) in state.zip(v.as_mut_slice::<f64>()?).zip(reals(g)?) {
            let g = grad_scale * g;
            *m = beta1 * *m + (1.0 - beta1) * g;
            *v = beta2 * *v + (1.0 - beta2) * g * g;
            *p -= lr * weight_decay * *p;
            *p -= lr * (*m / unbias(beta1)) / ((*v / unbias(beta2)).sqrt() + eps);
        }
        Ok(())
    }

    fn sgd(
        &self,
        mut master: TensorMut<'_>,
        mut momentum: TensorMut<'_>,
        g: &Tensor,
        grad_scale: f64,
        step: &Sgd,
    ) -> Result<()> {
        self.worked(g.numel());
        let state = master.as_mut_slice::<f64>()?.iter_mut().zip(momentum.as_mut_slice::<f64>()?);
        for ((p, m), g) in state.zip(reals(g)?) {
            *m = step.momentum * *m + grad_scale * g + step.weight_decay * *p;
            *p -= step.lr * *m;
        }
        Ok(())
    }

    fn sum_squares(&self, x: &Tensor) -> Result<ExactSum> {
        let mut sum = ExactSum::default();
        reals(x)?.iter().for_each(|x| sum.add(x * x));
        Ok(sum)
    }

    fn fill_zero(&self, x: &mut Tensor) -> Result<()> {
        x.bytes_mut()?.fill(0); // zeros of every element type
        Ok(())
    }

    fn scale(&self, x: &mut Tensor, factor: f64) -> Result<()> {
        x.as_mut_slice::<f64>()?.iter_mut().for_each(|x| *x *= factor);
        Ok(())
    }

    fn accumulate(&self, mut sum: TensorMut<'_>, x: &Tensor, factor: f64) -> Result<()> {
        let scaled: Vec<f64> = reals(x)?.iter().map(|x| factor * x).collect();
        add_to("accumulate", &mut sum, &scaled)
    }
}
