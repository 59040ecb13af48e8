//! Parts of a layer whose saved values are swapped to the host, with upstream's names for them.

/// Parts of a layer whose saved activations are swapped to the host. A part includes those within it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Swapped(u16);

impl Swapped {
    /// None.
    pub const NONE: Self = Self(0);
    /// The norm before the mixer: its input.
    pub const INPUT_NORM: Self = Self(1);
    /// The mixer, of whichever kind.
    pub const MIXER: Self = Self(1 << 1);
    /// The first projection of grouped and latent attention: its input.
    pub const QKV: Self = Self(1 << 2);
    /// Attention between the projections: rotated queries, keys and values, and head outputs.
    pub const CORE: Self = Self(1 << 3);
    /// The last projection of grouped and latent attention: its input.
    pub const PROJ: Self = Self(1 << 4);
    /// The norm after the mixer, in layers that have one.
    pub const POST_MIXER_NORM: Self = Self(1 << 5);
    /// The norm before the MLP.
    pub const NETWORK_NORM: Self = Self(1 << 6);
    /// The feed-forward layer, dense or of experts.
    pub const NETWORK: Self = Self(1 << 7);
    /// The first linear layer of MLPs and experts: its input.
    pub const FC1: Self = Self(1 << 8);
    /// The second: its input.
    pub const FC2: Self = Self(1 << 9);
    /// Routers.
    pub const ROUTER: Self = Self(1 << 10);
    /// The routed experts, and the dispatch to them within the rank.
    pub const EXPERTS: Self = Self(1 << 11);
    /// The shared experts.
    pub const SHARED_EXPERTS: Self = Self(1 << 12);
    /// The norm after the MLP, in layers that have one.
    pub const POST_NETWORK_NORM: Self = Self(1 << 13);
    /// Attention and the norm before it: what `--swap-attention` swaps by default.
    pub const ATTENTION: Self = Self::INPUT_NORM.union(Self::MIXER);

    /// The parts, by the names of upstream's modules.
    ///
    /// # Source
    /// Megatron-LM `core_r0.8.0`, `megatron/core/transformer/{transformer_layer,attention,mlp}.py`, `.../moe/moe_layer.py`;
    /// MindSpeed-LLM v2.0.0, `mindspeed_llm/tasks/models/spec/gemma2_spec.py`; of `mixer`, Megatron's
    /// `megatron/core/ssm/mamba_layer.py`.
    pub const NAMES: [(&'static str, Self); 15] = [
        ("input_layernorm", Self::INPUT_NORM),
        ("self_attention", Self::MIXER),
        ("linear_qkv", Self::QKV),
        ("core_attention", Self::CORE),
        ("linear_proj", Self::PROJ),
        ("post_attn_norm", Self::POST_MIXER_NORM),
        ("pre_mlp_layernorm", Self::NETWORK_NORM),
        ("mlp", Self::NETWORK),
        ("linear_fc1", Self::FC1),
        ("linear_fc2", Self::FC2),
        ("router", Self::ROUTER),
        ("experts", Self::EXPERTS),
        ("shared_experts", Self::SHARED_EXPERTS),
        ("post_mlp_layernorm", Self::POST_NETWORK_NORM),
        ("mixer", Self::MIXER),
    ];

    /// These and `others`.
    #[must_use]
    pub const fn union(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Whether it has one of `parts`.
    pub const fn has(self, parts: Self) -> bool {
        self.0 & parts.0 != 0
    }

    /// Their names, in the order of a layer.
    pub fn names(self) -> Vec<&'static str> {
        let of = Self::NAMES.iter().filter(|(name, part)| *name != "mixer" && self.has(*part));
        of.map(|(name, _)| *name).collect()
    }

    /// The parts whose names stand in `text`.
    ///
    /// # Source
    /// MindSpeed, `mindspeed/core/memory/swap_attention/swap_attention_apply.py` (in `2.0.0_core_r0.8.0`
    /// `.../adaptive_recomputing/adaptive_recompute_apply.py`): the name of a module is looked for in the flag's text as a
    /// whole, so `pre_mlp_layernorm` names `mlp`, too.
    pub fn named_in(text: &str) -> Self {
        let named = Self::NAMES.iter().filter(|(name, _)| text.contains(name));
        named.fold(Self::NONE, |all, (_, part)| all.union(*part))
    }
}

impl std::fmt::Debug for Swapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_as_upstream_finds_them() {
        assert_eq!(
            Swapped::named_in("input_layernorm,self_attention,pre_cross_attn_layernorm"),
            Swapped::ATTENTION
        );
        // Layers of today have no part of the other two names.
        assert_eq!(Swapped::named_in("input_norm,self_attention,post_attention_norm"), Swapped::MIXER);
        assert_eq!(Swapped::named_in("pre_mlp_layernorm"), Swapped::NETWORK_NORM.union(Swapped::NETWORK));
        assert_eq!(Swapped::named_in("shared_experts"), Swapped::SHARED_EXPERTS.union(Swapped::EXPERTS));
        assert_eq!(Swapped::named_in("attention"), Swapped::NONE);
        assert_eq!(format!("{:?}", Swapped::ATTENTION), r#"{"input_layernorm", "self_attention"}"#);
    }

    #[test]
    fn every_name_is_of_a_part_of_its_own() {
        for (i, (name, part)) in Swapped::NAMES.iter().enumerate() {
            assert!(Swapped::named_in(name).has(*part), "{name}");
            let same = Swapped::NAMES[..i].iter().find(|(_, other)| other == part);
            assert_eq!(
                same.map(|(other, _)| *other),
                (*name == "mixer").then_some("self_attention"),
                "{name}"
            );
        }
    }
}
