//! Feed-forward networks: one for all tokens, or a mixture of experts.

use crate::layer::Pass;
use crate::params::{Linear, Scope};
use crate::{Error, Result};
use ms_core::{Activation, DType, GroupScore, ParamId, Router, RouterScore, Var, ops};
use ms_spec::{Activation as Kind, GroupScore as SpecGroupScore, ModelConfig, Moe, Score};

/// The activation of a configuration: its function, and whether there is a gate.
pub(crate) fn activation(c: &ModelConfig) -> Result<(Activation, bool)> {
    let kind = match c.activation {
        Kind::Swiglu => Activation::Silu,
        Kind::GegluTanh | Kind::GeluTanh => Activation::GeluTanh,
        Kind::GeluErf => Activation::GeluErf,
        Kind::ReluSquared => Activation::Relu2,
        Kind::SwigluClamped { .. } => {
            return Err(Error::Unsupported { family: c.family, part: "a clamped activation" });
        }
    };
    Ok((kind, c.activation.gated()))
}

/// `fc2(f(fc1(x)))`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense {
    fc1: Linear,
    fc2: Linear,
    activation: (Activation, bool),
}

impl Dense {
    pub(crate) fn new(scope: &Scope<'_>, c: &ModelConfig) -> Result<Self> {
        let (fc1, fc2) = (scope.linear("linear_fc1"), scope.linear("linear_fc2"));
        Ok(Self { fc1, fc2, activation: activation(c)? })
    }

    /// `[T,H]` to `[T,H]`.
    pub(crate) fn forward(&self, pass: &mut Pass<'_>, x: &Var) -> ms_core::Result<Var> {
        let x = pass.ctx.enter_tp(pass.g, x)?;
        let inner = pass.linear(&x, self.fc1)?;
        let (kind, gated) = self.activation;
        let inner = ops::activation(pass.g, &inner, kind, gated)?;
        pass.row_parallel(&inner, self.fc2)
    }
}

/// A mixture of experts.
#[derive(Clone, Debug)]
pub(crate) struct Experts {
    router_weight: Linear,
    expert_bias: Option<ParamId>,
    router: Router,
    /// Logits are formed in f32.
    wide: bool,
    fc1: Linear,
    fc2: Linear,
    activation: (Activation, bool),
    shared: Option<(Dense, Option<ParamId>)>,
}

fn router(c: &ModelConfig, moe: &Moe) -> Result<Router> {
    if moe.zero_experts > 0 {
        return Err(Error::Unsupported { family: c.family, part: "experts without weights" });
    }
    let r = &moe.router;
    let (score, normalise) = match r.score {
        Score::Softmax => (RouterScore::Softmax, r.renormalise),
        // A softmax over the chosen logits is the softmax over all, divided by the sum of the chosen.
        Score::SoftmaxOfChosen => (RouterScore::Softmax, true),
        Score::Sigmoid => (RouterScore::Sigmoid, r.renormalise),
        Score::SqrtSoftplus => (RouterScore::SqrtSoftplus, r.renormalise),
        Score::SparseMixer { jitter } => (RouterScore::SparseMixer { jitter: jitter as f32 }, false),
    };
    let judge = |by| match by {
        SpecGroupScore::Best => GroupScore::Best,
        SpecGroupScore::BestTwo => GroupScore::BestTwo,
    };
    let groups = r.groups.map(|g| (g.groups, g.keep, judge(g.by)));
    Ok(Router { score, top_k: moe.top_k, groups, normalise, scale: r.scale as f32 })
}

impl Experts {
    /// The experts under `scope`, a layer's `mlp`.
    pub(crate) fn new(scope: &Scope<'_>, c: &ModelConfig) -> Result<Self> {
        let moe = c.moe.as_ref().expect("a validated model with a layer of experts has their sizes");
        let shared = scope.under("shared_experts");
        let shared = match &moe.shared {
            Some(s) => Some((Dense::new(&shared, c)?, s.gate.then(|| shared.id("gate_weight")))),
            None => None,
        };
        Ok(Self {
            router_weight: scope.linear("router"),
            expert_bias: scope.find("router.expert_bias"),
            router: router(c, moe)?,
            wide: moe.router.f32,
            fc1: scope.linear("experts.linear_fc1"),
            fc2: scope.linear("experts.linear_fc2"),
            activation: activation(c)?,
            shared,
        })
    }

    /// `[T,H]` to `[T,H]`.
    pub(crate) fn forward(&self, pass: &mut Pass<'_>, x: &Var) -> ms_core::Result<Var> {
        let logits = if self.wide {
            let wide = ops::cast(pass.g, x, DType::F32)?;
            let w = pass.param(self.router_weight.weight);
            let w = ops::cast(pass.g, &w, DType::F32)?;
            let bias = self.router_weight.bias.map(|b| pass.param(b));
            let bias = bias.map(|b| ops::cast(pass.g, &b, DType::F32)).transpose()?;
            ops::linear(pass.g, &wide, &w, bias.as_ref())?
        } else {
            pass.linear(x, self.router_weight)?
        };
        let logits = ops::cast(pass.g, &logits, DType::F32)?;
        let device = pass.g.device().clone();
        let bias = self.expert_bias.map(|id| device.cast(&pass.store.get(id), DType::F32)).transpose()?;
        let routed = ops::route(pass.g, &logits, bias.as_ref(), &self.router, pass.balance)?;
        // Once a step: where a layer is recomputed only its second run records.
        if let Some(load) = pass.load.as_ref().filter(|_| pass.g.records()) {
            load.add(pass.layer, routed.balance, &routed.routes);
        }
        let rows = ops::dispatch(pass.g, x, &routed.routes)?;
        let through = |pass: &mut Pass<'_>, x: &Var, layer: Linear| {
            let (w, b) = (pass.param(layer.weight), layer.bias.map(|b| pass.param(b)));
            ops::expert_linear(pass.g, x, &w, b.as_ref(), &routed.routes)
        };
        let inner = through(pass, &rows, self.fc1)?;
        let (kind, gated) = self.activation;
        let inner = ops::activation(pass.g, &inner, kind, gated)?;
        let out = through(pass, &inner, self.fc2)?;
        let out = ops::combine(pass.g, &out, &routed.weights, &routed.routes)?;
        let Some((shared, gate)) = &self.shared else { return Ok(out) };
        let mut beside = shared.forward(pass, x)?;
        if let Some(gate) = gate {
            let w = pass.param(*gate);
            let by = ops::linear(pass.g, x, &w, None)?;
            beside = ops::gate(pass.g, &beside, &by, Activation::Sigmoid)?;
        }
        ops::add(pass.g, &out, &beside)
    }
}
