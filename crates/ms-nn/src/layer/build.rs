//! How a layer of a configuration is put together.

use super::{Cut, Layer, Mix, Network, Shared, Sub};
use crate::attention::{Attention, CompressedAttention, Latent};
use crate::cache::LayerMemory;
use crate::feed::{Dense, Experts};
use crate::hyper_connections::Streams;
use crate::mixer::{GatedDeltaMixer, Mamba2Mixer, Mamba3Mixer};
use crate::norm::NormShape;
use crate::params::Scope;
use crate::{Error, Result};
use ms_spec::{Attention as Kind, Feed, Mixer, ModelConfig, Part, Role};

fn unsupported(c: &ModelConfig, part: &'static str) -> Error {
    Error::Unsupported { family: c.family, part }
}

impl Layer {
    /// Layer `number` of `c`, whose parameters `scope` has; of shortcut blocks the first or second `half`.
    pub(crate) fn new(
        scope: &Scope<'_>,
        c: &ModelConfig,
        (number, half): (usize, Option<usize>),
        Cut { tp, etp }: Cut,
        shared: &Shared,
    ) -> Result<Self> {
        let kind = c.layer(number);
        let attention = scope.of(Part::Attention);
        let mut memory = LayerMemory::None;
        let mix = match (kind.mixer, &c.attention) {
            (Mixer::None, _) => None,
            (Mixer::Attention | Mixer::SharedKv, Kind::Grouped) => {
                let Shared::Grouped(all, windowed) = shared else {
                    unreachable!("a model of grouped attention shares its shape")
                };
                let shape = windowed.as_ref().filter(|_| c.window(number).is_some()).unwrap_or(all);
                let heads = shape.heads();
                memory = LayerMemory::Attention { width: heads.groups * heads.head_dim, index: None };
                Some(Mix::Attention(Attention::new(&attention, c, number, tp, shape)))
            }
            (Mixer::SharedKv, Kind::Latent(_)) => {
                return Err(unsupported(c, "latent layers that share keys and values"));
            }
            (Mixer::Attention, Kind::Latent(_)) => {
                let Shared::Latent(shape) = shared else {
                    unreachable!("a model of latent attention shares its shape")
                };
                let (heads, indexer) = (shape.heads(), c.indexer.filter(|_| !kind.borrows_index));
                memory = LayerMemory::Attention {
                    width: heads.groups * heads.head_dim,
                    index: indexer.map(|i| i.head_dim),
                };
                Some(Mix::Latent(Box::new(Latent::new(&attention, c, number, tp, shape))))
            }
            (Mixer::SharedKv, Kind::Compressed(_)) => {
                return Err(unsupported(c, "layers with pooled entries that share keys and values"));
            }
            (Mixer::Attention, Kind::Compressed(_)) => {
                let Shared::Compressed(shape) = shared else {
                    unreachable!("a model of attention to entries shares its shape")
                };
                let part = CompressedAttention::new(&attention, c, number, shape);
                let (width, pools) = part.memory();
                memory = LayerMemory::Compressed { width, pools };
                Some(Mix::Compressed(Box::new(part)))
            }
            (Mixer::Mamba2, _) => {
                let sizes = c.mamba2.as_ref().expect("a validated model has its mixers' sizes");
                let [inner, _, bc, _, _] = sizes.sections();
                memory = LayerMemory::Recurrent {
                    history: [sizes.conv - 1, inner + 2 * bc],
                    states: inner * sizes.state,
                };
                Some(Mix::StateSpace(Mamba2Mixer::new(&scope.of(Part::StateSpace), sizes, tp.1)))
            }
            (Mixer::Mamba3, _) => {
                let sizes = c.mamba3.as_ref().expect("a validated model has its mixers' sizes");
                let part = Mamba3Mixer::new(&scope.of(Part::StateSpace), sizes, tp.1);
                memory = part.memory();
                Some(Mix::Trapezoid(Box::new(part)))
            }
            (Mixer::GatedDelta, _) => {
                let sizes = c.gated_delta.as_ref().expect("a validated model has its mixers' sizes");
                memory = LayerMemory::Recurrent {
                    history: [sizes.conv - 1, sizes.qk_rows() + sizes.value_rows()],
                    states: sizes.value_rows() * sizes.key_dim,
                };
                Some(Mix::Delta(GatedDeltaMixer::new(&scope.of(Part::GatedDelta), c, sizes, tp.1)))
            }
        };
        let mlp = scope.of(Part::Dense);
        let network = match (half, kind.feed) {
            (Some(half), _) => {
                let dense = Dense::new(&mlp, c, kind.limits);
                Some(match half {
                    0 => Network::DenseAndAside(dense, Experts::new(&mlp.whole(), c, kind.limits, etp)),
                    _ => Network::DenseThenAside(dense),
                })
            }
            (None, Feed::None) => None,
            (None, Feed::Dense) => Some(Network::Dense(Dense::new(&mlp, c, kind.limits))),
            (None, Feed::Moe) => Some(Network::Experts(Experts::new(&mlp, c, kind.limits, etp))),
        };
        let layer = scope.of(Part::Layer);
        let before = |role, on: bool| (on && c.block.norms_inputs()).then(|| layer.linear(role));
        let behind = |role| c.block.norms_outputs().then(|| layer.linear(role));
        let input = if kind.mixer == Mixer::Mamba2 { Role::Norm } else { Role::InputLayernorm };
        Ok(Self {
            number,
            site: 2 * number + half.unwrap_or(0),
            mix: mix.map(|part| Sub {
                norm: before(input, kind.mixer != Mixer::Mamba3),
                part,
                post_norm: behind(Role::PostAttnNorm),
            }),
            network: network.map(|part| Sub {
                norm: before(Role::PreMlpLayernorm, true),
                part,
                post_norm: behind(Role::PostMlpLayernorm),
            }),
            norm: NormShape { kind: c.norm, eps: c.norm_eps as f32 },
            residual: c.scales.residual,
            streams: c.hyper.as_ref().map(|h| {
                [Part::MixerStreams, Part::FeedStreams].map(|part| Streams::new(&scope.of(part), c, h, false))
            }),
            memory,
        })
    }
}
