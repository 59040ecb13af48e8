//! Integer arrays in numpy's `.npy` files, version 1.0, the format of upstream's indices.

use crate::{AtomicFile, Error, Result};
use ms_files::Mapped;
use std::io::Write;
use std::path::Path;

const MAGIC: &[u8; 8] = b"\x93NUMPY\x01\x00";

/// An integer that has a name in numpy.
pub(crate) trait Integer: bytemuck::Pod {
    const DESCR: &'static str;
}

impl Integer for i16 {
    const DESCR: &'static str = "<i2";
}
impl Integer for i32 {
    const DESCR: &'static str = "<i4";
}
impl Integer for u32 {
    const DESCR: &'static str = "<u4";
}
impl Integer for i64 {
    const DESCR: &'static str = "<i8";
}

/// Writes an array with `columns` numbers in a row (0: one dimension), with the bytes that numpy would write.
pub(crate) fn write<T: Integer>(
    path: &Path,
    columns: usize,
    count: usize,
    pieces: impl Iterator<Item = T>,
) -> Result<()> {
    let shape = match count.checked_div(columns) {
        None => format!("({count},)"),
        Some(rows) => format!("({rows}, {columns})"),
    };
    let mut header = format!("{{'descr': '{}', 'fortran_order': False, 'shape': {shape}, }}", T::DESCR);
    // Magic, length and header together fill whole 64 bytes; the last one is a line end.
    while !(MAGIC.len() + 2 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut file = AtomicFile::create(path)?;
    let mut write = |bytes: &[u8]| file.write_all(bytes).map_err(Error::io(path));
    write(MAGIC)?;
    write(&(header.len() as u16).to_le_bytes())?;
    write(header.as_bytes())?;
    for value in pieces {
        // All of these types are little-endian in the file; big-endian machines are refused when reading.
        write(bytemuck::bytes_of(&value))?;
    }
    Ok(file.commit()?)
}

/// An array that was read: its numbers, widened, and the length of a row (0: one dimension).
pub(crate) struct Array {
    pub(crate) columns: usize,
    map: Mapped,
    start: usize,
    bytes: usize,
    unsigned: bool,
}

impl Array {
    /// Opens a file and checks its header against its length.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let bad = |reason: String| Error::Input {
            path: path.into(),
            reason: format!("not an index array: {reason}"),
        };
        let map = Mapped::open(path)?;
        let bytes = map.bytes();
        if bytes.len() < 10 || bytes[..8] != *MAGIC {
            return Err(bad("expected the magic of .npy version 1.0".into()));
        }
        let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        let header = bytes.get(10..start).and_then(|h| std::str::from_utf8(h).ok());
        let header = header.ok_or_else(|| bad("its header is cut short".into()))?;
        let descr = field(header, "'descr':").and_then(|rest| rest.split('\'').nth(1));
        let (size, unsigned) = match descr {
            Some("<i2") => (2, false),
            Some("<i4") => (4, false),
            Some("<u4") => (4, true),
            Some("<i8") => (8, false),
            other => return Err(bad(format!("numbers of type {other:?}"))),
        };
        if !field(header, "'fortran_order':").is_some_and(|rest| rest.trim_start().starts_with("False")) {
            return Err(bad("its rows are not one after the other".into()));
        }
        let shape = field(header, "'shape':").and_then(|rest| rest.split_once('(')?.1.split_once(')'));
        let (shape, _) = shape.ok_or_else(|| bad("it has no shape".into()))?;
        let shape: Option<Vec<usize>> =
            shape.split(',').map(str::trim).filter(|n| !n.is_empty()).map(|n| n.parse().ok()).collect();
        let (rows, columns) = match shape.as_deref() {
            Some([rows]) => (*rows, 0),
            Some([rows, columns]) if *columns > 0 => (*rows, *columns),
            other => return Err(bad(format!("of shape {other:?}"))),
        };
        let want = rows.checked_mul(columns.max(1)).and_then(|n| n.checked_mul(size)?.checked_add(start));
        if want != Some(bytes.len()) || cfg!(target_endian = "big") {
            return Err(bad(format!("its header does not fit its {} bytes", bytes.len())));
        }
        Ok(Self { columns, start, bytes: size, unsigned, map })
    }

    /// The numbers.
    pub(crate) fn values(&self) -> impl Iterator<Item = i64> + '_ {
        self.map.bytes()[self.start..].chunks_exact(self.bytes).map(|b| match (self.bytes, self.unsigned) {
            (2, _) => i16::from_le_bytes([b[0], b[1]]).into(),
            (4, false) => i32::from_le_bytes([b[0], b[1], b[2], b[3]]).into(),
            (4, true) => u32::from_le_bytes([b[0], b[1], b[2], b[3]]).into(),
            _ => i64::from_le_bytes(b.try_into().expect("eight bytes")),
        })
    }
}

fn field<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    Some(&header[header.find(name)? + name.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_come_back_and_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npy");
        write(&path, 2, 4, [1i64, -2, 3, 4].into_iter()).unwrap();
        let array = Array::open(&path).unwrap();
        assert_eq!((array.columns, array.values().collect::<Vec<_>>()), (2, vec![1, -2, 3, 4]));
        let sound = std::fs::read(&path).unwrap();
        assert_eq!(sound.len(), 128 + 32);
        assert!(sound[10..].starts_with(b"{'descr': '<i8', 'fortran_order': False, 'shape': (2, 2), } "));
        write(&path, 0, 2, [u32::MAX, 7].into_iter()).unwrap();
        assert_eq!(Array::open(&path).unwrap().values().collect::<Vec<_>>(), [4_294_967_295, 7]);
        for cut in [0, 5, 9, 50, sound.len() - 1] {
            std::fs::write(&path, &sound[..cut]).unwrap();
            assert!(Array::open(&path).is_err(), "{cut}");
        }
        let text = String::from_utf8_lossy(&sound).replace("(2, 2)", "(9, 9)");
        std::fs::write(&path, text.as_bytes()).unwrap();
        assert!(Array::open(&path).is_err());
    }
}
