//! The functions of the interface, a table per library; operators of the larger libraries by topic.
#![allow(clippy::doc_markdown)] // names of libraries and functions in every line

pub mod acl;
pub mod acl_model;
pub mod acl_rt;
pub mod compiler;
pub mod dump;
pub mod hccl;
pub mod meta;
pub mod ops_attention;
pub mod ops_cv;
pub mod ops_experts;
pub mod ops_math;
pub mod ops_nn;
pub mod ops_products;
pub mod prof;
pub mod tdt;
