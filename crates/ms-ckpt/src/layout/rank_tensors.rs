//! Which tensors a rank of Megatron's has, and in which file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ms_spec::{ModelConfig, ParamSpec, Place, params};

use super::cut::{Cut, Placement, Rank};
use super::spelling::{Local, Speller, Spelling};
use crate::Result;
use crate::iterations::iteration_name;

/// Name of the file in each rank's folder.
pub const FILE: &str = "model_optim_rng.pt";

/// Folder of a rank, relative to the iteration's.
pub(crate) fn rank_folder(rank: Rank, cut: &Cut) -> String {
    let mut name = format!("mp_rank_{:02}", rank.t);
    if cut.pp > 1 {
        name += &format!("_{:03}", rank.p);
    }
    if cut.ep > 1 {
        name += &format!("_{:03}", rank.e);
    }
    name
}

/// The tensors of a rank, in Megatron's order.
pub(crate) fn rank_tensors(
    config: &ModelConfig,
    cut: &Cut,
    placement: &Placement,
    spelling: Spelling,
    rank: Rank,
) -> Result<Vec<Local>> {
    let specs = params(config);
    let speller = Speller::new(config, cut, spelling)?;
    let chunks = &placement[rank.p];
    // The end of the model: the last chunk of the last stage, of the first if the second chunks go backwards.
    let end = (if cut.dual_pipe { 0 } else { cut.pp - 1 }, chunks.len() - 1);
    let mut by_layer: BTreeMap<Place, Vec<&ParamSpec>> = BTreeMap::new();
    for spec in &specs {
        by_layer.entry(spec.slot.place).or_default().push(spec);
    }
    let mut out = Vec::new();
    for (c, slots) in chunks.iter().enumerate() {
        let mut push = |place: Place, slot: usize| -> Result<()> {
            for spec in by_layer.get(&place).into_iter().flatten() {
                out.extend(speller.locals(spec, rank, c, slot)?);
            }
            Ok(())
        };
        if rank.p == 0 && c == 0 {
            push(Place::Embedding, 0)?;
        }
        for (slot, layer) in slots.iter().enumerate() {
            if let Some(layer) = layer {
                push(Place::Layer(*layer), slot)?;
            }
        }
        if (rank.p, c) == end {
            push(Place::Head, 0)?;
            (0..config.mtp).try_for_each(|k| push(Place::Mtp(k), 0))?;
            out.extend(speller.copies(&specs, rank, c)?);
        }
    }
    Ok(out)
}

/// Where the rank files of an iteration go, relative to the output folder.
pub(crate) fn rank_path(iteration: u64, rank: Rank, cut: &Cut) -> PathBuf {
    Path::new(&iteration_name(iteration)).join(rank_folder(rank, cut)).join(FILE)
}
