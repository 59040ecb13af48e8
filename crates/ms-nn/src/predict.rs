//! Multi-token prediction: modules after the decoder that predict tokens beyond the next one.

use crate::attention::AttentionBuilder;
use crate::layer::{Layer, ShardCoords};
use crate::params::{Linear, Table};
use crate::pass::{OverlappedPass, Pass, run_recomputed};
use crate::residual::{self, NormShape, ResidualEnd};
use crate::{Batch, Result};
use ms_core::{Graph, Tensor, Var, ops};
use ms_spec::{ModelConfig, Part, Place, Role, SavePolicy};
use std::sync::Arc;

/// What a module sees in addition to the preceding states.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The token that it embeds at each place, `[T]` i32.
    pub tokens: Tensor,
    /// Whose documents and positions these have; `None`: those of the decoder.
    pub batch: Option<Batch>,
}

impl From<Tensor> for Inputs {
    fn from(tokens: Tensor) -> Self {
        Self { tokens, batch: None }
    }
}

/// Module `k`: it sees the states of the module before it and the embedding of the token `k + 1` places ahead.
///
/// # Source
/// DeepSeek-V3, arXiv:2412.19437, section 2.2; MindSpeed-LLM (2026),
/// `mindspeed_llm/core/transformer/multi_token_prediction.py`: states enter before their final norm, positions are
/// those of the decoder, the embedding comes first in `eh_proj`. In MindSpeed-LLM 2.0.0 (`multi_token_predication.py`) positions
/// are the module's own, and the states come first.
#[derive(Clone, Debug)]
pub(crate) struct Predictor {
    enorm: Linear,
    hnorm: Linear,
    eh_proj: Linear,
    layer: Arc<Layer>,
    /// The end of the layer's residual, if it is not a sum.
    end: Option<Arc<dyn ResidualEnd>>,
    final_norm: Linear,
    norm: NormShape,
    /// Whether the states come first in `eh_proj`.
    hidden_first: bool,
}

impl Predictor {
    /// Module `k` of `c`.
    pub(crate) fn new(
        table: &Table,
        c: &ModelConfig,
        k: usize,
        cut: ShardCoords,
        attention: &dyn AttentionBuilder,
    ) -> Result<Self> {
        let scope = table.at(Place::Mtp(k), None, Part::Prediction);
        let layer = Layer::new(&scope, c, (c.layers + k, None), cut, attention)?;
        Ok(Self {
            enorm: scope.linear(Role::Enorm),
            hnorm: scope.linear(Role::Hnorm),
            eh_proj: scope.linear(Role::EhProj),
            layer: Arc::new(layer),
            end: residual::end(&scope, c),
            final_norm: scope.of(Part::Last).linear(Role::FinalLayernorm),
            norm: NormShape { kind: c.norm, eps: c.norm_eps },
            hidden_first: c.mtp_hidden_first,
        })
    }

    /// States `[T,H]` for the next module and, normed, for the output layer, of the states `before` and the embedding
    /// of the tokens ahead.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        save_policy: &SavePolicy,
        embedded: &Var,
        before: &Var,
    ) -> ms_core::Result<(Var, Var)> {
        pass.save_policy = save_policy.of_predictor();
        let e = self.norm.apply(pass, self.enorm, embedded)?;
        let h = self.norm.apply(pass, self.hnorm, before)?;
        let [first, second] = if self.hidden_first { [&h, &e] } else { [&e, &h] };
        let mut both = ops::concat(pass.g, &[first, second])?;
        let recompute_norms = save_policy.recompute_predictor_norms && pass.g.records();
        if recompute_norms {
            let (first, second) = (first.saved(), second.saved());
            both =
                both.recomputed_by(move |device| device.concat(&[&first.get(device)?, &second.get(device)?]));
        }
        let x = pass.column_parallel_whole(&both, self.eh_proj)?;
        if recompute_norms {
            [&e, &h, &both].into_iter().for_each(Var::forget);
        }
        // Where there are several streams, the modules see what is taken of them, as upstream's do.
        let x = match &self.end {
            Some(end) => {
                let x = end.spread(pass, &x)?;
                let x = self.run_layer(pass, save_policy, &x)?;
                end.collapse(pass, &x)?
            }
            None => self.run_layer(pass, save_policy, &x)?,
        };
        let normed = self.norm.apply(pass, self.final_norm, &x)?;
        Ok((x, normed))
    }

    /// The layer; if it is recomputed, only its input is saved.
    fn run_layer(&self, pass: &mut Pass<'_>, save_policy: &SavePolicy, x: &Var) -> ms_core::Result<Var> {
        if !save_policy.recompute_predictor_layers {
            return self.layer.forward(pass, None, x);
        }
        let (layer, store, ctx, batch) =
            (self.layer.clone(), pass.store.clone(), pass.ctx.clone(), pass.batch.clone());
        let run = move |g: &mut Graph, x: &Var, overlapped: Option<&dyn OverlappedPass>| {
            layer.forward(&mut Pass { overlapped, ..Pass::new(g, &store, &ctx, &batch) }, None, x)
        };
        run_recomputed(pass.g, x, pass.overlapped, run)
    }
}
