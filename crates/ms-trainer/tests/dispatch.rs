//! How tokens reach experts: the same values whichever way, and the bytes that the plan says.

#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

mod parity;

use ms_core::Dispatcher;
use ms_core::ops::Auxiliary;
use ms_spec::{ExpertBytes, ExpertExchange, Feed, Layer, ModelConfig, Moe, Router, Score, SharedExpert};
use ms_trainer::Routing;
use ms_trainer::parity::{Bounds, Found, Shape, batches, compare};
use parity::{Case, run};

const ROWS: usize = 2;
const LENGTH: usize = 16;
const MICRO: usize = 4;
const ALL: [Dispatcher; 3] = [Dispatcher::AllGather, Dispatcher::AllToAll, Dispatcher::AllToAllSeq];

fn model(shared: bool, zero_experts: usize) -> ModelConfig {
    let router = Router {
        score: Score::SoftmaxOfChosen,
        bias: false,
        linear_bias: false,
        groups: None,
        renormalise: false,
        scale: 1.0,
        f32: false,
    };
    let shared = shared.then_some(SharedExpert { ffn: 8, gate: false });
    let moe = Moe { experts: 8, top_k: 2, ffn: 12, router, shared, zero_experts };
    ModelConfig {
        groups: 4,
        init_std: 0.4,
        moe: Some(moe),
        pattern: vec![Layer { feed: Feed::Moe, ..Layer::default() }; 2],
        ..ModelConfig::tiny()
    }
}

fn found(c: &ModelConfig, case: &Case, routing: Routing) -> Found {
    let shape = Shape { rows: ROWS, length: LENGTH, micro: MICRO, packed: true };
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

#[test]
fn every_way_of_tokens_gives_what_one_rank_gives() {
    let auxiliary = Auxiliary { experts: 0.02, z: 1e-3, ..Auxiliary::default() };
    let routing = Routing { auxiliary, jitter: 0.05, ..Routing::default() };
    for c in [model(true, 0), model(false, 4)] {
        for case in grids() {
            let want = found(&c, &case.alone(), routing);
            for dispatcher in ALL {
                let case = Case { dispatcher, ..case.clone() };
                let got = found(&c, &case, routing);
                compare(&want, &got, Bounds::of(case.dtype)).unwrap_or_else(|e| panic!("{case:?}: {e}"));
                let again = found(&c, &case, routing);
                assert_eq!(got.reports, again.reports, "{case:?}: a second run has other bits");
            }
        }
    }
}

#[test]
fn ranks_send_around_experts_what_the_formulas_say() {
    // Taken in turn, experts have an even load.
    let routing = Routing { fixed: true, ..Routing::default() };
    for c in [model(true, 0), model(false, 0)] {
        for case in grids() {
            let case = case.single_precision();
            let etp = case.sizes.etp.unwrap_or(case.sizes.tp);
            let micro = MICRO * case.sizes.tp * case.sizes.cp / case.world;
            let mut each = Vec::new();
            for dispatcher in ALL {
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
                let got = found(&c, &case, routing);
                each.push((case, exchange.of_layer(&c), got));
            }
            for (case, planned, got) in &each {
                for (rank, sent) in got.sent.iter().enumerate() {
                    let of = |group: &str| sent.get(group).copied().unwrap_or(0) as usize;
                    let planned = |of: fn(&ExpertBytes) -> usize| micro * c.layers * of(planned);
                    assert_eq!(of("ep"), planned(|b| b.ep), "to other experts, rank {rank}: {case:?}");
                    assert_eq!(of("expert-tp"), planned(|b| b.etp), "to one expert, rank {rank}: {case:?}");
                    // What attention and the ends send beside is the same.
                    let beside = |i: usize| {
                        let (_, planned, got): &(Case, ExpertBytes, Found) = &each[i];
                        let of = got.sent[rank].get("tp").copied().unwrap_or(0) as usize;
                        of as i64 - (micro * c.layers * planned.tp) as i64
                    };
                    assert!((0..3).all(|i| beside(i) == beside(0) && beside(i) >= 0), "{case:?}");
                }
            }
        }
    }
}
