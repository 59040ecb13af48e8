//! Functions of one number that the standard library does not have.

unsafe extern "C" {
    #[link_name = "erf"]
    fn c_erf(x: f64) -> f64;
    #[link_name = "erfc"]
    fn c_erfc(x: f64) -> f64;
    #[link_name = "lgamma"]
    fn c_lgamma(x: f64) -> f64;
}

/// Error function.
pub fn erf(x: f64) -> f64 {
    // SAFETY: a function of the C library without side effects.
    unsafe { c_erf(x) }
}

/// Its complement.
pub fn erfc(x: f64) -> f64 {
    // SAFETY: as above.
    unsafe { c_erfc(x) }
}

/// Logarithm of the gamma function.
pub fn lgamma(x: f64) -> f64 {
    // SAFETY: as above.
    unsafe { c_lgamma(x) }
}

/// Derivative of `lgamma`.
pub fn digamma(mut x: f64) -> f64 {
    if x <= 0.0 && x.fract() == 0.0 {
        return f64::NAN;
    }
    if x < 0.0 {
        return digamma(1.0 - x) - std::f64::consts::PI / (std::f64::consts::PI * x).tan();
    }
    let mut sum = 0.0;
    while x < 10.0 {
        sum -= 1.0 / x;
        x += 1.0;
    }
    let y = 1.0 / (x * x);
    sum + x.ln()
        - 0.5 / x
        - y * (1.0 / 12.0 - y * (1.0 / 120.0 - y * (1.0 / 252.0 - y * (1.0 / 240.0 - y / 132.0))))
}

/// Inverse of `erf`, by Newton's steps from a rational start.
pub fn erfinv(x: f64) -> f64 {
    if x.abs() >= 1.0 {
        return if x.abs() == 1.0 { x * f64::INFINITY } else { f64::NAN };
    }
    let w = (1.0 - x * x).ln();
    let a = 0.147;
    let t = 2.0 / (std::f64::consts::PI * a) + w / 2.0;
    let mut y = ((t * t - w / a).sqrt() - t).sqrt().copysign(x);
    for _ in 0..4 {
        let slope = std::f64::consts::FRAC_2_SQRT_PI * (-y * y).exp();
        if slope == 0.0 {
            break;
        }
        y -= (erf(y) - x) / slope;
    }
    y
}

/// Logistic function.
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// x·Φ(x)
pub fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))
}

/// Its derivative.
pub fn gelu_grad(x: f64) -> f64 {
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)) + x * density
}

/// The form with tanh.
pub fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + (K * (x + 0.044_715 * x * x * x)).tanh())
}

/// Its derivative.
pub fn gelu_tanh_grad(x: f64) -> f64 {
    let t = (K * (x + 0.044_715 * x * x * x)).tanh();
    0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * K * (1.0 + 3.0 * 0.044_715 * x * x)
}

const K: f64 = 0.797_884_560_802_865_4;

/// x / (1 + e^-x)
pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// Its derivative.
pub fn silu_grad(x: f64) -> f64 {
    let s = sigmoid(x);
    s * (1.0 + x * (1.0 - s))
}

/// ln(1 + e^x) without overflow.
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// To the nearest integer, halves to even.
pub fn round_even(x: f64) -> f64 {
    x.round_ties_even()
}
