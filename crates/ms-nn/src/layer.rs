//! One decoder layer.

mod build;

use crate::batch::NoiseSite;
use crate::cache::{LayerCache, LayerMemory};
use crate::feed::{Dense, Experts};
use crate::mixer::TokenMixer;
use crate::params::Linear;
use crate::pass::{OverlappedPass, Pass, run_recomputed};
use crate::residual::NormShape;
use crate::residual::Residual;
use ms_core::{AxisPlace, Graph, Var, ops};
use ms_spec::Swapped;
use std::sync::Arc;

/// What follows.
#[derive(Clone, Debug)]
enum Network {
    Dense(Dense),
    Experts(Experts),
    /// First half of a shortcut block: the experts' output joins the stream at the end of the second half.
    ShortcutFirst(Dense, Experts),
    /// The second half.
    ShortcutSecond(Dense),
}

/// A sublayer between its norms.
#[derive(Clone, Debug)]
struct Sublayer<T> {
    /// None: it takes the stream as it is.
    norm: Option<Linear>,
    part: T,
    /// On the output, in blocks that have such norms.
    post_norm: Option<Linear>,
}

/// One layer.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    number: usize,
    /// Number among the parts that draw something at random: halves of a shortcut block have their own.
    site: usize,
    mix: Option<Sublayer<Arc<dyn TokenMixer>>>,
    network: Option<Sublayer<Network>>,
    norm: NormShape,
    residual: f64,
    /// Residuals around the mixer and around the MLP, if outputs are not simply added.
    residuals: Option<[Arc<dyn Residual>; 2]>,
}

/// A rank's place among those that share a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardCoords {
    /// Among the ranks that share a matrix.
    pub(crate) tp: AxisPlace,
    /// Among the ranks that share an expert.
    pub(crate) etp: AxisPlace,
}

impl Layer {
    /// Its number in the whole model; both halves of a shortcut block have that of the block.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// What the layer keeps of a token.
    pub(crate) fn memory(&self) -> LayerMemory {
        self.mix.as_ref().map_or(LayerMemory::None, |mix| mix.part.memory())
    }

    /// `x + mix(norm(x))`, then `+ mlp(norm(·))`: `[T,H]` to `[T,H]`, or streams `[T,n·H]` to streams.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        cache: Option<&mut LayerCache>,
        x: &Var,
    ) -> ms_core::Result<Var> {
        pass.layer = self.number;
        if let Some(residuals) = &self.residuals {
            return self.forward_within(pass, cache, residuals, x);
        }
        let Some(mix) = &self.mix else {
            let Some(network) = &self.network else { return Ok(x.clone()) };
            let h = self.normed(pass, (network.norm, Swapped::NETWORK_NORM), x)?;
            let out = self.run_network(pass, network, &h)?;
            return ops::add(pass.g, x, &out);
        };
        let mixed = self.run_mix(pass, cache, mix, x)?;
        let Some(network) = &self.network else { return ops::add(pass.g, x, &mixed) };
        let (x, h) = match network.norm {
            Some(norm) => pass.swapping(Swapped::NETWORK_NORM, &[x, &mixed], |pass| {
                self.norm.apply_to_sum(pass, norm, x, &mixed)
            })?,
            None => {
                let sum = ops::add(pass.g, x, &mixed)?;
                (sum.clone(), sum)
            }
        };
        let out = self.run_network(pass, network, &h)?;
        ops::add(pass.g, &x, &out)
    }

    /// Each sublayer takes its input from the residual and gives its output to it.
    fn forward_within(
        &self,
        pass: &mut Pass<'_>,
        cache: Option<&mut LayerCache>,
        [around_mix, around_network]: &[Arc<dyn Residual>; 2],
        x: &Var,
    ) -> ms_core::Result<Var> {
        let mut x = x.clone();
        if let Some(mix) = &self.mix {
            let (input, w) = around_mix.collapse(pass, &x)?;
            let mixed = self.run_mix(pass, cache, mix, &input)?;
            x = around_mix.expand(pass, &x, &mixed, &w)?;
        }
        if let Some(network) = &self.network {
            let (input, w) = around_network.collapse(pass, &x)?;
            let h = self.normed(pass, (network.norm, Swapped::NETWORK_NORM), &input)?;
            let out = self.run_network(pass, network, &h)?;
            x = around_network.expand(pass, &x, &out, &w)?;
        }
        Ok(x)
    }

    /// A sublayer's input from the stream, after its norm.
    fn normed(
        &self,
        pass: &mut Pass<'_>,
        (norm, part): (Option<Linear>, Swapped),
        x: &Var,
    ) -> ms_core::Result<Var> {
        let Some(norm) = norm else { return Ok(x.clone()) };
        pass.swapping(part, &[x], |pass| self.norm.apply(pass, norm, x))
    }

    /// The mixer after its norm.
    fn run_mix(
        &self,
        pass: &mut Pass<'_>,
        cache: Option<&mut LayerCache>,
        mix: &Sublayer<Arc<dyn TokenMixer>>,
        x: &Var,
    ) -> ms_core::Result<Var> {
        let h = &self.normed(pass, (mix.norm, Swapped::INPUT_NORM), x)?;
        let mixed = pass.swapping(Swapped::MIXER, &[h], |pass| mix.part.forward(pass, cache, h))?;
        pass.forget(mix.norm.map(|_| h))?;
        self.finish(pass, (mix.post_norm, Swapped::POST_MIXER_NORM), &mixed, NoiseSite::Mixer(self.site))
    }

    /// The MLP after its norm.
    fn run_network(&self, pass: &mut Pass<'_>, network: &Sublayer<Network>, h: &Var) -> ms_core::Result<Var> {
        let out = pass.swapping(Swapped::NETWORK, &[h], |pass| match &network.part {
            Network::Dense(part) => self.run_dense(pass, part, h),
            Network::Experts(part) => self.run_experts(pass, part, h),
            Network::ShortcutFirst(part, experts) => {
                pass.shortcut = Some(self.run_experts(pass, experts, h)?);
                self.run_dense(pass, part, h)
            }
            Network::ShortcutSecond(part) => {
                let out = self.run_dense(pass, part, h)?;
                match pass.shortcut.take() {
                    Some(shortcut) => ops::add(pass.g, &out, &shortcut),
                    None => Ok(out),
                }
            }
        })?;
        pass.forget(network.norm.map(|_| h))?;
        self.finish(
            pass,
            (network.post_norm, Swapped::POST_NETWORK_NORM),
            &out,
            NoiseSite::Network(self.site),
        )
    }

    /// A dense MLP, or only its second run.
    fn run_dense(&self, pass: &mut Pass<'_>, part: &Dense, h: &Var) -> ms_core::Result<Var> {
        if pass.save_policy.recompute_dense_networks && pass.g.records() {
            self.run_recomputed(pass, *part, h, Dense::forward)
        } else {
            part.forward(pass, h)
        }
    }

    /// Experts, or their second run only.
    fn run_experts(&self, pass: &mut Pass<'_>, part: &Experts, h: &Var) -> ms_core::Result<Var> {
        if pass.save_policy.recompute_expert_networks && pass.g.records() {
            self.run_recomputed(pass, part.clone(), h, Experts::forward)
        } else {
            part.forward(pass, h)
        }
    }

    /// Applies `forward` to `h` with `part`, saving only `h`.
    fn run_recomputed<T: Send + Sync + 'static>(
        &self,
        pass: &mut Pass<'_>,
        part: T,
        h: &Var,
        forward: fn(&T, &mut Pass<'_>, &Var) -> ms_core::Result<Var>,
    ) -> ms_core::Result<Var> {
        let (store, ctx, batch) = (pass.store.clone(), pass.ctx.clone(), pass.batch.clone());
        let layer = self.number;
        let run = move |g: &mut Graph, h: &Var, overlapped: Option<&dyn OverlappedPass>| {
            forward(&part, &mut Pass { layer, overlapped, ..Pass::new(g, &store, &ctx, &batch) }, h)
        };
        run_recomputed(pass.g, h, pass.overlapped, run)
    }

    /// What happens to a sublayer's output before it joins the stream.
    fn finish(
        &self,
        pass: &mut Pass<'_>,
        post_norm: (Option<Linear>, Swapped),
        out: &Var,
        place: NoiseSite,
    ) -> ms_core::Result<Var> {
        let out = self.normed(pass, post_norm, out)?;
        pass.send_away()?;
        let out = pass.dropout(out, place)?;
        ops::scale(pass.g, &out, self.residual)
    }
}
