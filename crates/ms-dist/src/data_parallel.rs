//! Data parallelism: ranks reduce gradients, each updates the shard whose optimizer state it keeps, and the updated weights
//! are gathered.

use crate::buckets::{BucketParam, BucketPlan, Bucketing, ParamSlice};
use crate::{Communicator, Pending, ReduceOp, Result};
use ms_core::{ParamId, ParamLayout, ParamStore, PendingBucket, Shape, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// The ranks that hold the same parameters, grouped by how they shard the optimizer state.
#[derive(Clone)]
pub struct DataParallelGroups {
    /// Ranks over which one copy is sharded.
    pub intra: Arc<dyn Communicator>,
    /// Ranks that hold the same shard.
    pub inter: Arc<dyn Communicator>,
}

impl DataParallelGroups {
    /// Starts the sum of `whole` over all of these ranks; this rank gets its shard.
    ///
    /// # Source
    /// Megatron-LM `core_v0.12.1`, `megatron/core/distributed/param_and_grad_buffer.py`, `start_grad_sync`: first inside an
    /// instance, then over instances; in one step if unsharded.
    fn sum(&self, whole: Tensor) -> Result<Pending> {
        const WHAT: &str = "gradients";
        if self.intra.size() == 1 {
            return self.inter.all_reduce(WHAT, whole, ReduceOp::Sum);
        }
        let part = self.intra.reduce_scatter(WHAT, whole)?;
        if self.inter.size() == 1 {
            return Ok(part);
        }
        let inter = self.inter.clone();
        Ok(Pending::new(move || inter.all_reduce(WHAT, part.wait()?, ReduceOp::Sum)?.wait()))
    }

    /// A group in which this rank waits for others, if there is one.
    fn waiting(&self) -> &Arc<dyn Communicator> {
        if self.intra.size() == 1 { &self.inter } else { &self.intra }
    }
}

/// Parameters whose gradients are summed over the same ranks: the dense ones of a chunk, or its experts.
pub struct FlatBuffer {
    /// The ranks that hold the same.
    pub replicas: DataParallelGroups,
    /// Numbers of the parameters, in registration order.
    pub params: Vec<usize>,
    /// The placed item for each of them.
    pub placed: Vec<BucketParam>,
    /// How they are divided into buckets.
    pub bucketing: Bucketing,
}

struct Buffer {
    replicas: DataParallelGroups,
    plan: BucketPlan,
    /// Numbers of the parameters that the plan counts from 0.
    params: Vec<usize>,
    /// Where the buffer begins in the flat buffer of all.
    start: usize,
}

/// Reduction of gradients and gathering of weights over the buckets of one or more flat buffers.
pub struct DataParallel {
    buffers: Vec<Buffer>,
    layout: Arc<ParamLayout>,
    /// Buckets in the order in which a forward pass needs them: by the first turn of their parameters. It depends only on
    /// shapes and places, so all ranks that hold the same parameters have the same order.
    order: Vec<usize>,
}

impl DataParallel {
    /// Data parallelism of parameters, each in one of `flat`; buffers without parameters are left out. `turns` says of
    /// each parameter when a forward pass comes to it: the lower the earlier.
    ///
    /// # Panics
    /// If a parameter is in no buffer or in two.
    pub fn new(turns: &[usize], flat: Vec<FlatBuffer>) -> Self {
        let mut slots = vec![None; turns.len()];
        let mut buffers = Vec::with_capacity(flat.len());
        let mut numel = 0;
        for of in flat.into_iter().filter(|f| !f.params.is_empty()) {
            let plan = BucketPlan::new(&of.placed, of.replicas.intra.size(), of.bucketing);
            for (i, &param) in of.params.iter().enumerate() {
                let id = ParamId(i as u32);
                let slot: &mut Option<(usize, Shape)> = &mut slots[param];
                assert!(slot.is_none(), "parameter {param} is in two buffers");
                *slot = Some((numel + plan.layout.start(id), plan.layout.shape(id)));
            }
            let size = plan.layout.numel();
            buffers.push(Buffer { replicas: of.replicas, plan, params: of.params, start: numel });
            numel += size;
        }
        let slots = slots.into_iter().map(|s| s.expect("every parameter is in a buffer")).collect();
        let layout = ParamLayout::new(slots, numel).expect("parameters were placed inside the buffer");
        let mut this = Self { buffers, layout: Arc::new(layout), order: Vec::new() };
        let first = |range: Range<usize>| {
            let inside =
                this.layout.ids().zip(turns).filter(|(id, _)| range.contains(&this.layout.start(*id)));
            inside.map(|(_, &turn)| turn).min()
        };
        let mut order: Vec<(Option<usize>, usize)> =
            this.bucket_ranges().enumerate().map(|(bucket, range)| (first(range), bucket)).collect();
        order.sort_unstable();
        this.order = order.into_iter().map(|(_, bucket)| bucket).collect();
        this
    }

    /// Where each parameter lies in the flat buffer.
    pub fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    fn buckets(&self) -> impl Iterator<Item = (&Buffer, usize)> {
        self.buffers.iter().flat_map(|b| (0..b.plan.buckets.len()).map(move |i| (b, i)))
    }

    /// The elements of the flat buffer that this rank owns, bucket by bucket over all buffers.
    pub fn shards(&self) -> Vec<Range<usize>> {
        let shard = |(b, i): (&Buffer, usize)| {
            let own = b.plan.shard(i, b.replicas.intra.rank());
            b.start + own.start..b.start + own.end
        };
        self.buckets().map(shard).collect()
    }

    /// The parts of parameters that this rank owns, in buffer order; buckets are counted over all buffers.
    pub fn slices(&self) -> Vec<ParamSlice> {
        let (mut first, mut all) = (0, Vec::new());
        for b in &self.buffers {
            let mine = b.plan.slices(b.replicas.intra.rank()).into_iter();
            all.extend(mine.map(|s| ParamSlice { param: b.params[s.param], bucket: first + s.bucket, ..s }));
            first += b.plan.buckets.len();
        }
        all
    }

    /// The elements of the flat buffer that each bucket takes, over all buffers.
    pub fn bucket_ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.buckets().map(|(b, i)| {
            let bucket = &b.plan.buckets[i];
            b.start + bucket.start..b.start + bucket.end
        })
    }

    /// Buckets in the order in which a backward pass completes them.
    pub(crate) fn backward_order(&self) -> impl Iterator<Item = usize> {
        self.order.iter().rev().copied()
    }

    /// Starts the reduce-scatter of a bucket's gradients over the ranks that hold the same parameters; the result is this
    /// rank's shard.
    pub(crate) fn reduce_bucket(&self, bucket: usize, whole: Tensor) -> Result<Pending> {
        let (buffer, _) = self.buckets().nth(bucket).expect("buckets are counted over all buffers");
        buffer.replicas.sum(whole)
    }

    /// Runs `join`, in which this rank waits for a thread of its own that waits for sums.
    pub(crate) fn joining(&self, join: &mut dyn FnMut()) {
        match self.buffers.first() {
            Some(buffer) => buffer.replicas.waiting().joining(join),
            None => join(),
        }
    }

    /// Buckets in the order in which a forward pass needs them.
    pub fn forward_order(&self) -> &[usize] {
        &self.order
    }

    /// New weights that are about to be gathered from the ranks that update them.
    pub fn weight_gather(&self) -> WeightGather<'_> {
        WeightGather { buckets: self.buckets().map(|(buffer, _)| buffer).collect(), pending: Vec::new() }
    }

    /// All-gathers the ranks' updated shards (one tensor per bucket, of the store's element type) as the new weights of
    /// `store`, which has this layout and these buckets.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn gather_weights(&self, store: &mut ParamStore, parts: Vec<Tensor>) -> Result<()> {
        let (mut weight_gather, mut parts) =
            (self.weight_gather(), parts.into_iter().map(Some).collect::<Vec<_>>());
        for &bucket in &self.order {
            weight_gather.begin(bucket, parts[bucket].take().expect("there is a part for each bucket"))?;
        }
        weight_gather.announce(store)?;
        Ok(store.settle()?)
    }
}

/// New weights being gathered from the ranks that update them, bucket by bucket; all ranks start them in one order.
pub struct WeightGather<'a> {
    /// The buffer of each bucket.
    buckets: Vec<&'a Buffer>,
    pending: Vec<(usize, PendingBucket)>,
}

impl WeightGather<'_> {
    /// Starts gathering a bucket; `part` is this rank's shard.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn begin(&mut self, bucket: usize, part: Tensor) -> Result<()> {
        let pending = self.buckets[bucket].replicas.intra.all_gather("weights", part)?;
        self.pending.push((bucket, Box::new(move || Ok(pending.wait()?))));
        Ok(())
    }

    /// Announces the started gathers for all buckets of the store: before one is used, it is waited for
    /// ([`ParamStore::arrived`]).
    ///
    /// # Errors
    /// Those of an earlier announcement that nobody has waited for.
    pub fn announce(self, store: &mut ParamStore) -> Result<()> {
        Ok(store.announce(self.pending)?)
    }
}
