//! Overlapped forward and backward passes: not a bit changes, and every rank sends the same.

use crate::parity::{Case, run, same};
use ms_core::ops::Auxiliary;
use ms_core::{DType, Dispatcher};
use ms_nn::{Recompute, SavePolicy, Swapped};
use ms_spec::{Feed, Layer, ModelConfig, Moe, Router, Score, SharedExpert, Stages};
use ms_trainer::parity::{Shape, batches};
use ms_trainer::{PipelineOrder, RecomputeTiming, Routing};

/// Layers with and without experts in turn, four experts a layer with or without one that all tokens share.
fn model(layers: usize, shared: bool) -> ModelConfig {
    let router = Router::plain(Score::SoftmaxOfChosen);
    let shared = shared.then_some(SharedExpert { ffn: 8, gate: false, wide_gate: false });
    let moe = Moe { experts: 4, top_k: 2, ffn: 12, router, shared, zero_experts: 0 };
    let feed = |layer: usize| if layer % 3 == 1 { Feed::Dense } else { Feed::Moe };
    ModelConfig {
        groups: 4,
        init_std: 0.4,
        layers,
        moe: Some(moe),
        pattern: (0..layers).map(|l| Layer { feed: feed(l), ..Layer::default() }).collect(),
        ..ModelConfig::tiny()
    }
}

/// The same bits with overlapped passes, for the same number of micro-batches.
fn changes_nothing(c: &ModelConfig, case: &Case, micro: usize) {
    let auxiliary = Auxiliary { experts: 0.02, ..Auxiliary::default() };
    let routing = Routing { auxiliary, bias_update_rate: 1e-3, ..Routing::default() };
    let steps = batches(c, Shape { rows: 1, length: 16, micro, packed: true }, 2);
    let beside = Case { overlap_passes: true, ..case.clone() };
    let [waiting, beside] =
        [case, &beside].map(|case| run(c, case, routing, &steps).unwrap_or_else(|e| panic!("{case:?}: {e}")));
    same(&format!("{case:?}"), &waiting, &beside);
    assert_eq!(waiting.sent, beside.sent, "as many bytes: {case:?}");
    assert_eq!(waiting.step_sent, beside.step_sent, "as many bytes: {case:?}");
}

/// Two stages of two ranks each, with two chunks: one behind the other's, or from both ends.
fn in_chunks(dual_pipe: bool) -> Case {
    let layers_per_chunk = (!dual_pipe).then_some(1);
    let order = if dual_pipe {
        PipelineOrder::DualPipeV
    } else {
        PipelineOrder::Plain { group: None, forwards_first: false }
    };
    let stages = Stages { pp: 2, dual_pipe, layers_per_chunk, ..Stages::default() };
    Case { stages, order, dispatcher: Dispatcher::AllToAll, ..Case::of(4, 1, 1, 2, 2) }
}

#[test]
fn passes_beside_each_other_change_no_bit_on_one_stage() {
    let to_all = |case: Case| Case { dispatcher: Dispatcher::AllToAll, ..case };
    let again = SavePolicy { recompute_experts: true, recompute_expert_inner: 1, ..SavePolicy::default() };
    let swapped = SavePolicy { swapped: Swapped::ATTENTION, recompute_networks: 1, ..SavePolicy::default() };
    let network = SavePolicy { recompute_expert_networks: true, ..SavePolicy::default() };
    let two = to_all(Case::of(2, 1, 1, 1, 2));
    for case in [
        Case { threads: 3, dtype: DType::F32, ..two.clone() },
        Case { dtype: DType::Bf16, ..two.clone() },
        Case { recompute: Recompute::Uniform(2), ..two.clone() },
        Case { recompute: Recompute::Block(1), dropout: 0.1, ..two.clone() },
        Case { save_policy: again, ..two.clone() },
        Case { save_policy: swapped, ..two.clone() },
        Case { save_policy: network, ..two.clone() },
        Case {
            overlap: true,
            overlap_gather: true,
            bucket_size: Some(300),
            ..to_all(Case::of(4, 1, 1, 1, 2))
        },
        to_all(Case::of(4, 2, 1, 1, 2)).experts(2, 1).sequence_parallel(),
        to_all(Case::of(4, 2, 1, 1, 2)),
        to_all(Case::of(4, 1, 2, 1, 2)),
        Case { dispatcher: Dispatcher::AllToAllSeq, ..Case::of(4, 2, 1, 1, 2) },
        // Where tokens are gathered, nobody works meanwhile.
        Case::of(2, 1, 1, 1, 2),
    ] {
        for shared in [false, true] {
            let dp = case.world / (case.sizes.tp * case.sizes.cp);
            changes_nothing(&model(4, shared), &case, 3 * dp);
        }
    }
    let predicts = ModelConfig { mtp: 1, ..model(4, true) };
    changes_nothing(&predicts, &two, 6);
    let save_policy = SavePolicy { recompute_predictor_layers: true, ..SavePolicy::default() };
    changes_nothing(&predicts, &Case { save_policy, ..two }, 6);
}

#[test]
fn passes_beside_each_other_change_no_bit_in_a_pipeline() {
    for case in [in_chunks(false), in_chunks(true)] {
        let again = SavePolicy { recompute_experts: true, ..SavePolicy::default() };
        for case in [
            Case { dtype: DType::F32, threads: 2, ..case.clone() },
            Case { recompute: Recompute::Block(1), ..case.clone() },
            Case { save_policy: again, overlap: true, bucket_size: Some(300), ..case.clone() },
        ] {
            changes_nothing(&model(4, true), &case, 12);
        }
        if !case.stages.dual_pipe {
            let recompute_timing = RecomputeTiming::InBubble;
            changes_nothing(&model(4, false), &Case { recompute_timing, ..case.clone() }, 12);
        }
        let predicts = ModelConfig { mtp: 1, ..model(4, true) };
        changes_nothing(&predicts, &case, 8);
    }
    // Orders in which a plain pipeline, or one without chunks, has no pairs.
    for order in [PipelineOrder::default(), PipelineOrder::ZeroBubble { group: None }] {
        let stages = Stages { pp: 2, ..Stages::default() };
        let case = Case { stages, order, dispatcher: Dispatcher::AllToAll, ..Case::of(4, 1, 1, 2, 2) };
        changes_nothing(&model(4, true), &case, 8);
    }
}

#[test]
fn passes_beside_each_other_change_no_bit_in_any_order() {
    for seed in 0..12 {
        let mut case = in_chunks(seed % 3 == 0);
        case.order = PipelineOrder::Random(seed);
        changes_nothing(&model(4, seed % 4 < 2), &case, 8);
    }
}
