//! Host memory outside an arena: an unnamed file that holds values until they are needed again.
//!
//! For a device with its own memory this would be host memory. On a CPU, host memory is the arena's, so values that leave the
//! arena go to disk; they occupy the system's file cache only while nothing else needs that space.

use crate::arena::{Arena, MemoryUse};
use crate::{DType, Error, Result, Shape, Tensor};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counters of a [`Host`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStats {
    /// Bytes of the current tensors.
    pub in_use_bytes: u64,
    /// Highest value of `in_use_bytes` so far.
    pub peak_bytes: u64,
    /// Bytes of the file, at most: tensors of several sizes leave parts between them free.
    pub file_bytes: u64,
    /// Bytes written so far.
    pub sent_bytes: u64,
    /// Bytes read back so far.
    pub fetched_bytes: u64,
}

/// The use of a [`Host`] by some work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostUse(MemoryUse);

impl HostUse {
    /// As [`crate::ArenaUse::without`].
    #[must_use]
    pub fn without(self, part: Self) -> Self {
        Self(self.0.without(part.0))
    }
}

/// Bytes that are written at one time where there is no tensor to write from.
const PAGE: usize = 1 << 20;

struct State {
    folder: PathBuf,
    /// None if only space is counted.
    file: Option<File>,
    len: u64,
    /// Lengths of the parts of the file that are free, by their first bytes; no two of them touch, and none is the last.
    free: BTreeMap<u64, u64>,
    stats: HostStats,
}

impl State {
    /// The first byte of `bytes` free ones: in the smallest free part that is large enough, or at the end.
    fn take(&mut self, bytes: u64) -> u64 {
        let fits = self.free.iter().filter(|(_, len)| **len >= bytes).min_by_key(|(_, len)| **len);
        let Some((&at, &len)) = fits else {
            let at = self.len;
            self.len += bytes;
            self.stats.file_bytes = self.stats.file_bytes.max(self.len);
            return at;
        };
        self.free.remove(&at);
        if len > bytes {
            self.free.insert(at + bytes, len - bytes);
        }
        at
    }

    /// Frees `bytes` from `at` on; adjacent free parts are merged, and free space after the last tensor is dropped.
    fn give(&mut self, mut at: u64, mut bytes: u64) {
        if let Some(behind) = self.free.remove(&(at + bytes)) {
            bytes += behind;
        }
        if let Some((&before, &len)) = self.free.range(..at).next_back()
            && before + len == at
        {
            self.free.remove(&before);
            (at, bytes) = (before, bytes + len);
        }
        if at + bytes == self.len {
            self.len = at;
        } else if bytes > 0 {
            self.free.insert(at, bytes);
        }
    }
}

/// Storage for values that leave an arena; cloning shares it. The file is deleted with the last clone and the last tensor.
#[derive(Clone)]
pub struct Host(Arc<Mutex<State>>);

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Host").field(&self.stats()).finish()
    }
}

impl Host {
    /// A host whose file lies in `folder`, without a name where the system allows that.
    ///
    /// # Errors
    /// [`Error::Host`] if no file can be made there.
    pub fn in_folder(folder: &Path) -> Result<Self> {
        let failed = |e| Error::Host { folder: folder.to_owned(), source: e };
        let mut number = 0u32;
        let (path, file) = loop {
            let path = folder.join(format!(".ms-swap-{}-{number}", std::process::id()));
            match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
                Ok(file) => break (path, file),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && number < u32::MAX => number += 1,
                Err(e) => return Err(failed(e)),
            }
        };
        // An open file needs no name, and without one nothing is left over, however the process ends.
        if cfg!(unix) {
            std::fs::remove_file(&path).map_err(failed)?;
        }
        Ok(Self::with(folder, Some(file)))
    }

    /// A host that counts what it is given and stores nothing: for tensors without memory.
    pub fn meta() -> Self {
        Self::with(Path::new(""), None)
    }

    fn with(folder: &Path, file: Option<File>) -> Self {
        let (folder, stats) = (folder.to_owned(), HostStats::default());
        Self(Arc::new(Mutex::new(State { folder, file, len: 0, free: BTreeMap::new(), stats })))
    }

    /// Counters as of now.
    pub fn stats(&self) -> HostStats {
        self.lock().stats
    }

    /// Does `work`, and measures what it takes from this host, so that it can be counted [once more](Self::count_again).
    pub fn measured<T>(&self, work: impl FnOnce() -> T) -> (T, HostUse) {
        let at = |state: &State| (state.stats.in_use_bytes as usize, state.stats.peak_bytes as usize);
        let begun = {
            let mut state = self.lock();
            let (in_use, mut peak) = at(&state);
            let begun = MemoryUse::begin(in_use, &mut peak);
            state.stats.peak_bytes = peak as u64;
            begun
        };
        let done = work();
        let mut state = self.lock();
        let (in_use, mut peak) = at(&state);
        let taken = MemoryUse::end(begun, in_use, &mut peak);
        state.stats.peak_bytes = peak as u64;
        (done, HostUse(taken))
    }

    /// Counts work with the same use again, without doing it.
    pub fn count_again(&self, of: &HostUse) {
        let stats = &mut self.lock().stats;
        let (mut in_use, mut peak) = (stats.in_use_bytes as usize, stats.peak_bytes as usize);
        of.0.again(&mut in_use, &mut peak);
        (stats.in_use_bytes, stats.peak_bytes) = (in_use as u64, peak as u64);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between statements, so a panic elsewhere does not corrupt it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Space for a tensor, with unspecified contents.
    pub fn room(&self, dtype: DType, shape: impl Into<Shape>) -> HostTensor {
        let shape = shape.into();
        let bytes = (shape.numel() * dtype.size()) as u64;
        let mut state = self.lock();
        let at = state.take(bytes);
        state.stats.in_use_bytes += bytes;
        state.stats.peak_bytes = state.stats.peak_bytes.max(state.stats.in_use_bytes);
        HostTensor { host: self.clone(), at, dtype, shape }
    }

    /// Stores a tensor of zeros.
    ///
    /// # Errors
    /// [`Error::Host`] if it cannot be written.
    pub fn zeros(&self, dtype: DType, shape: impl Into<Shape>) -> Result<HostTensor> {
        let stored = self.room(dtype, shape);
        stored.run(|state| {
            state.stats.sent_bytes += stored.bytes();
            let Some(file) = &mut state.file else { return Ok(()) };
            file.seek(SeekFrom::Start(stored.at))?;
            let (zeros, mut left) = (vec![0; PAGE.min(stored.bytes() as usize)], stored.bytes() as usize);
            while left > 0 {
                let now = left.min(zeros.len());
                file.write_all(&zeros[..now])?;
                left -= now;
            }
            Ok(())
        })?;
        Ok(stored)
    }

    /// Stores a copy of `value`.
    ///
    /// # Errors
    /// [`Error::Host`] if it cannot be written.
    pub fn send(&self, value: &Tensor) -> Result<HostTensor> {
        let stored = self.room(value.dtype(), value.shape());
        stored.write(0, value)?;
        Ok(stored)
    }
}

/// A tensor stored on the host. Its space is freed when it is dropped.
#[derive(Debug)]
pub struct HostTensor {
    host: Host,
    at: u64,
    dtype: DType,
    shape: Shape,
}

impl HostTensor {
    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.numel()
    }

    fn bytes(&self) -> u64 {
        (self.numel() * self.dtype.size()) as u64
    }

    /// Checks that elements `start..start + len` exist; returns the first byte in the file.
    fn place(&self, start: usize, len: usize) -> Result<u64> {
        let end = start.saturating_add(len);
        if end > self.numel() {
            return Err(Error::Range { what: "elements with the host", start, end, len: self.numel() });
        }
        Ok(self.at + (start * self.dtype.size()) as u64)
    }

    fn run(&self, work: impl FnOnce(&mut State) -> io::Result<()>) -> Result<()> {
        let mut state = self.host.lock();
        work(&mut state).map_err(|e| Error::Host { folder: state.folder.clone(), source: e })
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Overwrites elements `start..` of the flattened tensor with `values`.
    ///
    /// # Errors
    /// [`Error::Range`] if they do not lie inside, [`Error::DType`] if they are of another type, [`Error::Host`] if they
    /// cannot be written.
    pub fn write(&self, start: usize, values: &Tensor) -> Result<()> {
        values.expect_dtype("write to the host", self.dtype)?;
        let at = self.place(start, values.numel())?;
        values.ready()?;
        self.run(|state| {
            state.stats.sent_bytes += (values.numel() * values.dtype().size()) as u64;
            let Some(file) = &mut state.file else { return Ok(()) };
            file.seek(SeekFrom::Start(at))?;
            file.write_all(values.bytes())
        })
    }

    /// Elements `start..start + len` of the flattened tensor, `[len]`, in memory of `arena`.
    ///
    /// # Errors
    /// [`Error::Range`] if there are no such elements, [`Error::Host`] if they cannot be read.
    pub fn read(&self, arena: &Arena, start: usize, len: usize) -> Result<Tensor> {
        let at = self.place(start, len)?;
        let mut values = Tensor::uninit(arena, self.dtype, [len]);
        self.run(|state| {
            state.stats.fetched_bytes += (len * self.dtype.size()) as u64;
            let Some(file) = &mut state.file else { return Ok(()) };
            file.seek(SeekFrom::Start(at))?;
            file.read_exact(values.bytes_mut().map_err(io::Error::other)?)
        })?;
        Ok(values)
    }

    /// The whole tensor, in memory of `arena`.
    ///
    /// # Errors
    /// [`Error::Host`] if it cannot be read.
    pub fn fetch(&self, arena: &Arena) -> Result<Tensor> {
        self.read(arena, 0, self.numel())?.reshape(self.shape)
    }
}

impl Drop for HostTensor {
    fn drop(&mut self) {
        let bytes = self.bytes();
        let mut state = self.host.lock();
        state.stats.in_use_bytes -= bytes;
        state.give(self.at, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_leaves_the_arena_and_comes_back() {
        let (arena, folder) = (Arena::default(), tempfile::tempdir().unwrap());
        let host = Host::in_folder(folder.path()).unwrap();
        let values: Vec<f32> = (0..96).map(|i| i as f32).collect();
        let t = Tensor::from_slice(&arena, [8, 12], &values).unwrap();
        let stored = host.send(&t).unwrap();
        drop(t);
        assert_eq!((arena.stats().in_use_bytes, host.stats().in_use_bytes), (0, 384));
        let part = Tensor::from_slice(&arena, [3], &[-1f32, -2.0, -3.0]).unwrap();
        stored.write(90, &part).unwrap();
        assert!(stored.write(94, &part).is_err());
        let back = stored.fetch(&arena).unwrap();
        assert_eq!(back.shape().to_vec(), [8, 12]);
        assert_eq!(back.as_slice::<f32>().unwrap()[88..94], [88.0, 89.0, -1.0, -2.0, -3.0, 93.0]);
        drop(stored);
        // The space is reused, and nothing has a name in the folder.
        let _next = host.room(DType::F32, [96]);
        let stats = host.stats();
        assert_eq!((stats.in_use_bytes, stats.peak_bytes, host.lock().len), (384, 384, 384));
        assert_eq!((stats.sent_bytes, stats.fetched_bytes), (384 + 12, 384));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn room_that_is_free_is_taken_again_whatever_the_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let host = Host::in_folder(folder.path()).unwrap();
        // Sequences of other lengths every time: never more than the most of them.
        for round in 0..100usize {
            let parcels: Vec<HostTensor> =
                (0..8).map(|i| host.room(DType::F32, [1 + (round * 7 + i * 3) % 64])).collect();
            drop(parcels);
            let state = host.lock();
            assert_eq!((state.len, state.free.len()), (0, 0));
        }
        assert!(host.stats().file_bytes <= 8 * 64 * 4);
        let [a, b, c, d] = [4usize, 8, 4, 2].map(|n| host.room(DType::F32, [n]));
        drop(b);
        drop(c);
        // Two free neighbours are one part, and what does not fill it leaves the rest.
        let e = host.room(DType::F32, [11]);
        assert_eq!((e.at, host.lock().free.clone()), (16, BTreeMap::from([(60, 4)])));
        drop((a, e, d));
        assert_eq!(host.lock().len, 0);
    }

    #[test]
    fn zeros_are_zeros_where_something_else_was() {
        let (arena, folder) = (Arena::default(), tempfile::tempdir().unwrap());
        let host = Host::in_folder(folder.path()).unwrap();
        let behind = host.room(DType::F32, [1]);
        drop(host.send(&Tensor::from_slice(&arena, [3], &[1f32, 2.0, 3.0]).unwrap()).unwrap());
        let zeros = host.zeros(DType::F32, [PAGE / 2]).unwrap();
        let back = zeros.fetch(&arena).unwrap();
        assert!(back.as_slice::<f32>().unwrap().iter().all(|&x| x == 0.0));
        drop(behind);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let e = Host::in_folder(Path::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(e.contains("/nowhere/at/all"), "{e}");
    }
}
