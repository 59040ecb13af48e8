//! Layouts: how a folder names and files the tensors of a model.

mod assemble;
mod buckets;
mod described;
pub(crate) mod file_grid;
mod file_grid_args;
mod fp8_scales;
mod fsdp2;
pub mod hf;
pub(crate) mod hints;
pub mod mcore;
mod mxfp4_factors;
mod names;
mod number;
pub(crate) mod optimizer;
pub mod peft;
mod rank_file;
pub(crate) mod rank_tensors;
mod ranks;
mod registered;
pub(crate) mod spelling;
mod tied;
pub mod torch_dist;
