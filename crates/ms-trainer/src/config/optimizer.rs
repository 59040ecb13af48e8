//! How weights are updated.

use crate::scaler::LossScale;
use crate::state::OptimizerForm;

/// A run's optimizer.
#[derive(Clone, Copy, Debug)]
pub struct OptimizerConfig {
    /// The update rule.
    pub update: UpdateRule,
    /// The form in which its state is stored.
    pub form: OptimizerForm,
    /// The factor on the loss before the backward pass.
    pub loss_scale: LossScale,
    /// Largest gradient norm; 0 turns clipping off.
    pub clip_grad: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            update: UpdateRule::AdamW(Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8 }),
            form: OptimizerForm::default(),
            loss_scale: LossScale::None,
            clip_grad: 1.0,
        }
    }
}

/// An update rule of the optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UpdateRule {
    /// AdamW.
    AdamW(Adam),
    /// Gradient descent with momentum.
    Sgd {
        /// Share of the momentum that stays.
        momentum: f64,
    },
}

impl UpdateRule {
    /// Names of the state tensors other than the master weights, as in checkpoints.
    pub fn state_names(self) -> &'static [&'static str] {
        match self {
            Self::AdamW(_) => &["exp_avg", "exp_avg_sq"],
            Self::Sgd { .. } => &["momentum_buffer"],
        }
    }
}

/// AdamW's constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
}
