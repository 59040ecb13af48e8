//! Fused operations of a graph: forward now, backward when the graph is consumed.
//!
//! Each function computes through the graph's device and records an [`crate::Op`] that saves what its backward pass needs;
//! the function's documentation says what that is. Sizes are per rank: a sharded caller passes its own shard.

mod act;
mod attention;
mod compressed;
mod embedding;
mod hyper_connections;
mod indexer;
mod layout;
mod linear;
mod loss;
mod margin;
mod moe;
mod norm;
mod recompute;
mod recurrent;
mod sinkhorn;
pub use act::{activation, add, gate, swiglu};
pub use attention::{attention, attention_picked, join_sinks, prepare_qkv};
pub use compressed::{attention_shared, pool_windows, rotate_last};
pub use embedding::{embedding, embedding_share};
pub use hyper_connections::{collapse, expand, stream_weights};
pub use indexer::{IndexerTarget, indexer_loss};
pub use layout::{cast, columns, concat, noise, part, reshape, scale, scale_columns, split, unit_rows};
pub use linear::{add_bias, grouped_linear, linear};
pub use loss::{Head, LossVar, PendingSum, VocabGroup, linear_cross_entropy, logits};
pub use margin::{drop_margin, routing_margin};
pub use moe::{
    Auxiliary, Balance, DropPolicy, ExpertCapacity, Routed, RoutingOverride, TokenGroup, combine, dispatch,
    drop_tokens, expert_linear, restore, route, route_to, route_with_override,
};
pub use norm::{add_rms_norm, layer_norm, rms_norm};
pub use recompute::{Recomputed, recompute, recompute_behind};
pub use recurrent::*;
pub use sinkhorn::{SinkhornChoice, sinkhorn};

use crate::{Device, Grads, Result, Saved, Tensor};

/// The values of several handles.
fn all<const N: usize>(kept: [Saved; N], device: &Device) -> Result<[Tensor; N]> {
    let values = kept.into_iter().map(|s| s.get(device)).collect::<Result<Vec<_>>>()?;
    Ok(values.try_into().expect("one value per handle"))
}

/// The gradient of a single-output operation.
///
/// # Panics
/// If there is none: the graph calls a backward only with a gradient of at least one output.
fn only(mut dys: Grads) -> Tensor {
    dys.swap_remove(0).expect("a backward runs only where a gradient arrived")
}
