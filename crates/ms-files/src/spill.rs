//! Append-only lists of numbers in bounded memory.

use crate::{Error, Result};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::PathBuf;

/// A list of numbers that moves the earlier ones to a file when there are many. The file is removed with the list.
#[derive(Debug)]
pub struct Spill<T> {
    /// The numbers after those in the file.
    held: Vec<T>,
    limit: usize,
    file: Option<File>,
    /// Numbers in the file.
    spilled: u64,
    path: PathBuf,
    /// Those that were requested last, if they are in the file.
    asked: Vec<T>,
}

impl<T: bytemuck::Pod> Spill<T> {
    /// An empty list; `path` is for the file, which is made when more than `limit` numbers are held.
    pub fn new(path: PathBuf, limit: usize) -> Self {
        Self { held: Vec::new(), limit, file: None, spilled: 0, path, asked: Vec::new() }
    }

    /// Number of numbers.
    pub fn len(&self) -> u64 {
        self.spilled + self.held.len() as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a number.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn push(&mut self, value: T) -> Result<()> {
        self.extend(&[value])
    }

    /// Appends numbers.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn extend(&mut self, values: &[T]) -> Result<()> {
        if self.held.len() + values.len() > self.limit && !self.held.is_empty() {
            self.spill()?;
        }
        self.held.extend_from_slice(values);
        Ok(())
    }

    fn spill(&mut self) -> Result<()> {
        let io = || Error::io(&self.path, "write");
        if self.file.is_none() {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(true);
            self.file = Some(options.open(&self.path).map_err(io())?);
        }
        let file = self.file.as_mut().expect("opened just above");
        file.seek(SeekFrom::Start(self.spilled * size_of::<T>() as u64))
            .and_then(|_| file.write_all(bytemuck::cast_slice(&self.held)))
            .map_err(io())?;
        self.spilled += self.held.len() as u64;
        self.held.clear();
        Ok(())
    }

    /// Gives all numbers in order, in pieces.
    ///
    /// # Errors
    /// If the file cannot be read, and those of `take`.
    pub fn for_each<E: From<Error>>(
        &mut self,
        mut take: impl FnMut(&[T]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if let Some(file) = &mut self.file {
            let io = || Error::io(&self.path, "read");
            file.rewind().map_err(io())?;
            let mut reader = BufReader::with_capacity(1 << 18, &*file);
            let mut piece = [T::zeroed(); 1 << 12];
            let mut left = self.spilled as usize;
            while left > 0 {
                let count = left.min(piece.len());
                reader.read_exact(bytemuck::cast_slice_mut(&mut piece[..count])).map_err(io())?;
                take(&piece[..count])?;
                left -= count;
            }
        }
        take(&self.held)
    }

    /// The numbers of `range`, which must have been appended.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn get(&mut self, range: Range<u64>) -> Result<&[T]> {
        if range.start >= self.spilled {
            let held = |at: u64| (at - self.spilled) as usize;
            return Ok(&self.held[held(range.start)..held(range.end)]);
        }
        let in_file = (range.end.min(self.spilled) - range.start) as usize;
        self.asked.clear();
        self.asked.resize(in_file, T::zeroed());
        let file = self.file.as_mut().expect("what is not held is in the file");
        read_at(file, bytemuck::cast_slice_mut(&mut self.asked), range.start * size_of::<T>() as u64)
            .map_err(Error::io(&self.path, "read"))?;
        self.asked.extend_from_slice(&self.held[..range.end.saturating_sub(self.spilled) as usize]);
        Ok(&self.asked)
    }

    /// Forgets all numbers.
    pub fn clear(&mut self) {
        self.held = Vec::new();
        self.spilled = 0;
    }
}

/// One call of the system where it has one.
#[cfg(unix)]
fn read_at(file: &mut File, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(not(unix))]
fn read_at(file: &mut File, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(bytes)
}

impl<T> Drop for Spill<T> {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            // Nothing can be done about a file that does not go away.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_in_order_and_the_file_goes_away() {
        let dir = tempfile::tempdir().unwrap();
        let mut numbers = Spill::<i32>::new(dir.path().join("n"), 10_000);
        let count = 20_077;
        (0..count).for_each(|i| numbers.push(i).unwrap());
        assert_eq!(numbers.len(), count as u64);
        let mut next = 0;
        for _ in 0..2 {
            next = 0;
            numbers
                .for_each(|piece| {
                    for &n in piece {
                        assert_eq!(n, next);
                        next += 1;
                    }
                    Ok::<_, Error>(())
                })
                .unwrap();
        }
        assert_eq!(next, count);
        // In the file, on both sides, and held.
        for range in [5..9u64, 9_990..10_020, 19_999..20_003, 20_050..20_060, 3..3] {
            let want: Vec<i32> = (range.start as i32..range.end as i32).collect();
            assert_eq!(numbers.get(range).unwrap(), want);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        numbers.clear();
        assert!(numbers.is_empty());
        (0..11_000).for_each(|i| numbers.push(-i).unwrap());
        assert_eq!(numbers.get(4..6).unwrap(), [-4, -5]);
        drop(numbers);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
