//! `--use-mp-args-from-checkpoint-args`: the parallel sizes of a run, taken from the run that saved the checkpoint.

use crate::Source;
use crate::compute::hints;
use anyhow::{Context, Result};
use ms_cli::megatron::Args;
use ms_cli::refuse;
use serde_json::Value;

options! {
    /// Whether a checkpoint says how ranks share the model.
    pub(crate) struct Inherited in "Parallelism" {
        from_checkpoint: bool = "--use-mp-args-from-checkpoint-args", "take tensor-, pipeline- and expert-parallel sizes from the run that saved --load, whatever their flags say, and layers per virtual stage unless they are given", group = "Task";
    }
}

/// Flags that the checkpoint decides, and one that it decides where it is not given.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/training/checkpointing.py`, `load_args_from_checkpoint`.
const DECIDED: [&str; 3] =
    ["--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--expert-model-parallel-size"];
const LEFT_OPEN: &str = "--num-layers-per-virtual-pipeline-stage";

/// Puts the sizes that the checkpoint names into the flags.
///
/// # Errors
/// Without a checkpoint, or if it cannot be opened.
pub(crate) fn settle_sizes(args: &mut Args, wanted: &Inherited, source: &Source) -> Result<()> {
    const FLAG: &str = "--use-mp-args-from-checkpoint-args";
    if !wanted.from_checkpoint {
        return Ok(());
    }
    let Some(folder) = source.folder() else {
        refuse!("{FLAG}: expected --load, the checkpoint that names them");
    };
    let hints = hints(args.record().get("moe_tp_extend_ep") == Some(&Value::Bool(true)));
    let checkpoint = ms_ckpt::open_with(folder, None, &hints).with_context(|| FLAG.to_owned())?;
    let dest = |flag: &str| flag.trim_start_matches("--").replace('-', "_");
    let said = |flag: &str| checkpoint.args().get(&dest(flag)).filter(|value| !value.is_null()).cloned();
    let open = !args.record().contains_key(&dest(LEFT_OPEN));
    let mut named: Vec<(&str, Value)> = DECIDED.into_iter().filter_map(|f| Some((f, said(f)?))).collect();
    named.extend(Some(LEFT_OPEN).filter(|_| open).and_then(|f| Some((f, said(f)?))));
    if named.is_empty() {
        tracing::warn!("{FLAG}: {} names none of them", folder.display());
    }
    for (flag, value) in named {
        tracing::info!("{flag} {value}: as {} has it", folder.display());
        args.settle(flag, value);
    }
    Ok(())
}
