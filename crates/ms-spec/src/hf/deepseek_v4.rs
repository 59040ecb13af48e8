//! DeepSeek-V4: the published form of its configuration, and transformers' own.
//!
//! # Source
//! transformers 5.23, `models/deepseek_v4/configuration_deepseek_v4.py`; for the words of published files also
//! MindSpeed-LLM (2026), `configs/checkpoint/model_cfg.json`.

use serde_json::{Map, Value, json};

use super::write::Writer;
use super::{Dialect, Fields, rope};
use crate::family::Row;
use crate::parts::{
    Activation, Attention, Compressed, HyperConnections, Indexer, Layer, Moe, Pooled, Router, Score,
    SharedExpert,
};
use crate::{Error, ModelConfig, Result, Rope, RopeScaling};

const WINDOW: &str = "sliding_attention";
const PICKED: &str = "compressed_sparse_attention";
const ALL: &str = "heavily_compressed_attention";
/// Tokens of an entry where nothing is said: of those that an indexer picks, and of those that all are seen.
const RATIOS: [usize; 2] = [4, 128];
const BASE: f64 = 160_000.0;
const HASHED: usize = 3;

/// What is read before the experts.
pub(super) fn read(f: &Fields<'_>, row: &Row, c: &mut ModelConfig) -> Result<()> {
    let size = |field, default| Ok::<_, Error>(f.size(field)?.unwrap_or(default));
    let (main, far) = ropes(f, row, c)?;
    c.rope = main;
    c.attention = Attention::Compressed(Compressed {
        q_rank: size("q_lora_rank", 1024)?,
        out_groups: size("o_groups", 8)?,
        out_rank: size("o_lora_rank", 1024)?,
        rope: far,
    });
    c.groups = size("num_key_value_heads", 1)?;
    c.scores.sinks = true;
    c.indexer = Some(Indexer {
        heads: size("index_n_heads", 64)?,
        head_dim: size("index_head_dim", 128)?,
        top_k: size("index_topk", 512)?,
        interleaved: true,
    });
    c.hyper = Some(HyperConnections {
        streams: size("hc_mult", 4)?,
        rounds: size("hc_sinkhorn_iters", 20)?,
        eps: f.float("hc_eps")?.unwrap_or(1e-6),
    });
    let limit = f.float("swiglu_limit")?.unwrap_or(10.0);
    c.activation = if limit > 0.0 { Activation::SwigluBounded { limit } } else { Activation::Swiglu };
    let pooled = pooled(f, c.layers)?;
    let hashed = hashed(f, c.layers)?;
    let layer = |(pooled, hashed)| Layer { pooled, hashed, ..Layer::default() };
    c.pattern = pooled.into_iter().zip(hashed).map(layer).collect();
    Ok(())
}

/// The rotation of layers that see a window alone, and that of the others.
fn ropes(f: &Fields<'_>, row: &Row, c: &ModelConfig) -> Result<(Rope, Rope)> {
    let parameters = f.object("rope_parameters")?;
    let part = |name| parameters.map(|p| p.object(name)).transpose().map(Option::flatten);
    let (main, compress) = (part("main")?, part("compress")?);
    let given = f.size_of(&["qk_rope_head_dim", "rope_head_dim"])?;
    let fraction = match (f.float("partial_rotary_factor")?, given) {
        (Some(fraction), _) => fraction,
        (None, Some(rotated)) => share(rotated, c.head_dim),
        (None, None) => row.fraction,
    };
    let empty = Map::new();
    let nothing = Fields { source: f.source, map: &empty };
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
            interleaved: row.interleaved,
            scaling,
        })
    };
    let own = rope(main, f.float("rope_theta")?, row.rope_base, main.unwrap_or(nothing))?;
    let stretched = compress.or(flat).unwrap_or(nothing);
    let mut far = rope(compress, f.float("compress_rope_theta")?, BASE, stretched)?;
    // Cosine and sine are not scaled, unless the file says so.
    if let RopeScaling::Yarn { attention_factor, mscale, .. } = &mut far.scaling {
        attention_factor.get_or_insert(1.0);
        *mscale = None;
    }
    Ok((own, far))
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
        // Prediction layers, and what is reserved, stand behind the others.
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

/// The experts; every layer has some.
pub(super) fn experts(f: &Fields<'_>) -> Result<Moe> {
    let ffn = f.need("moe_intermediate_size")?;
    let score = match f.text("scoring_func")?.unwrap_or("sqrtsoftplus") {
        "sqrtsoftplus" => Score::SqrtSoftplus,
        "sigmoid" => Score::Sigmoid,
        "softmax" => Score::Softmax,
        other => return Err(f.unsupported(format!("scoring function `{other}` is not supported"))),
    };
    let shared = f.size("n_shared_experts")?.unwrap_or(1);
    Ok(Moe {
        experts: f.need_of(&["n_routed_experts", "num_local_experts"])?,
        top_k: f.need("num_experts_per_tok")?,
        ffn,
        router: Router {
            score,
            bias: true,
            linear_bias: false,
            groups: None,
            renormalise: f.flag("norm_topk_prob")?.unwrap_or(true),
            scale: f.float("routed_scaling_factor")?.unwrap_or(1.5),
            f32: true,
        },
        shared: (shared > 0).then_some(SharedExpert { ffn: shared.saturating_mul(ffn), gate: false }),
        zero_experts: 0,
    })
}

/// Everything but sizes that all have: the published form, with the words of transformers' class where it has none.
pub(super) fn write(w: &mut Writer, c: &ModelConfig, dialect: Dialect) {
    let Some(a) = c.compressed() else { return };
    w.set("head_dim", json!(c.head_dim));
    w.set("num_key_value_heads", json!(c.groups));
    w.set("q_lora_rank", json!(a.q_rank));
    w.set("o_groups", json!(a.out_groups));
    w.set("o_lora_rank", json!(a.out_rank));
    w.set("attention_bias", json!(false));
    w.set("attention_dropout", json!(0.0));
    w.set("sliding_window", json!(c.sliding_window));
    if let Some(i) = &c.indexer {
        w.set("index_n_heads", json!(i.heads));
        w.set("index_head_dim", json!(i.head_dim));
        w.set("index_topk", json!(i.top_k));
    }
    if let Some(h) = &c.hyper {
        w.set("hc_mult", json!(h.streams));
        w.set("hc_sinkhorn_iters", json!(h.rounds));
        w.set("hc_eps", json!(h.eps));
    }
    w.set(
        "swiglu_limit",
        match c.activation {
            Activation::SwigluBounded { limit } => json!(limit),
            _ => json!(0.0),
        },
    );
    write_ropes(w, c, a, dialect);
    write_layers(w, c);
    let Some(moe) = &c.moe else { return };
    w.set("n_routed_experts", json!(moe.experts));
    w.set("num_experts_per_tok", json!(moe.top_k));
    w.set("moe_intermediate_size", json!(moe.ffn));
    w.set("n_shared_experts", json!(moe.shared.map_or(0, |s| s.ffn / moe.ffn.max(1))));
    w.set("norm_topk_prob", json!(moe.router.renormalise));
    w.set("routed_scaling_factor", json!(moe.router.scale));
    w.set("topk_method", json!("noaux_tc"));
    w.set(
        "scoring_func",
        json!(match moe.router.score {
            Score::Sigmoid => "sigmoid",
            Score::SqrtSoftplus => "sqrtsoftplus",
            _ => "softmax",
        }),
    );
}

fn write_ropes(w: &mut Writer, c: &ModelConfig, a: &Compressed, dialect: Dialect) {
    w.set("qk_rope_head_dim", json!(c.rope.rotated(c.head_dim)));
    w.set("partial_rotary_factor", json!(c.rope.fraction));
    w.set("rope_theta", json!(c.rope.base));
    w.set("compress_rope_theta", json!(a.rope.base));
    let plain = || Map::from_iter([("rope_type".to_owned(), json!("default"))]);
    if dialect == Dialect::V4 && c.rope.scaling == RopeScaling::None {
        let scaling = rope::scaling_object(&a.rope).map(|mut s| {
            if s.get("attention_factor") == Some(&json!(1.0)) {
                s.remove("attention_factor");
            }
            Value::Object(s)
        });
        return w.set("rope_scaling", scaling.unwrap_or(Value::Null));
    }
    let one = |rope: &Rope| {
        let mut s = rope::scaling_object(rope).unwrap_or_else(plain);
        s.insert("rope_theta".to_owned(), json!(rope.base));
        s.insert("partial_rotary_factor".to_owned(), json!(rope.fraction));
        Value::Object(s)
    };
    w.set("rope_parameters", json!({"main": one(&c.rope), "compress": one(&a.rope)}));
}

fn write_layers(w: &mut Writer, c: &ModelConfig) {
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

/// Refuses what the class has no words for.
pub(super) fn check(c: &ModelConfig) -> Result<()> {
    let pooled = || (0..c.layers).filter_map(|l| c.layer(l).pooled);
    let same = |picked| {
        let mut ratios = pooled().filter(|p| p.picked == picked).map(|p| p.ratio);
        let first = ratios.next();
        ratios.all(|r| Some(r) == first)
    };
    match same(true) && same(false) {
        true => Ok(()),
        false => Err(Error::Unsupported {
            source_name: super::SOURCE,
            what: "entries of more than two sizes have no form in DeepSeek-V4's configuration".to_owned(),
        }),
    }
}
