//! What the routers of a model report while it is trained.

use ms_core::Routes;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Auxiliary losses and the load of experts, summed over the passes that record.
#[derive(Debug, Default)]
pub struct RouterLoad {
    layers: Mutex<BTreeMap<usize, LayerLoad>>,
}

/// The load of one layer's experts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerLoad {
    /// Sum of the auxiliary losses, coefficients included.
    pub balance: f64,
    /// Passes.
    pub passes: u64,
    /// Token copies that went to each expert.
    pub tokens: Vec<u64>,
}

impl RouterLoad {
    pub(crate) fn add(&self, layer: usize, balance: Option<f32>, routes: &Routes) {
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        let load = layers.entry(layer).or_default();
        let experts = routes.starts.len() - 1;
        load.tokens.resize(experts, 0);
        for e in 0..experts {
            load.tokens[e] += routes.range(e).len() as u64;
        }
        load.balance += f64::from(balance.unwrap_or(0.0));
        load.passes += 1;
    }

    /// The sums since the last call, by layer; the next ones begin at zero.
    pub fn take(&self) -> BTreeMap<usize, LayerLoad> {
        std::mem::take(&mut self.layers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
