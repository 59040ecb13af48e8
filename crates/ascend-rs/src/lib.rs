//! A safe layer over CANN, the software of Ascend NPUs, loaded at run time.
//!
//! - [`Toolkit`] is the loaded libraries, [`Device`] a device that is current on this thread. A device is not [`Send`], and
//!   neither is anything made from it, so the compiler enforces what the C interface requires of threads.
//! - [`Stream`], [`Event`], [`Buffer`] (from a pool; remembers the stream that used it last, so that another stream, the host
//!   or the next owner waits), [`Pinned`].
//! - [`View`] describes elements of a buffer as a tensor; [`ops`] are the operators, functions or structs with named operands,
//!   each with its two phases and workspace from the stream's arena. [`Call`] and [`Plan`] do the same for any other operator
//!   of the tables: a plan runs once, by value.
//! - [`Comm`] is an HCCL communicator on device buffers; [`HcclFabric`] is HCCL as [`ms_dist::Fabric`], for ranks that are
//!   threads of one process or processes.
//!
//! Every failure is an [`Error`] with the function, its code, the library's own message, and operands with names and shapes.
//!
//! It never links a vendor's library at build time, and it does not unload one: see [`Toolkit::finalise`].
//!
//! Written against the public interfaces of CANN 8.1 to 9.1 and tested on an emulator only, never on an NPU.
//!
//! ```no_run
//! use ascend_rs::{Array, Device, Stream, Toolkit, ops};
//! let search = hccl_sys::Search::from_variables(|name| std::env::var(name).ok());
//! let toolkit = Toolkit::open(&search)?;
//! let device = Device::bind(&toolkit, 0)?;
//! let stream = Stream::new(&device)?;
//! let a = Array::of(&stream, &[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let c = Array::new(&stream, ms_core::DType::F32, &[2, 2])?;
//! ops::mm(&stream, a.view()?, a.view()?.transposed(), c.view()?, 0)?;
//! assert_eq!(c.to_vec::<f32>()?, [14.0, 32.0, 32.0, 77.0]);
//! # Ok::<(), ascend_rs::Error>(())
//! ```
#![allow(unsafe_code)] // foreign functions

mod array;
pub mod check;
mod comm;
mod device;
mod error;
mod fabric;
mod memory;
mod operator;
pub mod ops;
mod profile;
pub mod rendezvous;
mod stream;
mod toolkit;

pub use array::Array;
pub use comm::{Comm, CommOptions, RootInfo, Unbound, hccl_type};
pub use device::{Device, MemoryInfo};
pub use error::{CallError, Error, Result, meaning};
pub use fabric::{Bootstrap, FabricOptions, HcclFabric};
pub use memory::{Buffer, Pinned};
pub use operator::{Argument, Call, Number, Plan, View, acl_type};
pub use profile::Profile;
pub use rendezvous::Rendezvous;
pub use stream::{Event, Stream};
pub use toolkit::{Toolkit, Versions};
