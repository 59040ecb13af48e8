//! Numeric kernels over slices.
pub mod memory;
/// An error of a kernel.
#[derive(Debug, thiserror::Error)]
pub enum Error {}
