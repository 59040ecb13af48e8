//! Non-tensor operands of device operations: sizes, masks, routers, routes, noise, exact sums.
//!
//! Kernels and the backend traits share these types, so neither depends on the other and nothing is converted between them.
//! Nothing here computes on arrays; each type documents its own meaning.
//!
//! ```
//! use ms_operands::Routes;
//! // Two tokens; each of the two experts receives one copy of each.
//! let routes = Routes::new(&[1, 0, 0, 1], 2, 2)?;
//! assert_eq!((routes.range(0), routes.copies), (0..2, vec![1, 2, 0, 3]));
//! # Ok::<(), ms_operands::Error>(())
//! ```

mod activation;
mod attention;
mod columns;
mod compressed;
mod error;
mod hyper_connections;
mod indexer;
pub mod noise;
mod optimizer;
mod products;
mod recurrent;
mod routes;
mod routing;
mod sum;
mod vocabulary;

pub use activation::Activation;
pub use attention::{Alibi, Dropout, QkvRows, Segment};
pub use columns::Columns;
pub use compressed::{Pooling, Sight, Window};
pub use error::{Error, Result};
pub use hyper_connections::Mixing;
pub use indexer::Divergence;
pub use optimizer::{AdamW, Sgd};
pub use products::{FEW_ROWS, INT8_LINE, int8_row_bytes};
pub use recurrent::*;
pub use routes::{NOWHERE, Routes};
pub use routing::{ExpertLoad, GroupScore, Router, RouterScore};
pub use sum::ExactSum;
pub use vocabulary::VocabShare;
