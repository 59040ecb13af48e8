//! Worker threads that read, encode and write in turn.
//!
//! A worker takes the next chunk of records from the reader, encodes it, and stores the result in its slot. Any worker that
//! finds the next result in order ready, and nobody writing, writes all that are ready. So `n` workers are exactly `n`
//! threads: no extra thread only reads or only writes. Rows come out in input order, and a bounded number of chunks is read
//! and not yet written.

use super::Chunk;
use crate::records::RawRecord;
use crate::{Error, Result};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Records after which a chunk is full.
const CHUNK_RECORDS: usize = 64;
/// The same for a worker who waits for nobody: what a few records need comes from memory that was freed just before.
const CHUNK_RECORDS_ALONE: usize = 4;
/// Bytes of records after which a chunk is full.
pub const CHUNK_BYTES: usize = 1 << 18;
/// Chunks per worker that may be read and not yet written, if there are several workers.
pub const OPEN_CHUNKS: usize = 4;

/// Encodes chunks of records on `workers` threads, the caller's among them, and gives the results to `take` in input order.
///
/// # Errors
/// The first error in input order: of reading, of encoding, of `take`.
pub(super) fn encode_all<I>(
    records: I,
    workers: usize,
    encode: impl Fn(&[RawRecord]) -> Result<Chunk> + Sync,
    mut take: impl FnMut(Chunk) -> Result<()> + Send,
) -> Result<()>
where
    I: Iterator<Item = Result<RawRecord>> + Send,
{
    let most = if workers <= 1 { CHUNK_RECORDS_ALONE } else { CHUNK_RECORDS };
    let mut reader = Reader { records, most, next_turn: 0, error: None, ended: false };
    if workers <= 1 {
        let mut chunk = Vec::new();
        while reader.next_chunk(&mut chunk).is_some() {
            take(encode(&chunk)?)?;
        }
        return reader.error.map_or(Ok(()), Err);
    }
    let line = SharedState {
        reader: Mutex::new(reader),
        queue: Mutex::new(Queue { ready: VecDeque::new(), first: 0, open: 0, stopped: false }),
        writer: Mutex::new((take, None)),
        moved: Condvar::new(),
        most_open: workers * OPEN_CHUNKS,
    };
    std::thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(|| line.work(&encode));
        }
        line.work(&encode);
    });
    let (_, error) = line.writer.into_inner().unwrap_or_else(PoisonError::into_inner);
    // An error of the reader comes after all chunks that were read before it.
    let of_reader = line.reader.into_inner().unwrap_or_else(PoisonError::into_inner).error;
    error.or(of_reader).map_or(Ok(()), Err)
}

/// Where chunks come from.
struct Reader<I> {
    records: I,
    /// Records of a chunk.
    most: usize,
    next_turn: u64,
    error: Option<Error>,
    ended: bool,
}

impl<I: Iterator<Item = Result<RawRecord>>> Reader<I> {
    /// Fills `chunk` and gives its turn; `None` when there is no record left.
    fn next_chunk(&mut self, chunk: &mut Vec<RawRecord>) -> Option<u64> {
        chunk.clear();
        let mut bytes = 0;
        while !self.ended && chunk.len() < self.most && bytes < CHUNK_BYTES {
            match self.records.next() {
                Some(Ok(record)) => {
                    bytes += record.size();
                    chunk.push(record);
                }
                Some(Err(error)) => (self.error, self.ended) = (Some(error), true),
                None => self.ended = true,
            }
        }
        if chunk.is_empty() {
            return None;
        }
        self.next_turn += 1;
        Some(self.next_turn - 1)
    }
}

/// Results that wait for their turn.
struct Queue {
    /// By turn, from `first` on.
    ready: VecDeque<Option<Result<Chunk>>>,
    first: u64,
    /// Chunks that are read, or about to be, and not yet written.
    open: usize,
    stopped: bool,
}

impl Queue {
    fn put(&mut self, turn: u64, result: Result<Chunk>) {
        let place = (turn - self.first) as usize;
        if self.ready.len() <= place {
            self.ready.resize_with(place + 1, || None);
        }
        self.ready[place] = Some(result);
    }

    fn pop(&mut self) -> Option<Result<Chunk>> {
        let result = self.ready.front_mut()?.take()?;
        self.ready.pop_front();
        self.first += 1;
        Some(result)
    }
}

/// What the workers share. Locks are taken in the order reader or writer, then queue.
struct SharedState<I, T> {
    reader: Mutex<Reader<I>>,
    queue: Mutex<Queue>,
    /// What takes the results, and the first error in order.
    writer: Mutex<(T, Option<Error>)>,
    moved: Condvar,
    most_open: usize,
}

impl<I, T> SharedState<I, T>
where
    I: Iterator<Item = Result<RawRecord>>,
    T: FnMut(Chunk) -> Result<()>,
{
    fn work(&self, encode: &impl Fn(&[RawRecord]) -> Result<Chunk>) {
        // A panic elsewhere must not leave the others waiting for a result that never comes.
        let _stop = StopOnPanic(self);
        let mut chunk = Vec::new();
        while self.admit() {
            let turn = locked(&self.reader).next_chunk(&mut chunk);
            let Some(turn) = turn else {
                locked(&self.queue).open -= 1;
                return;
            };
            let result = encode(&chunk);
            locked(&self.queue).put(turn, result);
            self.write_ready();
        }
    }

    /// Waits until another chunk may be read; false if the run has stopped.
    fn admit(&self) -> bool {
        let queue = locked(&self.queue);
        let full = |queue: &mut Queue| !queue.stopped && queue.open >= self.most_open;
        let mut queue = self.moved.wait_while(queue, full).unwrap_or_else(PoisonError::into_inner);
        queue.open += 1;
        !queue.stopped
    }

    /// Writes results as long as the next one in order is there, unless another worker is at it.
    fn write_ready(&self) {
        loop {
            let Ok(mut writer) = self.writer.try_lock() else { return };
            loop {
                let mut queue = locked(&self.queue);
                if queue.stopped {
                    return;
                }
                let Some(result) = queue.pop() else { break };
                queue.open -= 1;
                drop(queue);
                let (take, error) = &mut *writer;
                if let Err(first) = result.and_then(take) {
                    *error = Some(first);
                    self.stop();
                    return;
                }
                self.moved.notify_one();
            }
            drop(writer);
            // A result that came between the last look and the release was left by its worker to this one.
            if !locked(&self.queue).ready.front().is_some_and(Option::is_some) {
                return;
            }
        }
    }

    fn stop(&self) {
        locked(&self.queue).stopped = true;
        self.moved.notify_all();
    }
}

/// Stops the line when its worker panics.
struct StopOnPanic<'a, I, T>(&'a SharedState<I, T>)
where
    I: Iterator<Item = Result<RawRecord>>,
    T: FnMut(Chunk) -> Result<()>;

impl<I, T> Drop for StopOnPanic<'_, I, T>
where
    I: Iterator<Item = Result<RawRecord>>,
    T: FnMut(Chunk) -> Result<()>,
{
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

/// The value inside a lock; a holder that panicked ends the run anyway.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
