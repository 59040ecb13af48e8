//! `ms-train`: trains a model.
fn main() {}
