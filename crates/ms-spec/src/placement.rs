//! Placement: which layers of a model each pipeline stage and chunk holds.

use crate::params::ParamSpec;
use crate::parts::tree::params;
use crate::slot::{Place, Slot};
use crate::{Error, ModelConfig, PlacementOption, Result};
use ms_core::{Chain, StageChunk, nearest_divisors};
use serde::{Deserialize, Serialize};

/// How layers are distributed over pipeline stages, according to flags.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/core/transformer/transformer_block.py`; MindSpeed-LLM v2.0.0, `--num-layer-list`,
/// `--noop-layers`; MindSpeed, `--schedules-method dualpipev`. Other ways of distributing layers are converted to a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stages {
    /// Pipeline stages.
    pub pp: usize,
    /// Slots of a chunk when stages are interleaved (`--num-layers-per-virtual-pipeline-stage`).
    pub layers_per_chunk: Option<usize>,
    /// Slots of each stage when they differ (`--num-layer-list`), or of each chunk of several a stage, in the order in which a
    /// micro-batch passes them.
    pub layer_list: Option<Vec<usize>>,
    /// Slots without a layer: positions at which empty ones are inserted, in this order (`--noop-layers`).
    pub noop: Vec<usize>,
    /// Two chunks per stage, the second in reverse order of stages, so that the first stage has both ends.
    pub dual_pipe: bool,
}

impl Default for Stages {
    fn default() -> Self {
        Self { pp: 1, layers_per_chunk: None, layer_list: None, noop: Vec::new(), dual_pipe: false }
    }
}

/// One piece of a model, in the order of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Item {
    /// Token embedding and what belongs to it.
    Embedding,
    /// A layer, by its number in the model and its slot; they differ after empty slots.
    Layer {
        /// Number of the layer in the model, from 0.
        layer: usize,
        /// Its slot, empty ones counted: Megatron's layer number.
        slot: usize,
    },
    /// A slot without a layer.
    Noop {
        /// The slot.
        slot: usize,
    },
    /// Final norm, output layer and loss.
    Head,
    /// A multi-token prediction module.
    Predictor(usize),
}

/// What every stage holds: stage, chunk, items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    stages: Vec<Vec<Vec<Item>>>,
    dual_pipe: bool,
}

impl Item {
    /// Whether it is what stands at `place`.
    fn is_at(self, place: Place) -> bool {
        match (self, place) {
            (Self::Embedding, Place::Embedding) | (Self::Head, Place::Head) => true,
            (Self::Layer { layer, .. }, Place::Layer(l)) => layer == l,
            (Self::Predictor(k), Place::Mtp(module)) => k == module,
            _ => false,
        }
    }
}

fn refused(option: PlacementOption, what: impl Into<String>) -> Error {
    Error::Placement { option, what: what.into() }
}

impl Stages {
    /// Layers by stage, chunk and slot; `None`: an empty slot.
    ///
    /// # Errors
    /// [`Error::Placement`] with the numbers if the slots cannot be distributed in this way.
    pub fn slots_by_stage(&self, layers: usize) -> Result<Vec<Vec<Vec<Option<usize>>>>> {
        let slots = self.slots(layers)?;
        let (n, pp) = (slots.len(), self.pp);
        let ways = [self.layer_list.is_some(), self.layers_per_chunk.is_some(), self.dual_pipe];
        if ways.iter().filter(|w| **w).count() > 1 {
            let what = "a layer list, interleaved chunks and DualPipeV exclude each other";
            return Err(refused(PlacementOption::LayerList, what));
        }
        if let Some(list) = &self.layer_list {
            let sum = list.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
            if list.is_empty() || pp == 0 || list.len() % pp != 0 || sum != Some(n) {
                let what = format!("layer list {list:?}: expected {pp} numbers with the sum {n}");
                return Err(refused(PlacementOption::LayerList, what));
            }
            let mut rest = slots.into_iter();
            let mut stages = vec![Vec::new(); pp];
            for (i, &k) in list.iter().enumerate() {
                stages[i % pp].push(rest.by_ref().take(k).collect());
            }
            return Ok(stages);
        }
        if pp == 0 || n % pp != 0 {
            return Err(refused(
                PlacementOption::Stages,
                format!("{n} layers are not divisible by pipeline size {pp}; {}", nearest_divisors(n, pp)),
            ));
        }
        if self.dual_pipe {
            if n % (2 * pp) != 0 {
                let parts = 2 * pp;
                let what = format!("{n} layers are not divisible by the {parts} chunks of DualPipeV");
                return Err(refused(PlacementOption::Stages, what));
            }
            let k = n / pp / 2;
            let chunk = |first: usize| slots[first..first + k].to_vec();
            return Ok((0..pp).map(|p| vec![chunk(p * k), chunk(n - (p + 1) * k)]).collect());
        }
        let per_chunk = self.layers_per_chunk.unwrap_or(n / pp);
        if per_chunk == 0
            || (n / pp) % per_chunk != 0
            || (self.layers_per_chunk.is_some() && per_chunk >= n / pp)
        {
            let all = n / pp;
            let what = format!(
                "chunks of {per_chunk} layers: expected at least two equal ones in a stage of {all} layers"
            );
            return Err(refused(PlacementOption::LayersPerChunk, what));
        }
        let chunks = n / pp / per_chunk;
        let chunk = |p: usize, v: usize| slots[(v * pp + p) * per_chunk..][..per_chunk].to_vec();
        Ok((0..pp).map(|p| (0..chunks).map(|v| chunk(p, v)).collect()).collect())
    }

    /// Whether stages hold several chunks and take turns.
    pub fn interleaved(&self) -> bool {
        self.layers_per_chunk.is_some() || self.layer_list.as_ref().is_some_and(|list| list.len() > self.pp)
    }

    /// Layers by slot, over all stages; `None`: an empty slot. Empty slots may be given in any order.
    ///
    /// # Errors
    /// [`Error::Placement`] for an empty slot beyond the others, or named twice.
    pub fn slots(&self, layers: usize) -> Result<Vec<Option<usize>>> {
        let mut slots: Vec<Option<usize>> = (0..layers).map(Some).collect();
        let mut noop = self.noop.clone();
        noop.sort_unstable();
        if let Some(twice) = noop.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(refused(
                PlacementOption::NoopLayers,
                format!("the empty slot {} is named twice", twice[0]),
            ));
        }
        for &at in &noop {
            if at > slots.len() {
                let most = slots.len();
                let what = format!(
                    "expected empty slots up to {most}, behind {layers} layers and the empty slots before, found {at}"
                );
                return Err(refused(PlacementOption::NoopLayers, what));
            }
            slots.insert(at, None);
        }
        Ok(slots)
    }
}

impl Placement {
    /// The placement of `config` on `stages`.
    ///
    /// # Errors
    /// As [`Stages::slots_by_stage`].
    pub fn new(config: &ModelConfig, stages: &Stages) -> Result<Self> {
        let by_slot = stages.slots_by_stage(config.layers)?;
        Ok(Self::of_slots(&by_slot, config.mtp, stages.dual_pipe))
    }

    /// Layers in the slots of each chunk of each stage, `None` for an empty one, with `mtp` prediction modules after the last
    /// layer.
    ///
    /// # Panics
    /// If there is no stage, or the first has no chunk.
    pub fn of_slots(by_slot: &[Vec<Vec<Option<usize>>>], mtp: usize, dual_pipe: bool) -> Self {
        let empty = by_slot.iter().map(|chunks| vec![Vec::new(); chunks.len()]).collect();
        let mut this = Self { stages: empty, dual_pipe };
        let order = this.order();
        let mut next = 0..;
        for &StageChunk { stage, chunk } in order.iter() {
            let item = |(&layer, slot): (&Option<usize>, usize)| match layer {
                Some(layer) => Item::Layer { layer, slot },
                None => Item::Noop { slot },
            };
            this.stages[stage][chunk] = by_slot[stage][chunk].iter().zip(next.by_ref()).map(item).collect();
        }
        let (first, last) = (order[0], order[order.len() - 1]);
        this.stages[first.stage][first.chunk].insert(0, Item::Embedding);
        let end = &mut this.stages[last.stage][last.chunk];
        end.push(Item::Head);
        end.extend((0..mtp).map(Item::Predictor));
        this
    }

    /// The whole model on one stage.
    pub fn whole(config: &ModelConfig) -> Self {
        Self::new(config, &Stages::default()).expect("one stage holds any model")
    }

    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.stages.len()
    }

    /// Chunks of a stage.
    pub fn chunks(&self) -> usize {
        self.stages[0].len()
    }

    /// Items of a stage, chunk by chunk.
    pub fn stage(&self, stage: usize) -> &[Vec<Item>] {
        &self.stages[stage]
    }

    /// The chunks in the order in which a micro-batch passes them.
    pub fn order(&self) -> Chain {
        Chain::new(self.stages(), self.chunks(), self.dual_pipe)
    }

    /// Whether a stage holds what belongs at `place`; a copy of it does not count.
    pub fn holds(&self, stage: usize, place: Place) -> bool {
        self.stages[stage].iter().flatten().any(|item| item.is_at(place))
    }

    /// Slots of the layers of a stage in the order of its chunks, empty ones left out.
    pub fn layer_slots(&self, stage: usize) -> Vec<usize> {
        let slot = |item: &Item| match item {
            Item::Layer { slot, .. } => Some(*slot),
            _ => None,
        };
        self.stages[stage].iter().flatten().filter_map(slot).collect()
    }

    /// The parameters that a stage holds, whole, chunk by chunk and in the model's order inside one.
    ///
    /// A stage with the output layer or a prediction module and without the embedding has a copy of what it needs of
    /// it; a stage holds nothing twice.
    pub fn params(&self, config: &ModelConfig, stage: usize) -> Vec<PlacedParam> {
        let all = params(config);
        let chunks = &self.stages[stage];
        let mut list: Vec<PlacedParam> = Vec::new();
        for (chunk, items) in chunks.iter().enumerate() {
            let ends = items.contains(&Item::Head);
            let predicts = items.iter().any(|i| matches!(i, Item::Predictor(_)));
            for spec in &all {
                let place = spec.slot.place;
                let original = items.iter().any(|item| item.is_at(place));
                let table = spec.slot == Slot::WORDS && config.tied && ends;
                let copy = !original && place == Place::Embedding;
                let here = original || copy && (table || predicts);
                if here && !list.iter().any(|p| copy && p.spec.name == spec.name) {
                    list.push(PlacedParam { spec: spec.clone(), chunk, copy });
                }
            }
        }
        list
    }
}

/// A parameter of a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedParam {
    /// What it is, whole.
    pub spec: ParamSpec,
    /// The chunk it belongs to.
    pub chunk: usize,
    /// Another stage holds the original; gradients of both are summed, and it counts once.
    pub copy: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(layers: usize, mtp: usize, tied: bool) -> ModelConfig {
        ModelConfig {
            layers,
            hidden: 8,
            ffn: 16,
            heads: 2,
            groups: 2,
            head_dim: 4,
            vocab: 16,
            padded_vocab: 16,
            mtp,
            tied,
            ..ModelConfig::default()
        }
    }

    fn passed(placement: &Placement) -> Vec<(usize, usize)> {
        placement.order().iter().map(|at| (at.stage, at.chunk)).collect()
    }

    #[test]
    fn both_ends_are_where_the_order_begins_and_ends() {
        let stages = Stages { pp: 2, layers_per_chunk: Some(1), ..Stages::default() };
        let p = Placement::new(&config(4, 1, false), &stages).unwrap();
        assert_eq!(passed(&p), [(0, 0), (1, 0), (0, 1), (1, 1)]);
        assert_eq!(p.stage(0)[0], [Item::Embedding, Item::Layer { layer: 0, slot: 0 }]);
        assert_eq!(p.stage(1)[1], [Item::Layer { layer: 3, slot: 3 }, Item::Head, Item::Predictor(0)]);
        let dual = Stages { pp: 2, dual_pipe: true, ..Stages::default() };
        let p = Placement::new(&config(4, 0, true), &dual).unwrap();
        assert_eq!(passed(&p), [(0, 0), (1, 0), (1, 1), (0, 1)]);
        assert_eq!(p.stage(0)[1], [Item::Layer { layer: 3, slot: 3 }, Item::Head]);
        // Both ends on one stage: the tied table is held once.
        assert!(p.params(&config(4, 0, true), 0).iter().all(|p| !p.copy));
    }

    #[test]
    fn empty_slots_keep_their_place_and_layers_their_numbers() {
        let stages = Stages { pp: 2, noop: vec![1, 5], ..Stages::default() };
        let p = Placement::new(&config(4, 0, false), &stages).unwrap();
        assert_eq!(p.layer_slots(0), [0, 2]);
        assert_eq!(p.layer_slots(1), [3, 4]);
        assert_eq!(p.stage(0)[0][2], Item::Noop { slot: 1 });
        assert_eq!(p.stage(1)[0][2], Item::Noop { slot: 5 });
    }

    #[test]
    fn chunks_may_hold_different_numbers_of_layers_or_none() {
        // Stage, chunk: [], [1, 2] and [0], [3].
        let stages = Stages { pp: 2, layer_list: Some(vec![0, 1, 2, 1]), ..Stages::default() };
        let p = Placement::new(&config(4, 0, false), &stages).unwrap();
        assert!(stages.interleaved() && p.chunks() == 2);
        assert_eq!(p.stage(0)[0], [Item::Embedding]);
        assert_eq!((p.layer_slots(0), p.layer_slots(1)), (vec![1, 2], vec![0, 3]));
        assert_eq!(p.stage(1)[1], [Item::Layer { layer: 3, slot: 3 }, Item::Head]);
        let odd = Stages { pp: 2, layer_list: Some(vec![1, 1, 2]), ..Stages::default() };
        assert!(Placement::new(&config(4, 0, false), &odd).is_err());
    }

    #[test]
    fn every_parameter_is_on_one_stage_and_copies_say_so() {
        for (tied, mtp) in [(false, 0), (true, 0), (true, 1), (false, 1)] {
            let c = config(4, mtp, tied);
            let p = Placement::new(&c, &Stages { pp: 2, ..Stages::default() }).unwrap();
            let held: Vec<PlacedParam> = (0..2).flat_map(|s| p.params(&c, s)).collect();
            for spec in params(&c) {
                let here: Vec<_> = held.iter().filter(|h| h.spec.name == spec.name).collect();
                assert_eq!(here.iter().filter(|h| !h.copy).count(), 1, "{}", spec.name);
                let copies = usize::from(spec.slot.place == Place::Embedding && (tied || mtp > 0));
                assert_eq!(here.len(), 1 + copies, "{}", spec.name);
            }
        }
    }

    #[test]
    fn impossible_placements_are_refused_with_the_numbers() {
        let message = |s: Stages| Placement::new(&config(4, 0, false), &s).unwrap_err().to_string();
        assert!(
            message(Stages { pp: 3, ..Stages::default() })
                .contains("4 layers are not divisible by pipeline size 3")
        );
        let listed = Stages { pp: 2, layer_list: Some(vec![1, 2]), ..Stages::default() };
        assert!(message(listed).contains("expected 2 numbers with the sum 4"));
        assert!(
            message(Stages { noop: vec![9], ..Stages::default() }).contains("expected empty slots up to 4")
        );
        assert!(message(Stages { pp: 4, dual_pipe: true, ..Stages::default() }).contains("8 chunks"));
    }

    #[test]
    fn the_order_in_which_empty_slots_are_named_does_not_matter() {
        let slots = |noop: &[usize]| Stages { noop: noop.to_vec(), ..Stages::default() }.slots(4);
        let want = [Some(0), None, Some(1), Some(2), None, Some(3)];
        assert_eq!(slots(&[1, 4]).unwrap(), want);
        assert_eq!(slots(&[4, 1]).unwrap(), want);
        assert_eq!(slots(&[5, 0]).unwrap(), [None, Some(0), Some(1), Some(2), Some(3), None]);
        assert!(slots(&[4, 4]).unwrap_err().to_string().contains("the empty slot 4 is named twice"));
        assert!(slots(&[6, 0]).unwrap_err().to_string().contains("found 6"));
    }
}
