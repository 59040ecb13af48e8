//! Schedules of learning rate and weight decay, from flags.
//!
//! A run is measured in iterations (`--train-iters`) or in samples (`--train-samples`), and so are the lengths of its
//! schedule; a length in the other unit is an error, as it is upstream.
//!
//! # Source
//! Megatron-LM `core_r0.8.0`, `megatron/training/arguments.py`, `validate_args`, and `megatron/training/training.py`,
//! `get_optimizer_param_scheduler`.

use anyhow::Result;
use ms_cli::megatron::Given;
use ms_cli::refuse;
use ms_trainer::{DecayStyle, Decoupled, LrSchedule, WeightDecayStyle, WsdStyle};

options! {
    /// How learning rate and weight decay change.
    pub(crate) struct Rates in "Learning rate" {
        lr: Option<f64> = "--lr", "maximum learning rate", range = "[0,)";
        min_lr: f64 = "--min-lr", "minimum learning rate", range = "[0,)";
        style: String = "--lr-decay-style", "shape of the learning-rate decay";
        decay_iters: Given<Option<u64>> = "--lr-decay-iters", "number of iterations over which the learning rate decays to --min-lr", range = "[1,1000000000000]";
        decay_samples: Given<Option<u64>> = "--lr-decay-samples", "number of samples over which the learning rate decays to --min-lr", range = "[1,1000000000000]";
        warmup_iters: Given<Option<u64>> = "--lr-warmup-iters", "number of iterations of linear warm-up", range = "[0,1000000000000]";
        warmup_samples: Given<Option<u64>> = "--lr-warmup-samples", "number of samples of linear warm-up", range = "[0,1000000000000]";
        warmup_fraction: Option<f64> = "--lr-warmup-fraction", "warm-up as a share of the decay", range = "[0,1)";
        warmup_init: f64 = "--lr-warmup-init", "learning rate at the start of warm-up", range = "[0,)";
        wsd_style: String = "--lr-wsd-decay-style", "WSD: shape of the final decay";
        wsd_iters: Given<Option<u64>> = "--lr-wsd-decay-iters", "WSD: number of iterations of the final decay", range = "[1,1000000000000]";
        wsd_samples: Given<Option<u64>> = "--lr-wsd-decay-samples", "WSD: number of samples of the final decay", range = "[1,1000000000000]";
        decoupled_lr: Option<f64> = "--decoupled-lr", "maximum learning rate of embedding and output layer (default: --lr)", range = "[0,)";
        decoupled_min_lr: Option<f64> = "--decoupled-min-lr", "minimum learning rate of embedding and output layer (default: --min-lr)", range = "[0,)";
        weight_decay: f64 = "--weight-decay", "decoupled weight decay", group = "Optimizer", range = "[0,)";
        start_weight_decay: Option<f64> = "--start-weight-decay", "weight decay at the start of training", group = "Optimizer", range = "[0,)";
        end_weight_decay: Option<f64> = "--end-weight-decay", "weight decay at the end of training", group = "Optimizer", range = "[0,)";
        weight_decay_style: String = "--weight-decay-incr-style", "how weight decay changes from --start-weight-decay to --end-weight-decay", group = "Optimizer";
    }
}

/// A length of the schedule: its flags without the unit, and what they say in iterations and in samples.
type Length<'a> = (&'static str, &'a Given<Option<u64>>, &'a Given<Option<u64>>);

/// How the lengths of a run are counted.
#[derive(Clone, Copy)]
struct Unit {
    /// `iters` or `samples`.
    name: &'static str,
    /// Samples of one.
    samples: u64,
}

impl Unit {
    /// A length of the schedule in samples, if `--FLAG-iters` or `--FLAG-samples`, whichever counts this run, was given.
    ///
    /// A default of 0 is no length: only what was given counts.
    fn length(self, (flag, iters, samples): Length<'_>) -> Result<Option<u64>> {
        let [own, other] = if self.name == "iters" { [iters, samples] } else { [samples, iters] };
        let given = |length: &Given<Option<u64>>| length.given().copied().flatten();
        if given(other).is_some_and(|n| n > 0) {
            let other = if self.name == "iters" { "samples" } else { "iters" };
            refuse!(
                "--{flag}-{other} needs --train-{other}; with --train-{unit} pass --{flag}-{unit}",
                unit = self.name
            );
        }
        Ok(given(own).map(|n| n.saturating_mul(self.samples)))
    }

    /// `40 iterations`, `320 samples`.
    fn say(self, samples: f64) -> String {
        let count = samples / self.samples as f64;
        format!("{count} {}", if self.name == "iters" { "iterations" } else { "samples" })
    }
}

/// How long a run is.
pub(crate) struct Extent {
    /// It is counted in samples.
    pub(crate) by_samples: bool,
    pub(crate) train_samples: u64,
    /// It only validates and tests.
    pub(crate) skipped: bool,
    /// It is not started.
    pub(crate) planned: bool,
}

/// The schedule of a run in batches of `global`.
///
/// # Errors
/// If the flags contradict each other or do not fit together.
pub(crate) fn resolve(rates: &Rates, extent: &Extent, global: u64) -> Result<LrSchedule> {
    let &Extent { by_samples, train_samples, skipped, planned } = extent;
    let trains = train_samples > 0 && !skipped;
    let unit = if by_samples {
        Unit { name: "samples", samples: 1 }
    } else {
        Unit { name: "iters", samples: global }
    };
    let total = train_samples.max(1);
    let decay = unit.length(("lr-decay", &rates.decay_iters, &rates.decay_samples))?.unwrap_or(total);
    let lasting = unit.length(("lr-warmup", &rates.warmup_iters, &rates.warmup_samples))?;
    let (warmup, flag) = match rates.warmup_fraction {
        Some(_) if lasting.is_some_and(|n| n > 0) => {
            refuse!("--lr-warmup-fraction and --lr-warmup-{}: pass one of them", unit.name)
        }
        Some(share) => (share * decay as f64, "--lr-warmup-fraction".to_owned()),
        None => (lasting.unwrap_or(0) as f64, format!("--lr-warmup-{}", unit.name)),
    };
    if trains && warmup >= decay as f64 {
        refuse!(
            "{flag}: expected less than the {} of the decay, found {}",
            unit.say(decay as f64),
            unit.say(warmup)
        );
    }
    let max_lr = match rates.lr {
        Some(lr) => lr,
        // A plan needs no learning rate: any that is consistent with the others.
        None if !trains || planned => rates.min_lr,
        None => refuse!("--lr is required"),
    };
    let style = match rates.style.as_str() {
        "constant" => DecayStyle::Constant,
        "cosine" => DecayStyle::Cosine,
        "inverse-square-root" => DecayStyle::InverseSquareRoot,
        "WSD" => DecayStyle::Wsd,
        _ => DecayStyle::Linear,
    };
    let wsd_style = match rates.wsd_style.as_str() {
        "linear" => WsdStyle::Linear,
        "cosine" => WsdStyle::Cosine,
        _ => WsdStyle::Exponential,
    };
    let wsd_decay = match (style, unit.length(("lr-wsd-decay", &rates.wsd_iters, &rates.wsd_samples))?) {
        (DecayStyle::Wsd, None) => {
            refuse!("--lr-wsd-decay-{} is required by --lr-decay-style WSD", unit.name)
        }
        (_, last) => last.unwrap_or(0),
    };
    let (start_weight_decay, end_weight_decay, weight_decay_style) = weight_decay(rates)?;
    Ok(LrSchedule {
        init_lr: rates.warmup_init,
        max_lr,
        min_lr: rates.min_lr,
        warmup,
        decay,
        style,
        wsd_decay,
        wsd_style,
        start_weight_decay,
        end_weight_decay,
        weight_decay_samples: total,
        weight_decay_style,
        decoupled: decoupled(rates),
    })
}

/// Rates of the word embedding and the output layer.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/core/optimizer/__init__.py`, `_update_min_and_max_lr_in_param_groups`.
fn decoupled(rates: &Rates) -> Option<Decoupled> {
    if rates.decoupled_lr.is_none() && rates.decoupled_min_lr.is_some() {
        tracing::warn!("--decoupled-min-lr has no effect without --decoupled-lr");
    }
    let min_lr = rates.decoupled_min_lr.unwrap_or(rates.min_lr);
    rates.decoupled_lr.map(|max_lr| Decoupled { max_lr, min_lr })
}

/// Weight decay at the start and at the end, and the way between.
fn weight_decay(rates: &Rates) -> Result<(f64, f64, WeightDecayStyle)> {
    let style = match rates.weight_decay_style.as_str() {
        "linear" => WeightDecayStyle::Linear,
        "cosine" => WeightDecayStyle::Cosine,
        _ => WeightDecayStyle::Constant,
    };
    let ends =
        [("--start-weight-decay", rates.start_weight_decay), ("--end-weight-decay", rates.end_weight_decay)];
    if style == WeightDecayStyle::Constant {
        if let Some((flag, _)) = ends.iter().find(|end| end.1.is_some()) {
            refuse!("{flag} needs --weight-decay-incr-style linear or cosine");
        }
        let constant = rates.weight_decay;
        return Ok((constant, constant, style));
    }
    match ends.map(|end| end.1) {
        [Some(start), Some(end)] if end >= start => Ok((start, end, style)),
        [Some(start), Some(end)] => refuse!(
            "--end-weight-decay: expected at least --start-weight-decay, which is {start}, found {end}"
        ),
        _ => refuse!(
            "--weight-decay-incr-style linear and cosine need --start-weight-decay and --end-weight-decay"
        ),
    }
}
