//! The formula for one head, in f64.

/// Rotates pair `i` of the first `2 · angles` elements by `angles[i]`, radians.
pub(super) fn rotate(head: &mut [f64], angles: &[f64], interleaved: bool) {
    let half = angles.len();
    for (i, angle) in angles.iter().enumerate() {
        let (first, second) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
        let (a, b) = (head[first], head[second]);
        head[first] = a * angle.cos() - b * angle.sin();
        head[second] = b * angle.cos() + a * angle.sin();
    }
}
