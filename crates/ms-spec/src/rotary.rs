//! Rotary frequencies.

use crate::{ModelConfig, RopeScaling};
use std::f64::consts::TAU;

/// Angles per position of each rotated pair, `[R/2]`, and the factor on cosines and sines.
///
/// # Source
/// Su et al., arXiv:2104.09864; `transformers` 4.43, `modeling_rope_utils.py` (linear, llama3, yarn); Peng et
/// al., arXiv:2309.00071 (YaRN).
pub fn frequencies(cfg: &ModelConfig) -> (Vec<f32>, f32) {
    let r = cfg.rotary_dim();
    let base = cfg.rope.base;
    let plain = (0..r / 2).map(|i| base.powf(-2.0 * i as f64 / r as f64));
    let mut factor_on_values = 1.0;
    let scaled: Vec<f64> = match cfg.rope.scaling {
        RopeScaling::None => plain.collect(),
        RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
            let original = original_max_position as f64;
            plain
                .map(|f| {
                    let wavelength = TAU / f;
                    if wavelength < original / high_freq_factor {
                        f
                    } else if wavelength > original / low_freq_factor {
                        f / factor
                    } else {
                        let t =
                            (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        (1.0 - t) * f / factor + t * f
                    }
                })
                .collect()
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_position, attention_factor } => {
            let dim = |rotations: f64| {
                r as f64 * (original_max_position as f64 / (rotations * TAU)).ln() / (2.0 * base.ln())
            };
            let low = dim(beta_fast).floor().max(0.0);
            let mut high = dim(beta_slow).ceil().min(r as f64 - 1.0);
            if low == high {
                high += 0.001;
            }
            factor_on_values = attention_factor.unwrap_or_else(|| 0.1 * factor.ln() + 1.0);
            plain
                .enumerate()
                .map(|(i, f)| {
                    let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    f / factor * ramp + f * (1.0 - ramp)
                })
                .collect()
        }
    };
    (scaled.into_iter().map(|f| f as f32).collect(), factor_on_values as f32)
}
