//! Process groups, collectives and parallel layers.
//!
//! - A [`Fabric`] knows a rank's number and makes [`Communicator`]s for groups of ranks. [`ParallelCtx`] holds the
//!   communicators that a rank needs along the axes of its [`ms_core::Topology`]. It is passed down, never global, so a rank
//!   can be a thread: [`threads::run`] starts one per rank.
//! - [`buckets`] lays out parameters in the flat buffers that the distributed optimizer shards; [`DataParallel`] reduces
//!   gradients and gathers weights over them.
//!
//! A failing rank poisons its fabric: every wait of the other ranks returns [`Error::PeerFailed`] within a second. Ranks that
//! diverge get an error that names where each of them is: at once if they meet in different collectives
//! ([`Error::Mismatch`]), and as a deadlock if they wait for each other in different groups or for messages
//! ([`Error::Deadlock`]), so nothing hangs. There is no network transport of our own: several machines are reached through MPI
//! (feature `mpi`) or HCCL.
//!
//! ```
//! use ms_dist::{Fabric, threads};
//! // Four ranks as threads; ranks 0 and 1 form one group, ranks 2 and 3 another.
//! let sizes = threads::run(4, |fabric| {
//!     let first = fabric.rank() / 2 * 2;
//!     let pair = fabric.group(&[first, first + 1])?;
//!     Ok::<_, ms_dist::Error>(pair.size())
//! });
//! assert_eq!(sizes.ok(), Some(vec![2; 4]));
//! ```

mod adaptive_attention;
mod adaptive_map;
mod axis_group;
pub mod buckets;
mod column_exchange;
mod communicator;
mod context;
mod context_attention;
mod context_parallel;
mod data_parallel;
mod error;
mod expert_exchange;
mod gathered_rows;
mod grad_buckets;
mod head_partition;
mod hooks;
mod linear_overlap;
#[cfg(any(test, feature = "mpi"))]
mod liveness;
#[cfg(any(test, feature = "mpi"))]
mod mailbox;
mod mappings;
#[cfg(any(test, feature = "mpi"))]
mod messages;
mod meta;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(test)]
mod naive;
mod norm;
mod parallel_linear;
mod pending_enter_tp;
mod pending_exchange;
mod pending_rows;
mod pieces;
#[cfg(any(test, feature = "mpi"))]
mod progress;
mod reduce;
pub mod schedule;
pub mod threads;
mod vocabulary;
pub mod volume;

pub use adaptive_map::TokenMapping;
pub use axis_group::AxisGroup;
pub use communicator::{Communicator, Fabric, Pending, ReduceOp, Requests};
pub use context::{ParallelCtx, ParallelOptions};
pub use context_attention::{TokenSharding, context_attention, to_sequences, to_shares};
pub use context_parallel::ContextParallel;
pub use data_parallel::{DataParallel, DataParallelGroups, FlatBuffer, WeightGather};
pub use error::{Error, Result};
pub use expert_exchange::{all_rows, begin_all_rows, gather_rows, sum_rows};
pub use gathered_rows::{GatheredRows, picks_of_documents, rows_of_documents, summed_shares};
pub use grad_buckets::{GradBuckets, Reduction};
pub use head_partition::{ColumnExchange, HeadPartition};
pub use hooks::{CommCall, CommHook};
pub use linear_overlap::{LinearOverlap, Pieces};
pub use mappings::exchange_rows;
pub use meta::MetaFabric;
pub use pending_enter_tp::PendingEnterTp;
pub use pending_rows::PendingRows;
pub use pieces::Piece;
pub use vocabulary::Vocabulary;
