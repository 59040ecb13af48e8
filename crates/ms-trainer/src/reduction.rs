//! Whose gradients are summed over which ranks.

use crate::Result;
use ms_core::{Axis, Device, Grid, ParamId, Tensor};
use ms_dist::buckets::Placed;
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

/// Gradients that are parts of a sum before data parallelism reduces them.
pub(crate) struct SharedGradients {
    sums: Vec<(Arc<dyn Communicator>, Vec<ParamId>)>,
}

impl SharedGradients {
    /// Of tensor-parallel ranks what each holds in full and sees a part of, of experts' ranks the same, and of the first and
    /// the last stage what both hold.
    pub(crate) fn new(model: &Gpt, ctx: &ParallelCtx, placement: &Placement) -> Self {
        let ids = |wanted: &dyn Fn(&PlacedParam) -> bool| -> Vec<ParamId> {
            let held = model.held().iter().enumerate();
            held.filter(|(_, p)| wanted(p)).map(|(i, _)| ParamId(i as u32)).collect()
        };
        let summed = |p: &PlacedParam| match p.spec.sum_grad_over {
            SumGrad::No => false,
            SumGrad::OverTp => true,
            SumGrad::OverTpWithSequenceParallel => ctx.sequence_parallel,
        };
        let copies = shared_by_stages(model.config(), placement);
        let copied = |p: &PlacedParam| p.spec.place == Place::Embedding && copies.contains(&p.spec.name);
        let sums = vec![
            (ctx.tp.clone(), ids(&|p| summed(p) && !p.spec.of_experts())),
            (ctx.etp.clone(), ids(&|p| summed(p) && p.spec.of_experts())),
            (ctx.embedding.clone(), ids(&copied)),
        ];
        Self { sums: sums.into_iter().filter(|(comm, ids)| comm.size() > 1 && !ids.is_empty()).collect() }
    }

    /// Of each parameter how many backward passes of every micro-batch add to its gradient, which then is final: none where it
    /// has no gradient. `None` where that is not known before the end: other ranks' parts are added first; the embedding, which
    /// the output layer or a prediction module of another chunk may use again; experts, which a pass without a token for them
    /// leaves out, while their buckets must start in one order on all ranks.
    pub(crate) fn passes_alone(&self, model: &Gpt) -> Vec<Option<usize>> {
        let of = |(i, p): (usize, &PlacedParam)| {
            let id = ParamId(i as u32);
            let shared = self.sums.iter().any(|(_, ids)| ids.contains(&id));
            let unknown = shared || p.spec.place == Place::Embedding || p.spec.of_experts();
            match (p.spec.trained, unknown) {
                (false, _) => Some(0),
                (true, true) => None,
                (true, false) => Some(1),
            }
        };
        model.held().iter().enumerate().map(of).collect()
    }

    /// Puts the sums in place of the parts.
    pub(crate) fn reduce(&self, device: &Device, ctx: &ParallelCtx, grads: &mut GradBuckets) -> Result<()> {
        for (comm, ids) in &self.sums {
            let _span =
                tracing::trace_span!(target: "ms_step", "shared gradients", rank = ctx.rank).entered();
            let sizes = ids.iter().map(|&id| Ok(grads.get(id)?.numel())).collect::<Result<Vec<usize>>>()?;
            let mut parts = Tensor::uninit(device.arena(), grads.dtype(), [sizes.iter().sum()]);
            let mut at = 0;
            for (&id, size) in ids.iter().zip(&sizes) {
                parts.put(at, &grads.get(id)?)?;
                at += size;
            }
            let sum = comm.all_reduce("shared gradients", parts, ReduceOp::Sum)?.wait()?;
            at = 0;
            for (&id, &size) in ids.iter().zip(&sizes) {
                grads.whole(id)?.copy_from(&sum.slice_flat(at, [size])?)?;
                at += size;
            }
        }
        Ok(())
    }
}
