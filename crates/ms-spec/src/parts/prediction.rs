//! Modules of multi-token prediction.

use ms_core::Axis;

use crate::ModelConfig;
use crate::params::{Place, Table};
use crate::parts::hyper_connections;
use crate::rule::{How, Rule};

/// How ranks share them.
pub(crate) const RULE: Rule = Rule {
    part: "prediction modules",
    tp: How::Shared("as layers; the joint projection by columns"),
    cp: How::Shared("rows are shifted whole, then cut"),
    ep: How::Shared("as layers"),
    has: |c| c.mtp > 0,
    divides: |c, axis| match axis {
        Axis::Tp => {
            vec![("hidden size, which the joint projection of a prediction module makes,", c.hidden)]
        }
        _ => Vec::new(),
    },
};

/// The weights of module `k` before its layer; the layer's come next.
pub(crate) fn before(t: &mut Table<'_>, c: &ModelConfig, k: usize) {
    t.at(Place::Mtp(k), &format!("mtp.layers.{k}."));
    t.norm("enorm", c.hidden);
    t.norm("hnorm", c.hidden);
    t.matrix("eh_proj.weight", [c.hidden, 2 * c.hidden], Table::rows(1), t.std());
    t.at(Place::Mtp(k), &format!("mtp.layers.{k}.transformer_layer."));
}

/// Those behind it.
pub(crate) fn behind(t: &mut Table<'_>, c: &ModelConfig, k: usize) {
    t.at(Place::Mtp(k), &format!("mtp.layers.{k}."));
    hyper_connections::params(t, c, "hc_head", true);
    t.at(Place::Mtp(k), "");
    t.norm(&format!("mtp.final_layernorms.{k}"), c.hidden);
}
