//! Main gradients in buckets, each with its own memory, reduced while the backward pass is still running.

use crate::{DataParallel, Pending, Result};
use half::bf16;
use ms_core::{Arena, DType, Device, Error, GradSink, ParamId, Shape, Tensor, TensorMut};
use std::collections::VecDeque;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

/// Where a parameter's gradient lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    bucket: usize,
    offset: usize,
    shape: Shape,
}

/// The main gradients of one model copy, divided into the buckets that data parallelism reduces. One bucket can be in transit
/// to other ranks while another is written. Their type is [`DType::wide`] of the weights' type, or bf16; then every added
/// gradient is rounded, and so is the sum.
#[derive(Debug)]
pub struct GradBuckets {
    arena: Arena,
    dtype: DType,
    places: Vec<Place>,
    /// `None`: handed over to a communicator.
    buckets: Vec<Option<Tensor>>,
    sizes: Vec<usize>,
}

impl GradBuckets {
    /// Zeros of type `dtype`, in the buckets of `dp`.
    ///
    /// # Panics
    /// Never: every parameter lies in a bucket.
    pub fn zeros(arena: &Arena, dtype: DType, dp: &DataParallel) -> Self {
        let ranges: Vec<std::ops::Range<usize>> = dp.bucket_ranges().collect();
        let layout = dp.layout();
        let place = |id: ParamId| {
            let start = layout.start(id);
            let bucket =
                ranges.iter().position(|r| r.contains(&start)).expect("a parameter lies in a bucket");
            Place { bucket, offset: start - ranges[bucket].start, shape: layout.shape(id) }
        };
        let sizes: Vec<usize> = ranges.iter().map(std::ops::Range::len).collect();
        let buckets = sizes.iter().map(|&n| Some(Tensor::zeros(arena, dtype, [n]))).collect();
        Self { arena: arena.clone(), dtype, places: layout.ids().map(place).collect(), buckets, sizes }
    }

    /// Sets all gradients to zero; buckets that were handed over get new memory.
    ///
    /// # Errors
    /// If a gradient is in use elsewhere.
    pub fn clear(&mut self, device: &Device) -> Result<()> {
        for (bucket, &size) in self.buckets.iter_mut().zip(&self.sizes) {
            match bucket {
                Some(bucket) => device.fill_zero(bucket)?,
                None => {
                    let mut fresh = Tensor::uninit(&self.arena, self.dtype, [size]);
                    device.fill_zero(&mut fresh)?;
                    *bucket = Some(fresh);
                }
            }
        }
        Ok(())
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The gradient of one parameter, writable.
    ///
    /// # Errors
    /// If it was handed over, or another tensor uses the bucket.
    fn whole(&mut self, id: ParamId) -> ms_core::Result<TensorMut<'_>> {
        let Place { bucket, offset, shape } = self.places[id.0 as usize];
        self.buckets[bucket].as_mut().ok_or(HANDED_OVER)?.view_mut(offset, shape)
    }
}

const HANDED_OVER: Error = Error::Shared { what: "a gradient that other ranks have already got" };

impl GradSink for GradBuckets {
    fn add(
        &mut self,
        p: ParamId,
        work: &mut dyn FnMut(TensorMut<'_>) -> ms_core::Result<()>,
    ) -> ms_core::Result<()> {
        if self.dtype != DType::Bf16 {
            return work(self.whole(p)?);
        }
        let mut added = Tensor::zeros(&self.arena, DType::Bf16.wide(), self.places[p.0 as usize].shape);
        work(added.whole_mut()?)?;
        if added.is_meta() {
            return Ok(());
        }
        let mut whole = self.whole(p)?;
        for (sum, added) in whole.as_mut_slice::<bf16>()?.iter_mut().zip(added.ready()?.as_slice::<f32>()?) {
            *sum = bf16::from_f32(sum.to_f32() + bf16::from_f32(*added).to_f32());
        }
        Ok(())
    }
}

/// A thread that waits for reductions in the order in which they were started, so that they progress while the backward pass
/// runs.
struct Waiter {
    started: mpsc::Sender<(usize, Pending)>,
    done: JoinHandle<Vec<(usize, Result<Tensor>)>>,
}

impl Waiter {
    fn new() -> Self {
        let (started, queue) = mpsc::channel::<(usize, Pending)>();
        let wait = move || queue.into_iter().map(|(bucket, pending)| (bucket, pending.wait())).collect();
        Self { started, done: thread::spawn(wait) }
    }
}

/// The reduction of gradients over data-parallel ranks. It accumulates gradients, and starts a bucket's reduction when the
/// bucket is complete and the reductions of all buckets after it have started. So all ranks start reductions in the same
/// order, even if their operations end in different orders because experts have tokens on one rank and none on another.
pub struct Reduction<'a> {
    dp: &'a DataParallel,
    grads: &'a mut GradBuckets,
    /// Backward passes that still add to each parameter.
    passes_left: Vec<usize>,
    /// Parameters of each bucket that are not complete.
    open: Vec<usize>,
    /// Buckets whose sums have not started, in the order in which they will.
    waiting: VecDeque<usize>,
    /// Whether sums start before the end.
    early: bool,
    /// Reductions in the order in which they were started, with their buckets, except those handed to the waiter.
    started: Vec<(usize, Pending)>,
    waiter: Option<Waiter>,
    /// The device that computes the norm of this rank's gradients of each bucket before they are reduced, and where the norms
    /// are stored.
    norms: Option<(&'a Device, &'a mut Vec<f64>)>,
}

impl<'a> Reduction<'a> {
    /// A reduction that starts only at the end.
    pub fn at_the_end(dp: &'a DataParallel, grads: &'a mut GradBuckets) -> Self {
        Self { early: false, ..Self::overlapped(dp, grads, |_| 0) }
    }

    /// A reduction whose buckets start as soon as their parameters are complete: when as many backward passes as given in
    /// `passes` have reported them; 0: nothing is added to it.
    pub fn overlapped(
        dp: &'a DataParallel,
        grads: &'a mut GradBuckets,
        passes: impl Fn(ParamId) -> usize,
    ) -> Self {
        let passes_left: Vec<usize> = dp.layout().ids().map(passes).collect();
        let mut open = vec![0; grads.buckets.len()];
        for (place, _) in grads.places.iter().zip(&passes_left).filter(|(_, left)| **left > 0) {
            open[place.bucket] += 1;
        }
        let waiting = dp.backward_order().collect();
        let started = Vec::new();
        Self { dp, grads, passes_left, open, waiting, early: true, started, waiter: None, norms: None }
    }

    /// The same, which also puts the norm of this rank's gradients of each bucket into `norms` before they are summed over
    /// ranks, in the order in which sums start.
    #[must_use]
    pub fn noting_norms(self, device: &'a Device, norms: &'a mut Vec<f64>) -> Self {
        Self { norms: Some((device, norms)), ..self }
    }

    /// Starts sums in their order up to the first bucket that is not `ready`.
    fn start_while(&mut self, ready: impl Fn(&Self, usize) -> bool) -> Result<()> {
        while let Some(bucket) = self.waiting.front().copied().filter(|&bucket| ready(self, bucket)) {
            self.waiting.pop_front();
            if let Some(whole) = self.grads.buckets[bucket].take() {
                if let Some((device, norms)) = &mut self.norms {
                    norms.push(
                        device.sum_squares(&device.cast(&whole, whole.dtype().wide())?)?.value().sqrt(),
                    );
                }
                self.started.push((bucket, self.dp.reduce_bucket(bucket, whole)?));
            }
        }
        Ok(())
    }

    /// Hands started reductions to the waiter thread. On the meta device there is nothing to wait for, and memory use must
    /// not depend on thread timing.
    fn hand_over(&mut self) -> Result<()> {
        if self.started.is_empty() {
            return Ok(());
        }
        if self.grads.arena.is_meta() {
            for (bucket, pending) in std::mem::take(&mut self.started) {
                self.started.push((bucket, Pending::ready(pending.wait()?)));
            }
            return Ok(());
        }
        let waiter = self.waiter.get_or_insert_with(Waiter::new);
        for pending in self.started.drain(..) {
            // The thread waits as long as its channel is open.
            let _ = waiter.started.send(pending);
        }
        Ok(())
    }

    /// All backward passes are complete: starts the remaining reductions if early starts are allowed, so that no rank starts
    /// something else first.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn passes_over(&mut self) -> Result<()> {
        if self.early {
            self.start_while(|_, _| true)?;
            self.hand_over()?;
        }
        Ok(())
    }

    /// Starts the remaining reductions, waits for all, and returns this rank's shard of each bucket times `factor`.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn finish(mut self, device: &Device, factor: f64) -> Result<Vec<Tensor>> {
        self.start_while(|_, _| true)?;
        let scaled = |part: Result<Tensor>| -> Result<Tensor> {
            let mut part = part?;
            if factor != 1.0 {
                if !part.is_unique() {
                    part = part.copied()?;
                }
                device.scale(&mut part, factor)?;
            }
            Ok(part)
        };
        let mut parts: Vec<(usize, Result<Tensor>)> = match self.waiter.take() {
            Some(waiter) => {
                drop(waiter.started);
                let (mut done, mut sums) = (Some(waiter.done), Vec::new());
                self.dp.joining(&mut || {
                    sums = done.take().and_then(|done| done.join().ok()).expect("waiting does not panic");
                });
                sums
            }
            None => Vec::new(),
        };
        parts.extend(self.started.drain(..).map(|(bucket, pending)| (bucket, pending.wait())));
        parts.sort_by_key(|p| p.0);
        parts.into_iter().map(|(_, part)| scaled(part)).collect()
    }
}

impl GradSink for Reduction<'_> {
    fn add(
        &mut self,
        p: ParamId,
        work: &mut dyn FnMut(TensorMut<'_>) -> ms_core::Result<()>,
    ) -> ms_core::Result<()> {
        self.grads.add(p, work)
    }

    fn finished(&mut self, p: ParamId) -> ms_core::Result<()> {
        let left = &mut self.passes_left[p.0 as usize];
        if *left == 0 {
            return Ok(());
        }
        *left -= 1;
        if *left == 0 {
            self.open[self.grads.places[p.0 as usize].bucket] -= 1;
            self.start_while(|this, bucket| this.open[bucket] == 0)?;
            self.hand_over()?;
        }
        Ok(())
    }
}
