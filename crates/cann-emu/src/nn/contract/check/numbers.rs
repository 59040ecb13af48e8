//! Numbers, and lists of integers.

use super::{Facts, Holds, holds, listed};
use crate::knobs::chip;
use crate::nn::contract::letters::Size;

impl Facts<'_> {
    /// Two numbers, where both are known.
    fn both(&self, a: &Size, b: &Size) -> Option<(i64, i64)> {
        self.size(a).zip(self.size(b))
    }

    /// `in(mode,0|2)`.
    pub(super) fn among(&self, size: &Size, list: &str) -> Holds {
        let Some(v) = self.size(size) else { return Ok(()) };
        holds(listed(v, list), || format!("{size}: expected {list}, found {v}"))
    }

    /// `on(A2,R,2|4|8)`.
    pub(super) fn among_on(&self, kind: &str, size: &Size, list: &str) -> Holds {
        let Some(v) = self.size(size) else { return Ok(()) };
        holds(chip() != kind || listed(v, list), || format!("{size}: expected {list} on {kind}, found {v}"))
    }

    /// `multiple(m,R)`.
    pub(super) fn multiple(&self, a: &Size, b: &Size) -> Holds {
        let Some((x, y)) = self.both(a, b) else { return Ok(()) };
        let divides = x.checked_rem(y).map_or(x == 0, |rest| rest == 0);
        holds(divides, || format!("{a}: expected a multiple of {b} {y}, found {x}"))
    }

    /// `equal(a,b)`.
    pub(super) fn equal(&self, a: &Size, b: &Size) -> Holds {
        let Some((x, y)) = self.both(a, b) else { return Ok(()) };
        holds(x == y, || format!("{a} {x} and {b} {y} must be equal"))
    }

    /// `either(a,b,c)`.
    pub(super) fn either(&self, a: &Size, [b, c]: &[Size; 2]) -> Holds {
        let (Some(x), Some(y), Some(z)) = (self.size(a), self.size(b), self.size(c)) else { return Ok(()) };
        holds(x == y || x == z, || format!("{a}: expected {b} {y} or {c} {z}, found {x}"))
    }

    /// `atmost(a,b)`.
    pub(super) fn at_most(&self, a: &Size, b: &Size) -> Holds {
        let Some((x, y)) = self.both(a, b) else { return Ok(()) };
        holds(x <= y, || format!("{a}: expected at most {b} {y}, found {x}"))
    }

    /// `axes(name,-2,-1)`.
    pub(super) fn axes(&self, name: &str, list: &[i64]) -> Holds {
        let Some(found) = self.ints(name) else { return Ok(()) };
        holds(found.is_empty() || found == list, || format!("{name}: expected {list:?}, found {found:?}"))
    }

    /// `count(list,e*R)`.
    pub(super) fn count(&self, name: &str, size: &Size) -> Holds {
        let (Some(list), Some(n)) = (self.ints(name), self.size(size)) else { return Ok(()) };
        holds(list.len() as i64 == n, || format!("{name}: expected {n} integers, found {}", list.len()))
    }

    /// `each(list,0..8)`.
    pub(super) fn each(&self, name: &str, list: &str) -> Holds {
        match self.ints(name).and_then(|found| found.iter().find(|v| !listed(**v, list))) {
            Some(v) => Err(format!("{name}: expected {list} each, found {v}")),
            None => Ok(()),
        }
    }
}
