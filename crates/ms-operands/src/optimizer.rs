//! Parameters of one optimizer step.

/// Constants of a step of AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Number of this step, from 1.
    pub step: u64,
}

/// Constants of a step of gradient descent with momentum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Learning rate of this step.
    pub lr: f64,
    /// Share of the momentum that stays.
    pub momentum: f64,
    /// Weight decay, added to the gradient.
    pub weight_decay: f64,
}
