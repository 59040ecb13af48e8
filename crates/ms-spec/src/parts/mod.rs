//! The parts a model is put together from, a file each.
//!
//! A part says in its file what follows from its sizes: its weights (names, shapes, how ranks cut them, initial values, decay),
//! how ranks share it along every axis or why not, what a pass keeps of it, and its FLOPs where upstream counts them. The table
//! of parameters ([`tree`]), the rules, the plan of memory and the FLOPs are walks over these.

pub(crate) mod attention;
pub(crate) mod compressed;
pub(crate) mod dense;
pub(crate) mod ends;
pub(crate) mod experts;
pub(crate) mod gated_delta;
pub(crate) mod grouped;
pub(crate) mod hyper_connections;
pub(crate) mod latent;
pub(crate) mod mamba2;
pub(crate) mod mamba3;
pub(crate) mod prediction;
pub(crate) mod recurrent;
pub(crate) mod sparse;
pub(crate) mod tree;
