//! Which layers of a hybrid mix tokens by state space (`M`), by attention (`*`), or not at all (`-`).

use crate::fields::Fields;
use crate::{Error, Made, Result};

/// What an error of the pattern is about.
pub(crate) const PATTERN: Made = &[&["hybrid_override_pattern"]];

/// A letter per layer, from a pattern or from the shares of attention and feed-forward layers.
///
/// Attention layers are spread evenly between stretches of the others; feed-forward layers are spread evenly over what
/// is left, the last stretch first.
///
/// # Errors
/// Shares that are no shares, a pattern of another length, or one whose counts contradict the shares.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/core/ssm/mamba_hybrid_layer_allocation.py`.
pub(crate) fn letters(f: &Fields<'_>, layers: usize) -> Result<String> {
    let share = |field| Ok::<_, Error>(f.float(field)?.unwrap_or(0.0));
    let (attention, mlp) = (share("hybrid_attention_ratio")?, share("hybrid_mlp_ratio")?);
    if !(attention >= 0.0 && mlp >= 0.0 && attention + mlp <= 1.0) {
        return Err(f.unsupported(format!(
            "hybrid ratios: expected shares that make at most 1, got {attention} of attention and {mlp} of feed-forward"
        )));
    }
    let spread = spread(layers, attention, mlp);
    let Some(pattern) = f.text("hybrid_override_pattern")? else { return Ok(spread) };
    if pattern.chars().count() != layers {
        let found = pattern.chars().count();
        return Err(Error::of(PATTERN, format!("hybrid pattern: expected {layers} letters, got {found}")));
    }
    let counts = |letters: &str| ['M', '*', '-'].map(|kind| letters.matches(kind).count());
    if attention + mlp > 0.0 && counts(pattern) != counts(&spread) {
        let what =
            format!("hybrid pattern: {pattern} has other numbers of layers than the ratios make: {spread}");
        return Err(Error::of(PATTERN, what));
    }
    Ok(pattern.to_owned())
}

fn spread(layers: usize, attention: f64, mlp: f64) -> String {
    let count = |share: f64| (layers as f64 * share).round_ties_even() as usize;
    let attention = count(attention).min(layers);
    let mut letters = vec!['M'; layers];
    let mut place = |stretch: f64, kind: char| {
        let mut left = stretch;
        for letter in letters.iter_mut().filter(|l| **l == 'M') {
            if left < 0.5 {
                *letter = kind;
                left += stretch;
            } else {
                left -= 1.0;
            }
        }
    };
    let others = layers - attention;
    place(others as f64 / (attention + 1) as f64, '*');
    let mlp = count(mlp);
    if mlp > 0 {
        place((others as f64 - mlp as f64) / mlp as f64, '-');
    }
    letters.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, Value, json};

    fn of(layers: usize, args: &Value) -> Result<String> {
        let map: Map<String, Value> = args.as_object().unwrap().clone();
        letters(&Fields { source: "arguments", map: &map, asked: None }, layers)
    }

    #[test]
    fn shares_are_spread_as_megatron_spreads_them() {
        let cases = [
            (56, 0.08, 0.5, "M-M-M--M-M*-M-M-M-M--M*-M-M-M-M-M*--M-M-M-M-M*-M--M-M-M-"),
            (10, 0.0, 0.0, "MMMMMMMMMM"),
            (8, 0.25, 0.25, "MM*-M*M-"),
            (12, 0.1, 0.0, "MMMMMM*MMMMM"),
            (7, 0.5, 0.5, "-**-**-"),
            (24, 0.125, 0.3, "MM-MM*-MM-MM*-MM-M*M-MM-"),
            (4, 1.0, 0.0, "****"),
            (5, 0.3, 0.7, "-*-*-"),
            (8, 0.0, 0.5, "M-M-M-M-"),
        ];
        for (layers, attention, mlp, want) in cases {
            let args = json!({"hybrid_attention_ratio": attention, "hybrid_mlp_ratio": mlp});
            assert_eq!(of(layers, &args).unwrap(), want, "{layers} {attention} {mlp}");
        }
    }

    #[test]
    fn a_pattern_wins_and_must_fit_the_layers_and_the_shares() {
        let args = |attention: f64, pattern: &str| json!({"hybrid_attention_ratio": attention, "hybrid_override_pattern": pattern});
        assert_eq!(of(4, &args(0.0, "M*-M")).unwrap(), "M*-M");
        assert_eq!(of(4, &args(0.25, "*MMM")).unwrap(), "*MMM");
        for (layers, args) in [(3, args(0.0, "M*-M")), (4, args(0.25, "M*-M")), (4, args(-0.1, "MMMM"))] {
            assert!(of(layers, &args).is_err(), "{args}");
        }
    }
}
