//! Activation functions, by name.

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x · σ(x)`.
    Silu,
    /// `x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
    GeluTanh,
    /// `x · Φ(x)` with the normal distribution function `Φ`.
    GeluErf,
    /// `max(x, 0)²`.
    Relu2,
    /// `σ(x)`.
    Sigmoid,
    /// `g · σ(alpha · g)` with `g = min(x, limit)`; the gated value is clamped to `±limit` and increased by 1.
    Clamped {
        /// Slope inside the sigmoid.
        alpha: f64,
        /// The limit.
        limit: f64,
    },
    /// `g · σ(g)` with `g = min(x, limit)`; the gated value is clamped to `±limit` (DeepSeek-V4).
    ClampedSilu {
        /// The limit.
        limit: f64,
    },
    /// `min(x · σ(x), limit)`; the gated value is clamped to `±limit`.
    Limited {
        /// The limit.
        limit: f64,
    },
}
