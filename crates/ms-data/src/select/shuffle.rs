//! Records in random order, in bounded memory.
//!
//! Every record gets 64 random bits from the seed and its position; records are sorted by these numbers. What does not fit
//! into memory is distributed to files by the upper bits, and each file is sorted when its turn comes. So the order depends
//! neither on the memory limit nor on the number of files.

use super::place_hash;
use crate::records::RawRecord;
use crate::{Error, Result};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files that records are dealt to at once, as bits.
const FAN_BITS: u32 = 7;
/// Buffer of each of these files.
const FILE_BUFFER: usize = 1 << 16;

/// How records are shuffled (`--shuffle`).
#[derive(Clone, Debug)]
pub struct Shuffle {
    /// Decides the order.
    pub seed: u64,
    /// Bytes of records that are held at once; a single record may be larger.
    pub memory: usize,
    /// Folder for what does not fit; it is made when it is needed and removed at the end.
    pub folder: PathBuf,
}

/// The records in random order. The first call of `next` reads all of them.
pub fn shuffled<I>(records: I, how: Shuffle) -> impl Iterator<Item = Result<RawRecord>> + Send
where
    I: Iterator<Item = Result<RawRecord>> + Send,
{
    Shuffled {
        input: Some(records),
        state: State { how, spill: None, ready: VecDeque::new(), left: Vec::new() },
    }
}

struct Shuffled<I> {
    input: Option<I>,
    state: State,
}

struct State {
    how: Shuffle,
    spill: Option<SpillFolder>,
    /// Records in their final order.
    ready: VecDeque<RawRecord>,
    /// Files that follow, the next one last.
    left: Vec<Bucket>,
}

/// Records whose keys agree in their upper `bits`.
struct Bucket {
    path: PathBuf,
    bytes: u64,
    bits: u32,
}

/// A folder that goes away with its contents.
struct SpillFolder(PathBuf);

impl Drop for SpillFolder {
    fn drop(&mut self) {
        // Nothing can be done about a folder that does not go away.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl<I: Iterator<Item = Result<RawRecord>>> Iterator for Shuffled<I> {
    type Item = Result<RawRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        let result = match self.input.take() {
            Some(input) => self.state.deal(input, 0),
            None => Ok(()),
        };
        match result.and_then(|()| self.state.next()) {
            Ok(record) => record.map(Ok),
            Err(error) => {
                self.state.left.clear();
                self.state.ready.clear();
                Some(Err(error))
            }
        }
    }
}

impl State {
    fn next(&mut self) -> Result<Option<RawRecord>> {
        loop {
            if let Some(record) = self.ready.pop_front() {
                return Ok(Some(record));
            }
            let Some(bucket) = self.left.pop() else {
                self.spill = None;
                return Ok(None);
            };
            let file = File::open(&bucket.path).map_err(Error::io(&bucket.path))?;
            let records =
                SpilledRecords { reader: BufReader::with_capacity(1 << 18, file), path: bucket.path.clone() };
            if bucket.bytes > self.how.memory as u64 && bucket.bits + FAN_BITS <= 64 {
                self.deal(records, bucket.bits)?;
            } else {
                let all = records.collect::<Result<Vec<_>>>()?;
                self.order(all);
            }
            std::fs::remove_file(&bucket.path).map_err(Error::io(&bucket.path))?;
        }
    }

    fn key(&self, record: &RawRecord) -> u64 {
        place_hash(self.how.seed, record.file, record.number)
    }

    fn order(&mut self, mut records: Vec<RawRecord>) {
        records.sort_by_cached_key(|record| (self.key(record), record.file, record.number));
        self.ready = records.into();
    }

    /// Takes all records, whose keys agree in their upper `bits`: into memory, or into files if they are too many.
    fn deal(&mut self, records: impl Iterator<Item = Result<RawRecord>>, bits: u32) -> Result<()> {
        let mut held = Vec::new();
        let mut held_bytes = 0;
        let mut files: Option<Vec<(BufWriter<File>, PathBuf, u64)>> = None;
        for record in records {
            let record = record?;
            if let Some(files) = &mut files {
                self.spill_one(files, &record, bits)?;
                continue;
            }
            held_bytes += record.size() + std::mem::size_of::<RawRecord>();
            held.push(record);
            if held_bytes > self.how.memory {
                let mut opened = self.open_files(bits)?;
                for record in held.drain(..) {
                    self.spill_one(&mut opened, &record, bits)?;
                }
                files = Some(opened);
            }
        }
        let Some(files) = files else {
            self.order(held);
            return Ok(());
        };
        for (writer, path, bytes) in files.into_iter().rev() {
            drop(writer.into_inner().map_err(|e| Error::Io { path: path.clone(), source: e.into_error() })?);
            if bytes > 0 {
                self.left.push(Bucket { path, bytes, bits: bits + FAN_BITS });
            }
        }
        Ok(())
    }

    fn open_files(&mut self, bits: u32) -> Result<Vec<(BufWriter<File>, PathBuf, u64)>> {
        let folder = match &self.spill {
            Some(folder) => folder.0.clone(),
            None => {
                if let Some(parent) = self.how.folder.parent() {
                    std::fs::create_dir_all(parent).map_err(Error::io(parent))?;
                }
                // The folder of another run must not be used, as it is removed at the end.
                std::fs::create_dir(&self.how.folder).map_err(Error::io(&self.how.folder))?;
                self.spill = Some(SpillFolder(self.how.folder.clone()));
                self.how.folder.clone()
            }
        };
        // Files of an outer level still wait in `left`; names carry the level.
        (0..1u32 << FAN_BITS)
            .map(|number| {
                let path = folder.join(format!("{bits}-{number}"));
                let file = File::create(&path).map_err(Error::io(&path))?;
                Ok((BufWriter::with_capacity(FILE_BUFFER, file), path, 0))
            })
            .collect()
    }

    fn spill_one(
        &self,
        files: &mut [(BufWriter<File>, PathBuf, u64)],
        record: &RawRecord,
        bits: u32,
    ) -> Result<()> {
        let number = (self.key(record) << bits) >> (64 - FAN_BITS);
        let (writer, path, bytes) = &mut files[number as usize];
        let written = write_record(writer, record).map_err(Error::io(path.as_path()))?;
        *bytes += written;
        Ok(())
    }
}

/// File number, number, line, path length, content kind and length, then path and content. Private to one run.
fn write_record(out: &mut impl Write, record: &RawRecord) -> std::io::Result<u64> {
    let (kind, content) = record.portable();
    let path = record.path.as_os_str().as_encoded_bytes();
    out.write_all(&record.file.to_le_bytes())?;
    out.write_all(&record.number.to_le_bytes())?;
    out.write_all(&record.line.to_le_bytes())?;
    out.write_all(&(path.len() as u32).to_le_bytes())?;
    out.write_all(&[kind])?;
    out.write_all(&(content.len() as u64).to_le_bytes())?;
    out.write_all(path)?;
    out.write_all(&content)?;
    Ok((33 + path.len() + content.len()) as u64)
}

struct SpilledRecords {
    reader: BufReader<File>,
    path: PathBuf,
}

impl SpilledRecords {
    fn read(&mut self) -> std::io::Result<Option<RawRecord>> {
        let mut head = [0; 33];
        let mut filled = 0;
        while filled < head.len() {
            match self.reader.read(&mut head[filled..])? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        let u32_at = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let (path_bytes, kind, length) = (u32_at(20), head[24], u64_at(25));
        let mut bytes = |length: u64| {
            let mut out = Vec::new();
            self.reader.by_ref().take(length).read_to_end(&mut out)?;
            if out.len() as u64 == length {
                Ok(out)
            } else {
                Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof))
            }
        };
        let path = bytes(path_bytes.into())?;
        let content = bytes(length)?;
        let path: Arc<Path> = Arc::from(path_of(path).as_path());
        Ok(Some(RawRecord::of_portable(path, (u32_at(0), u64_at(4), u64_at(12)), kind, content)))
    }
}

impl Iterator for SpilledRecords {
    type Item = Result<RawRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().map_err(Error::io(&self.path)).transpose()
    }
}

#[cfg(unix)]
fn path_of(bytes: Vec<u8>) -> PathBuf {
    use std::os::unix::ffi::OsStringExt as _;
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(not(unix))]
fn path_of(bytes: Vec<u8>) -> PathBuf {
    String::from_utf8_lossy(&bytes).into_owned().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(count: u64) -> impl Iterator<Item = Result<RawRecord>> + Send {
        let path: Arc<Path> = Arc::from(Path::new("in.jsonl"));
        (0..count).map(move |i| {
            let json = format!("{{\"n\": {i}, \"x\": \"{}\"}}", "y".repeat(i as usize % 50));
            Ok(RawRecord::of_json(Arc::clone(&path), (i % 3) as u32, i + 1, i + 1, json.into_bytes()))
        })
    }

    fn numbers(count: u64, memory: usize, seed: u64, folder: &Path) -> Vec<u64> {
        let how = Shuffle { seed, memory, folder: folder.join("spill") };
        shuffled(records(count), how)
            .map(|record| {
                let record = record.unwrap();
                assert_eq!(record.parse().unwrap()["n"], record.number - 1);
                record.number
            })
            .collect()
    }

    #[test]
    fn the_order_does_not_depend_on_the_memory_and_no_file_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let all = numbers(20_000, 1 << 30, 5, dir.path());
        // A few files, and files that have to be dealt again.
        assert_eq!(all, numbers(20_000, 1 << 18, 5, dir.path()));
        assert_eq!(all, numbers(20_000, 3000, 5, dir.path()));
        assert_ne!(all, numbers(20_000, 1 << 30, 6, dir.path()));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (1..=20_000).collect::<Vec<_>>());
        // About half of the neighbours go up.
        let rising = all.windows(2).filter(|w| w[0] < w[1]).count();
        assert!((9_700..10_300).contains(&rising), "{rising}");
    }

    #[test]
    fn an_error_ends_the_order() {
        let dir = tempfile::tempdir().unwrap();
        let broken = records(10).chain([Err(Error::options("broken"))]);
        let how = Shuffle { seed: 1, memory: 1 << 20, folder: dir.path().join("spill") };
        let all: Vec<_> = shuffled(broken, how).collect();
        assert_eq!(all.len(), 1);
        assert!(all[0].is_err());
    }
}
