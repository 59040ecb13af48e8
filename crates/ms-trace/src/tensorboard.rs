//! TensorBoard event files.
//!
//! # Source
//! TensorFlow 2, `tensorflow/core/util/event.proto`, `summary.proto` and `lib/io/record_writer.cc`: a record is its
//! length (u64), a masked CRC-32C of the length, the bytes, a masked CRC-32C of the bytes; the bytes are a protobuf
//! `Event`.

use crate::Result;
use crate::error::at;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// An event file of one run.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: std::fs::File,
}

impl EventFile {
    /// A new event file in `dir`, which is created if it does not exist. TensorBoard merges several files of a
    /// folder, so a resumed run starts another one.
    ///
    /// # Errors
    /// If the folder or the file cannot be written.
    pub fn create(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(at(dir))?;
        let now = seconds();
        let path = dir.join(format!("events.out.tfevents.{}.{}.ms-tools", now as u64, std::process::id()));
        let file = std::fs::File::create(&path).map_err(at(&path))?;
        let mut this = Self { path, file };
        let mut event = Vec::new();
        field_f64(&mut event, 1, now);
        field_bytes(&mut event, 3, b"brain.Event:2");
        this.record(&event)?;
        Ok(this)
    }

    /// Writes one point of each series.
    ///
    /// # Errors
    /// If the disk is full.
    pub fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> Result<()> {
        let mut summary = Vec::new();
        for (tag, value) in values {
            let mut entry = Vec::new();
            field_bytes(&mut entry, 1, tag.as_bytes());
            key(&mut entry, 2, 5);
            entry.extend_from_slice(&(*value as f32).to_le_bytes());
            field_bytes(&mut summary, 1, &entry);
        }
        let mut event = Vec::new();
        field_f64(&mut event, 1, seconds());
        key(&mut event, 2, 0);
        varint(&mut event, step);
        field_bytes(&mut event, 5, &summary);
        self.record(&event)
    }

    fn record(&mut self, bytes: &[u8]) -> Result<()> {
        let len = (bytes.len() as u64).to_le_bytes();
        let mut record = Vec::with_capacity(bytes.len() + 16);
        record.extend_from_slice(&len);
        record.extend_from_slice(&masked_crc(&len).to_le_bytes());
        record.extend_from_slice(bytes);
        record.extend_from_slice(&masked_crc(bytes).to_le_bytes());
        self.file.write_all(&record).map_err(at(&self.path))
    }
}

fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn key(out: &mut Vec<u8>, field: u64, wire: u64) {
    varint(out, field << 3 | wire);
}

fn field_f64(out: &mut Vec<u8>, field: u64, value: f64) {
    key(out, field, 1);
    out.extend_from_slice(&value.to_le_bytes());
}

fn field_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    key(out, field, 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_carry_the_checksums_that_readers_demand() {
        // CRC-32C of "123456789" is 0xe3069283 (RFC 3720, appendix B.4 uses the same polynomial).
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked_crc(b"123456789"), 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8));
        let dir = tempfile::tempdir().unwrap();
        let mut events = EventFile::create(dir.path()).unwrap();
        events.scalars(300, &[("lm loss", 2.5)]).unwrap();
        let bytes = std::fs::read(&events.path).unwrap();
        let mut at = 0;
        let mut bodies = Vec::new();
        while at < bytes.len() {
            let len = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
            let crc = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap());
            assert_eq!(crc, masked_crc(&bytes[at..at + 8]));
            let body = &bytes[at + 12..at + 12 + len];
            let crc = u32::from_le_bytes(bytes[at + 12 + len..at + 16 + len].try_into().unwrap());
            assert_eq!(crc, masked_crc(body));
            bodies.push(body.to_vec());
            at += 16 + len;
        }
        assert_eq!(bodies.len(), 2);
        assert!(bodies[0].ends_with(b"brain.Event:2"));
        let tail = [
            &[0x10, 0xac, 0x02, 0x2a, 0x10, 0x0a, 0x0e, 0x0a, 0x07][..],
            b"lm loss",
            &[0x15],
            &2.5f32.to_le_bytes(),
        ]
        .concat();
        assert_eq!(bodies[1][9..], tail);
    }
}
