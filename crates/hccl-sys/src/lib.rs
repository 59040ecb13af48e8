//! The C interface of Ascend's CANN: raw tables of optional functions, filled when a toolkit is found.
//!
//! Nothing is linked. [`Cann::open`] looks for the libraries of CANN 8.1 to 9.x in the search order of the public clients and
//! returns one table of function pointers per topic; a function that a release does not have is `None`, and [`Cann::report`]
//! says which libraries and paths were tried. Each call's requirements are in the published interface; all functions are
//! `unsafe`.
//!
//! The declarations were written from the facts of the published prototypes (types and order of arguments). [`dump`] lists
//! them as the compiler sees them, and a test compares that with the tables of facts.
#![allow(unsafe_code)] // foreign functions
#![allow(non_camel_case_types, non_snake_case)] // names are those of the interface

#[macro_use]
mod macros;
pub mod consts;
mod loader;
pub mod tables;
pub mod types;

pub use loader::{Cann, LibraryReport, LoadError, Report, Search};

/// The second phase of every operator: workspace, its bytes, the executor, the stream.
pub type SecondPhase = unsafe extern "C" fn(
    workspace: *mut std::ffi::c_void,
    workspace_size: u64,
    executor: *mut types::aclOpExecutor,
    stream: types::aclrtStream,
) -> i32;

/// A function as it is declared here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// The symbol.
    pub name: &'static str,
    /// The table that holds it.
    pub table: &'static str,
    /// Classes of the arguments, separated by blanks; `v` for none.
    pub arguments: String,
    /// Class of the result.
    pub result: &'static str,
}

/// Every declaration of this crate.
pub fn dump() -> Vec<Declaration> {
    let mut out = Vec::new();
    Cann::dump(&mut out);
    out
}

/// Every constant with its value.
pub fn dump_constants() -> Vec<(&'static str, i128)> {
    consts::all()
}
