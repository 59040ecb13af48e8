//! The parts a model is composed of, one file each.
//!
//! A part's file has everything that follows from its sizes: its weights (names, shapes, partitions, initial values, weight
//! decay), how ranks share it along every axis or why not, what a pass saves of it, and its FLOPs where upstream counts them.
//! The parameter table ([`tree`]), the rules, memory plans and FLOPs are walks over the parts. The many kinds of recurrent
//! mixers are listed below.

pub(crate) mod attention;
pub(crate) mod compressed;
pub(crate) mod dense;
pub(crate) mod ends;
pub(crate) mod experts;
pub(crate) mod gated_delta;
pub(crate) mod grouped;
pub(crate) mod hyper_connections;
pub(crate) mod latent;
pub(crate) mod mamba2;
pub(crate) mod mamba3;
pub(crate) mod prediction;
pub(crate) mod recurrent;
pub(crate) mod sparse;
pub(crate) mod tree;

use crate::attention_kind::AttentionKind;
use crate::description::{Description, Site, SublayerWrapper};
use crate::params::Table;
use crate::saved_bytes::Activations;
use crate::sizes::{Attention, Mixer};
use crate::{ModelConfig, Role};
use recurrent::{Recurrence, Recurrent};

/// Optional parts in addition to them.
pub(crate) static PARTS: [&Description; 4] =
    [&latent::PART, &compressed::PART, &hyper_connections::PART, &sparse::PART];

/// Those of them that stand around what is in a layer.
fn wrappers() -> impl Iterator<Item = &'static SublayerWrapper> {
    PARTS.into_iter().filter_map(|part| part.wrapper.as_ref())
}

/// The weights of parts around a layer's mixer or its MLP, or after the last layer.
pub(crate) fn params_around(t: &mut Table<'_>, c: &ModelConfig, site: Site) {
    wrappers().for_each(|part| (part.params)(t, c, site));
}

impl Activations {
    /// What a pass keeps of it.
    pub(crate) fn wrapper_bytes(&self, c: &ModelConfig, site: Site) -> usize {
        wrappers().map(|part| (part.kept)(self, c, site)).sum()
    }
}

impl Attention {
    /// What it says of itself.
    pub(crate) fn kind(&self) -> &dyn AttentionKind {
        match self {
            Self::Grouped => &grouped::Grouped,
            Self::Latent(sizes) => sizes,
            Self::Compressed(sizes) => sizes,
        }
    }
}

/// The kinds of mixers with a state.
pub(crate) static RECURRENCES: [&Recurrence; 3] = [&gated_delta::KIND, &mamba2::KIND, &mamba3::KIND];

impl Mixer {
    fn recurrence(self) -> Option<&'static Recurrence> {
        RECURRENCES.into_iter().find(|kind| kind.mixer == self)
    }

    /// The norm of the stream before it, in layers whose sublayers take norms.
    pub fn norm(self) -> Option<Role> {
        match self {
            Self::None => None,
            _ => self.recurrence().map_or(Some(Role::InputLayernorm), |kind| kind.norm),
        }
    }
}

impl ModelConfig {
    /// The attention of layer `index`: one that takes the keys of another is of grouped heads.
    pub(crate) fn attention_kind(&self, index: usize) -> &dyn AttentionKind {
        if self.layer(index).mixer == Mixer::Attention { self.attention.kind() } else { &grouped::Grouped }
    }

    /// The sizes of a layer's mixer, if it has a state.
    pub(crate) fn recurrent(&self, mixer: Mixer) -> Option<&dyn Recurrent> {
        let kind = mixer.recurrence()?;
        Some((kind.of)(self).expect("validate: a mixer of a layer has its sizes"))
    }

    /// Whether a layer has a recurrent mixer.
    pub fn is_recurrent(&self) -> bool {
        RECURRENCES.iter().any(|kind| self.has(kind.mixer))
    }

    fn states(&self) -> impl Iterator<Item = &'static Recurrence> {
        RECURRENCES.into_iter().filter(|kind| (kind.of)(self).is_some())
    }

    /// Elements of a token that layers pass on: of every row of the stream that it has between them.
    pub fn carried(&self) -> usize {
        wrappers().fold(self.hidden, |all, part| all.saturating_mul((part.rows)(self)))
    }

    /// The part that a flag of a run requires, if the model does not have it, with the flag that adds it.
    pub fn lacks_for(&self, flag: &str) -> Option<String> {
        let part = PARTS.into_iter().find(|part| part.runs.1.contains(&flag))?;
        (!(part.there)(self)).then(|| format!("{} ({})", part.rule.part, part.runs.0))
    }

    /// The norm after the last layer.
    pub fn last_norm(&self) -> Role {
        self.states().map(|kind| kind.last_norm).next().unwrap_or(Role::FinalLayernorm)
    }

    /// Whether Megatron may stack layers that are alike in a distributed checkpoint.
    pub fn stacks_layers(&self) -> bool {
        self.states().all(|kind| kind.stacked)
    }

    /// The model with its optional parts as small as `ranks` ranks that shard heads can share; `of` is the large model.
    #[must_use]
    pub fn with_small_parts(mut self, of: &Self, ranks: usize) -> Self {
        PARTS.iter().for_each(|part| (part.shrink)(of, &mut self, ranks));
        self
    }

    /// The model with the sizes of recurrent mixers as small as `ranks` ranks can share.
    #[must_use]
    pub fn with_small_states(self, ranks: usize) -> Self {
        let mut small = self.clone();
        for sizes in RECURRENCES.iter().filter_map(|kind| (kind.of)(&self)) {
            sizes.shrink(&mut small, ranks);
        }
        small
    }
}
