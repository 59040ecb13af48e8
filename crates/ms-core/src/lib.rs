//! Tensors, devices, autograd and sharding: the core types of the toolchain.
//!
//! - A [`Tensor`] is contiguous values without autograd state; a [`Device`] is a backend instance that computes on tensors.
//! - A [`Graph`] is one forward pass, consumed by its backward pass.
//! - A [`ParamStore`] holds the weights of one model copy in a flat buffer.
//! - [`Topology`], [`Partition`] and [`Region`] say which rank holds which part.
//!
//! Activations are `[T, H]`: tokens first, packed. Only attention looks at sequence boundaries.
//!
//! This crate never prints, never reads the environment, holds no global state and knows no model.

mod arena;
mod backend;
mod clock;
mod dtype;
mod error;
mod gradients;
mod graph;
mod host;
mod meta;
pub mod ops;
mod params;
mod rng;
mod saved;
mod shape;
pub mod shard_state;
mod sharding;
mod tensor;

pub use arena::{Arena, ArenaStats, ArenaUse};
pub use backend::{
    ActBackend, AttentionBackend, AttentionDropout, AttentionOptions, Backend, CompressedBackend, Device,
    EmbedBackend, HeadLayout, HyperConnectionsBackend, IndexerInputs, LayoutBackend, LossBackend,
    MatmulBackend, MoeBackend, Norm, NormBackend, OptimBackend, QkNorm, RecurrentBackend, Rotary,
};
pub use dtype::{DType, Scalar};
pub use error::{Error, Result};
pub use gradients::{GradBuffer, GradSink};
pub use graph::{BackwardCx, BackwardPass, Grads, Graph, Op, TensorSpec, Var, WeightGradStore};
pub use host::{Host, HostStats, HostTensor, HostUse};
pub use meta::MetaBackend;
pub use params::{ParamId, ParamLayout, ParamStore, PendingBucket, UpdatedBy};
pub use rng::Rng;
pub use saved::Saved;
pub use shape::{MAX_RANK, Shape};
pub use shard_state::{ShardState, ShardStates};
pub use sharding::{
    Axis, AxisPlace, Chain, Digit, Digits, Dispatcher, Grid, GridRules, GridSizes, OptimizerSharding,
    Partition, RankGroup, Region, RingCache, RingCachePolicy, StageChunk, Topology, nearest_divisors,
};
pub use tensor::{Tensor, TensorMut};

// Operands of attention, from `ms-operands`.
pub use ms_operands::{Alibi, Divergence, Dropout, Pooling, QkvRows, Segment, Sight, Window};

// Operands of mixtures of experts.
pub use ms_operands::{ExpertLoad, GroupScore, NOWHERE, Router, RouterScore, Routes};

// Operands of recurrent mixers and hyper-connections.
pub use ms_operands::{DeltaRule, Mamba3Operands, Mamba3Shape, Mixing, StateSpace, TurnedPairs};

// Operands of products, activations, columns, noise and the vocabulary.
pub use ms_operands::noise::{Noise, mix};
pub use ms_operands::{Activation, Columns, FEW_ROWS, INT8_LINE, VocabShare, int8_row_bytes};

// Operands of optimizers, and exact sums.
pub use ms_operands::{AdamW, ExactSum, Sgd};
