//! Layouts: how a folder names and files the tensors of a model.

mod assemble;
mod buckets;
mod cut;
mod described;
mod fsdp2;
pub mod hf;
pub mod mcore;
mod names;
pub(crate) mod optimizer;
pub mod peft;
mod rank_file;
mod ranks;
mod schemes;
mod spelling;
pub mod torch_dist;

use std::path::{Path, PathBuf};

pub(crate) use cut::{Placement, Rank};
pub(crate) use names::is_idle;
pub(crate) use spelling::Local;

use crate::checkpoint::{Checkpoint, Kind};
use crate::{Error, Result, dcp, sharded};

/// A folder whose layout is known.
pub(crate) struct Detected {
    kind: Kind,
    /// The folder of one iteration, for layouts that have several.
    iteration: Option<PathBuf>,
}

/// Checks that there is a folder; one that is named in the way of a model hub is not looked up there, and the error says so.
///
/// # Errors
/// [`Error::Folder`].
pub fn check_folder(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if path.exists() {
        return Err(Error::folder(path, "expected a folder"));
    }
    let name = path.to_string_lossy();
    let word = |text: &str| {
        let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        plain && !text.is_empty() && !text.starts_with('.')
    };
    let of_a_hub = name.split_once('/').is_some_and(|(owner, model)| word(owner) && word(model));
    let hint = match of_a_hub {
        true => format!(
            "\nhint: names of a hub are not looked up: hf download {name} --local-dir DIR, and pass DIR"
        ),
        false => String::new(),
    };
    Err(Error::folder(path, format!("no such folder{hint}")))
}

/// Finds out the layout of a folder.
pub(crate) fn detect(path: &Path) -> Result<Detected> {
    check_folder(path)?;
    if let Some(kind) = kind_of_iteration(path) {
        return Ok(Detected { kind, iteration: Some(path.to_owned()) });
    }
    if path.join(TRACKER).is_file() {
        let folder = path.join(read_tracker(path)?);
        let kind = kind_of_iteration(&folder).ok_or_else(|| {
            Error::folder(
                &folder,
                format!(
                    "{TRACKER} points here, but there is neither a {}, a {} nor an mp_rank_* folder",
                    sharded::MANIFEST,
                    dcp::METADATA
                ),
            )
        })?;
        return Ok(Detected { kind, iteration: Some(folder) });
    }
    if peft::is_adapter(path) {
        return Ok(Detected { kind: Kind::Peft, iteration: None });
    }
    if hf::is_folder(path) {
        return Ok(Detected { kind: Kind::Hf, iteration: None });
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

/// As [`detect`]; a folder of iterations whose tracker is missing is known by the one that is asked for.
pub(crate) fn detect_with(path: &Path, iteration: Option<u64>) -> Result<Detected> {
    if let Some(folder) = iteration.map(|n| path.join(iteration_name(n)))
        && !path.join(TRACKER).is_file()
        && let Some(kind) = kind_of_iteration(&folder)
    {
        return Ok(Detected { kind, iteration: Some(folder) });
    }
    detect(path)
}

impl Detected {
    pub(crate) fn open(
        &self,
        path: &Path,
        iteration: Option<u64>,
        hints: &mcore::Hints,
    ) -> Result<Checkpoint> {
        let wanted = match (iteration, &self.iteration) {
            (Some(n), Some(_)) => path.join(iteration_name(n)),
            (None, Some(folder)) => folder.clone(),
            (_, None) => path.to_owned(),
        };
        if !wanted.is_dir() {
            return Err(Error::folder(&wanted, "no such folder"));
        }
        // Files beside the iterations, such as config.json, belong to the checkpoint.
        let root = if wanted == path { path.parent().unwrap_or(path) } else { path };
        match self.kind {
            Kind::Hf => hf::open(path),
            Kind::Mcore | Kind::Legacy => mcore::open(root, &wanted, hints),
            Kind::Sharded => sharded::open(root, &wanted),
            Kind::TorchDist => torch_dist::open(root, &wanted, hints),
            Kind::Peft => match &hints.model {
                Some(config) => peft::open(path, config),
                None => Err(Error::folder(path, "an adapter: open its base model first")),
            },
        }
    }
}

fn kind_of_iteration(folder: &Path) -> Option<Kind> {
    if folder.join(sharded::MANIFEST).is_file() {
        return Some(Kind::Sharded);
    }
    if dcp::is_folder(folder) {
        return Some(Kind::TorchDist);
    }
    let mut entries = std::fs::read_dir(folder).ok()?;
    let ranks = entries.any(|e| e.is_ok_and(|e| e.file_name().to_string_lossy().starts_with("mp_rank_")));
    ranks.then_some(Kind::Mcore)
}

/// Name of the file that names the last complete iteration.
pub const TRACKER: &str = "latest_checkpointed_iteration.txt";

/// Folder name of an iteration: `iter_0000010`.
pub fn iteration_name(iteration: u64) -> String {
    format!("iter_{iteration:07}")
}

/// The iteration that a folder is named for.
pub(crate) fn iteration_of(folder: &Path) -> Option<u64> {
    folder.file_name()?.to_str()?.strip_prefix("iter_")?.parse().ok()
}

/// The last complete iteration of a checkpoint folder; `None` if it has no tracker file.
///
/// # Errors
/// A tracker that holds neither a positive number nor `release`.
pub fn latest_iteration(path: &Path) -> Result<Option<u64>> {
    if !path.join(TRACKER).is_file() {
        return Ok(None);
    }
    let name = read_tracker(path)?;
    Ok(Some(name.strip_prefix("iter_").and_then(|n| n.parse().ok()).unwrap_or(0)))
}

fn read_tracker(path: &Path) -> Result<String> {
    let tracker = path.join(TRACKER);
    let text = std::fs::read_to_string(&tracker).map_err(Error::io(&tracker, "read"))?;
    let text = text.trim();
    if text == "release" {
        return Ok(text.to_owned());
    }
    match text.parse::<u64>() {
        Ok(n) if n > 0 => Ok(iteration_name(n)),
        _ => {
            let shown: String = text.chars().take(40).collect();
            Err(Error::malformed(&tracker, format!("expected a positive number or `release`, got `{shown}`")))
        }
    }
}

/// Writes the tracker file: from now on `iteration` is the last complete one.
///
/// # Errors
/// What the operating system refuses.
pub(crate) fn write_tracker(path: &Path, iteration: u64) -> Result<()> {
    crate::staging::write_file(&path.join(TRACKER), iteration.to_string().as_bytes())
}
