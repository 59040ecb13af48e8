//! Compressed inputs, decompressed while reading.

use std::io::{BufReader, Error, ErrorKind, Read, Result};
use std::path::Path;

/// The largest dictionary of an xz block, in MB: as large as a Zstandard window, whose limit is the library's own.
const MOST_MB: u32 = 128;

/// How a file is compressed as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// `.gz`, one member or several.
    Gzip,
    /// `.zst`, one frame or several; windows up to 128 MB.
    Zstd,
    /// `.xz`, one stream or several; dictionaries up to 128 MB.
    Xz,
}

impl Compression {
    /// By the last extension of a name.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "gz" => Some(Self::Gzip),
            "zst" => Some(Self::Zstd),
            "xz" => Some(Self::Xz),
            _ => None,
        }
    }

    /// By the first bytes of a stream.
    pub fn of_magic(start: &[u8]) -> Option<Self> {
        match start {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            _ => None,
        }
    }

    /// The decompressed bytes of `inner`. A truncated file is a read error, never a short file.
    pub(super) fn reader(self, inner: impl Read + Send + 'static) -> Result<Box<dyn Read + Send>> {
        Ok(match self {
            Self::Gzip => Box::new(flate2::read::MultiGzDecoder::new(inner)),
            Self::Zstd => Box::new(zstd::Decoder::new(inner)?),
            Self::Xz => {
                // Besides the dictionary a decoder needs about 100 KB; the size after this one is half as large again.
                let limit_kb = (MOST_MB + 1) << 10;
                Box::new(Xz(lzma_rust2::XzReader::new_mem_limit(BufReader::new(inner), true, limit_kb)))
            }
        })
    }
}

/// A reader whose limit of memory has a name in its error.
struct Xz<R: Read>(lzma_rust2::XzReader<R>);

impl<R: Read> Read for Xz<R> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        self.0.read(out).map_err(|error| match error.kind() {
            ErrorKind::OutOfMemory if error.to_string().contains("mem_limit") => Error::other(format!(
                "expected xz blocks with a dictionary of at most {MOST_MB} MB, found a larger one"
            )),
            _ => error,
        })
    }
}
