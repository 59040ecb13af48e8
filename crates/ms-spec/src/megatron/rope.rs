//! Megatron arguments of rotary position embeddings.

use serde_json::{Map, Value, json};

use crate::field::{Field, Writer};
use crate::fields::Fields;
use crate::{ModelConfig, Result, RopeScaling};

pub(super) const ROPE: &[Field] = &[
    Field::rule(
        |f, c| {
            c.rope.base = f.float_of(&["rotary_base", "rope_theta"])?.unwrap_or(c.rope.base);
            Ok(())
        },
        |c, w| {
            // Megatron's flag is an integer; a float base is preserved.
            let base = c.rope.base;
            w.set("rotary_base", if base.fract() == 0.0 { json!(base as u64) } else { json!(base) });
        },
    ),
    Field::float(PERCENT, |c| Some(&mut c.rope.fraction)),
    Field::flag("rotary_interleaved", |c| Some(&mut c.rope.interleaved)),
    Field::flag_as("use_glm_rope", |_| None, |c, on| c.rope.interleaved |= on),
    Field::rule(
        |f, c| {
            c.rope.scaling = scaling(f, c.max_positions)?;
            c.rope.divided = match c.rope.scaling {
                RopeScaling::Linear { .. } => 1.0,
                _ => divided(f)?.unwrap_or(1.0),
            };
            // As `rotary_embedding_forward` of both versions of MindSpeed-LLM.
            let outer = f.text(FREQUENCIES)? == Some("outer");
            if outer && matches!(c.rope.scaling, RopeScaling::LongRope { .. }) {
                c.rope.fraction = 1.0;
            }
            // Upstream's Hunyuan class has its own base and factor, whatever the flags.
            if super::spec::names(f, super::spec::HUNYUAN) {
                (c.rope.base, c.rope.scaling) = (10_000.0, RopeScaling::Ntk { alpha: 1000.0 });
                c.rope.divided = 1.0;
            }
            Ok(())
        },
        write_scaling,
    ),
];

/// What upstream rotates of a head regardless of a rotary share, or of the product of two shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotatedElements {
    /// Rotated elements; more than the head has means no rotation.
    pub elements: usize,
    /// Elements of a head.
    pub of: usize,
    /// Whether what is said of a share has no part in it.
    pub unread: bool,
}

impl RotatedElements {
    /// The share of a head.
    pub fn share(self) -> f64 {
        let share = self.elements as f64 / self.of.max(1) as f64;
        let too_few = ((self.of as f64 * share) as usize) < self.elements;
        if too_few { share.next_up() } else { share }
    }
}

/// What this version of upstream, head or v2.0.0, rotates of a head, if that differs from `rotary_percent`: YaRN ignores the
/// share, v2.0.0's and PLM's rotation ignore `kv_channels` as well, and the head multiplies `rotary_percent` with
/// `partial_rotary_factor`. `None` also if attention has a rotation of its own.
///
/// # Source
/// MindSpeed-LLM 2.0.0 and its head (2026), `core/models/common/embeddings/rotary_pos_embedding.py`, `apply_yarn_scaling`,
/// `apply_plm_scaling` and `rotary_embedding_init_wrapper`; Megatron-LM `core_v0.12.1`, `RotaryEmbedding.__init__`.
pub fn rotated_elements(args: &Map<String, Value>, head: bool) -> Option<RotatedElements> {
    let number = |name: &str| args.get(name).and_then(Value::as_f64).filter(|&n| n > 0.0);
    let on = |name: &&str| args.get(*name) == Some(&Value::Bool(true));
    if ["multi_head_latent_attention", "multi_latent_attention", "kv_compress"].iter().any(on) {
        return None;
    }
    let by_heads = number("hidden_size")? as usize / number("num_attention_heads")?.max(1.0) as usize;
    let of = number("kv_channels").map_or(by_heads, |n| n as usize);
    let share = |name: &str| args.get(name).and_then(Value::as_f64).unwrap_or(1.0);
    match args.get("rope_scaling_type").and_then(Value::as_str) {
        Some("yarn") => {
            Some(RotatedElements { elements: if head { of } else { by_heads }, of, unread: true })
        }
        Some("plm") => Some(RotatedElements { elements: by_heads, of, unread: true }),
        _ if head && number(PARTIAL).is_some() => {
            let part = (of as f64 * share(PARTIAL)) as usize;
            let elements = (part as f64 * share(PERCENT)) as usize;
            Some(RotatedElements { elements, of, unread: false })
        }
        _ => None,
    }
}

/// Arguments that say which share of a head is rotated.
pub const SHARES: [&str; 2] = [PERCENT, PARTIAL];
const PERCENT: &str = "rotary_percent";
const PARTIAL: &str = "partial_rotary_factor";
/// How longrope's frequencies are computed: from those of the rotated share (`mul`), or of the whole head (`outer`).
const FREQUENCIES: &str = "longrope_freqs_type";

/// Replaces the share given by arguments by what is rotated.
pub fn with_rotated_elements(args: &mut Map<String, Value>, rotated: RotatedElements) {
    args.remove(PARTIAL);
    args.insert(PERCENT.to_owned(), json!(rotated.share()));
}

/// What upstream computed with the arguments of a run that it saved; `None`: they are not such, or mean what they say.
pub(super) fn rotated_elements_in_run(args: &Map<String, Value>) -> Option<RotatedElements> {
    // Both versions have this argument, for any model; the other ones exist only at head.
    let saved = args.contains_key(FREQUENCIES);
    rotated_elements(args, args.contains_key("beta_fast")).filter(|_| saved)
}

/// By what positions are divided; `None`: not at all.
fn divided(f: &Fields<'_>) -> Result<Option<f64>> {
    let factor = f.float("rotary_seq_len_interpolation_factor")?.filter(|&factor| factor != 1.0);
    let beside = match (f.get("rope_scaling_alpha"), f.text("rope_scaling_type")?) {
        (Some(_), _) => "the base of a class of its own",
        (_, Some("dynamic")) => "--rope-scaling-type dynamic",
        _ => return Ok(factor),
    };
    match factor {
        None => Ok(None),
        Some(factor) => Err(f.unsupported(format!(
            "--rotary-seq-len-interpolation-factor {factor} beside {beside}: expected one way to stretch positions"
        ))),
    }
}

fn scaling(f: &Fields<'_>, max_positions: usize) -> Result<RopeScaling> {
    let float = |field, default| Ok::<_, crate::Error>(f.float(field)?.unwrap_or(default));
    if let Some(alpha) = f.float("rope_scaling_alpha")? {
        return Ok(RopeScaling::Ntk { alpha });
    }
    Ok(match f.text("rope_scaling_type")? {
        // PLM's own name for its rotation: the plain one, except for the pairing.
        None | Some("plm") => divided(f)?.map_or(RopeScaling::None, |factor| RopeScaling::Linear { factor }),
        Some("llama3") => RopeScaling::Llama3 {
            factor: float("rope_scaling_factor", 8.0)?,
            low: float("low_freq_factor", 1.0)?,
            high: float("high_freq_factor", 4.0)?,
            original: f.size("original_max_position_embeddings")?.unwrap_or(8192),
        },
        Some("yarn") => {
            let original = f.size("rope_scaling_original_max_position_embeddings")?.unwrap_or(max_positions);
            let factor = float("rope_scaling_factor", 1.0)?;
            // MindSpeed-LLM 2.0.0, `rotary_pos_embedding.py`, `yarn_get_mscale`: without the one over all dims it is divided
            // by 1, and 0 is a factor.
            let (mscale, all) =
                (float("rope_scaling_mscale", 1.0)?, float("rope_scaling_mscale_all_dim", 0.0)?);
            let of = |m: f64| 0.1 * m * factor.ln() + 1.0;
            let alone = factor > 1.0 && if all == 0.0 { mscale != 1.0 } else { mscale == 0.0 };
            RopeScaling::Yarn {
                factor,
                beta_fast: f.float_of(&["rope_scaling_beta_fast", "beta_fast"])?.unwrap_or(32.0),
                beta_slow: f.float_of(&["rope_scaling_beta_slow", "beta_slow"])?.unwrap_or(1.0),
                original,
                mscale: Some((mscale, all)).filter(|_| all != 0.0),
                attention_factor: alone.then(|| of(mscale) / of(all)),
                truncate: true,
            }
        }
        Some("dynamic") => RopeScaling::Dynamic {
            factor: float("rope_scaling_factor", 1.0)?,
            original: f.size("original_max_position_embeddings")?.unwrap_or(max_positions),
        },
        Some("longrope") => {
            let original = f.size("rope_scaling_original_max_position_embeddings")?.unwrap_or(max_positions);
            let magnitude = f.float("short_mscale")?.zip(f.float("long_mscale")?);
            let factor = max_positions as f64 / original.max(1) as f64;
            let (short, long) = (divisors(f, "short_factor")?, divisors(f, "long_factor")?);
            RopeScaling::LongRope { short, long, original, factor, magnitude }
        }
        Some(other) => {
            return Err(f.unsupported(format!(
                "rope scaling {other} is not supported; supported: llama3, yarn, longrope, plm and, in a checkpoint's arguments, dynamic"
            )));
        }
    })
}

/// A list of numbers, or text with commas between them.
fn divisors(f: &Fields<'_>, field: &'static str) -> Result<Vec<f64>> {
    match f.get(field) {
        Some(v @ Value::String(text)) => text
            .trim_matches(['[', ']'])
            .split(',')
            .map(|n| n.trim().parse().map_err(|_| f.wrong(field, "numbers with commas between them", v)))
            .collect(),
        _ => f.floats(field)?.ok_or_else(|| f.missing(field)),
    }
}

fn write_scaling(c: &ModelConfig, w: &mut Writer) {
    let divided = Some(c.rope.divided).filter(|&factor| factor != 1.0);
    w.set("rotary_seq_len_interpolation_factor", json!(divided));
    w.set("rope_scaling_type", Value::Null);
    match &c.rope.scaling {
        RopeScaling::None => {}
        RopeScaling::Ntk { alpha } => w.set("rope_scaling_alpha", json!(alpha)),
        RopeScaling::Linear { factor } => w.set("rotary_seq_len_interpolation_factor", json!(factor)),
        RopeScaling::Dynamic { factor, original } => {
            w.set("rope_scaling_type", json!("dynamic"));
            w.set("rope_scaling_factor", json!(factor));
            w.set("original_max_position_embeddings", json!(original));
        }
        RopeScaling::LongRope { short, long, original, factor, magnitude } => {
            w.set("rope_scaling_type", json!("longrope"));
            w.set("rope_scaling_factor", json!(factor));
            w.set("rope_scaling_original_max_position_embeddings", json!(original));
            w.set("short_factor", json!(short));
            w.set("long_factor", json!(long));
            if let Some((short, long)) = magnitude {
                w.set("short_mscale", json!(short));
                w.set("long_mscale", json!(long));
            }
        }
        RopeScaling::Llama3 { factor, low, high, original } => {
            w.set("rope_scaling_type", json!("llama3"));
            w.set("rope_scaling_factor", json!(factor));
            w.set("low_freq_factor", json!(low));
            w.set("high_freq_factor", json!(high));
            w.set("original_max_position_embeddings", json!(original));
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original, mscale, attention_factor, .. } => {
            w.set("rope_scaling_type", json!("yarn"));
            w.set("rope_scaling_factor", json!(factor));
            w.set("rope_scaling_beta_fast", json!(beta_fast));
            w.set("rope_scaling_beta_slow", json!(beta_slow));
            w.set("rope_scaling_original_max_position_embeddings", json!(original));
            let (m, all) = mscale.unwrap_or_default();
            let of = |m: f64| 0.1 * m * factor.ln() + 1.0;
            // The numerator that makes a magnitude out of the factor over all dims.
            let magnitude = attention_factor.or((mscale.is_some() && m == 0.0).then(|| of(1.0)));
            match magnitude.filter(|_| *factor > 1.0) {
                Some(given) => {
                    w.set("rope_scaling_mscale", json!((given * of(all) - 1.0) / (0.1 * factor.ln())));
                }
                None if mscale.is_some() => w.set("rope_scaling_mscale", json!(m)),
                None => {}
            }
            if mscale.is_some() {
                w.set("rope_scaling_mscale_all_dim", json!(all));
            }
        }
    }
}
