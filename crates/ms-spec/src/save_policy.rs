//! What a forward pass saves for backward: which layers are recomputed, and what the others recompute or swap.

use crate::sizes::Feed;
use crate::swapped::Swapped;

/// Which layers save only their input and are recomputed in the backward pass (full recomputation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// None: everything a backward pass needs is saved.
    #[default]
    None,
    /// The first `n` layers, each by itself (`--recompute-method block`).
    Block(usize),
    /// As [`Recompute::Block`], `n` layers of a stage instead of each of its chunks: the first ones, taking the chunks in
    /// turn (`--enable-recompute-layers-per-pp-rank`).
    BlockOfStage(usize),
    /// All layers, in groups of `n` that save only their input (`--recompute-method uniform`).
    Uniform(usize),
}

impl Recompute {
    /// What it means for chunk `chunk` of the `chunks` of a stage.
    ///
    /// # Source
    /// MindSpeed v2, `mindspeed/core/memory/recompute/recompute_common.py`: layer `l` of chunk `c` is recomputed if
    /// `l·v + c < n`.
    pub fn of_chunk(self, chunk: usize, chunks: usize) -> Self {
        match self {
            Self::BlockOfStage(n) => Self::Block(n.saturating_sub(chunk).div_ceil(chunks.max(1))),
            other => other,
        }
    }

    /// How many of the first `layers` layers of a chunk are recomputed, after [`Recompute::of_chunk`].
    pub fn layers(self, layers: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Block(n) | Self::BlockOfStage(n) => n.min(layers),
            Self::Uniform(_) => layers,
        }
    }
}

/// Which activations are not saved in layers that are not recomputed as a whole: they are recomputed or swapped.
///
/// # Source
/// MindSpeed v2, `mindspeed/core/memory/recompute/recompute_common.py`, `should_recompute`; of `--swap-attention`,
/// `docs/features/swap_attention.md`; of `--recompute-modules`, Megatron-LM `core_v0.12.1`,
/// `megatron/core/transformer/transformer_config.py`; of `--moe-zero-memory`, MindSpeed `2.0.0_core_r0.8.0`,
/// `mindspeed/core/transformer/moe/moe_layer_overlap_all2all.py` and its neighbours; of latent attention, MindSpeed-LLM
/// (2026), `mindspeed_llm/tasks/models/transformer/multi_latent_attention.py`; of prediction modules, MindSpeed-LLM v2.0.0,
/// `mindspeed_llm/tasks/models/transformer/multi_token_predication.py`; of inputs, Megatron-LM `core_v0.12.1`,
/// `megatron/core/tensor_parallel/random.py`, and MindSpeed (2026), `mindspeed/core/memory/swap_layer_input`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavePolicy {
    /// Attention between projections is recomputed (`--recompute-granularity selective`).
    pub recompute_core_attention: bool,
    /// Outputs of activation functions are recomputed, in this many of the first layers that are not recomputed as a whole
    /// (`--recompute-activation-function`).
    pub recompute_activations: usize,
    /// So are the outputs of the norms before mixer and MLP (`--recompute-norm`).
    pub recompute_norms: usize,
    /// Outputs of the activation functions of routed experts are recomputed in all layers (`--recompute-modules moe_act`).
    pub recompute_expert_activations: bool,
    /// Dense MLPs are recomputed (`--recompute-modules mlp`).
    pub recompute_dense_networks: bool,
    /// Experts are recomputed, with their router and the shared experts (`--recompute-modules moe`).
    pub recompute_expert_networks: bool,
    /// What latent attention computes from its latents, up to rotated queries, keys and values, is recomputed
    /// (`--recompute-modules mla_up_proj`, `--recompute-mla-up-proj`).
    pub recompute_operands: bool,
    /// Latent attention is recomputed, except for its output projection (`--mla-zero-memory`).
    pub recompute_attention: bool,
    /// The outputs of the heads of latent attention are swapped to the host (`--mla-swap-core-attn-out`).
    pub swap_heads: bool,
    /// The inputs of fully recomputed layers are sharded over tensor-parallel ranks (`--distribute-saved-activations`).
    pub inputs_shared: bool,
    /// Those inputs are swapped to the host (`--swap-layer-input`).
    pub swap_inputs: bool,
    /// The layers of prediction modules are recomputed (`--recompute-mtp-layer`).
    pub recompute_predictor_layers: bool,
    /// The outputs of the norms before them are recomputed (`--recompute-mtp-norm`).
    pub recompute_predictor_norms: bool,
    /// What these parts save is swapped to the host (`--swap-attention`, `--swap-modules`).
    pub swapped: Swapped,
    /// The MLPs of this many of the first layers are recomputed (`--recompute-num-layers` with `--swap-attention`).
    pub recompute_networks: usize,
    /// Layers of experts recompute the inputs of experts and the outputs of their activation functions, and swap the outputs
    /// of experts to the host (`--moe-zero-memory level0`).
    pub recompute_experts: bool,
    /// Among those, this many per stage also recompute the inputs of activation functions, including those of shared experts
    /// (`level1`).
    pub recompute_expert_inner: usize,
    /// The outputs of experts are swapped to the host, also without that (`--moe-unperm2-mem-optim-swap`).
    pub swap_expert_outputs: bool,
    /// Layers are counted over the chunks of a stage, taken in turn (`--enable-recompute-layers-per-pp-rank`).
    pub of_stage: bool,
    /// The last layer of the last chunk is not recomputed: its backward follows at once (`--recompute-in-advance`).
    pub spare_last: bool,
}

/// Which activations one layer does not save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerSavePolicy {
    /// Attention between projections is recomputed.
    pub recompute_core_attention: bool,
    /// The outputs of activation functions are recomputed, except for those of routed experts.
    pub recompute_activations: bool,
    /// The outputs of the activation functions of routed experts are recomputed.
    pub recompute_expert_activations: bool,
    /// The outputs of the norms before mixer and MLP are recomputed.
    pub recompute_norms: bool,
    /// A dense MLP is recomputed.
    pub recompute_dense_networks: bool,
    /// Experts are recomputed.
    pub recompute_expert_networks: bool,
    /// What latent attention computes from its latents is recomputed.
    pub recompute_operands: bool,
    /// Latent attention is recomputed, except for its output projection.
    pub recompute_attention: bool,
    /// The outputs of the heads of latent attention are swapped to the host.
    pub swap_heads: bool,
    /// What these parts save is swapped to the host.
    pub swapped: Swapped,
    /// The inputs of experts are recomputed.
    pub recompute_experts: bool,
    /// The outputs of experts are swapped to the host.
    pub swap_expert_outputs: bool,
    /// The outputs of the first linear layers of experts are recomputed.
    pub recompute_expert_inner: bool,
    /// So are those of this MLP.
    pub recompute_inner: bool,
}

impl LayerSavePolicy {
    /// Which activations the experts of the layer do not save, shared experts included.
    #[must_use]
    pub fn of_experts(self) -> Self {
        Self {
            recompute_activations: self.recompute_activations || self.recompute_experts,
            recompute_inner: self.recompute_expert_inner,
            ..self
        }
    }

    /// Which activations the routed experts do not save.
    #[must_use]
    pub fn of_routed_experts(self) -> Self {
        let of_all = self.of_experts();
        Self {
            recompute_activations: of_all.recompute_activations || self.recompute_expert_activations,
            ..of_all
        }
    }

    /// Whether a feed-forward layer of this kind is recomputed.
    pub fn recomputes_network(&self, feed: Feed) -> bool {
        match feed {
            Feed::Dense => self.recompute_dense_networks,
            Feed::Moe => self.recompute_expert_networks,
            Feed::None => false,
        }
    }
}

impl SavePolicy {
    /// Which activations layer `layer` of chunk `chunk` of the `chunks` of a stage does not save; `full` says which layers
    /// are recomputed as a whole.
    pub fn of_layer(
        &self,
        full: Recompute,
        layer: usize,
        (chunk, chunks): (usize, usize),
    ) -> LayerSavePolicy {
        let place = if self.of_stage { layer * chunks + chunk } else { layer };
        let whole = match full {
            Recompute::None => 0,
            Recompute::Block(n) | Recompute::BlockOfStage(n) | Recompute::Uniform(n) => n,
        };
        let among = |n: usize| n > 0 && place < whole.saturating_add(n);
        let recompute_activations = among(self.recompute_activations);
        // An MLP that is swapped is not recomputed, as upstream.
        let recomputes_network = place < self.recompute_networks && !self.swapped.has(Swapped::NETWORK);
        LayerSavePolicy {
            recompute_activations,
            recompute_expert_activations: recompute_activations || self.recompute_expert_activations,
            recompute_norms: among(self.recompute_norms),
            recompute_dense_networks: recomputes_network || self.recompute_dense_networks,
            recompute_expert_networks: recomputes_network || self.recompute_expert_networks,
            swapped: self.swapped,
            // Whatever the others count, these are counted over the chunks of a stage.
            recompute_expert_inner: self.recompute_experts
                && layer * chunks + chunk < self.recompute_expert_inner,
            ..self.of_all()
        }
    }

    /// Which activations the layer of a prediction module does not save. It is not counted among the other layers and never
    /// swapped.
    pub fn of_predictor(&self) -> LayerSavePolicy {
        let all = |n: usize| n == usize::MAX;
        let recompute_activations = all(self.recompute_activations);
        LayerSavePolicy {
            recompute_activations,
            recompute_expert_activations: recompute_activations || self.recompute_expert_activations,
            recompute_norms: all(self.recompute_norms),
            recompute_expert_inner: self.recompute_experts && all(self.recompute_expert_inner),
            ..self.of_all()
        }
    }

    /// Whether anything is swapped to the host.
    pub fn sends(&self) -> bool {
        let of_experts = self.recompute_experts || self.swap_expert_outputs;
        self.swapped != Swapped::NONE || self.swap_heads || self.swap_inputs || of_experts
    }

    /// What is not counted.
    fn of_all(&self) -> LayerSavePolicy {
        LayerSavePolicy {
            recompute_core_attention: self.recompute_core_attention,
            recompute_dense_networks: self.recompute_dense_networks,
            recompute_expert_networks: self.recompute_expert_networks,
            recompute_operands: self.recompute_operands,
            recompute_attention: self.recompute_attention,
            swap_heads: self.swap_heads,
            recompute_experts: self.recompute_experts,
            swap_expert_outputs: self.recompute_experts || self.swap_expert_outputs,
            ..LayerSavePolicy::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_counted_behind_those_that_run_again_as_a_whole() {
        let save_policy =
            SavePolicy { recompute_activations: 2, recompute_norms: usize::MAX, ..SavePolicy::default() };
        let of = |layer| save_policy.of_layer(Recompute::Block(1), layer, (0, 1));
        let some: Vec<bool> = (0..5).map(|l| of(l).recompute_activations).collect();
        // The first one is recomputed regardless of this setting.
        assert_eq!(some, [true, true, true, false, false]);
        assert!(of(4).recompute_norms && !of(0).recomputes_network(Feed::Dense));
        // Two chunks of two layers in turn: the places are 0 and 2, 1 and 3.
        let save_policy = SavePolicy { recompute_activations: 3, of_stage: true, ..SavePolicy::default() };
        let of =
            |layer, chunk| save_policy.of_layer(Recompute::None, layer, (chunk, 2)).recompute_activations;
        assert_eq!([of(0, 0), of(0, 1), of(1, 0), of(1, 1)], [true, true, true, false]);
        assert!(!SavePolicy::default().of_layer(Recompute::Block(3), 3, (0, 1)).recompute_activations);
    }

    #[test]
    fn layers_of_prediction_modules_keep_less_of_what_is_not_counted() {
        let (some, none) =
            (SavePolicy { recompute_norms: 2, ..SavePolicy::default() }, LayerSavePolicy::default());
        assert_eq!(some.of_predictor(), none);
        let all = SavePolicy {
            recompute_norms: usize::MAX,
            recompute_operands: true,
            swapped: Swapped::ATTENTION,
            ..some
        };
        assert_eq!(
            all.of_predictor(),
            LayerSavePolicy { recompute_norms: true, recompute_operands: true, ..none }
        );
    }

    #[test]
    fn networks_run_again_by_their_kind_or_by_their_place() {
        let kinds = |save_policy: SavePolicy, layer| {
            let layer = save_policy.of_layer(Recompute::None, layer, (0, 1));
            [Feed::Dense, Feed::Moe, Feed::None].map(|feed| layer.recomputes_network(feed))
        };
        assert_eq!(
            kinds(SavePolicy { recompute_dense_networks: true, ..SavePolicy::default() }, 5),
            [true, false, false]
        );
        assert_eq!(
            kinds(SavePolicy { recompute_expert_networks: true, ..SavePolicy::default() }, 5),
            [false, true, false]
        );
        let first = SavePolicy { recompute_networks: 1, ..SavePolicy::default() };
        assert_eq!([kinds(first, 0), kinds(first, 1)], [[true, true, false], [false; 3]]);
        assert_eq!(kinds(SavePolicy { swapped: Swapped::NETWORK, ..first }, 0), [false; 3]);
        let experts = SavePolicy { recompute_expert_activations: true, ..SavePolicy::default() };
        let layer = experts.of_layer(Recompute::None, 0, (0, 1));
        assert!(layer.recompute_expert_activations && !layer.recompute_activations);
        let all = SavePolicy { recompute_activations: usize::MAX, ..SavePolicy::default() };
        assert!(all.of_layer(Recompute::None, 0, (0, 1)).recompute_expert_activations);
    }
}
