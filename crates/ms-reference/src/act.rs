//! Activations, gates, sums and casts.

use crate::Reference;
use crate::operand::{expect, reals};
use crate::tape::{Real, gradient};
use ms_core::{ActBackend, Activation, DType, Result, Tensor};

/// The activation function at `x`.
fn at<R: Real>(kind: Activation, x: R) -> R {
    let one = R::from(1.0);
    match kind {
        Activation::Silu => x * x.sigmoid(),
        Activation::Sigmoid => x.sigmoid(),
        Activation::GeluTanh => {
            let inner = R::from((2.0 / std::f64::consts::PI).sqrt()) * (x + R::from(0.044_715) * x * x * x);
            x * (one + inner.tanh()) / R::from(2.0)
        }
        Activation::GeluErf => x * (one + (x / R::from(2f64.sqrt())).erf()) / R::from(2.0),
        Activation::Relu2 => {
            let r = x.max(R::from(0.0));
            r * r
        }
        Activation::Clamped { alpha, limit } => {
            let g = x.min(R::from(limit));
            g * (R::from(alpha) * g).sigmoid()
        }
        Activation::ClampedSilu { limit } => at(Activation::Silu, x.min(R::from(limit))),
        Activation::Limited { limit } => at(Activation::Silu, x).min(R::from(limit)),
    }
}

/// What a gate of `kind` multiplies, for `x`.
fn gated<R: Real>(kind: Activation, x: R) -> R {
    let within = |limit: f64| x.min(R::from(limit)).max(R::from(-limit));
    match kind {
        Activation::Clamped { limit, .. } => within(limit) + R::from(1.0),
        Activation::Limited { limit } | Activation::ClampedSilu { limit } => within(limit),
        _ => x,
    }
}

/// `f(gate) · up` of rows `[gate | up]`, or `f(x)`.
fn activation<R: Real>(x: &[R], width: usize, kind: Activation, is_gated: bool) -> Vec<R> {
    if !is_gated {
        return x.iter().map(|&x| at(kind, x)).collect();
    }
    let row = |row: &[R]| {
        let (gate, up) = row.split_at(width / 2);
        gate.iter().zip(up).map(|(&g, &u)| at(kind, g) * gated(kind, u)).collect::<Vec<_>>()
    };
    x.chunks_exact(width).flat_map(row).collect()
}

/// `x[t,w] · f(gate[t,w])`, or `f(gate[t])`.
pub(crate) fn gate<R: Real>(x: &[R], gate: &[R], tokens: usize, kind: Activation) -> Vec<R> {
    let (width, gates) = (x.len() / tokens.max(1), gate.len() / tokens.max(1));
    let one = |i: usize| gate[i / width * gates + if gates == 1 { 0 } else { i % width }];
    x.iter().enumerate().map(|(i, &x)| gated(kind, x) * at(kind, one(i))).collect()
}

impl ActBackend for Reference {
    fn swiglu(&self, x: &Tensor) -> Result<Tensor> {
        self.activation(x, Activation::Silu, true)
    }

    fn swiglu_backward(&self, dy: &Tensor, x: &Tensor) -> Result<Tensor> {
        self.activation_backward(dy, x, Activation::Silu, true)
    }

    fn activation(&self, x: &Tensor, kind: Activation, gated: bool) -> Result<Tensor> {
        let (t, width) = x.as_matrix();
        let y = activation(reals(x)?, width, kind, gated);
        self.give(&[t, if gated { width / 2 } else { width }], &y)
    }

    fn activation_backward(&self, dy: &Tensor, x: &Tensor, kind: Activation, gated: bool) -> Result<Tensor> {
        let width = x.as_matrix().1;
        let [dx] = gradient([reals(x)?], reals(dy)?, |[x]| activation(x, width, kind, gated));
        self.give_as(x, &dx)
    }

    fn gate(&self, x: &Tensor, gates: &Tensor, kind: Activation) -> Result<Tensor> {
        self.give_as(x, &gate(reals(x)?, reals(gates)?, x.as_matrix().0, kind))
    }

    fn gate_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        gates: &Tensor,
        kind: Activation,
    ) -> Result<(Tensor, Tensor)> {
        let tokens = x.as_matrix().0;
        let [dx, dgate] =
            gradient([reals(x)?, reals(gates)?], reals(dy)?, |[x, gates]| gate(x, gates, tokens, kind));
        Ok((self.give_as(x, &dx)?, self.give_as(gates, &dgate)?))
    }

    fn softcap(&self, x: &mut Tensor, cap: f64) -> Result<()> {
        x.as_mut_slice::<f64>()?.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
        Ok(())
    }

    fn softcap_backward(&self, d: &mut Tensor, y: &Tensor, cap: f64) -> Result<()> {
        expect("softcap_backward", "y", y, &d.shape())?;
        let slope = |y: f64| 1.0 - (y / cap).powi(2);
        d.as_mut_slice::<f64>()?.iter_mut().zip(reals(y)?).for_each(|(d, &y)| *d *= slope(y));
        Ok(())
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        expect("add", "b", b, &a.shape())?;
        let y: Vec<f64> = reals(a)?.iter().zip(reals(b)?).map(|(a, b)| a + b).collect();
        self.give_as(a, &y)
    }

    fn multiply(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        expect("multiply", "b", b, &a.shape())?;
        let y: Vec<f64> = reals(a)?.iter().zip(reals(b)?).map(|(a, b)| a * b).collect();
        self.give_as(a, &y)
    }

    fn add_assign(&self, a: &mut Tensor, b: &Tensor) -> Result<()> {
        expect("add_assign", "b", b, &a.shape())?;
        a.as_mut_slice::<f64>()?.iter_mut().zip(reals(b)?).for_each(|(a, b)| *a += b);
        Ok(())
    }

    fn cast(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        if x.dtype() == dtype {
            return Ok(x.clone());
        }
        Tensor::from_reals(&self.arena, dtype, x.shape(), &x.to_reals()?)
    }
}
