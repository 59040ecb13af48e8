//! Resuming a run, and the contents of its checkpoints.
//!
//! A run checkpoint has `ms-ckpt`'s sharded form: weights by canonical name, and for every weight the master copy and the
//! moments as `optimizer.state.{fp32_param,exp_avg,exp_avg_sq}.NAME` (`momentum_buffer` for SGD), each rank writing the flat
//! ranges it owns. The manifest refers to global elements only, so a run can resume on any number of ranks.

use crate::config::{TrainConfig, UpdateRule};
use crate::engine::Engine;
use crate::lr_schedule::{DecayStyle, Decoupled, LrSchedule};
use crate::optimizer::{MASTER, StateSlot, state_names};
use crate::scaler::{LossScale, Scaler};
use crate::upcycling;
use crate::{Error, Result};
use ms_ckpt::layout::mcore::Hints;
use ms_ckpt::{Checkpoint, Form, TRACKER, Wanted, iteration_name};
use ms_core::{DType, ParamId, Region};
use ms_spec::ParamSpec;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Where a run stands.
#[derive(Clone, Debug)]
pub(crate) struct RunState {
    /// The folder it was loaded from.
    pub(crate) from: PathBuf,
    pub(crate) iteration: u64,
    pub(crate) consumed_train_samples: u64,
    /// Samples by which the schedule has gone on: those of iterations that were not skipped.
    pub(crate) scheduled_samples: u64,
    pub(crate) consumed_valid_samples: u64,
    pub(crate) floating_point_operations: f64,
    /// The schedule to go on with.
    pub(crate) schedule: LrSchedule,
}

impl RunState {
    /// Where a run begins.
    pub(crate) fn begun(from: PathBuf, config: &TrainConfig) -> Self {
        Self {
            from,
            iteration: 0,
            consumed_train_samples: 0,
            scheduled_samples: 0,
            consumed_valid_samples: 0,
            floating_point_operations: 0.0,
            schedule: config.schedule.clone(),
        }
    }
}

/// What a checkpoint stores in addition to tensors.
#[derive(Serialize, Deserialize)]
pub(crate) struct Stored {
    pub(crate) iteration: u64,
    pub(crate) consumed_train_samples: u64,
    /// Samples by which the schedule has gone on; absent: all that were consumed.
    #[serde(default)]
    pub(crate) scheduled_samples: Option<u64>,
    /// The factor of the loss, where there is one.
    #[serde(default)]
    pub(crate) loss_scale: Option<Scaler>,
    pub(crate) consumed_valid_samples: u64,
    pub(crate) num_floating_point_operations_so_far: f64,
    pub(crate) optimizer_step: u64,
    pub(crate) schedule: LrSchedule,
    pub(crate) seed: u64,
    pub(crate) world: usize,
    /// Order of sums of bf16 products; absent from checkpoints of older versions and of other programs.
    #[serde(default)]
    pub(crate) arithmetic: Option<String>,
    pub(crate) args: Map<String, Value>,
    /// Parameter groups in Megatron's format, for converters.
    #[serde(default)]
    pub(crate) optimizer: Value,
    /// The schedule in Megatron's format.
    #[serde(default)]
    pub(crate) opt_param_scheduler: Value,
}

/// A count among the arguments of a Megatron checkpoint.
fn count(source: &Checkpoint, name: &str) -> Option<u64> {
    source.args().get(name)?.as_u64()
}

/// The iteration that the files of a Megatron checkpoint are of, else the one that their folder is named for.
fn iteration_in(source: &Checkpoint) -> u64 {
    source.state()["iteration"].as_u64().unwrap_or(source.iteration())
}

/// Whether the folder's checkpoint is a `release`, which has neither an iteration nor an optimizer to go on with.
fn released(config: &TrainConfig, dir: &Path) -> bool {
    config.checkpoint.load_step.is_none() && matches!(ms_ckpt::latest_iteration(dir), Ok(Some(0)))
}

/// The run state of a Megatron checkpoint, in Megatron's format, as far as it is resumed here. Missing values are those of
/// this run.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/core/optimizer_param_scheduler.py`, `state_dict`, and `param_groups` of
/// `megatron/core/optimizer/distrib_optimizer.py`.
fn from_megatron(source: &Checkpoint, config: &TrainConfig) -> Result<Stored> {
    let (args, state) = (source.args(), source.state());
    let schedule = &state["opt_param_scheduler"];
    let count = |name: &str| count(source, name);
    let mut mine = json!(config.schedule);
    for (ours, theirs) in [
        ("max_lr", "max_lr"),
        ("min_lr", "min_lr"),
        ("warmup", "lr_warmup_steps"),
        ("decay", "lr_decay_steps"),
        ("style", "lr_decay_style"),
        ("start_weight_decay", "start_wd"),
        ("end_weight_decay", "end_wd"),
        ("weight_decay_samples", "wd_incr_steps"),
        ("weight_decay_style", "wd_incr_style"),
    ] {
        let theirs = &schedule[theirs];
        // Counts may be stored as floats.
        let whole =
            theirs.as_f64().filter(|x| x.fract() == 0.0 && *x >= 0.0 && *x < 9e15 && mine[ours].is_u64());
        match whole {
            Some(n) => mine[ours] = json!(n as u64),
            None if !theirs.is_null() => mine[ours] = theirs.clone(),
            None => {}
        }
    }
    let wrong = |e| mismatch(source.root(), "opt_param_scheduler", "Megatron's schedule", e);
    let step = &state["optimizer"]["optimizer"]["param_groups"][0]["step"];
    let iteration = iteration_in(source);
    Ok(Stored {
        iteration,
        consumed_train_samples: count("consumed_train_samples")
            .or(schedule["num_steps"].as_u64())
            .unwrap_or(0),
        scheduled_samples: schedule["num_steps"].as_u64(),
        loss_scale: scaler_in(&state["optimizer"]["grad_scaler"]),
        consumed_valid_samples: count("consumed_valid_samples").unwrap_or(0),
        num_floating_point_operations_so_far: state["num_floating_point_operations_so_far"]
            .as_f64()
            .unwrap_or(0.0),
        optimizer_step: step.as_f64().map_or(iteration, |n| n as u64),
        schedule: serde_json::from_value(mine).map_err(wrong)?,
        seed: config.seed,
        world: 1,
        arithmetic: None,
        args: args.clone(),
        optimizer: Value::Null,
        opt_param_scheduler: Value::Null,
    })
}

/// The scale of the loss that an optimizer of Megatron's kept, if it follows overflows.
fn scaler_in(kept: &Value) -> Option<Scaler> {
    let number = |key: &str| kept[key].as_f64();
    Some(Scaler {
        scale: number("scale").filter(|scale| scale.is_finite() && *scale > 0.0)?,
        growth_tracker: number("growth_tracker")? as u64,
        hysteresis_tracker: number("hysteresis_tracker")? as i64,
    })
}

/// Parameter groups with the scale of the loss, and the schedule, as Megatron's files have them.
pub(crate) fn in_megatrons_words(
    config: &TrainConfig,
    state: &RunState,
    step: u64,
    scaler: Scaler,
) -> (Value, Value) {
    let s = &state.schedule;
    let samples = state.scheduled_samples;
    let warmup = if s.warmup.fract() == 0.0 { json!(s.warmup as u64) } else { json!(s.warmup) };
    let rates = s.rates(samples);
    let group = |multiplier: f64, decoupled: Option<Decoupled>| {
        let Decoupled { max_lr, min_lr } =
            decoupled.unwrap_or(Decoupled { max_lr: s.max_lr, min_lr: s.min_lr });
        let mut group = json!({
            "wd_mult": multiplier, "lr_mult": 1.0, "is_expert_parallel": false, "is_decoupled_lr": decoupled.is_some(),
            "lr": rates.decoupled_lr.filter(|_| decoupled.is_some()).unwrap_or(rates.lr),
            "max_lr": max_lr, "min_lr": min_lr, "step": step, "weight_decay": rates.weight_decay * multiplier
        });
        match config.optimizer.update {
            UpdateRule::AdamW(adam) => {
                group["bias_correction"] = json!(true);
                group["betas"] = json!([adam.beta1, adam.beta2]);
                group["eps"] = json!(adam.eps);
            }
            UpdateRule::Sgd { momentum } => group["momentum"] = json!(momentum),
        }
        group
    };
    let schedule = json!({
        "max_lr": s.max_lr, "lr_warmup_steps": warmup, "num_steps": samples, "lr_decay_style": s.style,
        "lr_decay_steps": s.decay, "min_lr": s.min_lr, "start_wd": s.start_weight_decay,
        "end_wd": s.end_weight_decay, "wd_incr_style": s.weight_decay_style, "wd_incr_steps": s.weight_decay_samples
    });
    let mut groups = vec![group(1.0, None), group(0.0, None)];
    groups.extend(s.decoupled.map(|d| group(1.0, Some(d))));
    let mut optimizer = json!({"optimizer": {"param_groups": groups}});
    match config.optimizer.loss_scale {
        LossScale::None => {}
        LossScale::Constant(_) => optimizer["grad_scaler"] = json!({}),
        LossScale::Dynamic { .. } => optimizer["grad_scaler"] = json!(scaler),
    }
    (optimizer, schedule)
}

pub(crate) fn state_name(state: &str, spec: &ParamSpec) -> String {
    format!("optimizer.state.{state}.{}", spec.name)
}

pub(crate) fn region(engine: &Engine, spec: &ParamSpec) -> Result<Region> {
    Ok(ms_spec::local(spec, &engine.ctx.grid, engine.ctx.rank)?)
}

/// Loads the checkpoint that the configuration names into `engine`, which may be blank, or returns `None` for a fresh start.
/// A rank reads the part of every weight that it updates, once, and other ranks get it as after an update. If master weights
/// are stored in parts with a type and a scale of their own, weights are not their rounded values, and all are read.
pub(crate) fn load(config: &TrainConfig, engine: &mut Engine) -> Result<Option<RunState>> {
    let Some(dir) = &config.checkpoint.load else { return Ok(None) };
    if config.checkpoint.load_step.is_none() && !ms_ckpt::present(dir) {
        begin_without(config, engine, dir)?;
        return Ok(None);
    }
    let source = open_whole(config, engine, dir)?;
    read_whole_weights(config, engine, &source)?;
    let mut state = RunState::begun(dir.clone(), config);
    // Our runs say so. Megatron files without consumed samples contain only weights, as converters write them.
    let ours = source.form() == Form::Sharded && !source.state()["schedule"].is_null();
    let theirs = !ours && !matches!(source.form(), Form::Hf | Form::Peft);
    let begun = theirs && (count(&source, "consumed_train_samples") > Some(0) || iteration_in(&source) > 1);
    let release = theirs && released(config, dir);
    let no_load_optim = config.checkpoint.no_load_optim || release;
    let whole = ours || source.has_optimizer();
    if config.checkpoint.finetune || !(whole || begun || (theirs && no_load_optim)) {
        if !config.checkpoint.finetune && theirs && engine.ctx.rank == 0 {
            tracing::warn!(
                "{}: weights without state of an optimizer and without samples behind them, as converters write them: training \
                 begins at iteration 0, as with --finetune",
                dir.display()
            );
        }
        if config.checkpoint.upcycling {
            engine.adopt_weights()?;
        } else {
            read_masters(&source, engine, false)?;
        }
        return Ok(Some(state));
    }
    if !(whole || no_load_optim) {
        return Err(without_optimizer(dir, &source));
    }
    let stored: Stored = if ours {
        serde_json::from_value(source.state().clone())
            .map_err(|e| mismatch(dir, "state of the run", "the state that ms-train writes", e))?
    } else {
        from_megatron(&source, config)?
    };
    state.consumed_train_samples = stored.consumed_train_samples;
    state.consumed_valid_samples = stored.consumed_valid_samples;
    state.floating_point_operations = stored.num_floating_point_operations_so_far;
    if config.checkpoint.upcycling {
        // As upstream: data goes on where the dense model's run came to, its iterations and schedule begin anew.
        engine.adopt_weights()?;
        return Ok(Some(state));
    }
    say_other_arithmetic(engine, dir, stored.arithmetic.as_deref());
    state.iteration = if release { 0 } else { stored.iteration };
    // As upstream, the schedule is the optimizer's: without it both begin anew.
    if no_load_optim {
        read_masters(&source, engine, false)?;
    } else {
        state.scheduled_samples = stored.scheduled_samples.unwrap_or(stored.consumed_train_samples);
        state.schedule = choose_schedule(config, dir, stored.schedule)?;
        resume_optimizer(config, engine, &source, dir, stored.optimizer_step, stored.loss_scale)?;
    }
    Ok(Some(state))
}

/// Checks that a run may begin although `dir` has no checkpoint, and says so.
///
/// # Errors
/// If one was meant to be there, or must be.
fn begin_without(config: &TrainConfig, engine: &Engine, dir: &Path) -> Result<()> {
    check_nothing_there(dir)?;
    if config.checkpoint.upcycling {
        return Err(mismatch(dir, "checkpoint", "that of a dense model, for --moe-use-upcycling", "none"));
    }
    if config.checkpoint.exit_on_missing {
        return Err(mismatch(dir, "checkpoint", "one, because of --exit-on-missing-checkpoint", "none"));
    }
    if engine.ctx.rank == 0 {
        tracing::warn!("{}: no checkpoint there", dir.display());
    }
    Ok(())
}

/// Opens the checkpoint in `dir`, of which one rank compares the files with their checksums.
fn open_whole(config: &TrainConfig, engine: &Engine, dir: &Path) -> Result<Checkpoint> {
    let step = config.checkpoint.load_step;
    let extended = config.args.get("moe_tp_extend_ep") == Some(&json!(true));
    let hints = Hints { extend_ep: extended.then_some(true), ..Hints::default() };
    let source = ms_ckpt::open_with(dir, step, &hints).map_err(|e| or_an_older_one(dir, step, e))?;
    if engine.ctx.rank == 0 {
        source.check_sums().map_err(|e| or_an_older_one(dir, step, e))?;
    }
    Ok(source)
}

/// Reads this rank's weights where they do not come of master weights: those of a dense model, whose MLPs are copied to
/// experts and which then become master weights, and such as master weights do not round to.
fn read_whole_weights(config: &TrainConfig, engine: &mut Engine, source: &Checkpoint) -> Result<()> {
    let from_dense = config.checkpoint.upcycling;
    if from_dense {
        engine.draw_some(config.seed, upcycling::is_drawn)?;
    } else if !engine.optimizer.weights_stand_alone() {
        return Ok(());
    }
    let specs = engine.model.specs().to_vec();
    let local = |(i, spec)| Ok((ParamId(i as u32), spec, region(engine, spec)?));
    let weights = specs.iter().enumerate().map(local).collect::<Result<Vec<_>>>()?;
    if from_dense {
        upcycling::read_weights(source, &mut engine.store, weights)?;
    } else {
        source.load_into(&mut engine.store, &weights)?;
    }
    Ok(())
}

/// Says if products of bf16 were summed in another order `before`.
fn say_other_arithmetic(engine: &Engine, dir: &Path, before: Option<&str>) {
    if let Some(before) = before.filter(|before| *before != engine.device.arithmetic())
        && engine.dtype() == DType::Bf16
        && engine.ctx.rank == 0
    {
        tracing::warn!(
            "{}: products were summed in the order `{before}`, now in `{}`; `--arithmetic {before}` continues with the same bits",
            dir.display(),
            engine.device.arithmetic()
        );
    }
}

/// Reads the state of the optimizer after `step` updates; without one of the rule that is asked for, it begins anew.
fn resume_optimizer(
    config: &TrainConfig,
    engine: &mut Engine,
    source: &Checkpoint,
    dir: &Path,
    step: u64,
    scaler: Option<Scaler>,
) -> Result<()> {
    let (rule, dir) = (config.optimizer.update, dir.display());
    let reports = engine.ctx.rank == 0;
    if !source.has_states(rule.state_names()) {
        if reports {
            let names = rule.state_names().join(", ");
            tracing::warn!(
                "{dir}: there is no {names} of the parameters, as --optimizer keeps it: the optimizer starts with a new state"
            );
        }
        return read_masters(source, engine, true);
    }
    read_optimizer(source, engine, rule, step)?;
    // The scale is part of the optimizer's state.
    match (scaler, config.optimizer.loss_scale) {
        (Some(scaler), LossScale::Dynamic { .. }) => engine.set_scaler(scaler),
        (None, LossScale::Dynamic { initial, .. }) if reports => {
            tracing::warn!("{dir}: there is no loss scale: it begins at --initial-loss-scale {initial}");
        }
        _ => {}
    }
    Ok(())
}

/// A Megatron run to be resumed with an optimizer state that is missing or incomplete.
fn without_optimizer(dir: &Path, source: &Checkpoint) -> Error {
    let names = ["exp_avg", "exp_avg_sq"];
    let expected = format!(
        "{} of every trained parameter (or --no-load-optim to continue at iteration {} without it, --finetune to begin at 0)",
        names.join(" and "),
        iteration_in(source)
    );
    let lacks = source.lacking_state(&names).unwrap_or_default();
    mismatch(dir, "state of the optimizer", &expected, format_args!("no {lacks}"))
}

/// Checks that a folder without a checkpoint was not meant to be one.
///
/// # Errors
/// If it is a file, or holds iterations but no tracker that names the last complete one.
fn check_nothing_there(dir: &Path) -> Result<()> {
    if dir.is_file() {
        return Err(Error::NoTracker { path: dir.to_owned(), expected: "a folder, found a file".into() });
    }
    let Some(last) = iterations(dir).pop() else { return Ok(()) };
    let expected = format!(
        "{TRACKER} beside {}, which names the last complete one, found none\nhint: --ckpt-step {last} loads that one",
        iteration_name(last)
    );
    Err(Error::NoTracker { path: dir.to_owned(), expected })
}

/// The iterations of a folder, in order.
pub(crate) fn iterations(dir: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let number = |e: std::fs::DirEntry| e.file_name().to_str()?.strip_prefix("iter_")?.parse().ok();
    let mut all: Vec<u64> = entries.filter_map(number).collect();
    all.sort_unstable();
    all
}

/// An error in a checkpoint, with the hint which older one is the last whole one: their files are compared with their
/// checksums, from the newest on.
fn or_an_older_one(dir: &Path, step: Option<u64>, error: ms_ckpt::Error) -> Error {
    let newest = step.or(ms_ckpt::latest_iteration(dir).ok().flatten());
    let older: Vec<u64> = iterations(dir).into_iter().filter(|&n| newest.is_none_or(|new| n < new)).collect();
    if older.is_empty() {
        return error.into();
    }
    let is_whole = |n: &u64| ms_ckpt::open_iteration(dir, *n).and_then(|c| c.check_sums()).is_ok();
    let whole = older.iter().rposition(is_whole);
    let damaged = &older[whole.map_or(0, |i| i + 1)..];
    let damaged = damaged.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let hint = match whole.map(|i| older[i]) {
        Some(last) if damaged.is_empty() && newest.is_none() => {
            format!("--ckpt-step {last} loads the newest, which is whole")
        }
        Some(last) if damaged.is_empty() => {
            format!("--ckpt-step {last} loads the one before, which is whole")
        }
        Some(last) => format!("--ckpt-step {last} loads the last whole one; damaged, too: {damaged}"),
        None => format!("no older one is whole: {damaged}"),
    };
    Error::Damaged { source: error, hint }
}

/// Reads state `which` of what this rank updates. `tensor` says in which tensor that of a parameter is; `None`: it is zeros.
///
/// Rows of a vocabulary that is padded further here than in the checkpoint repeat its last row, as upstream's
/// converter has it.
fn read_state(
    source: &Checkpoint,
    engine: &mut Engine,
    which: usize,
    tensor: impl Fn(&ParamSpec) -> Option<String>,
) -> Result<()> {
    let specs = engine.model.specs();
    let regions = specs.iter().map(|spec| region(engine, spec)).collect::<Result<Vec<_>>>()?;
    engine.optimizer.fill((&engine.device, &mut engine.store), which, |mut slots| {
        let mut wanted = Vec::with_capacity(slots.len());
        for StateSlot { param, range, values } in &mut slots {
            let i = param.0 as usize;
            let (dtype, out) = (values.dtype(), values.bytes_mut());
            match tensor(&specs[i]) {
                Some(name) => {
                    wanted.push(Wanted { name, region: &regions[i], flat: Some(range.clone()), dtype, out });
                }
                None => out.fill(0),
            }
        }
        Ok(source.load(wanted)?)
    })
}

/// Takes the stored weights as master weights, without the rounding of the run's own type; where there are master weights of
/// another update rule and they are wanted, those.
fn read_masters(source: &Checkpoint, engine: &mut Engine, others: bool) -> Result<()> {
    read_state(source, engine, 0, |spec| {
        let master = state_name(MASTER, spec);
        Some(if others && source.has(&master) { master } else { spec.name.clone() })
    })?;
    engine.publish_masters()
}

fn read_optimizer(source: &Checkpoint, engine: &mut Engine, rule: UpdateRule, step: u64) -> Result<()> {
    // Master weights that were not stored are the weights themselves.
    // Every rank must decide alike, also one whose stage holds nothing.
    let first = ms_spec::params(engine.model.config()).into_iter().find(ms_spec::ParamSpec::trained);
    let has_masters = first.is_some_and(|spec| source.has(&state_name(MASTER, &spec)));
    if !has_masters {
        read_masters(source, engine, false)?;
    }
    for (which, state) in state_names(rule).into_iter().enumerate().skip(usize::from(!has_masters)) {
        read_state(source, engine, which, |spec| {
            // Megatron keeps no state of what no gradient changes, such as the bias of a router.
            let name = Some(state_name(state, spec)).filter(|name| spec.trained() || source.has(name));
            name.or((which == 0).then(|| spec.name.clone()))
        })?;
    }
    engine.optimizer.set_step(step);
    if has_masters {
        engine.publish_masters()?;
    }
    Ok(())
}

/// The schedule to go on with: both must agree unless a flag says which one wins. What upstream's files do not hold is this
/// run's: where warm-up begins, and the last part of WSD.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/core/optimizer_param_scheduler.py`, `state_dict` and `_check_and_set`.
fn choose_schedule(config: &TrainConfig, dir: &Path, mut stored: LrSchedule) -> Result<LrSchedule> {
    let own = &config.schedule;
    (stored.init_lr, stored.wsd_decay, stored.wsd_style) = (own.init_lr, own.wsd_decay, own.wsd_style);
    if config.checkpoint.override_schedule || nearly_equal(&json!(stored), &json!(config.schedule)) {
        return Ok(config.schedule.clone());
    }
    if config.checkpoint.use_checkpoint_schedule {
        if stored.style == DecayStyle::Wsd && stored.wsd_decay == 0 {
            let expected = "--lr-wsd-decay-iters or --lr-wsd-decay-samples beside WSD";
            return Err(mismatch(dir, "schedule, style", expected, "no length of the last part"));
        }
        return Ok(stored);
    }
    let (mine, theirs) = (json!(config.schedule), json!(stored));
    let differs = mine.as_object().into_iter().flatten().find(|(k, v)| theirs[k.as_str()] != **v);
    let (field, value) = differs.map_or(("schedule", &Value::Null), |(k, v)| (k.as_str(), v));
    let what = format!("schedule, {field}");
    let expected = format!(
        "{value} (or --override-opt_param-scheduler to use this run's, --use-checkpoint-opt_param-scheduler to use \
         the checkpoint's)"
    );
    Err(mismatch(dir, &what, &expected, &theirs[field]))
}

/// Equal except for the last digits that a number may lose on its way through JSON.
fn nearly_equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64(), a.as_object(), b.as_object()) {
        (Some(x), Some(y), ..) => (x - y).abs() <= 1e-12 * x.abs().max(y.abs()),
        (_, _, Some(x), Some(y)) => {
            x.len() == y.len() && x.iter().all(|(k, v)| y.get(k).is_some_and(|w| nearly_equal(v, w)))
        }
        _ => a == b,
    }
}

fn mismatch(path: &Path, what: &str, expected: &str, found: impl std::fmt::Display) -> Error {
    Error::Checkpoint {
        path: path.to_owned(),
        what: what.to_owned(),
        expected: expected.to_owned(),
        found: found.to_string(),
    }
}

#[cfg(test)]
mod tests;
