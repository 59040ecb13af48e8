//! Hugging Face tensor names as data, read in both directions.
//!
//! A family inherits its parent's names. `{L}` is a layer, `{E}` an expert, `{K}` a prediction layer. A pattern that ends in
//! `.weight` also names the bias, which ends in `.bias`; any other pattern has its bias under `…_bias`. A key that ends in
//! `.bias` with an empty pattern means that the class has the tensor without a bias, whatever its configuration says.

/// The names of one family's tensors, by slot.
#[derive(Debug)]
pub(crate) struct Tensors {
    pub(crate) parent: Option<&'static Self>,
    pub(crate) rows: &'static [(&'static str, &'static str)],
}

impl Tensors {
    /// The pattern of a key; an empty one takes the parent's away.
    pub(crate) fn pattern(&self, key: &str) -> Option<&'static str> {
        let own = self.rows.iter().find(|r| r.0 == key).map(|r| r.1);
        own.or_else(|| self.parent.and_then(|p| p.pattern(key))).filter(|p| !p.is_empty())
    }

    /// Whether a pattern begins so.
    pub(crate) fn has_module(&self, module: &str) -> bool {
        let own = self.rows.iter().any(|r| r.1.starts_with(module));
        own || self.parent.is_some_and(|p| p.has_module(module))
    }

    /// Whether the class has no bias for this key.
    pub(crate) fn without_bias(&self, key: &str) -> bool {
        let own = self.rows.iter().any(|r| r.0.strip_suffix(".bias") == Some(key));
        own || self.parent.is_some_and(|p| p.without_bias(key))
    }
}

/// How a program spells tensors of a family otherwise.
#[derive(Debug)]
pub(crate) struct Respelling {
    /// What its names begin with.
    pub(crate) prefix: &'static str,
    /// Tensors after that, and the usual ones.
    pub(crate) names: &'static [(&'static str, &'static str)],
    /// Parts of the other names, and the usual ones.
    pub(crate) parts: &'static [(&'static str, &'static str)],
}

impl Respelling {
    /// The usual name of a tensor that is spelt otherwise.
    pub(crate) fn usual(&self, name: &str) -> Option<String> {
        let inner = name.strip_prefix(self.prefix).unwrap_or(name);
        let inner = match self.names.iter().find(|(theirs, _)| *theirs == inner) {
            Some((_, usual)) => (*usual).to_owned(),
            None => {
                self.parts.iter().fold(inner.to_owned(), |name, (theirs, usual)| name.replace(theirs, usual))
            }
        };
        (inner != name).then_some(inner)
    }
}

/// As Llama names them, and most after it.
pub(crate) const LLAMA_TENSORS: Tensors = Tensors {
    parent: None,
    rows: &[
        ("embed", "model.embed_tokens.weight"),
        ("head", "lm_head.weight"),
        ("norm", "model.norm.weight"),
        ("norm1", "model.layers.{L}.input_layernorm.weight"),
        ("norm2", "model.layers.{L}.post_attention_layernorm.weight"),
        ("q", "model.layers.{L}.self_attn.q_proj.weight"),
        ("k", "model.layers.{L}.self_attn.k_proj.weight"),
        ("v", "model.layers.{L}.self_attn.v_proj.weight"),
        ("o", "model.layers.{L}.self_attn.o_proj.weight"),
        ("q_norm", "model.layers.{L}.self_attn.q_norm.weight"),
        ("k_norm", "model.layers.{L}.self_attn.k_norm.weight"),
        ("gate", "model.layers.{L}.mlp.gate_proj.weight"),
        ("up", "model.layers.{L}.mlp.up_proj.weight"),
        ("down", "model.layers.{L}.mlp.down_proj.weight"),
    ],
};

/// Experts as most families since Qwen2-MoE name them.
pub(crate) const EXPERTS_TENSORS: Tensors = Tensors {
    parent: Some(&LLAMA_TENSORS),
    rows: &[
        ("router", "model.layers.{L}.mlp.gate.weight"),
        ("router_bias", "model.layers.{L}.mlp.gate.e_score_correction_bias"),
        ("expert.gate", "model.layers.{L}.mlp.experts.{E}.gate_proj.weight"),
        ("expert.up", "model.layers.{L}.mlp.experts.{E}.up_proj.weight"),
        ("expert.down", "model.layers.{L}.mlp.experts.{E}.down_proj.weight"),
        ("shared.gate", "model.layers.{L}.mlp.shared_experts.gate_proj.weight"),
        ("shared.up", "model.layers.{L}.mlp.shared_experts.up_proj.weight"),
        ("shared.down", "model.layers.{L}.mlp.shared_experts.down_proj.weight"),
        // Multi-token prediction: layers after the last, with the embedding and the output layer repeated.
        ("mtp.embed", "model.layers.{L}.embed_tokens.weight"),
        ("mtp.enorm", "model.layers.{L}.enorm.weight"),
        ("mtp.hnorm", "model.layers.{L}.hnorm.weight"),
        ("mtp.eh_proj", "model.layers.{L}.eh_proj.weight"),
        ("mtp.norm", "model.layers.{L}.shared_head.norm.weight"),
        ("mtp.head", "model.layers.{L}.shared_head.head.weight"),
    ],
};
