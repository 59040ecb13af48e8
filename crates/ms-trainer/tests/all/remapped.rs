//! Adaptive context parallelism with ranks whose tokens attend alike but are not contiguous: the same as on one rank, with
//! fewer attention blocks sent.

use crate::parity::{Case, Fault, Wrong, run, run_with, same, small_experts};
use ms_core::{DType, RankGroup};
use ms_data::MicroBatch;
use ms_dist::{ContextParallel, TokenMapping};
use ms_spec::{ModelConfig, Position};
use ms_trainer::Routing;
use ms_trainer::parity::{Bounds, Shape, batches, compare};

const LENGTH: usize = 48;

fn adaptive(ulysses: usize, remap: TokenMapping) -> ContextParallel {
    ContextParallel::Adaptive { ulysses, remap }
}

/// Steps whose rows have documents that borders of ranks cut, where tokens stay in order.
fn steps(c: &ModelConfig) -> Vec<Vec<MicroBatch>> {
    let mut steps = batches(c, Shape { rows: 2, length: LENGTH, micro: 2, packed: true }, 2);
    for mb in steps.iter_mut().flatten() {
        mb.cu_seqlens = [0, 15, 33, 42, 48, 48 + 7, 48 + 40, 96].to_vec();
        let place = |t: i32| t - mb.cu_seqlens.iter().copied().filter(|b| *b <= t).max().unwrap();
        mb.position_ids = (0..96).map(place).collect();
    }
    steps
}

#[test]
fn tokens_that_are_not_neighbours_train_as_on_one_rank() {
    let plain = ModelConfig { layers: 2, heads: 12, groups: 6, ..ModelConfig::tiny() };
    let windowed = ModelConfig { sliding_window: Some(7), position: Position::Alibi, ..plain.clone() };
    let ahead = ModelConfig { mtp: 2, ..plain.clone() };
    for (what, c) in [("plain", plain), ("window", windowed), ("ahead", ahead), ("experts", small_experts())]
    {
        let steps = steps(&c);
        for (cp, tp, ulysses) in [(2, 1, 1), (3, 1, 1), (4, 1, 1), (4, 1, 2), (2, 2, 1)] {
            if what == "experts" && cp == 3 {
                continue;
            }
            let case = Case::of(cp * tp, tp, cp, 1, 1);
            let case = if tp > 1 { case.sequence_parallel() } else { case };
            let want = run(&c, &case.alone(), Routing::default(), &steps).unwrap();
            for remap in [TokenMapping::Runs, TokenMapping::Tokens] {
                let case = case.clone().context(adaptive(ulysses, remap));
                let got = run(&c, &case, Routing::default(), &steps).unwrap();
                compare(&want, &got, Bounds::of(DType::F64)).unwrap_or_else(|e| {
                    panic!("{what}, {remap:?}, cp {cp}, tp {tp}, ulysses {ulysses}: {e}")
                });
            }
        }
    }
}

#[test]
fn fewer_blocks_are_sent_and_faults_are_found() {
    let c = ModelConfig { layers: 2, ..ModelConfig::tiny() };
    let steps = steps(&c);
    let case = |remap| Case::of(4, 1, 4, 1, 1).context(adaptive(1, remap)).single_precision();
    let of = |remap| run(&c, &case(remap), Routing::default(), &steps).unwrap();
    let [in_order, remapped] = [TokenMapping::InOrder, TokenMapping::Tokens].map(|remap| {
        let bytes: u64 = of(remap).sent.iter().map(|sent| sent[&RankGroup::Ring]).sum();
        bytes
    });
    println!("bytes around a ring of four: in order {in_order}, remapped {remapped}");
    assert!(5 * remapped < 4 * in_order, "{remapped} of {in_order}");
    same("a second run", &of(TokenMapping::Tokens), &of(TokenMapping::Tokens));
    let exact = Case::of(4, 1, 4, 1, 1).context(adaptive(1, TokenMapping::Tokens));
    let want = run(&c, &exact.alone(), Routing::default(), &steps).unwrap();
    for exchange in ["keys and values", "gradients of keys and values"] {
        let fault = Fault { exchange, wrong: Wrong::Stale };
        let got = run_with(&c, &exact, Routing::default(), &steps, Some(fault)).unwrap();
        assert!(compare(&want, &got, Bounds::of(DType::F64)).is_err(), "{exchange}");
    }
}
