//! Fused operations of a graph: forward now, backward when the graph is consumed.
//!
//! Each function computes through the graph's device and records an [`crate::Op`] that keeps what its backward
//! needs; its docs say what that is. Sizes are per rank: a sharded caller passes its own part.

mod act;
mod attention;
mod embedding;
mod linear;
mod loss;
mod norm;
mod recompute;
#[cfg(test)]
mod tests;

pub use act::{add, swiglu};
pub use attention::{attention, prepare_qkv};
pub use embedding::embedding;
pub use linear::linear;
pub use loss::{LossVar, linear_cross_entropy};
pub use norm::{add_rms_norm, rms_norm};
pub use recompute::{Recomputed, recompute};

use crate::Tensor;

/// The gradient of a single-output operation.
///
/// # Panics
/// If there is none: the graph calls a backward only with a gradient of at least one output.
fn only(mut dys: Vec<Option<Tensor>>) -> Tensor {
    dys.swap_remove(0).expect("a backward runs only where a gradient arrived")
}
