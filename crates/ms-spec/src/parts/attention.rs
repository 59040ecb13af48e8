//! What a layer's attention has, whichever kind it is of.

use crate::params::{Init, SumGrad, Table};
use crate::parts::{compressed, grouped, latent, sparse};
use crate::sizes::Attention;
use crate::{ModelConfig, Part, Role};

/// The weights of a layer's attention, of any kind, under `module`.
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig, index: usize) {
    if let Attention::Compressed(sizes) = &c.attention {
        return compressed::params(t, c, index, sizes);
    }
    t.of(Part::Attention);
    let heads = c.heads_of(index).0;
    let columns = [c.hidden, heads * c.value_dim()];
    t.matrix(Role::LinearProj, columns, Table::columns(), t.out_std());
    if c.bias.out {
        t.whole_bias(Role::LinearProj, c.hidden);
    }
    match &c.attention {
        Attention::Latent(mla) => latent::params(t, c, mla),
        Attention::Compressed(_) => unreachable!("returned above"),
        Attention::Grouped => grouped::params(t, c, index),
    }
    if c.scores.head_gate {
        t.matrix(Role::GProj, [heads, c.hidden], Table::rows(1), t.std());
    }
    if c.scores.sinks {
        t.vector(Role::Sinks, heads, Table::rows(1), Init::Zeros, SumGrad::No);
    }
    sparse::params(t, c, index);
}
