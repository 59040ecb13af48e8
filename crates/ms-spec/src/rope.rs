//! Rotary position embedding: frequencies and their scaling.
//!
//! With `r` rotated elements per head, pair `i` rotates by `position * f_i`, `f_i = base^(-2i/r)`.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// Rotary position embedding of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base of the frequencies.
    pub base: f64,
    /// Share of each head that is rotated: its first elements.
    pub fraction: f64,
    /// Pairs are neighbours instead of the two halves.
    pub interleaved: bool,
    /// How frequencies are stretched.
    pub scaling: RopeScaling,
    /// Positions are also divided by this, while the scaling uses the original frequencies; 1: they are not.
    ///
    /// # Source
    /// MindSpeed-LLM 2.0.0, `core/models/common/embeddings/rotary_pos_embedding.py`, `rotary_embedding_forward`.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub divided: f64,
}

fn one() -> f64 {
    1.0
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_one(factor: &f64) -> bool {
    *factor == 1.0
}

/// How rotary frequencies are stretched for longer contexts.
///
/// # Source
/// Hugging Face transformers, `modeling_rope_utils.py`; yarn: Peng et al., arXiv:2309.00071.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions are divided by `factor`.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies are divided by `factor`, high ones are unchanged, those between are interpolated.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Waves longer than `original / low` are stretched in full.
        low: f64,
        /// Wavelengths below `original / high` are unchanged.
        high: f64,
        /// Context length before stretching, in tokens.
        original: usize,
    },
    /// YaRN: low-frequency pairs are divided by `factor`, high-frequency ones are unchanged, with a ramp between.
    Yarn {
        /// The factor.
        factor: f64,
        /// Number of rotations within the original context above which a pair is unchanged.
        beta_fast: f64,
        /// Rotations below which a pair is stretched in full.
        beta_slow: f64,
        /// Context length before stretching, in tokens.
        original: usize,
        /// Numerator and denominator of the factor on cosine and sine; the second also applies to latent attention's scores.
        /// `None`, or one of them 0: `0.1 ln(factor) + 1`.
        mscale: Option<(f64, f64)>,
        /// The factor on cosine and sine, given directly.
        attention_factor: Option<f64>,
        /// Round the borders of the ramp to whole pairs.
        truncate: bool,
    },
    /// Dynamic NTK: beyond the original context the base grows with the length.
    Dynamic {
        /// The factor.
        factor: f64,
        /// Context length before stretching, in tokens.
        original: usize,
    },
    /// The base is multiplied by `alpha^(r / (r - 2))`, for any length.
    Ntk {
        /// The factor.
        alpha: f64,
    },
    /// Longrope: every pair has its own divisor, one list for short sequences and one for long ones.
    LongRope {
        /// Divisors up to `original` tokens, one per pair.
        short: Vec<f64>,
        /// Divisors beyond.
        long: Vec<f64>,
        /// Context length before stretching, in tokens.
        original: usize,
        /// Context length after stretching over the one before.
        factor: f64,
        /// Factors on cosine and sine for short and long sequences; `None`: `sqrt(1 + ln(factor) / ln(original))`.
        magnitude: Option<(f64, f64)>,
    },
}

/// Frequencies of the rotated pairs, and the factor on their cosine and sine.
#[derive(Clone, Debug, PartialEq)]
pub struct Frequencies {
    /// Radians per token, one per pair: `[r / 2]`.
    pub inv_freq: Vec<f64>,
    /// Cosine and sine are multiplied by this.
    pub magnitude: f64,
}

impl Rope {
    /// Plain rotation of whole heads by halves.
    pub fn plain(base: f64) -> Self {
        Self { base, fraction: 1.0, interleaved: false, scaling: RopeScaling::None, divided: 1.0 }
    }

    /// Elements of a head that are rotated: the share, rounded up to whole pairs.
    pub fn rotated(&self, head_dim: usize) -> usize {
        let share = self.share(head_dim);
        share.saturating_add(share % 2)
    }

    /// The share of `head_dim` elements that are to be rotated, by which frequencies fall; it may be odd.
    ///
    /// # Source
    /// Megatron-LM `core_v0.12.1`, `RotaryEmbedding.__init__`; Hugging Face's rotary embeddings do the same.
    pub fn share(&self, head_dim: usize) -> usize {
        (head_dim as f64 * self.fraction) as usize
    }

    /// Whether frequencies depend on the length of the sequence.
    pub fn depends_on_length(&self) -> bool {
        matches!(self.scaling, RopeScaling::Dynamic { .. } | RopeScaling::LongRope { .. })
    }

    /// Length up to which a sequence uses other rotary frequencies than longer ones.
    pub fn switches_behind(&self) -> Option<usize> {
        match self.scaling {
            RopeScaling::LongRope { original, .. } => Some(original),
            _ => None,
        }
    }

    /// Frequencies of `rotated` elements per head (an odd last element counts as a pair), for sequences of up to `tokens`
    /// tokens.
    pub fn frequencies(&self, rotated: usize, tokens: usize) -> Frequencies {
        let pairs = rotated.div_ceil(2);
        let turn = |base: f64, i: usize| base.powf(-2.0 * i as f64 / rotated as f64);
        let plain = |i: usize| turn(self.base, i);
        // The exponent with which a factor on the wavelengths acts on the base.
        let stretch = rotated as f64 / (rotated as f64 - 2.0).max(1.0);
        let mut magnitude = 1.0;
        let mut inv_freq: Vec<f64> = match &self.scaling {
            &RopeScaling::Dynamic { factor, original } => {
                let ratio = factor * (tokens.max(original) as f64 / original as f64) - (factor - 1.0);
                let base = self.base * ratio.powf(stretch);
                (0..pairs).map(|i| turn(base, i)).collect()
            }
            &RopeScaling::Ntk { alpha } => {
                let base = self.base * alpha.powf(stretch);
                (0..pairs).map(|i| turn(base, i)).collect()
            }
            RopeScaling::LongRope { short, long, original, factor, magnitude: given } => {
                let is_long = tokens > *original;
                magnitude = match given {
                    Some((short, long)) => *(if is_long { long } else { short }),
                    None if *factor <= 1.0 => 1.0,
                    None => (1.0 + factor.ln() / (*original as f64).ln()).sqrt(),
                };
                let divisors = if is_long { long } else { short };
                (0..pairs).map(|i| plain(i) / divisors.get(i).copied().unwrap_or(1.0)).collect()
            }
            RopeScaling::None => (0..pairs).map(plain).collect(),
            &RopeScaling::Linear { factor } => (0..pairs).map(|i| plain(i) / factor).collect(),
            &RopeScaling::Llama3 { factor, low, high, original } => (0..pairs)
                .map(|i| {
                    let f = plain(i);
                    let waves = original as f64 * f / (2.0 * PI); // wavelengths within the original context
                    let kept = ((waves - low) / (high - low)).clamp(0.0, 1.0);
                    f * kept + f / factor * (1.0 - kept)
                })
                .collect(),
            &RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original,
                mscale,
                attention_factor,
                truncate,
            } => {
                let get = |scale: f64, m: f64| if scale <= 1.0 { 1.0 } else { 0.1 * m * scale.ln() + 1.0 };
                magnitude = match (attention_factor, mscale) {
                    (Some(given), _) => given,
                    (None, Some((m, all))) if m != 0.0 && all != 0.0 => get(factor, m) / get(factor, all),
                    _ => get(factor, 1.0),
                };
                let pair_of = |rotations: f64| {
                    rotated as f64 * (original as f64 / (rotations * 2.0 * PI)).ln() / (2.0 * self.base.ln())
                };
                let (mut low, mut high) = (pair_of(beta_fast), pair_of(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(rotated as f64 - 1.0));
                if low == high {
                    high += 0.001; // the ramp must not be a division by zero, as upstream guards it
                }
                (0..pairs)
                    .map(|i| {
                        let stretched = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        plain(i) / factor * stretched + plain(i) * (1.0 - stretched)
                    })
                    .collect()
            }
        };
        inv_freq.iter_mut().for_each(|f| *f /= self.divided);
        Frequencies { inv_freq, magnitude }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attention, Mla, ModelConfig};

    fn close(got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        for (g, w) in got.iter().zip(want) {
            assert!((g - w).abs() <= 2e-6 * w.abs(), "{got:?} {want:?}");
        }
    }

    #[test]
    fn plain_frequencies_fall_by_the_base() {
        let f = Rope::plain(10_000.0).frequencies(8, 1);
        close(&f.inv_freq, &[1.0, 0.1, 0.01, 0.001]);
        assert_eq!(f.magnitude, 1.0);
        let half = Rope { fraction: 0.5, ..Rope::plain(10_000.0) };
        close(&half.frequencies(half.rotated(8), 1).inv_freq, &[1.0, 0.01]);
        // As torch.arange(0, 3, 2) / 3 has it.
        let odd = Rope { fraction: 0.4, ..Rope::plain(1000.0) };
        assert_eq!((odd.share(8), odd.rotated(8)), (3, 4));
        close(&odd.frequencies(odd.share(8), 1).inv_freq, &[1.0, 0.01]);
    }

    #[test]
    fn linear_scaling_divides_every_frequency() {
        let rope = Rope { scaling: RopeScaling::Linear { factor: 4.0 }, ..Rope::plain(10_000.0) };
        close(&rope.frequencies(4, 1).inv_freq, &[0.25, 0.0025]);
    }

    #[test]
    fn llama3_keeps_short_waves_and_stretches_long_ones() {
        let scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192 };
        let f = Rope { scaling, ..Rope::plain(500_000.0) }.frequencies(128, 1).inv_freq;
        let plain = Rope::plain(500_000.0).frequencies(128, 1).inv_freq;
        for (f, p) in f.iter().zip(&plain) {
            let wavelength = 2.0 * PI / p;
            if wavelength < 8192.0 / 4.0 {
                close(&[*f], &[*p]);
            } else if wavelength > 8192.0 {
                close(&[*f], &[p / 8.0]);
            } else {
                // Between: the unscaled share falls with the wavelength, from 1 at 2048 to 0 at 8192.
                let kept = (8192.0 / wavelength - 1.0) / 3.0;
                close(&[*f], &[p * kept + p / 8.0 * (1.0 - kept)]);
            }
        }
        assert!(
            f.iter().zip(&plain).filter(|(f, p)| *f != *p && **f > **p / 7.99).count() >= 5,
            "some lie between"
        );
    }

    #[test]
    fn yarn_moves_between_the_two_along_a_ramp() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original: 32,
            mscale: None,
            attention_factor: None,
            truncate: true,
        };
        let f = Rope { scaling, ..Rope::plain(10_000.0) }.frequencies(16, 1);
        // low = max(floor(-1.59), 0) = 0, high = ceil(1.41) = 2: pair 0 is unchanged, pair 1 half scaled, the rest scaled.
        let p = |i: i32| 10f64.powf(-f64::from(i) / 2.0);
        close(&f.inv_freq[..3], &[p(0), p(1) * 0.625, p(2) / 4.0]);
        assert!((f.magnitude - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
    }

    fn scores_of_latent_attention(rope: Rope) -> f64 {
        let mla = Mla {
            q_rank: None,
            kv_rank: 8,
            nope: 4,
            rope: 4,
            value: 4,
            q_scale: 1.0,
            kv_scale: 1.0,
            normed: true,
            norm_eps: None,
        };
        ModelConfig { attention: Attention::Latent(mla), rope, ..ModelConfig::tiny() }.score_scale()
    }

    /// Values: `tests/golden/ops/rope_scaling.json`, settings of published models by transformers and MindSpeed-LLM.
    #[test]
    fn settings_of_published_models_stretch_as_others_have_them() {
        let path = ms_testing::golden("ops/rope_scaling.json");
        let cases: Vec<serde_json::Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        for case in &cases {
            let number = |key: &str| case[key].as_f64().unwrap_or_else(|| panic!("{key} of {case}"));
            let (factor, original) = (number("factor"), number("original_max_position_embeddings") as usize);
            let scaling = match case["kind"].as_str() {
                Some("llama3") => {
                    let (low, high) = (number("low_freq_factor"), number("high_freq_factor"));
                    RopeScaling::Llama3 { factor, low, high, original }
                }
                _ => RopeScaling::Yarn {
                    factor,
                    beta_fast: number("beta_fast"),
                    beta_slow: number("beta_slow"),
                    original,
                    mscale: Some((number("mscale"), number("mscale_all_dim"))),
                    attention_factor: None,
                    truncate: true,
                },
            };
            let rope = Rope { scaling, ..Rope::plain(number("rope_theta")) };
            let got = rope.frequencies(number("rotary_dim") as usize, original);
            let want: Vec<f64> =
                case["inv_freq"].as_array().unwrap().iter().map(|f| f.as_f64().unwrap()).collect();
            close(&got.inv_freq, &want);
            if case.get("kind").is_none() {
                assert!((got.magnitude - number("attention_factor_hf")).abs() < 1e-12, "{}", case["name"]);
                let plain = Rope::plain(rope.base);
                let scores = scores_of_latent_attention(rope) / scores_of_latent_attention(plain);
                assert!((scores - number("softmax_scale_multiplier_mla")).abs() < 1e-12, "{}", case["name"]);
            }
        }
        assert_eq!(cases.len(), 5);
    }

    #[test]
    fn dynamic_stretching_begins_where_the_original_context_ends() {
        let scaling = RopeScaling::Dynamic { factor: 2.0, original: 32 };
        let rope = Rope { scaling, ..Rope::plain(10_000.0) };
        assert_eq!(rope.frequencies(8, 32), Rope::plain(10_000.0).frequencies(8, 32));
        // At 64 tokens: base * (2 * 2 - 1)^(8 / 6).
        let base = 10_000.0 * 3f64.powf(8.0 / 6.0);
        close(&rope.frequencies(8, 64).inv_freq, &Rope::plain(base).frequencies(8, 1).inv_freq);
        let ntk = Rope { scaling: RopeScaling::Ntk { alpha: 3.0 }, ..Rope::plain(10_000.0) };
        close(&ntk.frequencies(8, 1).inv_freq, &Rope::plain(base).frequencies(8, 1).inv_freq);
    }

    #[test]
    fn longrope_has_a_list_for_short_and_one_for_long_sequences() {
        let (short, long) = (vec![1.0, 2.0], vec![1.0, 4.0]);
        let scaling = RopeScaling::LongRope { short, long, original: 16, factor: 4.0, magnitude: None };
        let rope = Rope { scaling, ..Rope::plain(10_000.0) };
        close(&rope.frequencies(4, 16).inv_freq, &[1.0, 0.005]);
        close(&rope.frequencies(4, 17).inv_freq, &[1.0, 0.0025]);
        assert!((rope.frequencies(4, 16).magnitude - 1.5f64.sqrt()).abs() < 1e-12);
    }
}
