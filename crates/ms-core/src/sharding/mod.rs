//! Sharding: which rank owns which part of a tensor. Pure arithmetic, no tensors.
//!
//! ```
//! use ms_core::{Axis, Partition, Topology};
//! let topo = Topology::new(&[(Axis::Tp, 2), (Axis::Pp, 2)])?;
//! assert_eq!(topo.group(1, &[Axis::Pp]), [1, 3]);
//! let gate_up = Partition::Split { axis: Axis::Tp, dim: 0, blocks: 2 };
//! let region = gate_up.region("fc1", &[8, 4].into(), 1, 2)?;
//! assert_eq!(region.ranges, [2..4, 6..8]); // this rank's gate rows, then its up rows
//! # Ok::<(), ms_core::Error>(())
//! ```

mod chain;
mod digits;
mod dispatcher;
mod divisors;
mod grid;
mod optimizer;
mod partition;
mod rank_group;
mod region;
mod ring_cache;
mod topology;

pub use chain::{Chain, StageChunk};
pub use digits::{Digit, Digits};
pub use dispatcher::Dispatcher;
pub use divisors::nearest_divisors;
pub use grid::{Grid, GridRules, GridSizes};
pub use optimizer::OptimizerSharding;
pub use partition::Partition;
pub use rank_group::RankGroup;
pub use region::Region;
pub use ring_cache::{RingCache, RingCachePolicy};
pub use topology::{Axis, AxisPlace, Topology};
