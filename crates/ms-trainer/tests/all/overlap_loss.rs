//! The gradient of the output layer's input is in transit while others are computed (in simulated time), and this changes no
//! bit.

use crate::parity::same;
use crate::simulated_network::{WAITING, grown_by, time_of_work_behind};
use ms_core::{DType, Grid, GridRules, GridSizes};
use ms_dist::{LinearOverlap, ParallelOptions};
use ms_spec::ModelConfig;
use ms_trainer::parity::{Shape, Trial, batches};
use ms_trainer::{Checks, PipelineConfig, Rates, TrainConfig};

/// A layer, and an output layer that is most of the work.
fn trial(linears: LinearOverlap, (tp, dtype): (usize, DType), ways: (bool, bool), length: usize) -> Trial {
    let model = ModelConfig {
        layers: 1,
        init_std: 0.02,
        vocab: 96,
        padded_vocab: 96,
        max_positions: length,
        ..ModelConfig::tiny()
    };
    let (sequence_parallel, put_off) = ways;
    let config = TrainConfig {
        tp_overlap: linears,
        pipeline: PipelineConfig {
            defer_embedding_wgrad: put_off.then_some(usize::MAX),
            ..PipelineConfig::default()
        },
        checks: Checks::NONE,
        ..TrainConfig::steps(model, dtype, length, 1)
    };
    Trial {
        config,
        grid: Grid::new(tp, &GridSizes { tp, ..GridSizes::default() }, GridRules::V2).unwrap(),
        parallel: ParallelOptions { sequence_parallel, ..ParallelOptions::default() },
        rates: Rates::from((1e-3, 0.1)),
    }
}

/// By which share of what the wire takes a step grows, where sums of gradients with respect to the output layer's input alone
/// go over it: half of what the output layer's products take, about.
fn grown(linears: LinearOverlap, ways: (bool, bool), length: usize) -> f64 {
    // Among many tokens attention is most of the work.
    let share = if length > 64 { 0.01 } else { 0.05 };
    grown_by(share, |per_byte| {
        let only = (&["enter_tp"][..], Some("loss statistics"));
        time_of_work_behind(&trial(linears, (2, DType::F64), ways, length), only, per_byte)
    })
}

#[test]
fn the_gradient_by_the_output_layers_input_is_on_its_way_while_others_are_formed() {
    for sequence_parallel in [false, true] {
        // One chunk of tokens: overlaps with the gradient of the layer's weights. Several: also with the next chunk's
        // products, which is all there is if that gradient is deferred.
        for (length, put_off, bound) in [(64, false, 0.01), (1024, false, 0.01), (1024, true, 0.3)] {
            let ways = (sequence_parallel, put_off);
            let plain = grown(WAITING, ways, length);
            assert!((plain - 1.0).abs() < 1e-9, "without overlap all of it: {plain}");
            let beside = grown(LinearOverlap::default(), ways, length);
            println!(
                "sequence parallel {sequence_parallel}, {length} tokens, put off {put_off}: share of the wire's time that a step \
                 waits: {beside:.2}"
            );
            assert!(beside < bound, "{beside}");
        }
    }
}

#[test]
fn it_changes_no_bit() {
    // Ranks whose shares of the tokens are not cut into chunks evenly, too.
    for (tp, length) in [(2, 600), (4, 600), (4, 64)] {
        for sequence_parallel in [false, true] {
            let bits = |linears, put_off| {
                let trial = trial(linears, (tp, DType::F32), (sequence_parallel, put_off), length);
                let shape = Shape { rows: 1, length, micro: 2, packed: false };
                let steps = batches(&trial.config.model, shape, 2);
                trial.run(&|| ms_cpu::device(1), &steps, None).unwrap()
            };
            let waiting = bits(WAITING, false);
            for put_off in [false, true] {
                let what = format!("tp {tp}, sequence parallel {sequence_parallel}, put off {put_off}");
                let beside = bits(LinearOverlap::default(), put_off);
                same(&what, &waiting, &beside);
                assert_eq!(waiting.sent, beside.sent, "{what}: as many bytes");
            }
        }
    }
}
