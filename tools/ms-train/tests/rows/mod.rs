//! Runs of the matrix of parity, drawn as it draws them, in flags of `ms-train`.

use crate::drawn::{Draw, Model, Run, sizes};
use ms_core::{Dispatcher, OptimizerSharding, Rng};
use ms_dist::ContextParallel;
use ms_nn::Recompute;
use ms_spec::Position;
use ms_trainer::{PipelineOrder, UpdateRule};
use std::collections::BTreeSet;

/// Rows of a global batch: as many micro-batches as any of these schedules needs.
pub(crate) const GLOBAL: usize = 16;

/// `count` runs of other sizes each, half of two ranks and half of four, with their flags.
pub(crate) fn rows(seed: u64, count: usize) -> Vec<(usize, String)> {
    let mut draw = Draw(Rng::named(seed, "rows under MPI"));
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut taken = BTreeSet::new();
    let mut variant = 0;
    while found.len() < count {
        let ranks = if found.len() < count / 2 { 2 } else { 4 };
        let kind = draw.of(&[Model::Dense, Model::Experts]);
        let of_ranks: Vec<[usize; 5]> =
            sizes().into_iter().filter(|s| s[..4].iter().product::<usize>() == ranks).collect();
        variant += 1;
        let sizes = draw.of(&of_ranks);
        let drawn = Run::draw(kind, sizes, (seed, variant));
        if let Some(flags) = drawn.as_ref().and_then(flags).filter(|_| taken.insert(sizes)) {
            found.push((ranks, flags));
        }
        assert!(variant < 1000, "drawings that flags can say");
    }
    found
}

/// The run in flags; `None` where it has what no flags of v2.0.0 say.
fn flags(run: &Run) -> Option<String> {
    let Run { case, config: c, shape, sizes: [tp, cp, pp, _, ep], .. } = run;
    let mut all = format!(
        "--num-layers {} --hidden-size {} --ffn-hidden-size {} --num-attention-heads {} --kv-channels {} \
         --group-query-attention --num-query-groups {} --normalization RMSNorm --swiglu --disable-bias-linear \
         --vocab-size 64 --padded-vocab-size 64 --seq-length 16 --max-position-embeddings 16 --init-method-std 0.2 \
         --micro-batch-size {} --global-batch-size {GLOBAL} --hidden-dropout {} --attention-dropout {} --seed {} \
         --lr 1e-2 --lr-decay-style constant --eval-iters 0 --tp {tp} --cp {cp} --pp {pp} --ep {ep}",
        c.layers,
        c.hidden,
        c.ffn,
        c.heads,
        c.head_dim,
        c.groups,
        shape.rows,
        case.dropout,
        case.dropout,
        case.seed
    );
    let mut also = |wanted: bool, flags: &str| {
        if wanted {
            all += " ";
            all += flags;
        }
    };
    let alibi = c.position == Position::Alibi;
    also(true, if alibi { "--position-embedding-type alibi" } else { "--position-embedding-type rope" });
    let general = if matches!(case.context, ContextParallel::InOrder { .. }) {
        " --cp-attention-mask-type general"
    } else {
        ""
    };
    let context = match case.context {
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
        ContextParallel::Adaptive { ulysses: 1 } => "--context-parallel-algo adaptive_cp_algo".to_owned(),
        ContextParallel::Adaptive { ulysses } => {
            format!("--context-parallel-algo hybrid_adaptive_cp_algo --ulysses-degree-in-cp {ulysses}")
        }
    };
    also(*cp > 1, &context);
    if let Some(moe) = &c.moe {
        // Grids of newer versions, choices by groups and experts without weights.
        if case.sizes.etp.is_some() || moe.router.groups.is_some() || moe.zero_experts > 0 {
            return None;
        }
        let experts = format!(
            "--num-experts {} --moe-router-topk {} --moe-ffn-hidden-size {} --moe-aux-loss-coeff 0.02",
            moe.experts, moe.top_k, moe.ffn
        );
        also(true, &experts);
        match case.dispatcher {
            Dispatcher::AllGather => also(true, "--moe-token-dispatcher-type allgather"),
            Dispatcher::AllToAllSeq => also(true, "--moe-token-dispatcher-type alltoall"),
            Dispatcher::AllToAll => return None,
        }
    }
    // As upstream, experts on ranks that share matrices need it.
    also(case.sequence_parallel || (*tp > 1 && c.moe.is_some()), "--sequence-parallel");
    match (case.order, case.stages.layers_per_chunk, case.stages.dual_pipe) {
        _ if !case.stages.noop.is_empty() => return None,
        (PipelineOrder::DualPipeV, None, true) => also(true, "--schedules-method dualpipev"),
        (PipelineOrder::ZeroBubble { .. }, None, false) => also(true, "--schedules-method zero-bubble"),
        (PipelineOrder::ZeroBubble { group: None }, Some(each), false) => {
            let chunks = format!("--num-layers-per-virtual-pipeline-stage {each}");
            also(true, &format!("--schedules-method zero-bubble {chunks}"));
        }
        (PipelineOrder::Plain { group: None, forwards_first: true }, Some(each), false) => {
            also(true, &format!("--num-layers-per-virtual-pipeline-stage {each}"));
        }
        (PipelineOrder::Plain { group: None, forwards_first: true }, None, false) => {}
        _ => return None,
    }
    if let Some(list) = &case.stages.layer_list {
        let list: Vec<String> = list.iter().map(usize::to_string).collect();
        also(true, &format!("--num-layer-list {}", list.join(",")));
    }
    let full = "--recompute-granularity full --recompute-method";
    match case.recompute {
        Recompute::None => {}
        Recompute::Block(n) => also(true, &format!("{full} block --recompute-num-layers {n}")),
        Recompute::Uniform(n) => also(true, &format!("{full} uniform --recompute-num-layers {n}")),
        Recompute::BlockOfStage(_) => return None,
    }
    also(case.overlap, "--overlap-grad-reduce");
    also(case.overlap_gather, "--overlap-param-gather");
    // Newer versions alone have a flag for it, and other names for ways of tokens.
    if case.gather_beside_step {
        return None;
    }
    also(case.optimizer != OptimizerSharding::Replicated, "--use-distributed-optimizer");
    if let OptimizerSharding::Instances(n) = case.optimizer {
        also(n > 1, &format!("--num-distributed-optimizer-instances {n}"));
    }
    if let Some(elements) = case.bucket_size.filter(|_| case.overlap || case.overlap_gather) {
        also(true, &format!("--ddp-bucket-size {elements}"));
    }
    also(case.per_token_loss, "--calculate-per-token-loss");
    also(matches!(case.update, UpdateRule::Sgd { .. }), "--optimizer sgd");
    // The matrix itself has f64 and f32.
    also(case.seed % 3 == 0, "--bf16");
    also(case.seed % 3 == 1, "--fp64");
    Some(all)
}
