//! Opening a checkpoint: detection of a folder's layout.

use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoint, Form};
use crate::iterations::{TRACKER, check_folder, iteration_name, read_tracker};
use crate::layout::hints::Hints;
use crate::layout::{hf, mcore, peft, torch_dist};
use crate::{Error, Result, dcp, sharded};

/// Opens a checkpoint of any layout: a Hugging Face folder, a Megatron checkpoint folder or one `iter_*` of it,
/// or this toolchain's sharded form.
///
/// # Errors
/// If the folder holds none of these, or what it holds is damaged or of a family that is not supported.
pub fn open(path: &Path) -> Result<Checkpoint> {
    open_with(path, None, &Hints::default())
}

/// Opens a checkpoint with hints about what its files may not say; `iteration` instead of the last one.
///
/// # Errors
/// As [`open`].
pub fn open_with(path: &Path, iteration: Option<u64>, hints: &Hints) -> Result<Checkpoint> {
    detect_with(path, iteration)?.open(path, iteration, hints)
}

/// Opens the checkpoint of one iteration instead of the last.
///
/// # Errors
/// As [`open`].
pub fn open_iteration(path: &Path, iteration: u64) -> Result<Checkpoint> {
    open_with(path, Some(iteration), &Hints::default())
}

/// A folder whose layout is known.
pub(crate) struct Detected {
    form: Form,
    /// The folder of one iteration, for layouts that have several.
    iteration: Option<PathBuf>,
}

/// Finds out the layout of a folder.
pub(crate) fn detect(path: &Path) -> Result<Detected> {
    check_folder(path)?;
    if let Some(form) = form_of_iteration(path) {
        return Ok(Detected { form, iteration: Some(path.to_owned()) });
    }
    if path.join(TRACKER).is_file() {
        let folder = path.join(read_tracker(path)?);
        let form = form_of_iteration(&folder).ok_or_else(|| {
            Error::folder(
                &folder,
                format!(
                    "{TRACKER} points here, but there is neither a {}, a {} nor an mp_rank_* folder",
                    sharded::MANIFEST,
                    dcp::METADATA
                ),
            )
        })?;
        return Ok(Detected { form, iteration: Some(folder) });
    }
    if peft::is_adapter(path) {
        return Ok(Detected { form: Form::Peft, iteration: None });
    }
    if hf::is_folder(path) {
        return Ok(Detected { form: Form::Hf, iteration: None });
    }
    let mut names =
        std::fs::read_dir(path).map_err(Error::io(path, "list"))?.flatten().map(|e| e.file_name());
    if names.any(|name| name.to_string_lossy().ends_with(".safetensors")) {
        return Err(Error::folder(
            path,
            "safetensors files without the config.json that says what model they are of",
        ));
    }
    Err(Error::folder(
        path,
        format!(
            "no checkpoint: expected {TRACKER}, a {} or {} file, mp_rank_* folders or safetensors files",
            sharded::MANIFEST,
            dcp::METADATA
        ),
    ))
}

/// As [`detect`]; a requested iteration is opened regardless of the tracker, also if that is missing or damaged.
pub(crate) fn detect_with(path: &Path, iteration: Option<u64>) -> Result<Detected> {
    if let Some(folder) = iteration.map(|n| path.join(iteration_name(n)))
        && let Some(form) = form_of_iteration(&folder)
    {
        return Ok(Detected { form, iteration: Some(folder) });
    }
    detect(path)
}

impl Detected {
    pub(crate) fn open(&self, path: &Path, iteration: Option<u64>, hints: &Hints) -> Result<Checkpoint> {
        let wanted = match (iteration, &self.iteration) {
            (Some(n), Some(_)) => path.join(iteration_name(n)),
            (None, Some(folder)) => folder.clone(),
            (_, None) => path.to_owned(),
        };
        if !wanted.is_dir() {
            return Err(Error::folder(&wanted, "no such folder"));
        }
        // Files next to the iterations, such as config.json, belong to the checkpoint; some folders hold theirs.
        let root = match (wanted == path).then(|| above(path)) {
            Some(above) if above.join("config.json").is_file() || !path.join("config.json").is_file() => {
                above
            }
            _ => path.to_owned(),
        };
        let root = root.as_path();
        match self.form {
            Form::Hf => hf::open(path),
            Form::Mcore | Form::Legacy => mcore::open(root, &wanted, hints),
            Form::Sharded => sharded::open(root, &wanted),
            Form::TorchDist => torch_dist::open(root, &wanted, hints),
            Form::Peft => match &hints.model {
                Some(config) => peft::open(path, config),
                None => Err(Error::folder(
                    path,
                    "an adapter, which is not a model by itself: merge it into its base model with ms-convert --lora-load",
                )),
            },
        }
    }
}

/// The folder that holds another one.
fn above(folder: &Path) -> PathBuf {
    match folder.parent() {
        // `..` and `.` are no names.
        _ if folder.file_name().is_none() => folder.join(".."),
        Some(above) if !above.as_os_str().is_empty() => above.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn form_of_iteration(folder: &Path) -> Option<Form> {
    if folder.join(sharded::MANIFEST).is_file() {
        return Some(Form::Sharded);
    }
    if dcp::is_folder(folder) {
        return Some(Form::TorchDist);
    }
    let mut entries = std::fs::read_dir(folder).ok()?;
    let ranks = entries.any(|e| e.is_ok_and(|e| e.file_name().to_string_lossy().starts_with("mp_rank_")));
    ranks.then_some(Form::Mcore)
}
