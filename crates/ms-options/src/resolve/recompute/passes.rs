//! `--moe-fb-overlap`: forward passes overlapped with backward passes of other micro-batches.

use super::{ExpertMemoryOptions, RecomputeOptions};
use crate::resolve::topology::Topology;
use anyhow::Result;
use ms_cli::megatron::Upstream;
use ms_cli::refuse;
use ms_core::{Axis, Dispatcher};
use ms_spec::ModelConfig;
use ms_trainer::PipelineOrder;

const FLAG: &str = "--moe-fb-overlap";

/// What is requested together with it.
pub(crate) struct Asked {
    /// `--overlap-grad-reduce`.
    pub(crate) reduces: bool,
    /// `--overlap-param-gather`.
    pub(crate) gathers: bool,
    /// `--moe-tp-extend-ep`.
    pub(crate) extends: bool,
    /// Micro-batches of an iteration.
    pub(crate) micro_batches: usize,
}

/// Whether passes are overlapped.
///
/// # Errors
/// For what upstream refuses together with it.
///
/// # Source
/// MindSpeed, `features_manager/moe/fb_overlap.py` and `features_manager/pipeline_parallel/dualpipev_feature.py`.
pub(crate) fn resolve(
    o: &RecomputeOptions,
    of_experts: &ExpertMemoryOptions,
    asked: &Asked,
    (model, topology): (&ModelConfig, &Topology),
    upstream: Upstream,
) -> Result<bool> {
    if !of_experts.overlapped_passes {
        if of_experts.outputs_away {
            refuse!("--moe-unperm2-mem-optim-swap: needs {FLAG}, as in upstream");
        }
        return Ok(false);
    }
    let (head, size) = (upstream == Upstream::Head, |axis| topology.grid.size(axis));
    let both_ends = topology.order == PipelineOrder::DualPipeV;
    for (given, other, why) in [
        (of_experts.overlapped, "--moe-alltoall-overlap-comm", "which does a part of the same"),
        (asked.reduces, "--overlap-grad-reduce", "as in upstream"),
        (head && both_ends && asked.gathers, "--overlap-param-gather and dualpipev", "as in upstream"),
        (of_experts.layers.is_some(), "--moe-zero-memory-num-layers", "as in upstream"),
        (!head && of_experts.level == "level1", "--moe-zero-memory level1", "as in upstream; pass level0"),
        (o.in_bubble, "--recompute-in-bubble", "as in upstream"),
        (o.in_advance, "--recompute-in-advance", "as in upstream"),
        (head && o.swap_attention, "--swap-attention", "as in upstream"),
        (head && asked.extends, "--moe-tp-extend-ep", "as in upstream"),
    ] {
        if given {
            refuse!("{FLAG}: cannot be combined with {other}, {why}");
        }
    }
    let stages = &topology.stages;
    // With one chunk per stage, stages reach each other's passes too late.
    let plain = stages.pp > 1 && !stages.interleaved() && !both_ends;
    if head {
        let (ep, etp) = (size(Axis::Ep), topology.grid.expert().size(Axis::Tp));
        let found = match topology.parallel.dispatcher {
            Dispatcher::AllToAll => None,
            Dispatcher::AllToAllSeq => Some("alltoall_seq"),
            Dispatcher::AllGather => Some("allgather"),
        };
        if let Some(found) = found {
            refuse!("{FLAG}: expected --moe-token-dispatcher-type alltoall, as in upstream, found {found}");
        }
        for (flag, expected, found, fits) in [
            ("--expert-model-parallel-size", "above 1", ep, ep > 1),
            ("--expert-tensor-parallel-size", "1", etp, etp == 1),
        ] {
            if !fits {
                refuse!("{FLAG}: expected {flag} {expected}, as in upstream, found {found}");
            }
        }
        if plain {
            refuse!(
                "{FLAG}: expected --pipeline-model-parallel-size 1, stages of several chunks \
                 (--num-layers-per-virtual-pipeline-stage) or --schedules-method dualpipev, as in upstream"
            );
        }
        if stages.interleaved() && asked.micro_batches / stages.pp < 2 {
            refuse!(
                "{FLAG}: expected at least {} micro-batches in an iteration (of --global-batch-size), two for each of {} \
                 stages, as in upstream, found {}",
                2 * stages.pp,
                stages.pp,
                asked.micro_batches
            );
        }
    }
    let nothing = if model.moe.is_none() {
        Some("the model has no experts")
    } else if size(Axis::Ep) == 1 {
        Some("every rank has all experts (--expert-model-parallel-size 1), so no tokens are on their way")
    } else if plain {
        Some(
            "stages of one chunk cannot continue with another micro-batch; shared experts alone work while tokens are on their \
             way. Pass --num-layers-per-virtual-pipeline-stage or --schedules-method dualpipev",
        )
    } else {
        None
    };
    if let Some(why) = nothing {
        tracing::warn!("{FLAG}: passes do not go beside each other: {why}");
    }
    Ok(nothing.is_none())
}
