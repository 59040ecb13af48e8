//! Where a run's checkpoints come from and go to.

use anyhow::{Result, bail};
use ms_cli::Usage;
use ms_cli::megatron::{Given, Upstream};
use ms_options::Source;
use ms_spec::ModelConfig;
use ms_trainer::{Checkpointing, MegatronFiles};
use std::path::PathBuf;

options! {
    /// What is read of a checkpoint, and what is written when.
    pub(crate) struct Keeping in "Checkpoint" {
        pub(crate) save: Option<PathBuf> = "--save", "folder to write checkpoints to";
        interval: Option<u64> = "--save-interval", "iterations between checkpoints", range = "[0,1000000000000]";
        beside_training: bool = "--async-save", "copies what a checkpoint holds and writes it while training goes on; it is there when it is whole";
        keep_last: Option<u64> = "--keep-last", "checkpoints that stay in --save; older ones are removed once a newer one is complete (default: all stay)", range = "[1,1000000000000]", own = own("keep_last");
        pub(crate) format: Given<String> = "--ckpt-format", "format of written checkpoints";
        distributed: bool = "--use-dist-ckpt", "v2.0.0: as --ckpt-format torch_dist; at head --ckpt-format says it alone";
        no_save_optim: bool = "--no-save-optim", "write weights only";
        no_load_optim: bool = "--no-load-optim", "read weights only";
        finetune: bool = "--finetune", "take weights only: iteration 0, fresh optimizer", group = "Task";
        upcycling: bool = "--moe-use-upcycling", "--load has a dense model: every expert begins as its network, routers are drawn, and what comes of it is saved as iteration 1 before training begins at 0";
        exit_on_missing: bool = "--exit-on-missing-checkpoint", "stop if --load holds no checkpoint";
        from_hugging_face: bool = "--enable-hf2mg-convert", "--load is a Hugging Face folder, which is read as it is";
        flags_win: bool = "--override-opt_param-scheduler", "flags win over the schedule in the checkpoint", group = "Learning rate";
        checkpoint_wins: bool = "--use-checkpoint-opt_param-scheduler", "the schedule in the checkpoint wins over flags", group = "Learning rate";
    }
}

/// What a run reads and writes.
///
/// # Errors
/// If a folder is missing, or is not what a flag says.
pub(super) fn checkpointing(
    o: &Keeping,
    source: &Source,
    upstream: Upstream,
    planned: bool,
    model: &ModelConfig,
) -> Result<Checkpointing> {
    if o.upcycling {
        check_upcycling(o, source, planned, model)?;
    }
    if o.from_hugging_face {
        let Some(load) = source.folder() else {
            bail!(Usage(
                "--enable-hf2mg-convert: goes with --load, which names a Hugging Face folder".into()
            ));
        };
        if !planned && !load.join("config.json").is_file() {
            bail!(Usage(format!(
                "--enable-hf2mg-convert: expected --load to be a Hugging Face folder, found no config.json in {}",
                load.display()
            )));
        }
    }
    Ok(Checkpointing {
        load: source.folder().map(PathBuf::from),
        load_step: source.step(),
        finetune: o.finetune || source.is_pretrained(),
        upcycling: o.upcycling,
        no_load_optim: o.no_load_optim || o.upcycling,
        exit_on_missing: o.exit_on_missing,
        save: o.save.clone(),
        save_interval: o.interval.unwrap_or(0),
        beside_training: o.beside_training,
        keep_last: match o.keep_last {
            Some(_) if o.save.is_none() => bail!(Usage("--keep-last: goes with --save".into())),
            keep => keep,
        },
        no_save_optim: o.no_save_optim,
        megatron_files: match o.format.given().map(String::as_str) {
            Some("torch") => MegatronFiles::Ranks,
            Some("torch_dist") => MegatronFiles::Distributed,
            None if o.distributed && upstream == Upstream::V2_0_0 => MegatronFiles::Distributed,
            _ => MegatronFiles::Absent,
        },
        override_schedule: o.flags_win,
        use_checkpoint_schedule: o.checkpoint_wins,
    })
}

/// Checks that there is a dense model to make experts of, and a folder for what comes of it.
///
/// # Errors
/// For what upstream refuses: no --save or one with a checkpoint, and what a dense model has nothing for.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/training/arguments.py`, and `training.py`, `setup_model_and_optimizer`.
fn check_upcycling(o: &Keeping, source: &Source, planned: bool, model: &ModelConfig) -> Result<()> {
    const FLAG: &str = "--moe-use-upcycling";
    let Some(save) = &o.save else {
        bail!(Usage(format!("{FLAG}: expected --save beside it, as upstream has it")));
    };
    if source.folder().is_none() {
        bail!(Usage(format!("{FLAG}: expected --load beside it, the checkpoint of a dense model")));
    }
    let Some(moe) = &model.moe else {
        bail!(Usage(format!("{FLAG}: expected a model with experts (--num-experts), found a dense one")));
    };
    if moe.shared.is_some() || moe.zero_experts > 0 {
        bail!(Usage(format!(
            "{FLAG}: expected experts that are chosen and have weights, as upstream: a dense model has nothing for shared ones"
        )));
    }
    if !planned && ms_ckpt::present(save) {
        bail!(
            "{FLAG}: {} has a checkpoint already: the flag is for the first run alone, later ones go on with --load {}",
            save.display(),
            save.display()
        );
    }
    Ok(())
}
