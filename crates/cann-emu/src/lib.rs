//! A strict stand-in for CANN: the C interface of the Ascend runtime, operator library and collective library, executed on
//! the CPU, for tests.
//!
//! The shared library of this crate holds all state and exports every function of the interface as `emu_<name>`. [`tree`]
//! creates a folder laid out like the toolkit's, with small libraries whose exports jump there; a program that looks for CANN
//! (`ASCEND_HOME_PATH`, `LD_LIBRARY_PATH`) finds it in the same way as the real one.
//!
//! - [`memory`]: device addresses that the host cannot touch, red zones, pinned memory
//! - [`sched`]: streams (a worker each), events, the three modes of execution
//! - [`race`]: order of all accesses by vector clocks
//! - [`handles`]: typed, generation-checked handles
//! - [`nn`]: the two phases of operators, contracts as data, reference kernels; `nn/formulas` (tests) compares every kernel
//!   with a formula that is written apart from it
//! - [`hccl`]: collectives across threads and processes
//! - [`report`]: rules with ids and severities
//!
//! Entry points are made from a table of the [`interface`], never from `hccl-sys`: a mistake in one would otherwise cancel out
//! in the other.
//!
//! A C library has one state per process, so this crate, unlike all others, keeps its state in statics.
#![allow(unsafe_code)] // a C interface: raw pointers in, raw pointers out
#![allow(missing_docs)] // entry points are named by the interface; their meaning stands with the interface
#![allow(clippy::semicolon_if_nothing_returned)] // macros that stand for whole match arms
#![allow(non_snake_case, unreachable_pub)] // names of the interface; exports are public for the linker only

pub mod abi;
pub mod api;
pub mod handles;
pub mod hccl;
pub mod interface;
pub mod knobs;
pub mod memory;
pub mod missing;
pub mod nn;
pub mod places;
pub mod race;
pub mod report;
pub mod sched;
pub mod session;
pub mod tree;
