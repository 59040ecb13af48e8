//! Choosing the next token.

use crate::{Error, Result};
use ms_core::Rng;

/// How the next token is chosen.
///
/// # Source
/// MindSpeed-LLM v2.0.0, `mindspeed_llm/inference/text_generation`: temperature, then top-k, then top-p; ties at
/// the k-th logit survive; the first token that passes the mass p is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 chooses the likeliest token.
    pub temperature: f64,
    /// Only the k likeliest tokens; 0 turns it off.
    pub top_k: usize,
    /// Only the likeliest tokens of this mass; 0 or 1 turns it off.
    pub top_p: f64,
    /// Only tokens at least as likely as this share of the likeliest; 0 turns it off.
    pub min_p: f64,
    /// Divides the logits above 0 of tokens that occurred, prompt included, and multiplies those below; 1 turns it off.
    pub repetition_penalty: f64,
    /// Seed; every sequence of every call draws from the same numbers, as one alone does.
    pub seed: u64,
}

impl Sampling {
    /// Always the most likely token.
    pub const GREEDY: Self =
        Self { temperature: 0.0, top_k: 0, top_p: 0.0, min_p: 0.0, repetition_penalty: 1.0, seed: 0 };

    /// Checks the numbers.
    ///
    /// # Errors
    /// [`Error::Sampling`] naming the number.
    pub fn validate(&self) -> Result<()> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            let expected = "a number from 0 on";
            return Err(Error::Sampling { name: "temperature", expected, found: self.temperature });
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return Err(Error::Sampling {
                name: "top-p",
                expected: "a number from 0 to 1",
                found: self.top_p,
            });
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            let expected = "a number from 0 to 1";
            return Err(Error::Sampling { name: "min-p", expected, found: self.min_p });
        }
        if !(1e-6..=1e6).contains(&self.repetition_penalty) {
            let (name, expected) = ("repetition-penalty", "a number from 1e-6 to 1e6");
            return Err(Error::Sampling { name, expected, found: self.repetition_penalty });
        }
        Ok(())
    }

    /// Makes tokens that occurred less likely.
    ///
    /// # Source
    /// Keskar et al., arXiv:1909.05858, section 4.1, as Hugging Face transformers applies it: once per token.
    pub(crate) fn penalise(&self, logits: &mut [f64], occurred: impl Iterator<Item = u32>) {
        if self.repetition_penalty == 1.0 {
            return;
        }
        let mut seen: Vec<u32> = occurred.collect();
        seen.sort_unstable();
        seen.dedup();
        let penalty = self.repetition_penalty;
        for token in seen {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
    }
}

/// The state of one sequence's choices.
#[derive(Clone, Debug)]
pub struct Sampler {
    rule: Sampling,
    rng: Rng,
    /// Token and logit, then weight; kept to spare an allocation per token.
    candidates: Vec<(u32, f64)>,
}

impl Sampler {
    /// The sampler of sequence `stream` of a call.
    ///
    /// # Errors
    /// As [`Sampling::validate`].
    pub fn new(rule: Sampling, stream: u64) -> Result<Self> {
        rule.validate()?;
        Ok(Self { rule, rng: Rng::new(rule.seed, stream), candidates: Vec::new() })
    }

    /// The next token after `logits` (one per token of the vocabulary).
    pub fn choose(&mut self, logits: &[f64]) -> u32 {
        if self.rule.temperature == 0.0 || self.rule.top_k == 1 {
            return argmax(logits);
        }
        self.candidates.clear();
        // Less the largest, so that no temperature is too small.
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let z = logits.iter().map(|&x| (x - max) / self.rule.temperature);
        self.candidates.extend(z.enumerate().map(|(i, z)| (i as u32, z)));
        // Likeliest first; equal logits in the order of their ids.
        let by_logit = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let k = self.rule.top_k;
        if k > 0 && k < self.candidates.len() {
            let threshold = self.candidates.select_nth_unstable_by(k - 1, by_logit).1.1;
            self.candidates.retain(|c| c.1 >= threshold);
        }
        self.candidates.sort_unstable_by(by_logit);
        for c in &mut self.candidates {
            c.1 = c.1.exp();
        }
        if self.rule.top_p > 0.0 && self.rule.top_p < 1.0 {
            let mut before = 0.0;
            let limit = self.rule.top_p * self.candidates.iter().map(|c| c.1).sum::<f64>();
            let kept = self.candidates.iter().take_while(|c| {
                let keep = before <= limit;
                before += c.1;
                keep
            });
            let kept = kept.count().max(1);
            self.candidates.truncate(kept);
        }
        if self.rule.min_p > 0.0 {
            // The likeliest one weighs 1, and the others follow in order.
            let kept = self.candidates.iter().take_while(|c| c.1 >= self.rule.min_p).count().max(1);
            self.candidates.truncate(kept);
        }
        let total: f64 = self.candidates.iter().map(|c| c.1).sum();
        let mut rest = self.rng.uniform() * total;
        for &(token, weight) in &self.candidates {
            rest -= weight;
            if rest < 0.0 {
                return token;
            }
        }
        self.candidates.last().map_or(0, |c| c.0)
    }
}

/// The first of the largest values: the greedy choice.
pub fn argmax(values: &[f64]) -> u32 {
    let best = values
        .iter()
        .enumerate()
        .fold((0, f64::NEG_INFINITY), |best, (i, &v)| if v > best.1 { (i, v) } else { best });
    best.0 as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(rule: Sampling, logits: &[f64], draws: usize) -> Vec<usize> {
        let mut sampler = Sampler::new(rule, 0).unwrap();
        let mut counts = vec![0; logits.len()];
        for _ in 0..draws {
            counts[sampler.choose(logits) as usize] += 1;
        }
        counts
    }

    #[test]
    fn draws_follow_the_softmax() {
        let rule = Sampling { temperature: 2.0, top_k: 0, top_p: 0.0, seed: 3, ..Sampling::GREEDY };
        let logits = [0.0f64, 2.0, 4.0];
        let counts = counts(rule, &logits, 20_000);
        let weights: Vec<f64> = logits.iter().map(|&l| (l / 2.0).exp()).collect();
        for (c, w) in counts.iter().zip(&weights) {
            let share = *c as f64 / 20_000.0;
            assert!((share - w / weights.iter().sum::<f64>()).abs() < 0.015, "{counts:?}");
        }
    }

    #[test]
    fn ties_at_the_kth_logit_survive() {
        let rule = Sampling { temperature: 1.0, top_k: 2, top_p: 0.0, seed: 1, ..Sampling::GREEDY };
        let counts = counts(rule, &[1.0, 5.0, 4.0, 4.0, 0.0], 2000);
        assert!(counts[1] > 0 && counts[2] > 0 && counts[3] > 0);
        assert_eq!((counts[0], counts[4]), (0, 0));
    }

    #[test]
    fn the_first_token_past_the_mass_is_kept() {
        // Shares 0.5, 0.3, 0.2: the mass before the second is 0.5 <= 0.6, before the third 0.8 > 0.6.
        let logits = [0.5f64.ln(), 0.3f64.ln(), 0.2f64.ln()];
        let counts = counts(
            Sampling { temperature: 1.0, top_k: 0, top_p: 0.6, seed: 9, ..Sampling::GREEDY },
            &logits,
            2000,
        );
        assert!(counts[0] > 0 && counts[1] > 0);
        assert_eq!(counts[2], 0);
    }

    #[test]
    fn min_p_keeps_what_is_likely_beside_the_likeliest() {
        // Probabilities 0.5, 0.3, 0.2, where 0.3 / 0.5 is 0.6 and 0.2 / 0.5 is 0.4.
        let logits = [0.5f64.ln(), 0.3f64.ln(), 0.2f64.ln()];
        let rule = |min_p| Sampling { temperature: 1.0, min_p, seed: 9, ..Sampling::GREEDY };
        let counts = |min_p| counts(rule(min_p), &logits, 2000);
        assert!(counts(0.5)[1] > 0 && counts(0.5)[2] == 0);
        assert_eq!((counts(0.7)[1], counts(0.7)[2]), (0, 0));
        assert!(counts(0.0)[2] > 0);
        assert!(rule(1.5).validate().is_err());
        // The mass of `top_p` is that of all, as in transformers: 0.4 leaves half of it, not half of what `min_p` keeps.
        let logits = [0.4f64.ln(), 0.3f64.ln(), 0.2f64.ln(), 0.1f64.ln()];
        let both = self::counts(Sampling { top_p: 0.5, ..rule(0.6) }, &logits, 2000);
        assert!(both[1] > 0 && both[2] == 0, "{both:?}");
    }

    #[test]
    fn hardly_any_temperature_is_that_of_the_likeliest() {
        for temperature in [f64::MIN_POSITIVE / 1e4, 1e-30] {
            let rule = Sampling { temperature, ..Sampling::GREEDY };
            assert_eq!(counts(rule, &[-3.0, 7.0, 6.5, 1e-9], 20), [0, 20, 0, 0]);
        }
        let hot = Sampling { temperature: 1e300, ..Sampling::GREEDY };
        assert!(counts(hot, &[1.0, 2.0, 3.0], 300).iter().all(|&n| n > 50));
    }

    #[test]
    fn what_occurred_becomes_less_likely_once() {
        let rule = Sampling { repetition_penalty: 2.0, ..Sampling::GREEDY };
        let mut logits = [4.0f64, -1.0, 3.0, 0.5];
        rule.penalise(&mut logits, [0, 1, 0, 9].into_iter());
        assert_eq!(logits, [2.0, -2.0, 3.0, 0.5]);
        let mut same = [4.0f64, -1.0];
        Sampling::GREEDY.penalise(&mut same, [0, 1].into_iter());
        assert_eq!(same, [4.0, -1.0]);
        for repetition_penalty in [0.0, 1e-320, 1e7, f64::NAN] {
            assert!(Sampling { repetition_penalty, ..Sampling::GREEDY }.validate().is_err());
        }
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_needs_no_luck() {
        assert_eq!(counts(Sampling::GREEDY, &[1.0, 3.0, 3.0], 10), [0, 10, 0]);
        assert!(Sampling { top_p: 1.5, ..Sampling::GREEDY }.validate().is_err());
        assert!(Sampling { temperature: f64::NAN, ..Sampling::GREEDY }.validate().is_err());
    }
}
