//! Learning rate and weight decay: from flags to a schedule.
//!
//! A run is counted in iterations (`--train-iters`) or in samples (`--train-samples`), and so are the lengths of its
//! schedule; a length of the other kind is an error, as it is upstream.
//!
//! # Source
//! Megatron-LM `core_r0.8.0`, `megatron/training/arguments.py`, `validate_args`, and `megatron/training/training.py`,
//! `get_optimizer_param_scheduler`.

use crate::resolve::number;
use anyhow::{Result, bail};
use ms_cli::Usage;
use ms_cli::megatron::Args;
use ms_trainer::{DecayStyle, Schedule, WeightDecayStyle, WsdStyle};

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
    fn length(self, args: &Args, flag: &str) -> Result<Option<u64>> {
        let given = |unit: &str| -> Result<Option<u64>> {
            let dest = format!("{}_{unit}", flag.replace('-', "_"));
            if !args.has(&dest) {
                return Ok(None);
            }
            Ok(args.size(&dest)?.map(|n| n as u64))
        };
        let other = if self.name == "iters" { "samples" } else { "iters" };
        if given(other)?.is_some_and(|n| n > 0) {
            bail!(Usage(format!(
                "--{flag}-{other} goes with --train-{other}; with --train-{unit} pass --{flag}-{unit}",
                unit = self.name
            )));
        }
        Ok(given(self.name)?.map(|n| n.saturating_mul(self.samples)))
    }

    /// `40 iterations`, `320 samples`.
    fn say(self, samples: f64) -> String {
        let count = samples / self.samples as f64;
        format!("{count} {}", if self.name == "iters" { "iterations" } else { "samples" })
    }
}

/// The schedule of a run over `train_samples` samples in batches of `global`.
///
/// # Errors
/// If the flags contradict each other or do not fit together.
pub(crate) fn resolve(args: &Args, train_samples: u64, global: u64, planned: bool) -> Result<Schedule> {
    let trains = train_samples > 0 && !args.flag("skip_train");
    let unit = match args.has("train_samples") {
        true => Unit { name: "samples", samples: 1 },
        false => Unit { name: "iters", samples: global },
    };
    let total = train_samples.max(1);
    let decay = unit.length(args, "lr-decay")?.unwrap_or(total);
    let lasting = unit.length(args, "lr-warmup")?;
    let (warmup, flag) = match args.float("lr_warmup_fraction") {
        Some(_) if lasting.is_some_and(|n| n > 0) => {
            bail!(Usage(format!("--lr-warmup-fraction and --lr-warmup-{}: pass one of them", unit.name)))
        }
        Some(share) => (share * decay as f64, "--lr-warmup-fraction".to_owned()),
        None => (lasting.unwrap_or(0) as f64, format!("--lr-warmup-{}", unit.name)),
    };
    if trains && warmup >= decay as f64 {
        bail!(Usage(format!(
            "{flag}: expected less than the {} of the decay, found {}",
            unit.say(decay as f64),
            unit.say(warmup)
        )));
    }
    let max_lr = match args.float("lr") {
        Some(lr) => lr,
        None if !trains || planned => 0.0,
        None => bail!(Usage("--lr is required".into())),
    };
    let style = match args.text("lr_decay_style").unwrap_or("linear") {
        "constant" => DecayStyle::Constant,
        "cosine" => DecayStyle::Cosine,
        "inverse-square-root" => DecayStyle::InverseSquareRoot,
        "WSD" => DecayStyle::Wsd,
        _ => DecayStyle::Linear,
    };
    let wsd_style = match args.text("lr_wsd_decay_style").unwrap_or("exponential") {
        "linear" => WsdStyle::Linear,
        "cosine" => WsdStyle::Cosine,
        _ => WsdStyle::Exponential,
    };
    let wsd_decay = match (style, unit.length(args, "lr-wsd-decay")?) {
        (DecayStyle::Wsd, None) => {
            bail!(Usage(format!("--lr-wsd-decay-{} is required by --lr-decay-style WSD", unit.name)))
        }
        (DecayStyle::Wsd, Some(last)) if trains && last > decay => bail!(Usage(format!(
            "--lr-wsd-decay-{}: expected at most the {} of the decay, found {}",
            unit.name,
            unit.say(decay as f64),
            unit.say(last as f64)
        ))),
        (_, last) => last.unwrap_or(0),
    };
    let (start_weight_decay, end_weight_decay, weight_decay_style) = weight_decay(args)?;
    Ok(Schedule {
        init_lr: number(args, "lr_warmup_init"),
        max_lr,
        min_lr: number(args, "min_lr"),
        warmup,
        decay,
        style,
        wsd_decay,
        wsd_style,
        start_weight_decay,
        end_weight_decay,
        weight_decay_samples: total,
        weight_decay_style,
    })
}

/// Weight decay at the start and at the end, and the way between.
fn weight_decay(args: &Args) -> Result<(f64, f64, WeightDecayStyle)> {
    let style = match args.text("weight_decay_incr_style").unwrap_or("constant") {
        "linear" => WeightDecayStyle::Linear,
        "cosine" => WeightDecayStyle::Cosine,
        _ => WeightDecayStyle::Constant,
    };
    let ends = [
        ("--start-weight-decay", args.float("start_weight_decay")),
        ("--end-weight-decay", args.float("end_weight_decay")),
    ];
    if style == WeightDecayStyle::Constant {
        if let Some((flag, _)) = ends.iter().find(|end| end.1.is_some()) {
            bail!(Usage(format!("{flag} goes with --weight-decay-incr-style linear or cosine")));
        }
        let constant = number(args, "weight_decay");
        return Ok((constant, constant, style));
    }
    match ends.map(|end| end.1) {
        [Some(start), Some(end)] if end >= start => Ok((start, end, style)),
        [Some(start), Some(end)] => bail!(Usage(format!(
            "--end-weight-decay: expected at least --start-weight-decay, which is {start}, found {end}"
        ))),
        _ => bail!(Usage(
            "--weight-decay-incr-style linear and cosine need --start-weight-decay and --end-weight-decay"
                .into()
        )),
    }
}
