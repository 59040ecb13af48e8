//! Lists of tensors, and which arguments are there together.

use super::{Facts, Holds, holds, listed};
use crate::nn::contract::letters::Size;

impl Facts<'_> {
    /// `long(list,1..128)`.
    pub(super) fn long(&self, name: &str, list: &str) -> Holds {
        let n = self.views(name).len() as i64;
        holds(n == 0 || listed(n, list), || format!("{name}: expected {list} tensors, found {n}"))
    }

    /// `one(list,mode,2|3)`.
    pub(super) fn one(&self, name: &str, mode: &Size, modes: &str) -> Holds {
        let n = self.views(name).len();
        let asked = self.size(mode).is_some_and(|m| listed(m, modes));
        holds(!asked || n == 1, || format!("{name}: expected one tensor where {mode} is {modes}, found {n}"))
    }

    /// `needs(a,b)`.
    pub(super) fn needs(&self, a: &str, b: &str) -> Holds {
        holds(!self.is_there(a) || self.is_there(b), || format!("{a} is there, {b} is not"))
    }

    /// `together(a,b)`.
    pub(super) fn together(&self, names: &[String]) -> Holds {
        let there: Vec<&String> = names.iter().filter(|n| self.is_there(n)).collect();
        holds(there.is_empty() || there.len() == names.len(), || {
            format!("{names:?}: all or none must be there, found {there:?}")
        })
    }

    /// `lists(a,b)`.
    pub(super) fn lists(&self, names: &[String]) -> Holds {
        let lists: Vec<_> = names.iter().map(|n| (n, self.views(n))).filter(|(_, l)| !l.is_empty()).collect();
        for pair in lists.windows(2) {
            let [(a, first), (b, second)] = [&pair[0], &pair[1]];
            holds(first.len() == second.len(), || {
                format!("{a} has {} tensors, {b} has {}", first.len(), second.len())
            })?;
            for (i, (x, y)) in first.iter().zip(second).enumerate() {
                holds(x.dims == y.dims, || format!("tensor {i}: {a} {:?}, {b} {:?}", x.dims, y.dims))?;
            }
        }
        Ok(())
    }
}
