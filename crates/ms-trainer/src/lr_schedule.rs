//! Schedules of learning rate and weight decay over the samples of a run.
//!
//! # Source
//! Megatron-LM `core_r0.8.0`, `megatron/core/optimizer_param_scheduler.py`; expected values in
//! `tests/golden/ops/lr_schedules.json`.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// Shape of the learning rate after warm-up (`--lr-decay-style`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DecayStyle {
    /// Stays at the maximum.
    #[serde(rename = "constant")]
    Constant,
    /// Straight down to the minimum.
    #[serde(rename = "linear")]
    Linear,
    /// Half a cosine down to the minimum.
    #[serde(rename = "cosine")]
    Cosine,
    /// One over the root of the samples.
    #[serde(rename = "inverse-square-root")]
    InverseSquareRoot,
    /// Warm-up, stable, decay: at the maximum until the last part.
    #[serde(rename = "WSD")]
    Wsd,
}

/// Shape of the last part of WSD (`--lr-wsd-decay-style`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WsdStyle {
    /// `1 - k`.
    Linear,
    /// Half a cosine.
    Cosine,
    /// `2 · 0.5^k - 1`.
    Exponential,
}

/// How weight decay moves from its start to its end (`--weight-decay-incr-style`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightDecayStyle {
    /// It does not.
    Constant,
    /// Straight.
    Linear,
    /// Half a cosine.
    Cosine,
}

/// Learning rate and weight decay as functions of the samples trained on. All lengths are in samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LrSchedule {
    /// Learning rate at the start of warm-up.
    pub init_lr: f64,
    /// Largest learning rate.
    pub max_lr: f64,
    /// Smallest learning rate.
    pub min_lr: f64,
    /// Samples of linear warm-up. A share of the decay (`--lr-warmup-fraction`) need not be whole: Megatron does not
    /// round it.
    pub warmup: f64,
    /// Samples until the smallest learning rate is reached.
    pub decay: u64,
    /// Shape after warm-up.
    pub style: DecayStyle,
    /// Samples of the last part of WSD.
    pub wsd_decay: u64,
    /// Shape of the last part of WSD.
    pub wsd_style: WsdStyle,
    /// Weight decay at the start.
    pub start_weight_decay: f64,
    /// Weight decay at the end.
    pub end_weight_decay: f64,
    /// Samples over which weight decay moves.
    pub weight_decay_samples: u64,
    /// How it moves.
    pub weight_decay_style: WeightDecayStyle,
    /// Learning rates of the vocabulary matrices (`--decoupled-lr`), over the same samples in the same shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decoupled: Option<Decoupled>,
}

/// Learning rates of the word embedding and the output layer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decoupled {
    /// Largest.
    pub max_lr: f64,
    /// Smallest.
    pub min_lr: f64,
}

/// What updates weights in one iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Learning rate.
    pub lr: f64,
    /// That of the word embedding and the output layer; `None`: as all.
    pub decoupled_lr: Option<f64>,
    /// Weight decay.
    pub weight_decay: f64,
}

impl From<(f64, f64)> for Rates {
    /// One learning rate, and weight decay.
    fn from((lr, weight_decay): (f64, f64)) -> Self {
        Self { lr, decoupled_lr: None, weight_decay }
    }
}

impl LrSchedule {
    /// The rates to use after `samples` samples.
    pub fn rates(&self, samples: u64) -> Rates {
        let decoupled =
            |d: Decoupled| Self { max_lr: d.max_lr, min_lr: d.min_lr, ..self.clone() }.lr(samples);
        let (lr, weight_decay) = (self.lr(samples), self.weight_decay(samples));
        Rates { lr, decoupled_lr: self.decoupled.map(decoupled), weight_decay }
    }

    /// Checks that the numbers fit together.
    ///
    /// # Errors
    /// [`Error::Config`] naming the flag.
    pub fn validate(&self) -> Result<()> {
        if !(self.max_lr >= self.min_lr && self.min_lr >= 0.0 && self.max_lr.is_finite()) {
            let expected = format!("0 <= min-lr <= lr, with lr {}", self.max_lr);
            return Err(Error::config("--min-lr", expected, self.min_lr));
        }
        if self.init_lr > self.max_lr {
            return Err(Error::config(
                "--lr-warmup-init",
                format!("at most --lr {}", self.max_lr),
                self.init_lr,
            ));
        }
        if self.decay == 0 || self.warmup.is_nan() || self.warmup >= self.decay as f64 {
            let expected = format!("less than the {} samples of the decay", self.decay);
            return Err(Error::config("--lr-warmup-iters", expected, format!("{} samples", self.warmup)));
        }
        Ok(())
    }

    /// The learning rate to use after `samples` samples.
    pub fn lr(&self, samples: u64) -> f64 {
        let n = samples as f64;
        let warmup = self.warmup;
        if warmup > 0.0 && n <= warmup {
            return self.init_lr + (self.max_lr - self.init_lr) * n / warmup;
        }
        match self.style {
            DecayStyle::Constant => return self.max_lr,
            _ if samples > self.decay => return self.min_lr,
            DecayStyle::InverseSquareRoot => {
                let lr = self.max_lr * warmup.max(1.0).sqrt() / n.max(1.0).sqrt();
                return lr.max(self.min_lr);
            }
            _ => {}
        }
        let ratio = (n - warmup) / (self.decay as f64 - warmup);
        let share = match self.style {
            DecayStyle::Cosine => 0.5 * ((PI * ratio).cos() + 1.0),
            DecayStyle::Wsd => {
                // Before the run, where the last part is longer than the whole decay.
                let start = self.decay as f64 - self.wsd_decay as f64;
                if n <= start {
                    1.0
                } else {
                    let k = (n - start) / self.wsd_decay as f64;
                    match self.wsd_style {
                        WsdStyle::Linear => 1.0 - k,
                        WsdStyle::Cosine => 0.5 * ((PI * k).cos() + 1.0),
                        WsdStyle::Exponential => 2.0 * 0.5f64.powf(k) - 1.0,
                    }
                }
            }
            _ => 1.0 - ratio,
        };
        self.min_lr + share * (self.max_lr - self.min_lr)
    }

    /// The weight decay to use after `samples` samples.
    pub fn weight_decay(&self, samples: u64) -> f64 {
        let (start, end) = (self.start_weight_decay, self.end_weight_decay);
        if samples > self.weight_decay_samples || self.weight_decay_samples == 0 {
            return end;
        }
        let ratio = samples as f64 / self.weight_decay_samples as f64;
        let share = match self.weight_decay_style {
            WeightDecayStyle::Constant => return end,
            WeightDecayStyle::Linear => ratio,
            WeightDecayStyle::Cosine => 0.5 * ((PI * (1.0 - ratio)).cos() + 1.0),
        };
        start + share * (end - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learning_rates_are_megatrons() {
        let path = ms_testing::golden("ops/lr_schedules.json");
        let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let gbs = golden["global_batch_size"].as_u64().unwrap();
        let samples = |key: &str| golden[key].as_u64().unwrap() * gbs;
        let mut seen = 0;
        for (name, values) in golden["curves"].as_object().unwrap() {
            let (style, wsd_style) = match name.as_str() {
                "cosine" => (DecayStyle::Cosine, WsdStyle::Linear),
                "linear" => (DecayStyle::Linear, WsdStyle::Linear),
                "constant" => (DecayStyle::Constant, WsdStyle::Linear),
                "inverse-square-root" => (DecayStyle::InverseSquareRoot, WsdStyle::Linear),
                "WSD-linear" => (DecayStyle::Wsd, WsdStyle::Linear),
                "WSD-cosine" => (DecayStyle::Wsd, WsdStyle::Cosine),
                "WSD-exponential" => (DecayStyle::Wsd, WsdStyle::Exponential),
                other => panic!("the golden has a schedule that is not tested: {other}"),
            };
            let schedule = LrSchedule {
                init_lr: 0.0,
                max_lr: golden["lr"].as_f64().unwrap(),
                min_lr: golden["min_lr"].as_f64().unwrap(),
                warmup: samples("lr_warmup_iters") as f64,
                decay: samples("lr_decay_iters"),
                style,
                wsd_decay: samples("lr_wsd_decay_iters"),
                wsd_style,
                start_weight_decay: 0.1,
                end_weight_decay: 0.1,
                weight_decay_samples: 0,
                weight_decay_style: WeightDecayStyle::Constant,
                decoupled: None,
            };
            for (i, want) in values.as_array().unwrap().iter().enumerate() {
                let (got, want) = (schedule.lr(i as u64 * gbs), want.as_f64().unwrap());
                assert!((got - want).abs() <= 1e-15, "{name} at iteration {i}: got {got:e}, want {want:e}");
                seen += 1;
            }
        }
        assert!(seen > 100);
    }

    fn schedule() -> LrSchedule {
        LrSchedule {
            init_lr: 0.0,
            max_lr: 1e-3,
            min_lr: 1e-4,
            warmup: 10.0,
            decay: 100,
            style: DecayStyle::Linear,
            wsd_decay: 0,
            wsd_style: WsdStyle::Linear,
            start_weight_decay: 0.0,
            end_weight_decay: 0.2,
            weight_decay_samples: 100,
            weight_decay_style: WeightDecayStyle::Linear,
            decoupled: None,
        }
    }

    #[test]
    fn warm_up_starts_at_zero_and_decay_ends_at_the_minimum() {
        let s = schedule();
        assert_eq!((s.lr(0), s.lr(5), s.lr(10), s.lr(101)), (0.0, 5e-4, 1e-3, 1e-4));
        assert_eq!((s.weight_decay(0), s.weight_decay(50), s.weight_decay(101)), (0.0, 0.1, 0.2));
    }

    /// By hand from Megatron's `OptimizerParamScheduler.get_lr`: the last part begins 100 samples before the run.
    #[test]
    fn a_last_part_longer_than_the_decay_began_before_the_run() {
        for (wsd_style, want) in [
            (WsdStyle::Linear, [0.5, 0.25, 0.0]),
            (WsdStyle::Cosine, [0.5, 0.146_446_609_406_726_24, 0.0]),
            (WsdStyle::Exponential, [0.414_213_562_373_095_05, 0.189_207_115_002_721_07, 0.0]),
        ] {
            let s =
                LrSchedule { style: DecayStyle::Wsd, wsd_decay: 200, wsd_style, warmup: 0.0, ..schedule() };
            let s = LrSchedule { max_lr: 1.0, min_lr: 0.0, ..s };
            for (samples, want) in [0, 50, 100].into_iter().zip(want) {
                assert!((s.lr(samples) - want).abs() < 1e-15, "{wsd_style:?} {samples}: {}", s.lr(samples));
            }
        }
    }

    #[test]
    fn a_warm_up_that_is_a_share_of_the_decay_is_not_rounded() {
        let s = LrSchedule { warmup: 2.5, ..schedule() };
        assert_eq!((s.lr(1), s.lr(2)), (1e-3 / 2.5, 1e-3 * 2.0 / 2.5));
        assert!(s.lr(3) < 1e-3);
    }

    #[test]
    fn a_warm_up_longer_than_the_decay_is_refused() {
        let e = LrSchedule { warmup: 100.0, ..schedule() }.validate().unwrap_err().to_string();
        assert!(e.contains("--lr-warmup-iters"), "{e}");
        assert!(LrSchedule { min_lr: 1.0, ..schedule() }.validate().is_err());
    }
}
