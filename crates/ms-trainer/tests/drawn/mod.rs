//! Drawn models on drawn topologies, and which values of the ways in which ranks work together occur beside each other.

#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use crate::parity::Case;
use ms_core::ops::{Auxiliary, DropPolicy};
use ms_core::{Dispatcher, GridRules, KeptOfRing, RingCache, Rng};
use ms_dist::{ContextParallel, LinearOverlap, Pieces};
use ms_nn::{Capacity, Keeping, Recompute};
use ms_spec::{
    Attention, Compressed, Feed, GatedDelta, GroupLimit, GroupScore, Indexer, Layer, Mamba2, Mixer, Mla,
    ModelConfig, Moe, Pooled, Rope, Router, Score, Scores, SharedExpert,
};
use ms_trainer::parity::Shape;
use ms_trainer::{LossScale, PipelineOrder, Replay, Routing, UpdateRule};
use std::collections::BTreeSet;

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
    /// Latent attention to picked keys. Not among the drawn: what is picked on the kernels may hang on rounding.
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
            (PipelineOrder::Drawn(_), chunks, both) => format!("drawn, chunks {chunks}, both ends {both}"),
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
        let k = c.keeping;
        let kept = format!(
            "attention {}, activations {}, swap {}",
            k.core_attention_again,
            k.activations_again > 0,
            k.swap_attention
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
            ("replay", format!("{:?}", c.replay)),
            ("buckets", format!("{}, overlapped {}", c.bucket_size.is_some(), c.overlap)),
            ("gathering", c.overlap_gather.to_string()),
            ("dropout", (c.dropout > 0.0).to_string()),
            ("swapped state", c.form.swapped.is_some().to_string()),
            ("loss per token", c.per_token_loss.to_string()),
            ("loss scale", (c.loss_scale != LossScale::None).to_string()),
            ("update", matches!(c.update, UpdateRule::Sgd { .. }).to_string()),
            ("packed", self.shape.packed.to_string()),
            ("rows", self.shape.rows.to_string()),
        ];
        if s.tp > 1 {
            let LinearOverlap { weight_gradients, pieces } = c.linears;
            values.push(("linears", format!("{weight_gradients} {pieces:?}")));
            values.push(("key/value heads divide", self.config.groups.is_multiple_of(s.tp).to_string()));
        }
        if s.cp > 1 {
            values.push(("context", format!("{:?}", c.context)));
            values.push(("kept of rings", format!("{:?} {}", c.ring_cache.kept, c.ring_cache.interval)));
        }
        if self.kind == Model::Hybrid {
            values.push((
                "recurrent layers",
                if self.config.mamba2.is_some() { "Mamba2" } else { "delta net" }.into(),
            ));
        }
        if has_experts {
            let router = self.config.moe.as_ref().map(|m| m.router);
            let auxiliary = self.routing.auxiliary;
            values.extend([
                ("ep", ep),
                ("dispatcher", format!("{:?}", c.dispatcher)),
                ("shared experts meanwhile", c.overlap_experts.to_string()),
                (
                    "experts on tensor-parallel ranks",
                    match s.etp {
                        None => "cut".to_owned(),
                        Some(1) => "whole".to_owned(),
                        Some(_) => "cut by some".to_owned(),
                    },
                ),
                ("experts", format!("{} {}", k.experts_again, k.expert_inner_again > 0)),
                ("capacity", format!("{:?}", self.routing.capacity.map(|c| c.policy))),
                ("router groups", format!("{:?}", router.and_then(|r| r.groups).map(|g| g.by))),
                ("score", format!("{:?}", router.map(|r| r.score))),
                ("losses of devices", (auxiliary.devices > 0.0).to_string()),
                ("losses of communication", (auxiliary.communication > 0.0).to_string()),
                ("losses of logits", (auxiliary.z > 0.0).to_string()),
                ("balance with biases", self.routing.balance_biased.to_string()),
                ("by sequence", self.routing.balance_by_sequence.to_string()),
                ("jitter", (self.routing.jitter > 0.0).to_string()),
                ("routes", format!("fixed {}, even {}", self.routing.fixed, self.routing.even_choice)),
            ]);
        }
        values
    }

    /// All pairs of them.
    pub(crate) fn pairs(&self) -> Vec<String> {
        let values = self.values();
        let mut pairs = Vec::with_capacity(values.len() * values.len() / 2);
        for (i, (a, x)) in values.iter().enumerate() {
            pairs.extend(values[..i].iter().map(|(b, y)| format!("{a}: {x}, {b}: {y}")));
        }
        pairs
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

/// Of `pool`, run after run the one with the most pairs of values that are not in `seen` yet, until none has one more or there
/// are `most`.
pub(crate) fn covering(pool: &[Run], seen: &mut BTreeSet<String>, most: usize) -> Vec<Run> {
    let mut left: Vec<(&Run, Vec<String>)> = pool.iter().map(|run| (run, run.pairs())).collect();
    let mut chosen = Vec::new();
    while chosen.len() < most {
        for (_, pairs) in &mut left {
            pairs.retain(|pair| !seen.contains(pair));
        }
        left.retain(|(_, pairs)| !pairs.is_empty());
        let Some(best) = (0..left.len()).max_by_key(|&i| (left[i].1.len(), usize::MAX - i)) else { break };
        let (run, pairs) = left.swap_remove(best);
        seen.extend(pairs);
        chosen.push(run.clone());
    }
    chosen
}

/// Weights wide enough that the gradients of all parts count, and not so wide that what rounding leaves grows from layer to layer
/// and step to step: narrower the more of them are summed and the more layers stand on each other, and where a state runs along a
/// sequence.
fn init_std(kind: Model, c: &ModelConfig) -> f64 {
    let widest = if kind == Model::Hybrid { 0.1 } else { 0.4 };
    widest * (16.0 / (c.hidden.max(c.ffn) * c.layers.max(2)) as f64).sqrt()
}

/// A model of this kind that `case` can share out.
pub(crate) fn model(kind: Model, case: &Case, draw: &mut Draw) -> ModelConfig {
    let (tp, cp) = (case.sizes.tp, case.sizes.cp);
    let u = case.context.ulysses(case.sizes.cp);
    let head_dim = 4;
    // A third has key/value heads that do not divide among the ranks, while their rows do.
    let few: Vec<usize> =
        (1..2 * tp).filter(|g| !g.is_multiple_of(tp) && (g * head_dim).is_multiple_of(tp)).collect();
    let groups = match few.is_empty() || draw.below(3) > 0 {
        true => tp * draw.of(&[1, 2]),
        false => draw.of(&few),
    };
    let mut heads = groups * draw.of(&[1, 2]);
    while !heads.is_multiple_of(tp) || !(heads / tp).is_multiple_of(u) {
        heads += groups;
    }
    let chunks =
        case.stages.pp * if case.stages.layers_per_chunk.is_some() || case.stages.dual_pipe { 2 } else { 1 };
    let layers = match (&case.stages.layer_list, case.stages.layers_per_chunk) {
        (Some(list), _) => list.iter().sum(),
        (_, Some(each)) => chunks * each - case.stages.noop.len(),
        _ if case.stages.pp > 1 && chunks <= 4 && case.stages.noop.is_empty() => chunks * draw.of(&[1, 2, 3]),
        _ => chunks.max(2).next_multiple_of(chunks) - case.stages.noop.len(),
    };
    let base = ModelConfig {
        layers,
        hidden: 8 * match (kind, case.dispatcher) {
            (Model::Latent, _) => tp,
            // Ranks that exchange tokens for columns have as many each.
            (Model::Experts, Dispatcher::AllToAllSeq) => tp * draw.of(&[1, 2]),
            _ => draw.of(&[1, 2]),
        },
        ffn: 6 * tp,
        heads,
        groups,
        head_dim,
        vocab: 12 * tp - draw.below(3),
        padded_vocab: 12 * tp,
        max_positions: 64,
        ..ModelConfig::default()
    };
    let base = ModelConfig { init_std: init_std(kind, &base), ..base };
    let router = Router {
        score: Score::SoftmaxOfChosen,
        bias: false,
        linear_bias: false,
        groups: None,
        renormalise: false,
        scale: 1.0,
        f32: false,
    };
    // More experts than an even share needs, so that some get no token.
    let experts = match kind {
        Model::Experts | Model::Latent => draw.of(&[3, 4, 4, 5]) * case.sizes.ep,
        _ => 0,
    };
    let moe = |top_k| Moe { experts, top_k, ffn: 4 * tp, router, shared: None, zero_experts: 0 };
    let all = |feed: Feed| -> Vec<Layer> {
        (0..layers)
            .map(|l| Layer { feed: if l == 0 { Feed::Dense } else { feed }, ..Layer::default() })
            .collect()
    };
    match kind {
        Model::Dense => ModelConfig { tied: true, ..base },
        Model::Experts => ModelConfig {
            moe: Some({
                let mut experts = moe(2);
                let limit = GroupLimit { groups: 4, keep: 2, by: GroupScore::Best };
                let alike = GroupLimit { groups: 2, keep: 2, by: GroupScore::Alike };
                let divide = |limit: &GroupLimit| experts.experts.is_multiple_of(limit.groups);
                let ways: Vec<_> =
                    [limit, alike].into_iter().filter(divide).map(Some).chain([None]).collect();
                experts.router.groups = draw.of(&ways);
                experts.router.score = draw.of(&[Score::SoftmaxOfChosen, Score::Softmax]);
                experts
            }),
            pattern: (0..layers).map(|_| Layer { feed: Feed::Moe, ..Layer::default() }).collect(),
            ..base
        },
        Model::Latent => {
            let mut experts = moe(2);
            experts.router.score = Score::Sigmoid;
            experts.router.renormalise = true;
            experts.router.bias = true;
            experts.shared = Some(SharedExpert { ffn: 4 * tp, gate: draw.coin() });
            let q_rank = draw.of(&[None, Some(8)]);
            ModelConfig {
                groups: heads,
                head_dim: 6,
                attention: Attention::Latent(Mla {
                    q_rank,
                    kv_rank: 8,
                    nope: 4,
                    rope: 2,
                    value: 4,
                    q_scale: 1.0,
                    kv_scale: 1.0,
                }),
                moe: Some(experts),
                tied: draw.below(3) == 0,
                pattern: all(Feed::Moe),
                mtp: draw.of(&[1, 1, 2]),
                ..base
            }
        }
        Model::Hybrid => {
            let states = draw.below(3) == 0;
            let groups = tp * cp;
            let (mixer, gated_delta, mamba2) = match states {
                true => {
                    let shape = Mamba2 {
                        heads: 2 * groups,
                        head_dim: 4,
                        groups,
                        state: 4,
                        conv: 3,
                        chunk: 8,
                        bias: false,
                        conv_bias: true,
                        dt_limit: (0.0, None),
                        dt_init: (0.001, 0.1),
                        residual_f32: false,
                        norm_eps: 1e-5,
                    };
                    (Mixer::Mamba2, None, Some(shape))
                }
                false => {
                    let (key_heads, value_heads) = (groups, 2 * groups);
                    let shape = GatedDelta { key_heads, value_heads, key_dim: 4, value_dim: 4, conv: 3 };
                    (Mixer::GatedDelta, Some(shape), None)
                }
            };
            let pattern = |l: usize| Layer {
                mixer: if l.is_multiple_of(2) { mixer } else { Mixer::Attention },
                ..Layer::default()
            };
            ModelConfig { gated_delta, mamba2, pattern: (0..layers).map(pattern).collect(), ..base }
        }
        Model::Sinks => ModelConfig {
            scores: Scores { sinks: true, ..Scores::default() },
            sliding_window: Some(5),
            pattern: (0..layers).map(|l| Layer { global: l % 2 == 1, ..Layer::default() }).collect(),
            ..base
        },
        Model::Picked => ModelConfig {
            groups: heads,
            head_dim: 6,
            attention: Attention::Latent(Mla {
                q_rank: draw.of(&[None, Some(8)]),
                kv_rank: 8,
                nope: 4,
                rope: 2,
                value: 4,
                q_scale: 1.0,
                kv_scale: 1.0,
            }),
            indexer: Some(Indexer { heads: 2, head_dim: 4, top_k: 3, interleaved: false }),
            ..base
        },
        Model::Pooled => {
            let pooled = |l: usize| match l % 2 {
                0 => Pooled { ratio: 2, picked: true },
                _ => Pooled { ratio: 3, picked: false },
            };
            let rotated = Rope { fraction: 0.5, interleaved: true, ..base.rope.clone() };
            ModelConfig {
                heads: 2 * tp,
                groups: 1,
                sliding_window: Some(3),
                rope: rotated.clone(),
                scores: Scores { sinks: true, ..Scores::default() },
                attention: Attention::Compressed(Compressed {
                    q_rank: 8,
                    out_groups: tp,
                    out_rank: 4,
                    rope: rotated,
                }),
                indexer: Some(Indexer { heads: 2, head_dim: 4, top_k: 2, interleaved: true }),
                pattern: (0..layers).map(|l| Layer { pooled: Some(pooled(l)), ..Layer::default() }).collect(),
                ..base
            }
        }
    }
}

/// A way for `cp` ranks to share sequences.
fn context(cp: usize, draw: &mut Draw) -> ContextParallel {
    // Rings of a ring: as many ranks as divide it, and fewer.
    let windows =
        |ring: usize| -> Vec<usize> { (1..ring.max(2)).filter(|w| ring.is_multiple_of(*w)).collect() };
    let mut ways =
        vec![ContextParallel::Ulysses, ContextParallel::Gather, ContextParallel::Adaptive { ulysses: 1 }];
    ways.extend(windows(cp).into_iter().map(|window| ContextParallel::Ring { window }));
    for ulysses in (2..cp).filter(|u| cp.is_multiple_of(*u)) {
        ways.push(ContextParallel::Adaptive { ulysses });
        ways.extend(
            windows(cp / ulysses).into_iter().map(|window| ContextParallel::Hybrid { ulysses, window }),
        );
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
    if has_experts && tp > 1 {
        // Experts whole, on the ranks that share dense layers: in rows of their own, or spread over those, too.
        // Or by some of them.
        let some: Vec<usize> = (2..tp).filter(|n| tp.is_multiple_of(*n)).collect();
        match draw.below(4) {
            0 => (case.sizes.etp, case.rules) = (Some(1), GridRules::Head),
            1 => (case.sizes.etp, case.sizes.ep) = (Some(1), ep * tp),
            2 if !some.is_empty() => {
                (case.sizes.etp, case.rules) = (Some(draw.of(&some)), GridRules::Head);
            }
            _ => {}
        }
    }
    if pp > 1 {
        match draw.below(6) {
            0 => case.order = PipelineOrder::ZeroBubble,
            1 => (case.stages.dual_pipe, case.order) = (true, PipelineOrder::DualPipeV),
            2 => {
                case.stages.layers_per_chunk = Some(draw.of(&[1, 1, 2]));
                let group = draw.of(&[None, Some(2 * pp)]);
                case.order = PipelineOrder::Plain { group, forwards_first: draw.coin() };
            }
            // Any order that can be executed: of one chunk a stage, of two, and of two from both ends.
            3 => case.order = PipelineOrder::Drawn(draw.below(1 << 20) as u64),
            4 => {
                let both = draw.coin();
                (case.stages.dual_pipe, case.stages.layers_per_chunk) = (both, (!both).then_some(1));
                case.order = PipelineOrder::Drawn(draw.below(1 << 20) as u64);
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
    let again = |n: usize| Keeping { activations_again: n, norms_again: n, ..Keeping::default() };
    case.keeping = draw.of(&[
        Keeping::default(),
        Keeping { core_attention_again: true, ..Keeping::default() },
        again(1),
        Keeping { core_attention_again: true, ..again(usize::MAX) },
        Keeping { swap_attention: true, networks_again: 1, ..again(2) },
    ]);
    if case.stages.layers_per_chunk.is_some() {
        case.replay = draw.of(&[Replay::WithGradient, Replay::InAdvance, Replay::InBubble]);
        case.keeping.spare_last = case.replay == Replay::InAdvance;
    }
    case.bucket_size = draw.of(&[None, Some(300)]);
    case.overlap = draw.coin();
    case.overlap_gather = draw.coin();
    case.per_token_loss = draw.below(3) == 0;
    case.dropout = draw.of(&[0.0, 0.0, 0.2]);
    case.form.swapped = draw.of(&[None, None, Some(3)]);
    case.loss_scale = draw.of(&[LossScale::None, LossScale::Constant(3.0)]);
    // AdamW hides factors of gradients; the other rule shows them.
    if draw.below(3) == 0 {
        case.update = UpdateRule::Sgd { momentum: 0.9 };
    }
    let pieces = draw.of(&[Pieces::Number(1), Pieces::Number(2), Pieces::Finest]);
    case.linears = LinearOverlap { weight_gradients: draw.below(4) > 0, pieces };
    case.dispatcher = draw.of(&[Dispatcher::AllGather, Dispatcher::AllToAll, Dispatcher::AllToAllSeq]);
    case.overlap_experts = draw.coin();
    let kept = draw.of(&[KeptOfRing::Nothing, KeptOfRing::Keys, KeptOfRing::KeysAndValues]);
    case.ring_cache = RingCache { kept, interval: draw.below(2) };
    let inner = draw.of(&[0, 1, usize::MAX]);
    (case.keeping.experts_again, case.keeping.expert_inner_again) = (draw.coin(), inner);
    Some(case)
}

/// How routers are trained, drawn.
fn routing(kind: Model, case: &Case, draw: &mut Draw) -> Routing {
    let policy = draw.of(&[DropPolicy::Weights, DropPolicy::Position]);
    let capacity =
        draw.of(&[None, Some(Capacity { factor: 1.0, policy }), Some(Capacity { factor: 1.5, policy })]);
    let even_choice = kind == Model::Experts && draw.below(4) == 0;
    Routing {
        // As upstream: where tokens are sent, and experts chosen by scores.
        capacity: capacity.filter(|_| case.dispatcher != Dispatcher::AllGather && !even_choice),

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
        even_choice,
        bias_update_rate: 1e-3,
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
