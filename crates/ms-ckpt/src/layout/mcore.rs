//! Megatron checkpoints in the `torch` format: `iter_*/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt`.

use std::path::Path;

use ms_spec::{Part, Place, Role, Slot};
use serde_json::Value;

use super::assemble::Assembled;
use super::described::describe;
use super::ranks::Opened;
use crate::checkpoint::{Checkpoint, Form};
use crate::iterations::iteration_of;
use crate::{Error, Result};

pub use super::file_grid::FileGrid;
pub use super::hints::Hints;
pub use super::rank_tensors::FILE;
pub use super::spelling::{Experts, FourBit, Spelling, Version};

/// Opens the files of an iteration.
pub(crate) fn open(root: &Path, folder: &Path, hints: &Hints) -> Result<Checkpoint> {
    let mut opened = Opened::read(folder)?;
    opened.number()?;
    let (mut config, config_json) = describe(&opened.args, opened.mtp(), root, folder, hints)?;
    let (place, part, role) = (Place::Head, Part::Reward, Role::Own);
    let reward = Slot { place, part, half: None, role, bias: false }.name();
    config.reward = opened.ranks.iter().any(|r| r.has(std::slice::from_ref(&reward)));
    let file_grid = opened.file_grid(folder, &config, hints)?;
    let spelling = opened.spelling(&config, &file_grid);
    opened.rows(&mut config, &file_grid);
    let config = config.validate().map_err(Error::spec(folder))?;
    let placement = opened.placement(folder, &config, &file_grid)?;
    let Assembled { globals, adapters, copies, states, torn, .. } =
        opened.assemble(folder, &config, &file_grid, &placement, spelling)?;
    opened.stored.extend(states);
    let iteration = opened.args.get("iteration").and_then(Value::as_u64);
    Ok(Checkpoint {
        config_json,
        files: opened.files,
        stored: opened.stored,
        globals,
        iteration: iteration_of(folder).or(iteration).unwrap_or(0),
        args: opened.args,
        state: opened.state,
        adapters,
        copies,
        torn,
        ..Checkpoint::empty(root, if spelling.legacy { Form::Legacy } else { Form::Mcore }, config)
    })
}
