//! Flags that describe one model part alone.

/// A flag of one part, which its file lists, beside the argument of Megatron's that it sets.
#[derive(Clone, Copy, Debug)]
pub struct PartFlag {
    /// Spelling, with dashes.
    pub flag: &'static str,
    /// Numbers that it takes, as an interval (`[1,)`); empty: it is no number.
    pub range: &'static str,
    /// What it means, in a line.
    pub help: &'static str,
}

impl PartFlag {
    pub(crate) const fn new(flag: &'static str, range: &'static str, help: &'static str) -> Self {
        Self { flag, range, help }
    }
}
