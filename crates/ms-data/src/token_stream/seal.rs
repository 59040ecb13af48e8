//! A checksum for every message of a stream.
//!
//! Arrow has no field for one. It is stored after a message's header, within the padding that a header may have, so any Arrow
//! implementation can read these streams: [`TAG`], then the CRC-32C of header and body, then zeros.

use super::info::CHECKSUM;

/// How the checksum is recognised.
const TAG: [u8; 12] = *b"ms.crc32c\0\0\0";
/// Bytes of the whole: a body begins at a multiple of 64, as Arrow's writer has it.
const LENGTH: usize = 64;

fn sum(header: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(header), body)
}

/// Puts the checksum into an encapsulated message: continuation mark, length of the header, header, body.
pub(super) fn seal(message: &mut Vec<u8>) {
    let length = u32::from_le_bytes(message[4..8].try_into().expect("four bytes"));
    let end = 8 + length as usize;
    let mut mark = [0; LENGTH];
    mark[..TAG.len()].copy_from_slice(&TAG);
    mark[TAG.len()..16].copy_from_slice(&sum(&message[8..end], &message[end..]).to_le_bytes());
    message.splice(end..end, mark);
    message[4..8].copy_from_slice(&(length + LENGTH as u32).to_le_bytes());
}

/// Compares a message with its checksum. Whether it has one; streams of earlier versions have none, and their schemas
/// promise none.
///
/// # Errors
/// That its bytes are not those that were written; that it has none where it must have one.
pub(super) fn check(header: &[u8], body: &[u8], must: bool) -> Result<bool, String> {
    let must =
        must || (body.is_empty() && header.windows(CHECKSUM.len()).any(|text| text == CHECKSUM.as_bytes()));
    let mark = header.len().checked_sub(LENGTH).map(|at| header.split_at(at));
    let Some((header, mark)) = mark.filter(|(_, mark)| mark.starts_with(&TAG)) else {
        return if must { Err("a message has lost its checksum".into()) } else { Ok(false) };
    };
    let (noted, rest) = mark[TAG.len()..].split_at(4);
    if sum(header, body).to_le_bytes() != noted || rest.iter().any(|&byte| byte != 0) {
        return Err("its bytes are not those that were written (CRC-32C)".into());
    }
    Ok(true)
}
