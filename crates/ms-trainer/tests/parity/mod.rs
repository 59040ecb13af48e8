//! Runs of one model on any topology, and what must be equal between them.

#![allow(dead_code)] // each test uses its part
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use ms_core::{CpuBackend, DType, Device, Grid, GridRules, GridSizes, Tensor};
use ms_data::MicroBatch;
use ms_dist::{Communicator, ContextParallel, ParallelCtx, Pending, ReduceOp};
use ms_kernels::Isa;
use ms_nn::{Keeping, Recompute};
use ms_spec::{ModelConfig, Stages};
use ms_trainer::parity::{Apart, Found, Trial};
use ms_trainer::{LossScale, OptimizerForm, PipelineOrder, Replay, Routing, TrainConfig, UpdateRule};
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
    pub(crate) keeping: Keeping,
    pub(crate) replay: Replay,
    pub(crate) bucket_size: Option<usize>,
    /// Buckets are summed while the backward pass runs.
    pub(crate) overlap: bool,
    /// Threads of each rank's kernels.
    pub(crate) threads: usize,
    /// How weights follow gradients.
    pub(crate) update: UpdateRule,
    /// Rate of dropout in the stream.
    pub(crate) dropout: f64,
    pub(crate) loss_scale: LossScale,
    pub(crate) form: OptimizerForm,
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
            keeping: Keeping::default(),
            replay: Replay::default(),
            bucket_size: None,
            overlap: false,
            threads: 1,
            update: TrainConfig::steps(ModelConfig::default(), DType::F64, 1, 1).update,
            dropout: 0.0,
            loss_scale: LossScale::None,
            form: OptimizerForm::default(),
            dtype: DType::F64,
        }
    }

    /// On the kernels, in f32.
    pub(crate) fn single_precision(self) -> Self {
        Self { dtype: DType::F32, ..self }
    }

    /// One rank in this case's element type, with its update rule.
    pub(crate) fn alone(&self) -> Self {
        let Self { dtype, update, dropout, loss_scale, .. } = *self;
        Self { dtype, update, dropout, loss_scale, ..Self::single() }
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

/// Runs the steps on the topology.
pub(crate) fn run(
    config: &ModelConfig,
    case: &Case,
    routing: Routing,
    steps: &[Vec<MicroBatch>],
) -> Result<Found, Apart> {
    run_with(config, case, routing, steps, None)
}

/// [`run`], with a fault planted.
pub(crate) fn run_with(
    config: &ModelConfig,
    case: &Case,
    routing: Routing,
    steps: &[Vec<MicroBatch>],
    fault: Option<Fault>,
) -> Result<Found, Apart> {
    let length = steps[0][0].row_ends[0];
    let config = TrainConfig {
        stages: case.stages.clone(),
        order: case.order,
        recompute: case.recompute,
        keeping: case.keeping,
        replay: case.replay,
        swap_folder: std::env::temp_dir(),
        bucket_size: case.bucket_size,
        overlap_grad_reduce: case.overlap,
        routing,
        update: case.update,
        hidden_dropout: case.dropout,
        loss_scale: case.loss_scale,
        optimizer_form: case.form,
        check_for_nan: false,
        ..TrainConfig::steps(config.clone(), case.dtype, length, steps[0][0].row_ends.len())
    };
    let grid = Grid::new(case.world, &case.sizes, case.rules)
        .map_err(|e| Apart::Failed { rank: 0, message: e.to_string() })?;
    let (sequence_parallel, context, lr) = (case.sequence_parallel, case.context, case.lr());
    let trial = Trial { config, grid, sequence_parallel, context, lr };
    let planted = |ctx| match fault {
        Some(fault) => plant(ctx, fault),
        None => ctx,
    };
    trial.run(&|| case.device(), steps, Some(&planted))
}
