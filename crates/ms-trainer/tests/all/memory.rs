//! Saved activations: recomputation and swapping change no bit and take the planned bytes.

use crate::parity::samples::{dense, experts, latent, picked, pooled};
use crate::parity::{Case, Fault, Wrong, rehearsed, run, run_with, same};
use ms_core::{DType, Dispatcher, OptimizerSharding, RankGroup, RingCache, RingCachePolicy};
use ms_dist::{ContextParallel, TokenMapping};
use ms_nn::{IndexerObjective, Recompute, SavePolicy, Swapped};
use ms_spec::{Activations, Attention, Block, Item, Layer, ModelConfig, Placement, RouterDtype, Stages};
use ms_trainer::parity::{Found, Shape, batches};
use ms_trainer::{
    IndexerTraining, LossScale, OptimizerForm, PipelineOrder, RecomputeTiming, Routing, Stored,
};

const ROWS: usize = 2;
const LENGTH: usize = 32;
const ALL: usize = usize::MAX;

fn dense_of_few_keys() -> ModelConfig {
    ModelConfig { groups: 1, ..dense() }
}

/// Latent attention as Megatron has it without `--qk-layernorm`.
fn latents_without_norms() -> ModelConfig {
    let mut c = latent();
    if let Attention::Latent(mla) = &mut c.attention {
        mla.normed = false;
    }
    c
}

/// A loss of indexers that looks at all keys.
fn all_keys() -> IndexerTraining {
    IndexerTraining { objective: IndexerObjective::Megatron { sparse: false }, coeff: 0.1 }
}

/// What layers may keep less of, one by one and together.
fn ways() -> Vec<(&'static str, SavePolicy)> {
    let none = SavePolicy::default();
    vec![
        ("core attention", SavePolicy { recompute_core_attention: true, ..none }),
        ("activations", SavePolicy { recompute_activations: ALL, ..none }),
        ("activations of two layers", SavePolicy { recompute_activations: 2, ..none }),
        ("norms", SavePolicy { recompute_norms: ALL, ..none }),
        ("activations and norms", SavePolicy { recompute_activations: ALL, recompute_norms: ALL, ..none }),
        ("rows of experts", SavePolicy { recompute_experts: true, ..none }),
        (
            "rows of experts and, in one layer, inside",
            SavePolicy { recompute_experts: true, recompute_expert_inner: 1, ..none },
        ),
        (
            "rows and insides of experts",
            SavePolicy { recompute_experts: true, recompute_expert_inner: ALL, recompute_norms: 2, ..none },
        ),
        ("swap", SavePolicy { swapped: Swapped::ATTENTION, ..none }),
        ("swap and networks", SavePolicy { swapped: Swapped::ATTENTION, recompute_networks: 2, ..none }),
        (
            "all",
            SavePolicy {
                recompute_core_attention: true,
                recompute_activations: ALL,
                recompute_norms: 3,
                swapped: Swapped::ATTENTION,
                recompute_networks: 1,
                ..none
            },
        ),
    ]
}

/// Memory-saving options of a model's MLPs.
fn ways_of_networks(c: &ModelConfig) -> Vec<(&'static str, SavePolicy)> {
    let none = SavePolicy::default();
    match c.moe {
        None => vec![("dense networks", SavePolicy { recompute_dense_networks: true, ..none })],
        Some(_) => vec![
            ("activations of experts", SavePolicy { recompute_expert_activations: true, ..none }),
            ("experts", SavePolicy { recompute_expert_networks: true, ..none }),
        ],
    }
}

/// Two steps of as many micro-batches as there are stages: while one stage works on its first, no other is done with the
/// last.
fn found(c: &ModelConfig, case: &Case) -> Found {
    found_of(c, case, case.sizes.pp)
}

/// Two steps of this many micro-batches per rank.
fn found_of(c: &ModelConfig, case: &Case, each: usize) -> Found {
    let micro = each * case.world / (case.sizes.tp * case.sizes.cp * case.sizes.pp);
    let shape = Shape { rows: ROWS, length: LENGTH, micro, packed: true };
    run(c, case, Routing::default(), &batches(c, shape, 2)).unwrap()
}

/// What the plan says that a pass of the first stage keeps, and sends away.
fn planned(c: &ModelConfig, case: &Case, recompute: Recompute, save_policy: SavePolicy) -> (usize, usize) {
    let activations = Activations {
        tokens: ROWS * LENGTH / case.sizes.cp,
        row: LENGTH / case.sizes.cp,
        element_bytes: case.dtype.size(),
        tp: case.sizes.tp,
        sequence_parallel: case.sequence_parallel,
        etp: case.sizes.etp.unwrap_or(case.sizes.tp),
        ep: case.sizes.ep,
        dispatcher: case.dispatcher,
        ulysses_and_ring: (case.sizes.ulysses, case.sizes.cp / case.sizes.ulysses),
        ring_cache: case.ring_cache,
        trains_indexer: case.indexer.is_some(),
        recompute,
        save_policy,
    };
    let placement = Placement::new(c, &case.stages).unwrap();
    let pass = activations.of_items(c, &placement.stage(0)[0], (0, 1));
    let live = case.sizes.pp;
    (live * pass.kept, live * pass.sent)
}

#[test]
fn layers_that_keep_less_give_the_same_bits_and_keep_what_the_plan_says() {
    let sent = |dispatcher, case: Case| Case { dispatcher, ..case };
    let grids = [
        ("one rank", Case::single()),
        ("tp", Case::of(2, 2, 1, 1, 1)),
        ("tp and sp", Case::of(2, 2, 1, 1, 1).sequence_parallel()),
        ("pp", Case::of(2, 1, 1, 2, 1)),
        ("tp, tokens sent", sent(Dispatcher::AllToAll, Case::of(2, 2, 1, 1, 1).sequence_parallel())),
        ("tp, columns sent", sent(Dispatcher::AllToAllSeq, Case::of(2, 2, 1, 1, 1).sequence_parallel())),
    ];
    let mut worst: (f64, String) = (0.0, String::new());
    let block = |block| ModelConfig { block, ..dense() };
    let mut scores = experts();
    scores.moe.as_mut().unwrap().router.dtype = RouterDtype::F64;
    for (model, c) in [
        ("dense", dense()),
        ("experts", experts()),
        ("scores in f64", scores),
        ("latent", latent()),
        ("latents without norms", latents_without_norms()),
        ("sandwich", block(Block::Sandwich)),
        ("norms behind", block(Block::Post)),
    ] {
        let usual = |case: &Case| case.dispatcher == Dispatcher::AllGather;
        let there = |grid: &str, case: &Case| match model {
            "scores in f64" => matches!(grid, "one rank" | "tp, tokens sent"),
            "latents without norms" => matches!(grid, "one rank" | "tp and sp"),
            _ => c.moe.is_some() || usual(case),
        };
        for (grid, case) in grids.iter().filter(|(grid, case)| there(grid, case)) {
            for dtype in [DType::F32, DType::Bf16] {
                let case = Case { dtype, ..case.clone() };
                let plain = found(&c, &case);
                let mut check = |what: &str, found: &Found, recompute, save_policy: SavePolicy| {
                    let what = format!("{what}: {model}, {grid}, {dtype}");
                    let (kept, sent) = planned(&c, &case, recompute, save_policy);
                    for (planned, measured) in
                        [(kept, found.bytes[0].kept), (sent, found.bytes[0].host as usize)]
                    {
                        let apart = (planned as f64 / (measured as f64).max(1.0) - 1.0).abs();
                        let apart = if planned == measured { 0.0 } else { apart };
                        println!("{what}: planned {planned}, measured {measured}");
                        if apart > worst.0 {
                            worst = (apart, format!("{what}: planned {planned}, measured {measured}"));
                        }
                    }
                };
                check("plain", &plain, Recompute::None, SavePolicy::default());
                for recompute in [Recompute::Block(1), Recompute::Uniform(2)] {
                    let again = found(&c, &Case { recompute, ..case.clone() });
                    check(&format!("{recompute:?}"), &again, recompute, SavePolicy::default());
                }
                let ways = ways().into_iter().filter(|w| c.moe.is_some() || !w.1.recompute_experts);
                for (way, save_policy) in ways.chain(ways_of_networks(&c)) {
                    let less = found(&c, &Case { save_policy, ..case.clone() });
                    same(&format!("{way}: {model}, {grid}, {dtype}"), &plain, &less);
                    let (a, b) = (plain.bytes[0], less.bytes[0]);
                    // Where no norm is before a sublayer there is nothing to recompute.
                    if way == "norms" && c.block == Block::Post {
                        continue;
                    }
                    assert!(b.kept < a.kept, "{way}: {model}, {grid}: keeps {} of {}", b.kept, a.kept);
                    assert!(b.peak <= a.peak, "{way}: {model}, {grid}: peak {} of {}", b.peak, a.peak);
                    check(way, &less, Recompute::None, save_policy);
                }
            }
        }
    }
    println!("farthest from the plan: {:.2} %: {}", 100.0 * worst.0, worst.1);
    assert!(worst.0 < 0.02, "{:.2} % from the plan: {}", 100.0 * worst.0, worst.1);
}

#[test]
fn ranks_that_share_sequences_or_experts_keep_less_with_the_same_bits() {
    let (dense, experts) = (dense(), experts());
    let cases = [
        (&dense, Case::of(2, 1, 2, 1, 1).context(ContextParallel::Ring { window: 1 })),
        (&dense, Case::of(2, 1, 2, 1, 1).context(ContextParallel::Ulysses)),
        (&dense, Case::of(4, 2, 2, 1, 1).sequence_parallel()),
        (&experts, Case::of(2, 1, 1, 1, 2)),
        (&experts, Case::of(4, 2, 1, 1, 2).sequence_parallel()),
        (&experts, Case::of(4, 2, 1, 1, 1).experts(2, 1)),
        (&experts, Case { dispatcher: Dispatcher::AllToAll, ..Case::of(4, 2, 1, 1, 2).sequence_parallel() }),
        (
            &experts,
            Case { dispatcher: Dispatcher::AllToAllSeq, ..Case::of(4, 2, 1, 1, 2).sequence_parallel() },
        ),
        (&experts, Case { dispatcher: Dispatcher::AllToAllSeq, ..Case::of(4, 2, 1, 1, 2) }),
        (&dense, Case { order: PipelineOrder::ZeroBubble { group: None }, ..Case::of(2, 1, 1, 2, 1) }),
    ];
    for (c, case) in cases {
        let case = Case { dropout: 0.1, ..case.single_precision() };
        let plain = found(c, &case);
        let ways = ways().into_iter().filter(|w| c.moe.is_some() || !w.1.recompute_experts);
        for (way, save_policy) in ways.chain(ways_of_networks(c)) {
            let less = found(c, &Case { save_policy, ..case.clone() });
            same(&format!("{way}: {case:?}"), &plain, &less);
            assert!(less.bytes[0].kept < plain.bytes[0].kept, "{way}: {case:?}");
        }
    }
}

/// How far `planned` is from `taken`, as a share of it.
fn apart(planned: u64, taken: u64) -> f64 {
    if planned == taken { 0.0 } else { (planned as f64 / taken.max(1) as f64 - 1.0).abs() }
}

/// Where three steps take other bytes than their rehearsal, by more than 2 % on any rank, or send others.
pub(crate) fn far_from_plan(
    what: &str,
    c: &ModelConfig,
    case: &Case,
    (routing, shape): (Routing, Shape),
) -> Vec<String> {
    let found = run(c, case, routing, &batches(c, shape, 3)).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut wrong = Vec::new();
    for (rank, planned) in rehearsed(c, case, routing, shape).unwrap().iter().enumerate() {
        let (bytes, sent) = (found.bytes[rank], &found.step_sent[rank]);
        for (name, planned, taken) in [
            ("peak", planned.peak_bytes, bytes.peak_asked),
            ("peak in blocks", planned.peak_block_bytes, bytes.peak),
            ("largest", planned.largest_bytes, bytes.largest),
            ("kept", planned.kept_bytes, bytes.kept),
            ("with the host", planned.host_bytes as usize, bytes.host as usize),
        ] {
            let said = format!("{what}, rank {rank}: {name}: planned {planned}, taken {taken}");
            println!("{said}");
            if apart(planned as u64, taken as u64) > 0.02 {
                wrong.push(said);
            }
        }
        if planned.sent != *sent {
            wrong.push(format!("{what}, rank {rank}: planned {:?}, sent {sent:?}", planned.sent));
        }
    }
    wrong
}

#[test]
fn a_rehearsal_without_values_takes_what_the_run_takes_and_sends_the_same() {
    let (dense, experts, latent, picked, pooled) = (dense(), experts(), latent(), picked(), pooled());
    // Layers narrow and few: what passes borders and rings is a large part of the whole.
    let few_keys = dense_of_few_keys();
    let chunks = |each| Stages { pp: 2, layers_per_chunk: Some(each), ..Stages::default() };
    let both_ends = Stages { pp: 2, dual_pipe: true, ..Stages::default() };
    let ring = ContextParallel::Ring { window: 1 };
    let pp = |order| Case { order, ..Case::of(2, 1, 1, 2, 1) };
    let one = Case::single();
    let full = RingCache { policy: RingCachePolicy::KeysAndValues, interval: 1 };
    let again = SavePolicy { recompute_core_attention: true, ..SavePolicy::default() };
    let reuse = OptimizerForm { reuse: true, ..OptimizerForm::default() };
    let swapped = OptimizerForm { swapped: Some(3), ..OptimizerForm::default() };
    let chunked = |each, order| Case { stages: chunks(each), ..pp(order) };
    // So many micro-batches at a time that more are under way than the pipeline has chunks.
    let grouped = PipelineOrder::Plain { group: Some(4), forwards_first: true };
    let in_advance =
        Case { recompute_timing: RecomputeTiming::InAdvance, ..chunked(1, PipelineOrder::default()) };
    let spared = SavePolicy { spare_last: true, ..SavePolicy::default() };
    let rounded = OptimizerForm { rounded_moments: true, ..OptimizerForm::default() };
    let all_rounded = OptimizerForm { reuse: true, ..rounded };
    let narrow =
        OptimizerForm { stored: Some([Stored::F16, Stored::F8, Stored::F16]), ..OptimizerForm::default() };
    let pairs = Case { dtype: DType::Bf16, ..Case::of(2, 1, 1, 1, 1) };
    let dynamic = LossScale::Dynamic { initial: 65536.0, min: 1.0, window: 1000, hysteresis: 1 };
    let remap = TokenMapping::InOrder;
    let adaptive = |case: Case, ulysses| case.context(ContextParallel::Adaptive { ulysses, remap });
    let to_all = |case| Case { overlap_passes: true, dispatcher: Dispatcher::AllToAll, ..case };
    let mut cases: Vec<(&str, &ModelConfig, Case)> = vec![
        ("one rank", &dense, one.clone()),
        ("experts", &experts, one.clone()),
        ("latent", &latent, one.clone()),
        ("data parallel", &dense, Case::of(2, 1, 1, 1, 1)),
        ("buckets", &dense, Case { bucket_size: Some(3000), overlap: true, ..Case::of(2, 1, 1, 1, 1) }),
        ("weights on their way", &dense, Case { overlap_gather: true, ..Case::of(2, 1, 1, 1, 1) }),
        ("tp", &dense, Case::of(2, 2, 1, 1, 1)),
        ("sp", &latent, Case::of(2, 2, 1, 1, 1).sequence_parallel()),
        ("ring", &dense, Case::of(4, 1, 4, 1, 1).context(ContextParallel::Ring { window: 2 })),
        ("ulysses", &dense, Case::of(2, 1, 2, 1, 1).context(ContextParallel::Ulysses)),
        (
            "hybrid",
            &dense,
            Case::of(4, 1, 4, 1, 1).context(ContextParallel::Hybrid { ulysses: 2, window: 1 }),
        ),
        ("gather", &dense, Case::of(2, 1, 2, 1, 1)),
        ("picked keys", &picked, Case::of(2, 1, 2, 1, 1)),
        ("picked keys", &picked, Case::of(4, 2, 2, 1, 1).sequence_parallel()),
        ("picked keys, by heads", &picked, Case::of(2, 1, 2, 1, 1).context(ContextParallel::Ulysses)),
        (
            "picked keys, by heads, attention again",
            &picked,
            Case { save_policy: again, ..Case::of(2, 1, 2, 1, 1).context(ContextParallel::Ulysses) },
        ),
        ("pooled entries, by heads", &pooled, Case::of(2, 1, 2, 1, 1).context(ContextParallel::Ulysses)),
        ("picked keys, kept", &picked, Case { ring_cache: full, ..Case::of(4, 1, 4, 1, 1) }),
        ("picked keys, attention again", &picked, Case { save_policy: again, ..Case::of(2, 1, 2, 1, 1) }),
        ("pooled entries", &pooled, Case::of(2, 1, 2, 1, 1)),
        ("pooled entries", &pooled, Case::of(4, 2, 2, 1, 1).sequence_parallel()),
        ("pooled entries, kept", &pooled, Case { ring_cache: full, ..Case::of(4, 1, 4, 1, 1) }),
        ("pooled entries", &pooled, Case { recompute: Recompute::Uniform(2), ..Case::of(2, 1, 2, 1, 1) }),
        ("pp", &dense, pp(PipelineOrder::default())),
        ("head later", &dense, Case { defer_embedding_wgrad: Some(3), ..pp(PipelineOrder::default()) }),
        ("stages wait", &dense, Case { waits_at_borders: true, ..pp(PipelineOrder::default()) }),
        (
            "chunks wait",
            &dense,
            Case { waits_at_borders: true, stages: chunks(1), ..Case::of(2, 1, 1, 2, 1) },
        ),
        ("zero bubble", &experts, pp(PipelineOrder::ZeroBubble { group: None })),
        (
            "zero bubble, chunks",
            &dense,
            Case { stages: chunks(1), ..pp(PipelineOrder::ZeroBubble { group: None }) },
        ),
        ("chunks", &dense, Case { stages: chunks(1), ..Case::of(2, 1, 1, 2, 1) }),
        ("both ends", &dense, Case { stages: both_ends.clone(), ..pp(PipelineOrder::DualPipeV) }),
        ("ep", &experts, Case::of(2, 1, 1, 1, 2)),
        ("etp", &experts, Case::of(4, 2, 1, 1, 1).experts(2, 1)),
        ("etp across", &experts, Case::of(4, 1, 2, 1, 1).experts(1, 2)),
        ("all", &experts, Case::of(8, 2, 2, 2, 2).sequence_parallel().context(ring)),
        ("passes beside", &experts, to_all(Case::of(2, 1, 1, 1, 2))),
        (
            "passes beside, recompute",
            &experts,
            Case { recompute: Recompute::Uniform(2), ..to_all(Case::of(2, 1, 1, 1, 2)) },
        ),
        ("passes beside, chunks", &experts, to_all(Case { stages: chunks(1), ..Case::of(4, 1, 1, 2, 2) })),
        ("passes beside, both ends", &experts, {
            let order = PipelineOrder::DualPipeV;
            to_all(Case { stages: both_ends.clone(), order, ..Case::of(4, 1, 1, 2, 2) })
        }),
        ("dropout", &dense, Case { dropout: 0.1, ..one.clone() }),
        ("lower halves", &dense, Case { form: reuse, dtype: DType::Bf16, ..Case::of(2, 1, 1, 1, 1) }),
        ("kept by all", &dense, Case { optimizer: OptimizerSharding::Replicated, ..pairs.clone() }),
        ("instances", &dense, Case { optimizer: OptimizerSharding::Instances(2), ..Case::of(4, 1, 1, 1, 1) }),
        ("kept by all", &experts, Case { optimizer: OptimizerSharding::Replicated, ..pairs.clone() }),
        ("swapped state", &dense, Case { form: swapped, ..one.clone() }),
        ("recompute", &dense, Case { recompute: Recompute::Uniform(2), ..one.clone() }),
        ("recompute", &experts, Case { recompute: Recompute::Block(1), ..one.clone() }),
        (
            "in the bubble",
            &dense,
            Case { recompute_timing: RecomputeTiming::InBubble, ..chunked(1, PipelineOrder::default()) },
        ),
        (
            "in the bubble",
            &dense,
            Case { recompute_timing: RecomputeTiming::InBubble, ..chunked(1, grouped) },
        ),
        (
            "in advance",
            &dense,
            Case { save_policy: spared, recompute: Recompute::Block(2), ..in_advance.clone() },
        ),
        ("in advance", &dense, Case { recompute: Recompute::Block(2), ..in_advance }),
        ("rounded moments", &dense, Case { form: rounded, dtype: DType::Bf16, ..Case::of(2, 1, 1, 1, 1) }),
        ("rounded gradients", &dense, Case { rounded_gradients: true, ..pairs.clone() }),
        ("all rounded", &experts, Case { rounded_gradients: true, form: all_rounded, ..pairs.clone() }),
        ("narrow state", &dense, Case { form: narrow, ..pairs.clone() }),
        ("narrow state", &experts, Case { rounded_gradients: true, form: narrow, ..pairs.clone() }),
        ("float16", &dense, Case { dtype: DType::F16, loss_scale: dynamic, ..one.clone() }),
        ("float16", &experts, Case { dtype: DType::F16, loss_scale: dynamic, ..Case::of(4, 2, 1, 2, 1) }),
        ("blocks by masks", &few_keys, adaptive(Case::of(2, 1, 2, 1, 1), 1)),
        ("blocks by masks", &few_keys, adaptive(Case::of(4, 1, 4, 1, 1), 1)),
        ("blocks by masks", &few_keys, adaptive(Case::of(4, 1, 4, 1, 1), 2)),
        ("blocks by masks", &few_keys, adaptive(Case::of(4, 1, 2, 2, 1), 1)),
    ];
    for c in [&picked, &pooled] {
        let trained = |case| Case { indexer: Some(all_keys()), ..case };
        let heads = Case::of(2, 1, 2, 1, 1).context(ContextParallel::Ulysses);
        let shared = Case::of(4, 2, 2, 1, 1).sequence_parallel();
        let stages = Case { recompute: Recompute::Block(1), ..Case::of(4, 2, 1, 2, 1).sequence_parallel() };
        cases.extend([one.clone(), heads, shared, stages].map(|case| ("trained indexers", c, trained(case))));
    }
    for c in [&dense, &experts, &latent] {
        let ways = ways().into_iter().chain(ways_of_networks(c));
        cases.extend(ways.map(|(way, save_policy)| (way, c, Case { save_policy, ..one.clone() })));
    }
    let routing = Routing { fixed: true, ..Routing::default() };
    let mut wrong = Vec::new();
    for (what, c, case) in &cases {
        for dtype in [DType::F32, DType::Bf16] {
            // Some are of one type alone.
            let only = case.form != OptimizerForm::default() && case.form.swapped.is_none()
                || case.rounded_gradients;
            if (only || case.dtype == DType::F16) && dtype != DType::Bf16 {
                continue;
            }
            let dtype = if case.dtype == DType::F16 { DType::F16 } else { dtype };
            let case = Case { dtype, ..case.clone() };
            // Only of many passes some are dropped.
            let each = if case.recompute_timing == RecomputeTiming::InBubble { 8 } else { 4 };
            let micro = each * case.world / (case.sizes.tp * case.sizes.cp * case.sizes.pp);
            let shape = Shape { rows: ROWS, length: LENGTH, micro, packed: false };
            wrong.extend(far_from_plan(&format!("{what}, {dtype}"), c, &case, (routing, shape)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_layers_keep_of_other_ranks_keys_and_values_is_planned() {
    for c in [dense(), dense_of_few_keys()] {
        for kept in [RingCachePolicy::Nothing, RingCachePolicy::Keys, RingCachePolicy::KeysAndValues] {
            for interval in [0, 2] {
                for dtype in [DType::F32, DType::Bf16] {
                    let how = if interval == 0 {
                        ContextParallel::Ring { window: 1 }
                    } else {
                        ContextParallel::Gather
                    };
                    let case = Case::of(4, 1, 4, 1, 1).context(how);
                    let case = Case { ring_cache: RingCache { policy: kept, interval }, dtype, ..case };
                    let measured = found(&c, &case).bytes[0].kept as f64;
                    let (planned, _) = planned(&c, &case, Recompute::None, SavePolicy::default());
                    let apart = (planned as f64 / measured - 1.0).abs();
                    assert!(
                        apart < 0.02,
                        "{kept:?} {interval} {dtype}: planned {planned}, measured {measured}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_layers_keep_of_documents_that_ranks_gather_is_planned() {
    let models = [("picked", picked()), ("pooled", pooled())];
    for ((name, c), indexer) in models.into_iter().flat_map(|m| [(m.clone(), None), (m, Some(all_keys()))]) {
        for kept in [RingCachePolicy::Nothing, RingCachePolicy::Keys, RingCachePolicy::KeysAndValues] {
            let ways = [ContextParallel::Gather, ContextParallel::Ulysses];
            let cases = [(DType::F32, 2), (DType::Bf16, 2), (DType::F32, 4), (DType::Bf16, 4)];
            for ((dtype, cp), context) in cases.into_iter().flat_map(|case| ways.map(|way| (case, way))) {
                let ring_cache = RingCache { policy: kept, interval: 1 };
                let case = Case { ring_cache, dtype, indexer, ..Case::of(cp, 1, cp, 1, 1).context(context) };
                // Whole rows, as the plan has them.
                let shape = Shape { rows: ROWS, length: LENGTH, micro: 1, packed: false };
                let found = run(&c, &case, Routing::default(), &batches(&c, shape, 1)).unwrap();
                let (planned, _) = planned(&c, &case, Recompute::None, SavePolicy::default());
                let measured = found.bytes[0].kept;
                let apart = apart(planned as u64, measured as u64);
                println!(
                    "{name}, {kept:?}, {dtype}, cp {cp}, {context:?}: planned {planned}, measured {measured}"
                );
                assert!(
                    apart < 0.02,
                    "{name}, {kept:?}, {dtype}, cp {cp}, {context:?}: planned {planned}, measured {measured}"
                );
            }
        }
    }
}

#[test]
fn ranks_send_each_other_what_is_gathered_of_documents() {
    let (picked, pooled) = (picked(), pooled());
    let Attention::Latent(mla) = picked.attention else { unreachable!("a latent model") };
    let indexer = |c: &ModelConfig| c.indexer.as_ref().unwrap().head_dim;
    // Elements of a token in all layers: gathered with a gradient, and once more without.
    let latents = (picked.layers * (mla.kv_rank + mla.rope), picked.layers * indexer(&picked));
    let (mut rows, mut quiet) = (0, 0);
    for layer in &pooled.pattern {
        rows += pooled.head_dim;
        if let Some(pooled_by) = layer.pooled {
            let series = 1 + usize::from(pooled_by.picked);
            rows += 2 * series * pooled.head_dim;
            quiet += usize::from(pooled_by.picked) * 2 * series * indexer(&pooled);
        }
    }
    for (name, c, (with_gradient, without)) in
        [("picked", &picked, latents), ("pooled", &pooled, (rows, quiet))]
    {
        for cp in [2, 4] {
            for (dtype, element) in [(DType::F32, 4), (DType::Bf16, 2)] {
                for (kept, times) in [(RingCachePolicy::Nothing, 3), (RingCachePolicy::KeysAndValues, 2)] {
                    let ring_cache = RingCache { policy: kept, interval: 0 };
                    let case = Case { ring_cache, dtype, ..Case::of(cp, 1, cp, 1, 1) };
                    let shape = Shape { rows: ROWS, length: LENGTH, micro: 1, packed: false };
                    let found = run(c, &case, Routing::default(), &batches(c, shape, 1)).unwrap();
                    // To each other rank this rank's tokens, forward, again, and as many gradients.
                    let to_others = (cp - 1) * ROWS * LENGTH / cp * element;
                    let want = to_others * (times * with_gradient + without);
                    for sent in &found.sent {
                        assert_eq!(sent[&RankGroup::Cp], want as u64, "{name}, cp {cp}, {dtype}, {kept:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn ranks_send_each_other_heads_and_picks_of_documents() {
    let (picked, pooled) = (picked(), pooled());
    let Attention::Latent(mla) = picked.attention else { unreachable!("a latent model") };
    let Some(indexer) = picked.indexer else { unreachable!("a model that picks keys") };
    // Of each layer elements of a token that are exchanged (queries, keys and values of one width, and what heads make of them),
    // gathered with a gradient, and without; and what its query has picked.
    let dim = (mla.nope + mla.rope).max(mla.value);
    let of_picked = vec![(4 * picked.heads * dim, 0, indexer.head_dim, indexer.top_k); picked.layers];
    let of_pooled = |layer: &Layer| {
        let (mut rows, mut quiet, mut seen) = (pooled.head_dim, 0, pooled.sliding_window.unwrap());
        if let Some(by) = layer.pooled {
            let (series, indexer) = (1 + usize::from(by.picked), pooled.indexer.as_ref().unwrap());
            rows += 2 * series * pooled.head_dim;
            quiet += usize::from(by.picked) * 2 * series * indexer.head_dim;
            seen += if by.picked { indexer.top_k } else { LENGTH / by.ratio };
        }
        (2 * pooled.heads * pooled.head_dim, rows, quiet, seen)
    };
    let of_pooled: Vec<_> = pooled.pattern.iter().map(of_pooled).collect();
    for (name, c, layers) in [("picked", &picked, of_picked), ("pooled", &pooled, of_pooled)] {
        for (cp, dtype, element) in [(2, DType::F32, 4), (2, DType::Bf16, 2), (4, DType::F32, 4)] {
            let case = Case { dtype, ..Case::of(cp, 1, cp, 1, 1).context(ContextParallel::Ulysses) };
            let shape = Shape { rows: ROWS, length: LENGTH, micro: 1, packed: false };
            let found = run(c, &case, Routing::default(), &batches(c, shape, 1)).unwrap();
            // Of what is exchanged each other rank has its share, forward and backward; what is gathered goes to all, as do rows
            // that are gathered again and their gradients.
            let of = |&(exchanged, rows, quiet, seen): &(usize, usize, usize, usize)| {
                2 * exchanged / cp * element + (3 * rows + quiet) * element + 4 * seen
            };
            let want = (cp - 1) * ROWS * LENGTH / cp * layers.iter().map(of).sum::<usize>();
            for sent in &found.sent {
                assert_eq!(sent[&RankGroup::Cp], want as u64, "{name}, cp {cp}, {dtype}");
            }
        }
    }
}

#[test]
fn rows_gathered_again_from_the_wrong_ranks_are_noticed() {
    let mut rounded = experts();
    rounded.moe.as_mut().unwrap().router.dtype = RouterDtype::Model;
    let norms = SavePolicy { recompute_norms: ALL, ..SavePolicy::default() };
    // Exchanges that only a backward pass needs: of a layer's input, and of that of a router after a recomputed norm.
    for (exchange, c, save_policy) in [
        ("gathered again", dense(), SavePolicy::default()),
        ("gathered again", dense(), norms),
        ("all_tokens", rounded, norms),
    ] {
        let case = Case { save_policy, ..Case::of(2, 2, 1, 1, 1).sequence_parallel() }.single_precision();
        let steps = batches(&c, Shape { rows: ROWS, length: LENGTH, micro: 1, packed: true }, 1);
        let sound = run(&c, &case, Routing::default(), &steps).unwrap();
        for wrong in [Wrong::Reversed, Wrong::Stale, Wrong::Twice] {
            let spoilt =
                run_with(&c, &case, Routing::default(), &steps, Some(Fault { exchange, wrong })).unwrap();
            let differs = sound.gradients.iter().any(|(name, x)| *x != spoilt.gradients[name]);
            assert!(differs, "{exchange} {wrong:?} is not noticed");
            assert_eq!(sound.reports[0].loss, spoilt.reports[0].loss);
        }
    }
}

#[test]
fn what_runs_again_in_the_bubble_or_in_advance_gives_the_same_bits() {
    let c = dense();
    let chunks = Stages { pp: 2, layers_per_chunk: Some(1), ..Stages::default() };
    let case = Case { stages: chunks, ..Case::of(2, 1, 1, 2, 1) }.single_precision();
    let plain = found(&c, &case);
    let advance = Case {
        recompute: Recompute::Block(1),
        save_policy: SavePolicy { spare_last: true, ..SavePolicy::default() },
        recompute_timing: RecomputeTiming::InAdvance,
        ..case.clone()
    };
    let with_gradient = Case { recompute_timing: RecomputeTiming::WithGradient, ..advance.clone() };
    let (early, late) = (found(&c, &advance), found(&c, &with_gradient));
    same("in advance", &plain, &early);
    same("with the gradient", &plain, &late);
    assert!(early.bytes[0].kept < plain.bytes[0].kept);
    // The last layer of all stands on the last stage and is spared.
    let all = Case { save_policy: SavePolicy::default(), ..with_gradient };
    assert!(found(&c, &all).bytes[1].kept < late.bytes[1].kept);
    let bubble = Case { recompute_timing: RecomputeTiming::InBubble, ..case.clone() };
    let (plain, found_in_bubble) = (found_of(&c, &case, 6), found_of(&c, &bubble, 6));
    same("in the bubble", &plain, &found_in_bubble);
    assert!(found_in_bubble.bytes[0].kept < plain.bytes[0].kept);
    let less = SavePolicy { recompute_activations: ALL, recompute_norms: ALL, ..SavePolicy::default() };
    same("in the bubble, and less", &plain, &found_of(&c, &Case { save_policy: less, ..bubble }, 6));
    let items = Placement::new(&c, &case.stages).unwrap();
    assert!(items.stage(1)[1].contains(&Item::Head));
}
