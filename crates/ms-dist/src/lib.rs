//! Ranks and what they say to each other.
//!
//! A [`Fabric`] knows a rank's number and makes [`Communicator`]s for groups of ranks; [`ParallelCtx`] holds the
//! ones a rank needs along the axes of its [`ms_core::Topology`] and is handed down, never global, so a rank can
//! be a thread: [`threads::run`] starts one per rank. [`buckets`] lays parameters out in flat buffers that the
//! distributed optimizer cuts; [`DataParallel`] reduces gradients and gathers weights over them.
//!
//! A failing rank poisons its fabric: every wait of the others returns [`Error::PeerFailed`] within a second. Ranks that do
//! different things are an error that says where each of them is: at once where they meet ([`Error::Mismatch`]), and where they
//! wait for each other in different groups or for messages ([`Error::Circle`]), so that nothing hangs.
//! There is no transport of our own here: many machines are reached through MPI (feature `mpi`) or HCCL.

mod adaptive_attention;
mod adaptive_map;
mod among;
mod around;
mod arriving;
pub mod buckets;
mod column_exchange;
mod communicator;
mod context;
mod context_attention;
mod context_parallel;
mod data_parallel;
mod entering;
mod error;
mod expert_exchange;
mod gathered_rows;
mod grad_buckets;
mod head_shares;
mod in_flight;
mod linear_overlap;
mod mappings;
#[cfg(any(test, feature = "mpi"))]
mod messages;
mod meta;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(test)]
mod naive;
mod norm;
#[cfg(any(test, feature = "mpi"))]
mod office;
mod parallel_linear;
mod pieces;
mod reduce;
pub mod schedule;
pub mod threads;
#[cfg(any(test, feature = "mpi"))]
mod vigil;
mod vocabulary;
pub mod volume;

pub use adaptive_map::Remap;
pub use among::Among;
pub use around::{Around, Exchange};
pub use communicator::{Communicator, Fabric, Pending, ReduceOp};
pub use context::{ParallelCtx, Sharing};
pub use context_attention::{TokenSharding, context_attention, to_sequences, to_shares};
pub use context_parallel::ContextParallel;
pub use data_parallel::{DataParallel, FlatBuffer, Gathering, Replicas};
pub use entering::Entering;
pub use error::{Error, Result};
pub use expert_exchange::{all_rows, begin_all_rows, gather_rows, sum_rows};
pub use gathered_rows::{GatheredRows, picks_of_documents, rows_of_documents, summed_shares};
pub use grad_buckets::{GradBuckets, Reduction};
pub use head_shares::{ColumnExchange, HeadShares};
pub use in_flight::InFlight;
pub use linear_overlap::{LinearOverlap, Pieces};
pub use mappings::exchange_rows;
pub use meta::MetaFabric;
pub use pieces::Piece;
pub use vocabulary::Vocabulary;
