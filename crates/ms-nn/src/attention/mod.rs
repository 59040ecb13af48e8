//! Kinds of attention: what makes queries, keys and values, and what they are attended to.

mod compressed;
mod entries;
mod grouped;
mod latent;

pub(crate) use compressed::{CompressedAttention, CompressedShape};
pub(crate) use grouped::{Attention, Grouped};
pub use grouped::{head_exchange, lent_columns};
pub(crate) use latent::{Latent, LatentShape};
