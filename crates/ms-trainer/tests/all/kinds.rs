//! Switching recomputation and swapping on and off changes no bit of hybrids and of models with sinks, and takes the planned
//! bytes, also where several parallel axes meet.

use crate::memory::far_from_plan;
use crate::parity::samples::{delta_nets, dense, experts, latent, sinks, states};
use crate::parity::{Case, run, same};
use ms_core::{DType, Dispatcher};
use ms_dist::{ContextParallel, LinearOverlap, Pieces};
use ms_nn::{Recompute, SavePolicy, Swapped};
use ms_spec::{ModelConfig, Stages};
use ms_trainer::parity::{Found, Shape, batches};
use ms_trainer::{PipelineOrder, Routing};

const ROWS: usize = 2;
const LENGTH: usize = 32;
const ALL: usize = usize::MAX;

/// Kinds of models that `bits`, `keeping` and `memory` do not cover.
fn kinds() -> [(&'static str, ModelConfig); 3] {
    [("delta nets", delta_nets()), ("states", states()), ("sinks", sinks())]
}

/// What a run can do to keep less.
fn features() -> [(&'static str, Recompute, SavePolicy); 7] {
    let none = SavePolicy::default();
    let swapped = Swapped::ATTENTION;
    [
        ("uniform, 1", Recompute::Uniform(1), none),
        ("uniform, 2", Recompute::Uniform(2), none),
        ("block", Recompute::Block(1), none),
        ("swap", Recompute::None, SavePolicy { swapped, ..none }),
        ("core attention", Recompute::None, SavePolicy { recompute_core_attention: true, ..none }),
        (
            "activations and norms",
            Recompute::None,
            SavePolicy { recompute_activations: ALL, recompute_norms: ALL, ..none },
        ),
        ("block and swap", Recompute::Block(1), SavePolicy { swapped, recompute_norms: ALL, ..none }),
    ]
}

/// Two steps of `each` micro-batches on a data-parallel rank.
fn found(c: &ModelConfig, case: &Case, each: usize) -> Found {
    let micro = each * case.world / (case.sizes.tp * case.sizes.cp * case.sizes.pp);
    let shape = Shape { rows: ROWS, length: LENGTH, micro, packed: true };
    run(c, case, Routing::default(), &batches(c, shape, 2)).unwrap_or_else(|e| panic!("{case:?}: {e}"))
}

#[test]
fn hybrids_and_sinks_that_keep_less_have_the_same_bits() {
    let grids = [
        Case::single(),
        Case::of(2, 2, 1, 1, 1).sequence_parallel(),
        Case { dropout: 0.1, ..Case::of(2, 1, 1, 2, 1) },
        Case::of(2, 1, 2, 1, 1),
        Case { order: PipelineOrder::ZeroBubble { group: None }, ..Case::of(4, 2, 1, 2, 1) },
    ];
    for (i, (kind, c)) in kinds().into_iter().enumerate() {
        for (j, case) in grids.iter().enumerate() {
            let dtype = if (i + j) % 2 == 0 { DType::F32 } else { DType::Bf16 };
            let case = Case { dtype, ..case.clone() };
            let plain = found(&c, &case, case.sizes.pp);
            for (feature, recompute, save_policy) in features() {
                let less = found(&c, &Case { recompute, save_policy, ..case.clone() }, case.sizes.pp);
                let what = format!("{kind}, {feature}, {dtype}, {:?}", case.sizes);
                same(&what, &plain, &less);
                let kept = less.bytes.iter().zip(&plain.bytes).any(|(a, b)| a.kept < b.kept);
                assert!(kept, "{what}: no stage keeps less");
            }
        }
    }
}

#[test]
fn hybrids_and_sinks_have_the_same_bits_with_exchanges_beside_other_work() {
    let pieces =
        |n| LinearOverlap { weight_gradients: true, pieces: Pieces::Number(n), ..LinearOverlap::default() };
    for (kind, c) in kinds() {
        for case in [
            Case::of(2, 1, 1, 1, 1),
            Case::of(4, 2, 1, 1, 1).sequence_parallel(),
            Case { recompute: Recompute::Uniform(1), ..Case::of(4, 1, 1, 2, 1) },
            Case::of(4, 1, 2, 1, 1),
        ] {
            let waiting = LinearOverlap { weight_gradients: false, ..LinearOverlap::default() };
            let case = Case { bucket_size: Some(300), linears: waiting, ..case }.single_precision();
            let plain = found(&c, &case, 4);
            for (what, other) in [
                ("gradients", Case { overlap: true, ..case.clone() }),
                ("weights", Case { overlap_gather: true, overlap_gather_with_step: true, ..case.clone() }),
                ("all", Case { overlap: true, overlap_gather: true, linears: pieces(2), ..case.clone() }),
                ("borders", Case { waits_at_borders: true, ..case.clone() }),
            ] {
                let got = found(&c, &other, 4);
                same(&format!("{kind}, {what}: {:?}", case.sizes), &plain, &got);
                assert_eq!(plain.sent, got.sent, "{kind}, {what}: as many bytes");
            }
        }
    }
}

#[test]
fn hybrids_and_sinks_and_all_kinds_on_several_axes_take_what_is_planned() {
    let mut cases: Vec<(&str, ModelConfig, &str, Case)> = Vec::new();
    for (kind, c) in kinds() {
        cases.push((kind, c.clone(), "plain", Case::single()));
        for (feature, recompute, save_policy) in features() {
            cases.push((kind, c.clone(), feature, Case { recompute, save_policy, ..Case::single() }));
        }
    }
    let swap = SavePolicy { swapped: Swapped::ATTENTION, ..SavePolicy::default() };
    let norms = SavePolicy { recompute_norms: ALL, ..SavePolicy::default() };
    let ring = ContextParallel::Ring { window: 1 };
    let both = Case::of(4, 2, 1, 2, 1).sequence_parallel();
    let uniform = Case { recompute: Recompute::Uniform(1), ..both.clone() };
    let swapped = Case { save_policy: swap, ..Case::of(4, 2, 2, 1, 1).sequence_parallel() };
    let chunked = Case {
        recompute: Recompute::Block(1),
        save_policy: norms,
        stages: Stages { pp: 2, layers_per_chunk: Some(1), ..Stages::default() },
        // Sums are waited for where they begin: how long a bucket that is in flight is held depends on other threads (3 %
        // once).
        bucket_size: Some(3000),
        ..Case::of(4, 1, 1, 2, 1)
    };
    for (kind, c) in kinds().into_iter().chain([("dense", dense()), ("latent", latent())]) {
        cases.push((kind, c.clone(), "tp, pp, recompute", uniform.clone()));
        cases.push((kind, c.clone(), "tp, cp, swap", swapped.clone()));
        cases.push((kind, c, "pp, dp, chunks, block, norms", chunked.clone()));
    }
    let sent = |case| Case { dispatcher: Dispatcher::AllToAll, ..case };
    for (feature, case) in [
        ("tp, pp, recompute", uniform),
        ("cp, ep, swap", Case { save_policy: swap, ..Case::of(4, 1, 2, 1, 2).context(ring) }),
        (
            "tp, pp, ep, block",
            sent(Case { recompute: Recompute::Block(1), ..Case::of(8, 2, 1, 2, 2).sequence_parallel() }),
        ),
        (
            "cp, ep, swap, experts again",
            sent(Case {
                save_policy: SavePolicy { recompute_experts: true, ..swap },
                ..Case::of(4, 1, 2, 1, 2)
            }),
        ),
    ] {
        cases.push(("experts", experts(), feature, case));
    }
    // Tokens in turn, so that the rehearsal's experts have as many as the run's.
    let routing = Routing { fixed: true, ..Routing::default() };
    let mut wrong = Vec::new();
    for (i, (kind, c, feature, case)) in cases.iter().enumerate() {
        let dtype = if i % 2 == 0 { DType::F32 } else { DType::Bf16 };
        let micro = 4 * case.world / (case.sizes.tp * case.sizes.cp * case.sizes.pp);
        let shape = Shape { rows: ROWS, length: LENGTH, micro, packed: false };
        let what = format!("{kind}, {feature}, {dtype}");
        wrong.extend(far_from_plan(&what, c, &Case { dtype, ..case.clone() }, (routing, shape)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
