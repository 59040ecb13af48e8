//! Places in a device's address range: handed out one after another, and reused only when the end has been reached.

use std::collections::BTreeMap;

/// Which of `0..end` are taken.
#[derive(Debug)]
pub struct Places {
    end: usize,
    /// Lengths by start.
    taken: BTreeMap<usize, usize>,
    /// Behind the last that was handed out.
    next: usize,
}

impl Places {
    /// All of `first..end` are free.
    pub fn new(first: usize, end: usize) -> Self {
        Self { end, taken: BTreeMap::from([(0, first)]), next: first }
    }

    /// Takes `len` places from a multiple of `align` on: the next free ones behind the last taken, or those behind the first.
    pub fn take(&mut self, len: usize, align: usize) -> Option<usize> {
        let at = self.free_from(self.next, len, align).or_else(|| self.free_from(0, len, align))?;
        self.taken.insert(at, len);
        self.next = at + len;
        Some(at)
    }

    fn free_from(&self, from: usize, len: usize, align: usize) -> Option<usize> {
        let up = |n: usize| n.checked_next_multiple_of(align);
        let before = self.taken.range(..=from).next_back().map_or(0, |(start, len)| start + len);
        let mut at = up(from.max(before))?;
        for (start, taken) in self.taken.range(from..) {
            if *start >= at.checked_add(len)? {
                break;
            }
            at = up(at.max(start + taken))?;
        }
        (at.checked_add(len)? <= self.end).then_some(at)
    }

    /// Gives places back; false if they were not taken as one piece.
    pub fn give(&mut self, at: usize) -> bool {
        at != 0 && self.taken.remove(&at).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_again_only_when_the_end_was_reached() {
        let mut places = Places::new(10, 100);
        let first = places.take(30, 1).unwrap();
        assert_eq!(first, 10);
        assert!(places.give(first));
        assert!(!places.give(first), "twice");
        assert!(!places.give(0), "there is nothing to give back before the first place");
        assert_eq!(places.take(30, 1), Some(40), "not those that were just given back");
        assert_eq!(places.take(30, 1), Some(70));
        assert_eq!(places.take(20, 8), Some(16), "behind the first again, aligned");
        assert_eq!(places.take(20, 1), None);
        assert_eq!(places.take(4, 1), Some(36));
        assert_eq!(places.take(usize::MAX, 1), None);
    }
}
