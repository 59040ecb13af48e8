//! Every family on sharded topologies: gradients of all parameters, losses and norms as on one rank.

use crate::parity::samples::{MAMBA2, samples};
use crate::parity::{Case, run};
use ms_core::ops::Auxiliary;
use ms_core::{RingCache, RingCachePolicy};
use ms_data::MicroBatch;
use ms_dist::{ContextParallel, TokenMapping};
use ms_nn::{Recompute, SavePolicy, Swapped};
use ms_spec::{Feed, GatedDelta, Layer, Mamba2, Mamba3, Mixer, ModelConfig, Norm, QkNorm};
use ms_trainer::Routing;
use ms_trainer::parity::{Bounds, Found, Shape, batches, compare};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

/// Whether a model can be cut so: a refusal names a reason in the rules of its parts.
fn fits(c: &ModelConfig, case: &Case) -> bool {
    let etp = case.sizes.etp.unwrap_or(case.sizes.tp);
    ms_spec::check_cut(c, case.sizes.tp).is_ok()
        && ms_spec::check_expert_cut(c, case.sizes.ep, etp).is_ok()
        && ms_spec::check_context(c, case.sizes.tp, case.sizes.cp, case.context.sees_whole_documents())
            .is_ok()
        && ms_spec::Placement::new(c, &case.stages).is_ok()
        && std::iter::once(c.heads).chain(c.windowed.as_ref().map(|w| w.heads)).all(|heads| {
            case.sizes.cp == 1 || case.context.check(heads / case.sizes.tp, case.sizes.cp, 48).is_ok()
        })
}

/// What one rank found.
type Alone = OnceLock<Result<Found, String>>;

/// What one rank computes for a sample, the reference for every topology.
fn alone(
    name: &str,
    c: &ModelConfig,
    case: &Case,
    routing: Routing,
    steps: &[Vec<MicroBatch>],
) -> Arc<Alone> {
    static KNOWN: Mutex<BTreeMap<String, Arc<Alone>>> = Mutex::new(BTreeMap::new());
    let case = case.alone();
    let known =
        KNOWN.lock().unwrap().entry(format!("{name} {case:?} {}", steps[0].len())).or_default().clone();
    known.get_or_init(|| run(c, &case, routing, steps).map_err(|e| e.to_string()));
    known
}

/// Runs every sample model on the case. `fitting` says which can be cut so: those and no others must be.
fn on_all(what: &str, case: &Case, fitting: impl Fn(&str) -> bool) {
    let (mut ran, mut wrong) = (0, Vec::new());
    for (name, mut c) in samples() {
        let mut case = case.clone();
        let stages = case.sizes.pp;
        if stages > 1 && !c.layers.is_multiple_of(stages) {
            // The last stages have a layer less.
            let slots = |stage| (c.layers + stages - 1 - stage) / stages;
            case.stages.layer_list = Some((0..stages).map(slots).collect());
        }
        let case = &case;
        // Wide enough that the gradients of all parts count, and not so wide that a state along the sequence explodes.
        let recurrent = [Mixer::Mamba2, Mixer::Mamba3, Mixer::GatedDelta].into_iter().any(|m| c.has(m));
        c.init_std = if recurrent { 0.05 } else { 0.2 };
        let fits = fits(&c, case);
        if fits != fitting(ms_testing::form_of(&name)) {
            wrong.push(format!("{name}: {}", if fits { "is not refused" } else { "is refused" }));
        }
        if !fits {
            continue;
        }
        ran += 1;
        let auxiliary = Auxiliary { experts: 0.02, devices: 0.01, communication: 0.01, z: 1e-3 };
        let routing = Routing { auxiliary, bias_update_rate: 1e-3, ..Routing::default() };
        // Every rank adds up gradients of two micro-batches; of a pipeline, of four.
        let sizes = &case.sizes;
        let micro = if stages > 1 { 4 } else { 2 * case.world / (sizes.tp * sizes.cp) };
        let steps = batches(&c, Shape { rows: 2, length: 16, micro, packed: true }, 2);
        let bounds = Bounds::of(case.dtype);
        let known = alone(&name, &c, case, routing, &steps);
        let compared = |want: &Found| {
            let got = run(&c, case, routing, &steps);
            got.and_then(|got| compare(want, &got, bounds)).map_err(|e| e.to_string())
        };
        if let Err(e) = known.get().expect("it has run").as_ref().map_err(Clone::clone).and_then(compared) {
            wrong.push(format!("{name}: {e}"));
        }
    }
    assert!(wrong.is_empty(), "{what}: {ran} models ran:\n{}", wrong.join("\n"));
}

/// Six heads.
const SIX_HEADS: [&str; 3] = ["baichuan2_13b", "baichuan2_7b", "baichuan_13b"];

/// Attention that picks its keys among all.
const PICKING: [&str; 3] = ["deepseek_v32", "deepseek_v4", "glm_moe_dsa"];

/// The samples of them.
fn picking() -> Vec<(String, ModelConfig)> {
    samples().into_iter().filter(|(name, _)| PICKING.contains(&ms_testing::form_of(name))).collect()
}

const WITH_EXPERTS: [&str; 25] = [
    "deepseek_v2",
    "deepseek_v2_lite",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "glm45_air",
    "glm_moe_dsa",
    "gpt4_moe",
    "gpt_oss",
    "grok",
    "hunyuan_large",
    "hunyuan_v1_moe",
    "hy_v3",
    "kimi_k2",
    "ling_v2",
    "longcat_flash",
    "minicpm_moe",
    "minimax_m2",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_next",
    "step3p5",
];

#[test]
fn tensor_parallel() {
    on_all("tp 2", &Case::of(2, 2, 1, 1, 1), |_| true);
}

#[test]
fn tensor_and_sequence_parallel() {
    on_all("tp 2 with sequence parallelism", &Case::of(2, 2, 1, 1, 1).sequence_parallel(), |_| true);
}

#[test]
fn fewer_key_heads_than_ranks() {
    // Two groups of outputs, of state-space heads, of heads of a delta net; six heads of windowed layers.
    let two = ["deepseek_v4", "hybrid", "mamba2", "qwen3_next", "step3p5"];
    let fitting = |name: &str| !SIX_HEADS.contains(&name) && !two.contains(&name);
    on_all("tp 4", &Case::of(4, 4, 1, 1, 1).sequence_parallel(), fitting);
    let case = Case::of(4, 2, 2, 1, 1).context(ContextParallel::Ulysses);
    // Three heads on a rank, of all layers or of windowed ones.
    let fitting = |name: &str| !SIX_HEADS.contains(&name) && name != "step3p5";
    on_all("tp 2 and cp 2, Ulysses", &case, fitting);
}

#[test]
fn pipeline_parallel() {
    on_all("pp 2", &Case::of(2, 1, 1, 2, 1), |_| true);
}

#[test]
fn expert_parallel() {
    on_all("ep 2", &Case::of(2, 1, 1, 1, 2), |name| WITH_EXPERTS.contains(&name));
}

#[test]
fn experts_whole_on_tensor_parallel_ranks() {
    let case = Case::of(2, 2, 1, 1, 1).experts(2, 1).sequence_parallel();
    on_all("tp 2, ep 2, expert tp 1", &case, |name| WITH_EXPERTS.contains(&name));
}

#[test]
fn context_parallel_ring() {
    let case = Case::of(2, 1, 2, 1, 1).context(ContextParallel::Ring { window: 1 });
    on_all("cp 2, ring", &case, |name| !PICKING.contains(&name));
}

#[test]
fn context_parallel_ulysses() {
    let case = Case::of(2, 1, 2, 1, 1).context(ContextParallel::Ulysses);
    on_all("cp 2, Ulysses", &case, |_| true);
}

#[test]
fn context_parallel_gathered() {
    on_all("cp 2, gathered", &Case::of(2, 1, 2, 1, 1), |_| true);
}

/// Cases of context parallelism for attention that picks or pools its keys.
fn gathered_cases() -> Vec<(&'static str, Case)> {
    let pp = |world, tp, cp| Case { recompute: Recompute::Uniform(1), ..Case::of(world, tp, cp, 2, 1) };
    let full = RingCache { policy: RingCachePolicy::KeysAndValues, interval: 1 };
    let again = SavePolicy { recompute_core_attention: true, recompute_norms: 2, ..SavePolicy::default() };
    vec![
        ("cp 3", Case::of(3, 1, 3, 1, 1)),
        ("cp 4, dp 2", Case::of(8, 1, 4, 1, 1)),
        ("tp 2, cp 2", Case::of(4, 2, 2, 1, 1)),
        ("tp 2, cp 2, sequence parallel", Case::of(4, 2, 2, 1, 1).sequence_parallel()),
        ("tp 2, cp 3, experts whole", Case::of(6, 2, 3, 1, 1).experts(2, 1).sequence_parallel()),
        ("pp 2, cp 2", Case::of(4, 1, 2, 2, 1)),
        ("pp 2, tp 2, cp 2, layers run again", pp(8, 2, 2).sequence_parallel()),
        (
            "ep 2, cp 2, a layer runs again",
            Case { recompute: Recompute::Block(1), ..Case::of(2, 1, 2, 1, 2) },
        ),
        ("cp 2, what is gathered is kept", Case { ring_cache: full, ..Case::of(2, 1, 2, 1, 1) }),
        ("cp 2, attention runs again", Case { save_policy: again, ..Case::of(2, 1, 2, 1, 1) }),
        (
            "cp 3, swapped",
            Case {
                save_policy: SavePolicy { swapped: Swapped::ATTENTION, ..again },
                ..Case::of(3, 1, 3, 1, 1)
            },
        ),
        ("cp 2, dropout", Case { dropout: 0.1, ..Case::of(2, 1, 2, 1, 1) }),
    ]
}

#[test]
fn keys_that_are_picked_or_pooled_are_those_of_one_rank() {
    let shape = Shape { rows: 2, length: 24, micro: 4, packed: true };
    let mut wrong = Vec::new();
    for (name, mut c) in picking() {
        c.init_std = 0.2;
        let by_heads = |(what, case): (&'static str, Case)| (what, case.context(ContextParallel::Ulysses));
        let by_heads = gathered_cases().into_iter().map(by_heads).filter(|(_, case)| fits(&c, case));
        let cases: Vec<_> = gathered_cases().into_iter().chain(by_heads).collect();
        assert!(cases.len() >= gathered_cases().len() + 6, "{name}: heads for tokens");
        // What one rank computes, the reference for several topologies.
        let mut known = BTreeMap::new();
        for (what, mut case) in cases {
            if case.sizes.pp > 1 && !c.layers.is_multiple_of(2) {
                case.stages.layer_list = Some(vec![c.layers.div_ceil(2), c.layers / 2]);
            }
            // What borrowed picks would lose is refused.
            if c.pattern.iter().any(|layer| layer.borrows_index) {
                case.recompute = Recompute::None;
            }
            let packed = what != "cp 4, dp 2" && what != "tp 2, cp 2";
            let steps = batches(&c, Shape { packed, ..shape }, 2);
            let run = |case: &Case| run(&c, case, Routing::default(), &steps);
            let alone = case.alone();
            let want = known.entry(format!("{alone:?} {packed}")).or_insert_with(|| run(&alone));
            let outcome = match want {
                Ok(want) => run(&case).and_then(|got| compare(want, &got, Bounds::of(case.dtype))),
                Err(e) => panic!("{name}, {what}, one rank: {e}"),
            };
            if let Err(e) = outcome {
                wrong.push(format!("{name}, {what}, {:?}: {e}", case.context));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn picked_and_pooled_keys_are_refused_where_ranks_see_parts_of_documents() {
    for (name, c) in picking() {
        for context in [
            ContextParallel::Ring { window: 1 },
            ContextParallel::Adaptive { ulysses: 1, remap: TokenMapping::InOrder },
        ] {
            let steps = batches(&c, Shape { rows: 1, length: 16, micro: 1, packed: false }, 1);
            let case = Case::of(2, 1, 2, 1, 1).context(context);
            let said = run(&c, &case, Routing::default(), &steps).unwrap_err().to_string();
            assert!(said.contains("kvallgather_cp_algo"), "{name}: {said}");
        }
    }
}

/// A layer of a mixer with a state along the sequence, and one of attention.
fn hybrid(mixer: Mixer, feed: Feed) -> ModelConfig {
    let layer = |mixer, feed| Layer { mixer, feed, ..Layer::default() };
    ModelConfig {
        layers: 2,
        hidden: 16,
        ffn: 24,
        heads: 6,
        groups: 6,
        head_dim: 4,
        vocab: 32,
        padded_vocab: 32,
        max_positions: 64,
        init_std: 0.1,
        pattern: vec![layer(mixer, feed), layer(Mixer::Attention, Feed::Dense)],
        ..ModelConfig::default()
    }
}

fn state_space(heads: usize, groups: usize) -> ModelConfig {
    let mixer = Mamba2 { heads, head_dim: 4, groups, state: 3, ..MAMBA2 };
    ModelConfig { mamba2: Some(mixer), ..hybrid(Mixer::Mamba2, Feed::None) }
}

fn mamba3(heads: usize, ranks: Option<usize>) -> ModelConfig {
    let mixer =
        Mamba3 { heads, head_dim: 4, state: 4, ranks, angles: 2, rate_floor: 1e-4, dt_init: (0.001, 0.1) };
    ModelConfig { mamba3: Some(mixer), ..hybrid(Mixer::Mamba3, Feed::None) }
}

fn delta_net(value_heads: usize, key_heads: usize) -> ModelConfig {
    let mixer = GatedDelta { key_heads, value_heads, key_dim: 4, value_dim: 3, conv: 3 };
    ModelConfig { gated_delta: Some(mixer), ..hybrid(Mixer::GatedDelta, Feed::Dense) }
}

#[test]
fn heads_that_share_keys_go_to_more_context_parallel_ranks_than_there_are_groups() {
    let ring = |world, tp, cp| Case::of(world, tp, cp, 1, 1).context(ContextParallel::Ring { window: 1 });
    for (what, c, case) in [
        ("a group on two ranks", state_space(4, 1), ring(2, 1, 2)),
        ("a group on three ranks", state_space(6, 1), ring(3, 1, 3)),
        ("a copy for every head", state_space(6, 3), ring(2, 1, 2)),
        ("groups over both axes", state_space(8, 2), ring(4, 2, 2)),
        ("a key head on two ranks", delta_net(4, 1), ring(2, 1, 2)),
        ("a key for every value head", delta_net(6, 3), ring(2, 1, 2)),
        ("keys of all heads", mamba3(4, None), ring(2, 1, 2)),
        ("keys of all heads over both axes", mamba3(4, Some(2)), ring(4, 2, 2)),
    ] {
        as_on_one_rank(what, &c, &case);
    }
}

/// Two steps of a model that fits the case.
fn as_on_one_rank(what: &str, c: &ModelConfig, case: &Case) {
    assert!(fits(c, case), "{what}");
    let steps = batches(c, Shape { rows: 2, length: 24, micro: 2, packed: true }, 2);
    let run = |case: &Case| run(c, case, Routing::default(), &steps);
    let outcome = run(&case.alone())
        .and_then(|want| run(case).and_then(|got| compare(&want, &got, Bounds::of(case.dtype))));
    outcome.unwrap_or_else(|e| panic!("{what}: {e}"));
}

#[test]
fn heads_that_share_all_keys_are_cut() {
    for ranks in [None, Some(3)] {
        let c = mamba3(6, ranks);
        as_on_one_rank("tp 2", &c, &Case::of(2, 2, 1, 1, 1));
        as_on_one_rank("tp 2 with sequence parallelism", &c, &Case::of(2, 2, 1, 1, 1).sequence_parallel());
    }
}

#[test]
fn norms_over_whole_projections_join_the_statistics_of_ranks() {
    for norm in [Norm::Rms, Norm::RmsUnitOffset, Norm::LayerNorm] {
        let c = ModelConfig {
            heads: 4,
            groups: 2,
            head_dim: 4,
            init_std: 0.2,
            norm,
            qk_norm: QkNorm::WholeProjection,
            pattern: Vec::new(),
            ..hybrid(Mixer::Attention, Feed::Dense)
        };
        // Half the heads, and one head with a copy of the key that it shares.
        as_on_one_rank(&format!("{norm:?}, tp 2"), &c, &Case::of(2, 2, 1, 1, 1));
        as_on_one_rank(&format!("{norm:?}, tp 4"), &c, &Case::of(4, 4, 1, 1, 1).sequence_parallel());
        // On the kernels the unrounded statistics are those of a whole row, too.
        as_on_one_rank(&format!("{norm:?}, f32"), &c, &Case::of(2, 2, 1, 1, 1).single_precision());
    }
}
