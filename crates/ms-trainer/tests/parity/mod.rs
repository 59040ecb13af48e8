//! Runs of one model on any topology, and what must be equal between them.

#![allow(dead_code)] // each test uses its part
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use ms_core::{CpuBackend, DType, Device, Grid, GridRules, GridSizes, Rng, Tensor};
use ms_data::MicroBatch;
use ms_dist::{Communicator, ContextParallel, ParallelCtx, Pending, ReduceOp, threads};
use ms_kernels::Isa;
use ms_nn::Recompute;
use ms_spec::{ModelConfig, Stages};
use ms_trainer::{Engine, PipelineOrder, Routing, StepReport, TrainConfig, UpdateRule};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A topology and the ways in which its ranks work together.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) world: usize,
    pub(crate) sizes: GridSizes,
    pub(crate) rules: GridRules,
    pub(crate) sequence_parallel: bool,
    pub(crate) context: ContextParallel,
    pub(crate) stages: Stages,
    pub(crate) order: PipelineOrder,
    pub(crate) recompute: Recompute,
    pub(crate) bucket_size: Option<usize>,
    /// Threads of each rank's kernels.
    pub(crate) threads: usize,
    /// How weights follow gradients.
    pub(crate) update: UpdateRule,
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
            stages: Stages::default(),
            order: PipelineOrder::default(),
            recompute: Recompute::None,
            bucket_size: None,
            threads: 1,
            update: TrainConfig::steps(ModelConfig::default(), DType::F64, 1, 1).update,
            dtype: DType::F64,
        }
    }

    /// On the kernels, in f32.
    pub(crate) fn single_precision(self) -> Self {
        Self { dtype: DType::F32, ..self }
    }

    /// One rank in this case's element type, with its update rule.
    pub(crate) fn alone(&self) -> Self {
        Self { dtype: self.dtype, update: self.update, ..Self::single() }
    }

    fn lr(&self) -> f64 {
        match self.update {
            UpdateRule::AdamW(_) => 1e-3,
            UpdateRule::Sgd { .. } => 0.02,
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

/// What a run found: losses of its steps and the gradients of the first, whole, by parameter.
pub(crate) struct Found {
    pub(crate) reports: Vec<StepReport>,
    pub(crate) gradients: BTreeMap<String, Vec<f64>>,
    /// Of each rank the bytes that the first forward and backward sent, by group.
    pub(crate) sent: Vec<BTreeMap<&'static str, u64>>,
}

/// Micro-batches with documents of uneven lengths, uneven masks, and one without a counted token: `[rank][step][micro]`
/// is what a data-parallel rank gets of `micro` micro-batches of `rows` rows.
pub(crate) fn batches(
    config: &ModelConfig,
    rows: usize,
    length: usize,
    steps: usize,
    micro: usize,
    packed: bool,
) -> Vec<Vec<MicroBatch>> {
    let mut rng = Rng::named(7, "batches");
    let mut draw = |n: usize| ((rng.uniform() * n as f64) as usize).min(n - 1);
    let mut one = |masked: bool| {
        let total = rows * length;
        let mut borders = vec![0usize];
        for row in 0..rows {
            if packed {
                let first = row * length + 1 + draw(length - 1);
                borders.push(first);
            }
            borders.push((row + 1) * length);
        }
        borders.dedup();
        let tokens: Vec<i32> = (0..total).map(|_| draw(config.vocab) as i32).collect();
        let labels: Vec<i32> = (0..total).map(|_| draw(config.vocab) as i32).collect();
        let loss_mask: Vec<f32> =
            (0..total).map(|_| if masked || draw(4) == 0 { 0.0 } else { 1.0 }).collect();
        let mut position_ids = Vec::with_capacity(total);
        for pair in borders.windows(2) {
            position_ids.extend((0..pair[1] - pair[0]).map(|p| p as i32));
        }
        MicroBatch {
            tokens,
            labels,
            loss_mask,
            position_ids,
            cu_seqlens: borders.iter().map(|&b| b as i32).collect(),
            row_ends: (1..=rows).map(|r| r * length).collect(),
            samples: Vec::new(),
        }
    };
    (0..steps).map(|step| (0..micro).map(|m| one(step == 0 && m == 1)).collect()).collect()
}

/// What goes wrong in a planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// A communicator on which one kind of exchange goes wrong.
struct Faulty {
    inner: Arc<dyn Communicator>,
    fault: Fault,
    last: Mutex<Option<Tensor>>,
}

impl Faulty {
    fn spoil(&self, name: &str, got: Tensor) -> Tensor {
        if name != self.fault.exchange {
            return got;
        }
        match self.fault.wrong {
            Wrong::Twice => match got.dtype() {
                DType::F32 => {
                    let twice: Vec<f32> = got.as_slice::<f32>().unwrap().iter().map(|x| 2.0 * x).collect();
                    Tensor::from_slice(got.arena(), got.shape(), &twice).unwrap()
                }
                DType::F64 => {
                    let twice: Vec<f64> = got.as_slice::<f64>().unwrap().iter().map(|x| 2.0 * x).collect();
                    Tensor::from_slice(got.arena(), got.shape(), &twice).unwrap()
                }
                _ => got,
            },
            Wrong::Reversed => {
                let n = self.inner.size();
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
            Wrong::Missing => got,
        }
    }

    fn waited(&self, name: &'static str, pending: ms_dist::Result<Pending>) -> ms_dist::Result<Pending> {
        Ok(Pending::ready(self.spoil(name, pending?.wait()?)))
    }

    fn missing(&self, name: &str) -> bool {
        name == self.fault.exchange && self.fault.wrong == Wrong::Missing
    }
}

impl Communicator for Faulty {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn size(&self) -> usize {
        self.inner.size()
    }
    fn all_reduce(&self, name: &'static str, t: Tensor, op: ReduceOp) -> ms_dist::Result<Pending> {
        let own = t.clone();
        let got = self.waited(name, self.inner.all_reduce(name, t, op));
        if self.missing(name) { got.map(|_| Pending::ready(own)) } else { got }
    }
    fn all_gather(&self, name: &'static str, t: Tensor) -> ms_dist::Result<Pending> {
        self.waited(name, self.inner.all_gather(name, t))
    }
    fn reduce_scatter(&self, name: &'static str, t: Tensor) -> ms_dist::Result<Pending> {
        let (part, rank) = (t.numel() / self.size(), self.rank());
        let own = t.slice_flat(rank * part, [part])?;
        let got = self.waited(name, self.inner.reduce_scatter(name, t));
        if self.missing(name) { got.map(|_| Pending::ready(own)) } else { got }
    }
    fn broadcast(&self, name: &'static str, t: Tensor, root: usize) -> ms_dist::Result<Pending> {
        self.waited(name, self.inner.broadcast(name, t, root))
    }
    fn all_to_all(&self, name: &'static str, t: Tensor) -> ms_dist::Result<Pending> {
        self.waited(name, self.inner.all_to_all(name, t))
    }
    fn all_to_all_rows(&self, name: &'static str, t: Tensor, rows: &[usize]) -> ms_dist::Result<Pending> {
        self.waited(name, self.inner.all_to_all_rows(name, t, rows))
    }
    fn send(&self, name: &'static str, t: Tensor, to: usize, tag: u64) -> ms_dist::Result<()> {
        self.inner.send(name, t, to, tag)
    }
    fn recv(&self, name: &'static str, from: usize, tag: u64) -> ms_dist::Result<Pending> {
        if name == self.fault.exchange {
            return self.waited(name, self.inner.recv(name, from, tag));
        }
        self.inner.recv(name, from, tag)
    }
    fn barrier(&self) -> ms_dist::Result<()> {
        self.inner.barrier()
    }
    fn sent_bytes(&self) -> u64 {
        self.inner.sent_bytes()
    }
}

/// The context with the fault planted in all its groups.
fn plant(mut ctx: ParallelCtx, fault: Fault) -> ParallelCtx {
    for group in [
        &mut ctx.tp,
        &mut ctx.cp,
        &mut ctx.ulysses,
        &mut ctx.ring,
        &mut ctx.dp,
        &mut ctx.dp_cp,
        &mut ctx.pp,
        &mut ctx.embedding,
        &mut ctx.ep,
        &mut ctx.etp,
        &mut ctx.edp,
        &mut ctx.stage,
        &mut ctx.world,
    ] {
        if group.size() > 1 {
            *group = Arc::new(Faulty { inner: group.clone(), fault, last: Mutex::new(None) });
        }
    }
    ctx
}

/// Runs the steps on the topology. Data-parallel rank `d` of `n` takes the micro-batches `d`, `d + n`, ...
pub(crate) fn run(
    config: &ModelConfig,
    case: &Case,
    routing: Routing,
    steps: &[Vec<MicroBatch>],
) -> Result<Found, String> {
    run_with(config, case, routing, steps, None)
}

/// [`run`], with a fault planted.
pub(crate) fn run_with(
    config: &ModelConfig,
    case: &Case,
    routing: Routing,
    steps: &[Vec<MicroBatch>],
    fault: Option<Fault>,
) -> Result<Found, String> {
    let length = steps[0][0].row_ends[0];
    let train = TrainConfig {
        stages: case.stages.clone(),
        order: case.order,
        recompute: case.recompute,
        bucket_size: case.bucket_size,
        routing,
        update: case.update,
        check_for_nan: false,
        ..TrainConfig::steps(config.clone(), case.dtype, length, steps[0][0].row_ends.len())
    };
    let grid = Grid::new(case.world, &case.sizes, case.rules).map_err(|e| e.to_string())?;
    let rank = |fabric: threads::ThreadFabric| -> Result<_, String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let device = case.device().map_err(|e| text(&e))?;
        let ctx = ParallelCtx::new(grid.clone(), case.sequence_parallel, case.context, &fabric)
            .map_err(|e| text(&e))?;
        let ctx = match fault {
            Some(fault) => plant(ctx, fault),
            None => ctx,
        };
        let (d, n) = (ctx.dp.rank(), ctx.dp.size());
        let mine = |step: &Vec<MicroBatch>| step.iter().skip(d).step_by(n).cloned().collect::<Vec<_>>();
        let mut engine = Engine::new(&train, device, ctx).map_err(|e| text(&e))?;
        let before: BTreeMap<_, _> = engine.ctx.sent_bytes().into_iter().collect();
        let (_, owned) = engine.owned_gradients(&mine(&steps[0])).map_err(|e| text(&e))?;
        let after = engine.ctx.sent_bytes().into_iter();
        let sent: BTreeMap<_, _> = after.map(|(name, bytes)| (name, bytes - before[name])).collect();
        let owned: Vec<_> = owned
            .into_iter()
            .map(|o| (o.name, o.region, o.range, o.values.to_reals().expect("gradients are real numbers")))
            .collect();
        let mut reports = Vec::new();
        for (i, step) in steps.iter().enumerate() {
            reports.push(engine.step(i as u64 + 1, &mine(step), case.lr(), 0.1).map_err(|e| text(&e))?);
        }
        Ok((reports, owned, sent))
    };
    let found = threads::run(case.world, rank).map_err(|(rank, e)| format!("rank {rank}: {e}"))?;
    let mut gradients: BTreeMap<String, Vec<f64>> =
        ms_spec::params(config).into_iter().map(|s| (s.name, vec![f64::NAN; s.shape.numel()])).collect();
    for (_, owned, _) in &found {
        for (name, region, range, values) in owned {
            let whole = gradients.get_mut(name).ok_or_else(|| format!("{name} is not in the table"))?;
            // Places of the region's elements in the whole, of which the rank owns a range.
            let places = region.runs().flat_map(|(start, len)| start..start + len);
            for (place, &value) in places.skip(range.start).zip(values) {
                if !whole[place].is_nan() {
                    return Err(format!("{name}: two ranks own element {place}"));
                }
                whole[place] = value;
            }
        }
    }
    let sent = found.iter().map(|f| f.2.clone()).collect();
    let reports = found.into_iter().next_back().map(|f| f.0).unwrap_or_default();
    Ok(Found { reports, gradients, sent })
}

/// The parameter whose gradient differs most, with the difference relative to its own and, for small ones, the whole norm.
pub(crate) fn worst(want: &Found, got: &Found) -> (String, f64) {
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

/// How far two runs of one model may be apart, relative to the value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Gradient of a parameter after the first step, of its norm.
    pub(crate) gradient: f64,
    /// Loss, auxiliary losses and predictions of every step.
    pub(crate) loss: f64,
    /// Norm of the gradient of every step.
    pub(crate) norm: f64,
}

impl Bounds {
    /// What rounding leaves of `dtype`. In f32 a norm sums what rounding did to all.
    pub(crate) fn of(dtype: DType) -> Self {
        match dtype {
            DType::F64 => Self { gradient: 1e-10, loss: 1e-10, norm: 1e-10 },
            _ => Self { gradient: 3e-4, loss: 2e-5, norm: 6e-4 },
        }
    }
}

/// Compares two runs: every gradient of the first step, and over all steps every loss, norm and load of experts.
pub(crate) fn compare(what: &str, want: &Found, got: &Found, bounds: Bounds) -> Result<(), String> {
    let (name, relative) = worst(want, got);
    if relative > bounds.gradient {
        return Err(format!("{what}: the gradient of {name} differs by {relative:.1e}"));
    }
    let close = |a: f64, b: f64, bound: f64| (a - b).abs() <= bound * a.abs().max(1.0);
    for (i, (w, g)) in want.reports.iter().zip(&got.reports).enumerate() {
        let same = close(w.loss, g.loss, bounds.loss) && close(w.grad_norm, g.grad_norm, bounds.norm);
        if !same || w.tokens != g.tokens {
            return Err(format!("{what}: step {}: {w:?} and {g:?}", i + 1));
        }
        let predictions = w.ahead.iter().zip(&g.ahead).all(|(a, b)| close(*a, *b, bounds.loss));
        if !predictions || w.ahead.len() != g.ahead.len() {
            return Err(format!("{what}: step {}: predictions {:?} and {:?}", i + 1, w.ahead, g.ahead));
        }
        match (&w.experts, &g.experts) {
            (None, None) => {}
            // In f32 the routers of later steps see weights that rounding has moved.
            (Some(_), Some(_)) if i > 0 && bounds.loss > 1e-9 => {}
            (Some(a), Some(b)) if a.tokens == b.tokens && close(a.balance, b.balance, bounds.loss) => {}
            (a, b) => return Err(format!("{what}: step {}: load {a:?} and {b:?}", i + 1)),
        }
    }
    Ok(())
}
