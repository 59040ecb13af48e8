//! Random models that can be sharded.

use super::{Draw, Model};
use crate::parity::Case;
use crate::parity::samples::{MAMBA2, MLA};
use ms_core::Dispatcher;
use ms_spec::{
    Attention, Compressed, Feed, GatedDelta, GroupLimit, GroupScore, Indexer, Layer, Mamba2, Mixer, Mla,
    ModelConfig, Moe, Pooled, Position, Rope, Router, Score, Scores, SharedExpert,
};
use ms_trainer::Routing;

/// Latent attention with heads of six columns, two of which are rotated.
const NARROW: Mla = Mla { kv_rank: 8, nope: 4, rope: 2, value: 4, ..MLA };

/// Weights wide enough that the gradients of all parts count, and not so wide that what rounding leaves grows from layer to layer
/// and step to step: narrower the more of them are summed and the more layers stand on each other, and where a state runs along a
/// sequence.
fn init_std(kind: Model, c: &ModelConfig) -> f64 {
    let widest = if kind == Model::Hybrid { 0.1 } else { 0.4 };
    widest * (16.0 / (c.hidden.max(c.ffn) * c.layers.max(2)) as f64).sqrt()
}

/// A model of this kind that `case` can shard.
pub(crate) fn model(kind: Model, case: &Case, draw: &mut Draw) -> ModelConfig {
    let (tp, cp) = (case.sizes.tp, case.sizes.cp);
    let u = case.context.ulysses(case.sizes.cp);
    let head_dim = draw.of(&[4, 4, 6, 8]);
    // A third has key/value heads that do not divide among the ranks, while their rows do.
    let few: Vec<usize> =
        (1..2 * tp).filter(|g| !g.is_multiple_of(tp) && (g * head_dim).is_multiple_of(tp)).collect();
    let groups = if few.is_empty() || draw.below(3) > 0 { tp * draw.of(&[1, 2]) } else { draw.of(&few) };
    let mut heads = groups * draw.of(&[1, 2]);
    while !heads.is_multiple_of(tp) || !(heads / tp).is_multiple_of(u) {
        heads += groups;
    }
    let chunks = case.stages.pp
        * match (case.stages.layers_per_chunk.is_some(), case.stages.dual_pipe) {
            (true, _) => draw.of(&[2, 2, 3]),
            (false, true) => 2,
            (false, false) => 1,
        };
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
    let router = Router::plain(Score::SoftmaxOfChosen);
    // More experts than an even share needs, so that some get no token.
    let experts = match kind {
        Model::Experts | Model::Latent => draw.of(&[3, 4, 4, 5]) * case.sizes.ep,
        _ => 0,
    };
    let ffn = 4 * tp * case.sizes.etp.filter(|n| !tp.is_multiple_of(*n)).unwrap_or(1);
    let moe = |top_k| Moe { experts, top_k, ffn, router, shared: None, zero_experts: 0 };
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
                let limit = GroupLimit { groups: 4, keep: 2, by: GroupScore::Best(1) };
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
            let gate = draw.coin();
            experts.shared = Some(SharedExpert { ffn: 4 * tp, gate, wide_gate: gate && draw.coin() });
            let q_rank = draw.of(&[None, Some(8)]);
            ModelConfig {
                groups: heads,
                head_dim: 6,
                attention: Attention::Latent(Mla { q_rank, normed: draw.below(4) > 0, ..NARROW }),
                moe: Some(experts),
                tied: draw.below(3) == 0,
                pattern: all(Feed::Moe),
                mtp: draw.of(&[1, 1, 2]),
                ..base
            }
        }
        Model::Hybrid => {
            let states = draw.below(3) == 0;
            // Several groups or key heads on a rank, and sizes of a head's two sides that are not alike.
            let groups = tp * cp * draw.of(&[1, 1, 2]);
            let (one, other) = (draw.of(&[4, 6]), draw.of(&[4, 6]));
            let more = draw.of(&[1, 2]);
            let (mixer, gated_delta, mamba2) = if states {
                let heads = more * groups;
                let shape = Mamba2 { heads, head_dim: one, groups, state: other, ..MAMBA2 };
                (Mixer::Mamba2, None, Some(shape))
            } else {
                let (key_heads, value_heads) = (groups, more * groups);
                let shape = GatedDelta { key_heads, value_heads, key_dim: one, value_dim: other, conv: 3 };
                (Mixer::GatedDelta, Some(shape), None)
            };
            let pattern = |l: usize| Layer {
                mixer: if l.is_multiple_of(2) { mixer } else { Mixer::Attention },
                ..Layer::default()
            };
            // Where a query is nearly perpendicular to the keys before it a head's output is nearly zero, and its norm divides
            // by it: with the usual 1e-6 one such token takes two digits of a whole gradient.
            let norm_eps = 1e-4;
            let pattern = (0..layers).map(pattern).collect();
            ModelConfig { gated_delta, mamba2, norm_eps, pattern, ..base }
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
            attention: Attention::Latent(Mla { q_rank: draw.of(&[None, Some(8)]), ..NARROW }),
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
                head_dim: 4,
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

/// The model with parts that few models have: positions by distance, layers that borrow keys and values of the one before,
/// experts without weights, of which a token may choose any number, and prediction modules as MindSpeed-LLM 2.0.0 trains them.
pub(super) fn rarer(kind: Model, c: ModelConfig, routing: &Routing, draw: &mut Draw) -> ModelConfig {
    let by_distance = matches!(kind, Model::Dense | Model::Experts | Model::Sinks) && draw.below(4) == 0;
    let position = if by_distance { Position::Alibi } else { c.position };
    let borrows = kind == Model::Dense && draw.below(3) == 0;
    let pattern = if borrows {
        (0..c.layers)
            .map(|l| Layer {
                mixer: if l % 3 == 0 { Mixer::Attention } else { Mixer::SharedKv },
                ..Layer::default()
            })
            .collect()
    } else {
        c.pattern
    };
    let router = c.moe.as_ref().map(|m| m.router);
    // Groups, and choices in turn or by balance, are of experts with weights.
    let free = router.is_some_and(|r| r.groups.is_none()) && !routing.fixed && !routing.sinkhorn;
    let zero_experts = if free { draw.of(&[0, 0, 1, 3]) } else { 0 };
    let mtp_hidden_first = c.mtp > 0 && draw.below(3) == 0;
    ModelConfig {
        position,
        pattern,
        moe: c.moe.map(|moe| Moe { zero_experts, ..moe }),
        mtp_hidden_first,
        ..c
    }
}
