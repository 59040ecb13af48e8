//! Long lists of numbers that are only appended to and read once, in bounded memory.

use crate::{Error, Result};
use std::fs::File;
use std::io::{BufReader, Read, Seek, Write};
use std::path::PathBuf;

/// Numbers that are held before a file is used.
const HELD: usize = 1 << 20;

/// A list of numbers; the earlier ones are in a file when there are many. The file goes away with the list.
#[derive(Debug)]
pub(super) struct Numbers<T> {
    held: Vec<T>,
    file: Option<File>,
    spilled: u64,
    path: PathBuf,
}

impl<T: bytemuck::Pod> Numbers<T> {
    /// An empty list; `path` is for the file.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { held: Vec::new(), file: None, spilled: 0, path }
    }

    pub(super) fn len(&self) -> u64 {
        self.spilled + self.held.len() as u64
    }

    pub(super) fn push(&mut self, value: T) -> Result<()> {
        if self.held.len() == HELD {
            self.spill()?;
        }
        self.held.push(value);
        Ok(())
    }

    fn spill(&mut self) -> Result<()> {
        let io = || Error::io(&self.path);
        if self.file.is_none() {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(true);
            self.file = Some(options.open(&self.path).map_err(io())?);
        }
        let file = self.file.as_mut().expect("opened just above");
        file.write_all(bytemuck::cast_slice(&self.held)).map_err(io())?;
        self.spilled += self.held.len() as u64;
        self.held.clear();
        Ok(())
    }

    /// Gives all numbers in order, in pieces.
    pub(super) fn for_each(&mut self, mut take: impl FnMut(&[T]) -> Result<()>) -> Result<()> {
        if let Some(file) = &mut self.file {
            let io = || Error::io(&self.path);
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
}

impl<T> Drop for Numbers<T> {
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
        let mut numbers = Numbers::<i32>::new(dir.path().join("n"));
        let count = 2 * HELD as i32 + 77;
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
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(next, count);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        drop(numbers);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
