//! Which stored bytes hold which elements: contiguous ranges of a global tensor and their positions in files.

use ms_core::Region;

/// A run of consecutive elements of a global tensor inside a stored piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElementRun {
    /// First element, in the global tensor.
    pub(crate) global: usize,
    /// Number of elements.
    pub(crate) len: usize,
    /// Which piece.
    pub(crate) piece: usize,
    /// First element, in the piece.
    pub(crate) local: usize,
}

/// The runs of all pieces of one global tensor, disjoint and sorted.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunIndex {
    runs: Vec<ElementRun>,
}

impl RunIndex {
    /// Builds the index of pieces. Where pieces overlap, the first one wins; equal copies cost nothing.
    ///
    /// Each piece is a region and the range of its local elements that is stored (for shards of flat buffers).
    pub(crate) fn new<'a>(
        pieces: impl Iterator<Item = (&'a Region, Option<std::ops::Range<usize>>)>,
    ) -> Self {
        Self::within(pieces, &(0..usize::MAX))
    }

    /// The same, without runs that lie outside `bounds` of the global tensor.
    pub(crate) fn within<'a>(
        pieces: impl Iterator<Item = (&'a Region, Option<std::ops::Range<usize>>)>,
        bounds: &std::ops::Range<usize>,
    ) -> Self {
        let mut all: Vec<ElementRun> = Vec::new();
        for (piece, (region, stored)) in pieces.enumerate() {
            if let Some(lead) = &region.lead {
                let per_lead: usize = region.shape.iter().skip(1).product();
                if lead.end * per_lead <= bounds.start || lead.start * per_lead >= bounds.end {
                    continue;
                }
            }
            let mut at = 0; // in the whole region
            let stored = stored.unwrap_or(0..usize::MAX);
            // Runs of a row may have any order, rows are one after the other.
            let row: usize = region.shape.iter().skip(region.dim).product();
            for (global, len) in region.runs().take_while(|_| !stored.is_empty()) {
                if at >= stored.end || global >= bounds.end.saturating_add(row) {
                    break;
                }
                let (from, to) = (at.max(stored.start), (at + len).min(stored.end));
                if from < to && global < bounds.end && global + len > bounds.start {
                    let run = ElementRun {
                        global: global + (from - at),
                        len: to - from,
                        piece,
                        local: from - stored.start,
                    };
                    match all.last_mut() {
                        Some(last)
                            if last.piece == piece
                                && last.global + last.len == run.global
                                && last.local + last.len == run.local =>
                        {
                            last.len += run.len;
                        }
                        _ => all.push(run),
                    }
                }
                at += len;
            }
        }
        all.sort_by_key(|r| (r.global, r.piece));
        let mut runs: Vec<ElementRun> = Vec::with_capacity(all.len());
        let mut end = 0usize;
        for mut run in all {
            let skip = end.saturating_sub(run.global).min(run.len);
            (run.global, run.local, run.len) = (run.global + skip, run.local + skip, run.len - skip);
            if run.len > 0 {
                end = run.global + run.len;
                runs.push(run);
            }
        }
        Self { runs }
    }

    /// First element that is not stored, of `total`.
    pub(crate) fn first_gap(&self, total: usize) -> Option<usize> {
        let mut next = 0;
        for run in &self.runs {
            if run.global > next {
                return Some(next);
            }
            next = run.global + run.len;
        }
        (next < total).then_some(next)
    }

    /// Cuts the global elements `start..start + len` into stored runs, in order, and passes them to `take`.
    ///
    /// # Errors
    /// The first element that is not stored, or what `take` returns.
    pub(crate) fn find<E>(
        &self,
        start: usize,
        len: usize,
        mut take: impl FnMut(ElementRun) -> Result<(), E>,
    ) -> Result<(), Gap<E>> {
        let (mut at, end) = (start, start + len);
        let mut i = self.runs.partition_point(|r| r.global + r.len <= start);
        while at < end {
            let Some(run) = self.runs.get(i).filter(|r| r.global <= at) else { return Err(Gap::At(at)) };
            let skip = at - run.global;
            let n = (run.len - skip).min(end - at);
            take(ElementRun { global: at, len: n, piece: run.piece, local: run.local + skip })
                .map_err(Gap::Other)?;
            at += n;
            i += 1;
        }
        Ok(())
    }
}

/// Why a search stopped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Gap<E> {
    /// This element is stored nowhere.
    At(usize),
    /// The taker's own error.
    Other(E),
}

#[cfg(test)]
mod tests {
    use ms_core::{Axis, Partition, Shape};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_range_is_found_in_pieces_cut_any_way(
            tp in 1usize..5, blocks in 1usize..3, part in 1usize..4, other in 1usize..5, dim in 0usize..2,
            a in 0usize..400, b in 0usize..400,
        ) {
            let cut = tp * blocks * part;
            let shape = if dim == 0 { Shape::new(&[cut, other]) } else { Shape::new(&[other, cut]) };
            let partition = Partition::Split { axis: Axis::Tp, dim, blocks };
            let regions: Vec<Region> = (0..tp).map(|r| partition.region("t", &shape, r, tp).unwrap()).collect();
            let global: Vec<u8> = (0..shape.numel()).map(|i| i as u8).collect();
            let locals: Vec<Vec<u8>> = regions.iter().map(|r| {
                let mut local = vec![0; r.local_shape().numel()];
                r.gather(&mut local, &global, 1);
                local
            }).collect();
            let index = RunIndex::new(regions.iter().map(|r| (r, None)));
            prop_assert_eq!(index.first_gap(global.len()), None);
            let (a, b) = (a % global.len(), b % (global.len() + 1));
            let (start, end) = (a.min(b), a.max(b));
            let mut got = Vec::new();
            index.find::<()>(start, end - start, |run| {
                got.extend_from_slice(&locals[run.piece][run.local..run.local + run.len]);
                Ok(())
            }).unwrap();
            prop_assert_eq!(got, &global[start..end]);
        }
    }

    #[test]
    fn what_lies_behind_the_bounds_is_not_gone_through() {
        let shape = Shape::new(&[1 << 50, 2]);
        let column = Region::along(&shape, 1, std::iter::once(1..2));
        let last = (1 << 50) - 1..1 << 50;
        let index = RunIndex::within([(&column, Some(last))].into_iter(), &(0..100));
        assert_eq!(index.first_gap(1), Some(0));
        // Columns in the other order: the run that comes second is before the bounds' end.
        let turned = Region::along(&Shape::new(&[3, 4]), 1, [2..4, 0..2]);
        let index = RunIndex::within([(&turned, None)].into_iter(), &(4..6));
        let mut found = Vec::new();
        let taken = index.find::<()>(4, 2, |run| {
            found.push((run.local, run.len));
            Ok(())
        });
        assert_eq!((taken, found), (Ok(()), vec![(6, 2)]));
    }

    #[test]
    fn flat_shards_of_a_cut_tensor_are_found_and_gaps_are_named() {
        // Columns 2..4 of a [3, 4] tensor; two ranks share their six elements as 0..4 and 4..6.
        let region = Region::along(&[3, 4].into(), 1, std::iter::once(2..4));
        let index = RunIndex::new([(&region, Some(0..4)), (&region, Some(4..6))].into_iter());
        let mut got = Vec::new();
        index
            .find::<()>(10, 2, |r| {
                got.push((r.piece, r.local, r.len));
                Ok(())
            })
            .unwrap();
        assert_eq!(got, [(1, 0, 2)]);
        assert_eq!(index.find::<()>(7, 2, |_| Ok(())), Err(Gap::At(8)));
        assert_eq!(index.first_gap(12), Some(0));
    }
}
