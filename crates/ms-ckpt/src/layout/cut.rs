//! How a Megatron checkpoint is cut: which layers, rows and experts a rank has.

use ms_core::Axis;
use ms_spec::{Feed, ModelConfig, Stages};

use crate::{Error, Result};

/// How a model is cut into files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Tensor-parallel size.
    pub tp: usize,
    /// Pipeline-parallel size.
    pub pp: usize,
    /// Expert-parallel size.
    pub ep: usize,
    /// What tensor-parallel ranks do with an expert.
    pub expert_tp: ExpertTp,
    /// Layers of a chunk when stages are interleaved.
    pub layers_per_chunk: Option<usize>,
    /// Slots of each stage when they differ.
    pub layer_list: Option<Vec<usize>>,
    /// Slots without a layer: positions at which empty ones are inserted, in this order.
    pub noop: Vec<usize>,
    /// Two chunks per stage, the second in reverse order of stages, so that the first stage has both ends.
    pub dual_pipe: bool,
}

/// What the tensor-parallel ranks do with experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ExpertTp {
    /// Each expert is cut like a dense network.
    #[default]
    Cut,
    /// Experts are whole on every tensor-parallel rank.
    Whole,
    /// Experts are whole and shared out over the tensor-parallel ranks too (`--moe-tp-extend-ep`).
    Extend,
}

/// A rank's place among the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) t: usize,
    pub(crate) p: usize,
    pub(crate) e: usize,
}

/// The argument under which a file of ours keeps the whole configuration, as JSON text.
pub(crate) const MODEL: &str = "ms_model_config";

/// Layers by stage, chunk and slot; `None`: an empty slot.
pub(crate) type Placement = Vec<Vec<Vec<Option<usize>>>>;

impl Default for Cut {
    fn default() -> Self {
        Self {
            tp: 1,
            pp: 1,
            ep: 1,
            expert_tp: ExpertTp::Cut,
            layers_per_chunk: None,
            layer_list: None,
            noop: Vec::new(),
            dual_pipe: false,
        }
    }
}

impl Cut {
    /// Layers by stage, chunk and slot; `None`: an empty slot.
    ///
    /// # Errors
    /// [`Error::Cut`] with the numbers if the slots cannot be shared out so.
    pub fn placement(&self, layers: usize) -> Result<Vec<Vec<Vec<Option<usize>>>>> {
        self.stages().slots_by_stage(layers).map_err(|e| Error::Cut(e.to_string()))
    }

    /// Layers by slot, over all stages; `None`: an empty slot.
    ///
    /// # Errors
    /// [`Error::Cut`] for an empty slot beyond the others.
    pub(crate) fn slots(&self, layers: usize) -> Result<Vec<Option<usize>>> {
        self.stages().slots(layers).map_err(|e| Error::Cut(e.to_string()))
    }

    /// How layers are shared out to stages.
    pub(crate) fn stages(&self) -> Stages {
        Stages {
            pp: self.pp,
            layers_per_chunk: self.layers_per_chunk,
            layer_list: self.layer_list.clone(),
            noop: self.noop.clone(),
            dual_pipe: self.dual_pipe,
        }
    }

    /// The ranks that have files of their own.
    ///
    /// Where every tensor-parallel rank has whole experts, upstream writes only as many files as the larger of the two
    /// sizes needs.
    ///
    /// # Errors
    /// [`Error::Cut`] if neither size divides the other then.
    pub(crate) fn ranks(&self) -> Result<Vec<Rank>> {
        let (tp, ep) = (self.tp, self.ep);
        let pairs: Vec<(usize, usize)> = match self.expert_tp {
            ExpertTp::Whole if tp.is_multiple_of(ep) => (0..tp).map(|t| (t, t % ep)).collect(),
            ExpertTp::Whole if ep.is_multiple_of(tp) => (0..ep).map(|e| (e % tp, e)).collect(),
            ExpertTp::Whole => {
                return Err(Error::Cut(format!(
                    "whole experts: tensor-parallel size {tp} and expert-parallel size {ep} do not divide each other"
                )));
            }
            _ => (0..tp).flat_map(|t| (0..ep).map(move |e| (t, e))).collect(),
        };
        Ok((0..self.pp).flat_map(|p| pairs.iter().map(move |&(t, e)| Rank { t, p, e })).collect())
    }

    /// The number of files that [`Cut::ranks`] lists, without listing them.
    pub(crate) fn files(&self) -> usize {
        let pairs = match self.expert_tp {
            ExpertTp::Whole => self.tp.max(self.ep),
            _ => self.tp.saturating_mul(self.ep),
        };
        pairs.saturating_mul(self.pp)
    }

    /// Checks that the model can be cut so.
    ///
    /// # Errors
    /// [`Error::Cut`] naming what does not divide.
    pub(crate) fn check(&self, config: &ModelConfig) -> Result<()> {
        let refused = |e: ms_spec::Error| Error::Cut(e.to_string());
        ms_spec::check_cut(config, self.tp).map_err(refused)?;
        let (ep, etp) = match self.expert_tp {
            ExpertTp::Cut => (self.ep, self.tp),
            ExpertTp::Whole => (self.ep, 1),
            ExpertTp::Extend => (self.ep * self.tp, 1),
        };
        match config.has_feed(Feed::Moe) || config.moe.is_some() || ep > 1 {
            true => ms_spec::check_expert_cut(config, ep, etp).map_err(refused),
            false => Ok(()),
        }
    }

    /// A rank's coordinate and the size along an axis, for a dense parameter or one of the experts.
    pub(crate) fn position(&self, rank: Rank, experts: bool) -> impl Fn(Axis) -> (usize, usize) {
        let (tp, ep) = ((rank.t, self.tp), (rank.e, self.ep));
        let (tp, ep) = match (experts, self.expert_tp) {
            (false, _) | (true, ExpertTp::Cut) => (tp, ep),
            (true, ExpertTp::Whole) => ((0, 1), ep),
            (true, ExpertTp::Extend) => ((0, 1), (ep.0 * tp.1 + tp.0, ep.1 * tp.1)),
        };
        move |axis| match axis {
            Axis::Tp => tp,
            Axis::Ep => ep,
            _ => (0, 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real(stage: &[Vec<Option<usize>>]) -> Vec<Vec<Option<usize>>> {
        stage.to_vec()
    }

    #[test]
    fn stages_are_even_listed_or_interleaved() {
        let even = Cut { pp: 2, ..Cut::default() }.placement(4).unwrap();
        assert_eq!(even, [[[Some(0), Some(1)]], [[Some(2), Some(3)]]]);
        let listed = Cut { pp: 2, layer_list: Some(vec![1, 3]), ..Cut::default() }.placement(4).unwrap();
        assert_eq!(real(&listed[1]), [[Some(1), Some(2), Some(3)]]);
        let interleaved = Cut { pp: 2, layers_per_chunk: Some(1), ..Cut::default() }.placement(4).unwrap();
        assert_eq!(interleaved, [[[Some(0)], [Some(2)]], [[Some(1)], [Some(3)]]]);
        let dual = Cut { pp: 2, dual_pipe: true, ..Cut::default() }.placement(4).unwrap();
        assert_eq!(dual, [[[Some(0)], [Some(3)]], [[Some(1)], [Some(2)]]]);
    }

    #[test]
    fn empty_slots_keep_their_place() {
        let cut = Cut { pp: 2, noop: vec![1, 5], ..Cut::default() };
        assert_eq!(cut.placement(4).unwrap(), [[[Some(0), None, Some(1)]], [[Some(2), Some(3), None]]]);
    }

    #[test]
    fn whole_experts_need_no_more_files_than_the_larger_size() {
        let pairs = |tp, ep| {
            let cut = Cut { tp, ep, expert_tp: ExpertTp::Whole, ..Cut::default() };
            cut.ranks().map(|r| r.into_iter().map(|r| (r.t, r.e)).collect::<Vec<_>>())
        };
        assert_eq!(pairs(2, 4).unwrap(), [(0, 0), (1, 1), (0, 2), (1, 3)]);
        assert_eq!(pairs(4, 2).unwrap(), [(0, 0), (1, 1), (2, 0), (3, 1)]);
        for expert_tp in [ExpertTp::Cut, ExpertTp::Whole, ExpertTp::Extend] {
            let cut = Cut { tp: 2, pp: 3, ep: 4, expert_tp, ..Cut::default() };
            assert_eq!(cut.files(), cut.ranks().unwrap().len());
        }
        assert!(pairs(2, 3).unwrap_err().to_string().contains("do not divide each other"));
    }

    #[test]
    fn impossible_cuts_are_refused_with_the_numbers() {
        let message = |cut: Cut| cut.placement(4).unwrap_err().to_string();
        assert_eq!(message(Cut { pp: 3, ..Cut::default() }), "4 layers do not divide by pipeline size 3");
        assert_eq!(
            message(Cut { pp: 2, layer_list: Some(vec![1, 2]), ..Cut::default() }),
            "layer list [1, 2]: expected 2 numbers with the sum 4"
        );
        assert!(
            message(Cut { pp: 2, layers_per_chunk: Some(2), ..Cut::default() })
                .contains("at least two equal ones")
        );
        assert!(message(Cut { noop: vec![9], ..Cut::default() }).contains("beyond"));
        assert!(message(Cut { pp: 4, dual_pipe: true, ..Cut::default() }).contains("8 chunks"));
    }
}
