//! Memory and traffic of each rank, exchanged so that every rank knows them at the end of a run.

use crate::Result;
use crate::engine::Engine;
use ms_core::{RankGroup, Tensor};
use serde::Serialize;
use std::collections::BTreeMap;

/// A rank's peak memory and the bytes that it sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RankUsage {
    /// Peak bytes requested by its tensors.
    pub peak_bytes: u64,
    /// The same in blocks as the arena gives them.
    pub peak_block_bytes: u64,
    /// Bytes of its largest tensor.
    pub largest_tensor_bytes: u64,
    /// Peak bytes saved by forward passes, by requested sizes.
    pub kept_bytes: u64,
    /// Most bytes that left its device at one time.
    pub swapped_bytes: u64,
    /// Most bytes that it held for a checkpoint that was written while training went on.
    pub snapshot_bytes: u64,
    /// Bytes that it sent in the last iteration, by group of ranks; groups of one rank are left out.
    pub sent_bytes: BTreeMap<RankGroup, u64>,
}

/// Numbers of a rank other than what it sent.
const NUMBERS: usize = 6;

impl RankUsage {
    /// This rank's usage, given the bytes `sent` in its last iteration and the `snapshot` of its checkpoints.
    pub(crate) fn of(engine: &Engine, sent: BTreeMap<RankGroup, u64>, snapshot: usize) -> Self {
        let stats = engine.device.arena().stats();
        Self {
            peak_bytes: stats.peak_asked_bytes as u64,
            peak_block_bytes: stats.peak_bytes as u64,
            largest_tensor_bytes: stats.largest_bytes as u64,
            kept_bytes: engine.kept_bytes() as u64,
            swapped_bytes: engine.host_stats().map_or(0, |s| s.peak_bytes),
            snapshot_bytes: snapshot as u64,
            sent_bytes: sent,
        }
    }

    /// Those of all ranks, in rank order. Every rank calls it.
    ///
    /// # Errors
    /// If a rank fails.
    pub(crate) fn of_all(self, engine: &Engine) -> Result<Vec<Self>> {
        let groups = engine.ctx.groups().map(|(group, _)| group);
        let numbers = [
            self.peak_bytes,
            self.peak_block_bytes,
            self.largest_tensor_bytes,
            self.kept_bytes,
            self.swapped_bytes,
            self.snapshot_bytes,
        ];
        // A group with only this rank does not count.
        let sent = groups.iter().map(|group| self.sent_bytes.get(group).map_or(-1, |&bytes| bytes as i64));
        let mine: Vec<i64> = numbers.iter().map(|&n| n as i64).chain(sent).collect();
        let mine = Tensor::from_slice(engine.device.arena(), [1, mine.len()], &mine)?;
        let all = engine.ctx.world.all_gather("bytes of ranks", mine)?.wait()?;
        let of_rank = |row: &[i64]| {
            let (numbers, sent) = row.split_at(NUMBERS);
            let n = |i: usize| numbers[i] as u64;
            let sent = groups.into_iter().zip(sent).filter(|(_, bytes)| **bytes >= 0);
            Self {
                peak_bytes: n(0),
                peak_block_bytes: n(1),
                largest_tensor_bytes: n(2),
                kept_bytes: n(3),
                swapped_bytes: n(4),
                snapshot_bytes: n(5),
                sent_bytes: sent.map(|(group, &bytes)| (group, bytes as u64)).collect(),
            }
        };
        Ok(all.ready()?.as_slice::<i64>()?.chunks_exact(NUMBERS + groups.len()).map(of_rank).collect())
    }
}
