//! Pure state-space models: one kind of recurrent layer, no attention.
//!
//! Upstream's class for Mamba3 fixes the sizes of a layer: of the fields its block would take, it passes on `hidden_size` and
//! `is_mimo` only. The others are read if given, under the names that its block or its configuration uses.

use serde_json::json;

use crate::field::{Field, Writer};
use crate::fields::Fields;
use crate::hf::class::{Class, class};
use crate::hf::common::{ACTIVATION, NAMES, Names, recurrent, sizes};
use crate::hf::tensors::{Respelling, Tensors};
use crate::sizes::{Feed, Layer, Mamba2, Mamba3, Mixer};
use crate::{Error, Family, ModelConfig, Result};

/// The classes of this file. A model without a class gets the first one that can describe it.
pub(super) const CLASSES: &[Class] = &[MAMBA2, MAMBA3];

/// Classes without positions have no longest sequence; this one is longer than any that is computed.
const NO_WINDOW: usize = 1 << 20;

fn mamba2(c: &mut ModelConfig) -> Option<&mut Mamba2> {
    c.mamba2.as_mut()
}

/// Mamba2.
const MAMBA2: Class = class!(
    Family::new("Mamba2", &MAMBA2_TENSORS).respelled(&SINGULAR),
    ["mamba2"],
    "Mamba2ForCausalLM",
    |c| {
        c.max_positions = NO_WINDOW;
        c.norm_eps = 1e-5;
        c.init_std = 0.1;
        c.mamba2 = Some(crate::parts::mamba2::USUAL);
    },
    &[
        &sizes(Names { eps: "layer_norm_epsilon", ..NAMES }),
        &[
            ACTIVATION,
            Field::size("head_dim", |c| Some(&mut mamba2(c)?.head_dim)),
            Field::rule(read_heads, |c, w| {
                if let Some(m) = &c.mamba2 {
                    w.set("num_heads", json!(m.heads));
                    w.set("expand", json!(m.inner() / c.hidden.max(1)));
                }
            }),
            Field::size("n_groups", |c| Some(&mut mamba2(c)?.groups)),
            Field::size("state_size", |c| Some(&mut mamba2(c)?.state)),
            Field::size("conv_kernel", |c| Some(&mut mamba2(c)?.conv)),
            Field::size("chunk_size", |c| Some(&mut mamba2(c)?.chunk)),
            Field::flag("use_bias", |c| Some(&mut mamba2(c)?.bias)),
            Field::flag("use_conv_bias", |c| Some(&mut mamba2(c)?.conv_bias)),
            Field::flag("residual_in_fp32", |c| Some(&mut mamba2(c)?.residual_f32)),
            Field::float("time_step_min", |c| Some(&mut mamba2(c)?.dt_init.0)),
            Field::float("time_step_max", |c| Some(&mut mamba2(c)?.dt_init.1)),
            Field::rule(read_limits, |c, w| {
                // Left out, the limits are 0 and infinity; JSON has no literal for the second.
                if let Some((low, Some(high))) = c.mamba2.map(|m| m.dt_limit) {
                    w.set("time_step_limit", json!([low, high]));
                }
            }),
            Field::told("rms_norm", |_| json!(true)),
            Field::then(|c| {
                let eps = c.norm_eps;
                mamba2(c).into_iter().for_each(|m| m.norm_eps = eps);
                recurrent(c, Layer { mixer: Mixer::Mamba2, feed: Feed::None, ..Layer::default() });
            }),
        ],
    ],
);

fn read_heads(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let (expand, hidden) = (f.size("expand")?.unwrap_or(2), c.hidden);
    let Some(m) = mamba2(c) else { return Ok(()) };
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
        // Python writes an infinite limit as a bare literal, which JSON readers turn into a string or null; transformers 5
        // writes an object of its own.
        Some([low, high])
            if low.is_number()
                && (high.is_null() || high == "Infinity" || high["__float__"] == "Infinity") =>
        {
            (low.as_f64().unwrap_or(0.0), None)
        }
        _ => return Err(f.wrong("time_step_limit", "two numbers", pair)),
    };
    mamba2(c).into_iter().for_each(|m| m.dt_limit = limit);
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

fn mamba3(c: &mut ModelConfig) -> Option<&mut Mamba3> {
    c.mamba3.as_mut()
}

/// Mamba3: one kind of layer, without norms before the mixers.
const MAMBA3: Class = class!(
    Family::new("Mamba3", &MAMBA3_TENSORS),
    ["mamba3"],
    "Mamba3ForCausalLM",
    |c| {
        c.max_positions = NO_WINDOW;
        c.norm_eps = 1e-5;
        c.init_std = 0.1;
        c.mamba3 = Some(Mamba3 {
            heads: 0,
            head_dim: 64,
            state: 128,
            ranks: None,
            angles: 0,
            rate_floor: 1e-4,
            dt_init: (0.001, 0.1),
        });
    },
    &[
        &sizes(Names { eps: "layer_norm_epsilon", ..NAMES }),
        &[
            ACTIVATION,
            Field::size("state_size", |c| Some(&mut mamba3(c)?.state)).or(&["state_size", "d_state"]),
            Field::size("head_dim", |c| Some(&mut mamba3(c)?.head_dim)).or(&["head_dim", "headdim"]),
            Field::only("is_outproj_norm", false, "a norm before the output projection of Mamba3"),
            Field::rule(read_sizes, write_sizes),
            Field::float("A_floor", |c| Some(&mut mamba3(c)?.rate_floor)),
            Field::float("time_step_min", |c| Some(&mut mamba3(c)?.dt_init.0)),
            Field::float("time_step_max", |c| Some(&mut mamba3(c)?.dt_init.1)),
            Field::then(|c| {
                recurrent(c, Layer { mixer: Mixer::Mamba3, feed: Feed::None, ..Layer::default() });
            }),
        ],
    ],
);

/// Share of a key that is rotated, in two numeric forms.
fn angles(state: usize, fraction: f64) -> usize {
    (state as f64 * fraction) as usize / 2
}

/// What follows from several fields: heads, ranks, angles.
fn read_sizes(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let (expand, hidden) = (f.size("expand")?.unwrap_or(2), c.hidden);
    let Some(m) = mamba3(c) else { return Ok(()) };
    let inner = expand.saturating_mul(hidden);
    if m.head_dim == 0 || !inner.is_multiple_of(m.head_dim) {
        let head_dim = m.head_dim;
        return Err(Error::inconsistent(format!(
            "{expand} times {hidden} does not divide into heads of {head_dim}"
        )));
    }
    m.heads = inner / m.head_dim;
    if f.size("ngroups")?.is_some_and(|groups| groups != 1) {
        return Err(f.unsupported("several groups of keys in Mamba3 are not supported; supported: 1"));
    }
    let fraction = f.float("rope_fraction")?.unwrap_or(0.5);
    if ![0.5, 1.0].contains(&fraction) {
        return Err(f.unsupported(format!("rope_fraction {fraction} is not supported; supported: 0.5, 1")));
    }
    m.angles = angles(m.state, fraction);
    if f.flag("is_mimo")?.unwrap_or(false) {
        m.ranks = Some(f.size("mimo_rank")?.unwrap_or(4));
    }
    let quarters = if fraction == 1.0 { 2 } else { 4 };
    if m.ranks.is_some() && !m.state.is_multiple_of(quarters) {
        let state = m.state;
        let what =
            format!("a state of {state} is not divisible by {quarters}, which turned halves of keys need");
        return Err(Error::inconsistent(what));
    }
    Ok(())
}

fn write_sizes(c: &ModelConfig, w: &mut Writer) {
    let Some(m) = &c.mamba3 else { return };
    let fraction = [0.5, 1.0].into_iter().find(|&x| angles(m.state, x) == m.angles).unwrap_or(0.5);
    w.set("expand", json!(m.inner() / c.hidden.max(1)));
    w.set("is_mimo", json!(m.ranks.is_some()));
    if let Some(ranks) = m.ranks {
        w.set("mimo_rank", json!(ranks));
    }
    w.set("rope_fraction", json!(fraction));
}

const MAMBA3_TENSORS: Tensors = Tensors {
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
