//! The loss scale: the factor applied to a loss before its backward pass, so that float16 gradients do not underflow.
//!
//! # Source
//! Megatron-LM `core_r0.8.0`, `megatron/core/optimizer/grad_scaler.py`.

use serde::{Deserialize, Serialize};

/// How the factor is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum LossScale {
    /// No loss scaling.
    #[default]
    None,
    /// It stays (`--loss-scale`).
    Constant(f64),
    /// It follows what overflows (`--fp16`).
    Dynamic {
        /// The first factor.
        initial: f64,
        /// The smallest one.
        min: f64,
        /// Iterations without an overflow until it doubles.
        window: u64,
        /// Overflows until it halves, and from then on at each; as many again once it has doubled.
        hysteresis: u64,
    },
}

/// The factor and what it depends on. As Megatron's, factors that follow overflows are float32 numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Scaler {
    pub(crate) scale: f64,
    /// Iterations since the last overflow.
    pub(crate) growth_tracker: u64,
    /// Overflows that are still borne.
    pub(crate) hysteresis_tracker: i64,
}

impl LossScale {
    pub(crate) fn start(self) -> Scaler {
        let (scale, hysteresis) = match self {
            Self::None => (1.0, 0),
            Self::Constant(scale) => (scale, 0),
            Self::Dynamic { initial, hysteresis, .. } => (f64::from(initial as f32), hysteresis),
        };
        Scaler { scale, growth_tracker: 0, hysteresis_tracker: hysteresis as i64 }
    }

    /// Whether gradients are checked for overflow.
    pub(crate) fn acts(self) -> bool {
        self != Self::None
    }
}

impl Scaler {
    /// After an iteration whose gradients overflowed, or did not.
    pub(crate) fn update(&mut self, rule: LossScale, overflow: bool) {
        let LossScale::Dynamic { min, window, hysteresis, .. } = rule else { return };
        if overflow {
            self.growth_tracker = 0;
            self.hysteresis_tracker -= 1;
            if self.hysteresis_tracker <= 0 {
                self.scale = (self.scale * 0.5).max(f64::from(min as f32));
            }
            return;
        }
        self.growth_tracker += 1;
        if self.growth_tracker == window {
            self.growth_tracker = 0;
            self.hysteresis_tracker = hysteresis as i64;
            self.scale *= 2.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_follows_overflows_as_megatrons_does() {
        let rule = LossScale::Dynamic { initial: 8.0, min: 1.0, window: 2, hysteresis: 2 };
        let mut scaler = rule.start();
        let mut after = |overflow| {
            scaler.update(rule, overflow);
            scaler.scale
        };
        // The first overflow is borne, the next ones halve down to the smallest.
        let down: Vec<f64> = [true, true, true, true, true].map(&mut after).to_vec();
        assert_eq!(down, [8.0, 4.0, 2.0, 1.0, 1.0]);
        // Two clean iterations double; an overflow between them begins the count again and halves at once.
        assert_eq!([false, true, false, false].map(&mut after), [1.0, 1.0, 1.0, 2.0]);
        // Having doubled, one overflow is borne again.
        assert_eq!([true, true].map(&mut after), [2.0, 1.0]);
        let mut constant = LossScale::Constant(16.0).start();
        constant.update(LossScale::Constant(16.0), true);
        assert_eq!((constant.scale, LossScale::None.start().scale), (16.0, 1.0));
    }
}
