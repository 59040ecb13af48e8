//! Runs of the matrix of parity, drawn as it draws them, in flags of `ms-train`.

use crate::drawn::{Draw, MODELS, Run, sizes};
use ms_core::{Dispatcher, OptimizerSharding, Rng};
use ms_dist::{ContextParallel, Remap};
use ms_nn::Recompute;
use ms_spec::{Feed, Layer, ModelConfig, Score};
use ms_trainer::{PipelineOrder, UpdateRule};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Rows of a global batch: as many micro-batches as any of these schedules needs, on two, three or four ranks.
pub(crate) const GLOBAL: usize = 24;
/// Tokens of a row, which any of these ranks can share.
pub(crate) const LENGTH: usize = 24;
/// Tokens that every drawn model knows.
pub(crate) const TOKENS: i32 = 10;

/// `count` runs of other sizes each, of all kinds of models in turn and of two, three and four ranks in turn, with their flags.
pub(crate) fn rows(seed: u64, count: usize) -> Vec<(usize, String)> {
    let mut draw = Draw(Rng::named(seed, "rows under MPI"));
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut taken = BTreeSet::new();
    let mut variant = 0;
    while found.len() < count {
        let (kind, ranks) = (MODELS[found.len() % MODELS.len()], 2 + found.len() % 3);
        let of_ranks: Vec<[usize; 5]> =
            sizes().into_iter().filter(|s| s[..4].iter().product::<usize>() == ranks).collect();
        variant += 1;
        let sizes = draw.of(&of_ranks);
        let drawn = Run::draw(kind, sizes, (seed, variant));
        let name = format!("{kind:?} {sizes:?}");
        if let Some(flags) = drawn.as_ref().and_then(flags).filter(|_| taken.insert(name)) {
            found.push((ranks, flags));
        }
        assert!(variant < 1000, "drawings that flags can say: {} of {count}", found.len());
    }
    found
}

/// The model as flags say it: latent attention turns neighbours, attention beside delta nets has gates, these and their states
/// have convolutions of four, a layer is a mixer or a network beside Mamba2, sinks come with a checkpoint alone, and layers that
/// are all alike need no list.
fn plain(c: &ModelConfig) -> ModelConfig {
    let mut c = c.clone();
    c.rope.interleaved |= c.mla().is_some();
    c.scores.sinks = false;
    if let Some(delta) = &mut c.gated_delta {
        (delta.conv, c.scores.output_gate) = (4, true);
    }
    if let Some(states) = &mut c.mamba2 {
        states.residual_f32 = true;
        c.pattern.iter_mut().for_each(|layer| layer.feed = Feed::None);
    }
    if c.pattern.iter().all(|layer| *layer == Layer::default()) {
        c.pattern.clear();
    }
    c
}

/// The model in flags; `None` where no flags say all of it.
fn model(c: &ModelConfig) -> Option<String> {
    // Upstream's flags of training: name, programs, versions, number of values, type, name of the value.
    let flags: Vec<Vec<&str>> = include_str!("../../../../crates/ms-cli/src/megatron/flags.tsv")
        .lines()
        .map(|line| line.split('\t').collect())
        .filter(|columns: &Vec<&str>| columns.len() > 5 && columns[1].split(',').any(|p| p == "train"))
        .collect();
    let mut line = Vec::new();
    let mut said = Map::new();
    for (dest, value) in ms_spec::megatron::to_args(c).into_iter().filter(|(_, value)| !value.is_null()) {
        // Another name of the number of modules, whose flag asks for more; what the pattern of a hybrid says.
        if ["num_nextn_predict_layers", "is_hybrid_model"].contains(&dest.as_str()) {
            continue;
        }
        let sets = |columns: &[&str]| {
            columns[5] == dest
                && match &value {
                    Value::Bool(on) => columns[3] == "0" && columns[4] == on.to_string(),
                    _ => columns[3] != "0",
                }
        };
        let Some(columns) = flags.iter().find(|columns| sets(columns)) else { continue };
        line.push(columns[0].to_owned());
        match &value {
            Value::Bool(_) => {}
            Value::String(text) => line.push(text.clone()),
            Value::Array(items) => line.extend(items.iter().map(Value::to_string)),
            other => line.push(other.to_string()),
        }
        said.insert(dest, value);
    }
    let read = ms_spec::megatron::from_args(&said).ok()?;
    let same = ModelConfig { family: c.family, ..read } == *c;
    same.then(|| line.join(" "))
}

/// The run in flags; `None` where it has what no flags of v2.0.0 say.
fn flags(run: &Run) -> Option<String> {
    let Run { case, config, shape, sizes: [tp, cp, pp, _, ep], .. } = run;
    let c = &plain(config);
    let mut all = format!(
        "{} --seq-length {LENGTH} --micro-batch-size {} --global-batch-size {GLOBAL} --hidden-dropout {} --attention-dropout {} \
         --seed {} --lr 1e-2 --lr-decay-style constant --eval-iters 0 --tp {tp} --cp {cp} --pp {pp} --ep {ep}",
        model(c)?,
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
        ContextParallel::Adaptive { ulysses, remap } => {
            let tokens = match remap {
                Remap::InOrder => "--adaptive-cp-only-reschedule",
                Remap::Runs => "",
                Remap::Tokens => "--adaptive-cp-without-coarse",
            };
            match ulysses {
                1 => format!("--context-parallel-algo adaptive_cp_algo {tokens}"),
                n => format!(
                    "--context-parallel-algo hybrid_adaptive_cp_algo --ulysses-degree-in-cp {n} {tokens}"
                ),
            }
        }
    };
    also(*cp > 1, &context);
    if let Some(moe) = &c.moe {
        // Grids of newer versions.
        if case.sizes.etp.is_some() {
            return None;
        }
        also(moe.router.score == Score::SoftmaxOfChosen, "--moe-aux-loss-coeff 0.02");
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
