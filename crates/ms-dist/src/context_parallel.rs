//! How context-parallel ranks share a sequence: which tokens each holds, and the order in which keys and values arrive.

use crate::TokenMapping;
use std::ops::Range;

/// The context-parallel algorithm: how ranks share a sequence.
///
/// # Source
/// MindSpeed, `mindspeed/core/context_parallel`; Megatron-LM `core_v0.12.1`, `--cp-comm-type`. Expected maps:
/// `tests/golden/topology/cp_maps.json`, `adaptive_cp.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextParallel {
    /// Keys and values are passed around a ring, in windows of `window` ranks inside a ring of windows.
    Ring {
        /// Ranks of the inner ring; 1: a single ring.
        window: usize,
    },
    /// Heads are exchanged for tokens: each rank sees whole sequences and some of the heads.
    Ulysses,
    /// Heads are exchanged among `ulysses` neighbours, keys and values go around a ring of such groups.
    Hybrid {
        /// Ranks that exchange heads for tokens.
        ulysses: usize,
        /// Ranks of the inner ring.
        window: usize,
    },
    /// As a ring, or with `ulysses` above 1 as hybrid, but each rank has contiguous tokens instead of two chunks with
    /// balanced causal work: upstream's sharding for a general mask.
    InOrder {
        /// Ranks that exchange heads for tokens; 1: a ring of all.
        ulysses: usize,
        /// Ranks of the inner ring.
        window: usize,
    },
    /// Keys and values of all ranks are gathered.
    Gather,
    /// Blocks of the attention matrix are distributed as the mask requires, over groups of ranks that exchange heads for
    /// tokens.
    Adaptive {
        /// Ranks of a group; 1: each for itself.
        ulysses: usize,
        /// Which tokens of a row the groups have.
        remap: TokenMapping,
    },
}

impl ContextParallel {
    /// Ranks among `cp` that exchange heads for tokens.
    pub fn ulysses(&self, cp: usize) -> usize {
        match *self {
            Self::Ulysses => cp,
            Self::Hybrid { ulysses, .. } | Self::InOrder { ulysses, .. } | Self::Adaptive { ulysses, .. } => {
                ulysses
            }
            _ => 1,
        }
    }

    /// Ranks of the inner ring of a double ring.
    pub fn window(&self) -> usize {
        match *self {
            Self::Ring { window } | Self::Hybrid { window, .. } | Self::InOrder { window, .. } => window,
            _ => 1,
        }
    }

    /// Whether each rank sees whole documents: for some of the heads, or because it gathers keys.
    pub fn sees_whole_documents(&self) -> bool {
        matches!(self, Self::Gather | Self::Ulysses)
    }

    /// Whether a rank's part of a sequence is two chunks, one from each half, so that causal work is balanced.
    fn is_zigzag(&self) -> bool {
        !matches!(self, Self::Ulysses | Self::InOrder { .. } | Self::Adaptive { .. })
    }

    /// Number of chunks that a sequence is cut into for `cp` ranks.
    pub fn pieces(&self, cp: usize) -> usize {
        if self.is_zigzag() { 2 * (cp / self.ulysses(cp)) * self.ulysses(cp) } else { cp }
    }

    /// The chunks of a sequence that each rank holds, in the order in which it holds them. A chunk is one of
    /// [`ContextParallel::pieces`] equal ones.
    pub fn chunks(&self, cp: usize) -> Vec<Vec<usize>> {
        let (u, ring) = (self.ulysses(cp), cp / self.ulysses(cp).max(1));
        if !self.is_zigzag() {
            return (0..cp).map(|r| vec![r]).collect();
        }
        // A ring rank has chunks `i` and `2 ring - 1 - i`; its Ulysses ranks divide them in order.
        (0..cp)
            .map(|r| {
                let (i, m) = (r / u, r % u);
                let all: Vec<usize> =
                    [i, 2 * ring - 1 - i].iter().flat_map(|c| (0..u).map(move |k| c * u + k)).collect();
                all[2 * m..2 * m + 2].to_vec()
            })
            .collect()
    }

    /// The tokens of each of `cp` ranks for a row of `len` tokens with consecutive `documents`, if they depend on the
    /// documents: ranks that exchange heads for tokens divide their group's tokens in order.
    pub fn remapped(
        &self,
        cp: usize,
        len: usize,
        documents: &[Range<usize>],
    ) -> Option<Vec<Vec<Range<usize>>>> {
        let Self::Adaptive { ulysses, remap } = *self else { return None };
        if remap == TokenMapping::InOrder {
            return None;
        }
        let mut ranks = Vec::with_capacity(cp);
        for runs in remap.tokens(len, documents, cp / ulysses) {
            let (each, mut now) = (len / cp, Vec::new());
            let mut left = each;
            for mut run in runs {
                while !run.is_empty() {
                    let taken = run.start..run.end.min(run.start + left);
                    (run.start, left) = (taken.end, left - taken.len());
                    now.push(taken);
                    if left == 0 {
                        ranks.push(std::mem::take(&mut now));
                        left = each;
                    }
                }
            }
        }
        Some(ranks)
    }

    /// The blocks of keys and values that each of `ring` ranks, among which they are passed around or gathered, visits, in order.
    /// `None`: their tasks say it ([`ContextParallel::adaptive_tasks`]).
    pub fn kv_order(&self, ring: usize) -> Option<Vec<Vec<usize>>> {
        match self {
            Self::Adaptive { .. } => return None,
            Self::Gather => {
                return Some((0..ring).map(|rank| (0..ring).map(|i| (rank + i) % ring).collect()).collect());
            }
            Self::Ring { .. } | Self::Ulysses | Self::Hybrid { .. } | Self::InOrder { .. } => {}
        }
        let w = self.window().clamp(1, ring);
        let visits = |rank: usize| {
            let mut order = Vec::with_capacity(ring);
            let mut outer = rank;
            for _ in 0..ring / w {
                let first = outer / w * w;
                let mut kv = outer;
                for _ in 0..w {
                    order.push(kv);
                    kv = first + (kv - first + w - 1) % w;
                }
                outer = (outer + ring - w) % ring;
            }
            order
        };
        Some((0..ring).map(visits).collect())
    }

    /// The tasks of each round of adaptive context parallelism over the blocks that are needed: round, then rank; a task is
    /// `row * cp + column` of the grid of blocks, -1 none.
    ///
    /// # Source
    /// MindSpeed, `mindspeed/core/context_parallel/utils.py`, `schedule`.
    pub fn adaptive_tasks(needed: &[Vec<bool>]) -> Vec<Vec<i64>> {
        let cp = needed.len();
        let mut open: Vec<Vec<bool>> = needed.to_vec();
        let mut rounds = Vec::new();
        // Communication units of a rank left over from returning outputs of the previous round.
        let mut carried = vec![0usize; cp];
        while open.iter().flatten().any(|&o| o) {
            let round = rounds.len();
            let mut tasks = vec![-1i64; cp];
            let mut used = std::mem::replace(&mut carried, vec![0; cp]);
            let mut query_sent = vec![false; cp];
            let id = |row: usize, column: usize| (row * cp + column) as i64;
            for rank in 0..cp {
                let first = (rank + round) % cp;
                let candidates = std::iter::once(first).chain((1..cp).map(|k| (rank + cp - k) % cp));
                for column in candidates {
                    if !open[rank][column] {
                        continue;
                    }
                    if column == rank {
                        tasks[rank] = id(rank, column);
                    } else if used[rank] <= 4 && used[column] <= 4 {
                        used[rank] += 2;
                        used[column] += 2;
                        tasks[rank] = id(rank, column);
                    } else {
                        continue;
                    }
                    open[rank][column] = false;
                    break;
                }
            }
            for rank in 0..cp {
                if tasks[rank] >= 0 {
                    continue;
                }
                for k in 1..cp {
                    let row = (rank + k) % cp;
                    if open[row][rank] && !query_sent[row] && used[rank] <= 5 && used[row] <= 5 {
                        open[row][rank] = false;
                        query_sent[row] = true;
                        used[rank] += 1;
                        used[row] += 1;
                        carried[rank] += 1;
                        carried[row] += 1;
                        tasks[rank] = id(row, rank);
                        break;
                    }
                }
            }
            rounds.push(tasks);
        }
        rounds
    }

    /// Checks that sequences of `seq_length` tokens and `heads` query heads a rank can be shared by `cp` ranks.
    ///
    /// # Errors
    /// With the numbers that do not divide.
    pub fn check(&self, heads: usize, cp: usize, seq_length: usize) -> Result<(), String> {
        let pieces = self.pieces(cp);
        if !seq_length.is_multiple_of(pieces) {
            let (below, above) = (seq_length / pieces * pieces, seq_length.next_multiple_of(pieces));
            let near = if below == 0 { format!("{above} do") } else { format!("{below} and {above} do") };
            return Err(format!(
                "sequences of {seq_length} tokens are not divisible into {pieces} chunks for {cp} ranks; {near} (--seq-length)"
            ));
        }
        let u = self.ulysses(cp);
        if heads > 0 && !heads.is_multiple_of(u) {
            return Err(format!(
                "{heads} heads of a rank are not divisible by {u} ranks that exchange heads for tokens; {}",
                ms_core::nearest_divisors(heads, u)
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn golden(name: &str) -> Vec<Value> {
        let path = ms_testing::golden(&format!("topology/{name}.json"));
        let value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        value.as_array().unwrap().clone()
    }

    #[test]
    fn chunks_and_orders_are_upstreams() {
        for case in golden("cp_maps") {
            let cp = case["cp"].as_u64().unwrap() as usize;
            assert_eq!(json!(ContextParallel::Ring { window: 1 }.chunks(cp)), case["zigzag_chunks"]);
            for (window, order) in case["ring_kv_order"].as_object().unwrap() {
                let ring = ContextParallel::Ring { window: window.parse().unwrap() };
                assert_eq!(json!(ring.kv_order(cp).unwrap()), *order, "cp {cp} window {window}");
            }
        }
    }

    #[test]
    fn adaptive_tasks_are_upstreams() {
        for case in golden("adaptive_cp") {
            let row = |r: &Value| r.as_array().unwrap().iter().map(|n| n == 1).collect::<Vec<bool>>();
            let grid: Vec<Vec<bool>> = case["grid"].as_array().unwrap().iter().map(row).collect();
            assert_eq!(json!(ContextParallel::adaptive_tasks(&grid)), case["schedule"], "{case}");
        }
    }

    #[test]
    fn every_chunk_is_held_once() {
        let hybrid = ContextParallel::Hybrid { ulysses: 2, window: 1 };
        let in_order = ContextParallel::InOrder { ulysses: 2, window: 1 };
        for (how, cp) in [
            (ContextParallel::Ulysses, 4),
            (ContextParallel::Gather, 3),
            (hybrid, 4),
            (hybrid, 8),
            (in_order, 6),
        ] {
            let mut all = how.chunks(cp).concat();
            all.sort_unstable();
            assert_eq!(all, (0..how.pieces(cp)).collect::<Vec<_>>(), "{how:?} {cp}");
        }
        // Ranks 0 and 1 are neighbours that exchange heads; together they hold the chunks of ring rank 0.
        assert_eq!(hybrid.chunks(4), [[0, 1], [6, 7], [2, 3], [4, 5]]);
        assert_eq!(in_order.chunks(4), [[0], [1], [2], [3]]);
    }

    #[test]
    fn a_double_ring_visits_every_block_once() {
        for (ring, window) in [(4, 2), (8, 2), (8, 4), (6, 3)] {
            for order in (ContextParallel::Ring { window }).kv_order(ring).unwrap() {
                let mut all = order.clone();
                all.sort_unstable();
                assert_eq!(all, (0..ring).collect::<Vec<_>>(), "{order:?}");
            }
        }
    }

    #[test]
    fn what_does_not_divide_is_refused_with_the_numbers() {
        assert!(ContextParallel::Gather.check(4, 2, 10).unwrap_err().contains("10 tokens"));
        assert!(ContextParallel::Ulysses.check(3, 2, 8).unwrap_err().contains("3 heads"));
        assert!(ContextParallel::Ring { window: 1 }.check(3, 2, 8).is_ok());
    }
}
