//! What is said and measured of a run, and when it ends early.

use anyhow::Result;
use ms_cli::megatron::Upstream;
use ms_cli::{Usage, refuse};
use ms_trainer::{Checks, Evaluation, Exit, LoggingConfig, LossScale};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

options! {
    /// What is said and measured of a run, and when it ends early.
    pub struct LoggingOptions in "Logging" {
        interval: u64 = "--log-interval", "iterations between log lines", range = "[1,)";
        throughput: bool = "--log-throughput", "TFLOP/s per rank in the log line";
        progress: bool = "--log-progress", "with --save: record starts of jobs and, at each checkpoint, throughput, operations and tokens in progress.txt";
        params_norm: bool = "--log-params-norm", "norm of the weights in the log line";
        num_zeros: bool = "--log-num-zeros-in-grad", "number of zeros among the gradients in the log line";
        layers: bool = "--moe-per-layer-logging", "write each layer's auxiliary router losses to the metrics file and TensorBoard", group = "Optimizer";
        compare_replicas: Option<u64> = "--check-weight-hash-across-dp-replicas-interval", "iterations between bitwise comparisons of weights over data-parallel ranks; also before the first iteration", range = "[1,1000000000000]";
        skipped: Vec<String> = "--iterations-to-skip", "iterations, by the number done before them, whose samples are skipped without an update", group = "Batch", range = "[0,9223372036854775807]";
        metrics_file: Option<PathBuf> = "--metrics-file", "file for metrics: a JSON object per iteration", own = own("metrics_file");
        tensorboard: Option<PathBuf> = "--tensorboard-dir", "folder for TensorBoard event files";
        tensorboard_interval: u64 = "--tensorboard-log-interval", "iterations between TensorBoard points", range = "[1,)";
        check_for_nan: bool = "--no-check-for-nan-in-loss-and-grad", "continue when a loss or gradient is not a number";
        spiky_loss: bool = "--check-for-spiky-loss", "stop at a micro-batch loss of at least ten times the largest of the first hundred", group = "Learning rate";
        large_grads: bool = "--check-for-large-grads", "stop at a gradient norm (of a bucket on a rank) of at least ten times the largest of the first hundred", group = "Optimizer";
        eval_interval: u64 = "--eval-interval", "iterations between validations", group = "Evaluation", range = "[0,1000000000000]";
        eval_iters: u64 = "--eval-iters", "number of batches per validation", group = "Evaluation", range = "[0,1000000000000]";
        pub(super) skip_train: bool = "--skip-train", "validate and test only", group = "Evaluation";
        exit_interval: Option<u64> = "--exit-interval", "save and stop at an iteration that is a multiple of this", group = "Checkpoint", range = "[0,1000000000000]";
        exit_minutes: Option<f64> = "--exit-duration-in-mins", "save and stop after this many minutes (0: no limit)", group = "Checkpoint", range = "[0,)";
        /// Whether SIGTERM ends the run with a checkpoint.
        pub handle_signal: bool = "--exit-signal-handler", "save and stop on SIGTERM", group = "Checkpoint";
        /// Whether a trace is recorded.
        pub profile: bool = "--profile", "record a trace", group = "Profiling";
        profile_start: u64 = "--profile-step-start", "first iteration to record, counted from 0 (head: from 1)", group = "Profiling", range = "[0,1000000000000]";
        profile_end: u64 = "--profile-step-end", "iteration at which recording ends; it is not recorded", group = "Profiling", range = "[0,1000000000000]";
        profile_ranks: Vec<String> = "--profile-ranks", "ranks to record (-1: all)", group = "Profiling", range = "[-1,65535]";
        pub(super) profile_folder: PathBuf = "--profile-save-path", "folder for traces", group = "Profiling";
        swap_folder: Option<PathBuf> = "--swap-dir", "folder for the files of --swap-attention and --swap-optimizer (default: the system's temporary folder)", group = "Memory", own = own("swap_dir");
    }
}

impl LoggingOptions {
    /// What is written of the run while it goes on.
    pub(super) fn logging(&self) -> LoggingConfig {
        LoggingConfig {
            interval: self.interval,
            throughput: self.throughput,
            progress: self.progress,
            params_norm: self.params_norm,
            num_zeros: self.num_zeros,
            layers: self.layers,
            metrics_file: self.metrics_file.clone(),
            tensorboard: self.tensorboard.clone().map(|dir| (dir, self.tensorboard_interval)),
        }
    }

    /// What ends the run as broken.
    pub(super) fn checks(&self, loss_scale: LossScale) -> Checks {
        Checks {
            // As upstream: a non-finite value makes a dynamic scale fall.
            nan: self.check_for_nan && !matches!(loss_scale, LossScale::Dynamic { .. }),
            spiky_loss: self.spiky_loss,
            large_grads: self.large_grads,
            replicas_interval: self.compare_replicas.unwrap_or(0),
        }
    }

    /// When the run is validated.
    pub(super) fn evaluation(&self) -> Evaluation {
        Evaluation { interval: self.eval_interval, iters: self.eval_iters }
    }

    /// When the run ends before its last iteration.
    pub(super) fn exit(&self) -> Exit {
        let duration =
            |minutes: f64| Duration::try_from_secs_f64(minutes.max(0.0) * 60.0).unwrap_or(Duration::MAX);
        // As upstream: 0 is no limit.
        let minutes = self.exit_minutes.filter(|&minutes| minutes > 0.0);
        Exit { interval: self.exit_interval, duration: minutes.map(duration) }
    }

    /// The iterations that are recorded, by the number done before them.
    ///
    /// # Errors
    /// For a number that upstream's head, which counts from 1, does not have.
    ///
    /// # Source
    /// MindSpeed-LLM's head (2026), `features_manager/functional/profiling.py`; `training/training.py`, `get_profiler`.
    pub(super) fn recorded(&self, upstream: Upstream) -> Result<Option<Range<u64>>> {
        if !self.profile {
            return Ok(None);
        }
        let first = u64::from(upstream == Upstream::Head);
        let Some(start) = self.profile_start.checked_sub(first) else {
            refuse!("--profile-step-start: expected at least 1, found 0: upstream's head counts from 1");
        };
        Ok(Some(start..self.profile_end.saturating_sub(first).max(start + 1)))
    }

    /// Folder of the files that activations and optimizer state are swapped to.
    pub(super) fn swap_folder(&self) -> PathBuf {
        self.swap_folder.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// The iterations that are passed over.
    ///
    /// # Errors
    /// For words that are no numbers.
    pub(super) fn skipped_iterations(&self) -> Result<BTreeSet<u64>> {
        let words = &self.skipped;
        let number = |word: &String| word.parse().ok();
        words.iter().map(number).collect::<Option<_>>().ok_or_else(|| {
            Usage(format!("--iterations-to-skip: expected numbers of at least 0, found {}", words.join(" ")))
                .into()
        })
    }

    /// The ranks of a trace; `None`: all.
    ///
    /// # Errors
    /// For words that are no ranks.
    pub(super) fn profiled_ranks(&self, world: usize) -> Result<Option<Vec<usize>>> {
        let words = &self.profile_ranks;
        if words.iter().any(|word| word == "-1") {
            return Ok(None);
        }
        let number = |word: &String| word.parse().ok().filter(|&rank| rank < world);
        words.iter().map(number).collect::<Option<_>>().map(Some).ok_or_else(|| {
            let found = words.join(" ");
            Usage(format!("--profile-ranks: expected -1 or ranks below {world}, found {found}")).into()
        })
    }
}
