//! `ms-convert diff A B` and `ms-convert verify DIR`.

use std::io::Write as _;
use std::path::Path;

use ms_ckpt::layout::mcore::Hints;
use ms_ckpt::{Compared, Relation};
use serde_json::{Value, json};

/// Compares two checkpoints of one model, whatever their forms and cuts. Whether they are equal.
///
/// # Errors
/// A folder that is not a checkpoint, or a damaged one; a closed stdout.
pub(crate) fn diff(a: &Path, b: &Path, hints: &Hints, as_json: bool) -> anyhow::Result<bool> {
    let (first, second) = (ms_ckpt::open_with(a, None, hints)?, ms_ckpt::open_with(b, None, hints)?);
    let mut all = Vec::new();
    first.compare(&second, &mut |c| all.push(c))?;
    let equal = all.iter().filter(|c| c.relation == Relation::Equal).count();
    let mut out = std::io::stdout().lock();
    if as_json {
        let tensors: Vec<Value> = all.iter().map(as_value).collect();
        writeln!(out, "{}", json!({"equal": equal, "tensors": tensors}))?;
        return Ok(equal == all.len());
    }
    for c in all.iter().filter(|c| c.relation != Relation::Equal) {
        let what = match &c.relation {
            Relation::Equal => continue,
            Relation::Different { elements, max_abs, max_rel } => {
                format!("{elements} elements differ, by {max_abs:.3e} at most ({max_rel:.3e} of the value)")
            }
            Relation::Shape(shape) => format!("has another shape in the second: {shape:?}"),
            Relation::OnlyFirst => "is only in the first".to_owned(),
            Relation::OnlySecond => "is only in the second".to_owned(),
        };
        writeln!(out, "{}: {what}", c.name)?;
    }
    writeln!(out, "{equal} of {} tensors are equal", all.len())?;
    Ok(equal == all.len())
}

fn as_value(c: &Compared) -> Value {
    let (kind, more) = match &c.relation {
        Relation::Equal => ("equal", json!({})),
        Relation::Different { elements, max_abs, max_rel } => {
            ("different", json!({"elements": elements, "max_abs": max_abs, "max_rel": max_rel}))
        }
        Relation::Shape(shape) => ("shape", json!({"second": shape})),
        Relation::OnlyFirst => ("only_first", json!({})),
        Relation::OnlySecond => ("only_second", json!({})),
    };
    let mut value = json!({"name": c.name, "relation": kind, "dtypes": [c.dtypes.0, c.dtypes.1]});
    for (key, v) in more.as_object().into_iter().flatten() {
        value[key] = v.clone();
    }
    value
}

/// Reads everything in a checkpoint. Whether it is sound.
///
/// # Errors
/// What is damaged, and where; a closed stdout.
pub(crate) fn verify(dir: &Path, hints: &Hints, as_json: bool) -> anyhow::Result<bool> {
    let checkpoint = ms_ckpt::open_with(dir, None, hints)?;
    let found = checkpoint.verify()?;
    let sound = found.not_finite.is_empty() && found.unequal_copies.is_empty();
    let mut out = std::io::stdout().lock();
    if as_json {
        let report = json!({
            "sound": sound, "tensors": found.tensors, "elements": found.elements,
            "not_finite": found.not_finite, "unequal_copies": found.unequal_copies
        });
        writeln!(out, "{report}")?;
        return Ok(sound);
    }
    for (name, n) in &found.not_finite {
        writeln!(out, "{name}: {n} values are not finite")?;
    }
    for (name, file) in &found.unequal_copies {
        writeln!(out, "{name}: the copy in {file} differs from the first")?;
    }
    writeln!(
        out,
        "{}: {} tensors, {} elements, {}",
        checkpoint.form().name(),
        found.tensors,
        found.elements,
        if sound { "all sound" } else { "not sound" }
    )?;
    Ok(sound)
}
