//! How a model is distributed over the files of a checkpoint: a grid of ranks and its stages.

use ms_core::{Axis, Grid, GridRules, GridSizes, Region};
use ms_spec::{Feed, ModelConfig, ParamSpec, Part, Placement, Slot, Stages};

use crate::{Error, Result};

/// The argument under which a file of ours keeps the whole configuration, as JSON text.
pub(crate) const MODEL: &str = "ms_model_config";

/// The grid of the ranks that have files of their own, and how its stages share the layers.
///
/// The default is one rank that holds everything.
///
/// ```
/// use ms_ckpt::layout::mcore::FileGrid;
/// use ms_core::GridSizes;
/// use ms_spec::Stages;
///
/// let stages = Stages { pp: 2, ..Stages::default() };
/// let sizes = GridSizes { tp: 2, ep: 4, etp: Some(1), ..GridSizes::default() };
/// assert_eq!(FileGrid::new(&sizes, stages, false)?.grid().world(), 8);
/// # Ok::<(), ms_ckpt::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileGrid {
    grid: Grid,
    stages: Stages,
    extend_ep: bool,
}

/// The numbers by which Megatron names a rank's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RankNumbers {
    /// Stage.
    pub(crate) p: usize,
    /// Tensor-parallel rank.
    pub(crate) t: usize,
    /// Expert-parallel rank.
    pub(crate) e: usize,
}

impl Default for FileGrid {
    fn default() -> Self {
        Self { grid: Grid::single(), stages: Stages::default(), extend_ep: false }
    }
}

impl FileGrid {
    /// The fewest ranks that `sizes.tp`, `sizes.ep`, `sizes.etp` and `stages` need.
    ///
    /// Of ranks that differ only along other axes, one has files, so those sizes are ignored; the number of stages is that of
    /// `stages`. `extend_ep`: if tensor-parallel ranks hold whole experts (`etp` is 1, and `ep` counts all ranks that share
    /// experts), Megatron's names and arguments count them separately from `ep` (`--moe-tp-extend-ep`).
    ///
    /// # Errors
    /// [`Error::Cut`] for sizes that no grid has, and for `extend_ep` with other experts than those.
    pub fn new(sizes: &GridSizes, stages: Stages, extend_ep: bool) -> Result<Self> {
        let (tp, ep, pp) = (sizes.tp, sizes.ep, stages.pp);
        if extend_ep && (sizes.etp.unwrap_or(tp) != 1 || !ep.is_multiple_of(tp)) {
            return Err(Error::Cut(format!(
                "experts that tensor-parallel ranks share out, too: expected whole ones and an expert-parallel size that \
                 tp {tp} divides, found {ep}"
            )));
        }
        let stage = match sizes.etp {
            Some(etp) if etp != tp => tp.saturating_mul(ep / gcd(tp, ep).max(1)),
            _ => tp.saturating_mul(ep),
        };
        let sizes = GridSizes { tp, pp, ep, etp: sizes.etp, ..GridSizes::default() };
        let grid = Grid::new(stage.saturating_mul(pp), &sizes, GridRules::V2);
        let grid = grid.map_err(|e| Error::Cut(e.to_string()))?;
        Ok(Self { grid, stages, extend_ep })
    }

    /// The ranks that have files.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// How stages share the layers.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// Whether names and arguments count the ranks that share experts as `--moe-tp-extend-ep` does.
    pub(crate) fn extend_ep(&self) -> bool {
        self.extend_ep
    }

    /// What each stage holds.
    ///
    /// # Errors
    /// [`Error::Share`] with the numbers if the slots cannot be distributed in this way.
    pub fn placement(&self, config: &ModelConfig) -> Result<Placement> {
        Placement::new(config, &self.stages).map_err(Error::Share)
    }

    /// Layers by slot, over all stages; `None`: an empty slot.
    ///
    /// # Errors
    /// [`Error::Share`] for an empty slot beyond the others.
    pub(crate) fn slots(&self, layers: usize) -> Result<Vec<Option<usize>>> {
        self.stages.slots(layers).map_err(Error::Share)
    }

    /// Ranks along an axis, as the arguments of Megatron count them.
    pub(crate) fn size(&self, axis: Axis) -> usize {
        match axis {
            Axis::Ep if self.extend_ep => self.grid.size(Axis::Ep) / self.grid.size(Axis::Tp),
            _ => self.grid.size(axis),
        }
    }

    /// The numbers in the name of a rank's folder.
    pub(crate) fn numbers(&self, rank: usize) -> RankNumbers {
        let (e, t) = (self.grid.coord(rank, Axis::Ep), self.grid.coord(rank, Axis::Tp));
        let e = if self.extend_ep { e / self.grid.size(Axis::Tp) } else { e };
        RankNumbers { p: self.grid.coord(rank, Axis::Pp), t, e }
    }

    /// Whether every pair of a tensor- and an expert-parallel rank has a file. Of whole experts only some do.
    pub(crate) fn has_all_pairs(&self) -> bool {
        self.grid.world() == self.size(Axis::Tp) * self.size(Axis::Ep) * self.size(Axis::Pp)
    }

    /// All ranks in the order in which files are written: by their numbers where every pair of them has a file.
    pub(crate) fn ranks(&self) -> Vec<usize> {
        let mut ranks: Vec<usize> = (0..self.grid.world()).collect();
        if self.has_all_pairs() {
            ranks.sort_by_key(|&rank| self.numbers(rank));
        }
        ranks
    }

    /// Whether a parameter is one of experts that other ranks do not have: only these are reduced apart.
    pub(crate) fn has_apart(&self, what: &Slot) -> bool {
        self.size(Axis::Ep) > 1 && what.part == Part::Experts
    }

    /// The piece of a parameter that a rank holds.
    ///
    /// # Errors
    /// [`Error::Share`] naming what does not divide.
    pub(crate) fn region(&self, spec: &ParamSpec, rank: usize) -> Result<Region> {
        ms_spec::local(spec, &self.grid, rank).map_err(Error::Share)
    }

    /// Checks that the model can be sharded in this way, and that upstream writes such files: with whole experts, one of the
    /// tensor- and expert-parallel sizes has to divide the other.
    ///
    /// # Errors
    /// [`Error::Share`] naming what does not divide.
    pub(crate) fn check(&self, config: &ModelConfig) -> Result<()> {
        let refused = Error::Share;
        let (tp, ep, etp) =
            (self.grid.size(Axis::Tp), self.grid.size(Axis::Ep), self.grid.expert().size(Axis::Tp));
        ms_spec::check_cut(config, tp).map_err(refused)?;
        if config.has_feed(Feed::Moe) || config.moe.is_some() || ep > 1 {
            ms_spec::check_expert_cut(config, ep, etp).map_err(refused)?;
        }
        if etp == tp || tp.is_multiple_of(ep) || ep.is_multiple_of(tp) {
            Ok(())
        } else {
            Err(Error::Cut(format!(
                "whole experts: tensor-parallel size {tp} and expert-parallel size {ep} do not divide each other"
            )))
        }
    }
}

pub(super) fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole_experts(tp: usize, ep: usize, pp: usize, extend_ep: bool) -> Result<FileGrid> {
        let sizes = GridSizes { tp, ep, etp: Some(1), ..GridSizes::default() };
        FileGrid::new(&sizes, Stages { pp, ..Stages::default() }, extend_ep)
    }

    fn pairs(file_grid: &FileGrid) -> Vec<(usize, usize)> {
        let numbers = file_grid.ranks().into_iter().map(|rank| file_grid.numbers(rank));
        numbers.filter(|n| n.p == 0).map(|n| (n.t, n.e)).collect()
    }

    #[test]
    fn whole_experts_need_no_more_files_than_the_larger_size() {
        let of = |tp, ep| whole_experts(tp, ep, 3, false).unwrap();
        assert_eq!(pairs(&of(2, 4)), [(0, 0), (1, 1), (0, 2), (1, 3)]);
        assert_eq!(pairs(&of(4, 2)), [(0, 0), (1, 1), (2, 0), (3, 1)]);
        assert_eq!((of(2, 4).grid().world(), of(4, 2).grid().world()), (12, 12));
        let json = serde_json::json!({
            "model_type": "mixtral", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8,
            "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 8, "num_local_experts": 6, "num_experts_per_tok": 2
        });
        let model = ms_spec::hf::read_config(&json).unwrap();
        let said = of(2, 3).check(&model).unwrap_err().to_string();
        assert!(said.contains("do not divide each other"), "{said}");
        of(2, 6).check(&model).unwrap();
    }

    #[test]
    fn files_of_cut_experts_are_ordered_by_the_tensor_parallel_rank() {
        let sizes = GridSizes { tp: 2, ep: 2, ..GridSizes::default() };
        let file_grid = FileGrid::new(&sizes, Stages { pp: 2, ..Stages::default() }, false).unwrap();
        assert_eq!(pairs(&file_grid), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(file_grid.ranks(), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(file_grid.grid().expert().size(Axis::Tp), 2);
    }

    #[test]
    fn experts_shared_out_to_all_ranks_are_numbered_apart_from_them() {
        let file_grid = whole_experts(2, 4, 1, true).unwrap();
        assert_eq!(pairs(&file_grid), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!((file_grid.size(Axis::Ep), file_grid.grid().size(Axis::Ep)), (2, 4));
        // The second expert rank of the first tensor-parallel rank holds the third part of the experts.
        let third = file_grid.ranks()[1];
        assert_eq!(file_grid.grid().coord(third, Axis::Ep), 2);
        assert!(file_grid.has_all_pairs() && !whole_experts(2, 4, 1, false).unwrap().has_all_pairs());
    }
}
