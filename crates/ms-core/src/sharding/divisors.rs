//! Numbers that divide, for messages about those that do not.

/// For a message about `d`, which does not divide `n`: the divisors of `n` next to it.
///
/// ```
/// assert_eq!(ms_core::nearest_divisors(12, 5), "4 and 6 divide it");
/// assert_eq!(ms_core::nearest_divisors(12, 13), "12 divides it");
/// ```
pub fn nearest_divisors(n: usize, d: usize) -> String {
    let pairs = (1..=n.isqrt()).filter(|i| n.is_multiple_of(*i)).flat_map(|i| [i, n / i]);
    let (below, above): (Vec<usize>, Vec<usize>) = pairs.partition(|&divisor| divisor < d);
    match (below.into_iter().max(), above.into_iter().min()) {
        (Some(below), Some(above)) => format!("{below} and {above} divide it"),
        (one, other) => format!("{} divides it", one.or(other).unwrap_or(1)),
    }
}
