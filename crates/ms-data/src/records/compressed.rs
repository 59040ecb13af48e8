//! Compressed inputs, decompressed while reading.

use std::io::{BufReader, Read, Result};
use std::path::Path;

/// How a file is compressed as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// `.gz`, one member or several.
    Gzip,
    /// `.zst`, one frame or several; windows up to 128 MB.
    Zstd,
    /// `.xz`, one stream or several.
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
            Self::Xz => Box::new(lzma_rust2::XzReader::new(BufReader::new(inner), true)),
        })
    }
}
