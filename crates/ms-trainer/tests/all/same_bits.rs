//! What must be equal to the last bit, and what ranks send, compared with the formulas.

use crate::parity::samples::{latent, picked, samples};
use crate::parity::{Case, run, same, small_experts};
use ms_core::ops::Auxiliary;
use ms_core::{DType, Dispatcher, OptimizerSharding, RankGroup, RingCache, RingCachePolicy};
use ms_dist::{ContextParallel, LinearOverlap, Pieces, TokenMapping};
use ms_nn::{Recompute, SavePolicy, Swapped};
use ms_spec::{Mixer, ModelConfig, Stages};
use ms_trainer::parity::{Bounds, Found, Shape, batches, compare};
use ms_trainer::{PipelineOrder, RecomputeTiming, Routing};

const ROWS: usize = 2;
const LENGTH: usize = 16;

fn model() -> ModelConfig {
    ModelConfig { layers: 4, ..ModelConfig::tiny() }
}

fn found(case: &Case, micro: usize) -> Found {
    let c = model();
    let case = &case.clone().single_precision();
    run(
        &c,
        case,
        Routing::default(),
        &batches(&c, Shape { rows: ROWS, length: LENGTH, micro, packed: true }, 2),
    )
    .unwrap()
}

#[test]
fn threads_recomputation_and_a_second_run_change_no_bit() {
    let dropped = Case { dropout: 0.1, ..Case::of(4, 2, 1, 2, 1).sequence_parallel() };
    for case in [Case::of(4, 2, 1, 2, 1).sequence_parallel(), Case::of(4, 1, 2, 1, 1), dropped] {
        let plain = found(&case, 4);
        same("a second run", &plain, &found(&case, 4));
        same("three threads", &plain, &found(&Case { threads: 3, ..case.clone() }, 4));
        for recompute in
            [Recompute::Block(1), Recompute::BlockOfStage(1), Recompute::Uniform(1), Recompute::Uniform(2)]
        {
            same("recomputation", &plain, &found(&Case { recompute, ..case.clone() }, 4));
        }
    }
}

#[test]
fn weights_gathered_beside_the_forward_pass_change_no_bit() {
    for case in [
        Case::of(4, 2, 1, 1, 1),
        Case::of(4, 1, 2, 2, 1),
        Case { recompute: Recompute::Block(2), ..Case::of(2, 1, 1, 1, 1) },
    ] {
        for (overlap, bucket_size) in [(false, None), (false, Some(300)), (true, Some(300))] {
            let plain = Case { overlap, bucket_size, ..case.clone() };
            for overlap_gather_with_step in [false, true] {
                let gathered = Case { overlap_gather: true, overlap_gather_with_step, ..plain.clone() };
                same("weights on their way", &found(&plain, 4), &found(&gathered, 4));
            }
        }
    }
}

#[test]
fn what_runs_beside_exchanges_of_tensor_parallel_ranks_changes_no_bit() {
    for case in [
        Case::of(2, 2, 1, 1, 1),
        Case::of(4, 4, 1, 1, 1).sequence_parallel(),
        Case { recompute: Recompute::Block(2), ..Case::of(2, 2, 1, 1, 1).sequence_parallel() },
        Case {
            order: PipelineOrder::ZeroBubble { group: None },
            ..Case::of(4, 2, 1, 2, 1).sequence_parallel()
        },
        Case { bucket_size: Some(300), overlap: true, ..Case::of(4, 2, 1, 1, 1).sequence_parallel() },
    ] {
        let waiting = LinearOverlap { weight_gradients: false, ..LinearOverlap::default() };
        let plain = found(&Case { linears: waiting, ..case.clone() }, 4);
        for pieces in [Pieces::Number(1), Pieces::Number(2), Pieces::Finest] {
            let linears = LinearOverlap { weight_gradients: true, pieces, overlap_gathers: false };
            let got = found(&Case { linears, ..case.clone() }, 4);
            same("overlapped exchanges", &plain, &got);
            assert_eq!(plain.sent, got.sent, "as many bytes");
        }
    }
}

#[test]
fn latents_gathered_together_change_no_bit() {
    let ahead = LinearOverlap { overlap_gathers: true, ..LinearOverlap::default() };
    let none = SavePolicy::default();
    for c in [latent(), picked()] {
        for save_policy in [
            none,
            SavePolicy { recompute_operands: true, ..none },
            SavePolicy { recompute_attention: true, recompute_norms: usize::MAX, ..none },
            SavePolicy { recompute_norms: usize::MAX, swapped: Swapped::ATTENTION, ..none },
        ] {
            for case in [
                Case::of(2, 2, 1, 1, 1).sequence_parallel(),
                Case::of(2, 2, 1, 1, 1),
                Case::of(4, 4, 1, 1, 1).sequence_parallel(),
                Case { recompute: Recompute::Block(2), ..Case::of(4, 2, 2, 1, 1).sequence_parallel() },
                Case {
                    order: PipelineOrder::ZeroBubble { group: None },
                    ..Case::of(4, 2, 1, 2, 1).sequence_parallel()
                },
            ] {
                let case = Case { save_policy, ..case }.single_precision();
                let steps = batches(&c, Shape { rows: ROWS, length: LENGTH, micro: 4, packed: true }, 2);
                let of = |case: &Case| run(&c, case, Routing::default(), &steps).unwrap();
                let plain = of(&case);
                let got = of(&Case { linears: ahead, ..case.clone() });
                same("latents gathered together", &plain, &got);
                assert_eq!(plain.sent, got.sent, "as many bytes");
            }
        }
    }
}

#[test]
fn weight_gradients_put_off_change_no_bit() {
    let case = Case::of(2, 1, 1, 2, 1);
    let zero = Case { order: PipelineOrder::ZeroBubble { group: None }, ..case.clone() };
    same("zero-bubble", &found(&case, 4), &found(&zero, 4));
}

#[test]
fn the_gradient_of_the_output_layer_put_off_changes_no_bit() {
    let case = Case::of(2, 1, 1, 2, 1);
    let chunks = |dual_pipe| Stages {
        pp: 2,
        dual_pipe,
        layers_per_chunk: (!dual_pipe).then_some(1),
        ..Stages::default()
    };
    for case in [
        case.clone(),
        Case::of(4, 2, 1, 2, 1).sequence_parallel(),
        Case { order: PipelineOrder::ZeroBubble { group: None }, ..case.clone() },
        Case { stages: chunks(false), ..case.clone() },
        Case { stages: chunks(true), order: PipelineOrder::DualPipeV, ..case.clone() },
        Case { bucket_size: Some(300), overlap: true, ..Case::of(4, 1, 1, 2, 1) },
        Case { recompute_timing: RecomputeTiming::InBubble, stages: chunks(false), ..case.clone() },
    ] {
        let plain = found(&case, 4);
        let later = |most| found(&Case { defer_embedding_wgrad: Some(most), ..case.clone() }, 4);
        same(&format!("put off: {case:?}"), &plain, &later(usize::MAX));
        // The part's contribution is added after that of the rest.
        compare(&plain, &later(1), Bounds::of(DType::F32)).unwrap();
    }
    let (experts, shape) = (
        ModelConfig { layers: 4, ..small_experts() },
        Shape { rows: ROWS, length: LENGTH, micro: 4, packed: true },
    );
    let beside = Case {
        overlap_passes: true,
        dispatcher: Dispatcher::AllToAll,
        stages: chunks(false),
        ..Case::of(4, 1, 1, 2, 2).single_precision()
    };
    let modules = ModelConfig { mtp: 2, ..model() };
    for (c, case) in [(&experts, beside), (&modules, Case::of(2, 1, 1, 2, 1).single_precision())] {
        let found = |case: &Case| run(c, case, Routing::default(), &batches(c, shape, 2)).unwrap();
        let later = Case { defer_embedding_wgrad: Some(usize::MAX), ..case.clone() };
        same(&format!("put off: {case:?}"), &found(&case), &found(&later));
    }
}

#[test]
fn stages_that_wait_for_each_other_change_no_bit() {
    let chunks = |pp, dual_pipe| Stages {
        pp,
        dual_pipe,
        layers_per_chunk: (!dual_pipe).then_some(1),
        ..Stages::default()
    };
    let of = |pp, order| Case { order, ..Case::of(pp, 1, 1, pp, 1) };
    let (plain, zero) = (PipelineOrder::default(), PipelineOrder::ZeroBubble { group: None });
    for case in [
        of(2, plain),
        of(4, plain),
        of(2, zero),
        of(4, zero),
        Case { stages: chunks(2, false), ..of(2, plain) },
        Case { stages: chunks(2, false), ..of(2, zero) },
        Case { stages: chunks(2, true), ..of(2, PipelineOrder::DualPipeV) },
        Case { recompute_timing: RecomputeTiming::InBubble, stages: chunks(2, false), ..of(2, plain) },
        Case { defer_embedding_wgrad: Some(2), ..of(2, plain) },
        Case::of(4, 2, 1, 2, 1).sequence_parallel(),
    ] {
        let waiting = found(&Case { waits_at_borders: true, ..case.clone() }, 4);
        let plain = found(&case, 4);
        same(&format!("waited for: {case:?}"), &plain, &waiting);
        assert_eq!(plain.sent, waiting.sent, "as many bytes");
    }
    for seed in 0..20 {
        let case = Case { stages: chunks(2, false), ..of(2, PipelineOrder::Random(seed)) };
        let waiting = Case { waits_at_borders: true, ..case.clone() };
        same(&format!("drawn, {seed}"), &found(&case, 4), &found(&waiting, 4));
    }
}

/// In all orders every chunk takes the micro-batches of its forwards and of its backwards as they are numbered, also where
/// weight gradients are deferred: each weight sums the same terms in the same order, so nothing has to be arranged. The
/// models are not tied, or two stages would each sum a part of one gradient. Layers stand on other stages and in other
/// buckets, but the squares of the norm are summed without rounding.
#[test]
fn pipelines_from_both_ends_have_the_bits_of_one_forward_one_backward() {
    let c = model();
    assert!(!c.tied);
    let steps = batches(&c, Shape { rows: ROWS, length: LENGTH, micro: 12, packed: true }, 3);
    for dtype in [DType::F32, DType::Bf16] {
        for plain in [
            Case::of(2, 1, 1, 2, 1),
            Case::of(4, 2, 1, 2, 1),
            Case { bucket_size: Some(300), overlap: true, ..Case::of(6, 1, 1, 2, 1) },
        ] {
            let plain = Case { dtype, ..plain };
            let of = |case: &Case| run(&c, case, Routing::default(), &steps).unwrap();
            let first = of(&plain);
            assert!(
                first.reports.iter().any(|r| r.grad_norm > 1.0),
                "clipping hands the norm on to the weights"
            );
            for other in orders(&plain) {
                same(&format!("{dtype}, {} ranks, {:?}", plain.world, other.order), &first, &of(&other));
            }
        }
    }
}

/// Two stages of two chunks in turn, with weight gradients deferred, both, and from both ends.
fn orders(plain: &Case) -> [Case; 4] {
    [
        Case { stages: interleaved(), ..plain.clone() },
        Case { order: PipelineOrder::ZeroBubble { group: None }, ..plain.clone() },
        Case { order: PipelineOrder::ZeroBubble { group: None }, stages: interleaved(), ..plain.clone() },
        Case { order: PipelineOrder::DualPipeV, stages: both_ends(), ..plain.clone() },
    ]
}

/// Experts with losses and biases of their routers: what they are given, and what comes of it, depends on no order of the
/// stages.
#[test]
fn experts_have_the_same_bits_in_every_order_of_a_pipeline() {
    let c = ModelConfig { layers: 4, pattern: Vec::new(), ..small_experts() };
    let pattern = small_experts().pattern;
    let c = ModelConfig { pattern: pattern.iter().chain(&pattern).cloned().collect(), ..c };
    let steps = batches(&c, Shape { rows: ROWS, length: LENGTH, micro: 8, packed: true }, 3);
    let auxiliary = Auxiliary { experts: 0.02, z: 1e-3, ..Auxiliary::default() };
    let routing = Routing { auxiliary, bias_update_rate: 1e-2, ..Routing::default() };
    for dtype in [DType::F32, DType::Bf16] {
        for plain in [
            Case::of(2, 1, 1, 2, 1),
            Case { dispatcher: Dispatcher::AllToAll, ..Case::of(4, 1, 1, 2, 2) },
            Case { bucket_size: Some(300), overlap: true, ..Case::of(4, 2, 1, 2, 1).sequence_parallel() },
        ] {
            let plain = Case { dtype, ..plain };
            let of = |case: &Case| run(&c, case, routing, &steps).unwrap();
            let first = of(&plain);
            assert!(first.reports.iter().any(|r| r.grad_norm > 1.0), "clipping");
            for other in orders(&plain) {
                let what =
                    format!("{dtype}, {} ranks, ep {}, {:?}", plain.world, plain.sizes.ep, other.order);
                same(&what, &first, &of(&other));
            }
        }
    }
}

/// A prediction module embeds again, on the last stage: there and on the first stage parts of one gradient are summed, each part
/// in the same order whatever that of the stages is. Where one stage has both ends (DualPipeV) they are one sum in another
/// order, and everything that does not come of the embedding's gradient has the same bits.
#[test]
fn prediction_modules_have_the_same_bits_in_every_order_of_a_pipeline() {
    for c in [ModelConfig { mtp: 1, ..model() }, ModelConfig { mtp: 2, ..model() }] {
        let steps = batches(&c, Shape { rows: ROWS, length: LENGTH, micro: 8, packed: true }, 3);
        for dtype in [DType::F32, DType::Bf16] {
            for plain in [Case::of(2, 1, 1, 2, 1), Case::of(4, 2, 1, 2, 1).sequence_parallel()] {
                let plain = Case { dtype, ..plain };
                let of = |case: &Case| run(&c, case, Routing::default(), &steps).unwrap();
                let first = of(&plain);
                assert!(first.reports.iter().any(|r| r.grad_norm > 1.0), "clipping");
                let [interleaved, zero, zero_interleaved, both] = orders(&plain);
                for other in [interleaved, zero, zero_interleaved] {
                    same(&format!("{dtype}, {} modules, {:?}", c.mtp, other.order), &first, &of(&other));
                }
                let both = of(&both);
                let (mut compared, table) = (0, "embedding.word_embeddings.weight");
                for (name, x) in first.gradients.iter().filter(|(name, _)| *name != table) {
                    let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(x), bits(&both.gradients[name]), "{dtype}, {} modules, {name}", c.mtp);
                    compared += 1;
                }
                assert_eq!(compared + 1, first.gradients.len());
                assert_eq!(first.reports[0].loss, both.reports[0].loss);
            }
        }
    }
}

/// Tensor parallelism, stages and data parallelism, however buckets cut them, all sum one gradient's squares: where ranks have
/// the bits of gradients that one has, they have the bits of its norm.
#[test]
fn the_norm_hangs_on_gradients_alone() {
    let plain = found(&Case::single(), 4);
    for pp in [2, 4] {
        for (bucket_size, overlap) in [(None, false), (Some(300), true)] {
            let stages = Case { bucket_size, overlap, ..Case::of(pp, 1, 1, pp, 1) };
            same("stages as one rank", &plain, &found(&stages, 4));
        }
    }
}

#[test]
fn threads_change_no_bit_of_any_sample_model() {
    for (name, mut c) in samples() {
        let recurrent = [Mixer::Mamba2, Mixer::Mamba3, Mixer::GatedDelta].into_iter().any(|m| c.has(m));
        c.init_std = if recurrent { 0.05 } else { 0.2 };
        let steps = batches(&c, Shape { rows: ROWS, length: LENGTH, micro: 1, packed: true }, 2);
        for dtype in [DType::F32, DType::Bf16] {
            let with = |threads| {
                let case = Case { dtype, threads, ..Case::single() };
                run(&c, &case, Routing::default(), &steps).unwrap_or_else(|e| panic!("{name}, {dtype}: {e}"))
            };
            let one = with(1);
            for threads in [2, 5] {
                same(&format!("{name}, {dtype}, {threads} threads"), &one, &with(threads));
            }
        }
    }
}

/// Bytes of the stream of a micro-batch.
fn stream(c: &ModelConfig) -> u64 {
    (ROWS * LENGTH * c.hidden * 4) as u64
}

#[test]
fn tensor_parallel_ranks_send_what_the_formulas_say() {
    let (c, micro) = (model(), 2u64);
    let x = stream(&c);
    // Each sublayer enters and leaves, forward and backward; the embedding leaves and the loss enters.
    let crossings = 2 * c.layers as u64 + 1;
    // Three numbers of each token for the loss.
    let statistics = (ROWS * LENGTH * 3 * 4) as u64;
    let plain = found(&Case::of(2, 2, 1, 1, 1), micro as usize);
    // All-reduce of n ranks sends 2 (n-1)/n: leaving forward, entering backward.
    let all_reduce = 2 * x / 2;
    // A number for the sum of gradients of norms is not needed: they are equal.
    assert_eq!(plain.sent[0][&RankGroup::Tp], micro * (2 * crossings * all_reduce + statistics));
    let shared = found(&Case::of(2, 2, 1, 1, 1).sequence_parallel(), micro as usize);
    // Gathering sends a rank's half, summing and sharing half of the whole: entering and leaving, both ways. What enters a
    // sublayer is gathered again for the gradients of its weights.
    let norms = ((2 * c.layers + 1) * c.hidden * 4) as u64;
    let again = 2 * c.layers as u64 * (x / 2);
    assert_eq!(
        shared.sent[0][&RankGroup::Tp],
        micro * (2 * crossings * (x / 2 + x / 2) + again + statistics) + norms
    );
}

#[test]
fn ranks_that_share_a_key_head_hand_each_other_what_their_heads_need() {
    let (c, micro, tp) = (model(), 2u64, 4u64);
    let four = found(&Case::of(4, 4, 1, 1, 1), micro as usize);
    let crossings = 2 * c.layers as u64 + 1;
    let statistics = (ROWS * LENGTH * 3 * 4) as u64 * (tp - 1);
    let sums = 2 * crossings * 2 * stream(&c) * (tp - 1) / tp;
    // Two ranks project two queries, a key and a value: one has the queries, the other key and value. Forward or back, one of
    // them hands over a query, and one both others.
    let heads = c.layers as u64 * (ROWS * LENGTH * 3 * c.head_dim * 4) as u64;
    for sent in &four.sent {
        assert_eq!(sent[&RankGroup::Tp], micro * (sums + statistics + heads));
    }
}

#[test]
fn stages_send_the_stream_and_its_gradient() {
    let (c, micro) = (model(), 4u64);
    let two = found(&Case::of(2, 1, 1, 2, 1), micro as usize);
    // The first stage sends streams, the last gradients; both join the sums of losses.
    let losses = 4 * 8;
    for rank in 0..2 {
        assert_eq!(two.sent[rank][&RankGroup::Pp], micro * stream(&c) + losses, "rank {rank}");
    }
}

#[test]
fn a_ring_sends_keys_and_values_and_their_gradients() {
    let (c, micro, cp) = (model(), 2u64, 4u64);
    let case = Case::of(4, 1, 4, 1, 1).context(ContextParallel::Ring { window: 1 });
    let ring = found(&case, micro as usize);
    let block = (ROWS * LENGTH / 4 * 2 * c.groups * c.head_dim * 4) as u64;
    // Forward each block goes on cp - 1 times; backward again, and its gradients go home.
    let passes = 3 * (cp - 1) * c.layers as u64;
    for sent in &ring.sent {
        assert_eq!(sent[&RankGroup::Ring], micro * passes * block);
    }
}

#[test]
fn keys_and_values_that_are_kept_do_not_come_again() {
    let (c, micro, cp) = (model(), 2u64, 4u64);
    let block = (ROWS * LENGTH / 4 * 2 * c.groups * c.head_dim * 4) as u64;
    for context in [
        ContextParallel::Ring { window: 1 },
        ContextParallel::Ring { window: 2 },
        ContextParallel::Gather,
        ContextParallel::Hybrid { ulysses: 2, window: 1 },
    ] {
        let case = Case::of(4, 1, cp as usize, 1, 1).context(context);
        let plain = found(&case, micro as usize);
        let ring = cp / case.sizes.ulysses as u64;
        for (kept, interval) in [
            (RingCachePolicy::Keys, 0),
            (RingCachePolicy::KeysAndValues, 0),
            (RingCachePolicy::KeysAndValues, 1),
            (RingCachePolicy::Keys, 2),
        ] {
            let case = Case { ring_cache: RingCache { policy: kept, interval }, ..case.clone() };
            let less = found(&case, micro as usize);
            same(&format!("{context:?} {kept:?} {interval}"), &plain, &less);
            let layers = (c.layers as u64).div_ceil(interval as u64 + 1);
            let spared = block / if kept == RingCachePolicy::Keys { 2 } else { 1 };
            for (a, b) in plain.sent.iter().zip(&less.sent) {
                assert_eq!(
                    a[&RankGroup::Ring] - b[&RankGroup::Ring],
                    micro * layers * (ring - 1) * spared,
                    "{context:?} {kept:?}"
                );
            }
            // What came from another rank is memory of the sender here, so all ranks together keep more.
            let together = |found: &Found| found.bytes.iter().map(|bytes| bytes.kept).sum::<usize>();
            assert!(together(&less) > together(&plain), "{context:?} {kept:?} {interval}");
        }
    }
}

#[test]
fn ranks_that_share_out_blocks_send_what_each_needs() {
    let (c, micro, cp) = (model(), 2u64, 4usize);
    let case = Case::of(cp, 1, cp, 1, 1)
        .context(ContextParallel::Adaptive { ulysses: 1, remap: TokenMapping::InOrder });
    // One document a row: a block below the diagonal is needed.
    let shape = Shape { rows: ROWS, length: LENGTH, micro: micro as usize, packed: false };
    let found = run(&c, &case.single_precision(), Routing::default(), &batches(&c, shape, 2)).unwrap();
    let rows = (ROWS * LENGTH / cp) as u64;
    let (q, kv) = (rows * (c.heads * c.head_dim * 4) as u64, rows * (2 * c.groups * c.head_dim * 4) as u64);
    let lse = rows * (c.heads * 4) as u64;
    let causal: Vec<Vec<bool>> = (0..cp).map(|i| (0..cp).map(|j| j <= i).collect()).collect();
    let mut bytes = vec![0; cp];
    let mut kinds = [0, 0];
    for round in ContextParallel::adaptive_tasks(&causal) {
        for (worker, id) in round.into_iter().enumerate().filter(|(_, id)| *id >= 0) {
            let (row, column) = (id as usize / cp, id as usize % cp);
            match (row == worker, column == worker) {
                (true, true) => {}
                // Keys and values come, twice; their gradient goes back.
                (true, false) => {
                    kinds[0] += 1;
                    bytes[column] += 2 * kv;
                    bytes[worker] += kv;
                }
                // Queries arrive, and for the backward pass their outputs; outputs and gradients are sent back.
                _ => {
                    kinds[1] += 1;
                    bytes[row] += q + 3 * q + lse;
                    bytes[worker] += q + lse + q;
                }
            }
        }
    }
    assert!(kinds.iter().all(|&n| n > 0), "both kinds of tasks: {kinds:?}");
    for (rank, sent) in found.sent.iter().enumerate() {
        assert_eq!(sent[&RankGroup::Ring], micro * c.layers as u64 * bytes[rank], "rank {rank}");
    }
}

#[test]
fn blocks_shared_out_over_ranks_have_the_same_bits_every_time() {
    for ulysses in [1, 2] {
        let case = Case {
            dropout: 0.1,
            ..Case::of(4, 1, 4, 1, 1)
                .context(ContextParallel::Adaptive { ulysses, remap: TokenMapping::InOrder })
        };
        let plain = found(&case, 4);
        same("a second run", &plain, &found(&case, 4));
        same("three threads", &plain, &found(&Case { threads: 3, ..case.clone() }, 4));
        let recompute = Recompute::Uniform(1);
        same("recomputation", &plain, &found(&Case { recompute, ..case }, 4));
    }
}

#[test]
fn data_parallel_ranks_send_their_share_of_the_gradients() {
    let c = model();
    let two = found(&Case::of(2, 1, 1, 1, 1), 2);
    let padded = |n: usize| n.next_multiple_of(64);
    let elements: usize = ms_spec::params(&c).iter().rev().fold(0, |at, p| padded(at) + p.shape.numel());
    let gradients = (elements.next_multiple_of(128) * 4 / 2) as u64;
    // And the sums of losses: four numbers of eight bytes.
    assert_eq!(two.sent[0][&RankGroup::DpCp], gradients + 4 * 8);
}

/// Buckets of one parameter each, experts most of which get no token from a micro-batch of one token per rank, and a
/// prediction module that embeds again.
#[test]
fn overlapped_sums_start_in_one_order_whatever_tokens_come() {
    use ms_spec::{Feed, Layer, Moe, Router, Score};
    let router = Router::plain(Score::SoftmaxOfChosen);
    let moe = Moe { experts: 16, top_k: 1, ffn: 8, router, shared: None, zero_experts: 0 };
    let pattern = vec![Layer { feed: Feed::Moe, ..Layer::default() }; 4];
    let c = ModelConfig { moe: Some(moe), pattern, mtp: 1, ..model() };
    let steps = batches(&c, Shape { rows: 1, length: 2, micro: 8, packed: false }, 2);
    let of = |world, pp, ep| Case { bucket_size: Some(1), ..Case::of(world, 1, 1, pp, ep) };
    for case in [
        of(4, 1, 2),
        Case { recompute: Recompute::Uniform(1), ..of(4, 1, 2) },
        of(4, 2, 2),
        Case { order: PipelineOrder::ZeroBubble { group: None }, ..of(4, 2, 2) },
        Case { stages: interleaved(), ..of(4, 2, 1) },
        Case { order: PipelineOrder::DualPipeV, stages: both_ends(), ..of(4, 2, 1) },
        Case { order: PipelineOrder::Random(3), stages: both_ends(), ..of(4, 2, 1) },
    ] {
        let case = case.single_precision();
        let plain = run(&c, &case, Routing::default(), &steps).unwrap();
        let overlapped = run(&c, &Case { overlap: true, ..case }, Routing::default(), &steps).unwrap();
        same("overlap with experts and prediction", &plain, &overlapped);
    }
}

/// Two stages of two chunks each.
fn interleaved() -> Stages {
    Stages { pp: 2, layers_per_chunk: Some(1), ..Stages::default() }
}

/// The same, with both ends of the model on the first.
fn both_ends() -> Stages {
    Stages { pp: 2, dual_pipe: true, ..Stages::default() }
}

/// On every schedule, of models whose first and last stage both hold the embedding, with one thread and with three.
#[test]
fn gradients_summed_while_the_backward_pass_runs_have_the_same_bits() {
    for case in [
        Case::of(2, 1, 1, 1, 1),
        Case::of(4, 2, 1, 1, 1).sequence_parallel(),
        Case::of(4, 1, 1, 2, 1),
        Case::of(4, 1, 2, 1, 1),
        Case { rounded_gradients: true, ..Case::of(4, 1, 1, 2, 1) },
        Case { order: PipelineOrder::ZeroBubble { group: None }, ..Case::of(4, 1, 1, 2, 1) },
        Case { stages: interleaved(), ..Case::of(4, 1, 1, 2, 1) },
        Case { order: PipelineOrder::DualPipeV, stages: both_ends(), ..Case::of(4, 1, 1, 2, 1) },
        Case { order: PipelineOrder::Random(5), stages: interleaved(), ..Case::of(4, 1, 1, 2, 1) },
    ] {
        for (tied, mtp) in [(false, 0), (true, 0), (true, 1)] {
            let c = ModelConfig { tied, mtp, ..model() };
            let steps = batches(&c, Shape { rows: ROWS, length: LENGTH, micro: 8, packed: true }, 2);
            let case = Case { bucket_size: Some(300), ..case.clone() }.single_precision();
            let of = |case: &Case| run(&c, case, Routing::default(), &steps).unwrap();
            let (plain, overlapped) = (of(&case), Case { overlap: true, ..case });
            same("overlap", &plain, &of(&overlapped));
            same("overlap, three threads", &plain, &of(&Case { threads: 3, ..overlapped.clone() }));
            let recompute = Recompute::Uniform(1);
            same("overlap and recomputation", &plain, &of(&Case { recompute, ..overlapped }));
        }
    }
}

/// Replicated and sharded state is summed over the same ranks in the same order.
#[test]
fn an_optimizer_on_every_rank_gives_the_bits_of_one_that_is_shared_out() {
    let c = ModelConfig { tied: true, ..crate::parity::small_experts() };
    for case in [
        Case::of(3, 1, 1, 1, 1),
        Case::of(4, 2, 1, 1, 1).sequence_parallel(),
        Case::of(4, 1, 2, 1, 2).context(ContextParallel::Ring { window: 1 }),
        Case::of(4, 1, 1, 2, 1),
    ] {
        let steps = batches(&c, Shape { rows: ROWS, length: LENGTH, micro: 12, packed: true }, 3);
        for (dtype, overlap) in [(DType::F32, false), (DType::Bf16, true)] {
            let case = Case { bucket_size: Some(300), overlap, dtype, ..case.clone() };
            let of = |case: &Case| run(&c, case, Routing::default(), &steps).unwrap();
            let shared_out = of(&case);
            let kept = Case { optimizer: OptimizerSharding::Replicated, ..case };
            same("an optimizer on every rank", &shared_out, &of(&kept));
        }
    }
}
