//! The functions of the interface, a table per library.
#![allow(clippy::doc_markdown)] // names of libraries and functions in every line
#![allow(unused_imports)] // a table takes all argument types and uses those it needs

pub mod acl;
pub mod acl_model;
pub mod acl_rt;
pub mod compiler;
pub mod dump;
pub mod hccl;
pub mod meta;
pub mod ops_cv;
pub mod ops_math;
pub mod ops_nn;
pub mod ops_transformer;
pub mod prof;
pub mod tdt;
