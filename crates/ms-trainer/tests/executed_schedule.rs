//! What stages execute, as recorded in a profile, is what the schedule says: the same actions in the same order, and during
//! each as many live passes as the schedule computes. A program of its own, since it records all threads.

#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

#[path = "all/parity/mod.rs"]
mod parity;

use ms_core::StageChunk;
use ms_nn::Recompute;
use ms_spec::{ModelConfig, Placement};
use ms_trace::{Event, Recorder};
use ms_trainer::parity::{Shape, batches};
use ms_trainer::{PipelineOrder, RecomputeTiming, Routing};
use parity::{Case, run, small_experts};
use std::collections::BTreeSet;
use tracing_subscriber::prelude::*;

/// An action as the schedule writes it, and the passes that were kept meanwhile.
fn action(event: &Event) -> Option<(String, usize)> {
    let letter = match event.name.as_str() {
        "forward" => 'F',
        "backward" => 'B',
        "backward by inputs" => 'I',
        "backward by weights" => 'W',
        _ => return None,
    };
    let number = |key: &str| -> usize {
        let fields = event.detail.split(' ').find_map(|field| field.strip_prefix(key));
        fields.unwrap().parse().unwrap()
    };
    Some((format!("{letter}{}.{}", number("micro="), number("chunk=")), number("live=")))
}

#[test]
fn stages_do_what_the_schedule_says_with_as_many_passes_kept() {
    let recorder = Recorder::new();
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(recorder.clone())).unwrap();
    recorder.set(true);
    let model = |layers, experts: bool| {
        let base = if experts { small_experts() } else { ModelConfig::default() };
        let pattern = base.pattern.iter().cycle().take(if experts { layers } else { 0 }).cloned().collect();
        ModelConfig {
            layers,
            pattern,
            hidden: 8,
            ffn: 12,
            heads: 2,
            groups: 1,
            head_dim: 4,
            vocab: 20,
            padded_vocab: 20,
            max_positions: 16,
            ..base
        }
    };
    let plain = PipelineOrder::default();
    let late = PipelineOrder::Plain { group: None, forwards_first: false };
    let groups = PipelineOrder::Plain { group: Some(3), forwards_first: false };
    let (mut seen, mut pairs, mut run_again) = (0, 0, 0);
    let cases = [
        (2, 4, 1, false, plain),
        (4, 8, 1, false, plain),
        (3, 5, 1, false, PipelineOrder::ZeroBubble { group: None }),
        (2, 4, 2, false, plain),
        (2, 4, 2, false, PipelineOrder::ZeroBubble { group: None }),
        (2, 6, 3, false, PipelineOrder::ZeroBubble { group: Some(3) }),
        (2, 2, 2, false, plain),
        (3, 6, 2, false, late),
        (2, 6, 3, false, groups),
        (3, 7, 2, true, PipelineOrder::DualPipeV),
        (3, 4, 1, false, PipelineOrder::Random(5)),
        (2, 5, 2, false, PipelineOrder::Random(6)),
        (3, 3, 2, true, PipelineOrder::Random(7)),
        (1, 4, 1, false, plain),
    ];
    // Overlapped passes, experts, recomputation in the bubble, and ranks along tp and dp with recomputed layers.
    let none = Recompute::None;
    let ways = [
        (false, false, false, (1, 1, none)),
        (true, false, false, (1, 1, none)),
        (false, true, true, (1, 1, none)),
        (true, true, false, (1, 1, none)),
        (false, false, true, (2, 1, none)),
        (true, false, false, (1, 2, Recompute::Uniform(1))),
        (false, true, false, (2, 2, Recompute::Block(1))),
    ];
    for ((pp, micro, chunks, dual, order), (beside, experts, in_bubble, (tp, dp, recompute))) in
        cases.into_iter().flat_map(|case| ways.map(|way| (case, way)))
    {
        // Weight gradients that are deferred, and chunks from both ends, have no passes that keep inputs alone.
        let in_bubble = in_bubble && matches!(order, PipelineOrder::Plain { .. });
        let config = model(pp * chunks, experts).validate().unwrap();
        let mut case = Case::of(tp * dp * pp, tp, 1, pp, 1);
        (case.order, case.overlap_passes, case.recompute) = (order, beside, recompute);
        case.sequence_parallel = tp > 1;
        if in_bubble {
            case.recompute_timing = RecomputeTiming::InBubble;
        }
        case.stages.dual_pipe = dual;
        case.stages.layers_per_chunk = (chunks > 1 && !dual).then_some(1);
        let shape = Shape { rows: 1, length: 8, micro: micro * dp, packed: false };
        let steps = batches(&config, shape, 1);
        drop(recorder.take());
        run(&config, &case, Routing::default(), &steps).unwrap();
        let events = recorder.take();
        let placement = Placement::new(&config, &case.stages).unwrap();
        let schedule = order.schedule(&placement.order(), micro, beside).unwrap();
        pairs += schedule.overlapped.iter().map(BTreeSet::len).sum::<usize>();
        let simulated = schedule.simulate().unwrap();
        for rank in 0..case.world {
            let stage = rank / (tp * dp);
            let of_stage = events.iter().filter(|e| e.rank == rank).filter_map(action);
            let (actions, live): (Vec<String>, Vec<usize>) = of_stage.unzip();
            // The gradients of the first step are looked at before it is trained.
            let (first, second) = actions.split_at(actions.len() / 2);
            let at = format!("{order:?}, beside {beside}, rank {rank}");
            assert_eq!(first.join(" "), schedule.text(stage), "{at}");
            assert_eq!(first, second, "{at}");
            let last = |chunk| schedule.chain.last() == Some(&StageChunk { stage, chunk });
            let only_inputs =
                if in_bubble { schedule.recomputed_in_bubble(stage, last) } else { BTreeSet::new() };
            run_again += only_inputs.len();
            let planned = schedule.in_flight(stage, &only_inputs);
            let what =
                format!("{order:?}, beside {beside}, in bubble {in_bubble}, tp {tp}, dp {dp}, stage {stage}");
            assert_eq!(live, [&planned[..], &planned].concat(), "{what}");
            if !in_bubble {
                assert_eq!(planned.iter().max(), Some(&simulated.max_in_flight[stage]), "{what}");
            }
            seen += first.len();
        }
    }
    // Deferred work of the output layer comes after everything else of the last stage.
    let (config, mut case) = (model(2, false).validate().unwrap(), Case::of(2, 1, 1, 2, 1));
    case.defer_embedding_wgrad = Some(3);
    drop(recorder.take());
    let shape = Shape { rows: 1, length: 8, micro: 5, packed: false };
    run(&config, &case, Routing::default(), &batches(&config, shape, 1)).unwrap();
    let events = recorder.take();
    let placement = Placement::new(&config, &case.stages).unwrap();
    let schedule = plain.schedule(&placement.order(), 5, false).unwrap();
    for (stage, behind) in [(0, ""), (1, " W0.0 W1.0 W2.0")] {
        let (actions, _): (Vec<String>, Vec<usize>) =
            events.iter().filter(|e| e.rank == stage).filter_map(action).unzip();
        let first = &actions[..actions.len() / 2];
        assert_eq!(first.join(" "), format!("{}{behind}", schedule.text(stage)));
    }
    assert!(seen > 2000 && pairs > 100 && run_again >= 10, "{seen} {pairs} {run_again}");
}
