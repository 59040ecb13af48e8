//! A context-parallel rank's share of a micro-batch.

use crate::config::CapacityShares;
use crate::{Error, Result};
use ms_core::{Arena, Segment};
use ms_data::MicroBatch;
use ms_dist::{ContextParallel, ParallelCtx, Piece, TokenSharding};
use ms_nn::Batch;
use std::ops::Range;
use std::sync::Arc;

/// The runs of tokens of a micro-batch that each rank holds.
type RankRuns = Vec<Vec<Range<usize>>>;

/// Which tokens of a micro-batch a rank has. Loss weights, labels and shifts are computed on whole rows and then taken from
/// here, so that nothing depends on where a row is cut.
pub(crate) struct TokenShard {
    /// Their numbers in the micro-batch, in the order in which the rank holds them, and the runs of all ranks; `None`: all.
    cut: Option<(Vec<usize>, RankRuns)>,
}

/// The share of the rank of `ctx` in `mb`.
///
/// # Errors
/// If a row does not divide into equal chunks, or the tokens do not among the ranks that share them between matrices.
pub(crate) fn share(mb: &MicroBatch, ctx: &ParallelCtx) -> Result<TokenShard> {
    let (cp, tp) = (ctx.cp.size(), ctx.tp.size());
    let tokens_of_rank = mb.row_ends.last().map_or(0, |&end| end / cp);
    if ctx.sequence_parallel && !tokens_of_rank.is_multiple_of(tp) {
        let expected = format!("micro-batches whose tokens {tp} ranks can share");
        return Err(Error::config("--sequence-parallel", expected, format!("{tokens_of_rank} tokens")));
    }
    if cp == 1 {
        return Ok(TokenShard { cut: None });
    }
    let runs = cut(mb, ctx.context, cp)?;
    Ok(TokenShard { cut: Some((tokens(&runs[ctx.cp.rank()]), runs)) })
}

/// The numbers of all tokens of `runs`.
fn tokens(runs: &[Range<usize>]) -> Vec<usize> {
    runs.iter().cloned().flatten().collect()
}

/// Where the documents of a micro-batch begin and end.
fn borders(mb: &MicroBatch) -> Vec<usize> {
    mb.cu_seqlens.iter().map(|&t| t as usize).collect()
}

/// The runs of tokens of every rank: each row is cut into equal chunks.
fn cut(mb: &MicroBatch, how: ContextParallel, cp: usize) -> Result<RankRuns> {
    let (chunks, pieces) = (how.chunks(cp), how.pieces(cp));
    let mut runs = vec![Vec::new(); cp];
    let borders = borders(mb);
    let mut start = 0;
    for &end in &mb.row_ends {
        let row = end - start;
        if !row.is_multiple_of(pieces) {
            let expected = format!("rows that divide into {pieces} chunks for {cp} ranks");
            return Err(Error::config("--context-parallel-size", expected, format!("a row of {row} tokens")));
        }
        let len = row / pieces;
        let inside = |b: &[usize]| b[0].max(start) - start..b[1].clamp(start, end) - start;
        let documents: Vec<Range<usize>> =
            borders.windows(2).filter(|b| b[0] < end && b[1] > start).map(inside).collect();
        match how.remapped(cp, row, &documents) {
            Some(of_ranks) => {
                for (runs, own) in runs.iter_mut().zip(of_ranks) {
                    runs.extend(own.into_iter().map(|run| start + run.start..start + run.end));
                }
            }
            None => {
                for (runs, chunks) in runs.iter_mut().zip(&chunks) {
                    runs.extend(chunks.iter().map(|c| start + c * len..start + (c + 1) * len));
                }
            }
        }
        start = end;
    }
    Ok(runs)
}

/// How ranks hold the documents of a micro-batch, which are cut with the rows.
fn sharding(runs: &[Vec<Range<usize>>], mb: &MicroBatch) -> TokenSharding {
    let borders = borders(mb);
    let documents: Vec<Segment> = borders.windows(2).map(|b| Segment::of(b[0], b[1] - b[0])).collect();
    let of_rank = |runs: &Vec<Range<usize>>| {
        let (mut pieces, mut row): (Vec<Piece>, usize) = (Vec::new(), 0);
        for run in runs {
            let mut t = run.start;
            while t < run.end {
                // Documents without tokens share their border with the next one: the last that begins here holds the token.
                let document = borders.partition_point(|&b| b <= t) - 1;
                let place = t - borders[document];
                let len = run.end.min(borders[document + 1]) - t;
                match pieces.last_mut() {
                    Some(p) if p.document == document && p.place + p.len == place => p.len += len,
                    _ => pieces.push(Piece { document, place, row, len }),
                }
                (t, row) = (t + len, row + len);
            }
        }
        pieces
    };
    let rows = runs[0].iter().map(Range::len).sum();
    let pieces = runs.iter().map(of_rank).collect();
    TokenSharding { documents, pieces, rows, positions: mb.position_ids.clone() }
}

/// For each token of a micro-batch, its share.
///
/// # Errors
/// If a row does not divide into equal chunks.
pub(crate) fn of_tokens(mb: &MicroBatch, shares: &CapacityShares) -> Result<Vec<u32>> {
    let CapacityShares { context, cp, parts } = *shares;
    let mut share_of = vec![0; mb.tokens.len()];
    let held: Vec<Vec<usize>> = match cp {
        1 => vec![(0..share_of.len()).collect()],
        _ => cut(mb, context, cp)?.iter().map(|runs| tokens(runs)).collect(),
    };
    for (rank, tokens) in held.iter().enumerate() {
        for (part, tokens) in tokens.chunks(tokens.len().div_ceil(parts).max(1)).enumerate() {
            tokens.iter().for_each(|&t| share_of[t] = (rank * parts + part) as u32);
        }
    }
    Ok(share_of)
}

/// The place of each token of a micro-batch in upstream's order, `[s, b]`: the first token of every row, then the second ones.
pub(crate) fn places(mb: &MicroBatch) -> Vec<u32> {
    let starts = std::iter::once(0).chain(mb.row_ends.iter().copied());
    let rows = starts.zip(&mb.row_ends).map(|(start, &end)| start..end);
    let mut tokens: Vec<(usize, usize)> =
        rows.flat_map(|row| row.clone().map(move |t| (t - row.start, t))).collect();
    tokens.sort_unstable();
    let mut places = vec![0; mb.tokens.len()];
    for (place, (_, t)) in tokens.into_iter().enumerate() {
        places[t] = place as u32;
    }
    places
}

impl TokenShard {
    /// The rank's elements of a value for each token.
    pub(crate) fn take<T: Copy>(&self, values: &[T]) -> Vec<T> {
        match &self.cut {
            None => values.to_vec(),
            Some((tokens, _)) => tokens.iter().map(|&t| values[t]).collect(),
        }
    }

    /// For each of the rank's tokens, its row in the micro-batch.
    pub(crate) fn rows(&self, mb: &MicroBatch) -> Vec<u32> {
        let mut row_of = Vec::with_capacity(mb.tokens.len());
        for (row, &end) in mb.row_ends.iter().enumerate() {
            row_of.resize(end, row as u32);
        }
        self.take(&row_of)
    }

    /// The rank's tokens as a batch, with the documents and positions of `mb`: the micro-batch, or what a prediction module sees
    /// in its place.
    pub(crate) fn batch(&self, arena: &Arena, mb: &MicroBatch) -> Result<Batch> {
        Ok(match &self.cut {
            None => Batch::new(arena, &mb.tokens, &mb.position_ids, &mb.cu_seqlens)?,
            Some((_, runs)) => {
                let sharding = Arc::new(sharding(runs, mb));
                Batch::shared(arena, &self.take(&mb.tokens), &self.take(&mb.position_ids), sharding)?
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_go_by_the_first_tokens_of_all_rows_then_the_second_ones() {
        let mb = MicroBatch { tokens: vec![0; 6], row_ends: vec![3, 6], ..MicroBatch::default() };
        assert_eq!(places(&mb), [0, 2, 4, 1, 3, 5]);
        // A row that is shorter leaves its places to the other.
        let mb = MicroBatch { tokens: vec![0; 4], row_ends: vec![1, 4], ..MicroBatch::default() };
        assert_eq!(places(&mb), [0, 1, 2, 3]);
        let mb = MicroBatch { tokens: vec![0; 4], row_ends: vec![3, 4], ..MicroBatch::default() };
        assert_eq!(places(&mb), [0, 2, 3, 1]);
    }

    #[test]
    fn rows_are_cut_in_zigzag_and_documents_with_them() {
        // Two rows of 8; the first has documents of 3 and 5 tokens.
        let mb = MicroBatch {
            ahead: Vec::new(),
            tokens: (0..16).collect(),
            labels: vec![0; 16],
            loss_mask: vec![1.0; 16],
            position_ids: vec![0; 16],
            cu_seqlens: vec![0, 3, 8, 16],
            row_ends: vec![8, 16],
            samples: Vec::new(),
        };
        let runs = cut(&mb, ContextParallel::Ring { window: 1 }, 2).unwrap();
        let sharding = sharding(&runs, &mb);
        assert_eq!(
            [tokens(&runs[0]), tokens(&runs[1])],
            [[0, 1, 6, 7, 8, 9, 14, 15], [2, 3, 4, 5, 10, 11, 12, 13]]
        );
        let piece = |document, place, row, len| Piece { document, place, row, len };
        assert_eq!(
            sharding.pieces[0],
            [piece(0, 0, 0, 2), piece(1, 3, 2, 2), piece(2, 0, 4, 2), piece(2, 6, 6, 2)]
        );
        assert_eq!(sharding.pieces[1], [piece(0, 2, 0, 1), piece(1, 0, 1, 3), piece(2, 2, 4, 4)]);
        assert!(cut(&mb, ContextParallel::Ring { window: 1 }, 3).is_err());
    }
}
