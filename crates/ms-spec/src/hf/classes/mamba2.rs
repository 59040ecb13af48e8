//! Mamba2: one kind of layer, without attention.

use serde_json::json;

use crate::field::Field;
use crate::fields::Fields;
use crate::hf::class::{Class, class};
use crate::hf::common::{ACTIVATION, NAMES, Names, recurrent, sizes};
use crate::hf::tensors::{Respelling, Tensors};
use crate::sizes::{Feed, Layer, Mamba2, Mixer};
use crate::{Error, Family, ModelConfig, Result};

/// The classes of this file. Of those that can say a model that has none, the first is taken.
pub(super) const CLASSES: &[Class] = &[MAMBA2];

fn mixer(c: &mut ModelConfig) -> Option<&mut Mamba2> {
    c.mamba2.as_mut()
}

/// Mamba2.
const MAMBA2: Class = class!(
    Family::new("Mamba2", &MAMBA2_TENSORS).respelled(&SINGULAR),
    ["mamba2"],
    "Mamba2ForCausalLM",
    |c| {
        c.norm_eps = 1e-5;
        c.init_std = 0.1;
        c.mamba2 = Some(Mamba2 {
            heads: 0,
            head_dim: 64,
            groups: 8,
            state: 128,
            conv: 4,
            chunk: 256,
            bias: false,
            conv_bias: true,
            dt_limit: (0.0, None),
            dt_init: (0.001, 0.1),
            residual_f32: true,
            norm_eps: 0.0,
        });
    },
    &[
        &sizes(Names { eps: "layer_norm_epsilon", ..NAMES }),
        &[
            ACTIVATION,
            Field::size("head_dim", |c| Some(&mut mixer(c)?.head_dim)),
            Field::rule(read_heads, |c, w| {
                if let Some(m) = &c.mamba2 {
                    w.set("num_heads", json!(m.heads));
                    w.set("expand", json!(m.inner() / c.hidden.max(1)));
                }
            }),
            Field::size("n_groups", |c| Some(&mut mixer(c)?.groups)),
            Field::size("state_size", |c| Some(&mut mixer(c)?.state)),
            Field::size("conv_kernel", |c| Some(&mut mixer(c)?.conv)),
            Field::size("chunk_size", |c| Some(&mut mixer(c)?.chunk)),
            Field::flag("use_bias", |c| Some(&mut mixer(c)?.bias)),
            Field::flag("use_conv_bias", |c| Some(&mut mixer(c)?.conv_bias)),
            Field::flag("residual_in_fp32", |c| Some(&mut mixer(c)?.residual_f32)),
            Field::float("time_step_min", |c| Some(&mut mixer(c)?.dt_init.0)),
            Field::float("time_step_max", |c| Some(&mut mixer(c)?.dt_init.1)),
            Field::rule(read_limits, |c, w| {
                // Left out, the limits are 0 and infinity; JSON has no word for the second.
                if let Some((low, Some(high))) = c.mamba2.map(|m| m.dt_limit) {
                    w.set("time_step_limit", json!([low, high]));
                }
            }),
            Field::told("rms_norm", |_| json!(true)),
            Field::then(|c| {
                let eps = c.norm_eps;
                mixer(c).into_iter().for_each(|m| m.norm_eps = eps);
                recurrent(c, Layer { mixer: Mixer::Mamba2, feed: Feed::None, ..Layer::default() });
            }),
        ],
    ],
);

fn read_heads(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let (expand, hidden) = (f.size("expand")?.unwrap_or(2), c.hidden);
    let Some(m) = mixer(c) else { return Ok(()) };
    let inner = expand.saturating_mul(hidden);
    m.heads = f.size("num_heads")?.unwrap_or(inner / m.head_dim.max(1));
    match m.heads.checked_mul(m.head_dim) {
        Some(width) if width == inner => Ok(()),
        _ => {
            let (heads, head_dim) = (m.heads, m.head_dim);
            Err(Error::inconsistent(format!("{heads} heads of {head_dim} are not {expand} times {hidden}")))
        }
    }
}

fn read_limits(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let Some(pair) = f.get("time_step_limit") else { return Ok(()) };
    let limit = match pair.as_array().map(Vec::as_slice) {
        Some([low, high]) if low.is_number() && high.is_number() => {
            (low.as_f64().unwrap_or(0.0), high.as_f64())
        }
        // Python writes an infinite limit as a bare word, which readers of JSON turn into text or null; transformers 5 writes an
        // object of its own.
        Some([low, high])
            if low.is_number()
                && (high.is_null() || high == "Infinity" || high["__float__"] == "Infinity") =>
        {
            (low.as_f64().unwrap_or(0.0), None)
        }
        _ => return Err(f.wrong("time_step_limit", "two numbers", pair)),
    };
    mixer(c).into_iter().for_each(|m| m.dt_limit = limit);
    Ok(())
}

const MAMBA2_TENSORS: Tensors = Tensors {
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

/// Some files have the embedding in the singular.
const SINGULAR: Respelling = Respelling {
    prefix: "",
    names: &[("backbone.embedding.weight", "backbone.embeddings.weight")],
    parts: &[],
};
