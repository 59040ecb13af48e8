//! Rotary position embedding in `config.json`.

use serde_json::{Map, Value, json};

use crate::field::Dialect;
use crate::field::{Field, Writer};
use crate::fields::Fields;
use crate::sizes::Position;
use crate::{Error, ModelConfig, Result, Rope, RopeScaling};

/// Rotation of whole heads, in both dialects.
pub(super) const ROPE: &[Field] = &[PLAIN];

/// The same of a part of each head, for classes that assume one where nothing is said.
pub(super) const PARTIAL_ROPE: &[Field] = &[READ_PART, WRITE, PARTIAL];

/// The same, for a class that takes a number of elements for the part where no share is said.
///
/// # Source
/// transformers 5.24, `MiniMaxM2Config`.
pub(super) const COUNTED_ROPE: &[Field] = &[
    READ_PART,
    WRITE,
    Field::rule(
        |f, c| {
            if let (None, Some(n), false) =
                (share(f)?, f.size("rotary_dim")?, f.map.contains_key("partial_rotary_factor"))
            {
                c.rope.fraction = n as f64 / c.head_dim.max(1) as f64;
            }
            Ok(())
        },
        |c, w| w.set("rotary_dim", json!(c.rope.rotated(c.head_dim))),
    ),
];

/// Rotation of whole heads, for classes that say whether rotated pairs are neighbours.
pub(super) const INTERLEAVED_ROPE: &[Field] =
    &[PLAIN, Field::flag("rope_interleave", |c| Some(&mut c.rope.interleaved)).if_other()];

/// The same, for a class that stretches where nothing is said.
pub(super) const STRETCHED_ROPE: &[Field] =
    &[Field::rule(read, |c, w| write(c, w, Form { says_plain: true, ..Form::default() }))];

/// Rotation of a part of each head, for a class that reads the original length outside the scaling object, and only there:
/// it assumes 4096 (transformers 4.57 and 5.24, `Phi3Config`). As in 4.57, a factor in the object then does not count.
pub(super) const PHI_ROPE: &[Field] = &[
    Field::reading(|f, c| {
        let mut map = f.map.clone();
        map.entry("original_max_position_embeddings").or_insert(json!(4096));
        read_part(&Fields { map: &map, ..*f }, c)
    }),
    Field::rule(|_, _| Ok(()), |c, w| write(c, w, Form { original_beside: true, ..Form::default() })),
    PARTIAL.written_if(partial),
];

/// The same for whole heads, for a class that also has fields for the magnitudes of short and of long sequences.
pub(super) const PHI_MOE_ROPE: &[Field] = &[Field::rule(
    |f, c| {
        read(f, c)?;
        if let (RopeScaling::LongRope { magnitude, .. }, Some(s)) = (&mut c.rope.scaling, described(f)?) {
            *magnitude = s.float("short_mscale")?.zip(s.float("long_mscale")?).or(*magnitude);
        }
        Ok(())
    },
    |c, w| write(c, w, Form { original_beside: true, two_magnitudes: true, ..Form::default() }),
)];

/// Rotation of whole heads, for classes in which an alpha with dynamic scaling changes the base once, for any length, and a
/// factor is then ignored.
pub(super) const ALPHA_ROPE: &[Field] = &[Field::rule(
    |f, c| {
        let alpha = match described(f)? {
            Some(s) if kind(&s)? == "dynamic" => s.float("alpha")?.filter(|&a| a > 0.0),
            _ => None,
        };
        match alpha {
            None => read(f, c),
            Some(alpha) => {
                c.rope.base = base(f)?.unwrap_or(c.rope.base);
                c.rope.scaling = RopeScaling::Ntk { alpha };
                Ok(())
            }
        }
    },
    |c, w| write(c, w, Form::default()),
)];

/// What both of Phi's classes lack.
pub(super) fn only_longrope(c: &ModelConfig) -> Option<&'static str> {
    let known = matches!(c.rope.scaling, RopeScaling::None | RopeScaling::LongRope { .. });
    (rotates(c) && !known).then_some("frequencies that are stretched by other means than longrope")
}

/// Rotation as in other classes, for a class with its own field names.
pub(super) const ROPE_READ: Field = Field::reading(read);

const PLAIN: Field = Field::rule(read, |c, w| write(c, w, Form::default()));

/// Null is not silence: whole heads rotate, whatever share the class assumes (transformers 5.24, `kwargs.setdefault` in
/// the classes that assume one).
fn read_part(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let whole = f.map.get("partial_rotary_factor").is_some_and(Value::is_null);
    c.rope.fraction = share(f)?.unwrap_or(if whole { 1.0 } else { c.rope.fraction });
    read_bases(f, c)
}

const READ_PART: Field = Field::reading(read_part);

const WRITE: Field = Field::rule(|_, _| Ok(()), |c, w| write(c, w, Form::default()));

const PARTIAL: Field = Field::told("partial_rotary_factor", |c| json!(c.rope.fraction));

fn partial(c: &ModelConfig) -> bool {
    rotates(c) && c.rope.fraction != 1.0
}

fn rotates(c: &ModelConfig) -> bool {
    c.position == Position::Rope
}

/// The object of both dialects, if there is one. Where a file has both, the older one counts, unless it is empty.
///
/// # Source
/// transformers 5.24, `RotaryEmbeddingConfigMixin.convert_rope_params_to_dict`; version 4 knows no other.
fn described<'a>(f: &Fields<'a>) -> Result<Option<Fields<'a>>> {
    match f.object("rope_scaling")?.filter(|s| !s.map.is_empty()) {
        None => f.object("rope_parameters"),
        given => Ok(given),
    }
}

/// The base that is said.
fn base(f: &Fields<'_>) -> Result<Option<f64>> {
    let inside = described(f)?.map(|s| s.float("rope_theta")).transpose()?.flatten();
    Ok(inside.or(f.float("rope_theta")?))
}

/// The share of a head that is said to rotate.
fn share(f: &Fields<'_>) -> Result<Option<f64>> {
    const NAME: &str = "partial_rotary_factor";
    let inside = described(f)?.map(|s| s.float(NAME)).transpose()?.flatten();
    Ok(inside.or(f.float(NAME)?))
}

/// A class that rotates whole heads. It overlooks a share of them that a file names, and fails where that is stretched.
///
/// # Source
/// transformers 5.24: `compute_default_rope_parameters` of each class, and `ROPE_INIT_FUNCTIONS`, which all share and whose
/// frequencies are those of the share.
fn read(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    read_bases(f, c)?;
    match share(f)? {
        Some(share) if share < 1.0 && c.rope.scaling != RopeScaling::None => Err(f.unsupported(format!(
            "partial_rotary_factor {share}: the class rotates whole heads, and stretches no part of them"
        ))),
        _ => Ok(()),
    }
}

fn read_bases(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let empty = Map::new();
    let s = described(f)?.unwrap_or(Fields { source: f.source, map: &empty, asked: None });
    let base = base(f)?.unwrap_or(c.rope.base);
    // Null and an empty object are silence: `rope_scaling or` what the class assumes (transformers 5.24,
    // `RotaryEmbeddingConfigMixin`).
    let silent =
        f.get("rope_parameters").is_none() && f.object("rope_scaling")?.is_none_or(|s| s.map.is_empty());
    let scaling = if silent { c.rope.scaling.clone() } else { scaling_of(f, &s, c.max_positions)? };
    c.rope = Rope { base, scaling, ..c.rope };
    Ok(())
}

/// What classes differ in.
#[derive(Clone, Copy, Default)]
struct Form {
    /// A plain rotation is said, not left out.
    says_plain: bool,
    /// The original length is also outside the scaling object.
    original_beside: bool,
    /// Longrope has a magnitude for short sequences and one for long ones.
    two_magnitudes: bool,
}

fn write(c: &ModelConfig, w: &mut Writer, form: Form) {
    if !rotates(c) {
        return;
    }
    let mut scaling = scaling_object(&c.rope);
    if let (Some(s), false, RopeScaling::LongRope { magnitude: Some((short, long)), .. }) =
        (&mut scaling, form.two_magnitudes, &c.rope.scaling)
        && short == long
    {
        s.retain(|key, _| !matches!(key.as_str(), "short_mscale" | "long_mscale"));
        s.insert("attention_factor".to_owned(), json!(short));
    }
    if let (true, Some(s)) = (form.original_beside, &scaling)
        && let Some(original) = s.get("original_max_position_embeddings")
    {
        w.set("original_max_position_embeddings", original.clone());
    }
    match w.dialect {
        Dialect::V4 => {
            w.set("rope_theta", json!(c.rope.base));
            let none = if form.says_plain { json!({"rope_type": "default"}) } else { Value::Null };
            w.set("rope_scaling", scaling.map_or(none, Value::Object));
        }
        Dialect::V5 => {
            let mut rope = scaling.unwrap_or_else(plain_object);
            rope.insert("rope_theta".to_owned(), json!(c.rope.base));
            w.set("rope_parameters", Value::Object(rope));
        }
    }
}

/// The object of a rotation that is not stretched.
pub(super) fn plain_object() -> Map<String, Value> {
    Map::from_iter([("rope_type".to_owned(), json!("default"))])
}

/// The rotation of one layer, where numbers may be lists with an entry for every layer and parameters may be listed by
/// `kind` of layer; `silent` is what the class assumes.
pub(super) fn read_layer(
    f: &Fields<'_>,
    silent: &Rope,
    max_positions: usize,
    layer: usize,
    kind: &'static str,
) -> Result<Rope> {
    let entry = |field: &'static str| match f.get(field) {
        Some(list) if list.is_array() => {
            let numbers = f.floats(field)?.unwrap_or_default();
            let number = numbers.get(layer).copied();
            number.map(Some).ok_or_else(|| f.wrong(field, "a number for every layer", list))
        }
        _ => f.float(field),
    };
    let parameters = f.object("rope_parameters")?;
    let of_kind = parameters.map(|p| p.object(kind)).transpose()?.flatten();
    let empty = Map::new();
    let nothing = Fields { source: f.source, map: &empty, asked: None };
    let stretched = f.texts("yarn_only_types")?.is_none_or(|kinds| kinds.contains(&kind));
    let scaling = match of_kind {
        Some(own) => own,
        None => f.object("rope_scaling")?.filter(|_| stretched).unwrap_or(nothing),
    };
    let own = of_kind.unwrap_or(nothing);
    Ok(Rope {
        base: own.float("rope_theta")?.or(entry("rope_theta")?).unwrap_or(silent.base),
        fraction: own
            .float("partial_rotary_factor")?
            .or(entry("partial_rotary_factors")?)
            .unwrap_or(silent.fraction),
        interleaved: silent.interleaved,
        divided: silent.divided,
        scaling: scaling_of(f, &scaling, max_positions)?,
    })
}

fn kind<'a>(s: &Fields<'a>) -> Result<&'a str> {
    Ok(s.text("rope_type")?.or(s.text("type")?).unwrap_or("default"))
}

pub(super) fn scaling_of(f: &Fields<'_>, s: &Fields<'_>, max_positions: usize) -> Result<RopeScaling> {
    let factor = || s.float("factor")?.ok_or(Error::Missing { source_name: f.source, field: "factor" });
    let given_original = || -> Result<Option<usize>> {
        Ok(f.size("original_max_position_embeddings")?.or(s.size("original_max_position_embeddings")?))
    };
    let original = || Ok::<_, Error>(given_original()?.unwrap_or(max_positions));
    Ok(match kind(s)? {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: factor()? },
        // Classes scale from their own length, regardless of the object's (`_compute_dynamic_ntk_parameters`).
        "dynamic" => RopeScaling::Dynamic { factor: factor()?, original: max_positions },
        "llama3" => RopeScaling::Llama3 {
            factor: factor()?,
            low: s.float("low_freq_factor")?.unwrap_or(1.0),
            high: s.float("high_freq_factor")?.unwrap_or(4.0),
            original: original()?,
        },
        "yarn" => RopeScaling::Yarn {
            // A factor of null is the ratio of lengths (`_compute_yarn_parameters`).
            factor: match s.float("factor")? {
                None if s.map.contains_key("factor") => max_positions as f64 / original()?.max(1) as f64,
                _ => factor()?,
            },
            beta_fast: s.float("beta_fast")?.unwrap_or(32.0),
            beta_slow: s.float("beta_slow")?.unwrap_or(1.0),
            original: original()?,
            // A factor over all dims acts on the scores of latent attention with or without the other; the magnitude is a
            // quotient where both are other than 0.
            mscale: s.float("mscale")?.or(Some(0.0)).zip(s.float("mscale_all_dim")?),
            attention_factor: s.float("attention_factor")?,
            truncate: s.on_unless_said("truncate")?,
        },
        "longrope" | "su" => {
            let list = |field| s.floats(field)?.ok_or(Error::Missing { source_name: f.source, field });
            let original = original()?;
            // If the original length is outside the older object, the ratio of lengths counts instead of a given factor.
            let ratio =
                f.get("rope_parameters").is_none() && f.get("original_max_position_embeddings").is_some();
            let factor = match s.float("factor")?.filter(|_| !ratio) {
                Some(given) => given,
                None => max_positions as f64 / original.max(1) as f64,
            };
            let magnitude = s.float("attention_factor")?.map(|a| (a, a));
            RopeScaling::LongRope {
                short: list("short_factor")?,
                long: list("long_factor")?,
                original,
                factor,
                magnitude,
            }
        }
        other => {
            return Err(f.unsupported(format!(
                "rope scaling `{other}` is not supported; supported: linear, dynamic, llama3, yarn, longrope"
            )));
        }
    })
}

/// The object that describes how frequencies are stretched; `None` for plain ones.
pub(super) fn scaling_object(rope: &Rope) -> Option<Map<String, Value>> {
    let value = match &rope.scaling {
        RopeScaling::None => return None,
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Dynamic { factor, .. } => json!({"rope_type": "dynamic", "factor": factor}),
        RopeScaling::Ntk { alpha } => json!({"rope_type": "dynamic", "alpha": alpha, "factor": 1.0}),
        RopeScaling::Llama3 { factor, low, high, original } => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": original
        }),
        RopeScaling::LongRope { short, long, original, factor, magnitude } => {
            let mut v = json!({
                "rope_type": "longrope", "short_factor": short, "long_factor": long,
                "original_max_position_embeddings": original, "factor": factor
            });
            if let Some((short, long)) = magnitude {
                v["short_mscale"] = json!(short);
                v["long_mscale"] = json!(long);
            }
            v
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original, mscale, attention_factor, truncate } => {
            let mut v = json!({
                "rope_type": "yarn", "factor": factor, "beta_fast": beta_fast, "beta_slow": beta_slow,
                "original_max_position_embeddings": original
            });
            if let Some((m, all)) = mscale {
                if *m != 0.0 {
                    v["mscale"] = json!(m);
                }
                v["mscale_all_dim"] = json!(all);
            }
            if let Some(a) = attention_factor {
                v["attention_factor"] = json!(a);
            }
            if !truncate {
                v["truncate"] = json!(false);
            }
            v
        }
    };
    match value {
        Value::Object(map) => Some(map),
        _ => unreachable!("the arms above make objects"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::RopeScaling;
    use crate::hf::read_config;

    #[test]
    fn the_original_length_of_phi3_is_said_outside_the_object_or_4096() {
        let mut file = json!({
            "model_type": "phi3", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
            "vocab_size": 100, "max_position_embeddings": 16_384, "rope_scaling": {
                "type": "longrope", "short_factor": [1.0, 1.0, 1.0, 1.0], "long_factor": [2.0, 2.0, 2.0, 2.0],
                "original_max_position_embeddings": 32
            }
        });
        let read = |file: &serde_json::Value| match read_config(file).unwrap().rope.scaling {
            RopeScaling::LongRope { original, factor, .. } => (original, factor),
            other => panic!("{other:?}"),
        };
        assert_eq!(read(&file), (4096, 4.0));
        file["original_max_position_embeddings"] = json!(8192);
        assert_eq!(read(&file), (8192, 2.0));
    }

    /// transformers 5.24: `rope_parameters.get("truncate", True)`.
    #[test]
    fn borders_of_yarns_ramp_are_not_rounded_where_a_file_says_null() {
        let read = |scaling: serde_json::Value| {
            let file = json!({
                "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "vocab_size": 100, "rope_scaling": scaling
            });
            match read_config(&file).unwrap().rope.scaling {
                RopeScaling::Yarn { truncate, .. } => truncate,
                other => panic!("{other:?}"),
            }
        };
        assert!(read(json!({"type": "yarn", "factor": 2.0})));
        assert!(!read(json!({"type": "yarn", "factor": 2.0, "truncate": null})));
    }

    #[test]
    fn a_yarn_factor_of_null_is_the_ratio_of_lengths() {
        let mut file = json!({
            "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 16_384,
            "rope_scaling": {"type": "yarn", "factor": null, "original_max_position_embeddings": 4096}
        });
        let scaling = read_config(&file).unwrap().rope.scaling;
        assert!(matches!(scaling, RopeScaling::Yarn { factor: 4.0, original: 4096, .. }), "{scaling:?}");
        file["rope_scaling"].as_object_mut().unwrap().remove("factor");
        assert!(read_config(&file).unwrap_err().to_string().contains("factor"));
    }
}
