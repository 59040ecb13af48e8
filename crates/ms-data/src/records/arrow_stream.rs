//! Record batches of Arrow IPC files and streams, message by message.
//!
//! An IPC file (Feather V2) is a stream with a magic number before it and a table of contents after it, so both are read in
//! one way, also through a pipe. Sizes that messages claim are checked before anything is allocated for them.

use arrow_array::RecordBatch as Rows;
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::{BodyCompression, Message, RecordBatch};
use std::io::{Error, ErrorKind, Read, Result};

const FILE_MAGIC: &[u8; 8] = b"ARROW1\0\0";
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Longest metadata and body of a message, in bytes, and largest body after decompression.
const MAX_METADATA: u64 = 1 << 26;
const MAX_BODY: u64 = 1 << 32;

/// Reads record batches one by one.
pub(super) struct ArrowBatches {
    input: Box<dyn Read + Send>,
    decoder: StreamDecoder,
    started: bool,
    is_file: bool,
    ended: bool,
}

impl ArrowBatches {
    pub(super) fn new(input: Box<dyn Read + Send>) -> Self {
        Self { input, decoder: StreamDecoder::new(), started: false, is_file: false, ended: false }
    }

    /// The next batch; `None` after the end mark.
    pub(super) fn next(&mut self) -> Result<Option<Rows>> {
        while !self.ended {
            let Some(message) = self.message()? else {
                self.ended = true;
                self.finish()?;
                break;
            };
            let mut buffer = Buffer::from_vec(message);
            let batch = self.decoder.decode(&mut buffer).map_err(|e| bad(e.to_string()))?;
            if batch.is_some() {
                return Ok(batch);
            }
        }
        Ok(None)
    }

    /// Reads what follows the end mark: of a file, the table of contents, which ends with the magic. A compressed input
    /// that is cut short there is noticed too.
    fn finish(&mut self) -> Result<()> {
        let mut last = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            match self.input.read(&mut buffer)? {
                0 => break,
                count => {
                    last.extend_from_slice(&buffer[..count]);
                    let extra = last.len().saturating_sub(6);
                    last.drain(..extra);
                }
            }
        }
        if self.is_file && last != FILE_MAGIC[..6] {
            return Err(bad("it is cut short: the magic at its end is missing"));
        }
        Ok(())
    }

    /// Length word, metadata and body of the next message; `None` at the end mark.
    fn message(&mut self) -> Result<Option<Vec<u8>>> {
        let mut start = self.bytes(8)?;
        if !self.started {
            self.started = true;
            if start == FILE_MAGIC {
                self.is_file = true;
                // Writers may pad up to 64 bytes after the magic number.
                for _ in 0..8 {
                    start = self.bytes(8)?;
                    if start != [0; 8] {
                        break;
                    }
                }
            } else if start.starts_with(b"FEA1") {
                return Err(bad("Feather version 1 is not read; write it again as Feather version 2"));
            }
        }
        if start.len() < 8 {
            return Err(bad("it is cut short: its end mark is missing"));
        }
        if start[..4] != CONTINUATION {
            return Err(bad("expected the start of an Arrow message"));
        }
        let length = u32::from_le_bytes(start[4..8].try_into().expect("four bytes"));
        if length == 0 {
            return Ok(None);
        }
        if u64::from(length) > MAX_METADATA {
            return Err(bad(format!("a message header of {length} bytes")));
        }
        let mut metadata = self.exactly(length.into())?;
        let message = arrow_ipc::root_as_message(&metadata)
            .map_err(|e| bad(format!("a broken message header: {e}")))?;
        let body = u64::try_from(message.bodyLength()).ok().filter(|&n| n <= MAX_BODY);
        let body = body.ok_or_else(|| bad("a message claims an impossible size"))?;
        let claims = Claims::of(&message);
        let body = self.exactly(body)?;
        claims.check(&body).map_err(bad)?;
        start.append(&mut metadata);
        start.extend_from_slice(&body);
        Ok(Some(start))
    }

    /// Up to `length` bytes.
    fn bytes(&mut self, length: u64) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(length.min(1 << 20) as usize);
        (&mut self.input).take(length).read_to_end(&mut out)?;
        Ok(out)
    }

    fn exactly(&mut self, length: u64) -> Result<Vec<u8>> {
        let out = self.bytes(length)?;
        if out.len() as u64 == length { Ok(out) } else { Err(bad("it is cut short inside a message")) }
    }
}

/// Where a message says that its compressed buffers lie.
struct Claims {
    compressed: Vec<(i64, i64)>,
}

impl Claims {
    fn of(message: &Message<'_>) -> Self {
        let batch = message
            .header_as_record_batch()
            .or_else(|| message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data()));
        let compressed = |batch: &RecordBatch<'_>| batch.compression().is_some_and(|_: BodyCompression| true);
        let places = batch.filter(compressed).and_then(|batch| batch.buffers());
        Self {
            compressed: places.into_iter().flatten().map(|place| (place.offset(), place.length())).collect(),
        }
    }

    /// A compressed buffer begins with the length that it will have; that is what would be allocated.
    fn check(&self, body: &[u8]) -> std::result::Result<(), String> {
        let mut sum = 0u64;
        for &(offset, length) in &self.compressed {
            if length == 0 {
                continue;
            }
            let word = usize::try_from(offset).ok().and_then(|at| body.get(at..at.checked_add(8)?));
            let word = word.ok_or("a buffer outside its message")?;
            let claim = i64::from_le_bytes(word.try_into().expect("eight bytes"));
            // -1 says that the buffer is not compressed after all.
            if claim < -1 {
                return Err(format!("a compressed buffer claims {claim} bytes"));
            }
            sum = sum.saturating_add(u64::try_from(claim).unwrap_or(0));
            if sum > MAX_BODY {
                return Err(format!("the compressed buffers of a message claim {sum} bytes or more"));
            }
        }
        Ok(())
    }
}

fn bad(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, reason.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffers_of_a_message_are_bounded_together() {
        let body: Vec<u8> = [MAX_BODY as i64 / 2, -1].iter().flat_map(|n| n.to_le_bytes()).collect();
        let check = |compressed: &[(i64, i64)]| Claims { compressed: compressed.to_vec() }.check(&body);
        assert_eq!(check(&[(0, 8), (0, 8), (8, 8), (0, 0)]), Ok(()));
        assert!(check(&[(0, 8), (0, 8), (0, 8)]).unwrap_err().contains("of a message claim"));
        assert!(check(&[(9, 8)]).is_err());
    }
}
