//! The training loop: iterations, log lines, validation, checkpoints, stopping.

mod reports;

use crate::checkpoint::{self, RunState};
use crate::config::{NonPersistent, TrainConfig};
use crate::engine::Engine;
use crate::interval::Interval;
use crate::saving::Saving;
use crate::usage::RankUsage;
use crate::{Error, Result};
use ms_core::{Device, RankGroup, Tensor};
use ms_data::MicroBatch;
use ms_dist::{ParallelCtx, ReduceOp};
use ms_trace::progress::{Done, Progress};
use ms_trace::{Recorder, metrics::JsonLines, tensorboard::EventFile};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Micro-batches of one split, in Megatron's order, for one data-parallel rank.
pub type Batches = Box<dyn Iterator<Item = ms_data::Result<MicroBatch>>>;

/// Opens the data of a run on this rank, at the given number of samples already taken.
pub trait DataSource {
    /// Training data from sample `consumed` on.
    ///
    /// # Errors
    /// If the data cannot be opened.
    fn train(&self, consumed: u64) -> Result<Batches>;
    /// Validation data from sample `consumed` on, if there is any.
    ///
    /// # Errors
    /// If the data cannot be opened.
    fn valid(&self, consumed: u64) -> Result<Option<Batches>>;
    /// Test data, if there is any.
    ///
    /// # Errors
    /// If the data cannot be opened.
    fn test(&self) -> Result<Option<Batches>>;
}

/// What the loop tells the program while it runs; called on the reporting rank only.
pub trait Observer: Sync {
    /// A line for the log, in Megatron's format.
    fn line(&self, text: &str);
    /// Iterations done, of how many.
    fn progress(&self, iteration: u64, of: u64, loss: f64);
    /// An iteration is done.
    fn iteration(&self, _iteration: u64) {}
    /// A checkpoint of this iteration is complete.
    fn saved(&self, _iteration: u64) {}
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Iterations done.
    pub iteration: u64,
    /// Samples trained on.
    pub consumed_samples: u64,
    /// Loss of the last iteration.
    pub last_loss: Option<f64>,
    /// Loss of every validation, with the iteration after which it ran.
    pub validations: Vec<(u64, f64)>,
    /// Loss on the test data.
    pub test_loss: Option<f64>,
    /// Tokens per second over all ranks, without validation and checkpoints.
    pub tokens_per_second: f64,
    /// Why the run stopped before its last iteration.
    pub stopped: Option<&'static str>,
    /// Where the weights came from; `None`: they were random.
    pub loaded: Option<PathBuf>,
    /// Checkpoints that could not be written when they were due.
    pub failed_saves: u64,
    /// Parameters of the whole model.
    pub parameters: u64,
    /// What each rank took of memory and sent.
    pub ranks: Vec<RankUsage>,
    /// Blocks of memory that were taken from the system after the second iteration of this run.
    pub late_allocations: u64,
}

/// What a run shares with its program.
pub struct Hooks<'a> {
    /// Set by a signal handler: save and stop.
    pub stop: Arc<AtomicBool>,
    /// Records the iterations that the configuration asks for.
    pub recorder: Option<Recorder>,
    /// Hears of progress.
    pub observer: &'a dyn Observer,
    /// What the machine's queue calls the job, for `progress.txt`; empty without one.
    pub job: String,
}

struct Loop<'a> {
    config: &'a TrainConfig,
    engine: Engine,
    data: &'a dyn DataSource,
    hooks: &'a Hooks<'a>,
    start: Instant,
    reports: bool,
    metrics: Option<JsonLines>,
    validations: Option<JsonLines>,
    tensorboard: Option<EventFile>,
    progress: Option<Progress>,
    state: RunState,
    /// Samples of iterations that this run has passed over.
    passed_over: u64,
    loaded: Option<PathBuf>,
    failed_saves: u64,
    /// The last iteration whose checkpoint is whole, or still written.
    saved: Option<u64>,
    /// The checkpoint that is written while training goes on.
    saving: Option<Saving>,
    snapshot_bytes: usize,
}

/// What the iterations of a run add up to.
#[derive(Default)]
struct Tally {
    interval: Interval,
    seconds: f64,
    tokens: f64,
    last_loss: Option<f64>,
    validations: Vec<(u64, f64)>,
    /// Bytes sent in the last iteration.
    sent: BTreeMap<RankGroup, u64>,
    /// Blocks of memory that had been taken from the system after the second iteration.
    settled: Option<u64>,
    /// It has been said that nothing is learned.
    warned: bool,
}

/// Trains as `config` says on this rank. Every rank of the run calls it with the same configuration.
///
/// # Errors
/// If the configuration is invalid, data or checkpoints cannot be read or written, a loss is not a number, or another rank
/// fails.
pub fn run(
    config: &TrainConfig,
    device: Device,
    ctx: ParallelCtx,
    data: &dyn DataSource,
    hooks: &Hooks<'_>,
) -> Result<Outcome> {
    config.batch.validate(ctx.dp.size())?;
    if config.train_iters > 0 {
        config.schedule.validate()?;
    }
    let reports = ctx.rank + 1 == ctx.grid.world();
    let start = Instant::now();
    let engine = Engine::blank(config, device, ctx)?;
    let mut this = Loop {
        config,
        engine,
        data,
        hooks,
        start,
        reports,
        metrics: None,
        validations: None,
        tensorboard: None,
        progress: None,
        state: RunState::begun(PathBuf::new(), config),
        passed_over: 0,
        loaded: None,
        failed_saves: 0,
        saved: None,
        saving: None,
        snapshot_bytes: 0,
    };
    this.load()?;
    this.saved = Some(this.state.iteration);
    if reports {
        this.open_reports()?;
        let checkpoints = config.checkpoint.save.as_ref().filter(|_| config.logging.progress);
        this.progress = checkpoints
            .map(|dir| {
                Progress::begin(
                    dir,
                    &this.hooks.job,
                    this.engine.ctx.grid.world(),
                    start,
                    this.state.floating_point_operations,
                )
            })
            .transpose()?;
    }
    this.train()
}

impl Loop<'_> {
    fn load(&mut self) -> Result<()> {
        let Some(state) = checkpoint::load(self.config, &mut self.engine)? else {
            self.engine.draw(self.config.seed)?;
            if self.reports {
                self.hooks.observer.line("starting from random weights");
            }
            return Ok(());
        };
        self.state = state.clone();
        self.loaded = Some(state.from.clone());
        if self.reports {
            let text = format!(
                "loaded {} at iteration {} ({} samples consumed)",
                state.from.display(),
                state.iteration,
                state.consumed_train_samples
            );
            self.hooks.observer.line(&text);
            self.hooks.observer.saved(state.iteration);
        }
        if self.config.checkpoint.upcycling {
            self.save_upcycled(&state)?;
        }
        Ok(())
    }

    /// Saves the weights that a model with experts begins with, as upstream under the number of the first iteration.
    fn save_upcycled(&self, state: &RunState) -> Result<()> {
        let Some(dir) = &self.config.checkpoint.save else { return Ok(()) };
        let mut config = self.config.clone();
        config.checkpoint.no_save_optim = true;
        let state = RunState { iteration: 1, ..state.clone() };
        Saving::begin(&config, &self.engine, &state, dir, false)?.go_on(&self.engine, true)?;
        self.say_saved(1, dir, false);
        Ok(())
    }

    fn train(mut self) -> Result<Outcome> {
        let (first, total) = (self.state.iteration, self.config.train_iters);
        let trains = first < total && !self.config.skip_train;
        let mut batches: Batches = if trains {
            self.data.train(self.state.consumed_train_samples)?
        } else {
            Box::new(std::iter::empty())
        };
        if trains && self.config.checks.replicas_interval > 0 {
            self.compare_replicas()?;
        }
        let (mut tally, mut last_global, mut stopped) = (Tally::default(), None, None);
        while trains && stopped.is_none() && self.state.iteration < total {
            let sizes = &self.config.batch;
            let whole = sizes.global_at(self.state.consumed_train_samples);
            let global = sizes.running(whole, self.engine.ctx.dp.size());
            if last_global.replace(global).is_some_and(|last| last != global) {
                // As upstream: a batch that grows is a new phase of the run.
                self.save()?;
            }
            if self.config.skipped_iterations.contains(&self.state.iteration) {
                self.pass_over(&mut batches, global)?;
                continue;
            }
            self.iterate(&mut batches, whole, global, &mut tally)?;
            if tally.settled.is_none() && self.state.iteration >= first + 2 {
                tally.settled = Some(self.engine.device.arena().stats().system_allocations);
            }
            // As upstream also after the last iteration, and then once more at the end, on the samples that follow.
            if is_due(self.config.eval.interval, self.state.iteration) {
                self.validate(&format!("iteration {}", self.state.iteration), &mut tally.validations)?;
            }
            if is_due(self.config.checks.replicas_interval, self.state.iteration) {
                self.compare_replicas()?;
            }
            stopped = self.should_stop()?;
            self.look_after(false)?;
            if stopped.is_some() || is_due(self.config.checkpoint.save_interval, self.state.iteration) {
                self.save()?;
            } else {
                self.save_passing()?;
            }
        }
        self.finish(first, stopped, tally)
    }

    /// As upstream: the samples of an iteration that is skipped are read and count, the schedule stays, and nothing else is
    /// due.
    fn pass_over(&mut self, batches: &mut Batches, global: usize) -> Result<()> {
        self.take(batches, global)?;
        self.state.iteration += 1;
        self.state.consumed_train_samples += global as u64;
        self.passed_over += global as u64;
        Ok(())
    }

    /// Trains on the next `global` of the `whole` batch's samples, and reports it.
    fn iterate(
        &mut self,
        batches: &mut Batches,
        whole: usize,
        global: usize,
        tally: &mut Tally,
    ) -> Result<()> {
        let rates = self.state.schedule.rates(self.state.scheduled_samples);
        let step_start = Instant::now();
        self.record(true);
        let report = {
            let iteration = self.state.iteration + 1;
            let _span = tracing::trace_span!(target: "ms_step", "iteration", number = iteration).entered();
            let micro_batches = self.take(batches, global)?;
            let before = self.engine.sent_bytes();
            let report = self.engine.step(iteration, &micro_batches, rates)?;
            let mut sent = self.engine.sent_bytes();
            sent.iter_mut().for_each(|(group, bytes)| *bytes -= before.get(group).copied().unwrap_or(0));
            tally.sent = sent;
            report
        };
        self.record(false);
        let seconds = step_start.elapsed().as_secs_f64();
        self.state.iteration += 1;
        self.state.consumed_train_samples += global as u64;
        self.passed_over += (whole - global) as u64;
        if !report.skipped {
            self.state.scheduled_samples += global as u64;
        }
        self.state.floating_point_operations += self.config.flops_per_sample * global as f64;
        tally.last_loss = Some(report.loss);
        tally.seconds += seconds;
        tally.tokens += (global * self.config.seq_length) as f64;
        tally.interval.add(&report, seconds);
        if self.reports && report.tokens == 0 && !std::mem::replace(&mut tally.warned, true) {
            tracing::warn!(
                "iteration {}: none of its tokens counts in the loss, so nothing is learned of it: look at the data's loss mask",
                self.state.iteration
            );
        }
        if self.reports {
            self.hooks.observer.iteration(self.state.iteration);
        }
        self.write_metrics(&report, rates, seconds, global)?;
        if is_due(self.config.logging.interval.max(1), self.state.iteration) {
            self.log(&mut tally.interval, &report, global)?;
        }
        Ok(())
    }

    /// Saves and evaluates what the last iteration has left to do.
    fn finish(mut self, first: u64, stopped: Option<&'static str>, mut tally: Tally) -> Result<Outcome> {
        // A finished run that was read from elsewhere is written too. Iteration 0 never is: no reader knows it.
        let moved = first > 0 && self.config.checkpoint.load != self.config.checkpoint.save;
        self.look_after(true)?;
        if self.saved != Some(self.state.iteration)
            || (first == self.state.iteration && moved && !self.config.skip_train)
        {
            self.save_at_last()?;
        }
        let mut test_loss = None;
        if stopped.is_none() && self.config.eval.iters > 0 {
            let prefix = format!("iteration {} on validation set", self.state.iteration);
            self.validate(&prefix, &mut tally.validations)?;
            test_loss = self.test()?;
        }
        let allocations = self.engine.device.arena().stats().system_allocations;
        let mine = RankUsage::of(&self.engine, tally.sent, self.snapshot_bytes);
        Ok(Outcome {
            iteration: self.state.iteration,
            consumed_samples: self.state.consumed_train_samples,
            last_loss: tally.last_loss,
            validations: tally.validations,
            test_loss,
            tokens_per_second: tally.tokens / tally.seconds.max(1e-9),
            stopped,
            ranks: mine.of_all(&self.engine)?,
            loaded: self.loaded,
            failed_saves: self.failed_saves,
            parameters: ms_spec::parameters(&self.config.model),
            late_allocations: tally.settled.map_or(0, |settled| allocations - settled),
        })
    }

    /// The micro-batches of the next `global` training samples.
    fn take(&self, batches: &mut Batches, global: usize) -> Result<Vec<MicroBatch>> {
        let per_batch = global / (self.config.batch.micro * self.engine.ctx.dp.size());
        let hint = "lower --train-iters or add data";
        let next = |_| match batches.next() {
            Some(batch) => Ok(batch?),
            None => Err(Error::DataEnded { split: "training", iteration: self.state.iteration + 1, hint }),
        };
        (0..per_batch).map(next).collect()
    }

    /// Switches the recorder on for the iterations of the profile, off afterwards.
    fn record(&self, on: bool) {
        if let (Some(range), Some(recorder)) = (&self.config.profile, &self.hooks.recorder) {
            // `iteration` counts finished ones, so while one runs it is that one's number from 0.
            recorder.set_here(on && range.contains(&self.state.iteration));
        }
    }

    /// Compares weights of ranks that should have the same.
    fn compare_replicas(&self) -> Result<()> {
        self.engine.check_replicas(self.state.iteration)?;
        if self.reports {
            let text = format!(">>> Weight hashes match after {} iterations...", self.state.iteration);
            self.hooks.observer.line(&text);
        }
        Ok(())
    }

    fn should_stop(&self) -> Result<Option<&'static str>> {
        let exit = self.config.exit;
        let here = if self.hooks.stop.load(Ordering::Relaxed) {
            1.0
        } else if exit.duration.is_some_and(|d| self.start.elapsed() >= d) {
            2.0
        } else {
            0.0
        };
        // One rank's reason stops all of them.
        let t = Tensor::from_slice(self.engine.device.arena(), [1], &[here])?;
        let all = self.engine.ctx.world.all_reduce("stop", t, ReduceOp::Max)?.wait()?;
        let code: f64 = all.ready()?.as_slice::<f64>()?[0];
        Ok(if code == 1.0 {
            Some("a signal asked for it")
        } else if code == 2.0 {
            Some("--exit-duration-in-mins is over")
        } else if is_due(exit.interval.unwrap_or(0), self.state.iteration) {
            Some("--exit-interval was reached")
        } else {
            None
        })
    }

    /// Saves this iteration if it is not saved, or begins to, or says loudly that it could not; the run goes on, and tries
    /// again when the next checkpoint is due and at the end.
    fn save(&mut self) -> Result<()> {
        self.look_after(true)?;
        if self.saved == Some(self.state.iteration) {
            return Ok(());
        }
        let Some(dir) = &self.config.checkpoint.save else { return Ok(()) };
        match self.begin_saving(dir, self.config.checkpoint.async_save) {
            Ok(saving) => self.saving = Some(saving),
            Err(e) => return self.not_saved(self.state.iteration, e),
        }
        self.saved = Some(self.state.iteration);
        // Beside training the next iteration comes first.
        if self.config.checkpoint.async_save { Ok(()) } else { self.look_after(true) }
    }

    /// As [`Loop::save`] and waits; what goes wrong ends the run.
    fn save_at_last(&mut self) -> Result<()> {
        if let Some(dir) = &self.config.checkpoint.save {
            self.begin_saving(dir, false)?.go_on(&self.engine, true)?;
            self.say_saved(self.state.iteration, dir, false);
        }
        Ok(())
    }

    /// Saves an iteration that is to be there only until the next, where one is due. It is not the run's last word: at the end
    /// the iteration is saved all the same.
    fn save_passing(&mut self) -> Result<()> {
        let due =
            |non_persistent: &&NonPersistent| is_due(non_persistent.interval.max(1), self.state.iteration);
        let Some(non_persistent) = self.config.checkpoint.non_persistent.as_ref().filter(due) else {
            return Ok(());
        };
        self.look_after(true)?;
        match self.begin_saving(&non_persistent.dir, self.config.checkpoint.async_save) {
            Ok(saving) => self.saving = Some(saving),
            Err(e) => return self.not_saved(self.state.iteration, e),
        }
        if self.config.checkpoint.async_save { Ok(()) } else { self.look_after(true) }
    }

    fn begin_saving(&mut self, dir: &Path, beside: bool) -> Result<Saving> {
        let _span = tracing::trace_span!(target: "ms_step", "save").entered();
        let saving = Saving::begin(self.config, &self.engine, &self.state, dir, beside)?;
        self.snapshot_bytes = self.snapshot_bytes.max(saving.held_bytes());
        if beside {
            self.note_progress(|progress| progress.checkpoint(self.done(), true));
        }
        Ok(saving)
    }

    /// Advances the checkpoint that is being written; with `wait`, until it is done.
    fn look_after(&mut self, wait: bool) -> Result<()> {
        let Some(saving) = self.saving.take() else { return Ok(()) };
        let _span = tracing::trace_span!(target: "ms_step", "save").entered();
        let (iteration, dir) = (saving.iteration, saving.dir.clone());
        match saving.go_on(&self.engine, wait) {
            Ok(None) => self.say_saved(iteration, &dir, self.config.checkpoint.async_save),
            Ok(left) => self.saving = left,
            Err(e) => return self.not_saved(iteration, e),
        }
        Ok(())
    }

    fn say_saved(&self, iteration: u64, dir: &Path, beside: bool) {
        if self.reports {
            self.hooks.observer.line(&format!("saved iteration {iteration} to {}", dir.display()));
            self.hooks.observer.saved(iteration);
        }
        self.note_progress(|progress| {
            if beside { progress.completed(iteration) } else { progress.checkpoint(self.done(), false) }
        });
    }

    /// A note that could not be written does not stop the run, either.
    fn note_progress(&self, note: impl FnOnce(&Progress) -> ms_trace::Result<()>) {
        if let Some(Err(e)) = self.progress.as_ref().map(note) {
            tracing::warn!("--log-progress: {e}; the run continues without the note");
        }
    }

    /// What has been done, for the progress file.
    fn done(&self) -> Done {
        let tokens = self.state.consumed_train_samples * self.config.seq_length as u64;
        Done { iteration: self.state.iteration, flops: self.state.floating_point_operations, tokens }
    }

    /// A checkpoint that could not be written does not stop the run.
    fn not_saved(&mut self, iteration: u64, e: Error) -> Result<()> {
        let rank = match &e {
            Error::Ckpt(_) => self.engine.ctx.rank,
            Error::OtherRank { rank, .. } => *rank,
            _ => return Err(e),
        };
        self.failed_saves += 1;
        self.saved = None;
        // The rank with the fault reports it.
        if rank == self.engine.ctx.rank {
            tracing::error!(
                "iteration {iteration} was NOT saved: rank {rank}: {e}; it is tried again at the next interval and at the end"
            );
        }
        Ok(())
    }

    /// Evaluates on validation data, if there is any, and adds the loss to `losses`.
    fn validate(&mut self, prefix: &str, losses: &mut Vec<(u64, f64)>) -> Result<()> {
        if self.config.eval.iters == 0 {
            return Ok(());
        }
        // As upstream: a run that does not train validates on the first samples, whatever the run before had seen.
        let consumed = if self.config.skip_train { 0 } else { self.state.consumed_valid_samples };
        let Some(batches) = self.data.valid(consumed)? else { return Ok(()) };
        let loss = self.evaluate(batches, "validation")?;
        let (batches, rows) = self.validation_batches();
        self.state.consumed_valid_samples += (batches * rows) as u64;
        self.report_evaluation(prefix, "validation", loss)?;
        losses.push((self.state.iteration, loss));
        Ok(())
    }

    fn test(&mut self) -> Result<Option<f64>> {
        let Some(batches) = self.data.test()? else { return Ok(None) };
        let loss = self.evaluate(batches, "test")?;
        self.report_evaluation(&format!("iteration {} on test set", self.state.iteration), "test", loss)?;
        Ok(Some(loss))
    }

    /// How many micro-batches of each replica are evaluated, and the samples of all replicas in one.
    fn validation_batches(&self) -> (usize, usize) {
        let rows = self.config.batch.micro * self.engine.ctx.dp.size();
        (self.config.eval.iters as usize * (self.config.batch.global / rows), rows)
    }

    fn evaluate(&self, mut batches: Batches, split: &'static str) -> Result<f64> {
        let _span = tracing::trace_span!(target: "ms_step", "evaluate").entered();
        let (count, _) = self.validation_batches();
        let iteration = self.state.iteration;
        let hint = "lower --eval-iters or give it a larger share in --split";
        self.engine.evaluate((0..count).map(|_| match batches.next() {
            Some(batch) => Ok(batch?),
            None => Err(Error::DataEnded { split, iteration, hint }),
        }))
    }
}

/// Whether what is done `every` so many iterations is due after `iteration`; 0: never.
fn is_due(every: u64, iteration: u64) -> bool {
    every > 0 && iteration.is_multiple_of(every)
}
