//! What PyTorch makes of one or two numbers, where that is not what the language does.

pub(super) fn ipow(a: i64, b: i64) -> i64 {
    if b < 0 {
        return match a {
            1 => 1,
            -1 => 1 - 2 * (b & 1).abs(),
            _ => 0,
        };
    }
    a.wrapping_pow(b.min(i64::from(u32::MAX)) as u32)
}

pub(super) fn floor_div_i(a: i64, b: i64) -> i64 {
    if b == 0 {
        return 0;
    }
    let q = a.wrapping_div(b);
    if a % b != 0 && ((a < 0) != (b < 0)) { q - 1 } else { q }
}

pub(super) fn remainder(a: f64, b: f64) -> f64 {
    let r = a % b;
    if r != 0.0 && ((r < 0.0) != (b < 0.0)) { r + b } else { r }
}

/// As PyTorch divides with rounding down: the remainder decides, not the rounded quotient.
pub(super) fn floor_div(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        return a / b;
    }
    let m = a % b;
    let mut d = (a - m) / b;
    if m != 0.0 && ((b < 0.0) != (m < 0.0)) {
        d -= 1.0;
    }
    if d == 0.0 {
        return 0f64.copysign(a / b);
    }
    let f = d.floor();
    if d - f > 0.5 { f + 1.0 } else { f }
}

pub(super) fn max_nan(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

pub(super) fn min_nan(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
}

pub(super) fn gcd(mut a: i64, mut b: i64) -> i64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.abs()
}

pub(super) fn xlogy(a: f64, b: f64) -> f64 {
    if b.is_nan() {
        f64::NAN
    } else if a == 0.0 {
        0.0
    } else {
        a * b.ln()
    }
}

pub(super) fn log_add_exp(a: f64, b: f64) -> f64 {
    if a.is_infinite() && a == b { a } else { a.max(b) + (-(a - b).abs()).exp().ln_1p() }
}

pub(super) fn sign(x: f64) -> f64 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x * 0.0
    }
}
