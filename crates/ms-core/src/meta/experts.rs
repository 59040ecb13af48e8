//! Mixtures of experts without values: routers spread tokens evenly.

use super::MetaBackend;
use crate::{ExpertLoad, MoeBackend, Result, Router, Routes, Tensor, TensorMut};

impl MoeBackend for MetaBackend {
    fn route(&self, logits: &Tensor, _: Option<&Tensor>, router: &Router) -> Result<(Tensor, Tensor)> {
        let (tokens, count) = logits.as_matrix();
        let numbers: Vec<i32> = (0..tokens * router.top_k).map(|i| (i % count.max(1)) as i32).collect();
        let experts = Tensor::from_slice(&self.arena, [tokens, router.top_k], &numbers)?;
        Ok((experts, self.uninit(logits.dtype(), &[tokens, router.top_k])))
    }

    fn weigh(&self, _: &Tensor, logits: &Tensor, router: &Router) -> Result<Tensor> {
        Ok(self.uninit(logits.dtype(), &[logits.as_matrix().0, router.top_k]))
    }

    fn route_backward(&self, _: &Tensor, _: &Tensor, logits: &Tensor, _: &Router) -> Result<Tensor> {
        Ok(self.like(logits))
    }

    fn balance(&self, _: Option<&mut Tensor>, _: &Tensor, _: &ExpertLoad, _: &Router, _: f64) -> Result<f64> {
        Ok(0.0)
    }

    fn dispatch(&self, x: &Tensor, routes: &Routes) -> Result<Tensor> {
        Ok(self.uninit(x.dtype(), &[routes.copies.len(), x.as_matrix().1]))
    }

    fn dispatch_backward(&self, dy: &Tensor, routes: &Routes) -> Result<Tensor> {
        Ok(self.uninit(dy.dtype(), &[routes.tokens(), dy.as_matrix().1]))
    }

    fn combine(&self, x: &Tensor, _: &Tensor, routes: &Routes) -> Result<Tensor> {
        Ok(self.uninit(x.dtype(), &[routes.tokens(), x.as_matrix().1]))
    }

    fn combine_backward(
        &self,
        _: &Tensor,
        x: &Tensor,
        weights: &Tensor,
        _: &Routes,
    ) -> Result<(Tensor, Tensor)> {
        Ok((self.like(x), self.wide_like(weights)))
    }

    fn expert_linear(&self, x: &Tensor, w: &Tensor, _: Option<&Tensor>, routes: &Routes) -> Result<Tensor> {
        Ok(self.uninit(x.dtype(), &[routes.copies.len(), w.dim(1)]))
    }

    fn expert_linear_dx(&self, dy: &Tensor, w: &Tensor, routes: &Routes) -> Result<Tensor> {
        Ok(self.uninit(dy.dtype(), &[routes.copies.len(), w.dim(2)]))
    }

    fn expert_linear_dw(&self, _: TensorMut<'_>, _: &Tensor, _: &Tensor, _: &Routes) -> Result<()> {
        Ok(())
    }

    fn expert_linear_db(&self, _: TensorMut<'_>, _: &Tensor, _: &Routes) -> Result<()> {
        Ok(())
    }
}
