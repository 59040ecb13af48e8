//! Mixtures of experts on the CPU.

use super::{CpuBackend, expect, ids, op_span, size, with_float, with_real};
use ms_core::{
    DType, Error, ExpertLoad, MatmulBackend, MoeBackend, Result, Router, Routes, Shape, Tensor, TensorMut,
};
use ms_kernels::matmul::{Dims, Form, Mat, Out, matmul};
use ms_kernels::{experts, routing};

/// Checks the rows of `x`, sorted by expert, and the stacked weights `[E,N,K]`; returns `(N, K)`.
fn stacked(op: &'static str, x: &Tensor, w: &Shape, routes: &Routes, out: bool) -> Result<(usize, usize)> {
    let rows = routes.copies.len();
    let count = routes.starts.len() - 1;
    let (n, k) = if w.len() == 3 { (w[1], w[2]) } else { (0, 0) };
    if w.len() != 3 || w[0] != count {
        return Err(Error::Shape { op, name: "w", want: Shape::new(&[count, n, k]), got: *w });
    }
    expect(op, if out { "dy" } else { "x" }, x, x.dtype(), &[rows, if out { n } else { k }])?;
    Ok((n, k))
}

fn widened(x: impl Into<f64>) -> f64 {
    x.into()
}

impl MoeBackend for CpuBackend {
    fn route(&self, logits: &Tensor, bias: Option<&Tensor>, router: &Router) -> Result<(Tensor, Tensor)> {
        let (t, count) = logits.as_matrix();
        let mut experts = self.uninit(DType::I32, &[t, router.top_k]);
        let mut weights = self.uninit(logits.dtype(), &[t, router.top_k]);
        op_span!("route", 10 * t * count, size(&[logits]));
        with_real!(logits.dtype(), "route", R => {
            let bias = bias.map(Tensor::as_slice::<R>).transpose()?;
            let (e, w) = (experts.as_mut_slice()?, weights.as_mut_slice::<R>()?);
            routing::forward(&self.cpu, e, w, logits.as_slice()?, bias, count, router)?;
        });
        Ok((experts, weights))
    }

    fn weigh(&self, experts: &Tensor, logits: &Tensor, router: &Router) -> Result<Tensor> {
        let (t, count) = logits.as_matrix();
        expect("weigh", "experts", experts, DType::I32, &[t, router.top_k])?;
        let mut weights = self.uninit(logits.dtype(), &[t, router.top_k]);
        op_span!("weigh", 10 * t * count, size(&[logits]));
        with_real!(logits.dtype(), "weigh", R => {
            let (w, l) = (weights.as_mut_slice::<R>()?, logits.as_slice()?);
            routing::weigh(&self.cpu, w, ids(experts)?, l, count, router)?;
        });
        Ok(weights)
    }

    fn route_backward(
        &self,
        dweights: &Tensor,
        experts: &Tensor,
        logits: &Tensor,
        router: &Router,
    ) -> Result<Tensor> {
        let (t, count) = logits.as_matrix();
        let mut d = self.uninit(logits.dtype(), &[t, count]);
        op_span!("route_backward", 10 * t * count, 2 * size(&[logits]));
        with_real!(logits.dtype(), "route_backward", R => {
            let (dw, e, l) = (dweights.as_slice::<R>()?, ids(experts)?, logits.as_slice()?);
            routing::backward(&self.cpu, d.as_mut_slice()?, dw, e, l, count, router)?;
        });
        Ok(d)
    }

    fn balance(
        &self,
        dlogits: Option<&mut Tensor>,
        logits: &Tensor,
        load: &ExpertLoad,
        router: &Router,
        grad_scale: f64,
    ) -> Result<f64> {
        op_span!("balance", 10 * logits.numel(), size(&[logits]));
        with_real!(logits.dtype(), "balance", R => {
            let d = match dlogits {
                Some(d) => d.as_mut_slice::<R>()?,
                None => &mut [],
            };
            Ok(widened(routing::balance(&self.cpu, d, logits.as_slice()?, load, router, grad_scale)?))
        })
    }

    fn dispatch(&self, x: &Tensor, routes: &Routes) -> Result<Tensor> {
        let h = x.as_matrix().1;
        let mut y = self.uninit(x.dtype(), &[routes.copies.len(), h]);
        op_span!("dispatch", 0, 2 * size(&[&y]));
        with_float!(x.dtype(), "dispatch", E => {
            experts::dispatch(&self.cpu, y.as_mut_slice::<E>()?, x.as_slice()?, routes)?;
        });
        Ok(y)
    }

    fn dispatch_backward(&self, dy: &Tensor, routes: &Routes) -> Result<Tensor> {
        let mut dx = self.uninit(dy.dtype(), &[routes.tokens(), dy.as_matrix().1]);
        op_span!("dispatch_backward", dy.numel(), size(&[dy, &dx]));
        with_float!(dy.dtype(), "dispatch_backward", E => {
            experts::dispatch_backward(&self.cpu, dx.as_mut_slice::<E>()?, dy.as_slice()?, routes)?;
        });
        Ok(dx)
    }

    fn combine(&self, x: &Tensor, weights: &Tensor, routes: &Routes) -> Result<Tensor> {
        let mut y = self.uninit(x.dtype(), &[routes.tokens(), x.as_matrix().1]);
        op_span!("combine", 2 * x.numel(), size(&[x, &y]));
        with_float!(x.dtype(), "combine", E => {
            let (y, x) = (y.as_mut_slice::<E>()?, x.as_slice()?);
            experts::combine(&self.cpu, y, x, weights.as_slice()?, routes)?;
        });
        Ok(y)
    }

    fn combine_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        weights: &Tensor,
        routes: &Routes,
    ) -> Result<(Tensor, Tensor)> {
        let mut dx = self.uninit(x.dtype(), &x.shape());
        let mut dw = self.uninit(DType::F32, &weights.shape());
        op_span!("combine_backward", 4 * x.numel(), 2 * size(&[x, &dx]));
        with_float!(x.dtype(), "combine_backward", E => {
            let (dx, dw) = (dx.as_mut_slice::<E>()?, dw.as_mut_slice()?);
            let (dy, x, w) = (dy.as_slice()?, x.as_slice()?, weights.as_slice()?);
            experts::combine_backward(&self.cpu, dx, dw, dy, x, w, routes)?;
        });
        Ok((dx, dw))
    }

    fn expert_linear(
        &self,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
        routes: &Routes,
    ) -> Result<Tensor> {
        let (n, k) = stacked("expert_linear", x, &w.shape(), routes, false)?;
        if let Some(b) = bias {
            expect("expert_linear", "bias", b, x.dtype(), &[w.dim(0), n])?;
        }
        let mut y = self.uninit(x.dtype(), &[routes.copies.len(), n]);
        op_span!("expert_linear", 2 * y.numel() * k, size(&[x, w, &y]));
        with_float!(x.dtype(), "expert_linear", E => {
            let (y, x, w) = (y.as_mut_slice::<E>()?, x.as_slice::<E>()?, w.as_slice::<E>()?);
            let bias = bias.map(Tensor::as_slice::<E>).transpose()?;
            for e in 0..routes.starts.len() - 1 {
                let rows = routes.range(e);
                let bias = bias.map(|b| &b[e * n..][..n]);
                let out = Out::Set { data: &mut y[rows.start * n..rows.end * n], stride: n, bias };
                let a = Mat { data: &x[rows.start * k..rows.end * k], stride: k };
                let b = Mat { data: &w[e * n * k..][..n * k], stride: k };
                matmul(&self.cpu, Form::Nt, Dims { m: rows.len(), n, k }, a, b, out)?;
            }
        });
        Ok(y)
    }

    fn expert_linear_dx(&self, dy: &Tensor, w: &Tensor, routes: &Routes) -> Result<Tensor> {
        let (n, k) = stacked("expert_linear_dx", dy, &w.shape(), routes, true)?;
        let mut dx = self.uninit(dy.dtype(), &[routes.copies.len(), k]);
        op_span!("expert_linear_dx", 2 * dx.numel() * n, size(&[dy, w, &dx]));
        with_float!(dy.dtype(), "expert_linear_dx", E => {
            let (dx, dy, w) = (dx.as_mut_slice::<E>()?, dy.as_slice::<E>()?, w.as_slice::<E>()?);
            for e in 0..routes.starts.len() - 1 {
                let rows = routes.range(e);
                let out = Out::Set { data: &mut dx[rows.start * k..rows.end * k], stride: k, bias: None };
                let a = Mat { data: &dy[rows.start * n..rows.end * n], stride: n };
                let b = Mat { data: &w[e * n * k..][..n * k], stride: k };
                matmul(&self.cpu, Form::Nn, Dims { m: rows.len(), n: k, k: n }, a, b, out)?;
            }
        });
        Ok(dx)
    }

    fn expert_linear_dw(
        &self,
        mut dw: TensorMut<'_>,
        dy: &Tensor,
        x: &Tensor,
        routes: &Routes,
    ) -> Result<()> {
        let (n, k) = stacked("expert_linear_dw", dy, &dw.shape(), routes, true)?;
        op_span!("expert_linear_dw", 2 * dy.numel() * k, size(&[dy, x]));
        for e in 0..routes.starts.len() - 1 {
            let rows = routes.range(e);
            if !rows.is_empty() {
                let (dy, x) = (dy.rows(rows.start, rows.len())?, x.rows(rows.start, rows.len())?);
                self.linear_dw(dw.part(e * n * k, [n, k])?, &dy, &x)?;
            }
        }
        Ok(())
    }

    fn expert_linear_db(&self, mut db: TensorMut<'_>, dy: &Tensor, routes: &Routes) -> Result<()> {
        let n = dy.as_matrix().1;
        for e in 0..routes.starts.len() - 1 {
            let rows = routes.range(e);
            if !rows.is_empty() {
                self.linear_db(db.part(e * n, [n])?, &dy.rows(rows.start, rows.len())?)?;
            }
        }
        Ok(())
    }
}
