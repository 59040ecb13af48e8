//! What a layer's attention has, whichever kind it is of.

use crate::ModelConfig;
use crate::params::{Init, SumGrad, Table};
use crate::parts::{compressed, grouped, latent, sparse};
use crate::sizes::Attention;

/// The weights of a layer's attention, of any kind, under `module`.
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig, index: usize, module: &str) {
    if let Attention::Compressed(sizes) = &c.attention {
        return compressed::params(t, c, index, sizes, module);
    }
    let name = |rest: &str| format!("{module}.{rest}");
    let heads = c.heads_of(index).0;
    let columns = [c.hidden, heads * c.value_dim()];
    t.matrix(&name("linear_proj.weight"), columns, Table::columns(), t.out_std());
    if c.bias.out {
        t.whole_bias(&name("linear_proj.bias"), c.hidden);
    }
    match &c.attention {
        Attention::Latent(mla) => latent::params(t, c, mla, module),
        Attention::Compressed(_) => unreachable!("returned above"),
        Attention::Grouped => grouped::params(t, c, index, module),
    }
    if c.scores.head_gate {
        t.matrix(&name("g_proj.weight"), [heads, c.hidden], Table::rows(1), t.std());
    }
    if c.scores.sinks {
        t.vector(&name("sinks"), heads, Table::rows(1), Init::Zeros, SumGrad::No);
    }
    sparse::params(t, c, index, module);
}
