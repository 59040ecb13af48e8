//! Parity: a few steps of one model on a topology, compared with the same steps on one rank.
//!
//! [`Trial::run`] trains on threads and collects the whole gradients of the first step, by parameter, and the losses and
//! norms of all steps. [`compare`] names the first difference between two runs. On a device that computes in f64, rounding
//! differences are many digits below any communication error.

mod compare;

use crate::rehearsal::{RankSetup, Rehearsal, rehearse};
use crate::{
    CapacityShares, DataParallelConfig, Engine, MemoryConfig, OwnedPart, PipelineConfig, Rates, StepReport,
    TrainConfig,
};
use ms_core::{Axis, Device, Grid, GridRules, GridSizes, RankGroup, Region, Rng};
use ms_data::MicroBatch;
use ms_dist::{ParallelCtx, ParallelOptions, threads};
use ms_spec::{ModelConfig, ParamSpec};
use std::collections::BTreeMap;

pub use compare::{Bounds, compare, worst};

/// A model and how it is spread over ranks.
#[derive(Clone, Debug)]
pub struct Trial {
    /// What is trained, and how.
    pub config: TrainConfig,
    /// The ranks.
    pub grid: Grid,
    /// How they share tokens.
    pub parallel: ParallelOptions,
    /// Learning rates and weight decay of every step.
    pub rates: Rates,
}

/// Changes what a rank knows of the others before it begins; tests inject faults with it.
pub type FaultInjector<'a> = &'a (dyn Fn(ParallelCtx) -> ParallelCtx + Sync);

/// Changes the configuration and the steps that the rank with this number is given; tests make ranks diverge with it.
pub type DivergenceInjector<'a> = &'a (dyn Fn(usize, &mut TrainConfig, &mut [Vec<MicroBatch>]) + Sync);

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Found {
    /// Losses, norms and loads of the steps, as the last rank has them.
    pub reports: Vec<StepReport>,
    /// The gradients of the first step, whole, by parameter.
    pub gradients: BTreeMap<String, Vec<f64>>,
    /// The weights after the last step, whole and unrounded, by parameter.
    pub weights: BTreeMap<String, Vec<f64>>,
    /// Names of the parameters as a forward pass comes to them.
    pub order: Vec<String>,
    /// For each rank, the bytes that the first forward and backward sent, by group.
    pub sent: Vec<BTreeMap<RankGroup, u64>>,
    /// For each rank, the bytes that the last step sent, by group.
    pub step_sent: Vec<BTreeMap<RankGroup, u64>>,
    /// For each rank, the memory of its tensors.
    pub bytes: Vec<RankBytes>,
}

/// Bytes of a rank's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankBytes {
    /// Most that forward passes kept at one time ([`Engine::kept_bytes`]).
    pub kept: usize,
    /// Most that there were at one time, in blocks as the arena gives them.
    pub peak: usize,
    /// Peak requested bytes.
    pub peak_asked: usize,
    /// The largest tensor.
    pub largest: usize,
    /// Most that were with the host at one time.
    pub host: u64,
    /// The optimizer's state on the device.
    pub optimizer: usize,
}

/// Why two runs are not the same.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParityError {
    /// A run failed.
    #[error("rank {rank}: {message}")]
    Failed {
        /// The rank.
        rank: usize,
        /// Its error.
        message: String,
    },
    /// Ranks do not own every element once.
    #[error("{name}: element {element} is owned by {owners} ranks, expected one")]
    Ownership {
        /// The parameter.
        name: String,
        /// Its element.
        element: usize,
        /// How many ranks have it.
        owners: usize,
    },
    /// A gradient differs.
    #[error("the gradient of {name} differs by {relative:.1e} of its norm, allowed are {bound:.0e}")]
    Gradient {
        /// The first parameter, as a backward pass comes to them, whose gradient differs.
        name: String,
        /// Norm of the difference by the norm.
        relative: f64,
        /// What is allowed.
        bound: f64,
    },
    /// Micro-batches on which routers choose clearly were not found.
    #[error("step {step}: none of {tries} micro-batches keeps the routers' choices {margin:e} apart")]
    Close {
        /// From 1.
        step: usize,
        /// What was wanted.
        margin: f64,
        /// Micro-batches that were drawn.
        tries: usize,
    },
    /// A number of a step differs.
    #[error("step {step}: {what}: {want:?} on one rank, {got:?} here")]
    Step {
        /// From 1.
        step: usize,
        /// Which number.
        what: &'static str,
        /// On one rank.
        want: Vec<f64>,
        /// On the topology.
        got: Vec<f64>,
    },
}

impl ParityError {
    /// What differs, in a few words.
    pub fn what(&self) -> String {
        match self {
            Self::Failed { .. } => "a run that fails".to_owned(),
            Self::Close { step, .. } => format!("close choices of routers, step {step}"),
            Self::Ownership { name, .. } => format!("who owns `{name}`"),
            Self::Gradient { name, .. } => format!("gradient of `{name}`"),
            Self::Step { step, what, .. } => format!("{what}, step {step}"),
        }
    }
}

impl Trial {
    /// How its ranks share the tokens that they route; an expert's capacity is counted over these ranks.
    pub fn capacity_shares(&self) -> CapacityShares {
        let (tp, cp) = (self.grid.size(Axis::Tp), self.grid.size(Axis::Cp));
        let etp = self.grid.expert().size(Axis::Tp);
        CapacityShares {
            context: self.parallel.context,
            cp,
            parts: tp / self.parallel.dispatcher.router_copies(tp, etp),
        }
    }

    /// The same model on one rank: all layers in one chunk, nothing recomputed or swapped, nothing overlapped or deferred.
    ///
    /// # Panics
    /// Never: one rank is a grid.
    pub fn alone(&self) -> Self {
        let grid = Grid::new(1, &GridSizes::default(), GridRules::V2).expect("one rank is a grid");
        let mut config = TrainConfig {
            pipeline: PipelineConfig::default(),
            memory: MemoryConfig::default(),
            data_parallel: DataParallelConfig {
                overlap_grad_reduce: false,
                overlap_param_gather: false,
                overlap_gather_with_step: false,
                ..self.config.data_parallel
            },
            ..self.config.clone()
        };
        config.optimizer.form.swapped = None;
        config.routing.capacity_shares = Some(self.capacity_shares());
        Self { config, grid, parallel: ParallelOptions::default(), rates: self.rates }
    }

    /// Runs the steps. Data-parallel rank `d` of `n` takes the micro-batches `d`, `d + n`, ... of each. Every rank computes on
    /// a device of its own.
    ///
    /// # Errors
    /// [`ParityError::Failed`] or [`ParityError::Ownership`].
    pub fn run(
        &self,
        device: &(dyn Fn() -> ms_core::Result<Device> + Sync),
        steps: &[Vec<MicroBatch>],
        plant: Option<FaultInjector<'_>>,
    ) -> Result<Found, ParityError> {
        self.run_slipped(device, steps, plant, None)
    }

    /// [`Trial::run`], with what ranks are given changed by `slip`.
    ///
    /// # Errors
    /// As [`Trial::run`].
    pub fn run_slipped(
        &self,
        device: &(dyn Fn() -> ms_core::Result<Device> + Sync),
        steps: &[Vec<MicroBatch>],
        plant: Option<FaultInjector<'_>>,
        slip: Option<DivergenceInjector<'_>>,
    ) -> Result<Found, ParityError> {
        let rank = |fabric: threads::ThreadFabric| -> crate::Result<_> {
            let (mut config, mut steps) = (self.config.clone(), steps.to_vec());
            if let Some(slip) = slip {
                slip(ms_dist::Fabric::rank(&fabric), &mut config, &mut steps);
            }
            let ctx = ParallelCtx::new(self.grid.clone(), self.parallel, &fabric)?;
            let ctx = match plant {
                Some(plant) => plant(ctx),
                None => ctx,
            };
            let (d, n) = (ctx.dp.rank(), ctx.dp.size());
            let mine = |step: &Vec<MicroBatch>| step.iter().skip(d).step_by(n).cloned().collect::<Vec<_>>();
            let mut engine = Engine::new(&config, device()?, ctx)?;
            let sent_until =
                |engine: &Engine| engine.ctx.sent_bytes().into_iter().collect::<BTreeMap<_, _>>();
            let between = |before: BTreeMap<RankGroup, u64>, after: BTreeMap<RankGroup, u64>| {
                after
                    .into_iter()
                    .map(|(group, bytes)| (group, bytes - before[&group]))
                    .collect::<BTreeMap<_, _>>()
            };
            let before = sent_until(&engine);
            let (_, owned) = engine.owned_gradients(&mine(&steps[0]))?;
            let sent = between(before, sent_until(&engine));
            let mut step_sent = BTreeMap::new();
            let reals = |o: OwnedPart| Ok((o.name, o.region, o.range, o.values.ready()?.to_reals()?));
            let owned = owned.into_iter().map(reals).collect::<ms_core::Result<Vec<_>>>()?;
            let mut reports = Vec::with_capacity(steps.len());
            for (i, step) in steps.iter().enumerate() {
                let before = sent_until(&engine);
                reports.push(engine.step(i as u64 + 1, &mine(step), self.rates)?);
                step_sent = between(before, sent_until(&engine));
            }
            let stats = engine.device.arena().stats();
            let bytes = RankBytes {
                kept: engine.kept_bytes(),
                peak: stats.peak_bytes,
                peak_asked: stats.peak_asked_bytes,
                largest: stats.largest_bytes,
                host: engine.host_stats().map_or(0, |s| s.peak_bytes),
                optimizer: engine.optimizer.bytes(),
            };
            let weights =
                engine.owned_weights()?.into_iter().map(reals).collect::<ms_core::Result<Vec<_>>>()?;
            Ok((reports, [owned, weights], (sent, step_sent), bytes))
        };
        let failed = |(rank, e): (usize, threads::RankFailure<crate::Error>)| ParityError::Failed {
            rank,
            message: e.to_string(),
        };
        let found = threads::run(self.grid.world(), rank).map_err(failed)?;
        let specs = ms_spec::params(&self.config.model);
        let order = specs.iter().map(|s| s.name.clone()).collect();
        let gradients = whole(&specs, found.iter().flat_map(|f| &f.1[0]))?;
        let weights = whole(&specs, found.iter().flat_map(|f| &f.1[1]))?;
        let (sent, step_sent) = found.iter().map(|f| f.2.clone()).unzip();
        let bytes = found.iter().map(|f| f.3).collect();
        let reports = found.into_iter().next_back().map(|f| f.0).unwrap_or_default();
        Ok(Found { reports, gradients, weights, order, sent, step_sent, bytes })
    }
}

/// A part of a parameter's values: its name, the rank's region of it, elements of the region, their values.
type Part = (String, Region, std::ops::Range<usize>, Vec<f64>);

/// The values of every parameter, of the parts that all ranks own.
fn whole<'a>(
    specs: &[ParamSpec],
    parts: impl Iterator<Item = &'a Part>,
) -> Result<BTreeMap<String, Vec<f64>>, ParityError> {
    let nothing = |s: &ParamSpec| (s.name.clone(), vec![None; s.shape.numel()]);
    let mut all: BTreeMap<String, Vec<Option<f64>>> = specs.iter().map(nothing).collect();
    for (name, region, range, values) in parts {
        let whole = all.entry(name.clone()).or_default();
        // Positions of the region's elements in the whole; the rank owns a range of them.
        let places = region.runs().flat_map(|(start, len)| start..start + len);
        for (element, &value) in places.skip(range.start).zip(values) {
            if whole[element].replace(value).is_some() {
                return Err(ParityError::Ownership { name: name.clone(), element, owners: 2 });
            }
        }
    }
    let owned = |(name, values): (String, Vec<Option<f64>>)| {
        let missing = values.iter().position(Option::is_none);
        match missing {
            Some(element) => Err(ParityError::Ownership { name, element, owners: 0 }),
            None => Ok((name, values.into_iter().flatten().collect())),
        }
    };
    all.into_iter().map(owned).collect()
}

impl Trial {
    /// The memory that `rank` needs and the bytes that it sends in an iteration of `micro` micro-batches over all ranks,
    /// computed without values.
    ///
    /// # Errors
    /// [`ParityError::Failed`] where the run itself would fail.
    pub fn rehearse(&self, rank: usize, micro: usize) -> Result<Rehearsal, ParityError> {
        let place = RankSetup { grid: &self.grid, rank, parallel: self.parallel };
        let each = micro / self.grid.size(Axis::Dp);
        rehearse(&self.config, &place, each).map_err(|e| ParityError::Failed { rank, message: e.to_string() })
    }
}

/// Sizes of drawn micro-batches.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Rows of a micro-batch.
    pub rows: usize,
    /// Tokens of a row.
    pub length: usize,
    /// Micro-batches of a step, over all ranks.
    pub micro: usize,
    /// Whether rows hold two documents of uneven lengths.
    pub packed: bool,
}

/// Micro-batches of random tokens and labels, a quarter of the tokens not counted.
struct Drawn {
    rng: Rng,
    vocab: usize,
    /// Tokens that rows have more, for windows of prediction modules as MindSpeed-LLM 2.0.0 has them.
    windows: usize,
    shape: Shape,
}

impl Drawn {
    fn of(config: &ModelConfig, shape: Shape, seed: u64) -> Self {
        let windows = if config.mtp_hidden_first { config.mtp } else { 0 };
        Self { rng: Rng::named(seed, "batches"), vocab: config.vocab, windows, shape }
    }

    fn below(&mut self, n: usize) -> usize {
        ((self.rng.uniform() * n as f64) as usize).min(n - 1)
    }

    /// The next one; `masked`: none of its tokens counts.
    fn next(&mut self, masked: bool) -> MicroBatch {
        let Shape { rows, packed, .. } = self.shape;
        let length = self.shape.length + self.windows;
        let total = rows * length;
        let mut borders = vec![0usize];
        for row in 0..rows {
            if packed && length > 1 {
                borders.push(row * length + 1 + self.below(length - 1));
            }
            borders.push((row + 1) * length);
        }
        borders.dedup();
        let vocab = self.vocab;
        let tokens: Vec<i32> = (0..total).map(|_| self.below(vocab) as i32).collect();
        let labels: Vec<i32> = (0..total).map(|_| self.below(vocab) as i32).collect();
        let loss_mask = (0..total).map(|_| if masked || self.below(4) == 0 { 0.0 } else { 1.0 }).collect();
        let lengths = borders.windows(2).map(|pair| pair[1] - pair[0]);
        let whole = MicroBatch {
            ahead: Vec::new(),
            tokens,
            labels,
            loss_mask,
            position_ids: lengths.flat_map(|len| (0..len).map(|p| p as i32)).collect(),
            cu_seqlens: borders.iter().map(|&b| b as i32).collect(),
            row_ends: (1..=rows).map(|r| r * length).collect(),
            samples: Vec::new(),
        };
        whole.windows(self.windows)
    }
}

/// Whether no token of this micro-batch of a step counts: of one in the first step.
fn masked(step: usize, micro: usize) -> bool {
    step == 0 && micro == 1
}

/// Steps of drawn micro-batches: random tokens and labels, a quarter of the tokens not counted, and in the first step one
/// micro-batch without a counted token.
pub fn batches(config: &ModelConfig, shape: Shape, steps: usize) -> Vec<Vec<MicroBatch>> {
    let mut drawn = Drawn::of(config, shape, 7);
    (0..steps).map(|step| (0..shape.micro).map(|m| drawn.next(masked(step, m))).collect()).collect()
}

impl Trial {
    /// [`batches`], each drawn again up to `tries` times until every choice of the routers on it, while the steps are trained
    /// on one rank, has a margin of `margin`: rounding then picks the same experts everywhere.
    ///
    /// # Errors
    /// [`ParityError::Failed`], also where no micro-batch has such choices.
    pub fn batches_apart(
        &self,
        device: &(dyn Fn() -> ms_core::Result<Device> + Sync),
        shape: Shape,
        steps: usize,
        (margin, tries): (f64, usize),
    ) -> Result<Vec<Vec<MicroBatch>>, ParityError> {
        let mut alone = self.alone();
        let shares = self.config.routing.capacity_shares;
        alone.config.routing.capacity_shares = shares.or(alone.config.routing.capacity_shares);
        alone.config.routing.watch_margins = true;
        let config = &alone.config;
        let draw = |fabric: threads::ThreadFabric| -> crate::Result<_> {
            let ctx = ParallelCtx::new(alone.grid.clone(), alone.parallel, &fabric)?;
            let mut engine = Engine::new(config, device()?, ctx)?;
            let mut drawn = Drawn::of(&config.model, shape, config.seed);
            let mut all = Vec::with_capacity(steps);
            for step in 0..steps {
                let iteration = step as u64 + 1;
                let mut chosen = Vec::with_capacity(shape.micro);
                for micro in 0..shape.micro {
                    let mut found = None;
                    for _ in 0..tries {
                        let next = drawn.next(masked(step, micro));
                        if engine.routing_margin(iteration, &next)? > margin {
                            found = Some(next);
                            break;
                        }
                    }
                    match found {
                        Some(found) => chosen.push(found),
                        None => return Ok(Err(ParityError::Close { step: step + 1, margin, tries })),
                    }
                }
                engine.step(iteration, &chosen, alone.rates)?;
                all.push(chosen);
            }
            Ok(Ok(all))
        };
        let failed = |(rank, e): (usize, threads::RankFailure<crate::Error>)| ParityError::Failed {
            rank,
            message: e.to_string(),
        };
        threads::run(1, draw).map_err(failed)?.remove(0)
    }
}
