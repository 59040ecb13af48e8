//! What is particular to `.xz`.

use super::*;

#[test]
fn an_xz_file_is_read_wherever_a_buffer_ends_in_it() {
    let dir = tempfile::tempdir().unwrap();
    // Digits that do not repeat, so that the padding behind the block lies around byte 8192.
    let mut x = 1u64;
    let mut text = String::from("{\"text\":\"");
    let mut around = 0;
    for length in 16_400..16_600 {
        while text.len() < length {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.push(char::from(b'0' + (x >> 33) as u8 % 10));
        }
        let bytes = packed(Compression::Xz, format!("{text}\"}}\n").as_bytes());
        if bytes.len().abs_diff(8192 + 32) <= 8 {
            assert_eq!(read(dir.path(), "a.jsonl.xz", &bytes).unwrap().len(), 1, "{length}");
            around += 1;
        }
    }
    assert!(around > 8, "{around}");
}

#[test]
fn an_xz_dictionary_beyond_the_limit_is_refused_before_there_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let sound = packed(Compression::Xz, b"{\"text\":\"one\"}\n");
    // A block header of 12 bytes behind that of the stream: sizes, filter, dictionary, padding and checksum.
    assert_eq!(sound[12..16], [2, 0, 0x21, 1]);
    let with = |dictionary: u8| {
        let mut bytes = sound.clone();
        bytes[16] = dictionary;
        let mut crc = flate2::Crc::new();
        crc.update(&bytes[12..20]);
        bytes[20..24].copy_from_slice(&crc.sum().to_le_bytes());
        read(dir.path(), "a.jsonl.xz", &bytes)
    };
    assert_eq!(with(30).unwrap().len(), 1, "128 MB");
    for larger in [31, 40] {
        let error = with(larger).unwrap_err().to_string();
        assert!(error.contains("a dictionary of at most 128 MB, found a larger one"), "{error}");
    }
}

#[test]
fn memory_that_a_reader_does_not_get_is_not_taken_for_a_dictionary() {
    struct Starved;
    impl std::io::Read for Starved {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::OutOfMemory.into())
        }
    }
    let mut reader = Compression::Xz.reader(Starved).unwrap();
    let error = std::io::Read::read(&mut reader, &mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory, "{error}");
}
