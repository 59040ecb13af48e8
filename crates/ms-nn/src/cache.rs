//! Keys and values of tokens that were seen before.

use crate::{Batch, Error, Result};
use ms_core::{DType, Device, HeadLayout, Segment, Tensor};

/// The key/value cache of one model: `slots` sequences of up to `capacity` tokens each.
///
/// Layer `l` keeps `keys[l]` and `values[l]`, `[slots · capacity, G · D]`; token `p` of slot `s` is row
/// `s · capacity + p`.
#[derive(Debug)]
pub struct KvCache {
    pub(crate) keys: Vec<Tensor>,
    pub(crate) values: Vec<Tensor>,
    capacity: usize,
    lengths: Vec<usize>,
}

impl KvCache {
    /// An empty cache for `layers` layers.
    pub fn new(
        device: &Device,
        dtype: DType,
        layers: usize,
        heads: HeadLayout,
        slots: usize,
        capacity: usize,
    ) -> Self {
        let zeros =
            || Tensor::zeros(device.arena(), dtype, [slots * capacity, heads.groups * heads.head_dim]);
        Self {
            keys: (0..layers).map(|_| zeros()).collect(),
            values: (0..layers).map(|_| zeros()).collect(),
            capacity,
            lengths: vec![0; slots],
        }
    }

    /// Tokens in a slot.
    pub fn len(&self, slot: usize) -> usize {
        self.lengths[slot]
    }

    /// Whether no slot holds a token.
    pub fn is_empty(&self) -> bool {
        self.lengths.iter().all(|&n| n == 0)
    }

    /// Tokens a slot can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.keys.iter().chain(&self.values).map(|t| t.bytes().len()).sum()
    }

    /// Forgets the tokens of a slot from position `len` on.
    pub fn truncate(&mut self, slot: usize, len: usize) {
        self.lengths[slot] = self.lengths[slot].min(len);
    }

    /// Makes room for new tokens and returns the batch that fills it, with each token's cache row.
    ///
    /// # Errors
    /// [`Error::CacheFull`] if a sequence does not fit.
    pub(crate) fn extend(&mut self, device: &Device, new: &[(usize, &[i32])]) -> Result<(Batch, Vec<usize>)> {
        let (mut tokens, mut positions, mut places, mut segments) = (vec![], vec![], vec![], vec![]);
        for &(slot, more) in new {
            let used = self.lengths[slot];
            if used + more.len() > self.capacity {
                return Err(Error::CacheFull { slot, capacity: self.capacity, used, more: more.len() });
            }
            let k_start = slot * self.capacity;
            segments.push(Segment {
                q_start: tokens.len(),
                q_len: more.len(),
                k_start,
                k_len: used + more.len(),
            });
            for (i, &token) in more.iter().enumerate() {
                tokens.push(token);
                positions.push((used + i) as i32);
                places.push(k_start + used + i);
            }
        }
        let batch = Batch::from_segments(device.arena(), &tokens, &positions, segments)?;
        for &(slot, more) in new {
            self.lengths[slot] += more.len();
        }
        Ok((batch, places))
    }
}
