//! The contents of a trained model.

use std::collections::{HashMap, HashSet};

/// What training found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Trained {
    /// Abbreviations without their last period.
    pub(super) abbreviations: HashSet<String>,
    /// Words that begin sentences.
    pub(super) starters: HashSet<String>,
    /// By first word, the words that follow its period inside a sentence.
    pub(super) together: HashMap<String, HashSet<String>>,
    /// Where each word was seen in which case.
    pub(super) contexts: HashMap<String, Context>,
}

/// Where a word was seen in upper and lower case, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Context(pub(super) i64);

impl Context {
    const UPPER_INSIDE: i64 = 1 << 2;
    const UPPER: i64 = 1 << 1 | Self::UPPER_INSIDE | 1 << 3;
    const LOWER_AT_START: i64 = 1 << 4;
    const LOWER: i64 = Self::LOWER_AT_START | 1 << 5 | 1 << 6;

    pub(super) fn seen_upper(self) -> bool {
        self.0 & Self::UPPER != 0
    }

    /// In upper case inside a sentence.
    pub(super) fn seen_upper_inside(self) -> bool {
        self.0 & Self::UPPER_INSIDE != 0
    }

    pub(super) fn seen_lower(self) -> bool {
        self.0 & Self::LOWER != 0
    }

    /// In lower case at the beginning of a sentence.
    pub(super) fn seen_lower_at_start(self) -> bool {
        self.0 & Self::LOWER_AT_START != 0
    }
}
