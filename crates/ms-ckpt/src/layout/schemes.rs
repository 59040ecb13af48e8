//! Names of Hugging Face tensors, family by family: data, read in both directions.
//!
//! A scheme inherits its parent's rows. `{L}` is a layer, `{E}` an expert, `{K}` a prediction layer. A pattern that ends in
//! `.weight` also names the bias, which ends in `.bias`; one that does not has its bias under `…_bias`.

use ms_spec::Family;

/// What a tensor is, whatever it is called.
pub(super) type Key = &'static str;

/// The names of one family's tensors.
pub(super) struct Scheme {
    parent: Option<&'static Scheme>,
    rows: &'static [(Key, &'static str)],
}

impl Scheme {
    /// The pattern of a key; an empty one takes the parent's away.
    pub(super) fn pattern(&self, key: &str) -> Option<&'static str> {
        let own = self.rows.iter().find(|r| r.0 == key).map(|r| r.1);
        own.or_else(|| self.parent.and_then(|p| p.pattern(key))).filter(|p| !p.is_empty())
    }
}

const LLAMA: Scheme = Scheme {
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
const EXPERTS: Scheme = Scheme {
    parent: Some(&LLAMA),
    rows: &[
        ("router", "model.layers.{L}.mlp.gate.weight"),
        ("router_bias", "model.layers.{L}.mlp.gate.e_score_correction_bias"),
        ("expert.gate", "model.layers.{L}.mlp.experts.{E}.gate_proj.weight"),
        ("expert.up", "model.layers.{L}.mlp.experts.{E}.up_proj.weight"),
        ("expert.down", "model.layers.{L}.mlp.experts.{E}.down_proj.weight"),
        ("shared.gate", "model.layers.{L}.mlp.shared_experts.gate_proj.weight"),
        ("shared.up", "model.layers.{L}.mlp.shared_experts.up_proj.weight"),
        ("shared.down", "model.layers.{L}.mlp.shared_experts.down_proj.weight"),
        // Multi-token prediction: layers behind the last, with the embedding and the output layer once more.
        ("mtp.embed", "model.layers.{L}.embed_tokens.weight"),
        ("mtp.enorm", "model.layers.{L}.enorm.weight"),
        ("mtp.hnorm", "model.layers.{L}.hnorm.weight"),
        ("mtp.eh_proj", "model.layers.{L}.eh_proj.weight"),
        ("mtp.norm", "model.layers.{L}.shared_head.norm.weight"),
        ("mtp.head", "model.layers.{L}.shared_head.head.weight"),
    ],
};

const SINGLE_SHARED: Scheme = Scheme {
    parent: Some(&EXPERTS),
    rows: &[
        ("shared.gate", "model.layers.{L}.mlp.shared_expert.gate_proj.weight"),
        ("shared.up", "model.layers.{L}.mlp.shared_expert.up_proj.weight"),
        ("shared.down", "model.layers.{L}.mlp.shared_expert.down_proj.weight"),
        ("shared_gate", "model.layers.{L}.mlp.shared_expert_gate.weight"),
    ],
};

const QWEN3_NEXT: Scheme = Scheme {
    parent: Some(&SINGLE_SHARED),
    rows: &[
        ("own.self_attention.A_log", "model.layers.{L}.linear_attn.A_log"),
        ("own.self_attention.dt_bias", "model.layers.{L}.linear_attn.dt_bias"),
        ("own.self_attention.conv1d", "model.layers.{L}.linear_attn.conv1d.weight"),
        ("own.self_attention.in_proj_qkvz", "model.layers.{L}.linear_attn.in_proj_qkvz.weight"),
        ("own.self_attention.in_proj_ba", "model.layers.{L}.linear_attn.in_proj_ba.weight"),
        ("own.self_attention.norm", "model.layers.{L}.linear_attn.norm.weight"),
        ("own.self_attention.out_proj", "model.layers.{L}.linear_attn.out_proj.weight"),
        // The prediction layer is a model of its own beside the first; vocabulary matrices are shared.
        ("mtp.layer", "mtp.layers.{K}"),
        ("mtp.embed", ""),
        ("mtp.enorm", "mtp.pre_fc_norm_embedding.weight"),
        ("mtp.hnorm", "mtp.pre_fc_norm_hidden.weight"),
        ("mtp.eh_proj", "mtp.fc.weight"),
        ("mtp.norm", "mtp.norm.weight"),
        ("mtp.head", ""),
    ],
};

const MIXTRAL: Scheme = Scheme {
    parent: Some(&LLAMA),
    rows: &[
        ("router", "model.layers.{L}.block_sparse_moe.gate.weight"),
        ("router_bias", "model.layers.{L}.block_sparse_moe.e_score_correction_bias"),
        ("expert.gate", "model.layers.{L}.block_sparse_moe.experts.{E}.w1.weight"),
        ("expert.up", "model.layers.{L}.block_sparse_moe.experts.{E}.w3.weight"),
        ("expert.down", "model.layers.{L}.block_sparse_moe.experts.{E}.w2.weight"),
    ],
};

const MINICPM: Scheme = Scheme {
    parent: Some(&LLAMA),
    rows: &[
        ("router", "model.layers.{L}.mlp.gate.weight"),
        ("expert.gate", "model.layers.{L}.mlp.experts.{E}.w1.weight"),
        ("expert.up", "model.layers.{L}.mlp.experts.{E}.w3.weight"),
        ("expert.down", "model.layers.{L}.mlp.experts.{E}.w2.weight"),
    ],
};

const PHI3: Scheme = Scheme {
    parent: Some(&LLAMA),
    rows: &[
        ("qkv_cat", "model.layers.{L}.self_attn.qkv_proj.weight"),
        ("gate_up", "model.layers.{L}.mlp.gate_up_proj.weight"),
    ],
};

const GLM: Scheme =
    Scheme { parent: Some(&LLAMA), rows: &[("gate_up", "model.layers.{L}.mlp.gate_up_proj.weight")] };

const GLM4: Scheme = Scheme {
    parent: Some(&GLM),
    rows: &[
        ("post_attn_norm", "model.layers.{L}.post_self_attn_layernorm.weight"),
        ("post_mlp_norm", "model.layers.{L}.post_mlp_layernorm.weight"),
    ],
};

const BAICHUAN: Scheme =
    Scheme { parent: Some(&LLAMA), rows: &[("qkv_cat", "model.layers.{L}.self_attn.W_pack.weight")] };

const GEMMA2: Scheme = Scheme {
    parent: Some(&LLAMA),
    rows: &[
        ("post_attn_norm", "model.layers.{L}.post_attention_layernorm.weight"),
        ("norm2", "model.layers.{L}.pre_feedforward_layernorm.weight"),
        ("post_mlp_norm", "model.layers.{L}.post_feedforward_layernorm.weight"),
    ],
};

const OLMO2: Scheme = Scheme {
    parent: Some(&LLAMA),
    rows: &[
        ("norm1", ""),
        ("norm2", ""),
        ("post_attn_norm", "model.layers.{L}.post_attention_layernorm.weight"),
        ("post_mlp_norm", "model.layers.{L}.post_feedforward_layernorm.weight"),
    ],
};

const INTERNLM2: Scheme = Scheme {
    parent: None,
    rows: &[
        ("embed", "model.tok_embeddings.weight"),
        ("head", "output.weight"),
        ("norm", "model.norm.weight"),
        ("norm1", "model.layers.{L}.attention_norm.weight"),
        ("norm2", "model.layers.{L}.ffn_norm.weight"),
        ("qkv_grouped", "model.layers.{L}.attention.wqkv.weight"),
        ("o", "model.layers.{L}.attention.wo.weight"),
        ("gate", "model.layers.{L}.feed_forward.w1.weight"),
        ("up", "model.layers.{L}.feed_forward.w3.weight"),
        ("down", "model.layers.{L}.feed_forward.w2.weight"),
    ],
};

const QWEN1: Scheme = Scheme {
    parent: None,
    rows: &[
        ("embed", "transformer.wte.weight"),
        ("head", "lm_head.weight"),
        ("norm", "transformer.ln_f.weight"),
        ("norm1", "transformer.h.{L}.ln_1.weight"),
        ("norm2", "transformer.h.{L}.ln_2.weight"),
        ("qkv_cat", "transformer.h.{L}.attn.c_attn.weight"),
        ("o", "transformer.h.{L}.attn.c_proj.weight"),
        ("up", "transformer.h.{L}.mlp.w1.weight"),
        ("gate", "transformer.h.{L}.mlp.w2.weight"),
        ("down", "transformer.h.{L}.mlp.c_proj.weight"),
    ],
};

/// GPT-2 keeps linear layers as `[in, out]`: slots that end in `.T`.
const GPT2: Scheme = Scheme {
    parent: None,
    rows: &[
        ("embed", "transformer.wte.weight"),
        ("positions", "transformer.wpe.weight"),
        ("head", "lm_head.weight"),
        ("norm", "transformer.ln_f.weight"),
        ("norm1", "transformer.h.{L}.ln_1.weight"),
        ("norm2", "transformer.h.{L}.ln_2.weight"),
        ("qkv_cat.T", "transformer.h.{L}.attn.c_attn.weight"),
        ("o.T", "transformer.h.{L}.attn.c_proj.weight"),
        ("fc1.T", "transformer.h.{L}.mlp.c_fc.weight"),
        ("down.T", "transformer.h.{L}.mlp.c_proj.weight"),
    ],
};

const BLOOM: Scheme = Scheme {
    parent: None,
    rows: &[
        ("embed", "transformer.word_embeddings.weight"),
        ("embed_norm", "transformer.word_embeddings_layernorm.weight"),
        ("head", "lm_head.weight"),
        ("norm", "transformer.ln_f.weight"),
        ("norm1", "transformer.h.{L}.input_layernorm.weight"),
        ("norm2", "transformer.h.{L}.post_attention_layernorm.weight"),
        ("qkv_grouped", "transformer.h.{L}.self_attention.query_key_value.weight"),
        ("o", "transformer.h.{L}.self_attention.dense.weight"),
        ("fc1", "transformer.h.{L}.mlp.dense_h_to_4h.weight"),
        ("down", "transformer.h.{L}.mlp.dense_4h_to_h.weight"),
    ],
};

const CHATGLM: Scheme = Scheme {
    parent: None,
    rows: &[
        ("embed", "transformer.embedding.word_embeddings.weight"),
        ("head", "transformer.output_layer.weight"),
        ("norm", "transformer.encoder.final_layernorm.weight"),
        ("norm1", "transformer.encoder.layers.{L}.input_layernorm.weight"),
        ("norm2", "transformer.encoder.layers.{L}.post_attention_layernorm.weight"),
        ("qkv_cat", "transformer.encoder.layers.{L}.self_attention.query_key_value.weight"),
        ("o", "transformer.encoder.layers.{L}.self_attention.dense.weight"),
        ("gate_up", "transformer.encoder.layers.{L}.mlp.dense_h_to_4h.weight"),
        ("down", "transformer.encoder.layers.{L}.mlp.dense_4h_to_h.weight"),
    ],
};

const DEEPSEEK: Scheme = Scheme {
    parent: Some(&EXPERTS),
    rows: &[
        ("q_a", "model.layers.{L}.self_attn.q_a_proj.weight"),
        ("q_a_norm", "model.layers.{L}.self_attn.q_a_layernorm.weight"),
        ("q_b", "model.layers.{L}.self_attn.q_b_proj.weight"),
        ("kv_a", "model.layers.{L}.self_attn.kv_a_proj_with_mqa.weight"),
        ("kv_a_norm", "model.layers.{L}.self_attn.kv_a_layernorm.weight"),
        ("kv_b", "model.layers.{L}.self_attn.kv_b_proj.weight"),
        ("own.self_attention.dsa_indexer.wq_b", "model.layers.{L}.self_attn.indexer.wq_b.weight"),
        ("own.self_attention.dsa_indexer.wk", "model.layers.{L}.self_attn.indexer.wk.weight"),
        ("own.self_attention.dsa_indexer.k_norm", "model.layers.{L}.self_attn.indexer.k_norm.weight"),
        (
            "own.self_attention.dsa_indexer.weights_proj",
            "model.layers.{L}.self_attn.indexer.weights_proj.weight",
        ),
    ],
};

/// DeepSeek-V4's files have the words of its authors' own program.
const DEEPSEEK_V4: Scheme = Scheme {
    parent: None,
    rows: &[
        ("embed", "embed.weight"),
        ("head", "head.weight"),
        ("norm", "norm.weight"),
        ("norm1", "layers.{L}.attn_norm.weight"),
        ("norm2", "layers.{L}.ffn_norm.weight"),
        ("q_norm", "layers.{L}.attn.q_norm.weight"),
        ("kv_a_norm", "layers.{L}.attn.kv_norm.weight"),
        ("q_b", "layers.{L}.attn.wq_b.weight"),
        ("own.self_attention.linear_q", "layers.{L}.attn.wq_a.weight"),
        ("own.self_attention.linear_kv", "layers.{L}.attn.wkv.weight"),
        ("own.self_attention.attn_sink", "layers.{L}.attn.attn_sink"),
        ("own.self_attention.linear_o_down_proj", "layers.{L}.attn.wo_a.weight"),
        ("own.self_attention.linear_o_up_proj", "layers.{L}.attn.wo_b.weight"),
        ("own.self_attention.compressor.ape", "layers.{L}.attn.compressor.ape"),
        ("own.self_attention.compressor.norm", "layers.{L}.attn.compressor.norm.weight"),
        ("own.self_attention.compressor.wgate", "layers.{L}.attn.compressor.wgate.weight"),
        ("own.self_attention.compressor.wkv", "layers.{L}.attn.compressor.wkv.weight"),
        ("own.self_attention.indexer.kv_compressor.ape", "layers.{L}.attn.indexer.compressor.ape"),
        ("own.self_attention.indexer.kv_compressor.norm", "layers.{L}.attn.indexer.compressor.norm.weight"),
        ("own.self_attention.indexer.kv_compressor.wgate", "layers.{L}.attn.indexer.compressor.wgate.weight"),
        ("own.self_attention.indexer.kv_compressor.wkv", "layers.{L}.attn.indexer.compressor.wkv.weight"),
        ("own.self_attention.indexer.wq_b", "layers.{L}.attn.indexer.wq_b.weight"),
        ("own.self_attention.indexer.weights_proj", "layers.{L}.attn.indexer.weights_proj.weight"),
        ("own.attn_mhc.hc_base", "layers.{L}.hc_attn_base"),
        ("own.attn_mhc.hc_fn", "layers.{L}.hc_attn_fn"),
        ("own.attn_mhc.hc_scale", "layers.{L}.hc_attn_scale"),
        ("own.mlp_mhc.hc_base", "layers.{L}.hc_ffn_base"),
        ("own.mlp_mhc.hc_fn", "layers.{L}.hc_ffn_fn"),
        ("own.mlp_mhc.hc_scale", "layers.{L}.hc_ffn_scale"),
        ("own.hc_head.hc_base", "hc_head_base"),
        ("own.hc_head.hc_fn", "hc_head_fn"),
        ("own.hc_head.hc_scale", "hc_head_scale"),
        ("router", "layers.{L}.ffn.gate.weight"),
        ("router_bias", "layers.{L}.ffn.gate.bias"),
        ("own.mlp.router.tid2eid", "layers.{L}.ffn.gate.tid2eid"),
        ("expert.gate", "layers.{L}.ffn.experts.{E}.w1.weight"),
        ("expert.up", "layers.{L}.ffn.experts.{E}.w3.weight"),
        ("expert.down", "layers.{L}.ffn.experts.{E}.w2.weight"),
        ("shared.gate", "layers.{L}.ffn.shared_experts.w1.weight"),
        ("shared.up", "layers.{L}.ffn.shared_experts.w3.weight"),
        ("shared.down", "layers.{L}.ffn.shared_experts.w2.weight"),
        // Prediction layers stand beside the others; vocabulary matrices are shared.
        ("mtp.layer", "mtp.{K}"),
        ("mtp.enorm", "mtp.{K}.enorm.weight"),
        ("mtp.hnorm", "mtp.{K}.hnorm.weight"),
        ("mtp.e_proj", "mtp.{K}.e_proj.weight"),
        ("mtp.h_proj", "mtp.{K}.h_proj.weight"),
        ("mtp.norm", "mtp.{K}.norm.weight"),
        ("mtp.hc_head.hc_base", "mtp.{K}.hc_head_base"),
        ("mtp.hc_head.hc_fn", "mtp.{K}.hc_head_fn"),
        ("mtp.hc_head.hc_scale", "mtp.{K}.hc_head_scale"),
    ],
};

const PLM: Scheme =
    Scheme { parent: Some(&DEEPSEEK), rows: &[("fc1", "model.layers.{L}.mlp.up_proj.weight")] };

const LING: Scheme = Scheme {
    parent: Some(&EXPERTS),
    rows: &[
        ("embed", "model.word_embeddings.weight"),
        ("qkv_cat", "model.layers.{L}.attention.query_key_value.weight"),
        ("q_norm", "model.layers.{L}.attention.query_layernorm.weight"),
        ("k_norm", "model.layers.{L}.attention.key_layernorm.weight"),
        ("o", "model.layers.{L}.attention.dense.weight"),
        ("router_bias", "model.layers.{L}.mlp.gate.expert_bias"),
    ],
};

const HY_V1: Scheme = Scheme {
    parent: Some(&EXPERTS),
    rows: &[
        ("q_norm", "model.layers.{L}.self_attn.query_layernorm.weight"),
        ("k_norm", "model.layers.{L}.self_attn.key_layernorm.weight"),
        ("router", "model.layers.{L}.mlp.gate.wg.weight"),
        ("shared.gate", "model.layers.{L}.mlp.shared_mlp.gate_proj.weight"),
        ("shared.up", "model.layers.{L}.mlp.shared_mlp.up_proj.weight"),
        ("shared.down", "model.layers.{L}.mlp.shared_mlp.down_proj.weight"),
    ],
};

const HY_V3: Scheme = Scheme {
    parent: Some(&HY_V1),
    rows: &[
        ("q_norm", "model.layers.{L}.self_attn.q_norm.weight"),
        ("k_norm", "model.layers.{L}.self_attn.k_norm.weight"),
        ("router", "model.layers.{L}.mlp.router.gate.weight"),
        ("router_bias", "model.layers.{L}.mlp.expert_bias"),
    ],
};

/// gpt-oss stacks its experts, input-major, with gate and up in even and odd columns.
const GPT_OSS: Scheme = Scheme {
    parent: Some(&LLAMA),
    rows: &[
        ("sinks", "model.layers.{L}.self_attn.sinks"),
        ("router", "model.layers.{L}.mlp.router.weight"),
        ("experts.gate_up", "model.layers.{L}.mlp.experts.gate_up_proj"),
        ("experts.down", "model.layers.{L}.mlp.experts.down_proj"),
    ],
};

/// LongCat's layers have two halves: `{S}`.
const LONGCAT: Scheme = Scheme {
    parent: Some(&EXPERTS),
    rows: &[
        ("norm1", "model.layers.{L}.input_layernorm.{S}.weight"),
        ("norm2", "model.layers.{L}.post_attention_layernorm.{S}.weight"),
        ("q", "model.layers.{L}.self_attn.{S}.q_proj.weight"),
        ("q_a", "model.layers.{L}.self_attn.{S}.q_a_proj.weight"),
        ("q_a_norm", "model.layers.{L}.self_attn.{S}.q_a_layernorm.weight"),
        ("q_b", "model.layers.{L}.self_attn.{S}.q_b_proj.weight"),
        ("kv_a", "model.layers.{L}.self_attn.{S}.kv_a_proj_with_mqa.weight"),
        ("kv_a_norm", "model.layers.{L}.self_attn.{S}.kv_a_layernorm.weight"),
        ("kv_b", "model.layers.{L}.self_attn.{S}.kv_b_proj.weight"),
        ("o", "model.layers.{L}.self_attn.{S}.o_proj.weight"),
        ("gate", "model.layers.{L}.mlps.{S}.gate_proj.weight"),
        ("up", "model.layers.{L}.mlps.{S}.up_proj.weight"),
        ("down", "model.layers.{L}.mlps.{S}.down_proj.weight"),
        ("router", "model.layers.{L}.mlp.router.classifier.weight"),
        ("router_bias", "model.layers.{L}.mlp.router.e_score_correction_bias"),
    ],
};

/// Step-3.5 has its experts beside the dense network, all in one tensor for each part.
const STEP3P5: Scheme = Scheme {
    parent: Some(&LLAMA),
    rows: &[
        ("head_gate", "model.layers.{L}.self_attn.g_proj.weight"),
        ("router", "model.layers.{L}.moe.gate.weight"),
        ("router_bias", "model.layers.{L}.moe.router_bias"),
        ("experts.gate.stacked", "model.layers.{L}.moe.gate_proj.weight"),
        ("experts.up.stacked", "model.layers.{L}.moe.up_proj.weight"),
        ("experts.down.stacked", "model.layers.{L}.moe.down_proj.weight"),
        ("shared.gate", "model.layers.{L}.share_expert.gate_proj.weight"),
        ("shared.up", "model.layers.{L}.share_expert.up_proj.weight"),
        ("shared.down", "model.layers.{L}.share_expert.down_proj.weight"),
    ],
};

const MAMBA2: Scheme = Scheme {
    parent: None,
    rows: &[
        ("embed", "backbone.embeddings.weight"),
        ("head", "lm_head.weight"),
        ("norm", "backbone.norm_f.weight"),
        ("norm1", "backbone.layers.{L}.norm.weight"),
        ("own.mixer.A_log", "backbone.layers.{L}.mixer.A_log"),
        ("own.mixer.D", "backbone.layers.{L}.mixer.D"),
        ("own.mixer.dt_bias", "backbone.layers.{L}.mixer.dt_bias"),
        ("own.mixer.conv1d", "backbone.layers.{L}.mixer.conv1d.weight"),
        ("own.mixer.in_proj", "backbone.layers.{L}.mixer.in_proj.weight"),
        ("own.mixer.norm", "backbone.layers.{L}.mixer.norm.weight"),
        ("own.mixer.out_proj", "backbone.layers.{L}.mixer.out_proj.weight"),
    ],
};

const MAMBA3: Scheme = Scheme {
    parent: None,
    rows: &[
        ("embed", "model.embeddings.weight"),
        // The class gives it at least 200000 rows, and the output layer as many as the vocabulary has.
        ("embed.surplus", "model.embeddings.weight"),
        ("head", "lm_head.weight"),
        ("norm", "model.norm_f.weight"),
        ("own.mixer.B_bias", "model.layers.{L}.mamba.B_bias"),
        ("own.mixer.B_norm", "model.layers.{L}.mamba.B_norm.weight"),
        ("own.mixer.C_bias", "model.layers.{L}.mamba.C_bias"),
        ("own.mixer.C_norm", "model.layers.{L}.mamba.C_norm.weight"),
        ("own.mixer.D", "model.layers.{L}.mamba.D"),
        ("own.mixer.dt_bias", "model.layers.{L}.mamba.dt_bias"),
        ("own.mixer.in_proj", "model.layers.{L}.mamba.in_proj.weight"),
        ("own.mixer.mimo_o", "model.layers.{L}.mamba.mimo_o"),
        ("own.mixer.mimo_x", "model.layers.{L}.mamba.mimo_x"),
        ("own.mixer.mimo_z", "model.layers.{L}.mamba.mimo_z"),
        ("own.mixer.out_proj", "model.layers.{L}.mamba.out_proj.weight"),
    ],
};

/// Other spellings of a tensor that some files have.
pub(super) const ALIASES: &[(&str, &str)] = &[("backbone.embeddings.weight", "backbone.embedding.weight")];

/// How a program spells tensors of a family otherwise.
struct Respelling {
    family: Family,
    /// What its names begin with.
    prefix: &'static str,
    /// Names behind that, and the usual ones.
    names: &'static [(&'static str, &'static str)],
    /// Parts of the other names, and the usual ones.
    parts: &'static [(&'static str, &'static str)],
}

/// transformers 5.23 writes DeepSeek-V4 under names that are half its own.
const RESPELLED: &[Respelling] = &[Respelling {
    family: Family::DeepseekV4,
    prefix: "model.",
    names: &[("embed_tokens.weight", "embed.weight"), ("lm_head.weight", "head.weight")],
    parts: &[("hc_head.hc_", "hc_head_"), (".attn.norm.", ".attn.kv_norm.")],
}];

/// The usual name of a tensor that a program spells otherwise.
pub(super) fn usual(family: Family, name: &str) -> Option<String> {
    let Respelling { prefix, names, parts, .. } = RESPELLED.iter().find(|r| r.family == family)?;
    let inner = name.strip_prefix(prefix).unwrap_or(name);
    let inner = match names.iter().find(|(theirs, _)| *theirs == inner) {
        Some((_, usual)) => (*usual).to_owned(),
        None => parts.iter().fold(inner.to_owned(), |name, (theirs, usual)| name.replace(theirs, usual)),
    };
    (inner != name).then_some(inner)
}

/// The names of a family's tensors.
pub(super) fn of(family: Family) -> &'static Scheme {
    match family {
        Family::Qwen2Moe => &SINGLE_SHARED,
        Family::Qwen3Moe | Family::Glm4Moe => &EXPERTS,
        Family::Qwen3Next => &QWEN3_NEXT,
        Family::Mixtral | Family::MiniMaxM2 | Family::PhiMoe => &MIXTRAL,
        Family::MiniCpm => &MINICPM,
        Family::Phi3 => &PHI3,
        Family::Glm => &GLM,
        Family::Glm4 => &GLM4,
        Family::Baichuan => &BAICHUAN,
        Family::Gemma2 => &GEMMA2,
        Family::Olmo2 => &OLMO2,
        Family::InternLm2 => &INTERNLM2,
        Family::Qwen1 => &QWEN1,
        Family::Gpt2 => &GPT2,
        Family::Bloom => &BLOOM,
        Family::ChatGlm => &CHATGLM,
        Family::MiniCpm3
        | Family::DeepseekV2
        | Family::DeepseekV3
        | Family::KimiK2
        | Family::DeepseekV32
        | Family::GlmMoeDsa => &DEEPSEEK,
        Family::DeepseekV4 => &DEEPSEEK_V4,
        Family::Plm => &PLM,
        Family::Ling => &LING,
        Family::HunyuanMoe => &HY_V1,
        Family::HyV3 => &HY_V3,
        Family::GptOss => &GPT_OSS,
        Family::LongCat => &LONGCAT,
        Family::Step3p5 => &STEP3P5,
        Family::Mamba2 => &MAMBA2,
        Family::Mamba3 => &MAMBA3,
        Family::Llama
        | Family::Mistral
        | Family::Qwen2
        | Family::Qwen3
        | Family::Aquila
        | Family::InternLm
        | Family::InternLm3
        | Family::SeedOss
        | Family::Gemma
        | Family::Granite
        | Family::Megatron => &LLAMA,
    }
}
