//! Which tensors a Megatron rank holds, and in which file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ms_core::Axis;
use ms_spec::{Item, ModelConfig, ParamSpec, Place, Placement, params};

use super::file_grid::FileGrid;
use super::registered;
use super::spelling::{Local, Speller, Spelling};
use crate::Result;
use crate::iterations::iteration_name;

/// Name of the file in each rank's folder.
pub const FILE: &str = "model_optim_rng.pt";

/// Folder of a rank, relative to the iteration's.
pub(crate) fn rank_folder(rank: usize, file_grid: &FileGrid) -> String {
    let numbers = file_grid.numbers(rank);
    let mut name = format!("mp_rank_{:02}", numbers.t);
    if file_grid.size(Axis::Pp) > 1 {
        name += &format!("_{:03}", numbers.p);
    }
    if file_grid.size(Axis::Ep) > 1 {
        name += &format!("_{:03}", numbers.e);
    }
    name
}

/// The tensors of a rank, in the order in which upstream's modules register them.
pub(crate) fn rank_tensors(
    config: &ModelConfig,
    file_grid: &FileGrid,
    placement: &Placement,
    spelling: Spelling,
    rank: usize,
) -> Result<Vec<Local>> {
    let specs = params(config);
    let speller = Speller::new(config, file_grid, spelling)?;
    let mut by_place: BTreeMap<Place, Vec<&ParamSpec>> = BTreeMap::new();
    for spec in &specs {
        by_place.entry(spec.slot.place).or_default().push(spec);
    }
    let mut out = Vec::new();
    for (chunk, items) in placement.stage(file_grid.grid().coord(rank, Axis::Pp)).iter().enumerate() {
        // Megatron numbers layers from the first of a chunk, empty slots counted.
        let mut slots = 0..;
        for item in items {
            let slot =
                if matches!(item, Item::Layer { .. } | Item::Noop { .. }) { slots.next() } else { None };
            let place = match *item {
                Item::Embedding => Place::Embedding,
                Item::Layer { layer, .. } => Place::Layer(layer),
                Item::Noop { .. } => continue,
                Item::Head => Place::Head,
                Item::Predictor(k) => Place::Mtp(k),
            };
            for spec in by_place.get(&place).into_iter().flatten() {
                out.extend(speller.locals(spec, rank, chunk, slot.unwrap_or(0))?);
            }
        }
        if items.contains(&Item::Head) {
            out.extend(speller.copies(&specs, rank, chunk)?);
        }
    }
    registered::sort(&mut out, spelling.version, config.projects_once());
    Ok(out)
}

/// Where the rank files of an iteration go, relative to the output folder.
pub(crate) fn rank_path(iteration: u64, rank: usize, file_grid: &FileGrid) -> PathBuf {
    Path::new(&iteration_name(iteration)).join(rank_folder(rank, file_grid)).join(FILE)
}
