//! Multi-token prediction: modules behind the decoder that predict the tokens after the next one.

use crate::Result;
use crate::hyper_connections::{Streams, spread};
use crate::layer::{Cut, Layer, Pass, Shared};
use crate::norm::NormShape;
use crate::params::{Linear, Scope, Table};
use ms_core::{Var, ops};
use ms_spec::ModelConfig;

/// Module `k`: it sees the states of the module before it and the embedding of the token `k + 1` places ahead.
///
/// # Source
/// DeepSeek-V3, arXiv:2412.19437, section 2.2; MindSpeed-LLM (2026),
/// `mindspeed_llm/core/transformer/multi_token_prediction.py`: states enter before their final norm, positions are
/// those of the decoder, the embedding comes first in `eh_proj`.
#[derive(Clone, Debug)]
pub(crate) struct Predictor {
    enorm: Linear,
    hnorm: Linear,
    eh_proj: Linear,
    layer: Layer,
    /// The end of the layer's streams.
    streams: Option<Streams>,
    final_norm: Linear,
    norm: NormShape,
}

impl Predictor {
    /// Module `k` of `c`.
    pub(crate) fn new(
        table: &Table<'_>,
        c: &ModelConfig,
        k: usize,
        cut: Cut,
        shared: &Shared,
    ) -> Result<Self> {
        let scope: Scope<'_> = table.under(format!("mtp.layers.{k}."));
        let layer = Layer::new(&scope.under("transformer_layer"), c, (c.layers + k, None), cut, shared)?;
        Ok(Self {
            enorm: scope.linear("enorm"),
            hnorm: scope.linear("hnorm"),
            eh_proj: scope.linear("eh_proj"),
            layer,
            streams: c.hyper.as_ref().map(|h| Streams::new(&scope.under("hc_head"), c, h, true)),
            final_norm: table.under("mtp.final_layernorms.").linear(&k.to_string()),
            norm: NormShape { kind: c.norm, eps: c.norm_eps as f32 },
        })
    }

    /// States `[T,H]` for the next module and, normed, for the output layer, of the states `before` and the embedding
    /// of the tokens ahead.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        embedded: &Var,
        before: &Var,
    ) -> ms_core::Result<(Var, Var)> {
        let e = self.norm.apply(pass, self.enorm, embedded)?;
        let h = self.norm.apply(pass, self.hnorm, before)?;
        let both = ops::concat(pass.g, &[&e, &h])?;
        let x = pass.column_parallel_whole(&both, self.eh_proj)?;
        // Where there are several streams, the modules see what is taken of them, as upstream's do.
        let x = match &self.streams {
            Some(streams) => {
                let x = spread(pass, &x, streams.count())?;
                let x = self.layer.forward(pass, None, &x)?;
                streams.collapse(pass, &x)?.0
            }
            None => self.layer.forward(pass, None, &x)?,
        };
        let normed = self.norm.apply(pass, self.final_norm, &x)?;
        Ok((x, normed))
    }
}
