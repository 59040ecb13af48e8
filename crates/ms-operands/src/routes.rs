//! Routes: which copy of which token goes to which expert.

use crate::{Error, Result};

/// The row of a copy that goes to no expert of this rank.
pub const NOWHERE: u32 = u32::MAX;

/// Where each copy of a token goes: rows sorted by expert, by token within an expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    /// The copy `token · K + slot` of each row.
    pub copies: Vec<u32>,
    /// The row of each copy `token · K + slot`, or [`NOWHERE`].
    pub rows: Vec<u32>,
    /// First row of each expert, followed by the number of rows.
    pub starts: Vec<usize>,
    /// Copies of a token, `K`.
    pub top_k: usize,
}

impl Routes {
    /// The routes of `experts[T,K]` among `count` experts.
    ///
    /// # Errors
    /// [`Error::Range`] if an expert does not exist, [`Error::Shape`] if `experts` is not `[T,K]`.
    pub fn new(experts: &[i32], top_k: usize, count: usize) -> Result<Self> {
        const OP: &str = "Routes::new";
        check_copies(OP, experts.len(), top_k)?;
        check_experts(OP, experts.iter().copied(), count)?;
        Ok(Self::of(experts.iter().map(|&e| Some(e as usize)), top_k, count))
    }

    /// The routes of copies `[T,K]`, of which this rank takes those assigned to one of its `count` experts; the others go
    /// nowhere.
    ///
    /// # Errors
    /// [`Error::Range`] if an expert does not exist, [`Error::Shape`] if there are not `K` copies of each token.
    pub fn taking(experts: &[Option<usize>], top_k: usize, count: usize) -> Result<Self> {
        const OP: &str = "Routes::taking";
        check_copies(OP, experts.len(), top_k)?;
        check_experts(OP, experts.iter().flatten().map(|&e| e as i32), count)?;
        Ok(Self::of(experts.iter().copied(), top_k, count))
    }

    fn of(experts: impl Iterator<Item = Option<usize>> + Clone, top_k: usize, count: usize) -> Self {
        let mut starts = vec![0usize; count + 1];
        experts.clone().flatten().for_each(|e| starts[e + 1] += 1);
        for e in 0..count {
            starts[e + 1] += starts[e];
        }
        let mut next = starts.clone();
        let (mut copies, mut rows) = (vec![0u32; starts[count]], Vec::new());
        for (copy, e) in experts.enumerate() {
            let Some(e) = e else {
                rows.push(NOWHERE);
                continue;
            };
            let row = next[e];
            next[e] += 1;
            copies[row] = copy as u32;
            rows.push(row as u32);
        }
        Self { copies, rows, starts, top_k }
    }

    /// Only the rows of the first `experts` experts, for the experts' own layers; the mapping back to tokens is unchanged.
    ///
    /// # Panics
    /// If there are fewer experts.
    pub fn first(&self, experts: usize) -> Self {
        let starts = self.starts[..=experts].to_vec();
        let copies = self.copies[..starts[experts]].to_vec();
        Self { copies, rows: Vec::new(), starts, top_k: self.top_k }
    }

    /// Tokens `T`.
    pub fn tokens(&self) -> usize {
        self.rows.len().checked_div(self.top_k).unwrap_or(0)
    }

    /// The rows of expert `e`.
    pub fn range(&self, e: usize) -> std::ops::Range<usize> {
        self.starts[e]..self.starts[e + 1]
    }
}

/// Checks that every token has the same number of copies.
fn check_copies(op: &'static str, copies: usize, top_k: usize) -> Result<()> {
    let want = if top_k == 0 { 0 } else { copies.next_multiple_of(top_k) };
    if copies == want { Ok(()) } else { Err(Error::Shape { op, name: "experts", want, got: copies }) }
}

fn check_experts(op: &'static str, mut experts: impl Iterator<Item = i32>, count: usize) -> Result<()> {
    let mut index = 0;
    match experts.find(|&e| {
        index += 1;
        e < 0 || e as usize >= count
    }) {
        None => Ok(()),
        Some(e) => Err(Error::Range { op, name: "experts", index: index - 1, value: e.into(), limit: count }),
    }
}
