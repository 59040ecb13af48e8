//! Samples that wait for their row: in memory, and in a file when they become many.

use crate::{Error, Result};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;

/// Tokens that are held before a file is used: 64 MB of ids and labels.
const MEMORY_TOKENS: usize = 8 << 20;

/// Input ids and labels of samples, one after the other.
#[derive(Debug)]
pub(super) struct SampleStore {
    /// The samples after those in the file: ids, then labels, of each.
    held: Vec<i32>,
    /// Numbers in the file.
    spilled: u64,
    file: Option<File>,
    path: PathBuf,
    limit: usize,
    /// Where each sample starts, in numbers; one entry more than samples.
    starts: Vec<u64>,
    buffer: Vec<i32>,
}

impl SampleStore {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            held: Vec::new(),
            spilled: 0,
            file: None,
            path,
            limit: MEMORY_TOKENS * 2,
            starts: vec![0],
            buffer: Vec::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn limit(&mut self, numbers: usize) {
        self.limit = numbers;
    }

    pub(super) fn push(&mut self, ids: &[i32], labels: &[i32]) -> Result<()> {
        self.held.extend_from_slice(ids);
        self.held.extend_from_slice(labels);
        self.starts.push(self.spilled + self.held.len() as u64);
        if self.held.len() > self.limit {
            self.spill()?;
        }
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
        file.seek(SeekFrom::Start(self.spilled * 4))
            .and_then(|_| file.write_all(bytemuck::cast_slice(&self.held)))
            .map_err(io())?;
        self.spilled += self.held.len() as u64;
        self.held.clear();
        Ok(())
    }

    /// Ids and labels of sample `i`.
    pub(super) fn sample(&mut self, i: usize) -> Result<(&[i32], &[i32])> {
        let (start, count) = (self.starts[i], (self.starts[i + 1] - self.starts[i]) as usize);
        let numbers = if start >= self.spilled {
            let start = (start - self.spilled) as usize;
            &self.held[start..start + count]
        } else {
            let file = self.file.as_mut().expect("what is not held is in the file");
            self.buffer.resize(count, 0);
            let bytes = bytemuck::cast_slice_mut(&mut self.buffer);
            read_at(file, bytes, start * 4).map_err(Error::io(&self.path))?;
            &self.buffer
        };
        Ok(numbers.split_at(count / 2))
    }

    /// Forgets all samples.
    pub(super) fn clear(&mut self) {
        self.held = Vec::new();
        self.spilled = 0;
        self.starts = vec![0];
    }
}

/// One call of the system where it has one.
#[cfg(unix)]
fn read_at(file: &mut File, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(not(unix))]
fn read_at(file: &mut File, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
    use std::io::Read as _;
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(bytes)
}

impl Drop for SampleStore {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            // Nothing can be done about a file that does not go away.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
