//! A few steps of one model on a topology, and whether they are those of one rank.
//!
//! [`Trial::run`] trains on threads and brings together the gradients of the first step, whole, by parameter, and the losses
//! and norms of all. [`compare`] names the first thing in which two runs differ. Run on a device that computes in f64, what
//! is left of rounding lies many digits below any error in what ranks exchange.

use crate::{Engine, StepReport, TrainConfig};
use ms_core::{DType, Device, Grid, GridRules, GridSizes, Rng};
use ms_data::MicroBatch;
use ms_dist::{ContextParallel, ParallelCtx, threads};
use ms_spec::{ModelConfig, Stages};
use std::collections::BTreeMap;

/// A model and how it is spread over ranks.
#[derive(Clone)]
pub struct Trial {
    /// What is trained, and how.
    pub config: TrainConfig,
    /// The ranks.
    pub grid: Grid,
    /// Tensor-parallel ranks share the tokens between matrices.
    pub sequence_parallel: bool,
    /// How ranks share a sequence.
    pub context: ContextParallel,
    /// Learning rate of every step.
    pub lr: f64,
}

/// Changes what a rank knows of the others before it begins; tests plant faults so.
pub type Plant<'a> = &'a (dyn Fn(ParallelCtx) -> ParallelCtx + Sync);

/// What a run found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Losses, norms and loads of the steps, as the last rank has them.
    pub reports: Vec<StepReport>,
    /// The gradients of the first step, whole, by parameter.
    pub gradients: BTreeMap<String, Vec<f64>>,
    /// Of each rank the bytes that the first forward and backward sent, by group.
    pub sent: Vec<BTreeMap<&'static str, u64>>,
    /// Of each rank what its tensors took.
    pub bytes: Vec<RankBytes>,
}

/// Bytes of a rank's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankBytes {
    /// Most that forward passes kept at one time ([`Engine::kept_bytes`]).
    pub kept: usize,
    /// Most that there were at one time.
    pub peak: usize,
    /// Most that were with the host at one time.
    pub host: u64,
    /// The optimizer's state on the device.
    pub optimizer: usize,
}

/// Why two runs are not the same.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Apart {
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
        /// The parameter whose gradient differs most.
        name: String,
        /// Norm of the difference by the norm.
        relative: f64,
        /// What is allowed.
        bound: f64,
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

impl Apart {
    /// What differs, in a few words.
    pub fn what(&self) -> String {
        match self {
            Self::Failed { .. } => "a run that fails".to_owned(),
            Self::Ownership { name, .. } => format!("who owns `{name}`"),
            Self::Gradient { name, .. } => format!("gradient of `{name}`"),
            Self::Step { step, what, .. } => format!("{what}, step {step}"),
        }
    }
}

impl Trial {
    /// The same on one rank, with all layers in one chunk.
    ///
    /// # Panics
    /// Never: one rank is a grid.
    pub fn alone(&self) -> Self {
        let grid = Grid::new(1, &GridSizes::default(), GridRules::V2).expect("one rank is a grid");
        let config = TrainConfig {
            stages: Stages::default(),
            order: crate::PipelineOrder::default(),
            ..self.config.clone()
        };
        Self { config, grid, sequence_parallel: false, context: ContextParallel::Gather, lr: self.lr }
    }

    /// Runs the steps. Data-parallel rank `d` of `n` takes the micro-batches `d`, `d + n`, ... of each. Every rank computes on
    /// a device of its own.
    ///
    /// # Errors
    /// [`Apart::Failed`] or [`Apart::Ownership`].
    pub fn run(
        &self,
        device: &(dyn Fn() -> ms_core::Result<Device> + Sync),
        steps: &[Vec<MicroBatch>],
        plant: Option<Plant<'_>>,
    ) -> Result<Found, Apart> {
        let rank = |fabric: threads::ThreadFabric| -> crate::Result<_> {
            let ctx = ParallelCtx::new(self.grid.clone(), self.sequence_parallel, self.context, &fabric)?;
            let ctx = match plant {
                Some(plant) => plant(ctx),
                None => ctx,
            };
            let (d, n) = (ctx.dp.rank(), ctx.dp.size());
            let mine = |step: &Vec<MicroBatch>| step.iter().skip(d).step_by(n).cloned().collect::<Vec<_>>();
            let mut engine = Engine::new(&self.config, device()?, ctx)?;
            let before: BTreeMap<_, _> = engine.ctx.sent_bytes().into_iter().collect();
            let (_, owned) = engine.owned_gradients(&mine(&steps[0]))?;
            let after = engine.ctx.sent_bytes().into_iter();
            let sent: BTreeMap<_, _> = after.map(|(name, bytes)| (name, bytes - before[name])).collect();
            let reals = owned.into_iter().map(|o| Ok((o.name, o.region, o.range, o.values.to_reals()?)));
            let owned = reals.collect::<ms_core::Result<Vec<_>>>()?;
            let mut reports = Vec::with_capacity(steps.len());
            for (i, step) in steps.iter().enumerate() {
                reports.push(engine.step(i as u64 + 1, &mine(step), (self.lr, 0.1))?);
            }
            let bytes = RankBytes {
                kept: engine.kept_bytes(),
                peak: engine.device.arena().stats().peak_bytes,
                host: engine.host_stats().map_or(0, |s| s.peak_bytes),
                optimizer: engine.optimizer.bytes(),
            };
            Ok((reports, owned, sent, bytes))
        };
        let failed = |(rank, e): (usize, threads::RankFailure<crate::Error>)| Apart::Failed {
            rank,
            message: e.to_string(),
        };
        let found = threads::run(self.grid.world(), rank).map_err(failed)?;
        let names = ms_spec::params(&self.config.model).into_iter();
        let mut gradients: BTreeMap<String, Vec<f64>> =
            names.map(|s| (s.name, vec![f64::NAN; s.shape.numel()])).collect();
        for (_, owned, ..) in &found {
            for (name, region, range, values) in owned {
                let whole = gradients.entry(name.clone()).or_default();
                // Places of the region's elements in the whole, of which the rank owns a range.
                let places = region.runs().flat_map(|(start, len)| start..start + len);
                for (element, &value) in places.skip(range.start).zip(values) {
                    if !whole[element].is_nan() {
                        return Err(Apart::Ownership { name: name.clone(), element, owners: 2 });
                    }
                    whole[element] = value;
                }
            }
        }
        for (name, whole) in &gradients {
            if let Some(element) = whole.iter().position(|x| x.is_nan()) {
                return Err(Apart::Ownership { name: name.clone(), element, owners: 0 });
            }
        }
        let sent = found.iter().map(|f| f.2.clone()).collect();
        let bytes = found.iter().map(|f| f.3).collect();
        let reports = found.into_iter().next_back().map(|f| f.0).unwrap_or_default();
        Ok(Found { reports, gradients, sent, bytes })
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

/// Steps of drawn micro-batches: random tokens and labels, a quarter of the tokens not counted, and in the first step one
/// micro-batch without a counted token.
pub fn batches(config: &ModelConfig, shape: Shape, steps: usize) -> Vec<Vec<MicroBatch>> {
    let mut rng = Rng::named(7, "batches");
    let mut draw = |n: usize| ((rng.uniform() * n as f64) as usize).min(n - 1);
    let Shape { rows, length, micro, packed } = shape;
    let mut one = |masked: bool| {
        let total = rows * length;
        let mut borders = vec![0usize];
        for row in 0..rows {
            if packed && length > 1 {
                borders.push(row * length + 1 + draw(length - 1));
            }
            borders.push((row + 1) * length);
        }
        borders.dedup();
        let tokens: Vec<i32> = (0..total).map(|_| draw(config.vocab) as i32).collect();
        let labels: Vec<i32> = (0..total).map(|_| draw(config.vocab) as i32).collect();
        let loss_mask = (0..total).map(|_| if masked || draw(4) == 0 { 0.0 } else { 1.0 }).collect();
        let lengths = borders.windows(2).map(|pair| pair[1] - pair[0]);
        MicroBatch {
            tokens,
            labels,
            loss_mask,
            position_ids: lengths.flat_map(|len| (0..len).map(|p| p as i32)).collect(),
            cu_seqlens: borders.iter().map(|&b| b as i32).collect(),
            row_ends: (1..=rows).map(|r| r * length).collect(),
            samples: Vec::new(),
        }
    };
    (0..steps).map(|step| (0..micro).map(|m| one(step == 0 && m == 1)).collect()).collect()
}

/// How far two runs of one model may be apart, relative to the value.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Gradient of a parameter after the first step, of its norm.
    pub gradient: f64,
    /// Loss, auxiliary losses and predictions of every step.
    pub loss: f64,
    /// Norm of the gradient of every step.
    pub norm: f64,
}

impl Bounds {
    /// What rounding leaves of `dtype`. In f32 a norm sums what rounding did to all.
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::F64 => Self { gradient: 1e-10, loss: 1e-10, norm: 1e-10 },
            _ => Self { gradient: 3e-4, loss: 2e-5, norm: 6e-4 },
        }
    }
}

/// The parameter whose gradient differs most, with the difference relative to its own and, for small ones, the whole norm.
pub fn worst(want: &Found, got: &Found) -> (String, f64) {
    let norm = |g: &[f64]| g.iter().map(|x| x * x).sum::<f64>().sqrt();
    let total = want.gradients.values().map(|g| norm(g).powi(2)).sum::<f64>().sqrt();
    let mut worst = (String::from("none"), 0.0);
    for (name, w) in &want.gradients {
        let g = &got.gradients[name];
        let difference: f64 = w.iter().zip(g).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        let relative = difference / norm(w).max(1e-4 * total).max(1e-20);
        // A gap (NaN) is the worst of all.
        if relative.is_nan() || relative > worst.1 {
            worst = (name.clone(), if relative.is_nan() { f64::INFINITY } else { relative });
        }
    }
    worst
}

/// Compares two runs: every gradient of the first step, and over all steps every loss, norm and load of experts.
///
/// # Errors
/// What differs first.
pub fn compare(want: &Found, got: &Found, bounds: Bounds) -> Result<(), Apart> {
    let (name, relative) = worst(want, got);
    if relative > bounds.gradient {
        return Err(Apart::Gradient { name, relative, bound: bounds.gradient });
    }
    for (i, (w, g)) in want.reports.iter().zip(&got.reports).enumerate() {
        let same = |what: &'static str, want: &[f64], got: &[f64], bound: f64| {
            let close = |(a, b): (&f64, &f64)| (a - b).abs() <= bound * a.abs().max(1.0);
            if want.len() == got.len() && want.iter().zip(got).all(close) {
                return Ok(());
            }
            Err(Apart::Step { step: i + 1, what, want: want.to_vec(), got: got.to_vec() })
        };
        same("loss", &[w.loss], &[g.loss], bounds.loss)?;
        same("norm of the gradient", &[w.grad_norm], &[g.grad_norm], bounds.norm)?;
        same("counted tokens", &[w.tokens as f64], &[g.tokens as f64], 0.0)?;
        same("losses of predictions", &w.ahead, &g.ahead, bounds.loss)?;
        let load = |r: &StepReport| -> (Vec<f64>, Vec<f64>) {
            let experts = r.experts.iter();
            let tokens = experts.clone().flat_map(|e| e.tokens.values().flatten().map(|&n| n as f64));
            (tokens.collect(), experts.flat_map(|e| e.auxiliary.each()).collect())
        };
        let ((want_tokens, want_balance), (tokens, balance)) = (load(w), load(g));
        // In f32 the routers of later steps see weights that rounding has moved.
        if i == 0 || bounds.loss < 1e-9 {
            same("tokens of the experts", &want_tokens, &tokens, 0.0)?;
            same("auxiliary loss", &want_balance, &balance, bounds.loss)?;
        }
    }
    Ok(())
}
