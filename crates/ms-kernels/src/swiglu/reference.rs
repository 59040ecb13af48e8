//! The formula as plain f64 loops.
