//! The character table of a `Precompiled` normaliser: whether lookups stay inside it.
//!
//! The reference engine walks the table without bounds checks, so a table that leads outside must be refused before an engine
//! sees it.

use super::base64;

/// A unit of the double array that is a value, not a step.
const VALUE: u32 = 1 << 31;

/// Checks a table in base64; returns the bytes of the longest text that it puts for others.
pub(super) fn check(table: &str) -> Result<usize, String> {
    let table = base64::decode(table.as_bytes()).ok_or("its table of characters is not base64")?;
    if !is_closed(&table) {
        return Err("its table of characters is damaged".into());
    }
    Ok(parts(&table).map_or(0, |(_, texts)| longest(texts)))
}

/// The units and the texts of a table: a length, that many bytes of units, and zero-terminated strings.
pub(crate) fn parts(table: &[u8]) -> Option<(&[u8], &[u8])> {
    let (size, rest) = table.split_first_chunk::<4>()?;
    let size = u32::from_le_bytes(*size) as usize;
    if size.is_multiple_of(4) { rest.split_at_checked(size) } else { None }
}

/// Bytes of the longest of zero-terminated texts.
pub(crate) fn longest(texts: &[u8]) -> usize {
    texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0)
}

/// Whether every step from every unit leads to a unit, and every value to the beginning of a text.
fn is_closed(table: &[u8]) -> bool {
    let Some((units, texts)) = parts(table).filter(|(units, _)| !units.is_empty()) else { return false };
    let Ok(texts) = std::str::from_utf8(texts) else { return false };
    let units: Vec<u32> = units.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    units.iter().enumerate().filter(|(_, unit)| **unit & VALUE == 0).all(|(at, unit)| {
        let offset = (unit >> 10) << ((unit & (1 << 9)) >> 6);
        let next = at ^ offset as usize;
        let value = || {
            let value = units.get(next).map_or(u32::MAX, |v| v & !VALUE) as usize;
            texts.is_char_boundary(value)
        };
        // A step adds any byte to where it leads.
        (next | 0xff) < units.len() && (unit & (1 << 8) == 0 || value())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of 256 empty units, of which the first is `first`, and the text "x".
    fn table(first: u32) -> Vec<u8> {
        let mut bytes = 1024u32.to_le_bytes().to_vec();
        bytes.extend(first.to_le_bytes());
        bytes.resize(4 + 1024, 0);
        bytes.extend(b"x\0");
        bytes
    }

    #[test]
    fn a_table_that_leads_outside_is_refused() {
        assert!(is_closed(&table(0)));
        assert!(!is_closed(&table(1 << 20)), "a step beyond the units");
        assert!(!is_closed(&table(0)[..900]), "cut short");
        assert!(!is_closed(&[]));
        assert_eq!(check(&base64::encode(&table(0))), Ok(1));
        assert_eq!(
            check(&base64::encode(&table(1 << 20))).unwrap_err(),
            "its table of characters is damaged"
        );
    }

    #[test]
    fn a_value_that_points_behind_the_texts_is_refused() {
        let mut bytes = table(1 << 8 | 1 << 10); // a leaf: its value stands in unit 1
        bytes[8..12].copy_from_slice(&(VALUE | 1).to_le_bytes());
        assert!(is_closed(&bytes));
        bytes[8..12].copy_from_slice(&(VALUE | 99).to_le_bytes());
        assert!(!is_closed(&bytes));
    }
}
