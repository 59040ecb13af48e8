//! Flags that describe one model part alone.

/// A flag of one part, listed in the part's file, with the Megatron argument that it sets.
#[derive(Clone, Copy, Debug)]
pub struct PartFlag {
    /// Spelling, with dashes.
    pub flag: &'static str,
    /// Its numeric range, as an interval (`[1,)`); empty: it is not numeric.
    pub range: &'static str,
    /// What it means, in a line.
    pub help: &'static str,
}

impl PartFlag {
    pub(crate) const fn new(flag: &'static str, range: &'static str, help: &'static str) -> Self {
        Self { flag, range, help }
    }
}
