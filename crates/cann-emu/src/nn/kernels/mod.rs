//! Reference kernels: simple loops over values widened to f64 or i64, by family, each with its contract.

use super::contract::Contract;
use super::exec::{Call, Outcome};
use std::collections::HashMap;
use std::sync::OnceLock;

/// A contract of several texts: their clauses one after the other.
macro_rules! clauses {
    ($($text:expr),* $(,)?) => {
        concat!($($text, " "),*)
    };
}

pub mod activation;
pub mod attention;
pub mod batch_norm;
pub mod complex;
pub mod convolution;
pub mod ctc;
pub mod decomposition;
pub mod elementwise;
pub mod exchange;
pub mod fused;
pub mod gated;
pub mod groups;
pub mod index;
pub mod inference;
pub mod lstm;
pub mod margins;
pub mod matmul;
pub mod maximum;
pub mod memory_cell;
pub mod moe;
pub mod norm;
pub mod optimizer;
pub mod quantised;
pub mod quantised_fused;
pub mod random;
pub mod reduce;
pub mod resample;
pub mod routes;
pub mod sampling;
pub mod shape;
pub mod special;
pub mod typed;

/// An operator that the emulator has.
#[derive(Debug)]
pub struct Operator {
    /// What its page asks.
    pub contract: Contract,
    /// What it does.
    pub kernel: fn(&Call) -> Outcome,
}

/// A row of a family's table: the operator's name without `aclnn`, its contract, its kernel.
pub type Row = (&'static str, &'static str, fn(&Call) -> Outcome);

/// The published page that an operator's contract follows: that of its own name, or, for one that works in place, of the name
/// without that word. Pages of several versions are one a version.
pub fn page(name: &str) -> String {
    format!("aclnn{}", name.strip_prefix("Inplace").unwrap_or(name))
}

/// The operator of a name, with `aclnn`.
pub fn find(name: &str) -> Option<&'static Operator> {
    all().get(name.strip_prefix("aclnn")?)
}

/// Every operator by name.
pub fn all() -> &'static HashMap<&'static str, Operator> {
    static ALL: OnceLock<HashMap<&'static str, Operator>> = OnceLock::new();
    ALL.get_or_init(|| {
        let tables: &[&[Row]] = &[
            elementwise::UNARY,
            elementwise::BOTH,
            elementwise::OPS,
            reduce::OPS,
            shape::OPS,
            index::OPS,
            activation::OPS,
            norm::OPS,
            matmul::OPS,
            attention::OPS,
            optimizer::UNARY,
            optimizer::SCALAR,
            optimizer::OPS,
            random::OPS,
            moe::OPS,
            convolution::OPS,
            resample::OPS,
            maximum::OPS,
            batch_norm::OPS,
            sampling::OPS,
            decomposition::OPS,
            groups::OPS,
            ctc::OPS,
            lstm::OPS,
            inference::OPS,
            margins::OPS,
            quantised::OPS,
            fused::OPS,
            quantised_fused::OPS,
            routes::OPS,
            complex::OPS,
        ];
        let rows = tables.iter().flat_map(|t| t.iter());
        rows.map(|(n, c, k)| (*n, Operator { contract: Contract::parse(c), kernel: *k })).collect()
    })
}
