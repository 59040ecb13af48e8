//! The model that a checkpoint holds, from its arguments and a `config.json`.

use std::path::Path;

use ms_spec::{ModelConfig, hf, megatron};
use serde_json::{Map, Value};

use super::file_grid::MODEL;
use super::hf::read_json;
use super::hints::Hints;
use crate::{Error, Result};

/// The model: from Megatron's `args`, made complete by a `config.json` if that describes the same one. It has `mtp`
/// prediction layers, whatever the configuration says: they are in the files or not.
///
/// # Errors
/// Neither arguments nor a configuration; a given configuration of another model.
pub(super) fn describe(
    args: &Map<String, Value>,
    mtp: usize,
    root: &Path,
    folder: &Path,
    hints: &Hints,
) -> Result<(ModelConfig, Option<Value>)> {
    if let Some(model) = &hints.model {
        return Ok((model.clone(), None));
    }
    let beside = [root, folder].map(|dir| dir.join("config.json"));
    let beside = beside.iter().find(|path| path.is_file()).unwrap_or(&beside[0]);
    let json = match &hints.config {
        Some(json) => Some(json.clone()),
        None => beside.is_file().then(|| read_json(beside)).transpose()?,
    };
    let from_json = json.as_ref().map(|j| hf::read_config(j).map_err(Error::spec(beside))).transpose()?;
    if args.is_empty() {
        let config = from_json.ok_or_else(|| {
            Error::folder(
                folder,
                "the files hold no args and there is no config.json beside them\nhint: put the model's config.json into the checkpoint's folder",
            )
        })?;
        return Ok((ModelConfig { mtp, ..config }, json));
    }
    let whole = args.get(MODEL).and_then(Value::as_str);
    let from_args = match whole.and_then(|text| serde_json::from_str::<ModelConfig>(text).ok()) {
        Some(config) => config.validate(),
        None => megatron::from_saved_args(args),
    };
    let config = match (from_json, from_args) {
        (None, from_args) => from_args.map_err(Error::spec(folder))?,
        // The arguments of a training run need not describe every part of a model in a known form.
        (Some(full), Err(_)) => full,
        (Some(full), Ok(args)) => {
            let sizes = |c: &ModelConfig| (c.layers, c.hidden, c.heads, c.groups, c.tied, c.moe.is_some());
            if sizes(&full) == sizes(&args) {
                full
            } else if hints.config.is_some() {
                let (want, got) = (sizes(&full), sizes(&args));
                let what = format!(
                    "the given configuration describes another model than the checkpoint's args: (layers, hidden, heads, key/value heads, tied, experts) {want:?}, the checkpoint has {got:?}"
                );
                return Err(Error::folder(folder, what));
            } else {
                tracing::warn!(
                    "{} describes another model than the checkpoint's args; ignored",
                    beside.display()
                );
                args
            }
        }
    };
    Ok((ModelConfig { mtp, ..config }, json))
}
