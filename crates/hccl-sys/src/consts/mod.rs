//! Constants of the interface by name; each file in families, by value.

mod acl;
mod errors;
mod hccl;

pub use acl::*;
pub use errors::*;
pub use hccl::*;

/// Every constant with its value.
pub(crate) fn all() -> Vec<(&'static str, i128)> {
    [acl::all(), errors::all(), hccl::all()].concat()
}
