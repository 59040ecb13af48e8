//! Where a run's checkpoints come from and go to.

use crate::compute::hints;
use crate::{ModelFlags, Source};
use anyhow::{Result, bail};
use ms_ckpt::layout::mcore::{Experts, Spelling, Version};
use ms_cli::megatron::{Given, Upstream};
use ms_cli::refuse;
use ms_spec::ModelConfig;
use ms_trainer::{Checkpointing, MegatronFiles, NonPersistent};
use std::path::{Path, PathBuf};

options! {
    /// What is read of a checkpoint, and what is written when.
    pub(crate) struct CheckpointOptions in "Checkpoint" {
        pub(crate) save: Option<PathBuf> = "--save", "folder to write checkpoints to";
        interval: Option<u64> = "--save-interval", "iterations between checkpoints", range = "[0,1000000000000]";
        async_save: bool = "--async-save", "write checkpoints in the background while training continues; a checkpoint appears when it is complete";
        keep_last: Option<u64> = "--keep-last", "number of checkpoints to keep in --save; older ones are removed once a newer one is complete (default: all)", range = "[1,1000000000000]", own = own("keep_last");
        non_persistent_interval: Option<u64> = "--non-persistent-save-interval", "iterations between non-persistent checkpoints, for interrupted runs; the newest alone is kept, in its own folder", range = "[1,1000000000000]";
        non_persistent: Option<String> = "--non-persistent-ckpt-type", "where non-persistent checkpoints are kept: global, in --non-persistent-global-ckpt-dir; a run starts from the newest of them unless --load has a newer checkpoint";
        non_persistent_dir: Option<PathBuf> = "--non-persistent-global-ckpt-dir", "folder of non-persistent checkpoints (default: non_persistent in --save and in --load)";
        pub(crate) format: Given<String> = "--ckpt-format", "format of the checkpoints to write";
        implementation: String = "--transformer-impl", "whose module names Megatron's files have: upstream's own or Transformer Engine's; the model is the same", group = "Model families";
        grouped: bool = "--moe-grouped-gemm", "write the experts of a layer grouped in Megatron's files, as upstream's grouped GEMM reads them; computation is the same", group = "Model families";
        distributed: bool = "--use-dist-ckpt", "v2.0.0: as --ckpt-format torch_dist; at head --ckpt-format alone decides";
        no_save_optim: bool = "--no-save-optim", "save weights only";
        no_load_optim: bool = "--no-load-optim", "continue at the iteration and sample of --load with a new optimizer state and schedule";
        finetune: bool = "--finetune", "load the weights only: start at iteration 0 with a new optimizer state", group = "Task";
        upcycling: bool = "--moe-use-upcycling", "start from a dense model in --load: every expert copies its feed-forward, routers are initialised at random; the result is saved as iteration 1 and training starts at iteration 0";
        exit_on_missing: bool = "--exit-on-missing-checkpoint", "stop if --load holds no checkpoint";
        from_hugging_face: bool = "--enable-hf2mg-convert", "--load is a Hugging Face folder, which is read without conversion";
        flags_win: bool = "--override-opt_param-scheduler", "take the learning-rate schedule from the flags, not from the checkpoint", group = "Learning rate";
        checkpoint_wins: bool = "--use-checkpoint-opt_param-scheduler", "take the learning-rate schedule from the checkpoint, not from the flags", group = "Learning rate";
    }
}

/// What a run reads and writes.
///
/// # Errors
/// If a folder is missing, or is not what a flag says.
pub(super) fn checkpointing(
    o: &CheckpointOptions,
    source: &Source,
    upstream: Upstream,
    planned: bool,
    (model, split_heads): (&ModelConfig, bool),
) -> Result<Checkpointing> {
    if o.upcycling {
        check_upcycling(o, source, planned, model)?;
    }
    if o.from_hugging_face {
        let Some(load) = source.folder() else {
            refuse!("--enable-hf2mg-convert: needs --load, which names a Hugging Face folder");
        };
        if !planned && !load.join("config.json").is_file() {
            refuse!(
                "--enable-hf2mg-convert: expected --load to be a Hugging Face folder, found no config.json in {}",
                load.display()
            );
        }
    }
    let megatron_files = match o.format.given().map(String::as_str) {
        Some("torch") => MegatronFiles::Ranks,
        Some("torch_dist") => MegatronFiles::Distributed,
        None if o.distributed && upstream == Upstream::V2_0_0 => MegatronFiles::Distributed,
        _ => MegatronFiles::Absent,
    };
    let spelling = spelling(o, upstream, split_heads);
    let ungrouped = spelling.experts == Experts::Grouped && !spelling.transformer_engine;
    if megatron_files == MegatronFiles::Ranks && ungrouped && model.moe.is_some() && model.bias.mlp {
        refuse!("--moe-grouped-gemm: upstream's grouped experts have no biases: needs --disable-bias-linear");
    }
    let non_persistent = non_persistent(o)?;
    // For an interrupted run: its last non-persistent checkpoint, if there is no newer one.
    let newest = newest_non_persistent(o, source)?;
    let pretrained = source.is_pretrained() && newest.is_none();
    Ok(Checkpointing {
        load: newest.or_else(|| source.folder().map(PathBuf::from)),
        load_step: source.step(),
        finetune: o.finetune || pretrained,
        upcycling: o.upcycling,
        no_load_optim: o.no_load_optim || o.upcycling,
        exit_on_missing: o.exit_on_missing,
        save: o.save.clone(),
        save_interval: o.interval.unwrap_or(0),
        async_save: o.async_save,
        keep_last: match o.keep_last {
            Some(_) if o.save.is_none() => refuse!("--keep-last: needs --save"),
            keep => keep,
        },
        non_persistent,
        no_save_optim: o.no_save_optim,
        megatron_files,
        spelling,
        override_schedule: o.flags_win,
        use_checkpoint_schedule: o.checkpoint_wins,
    })
}

/// What Megatron's files call a run's tensors: what upstream's modules of the same flags read.
///
/// # Source
/// MindSpeed `2.0.0_core_r0.8.0`, `mindspeed/arguments.py`: Transformer Engine's modules are not taken.
fn spelling(o: &CheckpointOptions, upstream: Upstream, split_heads: bool) -> Spelling {
    let head = upstream == Upstream::Head;
    Spelling {
        version: if head { Version::Head } else { Version::V2_0_0 },
        transformer_engine: head && o.implementation == "transformer_engine",
        as_trained: true,
        experts: if o.grouped { Experts::Grouped } else { Experts::Sequential },
        split_heads,
        ..Spelling::default()
    }
}

/// Compares the model that flags describe with that of the checkpoint that is read, if there is one. What cannot be opened is
/// said by who loads it.
///
/// # Errors
/// With the flag that makes a weight of another shape, or one that is not there.
pub(super) fn check_model(
    c: &Checkpointing,
    extend_ep: bool,
    flags: &ModelFlags,
    model: &ModelConfig,
) -> Result<()> {
    let Some(dir) = c.load.as_deref().filter(|dir| ms_ckpt::present(dir)) else { return Ok(()) };
    let opened = ms_ckpt::open_with(dir, c.load_step, &hints(extend_ep));
    opened.map_or(Ok(()), |checkpoint| flags.check_loaded(checkpoint.config(), model))
}

/// Where checkpoints of which the newest alone stays go, and when.
///
/// # Errors
/// If one of their flags is there without what it goes with.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/training/checkpointing.py`, `save_checkpoint`.
fn non_persistent(o: &CheckpointOptions) -> Result<Option<NonPersistent>> {
    const FLAG: &str = "--non-persistent-save-interval";
    if let Some(other) = o.non_persistent.as_deref().filter(|&kind| kind != "global") {
        refuse!(
            "--non-persistent-ckpt-type {other}: expected global; local ones are those of a library of NVIDIA's for Python, and \
             upstream writes none in memory"
        );
    }
    let Some(interval) = o.non_persistent_interval else {
        if o.non_persistent_dir.is_some() && o.non_persistent.is_none() {
            refuse!("--non-persistent-global-ckpt-dir: needs --non-persistent-ckpt-type global");
        }
        return Ok(None);
    };
    let Some(save) = &o.save else { refuse!("{FLAG}: needs --save") };
    if o.non_persistent.is_none() {
        refuse!("{FLAG}: needs --non-persistent-ckpt-type global");
    }
    let dir = o.non_persistent_dir.clone().unwrap_or_else(|| save.join(NON_PERSISTENT));
    let same = |a: &Path, b: &Path| match (std::path::absolute(a), std::path::absolute(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    };
    if same(&dir, save) {
        refuse!(
            "--non-persistent-global-ckpt-dir {}: expected another folder than that of --save, whose checkpoints stay",
            dir.display()
        );
    }
    Ok(Some(NonPersistent { dir, interval }))
}

/// The folder of checkpoints of which the newest alone stays, beside those that stay.
const NON_PERSISTENT: &str = "non_persistent";

/// That folder, if a run is to begin with what is in it: it is as new as what `--load` has, and no iteration is asked for.
///
/// # Errors
/// If a folder says of its newest checkpoint what is no iteration.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/training/checkpointing.py`, `_load_base_checkpoint`.
fn newest_non_persistent(o: &CheckpointOptions, source: &Source) -> Result<Option<PathBuf>> {
    if o.non_persistent.is_none() || source.step().is_some() {
        return Ok(None);
    }
    let in_load = || source.loaded().map(|load| load.join(NON_PERSISTENT));
    let Some(dir) = o.non_persistent_dir.clone().or_else(in_load) else { return Ok(None) };
    let Some(non_persistent) = ms_ckpt::latest_iteration(&dir)? else { return Ok(None) };
    let stayed = source.loaded().map(ms_ckpt::latest_iteration).transpose()?.flatten();
    Ok(Some(dir).filter(|_| stayed.is_none_or(|stayed| non_persistent >= stayed)))
}

/// Checks that there is a dense model to make experts of, and a folder for what comes of it.
///
/// # Errors
/// For what upstream refuses: no --save or one with a checkpoint, and what a dense model has nothing for.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/training/arguments.py`, and `training.py`, `setup_model_and_optimizer`.
fn check_upcycling(o: &CheckpointOptions, source: &Source, planned: bool, model: &ModelConfig) -> Result<()> {
    const FLAG: &str = "--moe-use-upcycling";
    let Some(save) = &o.save else {
        refuse!("{FLAG}: needs --save, as in upstream");
    };
    if source.folder().is_none() {
        refuse!("{FLAG}: needs --load, the checkpoint of a dense model");
    }
    let Some(moe) = &model.moe else {
        refuse!("{FLAG}: expected a model with experts (--num-experts), found a dense one");
    };
    if moe.shared.is_some() || moe.zero_experts > 0 {
        refuse!(
            "{FLAG}: expected experts that are chosen and have weights, as in upstream: a dense model has nothing for shared ones"
        );
    }
    if !planned && ms_ckpt::present(save) {
        bail!(
            "{FLAG}: {} has a checkpoint already: the flag is for the first run alone, later ones continue with --load {}",
            save.display(),
            save.display()
        );
    }
    Ok(())
}
