//! A single rank that stands for a whole group: exchanged tensors get the sizes they would have, and traffic is counted.
//!
//! Every other rank of a group is assumed to do and to hold what this one does, so one rank's part of a run on thousands of
//! ranks can be tried alone.

use crate::reduce::{joined, reduce};
use crate::{Communicator, Error, Fabric, Pending, ReduceOp, Result, volume};
use ms_core::{Arena, DType, Shape, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The fabric of one rank among ranks that do not exist.
#[derive(Clone)]
pub struct MetaFabric {
    rank: usize,
    world: usize,
}

impl MetaFabric {
    /// Rank `rank` of `world`; messages arrive as it expects them ([`Communicator::recv_known`]).
    pub fn new(rank: usize, world: usize) -> Self {
        Self { rank, world }
    }
}

impl Fabric for MetaFabric {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn group(&self, ranks: &[usize]) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(MetaGroup { rank: self.place(ranks)?, size: ranks.len(), sent: AtomicU64::new(0) }))
    }
}

struct MetaGroup {
    rank: usize,
    size: usize,
    sent: AtomicU64,
}

impl MetaGroup {
    fn count(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// What all ranks together hold, `t` being this rank's part; if `t` has values they are used for all ranks.
    fn joined(
        &self,
        t: Tensor,
        make: impl FnOnce(&Arena, &[Tensor]) -> Result<Tensor> + Send + 'static,
    ) -> Pending {
        if self.size == 1 {
            return Pending::ready(t);
        }
        let all = vec![t; self.size];
        Pending::new(move || make(all[0].arena(), &all))
    }
}

/// Elements `start..start + len` of the reduction of all.
fn reduced(arena: &Arena, all: &[Tensor], (start, len): (usize, usize), op: ReduceOp) -> Result<Tensor> {
    if !all[0].is_meta() {
        // All ranks hold the same: doubling takes as many steps as the number of ranks has binary digits.
        let mut power = reduce(arena, &all[..1], start, len, op)?;
        let (mut left, mut sum) = (if op == ReduceOp::Max { 1 } else { all.len() }, None);
        loop {
            if left & 1 == 1 {
                sum = Some(match sum {
                    None => power.clone(),
                    Some(sum) => reduce(arena, &[sum, power.clone()], 0, len, op)?,
                });
            }
            left >>= 1;
            match sum {
                Some(sum) if left == 0 => return Ok(sum),
                _ => power = reduce(arena, &[power.clone(), power], 0, len, op)?,
            }
        }
    }
    let shape = if len == all[0].numel() { all[0].shape() } else { [len].into() };
    Ok(Tensor::uninit(arena, all[0].dtype(), shape))
}

impl Communicator for MetaGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce(&self, _: &'static str, t: Tensor, op: ReduceOp) -> Result<Pending> {
        self.count(volume::all_reduce(&t, self.size));
        Ok(self.joined(t, move |arena, all| reduced(arena, all, (0, all[0].numel()), op)))
    }

    fn all_gather(&self, _: &'static str, t: Tensor) -> Result<Pending> {
        self.count(volume::all_gather(&t, self.size));
        let shape = volume::gathered(&t, self.size);
        Ok(self.joined(t, move |arena, all| joined(arena, all, &shape)))
    }

    fn reduce_scatter(&self, name: &'static str, t: Tensor) -> Result<Pending> {
        let (rank, size, numel) = (self.rank, self.size, t.numel());
        volume::check_parts(name, numel, size)?;
        self.count(volume::parts(&t, size));
        let part = numel / size;
        Ok(self.joined(t, move |arena, all| reduced(arena, all, (rank * part, part), ReduceOp::Sum)))
    }

    fn broadcast(&self, _: &'static str, t: Tensor, root: usize) -> Result<Pending> {
        self.count(volume::broadcast(&t, self.size, self.rank == root));
        Ok(self.joined(t, |_, all| Ok(all[0].copied()?)))
    }

    fn all_to_all(&self, name: &'static str, t: Tensor) -> Result<Pending> {
        let (rank, size, rows) = (self.rank, self.size, t.shape().first().copied().unwrap_or(0));
        volume::check_parts(name, rows, size)?;
        self.count(volume::parts(&t, size));
        let part = rows / size;
        Ok(self.joined(t, move |arena, all| {
            let parts = all.iter().map(|t| t.rows(rank * part, part)).collect::<ms_core::Result<Vec<_>>>()?;
            joined(arena, &parts, &all[0].shape())
        }))
    }

    fn all_to_all_rows(&self, _: &'static str, t: Tensor, rows: &[usize]) -> Result<Pending> {
        volume::check_rows(&t, rows, self.size)?;
        self.count(volume::rows(&t, rows, self.rank));
        let (start, mine) = (rows[..self.rank].iter().sum(), rows[self.rank]);
        Ok(self.joined(t, move |arena, all| {
            let parts = all.iter().map(|t| t.rows(start, mine)).collect::<ms_core::Result<Vec<_>>>()?;
            joined(arena, &parts, &[all.len() * mine, all[0].as_matrix().1])
        }))
    }

    fn exchange_known_rows(
        &self,
        name: &'static str,
        t: Tensor,
        send: &[usize],
        receive: &[usize],
    ) -> Result<Pending> {
        if self.size == 1 || !t.is_meta() {
            return self.all_to_all_rows(name, t, send);
        }
        self.count(volume::rows(&t, send, self.rank));
        let (dtype, width, here) = (t.dtype(), t.as_matrix().1, receive.iter().sum::<usize>());
        Ok(self.joined(t, move |arena, _| Ok(Tensor::uninit(arena, dtype, [here, width]))))
    }

    fn send(&self, _: &'static str, t: Tensor, _: usize, _: u64) -> Result<()> {
        self.count(volume::bytes(&t));
        Ok(())
    }

    fn recv(&self, name: &'static str, from: usize, tag: u64, _: &Arena) -> Result<Pending> {
        let found = "nothing: a rank alone only receives what it knows the type and shape of".to_owned();
        Err(Error::Unexpected { tag, from, expected: name, found })
    }

    fn recv_known(
        &self,
        _: &'static str,
        _: (usize, u64),
        (dtype, shape): (DType, Shape),
        arena: &Arena,
    ) -> Result<Pending> {
        let arena = arena.clone();
        Ok(Pending::new(move || Ok(Tensor::uninit(&arena, dtype, shape))))
    }

    fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn barrier(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_of_ranks_are_summed_as_one_by_one() {
        let arena = Arena::default();
        let t = Tensor::from_slice(&arena, [4], &[1i64, -3, 0, 1 << 40]).unwrap();
        for ranks in 1..=17 {
            let all = vec![t.clone(); ranks];
            for op in [ReduceOp::Sum, ReduceOp::Max] {
                for (start, len) in [(0, 4), (1, 2)] {
                    let want = reduce(&arena, &all, start, len, op).unwrap();
                    let got = reduced(&arena, &all, (start, len), op).unwrap();
                    assert_eq!(got.bytes(), want.bytes(), "{ranks} ranks, {op:?}");
                    assert_eq!(got.shape(), want.shape());
                }
            }
        }
    }
}
