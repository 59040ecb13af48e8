//! What stands around a layer's parts: norms before and behind them, and the streams that they take from and give to.

mod hyper_connections;
mod norm;

pub(crate) use hyper_connections::{Streams, spread};
pub(crate) use norm::{NormShape, unit_norm};
