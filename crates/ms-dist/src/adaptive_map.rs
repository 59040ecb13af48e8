//! Token assignment for adaptive context parallelism, where a rank's tokens need not be contiguous.
//!
//! Tokens that attend to the same tokens are placed on the same rank, so that fewer blocks of the attention matrix are
//! needed: the mask's rows are reduced to their principal components and clustered into two to eight clusters; assignments
//! that keep documents whole where they fit are tried too. The assignment with the fewest blocks wins, among equals the most
//! evenly balanced one; tokens stay in order if nothing beats that.
//!
//! # Source
//! MindSpeed `2.0.0_core_r0.8.0`, `mindspeed/core/context_parallel/utils.py`, `adaptive_remap`, and
//! `mindspeed/ops/csrc/algorithm/adaptive_cp/adaptive_cp.cpp`, `search_kmeans`. Upstream draws the initial centres from the C
//! library's random numbers, so its result depends on that library; here they are drawn from [`Rng`]. A mapping with fewer
//! blocks crashes upstream's run (the mask is copied to where the grid of blocks belongs); here it is the goal. Keeping
//! documents whole is not upstream's: clusters seldom end where a rank's tokens do.

use ms_core::Rng;
use std::ops::Range;

/// Which tokens of a row adaptive context parallelism gives its ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenMapping {
    /// Contiguous tokens, in order.
    #[default]
    InOrder,
    /// Tokens that attend alike, in runs; a row has about a thousand runs.
    Runs,
    /// Tokens that attend alike, one by one.
    Tokens,
}

/// Runs that a row is made of, at most.
const RUNS: usize = 1024;
/// Components of the rows of a mask.
const COMPONENTS: usize = 10;
/// Iterations to find the components.
const ROUNDS: usize = 40;
/// Maximum number of iterations to find cluster centres.
const MOST: usize = 100;

impl TokenMapping {
    /// The tokens of each of `slots` ranks, ascending, of a row of `len` tokens with consecutive `documents`; all ranks get
    /// the same number.
    pub fn tokens(self, len: usize, documents: &[Range<usize>], slots: usize) -> Vec<Vec<Range<usize>>> {
        let part = len / slots.max(1);
        let slot_of = |order: &[usize]| -> Vec<Vec<Range<usize>>> {
            order.chunks(part.max(1)).map(|tokens| runs(tokens.to_vec())).collect()
        };
        let in_order = slot_of(&(0..len).collect::<Vec<_>>());
        let several = documents.iter().filter(|d| !d.is_empty()).count() > 1;
        if self == Self::InOrder || !several || slots < 2 {
            return in_order;
        }
        let mut best = (in_order, None);
        best.1 = Some(score(&best.0, documents));
        let tokens = whole_documents(part, documents, slots);
        let found = Some(score(&tokens, documents));
        if found < best.1 {
            best = (tokens, found);
        }
        for order in self.clusters(len, documents) {
            let tokens = slot_of(&order);
            let found = Some(score(&tokens, documents));
            if found < best.1 {
                best = (tokens, found);
            }
        }
        best.0
    }

    /// The tokens by the cluster of their run, for two clusters and more.
    fn clusters(self, len: usize, documents: &[Range<usize>]) -> Vec<Vec<usize>> {
        let most = if self == Self::Runs { len.div_ceil(RUNS) } else { 1 };
        let unit = (1..=most).rev().find(|unit| len.is_multiple_of(*unit)).unwrap_or(1);
        let first = first_seen(len / unit, unit, documents);
        let rows = components(&first);
        let of = |clusters| {
            let labels = clustered(&rows, clusters);
            let mut order: Vec<usize> = (0..first.len()).collect();
            order.sort_by_key(|&run| labels[run]);
            order.into_iter().flat_map(|run| run * unit..(run + 1) * unit).collect()
        };
        (2..9.min(first.len())).map(of).collect()
    }
}

/// Places documents, the longest first, each on the rank with the least free space that is sufficient; documents that fit
/// nowhere are split over the remaining space.
fn whole_documents(part: usize, documents: &[Range<usize>], slots: usize) -> Vec<Vec<Range<usize>>> {
    let mut longest: Vec<&Range<usize>> = documents.iter().collect();
    longest.sort_by_key(|d| std::cmp::Reverse(d.len()));
    let (mut room, mut own, mut rest) = (vec![part; slots], vec![Vec::new(); slots], Vec::new());
    for document in longest {
        match (0..slots).filter(|&slot| room[slot] >= document.len()).min_by_key(|&slot| room[slot]) {
            Some(slot) => {
                room[slot] -= document.len();
                own[slot].extend(document.clone());
            }
            None => rest.extend(document.clone()),
        }
    }
    let mut rest = rest.into_iter();
    own.iter_mut().zip(room).for_each(|(own, room)| own.extend(rest.by_ref().take(room)));
    own.into_iter().map(runs).collect()
}

/// Runs of neighbouring tokens.
fn runs(mut tokens: Vec<usize>) -> Vec<Range<usize>> {
    tokens.sort_unstable();
    let mut runs: Vec<Range<usize>> = Vec::new();
    for token in tokens {
        match runs.last_mut() {
            Some(run) if run.end == token => run.end += 1,
            _ => runs.push(token..token + 1),
        }
    }
    runs
}

/// For each run of `unit` tokens, the first run that some of its tokens see; they see everything from there to themselves.
fn first_seen(number: usize, unit: usize, documents: &[Range<usize>]) -> Vec<usize> {
    let start = |token: usize| documents.iter().rev().find(|d| d.start <= token).map_or(0, |d| d.start);
    (0..number).map(|run| start(run * unit) / unit).collect()
}

/// The blocks needed if ranks hold these tokens: `[queries][keys]`.
pub(crate) fn needed(tokens: &[Vec<Range<usize>>], documents: &[Range<usize>]) -> Vec<Vec<bool>> {
    // The first and the last token of each document on a rank.
    let ends = |runs: &Vec<Range<usize>>| -> Vec<Option<(usize, usize)>> {
        let of = |d: &Range<usize>| {
            let inside =
                runs.iter().map(|r| r.start.max(d.start)..r.end.min(d.end)).filter(|r| r.start < r.end);
            inside.fold(None, |ends: Option<(usize, usize)>, r| {
                Some((ends.map_or(r.start, |e| e.0.min(r.start)), ends.map_or(r.end, |e| e.1.max(r.end))))
            })
        };
        documents.iter().map(of).collect()
    };
    let ends: Vec<_> = tokens.iter().map(ends).collect();
    let sees = |queries: &[Option<(usize, usize)>], keys: &[Option<(usize, usize)>]| {
        queries.iter().zip(keys).any(|(q, k)| matches!((q, k), (Some(q), Some(k)) if k.0 < q.1))
    };
    ends.iter().map(|q| ends.iter().map(|k| sees(q, k)).collect()).collect()
}

/// The number of blocks, and their imbalance: the squared deviation of the number of blocks per rank, times the square of the
/// number of ranks.
fn score(tokens: &[Vec<Range<usize>>], documents: &[Range<usize>]) -> (usize, usize) {
    let needed = needed(tokens, documents);
    let of_rank = |rank: usize| {
        let row = needed[rank].iter().filter(|&&n| n).count();
        let column = needed.iter().filter(|row| row[rank]).count();
        row + column - usize::from(needed[rank][rank])
    };
    let each: Vec<usize> = (0..tokens.len()).map(of_rank).collect();
    let (sum, squares) = (each.iter().sum::<usize>(), each.iter().map(|n| n * n).sum::<usize>());
    (needed.iter().flatten().filter(|&&n| n).count(), each.len() * squares - sum * sum)
}

/// A row of components.
type Row = [f64; COMPONENTS];

/// The mask that has, of run `i`, ones from `first[i]` to `i`, times `v`.
fn times(first: &[usize], v: &[Row]) -> Vec<Row> {
    let mut sums = vec![[0.0; COMPONENTS]; v.len() + 1];
    for i in 0..v.len() {
        sums[i + 1] = std::array::from_fn(|c| sums[i][c] + v[i][c]);
    }
    let row = |(i, &first): (usize, &usize)| std::array::from_fn(|c| sums[i + 1][c] - sums[first][c]);
    first.iter().enumerate().map(row).collect()
}

/// The rows of the mask projected on their principal components.
fn components(first: &[usize]) -> Vec<Row> {
    let n = first.len();
    let mut rng = Rng::named(0, "directions of a mask");
    let mut v: Vec<Row> = (0..n).map(|_| std::array::from_fn(|_| rng.uniform() - 0.5)).collect();
    orthonormal(&mut v);
    for _ in 0..ROUNDS {
        // Centred: every column of the mask less its mean.
        let mut u = times(first, &v);
        let mean: Row = std::array::from_fn(|c| u.iter().map(|row| row[c]).sum::<f64>() / n as f64);
        u.iter_mut().for_each(|row| (0..COMPONENTS).for_each(|c| row[c] -= mean[c]));
        // The transposed mask times that; columns of the centred matrix have mean zero.
        let mut next = vec![[0.0; COMPONENTS]; n + 1];
        for (i, (&first, row)) in first.iter().zip(&u).enumerate() {
            for c in 0..COMPONENTS {
                next[first][c] += row[c];
                next[i + 1][c] -= row[c];
            }
        }
        for i in 1..n {
            next[i] = std::array::from_fn(|c| next[i][c] + next[i - 1][c]);
        }
        next.truncate(n);
        v = next;
        orthonormal(&mut v);
    }
    times(first, &v)
}

/// Orthonormalises the columns of `v`, from the first on; linearly dependent columns become zero.
fn orthonormal(v: &mut [Row]) {
    for c in 0..COMPONENTS {
        let before = v.iter().map(|row| row[c] * row[c]).sum::<f64>().sqrt();
        for _ in 0..2 {
            for b in 0..c {
                let along: f64 = v.iter().map(|row| row[b] * row[c]).sum();
                v.iter_mut().for_each(|row| row[c] -= along * row[b]);
            }
        }
        let length = v.iter().map(|row| row[c] * row[c]).sum::<f64>().sqrt();
        let factor = if length > 1e-9 * before { 1.0 / length } else { 0.0 };
        v.iter_mut().for_each(|row| row[c] *= factor);
    }
}

/// The cluster of each row, of `clusters`: that whose centre is nearest.
fn clustered(rows: &[Row], clusters: usize) -> Vec<usize> {
    let mut rng = Rng::named(clusters as u64, "centres of clusters");
    let mut any = |n: usize| ((rng.uniform() * n as f64) as usize).min(n - 1);
    let mut all: Vec<usize> = (0..rows.len()).collect();
    let mut centres: Vec<Row> = (0..clusters)
        .map(|i| {
            let other = i + any(rows.len() - i);
            all.swap(i, other);
            rows[all[i]]
        })
        .collect();
    let distance = |a: &Row, b: &Row| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
    let mut labels = vec![0; rows.len()];
    for _ in 0..MOST {
        for (label, row) in labels.iter_mut().zip(rows) {
            let nearest = (0..clusters)
                .min_by(|&a, &b| distance(row, &centres[a]).total_cmp(&distance(row, &centres[b])));
            *label = nearest.expect("there are centres");
        }
        let mut sums = vec![([0.0; COMPONENTS], 0usize); clusters];
        for (&label, row) in labels.iter().zip(rows) {
            (0..COMPONENTS).for_each(|c| sums[label].0[c] += row[c]);
            sums[label].1 += 1;
        }
        let moved: Vec<Row> = sums
            .into_iter()
            .map(|(sum, count)| match count {
                0 => rows[any(rows.len())],
                n => sum.map(|x| x / n as f64),
            })
            .collect();
        let still = |(old, new): (&Row, &Row)| {
            old.iter().zip(new).all(|(a, b)| (a - b).abs() <= 1e-8 + 1e-5 * b.abs())
        };
        if centres.iter().zip(&moved).all(still) {
            break;
        }
        centres = moved;
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Documents of such lengths.
    fn documents(lengths: &[usize]) -> Vec<Range<usize>> {
        let ends = lengths.iter().scan(0, |end, len| {
            *end += len;
            Some(*end - len..*end)
        });
        ends.collect()
    }

    fn blocks(tokens: &[Vec<Range<usize>>], documents: &[Range<usize>]) -> usize {
        // Token by token.
        let all = |runs: &Vec<Range<usize>>| runs.iter().cloned().flatten().collect::<Vec<usize>>();
        let document = |t: usize| documents.iter().position(|d| d.contains(&t));
        let sees = |q: &usize, k: &usize| k <= q && document(*q) == document(*k);
        let pairs = tokens.iter().flat_map(|q| tokens.iter().map(move |k| (all(q), all(k))));
        pairs.filter(|(q, k)| q.iter().any(|q| k.iter().any(|k| sees(q, k)))).count()
    }

    #[test]
    fn every_token_goes_to_one_rank_and_blocks_are_never_more_than_in_order() {
        let (mut rng, mut fewer) = (Rng::named(3, "documents"), 0);
        for case in 0..60 {
            let slots = [2, 3, 4][case % 3];
            let len = slots * (8 + (rng.uniform() * 24.0) as usize);
            let mut lengths = Vec::new();
            while lengths.iter().sum::<usize>() < len {
                let left = len - lengths.iter().sum::<usize>();
                lengths.push((1 + (rng.uniform() * 20.0) as usize).min(left));
            }
            let documents = documents(&lengths);
            let in_order = TokenMapping::InOrder.tokens(len, &documents, slots);
            for remap in [TokenMapping::Runs, TokenMapping::Tokens] {
                let tokens = remap.tokens(len, &documents, slots);
                let each = |runs: &Vec<Range<usize>>| runs.iter().map(Range::len).sum::<usize>();
                assert!(tokens.iter().all(|runs| each(runs) == len / slots), "{tokens:?}");
                let mut all: Vec<usize> = tokens.iter().flatten().cloned().flatten().collect();
                all.sort_unstable();
                assert_eq!(all, (0..len).collect::<Vec<_>>());
                let [found, plain] = [&tokens, &in_order].map(|tokens| blocks(tokens, &documents));
                assert_eq!(found, score(&tokens, &documents).0, "{tokens:?}");
                assert!(found <= plain, "{lengths:?}: {found} blocks, in order {plain}");
                fewer += usize::from(found < plain);
                assert_eq!(tokens, remap.tokens(len, &documents, slots), "the same on every rank");
            }
        }
        println!("of 120 mappings {fewer} need fewer blocks");
        assert!(fewer > 20, "{fewer}");
    }

    #[test]
    fn documents_that_borders_of_ranks_cut_come_together() {
        // In order the second document lies on both ranks.
        let documents = documents(&[20, 24, 12, 8]);
        assert_eq!(blocks(&TokenMapping::InOrder.tokens(64, &documents, 2), &documents), 3);
        assert_eq!(
            TokenMapping::Tokens.tokens(64, &documents, 2),
            [vec![20..44, 56..64], vec![0..20, 44..56]]
        );
    }

    #[test]
    fn one_document_and_one_rank_stay_in_order() {
        for (len, slots) in [(64, 4), (64, 1)] {
            let whole = documents(&[len]);
            assert_eq!(
                TokenMapping::Tokens.tokens(len, &whole, slots),
                TokenMapping::InOrder.tokens(len, &whole, slots)
            );
        }
    }

    #[test]
    fn runs_of_long_rows_are_several_tokens_unless_tokens_are_put_together_one_by_one() {
        let documents = documents(&[701, 3, 1344]);
        let together =
            |order: &Vec<usize>| order.chunks(2).all(|pair| pair[0] % 2 == 0 && pair[1] == pair[0] + 1);
        let of = |remap: TokenMapping| remap.clusters(2048, &documents);
        assert!(of(TokenMapping::Runs).iter().all(together));
        assert!(of(TokenMapping::Tokens).iter().any(|order| !together(order)));
        // Clusters contain tokens that attend alike: all but a few boundaries are inside documents.
        let two = &of(TokenMapping::Tokens)[0];
        assert!(runs(two[..1024].to_vec()).len() < 4, "{:?}", runs(two[..1024].to_vec()));
    }
}
