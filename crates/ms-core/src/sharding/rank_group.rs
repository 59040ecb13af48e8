//! The groups of ranks that communicate, by name.

use serde::{Serialize, Serializer};
use std::cmp::Ordering;

/// One variant for each group, and its name.
macro_rules! rank_groups {
    ($($(#[$doc:meta])* $group:ident $name:literal,)+) => {
        /// A kind of groups of ranks; ordered by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum RankGroup {
            $($(#[$doc])* $group,)+
        }

        impl RankGroup {
            /// All of them, in the order in which plans list them.
            pub const ALL: &[Self] = &[$(Self::$group,)+];

            /// Its name in plans and reports.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$group => $name,)+ }
            }
        }
    };
}

rank_groups! {
    /// Ranks that hold shards of one matrix.
    Tp "tp",
    /// Ranks that hold pieces of one sequence.
    Cp "cp",
    /// Ranks that see different samples.
    Dp "dp",
    /// Ranks that hold different layers.
    Pp "pp",
    /// Tensor and context parallel together.
    TpCp "tp-cp",
    /// Data and context parallel together: ranks over which gradients are summed.
    DpCp "dp-cp",
    /// Tensor and pipeline parallel together: ranks that hold one copy of the model.
    TpPp "tp-pp",
    /// Tensor and data parallel together.
    TpDp "tp-dp",
    /// Ranks that hold the same layers.
    TpDpCp "tp-dp-cp",
    /// First and last stage, which may both hold the embedding.
    Embedding "embedding",
    /// Ranks that hold different experts.
    Ep "ep",
    /// Ranks that together hold all experts.
    TpEp "tp-ep",
    /// The same over all stages.
    TpEpPp "tp-ep-pp",
    /// [`RankGroup::ExpertDp`] as version 2 calls it.
    DpModuloEp "dp_modulo_ep",
    /// Ranks that hold shards of one expert.
    ExpertTp "expert-tp",
    /// Ranks that hold the same experts.
    ExpertDp "expert-dp",
    /// Context-parallel ranks that exchange heads for tokens.
    Ulysses "ulysses",
    /// Context-parallel ranks that pass keys and values around a ring.
    Ring "ring",
    /// Ranks of [`RankGroup::DpCp`] over which a copy of the optimizer state is sharded.
    DpCpIntra "dp-cp-intra",
    /// Ranks of [`RankGroup::DpCp`] that hold the same shard of it.
    DpCpInter "dp-cp-inter",
    /// Ranks of [`RankGroup::ExpertDp`] over which a copy of the optimizer state is sharded.
    ExpertDpIntra "expert-dp-intra",
    /// Ranks of [`RankGroup::ExpertDp`] that hold the same shard of it.
    ExpertDpInter "expert-dp-inter",
    /// All ranks; plans leave it out.
    World "world",
}

impl Ord for RankGroup {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name().cmp(other.name())
    }
}

impl PartialOrd for RankGroup {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Serialize for RankGroup {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
