//! Optional checks of a run: zeros among gradients, and weights that replicas should have in common.

use super::Engine;
use crate::{Error, Result};
use ms_core::{ParamId, Tensor};
use ms_dist::{Communicator, ReduceOp};
use std::sync::Arc;

/// The numbers that summarise one weight's bytes: two halves, which an f64 holds exactly.
const HALVES: usize = 2;

impl Engine {
    /// Zeros among the gradients `parts` of all parameters, over all ranks; of equal copies one counts.
    ///
    /// # Source
    /// Megatron-LM `core_v0.12.1`, `megatron/core/optimizer/clip_grads.py`, `count_zeros_fp32`.
    pub(super) fn zeros(&self, parts: &[Tensor]) -> Result<u64> {
        let mine = self.optimizer.zeros(parts)? as f64;
        let mine = Tensor::from_slice(self.device.arena(), [1], &[mine])?;
        let all = self.ctx.world.all_reduce("zeros of gradients", mine, ReduceOp::Sum)?.wait()?;
        Ok(all.ready()?.as_slice::<f64>()?[0] as u64)
    }

    /// Checks that ranks that train the same weights on other data have them alike, bit by bit. Every rank has to call it.
    ///
    /// # Errors
    /// [`Error::Replicas`] with the first parameter that differs; if a rank fails.
    ///
    /// # Source
    /// Megatron-LM `core_v0.12.1`, `megatron/core/utils.py`, `check_param_hashes_across_dp_replicas`.
    pub fn check_replicas(&self, iteration: u64) -> Result<()> {
        self.store.settle()?;
        let mut differ = None;
        for (of_experts, group) in [(false, &self.ctx.dp_cp), (true, &self.ctx.edp)] {
            let specs = self.model.specs().iter().enumerate();
            let ids: Vec<usize> =
                specs.filter(|(_, spec)| spec.of_experts() == of_experts).map(|(i, _)| i).collect();
            if let Some(at) = self.first_that_differs(&ids, group)? {
                differ = differ.or(Some(at));
            }
        }
        match differ {
            None => Ok(()),
            Some(id) => {
                let name = self.model.specs()[id].name.clone();
                Err(Error::Replicas { iteration, rank: self.ctx.describe(), name })
            }
        }
    }

    /// The first of the parameters `ids` whose bytes differ between ranks of `group`.
    fn first_that_differs(&self, ids: &[usize], group: &Arc<dyn Communicator>) -> Result<Option<usize>> {
        if ids.is_empty() || group.size() == 1 {
            return Ok(None);
        }
        // The largest of the sums, and of their negatives: of equal sums they are the same number.
        let mut sums = Vec::with_capacity(2 * HALVES * ids.len());
        for &id in ids {
            let sum = sum_of(self.store.value(ParamId(id as u32)).ready()?.bytes());
            let halves = [f64::from((sum >> 32) as u32), f64::from(sum as u32)];
            sums.extend(halves);
            sums.extend(halves.map(|half| -half));
        }
        let mine = Tensor::from_slice(self.device.arena(), [sums.len()], &sums)?;
        let most = group.all_reduce("sums of weights", mine, ReduceOp::Max)?.wait()?;
        let differs =
            |of: &[f64]| of[..HALVES].iter().zip(&of[HALVES..]).any(|(most, least)| *most != -least);
        let place = most.ready()?.as_slice::<f64>()?.chunks_exact(2 * HALVES).position(differs);
        Ok(place.map(|at| ids[at]))
    }
}

/// FNV-1a over 8-byte words: changing one bit changes the sum.
fn sum_of(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let tail = rest.iter().map(|&byte| u64::from(byte));
    words
        .iter()
        .map(|word| u64::from_le_bytes(*word))
        .chain(tail)
        .fold(0xcbf2_9ce4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3))
}
