//! Whose gradients are summed over which ranks.

use crate::Result;
use ms_core::{Axis, Device, Grid, ParamId, Tensor};
use ms_dist::buckets::{ParamSlice, Placed};
use ms_dist::{Communicator, DataParallel, Family, GradBuckets, ParallelCtx, ReduceOp};
use ms_nn::Gpt;
use ms_spec::{ModelConfig, Place, PlacedParam, Placement, SumGrad};
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
    pub placed: Vec<Placed>,
    /// Elements at which a bucket closes; `None`: one bucket.
    pub bucket_size: Option<usize>,
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
    bucket_size: Option<usize>,
) -> Result<Vec<BufferSpec>> {
    let chunks = held.iter().map(|h| h.chunk + 1).max().unwrap_or(0);
    let first_stage = grid.coord(rank, Axis::Pp) == 0;
    let mut buffers = Vec::new();
    for chunk in 0..chunks {
        for experts in [false, true] {
            // As Megatron: later stages and chunks have one bucket, since their reduction is waited for anyway.
            let bucket_size = bucket_size.filter(|_| chunk == 0 && first_stage);
            let mut buffer = BufferSpec { experts, params: Vec::new(), placed: Vec::new(), bucket_size };
            for (i, held) in held.iter().enumerate() {
                if held.chunk == chunk && held.spec.of_experts() == experts {
                    let shape = ms_spec::local(&held.spec, grid, rank)?.local_shape();
                    buffer.params.push(i);
                    buffer.placed.push(Placed { shape, own_bucket: shared.contains(&held.spec.name) });
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
    bucket_size: Option<usize>,
) -> Result<DataParallel> {
    let shared = shared_by_stages(model.config(), placement);
    let buffers = buffers(model.held(), &shared, &ctx.grid, ctx.rank, bucket_size)?;
    let family = |b: BufferSpec| Family {
        comm: if b.experts { ctx.edp.clone() } else { ctx.dp_cp.clone() },
        params: b.params,
        placed: b.placed,
        bucket_size: b.bucket_size,
    };
    Ok(DataParallel::new(model.held().len(), buffers.into_iter().map(family).collect()))
}

/// Gradients that are parts of a sum besides the one over data-parallel ranks.
pub(crate) struct SharedGradients {
    /// Of tensor-parallel ranks what each holds in full and sees a part of, and of experts' ranks the same. These ranks own
    /// the same elements, so they are summed behind data parallelism, each rank its part.
    parts: Vec<(Arc<dyn Communicator>, Vec<ParamId>)>,
    /// What the first and the last stage both hold; each has it at another place, so it is summed whole, before.
    wholes: Vec<(Arc<dyn Communicator>, Vec<ParamId>)>,
}

impl SharedGradients {
    /// Those of what the rank holds.
    pub(crate) fn new(model: &Gpt, ctx: &ParallelCtx, placement: &Placement) -> Self {
        let of = |comm: &Arc<dyn Communicator>, wanted: &dyn Fn(&PlacedParam) -> bool| {
            let held = model.held().iter().enumerate();
            let ids: Vec<ParamId> = held.filter(|(_, p)| wanted(p)).map(|(i, _)| ParamId(i as u32)).collect();
            (comm.size() > 1 && !ids.is_empty()).then(|| (comm.clone(), ids))
        };
        let summed = |p: &PlacedParam| match p.spec.sum_grad_over {
            SumGrad::No => false,
            SumGrad::OverTp => true,
            SumGrad::OverTpWithSequenceParallel => ctx.sequence_parallel,
        };
        let copies = shared_by_stages(model.config(), placement);
        let copied = |p: &PlacedParam| p.spec.place == Place::Embedding && copies.contains(&p.spec.name);
        let dense = of(&ctx.tp, &|p| summed(p) && !p.spec.of_experts());
        let experts = of(&ctx.etp, &|p| summed(p) && p.spec.of_experts());
        Self {
            parts: dense.into_iter().chain(experts).collect(),
            wholes: of(&ctx.embedding, &copied).into_iter().collect(),
        }
    }

    /// Of each parameter how many backward passes of every micro-batch add to its gradient, which then is this rank's: none
    /// where it has no gradient. `None` where that is not known before the end: the embedding, which the output layer or a
    /// prediction module of another chunk may use again; experts, which a pass without a token for them leaves out, while
    /// their buckets must start in one order on all ranks.
    pub(crate) fn passes_alone(model: &Gpt) -> Vec<Option<usize>> {
        let of = |p: &PlacedParam| match p.spec.trained {
            false => Some(0),
            true if p.spec.place == Place::Embedding || p.spec.of_experts() => None,
            true => Some(1),
        };
        model.held().iter().map(of).collect()
    }

    /// Puts the sums of whole gradients in place of their parts.
    pub(crate) fn reduce_wholes(
        &self,
        device: &Device,
        ctx: &ParallelCtx,
        grads: &mut GradBuckets,
    ) -> Result<()> {
        for (comm, ids) in &self.wholes {
            let parts = ids.iter().map(|&id| grads.get(id)).collect::<ms_core::Result<Vec<_>>>()?;
            for (&id, sum) in ids.iter().zip(sums(device, ctx, comm, parts)?) {
                grads.whole(id)?.copy_from(&sum)?;
            }
        }
        Ok(())
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
        for (comm, ids) in &self.parts {
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
