//! DeepSeek-V4: the published form of its configuration, and transformers' own.
//!
//! # Source
//! transformers 5.23, `models/deepseek_v4/configuration_deepseek_v4.py`; for field names of published files also
//! MindSpeed-LLM (2026), `configs/checkpoint/model_cfg.json`.

use serde_json::{Map, Value, json};

use crate::field::{Field, Writer};
use crate::hf::class::{Class, class};
use crate::hf::common::{ACTIVATION, NAMES, NO_DROPOUT, head_dim, heads, sizes};
use crate::hf::latent::INDEXER;
use crate::hf::moe::{self, ROUTER, SCALE, router, set_layers, shared};
use crate::hf::tensors::{Respelling, Tensors};
use crate::hf::{Dialect, Fields, rope};
use crate::sizes::{
    Activation, Attention, Compressed, HyperConnections, Indexer, Layer, Pooled, Router, RouterDtype, Score,
};
use crate::{Error, Family, ModelConfig, Result, Rope, RopeScaling};

/// The classes of this file. A model without a class gets the first one that can describe it.
pub(super) const CLASSES: &[Class] = &[DEEPSEEK_V4];

const WINDOW: &str = "sliding_attention";
const PICKED: &str = "compressed_sparse_attention";
const ALL: &str = "heavily_compressed_attention";
/// Tokens of an entry where nothing is said: of those that an indexer picks, and of those that all are seen.
const RATIOS: [usize; 2] = [4, 128];
const BASE: f64 = 160_000.0;
const HASHED: usize = 3;

/// DeepSeek-V4: hyper-connections, attention to pooled entries, experts by a table of tokens.
const DEEPSEEK_V4: Class = class!(
    Family::new("DeepseekV4", &DEEPSEEK_V4_TENSORS).respelled(&TRANSFORMERS),
    ["deepseek_v4"],
    "DeepseekV4ForCausalLM",
    |c| {
        let rope = Rope { fraction: 0.125, interleaved: true, ..Rope::plain(10_000.0) };
        let far = Rope { base: BASE, ..rope.clone() };
        let attention = Compressed { q_rank: 1024, out_groups: 8, out_rank: 1024, rope: far };
        let choice = Router {
            score: Score::SqrtSoftplus,
            bias: true,
            renormalise: true,
            scale: 1.5,
            dtype: RouterDtype::F32,
            ..ROUTER
        };
        c.head_dim = 512;
        c.groups = 1;
        c.max_positions = 1_048_576;
        c.sliding_window = Some(128);
        c.activation = Activation::SwigluBounded { limit: 10.0 };
        c.rope = rope;
        c.attention = Attention::Compressed(attention);
        c.indexer = Some(Indexer { heads: 64, head_dim: 128, top_k: 512, interleaved: true });
        c.hyper = Some(HyperConnections { streams: 4, rounds: 20, eps: 1e-6 });
        c.moe = moe::experts(choice);
        c.scores.sinks = true;
    },
    &[
        &sizes(NAMES),
        &[
            heads(NAMES)[0],
            // There are only experts: their width is that of the model's MLPs.
            heads(NAMES)[1].or(&["moe_intermediate_size", "intermediate_size"]),
            head_dim("head_dim"),
            Field::size("num_key_value_heads", |c| Some(&mut c.groups)),
            Field::told("attention_bias", |_| json!(false)),
            NO_DROPOUT,
            ACTIVATION,
            Field::maybe_size("sliding_window", |c| Some(&mut c.sliding_window)),
            Field::size("q_lora_rank", |c| Some(&mut compressed(c)?.q_rank)),
            Field::size("o_groups", |c| Some(&mut compressed(c)?.out_groups)),
            Field::size("o_lora_rank", |c| Some(&mut compressed(c)?.out_rank)),
            Field::rule(read_ropes, write_ropes),
            Field::size("hc_mult", |c| Some(&mut c.hyper.as_mut()?.streams)),
            Field::size("hc_sinkhorn_iters", |c| Some(&mut c.hyper.as_mut()?.rounds)),
            Field::float("hc_eps", |c| Some(&mut c.hyper.as_mut()?.eps)),
            Field::float_as(
                "swiglu_limit",
                |c| match c.activation {
                    Activation::SwigluBounded { limit } => Some(limit),
                    _ => Some(0.0),
                },
                |c, limit| {
                    let bounded = limit > 0.0;
                    c.activation =
                        if bounded { Activation::SwigluBounded { limit } } else { Activation::Swiglu };
                },
            ),
            INDEXER[0],
            INDEXER[1],
            INDEXER[2],
        ],
        &[
            Field::size("n_routed_experts", |c| Some(&mut moe::moe(c)?.experts))
                .or(&["n_routed_experts", "num_local_experts"])
                .needed(),
            Field::size("num_experts_per_tok", |c| Some(&mut moe::moe(c)?.top_k)).needed(),
            Field::size("moe_intermediate_size", |c| Some(&mut moe::moe(c)?.ffn)).needed(),
            shared("n_shared_experts").else_by(moe::one_shared),
            // The published class has no such field, transformers' does not read it: both always divide.
            Field::only("norm_topk_prob", true, "weights of experts that are not divided by their sum"),
            SCALE,
            Field::told("topk_method", |_| json!("noaux_tc")),
            Field::word("scoring_func", score_word, take_score, |_| &["sqrtsoftplus", "sigmoid", "softmax"]),
            Field::rule(read_layers, write_layers),
        ],
    ],
    lacks
);

fn compressed(c: &mut ModelConfig) -> Option<&mut Compressed> {
    match &mut c.attention {
        Attention::Compressed(a) => Some(a),
        _ => None,
    }
}

fn score_word(c: &ModelConfig) -> Option<&'static str> {
    Some(match c.moe.as_ref()?.router.score {
        Score::Sigmoid => "sigmoid",
        Score::SqrtSoftplus => "sqrtsoftplus",
        _ => "softmax",
    })
}

fn take_score(c: &mut ModelConfig, word: &str) -> bool {
    let score = match word {
        "sqrtsoftplus" => Score::SqrtSoftplus,
        "sigmoid" => Score::Sigmoid,
        "softmax" => Score::Softmax,
        _ => return false,
    };
    router(c).into_iter().for_each(|r| r.score = score);
    true
}

/// Every layer has experts; what else they have, layer by layer.
fn read_layers(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let pooled = pooled(f, c.layers)?;
    let hashed = hashed(f, c.layers)?;
    let layer = |(pooled, hashed)| Layer { pooled, hashed, ..Layer::default() };
    c.pattern = pooled.into_iter().zip(hashed).map(layer).collect();
    let experts = vec![c.moe.is_some(); c.layers];
    set_layers(c, &experts);
    Ok(())
}

/// The rotation of layers that see a window alone, and that of the others.
fn read_ropes(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let parameters = f.object("rope_parameters")?;
    let part = |name| parameters.map(|p| p.object(name)).transpose().map(Option::flatten);
    let (main, compress) = (part("main")?, part("compress")?);
    let given = f.size_of(&["qk_rope_head_dim", "rope_head_dim"])?;
    let fraction = match (f.float("partial_rotary_factor")?, given) {
        (Some(fraction), _) => fraction,
        (None, Some(rotated)) => share(rotated, c.head_dim),
        (None, None) => c.rope.fraction,
    };
    let empty = Map::new();
    let nothing = Fields { source: f.source, map: &empty, asked: None };
    let flat = match parameters {
        Some(flat) => Some(flat),
        None => f.object("rope_scaling")?,
    };
    let rope = |own: Option<Fields<'_>>, base: Option<f64>, default: f64, scaling: Fields<'_>| {
        let said = own.map(|o| o.float("rope_theta")).transpose()?.flatten();
        let scaling = rope::scaling_of(f, &scaling, c.max_positions)?;
        Ok::<_, Error>(Rope {
            base: said.or(base).unwrap_or(default),
            fraction,
            interleaved: c.rope.interleaved,
            scaling,
            divided: 1.0,
        })
    };
    let own = rope(main, f.float("rope_theta")?, c.rope.base, main.unwrap_or(nothing))?;
    let stretched = compress.or(flat).unwrap_or(nothing);
    let mut far = rope(compress, f.float("compress_rope_theta")?, BASE, stretched)?;
    // Cosine and sine are not scaled, unless the file says so.
    if let RopeScaling::Yarn { attention_factor, mscale, .. } = &mut far.scaling {
        attention_factor.get_or_insert(1.0);
        *mscale = None;
    }
    c.rope = own;
    compressed(c).into_iter().for_each(|a| a.rope = far.clone());
    Ok(())
}

/// The share of a head that `rotated` elements are, so that the product is not rounded below them.
fn share(rotated: usize, head_dim: usize) -> f64 {
    let fraction = rotated as f64 / head_dim.max(1) as f64;
    if ((head_dim as f64 * fraction) as usize) < rotated { fraction.next_up() } else { fraction }
}

/// Entries of each layer, in any of the ways to say it.
fn pooled(f: &Fields<'_>, layers: usize) -> Result<Vec<Option<Pooled>>> {
    let rates = f.object("compress_rates")?;
    let rate = |listed: &'static str, alone: &'static str, default| -> Result<usize> {
        let listed = rates.map(|r| r.size(listed)).transpose()?.flatten();
        Ok(f.size(alone)?.or(listed).unwrap_or(default))
    };
    let (few, many) =
        (rate(PICKED, "compress_rate_csa", RATIOS[0])?, rate(ALL, "compress_rate_hca", RATIOS[1])?);
    let picked = Some(Pooled { ratio: few, picked: true });
    let all = |ratio| Some(Pooled { ratio, picked: false });
    if let Some(types) = f.texts("layer_types")? {
        let of = |kind: &&str| match *kind {
            WINDOW => Ok(None),
            PICKED => Ok(picked),
            ALL => Ok(all(many)),
            other => Err(f.unsupported(format!("layer type `{other}` is not supported"))),
        };
        return types.iter().map(of).collect();
    }
    if let Some(ratios) = f.sizes("compress_ratios")? {
        let of = |&ratio: &usize| match ratio {
            0 | 1 => None,
            _ if ratio == few => picked,
            _ => all(ratio),
        };
        // Prediction layers, and reserved entries, follow the others.
        return Ok(ratios.iter().take(layers).map(of).collect());
    }
    Ok((0..layers).map(|l| if l >= 2 && l % 2 == 1 { picked } else { all(many) }).collect())
}

fn hashed(f: &Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    if let Some(types) = f.texts("mlp_layer_types")? {
        let of = |kind: &&str| match *kind {
            "hash_moe" => Ok(true),
            "moe" => Ok(false),
            other => Err(f.unsupported(format!("layer type `{other}` is not supported"))),
        };
        return types.iter().map(of).collect();
    }
    let first = f.size("num_hash_layers")?.unwrap_or(HASHED);
    Ok((0..layers).map(|l| l < first).collect())
}

fn write_ropes(c: &ModelConfig, w: &mut Writer) {
    let Some(a) = c.compressed() else { return };
    w.set("qk_rope_head_dim", json!(c.rope.rotated(c.head_dim)));
    w.set("partial_rotary_factor", json!(c.rope.fraction));
    w.set("rope_theta", json!(c.rope.base));
    w.set("compress_rope_theta", json!(a.rope.base));
    if w.dialect == Dialect::V4 && c.rope.scaling == RopeScaling::None {
        let scaling = rope::scaling_object(&a.rope).map(|mut s| {
            if s.get("attention_factor") == Some(&json!(1.0)) {
                s.remove("attention_factor");
            }
            Value::Object(s)
        });
        return w.set("rope_scaling", scaling.unwrap_or(Value::Null));
    }
    let one = |rope: &Rope| {
        let mut s = rope::scaling_object(rope).unwrap_or_else(rope::plain_object);
        s.insert("rope_theta".to_owned(), json!(rope.base));
        s.insert("partial_rotary_factor".to_owned(), json!(rope.fraction));
        Value::Object(s)
    };
    w.set("rope_parameters", json!({"main": one(&c.rope), "compress": one(&a.rope)}));
}

fn write_layers(c: &ModelConfig, w: &mut Writer) {
    let layers: Vec<Layer> = (0..c.layers).map(|l| c.layer(l)).collect();
    let ratios = layers.iter().map(|l| l.pooled.map_or(0, |p| p.ratio));
    w.set("compress_ratios", ratios.chain((0..c.mtp).map(|_| 0)).collect());
    let ratio = |picked| layers.iter().filter_map(|l| l.pooled).find(|p| p.picked == picked).map(|p| p.ratio);
    let [few, many] = [(true, 0), (false, 1)].map(|(picked, i)| ratio(picked).unwrap_or(RATIOS[i]));
    if [few, many] != RATIOS {
        let kind = |l: &Layer| l.pooled.map_or(WINDOW, |p| if p.picked { PICKED } else { ALL });
        w.set("layer_types", layers.iter().map(kind).collect());
        w.set("compress_rates", json!({PICKED: few, ALL: many}));
    }
    let leading = layers.iter().take_while(|l| l.hashed).count();
    w.set("num_hash_layers", json!(leading));
    if layers.iter().skip(leading).any(|l| l.hashed) {
        let kind = |l: &Layer| if l.hashed { "hash_moe" } else { "moe" };
        w.set("mlp_layer_types", layers.iter().map(kind).collect());
    }
}

fn lacks(c: &ModelConfig) -> Option<&'static str> {
    let pooled = || (0..c.layers).filter_map(|l| c.layer(l).pooled);
    let same = |picked| {
        let mut ratios = pooled().filter(|p| p.picked == picked).map(|p| p.ratio);
        let first = ratios.next();
        ratios.all(|r| Some(r) == first)
    };
    (!same(true) || !same(false)).then_some("entries of more than two sizes")
}

/// DeepSeek-V4's files have the names of its authors' own program.
const DEEPSEEK_V4_TENSORS: Tensors = Tensors {
    parent: None,
    rows: &[
        ("embed", "embed.weight"),
        ("head", "head.weight"),
        ("norm", "norm.weight"),
        ("norm1", "layers.{L}.attn_norm.weight"),
        ("norm2", "layers.{L}.ffn_norm.weight"),
        ("q_a_norm", "layers.{L}.attn.q_norm.weight"),
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
        // Prediction layers are stored separately; vocabulary matrices are shared.
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

/// transformers 5.23 writes it under names that are half its own.
const TRANSFORMERS: Respelling = Respelling {
    prefix: "model.",
    names: &[("embed_tokens.weight", "embed.weight"), ("lm_head.weight", "head.weight")],
    parts: &[("hc_head.hc_", "hc_head_"), (".attn.norm.", ".attn.kv_norm.")],
};
