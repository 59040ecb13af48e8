//! Where checkpoints come from and go to, and in which forms.

use ms_ckpt::layout::mcore::Spelling;
use std::path::PathBuf;

/// Where checkpoints come from and go to.
#[derive(Clone, Debug, Default)]
pub struct Checkpointing {
    /// Folder to start from, with `latest_checkpointed_iteration.txt`, or a Hugging Face folder.
    pub load: Option<PathBuf>,
    /// Iteration to load instead of the last.
    pub load_step: Option<u64>,
    /// Weights only: iteration 0, fresh optimizer.
    pub finetune: bool,
    /// The folder has a dense model, whose MLPs are copied to experts; the resulting model is saved before the first
    /// iteration.
    pub upcycling: bool,
    /// No optimizer state is read.
    pub no_load_optim: bool,
    /// A missing checkpoint is an error instead of a fresh start.
    pub exit_on_missing: bool,
    /// Folder to write to.
    pub save: Option<PathBuf>,
    /// Iterations between checkpoints; 0: only at the end.
    pub save_interval: u64,
    /// Checkpoints are copied and written while training goes on.
    pub async_save: bool,
    /// Checkpoints that stay in the folder; older ones go once a newer one is complete. `None`: all stay.
    pub keep_last: Option<u64>,
    /// Checkpoints between those, for a run that is broken off.
    pub non_persistent: Option<NonPersistent>,
    /// Weights only.
    pub no_save_optim: bool,
    /// In which of Megatron's forms weights are written a second time.
    pub megatron_files: MegatronFiles,
    /// What those call their tensors.
    pub spelling: Spelling,
    /// The flags' schedule wins over the checkpoint's.
    pub override_schedule: bool,
    /// The checkpoint's schedule wins over the flags'.
    pub use_checkpoint_schedule: bool,
}

impl Checkpointing {
    /// Whether any checkpoint is written.
    pub fn writes(&self) -> bool {
        self.save.is_some() || self.non_persistent.is_some()
    }
}

/// Checkpoints of which only the newest is kept (Megatron's non-persistent ones). Only this program reads them: they have no
/// files for Megatron.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonPersistent {
    /// Their folder.
    pub dir: PathBuf,
    /// Iterations between them; where one is due for [`Checkpointing::save`], too, that one is written alone.
    pub interval: u64,
}

/// Files for Megatron, in the folder of a checkpoint of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MegatronFiles {
    /// None.
    #[default]
    Absent,
    /// A folder and a `.pt` file for each rank (`--ckpt-format torch`).
    Ranks,
    /// Chunks of global tensors (`--ckpt-format torch_dist`).
    Distributed,
}
