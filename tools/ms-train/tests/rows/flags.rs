//! A random run as flags of `ms-train`.

use super::{GLOBAL, LENGTH, model, plain};
use crate::random_topologies::Run;
use ms_core::{Dispatcher, GridRules, OptimizerSharding, RingCachePolicy};
use ms_dist::{ContextParallel, Pieces, TokenMapping};
use ms_nn::{Recompute, Swapped};
use ms_spec::{Moe, Score};
use ms_trainer::{LossScale, PipelineOrder, RecomputeTiming, UpdateRule};

/// Flags of parallelism options, few of which may be missing from all runs.
pub(super) const WAYS: [&str; 40] = [
    "--tp",
    "--cp",
    "--pp",
    "--ep",
    "--sequence-parallel",
    "--expert-tensor-parallel-size",
    "--moe-tp-extend-ep",
    "--num-layer-list",
    "--noop-layers",
    "--num-layers-per-virtual-pipeline-stage",
    "--schedules-method",
    "--no-overlap-p2p-communication",
    "--defer-embedding-wgrad-compute",
    "--moe-token-dispatcher-type",
    "--moe-fb-overlap",
    "--moe-shared-expert-overlap",
    "--moe-zero-memory",
    "--context-parallel-algo",
    "--context-parallel-kv-cache-policy",
    "--cp-window-size",
    "--recompute-granularity",
    "--recompute-activation-function",
    "--recompute-norm",
    "--recompute-in-advance",
    "--recompute-in-bubble",
    "--recompute-mla-up-proj",
    "--recompute-mtp-layer",
    "--swap-attention",
    "--swap-layer-input",
    "--distribute-saved-activations",
    "--use-ascend-coc",
    "--no-async-tensor-model-parallel-allreduce",
    "--overlap-grad-reduce",
    "--overlap-param-gather",
    "--overlap-param-gather-with-optimizer-step",
    "--use-distributed-optimizer",
    "--num-distributed-optimizer-instances",
    "--swap-optimizer",
    "--calculate-per-token-loss",
    "--optimizer",
];
/// So many of them.
pub(super) const MISSING: usize = 2;

/// Words of a command line.
#[derive(Default)]
struct Line(String);

impl Line {
    fn add(&mut self, flags: &str) {
        self.0 += " ";
        self.0 += flags;
    }

    fn add_if(&mut self, wanted: bool, flags: &str) {
        if wanted {
            self.add(flags);
        }
    }
}

/// The run in flags; `None` where it has what no flags say.
pub(super) fn flags(run: &Run) -> Option<String> {
    let Run { case, config, shape, sizes: [tp, cp, pp, ..], .. } = run;
    let c = &plain(config);
    // What newer versions alone have a flag for.
    let has_experts = c.moe.is_some();
    let head = case.overlap_gather_with_step
        || (has_experts && (case.rules == GridRules::Head || case.dispatcher == Dispatcher::AllToAll));
    // There is such a flag for stages of several chunks alone.
    if case.overlap_gather_with_step && case.stages.layers_per_chunk.is_none() {
        return None;
    }
    // Ranks other than those that share matrices: these are experts' ranks, too.
    let extended = has_experts && !head && case.sizes.etp == Some(1);
    if extended && !case.sizes.ep.is_multiple_of(*tp) {
        return None;
    }
    let ep = if extended { case.sizes.ep / tp } else { case.sizes.ep };
    let mut line = Line(format!(
        "{} --seq-length {LENGTH} --micro-batch-size {} --global-batch-size {GLOBAL} --hidden-dropout {} --attention-dropout {} \
         --seed {} --lr 1e-2 --lr-decay-style constant --eval-iters 0 --tp {tp} --cp {cp} --pp {pp} --ep {ep}",
        model(c, head)?,
        shape.rows,
        case.dropout,
        case.dropout,
        case.seed
    ));
    line.add_if(head, "--upstream head");
    if *cp > 1 {
        context(run, &mut line);
    }
    if let Some(moe) = &c.moe {
        experts(run, moe, head, &mut line)?;
    }
    // As upstream, experts on ranks that share matrices need it.
    line.add_if(case.sequence_parallel || (*tp > 1 && has_experts), "--sequence-parallel");
    stages(run, head, &mut line)?;
    again(run, &mut line)?;
    linears(run, &mut line)?;
    optimizer(run, &mut line);
    line.add_if(case.per_token_loss, "--calculate-per-token-loss");
    match case.loss_scale {
        LossScale::None => {}
        LossScale::Constant(scale) => line.add(&format!("--loss-scale {scale}")),
        LossScale::Dynamic { .. } => return None,
    }
    // The matrix itself has f64 and f32.
    line.add_if(case.seed % 3 == 0, "--bf16");
    line.add_if(case.seed % 3 == 1, "--fp64");
    Some(line.0)
}

/// How ranks share a sequence.
fn context(run: &Run, line: &mut Line) {
    let case = &run.case;
    let general = if matches!(case.context, ContextParallel::InOrder { .. }) {
        " --cp-attention-mask-type general"
    } else {
        ""
    };
    line.add(&match case.context {
        ContextParallel::Ring { window } | ContextParallel::InOrder { ulysses: 1, window } => {
            format!("--context-parallel-algo megatron_cp_algo --cp-window-size {window}{general}")
        }
        ContextParallel::Ulysses => "--context-parallel-algo ulysses_cp_algo".to_owned(),
        ContextParallel::Gather => "--context-parallel-algo kvallgather_cp_algo".to_owned(),
        ContextParallel::Hybrid { ulysses, window } | ContextParallel::InOrder { ulysses, window } => {
            format!(
                "--context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp {ulysses} --cp-window-size {window}{general}"
            )
        }
        ContextParallel::Adaptive { ulysses, remap } => {
            let tokens = match remap {
                TokenMapping::InOrder => "--adaptive-cp-only-reschedule",
                TokenMapping::Runs => "",
                TokenMapping::Tokens => "--adaptive-cp-without-coarse",
            };
            match ulysses {
                1 => format!("--context-parallel-algo adaptive_cp_algo {tokens}"),
                n => format!(
                    "--context-parallel-algo hybrid_adaptive_cp_algo --ulysses-degree-in-cp {n} {tokens}"
                ),
            }
        }
    });
    let policy = match case.ring_cache.policy {
        RingCachePolicy::Nothing => return,
        RingCachePolicy::Keys => "half",
        RingCachePolicy::KeysAndValues => "full",
    };
    let interval = case.ring_cache.interval;
    let rings = !matches!(
        case.context,
        ContextParallel::Ulysses | ContextParallel::Gather | ContextParallel::Adaptive { .. }
    );
    let cache =
        format!("--context-parallel-kv-cache-policy {policy} --context-parallel-cache-interval {interval}");
    line.add_if(rings, &cache);
}

/// How tokens reach experts, and what these keep.
fn experts(run: &Run, moe: &Moe, head: bool, line: &mut Line) -> Option<()> {
    let case = &run.case;
    line.add_if(moe.router.score == Score::SoftmaxOfChosen, "--moe-aux-loss-coeff 0.02");
    line.add(match case.dispatcher {
        Dispatcher::AllGather => "--moe-token-dispatcher-type allgather",
        Dispatcher::AllToAllSeq if head => "--moe-token-dispatcher-type alltoall_seq",
        Dispatcher::AllToAllSeq | Dispatcher::AllToAll => "--moe-token-dispatcher-type alltoall",
    });
    match case.sizes.etp {
        None => {}
        Some(n) if head => line.add(&format!("--expert-tensor-parallel-size {n}")),
        // Whole experts on all ranks that share matrices.
        Some(1) => line.add("--moe-tp-extend-ep"),
        Some(_) => return None,
    }
    match (case.overlap_passes, case.overlap_experts && moe.shared.is_some(), case.dispatcher) {
        (true, _, Dispatcher::AllGather) => return None,
        (true, ..) => line.add("--moe-fb-overlap"),
        (false, true, Dispatcher::AllGather) => line.add("--moe-allgather-overlap-comm"),
        // Experts that keep less ask for the older name.
        (false, true, _) if case.save_policy.recompute_experts => line.add("--moe-alltoall-overlap-comm"),
        (false, true, _) => line.add("--moe-shared-expert-overlap"),
        (false, false, _) => {}
    }
    let k = case.save_policy;
    if k.recompute_experts {
        match k.recompute_expert_inner {
            0 => line.add("--moe-zero-memory level0"),
            usize::MAX => line.add("--moe-zero-memory level1"),
            n => line.add(&format!("--moe-zero-memory level1 --moe-zero-memory-num-layers {n}")),
        }
    }
    Some(())
}

/// Which layers stages have, and in which order they work.
fn stages(run: &Run, head: bool, line: &mut Line) -> Option<()> {
    let (case, pp) = (&run.case, run.sizes[2]);
    match (case.order, case.stages.layers_per_chunk, case.stages.dual_pipe) {
        (PipelineOrder::DualPipeV, None, true) => line.add("--schedules-method dualpipev"),
        (PipelineOrder::ZeroBubble { group: None }, chunks, false) => {
            line.add("--schedules-method zero-bubble");
            let of = |each| format!("--num-layers-per-virtual-pipeline-stage {each}");
            line.add(&chunks.map_or_else(String::new, of));
        }
        (PipelineOrder::Plain { group, forwards_first: true }, Some(each), false) => {
            line.add(&format!("--num-layers-per-virtual-pipeline-stage {each}"));
            match group {
                Some(_) if !head => return None,
                Some(n) => line.add(&format!("--microbatch-group-size-per-virtual-pipeline-stage {n}")),
                None => {}
            }
        }
        (PipelineOrder::Plain { group: None, forwards_first: true }, None, false) => {}
        _ => return None,
    }
    let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    if let Some(layers) = &case.stages.layer_list {
        line.add(&format!("--num-layer-list {}", list(layers)));
    }
    let noop = &case.stages.noop;
    if !noop.is_empty() {
        // They count as layers; the later of two values of a flag is taken.
        let layers = run.config.layers + noop.len();
        line.add(&format!("--noop-layers {} --num-layers {layers}", list(noop)));
    }
    line.add_if(pp > 1 && case.waits_at_borders, "--no-overlap-p2p-communication");
    if let Some(n) = case.defer_embedding_wgrad {
        let limit = if n == usize::MAX { 0 } else { n };
        line.add(&format!("--defer-embedding-wgrad-compute --wgrad-deferral-limit {limit}"));
    }
    Some(())
}

/// What is recomputed, and what is offloaded to a file.
fn again(run: &Run, line: &mut Line) -> Option<()> {
    let (case, k) = (&run.case, run.case.save_policy);
    let full = "--recompute-granularity full --recompute-method";
    let of_stage = "--enable-recompute-layers-per-pp-rank";
    match case.recompute {
        Recompute::None => line.add_if(k.recompute_core_attention, "--recompute-granularity selective"),
        // Layers that is recomputed form attention again anyway.
        Recompute::Block(n) => line.add(&format!("{full} block --recompute-num-layers {n}")),
        Recompute::Uniform(n) => line.add(&format!("{full} uniform --recompute-num-layers {n}")),
        Recompute::BlockOfStage(n) => {
            line.add(&format!("{full} block --recompute-num-layers {n} {of_stage}"));
        }
    }
    for (count, flag) in [
        (k.recompute_activations, "--recompute-activation-function"),
        (k.recompute_norms, "--recompute-norm"),
    ] {
        match count {
            0 => {}
            usize::MAX => line.add(flag),
            n => line.add(&format!("{flag} {flag}-num-layers {n}")),
        }
    }
    if k.swapped != Swapped::NONE {
        let parts: Vec<&str> =
            Swapped::NAMES.iter().filter(|(_, part)| k.swapped.has(*part)).map(|(name, _)| *name).collect();
        line.add(&format!("--swap-attention --swap-modules {}", parts.join(",")));
        match (case.recompute, k.recompute_networks) {
            (_, 0) => {}
            (Recompute::None, n) => line.add(&format!("--recompute-num-layers {n}")),
            _ => return None,
        }
    }
    line.add_if(k.inputs_shared, "--distribute-saved-activations");
    line.add_if(k.swap_inputs, "--swap-layer-input");
    line.add_if(k.recompute_operands, "--recompute-mla-up-proj");
    line.add_if(k.recompute_attention, "--mla-zero-memory");
    line.add_if(k.swap_heads, "--mla-swap-core-attn-out");
    line.add_if(k.recompute_predictor_layers, "--recompute-mtp-layer");
    line.add_if(k.recompute_predictor_norms, "--recompute-mtp-norm");
    match case.recompute_timing {
        RecomputeTiming::WithGradient => {}
        RecomputeTiming::InAdvance => line.add("--recompute-in-advance"),
        RecomputeTiming::InBubble => line.add("--recompute-in-bubble"),
    }
    Some(())
}

/// What tensor-parallel layers compute during their exchanges.
fn linears(run: &Run, line: &mut Line) -> Option<()> {
    if run.sizes[0] == 1 {
        return Some(());
    }
    let linears = run.case.linears;
    line.add_if(!linears.weight_gradients, "--no-async-tensor-model-parallel-allreduce");
    match linears.pieces {
        Pieces::Number(1) => {}
        Pieces::Number(n) => line.add(&format!("--use-ascend-coc --coc-parallel-num {n}")),
        Pieces::Finest => line.add("--use-ascend-coc --coc-fused-kernel"),
    }
    let latents = linears.overlap_gathers && run.config.mla().is_some() && run.case.sequence_parallel;
    line.add_if(latents, "--mla-up-proj-tp-overlap --mla-mm-split");
    Some(())
}

/// Who keeps the optimizer's state where, and what it sums and gathers when.
fn optimizer(run: &Run, line: &mut Line) {
    let case = &run.case;
    line.add_if(case.overlap, "--overlap-grad-reduce");
    line.add_if(case.overlap_gather, "--overlap-param-gather");
    line.add_if(case.overlap_gather_with_step, "--overlap-param-gather-with-optimizer-step");
    line.add_if(case.optimizer != OptimizerSharding::Replicated, "--use-distributed-optimizer");
    if let OptimizerSharding::Instances(n) = case.optimizer {
        line.add_if(n > 1, &format!("--num-distributed-optimizer-instances {n}"));
    }
    if let Some(elements) = case.bucket_size.filter(|_| case.overlap || case.overlap_gather) {
        line.add(&format!("--ddp-bucket-size {elements}"));
    }
    line.add_if(matches!(case.update, UpdateRule::Sgd { .. }), "--optimizer sgd");
    if let Some(parts) = case.form.swapped {
        line.add(&format!("--swap-optimizer --swap-optimizer-times {parts}"));
    }
}
