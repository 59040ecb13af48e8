//! MD5, which upstream uses to name its index files. For names only; not for security.
//!
//! Source: RFC 1321.

const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// The digest of a text, as 32 hexadecimal digits.
pub(super) fn md5_hex(text: &str) -> String {
    // Entry i is floor(2^32 * |sin(i + 1)|).
    let table: [u32; 64] = std::array::from_fn(|i| (((i + 1) as f64).sin().abs() * 4_294_967_296.0) as u32);
    let mut message = text.as_bytes().to_vec();
    message.push(0x80);
    message.resize((message.len() + 8).next_multiple_of(64) - 8, 0);
    message.extend_from_slice(&(text.len() as u64 * 8).to_le_bytes());
    let mut state = [0x6745_2301u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    for block in message.chunks_exact(64) {
        let word = |i: usize| u32::from_le_bytes(block[4 * i..4 * i + 4].try_into().expect("four bytes"));
        let [mut a, mut b, mut c, mut d] = state;
        for (i, constant) in table.iter().enumerate() {
            let (mix, at) = match i / 16 {
                0 => ((b & c) | (!b & d), i),
                1 => ((d & b) | (!d & c), (5 * i + 1) % 16),
                2 => (b ^ c ^ d, (3 * i + 5) % 16),
                _ => (c ^ (b | !d), (7 * i) % 16),
            };
            let sum = a.wrapping_add(mix).wrapping_add(*constant).wrapping_add(word(at));
            (a, d, c) = (d, c, b);
            b = b.wrapping_add(sum.rotate_left(SHIFTS[i / 16][i % 4]));
        }
        for (total, value) in state.iter_mut().zip([a, b, c, d]) {
            *total = total.wrapping_add(value);
        }
    }
    state.iter().flat_map(|word| word.to_le_bytes()).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::md5_hex;

    #[test]
    fn the_digests_are_those_of_the_standard() {
        assert_eq!(md5_hex(""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(md5_hex("abc"), "900150983cd24fb0d6963f7d28e17f72");
        let long = "1234567890".repeat(8);
        assert_eq!(md5_hex(&long), "57edf4a22be3c955ac49da2e2107b67a");
    }
}
