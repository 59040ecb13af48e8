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
mod consts_a;
mod consts_b;
mod loader;
pub mod tables;
pub mod types;

pub use loader::{Cann, LibraryReport, LoadError, Report, Search};

/// Constants of the interface by name.
pub mod consts {
    pub use crate::consts_a::*;
    pub use crate::consts_b::*;
}

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
    /// Classes of the arguments, parted by blanks; `v` for none.
    pub arguments: String,
    /// Class of the result.
    pub result: &'static str,
}

/// Every declaration of this crate.
pub fn dump() -> Vec<Declaration> {
    let mut out = Vec::new();
    tables::acl::Acl::dump(&mut out);
    tables::acl_rt::AclRuntime::dump(&mut out);
    tables::acl_model::AclModel::dump(&mut out);
    tables::compiler::AclCompiler::dump(&mut out);
    tables::tdt::AclTdt::dump(&mut out);
    tables::dump::AclDump::dump(&mut out);
    tables::meta::NnMeta::dump(&mut out);
    tables::ops_math::OpsMath::dump(&mut out);
    tables::ops_nn::OpsNn::dump(&mut out);
    tables::ops_transformer::OpsTransformer::dump(&mut out);
    tables::ops_cv::OpsCv::dump(&mut out);
    tables::hccl::Hccl::dump(&mut out);
    tables::prof::AclProf::dump(&mut out);
    out
}

/// Every constant with its value.
pub fn dump_constants() -> Vec<(&'static str, i128)> {
    let mut out = consts_a::all();
    out.extend(consts_b::all());
    out
}
