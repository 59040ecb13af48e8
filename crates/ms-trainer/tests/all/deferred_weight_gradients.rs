//! Weight gradients are computed during the communication that follows their layer in the backward pass (in simulated time),
//! and this changes no bit.

use crate::parity::same;
use crate::simulated_network::{WAITING, grown_by, time_of_work};
use ms_core::{DType, Dispatcher, Grid, GridRules, GridSizes};
use ms_dist::{ContextParallel, LinearOverlap, ParallelOptions};
use ms_spec::{Attention, Compressed, Feed, Layer, ModelConfig, Moe, Pooled, Rope, Router, Score, Scores};
use ms_trainer::parity::{Shape, Trial, batches};
use ms_trainer::{Checks, Rates, TrainConfig};

const LENGTH: usize = 64;

fn size() -> ModelConfig {
    ModelConfig { layers: 2, init_std: 0.02, max_positions: LENGTH, ..ModelConfig::tiny() }
}

/// Two layers with four experts each.
fn experts() -> ModelConfig {
    let router = Router::plain(Score::SoftmaxOfChosen);
    let moe = Moe { experts: 4, top_k: 2, ffn: 32, router, shared: None, zero_experts: 0 };
    let pattern = vec![Layer { feed: Feed::Moe, ..Layer::default() }; 2];
    ModelConfig { moe: Some(moe), pattern, ..size() }
}

/// Two layers that see pooled entries.
fn pooled() -> ModelConfig {
    let base = ModelConfig { ffn: 48, ..size() };
    let rope = Rope { fraction: 0.5, interleaved: true, ..base.rope.clone() };
    ModelConfig {
        heads: 4,
        groups: 1,
        head_dim: 4,
        sliding_window: Some(8),
        rope: rope.clone(),
        scores: Scores { sinks: true, ..Scores::default() },
        attention: Attention::Compressed(Compressed { q_rank: 16, out_groups: 2, out_rank: 8, rope }),
        pattern: vec![Layer { pooled: Some(Pooled { ratio: 4, picked: false }), ..Layer::default() }; 2],
        ..base
    }
}

/// How ranks work together.
struct Ways {
    sizes: GridSizes,
    dispatcher: Dispatcher,
    context: ContextParallel,
    overlap_experts: bool,
}

impl Default for Ways {
    fn default() -> Self {
        let (sizes, context) = (GridSizes::default(), ContextParallel::Gather);
        Self { sizes, dispatcher: Dispatcher::default(), context, overlap_experts: false }
    }
}

fn trial(model: ModelConfig, ways: &Ways, linears: LinearOverlap, dtype: DType) -> Trial {
    let &Ways { ref sizes, dispatcher, context, overlap_experts } = ways;
    let world = sizes.tp * sizes.cp.max(1) * sizes.ep.max(1);
    Trial {
        config: TrainConfig {
            tp_overlap: linears,
            checks: Checks::NONE,
            ..TrainConfig::steps(model, dtype, LENGTH, 1)
        },
        grid: Grid::new(world, sizes, GridRules::V2).unwrap(),
        parallel: ParallelOptions {
            sequence_parallel: sizes.tp > 1 && sizes.ep > 1,
            context,
            dispatcher,
            overlap_experts,
            ..ParallelOptions::default()
        },
        rates: Rates::from((1e-3, 0.1)),
    }
}

/// By which share of what these exchanges take, a hundredth of what products take, a step grows, waiting for each and not.
fn grown(model: &ModelConfig, ways: &Ways, names: &'static [&'static str]) -> [f64; 2] {
    [WAITING, LinearOverlap::default()].map(|linears| {
        grown_by(0.01, |per_byte| {
            time_of_work(&trial(model.clone(), ways, linears, DType::F64), names, per_byte)
        })
    })
}

fn sizes(tp: usize, ep: usize) -> GridSizes {
    GridSizes { tp, ep, ..GridSizes::default() }
}

#[test]
fn gradients_of_experts_first_matrices_are_formed_while_their_inputs_are_on_their_way_back() {
    use Dispatcher::{AllGather, AllToAll, AllToAllSeq};
    // Among a layer's exchanges, the return of the experts' input gradients overlaps with the gradient of their first matrix:
    // one of four row exchanges, or one of two sums if rows are gathered. With sharded dense layers and experts, all of them
    // overlap with one.
    for (sizes, dispatcher, names, bound) in [
        (sizes(1, 2), AllToAll, &["exchange_rows"][..], 0.76),
        (sizes(1, 2), AllToAllSeq, &["exchange_rows"], 0.76),
        (sizes(1, 2), AllGather, &["sum_rows"], 0.55),
        (sizes(2, 1), AllGather, &["enter_tp"], 0.01),
        (sizes(2, 2), AllToAll, &["sum_rows"], 0.55),
    ] {
        let what = format!("{dispatcher:?}, tp {}, ep {}", sizes.tp, sizes.ep);
        let [plain, beside] = grown(&experts(), &Ways { sizes, dispatcher, ..Ways::default() }, names);
        println!("{what}: share of the wire's time that a step waits: {plain:.2}, {beside:.2}");
        assert!((plain - 1.0).abs() < 1e-9, "{what}: without overlap all of it: {plain}");
        assert!(beside < bound, "{what}: {beside}");
    }
}

#[test]
fn a_gradient_is_formed_while_that_of_what_pooled_entries_are_made_of_is_on_its_way() {
    let [plain, beside] = grown(&pooled(), &Ways { sizes: sizes(2, 1), ..Ways::default() }, &["enter_tp"]);
    println!("share of the wire's time that a step waits: {plain:.2}, {beside:.2}");
    assert!((plain - 1.0).abs() < 1e-9, "without overlap all of it: {plain}");
    assert!(beside < 0.01, "{beside}");
}

#[test]
fn the_gradient_of_an_output_projection_is_formed_while_heads_are_exchanged_for_tokens() {
    let sizes = GridSizes { cp: 2, ulysses: 2, ..GridSizes::default() };
    let ways = Ways { sizes, context: ContextParallel::Ulysses, ..Ways::default() };
    let [plain, beside] = grown(&size(), &ways, &["heads for tokens", "tokens for heads"]);
    println!("share of the wire's time that a step waits: {plain:.2}, {beside:.2}");
    assert!((plain - 1.0).abs() < 1e-9, "without overlap all of it: {plain}");
    assert!(beside < 0.9, "{beside}");
}

#[test]
fn no_bit_depends_on_it() {
    let all = [Dispatcher::AllGather, Dispatcher::AllToAll, Dispatcher::AllToAllSeq];
    let of_experts = all.into_iter().flat_map(|dispatcher| {
        [(1, 2, false), (2, 1, false), (2, 2, false), (2, 2, true)].map(|(tp, ep, overlap_experts)| {
            (experts(), Ways { sizes: sizes(tp, ep), dispatcher, overlap_experts, ..Ways::default() })
        })
    });
    let others = [(pooled(), Ways { sizes: sizes(2, 1), ..Ways::default() })];
    for (model, ways) in of_experts.chain(others) {
        let run = |linears| {
            let trial = trial(model.clone(), &ways, linears, DType::F32);
            let shape = Shape { rows: 1, length: LENGTH, micro: 2, packed: false };
            trial.run(&|| ms_cpu::device(1), &batches(&model, shape, 2), None).unwrap()
        };
        let what = format!("{:?}, tp {}, ep {}", ways.dispatcher, ways.sizes.tp, ways.sizes.ep);
        let (waiting, beside) = (run(WAITING), run(LinearOverlap::default()));
        same(&what, &waiting, &beside);
        assert_eq!(waiting.sent, beside.sent, "{what}: as many bytes");
    }
}
