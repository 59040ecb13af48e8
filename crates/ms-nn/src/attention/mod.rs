//! Kinds of attention: how queries, keys and values are computed, and which keys a query sees.

mod compressed;
mod entries;
mod grouped;
mod latent;
mod objective;
mod training;

pub use grouped::{head_exchange, shared_kv_columns};
pub use objective::{IndexerLoss, IndexerLosses, IndexerObjective};

use crate::mixer::TokenMixer;
use crate::params::Scope;
use crate::{Error, Result};
use ms_core::{AxisPlace, DType, Rotary, Tensor};
use ms_spec::{Attention, Mixer, ModelConfig};
use std::fmt::Debug;
use std::sync::Arc;

/// Builds the layers of a kind of attention from what they share.
pub(crate) trait AttentionBuilder: Debug + Send + Sync {
    /// The attention of layer `number`, whose parameters are in `scope`, on the rank at `tp`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the layer takes the keys of another, which this kind cannot.
    fn layer(
        &self,
        scope: &Scope<'_>,
        c: &ModelConfig,
        number: usize,
        tp: AxisPlace,
    ) -> Result<Arc<dyn TokenMixer>>;
}

/// Makes the rotary tables of a layer, if positions enter by rotation.
type Tables<'a> = dyn Fn(usize) -> Result<Option<Rotary>> + 'a;

/// The builder of the layers of `c`'s attention on the rank at `tp`.
///
/// # Errors
/// [`Error::Unsupported`] for a kind without the positions that it needs, and what `rotary` fails with.
pub(crate) fn builder(
    c: &ModelConfig,
    tp: AxisPlace,
    rotary: &Tables<'_>,
) -> Result<Box<dyn AttentionBuilder>> {
    match &c.attention {
        Attention::Grouped => grouped::builder(c, tp, rotary),
        Attention::Latent(sizes) => latent::builder(c, sizes, tp.size, rotary),
        Attention::Compressed(sizes) => compressed::builder(c, sizes, tp.size, rotary),
    }
}

/// Refuses a layer that uses the keys and values of another, with this message.
fn own_keys(c: &ModelConfig, number: usize, part: &'static str) -> Result<()> {
    match c.layer(number).mixer {
        Mixer::SharedKv => Err(Error::Unsupported { family: c.family, part }),
        _ => Ok(()),
    }
}

/// The factor of the weights `w` of an indexer whose heads have `elements` elements together, the inverse square root of
/// that: computed in f32, or in f64 for f64 weights.
pub(super) fn indexer_scale(w: &Tensor, elements: usize) -> f64 {
    match w.dtype() {
        DType::F64 => (elements as f64).powf(-0.5),
        _ => f64::from((elements as f32).powf(-0.5)),
    }
}
