//! Gradient reduction: which gradients are summed over which ranks.

use crate::Result;
use ms_core::{Axis, Device, Grid, ParamId, Tensor};
use ms_dist::buckets::{BucketParam, Bucketing, ParamSlice};
use ms_dist::{Communicator, DataParallel, FlatBuffer, ParallelCtx, ReduceOp};
use ms_nn::Gpt;
use ms_spec::{ModelConfig, Place, PlacedParam, Placement, Slot};
use std::sync::Arc;

/// One flat buffer of a rank: parameters whose gradients are summed over the same ranks.
#[derive(Clone, Debug)]
pub struct BufferSpec {
    /// Whether they are experts', summed over the ranks with the same experts, or dense, summed over data and context
    /// parallel ranks.
    pub experts: bool,
    /// Numbers of the parameters among those that the rank holds, in registration order.
    pub params: Vec<usize>,
    /// What is placed for each of them.
    pub placed: Vec<BucketParam>,
    /// How they are cut.
    pub bucketing: Bucketing,
}

/// The flat buffers of what `rank` holds: of each chunk the dense parameters, then those of experts. Parameters that
/// `shared` names, which two stages hold, get a bucket of their own.
///
/// # Errors
/// If a parameter does not divide.
pub fn buffers(
    held: &[PlacedParam],
    shared: &[String],
    grid: &Grid,
    rank: usize,
    bucketing: Bucketing,
) -> Result<Vec<BufferSpec>> {
    let chunks = held.iter().map(|h| h.chunk + 1).max().unwrap_or(0);
    let first_stage = grid.coord(rank, Axis::Pp) == 0;
    let mut buffers = Vec::new();
    for chunk in 0..chunks {
        for experts in [false, true] {
            // As Megatron: later stages and chunks have one bucket, since their reduction is waited for anyway.
            let size = bucketing.size.filter(|_| chunk == 0 && first_stage);
            let bucketing = Bucketing { size, ..bucketing };
            let mut buffer = BufferSpec { experts, params: Vec::new(), placed: Vec::new(), bucketing };
            for (i, held) in held.iter().enumerate() {
                if held.chunk == chunk && held.spec.of_experts() == experts {
                    let shape = ms_spec::local(&held.spec, grid, rank)?.local_shape();
                    buffer.params.push(i);
                    buffer.placed.push(BucketParam { shape, own_bucket: shared.contains(&held.spec.name) });
                }
            }
            if !buffer.params.is_empty() {
                buffers.push(buffer);
            }
        }
    }
    Ok(buffers)
}

/// Names of the parameters that the first and the last stage both hold.
pub fn shared_by_stages(config: &ModelConfig, placement: &Placement) -> Vec<String> {
    (0..placement.stages())
        .flat_map(|stage| placement.params(config, stage))
        .filter(|p| p.copy)
        .map(|p| p.spec.name)
        .collect()
}

/// Data parallelism over the flat buffers of a rank.
pub(crate) fn data_parallel(
    model: &Gpt,
    ctx: &ParallelCtx,
    placement: &Placement,
    bucketing: Bucketing,
) -> Result<DataParallel> {
    let shared = shared_by_stages(model.config(), placement);
    let buffers = buffers(model.placed_params(), &shared, &ctx.grid, ctx.rank, bucketing)?;
    let flat = |b: BufferSpec| FlatBuffer {
        replicas: if b.experts { ctx.expert_replicas.clone() } else { ctx.replicas.clone() },
        params: b.params,
        placed: b.placed,
        bucketing: b.bucketing,
    };
    Ok(DataParallel::new(&turns(model.placed_params()), buffers.into_iter().map(flat).collect()))
}

/// When a forward pass comes to each parameter: in their order, but a copy of an embedding serves the end of the last chunk.
fn turns(held: &[PlacedParam]) -> Vec<usize> {
    held.iter().enumerate().map(|(i, p)| if p.copy { held.len() + i } else { i }).collect()
}

/// Gradients that need a sum in addition to the one over data-parallel ranks. The ranks of each group own the same elements,
/// so they are summed after the data-parallel reduction, each rank its shard: over tensor-parallel ranks, what each holds in
/// full and sees a part of; the same over experts' ranks; and over the first and the last stage, what both hold, in buckets
/// of its own.
pub(crate) struct SharedGradients(Vec<(Arc<dyn Communicator>, Vec<ParamId>)>);

impl SharedGradients {
    /// Those of what the rank holds.
    pub(crate) fn new(model: &Gpt, ctx: &ParallelCtx, placement: &Placement) -> Self {
        let of = |comm: &Arc<dyn Communicator>, wanted: &dyn Fn(&PlacedParam) -> bool| {
            let held = model.placed_params().iter().enumerate();
            let ids: Vec<ParamId> = held.filter(|(_, p)| wanted(p)).map(|(i, _)| ParamId(i as u32)).collect();
            (comm.size() > 1 && !ids.is_empty()).then(|| (comm.clone(), ids))
        };
        let summed = |p: &PlacedParam| p.spec.sums_over(Axis::Tp, ctx.sequence_parallel);
        let copies = shared_by_stages(model.config(), placement);
        let copied = |p: &PlacedParam| p.spec.slot.place == Place::Embedding && copies.contains(&p.spec.name);
        let dense = of(&ctx.tp, &|p| summed(p) && !p.spec.of_experts());
        let experts = of(&ctx.etp, &|p| summed(p) && p.spec.of_experts());
        Self(dense.into_iter().chain(experts).chain(of(&ctx.embedding, &copied)).collect())
    }

    /// For each parameter, how many backward passes of every micro-batch add to its gradient: one, or none if it has no
    /// gradient; for an embedding as many as there are chunks that use it: at the beginning, in prediction modules and as the
    /// output layer.
    pub(crate) fn passes(model: &Gpt) -> Vec<usize> {
        let config = model.config();
        let uses = |p: &PlacedParam| {
            let at_the_end = config.mtp > 0 || config.tied && p.spec.slot == Slot::WORDS;
            let chunks = (0..model.chunks()).map(|chunk| model.ends(chunk));
            chunks.filter(|&(begins, ends)| begins || ends && at_the_end).count()
        };
        let of = |p: &PlacedParam| match p.spec.trained() {
            false => 0,
            true if p.spec.slot.place == Place::Embedding => uses(p),
            true => 1,
        };
        model.placed_params().iter().map(of).collect()
    }

    /// Puts the sums in place of the parts of what this rank owns: `owned`, a tensor for each bucket, is reduced over
    /// data-parallel ranks.
    ///
    /// # Source
    /// Megatron-LM `core_r0.8.0`, `megatron/core/distributed/finalize_model_grads.py`, in its order.
    pub(crate) fn reduce_parts(
        &self,
        device: &Device,
        ctx: &ParallelCtx,
        dp: &DataParallel,
        owned: &mut [Tensor],
    ) -> Result<()> {
        for (comm, ids) in &self.0 {
            let mut slices = dp.slices();
            slices.retain(|s| ids.contains(&ParamId(s.param as u32)) && !s.range.is_empty());
            if slices.is_empty() {
                continue;
            }
            let part = |s: &ParamSlice| owned[s.bucket].slice_flat(s.offset, [s.range.len()]);
            let parts = slices.iter().map(part).collect::<ms_core::Result<Vec<_>>>()?;
            for (s, sum) in slices.iter().zip(sums(device, ctx, comm, parts)?) {
                let bucket = &mut owned[s.bucket];
                if !bucket.is_unique() {
                    *bucket = bucket.copied()?;
                }
                bucket.put(s.offset, &sum)?;
            }
        }
        Ok(())
    }
}

/// The sums of `parts`, of one element type, over the ranks of a group, in one exchange.
fn sums(
    device: &Device,
    ctx: &ParallelCtx,
    comm: &Arc<dyn Communicator>,
    parts: Vec<Tensor>,
) -> Result<Vec<Tensor>> {
    let _span = tracing::trace_span!(target: "ms_step", "shared gradients", rank = ctx.rank).entered();
    let shapes: Vec<_> = parts.iter().map(Tensor::shape).collect();
    let total = parts.iter().map(Tensor::numel).sum();
    let Some(dtype) = parts.first().map(Tensor::dtype) else { return Ok(Vec::new()) };
    let (mut all, mut at) = (Tensor::uninit(device.arena(), dtype, [total]), 0);
    for part in parts {
        all.put(at, &part)?;
        at += part.numel();
    }
    let sum = comm.all_reduce("shared gradients", all, ReduceOp::Sum)?.wait()?;
    at = 0;
    let mut sums = Vec::with_capacity(shapes.len());
    for shape in shapes {
        let of = sum.slice_flat(at, shape)?;
        at += of.numel();
        sums.push(of);
    }
    Ok(sums)
}
