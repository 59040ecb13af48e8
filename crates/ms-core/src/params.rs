//! Weights in flat buffers.

use crate::{Arena, DType, Error, Result, Shape, ShardStates, Tensor, TensorMut};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Number of a parameter: its place in the model's parameter table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub u32);

/// What changes a parameter from one iteration to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdatedBy {
    /// Its gradient, through an optimizer.
    #[default]
    Gradient,
    /// The load of the experts it belongs to: a bias per expert, which is adjusted by a rule.
    ExpertLoad,
    /// Nothing.
    Nothing,
}

/// Where each parameter lies in a flat buffer; shared by the weights, the gradients and the optimizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamLayout {
    slots: Vec<(usize, Shape)>,
    numel: usize,
}

impl ParamLayout {
    /// A layout from `(first element, shape)` of each parameter and the size of the buffer in elements.
    ///
    /// # Errors
    /// [`Error::Range`] if a parameter does not lie inside the buffer.
    pub fn new(slots: Vec<(usize, Shape)>, numel: usize) -> Result<Self> {
        for (start, shape) in &slots {
            let end = start.saturating_add(shape.numel());
            if end > numel {
                return Err(Error::Range { what: "parameter buffer", start: *start, end, len: numel });
            }
        }
        Ok(Self { slots, numel })
    }

    /// A layout that puts parameters one after the other, each aligned to 64 bytes for any element type.
    pub fn sequential(shapes: impl IntoIterator<Item = Shape>) -> Self {
        Self::with_room(shapes.into_iter().map(|shape| (shape, true)))
    }

    /// As [`ParamLayout::sequential`], with no space for parameters that come with `false`: they are stored elsewhere.
    pub fn with_room(shapes: impl IntoIterator<Item = (Shape, bool)>) -> Self {
        let mut numel = 0usize;
        let place = |(shape, room): (Shape, bool)| {
            let start = numel.next_multiple_of(64);
            numel = if room { start + shape.numel() } else { start };
            (start, shape)
        };
        let slots = shapes.into_iter().map(place).collect();
        Self { slots, numel }
    }

    /// Number of parameters.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Elements of the buffer, gaps included.
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// First element of a parameter.
    pub fn start(&self, id: ParamId) -> usize {
        self.slots[id.0 as usize].0
    }

    /// Shape of a parameter.
    pub fn shape(&self, id: ParamId) -> Shape {
        self.slots[id.0 as usize].1
    }

    /// All parameter numbers.
    pub fn ids(&self) -> impl Iterator<Item = ParamId> + use<> {
        (0..self.slots.len() as u32).map(ParamId)
    }
}

/// The weights of one model copy. A reference model is a second store; a model holds only ids.
///
/// The buffer is divided into buckets with memory of their own. A bucket may be in transit from other ranks while others are
/// in use: before it is used, it is waited for ([`ParamStore::arrived`]).
#[derive(Clone)]
pub struct ParamStore {
    layout: Arc<ParamLayout>,
    dtype: DType,
    buckets: Vec<Bucket>,
    /// Buckets that are in transit, in the order in which they are waited for.
    pending: Arc<Mutex<VecDeque<(usize, PendingBucket)>>>,
    /// Parameters that are kept in the wide type whatever the others are.
    wide: BTreeMap<u32, Tensor>,
    /// Parameters that are kept in eight bits.
    quantized: BTreeMap<u32, Tensor>,
    /// The name and sharding states of each parameter; empty if unknown.
    shard_states: Arc<[(String, ShardStates)]>,
    /// What changes each parameter; empty: its gradient does.
    updated_by: Arc<[UpdatedBy]>,
}

/// Delivers a bucket.
pub type PendingBucket = Box<dyn FnOnce() -> Result<Tensor> + Send>;

#[derive(Clone)]
struct Bucket {
    /// First element in the whole buffer.
    start: usize,
    numel: usize,
    values: Arc<OnceLock<Tensor>>,
}

impl std::fmt::Debug for ParamStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let buckets: Vec<usize> = self.buckets.iter().map(|b| b.numel).collect();
        f.debug_struct("ParamStore").field("dtype", &self.dtype).field("buckets", &buckets).finish()
    }
}

impl ParamStore {
    /// A store of zeros in one bucket.
    pub fn zeros(arena: &Arena, dtype: DType, layout: Arc<ParamLayout>) -> Self {
        let whole = 0..layout.numel();
        Self::in_buckets(arena, dtype, layout, std::iter::once(whole))
    }

    /// A store of zeros in buckets, which follow each other from the first element to the last; no parameter lies in two.
    ///
    /// # Panics
    /// If the buckets leave out or repeat elements.
    pub fn in_buckets(
        arena: &Arena,
        dtype: DType,
        layout: Arc<ParamLayout>,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Self {
        let mut end = 0;
        let bucket = |range: Range<usize>| {
            assert_eq!(range.start, end, "buckets follow each other");
            end = range.end;
            let values = Arc::new(OnceLock::from(Tensor::zeros(arena, dtype, [range.len()])));
            Bucket { start: range.start, numel: range.len(), values }
        };
        let buckets = ranges.into_iter().map(bucket).collect();
        assert_eq!(end, layout.numel(), "buckets hold all elements");
        Self {
            layout,
            dtype,
            buckets,
            pending: Arc::default(),
            wide: BTreeMap::new(),
            quantized: BTreeMap::new(),
            shard_states: Arc::default(),
            updated_by: Arc::default(),
        }
    }

    /// Where the parameters lie.
    pub fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    /// Element type of the weights.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Stores one parameter as `values` (of the wide type), whatever the type of the others and whatever
    /// [`ParamStore::replace`] delivers later: parameters without a gradient, such as router biases, may change by less than
    /// a rounding step.
    ///
    /// # Errors
    /// If shape or element type do not fit.
    pub fn set_wide(&mut self, id: ParamId, values: Tensor) -> Result<()> {
        values.expect_dtype("wide parameter", self.dtype().wide())?;
        values.expect_shape("wide parameter", "values", self.layout.slots[id.0 as usize].1)?;
        self.wide.insert(id.0, values);
        Ok(())
    }

    /// Sets the name and sharding states of each parameter, which debug builds track.
    pub fn set_shard_states(&mut self, shard_states: impl IntoIterator<Item = (String, ShardStates)>) {
        self.shard_states = shard_states.into_iter().collect();
    }

    /// Sets what changes each parameter; by default gradients do.
    pub fn set_updated_by(&mut self, updated_by: impl IntoIterator<Item = UpdatedBy>) {
        self.updated_by = updated_by.into_iter().collect();
    }

    /// What changes a parameter.
    pub fn updated_by(&self, id: ParamId) -> UpdatedBy {
        self.updated_by.get(id.0 as usize).copied().unwrap_or_default()
    }

    /// The name and sharding states of each parameter, by number.
    pub(crate) fn shard_states(&self) -> &Arc<[(String, ShardStates)]> {
        &self.shard_states
    }

    /// Whether some matrices are stored in eight bits.
    pub fn has_quantized(&self) -> bool {
        !self.quantized.is_empty()
    }

    /// Stores one matrix `[N,K]` as `bytes` from [`MatmulBackend::quantize`](crate::MatmulBackend::quantize): from now on
    /// this is the tensor that linear layers get.
    ///
    /// # Errors
    /// If shape or element type do not fit.
    pub fn set_quantized(&mut self, id: ParamId, bytes: Tensor) -> Result<()> {
        let shape = self.layout.slots[id.0 as usize].1;
        let k = shape.last().copied().unwrap_or(0);
        let want = Shape::new(&[shape.numel() / k.max(1), crate::int8_row_bytes(k)]);
        bytes.expect_dtype("quantized parameter", DType::U8)?;
        bytes.expect_shape("quantized parameter", "bytes", want)?;
        self.quantized.insert(id.0, bytes);
        Ok(())
    }

    /// The bucket of an element, and the element's place in it.
    fn place(&self, element: usize) -> (usize, usize) {
        let bucket = self.buckets.partition_point(|b| b.start <= element).saturating_sub(1);
        (bucket, element - self.buckets.get(bucket).map_or(0, |b| b.start))
    }

    /// Waits until bucket `bucket` has arrived. Buckets are waited for in the order in which they were announced, so ranks
    /// that announce in one order wait in one order, whatever they use first.
    fn arrived_bucket(&self, bucket: usize) -> Result<&Tensor> {
        let slot = &self.buckets[bucket].values;
        if slot.get().is_none() {
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            while slot.get().is_none() {
                let Some((next, bring)) = pending.pop_front() else { break };
                let (values, to) = (bring()?, &self.buckets[next]);
                values.expect_dtype("weights that come", self.dtype)?;
                values.expect_shape("weights that come", "values", Shape::new(&[to.numel]))?;
                // Nobody else fills it: the list is locked.
                let _ = to.values.set(values);
            }
        }
        slot.get().ok_or(Error::Shared { what: "weights that did not come" })
    }

    /// Waits until the weight has arrived, if it is in transit.
    ///
    /// # Errors
    /// Those of its delivery.
    pub fn arrived(&self, id: ParamId) -> Result<()> {
        self.arrived_bucket(self.place(self.layout.start(id)).0).map(drop)
    }

    /// Whether nothing is in transit.
    pub fn is_whole(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.values.get().is_some())
    }

    /// Bytes of weights that are in transit.
    pub fn pending_bytes(&self) -> usize {
        let away = self.buckets.iter().filter(|bucket| bucket.values.get().is_none());
        away.map(|bucket| bucket.numel * self.dtype.size()).sum()
    }

    /// Waits until all weights have arrived.
    ///
    /// # Errors
    /// Those of their delivery.
    pub fn settle(&self) -> Result<()> {
        (0..self.buckets.len()).try_for_each(|bucket| self.arrived_bucket(bucket).map(drop))
    }

    /// One weight, sharing the store's memory.
    ///
    /// # Panics
    /// If the store has no such parameter (ids come from the table that the store was made from), or if the weight is in
    /// transit (the code that announced it must wait before it is used).
    pub fn get(&self, id: ParamId) -> Tensor {
        if let Some(apart) = self.wide.get(&id.0).or_else(|| self.quantized.get(&id.0)) {
            return apart.clone();
        }
        let (start, shape) = self.layout.slots[id.0 as usize];
        let (bucket, offset) = self.place(start);
        let values = self.buckets[bucket].values.get().expect("a weight is waited for before it is used");
        values.slice_flat(offset, shape).expect("the layout was checked against the buffer")
    }

    /// One weight in its compute type: float16 has no kernels, so it is copied to f32.
    ///
    /// # Panics
    /// As [`ParamStore::get`].
    pub fn value(&self, id: ParamId) -> Tensor {
        self.get(id).widened()
    }

    /// One weight, writable.
    ///
    /// # Errors
    /// [`Error::Shared`] while a graph or another tensor still uses the weights, or they are in transit.
    pub fn get_mut(&mut self, id: ParamId) -> Result<TensorMut<'_>> {
        let (start, shape) = self.layout.slots[id.0 as usize];
        let (bucket, offset) = self.place(start);
        let slot = Arc::get_mut(&mut self.buckets[bucket].values).and_then(OnceLock::get_mut);
        slot.ok_or(IN_USE)?.view_mut(offset, shape).map_err(in_use)
    }

    /// Several weights, writable at once, each flat, in the order of `ids`.
    ///
    /// # Errors
    /// As [`ParamStore::get_mut`].
    ///
    /// # Panics
    /// If a weight is named twice, or lies outside the buffer.
    pub fn several_mut(&mut self, ids: &[ParamId]) -> Result<Vec<TensorMut<'_>>> {
        let layout = &self.layout;
        let start = |&i: &usize| layout.start(ids[i]);
        let end = |i: &usize| start(i) + layout.shape(ids[*i]).numel();
        let mut order: Vec<usize> = (0..ids.len()).collect();
        order.sort_by_key(start);
        let mut order = &order[..];
        let mut found: Vec<Option<TensorMut<'_>>> = ids.iter().map(|_| None).collect();
        for bucket in &mut self.buckets {
            let (first, behind) = (bucket.start, bucket.start + bucket.numel);
            let (here, later) = order.split_at(order.partition_point(|i| end(i) <= behind));
            order = later;
            let values = Arc::get_mut(&mut bucket.values).and_then(OnceLock::get_mut).ok_or(IN_USE)?;
            let places = here.iter().map(|i| start(i) - first..end(i) - first);
            for (&i, part) in here.iter().zip(values.whole_mut().map_err(in_use)?.split(places)) {
                found[i] = Some(part);
            }
        }
        Ok(found.into_iter().map(|part| part.expect("a weight lies in one bucket")).collect())
    }

    /// Elements `start..start + len` of the buffer, which lie in one bucket, sharing the store's memory.
    ///
    /// # Errors
    /// If they lie in several; those of the delivery, if they are in transit.
    pub fn slice(&self, start: usize, len: usize) -> Result<Tensor> {
        let (bucket, offset) = self.place(start);
        self.arrived_bucket(bucket)?.slice_flat(offset, [len])
    }

    /// The whole buffer of a store in one bucket.
    ///
    /// # Panics
    /// If there are several.
    pub fn values(&self) -> &Tensor {
        assert!(self.buckets.len() == 1, "the store has {} buckets", self.buckets.len());
        self.buckets[0].values.get().expect("a weight is waited for before it is used")
    }

    /// The whole buffer of a store in one bucket, writable.
    ///
    /// # Errors
    /// [`Error::Shared`] while a graph or another tensor still uses the weights.
    ///
    /// # Panics
    /// If there are several buckets.
    pub fn values_mut(&mut self) -> Result<&mut Tensor> {
        assert!(self.buckets.len() == 1, "the store has {} buckets", self.buckets.len());
        let values = Arc::get_mut(&mut self.buckets[0].values).and_then(OnceLock::get_mut).ok_or(IN_USE)?;
        if values.is_unique() { Ok(values) } else { Err(IN_USE) }
    }

    /// Takes elements `start..start + len` out, if they are a bucket and nothing else uses them. The store has none in their
    /// place until it is given new ones ([`ParamStore::announce`], [`ParamStore::replace`]).
    pub fn take(&mut self, start: usize, len: usize) -> Option<Tensor> {
        let (bucket, offset) = self.place(start);
        let bucket = self.buckets.get_mut(bucket).filter(|bucket| offset == 0 && bucket.numel == len)?;
        let values = Arc::get_mut(&mut bucket.values)?;
        if values.get()?.is_unique() { values.take() } else { None }
    }

    /// Puts a new buffer in place of bucket `bucket`, as an all-gather of updated shards delivers it.
    ///
    /// # Errors
    /// If its size or element type differs.
    pub fn replace(&mut self, bucket: usize, values: Tensor) -> Result<()> {
        values.expect_dtype("replace weights", self.dtype)?;
        values.expect_shape("replace weights", "values", Shape::new(&[self.buckets[bucket].numel]))?;
        self.buckets[bucket].values = Arc::new(OnceLock::from(values));
        Ok(())
    }

    /// Announces new values of buckets, each with its delivery. The old values are dropped; whoever uses one of them waits
    /// first.
    ///
    /// # Errors
    /// Those of an earlier announcement that nobody has waited for.
    pub fn announce(&mut self, pending: Vec<(usize, PendingBucket)>) -> Result<()> {
        // Buckets that were taken are not waited for.
        let earlier: Vec<usize> = {
            let earlier = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            earlier.iter().map(|(bucket, _)| *bucket).collect()
        };
        earlier.into_iter().try_for_each(|bucket| self.arrived_bucket(bucket).map(drop))?;
        for (bucket, _) in &pending {
            self.buckets[*bucket].values = Arc::default();
        }
        // Copies of the store keep the values they have.
        self.pending = Arc::new(Mutex::new(pending.into()));
        Ok(())
    }
}

const IN_USE: Error = Error::Shared { what: "weights" };

fn in_use(e: Error) -> Error {
    match e {
        Error::Shared { .. } => IN_USE,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_several_buckets_are_written_at_once_in_any_order() {
        let arena = Arena::default();
        let slots = vec![(8, Shape::new(&[2, 2])), (0, Shape::new(&[3])), (4, Shape::new(&[4]))];
        let layout = Arc::new(ParamLayout::new(slots, 12).unwrap());
        let mut store = ParamStore::in_buckets(&arena, DType::F32, layout, [0..8, 8..12]);
        let ids = [2, 0, 1].map(ParamId);
        for (mut weight, value) in store.several_mut(&ids).unwrap().into_iter().zip([7.0, 8.0, 9.0]) {
            weight.as_mut_slice::<f32>().unwrap().fill(value);
        }
        let values = |id| store.get(ParamId(id)).to_f32_vec().unwrap();
        assert_eq!((values(0), values(1), values(2)), (vec![8.0; 4], vec![9.0; 3], vec![7.0; 4]));
        let used = store.get(ParamId(0));
        let error = store.several_mut(&[ParamId(1)]).err().unwrap().to_string();
        assert_eq!(error, store.get_mut(ParamId(0)).err().unwrap().to_string());
        drop(used);
        assert!(store.several_mut(&[ParamId(1)]).is_ok());
    }

    #[test]
    fn a_bucket_is_taken_whole_and_only_while_nobody_uses_it() {
        let arena = Arena::default();
        let slots = vec![(0, Shape::new(&[16])), (16, Shape::new(&[32]))];
        let layout = Arc::new(ParamLayout::new(slots, 48).unwrap());
        let mut store = ParamStore::in_buckets(&arena, DType::F32, layout, [0..16, 16..48]);
        assert!(store.take(16, 16).is_none(), "half a bucket");
        assert!(store.take(32, 16).is_none(), "its other half");
        let used = store.get(ParamId(1));
        assert!(store.take(16, 32).is_none(), "a weight is in use");
        drop(used);
        let copy = store.clone();
        assert!(store.take(16, 32).is_none(), "another store has it");
        drop(copy);
        let taken = store.take(16, 32).unwrap();
        assert!(!store.is_whole() && store.take(16, 32).is_none());
        store.announce(vec![(1, Box::new(move || Ok(taken)))]).unwrap();
        store.settle().unwrap();
        let taken = store.take(16, 32).unwrap();
        store.replace(1, taken).unwrap();
        assert!(store.is_whole());
    }
}
