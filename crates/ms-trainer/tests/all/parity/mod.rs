//! Runs of one model on any topology, and what must be equal between them.

#![allow(dead_code)] // each program uses its part

pub(crate) mod samples;

use ms_core::{DType, Device, Dispatcher, Grid, GridRules, GridSizes, OptimizerSharding, RingCache, Tensor};
use ms_cpu::CpuBackend;
use ms_data::MicroBatch;
use ms_dist::buckets::Bucketing;
use ms_dist::{CommCall, CommHook, ContextParallel, LinearOverlap, ParallelCtx, ParallelOptions, Pending};
use ms_kernels::Isa;
use ms_nn::{Recompute, SavePolicy};
use ms_spec::{Feed, Layer, ModelConfig, Moe, Router, Score, Stages};
use ms_trainer::parity::{DivergenceInjector, FaultInjector, Found, ParityError, Shape, Trial};
use ms_trainer::rehearsal::Rehearsal;
use ms_trainer::{
    Checks, DataParallelConfig, Dropout, IndexerTraining, LossConfig, LossScale, MemoryConfig,
    OptimizerConfig, OptimizerForm, PipelineConfig, PipelineOrder, Rates, RecomputeTiming, Routing,
    TrainConfig, UpdateRule,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// A dense layer and one of four experts, with a router whose biases are kept unrounded.
pub(crate) fn small_experts() -> ModelConfig {
    let router = Router { bias: true, renormalise: true, ..Router::plain(Score::Sigmoid) };
    let moe = Moe { experts: 4, top_k: 2, ffn: 16, router, shared: None, zero_experts: 0 };
    let layer = |feed| Layer { feed, ..Layer::default() };
    ModelConfig { moe: Some(moe), pattern: vec![layer(Feed::Dense), layer(Feed::Moe)], ..ModelConfig::tiny() }
}

/// A topology and the ways in which its ranks work together.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) world: usize,
    pub(crate) sizes: GridSizes,
    pub(crate) rules: GridRules,
    pub(crate) sequence_parallel: bool,
    pub(crate) context: ContextParallel,
    pub(crate) ring_cache: RingCache,
    pub(crate) dispatcher: Dispatcher,
    /// Shared experts work while tokens are in transit to the others.
    pub(crate) overlap_experts: bool,
    pub(crate) stages: Stages,
    pub(crate) order: PipelineOrder,
    /// Forward passes overlap with backward passes of other micro-batches.
    pub(crate) overlap_passes: bool,
    /// Stages wait for what they hand each other.
    pub(crate) waits_at_borders: bool,
    /// Micro-batches for which the gradient of the output layer's weights is deferred.
    pub(crate) defer_embedding_wgrad: Option<usize>,
    pub(crate) recompute: Recompute,
    pub(crate) save_policy: SavePolicy,
    pub(crate) recompute_timing: RecomputeTiming,
    pub(crate) bucket_size: Option<usize>,
    /// Buckets are summed while the backward pass runs.
    pub(crate) overlap: bool,
    /// Weights are gathered while the next forward pass runs.
    pub(crate) overlap_gather: bool,
    /// And while other buckets are updated.
    pub(crate) overlap_gather_with_step: bool,
    /// What layers inside tensor parallelism compute while ranks exchange.
    pub(crate) linears: LinearOverlap,
    /// Threads of each rank's kernels.
    pub(crate) threads: usize,
    /// How weights follow gradients.
    pub(crate) update: UpdateRule,
    /// Rate of dropout in the stream and of attention's weights.
    pub(crate) dropout: f64,
    /// The loss is that of all counted tokens, not the mean of those of micro-batches.
    pub(crate) per_token_loss: bool,
    /// What trains the indexers of sparse attention.
    pub(crate) indexer: Option<IndexerTraining>,
    pub(crate) loss_scale: LossScale,
    pub(crate) form: OptimizerForm,
    /// Who keeps which part of the optimizer's state.
    pub(crate) optimizer: OptimizerSharding,
    /// Gradients are kept in bf16.
    pub(crate) rounded_gradients: bool,
    /// Seed of the weights and of what is drawn while they are trained.
    pub(crate) seed: u64,
    /// Element type of the weights: f64 on the reference device, others on the CPU's kernels.
    pub(crate) dtype: DType,
}

impl Case {
    /// One rank.
    pub(crate) fn single() -> Self {
        Self {
            world: 1,
            sizes: GridSizes::default(),
            rules: GridRules::V2,
            sequence_parallel: false,
            context: ContextParallel::Gather,
            ring_cache: RingCache::default(),
            dispatcher: Dispatcher::default(),
            overlap_experts: false,
            stages: Stages::default(),
            order: PipelineOrder::default(),
            overlap_passes: false,
            waits_at_borders: false,
            defer_embedding_wgrad: None,
            recompute: Recompute::None,
            save_policy: SavePolicy::default(),
            recompute_timing: RecomputeTiming::default(),
            bucket_size: None,
            overlap: false,
            overlap_gather: false,
            overlap_gather_with_step: false,
            linears: LinearOverlap::default(),
            threads: 1,
            update: OptimizerConfig::default().update,
            dropout: 0.0,
            per_token_loss: false,
            indexer: None,
            loss_scale: LossScale::None,
            form: OptimizerForm::default(),
            optimizer: OptimizerSharding::default(),
            rounded_gradients: false,
            seed: 1,
            dtype: DType::F64,
        }
    }

    /// On the kernels, in f32.
    pub(crate) fn single_precision(self) -> Self {
        Self { dtype: DType::F32, ..self }
    }

    /// One rank in this case's element type, with its update rule.
    pub(crate) fn alone(&self) -> Self {
        let Self { dtype, update, dropout, per_token_loss, indexer, loss_scale, seed, .. } = *self;
        Self { dtype, update, dropout, per_token_loss, indexer, loss_scale, seed, ..Self::single() }
    }

    fn lr(&self) -> f64 {
        match self.update {
            UpdateRule::AdamW(_) => 1e-3,
            UpdateRule::Sgd { .. } => 0.005,
        }
    }

    fn device(&self) -> ms_core::Result<Device> {
        match self.dtype {
            DType::F64 => Ok(ms_reference::device()),
            _ => Ok(Device::new(CpuBackend::new(self.threads, Isa::detect())?)),
        }
    }

    /// `world` ranks of these sizes.
    pub(crate) fn of(world: usize, tp: usize, cp: usize, pp: usize, ep: usize) -> Self {
        let sizes = GridSizes { tp, cp, pp, ep, ..GridSizes::default() };
        Self { world, sizes, stages: Stages { pp, ..Stages::default() }, ..Self::single() }
    }

    pub(crate) fn sequence_parallel(self) -> Self {
        Self { sequence_parallel: true, ..self }
    }

    pub(crate) fn context(mut self, context: ContextParallel) -> Self {
        self.sizes.ulysses = context.ulysses(self.sizes.cp);
        Self { context, ..self }
    }

    pub(crate) fn experts(mut self, ep: usize, etp: usize) -> Self {
        (self.sizes.ep, self.sizes.etp, self.rules) = (ep, Some(etp), GridRules::Head);
        self
    }
}

/// What goes wrong in a planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wrong {
    /// The exchange does not happen: every rank goes on with what it has.
    Missing,
    /// The result is twice what it should be.
    Twice,
    /// Ranks' parts come in the opposite order.
    Reversed,
    /// The result of the time before comes again.
    Stale,
}

/// A planted fault: what goes wrong with which exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) exchange: &'static str,
    pub(crate) wrong: Wrong,
}

/// What corrupts one kind of exchange.
struct Faulty {
    fault: Fault,
    last: Mutex<Option<Tensor>>,
}

impl Faulty {
    fn spoil(&self, of: &CommCall<'_>, got: Tensor) -> Tensor {
        match self.fault.wrong {
            Wrong::Twice if matches!(got.dtype(), DType::F32 | DType::F64) => {
                let twice: Vec<f64> = got.to_reals().unwrap().iter().map(|x| 2.0 * x).collect();
                Tensor::from_reals(got.arena(), got.dtype(), got.shape(), &twice).unwrap()
            }
            Wrong::Twice if got.dtype() == DType::I64 => {
                let twice: Vec<i64> = got.as_slice::<i64>().unwrap().iter().map(|n| 2 * n).collect();
                Tensor::from_slice(got.arena(), got.shape(), &twice).unwrap()
            }
            Wrong::Reversed => {
                let n = of.group.size();
                let part = got.bytes().len() / n;
                let mut turned = Tensor::uninit(got.arena(), got.dtype(), got.shape());
                let to = turned.bytes_mut().unwrap();
                for r in 0..n {
                    to[r * part..(r + 1) * part]
                        .copy_from_slice(&got.bytes()[(n - 1 - r) * part..(n - r) * part]);
                }
                turned
            }
            Wrong::Stale => {
                let mut last = self.last.lock().unwrap();
                let before = last.replace(got.clone());
                before.filter(|b| b.shape() == got.shape()).unwrap_or(got)
            }
            Wrong::Missing if matches!(of.kind, "all_reduce" | "reduce_scatter") => {
                of.own.clone().unwrap_or(got)
            }
            Wrong::Missing | Wrong::Twice => got,
        }
    }
}

impl CommHook for Faulty {
    fn exchange(
        &self,
        of: CommCall<'_>,
        begin: &mut dyn FnMut() -> ms_dist::Result<Pending>,
    ) -> ms_dist::Result<Pending> {
        if of.name != self.fault.exchange || of.kind == "send" {
            return begin();
        }
        let got = begin()?.wait()?;
        Ok(Pending::ready(self.spoil(&of, got)))
    }
}

/// What notes the names of exchanges.
struct Noting(Arc<Mutex<BTreeSet<String>>>);

impl CommHook for Noting {
    fn exchange(
        &self,
        of: CommCall<'_>,
        begin: &mut dyn FnMut() -> ms_dist::Result<Pending>,
    ) -> ms_dist::Result<Pending> {
        self.0.lock().unwrap().insert(of.name.to_owned());
        begin()
    }
}

/// The context with the fault planted in all its groups.
fn plant(ctx: ParallelCtx, fault: Fault) -> ParallelCtx {
    let faulty: Arc<dyn CommHook> = Arc::new(Faulty { fault, last: Mutex::new(None) });
    ctx.with_hook(&faulty)
}

/// The model on the topology, trained on rows of `length` tokens, `rows` at a time.
fn trial(
    config: &ModelConfig,
    case: &Case,
    routing: Routing,
    (length, rows): (usize, usize),
) -> Result<Trial, ParityError> {
    let config = TrainConfig {
        pipeline: PipelineConfig {
            stages: case.stages.clone(),
            order: case.order,
            overlap_passes: case.overlap_passes,
            waits_at_borders: case.waits_at_borders,
            defer_embedding_wgrad: case.defer_embedding_wgrad,
        },
        memory: MemoryConfig {
            recompute: case.recompute,
            save_policy: case.save_policy,
            recompute_timing: case.recompute_timing,
            swap_folder: std::env::temp_dir(),
        },
        data_parallel: DataParallelConfig {
            buckets: Bucketing::of(case.bucket_size),
            overlap_grad_reduce: case.overlap,
            overlap_param_gather: case.overlap_gather,
            overlap_gather_with_step: case.overlap_gather_with_step,
            rounded_gradients: case.rounded_gradients,
        },
        optimizer: OptimizerConfig {
            update: case.update,
            form: case.form,
            loss_scale: case.loss_scale,
            ..OptimizerConfig::default()
        },
        loss: LossConfig { per_token: case.per_token_loss, indexer: case.indexer, ..LossConfig::default() },
        dropout: Dropout { hidden: case.dropout, attention: case.dropout },
        tp_overlap: case.linears,
        routing,
        seed: case.seed,
        checks: Checks::NONE,
        ..TrainConfig::steps(config.clone(), case.dtype, length, rows)
    };
    let grid = Grid::new(case.world, &case.sizes, case.rules)
        .and_then(|grid| grid.with_optimizer(case.optimizer))
        .map_err(|e| ParityError::Failed { rank: 0, message: e.to_string() })?;
    let &Case { sequence_parallel, context, ring_cache, dispatcher, overlap_experts, .. } = case;
    let parallel = ParallelOptions { sequence_parallel, context, ring_cache, dispatcher, overlap_experts };
    Ok(Trial { config, grid, parallel, rates: Rates::from((case.lr(), 0.1)) })
}

/// How one rank routes to be compared with the ranks of the case: what depends on their shares of the tokens is counted over
/// these.
pub(crate) fn alone_routing(
    config: &ModelConfig,
    case: &Case,
    routing: Routing,
    rows: (usize, usize),
) -> Result<Routing, ParityError> {
    let shares = trial(config, case, routing, rows)?.capacity_shares();
    Ok(Routing { capacity_shares: Some(shares), ..routing })
}

/// Steps of micro-batches on which the routers of one rank choose clearly, drawn up to `tries` times each.
pub(crate) fn apart(
    config: &ModelConfig,
    case: &Case,
    routing: Routing,
    (shape, count): (Shape, usize),
    (margin, tries): (f64, usize),
) -> Result<Vec<Vec<MicroBatch>>, ParityError> {
    let alone = case.alone();
    let routing = alone_routing(config, case, routing, (shape.length, shape.rows))?;
    let trial = trial(config, &alone, routing, (shape.length, shape.rows))?;
    trial.batches_apart(&|| alone.device(), shape, count, (margin, tries))
}

/// What each rank takes and sends in a step of such micro-batches, without values.
pub(crate) fn rehearsed(
    config: &ModelConfig,
    case: &Case,
    routing: Routing,
    shape: Shape,
) -> Result<Vec<Rehearsal>, ParityError> {
    let trial = trial(config, case, routing, (shape.length, shape.rows))?;
    (0..case.world).map(|rank| trial.rehearse(rank, shape.micro)).collect()
}

/// Runs the steps on the topology.
pub(crate) fn run(
    config: &ModelConfig,
    case: &Case,
    routing: Routing,
    steps: &[Vec<MicroBatch>],
) -> Result<Found, ParityError> {
    run_with(config, case, routing, steps, None)
}

/// [`run`], with a fault planted.
pub(crate) fn run_with(
    config: &ModelConfig,
    case: &Case,
    routing: Routing,
    steps: &[Vec<MicroBatch>],
    fault: Option<Fault>,
) -> Result<Found, ParityError> {
    let first = &steps[0][0].row_ends;
    let trial = trial(config, case, routing, (first[0], first.len()))?;
    let planted = |ctx| match fault {
        Some(fault) => plant(ctx, fault),
        None => ctx,
    };
    trial.run(&|| case.device(), steps, Some(&planted))
}

/// [`run`], and the names of what ranks exchanged.
pub(crate) fn run_noted(
    config: &ModelConfig,
    case: &Case,
    routing: Routing,
    steps: &[Vec<MicroBatch>],
) -> Result<(Found, BTreeSet<String>), ParityError> {
    let names = Arc::new(Mutex::new(BTreeSet::new()));
    let hook: Arc<dyn CommHook> = Arc::new(Noting(Arc::clone(&names)));
    let found = run_on(config, case, routing, steps, &|| case.device(), &|ctx| ctx.with_hook(&hook))?;
    let names = names.lock().unwrap().clone();
    Ok((found, names))
}

/// [`run`] on other devices than the case's, with what ranks know of the others changed by `plant`.
pub(crate) fn run_on(
    config: &ModelConfig,
    case: &Case,
    routing: Routing,
    steps: &[Vec<MicroBatch>],
    device: &(dyn Fn() -> ms_core::Result<Device> + Sync),
    plant: FaultInjector<'_>,
) -> Result<Found, ParityError> {
    let first = &steps[0][0].row_ends;
    trial(config, case, routing, (first[0], first.len()))?.run(device, steps, Some(plant))
}

/// [`run`], with what ranks are given changed by `slip`.
pub(crate) fn run_slipped(
    config: &ModelConfig,
    case: &Case,
    routing: Routing,
    steps: &[Vec<MicroBatch>],
    slip: DivergenceInjector<'_>,
) -> Result<Found, ParityError> {
    let first = &steps[0][0].row_ends;
    let trial = trial(config, case, routing, (first[0], first.len()))?;
    trial.run_slipped(&|| case.device(), steps, None, Some(slip))
}

/// Holds that two runs have the bits of gradients, reports and the weights in the end in common.
#[track_caller]
pub(crate) fn same(what: &str, a: &Found, b: &Found) {
    if let Some(differs) = other_bits(a, b) {
        panic!("{what}: {differs}");
    }
}

/// The first value whose bits differ between two runs.
pub(crate) fn other_bits(a: &Found, b: &Found) -> Option<String> {
    let equal =
        |x: &[f64], y: &[f64]| x.len() == y.len() && x.iter().zip(y).all(|(x, y)| x.to_bits() == y.to_bits());
    let first = |a: &BTreeMap<String, Vec<f64>>, b: &BTreeMap<String, Vec<f64>>| {
        a.iter().find(|(name, x)| !b.get(*name).is_some_and(|y| equal(x, y))).map(|(name, _)| name.clone())
    };
    if let Some(name) = first(&a.gradients, &b.gradients) {
        return Some(format!("the bits of the gradient of {name} differ"));
    }
    if a.reports != b.reports {
        return Some(format!("reports differ: {:?}, {:?}", a.reports, b.reports));
    }
    first(&a.weights, &b.weights).map(|name| format!("the bits of {name} differ in the end"))
}
