//! Norms of the gradients and weights of all ranks, and whether gradients are finite.

use super::{Engine, LARGEST_F16};
use crate::Result;
use ms_core::{DType, ExactSum, Tensor};
use ms_dist::ReduceOp;

impl Engine {
    /// Whether a gradient on any rank is NaN or infinite or, for float16 weights, larger with its factor than float16 can
    /// hold.
    pub(super) fn overflow(&self, parts: &[Tensor]) -> Result<bool> {
        let most = match self.dtype() {
            DType::F16 => LARGEST_F16 / self.scaler.scale,
            _ => f64::MAX,
        };
        let found = self.optimizer.exceeds(parts, most)?;
        let found = Tensor::from_slice(self.device.arena(), [1], &[f64::from(u8::from(found))])?;
        let found = self.ctx.world.all_reduce("overflow", found, ReduceOp::Max)?.wait()?;
        Ok(found.ready()?.as_slice::<f64>()?[0] > 0.0)
    }

    /// Norm of the gradients of all ranks.
    pub(super) fn grad_norm(&self, parts: &[Tensor]) -> Result<f64> {
        self.root_of_sum(&self.optimizer.sum_squares(&self.device, parts)?)
    }

    /// The root of the sum over all ranks, which is rounded once: it does not depend on who has which partial sums.
    fn root_of_sum(&self, squares: &ExactSum) -> Result<f64> {
        let digits = squares.to_digits();
        let t = Tensor::from_slice(self.device.arena(), [digits.len()], &digits)?;
        let sum = self.ctx.world.all_reduce("squared norm", t, ReduceOp::Sum)?.wait()?;
        let sum =
            ExactSum::from_digits(sum.ready()?.as_slice()?).expect("a sum has the digits of its summands");
        Ok(sum.value().sqrt())
    }

    /// Norm of the master weights over all ranks.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn params_norm(&self) -> Result<f64> {
        // Ranks that own nothing of a bucket do not read it, so none may have to wait for it.
        self.store.settle()?;
        self.root_of_sum(&self.optimizer.masters_squared(&self.device, &self.store)?)
    }
}
