//! The optimizer: the update of this rank's shard of the parameters.

use crate::Result;
use crate::config::{Adam, UpdateRule};
use crate::lr_schedule::Rates;
use crate::owned::{Owned, Shard};
use crate::scaled::{Scaled, Stored};
use crate::state::{InWeights, LowerHalves, OptimizerForm, State};
use ms_core::{AdamW, DType, Device, ExactSum, Host, ParamId, ParamStore, Sgd, Tensor, TensorMut};
use ms_dist::DataParallel;
use ms_dist::buckets::ParamSlice;
use ms_spec::ParamSpec;

/// Master weights and moments, or momentum, of the elements that this rank owns, bucket after bucket, in the form given by
/// [`OptimizerForm`]; they are read and updated in f32 (f64 for f64 weights). Weights of that type are the master weights
/// themselves.
pub struct Optimizer {
    rule: UpdateRule,
    step: u64,
    shard: Shard,
    dtype: DType,
    /// Type of the model's weights.
    weights: DType,
    /// Master weights, followed by the state of the update rule, each `[shard]`.
    state: Vec<State>,
    /// Maximum number of state elements with unrounded copies at one time.
    piece: usize,
    /// Whether gradients that are kept in bf16 are so, too, when they have been clipped.
    rounds: bool,
    /// New weights of each bucket's part that the model does not have yet, where these hold the master weights.
    unpublished: Option<Vec<Tensor>>,
}

/// First elements of the pieces of `len` elements. Without values all are alike: the first stands for them.
fn pieces(device: &Device, len: usize, piece: usize) -> impl Iterator<Item = usize> + use<> {
    let most = if device.arena().is_meta() { 1 } else { usize::MAX };
    (0..len).step_by(piece).take(most)
}

/// Number of elements unrounded at one time, if the state is stored in another form.
const PIECE: usize = 1 << 14;

/// Name of the master weights in a checkpoint.
pub(crate) const MASTER: &str = "fp32_param";

/// Names of the state tensors of `rule` in a checkpoint, master weights first.
pub(crate) fn state_names(rule: UpdateRule) -> Vec<&'static str> {
    std::iter::once(MASTER).chain(rule.state_names().iter().copied()).collect()
}

/// The part of gradients, a tensor for each bucket, that `slice` is, in the type that is computed with.
fn unrounded(device: &Device, grads: &[Tensor], slice: &ParamSlice) -> Result<Tensor> {
    let part = grads[slice.bucket].slice_flat(slice.offset, [slice.range.len()])?;
    Ok(device.cast(&part, part.dtype().wide())?)
}

impl Optimizer {
    /// An optimizer at step 0 for the weights of `store`, whose master weights are zeros until they are taken
    /// ([`Optimizer::take_masters`]) or filled. `counts` says of each parameter whether this rank's copy is the one that counts.
    ///
    /// # Errors
    /// If the store's type is not one of weights.
    pub fn new(
        device: &Device,
        dp: &DataParallel,
        (specs, counts): (&[ParamSpec], &[bool]),
        store: &ParamStore,
        rule: UpdateRule,
        (form, host): (OptimizerForm, Option<&Host>),
    ) -> Result<Self> {
        let shard = Shard::new(dp, specs, counts);
        let dtype = store.dtype().wide();
        let zeros = |dtype| Tensor::zeros(device.arena(), dtype, [shard.numel]);
        let in_weights = |lower: Option<LowerHalves>| {
            let mut all = InWeights::new(lower);
            let whole = shard.parts.iter().filter(|p| !specs[p.slice.param].trained());
            whole.for_each(|p| all.keep_whole(device, (p.at, p.slice.range.len()), dtype));
            State::InWeights(all)
        };
        let in_type = |stored, which| {
            let mut all = Scaled::new(device, stored, shard.numel);
            // What no gradient changes is no weight to the rule.
            for own in shard.parts.iter().filter(|p| which == 0 && !specs[p.slice.param].trained()) {
                let values = Tensor::zeros(device.arena(), dtype, [own.slice.range.len()]);
                all.whole.insert(own.at, values);
            }
            all
        };
        let make = |which: usize| -> Result<State> {
            Ok(match (form, host) {
                _ if which == 0 && store.dtype() == dtype => in_weights(None),
                (OptimizerForm { stored: Some(stored), .. }, _) if stored[which] != Stored::Wide => {
                    State::Scaled(in_type(stored[which], which))
                }
                (OptimizerForm { swapped: Some(_), rounded_moments, .. }, Some(host)) => {
                    let kept = if rounded_moments && which > 0 { DType::Bf16 } else { dtype };
                    State::away(host, kept, shard.numel)?
                }
                (OptimizerForm { reuse: true, ties_to_even, .. }, _) if which == 0 => {
                    in_weights(Some(LowerHalves::new(device, shard.numel, ties_to_even)))
                }
                (OptimizerForm { rounded_moments: true, .. }, _) if which > 0 => {
                    State::Rounded(zeros(DType::Bf16))
                }
                _ => State::OnDevice(zeros(dtype)),
            })
        };
        let state = (0..state_names(rule).len()).map(make).collect::<Result<_>>()?;
        let piece = form.swapped.map_or(PIECE, |times| shard.numel.div_ceil(times.max(1)).max(1));
        let weights = store.dtype();
        let rounds = form.stored.is_some();
        Ok(Self { rule, step: 0, state, shard, dtype, weights, piece, rounds, unpublished: None })
    }

    /// Whether the model's weights are not those that master weights round to, since both were rounded from the same numbers.
    pub(crate) fn weights_stand_alone(&self) -> bool {
        self.state[0].goes_by_parts()
    }

    /// Copies this rank's share of the weights into the master weights.
    ///
    /// # Errors
    /// If the store's type is not one of weights.
    pub fn take_masters(&mut self, device: &Device, dp: &DataParallel, store: &ParamStore) -> Result<()> {
        self.unpublished = None;
        let by_parts = self.state[0].goes_by_parts();
        let copied = !self.state[0].is_weights() && !by_parts;
        for (own, &(start, len)) in dp.shards().into_iter().zip(&self.shard.buckets).filter(|_| copied) {
            for at in pieces(device, len, self.piece) {
                let part = store.slice(own.start + at, self.piece.min(len - at))?;
                self.state[0].write(device, start + at, &device.cast(&part, self.dtype)?)?;
            }
        }
        // Parts that are kept as a whole go by their own first elements.
        for own in &self.shard.parts {
            if !by_parts && !self.state[0].is_whole(own.at) {
                continue;
            }
            let part = store.slice(self.shard.home(own), own.slice.range.len())?;
            self.state[0].write(device, own.at, &device.cast(&part, self.dtype)?)?;
        }
        Ok(())
    }

    /// The master weights of a part, or another state of it, in memory of its own.
    fn read(&self, device: &Device, store: &ParamStore, which: usize, own: &Owned) -> Result<Tensor> {
        let len = own.slice.range.len();
        let upper = || -> Result<Tensor> {
            Ok(match &self.unpublished {
                Some(new) => new[own.slice.bucket].slice_flat(own.slice.offset, [len])?,
                None => store.slice(self.shard.home(own), len)?,
            })
        };
        self.state[which].read(device, (own.at, len), upper)
    }

    /// The sum of the squares of `parts`, a tensor for each bucket, over the elements that count.
    ///
    /// # Errors
    /// If a part is not of the bucket's length.
    pub fn sum_squares(&self, device: &Device, parts: &[Tensor]) -> Result<ExactSum> {
        let mut sum = ExactSum::default();
        for Owned { slice, .. } in self.shard.parts.iter().filter(|p| p.counts) {
            sum += &device.sum_squares(&unrounded(device, parts, slice)?)?;
        }
        Ok(sum)
    }

    /// Zeros among `parts`, a tensor for each bucket, of the elements that count.
    ///
    /// # Errors
    /// If a part is not of real numbers.
    pub fn zeros(&self, parts: &[Tensor]) -> Result<usize> {
        let mut zeros = 0;
        for Owned { slice, .. } in
            self.shard.parts.iter().filter(|own| own.counts && !parts[own.slice.bucket].is_meta())
        {
            let part = parts[slice.bucket].slice_flat(slice.offset, [slice.range.len()])?;
            part.ready()?;
            zeros += match part.dtype() {
                DType::F32 => part.as_slice::<f32>()?.iter().filter(|g| **g == 0.0).count(),
                _ => part.to_reals()?.iter().filter(|g| **g == 0.0).count(),
            };
        }
        Ok(zeros)
    }

    /// Whether an element of `parts`, a tensor for each bucket, is NaN or larger in magnitude than `most`.
    ///
    /// # Errors
    /// If a part is not of real numbers.
    pub fn exceeds(&self, parts: &[Tensor], most: f64) -> Result<bool> {
        for Owned { slice, .. } in self.shard.parts.iter().filter(|own| !parts[own.slice.bucket].is_meta()) {
            let part = parts[slice.bucket].slice_flat(slice.offset, [slice.range.len()])?;
            part.ready()?;
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
    /// As an item of [`Optimizer::parts`].
    pub fn masters_squared(&self, device: &Device, store: &ParamStore) -> Result<ExactSum> {
        let mut sum = ExactSum::default();
        for own in self.shard.parts.iter().filter(|p| p.counts) {
            sum += &device.sum_squares(&self.read(device, store, 0, own)?)?;
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

    /// This rank's parts of the state of `wanted` parameters: parameter, its elements, and their values in state tensor
    /// `which`, master weights being the first. What is with the host, or in another form, is read as the iterator comes to
    /// it.
    ///
    /// # Errors
    /// An item is one if its values cannot be brought from the host or widened on `device`.
    pub fn parts<'a>(
        &'a self,
        device: &'a Device,
        store: &'a ParamStore,
        which: usize,
        wanted: impl Fn(ParamId) -> bool + 'a,
    ) -> impl Iterator<Item = Result<(ParamId, std::ops::Range<usize>, Tensor)>> + 'a {
        self.shares(which, wanted).map(move |share| {
            let s = &share.own.slice;
            Ok((ParamId(s.param as u32), s.range.clone(), share.values(device, store)?))
        })
    }

    /// [`Optimizer::parts`], before anything has been read.
    pub(crate) fn shares(
        &self,
        which: usize,
        wanted: impl Fn(ParamId) -> bool,
    ) -> impl Iterator<Item = StateShard<'_>> {
        let parts = self.shard.parts.iter().filter(move |own| wanted(ParamId(own.slice.param as u32)));
        parts.map(move |own| StateShard { optimizer: self, which, own })
    }

    /// Fills state tensor `which`: `read` gets parts with where to put them, all those at once that stay as they are read, and
    /// the others one by one. Where `store` holds this state, its buckets may be taken: they wait for [`Optimizer::weights`].
    ///
    /// # Errors
    /// As `read`.
    pub(crate) fn fill(
        &mut self,
        (device, store): (&Device, &mut ParamStore),
        which: usize,
        mut read: impl FnMut(Vec<StateSlot<'_>>) -> Result<()>,
    ) -> Result<()> {
        let buckets = 0..self.shard.buckets.len();
        let mut new: Option<Vec<_>> = if self.state[which].goes_by_parts() {
            None
        } else {
            let place = |bucket: usize| {
                let (start, len) = (self.shard.homes[bucket], self.shard.buckets[bucket].1);
                let old = self.held(which).then(|| store.take(start, len)).flatten();
                old.or_else(|| self.new_weights(device, which, bucket))
            };
            buckets.map(place).collect()
        };
        let state = &mut self.state[which];
        // Weights that are the numbers themselves are read to their place, too.
        let stays = |own: &&Owned| match &*state {
            State::OnDevice(_) => true,
            state => state.is_weights() && !state.is_whole(own.at),
        };
        let (stay, others): (Vec<&Owned>, Vec<&Owned>) = self.shard.parts.iter().partition(stays);
        let mut places = Vec::with_capacity(stay.len());
        if let State::OnDevice(all) = state {
            places = all.whole_mut()?.split(stay.iter().map(|own| own.at..own.at + own.slice.range.len()));
        } else {
            for (bucket, new) in new.iter_mut().flatten().enumerate() {
                let slices = stay.iter().map(|own| &own.slice).filter(|s| s.bucket == bucket);
                places.extend(new.whole_mut()?.split(slices.map(|s| s.offset..s.offset + s.range.len())));
            }
        }
        read(stay.into_iter().zip(places).map(StateSlot::new).collect())?;
        for own in others {
            let s = &own.slice;
            let mut values = Tensor::uninit(device.arena(), self.dtype, [s.range.len()]);
            read(vec![StateSlot::new((own, values.whole_mut()?))])?;
            let upper = state.restore(device, own.at, &values)?;
            if let (Some(new), Some(upper)) = (&mut new, upper) {
                new[s.bucket].put(s.offset, &upper)?;
            }
        }
        if new.is_some() {
            self.unpublished = new;
        }
        Ok(())
    }

    /// Zeros in the place of the model's weights in `bucket`, if these hold state `which`.
    fn new_weights(&self, device: &Device, which: usize, bucket: usize) -> Option<Tensor> {
        // Weights are rounded from new master weights, before these are.
        let held = self.held(which) || which == 0 && self.state[0].goes_by_parts();
        held.then(|| Tensor::zeros(device.arena(), self.weights, [self.shard.buckets[bucket].1]))
    }

    /// Whether the model's weights hold state `which`, or a part of it.
    fn held(&self, which: usize) -> bool {
        matches!(self.state[which], State::InWeights(_))
    }

    /// This rank's part of the model's weights in `bucket`, in memory of its own: these stay writable while the model uses them.
    fn copy(&self, store: &ParamStore, bucket: usize) -> Result<Tensor> {
        Ok(store.slice(self.shard.homes[bucket], self.shard.buckets[bucket].1)?.copied()?)
    }

    /// Changes this rank's master weights of the parameters that are `wanted` outside the update rule: `change` gets parameter,
    /// elements and values.
    ///
    /// # Errors
    /// If the master weights are in use elsewhere.
    pub fn change_masters(
        &mut self,
        (device, store): (&Device, &ParamStore),
        wanted: impl Fn(ParamId) -> bool,
        mut change: impl FnMut(ParamId, std::ops::Range<usize>, &mut [f64]),
    ) -> Result<()> {
        let parts = self.shard.parts.iter().enumerate();
        let parts = parts.filter(|(_, p)| wanted(ParamId(p.slice.param as u32))).map(|(i, _)| i);
        for i in parts.collect::<Vec<_>>() {
            let own = &self.shard.parts[i];
            let mut master = self.read(device, store, 0, own)?;
            let mut values = master.ready()?.to_reals()?;
            change(ParamId(own.slice.param as u32), own.slice.range.clone(), &mut values);
            master.whole_mut()?.set_reals(&values)?;
            // Master weights that are partly in the weights are stored whole, so the weights need not be known.
            self.state[0].write(device, own.at, &master)?;
        }
        Ok(())
    }

    /// Updates this rank's share with the reduced gradients `grads` (one tensor per bucket), multiplied by `grad_scale`, in
    /// the `order` of buckets, and passes on each bucket's number and new weights, of the type of `store`, when it has them.
    ///
    /// # Errors
    /// If a state tensor is in use elsewhere; as `updated`.
    pub fn update(
        &mut self,
        device: &Device,
        (grads, grad_scale): (&[Tensor], f64),
        rates: Rates,
        store: &mut ParamStore,
        order: &[usize],
        mut updated: impl FnMut(usize, Tensor) -> Result<()>,
    ) -> Result<()> {
        self.step += 1;
        let all = StepNumbers { rule: self.rule, step: self.step, lr: rates.lr, grad_scale };
        order.iter().try_for_each(|&bucket| {
            updated(bucket, self.update_bucket(device, grads, (all, rates), store, bucket)?)
        })
    }

    /// [`Optimizer::update`] of one bucket.
    fn update_bucket(
        &mut self,
        device: &Device,
        grads: &[Tensor],
        (all, rates): (StepNumbers, Rates),
        store: &mut ParamStore,
        bucket: usize,
    ) -> Result<Tensor> {
        let direct = self.state[0].is_weights();
        let here = |state: &State| matches!(state, State::OnDevice(_));
        // Weights that are wanted by pieces stay where they are until all are new.
        let (start, len) = (self.shard.homes[bucket], self.shard.buckets[bucket].1);
        let in_place = (direct && self.state[1..].iter().all(here)).then(|| store.take(start, len)).flatten();
        let mut new = match in_place {
            None if direct => Some(self.copy(store, bucket)?),
            None => self.new_weights(device, 0, bucket),
            taken => taken,
        };
        let by_parts = self.state.iter().any(State::goes_by_parts);
        for own in self.shard.of_bucket(bucket) {
            let (s, len) = (&own.slice, own.slice.range.len());
            let weight_decay = if own.decay { rates.weight_decay } else { 0.0 };
            let lr = rates.decoupled_lr.filter(|_| own.words).unwrap_or(rates.lr);
            let mut numbers = StepNumbers { lr, ..all };
            let mut grad = unrounded(device, grads, s)?;
            let kept_in = grads[bucket].dtype();
            if self.rounds && kept_in != grad.dtype() && numbers.grad_scale != 1.0 {
                device.scale(&mut grad, std::mem::replace(&mut numbers.grad_scale, 1.0))?;
                grad = device.cast(&device.cast(&grad, kept_in)?, grad.dtype())?;
            }
            let is_whole = self.state[0].is_whole(own.at);
            if (direct && !is_whole || here(&self.state[0])) && self.state[1..].iter().all(here) {
                let own_weights = new.iter_mut().map(|new| new.view_mut(s.offset, [len]));
                let of_state = self.state.iter_mut().filter_map(|state| match state {
                    State::OnDevice(all) => Some(all.view_mut(own.at, [len])),
                    _ => None,
                });
                let windows = own_weights.chain(of_state).collect::<ms_core::Result<Vec<_>>>()?;
                numbers.apply(device, windows, &grad, weight_decay)?;
                continue;
            }
            // The rule works element by element, so pieces give the same bits.
            let piece = if is_whole || by_parts { len.max(1) } else { self.piece };
            for start in pieces(device, len, piece) {
                let (at, part) = (own.at + start, piece.min(len - start));
                let upper = || Ok(store.slice(self.shard.home(own) + start, part)?);
                let read = |state: &State| state.read(device, (at, part), upper);
                let mut values = self.state.iter().map(read).collect::<Result<Vec<_>>>()?;
                let windows =
                    values.iter_mut().map(Tensor::whole_mut).collect::<ms_core::Result<Vec<_>>>()?;
                numbers.apply(device, windows, &grad.slice_flat(start, [part])?, weight_decay)?;
                for (which, (state, values)) in self.state.iter_mut().zip(&values).enumerate() {
                    if let (0, true, Some(new)) = (which, state.goes_by_parts(), &mut new) {
                        new.put(s.offset + start, &device.cast(values, self.weights)?)?;
                    }
                    let upper = state.write(device, at, values)?;
                    if let (0, Some(new), Some(upper)) = (which, &mut new, upper) {
                        new.put(s.offset + start, &upper)?;
                    }
                }
            }
        }
        match new {
            Some(new) => Ok(new),
            None => self.bucket_weights(device, store, bucket),
        }
    }

    /// The master weights of each bucket's part as new tensors of the type of `store`.
    ///
    /// # Errors
    /// If there is no conversion to that type.
    pub fn weights(&mut self, device: &Device, store: &ParamStore) -> Result<Vec<Tensor>> {
        if let Some(new) = self.unpublished.take() {
            return Ok(new);
        }
        (0..self.shard.buckets.len()).map(|bucket| self.bucket_weights(device, store, bucket)).collect()
    }

    /// The master weights of one bucket's part.
    fn bucket_weights(&self, device: &Device, store: &ParamStore, bucket: usize) -> Result<Tensor> {
        let (dtype, (start, len)) = (self.weights, self.shard.buckets[bucket]);
        match &self.state[0] {
            // Those of a checkpoint were rounded before their master weights were.
            State::InWeights(_) | State::Scaled(_) => {}
            State::OnDevice(all) => return Ok(device.cast(&all.slice_flat(start, [len])?, dtype)?),
            state => return self.narrowed(device, state, (start, len), dtype),
        }
        let mut weights = self.copy(store, bucket)?;
        if dtype == self.dtype {
            for own in self.shard.of_bucket(bucket).iter().filter(|own| self.state[0].is_whole(own.at)) {
                weights.put(own.slice.offset, &self.read(device, store, 0, own)?)?;
            }
        }
        Ok(weights)
    }

    /// Elements of a state that is elsewhere in `dtype`, a piece at a time.
    fn narrowed(
        &self,
        device: &Device,
        state: &State,
        (start, len): (usize, usize),
        dtype: DType,
    ) -> Result<Tensor> {
        let mut whole = Tensor::uninit(device.arena(), dtype, [len]);
        for at in pieces(device, len, self.piece) {
            let part = self.piece.min(len - at);
            let nothing = || Ok(Tensor::zeros(device.arena(), dtype, [0]));
            let values = device.cast(&state.read(device, (start + at, part), nothing)?, dtype)?;
            whole.put(at, &values)?;
        }
        Ok(whole)
    }

    /// Bytes of optimizer state on this rank's device.
    pub fn bytes(&self) -> usize {
        self.state.iter().map(State::bytes).sum()
    }
}

/// A part of a parameter's state that is to be filled.
pub(crate) struct StateSlot<'a> {
    pub(crate) param: ParamId,
    /// Its elements of the parameter's on this rank.
    pub(crate) range: std::ops::Range<usize>,
    pub(crate) values: TensorMut<'a>,
}

impl<'a> StateSlot<'a> {
    fn new((own, values): (&Owned, TensorMut<'a>)) -> Self {
        Self { param: ParamId(own.slice.param as u32), range: own.slice.range.clone(), values }
    }
}

/// A part of a parameter's state.
#[derive(Clone, Copy)]
pub(crate) struct StateShard<'a> {
    optimizer: &'a Optimizer,
    which: usize,
    own: &'a Owned,
}

impl StateShard<'_> {
    pub(crate) fn param(&self) -> ParamId {
        ParamId(self.own.slice.param as u32)
    }

    /// Its elements of the parameter's on this rank.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.own.slice.range.clone()
    }

    /// Whether it is with the host.
    pub(crate) fn is_on_host(&self) -> bool {
        matches!(self.optimizer.state[self.which], State::OnHost(_))
    }

    pub(crate) fn dtype(&self) -> DType {
        self.optimizer.dtype
    }

    /// Its values.
    pub(crate) fn values(&self, device: &Device, store: &ParamStore) -> Result<Tensor> {
        match &self.optimizer.state[self.which] {
            State::OnDevice(all) => Ok(all.slice_flat(self.own.at, [self.own.slice.range.len()])?),
            _ => self.optimizer.read(device, store, self.which, self.own),
        }
    }

    /// Hands on its values, with the host, a piece at a time: as many as are here at once in an update.
    pub(crate) fn each_piece(
        &self,
        device: &Device,
        mut take: impl FnMut(&Tensor) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let Self { optimizer, which, own } = *self;
        let len = own.slice.range.len();
        for start in (0..len).step_by(optimizer.piece) {
            let part = (own.at + start, optimizer.piece.min(len - start));
            let nothing = || Ok(Tensor::zeros(device.arena(), optimizer.dtype, [0]));
            let values = optimizer.state[which].read(device, part, nothing);
            take(&values.map_err(std::io::Error::other)?)?;
        }
        Ok(())
    }
}

/// The numbers of a step.
#[derive(Clone, Copy)]
struct StepNumbers {
    rule: UpdateRule,
    step: u64,
    lr: f64,
    grad_scale: f64,
}

impl StepNumbers {
    /// Updates `windows`, master weights and what the rule keeps.
    fn apply(
        &self,
        device: &Device,
        windows: Vec<TensorMut<'_>>,
        grad: &Tensor,
        weight_decay: f64,
    ) -> Result<()> {
        let Self { rule, step, lr, grad_scale } = *self;
        let mut windows = windows.into_iter();
        let mut next = || windows.next().expect("a rule has as many state tensors as it names");
        match rule {
            UpdateRule::AdamW(Adam { beta1, beta2, eps }) => {
                let numbers = AdamW { lr, beta1, beta2, eps, weight_decay, step };
                device.adamw(next(), next(), next(), grad, grad_scale, &numbers)?;
            }
            UpdateRule::Sgd { momentum } => {
                device.sgd(next(), next(), grad, grad_scale, &Sgd { lr, momentum, weight_decay })?;
            }
        }
        Ok(())
    }
}
