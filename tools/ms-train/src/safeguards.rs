//! Protection against losing work: the checkpoint folder is checked before the first iteration, and signals are handled
//! during a run.

use anyhow::{Context, Result, bail};
use ms_cli::{Claim, Interrupt, free_bytes, say_bytes};
use ms_files::AtomicFolder;
use ms_trainer::{MegatronFiles, TrainConfig};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Iterations done and saved, as the loop reports them.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) done: AtomicU64,
    pub(crate) saved: AtomicU64,
}

/// Claims and probes the checkpoint folders: each must be creatable and writable, and have room for one checkpoint. A run
/// that saves nothing gets a message.
///
/// # Errors
/// If another run writes there, it cannot be written, or there is too little room.
pub(crate) fn prepare(config: &TrainConfig, interrupt: &Interrupt) -> Result<Vec<Claim>> {
    if config.skip_train {
        return Ok(Vec::new()); // nothing is written
    }
    let Some(dir) = &config.checkpoint.save else {
        if config.train_iters > 0 {
            tracing::warn!("no --save: what this run learns is lost when it ends");
        }
        return Ok(Vec::new());
    };
    let non_persistent = config.checkpoint.non_persistent.as_ref();
    let non_persistent =
        non_persistent.map(|non_persistent| ("--non-persistent-global-ckpt-dir", &non_persistent.dir));
    let folders = [Some(("--save", dir)), non_persistent].into_iter().flatten();
    folders.map(|(flag, dir)| folder(flag, dir, config, interrupt)).collect()
}

/// One folder of checkpoints.
fn folder(flag: &str, dir: &Path, config: &TrainConfig, interrupt: &Interrupt) -> Result<Claim> {
    if dir.exists() && !dir.is_dir() {
        bail!("{flag} {}: expected a folder, found a file", dir.display());
    }
    let said = || format!("{flag} {}", dir.display());
    let claim = Claim::folder(dir, interrupt).with_context(said)?;
    probe(dir).with_context(said)?;
    remove_unfinished(dir);
    let needed = checkpoint_bytes(config);
    if let Some(free) = free_bytes(dir).filter(|&free| free < needed) {
        bail!("{}: a checkpoint takes {}, {} are free there", said(), say_bytes(needed), say_bytes(free));
    }
    Ok(claim)
}

/// Writes and removes a file: one that a run left which was killed meanwhile, too, since the folder is claimed.
fn probe(dir: &Path) -> Result<()> {
    let path = dir.join(".probe.part");
    let written = std::fs::write(&path, b"x");
    let removed = std::fs::remove_file(&path);
    Ok(written.and(removed)?)
}

/// Whether a folder of this name is a checkpoint that a run writes or removes; others, as of conversions beside them, are theirs.
fn is_unfinished(name: &str) -> bool {
    let iteration = name.strip_prefix(".iter_").and_then(|rest| rest.split_once('.'));
    iteration.is_some_and(|(digits, ending)| {
        digits.len() >= 7
            && digits.bytes().all(|b| b.is_ascii_digit())
            && ["partial", "removed"].contains(&ending)
    })
}

/// Removes what a run that was ended has left of checkpoints which it wrote or removed, in a folder that is claimed.
fn remove_unfinished(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if is_unfinished(&entry.file_name().to_string_lossy()) && !AtomicFolder::is_written(&entry.path()) {
            // Best effort: a later run tries it again.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Bytes of the tensors of one checkpoint.
fn checkpoint_bytes(config: &TrainConfig) -> u64 {
    let parameters: u64 = ms_spec::params(&config.model).iter().map(|s| s.shape.numel() as u64).sum();
    let weight = config.dtype.size() as u64;
    // Megatron's files have the weights again, and float32 masters and moments.
    let state = if config.checkpoint.no_save_optim { 0 } else { 12 };
    let again = if config.checkpoint.megatron_files == MegatronFiles::Absent { 0 } else { weight + state };
    // Moments, and master weights where the weights themselves are narrower.
    let wide = config.dtype.wide();
    let kept = config.optimizer.update.state_names().len() + usize::from(config.dtype != wide);
    let state = if config.checkpoint.no_save_optim { 0 } else { (kept * wide.size()) as u64 };
    parameters.saturating_mul(weight + again + state)
}

/// What a signal does: if it is `handled` (`--exit-signal-handler`) the first one saves and stops the run and the second ends it;
/// without, the first ends it and says what is lost.
pub(crate) fn listen(
    handled: bool,
    interrupt: &Interrupt,
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    config: &TrainConfig,
) {
    let saves = config.checkpoint.writes();
    interrupt.first(move |_| {
        if handled {
            stop.store(true, Ordering::Relaxed);
            let what = if saves { "saving and stopping" } else { "stopping" };
            tracing::warn!("{what} after this iteration; a second signal ends the run at once");
            return true;
        }
        let (done, saved) = (counts.done.load(Ordering::Relaxed), counts.saved.load(Ordering::Relaxed));
        if done > saved {
            tracing::warn!(
                "ended: {} iterations since {} are lost; --exit-signal-handler saves them at the first signal",
                done - saved,
                if saved > 0 { format!("the checkpoint of iteration {saved}") } else { "the start".to_owned() }
            );
        }
        false
    });
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_on_a_full_disk_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".probe.part");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        assert_eq!(probe(dir.path()).unwrap_err().to_string(), "No space left on device (os error 28)");
        assert!(path.symlink_metadata().is_err(), "it is there");
        probe(dir.path()).unwrap();
    }
}
