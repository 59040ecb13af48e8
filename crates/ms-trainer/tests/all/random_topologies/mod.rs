//! Random models on random topologies, and which pairs of option values occur together.

mod models;
pub(crate) mod pairs;

use crate::parity::Case;
pub(crate) use models::model;
use models::rarer;
use ms_core::ops::{Auxiliary, DropPolicy};
use ms_core::{Dispatcher, Grid, GridRules, OptimizerSharding, RingCache, RingCachePolicy, Rng};
use ms_dist::{ContextParallel, LinearOverlap, Pieces, TokenMapping};
use ms_nn::{Capacity, Recompute, SavePolicy, Swapped};
use ms_spec::{Mixer, ModelConfig};
use ms_trainer::parity::Shape;
use ms_trainer::{LossScale, PipelineOrder, RecomputeTiming, Routing, UpdateRule};

/// Kinds of models, each with the parts that parallelism must get right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// Grouped attention, tied output layer.
    Dense,
    /// Experts with an auxiliary loss.
    Experts,
    /// Latent attention, shared and routed experts with biases, prediction modules.
    Latent,
    /// Gated delta nets or Mamba2, and attention, in turn.
    Hybrid,
    /// Attention with sinks, windowed in every other layer.
    Sinks,
    /// Latent attention to picked keys. Not among the drawn: what is picked on the kernels may depend on rounding.
    Picked,
    /// Attention to a window and to pooled entries, picked or all. Not among the drawn, for the same reason.
    Pooled,
}

pub(crate) const MODELS: [Model; 5] =
    [Model::Dense, Model::Experts, Model::Latent, Model::Hybrid, Model::Sinks];

pub(crate) struct Draw(pub(crate) Rng);

impl Draw {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((self.0.uniform() * n as f64) as usize).min(n - 1)
    }
    pub(crate) fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// A run that was drawn.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) kind: Model,
    /// (tp, cp, pp, dp, ep)
    pub(crate) sizes: [usize; 5],
    pub(crate) case: Case,
    pub(crate) config: ModelConfig,
    pub(crate) routing: Routing,
    pub(crate) shape: Shape,
}

impl Run {
    /// The `variant`th drawing of these sizes; `None`: a rule refuses them.
    pub(crate) fn draw(kind: Model, sizes: [usize; 5], (seed, variant): (u64, usize)) -> Option<Self> {
        let name = match variant {
            0 => format!("{kind:?} {sizes:?}"),
            n => format!("{kind:?} {sizes:?} {n}"),
        };
        let mut draw = Draw(Rng::named(seed, &name));
        let case = case(kind, sizes, &mut draw)?;
        let config = model(kind, &case, &mut draw);
        let routing = routing(kind, &case, &mut draw);
        let shape = shape(&case, &mut draw);
        let case = Case { seed: 1 + draw.below(1000) as u64, ..case };
        // With draws of their own, so that the others stay what they were.
        let config = rarer(kind, config, &routing, &mut Draw(Rng::named(seed, &format!("{name}, rarer"))));
        let overlap_passes = Draw(Rng::named(seed, &format!("{name}, passes"))).coin();
        let optimizer = optimizer(&case, &mut Draw(Rng::named(seed, &format!("{name}, optimizer"))));
        // As upstream: only what is sharded is gathered.
        let overlap_gather = case.overlap_gather && optimizer != OptimizerSharding::Replicated;
        let overlap_gather_with_step = case.overlap_gather_with_step && overlap_gather;
        let mut save_policy =
            more_kept(&case, &config, &mut Draw(Rng::named(seed, &format!("{name}, kept"))));
        save_policy.swapped = swapped(&case, &mut Draw(Rng::named(seed, &format!("{name}, swapped"))));
        let latents = Draw(Rng::named(seed, &format!("{name}, latents"))).coin();
        let linears = LinearOverlap { overlap_gathers: latents, ..case.linears };
        let shape = uneven(&case, shape, &mut Draw(Rng::named(seed, &format!("{name}, uneven"))));
        let defer_embedding_wgrad =
            defer_embedding_wgrad(&case, &config, &mut Draw(Rng::named(seed, &format!("{name}, head"))));
        let case = Case {
            overlap_passes,
            optimizer,
            overlap_gather,
            overlap_gather_with_step,
            save_policy,
            linears,
            defer_embedding_wgrad,
            ..case
        };
        Some(Self { kind, sizes, case, config, routing, shape })
    }

    pub(crate) fn ranks(&self) -> usize {
        self.case.world
    }

    /// The value of everything that is drawn.
    fn values(&self) -> Vec<(&'static str, String)> {
        let (c, s) = (&self.case, self.case.sizes);
        let [tp, cp, pp, dp, ep] = self.sizes.map(|n| if n > 1 { "many" } else { "one" }.to_owned());
        let has_experts = self.config.moe.is_some();
        let order = match (c.order, c.stages.layers_per_chunk.is_some(), c.stages.dual_pipe) {
            (PipelineOrder::Random(_), chunks, both) => format!("drawn, chunks {chunks}, both ends {both}"),
            (PipelineOrder::Plain { group, .. }, true, _) => format!("chunks, groups {}", group.is_some()),
            (order, ..) => format!("{order:?}").chars().take(10).collect(),
        };
        let layers = match (&c.stages.layer_list, c.stages.noop.is_empty()) {
            (Some(_), _) => "list",
            (_, false) => "no-ops",
            _ => "even",
        };
        let again = match c.recompute {
            Recompute::None => "none",
            Recompute::Block(_) => "block",
            Recompute::BlockOfStage(_) => "block of a stage",
            Recompute::Uniform(_) => "uniform",
        };
        let k = c.save_policy;
        let kept = format!(
            "attention {}, activations {}, swap {}",
            k.recompute_core_attention,
            k.recompute_activations > 0,
            k.swapped != Swapped::NONE
        );
        let mut values = vec![
            ("model", format!("{:?}", self.kind)),
            ("tp", tp),
            ("cp", cp),
            ("pp", pp),
            ("dp", dp),
            ("order", order),
            ("layers", layers.to_owned()),
            ("sequence parallel", c.sequence_parallel.to_string()),
            ("recompute", again.to_owned()),
            ("kept", kept),
            ("dropout", (c.dropout > 0.0).to_string()),
            ("swapped state", c.form.swapped.is_some().to_string()),
            ("loss per token", c.per_token_loss.to_string()),
            ("loss scale", (c.loss_scale != LossScale::None).to_string()),
            ("update", matches!(c.update, UpdateRule::Sgd { .. }).to_string()),
            ("positions", format!("{:?}", self.config.position)),
            ("head size", self.config.head_dim.to_string()),
            ("packed", self.shape.packed.to_string()),
            ("rows", self.shape.rows.to_string()),
        ];
        // What a value does nothing in has no pairs with it.
        let replicas = c.world / (s.tp * s.pp);
        if replicas > 1 {
            let optimizer = match c.optimizer {
                OptimizerSharding::Replicated => "replicated",
                OptimizerSharding::Instances(1) => "shared out",
                OptimizerSharding::Instances(_) => "instances",
            };
            values.push(("optimizer", optimizer.to_owned()));
            values.push(("buckets", format!("{}, overlapped {}", c.bucket_size.is_some(), c.overlap)));
            values.push(("gathering", format!("{} {}", c.overlap_gather, c.overlap_gather_with_step)));
        }
        let runs_again =
            c.recompute != Recompute::None || k.recompute_activations > 0 || k.recompute_norms > 0;
        if c.stages.layers_per_chunk.is_some() && runs_again {
            values.push(("replay", format!("{:?}", c.recompute_timing)));
        }
        if s.pp > 1 {
            let dp = c.world / (s.tp * s.cp * s.pp);
            let even = (self.shape.micro / dp).is_multiple_of(s.pp);
            values.push(("micro-batches", if even { "as stages" } else { "another number" }.to_owned()));
            let layers = self.config.layers + c.stages.noop.len();
            values
                .push(("borders of stages", if c.waits_at_borders { "wait" } else { "overlap" }.to_owned()));
            let chunks = c.stages.layers_per_chunk.map_or(1, |each| layers / (s.pp * each));
            values.push(("chunks a stage", chunks.to_string()));
            if !self.config.tied {
                let later = match c.defer_embedding_wgrad {
                    None => "at once",
                    Some(usize::MAX) => "later",
                    Some(_) => "later of some",
                };
                values.push(("gradient of the output layer", later.to_owned()));
            }
        }
        if c.recompute != Recompute::None {
            values.push(("inputs of layers", format!("{} {}", k.inputs_shared, k.swap_inputs)));
        }
        if k.swapped != Swapped::NONE {
            values.push(("swapped", format!("{:?}", k.swapped)));
        }
        if self.kind == Model::Dense {
            values.push(("keys and values", format!("lent {}", self.config.has(Mixer::SharedKv))));
        }
        if self.kind == Model::Latent {
            let up = (k.recompute_operands, k.recompute_attention, k.swap_heads);
            values.push(("latents", format!("{up:?}")));
            let modules = (k.recompute_predictor_layers, k.recompute_predictor_norms);
            values.push(("modules again", format!("{modules:?}")));
            if s.tp > 1 && c.sequence_parallel {
                values.push(("latents gathered", format!("together {}", c.linears.overlap_gathers)));
            }
            values.push(("rows of modules", self.config.mtp_hidden_first.to_string()));
        }
        if s.tp > 1 {
            let LinearOverlap { weight_gradients, pieces, .. } = c.linears;
            values.push(("linears", format!("{weight_gradients} {pieces:?}")));
            values.push(("key/value heads divide", self.config.groups.is_multiple_of(s.tp).to_string()));
        }
        if s.cp > 1 {
            // Which tokens ranks have is a choice of its own.
            let mut how = c.context;
            if let ContextParallel::Adaptive { remap, .. } = &mut how {
                values.push((
                    "tokens of ranks",
                    format!("{:?}", std::mem::replace(remap, TokenMapping::InOrder)),
                ));
            }
            values.push(("context", format!("{how:?}")));
            let passes = !matches!(
                c.context,
                ContextParallel::Ulysses | ContextParallel::Gather | ContextParallel::Adaptive { .. }
            );
            if passes {
                values
                    .push(("kept of rings", format!("{:?} {}", c.ring_cache.policy, c.ring_cache.interval)));
            }
        }
        if self.kind == Model::Hybrid {
            values.push((
                "recurrent layers",
                if self.config.mamba2.is_some() { "Mamba2" } else { "delta net" }.into(),
            ));
        }
        if has_experts {
            let router = self.config.moe.as_ref().map(|m| m.router);
            // Tokens go to other ranks where these have other experts, or parts of them.
            if s.ep > 1 || s.tp > 1 || s.etp.is_some_and(|n| n > 1) {
                values.push(("dispatcher", format!("{:?}", c.dispatcher)));
                let meanwhile = match (c.overlap_passes, c.overlap_experts) {
                    (true, _) => "other passes".to_owned(),
                    (false, shared) => format!("shared experts {shared}"),
                };
                values.push(("meanwhile", meanwhile));
            }
            let auxiliary = self.routing.auxiliary;
            values.extend([
                ("ep", ep),
                (
                    "experts on tensor-parallel ranks",
                    match s.etp {
                        None => "cut".to_owned(),
                        Some(1) => "whole".to_owned(),
                        Some(n) if s.tp.is_multiple_of(n) => "cut by some".to_owned(),
                        Some(_) => "cut across".to_owned(),
                    },
                ),
                ("experts", format!("{} {}", k.recompute_experts, k.recompute_expert_inner > 0)),
                (
                    "experts without weights",
                    self.config.moe.as_ref().is_some_and(|m| m.zero_experts > 0).to_string(),
                ),
                ("capacity", format!("{:?}", self.routing.capacity.map(|c| c.policy))),
                ("router groups", format!("{:?}", router.and_then(|r| r.groups).map(|g| g.by))),
                ("score", format!("{:?}", router.map(|r| r.score))),
                ("losses of devices", (auxiliary.devices > 0.0).to_string()),
                ("losses of communication", (auxiliary.communication > 0.0).to_string()),
                ("losses of logits", (auxiliary.z > 0.0).to_string()),
                ("balance with biases", self.routing.balance_biased.to_string()),
                ("by sequence", self.routing.balance_by_sequence.to_string()),
                ("jitter", (self.routing.jitter > 0.0).to_string()),
                ("routes", format!("fixed {}, even {}", self.routing.fixed, self.routing.sinkhorn)),
            ]);
        }
        values
    }
}

/// All sizes up to eight ranks: (tp, cp, pp, dp, ep).
pub(crate) fn sizes() -> Vec<[usize; 5]> {
    let mut all = Vec::new();
    for world in 1..=8 {
        for tp in 1..=world {
            for cp in 1..=world {
                for pp in 1..=world {
                    if world % (tp * cp * pp) != 0 {
                        continue;
                    }
                    let dp = world / (tp * cp * pp);
                    for ep in (1..=dp * cp).filter(|ep| (dp * cp) % ep == 0) {
                        all.push([tp, cp, pp, dp, ep]);
                    }
                }
            }
        }
    }
    all
}

/// A way for `cp` ranks to share sequences.
fn context(cp: usize, draw: &mut Draw) -> ContextParallel {
    // Rings of a ring: as many ranks as divide it, and fewer.
    let windows =
        |ring: usize| -> Vec<usize> { (1..ring.max(2)).filter(|w| ring.is_multiple_of(*w)).collect() };
    let mut ways = vec![
        ContextParallel::Ulysses,
        ContextParallel::Gather,
        ContextParallel::Adaptive { ulysses: 1, remap: TokenMapping::InOrder },
    ];
    ways.extend(windows(cp).into_iter().map(|window| ContextParallel::Ring { window }));
    ways.extend(windows(cp).into_iter().map(|window| ContextParallel::InOrder { ulysses: 1, window }));
    for ulysses in (2..cp).filter(|u| cp.is_multiple_of(*u)) {
        ways.push(ContextParallel::Adaptive { ulysses, remap: TokenMapping::InOrder });
        for window in windows(cp / ulysses) {
            ways.push(ContextParallel::Hybrid { ulysses, window });
            ways.push(ContextParallel::InOrder { ulysses, window });
        }
    }
    draw.of(&ways)
}

/// The ways in which the ranks of these sizes work together, drawn.
fn case(kind: Model, [tp, cp, pp, dp, ep]: [usize; 5], draw: &mut Draw) -> Option<Case> {
    let has_experts = matches!(kind, Model::Experts | Model::Latent);
    if ep > 1 && !has_experts {
        return None;
    }
    let mut case = Case::of(tp * cp * pp * dp, tp, cp, pp, ep);
    case.sequence_parallel = tp > 1 && draw.coin();
    case = case.context(context(cp, draw));
    let stage = tp * cp * dp;
    if has_experts && stage > 1 {
        // Experts whole, on the ranks that share dense layers: in rows of their own, or spread over those, too.
        // Or cut by some of them, or by ranks that have other tokens.
        let cut = |across: bool| -> Vec<usize> {
            (2..=stage / ep)
                .filter(|&n| n != tp && stage.is_multiple_of(ep * n) && tp.is_multiple_of(n) != across)
                .collect()
        };
        let (some, across) = (cut(false), cut(true));
        match draw.below(5) {
            0 if tp > 1 => (case.sizes.etp, case.rules) = (Some(1), GridRules::Head),
            1 if tp > 1 => (case.sizes.etp, case.sizes.ep) = (Some(1), ep * tp),
            2 if !some.is_empty() => {
                (case.sizes.etp, case.rules) = (Some(draw.of(&some)), GridRules::Head);
            }
            3 if !across.is_empty() => {
                (case.sizes.etp, case.rules) = (Some(draw.of(&across)), GridRules::Head);
            }
            _ => {}
        }
    }
    if pp > 1 {
        match draw.below(6) {
            0 => {
                let several = draw.coin();
                case.stages.layers_per_chunk = several.then(|| draw.of(&[1, 1, 2]));
                let group = draw.of(&[None, Some(2 * pp)]).filter(|_| several);
                case.order = PipelineOrder::ZeroBubble { group };
            }
            1 => (case.stages.dual_pipe, case.order) = (true, PipelineOrder::DualPipeV),
            2 => {
                case.stages.layers_per_chunk = Some(draw.of(&[1, 1, 2]));
                let group = draw.of(&[None, Some(2 * pp)]);
                case.order = PipelineOrder::Plain { group, forwards_first: draw.coin() };
            }
            // Any order that can be executed: of one chunk a stage, of two, and of two from both ends.
            3 => case.order = PipelineOrder::Random(draw.below(1 << 20) as u64),
            4 => {
                let both = draw.coin();
                (case.stages.dual_pipe, case.stages.layers_per_chunk) = (both, (!both).then_some(1));
                case.order = PipelineOrder::Random(draw.below(1 << 20) as u64);
            }
            _ => {}
        }
        let one_chunk = case.stages.layers_per_chunk.is_none() && !case.stages.dual_pipe;
        let slots = if one_chunk { pp } else { 2 * pp * case.stages.layers_per_chunk.unwrap_or(1) };
        match draw.below(4) {
            0 if one_chunk => case.stages.layer_list = Some((0..pp).map(|p| 1 + (p + 1) % 2).collect()),
            1 => case.stages.noop = vec![draw.below(slots)],
            _ => {}
        }
    }
    // Layers of a hybrid lend nothing; recomputation runs everywhere.
    case.recompute = draw.of(&[
        Recompute::None,
        Recompute::None,
        Recompute::Block(1),
        Recompute::BlockOfStage(3),
        Recompute::Uniform(1),
    ]);
    let again =
        |n: usize| SavePolicy { recompute_activations: n, recompute_norms: n, ..SavePolicy::default() };
    case.save_policy = draw.of(&[
        SavePolicy::default(),
        SavePolicy { recompute_core_attention: true, ..SavePolicy::default() },
        again(1),
        SavePolicy { recompute_core_attention: true, ..again(usize::MAX) },
        SavePolicy { swapped: Swapped::ATTENTION, recompute_networks: 1, ..again(2) },
    ]);
    if case.stages.layers_per_chunk.is_some() {
        case.recompute_timing =
            draw.of(&[RecomputeTiming::WithGradient, RecomputeTiming::InAdvance, RecomputeTiming::InBubble]);
        case.save_policy.spare_last = case.recompute_timing == RecomputeTiming::InAdvance;
    }
    case.bucket_size = draw.of(&[None, Some(300)]);
    case.overlap = draw.coin();
    case.overlap_gather = draw.coin();
    case.overlap_gather_with_step = case.overlap_gather && draw.coin();
    case.per_token_loss = draw.below(3) == 0;
    case.dropout = draw.of(&[0.0, 0.0, 0.2]);
    case.form.swapped = draw.of(&[None, None, Some(3)]);
    case.loss_scale = draw.of(&[LossScale::None, LossScale::Constant(3.0)]);
    // AdamW hides factors of gradients; the other rule shows them.
    if draw.below(3) == 0 {
        case.update = UpdateRule::Sgd { momentum: 0.9 };
    }
    let pieces = draw.of(&[Pieces::Number(1), Pieces::Number(2), Pieces::Finest]);
    case.linears = LinearOverlap { weight_gradients: draw.below(4) > 0, pieces, overlap_gathers: false };
    case.dispatcher = draw.of(&[Dispatcher::AllGather, Dispatcher::AllToAll, Dispatcher::AllToAllSeq]);
    // Those that exchange tokens for columns have the same tokens.
    if case.dispatcher == Dispatcher::AllToAllSeq && case.sizes.etp.is_some_and(|n| !tp.is_multiple_of(n)) {
        case.dispatcher = Dispatcher::AllToAll;
    }
    case.overlap_experts = draw.coin();
    let kept = draw.of(&[RingCachePolicy::Nothing, RingCachePolicy::Keys, RingCachePolicy::KeysAndValues]);
    case.ring_cache = RingCache { policy: kept, interval: draw.below(2) };
    let inner = draw.of(&[0, 1, usize::MAX]);
    (case.save_policy.recompute_experts, case.save_policy.recompute_expert_inner) = (draw.coin(), inner);
    case.waits_at_borders = pp > 1 && draw.below(3) == 0;
    if let ContextParallel::Adaptive { remap, .. } = &mut case.context {
        *remap = draw.of(&[TokenMapping::InOrder, TokenMapping::Runs, TokenMapping::Tokens]);
    }
    Some(case)
}

/// Who keeps which part of the optimizer's state, drawn.
fn optimizer(case: &Case, draw: &mut Draw) -> OptimizerSharding {
    let all = (2..=case.world).map(OptimizerSharding::Instances);
    let fits = |optimizer: &OptimizerSharding| {
        let grid = Grid::new(case.world, &case.sizes, case.rules);
        grid.and_then(|grid| grid.with_optimizer(*optimizer)).is_ok()
    };
    let mut ways = vec![OptimizerSharding::default(), OptimizerSharding::Replicated];
    ways.extend(all.filter(fits));
    draw.of(&ways)
}

/// Other saved values that can be reduced: inputs of recomputed layers, and what latent attention and prediction modules
/// compute.
fn more_kept(case: &Case, c: &ModelConfig, draw: &mut Draw) -> SavePolicy {
    let mut k = case.save_policy;
    if case.recompute != Recompute::None {
        k.inputs_shared = case.sizes.tp > 1 && !case.sequence_parallel && draw.coin();
        k.swap_inputs = draw.below(3) == 0;
    }
    if c.mla().is_some() {
        match draw.below(4) {
            0 => k.recompute_operands = true,
            1 => k.recompute_attention = true,
            2 => k.swap_heads = true,
            _ => {}
        }
    }
    if c.mtp > 0 {
        (k.recompute_predictor_layers, k.recompute_predictor_norms) = (draw.coin(), draw.coin());
    }
    k
}

/// What goes to the host where something does: attention and the norm before it, other parts of layers, or all of them.
fn swapped(case: &Case, draw: &mut Draw) -> Swapped {
    let networks = Swapped::NETWORK_NORM.union(Swapped::NETWORK);
    let inside = Swapped::CORE.union(Swapped::PROJ).union(Swapped::FC2).union(Swapped::EXPERTS);
    let drawn = draw.of(&[Swapped::ATTENTION, networks, Swapped::ATTENTION.union(networks), inside]);
    if case.save_policy.swapped == Swapped::NONE { Swapped::NONE } else { drawn }
}

/// Whether the gradient of the output layer's weights is deferred until after everything else, and for how many
/// micro-batches.
fn defer_embedding_wgrad(case: &Case, c: &ModelConfig, draw: &mut Draw) -> Option<usize> {
    let may = case.sizes.pp > 1 && !c.tied;
    draw.of(&[None, None, Some(1), Some(usize::MAX)]).filter(|_| may)
}

/// The same micro-batches and, where a pipeline does not want as many as it has stages, some more.
fn uneven(case: &Case, shape: Shape, draw: &mut Draw) -> Shape {
    let dp = case.world / (case.sizes.tp * case.sizes.cp * case.sizes.pp);
    let turns = case.stages.layers_per_chunk.is_some() && !matches!(case.order, PipelineOrder::Random(_));
    let more = if turns { 0 } else { draw.below(case.sizes.pp) };
    Shape { micro: shape.micro + more * dp, ..shape }
}

/// How routers are trained, drawn.
fn routing(kind: Model, case: &Case, draw: &mut Draw) -> Routing {
    let policy = draw.of(&[DropPolicy::Weights, DropPolicy::Position]);
    let capacity =
        draw.of(&[None, Some(Capacity { factor: 1.0, policy }), Some(Capacity { factor: 1.5, policy })]);
    let sinkhorn = kind == Model::Experts && draw.below(4) == 0;
    Routing {
        // As upstream: where tokens are sent, and experts chosen by scores.
        capacity: capacity.filter(|_| case.dispatcher != Dispatcher::AllGather && !sinkhorn),

        auxiliary: Auxiliary {
            experts: 0.02,
            devices: draw.of(&[0.0, 0.03]),
            communication: draw.of(&[0.0, 0.01]),
            z: draw.of(&[0.0, 1e-3]),
        },
        balance_by_sequence: draw.coin(),
        balance_biased: draw.below(3) == 0,
        jitter: draw.of(&[0.0, 0.0, 0.1]),
        fixed: draw.below(8) == 0,
        fixed_by_expert: case.seed.is_multiple_of(2),
        sinkhorn,
        bias_update_rate: 1e-3,
        // By the seed, so that what else is drawn stays as it is.
        balance_undivided: case.seed.is_multiple_of(2),
        balance_by_tokens: case.seed.is_multiple_of(3),
        bias_of_taken: case.seed % 4 < 2,
        ..Routing::default()
    }
}

/// The micro-batches of a step for the case: as many for each data-parallel rank as its schedule needs.
pub(crate) fn shape(case: &Case, draw: &mut Draw) -> Shape {
    let cp = case.sizes.cp;
    let dp = case.world / (case.sizes.tp * cp * case.sizes.pp);
    let length = (2 * cp * case.sizes.tp).next_multiple_of(case.context.pieces(cp)) * draw.of(&[1, 2]);
    let length = if length < 16 { length * 16usize.div_ceil(length) } else { length };
    // As many as there are stages make some orders another one.
    let grouped =
        matches!(case.order, PipelineOrder::Plain { group: Some(_), .. } | PipelineOrder::DualPipeV);
    let rounds = if grouped || case.sizes.pp == 1 { 2 } else { draw.of(&[1, 2, 2]) };
    let micro = rounds * case.sizes.pp;
    Shape { rows: draw.of(&[1, 2]), length, micro: micro * dp, packed: draw.coin() }
}
