//! The update of this rank's share of the parameters.

use crate::Result;
use crate::config::{Adam, UpdateRule};
use ms_core::{AdamW, DType, Device, ParamId, ParamStore, Sgd, Tensor, TensorMut};
use ms_dist::DataParallel;
use ms_dist::buckets::ParamSlice;
use ms_spec::ParamSpec;

/// Master weights and moments, or momentum, of the elements that this rank owns, f32 (f64 beside f64 weights), bucket after bucket.
pub struct Optimizer {
    rule: UpdateRule,
    step: u64,
    shard: Shard,
    /// Master weights, and behind them what the rule keeps, each `[shard]`.
    state: Vec<Tensor>,
}

/// Name of the master weights in a checkpoint.
pub(crate) const MASTER: &str = "fp32_param";

/// Names of the state tensors of `rule` in a checkpoint, master weights first.
pub(crate) fn state_names(rule: UpdateRule) -> Vec<&'static str> {
    std::iter::once(MASTER).chain(rule.state_names().iter().copied()).collect()
}

/// A part of a parameter that a rank owns.
struct Owned {
    slice: ParamSlice,
    /// First element in the state tensors.
    at: usize,
    /// Whether weight decay applies.
    decay: bool,
    /// Whether this rank's elements count in a norm over all ranks: of equal copies one does.
    counts: bool,
}

/// Which elements a rank owns.
struct Shard {
    parts: Vec<Owned>,
    /// First element of each bucket's part in the state tensors, and its length.
    buckets: Vec<(usize, usize)>,
    numel: usize,
}

impl Shard {
    fn new(dp: &DataParallel, specs: &[ParamSpec], counts: &[bool]) -> Self {
        let mut numel = 0;
        let place = |shard: std::ops::Range<usize>| {
            let start = numel;
            numel += shard.len();
            (start, shard.len())
        };
        let buckets: Vec<(usize, usize)> = dp.shards().into_iter().map(place).collect();
        let own = |slice: ParamSlice| Owned {
            at: buckets[slice.bucket].0 + slice.offset,
            decay: specs[slice.param].decay,
            counts: counts[slice.param],
            slice,
        };
        Self { parts: dp.slices().into_iter().map(own).collect(), buckets, numel }
    }
}

impl Optimizer {
    /// An optimizer at step 0 whose master weights are those of `store`. `counts` says of each parameter whether this
    /// rank's copy is the one that counts.
    ///
    /// # Errors
    /// If the store's type is not one of weights.
    pub fn new(
        device: &Device,
        dp: &DataParallel,
        (specs, counts): (&[ParamSpec], &[bool]),
        store: &ParamStore,
        rule: UpdateRule,
    ) -> Result<Self> {
        let shard = Shard::new(dp, specs, counts);
        let zeros = |_| Tensor::zeros(device.arena(), store.dtype().wide(), [shard.numel]);
        let state = state_names(rule).into_iter().map(zeros).collect();
        let mut this = Self { rule, step: 0, state, shard };
        this.take_masters(device, dp, store)?;
        Ok(this)
    }

    /// Copies this rank's share of the weights into the master weights.
    ///
    /// # Errors
    /// If the store's type is not one of weights.
    pub fn take_masters(&mut self, device: &Device, dp: &DataParallel, store: &ParamStore) -> Result<()> {
        for (own, &(start, len)) in dp.shards().into_iter().zip(&self.shard.buckets) {
            let part = store.values().slice_flat(own.start, [len])?;
            let part = device.cast(&part, self.state[0].dtype())?;
            self.state[0].view_mut(start, [len])?.bytes_mut().copy_from_slice(part.bytes());
        }
        Ok(())
    }

    /// The sum of the squares of `parts`, a tensor for each bucket, over the elements that count.
    ///
    /// # Errors
    /// If a part is not of the bucket's length.
    pub fn sum_squares(&self, device: &Device, parts: &[Tensor]) -> Result<f64> {
        let mut sum = 0.0;
        for Owned { slice, .. } in self.shard.parts.iter().filter(|p| p.counts) {
            sum += device.sum_squares(&parts[slice.bucket].slice_flat(slice.offset, [slice.range.len()])?)?;
        }
        Ok(sum)
    }

    /// Whether an element of `parts`, a tensor for each bucket, is no number or farther from zero than `most`.
    ///
    /// # Errors
    /// If a part is not of real numbers.
    pub fn exceeds(&self, parts: &[Tensor], most: f64) -> Result<bool> {
        for Owned { slice, .. } in &self.shard.parts {
            let part = parts[slice.bucket].slice_flat(slice.offset, [slice.range.len()])?;
            let beyond = match part.dtype() {
                DType::F32 => {
                    let most = most as f32;
                    part.as_slice::<f32>()?.iter().any(|g| g.is_nan() || g.abs() > most || g.is_infinite())
                }
                _ => part.to_reals()?.iter().any(|g| g.is_nan() || g.abs() > most),
            };
            if beyond {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The sum of the squares of the master weights that count.
    ///
    /// # Errors
    /// Never in a sound program.
    pub fn masters_squared(&self) -> Result<f64> {
        let mut sum = 0.0;
        for Owned { slice, at, .. } in self.shard.parts.iter().filter(|p| p.counts) {
            let values = self.state[0].slice_flat(*at, [slice.range.len()])?;
            sum += values.to_reals()?.iter().map(|w| w * w).sum::<f64>();
        }
        Ok(sum)
    }

    /// Steps taken.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Continues from a checkpoint's step.
    pub fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// This rank's parts of parameter state: parameter, its elements, and their values in state tensor `which`
    /// (see [`state_names`]).
    ///
    /// # Errors
    /// Never in a sound program; the values are checked parts.
    pub fn parts(
        &self,
        which: usize,
    ) -> impl Iterator<Item = Result<(ParamId, std::ops::Range<usize>, Tensor)>> {
        self.shard.parts.iter().map(move |Owned { slice: s, at, .. }| {
            let values = self.state[which].slice_flat(*at, [s.range.len()])?;
            Ok((ParamId(s.param as u32), s.range.clone(), values))
        })
    }

    /// Fills state tensor `which` part by part: `read` gets the parameter, its elements and where to put them.
    ///
    /// # Errors
    /// As `read`.
    pub fn fill<E: From<ms_core::Error>>(
        &mut self,
        which: usize,
        mut read: impl FnMut(ParamId, std::ops::Range<usize>, TensorMut<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        for Owned { slice: s, at, .. } in &self.shard.parts {
            let values = self.state[which].view_mut(*at, [s.range.len()])?;
            read(ParamId(s.param as u32), s.range.clone(), values)?;
        }
        Ok(())
    }

    /// Changes this rank's master weights of the parameters that are `wanted` outside the update rule: `change` gets parameter,
    /// elements and values.
    ///
    /// # Errors
    /// If the master weights are in use elsewhere.
    pub fn change_masters(
        &mut self,
        wanted: impl Fn(ParamId) -> bool,
        mut change: impl FnMut(ParamId, std::ops::Range<usize>, &mut [f64]),
    ) -> Result<()> {
        let parts = self.shard.parts.iter().filter(|p| wanted(ParamId(p.slice.param as u32)));
        for Owned { slice: s, at, .. } in parts {
            let len = s.range.len();
            let mut values = self.state[0].slice_flat(*at, [len])?.to_reals()?;
            change(ParamId(s.param as u32), s.range.clone(), &mut values);
            self.state[0].view_mut(*at, [len])?.set_reals(&values)?;
        }
        Ok(())
    }

    /// Updates this rank's share with the reduced gradients `grads` (one tensor per bucket), multiplied by
    /// `grad_scale`, and returns the new weights of each bucket's part in `dtype`.
    ///
    /// # Errors
    /// If a state tensor is in use elsewhere.
    pub fn update(
        &mut self,
        device: &Device,
        grads: &[Tensor],
        grad_scale: f64,
        (lr, weight_decay): (f64, f64),
        dtype: DType,
    ) -> Result<Vec<Tensor>> {
        self.step += 1;
        for Owned { slice: s, at, decay, .. } in &self.shard.parts {
            let len = s.range.len();
            let weight_decay = if *decay { weight_decay } else { 0.0 };
            let grad = grads[s.bucket].slice_flat(s.offset, [len])?;
            let windows = self.state.iter_mut().map(|t| t.view_mut(*at, [len]));
            let mut windows = windows.collect::<ms_core::Result<Vec<_>>>()?.into_iter();
            let mut next = || windows.next().expect("a rule has as many state tensors as it names");
            match self.rule {
                UpdateRule::AdamW(Adam { beta1, beta2, eps }) => {
                    let numbers = AdamW { lr, beta1, beta2, eps, weight_decay, step: self.step };
                    device.adamw(next(), next(), next(), &grad, grad_scale, &numbers)?;
                }
                UpdateRule::Sgd { momentum } => {
                    device.sgd(next(), next(), &grad, grad_scale, &Sgd { lr, momentum, weight_decay })?;
                }
            }
        }
        self.weights(device, dtype)
    }

    /// The master weights of each bucket's part as new tensors of `dtype`.
    ///
    /// # Errors
    /// If there is no conversion to `dtype`.
    pub fn weights(&self, device: &Device, dtype: DType) -> Result<Vec<Tensor>> {
        let of = |&(start, len): &(usize, usize)| {
            let part = self.state[0].slice_flat(start, [len])?;
            if dtype != part.dtype() {
                return Ok(device.cast(&part, dtype)?);
            }
            // A copy: the master weights must stay writable while the model uses its own.
            let mut copy = Tensor::uninit(device.arena(), dtype, [len]);
            copy.bytes_mut()?.copy_from_slice(part.bytes());
            Ok(copy)
        };
        self.shard.buckets.iter().map(of).collect()
    }

    /// Bytes of optimizer state on this rank.
    pub fn bytes(&self) -> usize {
        self.state.iter().map(|t| t.bytes().len()).sum()
    }
}
