//! Layer numbers in tensor names.

/// The number after `prefix` in a name.
pub(super) fn number_in(name: &str, prefix: &str) -> Option<usize> {
    name.strip_prefix(prefix)?.split('.').next()?.parse().ok()
}
