//! Distribution of heads over ranks, with the keys and values each head needs, also where the key/value heads do not divide
//! evenly.

use crate::{AxisGroup, Communicator, ParallelCtx};
use ms_core::shard_state::{InputStates, OutputState, ShardState};
use ms_core::{BackwardCx, Columns, Device, Digit, Grads, Graph, HeadLayout, Op, Result, Tensor, Var};
use std::ops::Range;
use std::sync::Arc;

/// Which heads each rank attends with. A rank's heads are whole groups; or, if groups do not divide evenly among the ranks,
/// heads of one group with a copy of its key and value; or, if they belong to several groups, heads with a copy each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadPartition {
    all: HeadLayout,
    /// The heads of one rank: the same number for each.
    pub own: HeadLayout,
}

impl HeadPartition {
    /// `all` heads distributed over `ranks`, which divides their number.
    pub fn new(all: HeadLayout, ranks: usize) -> Self {
        let m = all.heads_per_group;
        if all.groups.is_multiple_of(ranks) {
            return Self { all, own: HeadLayout { groups: all.groups / ranks, ..all } };
        }
        let each = all.heads() / ranks;
        // As many heads of a group as all of a rank's heads share, else one.
        let together = if m.is_multiple_of(each) { each } else { 1 };
        Self { all, own: HeadLayout { groups: each / together, heads_per_group: together, ..all } }
    }

    /// The group of each of `rank`'s own groups, and the first of its heads there.
    fn groups_of(&self, rank: usize) -> impl Iterator<Item = (usize, usize)> {
        let (m, together, own) = (self.all.heads_per_group, self.own.heads_per_group, self.own.groups);
        (rank * own..(rank + 1) * own).map(move |i| (i * together / m.max(1), i * together % m.max(1)))
    }

    /// Columns of keys `[G·D]` that `rank` attends to, in the order of its groups.
    pub fn keys_of(&self, rank: usize) -> Vec<Range<usize>> {
        let d = self.all.head_dim;
        self.groups_of(rank).map(|(g, _)| g * d..(g + 1) * d).collect()
    }

    /// Columns of packed rows `[(N+2G)·D]` that `rank` attends with, as packed rows of its own.
    pub fn packed(&self, rank: usize) -> Vec<Range<usize>> {
        let (m, d, together) = (self.all.heads_per_group, self.all.head_dim, self.own.heads_per_group);
        let group = (m + 2) * d;
        let of = |(g, first): (usize, usize)| {
            let queries = g * group + first * d;
            [queries..queries + together * d, g * group + m * d..(g + 1) * group]
        };
        self.groups_of(rank).flat_map(of).collect()
    }

    /// [`HeadPartition::packed`] of rows that are `[queries | keys | values]`.
    fn of_separate(&self, rank: usize) -> Vec<Range<usize>> {
        let HeadLayout { groups, heads_per_group: m, head_dim: d } = self.all;
        let (keys, together) = (groups * m * d, self.own.heads_per_group);
        let of = |(g, first): (usize, usize)| {
            let (q, k, v) = ((g * m + first) * d, keys + g * d, keys + (groups + g) * d);
            [q..q + together * d, k..k + d, v..v + d]
        };
        self.groups_of(rank).flat_map(of).collect()
    }

    /// The exchange by which ranks that each projected an equal share of the packed rows get the columns that their heads
    /// need; `None` if they have them already.
    pub fn of_packed(&self, rank: usize, ranks: usize) -> Option<ColumnExchange> {
        let part = (self.all.heads() + 2 * self.all.groups) * self.all.head_dim / ranks;
        let holds = |r: usize| std::iter::once(r * part..(r + 1) * part).collect();
        self.exchange(rank, ranks, holds, |r| self.packed(r))
    }

    /// The same if separate projections produced an equal share of each of `[queries | keys | values]`.
    pub fn of_projections(&self, rank: usize, ranks: usize) -> Option<ColumnExchange> {
        let HeadLayout { groups, head_dim, .. } = self.all;
        let (queries, keys) = (self.all.heads() * head_dim, groups * head_dim);
        let share = |start: usize, width: usize, r: usize| {
            let part = width / ranks;
            start + r * part..start + (r + 1) * part
        };
        let holds = |r| vec![share(0, queries, r), share(queries, keys, r), share(queries + keys, keys, r)];
        self.exchange(rank, ranks, holds, |r| self.of_separate(r))
    }

    fn exchange(
        &self,
        rank: usize,
        ranks: usize,
        holds: impl Fn(usize) -> Vec<Range<usize>>,
        wants: impl Fn(usize) -> Vec<Range<usize>>,
    ) -> Option<ColumnExchange> {
        (!self.all.groups.is_multiple_of(ranks)).then(|| ColumnExchange::new(rank, ranks, holds, wants))
    }
}

/// An exchange of columns between ranks.
#[derive(Clone, Debug)]
pub struct ColumnExchange {
    /// The columns that this rank sends to each rank.
    send: Vec<Vec<Columns>>,
    /// Columns that come from each rank.
    receive: Vec<usize>,
    /// Arranges the received columns, rank after rank, in the requested order.
    arrange: Vec<Columns>,
    /// Columns of this rank before the exchange.
    width: usize,
}

/// A stretch of columns: where it starts among all, where among those of the rank that holds it, and its length.
type Stretch = (usize, usize, usize);

/// The intersection of `wanted` and `held`, in column order.
fn overlap(held: &[Range<usize>], wanted: &Range<usize>) -> Vec<Stretch> {
    let mut local = 0;
    let mut found = Vec::new();
    for range in held {
        let (start, end) = (range.start.max(wanted.start), range.end.min(wanted.end));
        if start < end {
            found.push((start, local + start - range.start, end - start));
        }
        local += range.len();
    }
    found.sort_unstable();
    found
}

impl ColumnExchange {
    /// Each rank `holds` some columns of a matrix side by side and `wants` others, any of them, in its order.
    fn new(
        rank: usize,
        ranks: usize,
        holds: impl Fn(usize) -> Vec<Range<usize>>,
        wants: impl Fn(usize) -> Vec<Range<usize>>,
    ) -> Self {
        let sent = |from: usize, to: usize| -> Vec<Stretch> {
            wants(to).iter().flat_map(|w| overlap(&holds(from), w)).collect()
        };
        let run = |(_, start, len): Stretch| Columns::Copy { start, len };
        let receive: Vec<usize> = (0..ranks).map(|from| sent(from, rank).iter().map(|s| s.2).sum()).collect();
        // The next column sent by each rank.
        let mut next: Vec<usize> = (0..ranks).map(|r| receive[..r].iter().sum()).collect();
        let mut arrange = Vec::new();
        for wanted in wants(rank) {
            let held =
                |from| overlap(&holds(from), &wanted).into_iter().map(move |(at, _, len)| (at, from, len));
            let mut pieces: Vec<Stretch> = (0..ranks).flat_map(held).collect();
            pieces.sort_unstable();
            for (_, from, len) in pieces {
                arrange.push(Columns::Copy { start: next[from], len });
                next[from] += len;
            }
        }
        Self {
            send: (0..ranks).map(|to| sent(rank, to).into_iter().map(run).collect()).collect(),
            receive,
            arrange,
            width: holds(rank).iter().map(Range::len).sum(),
        }
    }

    /// Columns of a token that `rank`, whose exchange this is, sends to others, forward and backward.
    pub fn sent_columns(&self, rank: usize) -> usize {
        let others = |r: &usize| *r != rank;
        let forward = (0..self.send.len()).filter(others).flat_map(|r| &self.send[r]).map(Columns::width);
        let backward = (0..self.receive.len()).filter(others).map(|r| self.receive[r]);
        forward.chain(backward).sum()
    }

    fn forward(&self, device: &Device, comm: &dyn Communicator, x: &Tensor) -> Result<Tensor> {
        let parts = self.send.iter().map(|runs| device.columns(x, runs));
        let came = swap(device, comm, &parts.collect::<Result<Vec<_>>>()?, &self.receive)?;
        device.columns(&came, &self.arrange)
    }

    fn gradient(&self, device: &Device, comm: &dyn Communicator, dy: &Tensor) -> Result<Tensor> {
        let all: usize = self.receive.iter().sum();
        let d_came = device.columns_backward(dy, all, &self.arrange)?;
        let mut start = 0;
        let parts = self.receive.iter().map(|&len| {
            start += len;
            device.columns(&d_came, &[Columns::Copy { start: start - len, len }])
        });
        let widths: Vec<usize> = self.send.iter().map(|runs| runs.iter().map(Columns::width).sum()).collect();
        let back = swap(device, comm, &parts.collect::<Result<Vec<_>>>()?, &widths)?;
        // Columns used by several ranks: their gradients are summed in rank order.
        let runs: Vec<Columns> = self.send.iter().flatten().copied().collect();
        device.columns_backward(&back, self.width, &runs)
    }
}

/// Sends `parts[r]`, `[T, any]`, to rank `r`, and returns the received parts concatenated by columns, `widths[r]` from rank
/// `r`.
fn swap(device: &Device, comm: &dyn Communicator, parts: &[Tensor], widths: &[usize]) -> Result<Tensor> {
    let tokens = parts[0].as_matrix().0;
    let flat = parts.iter().map(|p| p.clone().reshape([1, p.numel()])).collect::<Result<Vec<_>>>()?;
    let all = device.concat(&flat.iter().collect::<Vec<_>>())?;
    let rows: Vec<usize> = parts.iter().map(Tensor::numel).collect();
    let all = all.reshape([rows.iter().sum::<usize>(), 1])?;
    let coming: Vec<usize> = widths.iter().map(|width| tokens * width).collect();
    let came = comm.exchange_known_rows("shared heads", all, &rows, &coming)?.wait()?;
    let mut start = 0;
    let blocks = widths.iter().map(|width| {
        start += tokens * width;
        came.rows(start - tokens * width, tokens * width)?.reshape([tokens, *width])
    });
    device.concat(&blocks.collect::<Result<Vec<_>>>()?.iter().collect::<Vec<_>>())
}

struct ExchangeColumns {
    ranks: AxisGroup,
    columns: Arc<ColumnExchange>,
}

impl Op for ExchangeColumns {
    fn name(&self) -> &'static str {
        "exchange_columns"
    }

    fn shard_state(&self, along: Digit, inputs: InputStates<'_>) -> OutputState {
        self.ranks.over.exchanged(along, inputs, &[ShardState::Sharded], ShardState::Sharded)
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, dys: Grads) -> Result<Grads> {
        let back = |dy: Tensor| self.columns.gradient(cx.device, &**self.ranks, &dy);
        dys.into_iter().map(|dy| dy.map(back).transpose()).collect()
    }
}

impl ParallelCtx {
    /// The columns of `x[T,·]`, sharded over all ranks, that this tensor-parallel rank requested. Gradients of a column that
    /// several ranks use are summed.
    ///
    /// # Errors
    /// If a rank fails or `x` is not as wide as the exchange was made for.
    pub fn exchange_columns(&self, g: &mut Graph, x: &Var, columns: &Arc<ColumnExchange>) -> Result<Var> {
        let device = g.device().clone();
        let y = columns.forward(&device, &*self.tp, x.value())?;
        Ok(g.apply(y, &[x], || {
            Box::new(ExchangeColumns { ranks: self.tp_group(), columns: columns.clone() })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every rank gets, by what it sends, receives and arranges, the columns that it requested.
    #[test]
    fn each_rank_gets_the_columns_of_its_heads() {
        let layouts = [
            (1, 8, 8),
            (2, 4, 4),
            (2, 4, 8),
            (3, 4, 6),
            (3, 8, 2),
            (2, 6, 3),
            (4, 3, 6),
            (3, 4, 2),
            (6, 4, 4),
        ];
        for (groups, heads_per_group, ranks) in layouts {
            let all = HeadLayout { groups, heads_per_group, head_dim: 3 * ranks };
            let shares = HeadPartition::new(all, ranks);
            assert_eq!(shares.own.heads() * ranks, all.heads(), "{all:?}");
            let width = (all.heads() + 2 * groups) * all.head_dim;
            let held = |r: usize| r * width / ranks..(r + 1) * width / ranks;
            let of = |r: usize| shares.of_packed(r, ranks).expect("fewer groups than ranks");
            for rank in 0..ranks {
                let plan = of(rank);
                let mut came = Vec::new();
                for from in 0..ranks {
                    let columns: Vec<usize> = held(from).collect();
                    for run in &of(from).send[rank] {
                        let Columns::Copy { start, len } = *run else { panic!("only copies") };
                        came.extend_from_slice(&columns[start..start + len]);
                    }
                }
                assert_eq!(came.len(), plan.receive.iter().sum::<usize>());
                let got: Vec<usize> = plan
                    .arrange
                    .iter()
                    .flat_map(|run| {
                        let Columns::Copy { start, len } = *run else { panic!("only copies") };
                        came[start..start + len].to_vec()
                    })
                    .collect();
                let want: Vec<usize> = shares.packed(rank).into_iter().flatten().collect();
                assert_eq!(got, want, "{all:?} on rank {rank} of {ranks}");
            }
        }
    }

    #[test]
    fn whole_groups_are_not_exchanged() {
        let shares = HeadPartition::new(HeadLayout { groups: 4, heads_per_group: 2, head_dim: 8 }, 2);
        assert_eq!(shares.own.groups, 2);
        assert!(shares.of_packed(0, 2).is_none() && shares.of_projections(1, 2).is_none());
    }
}
