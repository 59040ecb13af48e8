//! Shapes of tensors, and how they go together.

use super::{Facts, Holds, holds, listed};
use std::ops::RangeInclusive;

impl Facts<'_> {
    /// `same(a,b)`.
    pub(super) fn same(&self, names: &[String]) -> Holds {
        let shapes: Vec<_> = names.iter().filter_map(|n| self.first(n).map(|v| (n, &v.dims))).collect();
        shapes.windows(2).try_for_each(|pair| {
            let [(a, x), (b, y)] = [pair[0], pair[1]];
            holds(x == y, || format!("{a} {x:?} and {b} {y:?} must have one shape"))
        })
    }

    /// `rank(a,2..6)`.
    pub(super) fn rank(&self, name: &str, range: RangeInclusive<usize>) -> Holds {
        self.views(name).into_iter().try_for_each(|view| {
            holds(range.contains(&view.dims.len()), || {
                let (low, high) = (range.start(), range.end());
                format!("{name}: expected {low} to {high} dimensions, found {:?}", view.dims)
            })
        })
    }

    /// `last(list,1..65535)`.
    pub(super) fn last(&self, name: &str, list: &str) -> Holds {
        self.views(name).into_iter().try_for_each(|view| {
            holds(view.dims.last().is_some_and(|d| listed(*d, list)), || {
                format!("{name}: expected a last dimension of {list}, found {:?}", view.dims)
            })
        })
    }

    /// `ends(a,list)`.
    pub(super) fn ends(&self, name: &str, list: &str) -> Holds {
        let Some(found) = self.ints(list) else { return Ok(()) };
        self.views(name).into_iter().try_for_each(|view| {
            holds(view.dims.ends_with(found), || {
                format!("{name}: expected to end in {list} {found:?}, found {:?}", view.dims)
            })
        })
    }

    /// `even(a,dim)`.
    pub(super) fn even(&self, name: &str, dim: &str) -> Holds {
        let Some(dim) = self.number(dim) else { return Ok(()) };
        self.views(name).into_iter().try_for_each(|view| {
            let rank = view.dims.len() as i64;
            let at = if dim < 0 { dim + rank } else { dim };
            if at < 0 || at >= rank {
                return Err(format!("{name}: {rank} dimensions have no dimension {dim}"));
            }
            holds(view.dims[at as usize] % 2 == 0, || {
                format!("{name}: dimension {dim} must be even, found {:?}", view.dims)
            })
        })
    }

    /// `bcast(a,b>c)`.
    pub(super) fn broadcast(&self, from: &[String], to: &str) -> Holds {
        let Some(target) = self.first(to).map(|v| &v.dims) else { return Ok(()) };
        let mut shape = vec![1; target.len()];
        for name in from {
            self.spread(name, to)?;
            for view in self.views(name) {
                let lead = target.len() - view.dims.len();
                for (i, d) in view.dims.iter().enumerate().filter(|(_, d)| **d != 1) {
                    shape[lead + i] = *d;
                }
            }
        }
        holds(shape == *target, || {
            format!("{} broadcast to {shape:?}, {to} is {target:?}", from.join(" and "))
        })
    }

    /// `spread(a>b)`.
    pub(super) fn spread(&self, from: &str, to: &str) -> Holds {
        let Some(target) = self.first(to).map(|v| &v.dims) else { return Ok(()) };
        self.views(from)
            .into_iter()
            .try_for_each(|view| view.broadcast(target).map(drop).map_err(|e| format!("{from}: {e} of {to}")))
    }

    /// `joined(a,dim>c)`.
    pub(super) fn joined(&self, list: &str, dim: &str, to: &str) -> Holds {
        let (Some(out), Some(dim)) = (self.first(to).map(|v| &v.dims), self.number(dim)) else {
            return Ok(());
        };
        let at = dim.rem_euclid(out.len().max(1) as i64) as usize;
        let mut sum = 0;
        for view in self.views(list).into_iter().filter(|v| v.dims != [0]) {
            let same = |d: usize| d == at || view.dims[d] == out[d];
            if view.dims.len() != out.len() || !(0..out.len()).all(same) {
                return Err(format!("{list} {:?} in dimension {dim} of {to} {out:?}", view.dims));
            }
            sum += view.dims.get(at).copied().unwrap_or(1);
        }
        holds(out.get(at).is_none_or(|n| *n == sum), || {
            format!("{list} add up to {sum} in dimension {dim}, {to} is {out:?}")
        })
    }

    /// `product(a,b>c)`.
    pub(super) fn product(&self, a: &str, b: &str, to: &str) -> Holds {
        let dims = |name: &str| self.first(name).map(|v| &v.dims);
        let (Some(x), Some(y), Some(out)) = (dims(a), dims(b), dims(to)) else { return Ok(()) };
        let want = product_shape(x, y).ok_or_else(|| format!("{a} {x:?} times {b} {y:?}"))?;
        holds(want == *out, || format!("{a} {x:?} times {b} {y:?} is {want:?}, {to} is {out:?}"))
    }
}

/// The shape of a product, if there is one: vectors as a row before and a column behind, stacks broadcast.
fn product_shape(a: &[i64], b: &[i64]) -> Option<Vec<i64>> {
    let (rows, inner) = match a {
        [] => return None,
        [k] => (None, *k),
        [.., m, k] => (Some(*m), *k),
    };
    let (deep, columns) = match b {
        [] => return None,
        [k] => (*k, None),
        [.., k, n] => (*k, Some(*n)),
    };
    if inner != deep {
        return None;
    }
    let (p, q) = (&a[..a.len().saturating_sub(2)], &b[..b.len().saturating_sub(2)]);
    let n = p.len().max(q.len());
    let at = |s: &[i64], i: usize| if i + s.len() < n { 1 } else { s[i + s.len() - n] };
    let mut out = Vec::new();
    for i in 0..n {
        let (x, y) = (at(p, i), at(q, i));
        if x != y && x != 1 && y != 1 {
            return None;
        }
        out.push(if x == 1 { y } else { x });
    }
    out.extend(rows);
    out.extend(columns);
    Some(out)
}
