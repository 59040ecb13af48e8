//! Which pairs of option values have occurred together.

use super::Run;
use std::collections::BTreeMap;

/// Two values that occur in one run: their numbers, as those of a table's row and column.
type Pair = usize;

/// More values than there are.
const VALUES: usize = 1024;

/// Pairs of drawn values that occur in runs.
pub(crate) struct Pairs {
    numbers: BTreeMap<String, usize>,
    seen: Vec<bool>,
}

impl Default for Pairs {
    fn default() -> Self {
        Self { numbers: BTreeMap::new(), seen: vec![false; VALUES * VALUES] }
    }
}

impl Pairs {
    /// All pairs of a run's values.
    fn of(&mut self, run: &Run) -> Vec<Pair> {
        let mut values = Vec::new();
        for (what, value) in run.values() {
            let next = self.numbers.len();
            values.push(*self.numbers.entry(format!("{what}: {value}")).or_insert(next));
        }
        assert!(self.numbers.len() <= VALUES);
        let with_those_before =
            |i: usize| values[..i].iter().map(|b| values[i] * VALUES + b).collect::<Vec<_>>();
        (0..values.len()).flat_map(with_those_before).collect()
    }

    /// Those of a run occur.
    pub(crate) fn add(&mut self, run: &Run) {
        self.of(run).into_iter().for_each(|pair| self.seen[pair] = true);
    }

    /// How many occur.
    pub(crate) fn len(&self) -> usize {
        self.seen.iter().filter(|&&seen| seen).count()
    }

    /// Whether a value occurs whose name, or what it is of, has `text` in it.
    pub(crate) fn have(&self, text: &str) -> bool {
        let found: Vec<usize> =
            self.numbers.iter().filter(|(name, _)| name.contains(text)).map(|(_, &n)| n).collect();
        let has = |pair: usize| found.contains(&(pair / VALUES)) || found.contains(&(pair % VALUES));
        self.seen.iter().enumerate().any(|(pair, &seen)| seen && has(pair))
    }

    /// Of `pool`, run after run the one with the most pairs that do not occur yet, until none has one more or there are `most`.
    /// What they have occurs then.
    pub(crate) fn covering(&mut self, pool: impl IntoIterator<Item = Run>, most: usize) -> Vec<Run> {
        let mut left = Vec::new();
        for run in pool {
            let mut pairs = self.of(&run);
            pairs.retain(|&pair| !self.seen[pair]);
            if !pairs.is_empty() {
                left.push((run, pairs));
            }
        }
        let mut chosen = Vec::new();
        while chosen.len() < most {
            for (_, pairs) in &mut left {
                pairs.retain(|&pair| !self.seen[pair]);
            }
            left.retain(|(_, pairs)| !pairs.is_empty());
            let Some(best) = (0..left.len()).max_by_key(|&i| (left[i].1.len(), usize::MAX - i)) else {
                break;
            };
            let (run, pairs) = left.remove(best);
            pairs.into_iter().for_each(|pair| self.seen[pair] = true);
            chosen.push(run);
        }
        chosen
    }
}
