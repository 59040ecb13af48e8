//! Everything that is not a matrix product, compiled for each instruction set.

use crate::float::{exp, sigmoid, softplus, tanh};
use crate::lanes::body::dot;
use std::f32::consts::PI;
use std::f64::consts::FRAC_2_PI;

/// Scalars of a token for a head, in addition to vectors.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    /// `Δ`.
    pub(super) step: Vec<f32>,
    /// Its slope by `dt`.
    pub(super) step_slope: Vec<f32>,
    pub(super) rate: Vec<f32>,
    /// Its slope by what it is the softplus of.
    pub(super) rate_slope: Vec<f32>,
    /// `exp(−rate·Δ)`.
    pub(super) decay: Vec<f32>,
    /// Weight of the step's end.
    pub(super) end: Vec<f32>,
}

/// Fills `to` from steps with their bias, rates and weights before their functions.
#[inline(always)]
pub(super) fn numbers(to: &mut Numbers, raw: &[f32], rates: &[f32], traps: &[f32], floor: f32) {
    let n = raw.len();
    let fields =
        [&mut to.step, &mut to.step_slope, &mut to.rate, &mut to.rate_slope, &mut to.decay, &mut to.end];
    let [step, step_slope, rate, rate_slope, decay, end] = fields.map(|field| {
        field.resize(n, 0.0);
        &mut field[..n]
    });
    let (rates, traps) = (&rates[..n], &traps[..n]);
    for i in 0..n {
        step[i] = softplus(raw[i]);
        step_slope[i] = sigmoid(raw[i]);
        end[i] = sigmoid(traps[i]);
    }
    // Seen once more to be of one length.
    let (step, rate, rate_slope, decay) = (&step[..n], &mut rate[..n], &mut rate_slope[..n], &mut decay[..n]);
    for i in 0..n {
        let soft = softplus(rates[i]);
        let below = soft < floor;
        let slope = sigmoid(rates[i]);
        rate[i] = if below { floor } else { soft };
        rate_slope[i] = if below { 0.0 } else { slope };
        decay[i] = exp(-rate[i] * step[i]);
    }
}

/// `to = π tanh(angle)`.
#[inline(always)]
pub(super) fn speeds(to: &mut [f32], angle: &[f32]) {
    to.iter_mut().zip(angle).for_each(|(to, angle)| *to = tanh(*angle) * PI);
}

/// Sine and cosine of an angle within a few turns, absolute error below 1e-11.
#[inline(always)]
fn sin_cos(x: f32) -> (f32, f32) {
    // pi/2 in two parts, as for `crate::float::sin_cos`; since there are few turns, shorter series and a shorter first part
    // suffice.
    const HIGH: f64 = 1.570_796_326_734_125_6;
    const LOW: f64 = 6.077_100_506_506_192e-11;
    // 1.5 · 2^52: adding it rounds to an integer.
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    let x = f64::from(x);
    let n = (x * FRAC_2_PI + SHIFT) - SHIFT;
    let y = (x - n * HIGH) - n * LOW;
    let s = y * y;
    let sin =
        (((-1.0 / 39_916_800.0 * s + 1.0 / 362_880.0) * s - 1.0 / 5040.0) * s + 1.0 / 120.0) * s - 1.0 / 6.0;
    let sin = y + y * s * sin;
    let cos = (((1.0 / 479_001_600.0 * s - 1.0 / 3_628_800.0) * s + 1.0 / 40_320.0) * s - 1.0 / 720.0) * s
        + 1.0 / 24.0;
    let cos = 1.0 + s * (s * cos - 0.5);
    let quadrant = n - 4.0 * (n * 0.25).floor();
    let odd = quadrant == 1.0 || quadrant == 3.0;
    let (a, b) = (if odd { cos } else { sin }, if odd { sin } else { cos });
    let a = if quadrant >= 2.0 { -a } else { a };
    let b = if quadrant == 1.0 || quadrant == 2.0 { -b } else { b };
    (a as f32, b as f32)
}

/// Advances `angles` by `speeds` `[T,A]` times the steps; stores the angles after each token, and their cosines and sines.
#[inline(always)]
pub(super) fn turn(
    angles: &mut [f32],
    (kept, cos, sin): (&mut [f32], &mut [f32], &mut [f32]),
    speeds: &[f32],
    steps: &[f32],
) {
    let a = angles.len();
    if a == 0 {
        return;
    }
    for ((kept, speeds), step) in kept.chunks_exact_mut(a).zip(speeds.chunks_exact(a)).zip(steps) {
        for ((kept, angle), speed) in kept.iter_mut().zip(angles.iter_mut()).zip(speeds) {
            let sum = *angle + speed * step;
            *angle = sum - 2.0 * PI * (sum / (2.0 * PI)).floor();
            *kept = *angle;
        }
    }
    sines((cos, sin), kept);
}

/// Cosines and sines of angles.
#[inline(always)]
pub(super) fn sines((cos, sin): (&mut [f32], &mut [f32]), angles: &[f32]) {
    for ((cos, sin), angle) in cos.iter_mut().zip(sin).zip(angles) {
        (*sin, *cos) = sin_cos(*angle);
    }
}

/// Rows `to = raw + bias`, `[T,R,S]` and `[R,S]`, rotated by the angles of their token: pairs of elements `apart` apart,
/// which begin `2 / apart.min(2)` elements after each other.
#[inline(always)]
pub(super) fn turned(
    to: &mut [f32],
    raw: &[f32],
    bias: &[f32],
    (cos, sin): (&[f32], &[f32]),
    (s, angles, halves): (usize, usize, bool),
) {
    for (t, (to, raw)) in to.chunks_exact_mut(bias.len()).zip(raw.chunks_exact(bias.len())).enumerate() {
        let (cos, sin) = (&cos[t * angles..][..angles], &sin[t * angles..][..angles]);
        for ((to, raw), bias) in to.iter_mut().zip(raw).zip(bias) {
            *to = raw + bias;
        }
        for row in to.chunks_exact_mut(s) {
            if halves {
                let (first, second) = row.split_at_mut(s / 2);
                for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                }
            } else {
                for (([a, b], cos), sin) in row.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                }
            }
        }
    }
}

/// Backward of [`turned`] for the rows `[R,S]` of one token: rotates `d` back and adds to the gradients of the angles.
#[inline(always)]
pub(super) fn turned_back(
    d: &mut [f32],
    by_angle: &mut [f32],
    turned: &[f32],
    (cos, sin): (&[f32], &[f32]),
    (s, halves): (usize, bool),
) {
    for (d, turned) in d.chunks_exact_mut(s).zip(turned.chunks_exact(s)) {
        let numbers = by_angle.iter_mut().zip(cos).zip(sin);
        if halves {
            let ((first, second), (x, y)) = (d.split_at_mut(s / 2), turned.split_at(s / 2));
            for (((a, b), (x, y)), ((by, cos), sin)) in
                first.iter_mut().zip(second).zip(x.iter().zip(y)).zip(numbers)
            {
                *by += *b * x - *a * y;
                (*a, *b) = (*a * cos + *b * sin, *b * cos - *a * sin);
            }
        } else {
            let pairs = d.as_chunks_mut::<2>().0.iter_mut().zip(turned.as_chunks::<2>().0);
            for (([a, b], [x, y]), ((by, cos), sin)) in pairs.zip(numbers) {
                *by += *b * x - *a * y;
                (*a, *b) = (*a * cos + *b * sin, *b * cos - *a * sin);
            }
        }
    }
}

/// Rows `v = x · factor`: `[T,R,P]` of `[T,P]`, rows of `x` `stride` apart, and `[R,P]`.
#[inline(always)]
pub(super) fn by_rank(v: &mut [f32], p: usize, x: &[f32], stride: usize, factors: &[f32]) {
    for (t, v) in v.chunks_exact_mut(factors.len()).enumerate() {
        let x = &x[t * stride..][..p];
        for (v, factors) in v.chunks_exact_mut(p).zip(factors.chunks_exact(p)) {
            for ((v, x), f) in v.iter_mut().zip(x).zip(factors) {
                *v = x * f;
            }
        }
    }
}

/// `y = Σ_r (out_r + d v_r) · silu(z · rank_z_r) · rank_o_r` of one token.
#[inline(always)]
pub(super) fn gated(
    y: &mut [f32],
    out: &[f32],
    v: &[f32],
    z: &[f32],
    rank_z: &[f32],
    rank_o: &[f32],
    d: f32,
) {
    let p = y.len();
    let z = &z[..p];
    y.fill(0.0);
    for r in (0..out.len()).step_by(p) {
        let (out, v) = (&out[r..][..p], &v[r..][..p]);
        let (fz, fo) = (&rank_z[r..][..p], &rank_o[r..][..p]);
        for i in 0..p {
            let gate = z[i] * fz[i];
            y[i] += (out[i] + d * v[i]) * gate * sigmoid(gate) * fo[i];
        }
    }
}

/// What [`gated_back`] needs of a token, `[R,P]` but for `z` and `dy`, which are `[P]`.
pub(super) struct Gated<'a> {
    pub(super) out: &'a [f32],
    pub(super) v: &'a [f32],
    pub(super) z: &'a [f32],
    pub(super) dy: &'a [f32],
    pub(super) rank_z: &'a [f32],
    pub(super) rank_o: &'a [f32],
}

/// Backward of [`gated`]: writes the gradients of `out` and `z`, adds those of `rank_z` and `rank_o`, returns that of `d`.
#[inline(always)]
pub(super) fn gated_back(
    (d_out, dz): (&mut [f32], &mut [f32]),
    (d_rank_z, d_rank_o): (&mut [f32], &mut [f32]),
    of: &Gated<'_>,
    d: f32,
) -> f32 {
    let p = dz.len();
    dz.fill(0.0);
    let mut by_d = 0.0;
    for r in (0..of.out.len()).step_by(p) {
        let (raw, v) = (&of.out[r..][..p], &of.v[r..][..p]);
        let (fz, fo) = (&of.rank_z[r..][..p], &of.rank_o[r..][..p]);
        let (d_out, d_rank_z, d_rank_o) =
            (&mut d_out[r..][..p], &mut d_rank_z[r..][..p], &mut d_rank_o[r..][..p]);
        let (z, dy) = (&of.z[..p], &of.dy[..p]);
        for i in 0..p {
            let out = raw[i] + d * v[i];
            let gate = z[i] * fz[i];
            let sigmoid = sigmoid(gate);
            d_out[i] = dy[i] * gate * sigmoid * fo[i];
            let d_gate = dy[i] * out * fo[i] * sigmoid * (1.0 + gate * (1.0 - sigmoid));
            dz[i] += d_gate * fz[i];
            d_rank_z[i] += d_gate * z[i];
            d_rank_o[i] += dy[i] * out * gate * sigmoid;
        }
        by_d += dot(d_out, v);
    }
    by_d
}

/// From the gradients with respect to `v` and the outputs `[R,P]` of one token to that by `x` (written) and by its factors
/// (added).
#[inline(always)]
pub(super) fn by_rank_back(
    dx: &mut [f32],
    d_factors: &mut [f32],
    (dv, d_out): (&[f32], &[f32]),
    x: &[f32],
    factors: &[f32],
    skip: f32,
) {
    let p = dx.len();
    dx.fill(0.0);
    let x = &x[..p];
    for r in (0..dv.len()).step_by(p) {
        let (dv, d_out, factors) = (&dv[r..][..p], &d_out[r..][..p], &factors[r..][..p]);
        let d_factors = &mut d_factors[r..][..p];
        for i in 0..p {
            let d = dv[i] + skip * d_out[i];
            dx[i] += d * factors[i];
            d_factors[i] += d * x[i];
        }
    }
}

/// From the gradients of the angles after a token to those of its angular speeds (added to `to`); returns that of its step.
#[inline(always)]
pub(super) fn angles_back(to: &mut [f32], by_angle: &[f32], speeds: &[f32], step: f32) -> f32 {
    for ((to, by), speed) in to.iter_mut().zip(by_angle).zip(speeds) {
        *to += by * step * (PI - speed * speed / PI);
    }
    dot(by_angle, speeds)
}

/// `to += from` and `other += from`.
#[inline(always)]
pub(super) fn add_twice(to: &mut [f32], other: &mut [f32], from: &[f32]) {
    for ((to, other), from) in to.iter_mut().zip(other).zip(from) {
        *to += from;
        *other += from;
    }
}

/// `to += from`.
#[inline(always)]
pub(super) fn add(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sines_and_cosines_of_few_turns_are_the_librarys() {
        for i in -4000..4000 {
            let x = i as f32 * 0.004;
            let (sin, cos) = sin_cos(x);
            let (want_sin, want_cos) = f64::from(x).sin_cos();
            assert!(
                (f64::from(sin) - want_sin).abs() < 6e-8 && (f64::from(cos) - want_cos).abs() < 6e-8,
                "{x}"
            );
        }
    }
}
