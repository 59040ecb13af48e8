//! PyTorch's distributed checkpoint (DCP): one file that describes global tensors, and files with their chunks.
//!
//! ```text
//! .metadata          pickle: every key with its shape and chunks, and where each chunk lies
//! __R_W.distcp       chunks that rank R wrote: `torch.save` archives, one after another
//! common.pt          what is not sharded (Megatron): args, iteration, schedule
//! metadata.json      which backend wrote the folder (Megatron)
//! ```
//!
//! # Source
//! PyTorch 2.15, `torch/distributed/checkpoint/{metadata,filesystem}.py`; Megatron-Core 0.16.1,
//! `megatron/core/dist_checkpointing/strategies/torch.py`.

mod read;
mod write;

pub(crate) use read::{Chunk, Metadata, Tensor, chunk_archive, chunk_view, is_folder};
pub(crate) use write::{WrittenChunk, WrittenTensor, backend_json, extra_state, metadata_pickle};

/// Name of the file that describes the folder.
pub(crate) const METADATA: &str = ".metadata";
/// Name of Megatron's file of everything that is not cut.
pub(crate) const COMMON: &str = "common.pt";
/// Name of the file in which Megatron says which backend wrote the folder.
pub(crate) const BACKEND: &str = "metadata.json";
