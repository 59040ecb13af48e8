//! Kinds of attention: what makes queries, keys and values, and what they are attended to.

mod compressed;
mod entries;
mod grouped;
mod latent;
mod objective;
mod training;

pub(crate) use compressed::{CompressedAttention, CompressedShape};
pub(crate) use grouped::{Attention, Grouped};
pub use grouped::{head_exchange, lent_columns};
pub(crate) use latent::{Latent, LatentShape};
pub use objective::{IndexerLoss, IndexerLosses, IndexerObjective};

use ms_core::{DType, Tensor};

/// The factor of the weights `w` of an indexer whose heads have `elements` together, its root's inverse: formed in f32 but
/// beside f64.
pub(super) fn indexer_scale(w: &Tensor, elements: usize) -> f64 {
    match w.dtype() {
        DType::F64 => (elements as f64).powf(-0.5),
        _ => f64::from((elements as f32).powf(-0.5)),
    }
}
