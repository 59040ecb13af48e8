//! Construction of a layer from the configuration.

use super::{Layer, Network, ShardCoords, Sublayer};
use crate::Result;
use crate::attention::AttentionBuilder;
use crate::feed::{Dense, Experts};
use crate::mixer::{self, TokenMixer};
use crate::params::Scope;
use crate::residual::{self, NormShape};
use ms_core::AxisPlace;
use ms_spec::{Feed, Mixer, ModelConfig, Part, Role};
use std::sync::Arc;

impl Layer {
    /// Layer `number` of `c`, whose parameters `scope` has; of shortcut blocks the first or second `half`.
    pub(crate) fn new(
        scope: &Scope<'_>,
        c: &ModelConfig,
        (number, half): (usize, Option<usize>),
        ShardCoords { tp, etp }: ShardCoords,
        attention: &dyn AttentionBuilder,
    ) -> Result<Self> {
        let kind = c.layer(number);
        let mix = mixer(scope, c, number, tp, attention)?;
        let mlp = scope.of(Part::Dense);
        let network = match (half, kind.feed) {
            (Some(half), _) => {
                let dense = Dense::new(&mlp, c, kind.limits);
                Some(match half {
                    0 => Network::ShortcutFirst(dense, Experts::new(&mlp.whole(), c, kind.limits, etp)),
                    _ => Network::ShortcutSecond(dense),
                })
            }
            (None, Feed::None) => None,
            (None, Feed::Dense) => Some(Network::Dense(Dense::new(&mlp, c, kind.limits))),
            (None, Feed::Moe) => Some(Network::Experts(Experts::new(&mlp, c, kind.limits, etp))),
        };
        let layer = scope.of(Part::Layer);
        let before = |role: Option<Role>| role.filter(|_| c.block.norms_inputs()).map(|r| layer.linear(r));
        let behind = |role| c.block.norms_outputs().then(|| layer.linear(role));
        let normed = kind.mixer.norm();
        Ok(Self {
            number,
            site: 2 * number + half.unwrap_or(0),
            mix: mix.map(|part| Sublayer {
                norm: before(normed),
                part,
                post_norm: normed.and_then(|_| behind(Role::PostAttnNorm)),
            }),
            network: network.map(|part| Sublayer {
                norm: before(Some(Role::PreMlpLayernorm)),
                part,
                post_norm: behind(Role::PostMlpLayernorm),
            }),
            norm: NormShape { kind: c.norm, eps: c.norm_eps },
            residual: c.scales.residual,
            residuals: residual::around(scope, c),
        })
    }
}

/// What mixes the tokens of layer `number`; `None`: nothing does.
fn mixer(
    scope: &Scope<'_>,
    c: &ModelConfig,
    number: usize,
    tp: AxisPlace,
    attention: &dyn AttentionBuilder,
) -> Result<Option<Arc<dyn TokenMixer>>> {
    Ok(match c.layer(number).mixer {
        Mixer::Attention | Mixer::SharedKv => {
            Some(attention.layer(&scope.of(Part::Attention), c, number, tp)?)
        }
        other => mixer::recurrent(other, scope, c, tp.size),
    })
}
