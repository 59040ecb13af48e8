//! Saving a checkpoint, synchronously or while training continues.
//!
//! Every rank writes its part. When all have finished, the first rank adds the manifest and renames the folder to its final
//! name. Asynchronously, a thread does both with copies of what changes, and the ranks agree between iterations on their
//! progress. Both ways write the same bytes.

use crate::checkpoint::{RunState, Stored, in_megatrons_words, iterations, region, state_name};
use crate::config::{MegatronFiles, TrainConfig};
use crate::engine::Engine;
use crate::optimizer::{StateShard, state_names};
use crate::scaler::LossScale;
use crate::{Error, Result};
use ms_ckpt::layout::mcore::FileGrid;
use ms_ckpt::layout::torch_dist::Modules;
use ms_ckpt::{ArgsForm, Checkpoint, Plan, Run, iteration_name, sharded};
use ms_core::{Axis, DType, Device, Grid, GridSizes, ParamId, Region, Tensor};
use ms_dist::ReduceOp;
use ms_spec::ModelConfig;
use serde_json::json;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// A checkpoint that is being written.
pub(crate) struct Saving {
    pub(crate) iteration: u64,
    /// The folder that it is written to.
    pub(crate) dir: PathBuf,
    /// What this rank holds for it while training goes on. It is let go between iterations: how quick a disk is does not show in
    /// what an iteration takes of memory.
    held: Option<Arc<Vec<Part<'static>>>>,
    background: bool,
    stage: Stage,
    writer: Arc<sharded::Writer>,
    now: Job,
}

/// How far a checkpoint is.
enum Stage {
    /// Every rank writes its part; what the first one does then.
    Parts(Option<Box<Last>>),
    /// The first rank puts the parts together.
    Whole,
}

/// What is done by this rank.
enum Job {
    Done(Result<()>),
    Background(JoinHandle<Result<()>>),
}

impl Job {
    fn new(background: bool, work: impl FnOnce() -> Result<()> + Send + 'static) -> Self {
        if !background {
            return Self::Done(work());
        }
        let named = std::thread::Builder::new().name("checkpoint".to_owned());
        match named.spawn(work) {
            Ok(thread) => Self::Background(thread),
            Err(source) => Self::Done(Err(ms_dist::Error::Transport {
                what: "a thread for a checkpoint".to_owned(),
                source: source.into(),
            }
            .into())),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Self::Done(_) => true,
            Self::Background(thread) => thread.is_finished(),
        }
    }

    fn result(self) -> Result<()> {
        match self {
            Self::Done(result) => result,
            Self::Background(thread) => {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }
        }
    }
}

/// A part of a tensor.
struct Part<'a> {
    name: String,
    shape: ms_core::Shape,
    region: Region,
    flat: Option<Range<usize>>,
    values: Values<'a>,
}

/// Where its values are.
enum Values<'a> {
    /// In memory of their own or the engine's.
    OnDevice(Tensor),
    /// With the host, from where they come a piece at a time.
    OnHost(&'a Device, StateShard<'a>),
}

impl Part<'_> {
    /// The same in memory that nobody changes. Weights are never changed where they lie.
    fn held(self, engine: &Engine) -> Result<Part<'static>> {
        let Self { name, shape, region, flat, values } = self;
        let values = match values {
            Values::OnDevice(values) if flat.is_some() && !values.is_unique() => values.copied()?,
            Values::OnDevice(values) => values,
            Values::OnHost(device, share) => share.values(device, &engine.store)?,
        };
        Ok(Part { name, shape, region, flat, values: Values::OnDevice(values) })
    }

    fn bytes(&self) -> usize {
        match &self.values {
            Values::OnDevice(values) => values.numel() * values.dtype().size(),
            Values::OnHost(_, share) => share.range().len() * share.dtype().size(),
        }
    }
}

/// The first rank's last step: everything other than tensors, and the final name.
struct Last {
    config: TrainConfig,
    dir: PathBuf,
    state: RunState,
    stored: Stored,
    dtype: DType,
    /// The ranks of the run, for which Megatron's files are cut.
    grid: Grid,
}

impl Saving {
    /// Starts the checkpoint of `state`; all ranks of the run call it together. `beside`: what changes is copied, and written
    /// while training continues.
    ///
    /// # Errors
    /// If the folder cannot be made, on all ranks.
    pub(crate) fn begin(
        config: &TrainConfig,
        engine: &Engine,
        state: &RunState,
        dir: &Path,
        background: bool,
    ) -> Result<Self> {
        engine.store.settle()?;
        let first = engine.ctx.rank == 0;
        let made = if first {
            sharded::Writer::create(dir, state.iteration).map(Some).map_err(Error::from)
        } else {
            Ok(None)
        };
        let made = together(engine, made)?;
        let writer = Arc::new(made.unwrap_or_else(|| sharded::Writer::join(dir, state.iteration)));
        let last = first.then(|| {
            let stored = stored(config, engine, state);
            let (dtype, grid) = (engine.dtype(), engine.ctx.grid.clone());
            let mut config = config.clone();
            if config
                .checkpoint
                .non_persistent
                .as_ref()
                .is_some_and(|non_persistent| non_persistent.dir == dir)
            {
                (config.checkpoint.keep_last, config.checkpoint.megatron_files) =
                    (Some(1), MegatronFiles::Absent);
            }
            Box::new(Last { config, dir: dir.to_owned(), state: state.clone(), stored, dtype, grid })
        });
        let (rank, to) = (engine.ctx.rank, writer.clone());
        let parts = parts(config, engine)?;
        let (now, held) = if background {
            let parts = Arc::new(held(parts, engine)?);
            let held = parts.clone();
            (Job::new(true, move || write(&to, rank, &parts)), Some(held))
        } else {
            (Job::Done(write(&to, rank, &parts)), None)
        };
        let stage = Stage::Parts(last);
        Ok(Self { iteration: state.iteration, dir: dir.to_owned(), held, background, stage, writer, now })
    }

    /// Bytes of what this rank holds.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held.iter().flat_map(|parts| parts.iter()).map(Part::bytes).sum()
    }

    /// Goes on as far as all ranks are, or with `wait` to the end: then nothing is left. All ranks call it together.
    ///
    /// # Errors
    /// Why the checkpoint failed, on all ranks: then nothing of it is visible.
    pub(crate) fn go_on(self, engine: &Engine, wait: bool) -> Result<Option<Self>> {
        let mut this = self;
        loop {
            if !wait && !all(engine, this.now.is_done())? {
                return Ok(Some(this));
            }
            // The folder stays until all ranks have done with it, well or not.
            let Self { iteration, dir, held, background, stage, writer, now } = this;
            together(engine, now.result())?;
            drop(held);
            let Stage::Parts(last) = stage else { return Ok(None) };
            let now = match last {
                Some(last) => {
                    let to = writer.clone();
                    Job::new(background, move || last.seal(&to))
                }
                None => Job::Done(Ok(())),
            };
            this = Self { iteration, dir, held: None, background, stage: Stage::Whole, writer, now };
        }
    }
}

fn held(parts: Vec<Part<'_>>, engine: &Engine) -> Result<Vec<Part<'static>>> {
    parts.into_iter().map(|part| part.held(engine)).collect()
}

/// What `engine`'s rank holds while a checkpoint is written asynchronously; nothing otherwise.
///
/// # Errors
/// If the state cannot be read.
pub(crate) fn snapshot(config: &TrainConfig, engine: &mut Engine) -> Result<Vec<impl Sized + use<>>> {
    if config.checkpoint.async_save && config.checkpoint.writes() {
        // As in a run, of weights that have arrived.
        engine.store.settle()?;
        held(parts(config, engine)?, engine)
    } else {
        Ok(Vec::new())
    }
}

/// Whether all ranks say so.
fn all(engine: &Engine, mine: bool) -> Result<bool> {
    let waits = Tensor::from_slice(engine.device.arena(), [1], &[f64::from(u8::from(!mine))])?;
    let waits = engine.ctx.world.all_reduce("saving", waits, ReduceOp::Max)?.wait()?;
    Ok(waits.ready()?.as_slice::<f64>()?[0] == 0.0)
}

/// Bytes of a reason that ranks tell each other.
const REASON: usize = 1024;

/// What this rank has done, if every rank has succeeded; otherwise the error of the first that failed.
fn together<T>(engine: &Engine, mine: Result<T>) -> Result<T> {
    let (world, arena) = (&engine.ctx.world, engine.device.arena());
    let after = if mine.is_err() { (world.size() - engine.ctx.rank) as f64 } else { 0.0 };
    let after = Tensor::from_slice(arena, [1], &[after])?;
    let after = world.all_reduce("saved", after, ReduceOp::Max)?.wait()?.ready()?.as_slice::<f64>()?[0];
    if after == 0.0 {
        return mine;
    }
    let rank = world.size() - after as usize;
    let mut said = [0i64; REASON];
    if let Err(e) = &mine {
        said.iter_mut().zip(e.to_string().bytes()).for_each(|(to, byte)| *to = i64::from(byte));
    }
    let said = world.broadcast("why not", Tensor::from_slice(arena, [REASON], &said)?, rank)?.wait()?;
    let said: Vec<u8> =
        said.ready()?.as_slice::<i64>()?.iter().map(|&b| b as u8).take_while(|&b| b != 0).collect();
    match mine {
        Err(e) if rank == engine.ctx.rank => Err(e),
        _ => Err(Error::OtherRank { rank, reason: String::from_utf8_lossy(&said).into_owned() }),
    }
}

/// What a checkpoint stores in addition to tensors.
fn stored(config: &TrainConfig, engine: &Engine, state: &RunState) -> Stored {
    let step = engine.optimizer.step();
    let (optimizer, opt_param_scheduler) = in_megatrons_words(config, state, step, engine.scaler());
    let dynamic = matches!(config.optimizer.loss_scale, LossScale::Dynamic { .. });
    let loss_scale = dynamic.then(|| engine.scaler());
    Stored {
        iteration: state.iteration,
        consumed_train_samples: state.consumed_train_samples,
        scheduled_samples: Some(state.scheduled_samples),
        loss_scale,
        consumed_valid_samples: state.consumed_valid_samples,
        num_floating_point_operations_so_far: state.floating_point_operations,
        optimizer_step: step,
        schedule: state.schedule.clone(),
        seed: config.seed,
        world: engine.ctx.grid.world(),
        arithmetic: Some(engine.device.arithmetic()),
        args: config.args.clone(),
        optimizer,
        opt_param_scheduler,
    }
}

/// What this rank writes.
fn parts<'a>(config: &TrainConfig, engine: &'a Engine) -> Result<Vec<Part<'a>>> {
    let specs = engine.model.specs();
    let regions = specs.iter().map(|spec| region(engine, spec)).collect::<Result<Vec<_>>>()?;
    let mut parts = Vec::new();
    for (i, (spec, region)) in specs.iter().zip(&regions).enumerate() {
        let id = ParamId(i as u32);
        // Of ranks that hold the same, the first writes.
        let alike = if spec.of_experts() { &engine.ctx.edp } else { &engine.ctx.dp_cp };
        if engine.counts(id) && alike.rank() == 0 {
            let (name, region) = (spec.name.clone(), region.clone());
            let values = Values::OnDevice(engine.store.get(id));
            parts.push(Part { name, shape: spec.shape, region, flat: None, values });
        }
    }
    if config.checkpoint.no_save_optim {
        return Ok(parts);
    }
    // In f32 and f64 the master weights are the weights.
    let first = usize::from(engine.dtype() == engine.dtype().wide());
    for (which, state) in state_names(config.optimizer.update).into_iter().enumerate().skip(first) {
        for share in engine.optimizer.shares(which, |id| engine.counts(id)) {
            let id = share.param().0 as usize;
            let (spec, region) = (&specs[id], regions[id].clone());
            let values = if share.is_on_host() {
                Values::OnHost(&engine.device, share)
            } else {
                Values::OnDevice(share.values(&engine.device, &engine.store)?)
            };
            let (name, flat) = (state_name(state, spec), Some(share.range()));
            parts.push(Part { name, shape: spec.shape, region, flat, values });
        }
    }
    Ok(parts)
}

/// What brings the values that are with the host.
fn runs<'a>(part: &Part<'a>) -> Option<Box<sharded::Runs<'a>>> {
    let Values::OnHost(device, share) = part.values else { return None };
    Some(Box::new(move |take| share.each_piece(device, |values| take(values.bytes()))))
}

fn write(writer: &sharded::Writer, rank: usize, parts: &[Part<'_>]) -> Result<()> {
    let runs: Vec<_> = parts.iter().map(runs).collect();
    let mut pieces = Vec::with_capacity(parts.len());
    for (part, runs) in parts.iter().zip(&runs) {
        let (dtype, bytes) = match (&part.values, runs) {
            (Values::OnDevice(values), _) => {
                (values.dtype(), sharded::Bytes::InMemory(values.ready()?.bytes()))
            }
            (Values::OnHost(_, share), Some(runs)) => (share.dtype(), sharded::Bytes::Streamed(&**runs)),
            (Values::OnHost(..), None) => unreachable!("what is away comes in runs"),
        };
        let (name, shape) = (part.name.as_str(), part.shape);
        let (region, flat) = (part.region.clone(), part.flat.clone());
        pieces.push(sharded::Piece { name, shape, dtype, region, flat, bytes });
    }
    Ok(writer.write_rank(rank, &pieces)?)
}

impl Last {
    fn seal(self, writer: &sharded::Writer) -> Result<()> {
        let Self { config, dir, state, stored, dtype, grid } = self;
        let stored = serde_json::to_value(stored).expect("plain numbers and JSON");
        let sealed = writer.seal(&config.model, &stored)?;
        if config.checkpoint.megatron_files != MegatronFiles::Absent {
            write_megatron(&config, &grid, &sealed, dtype, writer)?;
        }
        drop(sealed);
        writer.publish()?;
        if let Some(keep) = config.checkpoint.keep_last {
            remove_older(&dir, state.iteration, keep);
        }
        Ok(())
    }
}

/// Removes all but the `keep` newest of the checkpoints up to `newest`, which is complete. What cannot be removed stays, with a
/// warning: the run has what it needs.
fn remove_older(dir: &Path, newest: u64, keep: u64) {
    // What a removal that was broken off has left.
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(".iter_") && name.ends_with(".removed") {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let mut older: Vec<u64> = iterations(dir).into_iter().filter(|&n| n < newest).collect();
    let stay = usize::try_from(keep.saturating_sub(1)).unwrap_or(usize::MAX);
    older.truncate(older.len().saturating_sub(stay));
    for iteration in older {
        let folder = dir.join(iteration_name(iteration));
        // Under another name first: what looks for checkpoints finds it whole or not at all.
        let aside = dir.join(format!(".{}.removed", iteration_name(iteration)));
        let removed = std::fs::rename(&folder, &aside).and_then(|()| std::fs::remove_dir_all(&aside));
        if let Err(e) = removed {
            tracing::warn!("{}: an older checkpoint could not be removed: {e}", folder.display());
        }
    }
}

/// The ranks of the run as Megatron cuts its files for them; one rank for a cut that Megatron does not know.
fn file_grid(config: &TrainConfig, grid: &Grid) -> ms_ckpt::Result<FileGrid> {
    let (tp, ep, etp) = (grid.size(Axis::Tp), grid.size(Axis::Ep), grid.expert().size(Axis::Tp));
    let etp = if config.model.moe.is_some() { etp } else { tp };
    if ms_spec::check_whole_heads(&config.model, tp).is_err() || (etp != tp && etp != 1) {
        return Ok(FileGrid::default());
    }
    let extended = etp != tp && config.args.get("moe_tp_extend_ep") == Some(&json!(true));
    let sizes = GridSizes { tp, ep, etp: Some(etp), ..GridSizes::default() };
    FileGrid::new(&sizes, config.pipeline.stages.clone(), extended)
}

/// Megatron's files, made by the first rank from what all have written: cut for the run's own ranks, with the state of AdamW.
fn write_megatron(
    config: &TrainConfig,
    grid: &Grid,
    sealed: &Checkpoint,
    dtype: DType,
    writer: &sharded::Writer,
) -> Result<()> {
    let model = ModelConfig { dtype: Some(dtype), ..config.model.clone() };
    let mut run = Run::of(sealed);
    // Megatron's optimizers have no weights wider than float32.
    run.optimizer &= dtype != DType::F64;
    run.args.entry("use_distributed_optimizer").or_insert(json!(false));
    let dtype_of = |name: &str| sealed.dtype(name);
    let spelling = config.checkpoint.spelling;
    let modules = if spelling.transformer_engine { Modules::TransformerEngine } else { Modules::Local };
    let plan = |file_grid: &FileGrid| match config.checkpoint.megatron_files {
        MegatronFiles::Distributed => {
            Plan::torch_dist(&model, file_grid, modules, ArgsForm::Namespace, &dtype_of, &run)
        }
        _ => Plan::mcore(&model, file_grid, spelling, ArgsForm::Namespace, &dtype_of, &run),
    };
    let file_grid = file_grid(config, grid);
    let whole = file_grid.as_ref().ok() == Some(&FileGrid::default());
    let plan = match file_grid.and_then(|file_grid| plan(&file_grid)) {
        Err(e) if !whole => {
            tracing::warn!("--ckpt-format: Megatron's files are written whole: {e}");
            plan(&FileGrid::default())?
        }
        plan => plan?,
    };
    Ok(writer.write_megatron(&plan, sealed)?)
}
