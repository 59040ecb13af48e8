//! Adaptive context parallelism: attention blocks are distributed over ranks as the mask requires them.
//!
//! A block is the queries of one rank with the keys and values of another. In each round a rank works on at most one block:
//! one with its own queries, for which keys and values arrive, or one with its own keys and values, for which queries arrive
//! and results are sent back. Which blocks are needed follows from token positions within documents, so every rank knows all
//! tasks.

use crate::pieces::{PackedColumns, Piece, calls};
use crate::{Communicator, ContextParallel, Result};
use ms_core::{Arena, AttentionDropout, AttentionOptions, DType, Device, HeadLayout, QkvRows, Tensor};

/// Tags of messages from one rank to another, by content.
const KEYS: u64 = 0;
const QUERIES: u64 = 3;
const BACK: u64 = 6;

/// A rank's task in a round: queries of rank `row` with keys and values of rank `column`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Task {
    row: usize,
    column: usize,
}

/// The tasks of all ranks, round by round.
pub(crate) struct Rounds(Vec<Vec<Option<Task>>>);

impl Rounds {
    /// The rounds for all blocks in which some query of `pieces` sees some key.
    pub(crate) fn new(pieces: &[Vec<Piece>], options: &AttentionOptions) -> Self {
        let ranks = pieces.len();
        let sees =
            |row: &Vec<Piece>| pieces.iter().map(|keys| !calls(row, keys, options).is_empty()).collect();
        let needed: Vec<Vec<bool>> = pieces.iter().map(sees).collect();
        let task = |id: i64| usize::try_from(id).ok().map(|id| Task { row: id / ranks, column: id % ranks });
        let rounds = ContextParallel::adaptive_tasks(&needed).into_iter();
        Self(rounds.map(|round| round.into_iter().map(task).collect()).collect())
    }

    /// Runs the rounds on `rank`: inputs for the next round are sent before this round's task is computed, and results of
    /// other ranks' tasks in a round are received after it. `send(task, from, to)` sends what `to` needs for its task,
    /// `work(task)` does this rank's, `take(task, from)` takes the result of another's for this one.
    fn run(
        &self,
        rank: usize,
        mut send: impl FnMut(Task, usize) -> Result<()>,
        mut work: impl FnMut(Task) -> Result<()>,
        mut take: impl FnMut(Task, usize) -> Result<()>,
    ) -> Result<()> {
        let tasks = |round: usize| {
            let all = self.0.get(round).into_iter().flatten().enumerate();
            all.filter_map(|(worker, task)| task.map(|task| (worker, task)))
        };
        let mut send_for = |round: usize| -> Result<()> {
            for (worker, task) in tasks(round).filter(|(worker, _)| *worker != rank) {
                // The working rank has one of the two.
                if (task.row == worker && task.column == rank) || (task.column == worker && task.row == rank)
                {
                    send(task, worker)?;
                }
            }
            Ok(())
        };
        send_for(0)?;
        for round in 0..self.0.len() {
            send_for(round + 1)?;
            for (_, task) in tasks(round).filter(|(worker, _)| *worker == rank) {
                work(task)?;
            }
            for (worker, task) in tasks(round).filter(|(worker, task)| *worker != rank && task.row == rank) {
                take(task, worker)?;
            }
        }
        Ok(())
    }
}

/// The inputs of attention over shared sequences.
pub(crate) struct Blocks<'a> {
    pub(crate) comm: &'a dyn Communicator,
    /// Memory for received tensors.
    pub(crate) arena: &'a Arena,
    pub(crate) pieces: &'a [Vec<Piece>],
    pub(crate) heads: HeadLayout,
    pub(crate) options: &'a AttentionOptions,
    /// Of each rank's queries; empty: none.
    pub(crate) dropout: &'a [AttentionDropout],
}

/// What the backward pass of queries needs in addition to keys and values.
struct QueryBackward {
    q: Tensor,
    dout: Tensor,
    out: Tensor,
    lse: Tensor,
}

impl Blocks<'_> {
    fn receive(
        &self,
        name: &'static str,
        (from, tag): (usize, u64),
        what: (DType, [usize; 2]),
    ) -> Result<Tensor> {
        self.comm.recv_known(name, (from, tag), (what.0, what.1.into()), self.arena)?.wait()
    }

    /// Columns of queries, and of keys and values.
    fn widths(&self) -> (usize, usize) {
        let HeadLayout { groups, head_dim, .. } = self.heads;
        (self.heads.heads() * head_dim, 2 * groups * head_dim)
    }

    /// Output `[T,N·D]` and log-sum-exp `[N,T]`, both unrounded, for this rank's packed rows `qkv`.
    pub(crate) fn forward(&self, device: &Device, qkv: &Tensor) -> Result<(Tensor, Tensor)> {
        let (rank, h) = (self.comm.rank(), self.heads);
        let (tokens, columns, wide) = (qkv.as_matrix().0, PackedColumns::new(h), qkv.dtype().wide());
        let (q, kv) = (device.columns(qkv, &columns.q)?, device.columns(qkv, &columns.kv)?);
        let (own_type, (of_queries, of_keys)) = (qkv.dtype(), self.widths());
        let empty = || -> Result<(Tensor, Tensor)> {
            let out = Tensor::zeros(device.arena(), wide, [tokens, h.heads() * h.head_dim]);
            let none = vec![f64::NEG_INFINITY; h.heads() * tokens];
            Ok((out, Tensor::from_reals(device.arena(), wide, [h.heads(), tokens], &none)?))
        };
        let own = std::cell::RefCell::new(empty()?);
        let merge = |to: &mut (Tensor, Tensor), part: &Tensor, lse: &Tensor| -> Result<()> {
            Ok(device.attention_merge(&mut to.0, &mut to.1, part, lse)?)
        };
        let send = |task: Task, to: usize| {
            if task.row == rank {
                self.comm.send("queries", q.clone(), to, QUERIES)
            } else {
                self.comm.send("keys and values", kv.clone(), to, KEYS)
            }
        };
        let work = |task: Task| {
            let theirs = match (task.row == rank, task.column == rank) {
                (true, true) => None,
                (true, false) => Some(self.receive(
                    "keys and values",
                    (task.column, KEYS),
                    (own_type, [tokens, of_keys]),
                )?),
                (false, _) => {
                    Some(self.receive("queries", (task.row, QUERIES), (own_type, [tokens, of_queries]))?)
                }
            };
            let rows = match (&theirs, task.row == rank) {
                (None, _) => QkvRows::Packed(qkv),
                (Some(kv), true) => QkvRows::Apart { q: &q, kv },
                (Some(q), false) => QkvRows::Apart { q, kv: &kv },
            };
            let mut of_others = if task.row == rank { None } else { Some(empty()?) };
            for segments in calls(&self.pieces[task.row], &self.pieces[task.column], self.options) {
                let dropout = self.dropout.get(task.row);
                let (part, lse) = device.attention(rows, h, &segments, self.options, dropout)?;
                match &mut of_others {
                    Some(of_others) => merge(of_others, &part, &lse)?,
                    None => merge(&mut own.borrow_mut(), &part, &lse)?,
                }
            }
            if let Some((out, lse)) = of_others {
                self.comm.send("outputs of queries", device.cast(&out, qkv.dtype())?, task.row, BACK)?;
                self.comm.send("statistics of queries", lse, task.row, BACK + 1)?;
            }
            Ok(())
        };
        let take = |_: Task, from: usize| {
            let out = self.receive("outputs of queries", (from, BACK), (own_type, [tokens, of_queries]))?;
            let lse = self.receive("statistics of queries", (from, BACK + 1), (wide, [h.heads(), tokens]))?;
            merge(&mut own.borrow_mut(), &out, &lse)
        };
        Rounds::new(self.pieces, self.options).run(rank, send, work, take)?;
        Ok(own.into_inner())
    }

    /// Unrounded gradients of this rank's queries `[T,N·D]` and of its keys and values `[T,2·G·D]`: the blocks' gradients are
    /// added in the order of the ranks that own their keys, or queries.
    pub(crate) fn gradient(
        &self,
        device: &Device,
        qkv: &Tensor,
        (dout, out, lse): (&Tensor, &Tensor, &Tensor),
    ) -> Result<(Tensor, Tensor)> {
        let (rank, h, size) = (self.comm.rank(), self.heads, self.comm.size());
        let (tokens, columns, wide) = (qkv.as_matrix().0, PackedColumns::new(h), qkv.dtype().wide());
        let (q, kv) = (device.columns(qkv, &columns.q)?, device.columns(qkv, &columns.kv)?);
        let (own_type, (of_queries, of_keys)) = (qkv.dtype(), self.widths());
        let of_columns = || (0..size).map(|_| None).collect::<Vec<Option<Tensor>>>();
        let (dqs, dkvs) = (std::cell::RefCell::new(of_columns()), std::cell::RefCell::new(of_columns()));
        let rounds = Rounds::new(self.pieces, self.options);
        let send = |task: Task, to: usize| -> Result<()> {
            if task.column == rank {
                return self.comm.send("keys and values", kv.clone(), to, KEYS);
            }
            for (i, t) in [&q, dout, out, lse].into_iter().enumerate() {
                self.comm.send("queries", t.clone(), to, QUERIES + 8 * i as u64)?;
            }
            Ok(())
        };
        let work = |task: Task| -> Result<()> {
            let (keys, behind) = match (task.row == rank, task.column == rank) {
                (true, own) => {
                    let behind = QueryBackward {
                        q: q.clone(),
                        dout: dout.clone(),
                        out: out.clone(),
                        lse: lse.clone(),
                    };
                    let what = (own_type, [tokens, of_keys]);
                    let keys = if own {
                        kv.clone()
                    } else {
                        self.receive("keys and values", (task.column, KEYS), what)?
                    };
                    (keys, behind)
                }
                (false, _) => {
                    let part = |i: u64, like: &Tensor| {
                        let (rows, columns) = like.as_matrix();
                        let what = (like.dtype(), [rows, columns]);
                        self.receive("queries", (task.row, QUERIES + 8 * i), what)
                    };
                    let behind = QueryBackward {
                        q: part(0, &q)?,
                        dout: part(1, dout)?,
                        out: part(2, out)?,
                        lse: part(3, lse)?,
                    };
                    (kv.clone(), behind)
                }
            };
            let rows = QkvRows::Apart { q: &behind.q, kv: &keys };
            let (mut dq, mut dkv) = (None, None);
            for segments in calls(&self.pieces[task.row], &self.pieces[task.column], self.options) {
                let d = device.attention_backward(
                    &behind.dout,
                    rows,
                    &behind.out,
                    &behind.lse,
                    h,
                    &segments,
                    self.options,
                    self.dropout.get(task.row),
                )?;
                for (sum, d) in [&mut dq, &mut dkv].into_iter().zip(d.into_parts()) {
                    add(device, sum, device.cast(&d, wide)?)?;
                }
            }
            // A block is a task because some of its keys are visible.
            if let (Some(dq), Some(dkv)) = (dq, dkv) {
                if task.row == rank {
                    dqs.borrow_mut()[task.column] = Some(dq);
                } else {
                    self.comm.send("gradients of queries", dq, task.row, BACK)?;
                }
                if task.column == rank {
                    dkvs.borrow_mut()[task.row] = Some(dkv);
                } else {
                    self.comm.send("gradients of keys and values", dkv, task.column, BACK + 1)?;
                }
            }
            Ok(())
        };
        let take = |task: Task, from: usize| {
            let what = (wide, [tokens, of_queries]);
            dqs.borrow_mut()[task.column] = Some(self.receive("gradients of queries", (from, BACK), what)?);
            Ok(())
        };
        rounds.run(rank, send, work, take)?;
        // Results of other ranks for keys and values that were sent to them; for each rank in the order of its rounds.
        for (worker, task) in rounds.0.iter().flat_map(|round| round.iter().enumerate()) {
            if let Some(task) =
                task.filter(|task| task.column == rank && task.row == worker && worker != rank)
            {
                let what = (wide, [tokens, of_keys]);
                dkvs.borrow_mut()[task.row] =
                    Some(self.receive("gradients of keys and values", (worker, BACK + 1), what)?);
            }
        }
        let total = |parts: Vec<Option<Tensor>>, width: usize| -> Result<Tensor> {
            let mut sum = None;
            for part in parts.into_iter().flatten() {
                add(device, &mut sum, part)?;
            }
            Ok(sum.unwrap_or_else(|| Tensor::zeros(device.arena(), wide, [tokens, width])))
        };
        Ok((
            total(dqs.into_inner(), h.heads() * h.head_dim)?,
            total(dkvs.into_inner(), 2 * h.groups * h.head_dim)?,
        ))
    }
}

fn add(device: &Device, sum: &mut Option<Tensor>, x: Tensor) -> Result<()> {
    *sum = Some(match sum.take() {
        None => x,
        Some(sum) => device.add(&sum, &x)?,
    });
    Ok(())
}
