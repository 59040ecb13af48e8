//! Communication overlaps with computation where requested: seen in the order of operations, and in simulated time.

use crate::simulated_network::{Time, WAITING, grown_by, time_of_work};
use ms_core::{DType, Dispatcher, Grid, GridRules, GridSizes};
use ms_dist::buckets::Bucketing;
use ms_dist::{
    CommCall, CommHook, ContextParallel, LinearOverlap, ParallelCtx, ParallelOptions, Pending, Pieces,
};
use ms_nn::Recompute;
use ms_spec::{Feed, Layer, ModelConfig, Moe, Router, Score, SharedExpert, Stages};
use ms_trainer::parity::{Shape, Trial, batches};
use ms_trainer::{
    Checks, DataParallelConfig, MemoryConfig, PipelineConfig, PipelineOrder, Rates, RecomputeTiming,
    TrainConfig,
};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

/// Writes down what sums and messages that come are begun.
struct Noted(Arc<Mutex<Vec<&'static str>>>);

impl CommHook for Noted {
    fn exchange(
        &self,
        of: CommCall<'_>,
        begin: &mut dyn FnMut() -> ms_dist::Result<Pending>,
    ) -> ms_dist::Result<Pending> {
        if matches!(of.kind, "all_reduce" | "reduce_scatter" | "recv") {
            self.0.lock().unwrap().push(of.name);
        }
        begin()
    }
}

fn model() -> ModelConfig {
    ModelConfig { layers: 4, init_std: 0.02, ..ModelConfig::tiny() }
}

/// Names of what rank 0 began, in order, in one forward and backward of two data-parallel ranks of two tensor-parallel ones.
fn begun(overlap: bool, sequence_parallel: bool) -> Vec<&'static str> {
    let mut config = TrainConfig::steps(model(), DType::F32, 16, 1);
    (config.data_parallel.buckets.size, config.data_parallel.overlap_grad_reduce) = (Some(300), overlap);
    begun_by(config, &GridSizes { tp: 2, ..GridSizes::default() }, sequence_parallel)
}

/// Names of what rank 0 of four began.
fn begun_by(config: TrainConfig, sizes: &GridSizes, sequence_parallel: bool) -> Vec<&'static str> {
    let log: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let noted: Arc<dyn CommHook> = Arc::new(Noted(log.clone()));
    let ways = ParallelOptions { sequence_parallel, ..ParallelOptions::default() };
    train(config, sizes, ways, 1, &|ctx| {
        if ctx.rank == 0 { ctx.with_hook(&noted) } else { ctx }
    });
    let all = log.lock().unwrap();
    all.clone()
}

/// Steps of four ranks, whose exchanges `watched` observes.
fn train(
    config: TrainConfig,
    sizes: &GridSizes,
    parallel: ParallelOptions,
    steps: usize,
    watched: &(dyn Fn(ParallelCtx) -> ParallelCtx + Sync),
) {
    let steps = batches(&config.model, Shape { rows: 1, length: 16, micro: 4, packed: false }, steps);
    let grid = Grid::new(4, sizes, GridRules::V2).unwrap();
    let trial = Trial { config, grid, parallel, rates: Rates::from((1e-3, 0.1)) };
    trial.run(&|| ms_cpu::device(1), &steps, Some(watched)).unwrap();
}

/// How many of the sums inside tensor parallelism that a backward pass needs come after the first sum of gradients. The losses
/// are summed once the passes are over.
fn beside(begun: &[&str]) -> usize {
    let passes = begun.iter().take_while(|n| **n != "loss");
    passes.skip_while(|n| **n != "gradients").filter(|n| **n == "enter_tp").count()
}

#[test]
fn buckets_are_on_their_way_while_earlier_layers_go_back() {
    // Under sequence parallelism every bucket holds a norm, of whose gradient each tensor-parallel rank has a part.
    for sequence_parallel in [false, true] {
        let (plain, overlapped) = (begun(false, sequence_parallel), begun(true, sequence_parallel));
        let count = |log: &[&str]| log.iter().filter(|n| **n == "gradients").count();
        assert_eq!(count(&plain), count(&overlapped), "the same buckets");
        assert!(count(&plain) > 8, "{plain:?}");
        assert_eq!(beside(&plain), 0, "without overlap the backward pass is over: {plain:?}");
        assert!(beside(&overlapped) >= 4, "{overlapped:?}");
    }
}

/// What rank 0 starts next whenever it has requested gradients of its outputs, with recomputed layers.
fn behind_gradients(recompute_timing: RecomputeTiming) -> Vec<&'static str> {
    let stages = Stages { pp: 2, layers_per_chunk: Some(1), ..Stages::default() };
    let recompute = Recompute::Block(1);
    let config = TrainConfig {
        memory: MemoryConfig { recompute, recompute_timing, ..MemoryConfig::default() },
        pipeline: PipelineConfig { stages, ..PipelineConfig::default() },
        ..TrainConfig::steps(model(), DType::F32, 16, 1)
    };
    let log = begun_by(config, &GridSizes { tp: 2, pp: 2, ..GridSizes::default() }, false);
    log.windows(2).filter(|pair| pair[0] == "gradients of a border").map(|pair| pair[1]).collect()
}

#[test]
fn layers_run_again_while_their_gradient_is_on_its_way() {
    // A layer that is recomputed leaves tensor parallelism first; a backward pass enters it.
    let (late, early) =
        (behind_gradients(RecomputeTiming::WithGradient), behind_gradients(RecomputeTiming::InAdvance));
    assert!(!late.is_empty() && late.len() == early.len());
    assert!(late.iter().all(|next| *next == "leave_tp"), "{late:?}");
    assert!(early.iter().all(|next| *next == "enter_tp"), "{early:?}");
}

/// A rank's simulated time: every sum inside tensor parallelism, standing for the products between them, takes one unit (or
/// every multiply-add, if these are counted), and every byte on a slow link between data-parallel ranks takes a fixed time,
/// one transfer after another.
struct Clock {
    rank: ThreadId,
    per_byte: f64,
    /// What goes over the wire.
    names: &'static [&'static str],
    time: Mutex<Time>,
}

/// Delays what goes over the wire.
struct Delaying(Arc<Clock>);

impl CommHook for Delaying {
    fn exchange(
        &self,
        of: CommCall<'_>,
        begin: &mut dyn FnMut() -> ms_dist::Result<Pending>,
    ) -> ms_dist::Result<Pending> {
        let mut time = self.0.time.lock().unwrap();
        match of.name {
            "enter_tp" | "leave_tp" => time.now += 1.0,
            // The norm is that of all gradients.
            "squared norm" => time.now = time.now.max(time.there),
            name if self.0.names.contains(&name) => {
                let bytes = of.own.as_ref().map_or(0, |own| own.bytes().len());
                let takes = bytes as f64 * self.0.per_byte;
                let at = time.now.max(time.free) + takes;
                (time.free, time.wire) = (at, time.wire + takes);
                drop(time);
                let (clock, pending) = (self.0.clone(), begin()?);
                return Ok(Pending::new(move || {
                    let got = pending.wait()?;
                    let mut time = clock.time.lock().unwrap();
                    let own = thread::current().id() == clock.rank;
                    let waits = if own { &mut time.now } else { &mut time.there };
                    *waits = waits.max(at);
                    Ok(got)
                }));
            }
            _ => {}
        }
        drop(time);
        begin()
    }
}

/// What steps take on rank 0 of two data-parallel ranks of two tensor-parallel ones.
fn time(per_byte: f64, overlap: [bool; 2], sequence_parallel: bool) -> Time {
    let mut config = TrainConfig::steps(model(), DType::F32, 16, 1);
    config.data_parallel.buckets.size = Some(300);
    (config.data_parallel.overlap_grad_reduce, config.data_parallel.overlap_param_gather) =
        (overlap[0], overlap[1]);
    clocked(config, 1, ParallelOptions { sequence_parallel, ..ParallelOptions::default() }, per_byte)
}

/// What steps of a run take on rank 0, where data-parallel ranks share the experts, if there are some.
fn clocked(config: TrainConfig, ep: usize, ways: ParallelOptions, per_byte: f64) -> Time {
    let clock = Mutex::new(None);
    let watched = |ctx: ParallelCtx| {
        if ctx.rank > 0 {
            return ctx;
        }
        let names = &["gradients", "weights", "exchange_rows", "gather_rows", "sum_rows"];
        let mine = Clock { rank: thread::current().id(), per_byte, names, time: Mutex::default() };
        let mine = Arc::new(mine);
        *clock.lock().unwrap() = Some(mine.clone());
        let delaying: Arc<dyn CommHook> = Arc::new(Delaying(mine));
        ctx.with_hook(&delaying)
    };
    train(config, &GridSizes { tp: 2, ep, ..GridSizes::default() }, ways, 8, &watched);
    let clock = clock.into_inner().unwrap().unwrap();
    *clock.time.lock().unwrap()
}

#[test]
fn a_step_grows_by_less_than_what_the_wire_takes_where_that_is_overlapped() {
    for sequence_parallel in [false, true] {
        let quick = time(0.0, [false, false], sequence_parallel).now;
        // About as long as the products take: transfers can hide behind them.
        let per_byte = 0.5 * quick / time(1.0, [false, false], sequence_parallel).wire;
        let grown = |overlap| {
            let slow = time(per_byte, overlap, sequence_parallel);
            assert_eq!(time(0.0, overlap, sequence_parallel).now, quick, "the same products");
            (slow.now - quick) / slow.wire
        };
        let plain = grown([false, false]);
        assert!((plain - 1.0).abs() < 1e-9, "without overlap all of it: {plain}");
        let (gradients, weights, both) = (grown([true, false]), grown([false, true]), grown([true, true]));
        println!(
            "share of the wire's time that a step waits: gradients {gradients:.2}, weights {weights:.2}, both {both:.2}"
        );
        assert!(gradients < 0.75 && weights < 0.75, "{gradients} {weights}");
        assert!(both < 0.5 && both < gradients.min(weights), "{both}");
    }
}

/// What a step of two tensor-parallel ranks takes on the first.
fn tensor_parallel_time(
    names: &'static [&'static str],
    per_byte: f64,
    linears: LinearOverlap,
    sequence_parallel: bool,
) -> Time {
    let config = TrainConfig {
        tp_overlap: linears,
        checks: Checks::NONE,
        ..TrainConfig::steps(model(), DType::F64, 64, 1)
    };
    let grid = Grid::new(2, &GridSizes { tp: 2, ..GridSizes::default() }, GridRules::V2).unwrap();
    let parallel = ParallelOptions { sequence_parallel, ..ParallelOptions::default() };
    let trial = Trial { config, grid, parallel, rates: Rates::from((1e-3, 0.1)) };
    time_of_work(&trial, names, per_byte)
}

/// By which share of what the wire takes a step grows, of all that products take the wire taking `share`.
fn grown(names: &'static [&'static str], share: f64, linears: LinearOverlap, sequence_parallel: bool) -> f64 {
    grown_by(share, |per_byte| tensor_parallel_time(names, per_byte, linears, sequence_parallel))
}

#[test]
fn gradients_of_weights_are_formed_while_that_of_their_layers_input_is_on_its_way() {
    for (sequence_parallel, names) in [(false, &["enter_tp"][..]), (true, &["enter_tp", "gathered again"])] {
        let plain = grown(names, 0.2, WAITING, sequence_parallel);
        assert!((plain - 1.0).abs() < 1e-9, "without overlap all of it: {plain}");
        let beside = grown(names, 0.2, LinearOverlap::default(), sequence_parallel);
        println!(
            "sequence parallel {sequence_parallel}: share of the wire's time that a step waits: {beside:.2}"
        );
        assert!(beside < 0.5, "{beside}");
    }
}

#[test]
fn products_in_pieces_wait_for_less_of_what_is_exchanged_beside_them() {
    for (sequence_parallel, names) in
        [(false, &["enter_tp", "leave_tp"][..]), (true, &["enter_tp", "leave_tp", "gathered again"])]
    {
        let grown = |linears| grown(names, 0.2, linears, sequence_parallel);
        let plain = grown(WAITING);
        assert!((plain - 1.0).abs() < 1e-9, "without overlap all of it: {plain}");
        let whole = grown(LinearOverlap::default());
        let of = |pieces| grown(LinearOverlap { pieces, ..LinearOverlap::default() });
        let (two, four, finest) = (of(Pieces::Number(2)), of(Pieces::Number(4)), of(Pieces::Finest));
        println!(
            "sequence parallel {sequence_parallel}: share of the wire's time that a step waits: whole {whole:.2}, in two pieces \
             {two:.2}, four {four:.2}, finest {finest:.2}"
        );
        assert!(four < two && two < whole && whole < 1.0, "{whole} {two} {four}");
        assert!(four < 0.5 && finest <= four, "{four} {finest}");
    }
}

/// By which share of what blocks, or their gradients, take around a ring of four ranks a step grows, that share being of all that
/// products take.
fn grown_by_blocks(names: &'static [&'static str], share: f64, context: ContextParallel) -> f64 {
    grown_by(share, |per_byte| {
        let model = ModelConfig { max_positions: 128, ..model() };
        let config = TrainConfig { checks: Checks::NONE, ..TrainConfig::steps(model, DType::F64, 128, 1) };
        let grid = Grid::new(4, &GridSizes { cp: 4, ..GridSizes::default() }, GridRules::V2).unwrap();
        let parallel = ParallelOptions { context, ..ParallelOptions::default() };
        let trial = Trial { config, grid, parallel, rates: Rates::from((1e-3, 0.1)) };
        time_of_work(&trial, names, per_byte)
    })
}

#[test]
fn blocks_and_their_gradients_go_around_a_ring_while_others_are_worked_at() {
    for window in [1, 2, 4] {
        let grown = |names| grown_by_blocks(names, 0.05, ContextParallel::Ring { window });
        let blocks = grown(&["keys and values"]);
        let gradients = grown(&["gradients of keys and values"]);
        let both = grown(&["keys and values", "gradients of keys and values"]);
        println!(
            "window {window}: share of the wire's time that a step waits: blocks {blocks:.2}, gradients {gradients:.2}, \
             both {both:.2}"
        );
        // Of the three gradients that a rank sends, the last one overlaps with nothing.
        assert!(blocks < 0.05, "{blocks}");
        assert!(gradients < 0.4, "{gradients}");
        assert!(both < 0.2, "{both}");
    }
}

#[test]
fn blocks_are_gathered_while_a_rank_works_at_its_own() {
    // Of a forward and a backward pass; the gradients of others' blocks are sent when they are computed.
    let blocks = grown_by_blocks(&["keys and values"], 0.01, ContextParallel::Gather);
    println!("gathered: share of the wire's time that a step waits: {blocks:.2}");
    assert!(blocks < 0.01, "{blocks}");
}

/// A model of four layers with four experts each.
fn experts() -> ModelConfig {
    let router = Router::plain(Score::SoftmaxOfChosen);
    let shared = Some(SharedExpert { ffn: 16, gate: false, wide_gate: false });
    let moe = Moe { experts: 4, top_k: 2, ffn: 8, router, shared, zero_experts: 0 };
    let pattern = vec![Layer { feed: Feed::Moe, ..Layer::default() }; 4];
    ModelConfig { moe: Some(moe), pattern, ..model() }
}

/// What steps of a model with shared experts take, where tokens go over the slow wire to the others.
fn experts_time(dispatcher: Dispatcher, overlap: bool, per_byte: f64) -> Time {
    let model = experts();
    let ways = ParallelOptions { dispatcher, overlap_experts: overlap, ..ParallelOptions::default() };
    clocked(TrainConfig::steps(model, DType::F32, 16, 1), 2, ways, per_byte)
}

#[test]
fn shared_experts_work_while_tokens_are_on_their_way() {
    for dispatcher in [Dispatcher::AllGather, Dispatcher::AllToAll, Dispatcher::AllToAllSeq] {
        let quick = experts_time(dispatcher, false, 0.0).now;
        assert_eq!(experts_time(dispatcher, true, 0.0).now, quick, "the same products");
        // All exchanges of a layer take as long as four products; the first one forward and the last one backward overlap
        // with one.
        let wire = experts_time(dispatcher, false, 1.0).wire;
        let per_byte = (4 * 2 * 4 * 4) as f64 / wire;
        let grown = |overlap| {
            let slow = experts_time(dispatcher, overlap, per_byte);
            (slow.now - quick) / slow.wire
        };
        let (plain, overlapped) = (grown(false), grown(true));
        println!(
            "{dispatcher:?}: a step waits for {plain:.2} of the wire's time, overlapped for {overlapped:.2}"
        );
        assert!(plain > 0.9, "{dispatcher:?}: without overlap {plain}");
        assert!(overlapped < plain - 0.1, "{dispatcher:?}: {overlapped} of {plain}");
    }
}

/// What steps of `micro` micro-batches, whose multiply-adds are counted, take on the first of four ranks, where gradients alone
/// go over the slow wire.
fn counted(config: &TrainConfig, sizes: &GridSizes, micro: usize, per_byte: f64) -> Time {
    counted_on((config, &["gradients"]), sizes, (Dispatcher::default(), false), micro, per_byte)
}

/// The same, where what has these names goes over the slow wire.
fn counted_on(
    (config, names): (&TrainConfig, &'static [&'static str]),
    sizes: &GridSizes,
    (dispatcher, overlap_experts): (Dispatcher, bool),
    micro: usize,
    per_byte: f64,
) -> Time {
    let steps = batches(&config.model, Shape { rows: 1, length: 16, micro, packed: false }, 2);
    let grid = Grid::new(4, sizes, GridRules::V2).unwrap();
    let (config, parallel) =
        (config.clone(), ParallelOptions { dispatcher, overlap_experts, ..ParallelOptions::default() });
    let trial = Trial { config, grid, parallel, rates: Rates::from((1e-3, 0.1)) };
    let clock: Mutex<Option<Arc<Clock>>> = Mutex::new(None);
    let watched = |ctx: ParallelCtx| {
        if ctx.rank > 0 {
            return ctx;
        }
        let rank = thread::current().id();
        let mine = Arc::new(Clock { rank, per_byte, names, time: Mutex::default() });
        *clock.lock().unwrap() = Some(mine.clone());
        let delaying: Arc<dyn CommHook> = Arc::new(Delaying(mine));
        ctx.with_hook(&delaying)
    };
    let device = || {
        let first = clock.lock().unwrap().clone().filter(|first| first.rank == thread::current().id());
        let Some(first) = first else { return Ok(ms_reference::device()) };
        Ok(ms_reference::watched(Box::new(move |n| first.time.lock().unwrap().now += n as f64)))
    };
    trial.run(&device, &steps, Some(&watched)).unwrap();
    let clock = clock.into_inner().unwrap().unwrap();
    *clock.time.lock().unwrap()
}

/// By which share of the transfer time of new weights (about as long as the optimizer) steps grow: gathered once all are
/// updated, during the forward pass, and also during the update of others.
#[test]
fn weights_are_on_their_way_while_others_are_updated() {
    let stages = Stages { pp: 2, layers_per_chunk: Some(1), ..Stages::default() };
    let config = TrainConfig {
        data_parallel: DataParallelConfig {
            buckets: Bucketing::of(Some(300)),
            ..DataParallelConfig::default()
        },
        pipeline: PipelineConfig { stages, ..PipelineConfig::default() },
        ..TrainConfig::steps(model(), DType::F64, 16, 1)
    };
    let sizes = GridSizes { pp: 2, ..GridSizes::default() };
    let grown = [(false, false), (false, true), (true, false), (true, true)].map(|(gather, beside)| {
        let mut config = config.clone();
        config.data_parallel.overlap_param_gather = gather;
        config.data_parallel.overlap_gather_with_step = beside;
        let on = (Dispatcher::default(), false);
        grown_by(0.002, |per_byte| counted_on((&config, &["weights"]), &sizes, on, 4, per_byte))
    });
    println!("share of the wire's time that a step waits: {grown:.2?}");
    let [plain, beside_step, beside_forward, both] = grown;
    assert!((plain - 1.0).abs() < 1e-9, "without overlap all of it: {plain}");
    assert!(beside_step < 0.9 && both < beside_forward, "{grown:?}");
}

/// By which share of what gradients take on the wire, a twentieth of what products take, steps grow without and with overlap.
fn grown_by_gradients(config: &TrainConfig, sizes: &GridSizes, micro: usize) -> [f64; 2] {
    [false, true].map(|overlap_grad_reduce| {
        let mut config = config.clone();
        config.data_parallel.overlap_grad_reduce = overlap_grad_reduce;
        config.data_parallel.buckets.size = Some(300);
        let quick = counted(&config, sizes, micro, 0.0).now;
        let per_byte = 0.05 * quick / counted(&config, sizes, micro, 1.0).wire;
        let slow = counted(&config, sizes, micro, per_byte);
        (slow.now - quick) / slow.wire
    })
}

#[test]
fn gradients_of_experts_and_those_put_off_are_on_their_way_while_others_are_formed() {
    let of = |model: ModelConfig, order: PipelineOrder, stages: Stages| TrainConfig {
        pipeline: PipelineConfig { order, stages, ..PipelineConfig::default() },
        checks: Checks::NONE,
        ..TrainConfig::steps(model, DType::F64, 16, 1)
    };
    let plain = PipelineOrder::default();
    let two = Stages { pp: 2, ..Stages::default() };
    let zero = PipelineOrder::ZeroBubble { group: None };
    let zero = of(experts(), zero, two.clone());
    let both_ends = Stages { dual_pipe: true, ..two.clone() };
    let both_ends = of(experts(), PipelineOrder::DualPipeV, both_ends);
    let tied = ModelConfig { tied: true, mtp: 1, ..experts() };
    let tied = of(tied, plain, two);
    let stages = GridSizes { pp: 2, ..GridSizes::default() };
    for (what, config, sizes, micro) in [
        ("experts", of(experts(), plain, Stages::default()), GridSizes { ep: 2, ..GridSizes::default() }, 4),
        ("zero-bubble", zero, stages, 4),
        ("DualPipeV", both_ends, stages, 8),
        ("tied", tied, stages, 4),
    ] {
        let [plain, overlapped] = grown_by_gradients(&config, &sizes, micro);
        println!("{what}: a step waits for {plain:.2} of the wire's time, overlapped for {overlapped:.2}");
        assert!((plain - 1.0).abs() < 1e-9, "{what}: without overlap all of it: {plain}");
        assert!(overlapped < 0.5, "{what}: {overlapped}");
    }
}

#[test]
fn a_pass_works_while_tokens_of_another_are_on_their_way() {
    let pipeline = |dual_pipe: bool| {
        let layers_per_chunk = (!dual_pipe).then_some(1);
        let order = if dual_pipe {
            PipelineOrder::DualPipeV
        } else {
            PipelineOrder::Plain { group: None, forwards_first: false }
        };
        (order, Stages { pp: 2, dual_pipe, layers_per_chunk, ..Stages::default() })
    };
    let whole = (PipelineOrder::default(), Stages::default());
    // None that all tokens share: their work is what tokens meet in transit without another pass.
    let moe = |shared: bool| {
        let mut moe = experts().moe.unwrap();
        (moe.shared, moe.ffn) = (moe.shared.filter(|_| shared), 32);
        ModelConfig { moe: Some(moe), ..experts() }
    };
    // The first forward and the last backward pass overlap with nothing; nor does a second run of a layer.
    for (what, (order, stages), shared, recompute, bound) in [
        ("one stage", whole.clone(), false, Recompute::None, 0.15),
        ("one stage, shared experts", whole.clone(), true, Recompute::None, 0.1),
        ("one stage, layers that run again", whole, false, Recompute::Uniform(1), 0.5),
        ("interleaved", pipeline(false), true, Recompute::None, 0.2),
        ("DualPipeV", pipeline(true), true, Recompute::None, 0.2),
    ] {
        let sizes = GridSizes { pp: stages.pp.max(1), ep: 2, ..GridSizes::default() };
        let config = TrainConfig {
            pipeline: PipelineConfig { order, stages, ..PipelineConfig::default() },
            memory: MemoryConfig { recompute, ..MemoryConfig::default() },
            checks: Checks::NONE,
            ..TrainConfig::steps(moe(shared), DType::F64, 16, 1)
        };
        let micro = 8 * 4 / sizes.pp;
        let grown = |overlap_passes: bool, overlap: bool| {
            // Gradients of weights would be formed while rows are in transit.
            let mut config = TrainConfig { tp_overlap: WAITING, ..config.clone() };
            config.pipeline.overlap_passes = overlap_passes;
            let time = |per_byte| {
                let ways = (Dispatcher::AllToAll, overlap);
                counted_on((&config, &["exchange_rows"]), &sizes, ways, micro, per_byte)
            };
            let quick = time(0.0).now;
            let slow = time(0.1 * quick / time(1.0).wire);
            (slow.now - quick) / slow.wire
        };
        let (plain, within, beside) = (grown(false, false), grown(false, true), grown(true, false));
        println!(
            "{what}: a step waits for {plain:.2} of the wire's time, beside shared experts {within:.2}, beside other passes \
             {beside:.2}"
        );
        assert!((plain - 1.0).abs() < 1e-9, "{what}: without overlap all of it: {plain}");
        assert!(beside < bound && beside < within - 0.1, "{what}: {beside} of {within}");
    }
}
