//! ZIP archives such as `.pt` files: the central directory, validated before use.

use std::collections::BTreeMap;
use std::ops::Range;

const END: u32 = 0x0605_4b50;
const END64: u32 = 0x0606_4b50;
const LOCATOR64: u32 = 0x0706_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const LOCAL: u32 = 0x0403_4b50;

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn at(&self, start: u64, len: u64) -> Result<&'a [u8], String> {
        let end = start.checked_add(len).filter(|&e| e <= self.0.len() as u64);
        let end =
            end.ok_or_else(|| format!("bytes {start}+{len} are outside the file of {} bytes", self.0.len()))?;
        Ok(&self.0[start as usize..end as usize])
    }

    fn u16(&self, at: u64) -> Result<u64, String> {
        Ok(u64::from(u16::from_le_bytes(self.at(at, 2)?.try_into().expect("two bytes"))))
    }

    fn u32(&self, at: u64) -> Result<u64, String> {
        Ok(u64::from(u32::from_le_bytes(self.at(at, 4)?.try_into().expect("four bytes"))))
    }

    fn u64(&self, at: u64) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.at(at, 8)?.try_into().expect("eight bytes")))
    }
}

/// The stored entries of an archive: name to byte range in the file.
///
/// # Errors
/// What is wrong, with offsets, for a damaged archive, a compressed or encrypted entry, or entries that share bytes: reading all
/// of those would take longer than the file is large.
pub fn entries(file: &[u8]) -> Result<BTreeMap<String, Range<usize>>, String> {
    let b = Bytes(file);
    let end = find_end(&b)?;
    let (mut count, mut size, mut start) = (b.u16(end + 10)?, b.u32(end + 12)?, b.u32(end + 16)?);
    if (count == 0xffff || size == 0xffff_ffff || start == 0xffff_ffff)
        && let Some(locator) = end.checked_sub(20)
        && b.u32(locator)? == u64::from(LOCATOR64)
    {
        let end64 = b.u64(locator + 8)?;
        if b.u32(end64)? != u64::from(END64) {
            return Err(format!("no zip64 end record at byte {end64}"));
        }
        (count, size, start) = (b.u64(end64 + 32)?, b.u64(end64 + 40)?, b.u64(end64 + 48)?);
    }
    b.at(start, size)?;
    // An entry of the directory has at least 46 bytes: a false count cannot make the loop long.
    if count > size / 46 {
        return Err(format!("{count} entries do not fit in a directory of {size} bytes"));
    }
    let mut all = BTreeMap::new();
    let mut at = start;
    for _ in 0..count {
        if b.u32(at)? != u64::from(CENTRAL) {
            return Err(format!("no directory entry at byte {at}"));
        }
        let (flags, method) = (b.u16(at + 8)?, b.u16(at + 10)?);
        let (mut packed, mut plain) = (b.u32(at + 20)?, b.u32(at + 24)?);
        let (name_len, extra_len, comment_len) = (b.u16(at + 28)?, b.u16(at + 30)?, b.u16(at + 32)?);
        let mut local = b.u32(at + 42)?;
        let name = std::str::from_utf8(b.at(at + 46, name_len)?)
            .map_err(|_| format!("the name of the entry at byte {at} is not UTF-8"))?
            .to_owned();
        if flags & 1 != 0 || method != 0 || packed != plain {
            return Err(format!("entry {name} is compressed or encrypted; a .pt file stores its entries"));
        }
        if packed == 0xffff_ffff || local == 0xffff_ffff {
            (plain, packed, local) = wide(&b, at + 46 + name_len, extra_len, plain, packed, local)
                .map_err(|e| format!("entry {name}: {e}"))?;
            if packed != plain {
                return Err(format!("entry {name} is compressed"));
            }
        }
        if b.u32(local)? != u64::from(LOCAL) {
            return Err(format!("entry {name}: no local header at byte {local}"));
        }
        let data = local + 30 + b.u16(local + 26)? + b.u16(local + 28)?;
        b.at(data, plain).map_err(|e| format!("entry {name}: {e}"))?;
        if all.insert(name.clone(), data as usize..(data + plain) as usize).is_some() {
            return Err(format!("entry {name} occurs twice"));
        }
        at += 46 + name_len + extra_len + comment_len;
    }
    let mut filled: Vec<(&String, &Range<usize>)> =
        all.iter().filter(|(_, range)| !range.is_empty()).collect();
    filled.sort_by_key(|(_, range)| range.start);
    match filled.windows(2).find(|pair| pair[0].1.end > pair[1].1.start) {
        Some(pair) => Err(format!("entries {} and {} share bytes", pair[0].0, pair[1].0)),
        None => Ok(all),
    }
}

/// Position of the end record: the last one whose comment reaches the end of the file.
fn find_end(b: &Bytes<'_>) -> Result<u64, String> {
    let len = b.0.len() as u64;
    let first = len.saturating_sub(22 + 0xffff);
    let mut at = len.checked_sub(22).ok_or_else(|| format!("no zip archive: {len} bytes"))?;
    loop {
        if b.u32(at)? == u64::from(END) && at + 22 + b.u16(at + 20)? == len {
            return Ok(at);
        }
        if at == first {
            return Err("no zip end record".to_owned());
        }
        at -= 1;
    }
}

/// Sizes and offset from the zip64 extra field: only those that overflow are in it, in this order.
fn wide(
    b: &Bytes<'_>,
    at: u64,
    len: u64,
    plain: u64,
    packed: u64,
    local: u64,
) -> Result<(u64, u64, u64), String> {
    let mut values = [plain, packed, local];
    let mut i = 0;
    while i + 4 <= len {
        let (id, size) = (b.u16(at + i)?, b.u16(at + i + 2)?);
        if id == 1 {
            let mut next = 0;
            for value in &mut values {
                if *value == 0xffff_ffff {
                    if next + 8 > size {
                        return Err("its zip64 field is too short".to_owned());
                    }
                    *value = b.u64(at + i + 4 + next)?;
                    next += 8;
                }
            }
            return Ok((values[0], values[1], values[2]));
        }
        i += 4 + size;
    }
    Err("its zip64 field is missing".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive of 20 bytes of contents, at which entries of these places and lengths point.
    fn archive(entries: &[(u32, u32)]) -> Vec<u8> {
        let mut out = [b"PK\x03\x04", &[0; 26][..], &[7; 20]].concat();
        let mut directory = Vec::new();
        for (number, (at, len)) in entries.iter().enumerate() {
            // Local headers are read for the length of what stands behind them: 30 bytes before the contents.
            let [at, len] = [at, len].map(|n| n.to_le_bytes());
            directory.extend([b"PK\x01\x02", &[0; 16][..], &len, &len, &[1, 0], &[0; 12], &at].concat());
            directory.push(b'a' + number as u8);
        }
        let [count, size, start] =
            [entries.len(), directory.len(), out.len()].map(|n| (n as u32).to_le_bytes());
        out.extend(&directory);
        out.extend([b"PK\x05\x06", &[0; 4][..], &count[..2], &count[..2], &size, &start, &[0; 2]].concat());
        out
    }

    #[test]
    fn entries_that_share_bytes_are_refused_and_empty_ones_share_none() {
        assert_eq!(entries(&archive(&[(0, 20)])).unwrap()["a"], 30..50);
        assert_eq!(entries(&archive(&[(0, 20), (0, 0), (0, 0)])).unwrap().len(), 3);
        assert_eq!(entries(&archive(&[(0, 20), (0, 7)])).unwrap_err(), "entries a and b share bytes");
    }
}
