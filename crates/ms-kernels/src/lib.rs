//! Numeric kernels over slices.
