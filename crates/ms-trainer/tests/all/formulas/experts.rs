//! What ranks send around experts, from the actual routing of their tokens.

use super::{gathered, shared_out};
use std::ops::Range;

/// Copies of tokens that ranks have for experts, in one layer. Ranks that share a matrix also share every expert.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loads<'a> {
    /// By share of the data, by rank of those that share a matrix, by expert.
    pub(crate) copies: &'a [Vec<Vec<usize>>],
    /// Ranks over which the experts are distributed: neighbouring shares of the data.
    pub(crate) ep: usize,
    pub(crate) hidden: usize,
    /// Bytes of an element.
    pub(crate) e: usize,
}

impl Loads<'_> {
    fn experts(&self) -> usize {
        self.copies[0][0].len()
    }

    /// Shares of the data whose ranks have the experts that share `i` has not.
    fn neighbours(&self, i: usize) -> Range<usize> {
        i / self.ep * self.ep..(i / self.ep + 1) * self.ep
    }

    /// Copies that rank `(from, k)` has for the experts of share `to`.
    fn between(&self, from: usize, to: usize, k: usize) -> usize {
        let here = self.experts() / self.ep;
        let first = to % self.ep * here;
        self.copies[from][k][first..first + here].iter().sum()
    }

    fn arriving(&self, i: usize, k: usize) -> usize {
        self.neighbours(i).map(|from| self.between(from, i, k)).sum()
    }

    /// Of rank `(i, k)` to ranks with other experts, in rows of `row` bytes: its copies go, what its experts make of those of
    /// others goes back, and as many gradients; and how many there are for each expert.
    fn exchanged(&self, i: usize, k: usize, row: usize) -> usize {
        let others = || self.neighbours(i).filter(|&j| j != i);
        let (out, back): (usize, usize) = others()
            .map(|j| (self.between(i, j, k), self.between(j, i, k)))
            .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        2 * (out + back) * row + shared_out(8 * self.experts(), self.ep)
    }

    /// Of rank `(i, k)` to ranks with other experts, and to those that share its experts, which gather what has arrived and sum
    /// what they make of it; forward and backward. Ranks bring tokens of their own.
    ///
    /// # Source
    /// Megatron-LM `core_v0.12.1`, `megatron/core/transformer/moe/token_dispatcher.py`, `MoEAlltoAllTokenDispatcher`.
    pub(crate) fn all_to_all(&self, i: usize, k: usize) -> (usize, usize) {
        let (ranks, row) = (self.copies[0].len(), self.hidden * self.e);
        let own = self.arriving(i, k);
        let all: usize = (0..ranks).map(|k| self.arriving(i, k)).sum();
        let counts = gathered(8 * self.experts(), ranks);
        (self.exchanged(i, k, row), 2 * (gathered(own, ranks) + (all - own)) * row + counts)
    }

    /// The same where ranks bring the same tokens, each its columns of them.
    ///
    /// # Source
    /// Megatron-LM `core_r0.8.0`, `megatron/core/transformer/moe/token_dispatcher.py`, `MoEAlltoAllTokenDispatcher`.
    pub(crate) fn all_to_all_seq(&self, i: usize, k: usize) -> (usize, usize) {
        let ranks = self.copies[0].len();
        let columns = self.hidden * self.e / ranks;
        (self.exchanged(i, k, columns), 4 * gathered(self.arriving(i, k), ranks) * columns)
    }
}
