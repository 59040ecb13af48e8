//! KV cache and recurrent state of tokens that were processed before.

use crate::{Batch, Error, Result};
use ms_core::{DType, Device, Pooling, Segment, Tensor};
use std::ops::Range;

/// What one layer keeps of a slot's tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LayerMemory {
    /// Keys and values of `width` elements a token, and `index` elements of an indexer's key.
    Attention { width: usize, index: Option<usize> },
    /// The inputs before a convolution, `history` of `[W-1, C]`, and a scan's `states`.
    Recurrent { history: [usize; 2], states: usize },
    /// A row of `width` elements a token that is key and value, and pooled entries.
    Rows { width: usize, pools: [Option<Pooling>; 2] },
    /// Nothing.
    None,
}

impl LayerMemory {
    /// Bytes of its cache.
    pub(crate) fn bytes(self, dtype: DType, slots: usize, capacity: usize) -> u64 {
        let product = |factors: &[usize]| factors.iter().fold(1u64, |n, &f| n.saturating_mul(f as u64));
        let size = dtype.size();
        match self {
            Self::Attention { width, index } => product(&[slots, capacity, width, 2, size])
                .saturating_add(product(&[slots, capacity, index.unwrap_or(0), 4])),
            Self::Recurrent { history: [taps, channels], states } => {
                product(&[slots, taps, channels, 4]).saturating_add(product(&[slots, states, 4]))
            }
            Self::Rows { width, pools } => {
                let pools = pools.into_iter().flatten().map(|pool| {
                    let span = if pool.overlap { 2 * pool.ratio } else { pool.ratio };
                    product(&[slots, span, pool.width(), 2, size]).saturating_add(product(&[
                        slots,
                        capacity / pool.ratio,
                        pool.dim,
                        size,
                    ]))
                });
                pools.fold(product(&[slots, capacity, width, size]), u64::saturating_add)
            }
            Self::None => 0,
        }
    }
}

/// One layer's part of a cache.
#[derive(Debug)]
pub(crate) enum LayerCache {
    /// `[slots · capacity, ·]`: token `p` of slot `s` is row `s · capacity + p`.
    Attention {
        keys: Tensor,
        values: Tensor,
        index: Option<Tensor>,
    },
    /// A row per slot.
    Recurrent {
        history: PerSlot,
        states: PerSlot,
    },
    /// `rows` is `[slots · capacity, D]`; the layer's entries and those of its indexer.
    Rows {
        rows: Tensor,
        pools: Box<[Option<PoolCache>; 2]>,
    },
    None,
}

impl LayerCache {
    fn new(memory: LayerMemory, device: &Device, dtype: DType, slots: usize, capacity: usize) -> Self {
        let zeros = |dtype, shape: &[usize]| Tensor::zeros(device.arena(), dtype, shape);
        match memory {
            LayerMemory::Attention { width, index } => Self::Attention {
                keys: zeros(dtype, &[slots * capacity, width]),
                values: zeros(dtype, &[slots * capacity, width]),
                index: index.map(|d| zeros(dtype.wide(), &[slots * capacity, d])),
            },
            LayerMemory::Recurrent { history: [taps, channels], states } => Self::Recurrent {
                history: PerSlot { rows: zeros(dtype.wide(), &[slots, taps * channels]) },
                states: PerSlot { rows: zeros(dtype.wide(), &[slots, states]) },
            },
            LayerMemory::Rows { width, pools } => Self::Rows {
                rows: zeros(dtype, &[slots * capacity, width]),
                pools: Box::new(pools.map(|p| p.map(|p| PoolCache::new(p, device, dtype, slots, capacity)))),
            },
            LayerMemory::None => Self::None,
        }
    }

    /// Whether tokens that were seen cannot be forgotten one by one.
    fn only_forgets_all(&self) -> bool {
        match self {
            Self::Recurrent { .. } => true,
            Self::Rows { pools, .. } => pools.iter().any(Option::is_some),
            Self::Attention { .. } | Self::None => false,
        }
    }

    pub(crate) fn keys_and_values(&mut self) -> Option<(&mut Tensor, &mut Tensor)> {
        match self {
            Self::Attention { keys, values, .. } => Some((keys, values)),
            _ => None,
        }
    }

    pub(crate) fn index_keys(&mut self) -> Option<&mut Tensor> {
        match self {
            Self::Attention { index, .. } => index.as_mut(),
            _ => None,
        }
    }

    /// Gives every slot `to` places instead of `from`; the tokens in the slots are kept.
    fn grow(&mut self, [from, to]: [usize; 2], held: &[usize]) -> ms_core::Result<()> {
        match self {
            Self::Attention { keys, values, index } => {
                for rows in [keys, values].into_iter().chain(index) {
                    grow_rows(rows, [from, to], held)?;
                }
            }
            Self::Rows { rows, pools } => {
                grow_rows(rows, [from, to], held)?;
                for pool in pools.iter_mut().flatten() {
                    pool.grow(to, held)?;
                }
            }
            // A state is as large for many tokens as for one.
            Self::Recurrent { .. } | Self::None => {}
        }
        Ok(())
    }

    /// Forgets what a recurrent layer knows of a slot.
    fn reset(&mut self, slot: usize) {
        if let Self::Recurrent { history, states } = self {
            for kept in [history, states] {
                let width = kept.rows.as_matrix().1;
                let nothing = Tensor::zeros(kept.rows.arena(), kept.rows.dtype(), [width]);
                let put = kept.rows.put(slot * width, &nothing);
                put.expect("nobody else holds a cache's own tensors");
            }
        }
    }
}

/// Gives every slot `to` rows instead of `from`; the first ones of each, as many as `held` says, stay.
fn grow_rows(rows: &mut Tensor, [from, to]: [usize; 2], held: &[usize]) -> ms_core::Result<()> {
    let mut grown = Tensor::zeros(rows.arena(), rows.dtype(), [held.len() * to, rows.as_matrix().1]);
    let slots = held.iter().enumerate();
    grown
        .put_rows(rows, slots.flat_map(|(slot, &n)| (0..n).map(move |i| (slot * to + i, slot * from + i))))?;
    *rows = grown;
    Ok(())
}

/// A row of numbers for every slot.
#[derive(Debug)]
pub(crate) struct PerSlot {
    rows: Tensor,
}

impl PerSlot {
    /// The rows of `slots`, one after the other.
    pub(crate) fn gather(&self, slots: &[usize]) -> ms_core::Result<Tensor> {
        let shape = [slots.len(), self.rows.as_matrix().1];
        let mut out = Tensor::uninit(self.rows.arena(), self.rows.dtype(), shape);
        out.put_rows(&self.rows, slots.iter().copied().enumerate())?;
        Ok(out)
    }

    /// Puts rows back.
    pub(crate) fn scatter(&mut self, slots: &[usize], rows: &Tensor) -> ms_core::Result<()> {
        self.rows.put_rows(rows, slots.iter().copied().zip(0..))
    }
}

/// Entries of a compressor, and the tokens that later ones are made of.
#[derive(Debug)]
pub(crate) struct PoolCache {
    /// What the last tokens gave and how much of it, `[slots · span, width]` each: position `p` is row `p % span`.
    history: [Tensor; 2],
    /// `[slots · most, D]`: entry `w` of slot `s` is row `s · most + w`.
    entries: Tensor,
    span: usize,
    ratio: usize,
    most: usize,
}

impl PoolCache {
    fn new(shape: Pooling, device: &Device, dtype: DType, slots: usize, capacity: usize) -> Self {
        let zeros = |rows, width| Tensor::zeros(device.arena(), dtype, [rows, width]);
        let span = if shape.overlap { 2 * shape.ratio } else { shape.ratio };
        let (ratio, most) = (shape.ratio, capacity / shape.ratio);
        let history = || zeros(slots * span, shape.width());
        Self { history: [history(), history()], entries: zeros(slots * most, shape.dim), span, ratio, most }
    }

    /// Has room for the entries of `capacity` tokens in every slot. How many of them there are is not known here, so all stay.
    fn grow(&mut self, capacity: usize, held: &[usize]) -> ms_core::Result<()> {
        let most = capacity / self.ratio;
        grow_rows(&mut self.entries, [self.most, most], &vec![self.most; held.len()])?;
        self.most = most;
        Ok(())
    }

    /// All entries.
    pub(crate) fn entries(&self) -> &Tensor {
        &self.entries
    }

    /// The row of an entry.
    pub(crate) fn place(&self, slot: usize, entry: usize) -> usize {
        slot * self.most + entry
    }

    /// The row of history that holds a position.
    pub(crate) fn remembered(&self, slot: usize, position: usize) -> usize {
        slot * self.span + position % self.span
    }

    /// Rows of `new` (`Ok`) and of history (`Err`), one after the other; `which`: what tokens give, or how much of it.
    pub(crate) fn rows(
        &self,
        which: usize,
        new: &Tensor,
        sources: &[Result<usize, usize>],
    ) -> ms_core::Result<Tensor> {
        let mut out = Tensor::uninit(new.arena(), new.dtype(), [sources.len(), new.as_matrix().1]);
        let fresh = sources.iter().enumerate().filter_map(|(to, from)| from.ok().map(|from| (to, from)));
        out.put_rows(new, fresh)?;
        let kept = sources.iter().enumerate().filter_map(|(to, from)| from.err().map(|from| (to, from)));
        out.put_rows(&self.history[which], kept)?;
        Ok(out)
    }

    /// Stores the last of the rows `rows` of `new`, the first of which is at position `first` of a slot.
    pub(crate) fn remember(
        &mut self,
        slot: usize,
        first: usize,
        rows: Range<usize>,
        new: [&Tensor; 2],
    ) -> ms_core::Result<()> {
        let skip = rows.len().saturating_sub(self.span);
        let places: Vec<usize> = (skip..rows.len()).map(|i| self.remembered(slot, first + i)).collect();
        for (history, new) in self.history.iter_mut().zip(new) {
            history.put_rows(new, places.iter().copied().zip(rows.clone().skip(skip)))?;
        }
        Ok(())
    }

    /// Puts new entries at their places.
    pub(crate) fn keep(&mut self, new: &Tensor, places: &[usize]) -> ms_core::Result<()> {
        self.entries.put_rows(new, places.iter().copied().zip(0..))
    }
}

/// The cache of one model: `slots` sequences of up to `capacity` tokens each.
#[derive(Debug)]
pub struct KvCache {
    pub(crate) layers: Vec<LayerCache>,
    capacity: usize,
    lengths: Vec<usize>,
}

impl KvCache {
    /// An empty cache for layers that keep `memories`.
    pub(crate) fn new(
        device: &Device,
        dtype: DType,
        memories: &[LayerMemory],
        slots: usize,
        capacity: usize,
    ) -> Self {
        let layer = |m: &LayerMemory| LayerCache::new(*m, device, dtype, slots, capacity);
        Self { layers: memories.iter().map(layer).collect(), capacity, lengths: vec![0; slots] }
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

    /// Grows every slot to `capacity` tokens, if it is smaller; contents are kept.
    ///
    /// Layers grow one at a time, so at most one layer is in memory twice.
    ///
    /// # Errors
    /// If rows cannot be moved.
    pub fn grow(&mut self, capacity: usize) -> Result<()> {
        if self.capacity < capacity {
            for layer in &mut self.layers {
                layer.grow([self.capacity, capacity], &self.lengths)?;
            }
            self.capacity = capacity;
        }
        Ok(())
    }

    /// Forgets the tokens of a slot from position `len` on and returns how many are left.
    ///
    /// Recurrent layers and layers with pooled entries cannot be rolled back: in a model with such a layer, a slot that must
    /// forget some tokens forgets all.
    pub fn truncate(&mut self, slot: usize, len: usize) -> usize {
        if len >= self.lengths[slot] {
            return self.lengths[slot];
        }
        let recurrent = self.layers.iter().any(LayerCache::only_forgets_all);
        if recurrent {
            self.layers.iter_mut().for_each(|l| l.reset(slot));
        }
        self.lengths[slot] = if recurrent { 0 } else { len };
        self.lengths[slot]
    }

    /// Reserves space for new tokens and returns the batch that fills it, with each token's cache row. `first` gives the
    /// position of a sequence's first token from its final length.
    ///
    /// # Errors
    /// [`Error::CacheFull`] if a sequence does not fit, and what `first` fails with.
    pub(crate) fn extend(
        &mut self,
        device: &Device,
        new: &[(usize, &[i32])],
        first: impl Fn(usize) -> Result<usize>,
    ) -> Result<(Batch, Vec<usize>)> {
        let (mut tokens, mut positions, mut places, mut segments) = (vec![], vec![], vec![], vec![]);
        for &(slot, more) in new {
            let used = self.lengths[slot];
            if used + more.len() > self.capacity {
                return Err(Error::CacheFull { slot, capacity: self.capacity, used, more: more.len() });
            }
            let k_start = slot * self.capacity;
            let position = first(used + more.len())? + used;
            segments.push(Segment {
                q_start: tokens.len(),
                q_len: more.len(),
                k_start,
                k_len: used + more.len(),
                ahead: 0,
            });
            for (i, &token) in more.iter().enumerate() {
                tokens.push(token);
                positions.push((position + i) as i32);
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
