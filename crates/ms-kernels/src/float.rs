//! Elementary functions with the same bits on every machine.
//!
//! The C library's results differ between hosts. These functions are plain sequences of correctly rounded operations; fused
//! multiply-add is one of them, and every instance has it, in software if necessary.

/// `exp(x)`, relative error below 2e-7, for `x` down to -87.3; below that 0, above 88 the value at 88.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // 1.5 · 2^23: adding it leaves the integer part of a small number in the low mantissa bits.
    const SHIFT: f32 = 12_582_912.0;
    let y = if x > 88.0 { 88.0 } else { x };
    let t = y.mul_add(std::f32::consts::LOG2_E, SHIFT);
    let n = t - SHIFT;
    // ln 2 in two parts, the first with enough trailing zeros for n · part to be exact.
    let r = n.mul_add(-0.693_145_75, y);
    let r = n.mul_add(-1.428_606_8e-6, r);
    // Minimax for (e^r - 1 - r) / r^2 on [-ln2/2, ln2/2], then 1 + r + r^2 · that.
    let p = 1.987_569_1e-4f32
        .mul_add(r, 1.398_199_9e-3)
        .mul_add(r, 8.333_452e-3)
        .mul_add(r, 4.166_579_6e-2)
        .mul_add(r, 1.666_666_5e-1)
        .mul_add(r, 0.5);
    let p = p.mul_add(r, 1.0).mul_add(r, 1.0);
    // The product with 2^n, which is no denormal from -87.3 on, is a sum of exponents.
    let scaled = f32::from_bits(p.to_bits().wrapping_add(t.to_bits() << 23));
    if x < -87.3 { 0.0 } else { scaled }
}

/// `2^x`, relative error below 2e-7, for `x` from -126 to 127.
///
/// Below that a denormal: a kernel that treats those as zero gets zero. Ten operations where [`exp`] takes fourteen. NaN gives
/// NaN, but for those whose payload, which no operation makes, reaches the lowest nine bits.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    let (t, r) = parts(x);
    let [a, b, c, d, e, f] = POWER_COEFFICIENTS;
    times_power(a.mul_add(r, b).mul_add(r, c).mul_add(r, d).mul_add(r, e).mul_add(r, f), t)
}

/// Minimax for `2^r` on [-1/2, 1/2], 1 at 0; highest power first.
#[allow(clippy::approx_constant)] // one beside ln 2
pub(crate) const POWER_COEFFICIENTS: [f32; 6] =
    [1.326_472_4e-3, 9.671_513e-3, 5.550_733_6e-2, 2.402_224_2e-1, 0.693_147, 1.0];

/// The smallest argument of [`exp2`]. It rounds to -127 from below, so that the mantissa is one or more and the exponent field
/// becomes zero.
pub(crate) const LEAST_POWER: f32 = -126.6;

/// [`exp2`] with a multiply-add less, relative error below 4e-6, for what is rounded to bf16 in the end.
#[inline(always)]
pub(crate) fn exp2_short(x: f32) -> f32 {
    let (t, r) = parts(x);
    times_power(short::polynomial(r), t)
}

/// The nearest whole number in the low mantissa bits, and what `x` is beyond it.
#[inline(always)]
fn parts(x: f32) -> (f32, f32) {
    let y = if x < LEAST_POWER { LEAST_POWER } else { x };
    let t = y + short::SHIFT;
    (t, y - (t - short::SHIFT))
}

/// `p` times two to the whole number in the low mantissa bits of `t`: a sum of exponents.
#[inline(always)]
fn times_power(p: f32, t: f32) -> f32 {
    f32::from_bits(p.to_bits().wrapping_add(t.to_bits() << 23))
}

/// `exp(x)` for `x` that are not positive, as exact as what `E` can show of it needs: [`exp`], or for bf16 nine operations with a
/// relative error below 5e-6 down to -87, below that as [`exp2`].
#[inline(always)]
pub(crate) fn exp_below<E: crate::Element>(x: f32) -> f32 {
    if !crate::element::is_bf16::<E>() {
        return exp(x);
    }
    power(if x < short::LEAST { short::LEAST } else { x }, std::f32::consts::LOG2_E)
}

/// [`sigmoid`] for what is rounded to bf16 in the end; of NaN some number, for what is multiplied with that NaN.
#[inline(always)]
pub(crate) fn sigmoid_short(x: f32) -> f32 {
    // Of whole numbers, for which a processor has more units than for those of floats: the largest of what is not negative,
    // then, without signs, the one farthest below zero.
    let bits = x.to_bits().cast_signed().min(short::MOST_GATE.to_bits().cast_signed()).cast_unsigned();
    let y = f32::from_bits(bits.min(short::LEAST_GATE.to_bits()));
    1.0 / (1.0 + power(y, -std::f32::consts::LOG2_E))
}

/// What the short exponentials are made of.
pub(crate) mod short {
    /// The smallest argument of [`super::exp_below`].
    pub(crate) const LEAST: f32 = -87.75;
    /// The smallest argument of [`super::sigmoid_short`].
    pub(crate) const LEAST_GATE: f32 = -88.0;
    /// The largest one.
    pub(crate) const MOST_GATE: f32 = 87.75;
    /// 1.5 · 2^23: adding it leaves the integer part of a small number in the low mantissa bits.
    pub(crate) const SHIFT: f32 = 12_582_912.0;
    /// Minimax for `2^r` on [-1/2, 1/2], 1 at 0, relative error 2.8e-6; highest power first.
    pub(crate) const COEFFICIENTS: [f32; 5] =
        [9.582_853e-3, 5.590_642_5e-2, 2.402_409_9e-1, 0.693_124_2, 1.0];

    /// The polynomial of [`COEFFICIENTS`].
    #[inline(always)]
    pub(super) fn polynomial(r: f32) -> f32 {
        let [a, b, c, d, e] = COEFFICIENTS;
        a.mul_add(r, b).mul_add(r, c).mul_add(r, d).mul_add(r, e)
    }
}

/// `2^(y · scale)`, where that is below 2^127.5; zero or a denormal below 2^-126.
#[inline(always)]
fn power(y: f32, scale: f32) -> f32 {
    let t = y.mul_add(scale, short::SHIFT);
    let r = y.mul_add(scale, short::SHIFT - t);
    times_power(short::polynomial(r), t)
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `ln(1 + exp(x))`, relative error below 4e-7; its slope is [`sigmoid`].
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    let power = exp(x);
    let soft = ln(1.0 + f64::from(power)) as f32;
    // From -16 down both are the same number, of which the sum with 1 loses more and more.
    let soft = if x < -16.0 { power } else { soft };
    if x > 20.0 { x } else { soft }
}

/// `tanh(x)`, relative error below 1e-6.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    // Series where 1 - exp would cancel.
    let s = x * x;
    let small = x * (-17.0f32 / 315.0).mul_add(s, 2.0 / 15.0).mul_add(s, -1.0 / 3.0).mul_add(s, 1.0);
    let e = exp(-2.0 * a);
    let large = ((1.0 - e) / (1.0 + e)).copysign(x);
    if a < 0.125 { small } else { large }
}

/// Natural logarithm of a positive number; 0 gives -infinity. Without branches, so that a loop of them is vector code.
#[inline(always)]
pub(crate) fn ln(x: f64) -> f64 {
    // x = m · 2^e with m in [sqrt(1/2), sqrt(2))
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let m = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 0x3ff0_0000_0000_0000);
    let upper = m > std::f64::consts::SQRT_2;
    let m = if upper { m * 0.5 } else { m };
    let exponent = if upper { exponent + 1 } else { exponent };
    // ln m = 2 artanh((m-1)/(m+1)); the argument is below 0.172, so ten terms reach 1e-17.
    let s = (m - 1.0) / (m + 1.0);
    let q = s * s;
    let mut sum = 0.0;
    for k in (0..11).rev() {
        sum = sum * q + 1.0 / f64::from(2 * k + 1);
    }
    let normal = 2.0 * s * sum + exponent as f64 * std::f64::consts::LN_2;
    let finite = if x < f64::MIN_POSITIVE { f64::NEG_INFINITY } else { normal };
    let value = if x == f64::INFINITY { x } else { finite };
    if x >= 0.0 { value } else { f64::NAN }
}

/// `(sin x, cos x)` for `|x|` below a million, absolute error below 1e-15 times the number of turns' rounding.
pub(crate) fn sin_cos(x: f64) -> (f64, f64) {
    // pi/2 in two parts: 33 bits, so that n · HIGH is exact for n below 2^20, and the rest.
    const HIGH: f64 = 1.570_796_326_734_125_6;
    const LOW: f64 = 6.077_100_506_506_192e-11;
    let n = (x * std::f64::consts::FRAC_2_PI).round();
    let y = (x - n * HIGH) - n * LOW;
    let s = y * y;
    // Taylor series on |y| <= pi/4.
    let (mut sin, mut cos) = (0.0, 0.0);
    for k in (0..9).rev() {
        let (a, b) = (f64::from(2 * k + 2), f64::from(2 * k + 3));
        sin = 1.0 - s / (a * b) * sin_term(k, sin);
        cos = 1.0 - s / ((a - 1.0) * a) * sin_term(k, cos);
    }
    let (sin, cos) = (y * sin, cos);
    match (n as i64).rem_euclid(4) {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// The innermost factor of the nested series is 1.
fn sin_term(k: i32, inner: f64) -> f64 {
    if k == 8 { 1.0 } else { inner }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_of_the_last_place() {
        let mut worst = 0.0f64;
        for i in -8_700_000..8_800_000i32 {
            if i % 7 != 0 {
                continue;
            }
            let x = i as f32 * 1e-5;
            let want = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) / want - 1.0).abs());
        }
        assert!(worst < 2e-7, "{worst:e}");
    }

    #[test]
    fn exp_handles_its_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-88.0), 0.0);
        assert!(exp(f32::INFINITY).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn short_exponentials_are_far_finer_than_bf16() {
        let mut worst = 0.0f64;
        for i in 0..870_000i32 {
            let x = i as f32 * -1e-4;
            worst = worst.max((f64::from(exp_below::<half::bf16>(x)) / f64::from(x).exp() - 1.0).abs());
        }
        assert!(worst < 5e-6, "{worst:e}");
        assert_eq!(exp_below::<half::bf16>(0.0), 1.0);
        assert!(exp_below::<half::bf16>(f32::NEG_INFINITY) < f32::MIN_POSITIVE);
        assert!(exp_below::<half::bf16>(f32::NAN).is_nan());
        assert_eq!(exp_below::<f32>(-3.5), exp(-3.5));
    }

    #[test]
    fn powers_of_two_are_within_two_units_of_the_last_place() {
        let mut worst = 0.0f64;
        for i in -1_259_000..1_269_000i32 {
            let x = i as f32 * 1e-4;
            worst = worst.max((f64::from(exp2(x)) / f64::from(x).exp2() - 1.0).abs());
        }
        assert!(worst < 2e-7, "{worst:e}");
        assert_eq!(exp2(0.0), 1.0);
        assert_eq!(exp2(-126.0), f32::MIN_POSITIVE);
        for x in [-126.7, -127.3, -1e5, f32::NEG_INFINITY] {
            assert!(exp2(x) < f32::MIN_POSITIVE, "{x}: {:e}", exp2(x));
        }
        assert!(exp2(f32::NAN).is_nan() && exp2_short(f32::NAN).is_nan());
        let mut worst = 0.0f64;
        for i in -1_259_000..1_000i32 {
            let x = i as f32 * 1e-4;
            worst = worst.max((f64::from(exp2_short(x)) / f64::from(x).exp2() - 1.0).abs());
        }
        assert!(worst < 4e-6, "{worst:e}");
        assert_eq!(exp2_short(0.0), 1.0);
    }

    #[test]
    fn tanh_and_sigmoid_follow_their_definitions() {
        for i in -4000..4000 {
            let x = i as f32 * 0.005;
            let want = f64::from(x).tanh();
            assert!((f64::from(tanh(x)) - want).abs() <= 1e-6 * want.abs(), "tanh {x}");
            let want = 1.0 / (1.0 + (-f64::from(x)).exp());
            assert!((f64::from(sigmoid(x)) - want).abs() <= 4e-7 * want, "sigmoid {x}");
        }
        for i in -8700..3000 {
            let x = i as f32 * 0.01;
            let want = f64::from(x).exp().ln_1p();
            assert!((f64::from(softplus(x)) - want).abs() <= 4e-7 * want, "softplus {x}");
        }
        assert!(softplus(f32::NAN).is_nan());
        assert_eq!(sigmoid(-200.0), 1.0 / (1.0 + exp(88.0)));
        assert_eq!(tanh(50.0), 1.0);
    }

    #[test]
    fn ln_matches_the_library() {
        for i in 1..20_000 {
            let x = f64::from(i) * 0.37;
            assert!((ln(x) - x.ln()).abs() <= 4e-16 * x.ln().abs().max(1.0), "ln {x}");
        }
        assert_eq!(ln(0.0), f64::NEG_INFINITY);
        assert_eq!(ln(f64::INFINITY), f64::INFINITY);
        assert!(ln(-1.0).is_nan());
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn sine_and_cosine_match_the_library_up_to_a_million_radians() {
        for i in 0..200_000 {
            let x = f64::from(i) * 4.999;
            let (s, c) = sin_cos(x);
            assert!((s - x.sin()).abs() < 1e-14 && (c - x.cos()).abs() < 1e-14, "{x}: {s} {c}");
            let (s2, c2) = sin_cos(-x);
            assert!((s2 + s).abs() < 1e-15 && (c2 - c).abs() < 1e-15);
        }
    }
}
