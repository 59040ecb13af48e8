//! Token dispatch to experts: the same values with every dispatcher, and the planned bytes.

use crate::parity::{Case, run, same};
use ms_core::ops::Auxiliary;
use ms_core::{DType, Dispatcher, RankGroup};
use ms_nn::{Recompute, SavePolicy};
use ms_spec::{
    ExpertBytes, ExpertExchange, Feed, Layer, ModelConfig, Moe, Router, RouterDtype, Score, SharedExpert,
    Stages,
};
use ms_trainer::parity::{Bounds, Found, Shape, batches, compare};
use ms_trainer::{PipelineOrder, Routing};

const ROWS: usize = 2;
const LENGTH: usize = 16;
const MICRO: usize = 4;
const ALL: [Dispatcher; 3] = [Dispatcher::AllGather, Dispatcher::AllToAll, Dispatcher::AllToAllSeq];

fn model(shared: bool, zero_experts: usize) -> ModelConfig {
    let router = Router::plain(Score::SoftmaxOfChosen);
    let shared = shared.then_some(SharedExpert { ffn: 8, gate: false, wide_gate: false });
    let moe = Moe { experts: 8, top_k: 2, ffn: 12, router, shared, zero_experts };
    ModelConfig {
        groups: 4,
        init_std: 0.4,
        moe: Some(moe),
        pattern: vec![Layer { feed: Feed::Moe, ..Layer::default() }; 2],
        ..ModelConfig::tiny()
    }
}

/// Micro-batches of a step, which divide among data-parallel ranks.
fn micro(case: &Case) -> usize {
    let dp = case.world / (case.sizes.tp * case.sizes.cp);
    if MICRO.is_multiple_of(dp) { MICRO } else { dp }
}

fn found(c: &ModelConfig, case: &Case, routing: Routing, micro: usize) -> Found {
    let shape = Shape { rows: ROWS, length: LENGTH, micro, packed: true };
    run(c, case, routing, &batches(c, shape, 2)).unwrap_or_else(|e| panic!("{case:?}: {e}"))
}

fn grids() -> Vec<Case> {
    vec![
        Case::of(2, 1, 1, 1, 2),
        Case::of(2, 2, 1, 1, 1),
        Case::of(4, 2, 1, 1, 2),
        Case::of(4, 2, 1, 1, 2).sequence_parallel(),
        Case::of(4, 1, 2, 1, 4),
        // Whole experts, and experts that two of four ranks share.
        Case::of(4, 2, 1, 1, 2).experts(4, 1).sequence_parallel(),
        Case::of(2, 2, 1, 1, 1).experts(2, 1),
        Case::of(4, 4, 1, 1, 1).experts(2, 2).sequence_parallel(),
        Case::of(4, 4, 1, 1, 1).experts(2, 2),
    ]
}

/// Ranks that share an expert have tokens of other samples or of other parts of a sequence.
fn across() -> Vec<Case> {
    vec![
        Case::of(2, 1, 1, 1, 1).experts(1, 2),
        Case::of(4, 2, 1, 1, 1).experts(1, 4),
        Case::of(4, 1, 2, 1, 1).experts(2, 2),
        Case::of(6, 2, 1, 1, 1).experts(2, 3),
        Case::of(6, 2, 1, 1, 1).experts(1, 3).sequence_parallel(),
        Case::of(4, 2, 2, 1, 1).experts(1, 4).sequence_parallel(),
    ]
}

/// Exchanging tokens for columns needs ranks that have the same tokens.
const WHOLE_ROWS: [Dispatcher; 2] = [Dispatcher::AllGather, Dispatcher::AllToAll];

#[test]
fn every_way_of_tokens_gives_what_one_rank_gives() {
    let auxiliary = Auxiliary { experts: 0.02, z: 1e-3, ..Auxiliary::default() };
    let routing = Routing { auxiliary, jitter: 0.05, ..Routing::default() };
    for c in [model(true, 0), model(false, 4)] {
        let ways = grids().into_iter().map(|case| (case, &ALL[..]));
        for (case, ways) in ways.chain(across().into_iter().map(|case| (case, &WHOLE_ROWS[..]))) {
            let want = found(&c, &case.alone(), routing, micro(&case));
            for &dispatcher in ways {
                let case = Case { dispatcher, ..case.clone() };
                let got = found(&c, &case, routing, micro(&case));
                compare(&want, &got, Bounds::of(case.dtype)).unwrap_or_else(|e| panic!("{case:?}: {e}"));
                let again = found(&c, &case, routing, micro(&case));
                assert_eq!(got.reports, again.reports, "{case:?}: a second run has other bits");
            }
        }
    }
}

#[test]
fn routers_in_f64_beside_weights_of_fewer_bits_give_what_one_rank_gives() {
    let auxiliary = Auxiliary { experts: 0.02, z: 1e-3, ..Auxiliary::default() };
    let routing = Routing { auxiliary, jitter: 0.05, ..Routing::default() };
    let mut c = model(true, 4);
    let wide = |c: &mut ModelConfig, dtype| c.moe.as_mut().unwrap().router.dtype = dtype;
    for case in [grids().remove(3), grids().remove(4), grids().remove(5)] {
        let case = case.single_precision();
        wide(&mut c, RouterDtype::F32);
        let narrow = found(&c, &case.alone(), routing, micro(&case));
        wide(&mut c, RouterDtype::F64);
        let want = found(&c, &case.alone(), routing, micro(&case));
        let loss = |found: &Found| found.reports[1].loss;
        let (a, b) = (loss(&narrow), loss(&want));
        assert!(a != b && (a - b).abs() < 1e-4 * a, "{a} and {b}: scores in f64 are others, and near");
        for dispatcher in ALL {
            let case = Case { dispatcher, ..case.clone() };
            let got = found(&c, &case, routing, micro(&case));
            compare(&want, &got, Bounds::of(case.dtype)).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        }
    }
}

#[test]
fn ranks_send_around_experts_what_the_formulas_say() {
    // Taken in turn, experts have an even load.
    let routing = Routing { fixed: true, ..Routing::default() };
    for c in [model(true, 0), model(false, 0)] {
        let ways = grids().into_iter().map(|case| (case, &ALL[..]));
        for (case, ways) in ways.chain(across().into_iter().map(|case| (case, &WHOLE_ROWS[..]))) {
            let case = case.single_precision();
            let etp = case.sizes.etp.unwrap_or(case.sizes.tp);
            let passes = micro(&case) * case.sizes.tp * case.sizes.cp / case.world;
            let mut each = Vec::new();
            for &dispatcher in ways {
                let case = Case { dispatcher, ..case.clone() };
                let exchange = ExpertExchange {
                    dispatcher,
                    tokens: ROWS * LENGTH / case.sizes.cp,
                    element_bytes: 4,
                    tp: case.sizes.tp,
                    etp,
                    ep: case.sizes.ep,
                    sequence_parallel: case.sequence_parallel,
                };
                let got = found(&c, &case, routing, micro(&case));
                each.push((case, exchange.of_layer(&c), got));
            }
            for (case, planned, got) in &each {
                for (rank, sent) in got.sent.iter().enumerate() {
                    let of = |group: RankGroup| sent.get(&group).copied().unwrap_or(0) as usize;
                    let planned = |of: fn(&ExpertBytes) -> usize| passes * c.layers * of(planned);
                    for (group, want, what) in [
                        (RankGroup::Ep, planned(|b| b.ep), "to other experts"),
                        (RankGroup::TpEp, planned(|b| b.tp_ep), "around experts"),
                        (RankGroup::ExpertTp, planned(|b| b.etp), "to one expert"),
                    ] {
                        assert_eq!(of(group), want, "{what}, rank {rank}: {case:?}");
                    }
                    // What attention and the ends send in addition is the same.
                    let beside = |i: usize| {
                        let (_, planned, got): &(Case, ExpertBytes, Found) = &each[i];
                        let of = got.sent[rank].get(&RankGroup::Tp).copied().unwrap_or(0) as usize;
                        of as i64 - (passes * c.layers * planned.tp) as i64
                    };
                    assert!((0..each.len()).all(|i| beside(i) == beside(0) && beside(i) >= 0), "{case:?}");
                }
            }
        }
    }
}

/// Of all schedules, with recomputation, what goes to a file or is sent again, and gradients and weights in transit besides.
#[test]
fn what_shared_experts_do_while_tokens_are_on_their_way_changes_no_bit() {
    let auxiliary = Auxiliary { experts: 0.02, ..Auxiliary::default() };
    let routing = Routing { auxiliary, ..Routing::default() };
    let gated = |wide_gate| {
        let mut c = model(true, 0);
        let shared = c.moe.as_mut().unwrap().shared.as_mut().unwrap();
        (shared.gate, shared.wide_gate) = (true, wide_gate);
        c
    };
    // None, one without and two with a gate, with choices that return what they are given.
    let models = [model(false, 0), model(true, 4), gated(false), gated(true)];
    let stages = Stages { pp: 2, ..Stages::default() };
    let both_ends = Stages { dual_pipe: true, ..stages.clone() };
    let four =
        |c: &ModelConfig| ModelConfig { layers: 4, pattern: [&c.pattern[..]; 2].concat(), ..c.clone() };
    let in_stages = Case { bucket_size: Some(300), overlap: true, ..Case::of(4, 1, 1, 2, 2) };
    let again = SavePolicy { recompute_experts: true, recompute_expert_inner: 1, ..SavePolicy::default() };
    let mut cases = grids();
    cases.extend([
        Case { recompute: Recompute::Uniform(1), ..Case::of(4, 2, 1, 1, 2).sequence_parallel() },
        Case { save_policy: again, ..Case::of(4, 2, 1, 1, 2) },
        Case { overlap: true, overlap_gather: true, bucket_size: Some(300), ..Case::of(4, 1, 1, 1, 2) },
        Case { stages: stages.clone(), ..in_stages.clone() },
        Case { stages, order: PipelineOrder::ZeroBubble { group: None }, ..in_stages.clone() },
        Case { stages: both_ends, order: PipelineOrder::DualPipeV, ..in_stages },
    ]);
    for case in cases {
        for (c, dtype) in models.iter().zip([DType::F32, DType::F32, DType::Bf16]) {
            let c = if case.sizes.pp > 1 { four(c) } else { c.clone() };
            let shape = Shape { rows: 1, length: LENGTH, micro: 8, packed: true };
            let steps = batches(&c, shape, 2);
            for dispatcher in ALL {
                let waiting = Case { dispatcher, dtype, ..case.clone() };
                let beside = Case { overlap_experts: true, ..waiting.clone() };
                let [waiting, beside] = [&waiting, &beside]
                    .map(|case| run(&c, case, routing, &steps).unwrap_or_else(|e| panic!("{case:?}: {e}")));
                same(&format!("{dispatcher:?}, {dtype}: {case:?}"), &waiting, &beside);
                assert_eq!(waiting.sent, beside.sent, "as many bytes");
            }
        }
    }
}
