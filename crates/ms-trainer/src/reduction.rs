//! Whose gradients are summed over which ranks.

use crate::Result;
use ms_core::{Device, GradBuffer, ParamId, Tensor};
use ms_dist::buckets::Placed;
use ms_dist::{Communicator, DataParallel, Family, ParallelCtx, ReduceOp};
use ms_nn::Gpt;
use ms_spec::{Place, Placement, SumGrad};
use std::sync::Arc;

/// The flat buffers of a rank's parameters: of each chunk the dense ones, shared over data and context parallel ranks, then
/// those of experts, shared over the ranks with the same experts.
pub(crate) fn data_parallel(
    model: &Gpt,
    ctx: &ParallelCtx,
    bucket_size: Option<usize>,
) -> Result<DataParallel> {
    let mut families = Vec::new();
    for chunk in 0..model.chunks() {
        for experts in [false, true] {
            let comm = if experts { &ctx.edp } else { &ctx.dp_cp };
            // As Megatron: later stages and chunks have one bucket, since their reduction is waited for anyway.
            let bucket_size = bucket_size.filter(|_| chunk == 0 && ctx.pp.rank() == 0);
            let mut family =
                Family { comm: comm.clone(), params: Vec::new(), placed: Vec::new(), bucket_size };
            for (i, held) in model.held().iter().enumerate() {
                if held.chunk == chunk && held.spec.of_experts() == experts {
                    let shape = ms_spec::local(&held.spec, &ctx.grid, ctx.rank)?.local_shape();
                    family.params.push(i);
                    family.placed.push(Placed { shape, own_bucket: false });
                }
            }
            families.push(family);
        }
    }
    Ok(DataParallel::new(model.held().len(), families))
}

/// Gradients that are parts of a sum before data parallelism reduces them.
pub(crate) struct SharedGradients {
    sums: Vec<(Arc<dyn Communicator>, Vec<ParamId>)>,
}

impl SharedGradients {
    /// Of tensor-parallel ranks what each holds in full and sees a part of, of experts' ranks the same, and of the first and
    /// the last stage what both hold.
    pub(crate) fn new(model: &Gpt, ctx: &ParallelCtx, placement: &Placement) -> Self {
        let ids = |wanted: &dyn Fn(&ms_spec::PlacedParam) -> bool| -> Vec<ParamId> {
            let held = model.held().iter().enumerate();
            held.filter(|(_, p)| wanted(p)).map(|(i, _)| ParamId(i as u32)).collect()
        };
        let summed = |p: &ms_spec::PlacedParam| match p.spec.sum_grad_over {
            SumGrad::No => false,
            SumGrad::OverTp => true,
            SumGrad::OverTpWithSequenceParallel => ctx.sequence_parallel,
        };
        let copies: Vec<String> = (0..placement.stages())
            .flat_map(|stage| placement.params(model.config(), stage))
            .filter(|p| p.copy)
            .map(|p| p.spec.name)
            .collect();
        let copied =
            |p: &ms_spec::PlacedParam| p.spec.place == Place::Embedding && copies.contains(&p.spec.name);
        let sums = vec![
            (ctx.tp.clone(), ids(&|p| summed(p) && !p.spec.of_experts())),
            (ctx.etp.clone(), ids(&|p| summed(p) && p.spec.of_experts())),
            (ctx.embedding.clone(), ids(&copied)),
        ];
        Self { sums: sums.into_iter().filter(|(comm, ids)| comm.size() > 1 && !ids.is_empty()).collect() }
    }

    /// Puts the sums in place of the parts.
    pub(crate) fn reduce(&self, device: &Device, ctx: &ParallelCtx, grads: &mut GradBuffer) -> Result<()> {
        for (comm, ids) in &self.sums {
            let _span =
                tracing::trace_span!(target: "ms_step", "shared gradients", rank = ctx.rank).entered();
            let mut all = Vec::new();
            for &id in ids {
                all.extend_from_slice(grads.get(id).as_slice::<f32>()?);
            }
            let parts = Tensor::from_slice(device.arena(), [all.len()], &all)?;
            let sum = comm.all_reduce("shared gradients", parts, ReduceOp::Sum)?.wait()?;
            let mut rest = sum.as_slice::<f32>()?;
            for &id in ids {
                let mut grad = grads.whole(id)?;
                let to = grad.as_mut_slice::<f32>()?;
                let (mine, tail) = rest.split_at(to.len());
                to.copy_from_slice(mine);
                rest = tail;
            }
        }
        Ok(())
    }
}
