//! Data parallelism with the distributed optimizer: every rank reduces, updates and returns its part.

use crate::buckets::BucketPlan;
use crate::{Communicator, Result};
use ms_core::{Device, GradBuffer, ParamStore, Tensor};
use std::sync::Arc;

/// Reduction of gradients and gathering of weights over the buckets of a plan.
pub struct DataParallel {
    comm: Arc<dyn Communicator>,
    plan: BucketPlan,
}

impl DataParallel {
    /// Data parallelism over `comm`, whose size is the plan's `dp`.
    ///
    /// # Panics
    /// If the sizes differ.
    pub fn new(comm: Arc<dyn Communicator>, plan: BucketPlan) -> Self {
        assert_eq!(comm.size(), plan.dp, "the plan is made for the communicator's ranks");
        Self { comm, plan }
    }

    /// The plan.
    pub fn plan(&self) -> &BucketPlan {
        &self.plan
    }

    /// Multiplies the gradients by `factor`, sums them over the ranks and returns this rank's part of each
    /// bucket, f32.
    ///
    /// # Errors
    /// If a rank fails or the gradients are in use elsewhere.
    pub fn reduce_gradients(
        &self,
        device: &Device,
        grads: &mut GradBuffer,
        factor: f32,
    ) -> Result<Vec<Tensor>> {
        if factor != 1.0 {
            device.scale(grads.values_mut(), factor)?;
        }
        let started = self.plan.buckets.iter().map(|bucket| {
            let part = grads.values().slice_flat(bucket.start, [bucket.len()])?;
            self.comm.reduce_scatter("gradients", part)
        });
        let started: Vec<_> = started.collect::<Result<_>>()?;
        started.into_iter().map(crate::Pending::wait).collect()
    }

    /// Puts the ranks' updated parts (one tensor per bucket, of the store's element type) together as the new
    /// weights of `store`.
    ///
    /// # Errors
    /// If a rank fails or the weights are still in use by a graph.
    pub fn gather_weights(&self, store: &mut ParamStore, parts: Vec<Tensor>) -> Result<()> {
        let started: Vec<_> =
            parts.into_iter().map(|p| self.comm.all_gather("weights", p)).collect::<Result<_>>()?;
        for (bucket, pending) in self.plan.buckets.iter().zip(started) {
            let whole = pending.wait()?;
            if bucket.len() == self.plan.layout.numel() {
                store.replace(whole)?;
            } else {
                let size = store.dtype().size();
                let range = bucket.start * size..bucket.end * size;
                store.values_mut()?.bytes_mut()?[range].copy_from_slice(whole.bytes());
            }
        }
        Ok(())
    }
}
